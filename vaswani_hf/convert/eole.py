"""Imports models of Eole: a folder with config.json, vocab.json and `model.*.safetensors`.

Eole is the successor of OpenNMT-py. The docstring of opennmt.py describes how the models of Eole and
OpenNMT-py differ from the paper. In contrast to OpenNMT-py, a checkpoint of Eole 0.2 to 0.4.0 contains no
table of sinusoids. Eole multiplies embeddings by sqrt(d_model) only if the model has sinusoidal positions.

Eole's config.json has only the values that differ from Eole's defaults. In config.json, a value in the
section "encoder" or "decoder" takes precedence over the value in the section "model".
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from ..checkpoint.files import CONFIG_FILE, read_json_object
from ..model.configuration_vaswani import VaswaniConfig
from .import_formats import (
    Imported,
    ImportFormat,
    Logits,
    ReadOptions,
    Requirements,
    refuse,
    require,
    require_all,
)
from .opennmt import (
    DEFAULT_TOKENS,
    NO_SHARED_HEADS,
    PROJECTIONS,
    REQUIRED_OF_BOTH,
    first_rate,
    load_into,
    opennmt_tokenizers,
    special_ids,
    with_sinusoids,
)
from .sentencepiece_models import NAME_THE_MODELS
from .weights import STACKS, WeightNames, add_biases, position_fields, stack_names, weight_fields
from .word_tokenizers import SpecialTokens

_TITLE = "Eole"
_VOCABULARY_FILE = "vocab.json"
_WEIGHT_FILES = "model.*.safetensors"
_SINUSOIDS = ("SinusoidalInterleaved", "SinusoidalConcat")
# Maps the name of each activation in Eole to its name in transformers.
_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu-tanh": "gelu_pytorch_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
}
# Eole's default values. If config.json lacks a value, the import uses the default, because Eole writes only
# values that differ from the defaults.
_DEFAULTS = {"heads": 8, "heads_kv": None, "norm_eps": 1e-5, "mlp_activation_fn": "relu"}
_REQUIRED_OF_STACK: Requirements = {
    "layer_norm": (("standard", "standardFP32"), "only LayerNorm can be imported"),
    "mlp_activation_fn": (
        tuple(_ACTIVATIONS),
        "this package does not support this activation or gates in the feed-forward network",
    ),
    "ffn_layernorm": (False, "this package does not support a second LayerNorm in the feed-forward network"),
    "query_norm": (False, "this package does not support a LayerNorm of queries"),
    "key_norm": (False, "this package does not support a LayerNorm of keys"),
    "value_norm": (False, "this package does not support a LayerNorm of values"),
    "q_gating": (False, "this package does not support gates for queries"),
    "attn_scaling": (
        None,
        "this package always divides attention scores by the square root of the width of a head",
    ),
    "head_dim": (None, "only models whose heads have the width d_model / number of heads can be imported"),
    "layer_types": (None, "only models whose layers all have the same type can be imported"),
    "encoder_layer_style": ("standard", "the encoder must be pre-norm"),
    "final_encoder_layer_norm": (
        True,
        "only models with a LayerNorm at the end of both stacks can be imported",
    ),
    **REQUIRED_OF_BOTH,
}
_REQUIRED_OF_MODEL: Requirements = {
    "add_estimator": (
        False,
        "this package does not support an output that estimates the quality of a translation",
    ),
    "left_pad": (False, "only models with padding on the right can be imported"),
}
_REQUIRED_OF_EMBEDDINGS: Requirements = {
    "position_encoding_type": (
        (*_SINUSOIDS, "Learned", None),
        "only models with absolute positions can be imported",
    ),
    "embedding_type": ("standard", "this package does not support a LayerNorm of embeddings"),
    "normalize": (False, "this package scales embeddings only in models with sinusoidal positions"),
    "position_shift": (0, "only models whose learned positions are counted from 0 can be imported"),
}


_TABLES = {"encoder": "src_emb.pe.pe", "decoder": "tgt_emb.pe.pe"}
_SCALAR = "decoder.transformer_layers.{}.layer_scalar"
NAMES = WeightNames(
    {
        "src_emb.embeddings.weight": "model.encoder.embed_tokens.weight",
        "tgt_emb.embeddings.weight": "model.decoder.embed_tokens.weight",
        "src_emb.pe.weight": "model.encoder.embed_positions.weight",
        "tgt_emb.pe.weight": "model.decoder.embed_positions.weight",
        **stack_names(
            {
                "input_layernorm": "self_attn_layer_norm",
                "precontext_layernorm": "encoder_attn_layer_norm",
                "post_attention_layernorm": "final_layer_norm",
                "mlp.gate_up_proj": "fc1",
                "mlp.down_proj": "fc2",
            },
            {"self_attn": "self_attn", "context_attn": "encoder_attn"},
            PROJECTIONS,
            layer="transformer_layers.{}",
            norm="layer_norm",
        ),
        "generator.weight": "lm_head.weight",
        "generator.bias": "lm_head.bias",
    },
    ignored=(*_TABLES.values(), _SCALAR),
)


def recognise_eole(path: Path) -> bool:
    """Return True if a folder contains vocab.json, and a config.json that describes a model with a
    decoder.
    """
    if not (path / CONFIG_FILE).is_file() or not (path / _VOCABULARY_FILE).is_file():
        return False
    model = read_json_object(path, CONFIG_FILE, path).get("model")
    return isinstance(model, dict) and "decoder" in model


def read_eole(path: Path, options: ReadOptions) -> Imported:
    """Read an Eole model from its folder."""
    settings = read_json_object(path, CONFIG_FILE, path)
    model = settings["model"]
    vocabulary = read_json_object(path, _VOCABULARY_FILE, path)
    _refuse_others(model)
    encoder, decoder = (_stack_settings(model, stack) for stack in STACKS)
    embeddings = {**model, **(model.get("embeddings") or {})}
    positions = embeddings.get("position_encoding_type", "SinusoidalInterleaved")
    state = _state(path)
    own = NAMES.to_ours(state, _TITLE)
    tables = {stack: state[name] for stack, name in _TABLES.items() if name in state}
    without_tables = ("tensor2tensor", True) if positions == "SinusoidalConcat" else ("paper", False)
    own, timescales = with_sinusoids(own, tables if positions in _SINUSOIDS else {}, without_tables)
    add_biases(own)
    special = _special_tokens(vocabulary)
    training = settings.get("training") or {}
    dropout = first_rate(training.get("dropout", 0.1))
    config = VaswaniConfig(
        **weight_fields(
            own,
            _TITLE,
            is_shared=bool(model.get("share_embeddings")),
            is_tied=bool(model.get("share_decoder_embeddings")),
        ),
        **special_ids(vocabulary["tgt"], special),
        encoder_attention_heads=encoder["heads"],
        decoder_attention_heads=decoder["heads"],
        dropout=dropout,
        attention_dropout=first_rate(training.get("attention_dropout", 0.1)),
        activation_dropout=dropout,
        activation_function=_ACTIVATIONS[decoder["mlp_activation_fn"]],
        norm_position="pre",
        layer_norm_eps=decoder["norm_eps"],
        position_timescales=timescales,
        **position_fields(own, has_positions=positions is not None),
        scale_embedding=positions in _SINUSOIDS,
    )
    return Imported(
        config=config,
        state_dict=own,
        tokenizers=opennmt_tokenizers((vocabulary["src"], vocabulary["tgt"]), options.vocabularies, special),
        notes=[] if options.vocabularies else [NAME_THE_MODELS],
        logits=_logits_of_eole(path, model, vocabulary, state),
    )


def _logits_of_eole(
    path: Path,
    model: Mapping[str, Any],
    vocabulary: Mapping[str, Any],
    state: Mapping[str, torch.Tensor],
) -> Logits | None:
    """Return a function that computes logits with the library Eole, or None if Eole is not installed."""
    try:
        from eole.config.inference import InferenceConfig
        from eole.config.models import build_model_config
        from eole.inputters.inputter import dict_to_vocabs
        from eole.models.model import EncoderDecoderModel
    except ImportError:
        return None
    running = InferenceConfig(model_path=str(path), compute_dtype="fp32")
    original = EncoderDecoderModel.build(build_model_config(dict(model)), dict_to_vocabs(vocabulary), running)
    load_into(original, {name: tensor for name, tensor in state.items() if name not in _TABLES.values()})

    def logits(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        target = batch["decoder_input_ids"]
        # Eole ignores the last target token, so append an arbitrary token.
        outputs = original(batch["input_ids"], torch.cat((target, target[:, :1]), dim=1), None)
        return original.generator(outputs[0])

    return logits


def _stack_settings(model: Mapping[str, Any], stack: str) -> dict[str, Any]:
    """Return the settings of a stack. The section "encoder" or "decoder" takes precedence over the section
    "model".
    """
    return {**_DEFAULTS, **model, **(model.get(stack) or {})}


def _refuse_others(model: Mapping[str, Any]) -> None:
    require_all(model, _REQUIRED_OF_MODEL)
    require_all({**model, **(model.get("embeddings") or {})}, _REQUIRED_OF_EMBEDDINGS)
    stacks = [_stack_settings(model, stack) for stack in STACKS]
    for stack, settings in zip(STACKS, stacks, strict=True):
        default = "transformer" if model.get("architecture") == "transformer" else "rnn"
        kind = settings.get(f"{stack}_type", default)
        require(f"{stack}_type", kind, "transformer", "only Transformer models can be imported")
        require_all(settings, _REQUIRED_OF_STACK)
        require("heads_kv", settings["heads_kv"], (None, settings["heads"]), NO_SHARED_HEADS)
    for field in ("norm_eps", "mlp_activation_fn"):
        of_encoder, of_decoder = (settings[field] for settings in stacks)
        require(field, of_encoder, of_decoder, "the encoder and the decoder must have the same value")


def _state(path: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = {}
    for file in sorted(path.glob(_WEIGHT_FILES)):
        state.update(load_file(file))
    if not state:
        raise ValueError(
            f"The folder '{path.name}' must contain files {_WEIGHT_FILES}, but has none; copy the weights "
            "to the folder."
        )
    for name, tensor in state.items():
        if name.endswith(".layer_scalar") and bool((tensor != 1).any()):
            refuse(
                name,
                tensor.tolist(),
                "this package does not support factors that scale the outputs of a layer",
            )
    return state


def _special_tokens(vocabulary: Mapping[str, Any]) -> SpecialTokens:
    specials = vocabulary.get("specials", {})
    return SpecialTokens(
        pad=specials.get("pad_token", DEFAULT_TOKENS.pad),
        start=vocabulary.get("decoder_start_token", DEFAULT_TOKENS.start),
        end=specials.get("eos_token", DEFAULT_TOKENS.end),
        unknown=specials.get("unk_token", DEFAULT_TOKENS.unknown),
    )


EOLE = ImportFormat(
    name="eole",
    title=_TITLE,
    recognise=recognise_eole,
    read=read_eole,
    files=(CONFIG_FILE, _VOCABULARY_FILE, _WEIGHT_FILES),
    keeps=(
        "Keeps the weights, the output bias, the vocabularies, and sinusoids or learned positions. With "
        "`--vocabularies`, the tokenizers segment texts with the SentencePiece models; without "
        "`--vocabularies`, tokens are separated by spaces."
    ),
    loses=(
        "The padding token gets the probability 0. Rotary and relative positions, gated feed-forward "
        "networks, RMSNorm, grouped heads, experts and decoder-only models are refused. If config.json "
        "lacks `norm_eps`, the value is 1e-5, as in current versions of Eole."
    ),
    options=("vocabularies",),
)
