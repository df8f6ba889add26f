"""Imports the `.pt` files of fairseq whose architecture is `transformer` or a variant of `transformer` with
other sizes, such as `transformer_wmt_en_de_big`.

The settings of a model are in its `.pt` file. Old `.pt` files have an argparse.Namespace under the key
`args`. Newer `.pt` files have a dict or an OmegaConf object under the key `cfg`. The vocabularies are the
files dict.LANGUAGE.txt in the folder of the `.pt` file. The first token in a file dict.LANGUAGE.txt has the
id 4, because fairseq gives the ids 0 to 3 to the special tokens.

The models of fairseq differ from the paper in four points: the attention projections have biases; the
sinusoids have the timescales of tensor2tensor, with all sines in the first half of the features; the first
token has the position 2; the decoder starts from `</s>`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..checkpoint.files import DamagedFileError
from ..checkpoint.tokenizers import Tokenizers
from ..model.configuration_vaswani import VaswaniConfig
from .import_formats import (
    Imported,
    ImportFormat,
    ReadOptions,
    Requirements,
    generation_config,
    languages_of_settings,
    refuse,
    require,
    require_all,
    require_known,
)
from .sentencepiece_models import source_and_target_tokenizers
from .text_files import read_lines
from .unpickling import Stub, header_of, load_weights, weight_file
from .weights import (
    POSITION_TABLES,
    WeightNames,
    equal_embeddings,
    joint_names,
    norm_fields,
    position_fields,
    require_vocabulary_sizes,
    same_names,
    stack_names,
    to_interleaved,
    weight_fields,
)
from .word_tokenizers import SPLITS_AT_SPACES

_TITLE = "fairseq"
_SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
_BOS, _PAD, _EOS, _UNK = range(4)

_NODES = ("AnyNode", "StringNode", "IntegerNode", "FloatNode", "BooleanNode")
# The names of fairseq's settings classes, one class for each section of the settings. OmegaConf objects refer
# to fairseq's classes by name.
_SECTIONS = """
    CommonConfig DistributedTrainingConfig DatasetConfig OptimizationConfig CheckpointConfig FairseqBMUFConfig
    GenerationConfig CommonEvalConfig EvalLMConfig InteractiveConfig EMAConfig FairseqConfig
""".split()
# The classes that the import permits in a checkpoint, in addition to the classes that `torch.load` permits.
_CLASSES = (
    "argparse.Namespace",
    "typing.Any",
    "builtins.dict",
    "builtins.list",
    "builtins.int",
    "builtins.float",
    "builtins.str",
    "builtins.bool",
    "collections.defaultdict",
    "omegaconf.dictconfig.DictConfig",
    "omegaconf.listconfig.ListConfig",
    "omegaconf.base.Metadata",
    "omegaconf.base.ContainerMetadata",
    # Versions 0.6.2 to 0.9.0 store the meters of the training.
    *(f"fairseq.meters.{name}" for name in ("AverageMeter", "TimeMeter", "StopwatchMeter")),
    *(f"omegaconf.nodes.{name}" for name in _NODES),
    *(f"fairseq.dataclass.configs.{name}" for name in _SECTIONS),
    "fairseq.tasks.translation.TranslationConfig",
    "fairseq.optim.adam.FairseqAdamConfig",
    "fairseq.optim.lr_scheduler.inverse_square_root_schedule.InverseSquareRootLRScheduleConfig",
    "fairseq.criterions.label_smoothed_cross_entropy.LabelSmoothedCrossEntropyCriterionConfig",
    "fairseq.criterions.cross_entropy.CrossEntropyCriterionConfig",
    "fairseq.models.transformer.transformer_config.TransformerConfig",
    "fairseq.models.transformer.transformer_config.EncDecBaseConfig",
    "fairseq.models.transformer.transformer_config.DecoderConfig",
    "fairseq.models.transformer.transformer_config.QuantNoiseConfig",
)

_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_fast": "gelu_new",
    "gelu_accurate": "gelu_new",
    "swish": "swish",
    "tanh": "tanh",
    "linear": "linear",
}
_REQUIRED: Requirements = {
    "adaptive_input": (False, "all embeddings must have the same width"),
    "adaptive_softmax_cutoff": (None, "the output projection must be a single matrix"),
    "layernorm_embedding": (False, "there must be no LayerNorm after the embeddings"),
    "no_cross_attention": (False, "the decoder must attend to the encoder output"),
    "cross_self_attention": (False, "self-attention and cross-attention must be separate sub-layers"),
    "char_inputs": (False, "the encoder must read tokens, not characters"),
    "encoder_layers_to_keep": (None, "all layers must be used"),
    "decoder_layers_to_keep": (None, "all layers must be used"),
}


# Ignore the copies of encoder weights that fairseq 0.12 stores for fast inference, because fairseq's training
# does not update the copies.
_COPIES = """
    in_proj_weight in_proj_bias out_proj_weight out_proj_bias fc1_weight fc1_bias fc2_weight fc2_bias
