"""Creates fast tokenizers from the settings and the vocabularies of JoeyNMT.

JoeyNMT tokenizes with the level `word` or `char`, with SentencePiece models, or with merges of subword-nmt.
The imported tokenizer gives the same token ids as JoeyNMT. If a fast tokenizer cannot tokenize in the same
way, the import creates a tokenizer that splits texts at spaces. subword-nmt and BPE models of SentencePiece
divide the result of a merge again if the vocabulary does not contain the result. Fast tokenizers cannot
divide the result of a merge. Therefore the vocabulary must contain the results of all merges.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ..checkpoint.tokenizers import Tokenizers
from .sentencepiece_models import fast_tokenizer, lacks_pieces, read_sentencepiece
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
        tokenizer, reason = _tokenizer(folder, settings, tokens)
        tokenizers.append(tokenizer)
        reasons += [reason] if reason else []
    notes = [
        f"The tokenizers split texts only at spaces, because {reason}; tokenize and segment texts with the "
        "programs that prepared the training data."
        for reason in dict.fromkeys(reasons)
    ]
    return tokenizer_pair(tokenizers, vocabularies), notes


def _tokenizer(
    folder: Path, settings: Mapping[str, Any], tokens: list[str]
) -> tuple[PreTrainedTokenizerFast, str | None]:
    """Return the tokenizer of a language, and None. If the tokenizer cannot be imported, return a tokenizer
    that splits texts at spaces, and the reason.
    """
    ids = {token: number for number, token in enumerate(tokens)}
    unknown, pad, start, end = tokens[:4]
    special = SpecialTokens(pad, start, end, unknown)
    level = settings.get("level", "word")
    options = settings.get("tokenizer_cfg") or {}
    kind = settings.get("tokenizer_type", settings.get("bpe_type", "sentencepiece"))
    reason = None
    if options.get("pretokenizer", "none") != "none":
        reason = f"the original tokenizes with {options['pretokenizer']}"
    elif level == "bpe" and kind == "subword-nmt":
        tokenizer, reason = _subword_nmt(folder, options, ids, special)
    elif level == "bpe" and kind != "sentencepiece":
        reason = f"the original segments with {kind}"
    elif level == "bpe":
        tokenizer, reason = _sentencepiece(folder, options, ids, special)
    elif level == "word":
        tokenizer = _words(ids, special)
    else:
        tokenizer = _characters(ids, special)
    if reason is not None:
        return word_tokenizer(ids, special, joiner=re.escape(options.get("separator", "@@"))), reason
    _add_rules(tokenizer.backend_tokenizer, settings)
    return tokenizer, None


def _sentencepiece(
    folder: Path, options: Mapping[str, Any], ids: Mapping[str, int], special: SpecialTokens
) -> tuple[Any, str | None]:
    name = Path(options["model_file"]).name
    if not (folder / name).is_file():
        return None, f"the folder lacks the SentencePiece model {name}"
    model = read_sentencepiece(folder / name)
    if model.is_bpe and lacks_pieces(ids, model):
        return None, f"the vocabulary lacks pieces of the BPE model {name}"
    return fast_tokenizer(model, ids, special), None


def _subword_nmt(
    folder: Path, options: Mapping[str, Any], ids: Mapping[str, int], special: SpecialTokens
) -> tuple[Any, str | None]:
    name = Path(options["codes"]).name
    if not (folder / name).is_file():
        return None, f"the folder of the original lacks the merges {name}"
    version, *lines = (folder / name).read_text(encoding="utf-8").splitlines()
    if version.strip() != "#version: 0.2":
        return None, f"the merges {name} do not have the format 0.2 of subword-nmt"
    merges = [(left, right) for left, right in map(str.split, lines)]
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
        return None, f"the vocabulary lacks parts of the merges {name}"
    return tokenizer, None


def _words(ids: Mapping[str, int], special: SpecialTokens) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel(dict(ids), unk_token=special.unknown))
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    # The WordPiece decoder adds a space before each token that does not begin with `prefix`. No token begins
    # with the private-use character U+E000, so the decoder writes spaces between all tokens.
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
