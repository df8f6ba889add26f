"""Imports checkpoints of OpenNMT-py 3: a `.pt` file, or a `.pt` file with `.safetensors` files of the same
name.

The differences from the paper: pre-norm with a LayerNorm at the end of each stack; LayerNorm with `norm_eps`
1e-6; an output projection with a bias. Embeddings are multiplied by sqrt(d_model) only if the model has
positions. Positions are a table `pe` in the checkpoint: "SinusoidalInterleaved" are the paper's sinusoids,
and "SinusoidalConcat" are tensor2tensor's sinusoids with all sines in the first half. A source text has no
`</s>`.

The options `opt` are an `argparse.Namespace`. The vocabularies are lists of tokens.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ..model.configuration_vaswani import VaswaniConfig
from .formats import Tokenizers
from .import_formats import Imported, ImportFormat, ReadOptions, generation_config, refuse, require
from .sentencepiece_models import fast_tokenizer, read_sentencepiece
from .unpickling import header_of, load_weights, weight_file
from .weights import WeightNames, add_biases, shared_weights, sizes, timescales_of, to_interleaved

_TITLE = "OpenNMT-py"
PAD, START, END, UNKNOWN = "<blank>", "<s>", "</s>", "<unk>"
# The activations that have the same formula in this package.
ACTIVATIONS = ("relu", "gelu")
_EMBEDDING = "embeddings.make_embedding.emb_luts.0.weight"
_TABLE = "embeddings.make_embedding.pe.pe"

# For each option, the values that can be imported, and the reason for refusing other values.
_REQUIRED: dict[str, tuple[tuple[Any, ...], str]] = {
    "model_task": (("seq2seq",), "only a translation model has an encoder and a decoder"),
    "encoder_type": (("transformer",), "only a Transformer can be imported"),
    "decoder_type": (("transformer",), "only a Transformer can be imported"),
    "self_attn_type": (
        ("scaled-dot", "scaled-dot-flash"),
        "self-attention must be scaled dot-product attention",
    ),
    "max_relative_positions": ((0,), "only absolute positions can be imported"),
    "relative_positions_buckets": ((0,), "only absolute positions can be imported"),
    "copy_attn": ((False,), "this package has no copy mechanism"),
    "generator_function": (("softmax",), "only a softmax over the vocabulary can be imported"),
    "layer_norm": (("standard",), "only LayerNorm can be imported"),
    "parallel_residual": ((False,), "this package computes the sub-layers one after the other"),
    "pos_ffn_activation_fn": (ACTIVATIONS, "this package has no gate in the feed-forward network"),
    "sliding_window": ((0,), "the sliding window differs from `attention_window` of this package"),
    "num_experts": ((0,), "this package has one feed-forward network per layer"),
    "lora_layers": (([],), "the adapters must be merged into the weights first"),
    "lora_embedding": ((False,), "the adapters must be merged into the weights first"),
    "quant_layers": (([],), "the weights must not be quantized"),
}


# The names of the four projections of an attention layer, in OpenNMT-py and Eole, and in this package.
PROJECTIONS = {
    "linear_query": "q_proj",
    "linear_keys": "k_proj",
    "linear_values": "v_proj",
    "final_linear": "out_proj",
}


def _names() -> dict[str, str | tuple[str, ...]]:
    names: dict[str, str | tuple[str, ...]] = {}
    for stack in ("encoder", "decoder"):
        names[f"{stack}.{_EMBEDDING}"] = f"model.{stack}.embed_tokens.weight"
    attention_names = {
        "encoder": {"self_attn": "self_attn"},
        "decoder": {"self_attn": "self_attn", "context_attn": "encoder_attn"},
    }
    layers = {"encoder": "encoder.transformer.{}", "decoder": "decoder.transformer_layers.{}"}
    norms = {
        "encoder": {"layer_norm": "self_attn_layer_norm"},
        "decoder": {"layer_norm_1": "self_attn_layer_norm", "layer_norm_2": "encoder_attn_layer_norm"},
    }
    for stack, theirs in layers.items():
        modules = {
            "feed_forward.w_1": "fc1",
            "feed_forward.w_2": "fc2",
            "feed_forward.layer_norm": "final_layer_norm",
            **norms[stack],
        }
        for attention, own_attention in attention_names[stack].items():
            for linear, own in PROJECTIONS.items():
                modules[f"{attention}.{linear}"] = f"{own_attention}.{own}"
        for kind in ("weight", "bias"):
            for module, own in modules.items():
                names[f"{theirs}.{module}.{kind}"] = f"model.{stack}.layers.{{}}.{own}.{kind}"
            names[f"{stack}.layer_norm.{kind}"] = f"model.{stack}.layer_norm.{kind}"
            names[f"generator.{kind}"] = f"lm_head.{kind}"
    return names


NAMES = WeightNames(_names(), ignored=(f"encoder.{_TABLE}", f"decoder.{_TABLE}"))


def recognise_opennmt_py(path: Path) -> bool:
    """Return True for a `.pt` file with the options and the vocabularies of OpenNMT-py."""
    header = header_of(path)
    return b"decoder_start_token" in header and b"pos_ffn_activation_fn" in header


def read_opennmt_py(path: Path, options: ReadOptions) -> Imported:
    """Read a checkpoint of OpenNMT-py."""
    path = weight_file(path)
    checkpoint = load_weights(path, ["argparse.Namespace"])
    opt = vars(checkpoint["opt"])
    for field, (allowed, reason) in _REQUIRED.items():
        if field in opt and opt[field] not in allowed:
            refuse(field, opt[field], reason)
    if opt.get("num_kv", 0) not in (0, opt["heads"]):
        refuse("num_kv", opt["num_kv"], "this package has separate keys and values for each head")
    vocabularies = checkpoint["vocab"]
    require("src_feats", "src_feats" in vocabularies, False, "this package has no features of source tokens")
    state = _state(path, checkpoint)
    own = NAMES.to_ours(state, _TITLE)
    tables = {
        name: state[f"{name}.{_TABLE}"] for name in ("encoder", "decoder") if f"{name}.{_TABLE}" in state
    }
    has_positions = bool(opt["position_encoding"])
    own, timescales = with_sinusoids(own, tables if has_positions else {})
    add_biases(own)
    start = vocabularies.get("decoder_start_token", START)
    weight_fields = shared_weights(own, opt["share_embeddings"], opt["share_decoder_embeddings"])
    config = VaswaniConfig(
        **sizes(own, _TITLE),
        **weight_fields,
        **special_ids(vocabularies["tgt"], start=start),
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
    tokenizers, notes = read_tokenizers(vocabularies["src"], vocabularies["tgt"], start, options.vocabularies)
    return Imported(
        config=config,
        state_dict=own,
        generation_config=generation_config(config),
        tokenizers=tokenizers,
        notes=notes,
    )


def _state(path: Path, checkpoint: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the float32 weights, from the `.pt` file or from the `.safetensors` files."""
    state: dict[str, torch.Tensor] = {}
    if "model" in checkpoint:
        state.update(checkpoint["model"])
        for name, tensor in (checkpoint["generator"] or {}).items():
            # In version 2, the generator is a `nn.Sequential`, and its names begin with "0.".
            state[f"generator.{name.removeprefix('0.')}"] = tensor
    else:
        files = sorted(
            [*path.parent.glob(f"{path.stem}.safetensors"), *path.parent.glob(f"{path.stem}.*.safetensors")]
        )
        if not files:
            raise ValueError(
                f"'{path.name}' has no weights, and no file {path.stem}.*.safetensors is in the same folder; copy the "
                "weights to the folder."
            )
        for file in files:
            state.update(load_file(file))
    return {name: tensor.float() for name, tensor in state.items()}