""".split()
_IGNORED = """
    encoder.version encoder.embed_positions._float_tensor encoder.embed_positions.weights
    decoder.version decoder.embed_positions._float_tensor decoder.embed_positions.weights
""".split()
NAMES = WeightNames(
    {
        "encoder.embed_tokens.weight": "model.encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight": "model.decoder.embed_tokens.weight",
        "encoder.embed_positions.weight": "model.encoder.embed_positions.weight",
        "decoder.embed_positions.weight": "model.decoder.embed_positions.weight",
        **same_names(),
        # In the oldest fairseq versions, the LayerNorms of a layer have numbers as names, such as
        # `layer_norms.0`.
        **stack_names({"layer_norms.0": "self_attn_layer_norm"}),
        **stack_names({"layer_norms.1": "final_layer_norm"}, stacks=("encoder",)),
        **stack_names(
            {"layer_norms.1": "encoder_attn_layer_norm", "layer_norms.2": "final_layer_norm"},
            stacks=("decoder",),
        ),
        # Files of the oldest fairseq versions have one joint projection of queries, keys and values.
        **joint_names({"self_attn": "self_attn", "encoder_attn": "encoder_attn"}),
        "decoder.output_projection.weight": "lm_head.weight",
        "decoder.embed_out": "lm_head.weight",
    },
    ignored=(*_IGNORED, *(f"encoder.layers.{{}}.{copy}" for copy in _COPIES)),
)


def recognise_fairseq(path: Path) -> bool:
    """Return True for a `.pt` file of fairseq, or for a folder with one such file."""
    header = header_of(path)
    return b"decoder.layers.0.encoder_attn." in header and (b"args" in header or b"cfg" in header)


def read_fairseq(path: Path, options: ReadOptions) -> Imported:
    """Read a `.pt` file of fairseq, and the vocabularies in its folder."""
    file = weight_file(path)
    if not file.is_file():
        raise ValueError(
            f"'{path}' must be a `.pt` file, or a folder that contains exactly one `.pt` file; give the path "
            "of the file."
        )
    loaded = load_weights(file, _CLASSES)
    if not isinstance(loaded, dict) or not isinstance(loaded.get("model"), dict):
        raise ValueError(
            f"'{file.name}' must have the entry `model`, but does not; name a checkpoint file of fairseq."
        )
    settings = _settings(loaded)
    _refuse_others(settings)
    own = NAMES.to_ours(loaded["model"], _TITLE)
    if "lm_head.weight" not in own:
        own["lm_head.weight"] = own["model.decoder.embed_tokens.weight"]
    has_positions = not settings.get("no_token_positional_embeddings", False)
    own = _with_positions(own, has_positions)
    config = _config(settings, own, has_positions)
    tokenizers, notes = _tokenizers(file.parent, settings, config, options)
    return Imported(
        config=config,
        state_dict=own,
        # 5 beams and 200 tokens are the defaults of the command fairseq-generate.
        generation_config=generation_config(config, num_beams=5, max_length=200),
        tokenizers=tokenizers,
        facts=languages_of_settings(settings),
        notes=notes,
    )


def _settings(loaded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the model and the task. Each key is the name of a fairseq option with
    underscores, such as `encoder_layers`.
    """
    if loaded.get("args") is not None:
        return _plain(loaded["args"])
    cfg = _plain(loaded.get("cfg"))
    if not isinstance(cfg, dict) or not isinstance(cfg.get("model"), dict):
        raise ValueError(
            "The file has no settings in `args` or `cfg`; use a file that fairseq-train has written."
        )
    task = cfg.get("task") or {}
    settings = {**task, **cfg["model"]}
    for stack in ("encoder", "decoder"):
        # In newer fairseq versions, the settings of the encoder and the decoder are in separate sections.
        section = settings.pop(stack, None) or {}
        settings |= {f"{stack}_{name}": value for name, value in section.items()}
    return settings


