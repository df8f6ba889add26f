"""Creates fast tokenizers from the tokenizers of M2M100 and NLLB.

M2M100 and NLLB models translate between many languages. A source text begins with the token of its language,
and a translation begins with the token of the target language. The vocabularies of the created tokenizers
contain the language tokens, but the tokenizers do not add these tokens to texts. The translator adds the
language tokens according to the options `src_lang` and `tgt_lang`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers import NllbTokenizer, PreTrainedTokenizerFast
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

from ..checkpoint.files import TOKENIZER_FILES
from ..checkpoint.tokenizers import read_json_object
from ..model.translator_vaswani import LANGUAGE_TOKENS
from .sentencepiece_models import fast_tokenizer, lacks_pieces, read_sentencepiece
from .word_tokenizers import imported_tokenizer

SENTENCEPIECE_FILE, VOCABULARY_FILE = "sentencepiece.bpe.model", "vocab.json"
_SPECIAL: dict[str, Any] = {"pad": "<pad>", "start": "<s>", "end": "</s>", "unknown": "<unk>"}


def language_tokenizer(path: Path) -> tuple[PreTrainedTokenizerFast | None, list[str]]:
    """Return the tokenizer of an M2M100 or NLLB checkpoint, and a list of notes for the user. Return None in
    place of the tokenizer if a fast tokenizer cannot be created.
    """
    settings: dict[str, Any] = {}
    if (path / TOKENIZER_FILES[1]).is_file():
        settings = read_json_object(path, TOKENIZER_FILES[1], path)
    if str(settings.get("tokenizer_class", "")).startswith("Nllb"):
        return _nllb(path, settings)
    return _m2m100(path)


def _nllb(path: Path, settings: Mapping[str, Any]) -> tuple[PreTrainedTokenizerFast | None, list[str]]:
    if settings.get("legacy_behaviour", False):
        reason = "`legacy_behaviour` puts the token of the language after the text"
        return None, [f"No tokenizers were written, because {reason}."]
    original = NllbTokenizer.from_pretrained(path)
    ids = original.get_vocab()
    backend = Tokenizer.from_str(original.backend_tokenizer.to_str())
    tokenizer = imported_tokenizer(backend, ids, **_SPECIAL)
    known = [language for language in FAIRSEQ_LANGUAGE_CODES if language in ids]
    return _with_languages(tokenizer, {language: language for language in known}), []


def _m2m100(path: Path) -> tuple[PreTrainedTokenizerFast | None, list[str]]:
    missing = [name for name in (SENTENCEPIECE_FILE, VOCABULARY_FILE) if not (path / name).is_file()]
    if missing:
        return None, [f"The original lacks {' and '.join(missing)}, so no tokenizers were written."]
    model = read_sentencepiece(path / SENTENCEPIECE_FILE)
    # Import the class here, because the class needs the library sentencepiece.
    from transformers import M2M100Tokenizer

    original = M2M100Tokenizer.from_pretrained(path)
    if lacks_pieces(original.encoder, model):
        reason = f"{VOCABULARY_FILE} lacks pieces of {SENTENCEPIECE_FILE}"
        return None, [f"No tokenizers were written, because {reason}."]
    tokens = {language: original.get_lang_token(language) for language in original.lang_code_to_id}
    ids = {**original.encoder, **original.lang_token_to_id}
    tokenizer = fast_tokenizer(model, ids, others=set(original.lang_token_to_id), **_SPECIAL)
    return _with_languages(tokenizer, tokens), []


def _with_languages(tokenizer: PreTrainedTokenizerFast, tokens: Mapping[str, str]) -> PreTrainedTokenizerFast:
    """Add the language tokens to a tokenizer as special tokens, and record the language of each token.
    Decoding with `skip_special_tokens` leaves out the language tokens.
    """
    tokenizer.backend_tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in tokens.values()]
    )
    tokenizer.init_kwargs[LANGUAGE_TOKENS] = dict(tokens)
    return tokenizer
