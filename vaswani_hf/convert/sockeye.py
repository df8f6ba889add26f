"""Imports models of Sockeye 3: a folder with config, params.best, vocab.src.0.json and vocab.trg.0.json.

Sockeye's models differ from the paper in three points: an epsilon of 1e-6 in LayerNorm; an output projection
with a bias; sinusoids with all sines in the first half of the features. Models with pre-norm also have a
LayerNorm at the end of each stack. Keys and values have one joint projection. The rows of the joint
projection are ordered by head: the keys of the first head, the values of the first head, the keys of the
second head, and so on.

The file `config` is YAML with the names of Sockeye's classes as tags. The import reads each tagged YAML
mapping as a dict.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import GenerationConfig

from ..checkpoint.files import DamagedFileError, read_json_object
from ..model.configuration_vaswani import VaswaniConfig
from .import_formats import (
    Imported,
    ImportFormat,
    Logits,
    ReadOptions,
    Requirements,
    generation_config,
    read_norm_position,
    refuse,
    require,
    require_all,
    require_known,
)
from .sentencepiece_models import NAME_THE_MODELS, source_and_target_tokenizers
from .text_files import read_yaml
from .unpickling import load_weights
from .weights import (
    POSITION_TABLES,
    WeightNames,
    norm_fields,
    parts,
    position_fields,
    require_vocabulary_sizes,
    stack_names,
    to_interleaved,
    weight_fields,
)

_TITLE = "Sockeye 3"
_CONFIG_FILE = "config"
_SECTIONS = ("config_data", "config_embed_source", "config_embed_target", "config_encoder", "config_decoder")
_WEIGHT_FILE = "params.best"
_VERSION_FILE = "version"
_VOCABULARY_FILES = ("vocab.src.0.json", "vocab.trg.0.json")
_LAYER_NORM_EPS = 1e-6
_PAD, _UNK, _BOS, _EOS = range(4)
# Maps the name of each activation in Sockeye to its name in transformers.
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish1": "silu"}
_POSITIONS = {"fixed": "sinusoidal", "learned": "learned"}
_REQUIRED_OF_MODEL: Requirements = {
    "lhuc": (False, "this package does not support learned factors for hidden units (LHUC)"),
    "neural_vocab_selection": (None, "the output projection must contain all tokens of the vocabulary"),
}
_REQUIRED_OF_STACK: Requirements = {
    "decoder_type": ("transformer", "each decoder layer must have self-attention"),
    "use_lhuc": (False, "this package does not support learned factors for hidden units (LHUC)"),
    "use_glu": (False, "this package does not support gates in the feed-forward network"),
    "block_prepended_cross_attention": (False, "the decoder must attend to all source tokens"),
}
# The attention projections of Sockeye have no biases.
NAMES = WeightNames(
    {
        "embedding_source.embedding.weight": "model.encoder.embed_tokens.weight",
        "embedding_target.embedding.weight": "model.decoder.embed_tokens.weight",
        "encoder.pos_embedding.weight": "model.encoder.embed_positions.weight",
        "decoder.pos_embedding.weight": "model.decoder.embed_positions.weight",
        "output_layer.weight": "lm_head.weight",
        "output_layer.bias": "lm_head.bias",
        # The LayerNorms have the prefix `pre_` in a pre-norm model, and the prefix `post_` in a post-norm
        # model.
        **stack_names(
            {
                "ff.ff1": "fc1",
                "ff.ff2": "fc2",
                "pre_ff.layer_norm": "final_layer_norm",
                "post_ff.layer_norm": "final_layer_norm",
            },
            norm="final_process.layer_norm",
        ),
        **stack_names(
            {
                "self_attention.ff_in": parts("self_attn", "qkv"),
                "self_attention.ff_out": "self_attn.out_proj",
            },
            stacks=("encoder",),
            bias=None,
        ),
        **stack_names(
            {
                "pre_self_attention.layer_norm": "self_attn_layer_norm",
                "post_self_attention.layer_norm": "self_attn_layer_norm",
            },
            stacks=("encoder",),
        ),
        **stack_names(
            {
                "autoregr_layer.ff_in": parts("self_attn", "qkv"),
                "autoregr_layer.ff_out": "self_attn.out_proj",
                "enc_attention.ff_q": "encoder_attn.q_proj",
                "enc_attention.ff_kv": parts("encoder_attn", "kv"),
                "enc_attention.ff_out": "encoder_attn.out_proj",
            },
            stacks=("decoder",),
            bias=None,
        ),
        **stack_names(
            {
                "pre_autoregr_layer.layer_norm": "self_attn_layer_norm",
                "post_autoregr_layer.layer_norm": "self_attn_layer_norm",
                "pre_enc_attention.layer_norm": "encoder_attn_layer_norm",
                "post_enc_attention.layer_norm": "encoder_attn_layer_norm",
            },
            stacks=("decoder",),
        ),
    }
)


class _ConfigLoader(yaml.SafeLoader):
    """Reads Sockeye's YAML file `config`. A section with a YAML tag becomes a dict, and a tuple becomes a
    list.
    """


def _section(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    raise yaml.YAMLError(f"the section with the tag !{tag} must have keys and values")


_ConfigLoader.add_multi_constructor("!", _section)
_ConfigLoader.add_multi_constructor("tag:yaml.org,2002:python/tuple", _section)


def recognise_sockeye(path: Path) -> bool:
    """Return True for a folder with a file `config` that begins with Sockeye's tag."""
    file = path / _CONFIG_FILE
    return file.is_file() and file.read_bytes().startswith(b"!ModelConfig")


