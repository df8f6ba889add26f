"""Training of subword tokenizers: byte-level BPE over the training text, one vocabulary or two.

Section 5.1: "Sentences were encoded using byte-pair encoding, which has a shared source-target vocabulary".

Differs from the paper: the alphabet is the 256 bytes and, as single entries, the characters of the training
text. With bytes alone a model could write half a letter. With characters alone the tokenizer could not encode
every sentence. A corpus of more than a million pairs is represented by a million pairs that are evenly spread
over it, a stream by its first million. Pairs with too many characters for `max_length` tokens are left out
(see corpus.py).
"""

import copy
import json
import logging
import os
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

from ..checkpoint.files import MANIFEST_FILE, naming_the_folder
from ..checkpoint.manifest import verify_manifest, write_manifest
from ..checkpoint.tokenizers import save_tokenizers
from ..settings.sections import SMALLEST_VOCABULARY, TokenizerSettings
from .corpus import CHARACTERS_PER_TOKEN, has_too_many_characters
from .corpus_cache import CACHE_REMEDY, cache_folder, cache_key
from .memory import mapped_files, return_free_memory
from .text_encoder import begins_with_a_space

logger = logging.getLogger(__name__)

# The order is that of BART, because generate() takes a pad token with the id 0 for a missing one.
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
MASK = "<mask>"
# A tag is found in the text as it is written and never split. With the spaces around it a tag separates two
# texts, so that a word is encoded as it is without a tag (see `TextEncoder`). A special token in a text is
# text, a tag is not.
_OF_TAGS: dict[str, bool] = {"lstrip": True, "rstrip": True, "normalized": False}
_NORMALIZERS = {"NFC": normalizers.NFC, "NFKC": normalizers.NFKC}
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
# More pairs cost minutes and change nothing: pieces that are frequent in a million pairs are frequent in all
# pairs.
TRAINING_PAIRS = 1_000_000
_BATCH_SIZE = 1000
# How `pre_tokenizers.ByteLevel` splits a text into words (its source, byte_level.rs).
_WORDS = Regex(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


@dataclass(frozen=True)
class TextForm:
    """The marks that a tokenizer adds to a text.

    Attributes:
        begins_with_a_space: A space is put before the text, and decoding removes it, so that a word is the
            same piece at the beginning of a sentence and after a space. GPT-2's and RoBERTa's tokenizers put
            no space there.
        is_open: `<s>` begins a text and nothing ends it, so that a model can continue it; padding is on the
            left. Otherwise `</s>` ends the text.
        has_mask: The vocabulary ends with `<mask>`. It and the other special tokens are recognised in a text.
    """

    begins_with_a_space: bool = True
    is_open: bool = False
    has_mask: bool = False


SENTENCE = TextForm()


def write_tokenizers(
    train_on: Callable[[TokenizerSettings, Dataset | IterableDataset, int], tuple[Any, Any]],
    section: TokenizerSettings,
    pairs: Dataset | IterableDataset,
    model_max_length: int,
    folder: Path,
    **kind: Any,
) -> None:
    """Write the source and the target tokenizer of a corpus into the folder of a run.

    `train_on` trains the two tokenizers from `section`, `pairs` and `model_max_length`. If another run has trained the
    same tokenizers on the same files, they are copied from the cache. `kind` is everything else that the tokenizers
    depend on; `kind` is part of their name in the cache.
    """

    def train(place: Path) -> None:
        save_tokenizers(*train_on(section, pairs, model_max_length), place)
        return_free_memory()

    cache = cache_folder(pairs)
    if cache is None:
        train(folder)
        return
    options = {
        **section.model_dump(),
        "bpe_dropout": None,
        "max_length": model_max_length,
        "characters_per_token": CHARACTERS_PER_TOKEN,
        **kind,
    }
    kept = cache / f"tokenizers-{cache_key(pairs, options)}"
    if verify_manifest(kept) is not None:
        if not os.access(cache, os.W_OK):
            train(folder)
            return
        with naming_the_folder(cache, CACHE_REMEDY):
            _fill_cache(kept, train)
    # Copy file by file, because `copytree` would give the folder of the run the mode of the cache folder.
    for path in sorted(path for path in kept.rglob("*") if path.is_file() and path.name != MANIFEST_FILE):
        place = folder / path.relative_to(kept)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


def _fill_cache(kept: Path, train: Callable[[Path], None]) -> None:
    """Train tokenizers into a folder of the cache, which is missing or damaged."""
    shutil.rmtree(kept, ignore_errors=True)
    unfinished = kept.with_name(f"{kept.name}.{os.getpid()}")
    try:
        unfinished.mkdir()
        train(unfinished)
        write_manifest(unfinished, {})
        unfinished.rename(kept)
    except OSError:
        # The renaming fails if another run was faster. The tokenizers of that run are the same.
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
    """`train_tokenizer` on these columns of pairs, with the options of a recipe."""
    return train_tokenizer(
        texts_of(pairs, sides, model_max_length),
        vocab_size or section.vocab_size,
        lowercase=section.lowercase,
        normalization=section.normalization,
        model_max_length=model_max_length,
        tags=tags,
        form=form,
    )


def texts_of(pairs: Dataset | IterableDataset, sides: tuple[str, ...], max_length: int) -> Iterator[str]:
    """The texts of these sides of the pairs that do not have too many characters for `max_length` tokens."""
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
    """Batches that represent a corpus: evenly spread ones of a dataset, the first ones of a stream."""
    if isinstance(pairs, IterableDataset):
        # A stream and the streams that are made of it share their position.
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
    """A byte-level BPE tokenizer trained on `texts`, the same one for the same texts.

    Without `lowercase` and `normalization`, decoding with `skip_special_tokens=True` restores every text
    exactly, also a text that spells a special token, but without tags.

    `vocab_size` counts special tokens, bytes and `tags` (see checkpoint/tokenizers.py), but not `<mask>`. A
    corpus with few distinct words gives fewer entries. Each character of several bytes is one entry. If these
    entries do not fit, the most frequent characters are entries, and a warning says so. `truncation=True`
    cuts to `model_max_length` tokens.
    """
    smallest = SMALLEST_VOCABULARY + len(tags)
    if vocab_size < smallest:
        of_tags = f" and {len(tags)} more, {' '.join(tags)}" if tags else ""
        raise ValueError(
            f"`vocab_size` must be at least {smallest} (256 bytes and {len(SPECIAL_TOKENS)} special "
            f"tokens{of_tags}), but is {vocab_size}."
        )
    backend = _untrained(lowercase, normalization, form)
    remaining = iter(texts)
    first = next((text for text in remaining if text.strip()), None)
    if first is None:
        raise ValueError("`texts` must hold text to train a tokenizer on, but there is none.")
    backend.model = _trained(chain([first], remaining), backend.normalizer, vocab_size - len(tags))
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.add_tokens([AddedToken(tag, **_OF_TAGS, special=False) for tag in tags])
    if backend.get_vocab_size() < vocab_size:
        logger.warning(
            "The texts fill only %d of %d vocabulary entries.", backend.get_vocab_size(), vocab_size
        )
    _add_marks(backend, form)
    return with_transformers_interface(backend, model_max_length, form)


def _add_marks(backend: Tokenizer, form: TextForm) -> None:
    """Give a tokenizer with a vocabulary the `<mask>`, the decoder and the marks of a form."""
    if form.has_mask and MASK not in backend.get_vocab():
        backend.add_special_tokens([_mask_of(backend)])
    # Each tag by itself is left out: pieces that spell a tag together are text.
    tags = [token.content for token in backend.get_added_tokens_decoder().values() if not token.special]
    steps: list[Any] = [*(decoders.Replace(tag, "") for tag in tags), decoders.ByteLevel()]
    # The first space of a continuation is part of the continuation.
    if not form.is_open and _begins_with_a_space(backend):
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    single, pair = ("<s> $A", "<s> $A $B") if form.is_open else ("$A </s>", "$A </s> $B </s>")
    ends = [(token, SPECIAL_TOKENS.index(token)) for token in ("<s>", "</s>")]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ends)


