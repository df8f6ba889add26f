"""Searches for the translations of segments, and computes their scores: steps 4 to 6 of a translation, see
translator_vaswani.

This file is saved with every checkpoint because the translator translates segments with this file.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from .backend_vaswani import Backend, Hypothesis, Segment
from .inputs_vaswani import TranslationOptions, validate_search_fields
from .phrases_vaswani import contains, repeated_ngram
from .precedence_vaswani import config_of_call
from .text_rules_vaswani import is_loop, ngram_size_without_loops
from .translations_vaswani import ALIGNMENT_LAYERS, Translation, scored_translation

T = TypeVar("T")
R = TypeVar("R")


class SegmentSearch:
    """Runs the search of a backend for segments. The segments of a batch have similar lengths.

    If the outputs of a model are not texts, a subclass overrides `decode`.
    """

    def __init__(self, target_tokenizer: Any, backend: Backend):
        self.target_tokenizer = target_tokenizer
        self.backend = backend

    def translate(self, segments: list[Segment], options: TranslationOptions) -> list[list[Translation]]:
        """Search for translations of the segments, and compute their scores (steps 4 to 6 of a translation).
        Return the translations of each segment, best first.
        """
        hypotheses = self._search(segments, options)
        if options.repetition_guard and "streamer" not in options.generate:
            self._search_loops_again(segments, hypotheses, options)
        if options.is_scored:
            return self.score(segments, hypotheses, options)
        return [_without_scores(of_segment) for of_segment in hypotheses]

    def _search(self, segments: list[Segment], options: TranslationOptions) -> list[list[Hypothesis]]:
        """Step 4: run the search. Return the hypotheses of each segment, best first."""
        token_ids = [segment.token_ids for segment in segments]
        search = partial(self.backend.search, with_attention=options.is_scored, **options.generate)
        hypotheses = map_batches(search, segments, token_ids, options.tokens_per_batch, options.batch_size)
        for segment, of_segment in zip(segments, hypotheses, strict=True):
            for hypothesis in of_segment:
                hypothesis.text = self.decode(hypothesis, segment, options)
                hypothesis.unmet_phrases = _unmet_phrases(segment, hypothesis)
        return hypotheses

    def decode(self, hypothesis: Hypothesis, segment: Segment, options: TranslationOptions) -> str:
        """Return the text of a hypothesis."""
        text = self.target_tokenizer.decode(hypothesis.token_ids, skip_special_tokens=True, **options.decode)
        # If the segment has no line break, replace line breaks in its translation by spaces, because the
        # translation of one line must be one line.
        return text if "\n" in segment.text else text.replace("\n", " ")

    def _search_loops_again(
        self, segments: list[Segment], hypotheses: list[list[Hypothesis]], options: TranslationOptions
    ) -> None:
        """Step 5: search again for each segment whose best translation repeats a word or phrase in a loop,
        and forbid repeated n-grams. Use the new translation only if the new translation has no loop and
        contains all required phrases. Skip a segment if one of its required phrases repeats an n-gram.
        """
        rows_of_size: dict[int, list[int]] = {}
        for row, (segment, found) in enumerate(zip(segments, hypotheses, strict=True)):
            size = ngram_size_without_loops(segment.text)
            may_mend = not any(repeated_ngram(phrase, size) for phrase in segment.phrases)
            if may_mend and _is_looping(segment, found[0]):
                rows_of_size.setdefault(size, []).append(row)
        for size, rows in rows_of_size.items():
            generate = {**options.generate, "no_repeat_ngram_size": size}
            mended = self._search([segments[row] for row in rows], replace(options, generate=generate))
            for row, found in zip(rows, mended, strict=True):
                if not _is_looping(segments[row], found[0]) and not found[0].unmet_phrases:
                    hypotheses[row] = found

    def score(
        self, segments: list[Segment], hypotheses: list[list[Hypothesis]], options: TranslationOptions
    ) -> list[list[Translation]]:
        """Step 6: compute the scores and the word alignments of all hypotheses."""
        config = config_of_call(options.generate, self.backend.generation_config)
        validate_search_fields(config)
        # The number of decoder layers, counted from the last layer, that must return attention weights.
        num_layers = ALIGNMENT_LAYERS if options.return_alignments else int(bool(config.coverage_penalty))
        pairs: list[tuple[Segment, Hypothesis]] = []
        for segment, of_segment in zip(segments, hypotheses, strict=True):
            pairs += [(segment, hypothesis) for hypothesis in of_segment]

        def score_batch(batch: list[tuple[Segment, Hypothesis]]) -> Iterator[Translation]:
            segments_of_batch = [segment for segment, _ in batch]
            hypotheses_of_batch = [hypothesis for _, hypothesis in batch]
            scores = self.backend.score(
                segments_of_batch, hypotheses_of_batch, num_layers, **options.generate
            )
            for (segment, hypothesis), (log_probs, attention) in zip(batch, scores, strict=True):
                words = segment.words if options.return_alignments else None
                yield scored_translation(
                    hypothesis, log_probs, attention, words, self.target_tokenizer, config
                )

        token_ids = [segment.token_ids + hypothesis.token_ids for segment, hypothesis in pairs]
        scored = map_batches(score_batch, pairs, token_ids, 2 * options.tokens_per_batch, options.batch_size)
        in_order = iter(scored)
        return [list(islice(in_order, len(of_segment))) for of_segment in hypotheses]


def batches_by_length(
    pieces: Sequence[Sized], tokens_per_batch: int, batch_size: int | None = None
) -> Iterator[list[int]]:
    """Yield the indices of the sequences in each batch, longest sequences first. A batch has at most
    `tokens_per_batch` tokens, including padding. A sequence with more than `tokens_per_batch` tokens is the
    only sequence of its batch.
    """
    longest_first = iter(sorted(range(len(pieces)), key=lambda i: -len(pieces[i])))
    for i in longest_first:
        size = max(1, tokens_per_batch // max(1, len(pieces[i])))
        yield [i, *islice(longest_first, min(size, batch_size or size) - 1)]


def map_batches(
    compute: Callable[[list[T]], Iterable[R]],
    items: Sequence[T],
    pieces: Sequence[Sized],
    tokens_per_batch: int,
    batch_size: int | None = None,
) -> list[R]:
    """Divide `items` into batches, and return the result for each item, in the order of `items`. `compute`
    returns one result for each item of a batch. `pieces` contains the sequence of each item, from which
    `batches_by_length` creates the batches.
    """
    results: dict[int, R] = {}
    for batch in batches_by_length(pieces, tokens_per_batch, batch_size):
        results.update(zip(batch, compute([items[i] for i in batch]), strict=True))
    return [results[i] for i in range(len(items))]


def _without_scores(hypotheses: list[Hypothesis]) -> list[Translation]:
    return [
        Translation(one.text, token_ids=one.token_ids, unmet_phrases=one.unmet_phrases) for one in hypotheses
    ]


def _unmet_phrases(segment: Segment, hypothesis: Hypothesis) -> list[str] | None:
    """Return the required phrases that a hypothesis lacks. If the hypothesis contains all phrases, return
    None. A phrase inside a longer word also counts, because the translation can inflect the phrase.
    """
    unmet = []
    for token_ids, text in zip(segment.phrases, segment.phrase_texts, strict=True):
        if not contains(hypothesis.token_ids, token_ids) and text.strip() not in hypothesis.text:
            unmet.append(text)
    return unmet or None


def _is_looping(segment: Segment, hypothesis: Hypothesis) -> bool:
    return is_loop(hypothesis.text, f"{segment.text} {segment.forced_text}")
