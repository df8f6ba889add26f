"""Imports the FSMT models and the M2M100 models of transformers. FSMT models and M2M100 models were trained
with fairseq.

FSMT (`facebook/wmt19-*`) is post-norm, and has a source and a target vocabulary. M2M100 (also NLLB) is
pre-norm, and has one vocabulary for all languages. FSMT and M2M100 have four common differences from the
paper: the attention projections have biases; the sinusoids have the timescales of tensor2tensor, with all
sines in the first half of the features; the first token has the position `pad_token_id` + 1; the decoder
starts from `</s>`.

M2M100 and NLLB models translate between many languages. A source text begins with the token of its language,
and a translation begins with the token of the target language. The vocabularies of the imported tokenizers
contain the language tokens, but the tokenizers do not add these tokens to texts. The translator adds the
tokens of the languages that the options `src_lang` and `tgt_lang` name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from transformers import (
    FSMTForConditionalGeneration,
    M2M100ForConditionalGeneration,
    NllbTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

from ..checkpoint.files import (
    CONFIG_FILE,
    GENERATION_FILE,
    TOKENIZER_FILES,
    WEIGHTS_FILE,
    read_json_object,
)
from ..checkpoint.loading import load_with_report, refuse_load_faults
from ..checkpoint.tokenizers import Tokenizers
from ..model.configuration_vaswani import VaswaniConfig
from ..model.tokenizing_vaswani import LANGUAGE_TOKENS
from .import_formats import Imported, ImportFormat, ReadOptions, has_model_type, refuse, require_activation
from .sentencepiece_models import fast_tokenizer, lacks_pieces, read_sentencepiece
from .text_files import read_merges
from .weights import EMBEDDINGS, POSITION_TABLES, WeightNames, equal_embeddings, same_names, to_interleaved
from .word_tokenizers import imported_tokenizer, merging_tokenizer, tokenizer_pair

_SAME_FIELDS = """
    d_model encoder_layers decoder_layers encoder_attention_heads decoder_attention_heads encoder_ffn_dim
    decoder_ffn_dim dropout attention_dropout activation_dropout activation_function scale_embedding use_cache
    bos_token_id pad_token_id eos_token_id decoder_start_token_id max_position_embeddings
