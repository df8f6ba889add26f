"""Imports the `.npz` models of Marian, the C++ toolkit. The export in marian_npz_export.py also uses the
tables of weight names in this file.

A model file contains the weights, and the options as YAML text in the entry `special:model.yml`. The option
`type` is "transformer" or "transformer-new". The two types have different weight names, and different
epsilons in LayerNorm: 1e-6 for "transformer" and 1e-5 for "transformer-new". Both "transformer" and
"transformer-new" store the weight matrices of attention and feed-forward layers in the shape [inputs,
outputs].

Marian's models differ from the paper in four points: biases in attention; tensor2tensor's timescales, with
all sines in the first half of the features; an output projection with a bias; a decoder that starts from a
vector of zeros. In this package, the first input of the decoder must be the embedding of a token. Therefore
the import adds the token `<pad>` with an embedding of zeros. If a model has learned positions, Marian does
not multiply the embeddings by sqrt(d_model).

In training and in scoring, Marian computes the same function as the imported model, but Marian's search can
differ. In models of the type "transformer" with a pre-norm decoder, the search of Marian 1.12.42 omits the
LayerNorm before the keys and values of earlier steps. Therefore the probabilities in Marian's search differ
from the probabilities in Marian's training.

In shapes, V is the size of a vocabulary, D the model width and L the number of learned positions.
"""

import re
import zipfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
import yaml
from transformers import GenerationConfig, PreTrainedTokenizerFast

from ..checkpoint.files import DamagedFileError
from ..model.configuration_vaswani import VaswaniConfig
from ..model.loss_vaswani import EXCLUDED_LOGIT
from ..settings.base import first_line_of
from .import_formats import (
    Imported,
    ImportFormat,
    ReadOptions,
    Requirements,
    generation_config,
    read_norm_position,
    refuse,
    require,
    require_all,
    require_known,
)
from .marian_process import marian_difference
from .sentencepiece_models import SentencePieces, fast_tokenizer, read_sentencepiece
from .text_files import parse_yaml, read_lines, read_yaml
from .weights import (
    EMBEDDINGS,
    POSITION_TABLES,
    Names,
    WeightNames,
    add_biases,
    norm_fields,
    position_fields,
    to_interleaved,
    weight_fields,
)
from .word_tokenizers import SPLITS_AT_SPACES, SpecialTokens, tokenizer_pair, word_tokenizer

TITLE = "Marian"
OPTIONS_ENTRY = "special:model.yml"
OLD_TYPE = "transformer"
NEW_TYPE = "transformer-new"
EPSILONS = {OLD_TYPE: 1e-6, NEW_TYPE: 1e-5}
# Maps the name of each activation in Marian to its name in transformers.
ACTIVATIONS = {
    "relu": "relu",
    "swish": "swish",
    "gelu": "gelu",
    "sigmoid": "sigmoid",
}
# The first version of Marian that computes GELU exactly. Before the version `EXACT_GELU`, Marian approximated
# GELU with a sigmoid.
EXACT_GELU = (1, 12, 3)
# Possible names of the YAML file with the search options and the vocabulary names, in the order of
# preference. `{}` stands for the name of the model file.
DECODER_FILES = ("{}.decoder.yml", "decoder.yml", "{}.yml")
# The file names of the SentencePiece models in the folder of an OPUS-MT model. The token ids of OPUS-MT
# models are in a separate YAML file.
_SEGMENTERS = ("source.spm", "target.spm")
# Possible names of special tokens in a vocabulary: the name in Marian, and the name in the toolkit Nematus.
_END_TOKENS = ("</s>", "eos")
_UNKNOWN_TOKENS = ("<unk>", "UNK")
# The added start token is `<start>` if the vocabulary already contains `<pad>`.
_START_TOKENS = ("<pad>", "<start>")

