"""Training of subword tokenizers: byte-level BPE over the training text, one vocabulary or two.

Section 5.1: "Sentences were encoded using byte-pair encoding, which has a shared source-target vocabulary".

Differs from the paper: the alphabet is the 256 bytes and, as single entries, the characters of the training text; bytes
alone would let a model write half a letter, and characters alone could not encode every sentence and give it back exactly.
A corpus of more than a million pairs is represented by a million, evenly spread over it; a stream by its first million.
Pairs with too many characters for `max_length` tokens are left out (see preparation.py).
"""

import copy
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from datasets import Dataset, IterableDataset
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from ..recipe.schema import SMALLEST_VOCABULARY, TEXT_TASKS, TokenizerSection
from .columns import mapped_files
from .preparation import begins_with_a_space, has_too_many_characters

logger = logging.getLogger(__name__)

# The order is the one of BART: generate() mistakes a pad token with the id 0 for a missing one.
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
# That of a model that fills in hidden tokens.
MASK = "<mask>"
# A tag is found in the text as it is written and never split. With the spaces around it a tag separates two texts,
# so that a word is encoded as it is without a tag (see `TextEncoder`). Special tokens are text in a text, and a tag is none.
_OF_TAGS: dict[str, bool] = {"lstrip": True, "rstrip": True, "normalized": False}
_NORMALIZERS = {"NFC": normalizers.NFC, "NFKC": normalizers.NFKC}
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
# More pairs cost minutes and change nothing: what is frequent in a million is frequent in all.
TRAINING_PAIRS = 1_000_000
_BATCH_SIZE = 1000
# How `pre_tokenizers.ByteLevel` splits a text into words (its source, byte_level.rs).
_WORDS = Regex(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def train_tokenizers(
    section: TokenizerSection,
    pairs: Dataset | IterableDataset,
    model_max_length: int,
    tags: tuple[str, ...] = (),
    task: str = "translation",
) -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]:
    """The joint tokenizer of a corpus, or the tokenizers of its two sides.

    Args:
        section: The recipe's choice of one vocabulary or two, and their sizes.
        pairs: The columns `source` and `target`.
        model_max_length: The length, in tokens, to which `truncation=True` cuts.
        tags: The tags of directions that they know (see checkpoint/tokenizers.py); `pairs` have none.
        task: That of the recipe; both sides of the pairs are the same text for a language model.

    Returns:
        The source and the target tokenizer, the same object for a joint vocabulary.
    """
    options: dict[str, Any] = {
        "lowercase": section.lowercase,
        "normalization": section.normalization,
        "model_max_length": model_max_length,
        "tags": tags,
        "task": task,
    }
    if task in TEXT_TASKS:
        joint = train_tokenizer(texts_of(pairs, ("source",), model_max_length), section.vocab_size, **options)
        return joint, joint
    if section.shared_vocabulary:
        joint = train_tokenizer(texts_of(pairs, ("source", "target"), model_max_length), section.vocab_size, **options)
        return joint, joint
    source = train_tokenizer(texts_of(pairs, ("source",), model_max_length), section.vocab_size, **options)
    target_size = section.target_vocab_size or section.vocab_size
    return source, train_tokenizer(texts_of(pairs, ("target",), model_max_length), target_size, **options)


def texts_of(pairs: Dataset | IterableDataset, sides: tuple[str, ...], max_length: int) -> Iterator[str]:
    """The texts that a tokenizer is trained on.

    Args:
        pairs: The columns `source` and `target`.
        sides: One of them or both.
        max_length: The limit of the run for a side in tokens; pairs with too many characters for it are left out.

    Yields:
        str: Text by text.
    """
    for batch in _batches(pairs):
        kept = [
            row
            for row, (source, target) in enumerate(zip(batch["source"], batch["target"], strict=True))
            if not has_too_many_characters(source, target, max_length)
        ]
        for side in sides:
            yield from (batch[side][row] for row in kept)
        mapped_files.release()


