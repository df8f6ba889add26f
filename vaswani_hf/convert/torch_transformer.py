"""Imports a state dict of `torch.nn.Transformer`.

`torch.nn.Transformer` contains only the encoder layers and decoder layers. The author of a translation model
implements the embeddings, the positions and the output projection, and chooses the names of their weights.
The user must write the names of the weights, the kind of positions and the number of heads into a file, and
name the file with the option `--config`.

Models with a `torch.nn.Transformer` differ from the paper in two points: the attention has biases; a
LayerNorm follows the last layer of each stack, even in post-norm models. PyTorch stores the projections of
queries, keys and values as one joint weight `in_proj_weight`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from ..model.configuration_vaswani import VaswaniConfig
from ..model.errors_vaswani import InvalidValueError
from ..model.modeling_vaswani import sinusoids
from ..settings.base import Settings
from .import_formats import Imported, ImportFormat, ReadOptions, has_texts, load_facts
from .unpickling import load_state_dict
from .weights import (
    WeightNames,
    add_biases,
    equal_embeddings,
    joint_names,
    norm_fields,
    stack_names,
    timescales_of,
    to_interleaved,
    weight_fields,
)

_TITLE = "torch.nn.Transformer"
# A pattern for the name of a weight that every `torch.nn.Transformer` has. If the `torch.nn.Transformer` is
# an attribute of a model, the name of the weight has a prefix, such as "transformer.".
_FIRST_WEIGHT = re.compile(r"^(.*\.)?decoder\.layers\.0\.multihead_attn\.in_proj_weight$")
_SINUSOIDAL, _NONE = "sinusoidal", "none"


class TorchTransformerFacts(Settings):
    """The settings in the file that `--config` names, such as the names of weights outside
    `torch.nn.Transformer`.
    """

    nhead: int = Field(ge=1)
    """the number of heads"""
    source_embedding: str
    """the name of the source embedding in the state dict"""
    target_embedding: str | None = None
    """the name of the target embedding; by default the target embedding is the source embedding"""
    output_weight: str | None = None
    """the name of the weight of the output projection; by default the weight is the target embedding"""
    output_bias: str | None = None
    """the name of the bias of the output projection; by default the output projection has no bias"""
    scale_embedding: bool
    """true if the model multiplies embeddings by the square root of d_model"""
    positions: str
    """"sinusoidal", "none", or the name of the position table in the state dict"""
    target_positions: str | None = None
    """the name of the position table of the target; by default the target has the position table of the
    source
    """
    ignored: list[str] = []
    """the names of weights that the import ignores, because translation does not use these weights"""
    pad_token_id: int = Field(ge=0)
    bos_token_id: int = Field(ge=0)
    """the id of the token that starts the decoder"""
    eos_token_id: int = Field(ge=0)
    activation: Literal["relu", "gelu"] = "relu"
    norm_first: bool = False
    """true if a LayerNorm precedes each sub-layer (pre-norm)"""
    layer_norm_eps: float = Field(1e-5, gt=0)
    dropout: float = Field(0.1, ge=0, lt=1)


NAMES = WeightNames(
    {
        **stack_names(
            {
                "linear1": "fc1",
                "linear2": "fc2",
                "self_attn.out_proj": "self_attn.out_proj",
                "norm1": "self_attn_layer_norm",
            },
            norm="norm",
        ),
        **stack_names({"norm2": "final_layer_norm"}, stacks=("encoder",)),
        **stack_names(
            {
                "multihead_attn.out_proj": "encoder_attn.out_proj",
                "norm2": "encoder_attn_layer_norm",
                "norm3": "final_layer_norm",
            },
            stacks=("decoder",),
        ),
        **joint_names({"self_attn": "self_attn", "multihead_attn": "encoder_attn"}),
    }
)


def read_torch_transformer(path: Path, options: ReadOptions) -> Imported:
    """Read a state dict of a model with a torch.nn.Transformer."""
    facts = load_facts(options.config, TorchTransformerFacts, _TITLE)
    state = load_state_dict(path, _FIRST_WEIGHT)
    stacks, others = _split(state)
    source = _matrix(others, facts, "source_embedding")
    target = _matrix(others, facts, "target_embedding", default=source)
    output = _matrix(others, facts, "output_weight", default=target)
    bias = None if facts.output_bias is None else _weight(others, facts, "output_bias")
    tables = _tables(others, facts)
    _refuse_unused(others, facts)

    own = NAMES.to_ours(stacks, _TITLE)
    own["model.encoder.embed_tokens.weight"] = source
    own["model.decoder.embed_tokens.weight"] = target
    own["lm_head.weight"] = output
    if bias is not None:
        own["lm_head.bias"] = bias
    add_biases(own)
    own, positions = _with_positions(own, facts, tables, options.timescales)
    norm_position = "pre" if facts.norm_first else "post"
    is_shared, is_tied = equal_embeddings(own, _TITLE)
    config = VaswaniConfig(
        **weight_fields(own, _TITLE, is_shared=is_shared, is_tied=is_tied),
        encoder_attention_heads=facts.nhead,
        decoder_attention_heads=facts.nhead,
        dropout=facts.dropout,
        attention_dropout=facts.dropout,
        activation_dropout=facts.dropout,
        activation_function=facts.activation,
        **norm_fields(own, norm_position, norm_position),
        layer_norm_eps=facts.layer_norm_eps,
        scale_embedding=facts.scale_embedding,
        bos_token_id=facts.bos_token_id,
        pad_token_id=facts.pad_token_id,
        eos_token_id=facts.eos_token_id,
        decoder_start_token_id=facts.bos_token_id,
        **positions,
    )

    def logits(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        is_padding = batch["attention_mask"] == 0
        target_length = batch["decoder_input_ids"].shape[1]
        states = _transformer(stacks, config)(
            _embed(batch["input_ids"], source, tables[0], config),
            _embed(batch["decoder_input_ids"], target, tables[1], config),
            tgt_mask=torch.ones(target_length, target_length, dtype=torch.bool).triu(1),
            src_key_padding_mask=is_padding,
            memory_key_padding_mask=is_padding,
        )  # [B, T, D]
        return nn.functional.linear(states, output, bias)  # [B, T, V]

    return Imported(
        config=config,
        state_dict=own,
        notes=["No tokenizers were written, because the state dict contains no vocabularies."],
        logits=logits,
    )


def _split(state: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Divide the weights into two dicts: the weights of `torch.nn.Transformer`, and all other weights. Remove
    the prefix, such as `transformer.`, from the names of the weights of `torch.nn.Transformer`.
    """
    prefix = next(found.group(1) or "" for name in state if (found := _FIRST_WEIGHT.match(name)))
    is_of_stack = re.compile(re.escape(prefix) + r"((?:encoder|decoder)\.(?:layers|norm)\..*)")
    stacks: dict[str, torch.Tensor] = {}
    others: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        found = is_of_stack.fullmatch(name)
        if found is None:
            others[name] = tensor
        else:
            stacks[found.group(1)] = tensor
    return stacks, others


