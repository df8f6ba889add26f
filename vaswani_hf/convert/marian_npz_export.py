"""Exports a checkpoint to a folder that Marian (C++) reads: a model file `.npz`, vocabularies and
decoder.yml.

The type of the exported Marian model depends on the checkpoint:

- The export writes the type "transformer", for all versions of Marian, if the checkpoint has Marian's default
  architecture: post-norm, tensor2tensor's timescales, a decoder that starts from a vector of zeros, and an
  epsilon of 1e-6 in LayerNorm. The export reorders the rows or columns of the weights to Marian's order of
  the D features: all sines before all cosines.

- For all other checkpoints, the export writes the type "transformer-new" (for Marian 1.12 and later). The
  export stores the sinusoids of the checkpoint as Marian's learned positions. Marian does not multiply
  embeddings by sqrt(d_model) in models with learned positions, so the export multiplies the stored embeddings
  by sqrt(d_model) if the checkpoint scales its embeddings. The export does not multiply the output projection
  by sqrt(d_model). Therefore the export stores an output projection that is tied to the embeddings as a
  separate matrix. Marian's decoder starts from a vector of zeros. If the decoder of the checkpoint starts
  from the embedding of a token, the export adds this embedding to the first row of the decoder's position
  table.

Marian 1.12.42 has three errors. For models of the type "transformer" with learned positions, Marian stops
with an error message. For models of the type "transformer" with pre-norm, the search of Marian omits a
LayerNorm. For models of the type "transformer-new", the search of Marian mixes up the sentences of a batch
after the first sentence has ended. Therefore the export sets a batch size of one sentence in decoder.yml for
models of the type "transformer-new".

Marian cannot run the tokenizers of this package, so Marian's input must be tokenized texts with spaces
between the tokens. In the names of tokens, codes such as `<U+0020>` replace spaces and control characters.
The class `MarianNpzEngine` tokenizes texts with the tokenizers in the exported folder.

In shapes, D is the model width and L the number of positions in the position table.
"""

import json
import math
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import torch
import yaml
from transformers import GenerationConfig, PreTrainedTokenizerFast

from ..checkpoint.files import FILES_OF_BOTH_TOKENIZERS
from ..checkpoint.search_settings import NotExpressibleError, SupportedSettings
from ..checkpoint.tokenizers import Tokenizers, adds_end_token, load_tokenizers, save_tokenizers
from ..model.configuration_vaswani import VaswaniConfig, decoder_start_token_id, eos_token_ids
from ..model.inputs_vaswani import BEAM_SEARCH_SETTINGS, LENGTH_SETTINGS
from ..model.loss_vaswani import EXCLUDED_LOGIT
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..model.precedence_vaswani import DEFAULT_SEARCH
from ..model.segmenter_vaswani import DEFAULT_MAX_LENGTH, token_limits
from .comparison import largest_difference, report, sample_batch
from .export_formats import (
    SCORE_PER_TOKEN,
    Engine,
    ExportFormat,
    Expressible,
    Limit,
    needs_start_token,
    one_of,
    refuse_language_tokens,
)
from .import_formats import ReadOptions
from .marian import shared_by_heads
from .marian_npz import (
    ACTIVATIONS,
    EPSILONS,
    NEW_TYPE,
    OLD_TYPE,
    OPTIONS_ENTRY,
    REQUIRED,
    is_matrix,
    read_marian_npz,
    weight_names,
)
from .marian_process import lines_of, marian_difference, marian_log_probs, run_marian
from .simplify import SCALED_DOT_FIELDS, SCALED_DOT_LIMITS, with_scaled_dot
from .weights import to_halves