def with_sinusoids(
    state: dict[str, torch.Tensor], tables: Mapping[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], str]:
    """Match the tables of positions [L, 1, D] with the formulas. Return the weights with alternating sines
    and cosines, and the timescales.
    """
    matches = set()
    for name, table in tables.items():
        match = timescales_of(table.squeeze(1))
        if match is None:
            refuse(f"{name}.pe", tuple(table.shape), "the table does not have sinusoids")
        matches.add(match)
    if len(matches) > 1:
        refuse("pe", sorted(matches), "the tables of the encoder and of the decoder differ")
    if not matches:
        return state, "paper"
    timescales, is_halves = matches.pop()
    if is_halves:
        state = to_interleaved(state, next(iter(tables.values())).shape[-1])
    return state, timescales


def special_ids(tokens: list[str], start: str, end: str = END, pad: str = PAD) -> dict[str, int]:
    """Return the ids of the special tokens in the target vocabulary."""
    for name, token in {"decoder_start_token": start, "eos_token": end, "pad_token": pad}.items():
        if token not in tokens:
            refuse(name, token, "the target vocabulary does not have the token")
    return {
        "bos_token_id": tokens.index(start),
        "decoder_start_token_id": tokens.index(start),
        "eos_token_id": tokens.index(end),
        "pad_token_id": tokens.index(pad),
    }


