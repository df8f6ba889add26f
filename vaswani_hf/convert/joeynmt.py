"""Imports models of JoeyNMT 2: a folder with config.yaml, a `.ckpt` file, src_vocab.txt and trg_vocab.txt.

The models of JoeyNMT differ from the paper in three points: the attention has biases; the epsilon of
LayerNorm is 1e-6; a stack can be pre-norm instead of post-norm. In config.yaml, the key `layer_norm` of a
stack is "pre" (with a LayerNorm at the end of the stack) or "post". Without the key `layer_norm`, the encoder
is pre-norm without a LayerNorm at its end, and the decoder is post-norm.

A sub-layer of JoeyNMT computes Sublayer(x) + alpha * x, with a factor `alpha` in config.yaml. The sub-layers
of the imported model compute Sublayer(x) + x, without the factor `alpha`. The import divides or multiplies
weights by powers of alpha, so that the imported model has the same outputs as the JoeyNMT model. With the
changed weights, the inputs of LayerNorm have another variance than in JoeyNMT, but the import does not adapt
LayerNorm's epsilon of 1e-6. If the variance is above 0.1, an epsilon of 1e-6 changes the outputs of LayerNorm
by less than one part in 100,000.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import GenerationConfig

from ..model.configuration_vaswani import VaswaniConfig
from .import_formats import (
    Imported,
    ImportFormat,
    Logits,
    ReadOptions,
    generation_config,
    refuse,
    require,
    require_known,
)
from .joeynmt_tokenizers import joeynmt_tokenizers
from .text_files import read_text, read_yaml
from .unpickling import load_weights
from .weights import WeightNames, norm_fields, require_vocabulary_sizes, stack_names, weight_fields

_TITLE = "JoeyNMT"
_CONFIG_FILE = "config.yaml"
_SECTIONS = ("data.src", "data.trg", "model.encoder", "model.decoder")
_WEIGHT_FILES = "*.ckpt"
_VOCABULARY_FILES = {"src": "src_vocab.txt", "trg": "trg_vocab.txt"}
_LAYER_NORM_EPS = 1e-6
# Every vocabulary of JoeyNMT begins with these special tokens, in this order.
_SPECIAL_TOKENS = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
_UNK, _PAD, _BOS, _EOS = range(4)
# NumPy classes that the import permits in a checkpoint, because the training state can contain NumPy numbers.
_CLASSES = (
    "numpy.dtype",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
    "numpy.dtypes.Float64DType",
    "numpy.dtypes.Float32DType",
    "numpy.dtypes.Int64DType",
)
# Maps the name of each activation in JoeyNMT to its name in transformers.
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu"}
# Maps each stack to the names of the last linear layers of its sub-layers, in the order of the sub-layers.
_SUBLAYERS = {
    "encoder": ("self_attn.out_proj", "fc2"),
    "decoder": ("self_attn.out_proj", "encoder_attn.out_proj", "fc2"),
}
_PROJECTIONS = {"q_layer": "q_proj", "k_layer": "k_proj", "v_layer": "v_proj", "output_layer": "out_proj"}
NAMES = WeightNames(
    {
        "src_embed.lut.weight": "model.encoder.embed_tokens.weight",
        "trg_embed.lut.weight": "model.decoder.embed_tokens.weight",
        "decoder.output_layer.weight": "lm_head.weight",
        **stack_names(
            {
                "feed_forward.pwff_layer.0": "fc1",
                "feed_forward.pwff_layer.3": "fc2",
                "feed_forward.layer_norm": "final_layer_norm",
            },
            norm="layer_norm",
        ),
        **stack_names(
            {"layer_norm": "self_attn_layer_norm"},
            {"src_src_att": "self_attn"},
            _PROJECTIONS,
            stacks=("encoder",),
        ),
        **stack_names(
            {"x_layer_norm": "self_attn_layer_norm", "dec_layer_norm": "encoder_attn_layer_norm"},
            {"trg_trg_att": "self_attn", "src_trg_att": "encoder_attn"},
            _PROJECTIONS,
            stacks=("decoder",),
        ),
    },
    ignored=("encoder.pe.pe", "decoder.pe.pe"),
)


def recognise_joeynmt(path: Path) -> bool:
    """Return True for a folder with a config.yaml of JoeyNMT, or for a `.ckpt` file in such a folder."""
    file = _folder_of(path) / _CONFIG_FILE
    if not file.is_file():
        return False
    text = file.read_text(encoding="utf-8", errors="ignore")
    return all(f"\n{section}:" in f"\n{text}" for section in ("data", "training", "model"))


def read_joeynmt(path: Path, options: ReadOptions) -> Imported:
    """Read a JoeyNMT model from its folder."""
    folder = _folder_of(path)
    settings = read_yaml(folder / _CONFIG_FILE, sections=_SECTIONS, title="JoeyNMT 2")
    data = settings["data"]
    model = settings["model"]
    _refuse_others(data, model)
    specials = {**_SPECIAL_TOKENS, "lang_tags": [], **(data.get("special_symbols") or {})}
    vocabularies = [_read_vocabulary(folder, data[side], side, specials) for side in ("src", "trg")]
    state = _read_state(path if path.is_file() else _weight_file(folder))
    own = NAMES.to_ours(state, _TITLE)
    encoder = model["encoder"]
    dropout = encoder.get("dropout", 0.1)
    config = VaswaniConfig(
        **weight_fields(
            own,
            _TITLE,
            # If `tied_embeddings` is true, the target embedding in the file is a copy of the source
            # embedding.
            is_shared=bool(model.get("tied_embeddings")),
            is_tied=bool(model.get("tied_softmax")),
        ),
        **norm_fields(
            own,
            model["encoder"].get("layer_norm", "pre"),
            model["decoder"].get("layer_norm", "post"),
        ),
        encoder_attention_heads=encoder.get("num_heads", 4),
        decoder_attention_heads=model["decoder"].get("num_heads", 8),
        dropout=dropout,
        attention_dropout=dropout,
        activation_dropout=dropout,
        activation_function=_ACTIVATIONS[encoder.get("activation", "relu")],
        layer_norm_eps=_LAYER_NORM_EPS,
        scale_embedding=encoder["embeddings"].get("scale", False),
        bos_token_id=_BOS,
        pad_token_id=_PAD,
        eos_token_id=_EOS,
        decoder_start_token_id=_BOS,
    )
    require_vocabulary_sizes(_VOCABULARY_FILES.values(), vocabularies, config)
    own = _without_alpha(own, model, config)
    tokenizers, notes = joeynmt_tokenizers(folder, (data["src"], data["trg"]), vocabularies)
    testing = settings.get("testing") or {}
    if testing.get("repetition_penalty", -1) > 1:
        notes.append(
            f"The import leaves out `repetition_penalty` {testing['repetition_penalty']!r} of the original."
        )
    return Imported(
        config=config,
        state_dict=own,
        generation_config=_search_config(testing, config),
        tokenizers=tokenizers,
        facts={"source_language": data["src"]["lang"], "target_language": data["trg"]["lang"]},
        notes=notes,
        logits=_original_logits(model, vocabularies, specials, state),
    )


def _folder_of(path: Path) -> Path:
    return path.parent if path.is_file() else path


def _refuse_others(data: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    encoder = model["encoder"]
    decoder = model["decoder"]
    reason = "only Transformer models can be imported"
    require("encoder.type", encoder.get("type", "recurrent"), "transformer", reason)
    require("decoder.type", decoder.get("type", "transformer"), "transformer", reason)
    activation = encoder.get("activation", "relu")
    require_known("activation", activation, _ACTIVATIONS)
    for name, stack in (("encoder", encoder), ("decoder", decoder)):
        alpha = stack.get("alpha", 1.0)
        if alpha <= 0:
            refuse(f"{name}.alpha", alpha, "the factor of the residual connections must be positive")
    reason = "the encoder and the decoder must have the same value"
    require("decoder.activation", decoder.get("activation", "relu"), activation, reason)
    if not model.get("tied_embeddings", False):
        scales = [stack["embeddings"].get("scale", False) for stack in (encoder, decoder)]
        require("decoder.embeddings.scale", scales[1], scales[0], reason)
    specials = data.get("special_symbols") or {}
    require(
        "sep_token",
        specials.get("sep_token"),
        None,
        "this package does not support separate embeddings for the tokens of a prompt",
    )


def _read_vocabulary(
    folder: Path, settings: Mapping[str, Any], side: str, specials: Mapping[str, Any]
) -> list[str]:
    """Return the tokens in the order of their ids: the special tokens, the language tags, and the tokens of
    the vocabulary file.
    """
    names = [Path(settings["voc_file"]).name] if settings.get("voc_file") else []
    files = [folder / name for name in (_VOCABULARY_FILES[side], *names) if (folder / name).is_file()]
    if not files:
        raise ValueError(
            f"The folder '{folder.name}' must contain the vocabulary file {_VOCABULARY_FILES[side]}, but "
            "does not; copy the file to the folder."
        )
    lines = read_text(files[0]).splitlines()
    tokens = [*(specials[name] for name in _SPECIAL_TOKENS), *specials["lang_tags"], *lines]
    return list(dict.fromkeys(tokens))


def _weight_file(folder: Path) -> Path:
    """Return best.ckpt, as JoeyNMT does. Without best.ckpt, return latest.ckpt, or else the only `.ckpt`
    file.
    """
    files = sorted(folder.glob(_WEIGHT_FILES))
    names = [file.name for file in files]
    for name in ("best.ckpt", "latest.ckpt"):
        if name in names:
            return folder / name
    if len(files) != 1:
        found = ", ".join(names) or "no such file"
        raise ValueError(
            f"The folder '{folder.name}' must contain best.ckpt, latest.ckpt or exactly one `.ckpt` file, but contains "
            f"{found}; give the path of the file to import."
        )
    return files[0]


def _read_state(file: Path) -> dict[str, torch.Tensor]:
    loaded = load_weights(file, _CLASSES)
    if not isinstance(loaded, dict) or not isinstance(loaded.get("model_state"), dict):
        raise ValueError(
            f"'{file.name}' has no entry `model_state`, so it is no checkpoint of JoeyNMT; name another file."
        )
    return loaded["model_state"]


def _without_alpha(
    state: Mapping[str, torch.Tensor], model: Mapping[str, Any], config: VaswaniConfig
) -> dict[str, torch.Tensor]:
    """Return the weights of an equivalent model whose residual connections have no factor alpha.

    In a post-norm stack, LayerNorm(f(x) + alpha * x) equals LayerNorm(f(x) / alpha + x), except for the
    effect of the epsilon. Therefore the import divides the last linear layer of each sub-layer f by alpha.

    In a pre-norm stack, the import divides the weight and the bias of the k-th sub-layer's output layer by
    alpha^k. The number alpha is the residual factor. The hidden states after the k-th sub-layer are then
    JoeyNMT's hidden states divided by alpha^k. LayerNorm(x / alpha^k) equals LayerNorm(x), except for the
    effect of the epsilon. Without a final LayerNorm, the outputs of a pre-norm encoder with n sub-layers are
    divided by alpha^n. Therefore the import multiplies the weights of the key and value projections of the
    cross-attention, but not their biases, by alpha^n.
    """
    state = dict(state)
    for stack, sublayers in _SUBLAYERS.items():
        shape = config.shape_of(stack)
        is_pre = shape.norm_position == "pre"
        alpha = model[stack].get("alpha", 1.0)
        factor = 1.0
        for layer in range(shape.num_layers):
            for output in sublayers:
                factor = factor * alpha if is_pre else alpha
                for kind in ("weight", "bias"):
                    name = f"model.{stack}.layers.{layer}.{output}.{kind}"
                    state[name] = state[name] / factor
        if is_pre and not shape.has_final_norm:
            for name in state:
                if name.endswith(("encoder_attn.k_proj.weight", "encoder_attn.v_proj.weight")):
                    state[name] = state[name] * factor
    return state


def _search_config(testing: Mapping[str, Any], config: VaswaniConfig) -> GenerationConfig:
    """Return a generation config with the search options in the section `testing` of config.yaml."""
    alpha = testing.get("beam_alpha", testing.get("alpha", -1))
    num_tokens = testing.get("max_output_length", -1)
    limits: dict[str, Any] = {"max_new_tokens": num_tokens}
    if num_tokens < 0:
        limits = {"max_length_a": 1.5, "max_length_b": 0}
    # JoeyNMT's default of 1 only excludes empty translations. Leave the default out, because most export
    # formats do not support `min_new_tokens`.
    least = testing.get("min_output_length", 1)
    return generation_config(
        config,
        num_beams=testing.get("beam_size", 1),
        length_penalty=float(max(alpha, 0)),
        length_penalty_type="gnmt",
        no_repeat_ngram_size=max(testing.get("no_repeat_ngram_size", 0), 0),
        min_new_tokens=least if least > 1 else None,
        suppress_tokens=None if testing.get("generate_unk", True) else [_UNK],
        **limits,
    )


def _original_logits(
    settings: Mapping[str, Any],
    vocabularies: list[list[str]],
    specials: Mapping[str, Any],
    state: Mapping[str, torch.Tensor],
) -> Logits | None:
    """Return a function that computes logits with JoeyNMT, or None if JoeyNMT is not installed."""
    if find_spec("joeynmt") is None:
        return None
    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    ids = {"unk_id": _UNK, "pad_id": _PAD, "bos_id": _BOS, "eos_id": _EOS, "sep_id": None, "sep_token": None}
    symbols = SimpleNamespace(**{**specials, **ids})
    source, target = (Vocabulary(tokens, symbols) for tokens in vocabularies)
    model = build_model(settings, source, target).eval()
    model.load_state_dict(state)

    def compute_logits(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        source_mask = batch["attention_mask"].bool().unsqueeze(1)
        encoder_output, hidden, _, _ = model(
            return_type="encode",
            src=batch["input_ids"],
            src_length=batch["attention_mask"].sum(dim=1),
            src_mask=source_mask,
        )
        logits, _, _, _ = model(
            return_type="decode",
            encoder_output=encoder_output,
            encoder_hidden=hidden,
            src_mask=source_mask,
            trg_input=batch["decoder_input_ids"],
            unroll_steps=None,
            trg_mask=batch["decoder_attention_mask"].bool().unsqueeze(1),
        )
        return logits

    return compute_logits


JOEYNMT = ImportFormat(
    name="joeynmt",
    title=_TITLE,
    recognise=recognise_joeynmt,
    read=read_joeynmt,
    files=(_CONFIG_FILE, _WEIGHT_FILES, "*.txt", "*.model", "*codes*"),
    keeps=(
        "Keeps the weights, the vocabularies, and the number of beams, the length penalty, the length limits, "
        "`no_repeat_ngram_size` and `generate_unk` of the section `testing`. The tokenizers segment texts with the levels `word` and `char`, "
        "and with SentencePiece models or merges of subword-nmt that are in the folder, and apply "
        "`lowercase` and `normalize`. If fast tokenizers cannot segment texts as JoeyNMT does, the "
        "tokenizers split texts at spaces and join tokens that "
        "end with the separator of subword-nmt."
    ),
    loses=(
        "`<pad>` gets the probability 0. `repetition_penalty` is lost. Recurrent models, prompts (`sep_token`) and stacks with different "
        "activations are refused. The tokenizers do not run Moses, and use merges of subword-nmt only if "
        "the vocabulary contains the results of all merges. The factor `alpha` of residual connections "
        "becomes a part of the "
        "weights."
    ),
)