# Maps each option to Marian's default, and to the reason why only models with the default can be imported.
REQUIRED: Requirements = {
    "transformer-decoder-autoreg": (
        "self-attention",
        "the decoder must use self-attention over the previous tokens",
    ),
    "transformer-no-projection": (False, "attention layers without an output projection cannot be imported"),
    "transformer-pool": (False, "the decoder must attend to all tokens of the source"),
    "transformer-tied-layers": ([], "each layer must have its own weights"),
    "transformer-attention-mask": ("default", "positions must be absolute"),
    "transformer-no-affine": (False, "each LayerNorm must have a weight and a bias"),
    "transformer-ffn-depth": (2, "each feed-forward network must have two projections"),
    "right-left": (False, "the decoder must write from left to right"),
    "ulr": (False, "universal language representations cannot be imported"),
    "lemma-dim-emb": (0, "this package does not support factors of tokens"),
    "lemma-dependency": ("", "this package does not support factors of tokens"),
    "factors-combine": ("sum", "this package does not support factors of tokens"),
    "factors-dim-emb": (0, "this package does not support factors of tokens"),
}


# The weight names in models of the type "transformer". `{}` is "W" or "b" for a projection, and "scale" or
# "bias" for a LayerNorm.
_OLD_MODULES = {
    **{f"self_attn.{own}": f"self_{{}}{own[0]}" for own in ("q_proj", "k_proj", "v_proj", "out_proj")},
    **{f"encoder_attn.{own}": f"context_{{}}{own[0]}" for own in ("q_proj", "k_proj", "v_proj", "out_proj")},
    "self_attn_layer_norm": "self_Wo_ln_{}",
    "encoder_attn_layer_norm": "context_Wo_ln_{}",
    "fc1": "ffn_{}1",
    "fc2": "ffn_{}2",
    "final_layer_norm": "ffn_ffn_ln_{}",
}


def weight_names(options: Mapping[str, Any]) -> WeightNames:
    """Return the table that maps the weight names of a Marian model with the options `options` to this
    package's names.
    """
    names = _embedding_names(options)
    is_new = options["type"] == NEW_TYPE
    for stack in ("encoder", "decoder"):
        for layer in range(int(options[f"{stack[:3]}-depth"])):
            names_of_layer = _new_names if is_new else _old_names
            for theirs, own in names_of_layer(stack, layer, options).items():
                names[theirs] = f"model.{stack}.layers.{layer}.{own}"
        for kind, own_kind in (("scale", "weight"), ("bias", "bias")):
            theirs = f"{stack}_top_ln_{kind}"
            if is_new:
                theirs = f"{_new_stack(stack)}->postprocessor->norm->{own_kind}"
            names[theirs] = f"model.{stack}.layer_norm.{own_kind}"
    return WeightNames(names)


def _embedding_names(options: Mapping[str, Any]) -> Names:
    is_shared, is_tied = _ties(options)
    names: Names = {"decoder_ff_logit_out_b": "lm_head.bias"}
    if is_shared:
        names["Wemb"] = "model.encoder.embed_tokens.weight"
    else:
        names["encoder_Wemb"] = "model.encoder.embed_tokens.weight"
        names["decoder_Wemb"] = "model.decoder.embed_tokens.weight"
    if not is_tied:
        names["decoder_ff_logit_out_Wt"] = "lm_head.weight"
    # Old versions of Marian store the output projection in the shape [D, V] instead of [V, D], under another
    # name.
    names["decoder_ff_logit_out_W"] = "lm_head.weight.T"
    if options["type"] == NEW_TYPE:
        for stack in ("encoder", "decoder"):
            theirs = f"{_new_stack(stack)}->positionEmbedding->embeddings"
            names[theirs] = f"model.{stack}.embed_positions.weight"
    else:
        names["Wpos"] = "model.encoder.embed_positions.weight"
    return names


