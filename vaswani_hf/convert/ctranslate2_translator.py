"""Searching with CTranslate2 in a folder that `vaswani export --format ctranslate2` wrote.

The settings have the names and meanings that they have in `generate`. What CTranslate2 does otherwise:

- It stops when twice as many translations have finished as there are beams (as many with `early_stopping=True`), where
  our search stops when no better one is possible. Results differ where a better one would have finished later.
- It divides scores by a power of the length only. It is asked for all finished translations, and they are ranked here,
  with the length penalty and the coverage of our search.
- It has one limit of the length for a batch: the largest. Sentences that exceed their own are searched again with that.
- What `no_repeat_ngram_size` forbids leaves its probability to the other tokens.
- A translation that ends with its target prefix is found only where nothing is more probable than this end.

Letters of shapes: B sentences, S source length, T target length with `</s>`, R translations per sentence.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.utils import logging

from ..checkpoint.tokenizers import load_tokenizers
from ..model.beam_search_vaswani import coverage_score, length_penalty
from ..model.generation_vaswani import PAPER_MAX_LENGTH, tokens_at_most, validate_search_fields
from ..translation.translator import DEFAULT_MAX_LENGTH

logger = logging.get_logger(__name__)

# With this the results on 1,000 sentences of Multi30k (4 beams) were those of the exact search, at the same speed; with
# 1, CTranslate2's default, 5 were others.
PATIENCE = 2

# What `generate_batch` takes, with the values of what neither the call nor the checkpoint sets: those of `generate`.
SETTINGS: dict[str, Any] = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "early_stopping": False,
    "length_penalty": 1.0,
    "length_penalty_type": None,
    "coverage_penalty": None,
    "max_new_tokens": None,
    "max_length": None,
    "max_length_a": None,
    "max_length_b": None,
    "no_repeat_ngram_size": 0,
    "do_sample": False,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
}


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a sentence.

    Attributes:
        token_ids (list): Without `<s>` and `</s>`; a target prefix is a part of it.
        score (float): What `generate` reports as `sequences_scores`: the log-probability of the new tokens, divided by
            the length penalty, with the coverage.
        is_complete (bool): Whether `</s>` ends it; otherwise it was cut at the limit.
        attention (list, optional): [T][S] floats, what each target token, `</s>` included, attends to: the mean over
            the heads of the decoder's last layer.
    """

    token_ids: list[int]
    score: float
    is_complete: bool
    attention: list[list[float]] | None = None