def _begins_with_a_space(backend: Tokenizer) -> bool:
    return begins_with_a_space(json.loads(backend.to_str())["normalizer"])


def _mask_of(backend: Tokenizer) -> AddedToken:
    """`<mask>` stands for a piece with the space before it. The next word has its own space."""
    return AddedToken(MASK, **{**_OF_TAGS, "rstrip": _begins_with_a_space(backend)}, special=True)


def in_form(tokenizer: PreTrainedTokenizerFast, form: TextForm) -> PreTrainedTokenizerFast:
    """A new tokenizer in another form, with the same vocabulary. A `<mask>` stays in the vocabulary."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    _add_marks(backend, form)
    return with_transformers_interface(backend, tokenizer.model_max_length, form)


def _trained(texts: Iterable[str], normalizer: normalizers.Normalizer, vocab_size: int) -> models.BPE:
    """BPE over characters that are written in bytes: the merges that make characters of bytes come first."""
    counts: Counter[str] = Counter()
    over_characters = Tokenizer(models.BPE())
    over_characters.normalizer = normalizer
    over_characters.pre_tokenizer = pre_tokenizers.Split(_WORDS, "isolated")
    # This order merges equally frequent pairs in the order of their bytes. The 128 entries are fewer than the
    # 256 bytes, so that `vocab_size` entries hold all merges that are needed.
    ascii_characters = sorted(map(chr, range(128)), key=_in_bytes)
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=ascii_characters, show_progress=False)
    over_characters.train_from_iterator(_counted(texts, normalizer, counts), trainer)
    # The most frequent characters come first, and equally frequent ones in the order of Unicode.
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
            "%d of the %d characters beyond ASCII do not fit into %d vocabulary entries and are written in "
            "bytes.",
            bytewise,
            len(characters),
            vocab_size,
        )
    return models.BPE(vocabulary, merges)


def _counted(texts: Iterable[str], normalizer: normalizers.Normalizer, counts: Counter[str]) -> Iterator[str]:
    """The texts. Each text is added to the counts of its normalised characters beyond ASCII."""
    for text in texts:
        if not text.isascii():
            counts.update(
                character for character in normalizer.normalize_str(text) if not character.isascii()
            )
        yield text


def _merges_of_bytes(symbols: str) -> Iterator[tuple[str, str]]:
    for end in range(1, len(symbols)):
        yield symbols[:end], symbols[end]


def _in_bytes(text: str) -> str:
    """A character for each byte of the text, as byte-level BPE writes them."""
    return _BYTES.pre_tokenize_str(text)[0][0]


def _untrained(lowercase: bool, normalization: str | None, form: TextForm) -> Tokenizer:
    """A tokenizer with an empty vocabulary."""
    if normalization is not None and normalization not in _NORMALIZERS:
        raise ValueError(f'`normalization` must be "NFC", "NFKC" or None, but is {normalization!r}.')
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
    """The tokenizer of transformers for a backend that has the special tokens of this package."""
    bos, pad, eos, unk = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=bos,
        pad_token=pad,
        eos_token=eos,
        unk_token=unk,
        **({"mask_token": _mask_of(backend)} if form.has_mask else {}),
        # A model continues a text after its last token.
        padding_side="left" if form.is_open else "right",
        model_max_length=model_max_length,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        # A "</s>" in a user's text is text and not the end of the sentence. A mask is written into a text.
        split_special_tokens=not form.has_mask,
    )
