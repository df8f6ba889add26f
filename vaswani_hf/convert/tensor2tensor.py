"""Imports checkpoints of the model `transformer` of tensor2tensor. The checkpoints are TensorFlow files.

The models of tensor2tensor differ from the paper in four points. LayerNorm has an epsilon of 1e-6. The
sinusoids use tensor2tensor's timescales, with all sines in the first half of the features. The layers are
pre-norm with a LayerNorm at the end of each stack, except with the hyperparameter set `transformer_base_v1`.
The decoder starts from a vector of zeros. A checkpoint stores each embedding in several variables.

The encoder of tensor2tensor adds a learned vector to each source embedding: the row `target_space_id` of the
variable `target_space_embedding`. The import adds the row of `target_space_embedding`, divided by
`sqrt(d_model)`, to each row of the source embedding. With the added row, the source embedding differs from
the target embedding, so the imported model does not share the two embeddings.

The import reads the hyperparameters from hparams.json in the folder of the checkpoint. Old versions of
tensor2tensor write flags.txt instead of hparams.json. In flags.txt, the flag `hparams_set` names a set of
hyperparameters, and the flag `hparams` changes some hyperparameters of the set. Hyperparameters in the file
that `--config` names replace the hyperparameters in hparams.json and flags.txt.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from pydantic import Field

from ..checkpoint.files import DamagedFileError, read_json_object
from ..checkpoint.tokenizers import Tokenizers
from ..model.configuration_vaswani import VaswaniConfig
from ..model.errors_vaswani import InvalidValueError
from ..settings.base import Settings, first_line_of
from ..settings.names import alternatives
from .import_formats import (
    Imported,
    ImportFormat,
    ReadOptions,
    Requirements,
    generation_config,
    load_facts,
    read_norm_position,
    refuse,
    require,
    require_all,
)
from .tensor2tensor_tokenizers import subword_tokenizer
from .weights import (
    EMBEDDINGS,
    WeightNames,
    equal_embeddings,
    stack_names,
    to_interleaved,
    weight_fields,
)

_TITLE = "tensor2tensor"
_HPARAMS_FILE, _FLAGS_FILE = "hparams.json", "flags.txt"
_VOCABULARIES = "vocab.*subwords"
_POST_NORM = {"layer_preprocess_sequence": "none", "layer_postprocess_sequence": "dan"}
# The supported values of the flag `hparams_set`, with the hyperparameters that differ from the defaults of
# `Tensor2TensorFacts`.
_HPARAMS_SETS: dict[str, dict[str, Any]] = {
    "transformer_base_v1": {
        "num_heads": 8,
        "attention_dropout": 0.0,
        "relu_dropout": 0.0,
        **_POST_NORM,
    },
    "transformer_base_v2": {"num_heads": 8},
    "transformer_base_v3": {"num_heads": 8},
    "transformer_base": {"num_heads": 8},
    "transformer_base_single_gpu": {"num_heads": 8},
    "transformer_base_multistep8": {"num_heads": 8},
    "transformer_big": {"num_heads": 16, "layer_prepostprocess_dropout": 0.3},
    "transformer_big_single_gpu": {"num_heads": 16},
    "transformer_big_enfr": {"num_heads": 16},
    "transformer_small": {"num_heads": 4},
    "transformer_tiny": {"num_heads": 4},
}
_PAD, _END = 0, 1
# Patterns for the names of variables in a checkpoint. The TensorFlow scope at the beginning of a name differs
# between models.
_BODY = re.compile(r"^.*body/((?:encoder|decoder)/.*/(?:kernel|bias|layer_norm_scale|layer_norm_bias))$")
_SHARD = re.compile(r"^.*symbol_modality_\d+_\d+/(shared|input_emb|target_emb|softmax)/weights_(\d+)$")
_TARGET_SPACE = re.compile(r"^.*body/target_space_embedding/kernel$")
_REQUIRED: Requirements = {
    "norm_type": ("layer", "only models with LayerNorm can be imported"),
    "self_attention_type": (
        "dot_product",
        "only models with scaled dot-product self-attention can be imported",
    ),
    "ffn_layer": (
        ("dense_relu_dense", "conv_hidden_relu"),
        "the feed-forward network must have two matrices",
    ),
    "pos": ("timing", "positions must be sinusoids"),
    "proximity_bias": (False, "attention scores must not depend on the distance between tokens"),
    "unidirectional_encoder": (False, "the encoder must attend to the whole source"),
    "causal_decoder_self_attention": (True, "the decoder must attend only to earlier tokens"),
    "prepend_mode": ("none", "the target must not contain the source"),
    "num_area_layers": (0, "this package does not support area attention"),
    "hard_attention_k": (0, "this package does not support hard attention"),
    "multiply_embedding_mode": (
        "sqrt_depth",
        "embeddings must be multiplied by the square root of their width",
    ),
}


class Tensor2TensorFacts(Settings):
    """The hyperparameters that the import reads. The defaults are the values in tensor2tensor's
    hyperparameter set `transformer_base`.
    """

    num_heads: int = Field(ge=1)
    layer_preprocess_sequence: str = "n"
    layer_postprocess_sequence: str = "da"
    norm_epsilon: float = Field(1e-6, gt=0)
    layer_prepostprocess_dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.1, ge=0, lt=1)
    relu_dropout: float = Field(0.1, ge=0, lt=1)
    target_space_id: int = Field(0, ge=0)
    """the id of the target space (the kind of target text); the id is 0 in the translation problems of
    tensor2tensor
    """


# Maps the weight names that `_plain_name` returns to the weight names of this package.
NAMES = WeightNames(
    stack_names(
        {
            "self_attention.norm": "self_attn_layer_norm",
            "encdec_attention.norm": "encoder_attn_layer_norm",
            "ffn.norm": "final_layer_norm",
            "ffn.conv1": "fc1",
            "ffn.conv2": "fc2",
        },
        {
            "self_attention.multihead_attention": "self_attn",
            "encdec_attention.multihead_attention": "encoder_attn",
        },
        {"q": "q_proj", "k": "k_proj", "v": "v_proj", "output_transform": "out_proj"},
        layer="layer.{}",
        norm="norm",
    )
)


def recognise_tensor2tensor(path: Path) -> bool:
    """Return True for an `.index` file that contains the names of tensor2tensor's embeddings, or for a folder
    with such a file.
    """
    files = [path] if path.suffix == ".index" else sorted(path.glob("*.index"))
    return any(b"symbol_modality_" in file.read_bytes() for file in files)


def read_tensor2tensor(path: Path, options: ReadOptions) -> Imported:
    """Read a checkpoint of tensor2tensor."""
    folder = path.parent if path.is_file() else path
    facts = _read_facts(folder, options.config)
    tokenizers = _read_tokenizers(folder, options.vocabularies)
    notes = []
    if tokenizers is None:
        notes.append(
            f"No tokenizers were written, because the folder does not contain exactly one file {_VOCABULARIES}; "
            "name the files with `--vocabularies`."
        )
    norm_position = read_norm_position(
        facts.model_dump(), "layer_preprocess_sequence", "layer_postprocess_sequence"
    )
    weights = _read_weights(path, facts)
    is_shared, is_tied = equal_embeddings(weights, _TITLE)
    config = VaswaniConfig(
        **weight_fields(weights, _TITLE, is_shared=is_shared, is_tied=is_tied),
        encoder_attention_heads=facts.num_heads,
        decoder_attention_heads=facts.num_heads,
        d_k=_head_width(weights, "k_proj", facts.num_heads),
        d_v=_head_width(weights, "v_proj", facts.num_heads),
        dropout=facts.layer_prepostprocess_dropout,
        attention_dropout=facts.attention_dropout,
        activation_dropout=facts.relu_dropout,
        norm_position=norm_position,
        layer_norm_eps=facts.norm_epsilon,
        position_timescales="tensor2tensor",
        zero_start_embedding=True,
        bos_token_id=_PAD,
        pad_token_id=_PAD,
        eos_token_id=_END,
        decoder_start_token_id=_PAD,
    )
    return Imported(
        config=config,
        state_dict=to_interleaved(weights),
        # The defaults of t2t-decoder, the command of tensor2tensor.
        generation_config=generation_config(
            config,
            num_beams=4,
            length_penalty=0.6,
            length_penalty_type="gnmt",
            max_length_a=1,
            max_length_b=100,
        ),
        tokenizers=tokenizers,
        notes=notes,
    )


def _read_weights(path: Path, facts: Tensor2TensorFacts) -> dict[str, torch.Tensor]:
    """Read the weights of a checkpoint, and return the weights under the names of this package."""
    weights, target_spaces = _to_ours(_read_variables(path))
    if target_spaces is not None:
        _add_target_space(weights, target_spaces, facts)
    # In tensor2tensor, the first input vector of the decoder is zero. The imported decoder starts from
    # `<pad>`, so the embedding of `<pad>` must be zero. Set the row of `<pad>` in the output projection to
    # zero too, so that tied weights stay equal. The row of `<pad>` in the output projection has no effect on
    # the probabilities.
    for name in (*EMBEDDINGS, "lm_head.weight"):
        weights[name] = weights[name].clone()
        weights[name][_PAD] = 0
    return weights


def _head_width(weights: dict[str, torch.Tensor], projection: str, num_heads: int) -> int:
    width = len(weights[f"model.encoder.layers.0.self_attn.{projection}.weight"])
    if width % num_heads:
        refuse(
            "num_heads",
            num_heads,
            f"the width of keys or values, {width}, is not a multiple of the number of heads",
        )
    return width // num_heads


def _read_tokenizers(folder: Path, vocabularies: tuple[Path, ...]) -> Tokenizers | None:
    """Create the tokenizers from the vocabulary files `vocabularies`. If `vocabularies` is empty, use the
    only vocabulary file in the folder, or return None if the folder has no or several vocabulary files.
    """
    files = vocabularies or tuple(folder.glob(_VOCABULARIES))
    if not files or (len(files) > 1 and not vocabularies):
        return None
    source = subword_tokenizer(files[0])
    return source, source if len(files) == 1 else subword_tokenizer(files[-1])


def _read_facts(folder: Path, config: Path | None) -> Tensor2TensorFacts:
    """Read the hyperparameters from hparams.json or flags.txt. Values in the file that `--config` names
    override the values in hparams.json or flags.txt.
    """
    if (folder / _HPARAMS_FILE).is_file():
        hparams = read_json_object(folder, _HPARAMS_FILE, folder.name)
    elif (folder / _FLAGS_FILE).is_file():
        hparams = _read_flags(folder / _FLAGS_FILE, config)
    else:
        return load_facts(config, Tensor2TensorFacts, _TITLE)
    require_all(hparams, _REQUIRED)
    known = {name: value for name, value in hparams.items() if name in Tensor2TensorFacts.model_fields}
    if config is not None:
        known |= load_facts(config, Tensor2TensorFacts, _TITLE).model_dump(exclude_unset=True)
    return Tensor2TensorFacts.load(known)


def _read_flags(file: Path, config: Path | None) -> dict[str, Any]:
    """Read the hyperparameters from the flags of t2t-trainer. If the flag `hparams_set` names an unknown set
    of hyperparameters, `config` must not be None.
    """
    flags = dict(re.findall(r"^--(\w+)=(.*)$", file.read_text(encoding="utf-8"), re.MULTILINE))
    model = flags.get("model", "transformer")
    require("model", model, "transformer", "only the model `transformer` can be imported")
    name = flags.get("hparams_set", "")
    if name not in _HPARAMS_SETS and config is None:
        raise InvalidValueError(
            f"`hparams_set` in {_FLAGS_FILE} must be {alternatives(_HPARAMS_SETS)}, but is {name!r}; write the "
            "hyperparameters, such as `num_heads`, into a file, and name the file with `--config`."
        )
    changes = re.findall(r"(\w+)=(\[[^]]*\]|[^,]*)", flags.get("hparams", ""))
    return _HPARAMS_SETS.get(name, {}) | {key: yaml.safe_load(value) for key, value in changes}


def _read_variables(path: Path) -> dict[str, torch.Tensor]:
    """Read the variables of a checkpoint, except for the variables of the optimizer, with TensorFlow."""
    import tensorflow

    prefix = str(path.with_suffix("")) if path.is_file() else tensorflow.train.latest_checkpoint(str(path))
    files = sorted(path.glob("*.index")) if path.is_dir() else []
    if prefix is None and len(files) == 1:
        prefix = str(files[0].with_suffix(""))
    if prefix is None:
        raise ValueError(
            f"The folder '{path.name}' contains several checkpoints; give the path of the `.index` file of one checkpoint."
        )
    try:
        reader = tensorflow.train.load_checkpoint(prefix)
        names = [
            name
            for name in reader.get_variable_to_shape_map()
            if any(pattern.match(name) for pattern in (_BODY, _SHARD, _TARGET_SPACE))
            and "training/" not in name
        ]
        return {name: torch.from_numpy(reader.get_tensor(name)).float() for name in names}
    except Exception as error:
        # Catch every exception, because a damaged file can cause any kind of exception.
        reason = first_line_of(error)
        raise DamagedFileError(f"The checkpoint '{Path(prefix).name}' cannot be read ({reason})") from None


def _plain_name(name: str) -> str:
    """Convert the name of a variable to the notation of the names in `NAMES`, such as
    "encoder.layer.0.self_attention.norm.bias".
    """
    name = re.sub(r"/layer_(\d+)/", r"/layer/\1/", name)
    # In a checkpoint, the name of a LayerNorm depends on the norm position (pre-norm or post-norm).
    name = re.sub(r"/layer_(?:pre)?postprocess/layer_norm/layer_norm_(\w+)$", r"/norm/\1", name)
    name = re.sub(r"/(?:kernel|scale)$", "/weight", name)
    return name.replace("/", ".")


def _to_ours(variables: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
    """Return the weights with the names of this package, and the variable `target_space_embedding` (or
    None).
    """
    state = {}
    shards: dict[str, dict[int, torch.Tensor]] = {}
    target_spaces = None
    for name, tensor in variables.items():
        if found := _SHARD.match(name):
            shards.setdefault(found.group(1), {})[int(found.group(2))] = tensor
        elif found := _BODY.match(name):
            # Transpose matrices, because TensorFlow stores matrices as [in, out].
            is_matrix = name.endswith("/kernel")
            state[_plain_name(found.group(1))] = tensor.T.contiguous() if is_matrix else tensor
        else:
            target_spaces = tensor
    own = NAMES.to_ours(state, _TITLE)
    embeddings = {
        kind: torch.cat([parts[number] for number in sorted(parts)]) for kind, parts in shards.items()
    }
    roles = {
        "model.encoder.embed_tokens.weight": "input_emb",
        "model.decoder.embed_tokens.weight": "target_emb",
        "lm_head.weight": "softmax",
    }
    for own_name, kind in roles.items():
        table = embeddings.get(kind, embeddings.get("shared"))
        if table is None:
            raise ValueError(
                f"The checkpoint has no variable {kind}/weights_0; use files that belong to the same "
                "checkpoint."
            )
        own[own_name] = table
    return own, target_spaces


def _add_target_space(
    state: dict[str, torch.Tensor], target_spaces: torch.Tensor, facts: Tensor2TensorFacts
) -> None:
    """Add the learned vector of the target space to each row of the source embedding. Before the addition,
    divide the learned vector by sqrt(D), because the model multiplies embeddings by sqrt(D). D is the model
    width.
    """
    number = facts.target_space_id
    if number >= len(target_spaces):
        refuse("target_space_id", number, f"the checkpoint has {len(target_spaces)} target spaces")
    name = "model.encoder.embed_tokens.weight"
    state[name] = state[name] + target_spaces[number] * target_spaces.shape[1] ** -0.5


TENSOR2TENSOR = ImportFormat(
    name="tensor2tensor",
    title=_TITLE,
    recognise=recognise_tensor2tensor,
    read=read_tensor2tensor,
    files=("checkpoint", "*.index", "*.data-*", _HPARAMS_FILE, _FLAGS_FILE, _VOCABULARIES),
    keeps=(
        "Keeps the weights, the zero vector that the decoder starts from, and the hyperparameters in "
        "hparams.json, or in flags.txt if hparams.json is missing. Hyperparameters in the file of `--config` "
        "override the hyperparameters of the checkpoint. If hparams.json and flags.txt are missing, the file of `--config` must contain `num_heads`. A file "
        "`vocab.*subwords` in the folder, or the files of `--vocabularies`, become tokenizers with the same token "
        "ids."
    ),
    loses=(
        "`<pad>` gets the probability 0. If a translation contains the code of a character that the "
        "vocabulary lacks, the code is not decoded. The vector of the target space is "
        "added to the source embedding. Models other than `transformer`, learned and relative positions, "
        "other feed-forward layers, and LayerNorm at other positions than pre-norm (`n`, `da`) and "
        "post-norm (`none`, `dan`) are refused."
    ),
    libraries=("tensorflow",),
    options=("config", "vocabularies"),
)