def read_sockeye(path: Path, options: ReadOptions) -> Imported:
    """Read a Sockeye model from its folder."""
    settings = read_yaml(path / _CONFIG_FILE, loader=_ConfigLoader, sections=_SECTIONS, title=_TITLE)
    encoder = settings["config_encoder"]
    decoder = settings["config_decoder"]
    _refuse_others(settings)
    vocabularies = [_read_vocabulary(path, file) for file in _VOCABULARY_FILES]
    state = _read_state(path)
    own = NAMES.to_ours(_by_part(state, settings), _TITLE)
    tying = settings.get("weight_tying_type", "src_trg_softmax")
    norm_position, norm_position_of_decoder = (
        read_norm_position(stack, "preprocess_sequence", "postprocess_sequence", residual="r")
        for stack in (encoder, decoder)
    )
    positions = _POSITIONS[encoder["positional_embedding_type"]]
    own = _with_positions(own, positions)
    config = VaswaniConfig(
        **weight_fields(own, _TITLE, is_shared="src" in tying and "trg" in tying, is_tied="softmax" in tying),
        encoder_attention_heads=encoder["attention_heads"],
        decoder_attention_heads=decoder["attention_heads"],
        dropout=encoder.get("dropout_prepost", 0.1),
        attention_dropout=encoder.get("dropout_attention", 0.1),
        activation_dropout=encoder.get("dropout_act", 0.1),
        activation_function=_ACTIVATIONS[encoder["act_type"]],
        **norm_fields(own, norm_position, norm_position_of_decoder),
        layer_norm_eps=_LAYER_NORM_EPS,
        **position_fields(own, has_positions=True),
        bos_token_id=_BOS,
        pad_token_id=_PAD,
        eos_token_id=_EOS,
        decoder_start_token_id=_BOS,
    )
    require_vocabulary_sizes(_VOCABULARY_FILES, vocabularies, config)
    return Imported(
        config=config,
        state_dict=own,
        generation_config=_search_config(settings, config),
        tokenizers=source_and_target_tokenizers(vocabularies, options.vocabularies),
        notes=[] if options.vocabularies else [NAME_THE_MODELS],
        logits=_original_logits(path),
    )


def _refuse_others(settings: Mapping[str, Any]) -> None:
    encoder = settings["config_encoder"]
    decoder = settings["config_decoder"]
    require_all(settings, _REQUIRED_OF_MODEL)
    for side in ("source", "target"):
        factors = settings[f"config_embed_{side}"].get("factor_configs") or []
        require(f"num_{side}_factors", 1 + len(factors), 1, "this package does not support factors of tokens")
    for stack in (encoder, decoder):
        require_all(stack, _REQUIRED_OF_STACK)
        require_known("act_type", stack["act_type"], _ACTIVATIONS)
        require_known("positional_embedding_type", stack["positional_embedding_type"], _POSITIONS)
    for field in ("model_size", "act_type", "positional_embedding_type"):
        require(field, decoder[field], encoder[field], "the encoder and the decoder must have the same value")
    if settings.get("dtype") == "int8":
        refuse(
            "dtype", "int8", "quantized weights cannot be imported; import the model before its quantization"
        )


def _read_vocabulary(folder: Path, file: str) -> dict[str, int]:
    ids = read_json_object(folder, file, folder.name)
    if [ids.get(token) for token in ("<pad>", "<unk>", "<s>", "</s>")] != [_PAD, _UNK, _BOS, _EOS]:
        raise DamagedFileError(
            f"In {file} of '{folder.name}', <pad>, <unk>, <s> and </s> must have the ids 0 to 3, but have "
            "other ids"
        )
    return ids