_MODEL_FILE, _DECODER_FILE = "model.npz", "decoder.yml"
_JOINT_VOCABULARY = "vocab.yml"
_VOCABULARIES = ("source.vocab.yml", "target.vocab.yml")
# Marian splits texts at white space, and names in YAML cannot contain the other characters of this set.
_UNWRITABLE = re.compile(r"[\s\x7f-\x9f\u2028\u2029\ufffe\uffff]", re.ASCII)
# Maps the name of each activation in transformers to its name in Marian.
_MARIAN_ACTIVATIONS = {"silu": "swish", **{own: theirs for theirs, own in ACTIVATIONS.items()}}
_POSITIONS = ("sinusoidal", "learned", "none")
# The version of Marian that the tests use to run exported models.
_VERSION = "1.12.42"
# By default, Marian generates at most `_LENGTH_FACTOR` target tokens for each source token.
_LENGTH_FACTOR = 3.0


def _equal_heads(config: VaswaniConfig) -> str | None:
    heads = config.encoder_attention_heads
    return (
        None
        if config.decoder_attention_heads == heads
        else f"Marian's encoder and decoder must have the same number of heads, and the encoder has {heads} heads"
    )


def _equal_norms(config: VaswaniConfig) -> str | None:
    if config.shape_of("decoder").norm_position == config.norm_position:
        return None
    return "Marian's encoder and decoder must have the same norm position"


def _one_end_token(config: VaswaniConfig) -> str | None:
    return None if len(eos_token_ids(config)) == 1 else "Marian supports only one end token"


_LIMITS: dict[str, Limit] = {
    "position_embedding": one_of(
        "position_embedding", _POSITIONS, f"Marian supports only {', '.join(_POSITIONS)}"
    ),
    "activation_function": one_of(
        "activation_function", _MARIAN_ACTIVATIONS, f"Marian supports only {', '.join(_MARIAN_ACTIVATIONS)}"
    ),
    "decoder_attention_heads": _equal_heads,
    "norm_position_of_decoder": _equal_norms,
    "d_k": shared_by_heads("d_k"),
    "d_v": shared_by_heads("d_v"),
    "eos_token_id": _one_end_token,
    "decoder_start_token_id": needs_start_token,
    **SCALED_DOT_LIMITS,
}
EXPRESSIBLE = Expressible("Marian (C++)", SCALED_DOT_FIELDS - _LIMITS.keys(), _LIMITS)
SETTINGS = SupportedSettings(
    EXPRESSIBLE.title,
    # `_search_options` refuses some values of `suppress_tokens`.
    ("num_beams", "length_penalty", "max_length_a", "suppress_tokens"),
    left_out=(*BEAM_SEARCH_SETTINGS, *LENGTH_SETTINGS, "forced_eos_token_id"),
    search="the search of Marian divides scores by a power of the length, and limits the length of a translation to a "
    "multiple of the source length",
)


def export_marian_npz(
    model: VaswaniForSeq2SeqLM, tokenizers: Tokenizers, folder: Path, quantization: str | None = None
) -> str:
    """Write the model file, the vocabularies, decoder.yml and the tokenizers, and compare the outputs."""
    refuse_language_tokens(tokenizers[0], EXPRESSIBLE.title)
    if not adds_end_token(tokenizers[0]):
        raise NotExpressibleError(
            f"The source tokenizer adds no end token to texts, but {EXPRESSIBLE.title} always adds an end token; use "
            "another format."
        )
    model = with_scaled_dot(model.float())
    search = _search_options(model.generation_config, tokenizers, model.config)
    num_positions = math.ceil(search["max-length"] * search["max-length-factor"]) + 1
    state, options = _marian_model(model, num_positions)
    folder.mkdir(parents=True, exist_ok=True)
    _write_npz(folder / _MODEL_FILE, state, options)
    search["vocabs"] = _write_vocabularies(tokenizers, folder, options["dim-vocabs"])
    text = yaml.safe_dump({"relative-paths": True, "models": [_MODEL_FILE], **search}, sort_keys=False)
    (folder / _DECODER_FILE).write_text(text, encoding="utf-8")
    save_tokenizers(*tokenizers, folder)
    if find_spec("pymarian") is None:
        return report("log-probabilities of the written file", _difference_of_import(model, folder))
    difference = MarianNpzEngine(folder).difference(model)
    return report("log-probabilities of Marian", difference)


