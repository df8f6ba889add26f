"""Training of subword tokenizers: byte-level BPE over the training text, one vocabulary or two.

Section 5.1: "Sentences were encoded using byte-pair encoding, which has a shared source-target vocabulary".

Differs from the paper: the alphabet is the 256 bytes, not characters, because then every sentence can be encoded and
decoding gives back exactly the text that was encoded.
"""

import logging
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from datasets import Dataset, IterableDataset
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ..recipe.schema import SMALLEST_VOCABULARY, TokenizerSection

logger = logging.getLogger(__name__)

# The order is the one of BART: generate() mistakes a pad token with the id 0 for a missing one.
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
_NORMALIZERS = {"NFC": normalizers.NFC, "NFKC": normalizers.NFKC}


def train_tokenizers(
    section: TokenizerSection, pairs: Dataset | IterableDataset, model_max_length: int
) -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]:
    """The joint tokenizer of a corpus, or the tokenizers of its two sides.

    Args:
        section: The recipe's choice of one vocabulary or two, and their sizes.
        pairs: The columns `source` and `target`.
        model_max_length: The length, in tokens, to which `truncation=True` cuts.

    Returns:
        The source and the target tokenizer, the same object for a joint vocabulary.
    """
    options: dict[str, Any] = {
        "lowercase": section.lowercase,
        "normalization": section.normalization,
        "model_max_length": model_max_length,
    }
    if section.shared_vocabulary:
        joint = train_tokenizer(_texts(pairs, ("source", "target")), section.vocab_size, **options)
        return joint, joint
    source = train_tokenizer(_texts(pairs, ("source",)), section.vocab_size, **options)
    target_size = section.target_vocab_size or section.vocab_size
    return source, train_tokenizer(_texts(pairs, ("target",)), target_size, **options)


def _texts(pairs: Dataset | IterableDataset, sides: tuple[str, ...]) -> Iterator[str]:
    for batch in pairs.iter(batch_size=1000):
        for side in sides:
            yield from batch[side]


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    *,
    lowercase: bool = False,
    normalization: str | None = None,
    model_max_length: int | None = None,
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on `texts`, the same one for the same texts.

    Args:
        texts: The sentences, of both languages for a joint vocabulary.
        vocab_size: The number of entries, special tokens and bytes included. A corpus with fewer distinct words gives
            fewer: `len()` of the tokenizer is the size that came about.
        lowercase: Lowercase text before it is split.
        normalization: The Unicode normal form that text is brought to, "NFC" or "NFKC"; `None` leaves it as it is.
        model_max_length: The length, in tokens, to which `truncation=True` cuts.

    Returns:
        The tokenizer; `</s>` ends every encoded sentence. Without `lowercase` and `normalization`, decoding with
        `skip_special_tokens=True` restores every text exactly, one that spells a special token included.

    Raises:
        ValueError: If `vocab_size` is below 260, `normalization` is unknown or `texts` holds no text.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise ValueError(
            f"`vocab_size` must be at least {SMALLEST_VOCABULARY} (256 bytes and {len(SPECIAL_TOKENS)} special tokens),"
            f" but is {vocab_size}."
        )
    backend = _untrained(lowercase, normalization)
    remaining = iter(texts)
    first = next((text for text in remaining if text.strip()), None)
    if first is None:
        raise ValueError("`texts` must hold text to train a tokenizer on, but every one of them is empty.")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(chain([first], remaining), trainer)
    if backend.get_vocab_size() < vocab_size:
        logger.warning("The texts fill only %d of %d vocabulary entries.", backend.get_vocab_size(), vocab_size)
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", SPECIAL_TOKENS.index("</s>"))]
    )
    return _with_transformers_interface(backend, model_max_length)


def _untrained(lowercase: bool, normalization: str | None) -> Tokenizer:
    """A tokenizer with an empty vocabulary.

    It puts a space before the text, and takes it off again on decoding, so that a word is the same piece at the
    beginning of a sentence and after a space.

    Raises:
        ValueError: If `normalization` is unknown.
    """
    if normalization is not None and normalization not in _NORMALIZERS:
        raise ValueError(f'`normalization` must be "NFC", "NFKC" or None, but is {normalization!r}.')
    steps: list[Any] = [_NORMALIZERS[normalization]()] if normalization is not None else []
    steps += [normalizers.Lowercase()] if lowercase else []
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Prepend(" ")])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return backend


def _with_transformers_interface(backend: Tokenizer, model_max_length: int | None) -> PreTrainedTokenizerFast:
    bos, pad, eos, unk = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=bos,
        pad_token=pad,
        eos_token=eos,
        unk_token=unk,
        padding_side="right",
        model_max_length=model_max_length,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        # A "</s>" in a user's text is text, not the end of the sentence.
        split_special_tokens=True,
    )