def read_tokenizers(
    source: list[str],
    target: list[str],
    start: str,
    files: tuple[Path, ...],
    end: str = END,
    pad: str = PAD,
    unknown: str = UNKNOWN,
) -> tuple[Tokenizers, list[str]]:
    """Create the tokenizers of two lists of tokens. Return the tokenizers and notes for the user.

    `files` are the SentencePiece models that have segmented the training data. Without SentencePiece models,
    the tokens of a text are separated by spaces.
    """
    if len(files) > 2:
        raise ValueError(
            f"`vocabularies` must be one or two SentencePiece models, but has {len(files)} files."
        )
    tokenizers = []
    for number, tokens in enumerate((source, target)):
        ids = {token: index for index, token in enumerate(tokens)}
        if files:
            model = read_sentencepiece(files[min(number, len(files) - 1)])
            tokenizer = fast_tokenizer(model, ids, end=end, unknown=unknown, pad=pad, start=start)
        else:
            backend = Tokenizer(models.WordLevel(ids, unk_token=unknown))
            backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
            backend.post_processor = processors.TemplateProcessing(
                single=["$A", end], pair=["$A", "$B", end], special_tokens=[(end, ids[end])]
            )
            tokenizer = PreTrainedTokenizerFast(
                tokenizer_object=backend,
                bos_token=start,
                pad_token=pad,
                eos_token=end,
                unk_token=unknown,
                clean_up_tokenization_spaces=False,
            )
        tokenizers.append(tokenizer)
    # Add no `</s>` to a source text, because OpenNMT-py and Eole add no `</s>`.
    tokenizers[0].backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=["$A"], pair=["$A", "$B"]
    )
    tokenizers[1].init_kwargs["shared_vocabulary"] = source == target
    notes = []
    if not files:
        notes.append(
            "The tokens of a text must be separated by spaces. If SentencePiece models have segmented the training "
            "data, name the models with `--vocabularies`."
        )
    return (tokenizers[0], tokenizers[1]), notes


def first_rate(value: Any) -> float:
    """Return the first dropout rate, because OpenNMT-py and Eole store a list with one rate for each phase of
    training.
    """
    return float(value[0] if isinstance(value, list) else value)


OPENNMT_PY = ImportFormat(
    name="opennmt_py",
    title=_TITLE,
    recognise=recognise_opennmt_py,
    read=read_opennmt_py,
    files=("*.pt", "*.safetensors"),
    peer=_TITLE,
    keeps=(
        "The weights, the output bias, the vocabularies and the sinusoids. With `--vocabularies`, the tokenizers "
        "segment texts with the SentencePiece models; without `--vocabularies`, tokens are separated by spaces."
    ),
    loses=(
        "`<blank>` gets the probability 0. Relative and rotary positions, copy attention, average attention, source "
        "features, gated feed-forward networks, RMSNorm, experts and adapters are refused. Vocabularies of versions 1 "
        "and 2 are refused; convert the file with `tools/convertv2_v3.py` of OpenNMT-py."
    ),
    options=("vocabularies",),
)