class CTranslate2Translator:
    """A CTranslate2 model with its tokenizers and its generation settings.

    Args:
        folder (str or Path): What `vaswani export --format ctranslate2` wrote.
        device (str): "cpu", "cuda", "cuda:1" …, or "auto" for a GPU where CTranslate2 finds one.
        num_threads (int, optional): Threads of a CPU; those of torch by default.

    Raises:
        ValueError: If CTranslate2 is not installed, or the folder holds no such model.
    """

    def __init__(self, folder: str | Path, device: str = "auto", num_threads: int | None = None):
        from .export import require

        require("ctranslate2")
        import ctranslate2

        folder = Path(folder)
        if not (folder / "model.bin").exists() or not (folder / "generation_config.json").exists():
            raise ValueError(
                f"'{folder}' must be a folder that `vaswani export --format ctranslate2` wrote, but holds no such model."
            )
        self.source_tokenizer, self.target_tokenizer = load_tokenizers(folder)
        self.generation_config = GenerationConfig.from_pretrained(folder)
        self._warn_of_unknown_settings()
        self._source_tokens, self._target_tokens = _vocabularies(folder)
        self._target_ids = {token: i for i, token in enumerate(self._target_tokens)}
        ends = self.generation_config.eos_token_id
        self._end_tokens = [self._target_tokens[i] for i in (ends if isinstance(ends, list) else [ends])]
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self._num_positions = config["max_position_embeddings"]
        limits = (self.source_tokenizer.model_max_length, self._num_positions)
        # transformers writes 10^30 where there is no limit.
        self.max_length = min(limits) if limits[0] < 10**6 else min(DEFAULT_MAX_LENGTH, self._num_positions)
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
            raise ValueError(f"`device` must be cpu, cuda or cuda:1 and the like, but is {device!r}.")
        kind, _, index = device.partition(":")
        self._translator = ctranslate2.Translator(
            str(folder), kind, device_index=int(index or 0), intra_threads=num_threads or torch.get_num_threads()
        )

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path, device: str | None = None) -> "CTranslate2Translator":
        """The translator of a folder, asked for as `Translator.from_pretrained` is.

        Args:
            name_or_path (str or Path): What `vaswani export --format ctranslate2` wrote.
            device (str, optional): Where to run; a GPU where CTranslate2 finds one by default.

        Returns:
            CTranslate2Translator: Ready to search.
        """
        return cls(name_or_path, device or "auto")

    def generate_batch(
        self,
        source_ids: Sequence[Sequence[int]],
        *,
        target_prefix: Sequence[Sequence[int]] | None = None,
        return_attention: bool = False,
        **settings: Any,
    ) -> list[list[Hypothesis]]:
        """Translations of sentences, which are searched for side by side.

        Args:
            source_ids (sequence): [B][S] token ids, `</s>` at the end, best of similar lengths.
            target_prefix (sequence, optional): For each sentence the token ids that its translation begins with.
            return_attention (bool): Whether hypotheses have their attention.
            **settings: Those of `SETTINGS`; what is None or missing is as the checkpoint has it. Samples are those of
                the `ctranslate2.set_random_seed` that came before this object was made.

        Returns:
            list: [B][R] hypotheses, the best first.

        Raises:
            ValueError: If a setting is unknown or impossible.
        """
        config = self._config(settings)
        prefixes = target_prefix or [[]] * len(source_ids)
        source = [[self._source_tokens[i] for i in ids] for ids in source_ids]
        prefix = [[self._target_tokens[i] for i in ids] for ids in prefixes] if any(prefixes) else None
        limits = [self._limit(config, len(ids), len(start)) for ids, start in zip(source_ids, prefixes, strict=True)]
        with_attention = return_attention or (bool(config.coverage_penalty) and config.num_beams > 1)
        results = self._search(source, prefix, limits, _options(config, self._end_tokens, with_attention))
        firsts = self._first_attention(source) if with_attention else [None] * len(source)
        return [
            self._ranked(result, first, len(start), config)
            for result, first, start in zip(results, firsts, prefixes, strict=True)
        ]

    def score_batch(
        self, source_ids: Sequence[Sequence[int]], target_ids: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """The log-probability of each token of given translations.

        Args:
            source_ids (sequence): [B][S] token ids, `</s>` at the end.
            target_ids (sequence): [B][T - 1] token ids, without `<s>` and `</s>`.

        Returns:
            list: [B][T] floats; the last one is of `</s>`.
        """
        source = [[self._source_tokens[i] for i in ids] for ids in source_ids]
        target = [[self._target_tokens[i] for i in ids] for ids in target_ids]
        return [list(result.log_probs) for result in self._translator.score_batch(source, target, max_input_length=0)]

    def _warn_of_unknown_settings(self) -> None:
        defaults = GenerationConfig._get_default_generation_params()
        for name, value in self.generation_config.to_diff_dict().items():
            is_harmless = (
                name in SETTINGS or name.startswith(("_", "output_")) or name.endswith(("_token_id", "_version"))
            )
            if not is_harmless and value != defaults.get(name):
                logger.warning(
                    f"The engine ctranslate2 does not know `{name}`, which is {value!r} in this checkpoint."
                )

    def _config(self, settings: dict[str, Any]) -> SimpleNamespace:
        """The settings of a call, each one resolved.

        Raises:
            ValueError: If one is unknown or impossible.
        """
        for name in settings:
            if name not in SETTINGS:
                raise ValueError(f"`{name}` is no setting of the engine ctranslate2, which has {', '.join(SETTINGS)}.")
        chosen = {}
        for name, default in SETTINGS.items():
            values = (settings.get(name), getattr(self.generation_config, name, None), default)
            chosen[name] = next((value for value in values if value is not None), None)
        config = SimpleNamespace(**chosen)
        validate_search_fields(config)
        is_sampling = config.do_sample and config.num_beams == 1
        if config.num_return_sequences > config.num_beams and not is_sampling:
            raise ValueError(
                f"`num_return_sequences` must be at most `num_beams`, which is {config.num_beams}, but is "
                f"{config.num_return_sequences}."
            )
        return config

    def _limit(self, config: SimpleNamespace, source_length: int, prefix_length: int) -> int:
        """Tokens at most, the prefix included."""
        limits, own = [self._num_positions], tokens_at_most(config, source_length)
        if config.max_new_tokens is not None:
            limits.append(prefix_length + config.max_new_tokens)
        elif config.max_length is not None:
            # transformers counts the start.
            limits.append(config.max_length - 1)
        elif own is None:
            own = PAPER_MAX_LENGTH[0] * source_length + PAPER_MAX_LENGTH[1]
        if own is not None:
            limits.append(prefix_length + own)
        return max(min(limits), prefix_length + 1)

    def _search(
        self, source: list[list[str]], prefix: list[list[str]] | None, limits: list[int], options: dict[str, Any]
    ) -> list[Any]:
        """CTranslate2's results, each within its own limit."""
        results, rows_of = [None] * len(source), {max(limits, default=1): list(range(len(source)))}
        while rows_of:
            limit, rows = rows_of.popitem()
            found = self._translator.translate_batch(
                [source[i] for i in rows],
                [prefix[i] for i in rows] if prefix else None,
                max_decoding_length=limit,
                **options,
            )
            for i, result in zip(rows, found, strict=True):
                results[i] = result
                if limits[i] < max(len(tokens) for tokens in result.hypotheses):
                    rows_of.setdefault(limits[i], []).append(i)
        return results

    def _first_attention(self, source: list[list[str]]) -> list[list[float]]:
        """What the first target token attends to; CTranslate2's beam search takes it from another sentence."""
        results = self._translator.translate_batch(
            source,
            beam_size=1,
            max_decoding_length=1,
            return_attention=True,
            return_end_token=True,
            max_input_length=0,
        )
        return [result.attention[0][0] for result in results]

    def _ranked(
        self, result: Any, first: list[float] | None, prefix_length: int, config: SimpleNamespace
    ) -> list[Hypothesis]:
        hypotheses = []
        for i, tokens in enumerate(result.hypotheses):
            attention = [first, *result.attention[i][1:]] if first else None
            # CTranslate2's length is that of all tokens, the prefix included, whose probability is not.
            log_prob = result.scores[i] * len(tokens) ** config.length_penalty
            score = log_prob / length_penalty(len(tokens) - prefix_length, config)
            if config.coverage_penalty and attention:
                score += config.coverage_penalty * coverage_score(torch.tensor(attention).sum(dim=0), None).item()
            is_complete = tokens[-1] in self._end_tokens
            token_ids = [self._target_ids[token] for token in tokens[: len(tokens) - is_complete]]
            hypotheses.append(Hypothesis(token_ids, score, is_complete, attention))
        return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)[: config.num_return_sequences]