def _ties(options: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return two bools: whether source and target share one embedding, and whether the output projection is
    tied to the target embedding.
    """
    is_shared = options.get("tied-embeddings-all") or options.get("tied-embeddings-src")
    is_tied = options.get("tied-embeddings-all") or options.get("tied-embeddings")
    return bool(is_shared), bool(is_tied)


def _old_names(stack: str, layer: int, options: Mapping[str, Any]) -> dict[str, str]:
    """Map the weight names of one layer of the type "transformer" to the names of this package."""
    suffix = "_pre" if "n" in (options.get("transformer-preprocess") or "") else ""
    names = {}
    for module, pattern in _OLD_MODULES.items():
        is_norm = module.endswith("norm")
        for kind, own_kind in zip(("scale", "bias") if is_norm else "Wb", ("weight", "bias"), strict=True):
            theirs = pattern.format(kind) + (suffix if is_norm else "")
            names[f"{stack}_l{layer + 1}_{theirs}"] = f"{module}.{own_kind}"
    return names


def _new_names(stack: str, layer: int, options: Mapping[str, Any]) -> dict[str, str]:
    """Map the weight names of one layer of the type "transformer-new" to the names of this package."""
    norm = (
        "preprocessor->norm"
        if "n" in (options.get("transformer-preprocess") or "")
        else "postprocessor->norm"
    )
    is_encoder = stack == "encoder"
    self_block = "selfAttentionBlock" if is_encoder else "autoRegressiveBlock"
    # In Marian's feed-forward network, the first projection and a ReLU are one layer. Another activation
    # than ReLU is a separate layer of the network.
    is_relu = options.get("transformer-ffn-activation", "swish") == "relu"
    first = "at(0)->as<marian::nn::LinearReluDropout>()" if is_relu else "at(0)->as<marian::nn::Linear>()"
    second = f"at({1 if is_relu else 3})->as<marian::nn::Linear>()"
    modules = {
        "self_attn_layer_norm": f"{self_block}->{norm}",
        "encoder_attn_layer_norm": f"crossAttentionBlock->{norm}",
        "fc1": f"filterBlock->layers->{first}",
        "fc2": f"filterBlock->layers->{second}",
        "final_layer_norm": f"filterBlock->{norm}",
    }
    for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
        modules[f"self_attn.{projection}"] = f"{self_block}->selfAttention->{projection[0]}Proj"
        modules[f"encoder_attn.{projection}"] = f"crossAttentionBlock->crossAttention->{projection[0]}Proj"
    kind_of_layer = "TransformerEncoderLayer" if is_encoder else "TransformerDecoderLayerWithCrossAttention"
    prefix = f"{_new_stack(stack)}->layers->at({layer})->as<marian::nn::{kind_of_layer}>()"
    return {
        f"{prefix}->{theirs}->{kind}": f"{module}.{kind}"
        for module, theirs in modules.items()
        for kind in ("weight", "bias")
    }


def _new_stack(stack: str) -> str:
    return f"TransformerBatch{stack.capitalize()}->{stack}"


def is_matrix(name: str) -> bool:
    """Return True if Marian stores the transpose of the weight that has the name `name` in this package."""
    return name.endswith(("_proj.weight", "fc1.weight", "fc2.weight"))


def read_npz(path: Path) -> tuple[dict[str, numpy.ndarray], dict[str, Any]]:
    """Return the weights and the options of a model file. Raise a ValueError if the file is damaged."""
    try:
        with numpy.load(path, allow_pickle=False) as archive:
            entries = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        reason = first_line_of(error)
        raise DamagedFileError(
            f"'{path.name}' must be a model of Marian, but cannot be read ({reason})"
        ) from None
    text = entries.pop(OPTIONS_ENTRY, None)
    if text is None:
        raise ValueError(
            f"'{path.name}' must be a model of Marian, but has no entry {OPTIONS_ENTRY}; use the model file "
            "that Marian has written, not the file with the state of the optimizer."
        )
    # Remove the NUL bytes that Marian writes at the end of the YAML text.
    options = parse_yaml(
        text.tobytes().rstrip(b"\0").decode(errors="replace"), f"{OPTIONS_ENTRY} of '{path.name}'"
    )
    return entries, options


def recognise_marian_npz(path: Path) -> bool:
    """Return True for a model file of Marian, and for a folder with such a file."""
    files = [path] if path.is_file() else path.glob("*.npz")
    return any(_has_options(file) for file in files)


def _has_options(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return f"{OPTIONS_ENTRY}.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def read_marian_npz(path: Path, options: ReadOptions) -> Imported:
    """Read a model file of Marian, or a folder with one model file."""
    file = _model_file(path)
    search = _search_options(file)
    weights, settings = read_npz(file)
    _refuse_others(settings, search)
    norm_position = read_norm_position(
        {"transformer-postprocess": "dan", **settings}, "transformer-preprocess", "transformer-postprocess"
    )
    vocabularies = _read_vocabularies(file, search, options)
    own = _weights_from_marian(weights, settings)
    is_learned = POSITION_TABLES[0] in own
    has_positions = not settings.get("transformer-disable-position-embeddings", False)
    if has_positions and not is_learned:
        own = to_interleaved(own)
    is_shared, is_tied = _ties(settings)
    if is_shared:
        own["model.decoder.embed_tokens.weight"] = own["model.encoder.embed_tokens.weight"]
    if is_tied:
        own["lm_head.weight"] = own["model.decoder.embed_tokens.weight"]
    num_source, num_target = (len(own[name]) for name in EMBEDDINGS)
    pad = _add_start_token(own)
    if not _is_any(own, "_proj.bias"):
        own = {name: tensor for name, tensor in own.items() if not name.endswith("_proj.bias")}
    add_biases(own)
    config = VaswaniConfig(
        **weight_fields(own, TITLE, is_shared=is_shared, is_tied=is_tied),
        **norm_fields(own, norm_position, norm_position),
        layer_norm_eps=EPSILONS[settings["type"]],
        encoder_attention_heads=settings.get("transformer-heads", 8),
        decoder_attention_heads=settings.get("transformer-heads", 8),
        activation_function=_activation(settings),
        **position_fields(own, has_positions),
        position_timescales="tensor2tensor",
        scale_embedding=_is_scaled(settings, is_learned, has_positions),
        zero_start_embedding=True,
        bos_token_id=None,
        pad_token_id=pad,
        decoder_start_token_id=pad,
        eos_token_id=vocabularies[-1].ids[vocabularies[-1].end],
    )
    tokenizers = tokenizer_pair(
        [_tokenizer(vocabulary, config) for vocabulary in vocabularies],
        [vocabulary.ids for vocabulary in vocabularies],
    )
    return Imported(
        config=config,
        state_dict=own,
        generation_config=_search_config(search, vocabularies[-1], config),
        tokenizers=tokenizers,
        notes=_notes(search, vocabularies, config),
        compare=_comparison(file, vocabularies, (num_source, num_target), config),
    )


def _model_file(path: Path) -> Path:
    """Return the file `path`, or the only model file in the folder `path`."""
    if path.suffix == ".bin":
        refuse("model", path.name, "`.bin` files may contain int8 weights; use a model file `.npz`")
    if not path.is_dir():
        return path
    files = sorted(file for file in path.glob("*.npz") if _has_options(file))
    if len(files) > 1:
        # A Marian training writes several model files, such as the newest and the best model. decoder.yml
        # names the model file to use.
        names = {Path(name).name for name in _search_options(path / "decoder.yml").get("models", [])}
        files = [file for file in files if file.name in names] or files
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise ValueError(
            f"The folder '{path.name}' must contain exactly one `.npz` model file of Marian, but contains "
            f"{found}; give the path of the file."
        )
    return files[0]


def _search_options(model: Path) -> dict[str, Any]:
    """Return the options of the first file in `DECODER_FILES` that exists, or an empty dict."""
    for pattern in DECODER_FILES:
        file = model.parent / pattern.format(model.name)
        if file.is_file():
            return parse_yaml(file.read_text(encoding="utf-8", errors="replace"), f"'{file.name}'")
    return {}


def _refuse_others(settings: Mapping[str, Any], search: Mapping[str, Any]) -> None:
    require("type", settings.get("type", "amun"), tuple(EPSILONS), "only Transformer models can be imported")
    require_all(settings, REQUIRED)
    depth = settings.get("transformer-decoder-ffn-depth", 0)
    reason = "each feed-forward network must have two projections"
    require("transformer-decoder-ffn-depth", depth, (0, 2), reason)
    inputs = settings.get("input-types") or []
    if set(inputs) - {"sequence"} or len(inputs) > 2:
        refuse("input-types", inputs, "the model must have one source text and one target text")
    activation = settings.get("transformer-ffn-activation", "swish")
    require_known("transformer-ffn-activation", activation, ACTIVATIONS)
    embedding = settings.get("transformer-postprocess-emb", "d")
    require("transformer-postprocess-emb", embedding, ("", "d"), "only dropout can follow the embeddings")
    top = settings.get("transformer-postprocess-top", "")
    if top.replace("d", "") not in ("", "n"):
        refuse("transformer-postprocess-top", top, "only a LayerNorm can follow the last layer")
    if search.get("output-approx-knn"):
        refuse(
            "output-approx-knn", search["output-approx-knn"], "the output must be a softmax over all tokens"
        )


def _activation(settings: Mapping[str, Any]) -> str:
    name = settings.get("transformer-ffn-activation", "swish")
    version = re.match(r"v(\d+)\.(\d+)\.(\d+)", str(settings.get("version")))
    numbers = tuple(int(number) for number in version.groups()) if version else ()
    if name == "gelu" and numbers < EXACT_GELU:
        return "quick_gelu"
    return ACTIVATIONS[name]


def _is_scaled(settings: Mapping[str, Any], is_learned: bool, has_positions: bool) -> bool:
    """Return True if Marian multiplies the embeddings by sqrt(d_model)."""
    if not has_positions:
        return settings["type"] == NEW_TYPE
    return not is_learned


def _weights_from_marian(
    weights: Mapping[str, numpy.ndarray], settings: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    for name, array in weights.items():
        if array.dtype not in (numpy.float32, numpy.float16):
            refuse(f"dtype of {name}", str(array.dtype), "the weights must not be quantized")
    state = {name: torch.from_numpy(array).float() for name, array in weights.items()}
    own = {}
    for name, tensor in weight_names(settings).to_ours(state, TITLE).items():
        if name == "lm_head.weight.T":
            own["lm_head.weight"] = tensor.T
        elif is_matrix(name):
            own[name] = tensor.T
        else:
            # Flatten biases and LayerNorm weights, because the type "transformer" stores such a weight with n
            # elements in the shape [1, n].
            own[name] = tensor.flatten() if name.endswith(("bias", "norm.weight")) else tensor
    of_encoder, of_decoder = POSITION_TABLES
    if of_encoder in own:
        # In models of the type "transformer", the encoder and the decoder share one position table.
        own.setdefault(of_decoder, own[of_encoder].clone())
    return {name: tensor.contiguous() for name, tensor in own.items()}


def _is_any(own: Mapping[str, torch.Tensor], ending: str) -> bool:
    """Return True if a weight whose name ends with `ending` has a value other than 0."""
    return any(bool(tensor.any()) for name, tensor in own.items() if name.endswith(ending))


def _add_start_token(own: dict[str, torch.Tensor]) -> int:
    """Add a row for the start token to both embeddings and the output projection. Return its id.

    The start token has the same id in both vocabularies. Therefore the smaller vocabulary is first filled
    with unused rows to the size of the larger vocabulary. Unused rows of the target vocabulary get a very low
    output bias, so that the search never chooses them.
    """
    num_target = len(own[EMBEDDINGS[1]])
    pad = max(len(own[name]) for name in EMBEDDINGS)
    if pad > num_target:
        own.setdefault("lm_head.bias", torch.zeros(num_target))
    for name in {*EMBEDDINGS, "lm_head.weight", "lm_head.bias"} & own.keys():
        num_rows = pad + 1 - len(own[name])
        own[name] = torch.cat((own[name], own[name].new_zeros(num_rows, *own[name].shape[1:])))
    if "lm_head.bias" in own:
        own["lm_head.bias"][num_target:pad] = EXCLUDED_LOGIT
    return pad


class _Vocabulary(NamedTuple):
    """The vocabulary of one language in a Marian model.

    Attributes:
        ids (dict): Maps each token to its id.
        end (str): The end token, usually `</s>`.
        unknown (str): The token for unknown words. By default, Marian's search never chooses the unknown
            token.
        segmenter (SentencePieces, optional): The SentencePiece model that splits texts into tokens.
            `segmenter` is None if the tokens of a text are separated by spaces.
    """

    ids: dict[str, int]
    end: str
    unknown: str
    segmenter: SentencePieces | None


def _read_vocabularies(file: Path, search: Mapping[str, Any], options: ReadOptions) -> list[_Vocabulary]:
    names = [str(name) for name in options.vocabularies or search.get("vocabs") or []]
    if len(names) not in (1, 2):
        raise ValueError(
            f"'{file.name}' needs one or two vocabularies, but {len(names) or 'none'} are named; name the "
            "vocabulary files with `--vocabularies`."
        )
    paths = []
    for name in (names[0], names[-1]):
        # Also look for the file name alone in the folder of the model, because the paths in decoder.yml
        # perhaps exist only on the computer that trained the model.
        places = [Path(name)] if options.vocabularies else [file.parent / name, file.parent / Path(name).name]
        found = [place for place in places if place.is_file()]
        if not found:
            raise ValueError(
                f"The vocabulary file '{name}' must exist, but does not; name the vocabulary files with "
                "`--vocabularies`."
            )
        paths.append(found[0])
    segmenters = [file.parent / name for name in _SEGMENTERS]
    vocabularies = [_read_vocabulary(paths[0], segmenters[0])]
    if paths[0] == paths[1] and not segmenters[0].is_file():
        return [*vocabularies, vocabularies[0]]
    return [*vocabularies, _read_vocabulary(paths[1], segmenters[1])]


def _read_vocabulary(path: Path, segmenter: Path) -> _Vocabulary:
    if path.suffix == ".spm":
        model = read_sentencepiece(path)
        return _Vocabulary(model.ids, model.end, model.unknown, model)
    if path.suffix == ".fsv":
        refuse("vocabs", path.name, "this package does not support factors of tokens")
    ids = _read_ids(path)
    end, unknown = (
        next((token for token in tokens if token in ids), None) for tokens in (_END_TOKENS, _UNKNOWN_TOKENS)
    )
    if end is None or unknown is None:
        raise DamagedFileError(
            f"The vocabulary '{path.name}' must contain the tokens </s> and <unk>, but does not"
        )
    return _Vocabulary(ids, end, unknown, read_sentencepiece(segmenter) if segmenter.is_file() else None)


def _read_ids(path: Path) -> dict[str, int]:
    """Read a vocabulary file: YAML, JSON, or a text file with one token per line."""
    if path.suffix not in (".yml", ".yaml", ".json"):
        return {token: number for number, token in enumerate(read_lines(path))}
    # `yaml.BaseLoader` reads tokens such as "no" and "1" as strings.
    ids = read_yaml(path, loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    try:
        return {token: int(number) for token, number in ids.items()}
    except (TypeError, ValueError):
        raise DamagedFileError(
            f"The vocabulary '{path.name}' must map each token to an id, but does not"
        ) from None


def _tokenizer(vocabulary: _Vocabulary, config: VaswaniConfig) -> PreTrainedTokenizerFast:
    pad = config.pad_token_id
    assert pad is not None
    start = next(token for token in _START_TOKENS if token not in vocabulary.ids)
    # Leave out tokens whose id is too large for the embedding, as Marian does.
    ids = {token: number for token, number in vocabulary.ids.items() if number < pad}
    ids[start] = pad
    length = config.position_table_size
    special = SpecialTokens(pad=start, start=start, end=vocabulary.end, unknown=vocabulary.unknown)
    if vocabulary.segmenter is None:
        return word_tokenizer(ids, special, model_max_length=length)
    return fast_tokenizer(vocabulary.segmenter, ids, special, model_max_length=length)


def _search_config(search: Mapping[str, Any], target: _Vocabulary, config: VaswaniConfig) -> GenerationConfig:
    """Return a generation config with the search options in decoder.yml."""
    return generation_config(
        config,
        num_beams=search.get("beam-size", 12),
        length_penalty=float(search.get("normalize", 0)),
        max_length_a=float(search.get("max-length-factor", 3)),
        suppress_tokens=None if search.get("allow-unk") else [target.ids[target.unknown]],
    )


def _comparison(
    file: Path, vocabularies: list[_Vocabulary], sizes: tuple[int, int], config: VaswaniConfig
) -> Callable[[Any], float] | None:
    """Return a function that compares the imported model with Marian. Return None if pymarian is missing or
    cannot run the model.
    """
    num_positions = config.position_table_size
    # Marian 1.12.42 cannot run models of the type "transformer" with learned positions.
    is_unsupported = num_positions is not None and config.layer_norm_eps == EPSILONS[OLD_TYPE]
    if find_spec("pymarian") is None or is_unsupported:
        return None
    return lambda model: marian_difference(
        file, model, sizes, vocabularies[0].ids[vocabularies[0].end], num_positions
    )


def _notes(search: Mapping[str, Any], vocabularies: list[_Vocabulary], config: VaswaniConfig) -> list[str]:
    notes = []
    if config.position_table_size is not None:
        notes.append(
            f"The model has {config.position_table_size:,} learned positions, so the translator divides longer texts into pieces."
        )
    if any(vocabulary.segmenter is None for vocabulary in vocabularies):
        notes.append(SPLITS_AT_SPACES)
    for field in ("word-penalty", "shortlist"):
        if search.get(field):
            notes.append(f"The search of this package ignores `{field}` {search[field]!r} of the original.")
    return notes


MARIAN_NPZ_IMPORT = ImportFormat(
    name="marian_npz",
    title="Marian (C++)",
    recognise=recognise_marian_npz,
    read=read_marian_npz,
    files=("*.npz", "*.yml", "*.spm", "*.txt", "*.json"),
    keeps=(
        "Keeps the weights, the output bias, sinusoids or learned positions, SentencePiece models and "
        "their token ids, and vocabularies of words. Keeps the options `beam-size`, `normalize`, "
        "`max-length-factor` and `allow-unk` in decoder.yml. On 8 small models, the log-probability of a "
        "token differs from the log-probability in pymarian 1.12.42 by at most 4e-5 nats."
    ),
    loses=(
        "The options `word-penalty` and `shortlist` are ignored. Dropout rates are lost, because Marian "
        "does not store them in the model file. SSRU and average attention, ALiBi, RNN models, factors, "
        "lemmas, tied layers, other orders of LayerNorm and residual connection, quantized weights and "
        "`.bin` files are refused. Translations of models of the type `transformer` with a pre-norm "
        "decoder can differ from Marian's translations, because Marian's search omits a LayerNorm in such "
        "models."
    ),
    options=("vocabularies",),
)
