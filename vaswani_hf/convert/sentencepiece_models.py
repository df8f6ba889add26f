"""Converts SentencePiece models to fast tokenizers with the token ids of a separate vocabulary, and back.

A SentencePiece model splits text into tokens, which SentencePiece calls pieces. Marian and fairseq read the
token ids of the pieces from a separate file, such as `vocab.json`. In a fast tokenizer of transformers, the
token id of a piece is the index of the piece in the list of pieces. Therefore the conversion sorts the pieces
by their ids.

A checkpoint can have one SentencePiece model for each language, but a single vocabulary file for both
languages. With two SentencePiece models, the tokenizer of each language contains the pieces of both models.
The tokenizer of a language must split texts only into pieces of this language's SentencePiece model. To
disable a piece of the other language's SentencePiece model, the conversion inserts the character `_FOREIGN`
(U+E000) before the piece. `_FOREIGN` does not occur in texts, and the decoder of the tokenizer removes it.
The conversion never disables a piece of one character. The conversion never inserts `_FOREIGN` before a piece
that consists only of unknown characters. A character is unknown if no piece of the language's SentencePiece
model contains the character. SentencePiece joins adjacent unknown characters to one piece, and Marian looks
up the joined piece in the vocabulary. Therefore the tokenizer must contain each vocabulary entry that
consists of several unknown characters.
"""

import base64
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ..checkpoint.files import DamagedFileError
from ..checkpoint.tokenizers import IMPORTED_MARK, Tokenizers
from ..version import install_command
from .export_formats import NotExpressibleError
from .word_tokenizers import (
    SPLITS_AT_SPACES,
    USUAL_TOKENS,
    SpecialTokens,
    imported_tokenizer,
    tokenizer_pair,
    word_tokenizer,
)

_FOREIGN = "\ue000"
# The normalizer replaces a sequence of unknown characters by U+E001, a character of Unicode's private use
# area.
_UNKNOWN = "\ue001"
_SPACE = "▁"
# The numbers of the piece types in a SentencePiece model file.
_NORMAL, _UNKNOWN_PIECE, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_UNIGRAM, _BPE = 1, 2
# The regular expression for spaces at both ends of a text, in the notation of tokenizer.json.
_SPACES_AT_ENDS = {"Regex": "^ +| +$"}
_REPEATED_SPACES = {"Regex": " {2,}"}
NAME_THE_MODELS = (
    f"{SPLITS_AT_SPACES} If SentencePiece models segmented the training data, name the models with "
    "`--vocabularies`."
)
# A tag of a target language, such as ">>deu<<".
TAG = re.compile(r">>\S+?<<")


@dataclass(frozen=True)
class SentencePieces:
    """The content of a SentencePiece model file.

    Attributes:
        pieces (dict): The pieces into which SentencePiece can split a text, and the score of each piece.
        is_bpe (bool): True for a BPE model, False for a unigram model.
        charsmap (bytes): The rules for text normalization, in SentencePiece's binary format.
        adds_space (bool): True if SentencePiece adds a space at the beginning of a text.
        removes_spaces (bool): True if SentencePiece removes repeated spaces and spaces at both ends.
        splits_words (bool): True if pieces contain spaces only at their beginning.
        has_bytes (bool): True if SentencePiece splits unknown characters into bytes.
        ids (dict): Maps each piece, including special pieces, to its id in the model file. Libraries with a
            separate vocabulary file, such as Marian, use other ids than the model file.
        end (str): The piece that ends a text, usually `</s>`.
        unknown (str): The piece for unknown characters, usually `<unk>`.
    """

    pieces: dict[str, float]
    is_bpe: bool
    charsmap: bytes
    adds_space: bool
    removes_spaces: bool
    splits_words: bool
    has_bytes: bool
    ids: dict[str, int]
    end: str
    unknown: str


def empty_model(user: str) -> Any:
    """Return an empty SentencePiece model. Raise a ValueError if a library is missing. The error message
    begins with `user`, the name of the file or model that needs the library.
    """
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError:
        raise ValueError(
            f"{user} needs the libraries sentencepiece and protobuf; install them with "
            f"`{install_command('sentencepiece')}`."
        ) from None
    return sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]


