"""Trains byte-level BPE tokenizers on the training text: one tokenizer for source and target, or one
tokenizer for each side.

Section 5.1: "Sentences were encoded using byte-pair encoding, which has a shared source-target vocabulary".

Differs from the paper: the vocabulary contains the 256 bytes, and all characters of the training text if
    `vocab_size` is large enough. Without
whole characters in the vocabulary, a model could write incomplete characters. Without the 256 bytes in the
vocabulary, a tokenizer could not encode a character that is missing in the training text. A tokenizer is
trained on at most a million sentence pairs: pairs at regular intervals of a corpus, or the first pairs of a
stream. Pairs with too many characters (see `has_too_many_characters`) are left out.
"""

import copy
import json
import logging
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
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

from ..checkpoint.files import MANIFEST_FILE
from ..checkpoint.manifest import verify_manifest, write_manifest
from ..checkpoint.tokenizers import IMPORTED_MARK, Tokenizers, save_tokenizers
from ..model.errors_vaswani import InvalidValueError
from ..settings.sections import SMALLEST_VOCABULARY, TokenizerSettings
from .corpus_cache import cache_folder, cache_key, explain_cache_errors
from .encoding import character_limit, has_too_many_characters
from .memory import mapped_files, return_free_memory
from .text_encoder import begins_with_a_space

logger = logging.getLogger(__name__)

