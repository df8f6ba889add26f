"""The CTranslate2 backend of `Translator`, for a folder that `vaswani export --format ctranslate2` wrote.

The search settings have the same names and meanings as in `generate`. The search of CTranslate2 differs from
the search of this package in these points:

- CTranslate2 has no search with `early_stopping="never"`. Therefore this backend first searches a sentence
  with a small token limit. If an unfinished beam could still become a better translation, the backend
  searches the sentence again with a larger token limit. With `early_stopping="never"`, the backend finds the
  same translations as the search of this package, but is slower than CTranslate2's own search.

- With `early_stopping=False`, the default, CTranslate2 stops when `2 * num_beams` translations have finished.
  With the length penalty `gnmt`, the search of this package stops when no better translation is possible. The
  larger `length_penalty` is, the more often CTranslate2 misses the best translation. A test used 300 Multi30k
  sentences, 5 beams and a model after a short training. With `length_penalty` 0.6, CTranslate2 and the search
  of this package found equal translations. With `length_penalty` 1.4, 52 of the 300 translations were
  different. For 5 of the 52 sentences with different translations, the scores of the two translations were
  compared: the translation of this package always had the higher score.

- CTranslate2 can divide scores only by a power of the length. Therefore this backend computes the
  log-probabilities from CTranslate2's scores, and ranks the translations with the length penalty and the
  coverage penalty of this package.

- CTranslate2 has one length limit for all sentences of a batch. The backend gives CTranslate2 the largest
  length limit of all sentences in the batch. With `early_stopping="never"` and several beams, the backend can
  first search a sentence with a smaller limit. If a translation exceeds the length limit of its own sentence,
  the backend translates the sentence again with this limit.

- If `no_repeat_ngram_size` or `bad_words_ids` forbids tokens, CTranslate2 increases the probabilities of the
  allowed tokens, so that their sum is 1 again. The search of this package does not change the probabilities
  of the allowed tokens.

- In CTranslate2, a translation can end directly after the target prefix only if `</s>` is the most probable
  token after the prefix.

- CTranslate2 returns only the attention of the last decoder layer. Therefore this backend aligns words by the
  attention of the last layer.

In array shapes, B is the number of sentences, S the source length in tokens, and T the target length in
tokens, `</s>` included.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from ..checkpoint.search_settings import SupportedSettings
from ..model.backend_vaswani import Hypothesis, Segment, language_token
from ..model.configuration_vaswani import eos_token_ids
from ..model.errors_vaswani import InvalidValueError
from ..model.inputs_vaswani import SearchSettings
from ..model.length_limits_vaswani import max_new_tokens_of
from ..model.precedence_vaswani import setting_of
from ..model.search_errors_vaswani import NotFiniteError
from ..model.search_strategies_vaswani import (
    PenaltyScorer,
    coverage_score,
    highest_reachable_score,
    penalized_score,
)
from ..model.segmenter_vaswani import DEFAULT_MAX_LENGTH, token_limits
from ..version import install_command
from .calibration import load_calibration
from .ctranslate2_files import CTranslate2Files
from .translator import Translator

# The search settings that a call of this backend accepts, each with all its valid values.
_SETTINGS = """
    num_beams num_return_sequences early_stopping length_penalty length_penalty_type coverage_penalty
    max_new_tokens max_length max_length_a max_length_b no_repeat_ngram_size do_sample temperature top_k top_p