def _search_options(
    config: GenerationConfig, tokenizers: Tokenizers, model_config: VaswaniConfig
) -> dict[str, Any]:
    """Return the search options for decoder.yml."""
    unknown = tokenizers[-1].unk_token_id
    # Allow `<pad>` in `suppress_tokens`, because the exported model never generates `<pad>`.
    if not {unknown, model_config.pad_token_id}.issuperset(config.suppress_tokens or ()):
        raise NotExpressibleError(
            f"`suppress_tokens` is {config.suppress_tokens!r} in the generation config, which {EXPRESSIBLE.title} "
            "cannot express: its search can exclude only the unknown token; remove the other tokens."
        )
    longest = model_config.position_table_size
    if longest is None:
        longest = max([DEFAULT_MAX_LENGTH, *token_limits(tokenizers)])
    factor = getattr(config, "max_length_a", None) or 0.0
    if not factor or getattr(config, "max_length_b", None):
        factor = max(factor, _LENGTH_FACTOR)
    return {
        "beam-size": config.num_beams or DEFAULT_SEARCH["num_beams"],
        "normalize": 1.0 if config.length_penalty is None else config.length_penalty,
        "word-penalty": 0,
        # By default, Marian's search excludes the unknown token.
        "allow-unk": unknown is not None and unknown not in (config.suppress_tokens or ()),
        "max-length-factor": factor,
        "max-length": longest,
        "max-length-crop": True,
        **_batches(model_config),
    }


def _batches(config: VaswaniConfig) -> dict[str, Any]:
    if is_marian_default(config):
        return {"mini-batch": 32, "maxi-batch": 100, "maxi-batch-sort": "src"}
    # Use batches of one sentence. In larger batches, the search of Marian 1.12.42 mixes up the sentences of a
    # "transformer-new" model after one sentence has ended.
    return {"mini-batch": 1, "maxi-batch": 1, "maxi-batch-sort": "none"}


def is_marian_default(config: VaswaniConfig) -> bool:
    """Return True if Marian's model type "transformer" with the weights of the checkpoint computes the same
    function as the checkpoint.
    """
    return (
        config.position_embedding == "sinusoidal"
        and config.position_timescales == "tensor2tensor"
        and config.position_offset == 0
        and config.scale_embedding
        and config.zero_start_embedding
        and config.norm_position == "post"
        and config.layer_norm_eps == EPSILONS[OLD_TYPE]
    )