def first_end(eos_token_id: int | list[int]) -> int:
    """The token that ends a translation, the first of those where there are several.

    Args:
        eos_token_id (int or list): As a config has it.

    Returns:
        int: The token id.
    """
    return eos_token_id[0] if isinstance(eos_token_id, (list, tuple)) else eos_token_id


def _vocabularies(folder: Path) -> tuple[list[str], list[str]]:
    """The tokens of source and target by their ids."""
    names = ("source_vocabulary.json", "target_vocabulary.json")
    if (folder / "shared_vocabulary.json").exists():
        names = ("shared_vocabulary.json",) * 2
    source, target = (json.loads((folder / name).read_text(encoding="utf-8")) for name in names)
    return source, target


def _options(config: SimpleNamespace, end_tokens: list[str], with_attention: bool) -> dict[str, Any]:
    """What CTranslate2 calls these settings."""
    options = {
        "beam_size": config.num_beams,
        "length_penalty": config.length_penalty,
        "no_repeat_ngram_size": config.no_repeat_ngram_size,
        "end_token": end_tokens,
        "return_end_token": True,
        "return_scores": True,
        "return_attention": with_attention,
        # By default CTranslate2 cuts the source and forbids an empty translation.
        "max_input_length": 0,
        "min_decoding_length": 0,
    }
    if config.num_beams > 1:
        patience = 1 if config.early_stopping is True else PATIENCE
        options |= {"patience": patience, "num_hypotheses": patience * config.num_beams}
    if config.do_sample:
        options |= {
            "sampling_topk": config.top_k,
            "sampling_topp": config.top_p,
            "sampling_temperature": config.temperature,
        }
        if config.num_beams == 1:
            options["num_hypotheses"] = config.num_return_sequences
    return options