def _plain(value: Any) -> Any:
    """Convert OmegaConf objects and namespaces to dicts, lists and plain values."""
    if isinstance(value, Stub):
        attributes = vars(value)
        if "_content" in attributes:
            return _plain(attributes["_content"])
        if "_val" in attributes:
            return _plain(attributes["_val"])
        return {name: _plain(item) for name, item in attributes.items() if name != "arguments"}
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _refuse_others(settings: Mapping[str, Any]) -> None:
    arch = settings.get("arch") or settings.get("_name") or "transformer"
    if not arch.startswith("transformer") or arch.startswith("transformer_lm"):
        refuse(
            "arch", arch, "only the architecture `transformer` with an encoder and a decoder can be imported"
        )
    # Check only settings with a true value, because a setting that is off can be None or False.
    require_all({name: value for name, value in settings.items() if value}, _REQUIRED)
    width = settings.get("encoder_embed_dim")
    for name in ("decoder_embed_dim", "decoder_input_dim", "decoder_output_dim"):
        require(
            name,
            settings.get(name) or width,
            width,
            f"the encoder and the decoder must have the same width {width}",
        )
    is_learned = settings.get("encoder_learned_pos", False)
    reason = f"`encoder_learned_pos` is {is_learned}, and the encoder and the decoder must have the same kind of positions"
    require("decoder_learned_pos", settings.get("decoder_learned_pos", False), is_learned, reason)
    require_known("activation_fn", settings.get("activation_fn", "relu"), _ACTIVATIONS)


def _config(
    settings: Mapping[str, Any], state: Mapping[str, torch.Tensor], has_positions: bool
) -> VaswaniConfig:
    for name in ("encoder_attention_heads", "decoder_attention_heads"):
        if settings.get(name) is None:
            raise ValueError(
                f"The settings in the file lack `{name}`; use a file that fairseq-train has written."
            )
    of_encoder, of_decoder = (
        "pre" if settings.get(f"{stack}_normalize_before") else "post" for stack in ("encoder", "decoder")
    )
    is_shared, is_tied = equal_embeddings(state, _TITLE)
    return VaswaniConfig(
        **weight_fields(state, _TITLE, is_shared=is_shared, is_tied=is_tied),
        encoder_attention_heads=settings["encoder_attention_heads"],
        decoder_attention_heads=settings["decoder_attention_heads"],
        dropout=settings.get("dropout", 0.1),
        attention_dropout=settings.get("attention_dropout", 0.0),
        activation_dropout=settings.get("activation_dropout") or settings.get("relu_dropout") or 0.0,
        activation_function=_ACTIVATIONS[settings.get("activation_fn", "relu")],
        # `norm_fields` looks for the final LayerNorms in the weights, because in models of the oldest fairseq
        # versions, no LayerNorm follows the last layer of a pre-norm stack.
        **norm_fields(state, of_encoder, of_decoder),
        **position_fields(state, has_positions),
        position_timescales="tensor2tensor",
        position_offset=_PAD + 1,
        scale_embedding=not settings.get("no_scale_embedding", False),
        bos_token_id=_BOS,
        pad_token_id=_PAD,
        eos_token_id=_EOS,
        decoder_start_token_id=_EOS,
    )


