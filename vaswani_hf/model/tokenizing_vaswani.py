"""Functions of the translator that use tokenizers. The functions find language tags and language tokens,
compute the token ids of target prefixes and phrases, and check that a tokenizer fits a model.

This file is saved with every checkpoint because the translator tokenizes texts with this file.
"""

import re
import threading
from typing import Any

from transformers import PreTrainedTokenizerBase

from .configuration_vaswani import eos_token_ids

# Hold the lock `TOKENIZING` during each call of a tokenizer, because a call changes the truncation and the
# language of the tokenizer for all threads.
TOKENIZING = threading.RLock()
# The tag of a target language at the beginning of a source text, such as ">>en<<".
TAG = re.compile(r">>\S+?<<")
# The key of tokenizer_config.json whose value maps each language to a language token. As in M2M100, a source
# begins with the token of the source language, and a translation begins with the token of the target
# language.
LANGUAGE_TOKENS = "language_tokens"
# The key of the source tokenizer's tokenizer_config.json whose value is true if the checkpoint has a second
# tokenizer for the target language.
SEPARATE_MARK = "separate_vocabs"


def has_target_tokenizer(source_tokenizer: Any, shares_embeddings: bool) -> bool:
    """Return True if the checkpoint of a source tokenizer has a second tokenizer for the target language."""
    # A tokenizer that this package has not saved or loaded lacks `SEPARATE_MARK`. By default, a model with
    # separate embeddings has two tokenizers.
    return source_tokenizer.init_kwargs.get(SEPARATE_MARK, not shares_embeddings)


def prefix_token_ids(prefix: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the token ids of a target prefix, without a final `</s>`. White space around the prefix is
    ignored.
    """
    return _target_token_ids(prefix.strip(), tokenizer) if prefix.strip() else []


def phrase_token_ids(phrase: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the token ids of a phrase that follows a space. The same phrase at the start of a text, without
    a space before the phrase, often has other token ids.
    """
    # Put the word "a" before the phrase, tokenize the text, and remove the tokens of the word "a".
    word = _target_token_ids("a", tokenizer)
    with_word = _target_token_ids(f"a {phrase.strip()}", tokenizer)
    if with_word[: len(word)] == word:
        return with_word[len(word) :]
    return _target_token_ids(phrase.strip(), tokenizer)


def _target_token_ids(text: str, tokenizer: Any) -> list[int]:
    with TOKENIZING:
        return tokenizer(text_target=text, add_special_tokens=False, verbose=False)["input_ids"]


def tags_of(tokenizer: Any) -> dict[str, int]:
    """Return a dict from each tag of a target language in a vocabulary, such as ">>en<<", to its token id."""
    tags = {}
    for token_id, token in getattr(tokenizer, "added_tokens_decoder", {}).items():
        if not token.special and TAG.fullmatch(token.content):
            tags[token.content] = token_id
    return tags


def languages_of(tokenizer: Any) -> dict[str, int]:
    """Return a dict from each language of a multilingual tokenizer to the id of its language token."""
    tokens = getattr(tokenizer, "init_kwargs", {}).get(LANGUAGE_TOKENS, {})
    return {language: tokenizer.convert_tokens_to_ids(token) for language, token in tokens.items()}


def check_tokenizers(model: Any, source_tokenizer: Any, target_tokenizer: Any, name: str = "") -> None:
    """Raise an error if the token ids or the special tokens of a tokenizer do not match a Vaswani model."""
    config = model.config
    fitting = f"must fit {name!r}" if name else "must fit the model"
    sides = {
        "source": (source_tokenizer, config.vocab_size),
        "target": (target_tokenizer, config.decoder_vocab_size),
    }
    for side, (tokenizer, num_classes) in sides.items():
        fault = ""
        largest = max(tokenizer.get_vocab().values(), default=0)
        if largest >= num_classes:
            fault = f"has ids up to {largest:,}, too large for the {num_classes:,} classes of the model"
        special = {"pad_token": [] if config.pad_token_id is None else [config.pad_token_id]}
        if side == "target":
            special["eos_token"] = eos_token_ids(config) + eos_token_ids(model.generation_config)
        for token, ids in special.items():
            token_id = getattr(tokenizer, f"{token}_id")
            if not fault and ids and token_id is not None and token_id not in ids:
                fault = f"its `{token}` has the id {token_id}, but the model has the id {ids[0]}"
        if fault:
            raise ValueError(
                f"The {side} tokenizer {fitting}, but {fault}; take the tokenizer and the model from one "
                "checkpoint."
            )
