"""The subword tokenizer: train byte-level BPE, save and load one vocabulary or two, and sample with BPE-dropout.

Section 5.1: "Sentences were encoded using byte-pair encoding, which has a shared source-target vocabulary".

Differs from the paper: the alphabet is the 256 bytes, not characters, because then every sentence can be encoded and
decoding gives back exactly the text that was encoded.

Legend of shapes: L length of a sentence in tokens, `</s>` included.
"""

import json
import logging
import os
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ..model.configuration_vaswani import TARGET_FOLDER

logger = logging.getLogger(__name__)

# The order is the one of BART: generate() mistakes a pad token with the id 0 for a missing one.
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
SMALLEST_VOCAB_SIZE = len(SPECIAL_TOKENS) + 256
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_NORMALIZERS = {"NFC": normalizers.NFC, "NFKC": normalizers.NFKC}
# What BpeDropout remembers: this many half-merged words of at most so many pieces, about 30 MB for European text.
_REMEMBERED_WORDS = 100_000
_REMEMBERED_PIECES = 32


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
        lowercase: Whether text is lowercased before it is split.
        normalization: The Unicode normal form that text is brought to, "NFC" or "NFKC"; `None` leaves it as it is.
        model_max_length: The length, in tokens, to which `truncation=True` cuts.

    Returns:
        The tokenizer; `</s>` ends every encoded sentence. Without `lowercase` and `normalization`, decoding with
        `skip_special_tokens=True` restores every text exactly, one that spells a special token included.

    Raises:
        ValueError: If `vocab_size` is below 260, `normalization` is unknown or `texts` holds no text.
    """
    if vocab_size < SMALLEST_VOCAB_SIZE:
        raise ValueError(
            f"`vocab_size` must be at least {SMALLEST_VOCAB_SIZE} (256 bytes and {len(SPECIAL_TOKENS)} special tokens),"
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
    """The tokenizer around an empty vocabulary.

    A space is put before the text, and taken off again on decoding, so that a word is the same piece at the beginning
    of a sentence and after a space.

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
        # A "</s>" that a user wrote is text, not the end of the sentence.
        split_special_tokens=True,
    )


def save_tokenizers(
    source_tokenizer: PreTrainedTokenizerFast, target_tokenizer: PreTrainedTokenizerFast, folder: str | os.PathLike
) -> None:
    """Writes both tokenizers where `load_tokenizers` finds them.

    Args:
        source_tokenizer: Written to `folder` itself, where `AutoTokenizer` looks.
        target_tokenizer: Written to the subfolder `target_tokenizer` of it, unless it is `source_tokenizer`.
        folder: The folder of the checkpoint.
    """
    # The answer stands in tokenizer_config.json, not in the presence of the subfolder: a request to the Hub that fails
    # for a moment must not pass for a joint vocabulary, nor a subfolder left over from an earlier save for a second one.
    source_tokenizer.init_kwargs["separate_vocabs"] = target_tokenizer is not source_tokenizer
    source_tokenizer.save_pretrained(folder)
    if target_tokenizer is not source_tokenizer:
        target_tokenizer.save_pretrained(Path(folder) / TARGET_FOLDER)


def load_tokenizers(
    name_or_path: str | os.PathLike, name: str | os.PathLike | None = None, **hub_kwargs: Any
) -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]:
    """The source and the target tokenizer of a checkpoint, the same object twice for a joint vocabulary.

    Args:
        name_or_path: A local folder or the id of a repository on the Hub.
        name: What the user calls it, for errors.
        **hub_kwargs: `revision`, `token`, `cache_dir`, `local_files_only`, as `from_pretrained` takes them.

    Returns:
        The source and the target tokenizer.

    Raises:
        ValueError: If a file is missing or damaged, or a tokenizer has no `pad_token` or `eos_token`.
    """
    name = name or name_or_path
    # Not by AutoTokenizer: it asks for a config.json beside the tokenizer, and in the subfolder there is none.
    source_tokenizer = _load_tokenizer(name_or_path, name, **hub_kwargs)
    if not source_tokenizer.init_kwargs.get("separate_vocabs", False):
        return source_tokenizer, source_tokenizer
    return source_tokenizer, _load_tokenizer(name_or_path, name, subfolder=TARGET_FOLDER, **hub_kwargs)