def _batches(pairs: Dataset | IterableDataset) -> Iterator[dict[str, list[str]]]:
    """The pairs that a tokenizer is trained on, in batches: of a large corpus evenly spread ones, of a stream the first."""
    if isinstance(pairs, IterableDataset):
        # A stream and what is made of it share their place.
        yield from copy.deepcopy(pairs).take(TRAINING_PAIRS).iter(batch_size=_BATCH_SIZE)
        return
    count, most = -(-len(pairs) // _BATCH_SIZE), TRAINING_PAIRS // _BATCH_SIZE
    for number in range(min(count, most)):
        start = number * count // min(count, most) * _BATCH_SIZE
        yield pairs[start : start + _BATCH_SIZE]


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    *,
    lowercase: bool = False,
    normalization: str | None = None,
    model_max_length: int | None = None,
    tags: tuple[str, ...] = (),
    task: str = "translation",
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on `texts`, the same one for the same texts.

    Args:
        texts: The sentences, of both languages for a joint vocabulary.
        vocab_size: The number of entries, special tokens and bytes included, `<mask>` not. A corpus with fewer distinct words gives
            fewer: `len()` of the tokenizer is the size that came about. Each character of the texts that takes several
            bytes has an entry before anything longer has one (with at most two more for the beginnings of its bytes,
            which similar characters share). Where these do not fit, the most frequent ones do, the others are bytes,
            and a warning says so.
        lowercase: Lowercase text before it is split.
        normalization: The Unicode normal form that text is brought to, "NFC" or "NFKC"; `None` leaves it as it is.
        model_max_length: The length, in tokens, to which `truncation=True` cuts.
        tags: The tags of directions (see checkpoint/tokenizers.py), which come last in the vocabulary.
        task: For "causal_lm" `<s>` begins a text and nothing ends it, so that a model can go on with it, and padding is on the
            left; for "masked_lm" there is the token `<mask>`, which is found in a text, as the other special tokens then are.
            For both no space is put before a text, as in GPT-2's and RoBERTa's.

    Returns:
        The tokenizer; `</s>` ends every encoded sentence. Without `lowercase` and `normalization`, decoding with
        `skip_special_tokens=True` restores every text exactly, one that spells a special token included, but for tags.

    Raises:
        ValueError: If `vocab_size` is below 260 and the number of tags, `normalization` is unknown or `texts` holds no text.
    """
    smallest = SMALLEST_VOCABULARY + len(tags)
    if vocab_size < smallest:
        special = (
            f"{len(SPECIAL_TOKENS)} special tokens{f' and {len(tags)} more, {chr(32).join(tags)}' if tags else ''}"
        )
        raise ValueError(f"`vocab_size` must be at least {smallest} (256 bytes and {special}), but is {vocab_size}.")
    backend = _untrained(lowercase, normalization, begins_with_a_space=task not in TEXT_TASKS)
    remaining = iter(texts)
    first = next((text for text in remaining if text.strip()), None)
    if first is None:
        raise ValueError("`texts` must hold text to train a tokenizer on, but there is none.")
    backend.model = _trained(chain([first], remaining), backend.normalizer, vocab_size - len(tags))
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.add_tokens([AddedToken(tag, **_OF_TAGS, special=False) for tag in tags])
    if backend.get_vocab_size() < vocab_size:
        logger.warning("The texts fill only %d of %d vocabulary entries.", backend.get_vocab_size(), vocab_size)
    _settle_task(backend, task)
    return with_transformers_interface(backend, model_max_length, task)


def _settle_task(backend: Tokenizer, task: str) -> None:
    """What differs from task to task beside the vocabulary, of which `<mask>` is the last entry.

    A text of the causal language model begins with `<s>`, which it may go on with, and all others end with `</s>`.
    """
    if task == "masked_lm" and MASK not in backend.get_vocab():
        backend.add_special_tokens([_mask_of(backend)])
    # Each tag by itself is left out: pieces that spell one together are text.
    tags = [token.content for token in backend.get_added_tokens_decoder().values() if not token.special]
    steps: list[Any] = [*(decoders.Replace(tag, "") for tag in tags), decoders.ByteLevel()]
    if task != "causal_lm" and _begins_with_a_space(backend):
        # Of a continuation the first space is part.
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    single, pair = ("<s> $A", "<s> $A $B") if task == "causal_lm" else ("$A </s>", "$A </s> $B </s>")
    ends = [(token, SPECIAL_TOKENS.index(token)) for token in ("<s>", "</s>")]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ends)


def _begins_with_a_space(backend: Tokenizer) -> bool:
    return begins_with_a_space(json.loads(backend.to_str())["normalizer"])


def _mask_of(backend: Tokenizer) -> AddedToken:
    """`<mask>` for the piece of a word with the space before it; the word behind it has its own, which is put there or stays."""
    return AddedToken(MASK, **{**_OF_TAGS, "rstrip": _begins_with_a_space(backend)}, special=True)


def for_task(tokenizer: PreTrainedTokenizerFast, task: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a task with the vocabulary of another one's; `<mask>` comes last where that had none, or else stays.

    Args:
        tokenizer: A tokenizer made by `train_tokenizer`.
        task: As there.

    Returns:
        A new tokenizer.
    """
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    _settle_task(backend, task)
    return with_transformers_interface(backend, tokenizer.model_max_length, task)


def _trained(texts: Iterable[str], normalizer: normalizers.Normalizer, vocab_size: int) -> models.BPE:
    """BPE over characters, written out in bytes: the merges that make characters of bytes come first."""
    counts: Counter[str] = Counter()
    over_characters = Tokenizer(models.BPE())
    over_characters.normalizer = normalizer
    over_characters.pre_tokenizer = pre_tokenizers.Split(_WORDS, "isolated")
    # In this order pairs that are as frequent are merged in that of the bytes. 128 entries are fewer than those of all
    # bytes: `vocab_size` of them hold all merges that are needed.
    ascii_characters = sorted(map(chr, range(128)), key=_in_bytes)
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=ascii_characters, show_progress=False)
    over_characters.train_from_iterator(_counted(texts, normalizer, counts), trainer)
    # The most frequent ones first, and those that are as frequent in the order of Unicode.
    characters = sorted(counts, key=lambda character: (-counts[character], character))
    learned = json.loads(over_characters.to_str())["model"]["merges"]
    merges = [
        *dict.fromkeys(pair for character in characters for pair in _merges_of_bytes(_in_bytes(character))),
        *((_in_bytes(left), _in_bytes(right)) for left, right in learned),
    ]
    entries = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {entry: token_id for token_id, entry in enumerate(entries)}
    for rank, pair in enumerate(merges):
        if vocabulary.setdefault("".join(pair), len(vocabulary)) == vocab_size:
            del vocabulary["".join(pair)], merges[rank:]
            break
    bytewise = sum(_in_bytes(character) not in vocabulary for character in characters)
    if bytewise:
        logger.warning(
            "%d of the %d characters beyond ASCII do not fit into %d vocabulary entries and are written in bytes.",
            bytewise,
            len(characters),
            vocab_size,
        )
    return models.BPE(vocabulary, merges)