def _with_positions(state: dict[str, torch.Tensor], has_positions: bool) -> dict[str, torch.Tensor]:
    """If the positions are sinusoids, reorder the features. If the positions are learned, remove the unused
    first rows of the position tables.
    """
    if POSITION_TABLES[0] in state:
        lengths = [len(state[name]) - _PAD - 1 for name in POSITION_TABLES]
        require(
            "max_target_positions",
            lengths[1],
            lengths[0],
            "the position tables of the encoder and the decoder must have the same length",
        )
        for name in POSITION_TABLES:
            # Remove the rows of the positions 0 and 1, because the first token of a text has the position 2.
            state[name] = state[name][_PAD + 1 :]
    elif has_positions:
        state = to_interleaved(state)
    return state


def _tokenizers(
    folder: Path, settings: Mapping[str, Any], config: VaswaniConfig, options: ReadOptions
) -> tuple[Tokenizers | None, list[str]]:
    languages = [settings.get("source_lang"), settings.get("target_lang")]
    files = [folder / f"dict.{language}.txt" for language in languages]
    if options.vocabularies:
        # If `vocabularies` has only one file, the file is the joint vocabulary of both languages.
        files = [options.vocabularies[0], options.vocabularies[-1]]
    elif not all(file.is_file() for file in files):
        reason = f"the folder lacks {' and '.join(sorted({file.name for file in files}))}"
        if None in languages:
            reason = "the checkpoint does not name its languages"
        return None, [
            f"No tokenizers were written, because {reason}; name the vocabularies with `--vocabularies`."
        ]
    models = sorted(folder.glob("*.model"))
    vocabularies = [_read_vocabulary(file) for file in files]
    # Very old fairseq versions pad the vocabulary with tokens such as madeupword0000. The vocabulary file
    # also contains these tokens, so its size must equal the vocabulary size of the model.
    require_vocabulary_sizes([file.name for file in files], vocabularies, config)
    if len(models) != 1:
        return source_and_target_tokenizers(vocabularies, ()), [SPLITS_AT_SPACES]
    return source_and_target_tokenizers(vocabularies, models), []


def _read_vocabulary(path: Path) -> dict[str, int]:
    """Map each token of a fairseq dictionary to its id. Each line has a token and its frequency."""
    ids = {token: number for number, token in enumerate(_SPECIAL_TOKENS)}
    for number, line in enumerate(read_lines(path), 1):
        token, _, count = line.rstrip().removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not token or not count.isdecimal() or (token in ids and token not in _SPECIAL_TOKENS):
            raise DamagedFileError(
                f"Line {number:,} of '{path.name}' must contain a token that no earlier line has, and its frequency, but is "
                f"{line[:50]!r}"
            )
        ids.setdefault(token, len(ids))
    return ids


FAIRSEQ = ImportFormat(
    name="fairseq",
    title=_TITLE,
    recognise=recognise_fairseq,
    read=read_fairseq,
    files=("*.pt", "dict.*.txt", "*.model"),
    keeps=(
        "Keeps the weights, the positions, and the vocabularies dict.LANGUAGE.txt. If the folder contains "
        "one SentencePiece model, the imported tokenizers segment texts with this model. With no or several SentencePiece models, the "
        "imported tokenizers split source texts at spaces, and join target tokens that end with `@@` to "
        "the next token."
    ),
    loses=(
        "`<pad>` gets the probability 0. Other architectures, adaptive embeddings, `layernorm_embedding` "
        "and stacks of different widths are refused. The settings for layerdrop and quantization noise are "
        "lost."
    ),
    options=("vocabularies",),
)