def _load_tokenizer(
    name_or_path: str | os.PathLike, name: str | os.PathLike, subfolder: str = "", **hub_kwargs: Any
) -> PreTrainedTokenizerFast:
    folder, place = Path(name_or_path) / subfolder, f"{subfolder}/" if subfolder else ""
    if Path(name_or_path).is_dir():
        # transformers would advise to install libraries of other tokenizers, or go on without what tells it to pad.
        for file in TOKENIZER_FILES[:2]:
            if not (folder / file).exists():
                raise ValueError(
                    f"'{name}' must hold the tokenizer of the checkpoint, but has no {place}{file}; copy or download it again."
                )
        for file in TOKENIZER_FILES:
            if (folder / file).exists():
                read_json_object(Path(name_or_path), place + file, name)
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(name_or_path, subfolder=subfolder, **hub_kwargs)
    except Exception as error:
        # A tokenizer that cannot be made of its files raises all kinds of exceptions, a bare Exception too.
        if not Path(name_or_path).is_dir():
            raise
        file = place + _file_to_blame(folder)
        raise ValueError(f"{file} of '{name}' describes no tokenizer; copy or download it again.") from error
    for token in ("pad_token", "eos_token"):
        if getattr(tokenizer, token) is None:
            raise ValueError(
                f"{place}tokenizer_config.json of '{name}' must name the `{token}` of the tokenizer, but does not; copy or "
                "download it again."
            )
    return tokenizer


def _file_to_blame(folder: Path) -> str:
    try:
        Tokenizer.from_file(str(folder / TOKENIZER_FILES[0]))
    except Exception:
        # The class that tokenizers raises.
        return TOKENIZER_FILES[0]
    return TOKENIZER_FILES[1]


def read_json_object(folder: Path, file: str, name: str | os.PathLike) -> dict[str, Any]:
    """The content of a file of a checkpoint.

    Args:
        folder: The folder of the checkpoint.
        file: The path of the file in it.
        name: What the user calls the checkpoint, for errors.

    Returns:
        The object.

    Raises:
        ValueError: If it is not a file with a JSON object.
    """
    path = folder / file
    if path.is_dir():
        raise ValueError(f"{file} of '{name}' must be a file, but is a folder; copy or download the checkpoint again.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ValueError(
            f"{file} of '{name}' must hold a JSON object, but does not: it is damaged; copy or download it again."
        )
    return content


class BpeDropout:
    """Splits text by BPE with merges left out at random (Provilkov et al. 2020, Algorithm 1), from a given generator.

    The dropout inside the `tokenizers` library is not used because its generator cannot be seeded.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rate: float):
        """Takes the merges out of a trained tokenizer, which stays as it is.

        Args:
            tokenizer: A tokenizer made by `train_tokenizer`.
            rate: The probability with which a possible merge is left out: 0 splits as the tokenizer does, 1 into bytes.

        Raises:
            ValueError: If `rate` is not a probability or the tokenizer is not byte-level BPE.
        """
        if not 0 <= rate <= 1:
            raise ValueError(f"`rate` must be a probability between 0 and 1, but is {rate}.")
        backend = tokenizer.backend_tokenizer
        is_byte_level = isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel) and backend.normalizer is not None
        if not (isinstance(backend.model, models.BPE) and is_byte_level):
            raise ValueError("`tokenizer` must be byte-level BPE as `train_tokenizer` makes it, but is another kind.")
        merges = json.loads(backend.to_str())["model"]["merges"]
        self.rate = rate
        self._normalizer = backend.normalizer
        self._pre_tokenizer = backend.pre_tokenizer
        self._token_ids = backend.get_vocab(with_added_tokens=False)
        self._eos_token_id = tokenizer.eos_token_id
        self._ranks = {tuple(pair): rank for rank, pair in enumerate(merges)}
        self._merges_of: dict[tuple[str, ...], list[int]] = {}

    def encode(self, text: str, rng: Random) -> list[int]:
        """One random split of a sentence.

        Args:
            text: The sentence.
            rng: Anything with a method `random()`; a NumPy generator serves as well.

        Returns:
            [L] token ids with `</s>` at the end.
        """
        token_ids = []
        for word, _ in self._pre_tokenizer.pre_tokenize_str(self._normalizer.normalize_str(text)):
            token_ids += [self._token_ids[piece] for piece in self._split(word, rng)]
        return [*token_ids, self._eos_token_id]

    def _split(self, word: str, rng: Random) -> tuple[str, ...]:
        pieces = tuple(word)
        while True:
            # The best of the merges that are kept is the first kept one in order of rank, so draw no further than that.
            for position in self._possible_merges(pieces):
                if rng.random() >= self.rate:
                    merged = pieces[position] + pieces[position + 1]
                    pieces = (*pieces[:position], merged, *pieces[position + 2 :])
                    break
            else:
                return pieces

    def _possible_merges(self, pieces: tuple[str, ...]) -> list[int]:
        """The positions whose piece can be merged with the next one, the merge that BPE would apply first."""
        positions = self._merges_of.get(pieces)
        if positions is not None:
            return positions
        ranked = [
            (self._ranks[pair], position)
            for position, pair in enumerate(zip(pieces, pieces[1:], strict=False))
            if pair in self._ranks
        ]
        positions = [position for _, position in sorted(ranked)]
        if len(pieces) <= _REMEMBERED_PIECES:
            if len(self._merges_of) >= _REMEMBERED_WORDS:
                self._merges_of.clear()
            self._merges_of[pieces] = positions
        return positions