""".split()

_FSMT_VOCABULARIES = ("vocab-src.json", "vocab-tgt.json")
_MERGES_FILE = "merges.txt"
_SENTENCEPIECE_FILE = "sentencepiece.bpe.model"
_M2M100_VOCABULARY = "vocab.json"
_FSMT_TOKENIZER_FILES = (*_FSMT_VOCABULARIES, _MERGES_FILE)
_OUTPUT = "model.decoder.output_projection.weight"
# FSMT, M2M100 and this package use the same names for the weights of a layer: the names of fairseq.
_LAYERS = same_names("model.")
FSMT_NAMES = WeightNames(
    {**_LAYERS, **{name: name for name in EMBEDDINGS}, _OUTPUT: "lm_head.weight"}, ignored=POSITION_TABLES
)
_M2M100_OTHERS = ("model.shared.weight", "lm_head.weight")
M2M100_NAMES = WeightNames({**_LAYERS, **{name: name for name in (*EMBEDDINGS, *_M2M100_OTHERS)}})


def read_fsmt(path: Path, options: ReadOptions) -> Imported:
    """Read an FSMT checkpoint, such as `facebook/wmt19-en-de`."""
    model, missing = _load(FSMTForConditionalGeneration, path)
    state = model.state_dict()
    if _OUTPUT in missing:
        # Older FSMT files lack the output projection, because it is tied to the target embedding.
        state[_OUTPUT] = state["model.decoder.embed_tokens.weight"]
        model.model.decoder.output_projection.weight = model.model.decoder.embed_tokens.weight
    own = FSMT_NAMES.to_ours(state, "FSMT")
    is_joint, is_tied = equal_embeddings(own, "FSMT")
    sizes = {"vocab_size": model.config.src_vocab_size, "decoder_vocab_size": model.config.tgt_vocab_size}
    if is_joint and sizes["vocab_size"] != sizes["decoder_vocab_size"]:
        refuse(
            "tie_word_embeddings",
            model.config.tie_word_embeddings,
            f"`src_vocab_size` {sizes['vocab_size']} and `tgt_vocab_size` "
            f"{sizes['decoder_vocab_size']} differ, and tied embeddings need equal sizes",
        )
    languages = dict(zip(("source_language", "target_language"), model.config.langs, strict=True))
    tokenizers, notes = _fsmt_tokenizers(path)
    return _imported(
        model,
        own,
        languages,
        tokenizers,
        notes,
        norm_position="post",
        share_encoder_decoder_embeddings=is_joint,
        tie_word_embeddings=is_tied,
        **sizes,
    )


def _fsmt_tokenizers(path: Path) -> tuple[Tokenizers | None, list[str]]:
    """Return the tokenizers and notes for the user. The tokenizers are None if the checkpoint lacks a file,
    or if a vocabulary lacks tokens of merges.txt. The tokenizers do not run Moses, because fast tokenizers do
    not support Moses.
    """
    missing = [name for name in _FSMT_TOKENIZER_FILES if not (path / name).is_file()]
    if missing:
        return None, [f"The original lacks {', '.join(missing)}, so no tokenizers were written."]
    merges = read_merges(path / _MERGES_FILE)
    vocabularies = [read_json_object(path, name, path) for name in _FSMT_VOCABULARIES]
    source, target = (merging_tokenizer(ids, merges) for ids in vocabularies)
    if source is None or target is None:
        reason = f"the vocabularies lack tokens of {_MERGES_FILE}"
        return None, [f"No tokenizers were written, because {reason}."]
    return tokenizer_pair((source, target), vocabularies), [
        "The tokenizers segment words, but do not run Moses: tokenize texts with `moses_pipeline` and "
        "`moses_tokenize` of FSMTTokenizer, and detokenize translations with `moses_detokenize`."
    ]


def read_m2m100(path: Path, options: ReadOptions) -> Imported:
    """Read an M2M100 or NLLB checkpoint, such as `facebook/m2m100_418M`."""
    model, _ = _load(M2M100ForConditionalGeneration, path)
    state = model.state_dict()
    tokenizer, notes = _language_tokenizer(path)
    is_tied = model.config.tie_word_embeddings
    if not is_tied:
        # Remove the shared embedding. Without tied weights, M2M100 uses separate matrices in the encoder, the
        # decoder and the output projection instead.
        state.pop("model.shared.weight", None)
    return _imported(
        model,
        M2M100_NAMES.to_ours(state, "M2M100"),
        {},
        None if tokenizer is None else (tokenizer, tokenizer),
        notes,
        norm_position="pre",
        share_encoder_decoder_embeddings=is_tied,
        tie_word_embeddings=is_tied,
        vocab_size=model.config.vocab_size,
        decoder_vocab_size=model.config.vocab_size,
    )


def _language_tokenizer(path: Path) -> tuple[PreTrainedTokenizerFast | None, list[str]]:
    """Return the tokenizer, and a list of messages about the tokenizer for the user. The tokenizer is None if
    no fast tokenizer can be created.
    """
    settings: dict[str, Any] = {}
    if (path / TOKENIZER_FILES[1]).is_file():
        settings = read_json_object(path, TOKENIZER_FILES[1], path)
    if str(settings.get("tokenizer_class", "")).startswith("Nllb"):
        return _nllb_tokenizer(path, settings)
    return _m2m100_tokenizer(path)


def _nllb_tokenizer(
    path: Path, settings: Mapping[str, Any]
) -> tuple[PreTrainedTokenizerFast | None, list[str]]:
    if settings.get("legacy_behaviour", False):
        reason = "`legacy_behaviour` puts the token of the language after the text"
        return None, [f"No tokenizers were written, because {reason}."]
    original = NllbTokenizer.from_pretrained(path)
    ids = original.get_vocab()
    backend = Tokenizer.from_str(original.backend_tokenizer.to_str())
    tokenizer = imported_tokenizer(backend, ids)
    known = [language for language in FAIRSEQ_LANGUAGE_CODES if language in ids]
    return _with_languages(tokenizer, {language: language for language in known}), []


def _m2m100_tokenizer(path: Path) -> tuple[PreTrainedTokenizerFast | None, list[str]]:
    missing = [name for name in (_SENTENCEPIECE_FILE, _M2M100_VOCABULARY) if not (path / name).is_file()]
    if missing:
        return None, [f"The original lacks {' and '.join(missing)}, so no tokenizers were written."]
    model = read_sentencepiece(path / _SENTENCEPIECE_FILE)
    # Check the vocabulary here, because the error of transformers does not name the file.
    read_json_object(path, _M2M100_VOCABULARY, path)
    # Import the class here, because the class needs the library sentencepiece.
    from transformers import M2M100Tokenizer

    original = M2M100Tokenizer.from_pretrained(path)
    if lacks_pieces(original.encoder, model):
        reason = f"{_M2M100_VOCABULARY} lacks pieces of {_SENTENCEPIECE_FILE}"
        return None, [f"No tokenizers were written, because {reason}."]
    tokens = {language: original.get_lang_token(language) for language in original.lang_code_to_id}
    ids = {**original.encoder, **original.lang_token_to_id}
    tokenizer = fast_tokenizer(model, ids, others=set(original.lang_token_to_id))
    return _with_languages(tokenizer, tokens), []


def _with_languages(tokenizer: PreTrainedTokenizerFast, tokens: Mapping[str, str]) -> PreTrainedTokenizerFast:
    """Add the language tokens as special tokens, and record the language of each token."""
    tokenizer.backend_tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in tokens.values()]
    )
    tokenizer.init_kwargs[LANGUAGE_TOKENS] = dict(tokens)
    return tokenizer


def _load(model_class: type[PreTrainedModel], path: Path) -> tuple[Any, set[str]]:
    """Return the model, and the names of the optional weights that are missing in the file."""
    require_activation(path)
    model, report = load_with_report(model_class, path, dtype=torch.float32)
    missing = set(report["missing_keys"])
    optional = {*POSITION_TABLES, _OUTPUT}
    # Raise an error for any other missing weight, because transformers initializes missing weights without an
    # error.
    refuse_load_faults({**report, "missing_keys": missing - optional}, path)
    return model.eval(), missing & optional


def _imported(
    model: Any,
    state: Mapping[str, torch.Tensor],
    facts: dict[str, Any],
    tokenizers: Tokenizers | None,
    notes: list[str],
    **architecture: Any,
) -> Imported:
    """Create the imported model. All weights in `state` have the feature order of FSMT and M2M100, in which
    the sines of the position encodings come before the cosines.
    """
    pad = model.config.pad_token_id
    if pad is None:
        refuse(
            "pad_token_id",
            pad,
            "the position of the first token is the id of `<pad>` plus 1, so the model must have a `<pad>` "
            "token",
        )
    config = VaswaniConfig(
        **{name: getattr(model.config, name) for name in _SAME_FIELDS},
        **architecture,
        attention_bias=True,
        position_timescales="tensor2tensor",
        position_offset=pad + 1,
    )

    def logits(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        # Turn the cache off, because FSMT applies no causal mask if the cache is on.
        return model(**batch, use_cache=False).logits  # [B, T, V]

    return Imported(
        config=config,
        state_dict=to_interleaved(state),
        generation_config=model.generation_config,
        tokenizers=tokenizers,
        facts=facts,
        notes=notes,
        logits=logits,
    )


_FILES = (CONFIG_FILE, GENERATION_FILE, WEIGHTS_FILE, "pytorch_model.bin")
_SHARDS = ("model-*.safetensors", "pytorch_model-*.bin", "*.index.json")
FSMT = ImportFormat(
    name="fsmt",
    title="FSMT of transformers",
    recognise=has_model_type("fsmt"),
    read=read_fsmt,
    files=(*_FILES, *_FSMT_TOKENIZER_FILES),
    keeps=(
        "Keeps the weights, the vocabularies, the merges, the positions, the languages, and the defaults of "
        "the search."
    ),
    loses=(
        "`<pad>` gets the probability 0. The tokenizers do not run Moses. No tokenizers are written if a "
        "vocabulary lacks a token of a merge. The settings `encoder_layerdrop` and `decoder_layerdrop` are "
        "lost."
    ),
)
M2M100 = ImportFormat(
    name="m2m_100",
    title="M2M100 of transformers",
    recognise=has_model_type("m2m_100"),
    read=read_m2m100,
    files=(*_FILES, *_SHARDS, *TOKENIZER_FILES, _SENTENCEPIECE_FILE, _M2M100_VOCABULARY),
    keeps=(
        "Keeps the weights, the tokenizers, the tokens of the languages, the positions, and the defaults of "
        "the search. NLLB models have the same format as M2M100 models."
    ),
    loses=(
        "`<pad>` gets the probability 0. No tokenizers are written for NLLB with `legacy_behaviour`. The "
        "settings `encoder_layerdrop` and `decoder_layerdrop` are lost."
    ),
)