def _weight(others: Mapping[str, torch.Tensor], facts: TorchTransformerFacts, key: str) -> torch.Tensor:
    """Return the weight whose name is in the field `key` of the settings `facts`."""
    name = getattr(facts, key)
    if name not in others:
        names = ", ".join(sorted(others)) or "no other weights; add the weight to the state dict"
        raise InvalidValueError(
            f"`{key}` must name a weight outside {_TITLE}, but is {name!r}; the state dict has {names}."
        )
    return others[name]


def _matrix(
    others: Mapping[str, torch.Tensor],
    facts: TorchTransformerFacts,
    key: str,
    default: torch.Tensor | None = None,
) -> torch.Tensor:
    """The attribute of `facts` with the name `key` contains the name of a weight. Return the weight, or
    `default` if the attribute is None. Remove dimensions of size 1 from the weight.
    """
    if getattr(facts, key) is None and default is not None:
        return default
    weight = _weight(others, facts, key)
    if weight.squeeze().dim() != 2:
        raise InvalidValueError(
            f"`{key}` must name a matrix, but {getattr(facts, key)} has the shape {tuple(weight.shape)}."
        )
    return weight.squeeze()


def _tables(
    others: Mapping[str, torch.Tensor], facts: TorchTransformerFacts
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the position tables [L, D] of the source and the target, or (None, None)."""
    if facts.positions in (_SINUSOIDAL, _NONE):
        if facts.target_positions is not None:
            raise InvalidValueError(
                f"`target_positions` must be left out if `positions` is {facts.positions}, but is "
                f"{facts.target_positions!r}."
            )
        return None, None
    source = _matrix(others, facts, "positions")
    target = _matrix(others, facts, "target_positions", default=source)
    if source.shape != target.shape:
        raise InvalidValueError(
            f"`target_positions` must have the shape {tuple(source.shape)} of the source positions, but has "
            f"the shape {tuple(target.shape)}."
        )
    return source, target


def _refuse_unused(others: Mapping[str, torch.Tensor], facts: TorchTransformerFacts) -> None:
    named = {value for value in facts.model_dump().values() if isinstance(value, str)}
    unused = sorted(others.keys() - named - set(facts.ignored))
    if unused:
        raise ValueError(
            f"The weight {unused[0]} is neither a weight of {_TITLE} nor named in the file of `config`; if "
            "translation does not use the weight, add the name to the key `ignored`."
        )


def _with_positions(
    state: dict[str, torch.Tensor],
    facts: TorchTransformerFacts,
    tables: tuple[torch.Tensor | None, torch.Tensor | None],
    timescales: str | None,
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Add the learned position tables to the weights. Return the weights and the config fields."""
    source, target = tables
    if source is None or target is None:
        return state, {"position_embedding": facts.positions, "position_timescales": timescales or "paper"}
    found = timescales_of(source)
    if found != timescales_of(target):
        raise InvalidValueError(
            f"`target_positions` must name a position table of the same kind as {facts.positions}, but "
            f"{facts.target_positions} is of another kind: only one of the two tables is learned, or the two "
            "tables use different formulas for the sinusoids."
        )
    if found is None:
        state["model.encoder.embed_positions.weight"] = source
        state["model.decoder.embed_positions.weight"] = target.clone()
        return state, {"position_embedding": "learned", "max_position_embeddings": len(source)}
    found_timescales, is_halves = found
    if timescales not in (None, found_timescales):
        raise InvalidValueError(
            f"`timescales` must be {found_timescales!r}, as in the table {facts.positions}, but is "
            f"{timescales!r}."
        )
    if is_halves:
        state = to_interleaved(state)
    return state, {"position_timescales": found_timescales}


def _embed(
    ids: torch.Tensor, weight: torch.Tensor, table: torch.Tensor | None, config: VaswaniConfig
) -> torch.Tensor:
    """Return the token embeddings plus the position embeddings [B, L, D] of token ids [B, L]."""
    length = ids.shape[1]
    if table is None:
        table = torch.zeros(length, config.d_model)
        if config.position_embedding == _SINUSOIDAL:
            table = sinusoids(torch.arange(length), config.d_model, config.position_timescales)
    scale = config.d_model**0.5 if config.scale_embedding else 1.0
    return nn.functional.embedding(ids, weight) * scale + table[:length]


def _transformer(stacks: Mapping[str, torch.Tensor], config: VaswaniConfig) -> nn.Transformer:
    """Create a `torch.nn.Transformer` in eval mode with the weights of the checkpoint."""
    sizes = (config.d_model, config.encoder_attention_heads)
    options: dict[str, Any] = {
        "activation": config.activation_function,
        "layer_norm_eps": config.layer_norm_eps,
        "batch_first": True,
        "norm_first": config.norm_position == "pre",
        "bias": config.attention_bias,
    }
    encoder_layer = nn.TransformerEncoderLayer(*sizes, config.encoder_ffn_dim, **options)
    decoder_layer = nn.TransformerDecoderLayer(*sizes, config.decoder_ffn_dim, **options)
    encoder = nn.TransformerEncoder(encoder_layer, config.encoder_layers, enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(decoder_layer, config.decoder_layers)
    if config.shape_of("encoder").has_final_norm:
        for stack in (encoder, decoder):
            stack.norm = nn.LayerNorm(config.d_model, config.layer_norm_eps, bias=config.attention_bias)
    transformer = nn.Transformer(*sizes, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)
    transformer.load_state_dict(dict(stacks))
    return transformer.eval()


TORCH_TRANSFORMER = ImportFormat(
    name="torch_transformer",
    title=_TITLE,
    recognise=has_texts("decoder.layers.0.multihead_attn.in_proj_weight"),
    read=read_torch_transformer,
    files=("*.pt", "*.pth"),
    keeps=(
        "Keeps the weights, the embeddings, the output projection and its bias, and the position table. If "
        "the position table contains sinusoids, the imported model has sinusoidal positions. If the position table contains no sinusoids, "
        "the imported model has learned positions."
    ),
    loses=(
        "`<pad>` gets the probability 0. The state dict has no tokenizers, so no tokenizers are written. "
        "`--config` names the embeddings and the output projection, because torch.nn.Transformer has no "
        "embeddings. A weight that is neither a part of torch.nn.Transformer nor named in the file of "
        "`--config` is refused."
    ),
    options=("timescales", "config"),
)
