"""Converts the vocabularies of tensor2tensor (`vocab.*.subwords`) to fast tokenizers that give the same token
ids.

The class `SubwordTextEncoder` of tensor2tensor encodes a text in four steps:

1. Split the text at each boundary between an alphanumeric character (letter or digit) and another character.
   Remove each part that is a single space, except the first and the last part of the text.
2. Write a backslash as two backslashes, and an underscore as a backslash and the letter u. Write each
   character that occurs in no token of the vocabulary as its decimal code between a backslash and a
   semicolon.
3. Append an underscore to each part.
4. Split each part of the text into tokens, from left to right. The next token is the longest token of the
   vocabulary at the beginning of the remaining characters.

In the fast tokenizer, the normalizer does steps 1 to 3 of `SubwordTextEncoder`. The WordPiece model of the
library `tokenizers` does step 4, the search for the longest token.
"""

import unicodedata
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from .sentencepiece_models import empty_model
from .text_files import read_lines
from .word_tokenizers import SpecialTokens, imported_tokenizer

# Control characters that the normalizer and the decoder insert into a text, and then replace.
_BETWEEN_CHARACTERS, _END_OF_PART, _BACKSLASH = "\x01", "\x02", "\x03"
_ALPHANUMERIC = r"[\p{L}\p{N}]"
_OTHER = r"[^\p{L}\p{N}]"
_ESCAPING_CHARACTERS = "\\_u;0123456789"
# tensor2tensor decodes an invalid character code as "〓" (U+3013). The imported tokenizer replaces a
# character that is not defined in Unicode by `\12307;`, the escape sequence of "〓".
_UNDEFINED = 0x3013
# The Unicode categories of characters that texts do not contain: not assigned, private use, and surrogates.
_NEVER_IN_TEXTS = ("Cn", "Co", "Cs")


def subword_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """Create a fast tokenizer from a vocabulary of tensor2tensor. Raise a ValueError if `path` is no
    vocabulary of tensor2tensor.
    """
    tokens = _read_tokens(path)
    alphabet = {*"".join(tokens), *_ESCAPING_CHARACTERS} - {"\n"}
    pad, end = tokens[:2]
    ids = {token: number for number, token in enumerate(tokens) if token}
    model = models.WordPiece(ids, unk_token=pad, max_input_chars_per_word=10**9, continuing_subword_prefix="")
    backend = Tokenizer(model)
    backend.normalizer = _normalizer(alphabet, path)
    backend.pre_tokenizer = pre_tokenizers.Split("_", "merged_with_previous")
    backend.decoder = decoders.Sequence(
        [
            decoders.Fuse(),
            decoders.Replace("\\\\", _BACKSLASH),
            decoders.Replace("\\u", _END_OF_PART),
            decoders.Replace(Regex(f"(?<={_ALPHANUMERIC})_+(?={_ALPHANUMERIC})"), " "),
            decoders.Replace("_", ""),
            decoders.Replace(_END_OF_PART, "_"),
            decoders.Replace(_BACKSLASH, "\\"),
        ]
    )
    return imported_tokenizer(backend, ids, SpecialTokens(pad=pad, start=pad, end=end, unknown=pad))


def _read_tokens(path: Path) -> list[str]:
    """Read the tokens of a vocabulary file: one token per line, with or without quotes."""
    tokens = []
    for line in read_lines(path):
        token = line.rstrip()
        is_quoted = len(token) > 1 and token[0] == token[-1] and token[0] in "'\""
        tokens.append(token[1:-1] if is_quoted else token)
    if tokens[:2] != ["<pad>_", "<EOS>_"]:
        raise ValueError(
            f"The vocabulary '{path.name}' must begin with the tokens <pad>_ and <EOS>_ of the class "
            f"SubwordTextEncoder, but begins with {' and '.join(tokens[:2])}; give another file."
        )
    return tokens


def _normalizer(alphabet: Collection[str], path: Path) -> normalizers.Normalizer:
    """Return a normalizer for steps 1 to 3 of `SubwordTextEncoder` (see the docstring of this file)."""
    is_boundary = f"(?<={_ALPHANUMERIC})(?={_OTHER})|(?<={_OTHER})(?={_ALPHANUMERIC})"
    allowed = "".join(f"\\x{{{ord(character):X}}}" for character in sorted({*alphabet, _END_OF_PART}))
    return normalizers.Sequence(
        [
            normalizers.Replace(Regex(is_boundary), _END_OF_PART),
            normalizers.Replace(f"{_END_OF_PART} {_END_OF_PART}", _END_OF_PART),
            normalizers.Replace("\\", "\\\\"),
            normalizers.Replace("_", "\\u"),
            # Insert a separator between all characters. Without the separator, `Precompiled` could replace a
            # letter with combining accents by the decimal code of the letter, without the accents.
            normalizers.Replace(Regex(r"(?<=[\s\S])(?=[\s\S])"), _BETWEEN_CHARACTERS),
            normalizers.Precompiled(_character_codes(alphabet, path)),
            normalizers.Replace(_BETWEEN_CHARACTERS, ""),
            normalizers.Replace(Regex(f"[^{allowed}]"), f"\\{_UNDEFINED};"),
            normalizers.Replace(Regex(r"(?<=[\s\S])\z"), _END_OF_PART),
            normalizers.Replace(_END_OF_PART, "_"),
        ]
    )


def _character_codes(alphabet: Collection[str], path: Path) -> bytes:
    """Return rules that replace a character outside the alphabet by its decimal code between a backslash and
    a semicolon. The rules have SentencePiece's binary format.
    """
    model = empty_model(f"'{path.name}'")
    import sentencepiece

    if hasattr(sentencepiece, "set_min_log_level"):
        sentencepiece.set_min_log_level(2)
    kept = {*alphabet, _BETWEEN_CHARACTERS, _END_OF_PART}
    with TemporaryDirectory() as folder:
        rules = Path(folder) / "rules.tsv"
        with rules.open("w", encoding="ascii") as file:
            for code in range(1, 0x110000):
                character = chr(code)
                if character not in kept and unicodedata.category(character) not in _NEVER_IN_TEXTS:
                    codes = " ".join(f"{ord(one):X}" for one in f"\\{code};")
                    file.write(f"{code:X}\t{codes}\n")
        normalizer = sentencepiece.SentencePieceNormalizer(rule_tsv=str(rules))
    model.ParseFromString(normalizer.serialized_model_proto())
    return model.normalizer_spec.precompiled_charsmap
