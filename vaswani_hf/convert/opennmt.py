"""Imports checkpoints of OpenNMT-py 3. OpenNMT-py stores the weights in the `.pt` file, or in `.safetensors`
files in the same folder.

The models of OpenNMT-py differ from the paper in three points: pre-norm with a LayerNorm at the end of each
stack; an epsilon of 1e-6 in LayerNorm; an output projection with a bias. OpenNMT-py multiplies embeddings by
sqrt(d_model) only if the model has position encodings. The checkpoint contains the table of the position
encodings under the name `pe`. The position type "SinusoidalInterleaved" has the paper's sinusoids. The
position type "SinusoidalConcat" has tensor2tensor's sinusoids, with all sines in the first half of the
features. OpenNMT-py adds no `</s>` to source texts.

A checkpoint of OpenNMT-py contains its options under the key `opt` (an `argparse.Namespace`) and the
vocabularies (lists of tokens).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from ..checkpoint.tokenizers import Tokenizers
from ..model.configuration_vaswani import VaswaniConfig
from .import_formats import (
    Imported,
    ImportFormat,
    Logits,
    ReadOptions,
    Requirements,
    has_texts,
    refuse,
    require,
    require_all,
)
from .sentencepiece_models import NAME_THE_MODELS, source_and_target_tokenizers
from .unpickling import load_weights, weight_file
from .weights import (
    WeightNames,
    add_biases,
    stack_names,
    timescales_of,
    to_interleaved,
    weight_fields,
)
from .word_tokenizers import SpecialTokens

_TITLE = "OpenNMT-py"
DEFAULT_TOKENS = SpecialTokens(pad="<blank>")
# The activations of OpenNMT-py that this package supports with the same formula.
ACTIVATIONS = ("relu", "gelu")
_EMBEDDING = "embeddings.make_embedding.emb_luts.0.weight"
_TABLE = "embeddings.make_embedding.pe.pe"

NO_SHARED_HEADS = "this package does not support heads that share keys and values"
# The requirements for the settings that OpenNMT-py and Eole have in common.
REQUIRED_OF_BOTH: Requirements = {
    "relative_positions_buckets": (0, "only models with absolute positions can be imported"),
    "generator_function": ("softmax", "only models with a softmax over the vocabulary can be imported"),
    "parallel_residual": (
        False,
        "this package does not compute attention and feed-forward network in parallel",
    ),
    "sliding_window": (0, "the sliding window is not the same as `attention_window` in this package"),
    "num_experts": (0, "this package does not support several feed-forward networks (experts) in a layer"),
}
_REQUIRED: Requirements = {
    "model_task": ("seq2seq", "only translation models, with an encoder and a decoder, can be imported"),
    "encoder_type": ("transformer", "only Transformer models can be imported"),
    "decoder_type": ("transformer", "only Transformer models can be imported"),
    "self_attn_type": (
        ("scaled-dot", "scaled-dot-flash"),
        "only models with scaled dot-product self-attention can be imported",
    ),
    "max_relative_positions": (0, "only models with absolute positions can be imported"),
    "copy_attn": (False, "this package does not support a copy mechanism"),
    "layer_norm": ("standard", "only LayerNorm can be imported"),
    "pos_ffn_activation_fn": (
        ACTIVATIONS,
        "the activation must be ReLU or GELU, and the feed-forward network must not have gates",
    ),
    "lora_layers": ([], "the adapters must be merged into the weights first"),
    "lora_embedding": (False, "the adapters must be merged into the weights first"),
    "quant_layers": ([], "the weights must not be quantized"),
    **REQUIRED_OF_BOTH,
}


# Maps the names of an attention layer's four projections in OpenNMT-py and Eole to the names in this package.
PROJECTIONS = {
    "linear_query": "q_proj",
    "linear_keys": "k_proj",
    "linear_values": "v_proj",
    "final_linear": "out_proj",
}


_FEED_FORWARD = {
    "feed_forward.w_1": "fc1",
    "feed_forward.w_2": "fc2",
    "feed_forward.layer_norm": "final_layer_norm",
}
NAMES = WeightNames(
    {
        f"encoder.{_EMBEDDING}": "model.encoder.embed_tokens.weight",
        f"decoder.{_EMBEDDING}": "model.decoder.embed_tokens.weight",
        **stack_names(
            {"layer_norm": "self_attn_layer_norm", **_FEED_FORWARD},
            {"self_attn": "self_attn"},
            PROJECTIONS,
            stacks=("encoder",),
            layer="transformer.{}",
            norm="layer_norm",
        ),
        **stack_names(
            {
                "layer_norm_1": "self_attn_layer_norm",
                "layer_norm_2": "encoder_attn_layer_norm",
                **_FEED_FORWARD,
            },
            {"self_attn": "self_attn", "context_attn": "encoder_attn"},
            PROJECTIONS,
            stacks=("decoder",),
            layer="transformer_layers.{}",
            norm="layer_norm",
        ),
        "generator.weight": "lm_head.weight",
        "generator.bias": "lm_head.bias",
    },
    ignored=(f"encoder.{_TABLE}", f"decoder.{_TABLE}"),
)


def read_opennmt_py(path: Path, options: ReadOptions) -> Imported:
    """Read a checkpoint of OpenNMT-py."""
    path = weight_file(path)
    checkpoint = load_weights(path, ["argparse.Namespace"])
    opt = vars(checkpoint["opt"])
    require_all(opt, _REQUIRED)
    require("num_kv", opt.get("num_kv", 0), (0, opt["heads"]), NO_SHARED_HEADS)
    vocabularies = checkpoint["vocab"]
    require(
        "src_feats",
        "src_feats" in vocabularies,
        False,
        "this package does not support features of source tokens",
    )
    state = _state(path, checkpoint)
    own = NAMES.to_ours(state, _TITLE)
    tables = {
        name: state[f"{name}.{_TABLE}"] for name in ("encoder", "decoder") if f"{name}.{_TABLE}" in state
    }
    has_positions = bool(opt["position_encoding"])
    own, timescales = with_sinusoids(own, tables if has_positions else {})
    add_biases(own)
    start = vocabularies.get("decoder_start_token", DEFAULT_TOKENS.start)
    special = SpecialTokens(pad=DEFAULT_TOKENS.pad, start=start)
    config = VaswaniConfig(
        **weight_fields(
            own, _TITLE, is_shared=opt["share_embeddings"], is_tied=opt["share_decoder_embeddings"]
        ),
        **special_ids(vocabularies["tgt"], special),
        encoder_attention_heads=opt["heads"],
        decoder_attention_heads=opt["heads"],
        dropout=first_rate(opt.get("dropout", 0.1)),
        attention_dropout=first_rate(opt.get("attention_dropout", 0.1)),
        activation_dropout=first_rate(opt.get("dropout", 0.1)),
        activation_function=opt.get("pos_ffn_activation_fn", "relu"),
        norm_position="pre",
        layer_norm_eps=opt.get("norm_eps", 1e-6),
        position_embedding="sinusoidal" if has_positions else "none",
        position_timescales=timescales,
        scale_embedding=has_positions,
    )
    return Imported(
        config=config,
        state_dict=own,
        tokenizers=opennmt_tokenizers(
            (vocabularies["src"], vocabularies["tgt"]), options.vocabularies, special
        ),
        notes=[] if options.vocabularies else [NAME_THE_MODELS],
        logits=_logits_of_opennmt(checkpoint, state),
    )


def _logits_of_opennmt(checkpoint: Mapping[str, Any], state: Mapping[str, torch.Tensor]) -> Logits | None:
    """Return a function that computes logits with OpenNMT-py, or None if OpenNMT-py is not installed."""
    try:
        from onmt.inputters.inputter import dict_to_vocabs
        from onmt.model_builder import build_base_model
        from onmt.utils.parse import ArgumentParser
    except ImportError:
        return None
    opt = ArgumentParser.ckpt_model_opts(checkpoint["opt"])
    original = build_base_model(opt, dict_to_vocabs(checkpoint["vocab"]))
    tables = (f"encoder.{_TABLE}", f"decoder.{_TABLE}")
    load_into(original, {name: tensor for name, tensor in state.items() if name not in tables})

    def logits(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        target = batch["decoder_input_ids"].unsqueeze(-1)
        # OpenNMT-py ignores the last target token, so append an arbitrary token.
        target = torch.cat((target, target[:, :1]), dim=1)
        states, _ = original(batch["input_ids"].unsqueeze(-1), target, batch["attention_mask"].sum(dim=1))
        return original.generator(states)

    return logits


def load_into(model: Any, state: Mapping[str, torch.Tensor]) -> None:
    """Load weights into a model of OpenNMT-py or Eole. A bias that is missing in `state` is set to zero."""
    # Call `load_state_dict` of the base class, because the models of OpenNMT-py override this method with
    # different arguments.
    missing = set(torch.nn.Module.load_state_dict(model, state, strict=False).missing_keys)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in missing and name.endswith(".bias"):
                parameter.zero_()
    model.eval()


def _state(path: Path, checkpoint: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = {}
    if "model" in checkpoint:
        state.update(checkpoint["model"])
        for name, tensor in (checkpoint["generator"] or {}).items():
            # Remove the prefix "0.". In OpenNMT-py 2, the names of the output projection's weights have the
            # prefix "0.", because the output projection is the first module of an `nn.Sequential`.
            state[f"generator.{name.removeprefix('0.')}"] = tensor
    else:
        files = sorted(
            [*path.parent.glob(f"{path.stem}.safetensors"), *path.parent.glob(f"{path.stem}.*.safetensors")]
        )
        if not files:
            raise ValueError(
                f"'{path.name}' contains no weights, and its folder contains no file "
                f"{path.stem}.*.safetensors; copy the files with the weights to the folder."
            )
        for file in files:
            state.update(load_file(file))
    return state


def with_sinusoids(
    state: dict[str, torch.Tensor],
    tables: Mapping[str, torch.Tensor],
    without_tables: tuple[str, bool] = ("paper", False),
) -> tuple[dict[str, torch.Tensor], str]:
    """Return the weights, and the config field `position_timescales` for the sinusoids in the tables [L, 1,
    D]. If all sines are in the first half of the features, reorder the features, because sines and cosines
    alternate in this package. `without_tables` is the result of `timescales_of` for a model without tables.
    """
    matches = set()
    for name, table in tables.items():
        match = timescales_of(table.squeeze(1))
        if match is None:
            refuse(f"{name}.pe", tuple(table.shape), "the position table does not contain sinusoids")
        matches.add(match)
    if len(matches) > 1:
        refuse("pe", sorted(matches), "the encoder and the decoder must have the same position table")
    timescales, is_halves = matches.pop() if matches else without_tables
    if is_halves:
        state = to_interleaved(state)
    return state, timescales


def special_ids(tokens: list[str], special: SpecialTokens) -> dict[str, int]:
    """Return the config fields with the ids of the special tokens in the target vocabulary."""
    names = {"decoder_start_token": special.start, "eos_token": special.end, "pad_token": special.pad}
    for name, token in names.items():
        if token not in tokens:
            refuse(name, token, "the target vocabulary does not contain the token")
    return {
        "bos_token_id": tokens.index(special.start),
        "decoder_start_token_id": tokens.index(special.start),
        "eos_token_id": tokens.index(special.end),
        "pad_token_id": tokens.index(special.pad),
    }


def opennmt_tokenizers(
    vocabularies: Sequence[list[str]], model_files: Sequence[Path], special: SpecialTokens
) -> Tokenizers:
    """Create the source and the target tokenizer. OpenNMT-py and Eole add no `</s>` to source texts."""
    return source_and_target_tokenizers(
        [{token: index for index, token in enumerate(tokens)} for tokens in vocabularies],
        model_files,
        special,
        joiner=None,
        source_has_end=False,
    )


def first_rate(value: Any) -> float:
    """Return the dropout rate. If `value` is a list with one rate for each phase of the training, return the
    first rate.
    """
    return float(value[0] if isinstance(value, list) else value)


OPENNMT_PY = ImportFormat(
    name="opennmt_py",
    title=_TITLE,
    recognise=has_texts("decoder_start_token", "pos_ffn_activation_fn"),
    read=read_opennmt_py,
    files=("*.pt", "*.safetensors"),
    keeps=(
        "Keeps the weights, the output bias, the vocabularies and the sinusoids. With `--vocabularies`, "
        "the tokenizers segment texts with the SentencePiece models; without `--vocabularies`, tokens are "
        "separated by spaces."
    ),
    loses=(
        "`<blank>` gets the probability 0. Relative and rotary positions, copy attention, average "
        "attention, source features, gated feed-forward networks, RMSNorm, experts and adapters are "
        "refused. Vocabularies of OpenNMT-py 1 and 2 are refused; convert the file with "
        "`tools/convertv2_v3.py` of OpenNMT-py."
    ),
    options=("vocabularies",),
)