def _counted(texts: Iterable[str], normalizer: normalizers.Normalizer, counts: Counter[str]) -> Iterator[str]:
    """The texts, while the characters beyond ASCII that they have for the tokenizer are counted."""
    for text in texts:
        if not text.isascii():
            counts.update(character for character in normalizer.normalize_str(text) if not character.isascii())
        yield text


def _merges_of_bytes(symbols: str) -> Iterator[tuple[str, str]]:
    for end in range(1, len(symbols)):
        yield symbols[:end], symbols[end]


def _in_bytes(text: str) -> str:
    """A character for each byte of the text, as byte-level BPE writes them."""
    return _BYTES.pre_tokenize_str(text)[0][0]


def _untrained(lowercase: bool, normalization: str | None, begins_with_a_space: bool) -> Tokenizer:
    """A tokenizer with an empty vocabulary.

    With a space before the text, which decoding takes off again, a word is the same piece at the beginning of a sentence and
    after a space.

    Raises:
        ValueError: If `normalization` is unknown.
    """
    if normalization is not None and normalization not in _NORMALIZERS:
        raise ValueError(f'`normalization` must be "NFC", "NFKC" or None, but is {normalization!r}.')
    steps: list[Any] = [_NORMALIZERS[normalization]()] if normalization is not None else []
    steps += [normalizers.Lowercase()] if lowercase else []
    backend = Tokenizer(models.BPE())
    steps += [normalizers.Prepend(" ")] if begins_with_a_space else []
    backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return backend


def with_transformers_interface(
    backend: Tokenizer, model_max_length: int | None, task: str = "translation"
) -> PreTrainedTokenizerFast:
    """A tokenizer as transformers has it.

    Args:
        backend: Its special tokens are those of this package.
        model_max_length: The length, in tokens, to which `truncation=True` cuts.
        task: As in `train_tokenizer`.
    """
    bos, pad, eos, unk = SPECIAL_TOKENS
    is_masked = task == "masked_lm"
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=bos,
        pad_token=pad,
        eos_token=eos,
        unk_token=unk,
        **({"mask_token": _mask_of(backend)} if is_masked else {}),
        # A causal model goes on behind the last token.
        padding_side="left" if task == "causal_lm" else "right",
        model_max_length=model_max_length,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        # A "</s>" in a user's text is text, not the end of the sentence; a mask is written into one.
        split_special_tokens=not is_masked,
    )