# The special tokens in the order of their ids, as in BART. `<pad>` must not have the id 0, because `generate`
# of transformers treats a pad token with the id 0 as missing.
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
MASK = "<mask>"
# The `AddedToken` options of language tags such as `>>en<<`. A tokenizer recognises a tag before the
# normalization, and removes the spaces around the tag. Therefore a tag does not change the tokens of its
# neighbouring words (see `TextEncoder`).
_TAG_OPTIONS: dict[str, bool] = {"lstrip": True, "rstrip": True, "normalized": False}
_NORMALIZERS = {"NFC": normalizers.NFC, "NFKC": normalizers.NFKC}
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
# The maximum number of sentence pairs for the training of a tokenizer. Training on more pairs takes minutes,
# and gives almost the same vocabulary.
TRAINING_PAIRS = 1_000_000
_BATCH_SIZE = 1000
# The pattern with which `pre_tokenizers.ByteLevel` of the library `tokenizers` splits a text into words
# (byte_level.rs).
_WORDS = Regex(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


@dataclass(frozen=True)
class TextForm:
    """Describes which special tokens a tokenizer adds to a text, and whether the tokenizer adds a space
    before the text.
    """

    # If True, the tokenizer adds a space before a text, and removes the space in decoding. With the space, a
    # word at the beginning of a text has the same token ids as inside a text.
    begins_with_a_space: bool = True
    # True for a model that continues texts: the tokenizer adds `<s>` at the beginning, and pads on the left.
    # If `is_open` is False, the tokenizer adds `</s>` at the end, and pads on the right.
    is_open: bool = False
    # If True, the vocabulary ends with `<mask>`, and the tokenizer recognises special tokens in a text.
    has_mask: bool = False


SENTENCE = TextForm()


def write_tokenizers(
    train: Callable[[], Tokenizers],
    section: TokenizerSettings,
    pairs: Dataset | IterableDataset,
    model_max_length: int,
    folder: Path,
    **kind: Any,
) -> None:
    """Write the source and the target tokenizer of a corpus into `folder`, from the cache if possible. The
    function `train` trains the tokenizers.

    A hash of the corpus files, the settings and `kind` identifies tokenizers in the cache. The argument
    `kind` contains further values that affect the tokenizers and are not settings, such as the name of the
    task.
    """

    def train_in(place: Path) -> None:
        save_tokenizers(*train(), place)
        return_free_memory()

    cache = cache_folder(pairs)
    if cache is None:
        train_in(folder)
        return
    options = {
        **section.model_dump(),
        "bpe_dropout": None,
        "max_length": model_max_length,
        "max_characters": character_limit(model_max_length),
        **kind,
    }
    kept = cache / f"tokenizers-{cache_key(pairs, options)}"
    if verify_manifest(kept) is not None:
        if not os.access(cache, os.W_OK):
            train_in(folder)
            return
        with explain_cache_errors(cache):
            _fill_cache(kept, train_in)
    # Copy the files one by one, because `copytree` would give the folder of the run the permissions of the
    # cache folder.
    for path in sorted(path for path in kept.rglob("*") if path.is_file() and path.name != MANIFEST_FILE):
        place = folder / path.relative_to(kept)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


def _fill_cache(kept: Path, train: Callable[[Path], None]) -> None:
    """Train tokenizers, and write the tokenizers into the cache folder `kept`. First, delete an existing
    cache folder `kept`, because the files in an existing folder are damaged.
    """
    shutil.rmtree(kept, ignore_errors=True)
    unfinished = kept.with_name(f"{kept.name}.{secrets.token_hex(4)}")
    try:
        unfinished.mkdir()
        train(unfinished)
        write_manifest(unfinished, {})
        unfinished.rename(kept)
    except OSError:
        # Ignore the error if another run has created the folder `kept` in the meantime, because both runs
        # train identical tokenizers.
        if not kept.is_dir():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def train_on_sides(
    section: TokenizerSettings,
    pairs: Dataset | IterableDataset,
    sides: tuple[str, ...],
    model_max_length: int,
    *,
    vocab_size: int | None = None,
    tags: tuple[str, ...] = (),
    form: TextForm = SENTENCE,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer on sentence pairs. `sides` are the names of the text columns, such as "source"."""
    return train_tokenizer(
        training_texts(pairs, sides, model_max_length),
        vocab_size or section.vocab_size,
        lowercase=section.lowercase,
        normalization=section.normalization,
        model_max_length=model_max_length,
        tags=tags,
        form=form,
    )


def training_texts(
    pairs: Dataset | IterableDataset, sides: tuple[str, ...], max_length: int
) -> Iterator[str]:
    """Yield the texts of the columns `sides`, without the pairs that have too many characters."""
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
    """Yield at most `TRAINING_PAIRS` pairs in batches. If `pairs` is a stream, take its first pairs. If
    `pairs` is a dataset, take batches that are spread evenly over the dataset.
    """
    if isinstance(pairs, IterableDataset):
        # Read a copy of the stream, so that the training of the model starts at the beginning of the stream.
        yield from copy.deepcopy(pairs).take(TRAINING_PAIRS).iter(batch_size=_BATCH_SIZE)
        return
    count = -(-len(pairs) // _BATCH_SIZE)
    chosen = min(count, TRAINING_PAIRS // _BATCH_SIZE)
    for number in range(chosen):
        start = number * count // chosen * _BATCH_SIZE
        yield pairs[start : start + _BATCH_SIZE]


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    *,
    lowercase: bool = False,
    normalization: str | None = None,
    model_max_length: int | None = None,
    tags: tuple[str, ...] = (),
    form: TextForm = SENTENCE,
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on `texts`. Equal texts always give equal tokenizers.

    Without `lowercase` and `normalization`, decoding with `skip_special_tokens=True` restores each text
    exactly, except that the language tags in `tags` are missing. `vocab_size` includes the special tokens,
    the bytes and `tags`, but not `<mask>`. If `vocab_size` is too small for all non-ASCII characters, only
    the most frequent characters get entries.
    """
    smallest = SMALLEST_VOCABULARY + len(tags)
    if vocab_size < smallest:
        of_tags = f" and the tags {' '.join(tags)}" if tags else ""
        raise InvalidValueError(
            f"`vocab_size` must be at least {smallest} (256 bytes and {len(SPECIAL_TOKENS)} special "
            f"tokens{of_tags}), but is {vocab_size}."
        )
    backend = _untrained_backend(lowercase, normalization, form)
    remaining = iter(texts)
    first = next((text for text in remaining if text.strip()), None)
    if first is None:
        raise InvalidValueError(
            "`texts` must contain at least one text that is not empty, to train a tokenizer."
        )
    backend.model = _train_bpe(chain([first], remaining), backend.normalizer, vocab_size - len(tags))
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.add_tokens([AddedToken(tag, **_TAG_OPTIONS, special=False) for tag in tags])
    if backend.get_vocab_size() < vocab_size:
        logger.warning(
            "The texts fill only %d of %d vocabulary entries.", backend.get_vocab_size(), vocab_size
        )
    _add_marks(backend, form)
    return with_transformers_interface(backend, model_max_length, form)


def _add_marks(backend: Tokenizer, form: TextForm) -> None:
    """Add two parts to the tokenizer: the decoder, and the post-processor that adds `<s>` at the beginning or
    `</s>` at the end. If `form.has_mask` is True, also add the token `<mask>`.
    """
    if form.has_mask and MASK not in backend.get_vocab():
        backend.add_special_tokens([_mask_of(backend)])
    # In decoding, remove the tokens that are language tags, but keep ordinary text with the characters of a
    # tag.
    tags = [token.content for token in backend.get_added_tokens_decoder().values() if not token.special]
    steps: list[Any] = [*(decoders.Replace(tag, "") for tag in tags), decoders.ByteLevel()]
    # Let the decoder of the tokenizer remove the space at the beginning of the text. For a causal language
    # model, keep the space. A causal language model continues a text, and the continuation can begin with a
    # space.
    if not form.is_open and _begins_with_a_space(backend):
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    single, pair = ("<s> $A", "<s> $A $B") if form.is_open else ("$A </s>", "$A </s> $B </s>")
    ends = [(token, SPECIAL_TOKENS.index(token)) for token in ("<s>", "</s>")]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ends)


def _begins_with_a_space(backend: Tokenizer) -> bool:
    return begins_with_a_space(json.loads(backend.to_str())["normalizer"])


def _mask_of(backend: Tokenizer) -> AddedToken:
    """Return `<mask>`. The token `<mask>` includes the space before the mask, as the first token of a word
    includes the space before the word.
    """
    return AddedToken(MASK, **{**_TAG_OPTIONS, "rstrip": _begins_with_a_space(backend)}, special=True)


def with_form(tokenizer: PreTrainedTokenizerFast, form: TextForm) -> PreTrainedTokenizerFast:
    """Return a copy of a tokenizer that adds special tokens as `form` describes. An imported tokenizer
    supports only the form `SENTENCE`.
    """
    if tokenizer.init_kwargs.get(IMPORTED_MARK, False):
        if form != SENTENCE:
            raise ValueError("has tokenizers of another library")
        return tokenizer
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    _add_marks(backend, form)
    return with_transformers_interface(backend, tokenizer.model_max_length, form)


def _train_bpe(texts: Iterable[str], normalizer: normalizers.Normalizer, vocab_size: int) -> models.BPE:
    """Train BPE on characters, and convert the result to byte-level BPE. The first merges of the byte-level
    BPE join the bytes of each character.
    """
    counts: Counter[str] = Counter()
    over_characters = Tokenizer(models.BPE())
    over_characters.normalizer = normalizer
    over_characters.pre_tokenizer = pre_tokenizers.Split(_WORDS, "isolated")
    # Sort the ASCII characters by their byte-level BPE symbols (see `_as_byte_symbols`). If two pairs of
    # characters are equally frequent, the order of the characters decides which pair the BPE trainer merges
    # first. With sorted ASCII characters, the BPE trainer merges the same pair first as in the training of
    # byte-level BPE. The BPE trainer reserves only 128 vocabulary entries for single ASCII characters, but
    # the byte-level vocabulary reserves 256 entries for bytes. Therefore the BPE trainer learns enough merges
    # to fill the byte-level vocabulary.
    ascii_characters = sorted(map(chr, range(128)), key=_as_byte_symbols)
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=ascii_characters, show_progress=False)
    over_characters.train_from_iterator(_count_characters(texts, normalizer, counts), trainer)
    # Sort the characters by frequency, and equally frequent characters by code point.
    characters = sorted(counts, key=lambda character: (-counts[character], character))
    learned = json.loads(over_characters.to_str())["model"]["merges"]
    merges = [
        *dict.fromkeys(
            pair for character in characters for pair in _merges_of_bytes(_as_byte_symbols(character))
        ),
        *((_as_byte_symbols(left), _as_byte_symbols(right)) for left, right in learned),
    ]
    entries = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {entry: token_id for token_id, entry in enumerate(entries)}
    for rank, pair in enumerate(merges):
        if vocabulary.setdefault("".join(pair), len(vocabulary)) == vocab_size:
            del vocabulary["".join(pair)], merges[rank:]
            break
    bytewise = sum(_as_byte_symbols(character) not in vocabulary for character in characters)
    if bytewise:
        logger.warning(
            "%d of the %d characters beyond ASCII do not fit into %d vocabulary entries and are encoded as "
            "bytes.",
            bytewise,
            len(characters),
            vocab_size,
        )
    return models.BPE(vocabulary, merges)