def _read_state(folder: Path) -> dict[str, torch.Tensor]:
    file = folder / _WEIGHT_FILE
    if not file.is_file():
        raise DamagedFileError(f"'{folder.name}' holds no whole checkpoint: it has no {_WEIGHT_FILE}")
    state = load_weights(file)
    if not isinstance(state, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        # A value that is not a tensor belongs to a quantized linear layer of PyTorch.
        raise ValueError(
            f"'{_WEIGHT_FILE}' must contain only tensors, but does not; use the weights of a model that is "
            "not quantized."
        )
    # Leave out two kinds of weights. Old versions of Sockeye also write copies of weights. The names of the
    # copied weights contain "traced" or "cached". The network that predicts the length of a translation has
    # no effect on the probabilities of tokens.
    return {
        name: tensor
        for name, tensor in state.items()
        if "traced" not in name and "cached" not in name and not name.startswith("length_ratio.")
    }


def _by_part(state: Mapping[str, torch.Tensor], settings: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Reorder the rows of each joint projection: the keys of all heads before the values of all heads."""
    sorted_state = dict(state)
    for name, weight in state.items():
        if not name.endswith(("ff_in.weight", "ff_kv.weight")):
            continue
        heads = settings[f"config_{name.partition('.')[0]}"]["attention_heads"]
        # In self-attention, the joint projection begins with the rows of the queries.
        num_queries = weight.shape[1] if name.endswith("ff_in.weight") else 0
        if len(weight) == num_queries or (len(weight) - num_queries) % (2 * heads):
            refuse(
                "attention_heads",
                heads,
                f"the {len(weight)} rows of the weight {name} cannot be divided into keys and values of this number of "
                "heads",
            )
        queries = weight[:num_queries]
        rest = weight[num_queries:]
        by_head = rest.unflatten(0, (heads, 2, -1))  # [heads, 2, d_k, D]
        sorted_state[name] = torch.cat((queries, by_head.transpose(0, 1).flatten(0, 2)))
    return sorted_state


def _with_positions(state: dict[str, torch.Tensor], positions: str) -> dict[str, torch.Tensor]:
    """With sinusoidal positions, reorder the features so that sines and cosines alternate. With learned
    positions, make the position tables of the encoder and the decoder equally long.
    """
    tables = [state.pop(name) for name in POSITION_TABLES if name in state]
    if positions == "sinusoidal":
        return to_interleaved(state)
    longest = max(len(table) for table in tables)
    for name, table in zip(POSITION_TABLES, tables, strict=True):
        # For positions after the end of a table, Sockeye uses the last row of the table.
        state[name] = torch.cat((table, table[-1:].expand(longest - len(table), -1)))
    return state


def _search_config(settings: Mapping[str, Any], config: VaswaniConfig) -> GenerationConfig:
    """Return a generation config with the default search options of the command sockeye-translate. The
    maximum length is 1 token plus a factor times the source length. The factor for the maximum length is the
    mean ratio of target length to source length in the training data, plus two standard deviations.
    """
    statistics = settings["config_data"].get("data_statistics") or {}
    ratio = statistics.get("length_ratio_mean", 1.0) + 2 * statistics.get("length_ratio_std", 0.5)
    return generation_config(
        config, num_beams=5, length_penalty=1.0, max_length_a=float(ratio), max_length_b=1
    )


def _original_logits(folder: Path) -> Logits | None:
    """Return a function that computes logits with Sockeye, or None if Sockeye is not installed."""
    if find_spec("sockeye") is None or not (folder / _VERSION_FILE).is_file():
        return None
    from sockeye.model import load_model

    model, _, _ = load_model(str(folder), dtype="float32")
    model.eval()

    def logits(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        lengths = batch["attention_mask"].sum(dim=1, keepdim=True)
        # The source length and the number of prepended tokens (here 0) of each sentence, [B, 2].
        source_length = torch.cat((lengths, torch.zeros_like(lengths)), dim=1)
        output = model(
            batch["input_ids"].unsqueeze(2),
            source_length,
            batch["decoder_input_ids"].unsqueeze(2),
            batch["decoder_attention_mask"].sum(dim=1, keepdim=True),
        )
        return output["logits"]

    return logits


SOCKEYE = ImportFormat(
    name="sockeye",
    title=_TITLE,
    recognise=recognise_sockeye,
    read=read_sockeye,
    files=(_CONFIG_FILE, _WEIGHT_FILE, _VERSION_FILE, "vocab.*.json"),
    keeps=(
        "Keeps the weights, the output bias, the vocabularies, sinusoids or learned positions, and the "
        "length limit of translations. With `--vocabularies`, the tokenizers segment texts with the "
        "SentencePiece models; without `--vocabularies`, the tokenizers split texts at spaces and join "
        "tokens that end with `@@`."
    ),
    loses=(
        "`<pad>` gets the probability 0. SSRU decoders, LHUC, gated feed-forward networks, source and "
        "target factors, neural vocabulary selection, int8 weights, and processing sequences other than "
        "`n:dr` (pre-norm) and `:drn` (post-norm) are refused. The network that predicts the length of a "
        "translation is ignored. For target positions after `max_seq_len_target`, Sockeye repeats the last "
        "position, but the imported model continues the sinusoids."
    ),
    options=("vocabularies",),
)
