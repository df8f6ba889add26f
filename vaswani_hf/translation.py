"""Translating lists and streams of sentences: sorted by length in windows, batched by tokens, given back in order."""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging

from .tokenization import load_tokenizers

logger = logging.get_logger(__name__)

# The limit of a tokenizer without one (transformers then says 10^30): what attention handles in little memory.
DEFAULT_MAX_LENGTH = 1024

# Section 6.1: "We set the maximum output length during inference to input length + 50".
EXTRA_TOKENS = 50


class Translator:
    """A model with its tokenizers.

    Args:
        model (PreTrainedModel): A sequence-to-sequence model.
        source_tokenizer (PreTrainedTokenizerFast): Of the language that is translated.
        target_tokenizer (PreTrainedTokenizerFast): Of the language that it is translated to; may be the same object.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        source_tokenizer: PreTrainedTokenizerFast,
        target_tokenizer: PreTrainedTokenizerFast,
    ):
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        is_learned = getattr(model.config, "position_embedding", None) == "learned"
        positions = model.config.max_position_embeddings if is_learned else None
        limits = [limit for limit in (source_tokenizer.model_max_length, positions) if limit and limit < 10**6]
        self.max_length = min(limits, default=DEFAULT_MAX_LENGTH)

    @classmethod
    def from_pretrained(cls, name_or_path: str, device: str | None = None, **hub_kwargs: Any) -> "Translator":
        """The translator that a checkpoint holds.

        Args:
            name_or_path (str): A local folder or the id of a repository on the Hub.
            device (str, optional): Where to run; a GPU where there is one by default.
            **hub_kwargs: `revision`, `token` and the like, as `from_pretrained` takes them.

        Returns:
            Translator: In eval mode.

        Raises:
            ValueError: If there is no such checkpoint or no such device.
        """
        if not Path(name_or_path).is_dir() and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(name_or_path)):
            raise ValueError(f"`model` must be a checkpoint folder or user/name on the Hub, but is '{name_or_path}'.")
        device = _checked_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        model = AutoModelForSeq2SeqLM.from_pretrained(name_or_path, **hub_kwargs).eval()
        source_tokenizer, target_tokenizer = load_tokenizers(name_or_path, **hub_kwargs)
        return cls(model.to(device), source_tokenizer, target_tokenizer)

    def translate(
        self, lines: Iterable[str], *, window: int = 1000, tokens_per_batch: int = 4096, **generate_kwargs: Any
    ) -> Iterator[str]:
        """Translations in the order of the lines.

        A line of nothing but spaces gives an empty one. A line longer than the model was made for is cut at word
        boundaries, its pieces translated and joined by a space, and a warning says so.

        Args:
            lines (Iterable): Sentences; read as far as a window at a time.
            window (int): Lines that are read before their translations are given (lines).
            tokens_per_batch (int): Source positions of a batch, padding included (tokens).
            **generate_kwargs: Passed to `generate`.

        Yields:
            str: One translation per line.
        """
        lines = iter(lines)
        done = 0
        while batch := list(islice(lines, window)):
            pieces = [self._pieces(line, done + i + 1) for i, line in enumerate(batch)]
            translations = iter(
                self._translate_pieces([p for ps in pieces for p in ps], tokens_per_batch, generate_kwargs)
            )
            for line_pieces in pieces:
                yield " ".join(islice(translations, len(line_pieces)))
            done += len(batch)

    def _pieces(self, line: str, number: int) -> list[list[int]]:
        """The token ids of a line, in as many pieces as the longest input of the model asks for."""
        text = line.strip()
        if not text:
            return []
        ids = self.source_tokenizer(text, verbose=False)["input_ids"]
        if len(ids) <= self.max_length:
            return [ids]
        words = self.source_tokenizer(text, verbose=False).word_ids()
        eos = [self.source_tokenizer.eos_token_id]
        pieces, start, room = [], 0, self.max_length - 1
        while start < len(ids) - 1:
            end = min(start + room, len(ids) - 1)
            # Back to the last word boundary, unless one word fills the piece.
            boundaries = [i for i in range(end, start, -1) if words[i] != words[i - 1]]
            end = boundaries[0] if end < len(ids) - 1 and boundaries else end
            pieces.append(ids[start:end] + eos)
            start = end
        logger.warning(
            f"Line {number} has {len(ids)} tokens, more than the {self.max_length} of this model; it is translated in "
            f"{len(pieces)} pieces."
        )
        return pieces

    def _translate_pieces(
        self, pieces: list[list[int]], tokens_per_batch: int, generate_kwargs: dict[str, Any]
    ) -> list[str]:
        translations = [""] * len(pieces)
        for batch in batches_by_length(pieces, tokens_per_batch):
            texts = self._generate([pieces[i] for i in batch], generate_kwargs)
            for i, text in zip(batch, texts, strict=True):
                translations[i] = " ".join(text.split("\n"))
        return translations

    def _generate(self, pieces: list[list[int]], generate_kwargs: dict[str, Any]) -> list[str]:
        inputs = self.source_tokenizer.pad({"input_ids": pieces}, return_tensors="pt").to(self.model.device)
        arguments = self._length_limit(inputs["input_ids"], generate_kwargs)
        if arguments.get("num_beams") == 1:
            # What the checkpoint says of beams would make transformers warn at each batch.
            arguments = {"length_penalty": 1.0, "early_stopping": False, **arguments}
        outputs = self.model.generate(**inputs, **arguments)
        return self.target_tokenizer.batch_decode(outputs, skip_special_tokens=True)

    def _length_limit(self, input_ids: torch.Tensor, generate_kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of `generate`, with a limit from the input where neither caller nor checkpoint gives one."""
        config = generate_kwargs.get("generation_config") or self.model.generation_config
        limits = [generate_kwargs.get(name) or getattr(config, name) for name in ("max_length", "max_new_tokens")]
        if generate_kwargs.get("max_new_tokens"):
            # The checkpoint's `max_length` beside it would make transformers warn at each batch.
            return {"max_length": None, **generate_kwargs}
        if any(limits):
            return generate_kwargs
        return {**generate_kwargs, "max_new_tokens": input_ids.shape[1] + EXTRA_TOKENS}


def _checked_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(f"`device` must be one of this machine, such as cpu or cuda, but is {name!r}.") from None
    return device


def batches_by_length(pieces: list[list[int]], tokens_per_batch: int) -> Iterator[list[int]]:
    """Indices of pieces of similar length, longest first, each batch within the budget or a single piece."""
    batch: list[int] = []
    for i in sorted(range(len(pieces)), key=lambda i: -len(pieces[i])):
        if batch and len(pieces[batch[0]]) * (len(batch) + 1) > tokens_per_batch:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
