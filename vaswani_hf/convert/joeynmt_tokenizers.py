"""Creates fast tokenizers from the settings and the vocabularies of JoeyNMT.

JoeyNMT tokenizes with the level `word` or `char`, with SentencePiece models, or with merges of subword-nmt.
The imported tokenizer gives the same token ids as JoeyNMT. If a fast tokenizer cannot tokenize in the same
way, the import creates a tokenizer that splits texts at spaces. If the vocabulary does not contain the result
of a merge, subword-nmt and BPE models of SentencePiece undo the merge. Fast tokenizers of transformers cannot
split a merged BPE token into its parts again. Therefore the vocabulary must contain the results of all
merges.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ..checkpoint.tokenizers import Tokenizers
from .sentencepiece_models import fast_tokenizer, lacks_pieces, read_sentencepiece
from .text_files import read_merges
from .word_tokenizers import (
    END_OF_WORD,
    SpecialTokens,
    imported_tokenizer,
    merging_tokenizer,
    tokenizer_pair,
    word_tokenizer,
)

_SPACE = "▁"
# Matches a Greek sigma at the end of a word. Python lowercases a sigma at the end of a word to "ς", but the
# normalizer of the library `tokenizers` lowercases each character separately, and writes "σ".
_FINAL_SIGMA = r"(?<=\p{L})Σ(?!\p{L})"
# The replacements that JoeyNMT's option `normalize` makes, in the same order.
_QUOTES = {"’": "'", "“": '"', "”": '"'}
_SPACES = {"\u200b": "", "[ \u3000]+": " ", r" \?": "?", " !": "!", " ,": ",", r" \.": ".", " :": ":"}


def joeynmt_tokenizers(
    folder: Path, sides: Sequence[Mapping[str, Any]], vocabularies: Sequence[list[str]]
) -> tuple[Tokenizers, list[str]]:
    """Return the two tokenizers, and notes that say why the tokenizers differ from JoeyNMT's. `sides` are the
    sections `data.src` and `data.trg` of config.yaml. Each vocabulary begins with the four special tokens.
    """
    tokenizers = []
    reasons = []
    for settings, tokens in zip(sides, vocabularies, strict=True):
        ids = {token: number for number, token in enumerate(tokens)}
        unknown, pad, start, end = tokens[:4]
        special = SpecialTokens(pad, start, end, unknown)
        options = settings.get("tokenizer_cfg") or {}
        try:
            tokenizer = _tokenizer(folder, settings, options, ids, special)
            _add_rules(tokenizer.backend_tokenizer, settings)
        except _NoTokenizerError as error:
            tokenizer = word_tokenizer(ids, special, joiner=re.escape(options.get("separator", "@@")))
            reasons.append(str(error))
        tokenizers.append(tokenizer)
    notes = [
        f"The tokenizers split texts only at spaces, because {reason}; tokenize and segment texts with the "
        "programs that prepared the training data."
        for reason in dict.fromkeys(reasons)
    ]
    return tokenizer_pair(tokenizers, vocabularies), notes


class _NoTokenizerError(Exception):
    """Raised with the reason if a tokenizer of JoeyNMT cannot be imported."""


def _tokenizer(
    folder: Path,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    ids: Mapping[str, int],
    special: SpecialTokens,
) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a language. `options` is the section `tokenizer_cfg` of the language."""
    if options.get("pretokenizer", "none") != "none":
        raise _NoTokenizerError(f"the original model tokenizes texts with {options['pretokenizer']}")
    level = settings.get("level", "word")
    if level == "word":
        return _words(ids, special)
    if level != "bpe":
        return _characters(ids, special)
    kind = settings.get("tokenizer_type", settings.get("bpe_type", "sentencepiece"))
    if kind == "subword-nmt":
        return _subword_nmt(folder, options, ids, special)
    if kind == "sentencepiece":
        return _sentencepiece(folder, options, ids, special)
    raise _NoTokenizerError(f"the original model segments texts with {kind}")


def _sentencepiece(
    folder: Path, options: Mapping[str, Any], ids: Mapping[str, int], special: SpecialTokens
) -> PreTrainedTokenizerFast:
    name = Path(options["model_file"]).name
    if not (folder / name).is_file():
        raise _NoTokenizerError(f"the folder lacks the SentencePiece model {name}")
    model = read_sentencepiece(folder / name)
    if model.is_bpe and lacks_pieces(ids, model):
        raise _NoTokenizerError(f"the vocabulary lacks pieces of the BPE model {name}")
    return fast_tokenizer(model, ids, special)


def _subword_nmt(
    folder: Path, options: Mapping[str, Any], ids: Mapping[str, int], special: SpecialTokens
) -> PreTrainedTokenizerFast:
    name = Path(options["codes"]).name
    if not (folder / name).is_file():
        raise _NoTokenizerError(f"the folder of the original lacks the file {name} with the BPE merges")
    version, *merges = read_merges(folder / name)
    if version != ("#version:", "0.2"):
        raise _NoTokenizerError(f"the merges {name} do not have the format 0.2 of subword-nmt")
    separator = options.get("separator", "@@")
    parts = {}
    for token, number in ids.items():
        if token in special:
            parts[token] = number
        elif token.endswith(separator):
            parts[token.removesuffix(separator)] = number
        else:
            parts[token + END_OF_WORD] = number
    tokenizer = merging_tokenizer(parts, merges, special)
    if tokenizer is None:
        raise _NoTokenizerError(f"the vocabulary lacks tokens of the merges file {name}")
    return tokenizer


def _words(ids: Mapping[str, int], special: SpecialTokens) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel(dict(ids), unk_token=special.unknown))
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    # `decoders.WordPiece` adds a space before a token, unless the token begins with `prefix`. With the
    # private-use character U+E000 as `prefix`, the decoder writes spaces between all tokens, because no token
    # begins with U+E000.
    backend.decoder = decoders.Sequence([decoders.WordPiece(prefix="\ue000", cleanup=False), decoders.Fuse()])
    return imported_tokenizer(backend, ids, special)


def _characters(ids: Mapping[str, int], special: SpecialTokens) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel(dict(ids), unk_token=special.unknown))
    backend.normalizer = normalizers.Replace(" ", _SPACE)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace(_SPACE, " ")])
    return imported_tokenizer(backend, ids, special)


def _add_rules(backend: Tokenizer, settings: Mapping[str, Any]) -> None:
    """Apply JoeyNMT's `normalize` and `lowercase` to input texts, and `normalize` to decoded texts."""
    rules: list[normalizers.Normalizer] = []
    if settings.get("normalize", False):
        rules += [normalizers.NFKC(), *(normalizers.Replace(old, new) for old, new in _QUOTES.items())]
        rules += [normalizers.Replace(Regex(old), new) for old, new in _SPACES.items()]
        rules.append(normalizers.Strip())
        spaces = [decoders.Replace(Regex(old), new) for old, new in _SPACES.items()]
        backend.decoder = decoders.Sequence([backend.decoder, *spaces])
    if settings.get("lowercase", False):
        rules += [normalizers.Replace(Regex(_FINAL_SIGMA), "ς"), normalizers.Lowercase()]
    if backend.normalizer is not None:
        rules.append(backend.normalizer)
    if rules:
        backend.normalizer = normalizers.Sequence(rules)
