"""CTranslate2 as the backend of `Translator`: searching and scoring in a folder of `vaswani export --format ctranslate2`.

The folder is written by `convert.ctranslate2`; the other backend is in `pytorch`. The settings have the names and meanings
that they have in `generate`. CTranslate2 differs in these points:

- It stops when twice as many translations have finished as there are beams (as many with `early_stopping=True`), while
  our search stops when no better one is possible. Results differ where a better one would have finished later.
- It divides scores by a power of the length only. It is asked for all finished translations, and they are ranked here,
  with the length penalty and the coverage of our search.
- It has one limit of the length for a batch: the largest. Sentences that exceed their own are searched again with that.
- It leaves the probability of what `no_repeat_ngram_size` and `bad_words_ids` forbid to the other tokens.
- It finds a translation that ends with its target prefix only where nothing is more probable than this end.
- It reports the attention of the last decoder layer, which alone aligns words.

Letters of shapes: B sentences, S source length, T target length with `</s>`, R translations per sentence.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.utils import logging

from ..model.beam_search_vaswani import NotFiniteError, coverage_score, length_penalty
from ..model.configuration_vaswani import eos_token_ids
from ..model.generation_vaswani import PAPER_MAX_LENGTH, tokens_at_most
from ..model.options_vaswani import DECODING_SETTINGS, validate_search_fields
from ..model.translator_vaswani import DEFAULT_MAX_LENGTH, Hypothesis, Segment, setting_of
from .ctranslate2_files import CTranslate2Files
from .translator import Translator

logger = logging.get_logger(__name__)

# The results on 1,000 sentences of Multi30k (4 beams) were those of the exact search, at the same speed; with 1,
# CTranslate2's default, 5 were others.
PATIENCE = 2


@dataclass(frozen=True)
class RankedHypothesis(Hypothesis):
    """A hypothesis with its score and its attention.

    Attributes:
        score (float): The `sequences_scores` of `generate`: the log-probability of the new tokens, divided by
            the length penalty, with the coverage.
        attention (list, optional): [T][S] floats, what each target token, `</s>` included, attends to: the mean over
            the heads of the decoder's last layer.
    """

    score: float = 0.0
    attention: list[list[float]] | None = None


class CTranslate2Backend:
    """A CTranslate2 model with its tokenizers and its generation settings.

    Args:
        folder (str or Path): A folder that `vaswani export --format ctranslate2` wrote.
        device (str): "cpu", "cuda", "cuda:1" …, or "auto" for a GPU where CTranslate2 finds one.
        num_threads (int, optional): Threads of a CPU; those of torch by default.

    Raises:
        ValueError: If CTranslate2 is not installed, or the folder holds no such model or a damaged one.
    """

    def __init__(self, folder: str | Path, device: str = "auto", num_threads: int | None = None):
        if find_spec("ctranslate2") is None:
            raise ValueError(
                "The format 'ctranslate2' needs more libraries; `pip install vaswani_hf[ctranslate2]` brings them."
            )
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
            raise ValueError(f"`device` must be cpu, cuda or cuda:1 and the like, but is {device!r}.")
        self._folder, self._device = str(folder), device
        self._seed: int | None = None
        files = CTranslate2Files.read(Path(folder))
        self.source_tokenizer, self.target_tokenizer = files.tokenizers
        self.generation_config, self._num_positions = files.generation_config, files.num_positions
        self._source_tokens, self._target_tokens = files.source_tokens, files.target_tokens
        self._warn_of_unknown_settings()
        self._target_ids = {token: i for i, token in enumerate(self._target_tokens)}
        self._ends = eos_token_ids(self.generation_config)
        # The end is never forbidden by itself, as in `generate`.
        bad_words = getattr(self.generation_config, "bad_words_ids", None) or []
        self._bad_words = [ids for ids in bad_words if ids not in [[end] for end in self._ends]]
        has_limit = self.source_tokenizer.model_max_length < 10**6
        self.max_positions = self._num_positions if has_limit else min(self._num_positions, DEFAULT_MAX_LENGTH)
        self._translator, self._drawing = self._loaded(num_threads or torch.get_num_threads()), None

    def _loaded(self, num_threads: int) -> Any:
        import ctranslate2

        kind, _, index = self._device.partition(":")
        settings = {"device_index": int(index or 0), "intra_threads": num_threads}
        try:
            return ctranslate2.Translator(self._folder, kind, **settings)
        except RuntimeError as error:
            reason = str(error).split(". ")[0].rstrip(".")
            raise ValueError(
                f"CTranslate2 cannot load '{self._folder}' ({reason}); copy or export it again."
            ) from error

    def seed(self, seed: int) -> None:
        """Makes sampling draw what it always draws after this seed, on one thread.

        Args:
            seed (int): The seed.
        """
        self._seed = seed

    def _drawing_translator(self) -> Any:
        """The translator for sampling; behind a seed a new one with one thread."""
        if self._seed is not None:
            import ctranslate2

            # The largest one asks for a seed by chance.
            ctranslate2.set_random_seed(self._seed % (2**32 - 1))
            # Each thread has a generator, which it seeds when it draws first. Of several threads all would draw the same, and
            # which of them draws for a sentence depends on how many they are.
            self._drawing, self._seed = self._loaded(1), None
        return self._drawing or self._translator

    def search(self, segments: list[Segment], with_attention: bool = False, **settings: Any) -> list[list[Hypothesis]]:
        """The hypotheses of a batch.

        Args:
            segments (list): B of them, best of similar lengths.
            with_attention (bool): True if hypotheses have their attention, which scoring does not find.
            **settings: Those of `DECODING_SETTINGS`; one that is missing is as the checkpoint has it.

        Returns:
            list: [B][R] `RankedHypothesis`, the best first.

        Raises:
            ValueError: If a setting is unknown or impossible, or phrases are asked for.
            NotFiniteError: If scores are not finite.
        """
        if any(segment.phrases for segment in segments):
            raise ValueError(
                "`must_contain` must be left out with the engine ctranslate2, which cannot search for it."
            )
        config = self._config(settings)
        prefixes = [segment.prefix for segment in segments]
        source = self._source([segment.token_ids for segment in segments])
        prefix = self._target(prefixes) if any(prefixes) else None
        limits = [self._limit(config, len(segment.token_ids), len(segment.prefix)) for segment in segments]
        with_attention = with_attention or (bool(config.coverage_penalty) and config.num_beams > 1)
        end_tokens = [self._target_tokens[i] for i in self._ends]
        options = _options(config, end_tokens, with_attention) | {"suppress_sequences": self._target(self._bad_words)}
        results = self._results(source, prefix, limits, options)
        for number, result in enumerate(results):
            if not all(map(math.isfinite, result.scores)):
                raise NotFiniteError(number, segments[number].text)
        firsts = self._first_attention(source) if with_attention else [None] * len(source)
        return [
            self._ranked(result, first, len(start), config)
            for result, first, start in zip(results, firsts, prefixes, strict=True)
        ]

    def score(
        self, segments: list[Segment], hypotheses: list[Hypothesis], num_layers: int
    ) -> list[tuple[list[float], torch.Tensor | None]]:
        """The log-probabilities of the tokens of a batch.

        Args:
            segments (list): B of them.
            hypotheses (list): One for each.
            num_layers (int): Without effect: the attention is the last layer's, as the search has reported it.

        Returns:
            list: For each hypothesis the log-probabilities of its tokens that were not forced (nats), and the attention
            [1, T, S] float32, None where the search has kept none.

        Raises:
            NotFiniteError: If log-probabilities are not finite.
        """
        # The end is scored behind every target.
        targets = [h.token_ids[:-1] if h.token_ids[-1:] == self._ends[:1] else h.token_ids for h in hypotheses]
        rows = self.log_probs([segment.token_ids for segment in segments], targets)
        scores: list[tuple[list[float], torch.Tensor | None]] = []
        for hypothesis, row in zip(hypotheses, rows, strict=True):
            attention, num_tokens = getattr(hypothesis, "attention", None), len(hypothesis.token_ids)
            if not all(map(math.isfinite, row[:num_tokens])):
                raise NotFiniteError(len(scores), segments[len(scores)].text)
            weights = None if attention is None else torch.tensor(attention)[None, :num_tokens]
            scores.append((row[hypothesis.num_forced : num_tokens], weights))
        return scores

    def log_probs(self, source_ids: Sequence[Sequence[int]], target_ids: Sequence[Sequence[int]]) -> list[list[float]]:
        """The log-probability of each token of given translations.

        Args:
            source_ids (sequence): [B][S] token ids, `</s>` at the end.
            target_ids (sequence): [B][T - 1] token ids, without `<s>` and `</s>`.

        Returns:
            list: [B][T] floats; the last one is of `</s>`.
        """
        source, target = self._source(source_ids), self._target(target_ids)
        return [list(result.log_probs) for result in self._translator.score_batch(source, target, max_input_length=0)]

    def _source(self, token_ids: Sequence[Sequence[int]]) -> list[list[str]]:
        return [[self._source_tokens[i] for i in ids] for ids in token_ids]

    def _target(self, token_ids: Sequence[Sequence[int]]) -> list[list[str]]:
        return [[self._target_tokens[i] for i in ids] for ids in token_ids]

    def _warn_of_unknown_settings(self) -> None:
        defaults = GenerationConfig._get_default_generation_params()
        for name, value in self.generation_config.to_diff_dict().items():
            is_harmless = (
                name in (*DECODING_SETTINGS, "bad_words_ids")
                or name.startswith(("_", "output_"))
                or name.endswith(("_token_id", "_version"))
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
            if name not in DECODING_SETTINGS:
                raise ValueError(
                    f"`{name}` is no setting of the engine ctranslate2, which has {', '.join(DECODING_SETTINGS)}."
                )
        chosen = {}
        for name, default in DECODING_SETTINGS.items():
            value = setting_of(name, settings, self.generation_config)
            chosen[name] = default if value is None else value
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
        """Tokens at most, the prefix included.

        Raises:
            ValueError: If the prefix has more tokens than the model has positions.
        """
        if prefix_length >= self._num_positions:
            raise ValueError(
                f"`target_prefix` must have fewer tokens than the exported model has positions, {self._num_positions:,}, but has "
                f"{prefix_length:,}; shorten it."
            )
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

    def _results(
        self, source: list[list[str]], prefix: list[list[str]] | None, limits: list[int], options: dict[str, Any]
    ) -> list[Any]:
        """CTranslate2's results, each within its own limit."""
        translator = self._drawing_translator() if "sampling_topk" in options else self._translator
        results, rows_of = [None] * len(source), {max(limits, default=1): list(range(len(source)))}
        while rows_of:
            limit, rows = rows_of.popitem()
            found = translator.translate_batch(
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
        """The attention of the first target token, which CTranslate2's beam search takes from another sentence."""
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
        hypotheses: list[RankedHypothesis] = []
        for i, tokens in enumerate(result.hypotheses):
            attention = [first, *result.attention[i][1:]] if first else None
            # CTranslate2's length is that of all tokens, the prefix included, whose probability is not.
            log_prob = result.scores[i] * len(tokens) ** config.length_penalty
            score = log_prob / length_penalty(len(tokens) - prefix_length, config)
            if config.coverage_penalty and attention:
                score += config.coverage_penalty * coverage_score(torch.tensor(attention).sum(dim=0), None).item()
            token_ids = [self._target_ids[token] for token in tokens]
            hypotheses.append(RankedHypothesis(token_ids, prefix_length, score=score, attention=attention))
        best = sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)
        return [*best[: config.num_return_sequences]]


def load_ctranslate2_translator(
    name_or_path: str | Path, device: str | None = None, *, ensemble: Sequence[str] = (), **precision: Any
) -> Translator:
    """The translator of a folder, asked for as `Translator.from_pretrained` is.

    Args:
        name_or_path (str or Path): A folder that `vaswani export --format ctranslate2` wrote.
        device (str, optional): The device; a GPU where CTranslate2 finds one by default.
        ensemble (sequence): Must be empty: CTranslate2 has no ensembles.
        **precision: `dtype` and `quantization` must be None: the folder has its own.

    Raises:
        ValueError: If an ensemble, a dtype or a quantization is asked for.
    """
    for name, value in precision.items():
        if value is not None:
            raise ValueError(
                f"`{name}` must be left out with the engine ctranslate2; `vaswani export --quantization` gives a folder its "
                "own."
            )
    if ensemble:
        raise ValueError("`ensemble` must be left out with the engine ctranslate2, which has none.")
    backend = CTranslate2Backend(name_or_path, device or "auto")
    return Translator(backend, backend.source_tokenizer, backend.target_tokenizer)


def _options(config: SimpleNamespace, end_tokens: list[str], with_attention: bool) -> dict[str, Any]:
    """These settings under CTranslate2's names."""
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