""".split()
_SUPPORTED = SupportedSettings(
    "CTranslate2", [*_SETTINGS, "bad_words_ids"], left_out=None, search="its search ignores such settings"
)
# With `early_stopping=False`, CTranslate2 stops when `_PATIENCE * num_beams` translations have finished.
_PATIENCE = 2
# With `early_stopping="never"` and several beams, the first search has a small length limit. The small length
# limit is `_FIRST_LENGTH` times the length of the longest sentence (source tokens plus prefix tokens). If a
# better translation is still possible, the backend doubles the length limit and searches again.
_FIRST_LENGTH = 2


@dataclass(frozen=True)
class _Sentence:
    """The inputs of CTranslate2 for one segment.

    Attributes:
        limit: The maximum number of tokens of the translation, including the prefix.
        num_counted: The number of prefix tokens that the length penalty counts.
        first_attention: The attention [S] of the first target token; None without attention.
    """

    source: list[str]
    prefix: list[str]
    limit: int
    num_counted: int
    first_attention: list[float] | None


def load_ctranslate2_translator(
    name_or_path: str | Path,
    device: str | None = None,
    *,
    ensemble: Sequence[str] = (),
    dtype: Any = None,
    quantization: Any = None,
) -> Translator:
    """Load an exported folder. `dtype` and `quantization` must be None, because the export has chosen the
    dtype of the weights.
    """
    for name, value in (("dtype", dtype), ("quantization", quantization)):
        if value is not None:
            raise InvalidValueError(
                f"`{name}` must be left out with the engine ctranslate2; `vaswani export --quantization` "
                "chooses the dtype of the exported weights."
            )
    if ensemble:
        raise InvalidValueError(
            "`ensemble` must be left out with the engine ctranslate2, which does not support ensembles."
        )
    backend = CTranslate2Backend(name_or_path, device or "auto")
    translator = Translator(backend, backend.source_tokenizer, backend.target_tokenizer)
    translator.calibration = load_calibration(Path(name_or_path))
    return translator


class CTranslate2Backend:
    """A CTranslate2 model with its tokenizers and generation settings, see `Backend` of
    model/backend_vaswani.py.

    Args:
        folder (str or Path): A folder that `vaswani export --format ctranslate2` wrote.
        device (str): "cpu", "cuda", "cuda:1" …, or "auto": a GPU if CTranslate2 finds a GPU, else the CPU.
        num_threads (int, optional): The number of CPU threads, by default `torch.get_num_threads()`.
    """

    is_vaswani = True
    supports_phrases = False

    def __init__(self, folder: str | Path, device: str = "auto", num_threads: int | None = None):
        if find_spec("ctranslate2") is None:
            raise InvalidValueError(
                f"`engine` ctranslate2 needs more libraries; install them with `{install_command('ctranslate2')}`."
            )
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
            raise InvalidValueError(f"`device` must be auto, cpu, cuda or cuda:N, but is {device!r}.")
        self._folder = str(folder)
        self._device = device
        files = CTranslate2Files.read(Path(folder))
        self.source_tokenizer, self.target_tokenizer = files.tokenizers
        self.generation_config: GenerationConfig = files.generation_config
        self._num_positions = files.num_positions
        self._source_tokens = files.source_tokens
        self._target_tokens = files.target_tokens
        self._target_ids = {token: i for i, token in enumerate(self._target_tokens)}
        _SUPPORTED.check(self.generation_config)
        self._ends = eos_token_ids(self.generation_config)
        # Like `generate`, ignore an entry of `bad_words_ids` that consists only of `</s>`.
        bad_words = getattr(self.generation_config, "bad_words_ids", None) or []
        self._bad_words = [ids for ids in bad_words if ids not in [[end] for end in self._ends]]
        has_limit = bool(token_limits([self.source_tokenizer]))
        self.max_positions = (
            self._num_positions if has_limit else min(self._num_positions, DEFAULT_MAX_LENGTH)
        )
        self._translator = self._load(num_threads or torch.get_num_threads())
        # `_seed` is the random seed for the next call with sampling. `_sampler` is a second CTranslate2
        # translator, only for sampling.
        self._seed: int | None = None
        self._sampler: Any = None

    def _load(self, num_threads: int) -> Any:
        import ctranslate2

        kind, _, index = self._device.partition(":")
        num_gpus = ctranslate2.get_cuda_device_count()
        if kind == "cuda" and int(index or 0) >= num_gpus:
            raise InvalidValueError(
                f"`device` is {self._device!r}, but CTranslate2 finds {num_gpus or 'no'} GPU{'' if num_gpus == 1 else 's'} "
                "on this machine; give cpu, auto or the number of a GPU that exists."
            )
        try:
            return ctranslate2.Translator(
                self._folder, kind, device_index=int(index or 0), intra_threads=num_threads
            )
        except RuntimeError as error:
            reason = str(error).split(". ")[0].rstrip(".")
            raise ValueError(
                f"CTranslate2 cannot load '{self._folder}' ({reason}); copy or export it again."
            ) from error

    def seed(self, seed: int) -> None:
        """See `Backend.seed`."""
        self._seed = seed

    def _sampling_translator(self) -> Any:
        if self._seed is not None:
            import ctranslate2

            # Avoid the seed 2**32 - 1, because CTranslate2 replaces this seed by a random seed.
            ctranslate2.set_random_seed(self._seed % (2**32 - 1))
            # Sample in one thread, because CTranslate2 gives each thread its own random generator. With
            # several threads, a sampled translation would depend on the thread that translates the sentence.
            self._sampler = self._load(1)
            self._seed = None
        return self._sampler or self._translator

    def search(
        self, segments: list[Segment], with_attention: bool = False, **settings: Any
    ) -> list[list[Hypothesis]]:
        """See `Backend.search`. `settings` are fields of `SearchSettings`."""
        config = self._config(settings)
        with_attention = with_attention or (bool(config.coverage_penalty) and config.num_beams > 1)
        sentences = self._sentences(segments, config, with_attention)
        longest = max((one.limit for one in sentences), default=1)
        options = self._options(config, longest, with_attention)
        translator = self._sampling_translator() if config.do_sample else self._translator
        has_prefixes = any(one.prefix for one in sentences)
        # Maps a length limit (target tokens) to the indices of the sentences that are searched next with this
        # limit.
        waiting: dict[int, list[int]] = {}
        num_tokens = max((len(segment.token_ids) + len(segment.prefix) for segment in segments), default=0)
        for i, one in enumerate(sentences):
            # The exact search (`early_stopping="never"` with several beams) begins with a small length limit.
            # Greedy search, and beam search without `early_stopping="never"`, begin with the largest length
            # limit of all sentences.
            first_limit = min(_FIRST_LENGTH * num_tokens, one.limit) if _is_exact(config) else longest
            waiting.setdefault(first_limit, []).append(i)
        found: list[list[Hypothesis]] = [[] for _ in segments]
        while waiting:
            limit, rows = waiting.popitem()
            results = translator.translate_batch(
                [sentences[i].source for i in rows],
                [sentences[i].prefix for i in rows] if has_prefixes else None,
                max_decoding_length=limit,
                **options,
            )
            for i, result in zip(rows, results, strict=True):
                if not all(map(math.isfinite, result.scores)):
                    raise NotFiniteError(i, segments[i].text)
                hypotheses = self._hypotheses(result, options["length_penalty"], sentences[i], config)
                next_limit = self._next_limit(hypotheses, limit, sentences[i], config)
                if next_limit is None:
                    is_complete = limit >= sentences[i].limit
                    found[i] = self._best([one for one, _ in hypotheses], is_complete, config)
                else:
                    waiting.setdefault(next_limit, []).append(i)
        return found

    def _sentences(
        self, segments: list[Segment], config: SearchSettings, with_attention: bool
    ) -> list[_Sentence]:
        source = self._source([segment.token_ids for segment in segments])
        prefixes = self._target([[*language_token(segment), *segment.prefix] for segment in segments])
        firsts = self._first_attention(source) if with_attention else [None] * len(source)
        sentences = []
        for segment, tokens, prefix, first in zip(segments, source, prefixes, firsts, strict=True):
            num_counted = len(language_token(segment))
            sentences.append(_Sentence(tokens, prefix, self._limit(config, segment), num_counted, first))
        return sentences

    def score(
        self, segments: list[Segment], hypotheses: list[Hypothesis], num_layers: int, **settings: Any
    ) -> list[tuple[list[float], torch.Tensor | None]]:
        """See `Backend.score`. The attention [1, T, S] of a hypothesis comes from the search, or is None if
        the search stored no attention.
        """
        # Remove `</s>`, because CTranslate2 adds `</s>` to every target.
        targets = [
            h.token_ids[:-1] if h.token_ids[-1:] == self._ends[:1] else h.token_ids for h in hypotheses
        ]
        rows = self.log_probs([segment.token_ids for segment in segments], targets)
        scores: list[tuple[list[float], torch.Tensor | None]] = []
        for segment, hypothesis, row in zip(segments, hypotheses, rows, strict=True):
            num_tokens = len(hypothesis.token_ids)
            if not all(map(math.isfinite, row[:num_tokens])):
                raise NotFiniteError(len(scores), segment.text)
            attention = None
            if hypothesis.attention is not None:
                attention = torch.tensor(hypothesis.attention)[None, :num_tokens]
            scores.append((row[hypothesis.num_forced : num_tokens], attention))
        return scores

    def log_probs(
        self, source_ids: Sequence[Sequence[int]], target_ids: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Return the log-probabilities [B][T] of given translations, the last value for `</s>`. `source_ids`
        are lists of token ids [B][S] with `</s>`. `target_ids` are lists of token ids [B][T - 1] without
        `<s>` and `</s>`.
        """
        results = self._translator.score_batch(
            self._source(source_ids), self._target(target_ids), max_input_length=0
        )
        return [list(result.log_probs) for result in results]

    def _source(self, token_ids: Sequence[Sequence[int]]) -> list[list[str]]:
        return [[self._source_tokens[i] for i in ids] for ids in token_ids]

    def _target(self, token_ids: Sequence[Sequence[int]]) -> list[list[str]]:
        return [[self._target_tokens[i] for i in ids] for ids in token_ids]

    def _config(self, settings: dict[str, Any]) -> SearchSettings:
        """Return all search settings of a call. Raise an error if this backend does not support a setting."""
        for name in settings:
            if name not in _SETTINGS:
                raise InvalidValueError(
                    f"`{name}` is no setting of the engine ctranslate2, which has {', '.join(_SETTINGS)}."
                )
        config = SearchSettings(
            **{name: setting_of(name, settings, self.generation_config) for name in _SETTINGS}
        )
        # A beam search considers `2 * num_beams` candidates. With fewer candidates, CTranslate2 ends the
        # process with a segmentation fault.
        if config.do_sample and config.num_beams > 1 and 0 < config.top_k < 2 * config.num_beams:
            raise InvalidValueError(
                f"`top_k` must be at least {2 * config.num_beams} (twice `num_beams`) or 0 with the engine "
                f"ctranslate2, but is {config.top_k}; change `top_k`, or set `num_beams` to 1."
            )
        return config

    def _limit(self, config: SearchSettings, segment: Segment) -> int:
        """Return the maximum number of tokens in the translation, including the target prefix."""
        prefix_length = len(segment.prefix)
        if prefix_length >= self._num_positions:
            raise InvalidValueError(
                f"`target_prefix` must have fewer tokens than the {self._num_positions:,} positions of the "
                f"exported model, but has {prefix_length:,}; shorten it."
            )
        # Add 1 to the prefix length, because `max_length` of transformers includes the start token.
        limit = max_new_tokens_of(config, len(segment.token_ids), 1 + prefix_length, self._num_positions)
        return prefix_length + max(limit, 1)

    def _first_attention(self, source: list[list[str]]) -> list[list[float]]:
        """Compute the attention weights of the first target token with a greedy search. For the first target
        token of a sentence, CTranslate2's beam search returns the attention weights of another sentence in
        the batch.
        """
        results = self._translator.translate_batch(
            source,
            beam_size=1,
            max_decoding_length=1,
            return_attention=True,
            return_end_token=True,
            max_input_length=0,
        )
        return [result.attention[0][0] for result in results]

    def _hypotheses(
        self, result: Any, exponent: float, sentence: _Sentence, config: SearchSettings
    ) -> list[tuple[Hypothesis, float]]:
        """Convert the finished translations and the unfinished beams of a sentence to hypotheses with their
        summed log-probabilities. CTranslate2 divides the log-probability by the length to the power of
        `exponent`. Each hypothesis receives the score that the search of this package would compute.
        """
        first = sentence.first_attention
        hypotheses = []
        for i, tokens in enumerate(result.hypotheses):
            log_prob = result.scores[i] * len(tokens) ** exponent
            attention = [first, *result.attention[i][1:]] if first else None
            length = len(tokens) - len(sentence.prefix) + sentence.num_counted
            coverage = None
            if config.coverage_penalty and attention:
                coverage = coverage_score(torch.tensor(attention).sum(dim=0), None).item()
            score = penalized_score(log_prob, length, coverage, config)
            hypothesis = Hypothesis(
                [self._target_ids[token] for token in tokens],
                len(sentence.prefix),
                sentence.num_counted,
                score=score,
                attention=attention,
            )
            hypotheses.append((hypothesis, log_prob))
        return hypotheses

    def _next_limit(
        self,
        hypotheses: list[tuple[Hypothesis, float]],
        limit: int,
        sentence: _Sentence,
        config: SearchSettings,
    ) -> int | None:
        """Return the length limit (target tokens) with which CTranslate2 must translate the sentence again.
        Return None if the previous search, whose length limit was `limit`, has found the best translations.
        """
        if max(len(one.token_ids) for one, _ in hypotheses) > sentence.limit:
            return sentence.limit
        if limit < sentence.limit and self._may_improve(hypotheses, sentence, config):
            return min(2 * limit, sentence.limit)
        return None

    def _may_improve(
        self, hypotheses: list[tuple[Hypothesis, float]], sentence: _Sentence, config: SearchSettings
    ) -> bool:
        """Return True if an unfinished beam could become one of the `num_return_sequences` best
        translations.
        """
        finished = sorted(one.score for one, _ in hypotheses if one.token_ids[-1] in self._ends)
        if len(finished) < config.num_return_sequences:
            return True
        unfinished = [(one, log_prob) for one, log_prob in hypotheses if one.token_ids[-1] not in self._ends]
        if not unfinished:
            # If all beams ended with an end token at the last step of the search, CTranslate2 returns no
            # unfinished beam. A longer translation can still have a better score.
            return True
        best = max(log_prob for _, log_prob in unfinished)
        # The length penalty counts no token of the prefix except a forced language token (`num_counted` is 0
        # or 1).
        num_left_out = len(sentence.prefix) - sentence.num_counted
        length = len(unfinished[0][0].token_ids) - num_left_out
        longest = sentence.limit - num_left_out
        reachable = highest_reachable_score(best, length, longest, PenaltyScorer(config), config)
        return reachable > finished[-config.num_return_sequences]

    def _best(
        self, hypotheses: list[Hypothesis], is_complete: bool, config: SearchSettings
    ) -> list[Hypothesis]:
        """Return the best translations, best first. `is_complete` is False if the search stopped before the
        length limit of the sentence. If `is_complete` is False, leave out unfinished beams.
        """
        if not is_complete:
            hypotheses = [one for one in hypotheses if one.token_ids[-1] in self._ends]
        hypotheses = sorted(hypotheses, key=lambda one: -one.score)
        return hypotheses[: config.num_return_sequences]

    def _options(self, config: SearchSettings, longest: int, with_attention: bool) -> dict[str, Any]:
        """Return arguments of `translate_batch`. `longest` is the largest length limit of the sentences."""
        options: dict[str, Any] = {
            "beam_size": config.num_beams,
            # The exact search needs a length penalty above 0, because CTranslate2 has another stopping rule
            # for a length penalty of 0.
            "length_penalty": 1 if _is_exact(config) else config.length_penalty,
            "no_repeat_ngram_size": config.no_repeat_ngram_size,
            "return_end_token": True,
            "return_scores": True,
            "return_attention": with_attention,
            "end_token": [self._target_tokens[i] for i in self._ends],
            "suppress_sequences": self._target(self._bad_words),
            # Set `max_input_length` and `min_decoding_length` to 0, because with its default values
            # CTranslate2 cuts long sources and forbids empty translations.
            "max_input_length": 0,
            "min_decoding_length": 0,
        }
        if config.num_beams > 1:
            # At most `num_beams` translations of each length can finish. For the exact search, set `patience`
            # to the largest length limit of the sentences, so that CTranslate2 does not stop before
            # `max_decoding_length`.
            patience = 1 if config.early_stopping is True else _PATIENCE
            if _is_exact(config):
                patience = longest
            options["patience"] = patience
            options["num_hypotheses"] = patience * config.num_beams
        if config.do_sample:
            # CTranslate2 requires that `sampling_topk` is at most the number of tokens.
            options["sampling_topk"] = min(config.top_k, len(self._target_tokens))
            options["sampling_topp"] = config.top_p
            options["sampling_temperature"] = config.temperature
            if config.num_beams == 1:
                options["num_hypotheses"] = config.num_return_sequences
        return options


def _is_exact(config: SearchSettings) -> bool:
    """Return True for a beam search that continues until no better translation is possible."""
    return config.num_beams > 1 and config.early_stopping == "never"