def read_sentencepiece(path: Path) -> SentencePieces:
    """Read a model. Raise a ValueError if the file is damaged or fast tokenizers cannot express the model."""
    model = empty_model(f"'{path.name}'")
    from google.protobuf.message import DecodeError

    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError:
        model.Clear()
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    if not model.pieces or trainer.model_type not in (_UNIGRAM, _BPE):
        raise DamagedFileError(f"'{path.name}' must be a unigram or BPE model of SentencePiece, but is not")
    if trainer.treat_whitespace_as_suffix:
        raise ValueError(
            f"'{path.name}' cannot be imported, because its option `treat_whitespace_as_suffix` is True, "
            "and fast tokenizers support only spaces at the beginning of a word."
        )
    kept = (_NORMAL, _USER_DEFINED, _BYTE)
    pieces = {piece.piece: piece.score for piece in model.pieces if piece.type in kept}
    sentence_pieces = SentencePieces(
        pieces=pieces,
        is_bpe=trainer.model_type == _BPE,
        charsmap=normalizer.precompiled_charsmap,
        adds_space=normalizer.add_dummy_prefix,
        removes_spaces=normalizer.remove_extra_whitespaces,
        splits_words=not any(_SPACE in piece.lstrip(_SPACE) for piece in pieces),
        has_bytes=any(piece.type == _BYTE for piece in model.pieces),
        ids={piece.piece: number for number, piece in enumerate(model.pieces)},
        end=trainer.eos_piece,
        unknown=trainer.unk_piece,
    )
    # SentencePiece finds user-defined symbols in a text before the normalization and the merges. Fast
    # tokenizers find user-defined symbols after the normalization, and BPE finds only tokens that merges
    # create. A tag becomes an added token, see `fast_tokenizer`.
    normalize = _normalizer(sentence_pieces, set(), []).normalize_str
    for piece in model.pieces:
        symbol = piece.piece
        if piece.type != _USER_DEFINED or TAG.fullmatch(symbol):
            continue
        if normalize(symbol) != symbol or (sentence_pieces.is_bpe and len(symbol) > 1):
            raise ValueError(
                f"'{path.name}' cannot be imported, because fast tokenizers cannot find its user-defined symbol "
                f"{symbol!r} in texts; import the checkpoint without the file."
            )
    return sentence_pieces


def fast_tokenizer(
    model: SentencePieces,
    ids: Mapping[str, int],
    special: SpecialTokens = USUAL_TOKENS,
    *,
    others: Collection[str] = (),
    model_max_length: int | None = None,
) -> PreTrainedTokenizerFast:
    """Create a fast tokenizer that splits text into the same pieces as a SentencePiece model. `others`
    contains additional special tokens, which `special` does not contain. The tokenizer never uses a piece of
    several characters that is missing in `ids`.
    """
    unsplit = {*special, *others}
    tags = [token for token in ids if TAG.fullmatch(token)]
    known = set("".join(model.pieces)) | {_SPACE, " "}
    lowest = min(model.pieces.values())
    # Tokens that are not pieces of `model`: single characters, and sequences of unknown characters
    # (characters that no piece contains).
    runs = []
    tokens: list[tuple[str, float]] = [
        (f"{_FOREIGN}{number}", 0.0) for number in range(max(ids.values()) + 1)
    ]
    for token, number in ids.items():
        if token in unsplit or token in tags:
            tokens[number] = (token, 0.0)
        elif token in model.pieces:
            tokens[number] = (token, model.pieces[token])
        elif len(token) == 1 or known.isdisjoint(token):
            tokens[number] = (token, lowest)
            runs.append(token)
        else:
            tokens[number] = (_FOREIGN + token, 0.0)
    backend = Tokenizer(_model(model, tokens, special.unknown))
    backend.normalizer = _normalizer(model, known, runs)
    backend.pre_tokenizer = _pre_tokenizer(model, ids)
    parts = [
        decoders.Replace(_FOREIGN, ""),
        decoders.Replace(_SPACE, " "),
        decoders.Fuse(),
        decoders.Replace(Regex("^ +| +$"), ""),
    ]
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), *parts] if model.has_bytes else parts)
    backend.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in tags])
    return imported_tokenizer(backend, ids, special, model_max_length=model_max_length)


def source_and_target_tokenizers(
    vocabularies: Sequence[Mapping[str, int]],
    model_files: Sequence[Path],
    special: SpecialTokens = USUAL_TOKENS,
    *,
    joiner: str | None = "@@",
    source_has_end: bool = True,
) -> Tokenizers:
    """Create both tokenizers from the source and the target vocabulary.

    `model_files` are the SentencePiece models that segmented the training data: one joint model, or the
    source model and the target model. Without `model_files`, the tokenizers split texts at spaces. In
    decoding, the tokenizers join each token that ends with `joiner` to the next token. `source_has_end` is
    False if the library of the imported model adds no end token to source texts.
    """
    tokenizers = []
    for number, ids in enumerate(vocabularies):
        if model_files:
            model = read_sentencepiece(model_files[min(number, len(model_files) - 1)])
            tokenizer = fast_tokenizer(model, ids, special)
        else:
            tokenizer = word_tokenizer(ids, special, joiner=joiner)
        tokenizers.append(tokenizer)
    if not source_has_end:
        tokenizers[0].backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=["$A"], pair=["$A", "$B"]
        )
    return tokenizer_pair(tokenizers, vocabularies)


