"""Translates texts, and returns the translations in the order of the texts.

`Translator.translate` reads a window of texts (1000 by default), and translates the texts of the window in
seven steps:

1. Split each text into sentences, if `split_sentences` is set. A text or sentence that contains no letters
   and no digits, such as an emoji, is copied.
2. Tokenize all sentences of the window in one call. Divide sentences that are too long for the model into
   pieces. Each sentence or piece becomes a `Segment`.
3. Assign the target prefix and the required phrases of each text to its segments.
4. Search for translations of the segments, in batches of segments with similar lengths. Each translation of
   a segment is a `Hypothesis`.
5. Run a second search for each segment whose translation repeats a phrase in a loop, if `repetition_guard` is
   set. The second search forbids repeated n-grams.
6. Compute scores and word alignments, if `return_scores`, `return_alignments` or `min_confidence` is set.
7. Join the translations of the segments of each text.

`Segmenter` of segmenter_vaswani runs steps 1 to 3. `SegmentSearch` of segment_search_vaswani runs steps 4 to
6, and calls the model through a `Backend` of backend_vaswani. `BaseTranslator` completes the options and
joins translations (step 7). `results_of_lines` finds the invalid lines of a window, so that an invalid line
does not change the results of the other lines. The module inputs_vaswani validates options, and the module
requests_vaswani reads texts.

This file is saved with every checkpoint because the translation pipeline of the checkpoint uses the
translator. The folder `translation` of the package contains `Translator.from_pretrained` and the CTranslate2
backend.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from .backend_vaswani import Backend, Hypothesis, PyTorchBackend, Segment, language_token
from .errors_vaswani import InvalidValueError
from .inputs_vaswani import SCORE_SETTINGS, TranslationOptions
from .length_limits_vaswani import max_new_tokens_of
from .precedence_vaswani import completed_settings, config_of_call, setting_of
from .requests_vaswani import (
    LINE_ERRORS,
    InvalidInput,
    Request,
    check_iterable_of_texts,
    check_text,
    make_requests,
    numbered,
    try_parse,
    unwrap,
    zip_pairs,
)
from .segment_search_vaswani import SegmentSearch
from .segmenter_vaswani import ConstraintAssigner, Segmenter, SegmentTokenizer
from .tokenizing_vaswani import TOKENIZING, prefix_token_ids
from .translations_vaswani import Translation, join_translations, with_alternatives

logger = logging.get_logger(__name__)

# The arguments of `BaseTranslator.score` in addition to `SCORE_SETTINGS`.
_SCORE_OPTIONS = (
    "return_alignments window tokens_per_batch on_error generation_config src_lang tgt_lang".split()
)


class BaseTranslator:
    """Translates texts with a model or an ensemble, and a tokenizer for each language.

    `segmenter` runs steps 1 to 3 of a translation, and `segment_search` runs steps 4 to 6. If the outputs of
    a model are not texts, a subclass overrides `make_backend`, `segmenter_class` and `segment_search_class`.

    Args:
        model (PreTrainedModel or Backend): An encoder-decoder model, or a backend.
        source_tokenizer (PreTrainedTokenizerBase): The tokenizer of the source language.
        target_tokenizer (PreTrainedTokenizerBase): The tokenizer of the target language.
        ensemble (sequence): Other models with the same vocabulary. The search averages the token
            probabilities of all models.
        prefix (str): A text that the translator puts before each source text, such as the task prefix of T5.
        task_settings (mapping): Settings of `generate` from the `task_specific_params` of the checkpoint.
    """

    segmenter_class = Segmenter
    segment_search_class = SegmentSearch

    def __init__(
        self,
        model: Any,
        source_tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase,
        ensemble: Sequence[Any] = (),
        *,
        prefix: str = "",
        task_settings: Mapping[str, Any] | None = None,
    ):
        self.source_tokenizer: Any = source_tokenizer
        self.target_tokenizer: Any = target_tokenizer
        self.prefix = prefix
        self.task_settings = dict(task_settings or {})
        self.segment_tokenizer = SegmentTokenizer(source_tokenizer, prefix)
        is_model = isinstance(model, torch.nn.Module)
        # A function that estimates the probability that a `Translation` is good. evaluation/calibration.py of
        # the package defines a good translation by its chrF. None if the checkpoint has no calibration.json.
        self.calibration: Callable[[Translation], float] | None = None
        self.use_backend(self.make_backend(model, ensemble) if is_model else model)

    def make_backend(self, model: PreTrainedModel, ensemble: Sequence[PreTrainedModel]) -> Backend:
        """Return the backend that runs `model` together with the other models in `ensemble`."""
        return PyTorchBackend(model, ensemble)

    def use_backend(self, backend: Backend) -> None:
        """Translate with `backend` from now on."""
        constraints = ConstraintAssigner(self.target_tokenizer, backend)
        self.backend = backend
        self.segmenter = self.segmenter_class(self.segment_tokenizer, constraints, backend)
        self.segment_search = self.segment_search_class(self.target_tokenizer, backend)

    @property
    def model(self) -> Any:
        """The model of the backend, or the first model of an ensemble."""
        return self.backend.model  # type: ignore[attr-defined]

    def translate(
        self,
        lines: Iterable[str],
        *,
        target_prefixes: Iterable[str | None] | None = None,
        must_contain: Iterable[Sequence[str] | None] | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """Translate lines, and yield the translations in the order of the lines.

        Without `split_sentences`, a line of white space has an empty translation. With `split_sentences`, a
        line of white space is copied unchanged. If a line of white space has a target prefix, the translation
        is the target prefix. A line without letters and digits, such as an emoji, is copied, unless the line
        has a target prefix or required phrases. With `split_sentences`, a sentence without letters and digits
        is also copied. A line that is too long for the model is cut between words. A word is cut only if the
        word alone is too long. The translated pieces are joined by spaces. A warning names each line that is
        cut into pieces.

        Args:
            lines (Iterable): Texts. `translate` reads `window` texts at a time.
            target_prefixes (Iterable, optional): For each line, the text with which the translation must
                begin, or None.
            must_contain (Iterable, optional): For each line, None or a list of phrases that the translation
                must contain. If the search finds no translation with all phrases, the translation lacks some
                of the phrases. A warning and `Translation.unmet_phrases` name the missing phrases.
            **options: Fields of `TranslationOptions`. All other options are passed to `generate`.

        Returns:
            Iterator: The translation of each line, as a str. With `return_scores`, `return_alignments`,
                `min_confidence` or a `num_return_sequences` above 1, the iterator yields a `Translation` for
                each line. With `on_error="skip"`, the iterator yields a `Translation` with an `error` for an
                invalid line.

        Raises:
            TypeError: If an argument is a single text, or a line is not a str.
            ValueError: If an option has an invalid value, or a line cannot be translated.
        """
        for name, texts in (
            ("lines", lines),
            ("target_prefixes", target_prefixes),
            ("must_contain", must_contain),
        ):
            if texts is not None or name == "lines":
                check_iterable_of_texts(name, texts)
        chosen = TranslationOptions.of(**options)
        if _gives_records(chosen):
            chosen = replace(chosen, return_scores=True)
        return self.translate_requests(make_requests(lines, target_prefixes, must_contain), chosen)

    def translate_requests(
        self, requests: Iterable[Request | InvalidInput], options: TranslationOptions, first_line: int = 1
    ) -> Iterator[Any]:
        """Yield a `Translation` for each request if `options` ask for scores, alignments, a minimum
        confidence or several translations; otherwise yield a `Translation` for each invalid request, and a
        str for each other request.

        `first_line` is the line number of the first request. Line numbers appear in warnings, and determine
        the random seed of sampling.
        """
        gives_records = _gives_records(options)
        for translations in self.translations(requests, options, first_line):
            if gives_records or translations[0].error:
                yield with_alternatives(translations)
            else:
                yield translations[0].text

    def translations(
        self, requests: Iterable[Request | InvalidInput], options: TranslationOptions, first_line: int = 1
    ) -> Iterator[list[Translation]]:
        """Yield a list of at most `num_return_sequences` translations for each request, best first."""
        completed = self.complete(options)
        requests = iter(requests)
        while window := list(islice(requests, options.window)):
            self.prepare(window, options)
            if options.seed is not None:
                # Add the number of the first line of the window to the seed, so that a resumed `vaswani
                # translate` or several parallel processes draw the same translations as a single process.
                self.backend.seed(options.seed + first_line)
            # If the translation of the texts in `window` raises an error, `results_of_lines` finds the
            # invalid text.
            find = partial(self._translate_window, options=completed)
            for result in results_of_lines(window, first_line, numbered, find, options.on_error):
                yield [result] if isinstance(result, Translation) else result
            first_line += len(window)

    def complete(self, options: TranslationOptions) -> TranslationOptions:
        """Return the options, completed with search settings from `task_specific_params` and
        `DEFAULT_SEARCH`. The steps of a translation need options that `complete` has returned. Raise a
        ValueError if the backend or the checkpoint does not support an option.
        """
        completed = replace(options, generate=self._completed_settings(options.generate))
        if options.glossary is not None and not self.backend.supports_phrases:
            raise InvalidValueError(
                "`glossary` must be left out, because the engine of the model does not support phrases."
            )
        if options.glossary is not None and self.setting("do_sample", **options.generate):
            raise InvalidValueError(
                "`glossary` must be left out with `do_sample`, because sampling does not support phrases."
            )
        if options.min_confidence is not None and self.calibration is None:
            raise InvalidValueError(
                "`min_confidence` needs the calibration of the checkpoint, but there is no "
                "calibration.json; write the file with `vaswani evaluate --calibration fit` on a validation "
                "set (for an exported model: before the export)."
            )
        self._check_number_of_translations(options)
        return completed

    def _completed_settings(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return completed_settings(
            arguments, self.task_settings, self.backend.generation_config, self.backend.is_vaswani
        )

    def setting(self, name: str, /, **arguments: Any) -> Any:
        """Return the value of a search setting, such as "num_beams", in a call of `translate` with the search
        settings `arguments`. The file precedence_vaswani lists all sources of search settings, such as the
        call and the checkpoint.
        """
        return setting_of(name, self._completed_settings(arguments), self.backend.generation_config)

    def _check_number_of_translations(self, options: TranslationOptions) -> None:
        number = self.setting("num_return_sequences", **options.generate)
        num_beams = self.setting("num_beams", **options.generate)
        is_plain_sampling = num_beams == 1 and self.setting("do_sample", **options.generate)
        if number > num_beams and not is_plain_sampling:
            raise InvalidValueError(
                f"`num_return_sequences` must be at most `num_beams`, which is {num_beams}, but is {number}."
            )

    def prepare(self, requests: Sequence[Request | InvalidInput], options: TranslationOptions) -> None:
        """`translate` and `score` call `prepare` before each window of texts. A subclass can override
        `prepare`, for example to choose a dtype.
        """

    def _translate_window(
        self, requests: list[Request], options: TranslationOptions
    ) -> list[list[Translation]]:
        """Run all steps of a translation. Return the translations of each request, best first."""
        # Steps 1 to 3 of a translation.
        layouts = self.segmenter.layouts(requests, options)
        segments: list[Segment] = []
        for layout in layouts:
            segments += layout.segments
        if options.warn_of_limit:
            _warn_of_limit(segments, options, self.backend.generation_config)
        # Translate the segments (steps 4 to 6 in the docstring of the module).
        of_segments = iter(self.segment_search.translate(segments, options))
        # Join the translations of the segments of each text (step 7).
        results = []
        for request, layout in zip(requests, layouts, strict=True):
            of_text = list(islice(of_segments, len(layout.segments)))
            translations = self.join(request, of_text, layout.separators, options)
            if unmet := translations[0].unmet_phrases:
                place = "`must_contain`" if options.glossary is None else "`must_contain` or in the glossary"
                logger.warning(
                    f"Line {request.line_number} has {', '.join(map(repr, unmet))} in {place}, but no translation with "
                    "all phrases was found under the other settings; the translation of the line lacks the "
                    "named phrases."
                )
            results.append(translations)
        return results

    def join(
        self,
        request: Request,
        of_segments: list[list[Translation]],
        separators: list[str],
        options: TranslationOptions,
    ) -> list[Translation]:
        """Run step 7: join the translations of the N segments of a text. Return the translations of the text,
        best first. `separators` are the N + 1 separators of the `Layout` of the text.
        """
        if of_segments:
            number = min(map(len, of_segments))
            translations = [
                join_translations([of_segment[rank] for of_segment in of_segments], separators)
                for rank in range(number)
            ]
        else:
            translations = self._translate_blank_text(request, separators, options)
        return self._calibrated(translations, options)

    def _calibrated(self, translations: list[Translation], options: TranslationOptions) -> list[Translation]:
        """Add the calibrated confidence to the translations of a text. If the confidence of the best
        translation is below `min_confidence`, return an empty translation with an error.
        """
        if self.calibration is None or not options.is_scored:
            return translations
        translations = [
            replace(translation, calibrated_confidence=self.calibration(translation))
            for translation in translations
        ]
        confidence = translations[0].calibrated_confidence or 0.0
        if options.min_confidence is None or confidence >= options.min_confidence:
            return translations
        reason = f"the confidence of the translation, {confidence:.3f}, is below {options.min_confidence}"
        return [Translation("", calibrated_confidence=confidence, error=reason)]

    def _translate_blank_text(
        self, request: Request, separators: list[str], options: TranslationOptions
    ) -> list[Translation]:
        """Return the translations of a text without words. Each translation is the target prefix, or a copy
        of the text if there is no target prefix.
        """
        prefix = request.target_prefix.strip()
        translation = join_translations([], separators)
        if prefix or request.must_contain:
            translation = replace(
                translation,
                token_ids=prefix_token_ids(prefix, self.target_tokenizer),
                unmet_phrases=[phrase for phrase in request.must_contain if phrase not in prefix] or None,
            )
        return [translation] * self.setting("num_return_sequences", **options.generate)

    def score(self, sources: Iterable[str], targets: Iterable[str], **options: Any) -> Iterator[Translation]:
        """Compute the scores of given translations, and yield the results in the order of the translations.

        The score equals the score of the search under two conditions: the tokenizer splits the translation
        into the tokens that the search chose, and the search ended the translation with `</s>`.

        Args:
            sources (Iterable): Source texts. `score` reads `window` texts at a time.
            targets (Iterable): One translation for each source text.
            **options: From `TranslationOptions`: `return_alignments`, `window`, `tokens_per_batch`,
                `on_error`, `src_lang` and `tgt_lang`. From `generate`: `length_penalty`,
                `length_penalty_type`, `coverage_penalty` and `generation_config`. A batch has at most twice
                `tokens_per_batch` tokens, counting source and target tokens together.

        Returns:
            Iterator: A `Translation` for each pair of a source and a target.

        Raises:
            TypeError: If an option does not exist, or if `sources` or `targets` is a single text.
            ValueError: If an option has an invalid value, or the numbers of sources and targets differ.
        """
        unknown = options.keys() - {*SCORE_SETTINGS, *_SCORE_OPTIONS}
        if unknown:
            raise TypeError(f"`score` takes no argument `{min(unknown)}`.")
        check_iterable_of_texts("sources", sources)
        check_iterable_of_texts("targets", targets)
        given = {name: value for name, value in options.items() if value is not None}
        chosen = TranslationOptions.of(return_scores=True, **given)
        return self._score_pairs(zip_pairs(sources, targets), chosen)

    def _score_pairs(
        self, pairs: Iterator[tuple[Any, Any]], options: TranslationOptions
    ) -> Iterator[Translation]:
        first_line = 1
        while window := list(islice(pairs, options.window)):
            sources = [try_parse(Request, source) for source, _ in window]
            self.prepare(sources, options)
            find = partial(self._score_lines, options=options)
            yield from results_of_lines(window, first_line, _numbered_pair, find, options.on_error)
            first_line += len(window)

    def _score_lines(
        self, pairs: list[tuple[int, str, str]], options: TranslationOptions
    ) -> list[Translation]:
        targets = [target for _, _, target in pairs]
        segments = self.segmenter.source_segments([source for _, source, _ in pairs], options)
        if options.return_alignments:
            for segment, (_, source, _) in zip(segments, pairs, strict=True):
                self.segment_tokenizer.shift_word_indices([segment], ["", ""], source)
        with TOKENIZING:
            token_ids = self.target_tokenizer(text_target=targets, verbose=False)["input_ids"]
        positions = self.backend.max_positions
        hypotheses = []
        for (number, _, target), segment, ids in zip(pairs, segments, token_ids, strict=True):
            length = max(len(segment.token_ids), len(ids))
            if length > positions:
                raise ValueError(
                    f"Pair {number:,} must have at most {positions} tokens on each side, as many as the "
                    f"model has positions, but has {length}."
                )
            first_ids = language_token(segment)
            hypothesis = Hypothesis([*first_ids, *ids], len(first_ids), len(first_ids), text=target)
            hypotheses.append([hypothesis])
        return [translation for (translation,) in self.segment_search.score(segments, hypotheses, options)]


def _gives_records(options: TranslationOptions) -> bool:
    """Return True if `translate` yields `Translation` objects instead of strings. Ignore the settings of the
    checkpoint, so that the type of the results depends only on the arguments of the call.
    """
    return options.is_scored or setting_of("num_return_sequences", options.generate, None) > 1


def _numbered_pair(pair: tuple[Any, Any], number: int) -> tuple[int, str, str]:
    source = unwrap(pair[0])
    target = unwrap(pair[1])
    check_text(source, f"Line {number:,} of `sources`")
    check_text(target, f"Line {number:,} of `targets`")
    return number, source.strip(), target.strip()


def _warn_of_limit(
    segments: list[Segment], options: TranslationOptions, generation_config: GenerationConfig
) -> None:
    config = config_of_call(options.generate, generation_config)
    if config.max_new_tokens is None and config.max_length is None:
        return
    longest = max((len(segment.token_ids) for segment in segments), default=0)
    limit = max_new_tokens_of(config, longest, prompt_length=1)
    # Warn if a source text is longer than 90 % of the length limit for translations, as transformers 4 does.
    if longest > 0.9 * limit:
        logger.warning(
            f"A text has {longest} tokens, and its translation has at most {limit} tokens; if the "
            "translation is cut off, give a larger `max_new_tokens`."
        )


def results_of_lines(
    lines: Sequence[Any],
    first_line: int,
    read: Callable[[Any, int], Any],
    find: Callable[[list[Any]], Sequence[Any]],
    on_error: str,
) -> Iterator[Any]:
    """Yield the result of each line. An invalid line does not change the results of the other lines.

    `read(line, number)` converts a line to an input of `find`, and `find(inputs)` returns one result for each
    input. If `on_error` is "skip", the result of an invalid line is a `Translation` with an `error`. If
    `on_error` is "fail", the error of an invalid line is raised after the results of the earlier lines. The
    field `line_number` of the error is the number of the line.
    """
    inputs = []
    errors: dict[int, Exception] = {}
    for number, line in enumerate(lines, first_line):
        try:
            inputs.append(read(line, number))
        except LINE_ERRORS as error:
            errors[number] = error
            if on_error == "fail":
                break
    found = _find_or_bisect(inputs, find)
    for number in range(first_line, first_line + len(inputs) + len(errors)):
        result = errors[number] if number in errors else next(found)
        if isinstance(result, Exception):
            if on_error == "fail":
                result.line_number = number  # type: ignore[attr-defined]
                raise result
            result = Translation("", error=" ".join(str(result).split()))
        yield result


def _find_or_bisect(inputs: list[Any], find: Callable[[list[Any]], Sequence[Any]]) -> Iterator[Any]:
    """Call the function `find` with all inputs, and yield the results. If `find` raises an error, call `find`
    with each half of the inputs, down to single inputs. The result of an invalid input is its error.
    """
    try:
        found = find(inputs) if inputs else []
    except LINE_ERRORS as error:
        if len(inputs) == 1:
            yield error
            return
        half = len(inputs) // 2
        yield from _find_or_bisect(inputs[:half], find)
        yield from _find_or_bisect(inputs[half:], find)
    else:
        yield from found