def _marian_model(
    model: VaswaniForSeq2SeqLM, num_positions: int
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the weights with Marian's names, and the options of the Marian model."""
    config = model.config
    state = _weights_for_marian(model)
    is_tied = config.tie_word_embeddings
    kind = OLD_TYPE if is_marian_default(config) else NEW_TYPE
    if kind == OLD_TYPE:
        state = to_halves(state)
    else:
        _add_position_tables(state, model, num_positions)
        _scale_residuals(state, config)
        is_tied = is_tied and torch.equal(state["lm_head.weight"], state["model.decoder.embed_tokens.weight"])
    is_shared = config.share_encoder_decoder_embeddings
    is_pre = config.norm_position == "pre"
    options = {
        "type": kind,
        "dim-vocabs": [len(state[f"model.{stack}.embed_tokens.weight"]) for stack in ("encoder", "decoder")],
        "dim-emb": config.d_model,
        "enc-depth": config.encoder_layers,
        "dec-depth": config.decoder_layers,
        "tied-embeddings": is_tied and not is_shared,
        "tied-embeddings-src": is_shared and not is_tied,
        "tied-embeddings-all": is_shared and is_tied,
        "output-omit-bias": "lm_head.bias" not in state,
        "transformer-heads": config.encoder_attention_heads,
        "transformer-dim-ffn": config.encoder_ffn_dim,
        "transformer-decoder-dim-ffn": config.decoder_ffn_dim,
        "transformer-decoder-ffn-depth": 0,
        "transformer-ffn-activation": _MARIAN_ACTIVATIONS[config.activation_function],
        "transformer-preprocess": "n" if is_pre else "",
        "transformer-postprocess": "da" if is_pre else "dan",
        "transformer-postprocess-emb": "d",
        "transformer-postprocess-top": "n" if config.shape_of("decoder").has_final_norm else "",
        "transformer-train-position-embeddings": kind == NEW_TYPE,
        "transformer-disable-position-embeddings": False,
        # Write a version of at least 1.12.3, because Marian approximates the activation GELU in models of
        # earlier versions.
        "version": f"v{_VERSION}",
        # The number of positions in each table of position encodings.
        "max-length": num_positions,
        **{name: value for name, (value, _) in REQUIRED.items()},
    }
    return weight_names(options).to_theirs(state), options


def _weights_for_marian(model: VaswaniForSeq2SeqLM) -> dict[str, torch.Tensor]:
    """Return the weights in the form that Marian needs.

    The function returns a shared or tied weight under each of its names, because the export can change the
    weight separately for each name. Attention layers without biases get biases of zeros, because Marian
    always adds biases. If the model always gives `<pad>` the probability 0, the exported model must do so
    too. Therefore the export gives `<pad>` a very low output bias, or removes the embedding and output rows
    of `<pad>`.
    """
    config = model.config
    state = {name: tensor.detach() for name, tensor in model.named_parameters()}
    if config.share_encoder_decoder_embeddings:
        shared = state.pop("model.shared.weight")
        state |= {f"model.{stack}.embed_tokens.weight": shared for stack in ("encoder", "decoder")}
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.decoder.embed_tokens.weight"]
    for name, tensor in list(state.items()):
        if name.endswith("_proj.weight"):
            state.setdefault(name.removesuffix("weight") + "bias", tensor.new_zeros(len(tensor)))
    pad = config.pad_token_id
    if model.excluded_class(0.0, None) is None:
        return state
    if config.zero_start_embedding and config.vocab_size == config.decoder_vocab_size == pad + 1:
        # Marian's decoder starts from a zero vector, and does not need the embedding of `<pad>`.
        rows = [name for name in state if "embed_tokens" in name or "lm_head" in name]
        return state | {name: state[name][:pad] for name in rows}
    bias = state.get("lm_head.bias", state["lm_head.weight"].new_zeros(config.decoder_vocab_size)).clone()
    bias[pad] = EXCLUDED_LOGIT
    return state | {"lm_head.bias": bias}


def _add_position_tables(
    state: dict[str, torch.Tensor], model: VaswaniForSeq2SeqLM, num_positions: int
) -> None:
    """Multiply the embeddings in `state` by the scaling factor `embed_scale`, and store position tables [L,
    D] in `state`.
    """
    position_ids = torch.arange(num_positions, device=model.device)
    if model.config.position_table_size is not None:
        # Repeat the last learned position, because Marian stops with an error if the table lacks a position.
        position_ids = position_ids.clamp(max=model.config.position_table_size - 1)
    for stack in (model.model.encoder, model.model.decoder):
        name = "encoder" if stack is model.model.encoder else "decoder"
        embedding = f"model.{name}.embed_tokens.weight"
        state[embedding] = state[embedding] * stack.embed_scale
        with torch.no_grad():
            table = stack.embed_positions(position_ids.unsqueeze(0)).squeeze(0).clone()
        state[f"model.{name}.embed_positions.weight"] = table
    if not model.config.zero_start_embedding:
        start = decoder_start_token_id(model.config)
        state["model.decoder.embed_positions.weight"][0] += state["model.decoder.embed_tokens.weight"][start]


def _scale_residuals(state: dict[str, torch.Tensor], config: VaswaniConfig) -> None:
    """Change the weights so that the model gives the same outputs with Marian's epsilon in each LayerNorm.

    LayerNorm(x) with an epsilon e equals LayerNorm(c x) with the epsilon c^2 e. Therefore the export
    multiplies the inputs of all LayerNorms by c, where c^2 is Marian's epsilon divided by the checkpoint's
    epsilon. The input of a LayerNorm is a sum, so the export multiplies each summand by c. The summands of a
    LayerNorm's input are the token embeddings, the position embeddings and the outputs of sub-layers. In
    post-norm models, the output of a LayerNorm is also a summand of the next LayerNorm's input. If the input
    of a linear layer is multiplied by c, the export divides the weight of the linear layer by c.
    """
    factor = math.sqrt(EPSILONS[NEW_TYPE] / config.layer_norm_eps)
    if factor == 1:
        return
    is_post = config.norm_position == "post"
    has_final_norm = config.shape_of("decoder").has_final_norm
    for name, tensor in state.items():
        module, kind = name.split(".")[-2:]
        is_scaled_input = is_post
        if "encoder_attn.k_proj" in name or "encoder_attn.v_proj" in name or module == "lm_head":
            # The cross-attention reads the output of the encoder, and the output projection reads the output
            # of the decoder. A final LayerNorm undoes the multiplication by `factor`, so the output of the
            # encoder or decoder does not change.
            is_scaled_input = not has_final_norm
        if module in ("embed_tokens", "embed_positions", "out_proj", "fc2"):
            state[name] = tensor * factor
        elif module.endswith("_layer_norm"):
            state[name] = tensor * factor if is_post else tensor
        elif kind == "weight" and module != "layer_norm" and is_scaled_input:
            state[name] = tensor / factor


def _write_npz(path: Path, state: dict[str, torch.Tensor], options: dict[str, Any]) -> None:
    """Write the weights, in the shapes that Marian expects, and the options."""
    own_names = weight_names(options).names
    arrays = {}
    for name, tensor in state.items():
        own = str(own_names[name])
        if is_matrix(own):
            tensor = tensor.T
        elif own == "lm_head.bias" or (options["type"] == OLD_TYPE and tensor.dim() == 1):
            tensor = tensor.unsqueeze(0)
        arrays[name] = tensor.contiguous().cpu().numpy()
    # Append a NUL byte, because Marian reads the YAML text up to the first NUL byte.
    text = yaml.safe_dump(options, sort_keys=False).encode() + b"\0"
    arrays[OPTIONS_ENTRY] = numpy.frombuffer(text, dtype=numpy.int8)
    numpy.savez(path, **arrays)


def _write_vocabularies(tokenizers: Tokenizers, folder: Path, sizes: list[int]) -> list[str]:
    """Write the vocabulary files. Return the names of the files with the source vocabulary and the target
    vocabulary.
    """
    is_joint = tokenizers[0] is tokenizers[1] and sizes[0] == sizes[1]
    names = (_JOINT_VOCABULARY, _JOINT_VOCABULARY) if is_joint else _VOCABULARIES
    for name, tokenizer, size in zip(names, tokenizers, sizes, strict=True):
        ids = {token: number for number, token in enumerate(_token_names(tokenizer, size))}
        (folder / name).write_text(json.dumps(ids, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    return list(names)


def _token_names(tokenizer: PreTrainedTokenizerFast, size: int) -> list[str]:
    """Return a token name for each row of the embedding. Marian needs the names `</s>` and `<unk>`. In the
    names, a code such as `<U+0020>` replaces each character of `_UNWRITABLE`.
    """
    # An id without a token gets a name that does not occur in texts, such as `<class_7>`.
    names = [f"<class {number}>".replace(" ", "_") for number in range(size)]
    for token, number in tokenizer.get_vocab().items():
        if number < size:
            names[number] = _UNWRITABLE.sub(lambda match: f"<U+{ord(match[0]):04X}>", token)
    # If the tokenizer has no unknown token, rename `<pad>` to `<unk>`, because an encoded text never contains
    # the id of `<pad>`.
    unknown = tokenizer.pad_token_id if tokenizer.unk_token_id is None else tokenizer.unk_token_id
    names[unknown] = "<unk>"
    names[tokenizer.eos_token_id] = "</s>"
    return names


def _difference_of_import(model: VaswaniForSeq2SeqLM, folder: Path) -> float:
    """Check the export without Marian: import the exported folder again. Return the largest difference (nats)
    between log-probabilities of the checkpoint and of the imported model.
    """
    imported = read_marian_npz(folder, ReadOptions())
    config = imported.config
    written = VaswaniForSeq2SeqLM.from_pretrained(None, config=config, state_dict=imported.state_dict)
    batch = sample_batch(model.config)
    is_source, is_target = (batch[f"{side}attention_mask"].bool() for side in ("", "decoder_"))
    theirs = dict(batch)
    theirs["input_ids"] = batch["input_ids"].masked_fill(~is_source, config.pad_token_id)
    theirs["decoder_input_ids"] = batch["decoder_input_ids"].masked_fill(~is_target, config.pad_token_id)
    theirs["decoder_input_ids"][:, 0] = config.pad_token_id
    with torch.no_grad():
        expected = model(**batch).logits.log_softmax(dim=-1)
        log_probs = written(**theirs).logits.log_softmax(dim=-1)
    # Compare only the token ids that both models have, because one of the models can have an additional start
    # token.
    num_classes = min(config.decoder_vocab_size, model.config.decoder_vocab_size)
    return largest_difference(log_probs[..., :num_classes], expected[..., :num_classes], is_target)


class MarianNpzEngine(Engine):
    """Runs an exported model in Marian in a separate process, because an error in Marian ends its process."""

    libraries = ("pymarian",)
    beam_search = "other"
    search = SCORE_PER_TOKEN
    installation = "pip install pymarian"

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        self.source_tokenizer, self.target_tokenizer = load_tokenizers(self.folder)
        options = yaml.safe_load((self.folder / _DECODER_FILE).read_text(encoding="utf-8"))
        self._source_names, self._target_names = (
            list(json.loads((self.folder / name).read_text(encoding="utf-8"))) for name in options["vocabs"]
        )
        self._longest = options["max-length"]

    @property
    def _sizes(self) -> tuple[int, int]:
        return len(self._source_names), len(self._target_names)

    def log_probs(self, source_ids: list[list[int]], target_ids: list[list[int]]) -> list[list[float]]:
        # Do not start Marian without sentences: all translations of a checkpoint can lack an end token.
        if not source_ids:
            return []
        return marian_log_probs(self.folder / _MODEL_FILE, source_ids, target_ids, self._sizes)

    def difference(self, model: VaswaniForSeq2SeqLM) -> float:
        """Return the largest difference (nats) between log-probabilities of a checkpoint and of Marian."""
        source_end = self.source_tokenizer.eos_token_id
        return marian_difference(self.folder / _MODEL_FILE, model, self._sizes, source_end)

    def translate(self, texts: list[str], num_beams: int) -> list[str]:
        """Translate texts with `num_beams` beams, the length penalty in `search`, and the other options in
        decoder.yml.
        """
        rows = self.source_tokenizer(texts, truncation=True, max_length=self._longest).input_ids
        words = ["--config", str(self.folder / _DECODER_FILE), "--beam-size", str(num_beams)]
        words += ["--normalize", str(self.search["length_penalty"])]
        output = run_marian("decode", words, lines_of(rows, self._source_names))
        ids = {name: number for number, name in enumerate(self._target_names)}
        return [
            self.target_tokenizer.decode(
                [ids[name] for name in re.findall("[^ ]+", line)], skip_special_tokens=True
            )
            for line in output
        ]


MARIAN_NPZ = ExportFormat(
    name="marian_npz",
    main_file="*.npz",
    library_name="marian",
    expressible=EXPRESSIBLE,
    settings=SETTINGS,
    export=export_marian_npz,  # type: ignore[arg-type]
    needs_tokenizers=True,
    engine=MarianNpzEngine,
    optional_files=FILES_OF_BOTH_TOKENIZERS,
)