def _count_characters(
    texts: Iterable[str], normalizer: normalizers.Normalizer, counts: Counter[str]
) -> Iterator[str]:
    """Yield each text unchanged. Add the non-ASCII characters of the normalized text to `counts`."""
    for text in texts:
        if not text.isascii():
            counts.update(
                character for character in normalizer.normalize_str(text) if not character.isascii()
            )
        yield text


def _merges_of_bytes(symbols: str) -> Iterator[tuple[str, str]]:
    for end in range(1, len(symbols)):
        yield symbols[:end], symbols[end]


def _as_byte_symbols(text: str) -> str:
    """Replace each byte of a UTF-8 text by the character that stands for this byte in byte-level BPE."""
    return _BYTES.pre_tokenize_str(text)[0][0]


def _untrained_backend(lowercase: bool, normalization: str | None, form: TextForm) -> Tokenizer:
    """Return a tokenizer with an empty vocabulary."""
    if normalization is not None and normalization not in _NORMALIZERS:
        raise InvalidValueError(f'`normalization` must be "NFC", "NFKC" or None, but is {normalization!r}.')
    steps: list[Any] = [_NORMALIZERS[normalization]()] if normalization is not None else []
    steps += [normalizers.Lowercase()] if lowercase else []
    steps += [normalizers.Prepend(" ")] if form.begins_with_a_space else []
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return backend


def with_transformers_interface(
    backend: Tokenizer, model_max_length: int | None, form: TextForm = SENTENCE
) -> PreTrainedTokenizerFast:
    """Wrap `backend` in a tokenizer of transformers, with the special tokens of this package."""
    bos, pad, eos, unk = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=bos,
        pad_token=pad,
        eos_token=eos,
        unk_token=unk,
        **({"mask_token": _mask_of(backend)} if form.has_mask else {}),
        # Pad on the left for a model that continues texts, because padding must not separate a text from its
        # continuation.
        padding_side="left" if form.is_open else "right",
        model_max_length=model_max_length,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        # Treat "</s>" in a user's text as text instead of the end of the sentence. A tokenizer with
        # `<mask>` recognises special tokens in a text, because users write `<mask>` into texts.
        split_special_tokens=not form.has_mask,
    )