def lacks_pieces(ids: Collection[str], model: SentencePieces) -> bool:
    """Return True if the SentencePiece model has a piece of several characters that is missing in `ids`.
    If `ids` lacks a piece of several characters, the tokenizer that `fast_tokenizer` creates can split texts
    differently from SentencePiece.
    """
    return any(len(piece) > 1 and piece not in ids for piece in model.pieces)


def _model(model: SentencePieces, tokens: list[tuple[str, float]], unknown: str) -> models.Model:
    if not model.is_bpe:
        names = [token for token, _ in tokens]
        return models.Unigram(tokens, unk_id=names.index(unknown), byte_fallback=model.has_bytes)
    ids = {token: number for number, (token, _) in enumerate(tokens)}
    return models.BPE(
        ids,
        _merges(model, ids),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=model.has_bytes,
    )


def _merges(model: SentencePieces, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the merge rules, highest score first: all pairs of tokens in `ids` whose concatenation is a
    piece of `model` and a token in `ids`.
    """
    merges = []
    for piece, score in model.pieces.items():
        for end in range(1, len(piece)):
            left, right = piece[:end], piece[end:]
            if piece in ids and left in ids and right in ids:
                merges.append((score, left, right))
    merges.sort(key=lambda merge: -merge[0])
    return [(left, right) for _, left, right in merges]


def _normalizer(model: SentencePieces, known: set[str], runs: list[str]) -> normalizers.Normalizer:
    """Create the normalizer. `known` contains all characters that occur in the pieces of `model`. `runs` is
    the list of vocabulary tokens that `model` lacks: single characters, and sequences of characters that
    occur in no piece.
    """
    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        # Apply NFC first, because the library `tokenizers` loses accents if two separate accents follow a
        # character.
        steps += [normalizers.NFC(), normalizers.Precompiled(model.charsmap)]
    if model.removes_spaces:
        steps += [
            normalizers.Replace(Regex(pattern), new)
            for pattern, new in ((_SPACES_AT_ENDS["Regex"], ""), (_REPEATED_SPACES["Regex"], " "))
        ]
    unknown_runs = [run for run in runs if known.isdisjoint(run)]
    if unknown_runs:
        # Replace each sequence of unknown characters by `_UNKNOWN`, unless the vocabulary contains the whole
        # sequence.
        character = f"[^{_alternation(known, separator='')}]"
        in_vocabulary = f"(?:{_alternation(unknown_runs, separator='|')})(?!{character})"
        pattern = f"(?<!{character})(?!{in_vocabulary}){character}+"
        steps.append(normalizers.Replace(Regex(pattern), _UNKNOWN))
    return normalizers.Sequence(steps)


def _alternation(texts: Collection[str], separator: str) -> str:
    """Escape texts for a regular expression, and join the texts with `separator`."""
    return separator.join("".join(f"\\x{{{ord(letter):x}}}" for letter in text) for text in sorted(texts))


def _pre_tokenizer(model: SentencePieces, ids: Mapping[str, int]) -> pre_tokenizers.PreTokenizer:
    scheme = "always" if model.adds_space else "never"
    spaces = pre_tokenizers.Metaspace(_SPACE, prepend_scheme=scheme, split=model.splits_words)
    others = "".join(piece for piece in model.pieces if len(piece) > 1)
    missing = {
        piece for piece in model.pieces if len(piece) == 1 and piece not in ids and piece not in others
    }
    if not missing:
        return spaces
    # `missing` contains each single character that is a piece without a token id, and that no other piece
    # contains. Split texts before and after each character in `missing`, because otherwise the tokenizer
    # would join adjacent unknown characters to one token.
    characters = Regex(f"[{_alternation(missing, separator='')}]")
    return pre_tokenizers.Sequence([spaces, pre_tokenizers.Split(characters, "isolated")])


def sentencepiece_model(source: PreTrainedTokenizerFast, target: PreTrainedTokenizerFast) -> bytes:
    """Return a SentencePiece model file that splits text like `source` and can decode the tokens of `target`.
    Raise a ValueError if `source` was not created by `fast_tokenizer` from a unigram model.
    """
    state = json.loads(source.backend_tokenizer.to_str())
    kind = state["model"]["type"]
    if isinstance(source.backend_tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel):
        raise NotExpressibleError(
            "SentencePiece cannot express the tokenizer, a byte-level BPE model, because the tokenizer splits texts "
            "with a regular expression and merges bytes, and SentencePiece only merges characters; use another "
            "format."
        )
    if not source.init_kwargs.get(IMPORTED_MARK, False) or kind != "Unigram":
        raise NotExpressibleError(
            f"SentencePiece cannot express the tokenizer, a {kind} model, because only a tokenizer that was "
            "imported from a unigram model of SentencePiece can be converted back; use another format."
        )
    model = empty_model("The SentencePiece model of the package")
    model.trainer_spec.model_type = _UNIGRAM
    model.trainer_spec.byte_fallback = state["model"]["byte_fallback"]
    steps = _flattened(state["normalizer"])
    others = dict.fromkeys(step["type"] for step in steps if not _is_own_step(step))
    if others:
        raise NotExpressibleError(
            f"SentencePiece cannot express the tokenizer, because its normalizer has the steps {', '.join(others)}, "
            "and a SentencePiece model has only a character map; use another format."
        )
    for step in steps:
        if step["type"] == "Precompiled":
            model.normalizer_spec.precompiled_charsmap = base64.b64decode(step["precompiled_charsmap"])
    splitters = state["pre_tokenizer"].get("pretokenizers", [state["pre_tokenizer"]])
    model.normalizer_spec.add_dummy_prefix = splitters[0]["prepend_scheme"] == "always"
    model.normalizer_spec.remove_extra_whitespaces = any(
        step.get("pattern") == _SPACES_AT_ENDS for step in steps
    )
    special = set(source.all_special_tokens) | set(target.all_special_tokens)
    lowest = min(score for _, score in state["model"]["vocab"])
    scores = {
        token: score
        for token, score in state["model"]["vocab"]
        if token in special or not (token.startswith(_FOREIGN) or _is_run(source, token))
    }
    for splitter in splitters[1:]:
        # Add the one-character pieces that are not in the tokenizer's vocabulary. The regular expression that
        # `_pre_tokenizer` wrote contains the one-character pieces that are not in the tokenizer's vocabulary.
        for code in re.findall(r"\\x\{(\w+)\}", splitter["pattern"]["Regex"]):
            scores[chr(int(code, 16))] = lowest
    for token, score in scores.items():
        kind = _NORMAL
        if token == source.unk_token:
            kind = _UNKNOWN_PIECE
        elif token in special:
            kind = _CONTROL
        elif model.trainer_spec.byte_fallback and re.fullmatch("<0x[0-9A-F]{2}>", token):
            kind = _BYTE
        model.pieces.add(piece=token, score=score, type=kind)
    for token in target.get_vocab():
        if token not in scores and token not in special and not token.startswith(_FOREIGN):
            model.pieces.add(piece=token, score=lowest, type=_UNUSED)
    return model.SerializeToString()


def _flattened(normalizer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of a normalizer, including the steps of nested normalizers."""
    if normalizer["type"] != "Sequence":
        return [normalizer]
    return [step for part in normalizer["normalizers"] for step in _flattened(part)]


def _is_own_step(step: dict[str, Any]) -> bool:
    """Return True if `_normalizer` can create the step. If `_normalizer` created the step, SentencePiece
    makes the same replacements.
    """
    is_of_spaces = step.get("pattern") in (_SPACES_AT_ENDS, _REPEATED_SPACES)
    return step["type"] in ("NFC", "Precompiled") or is_of_spaces or step.get("content") == _UNKNOWN


def _is_run(tokenizer: PreTrainedTokenizerFast, token: str) -> bool:
    """Return True if a token consists of characters that occur in no piece of the SentencePiece model."""
    # The normalizer replaces neighbouring unknown characters by `_UNKNOWN`, unless all of them together are
    # one entry of the vocabulary. The normalizer never replaces `token`, because `token` is in the
    # vocabulary. Therefore normalize two copies of the token: if its characters are unknown, the result
    # contains `_UNKNOWN`. If the vocabulary contains two copies of the token as one entry, the test needs
    # three copies.
    normalize = tokenizer.backend_tokenizer.normalizer.normalize_str
    return _UNKNOWN in normalize(token * 2) or _UNKNOWN in normalize(token * 3)


def without_foreign_mark(tokens: list[str]) -> list[str]:
    """Remove the prefix `_FOREIGN` from each token. Keep the prefix `_FOREIGN` of a token if `tokens` also
    contains the token without the prefix.
    """
    known = set(tokens)
    plain = [token.removeprefix(_FOREIGN) for token in tokens]
    return [token if short in known else short for token, short in zip(tokens, plain, strict=True)]
