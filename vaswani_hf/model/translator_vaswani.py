"""Translates texts, and returns the translations in the order of the texts.

`Translator.translate` reads a window of texts (1000 by default), and translates the texts of the window in
seven steps:

1. Split each text into sentences, if `split_sentences` is set. Texts and sentences without letters and
   digits, such as emoji, are copied.
2. Tokenize all sentences of the window in one call. Divide sentences that are too long for the model into
   pieces. Each sentence or piece becomes a `Segment`.
3. Assign the target prefix and the required phrases of each text to its segments.
4. Search: `PyTorchBackend.search` of backend_vaswani calls `model.generate` for each batch of segments with
   similar lengths. Each translation of a segment is a `Hypothesis`.
5. Run a second search for each segment whose translation repeats a phrase in a loop, if `repetition_guard` is
   set. The second search forbids repeated n-grams.
6. Compute scores and word alignments, if `return_scores` or `return_alignments` is set.
7. Join the translations of the segments of each text.

The class `BaseTranslator` defines its methods in the order of the seven translation steps. The file
backend_vaswani defines `Segment`, `Layout`, `Hypothesis` and `PyTorchBackend`. The translator works for all
encoder-decoder models that have `generate`.

The file inputs_vaswani validates options and texts. The file segment_tokenizer_vaswani divides texts into
tokenized segments, and tokenizing_vaswani finds the token ids of phrases. The file text_rules_vaswani splits
sentences, aligns words and detects loops. The file translations_vaswani computes scores and joins
translations.

This file is saved with every checkpoint because the translation pipeline of the checkpoint uses the
translator. The folder `translation` of the package contains `Translator.from_pretrained` and the CTranslate2
backend.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from .backend_vaswani import Backend, Hypothesis, Layout, PyTorchBackend, Segment, language_token
from .errors_vaswani import InvalidValueError
from .generation_vaswani import LENGTH_SETTINGS, config_with, max_new_tokens_of, setting_of
from .inputs_vaswani import (
    LINE_ERRORS,
    SCORE_SETTINGS,
    InvalidInput,
    Request,
    TranslationOptions,
    check_iterable_of_texts,
    check_text,
    make_requests,
    try_parse,
    unwrap,
    zip_pairs,
)
from .phrases_vaswani import contains, forbidden_tokens, has_ordinary_tokens, repeated_ngram
from .segment_tokenizer_vaswani import SegmentTokenizer
from .text_rules_vaswani import copy_symbols, has_words, is_loop, ngram_size_without_loops, split_sentences
from .tokenizing_vaswani import TOKENIZING, phrase_token_ids, prefix_token_ids
from .translations_vaswani import (
    Translation,
    join_translations,
    num_layers_for,
    scored_translation,
    scoring_config,
    with_alternatives,
)

logger = logging.get_logger(__name__)

# The maximum number of input tokens if neither the tokenizer nor the model has a limit.
DEFAULT_MAX_LENGTH = 1024
# Tokenizers without a limit have a `model_max_length` of 10^30.
_NO_LIMIT = 10**6
# The default search settings of a translation. A call or a checkpoint can override `DEFAULT_SEARCH`. The
# translation pipeline of transformers 4 has the same defaults. A Vaswani model does not use the default of
# `max_new_tokens`, because `generate` of the model limits the length of each sentence.
DEFAULT_SEARCH = {"num_beams": 4, "max_new_tokens": 256}
_LENGTHS = {"max_new_tokens", "max_length"}
# The settings that can make a term of a glossary impossible.
_TERM_SETTINGS = (
    *("bad_words_ids", "suppress_tokens", "no_repeat_ngram_size"),
    *("eos_token_id", "pad_token_id", "decoder_start_token_id"),
    *LENGTH_SETTINGS,
)
# The arguments that `BaseTranslator.score` accepts in addition to `SCORE_SETTINGS`.
_SCORE_OPTIONS = (
    *("return_alignments", "window", "tokens_per_batch", "on_error", "generation_config"),
    *("src_lang", "tgt_lang"),
)


class BaseTranslator:
    """Translates texts with a model or an ensemble, and a tokenizer for each language.

    If the outputs of a model are not texts, a subclass overrides `split`, `cut`, `decode` and `make_backend`.

    Args:
        model (PreTrainedModel or Backend): An encoder-decoder model, or a backend.
        source_tokenizer (PreTrainedTokenizerBase): The tokenizer of the source language.
        target_tokenizer (PreTrainedTokenizerBase): The tokenizer of the target language. `target_tokenizer`
            may be the same object as `source_tokenizer`.
        ensemble (sequence): Other models with the same vocabulary. The search averages the token
            probabilities of all models.
        prefix (str): A text that the translator puts before each source text, such as the task prefix of T5.
        task_settings (mapping): Settings of `generate` from the `task_specific_params` of the checkpoint.
    """

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
        # A function that estimates the probability that a `Translation` is good. None if the checkpoint has
        # no calibration.json.
        self.calibration: Callable[[Translation], float] | None = None
        self.backend: Backend = self.make_backend(model, ensemble) if is_model else model

    def make_backend(self, model: PreTrainedModel, ensemble: Sequence[PreTrainedModel]) -> Backend:
        """Return the backend that runs `model` together with the other models in `ensemble`."""
        return PyTorchBackend(model, ensemble)

    @property
    def model(self) -> Any:
        """The model of the backend, or the first model of an ensemble."""
        return self.backend.model  # type: ignore[attr-defined]

    @property
    def max_length(self) -> int:
        """The maximum number of tokens in a segment. The method `cut` divides segments with more than
        `max_length` tokens.
        """
        if self.backend.max_positions is None:
            return _NO_LIMIT
        limits: list[Any] = [self.source_tokenizer.model_max_length, self.backend.max_positions]
        return min((limit for limit in limits if limit < _NO_LIMIT), default=DEFAULT_MAX_LENGTH)

    def translate(
        self,
        lines: Iterable[str],
        *,
        target_prefixes: Iterable[str | None] | None = None,
        must_contain: Iterable[Sequence[str] | None] | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """Translate lines, and yield the translations in the order of the lines.

        A line of white space has an empty translation. With `split_sentences`, a line of white space is
        copied unchanged. A line without letters and digits, such as an emoji, is copied, unless the line has
        a target prefix or required phrases. With `split_sentences`, such a sentence of a line is copied. A
        line that is too long for the model is cut between words, and its translated pieces are joined by
        spaces. A warning names each line that is cut.

        Args:
            lines (Iterable): Texts. `translate` reads `window` texts at a time.
            target_prefixes (Iterable, optional): For each line, the text with which the translation must
                begin, or None.
            must_contain (Iterable, optional): For each line, a list of phrases that the translation must
                contain, or None. If the search finds no translation with all phrases, the translation
                contains as many phrases as possible. A warning and `Translation.unmet_phrases` name the
                missing phrases.
            **options: Fields of `TranslationOptions`. All other options are passed to `generate`.

        Returns:
            Iterator: A str for each line. With `return_scores`, `return_alignments` or a
                `num_return_sequences` above 1, a `Translation` for each line. With `on_error="skip"`, a
                `Translation` with an `error` for an invalid line.

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
        """Yield a str for each request. If the options ask for scores or several translations, yield a
        `Translation`.

        `first_line` is the line number of the first entry of `requests`. Line numbers appear in warnings, and
        determine the random seed of sampling.
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
                # Add the line number to the seed. A resumed run or several parallel processes then draw the
                # same translations as a single run.
                self.backend.seed(options.seed + first_line)
            # If the translation of the texts in `window` raises an error, `results_of_lines` finds the
            # invalid text.
            find = partial(self._translate_lines, options=completed)
            for result in results_of_lines(window, first_line, _numbered_request, find, options.on_error):
                yield [result] if isinstance(result, Translation) else result
            first_line += len(window)

    def complete(self, options: TranslationOptions) -> TranslationOptions:
        """Return a copy of the options with defaults for missing search settings. The methods `layouts`,
        `translate_segments` and `join` require options that `complete` has returned.

        Raises:
            ValueError: If `num_return_sequences` is larger than the search permits, if `min_confidence` is
                given but the checkpoint has no calibration.json, or if a glossary is given but the backend
                does not support phrases or samples translations.
        """
        if options.terms is not None and not self.backend.supports_phrases:
            raise InvalidValueError(
                "`glossary` must be left out, because the engine of the model does not support phrases."
            )
        if options.terms is not None and setting_of(
            "do_sample", options.generate, self.backend.generation_config
        ):
            raise InvalidValueError(
                "`glossary` must be left out with `do_sample`, because sampling does not support phrases."
            )
        if options.min_confidence is not None and self.calibration is None:
            raise InvalidValueError(
                "`min_confidence` needs the calibration of the checkpoint, but there is no "
                "calibration.json; write the file with `vaswani evaluate --calibration fit` on a validation "
                "set."
            )
        completed = replace(options, generate=self._with_defaults(options.generate))
        self._check_number_of_translations(completed.generate)
        return completed

    def _check_number_of_translations(self, settings: dict[str, Any]) -> None:
        names = ("num_return_sequences", "num_beams", "do_sample")
        number, num_beams, do_sample = (
            setting_of(name, settings, self.backend.generation_config) for name in names
        )
        num_beams = num_beams or 1
        if (number or 1) > num_beams and not (do_sample and num_beams == 1):
            raise InvalidValueError(
                f"`num_return_sequences` must be at most `num_beams`, which is {num_beams}, but is {number}."
            )

    def prepare(self, requests: Sequence[Request | InvalidInput], options: TranslationOptions) -> None:
        """Do nothing. The translator calls `prepare` before it translates the next `window` texts. A subclass
        may override `prepare`, for example to choose a dtype.
        """

    def _translate_lines(
        self, lines: list[tuple[int, Request]], options: TranslationOptions
    ) -> list[list[Translation]]:
        """Run all seven steps of a translation for pairs of a line number and a request. Return the
        translations of each request, best first.
        """
        requests = [request for _, request in lines]
        # Run steps 1 to 3 of a translation: split the texts; tokenize and cut the sentences; assign target
        # prefixes and phrases.
        layouts = self.layouts(requests, [number for number, _ in lines], options)
        segments: list[Segment] = []
        for layout in layouts:
            segments += layout.segments
        if options.warn_of_limit:
            self._warn_of_limit(segments, options)
        # Steps 4 to 6 of a translation: search, search again if a translation repeats itself, and score.
        of_segments = iter(self.translate_segments(segments, options))
        # Step 7 of a translation: join the translated segments of each text.
        results = []
        for (number, request), layout in zip(lines, layouts, strict=True):
            of_text = list(islice(of_segments, len(layout.segments)))
            translations = self.join(request, of_text, layout.separators, options)
            if unmet := translations[0].unmet_phrases:
                place = "`must_contain`" if options.terms is None else "`must_contain` or in the glossary"
                logger.warning(
                    f"Line {number} has {', '.join(map(repr, unmet))} in {place}, but no translation with "
                    "all phrases was found under the other settings; the translation of the line lacks the "
                    "named phrases."
                )
            results.append(translations)
        return results

    # Steps 1 to 3 of a translation: from texts to segments.

    def layouts(
        self, requests: Sequence[Request], numbers: Iterable[int], options: TranslationOptions
    ) -> list[Layout]:
        """Run steps 1 to 3 of a translation: from texts to segments. Return a `Layout` for each request."""
        texts: list[tuple[list[str], list[str]]] = []
        for request in requests:
            texts.append(([], [request.text]) if request.is_copied else self.split(request, options))
        sentences: list[str] = []
        for of_text, _ in texts:
            sentences += of_text
        segments = iter(self.segment_tokenizer.tokenize(sentences, options, self.max_length))
        layouts = []
        for request, number, (of_text, separators) in zip(requests, numbers, texts, strict=False):
            of_request = list(islice(segments, len(of_text)))
            layouts.append(self._layout(request, number, of_request, separators, options))
        return layouts

    def _layout(
        self,
        request: Request,
        number: int,
        sentences: list[Segment],
        separators: list[str],
        options: TranslationOptions,
    ) -> Layout:
        """Cut the tokenized sentences of a request into pieces, and assign the target prefix and the required
        phrases to the pieces. Return the pieces, and the separators before, between and after the pieces.
        """
        if options.return_alignments:
            self.segment_tokenizer.shift_word_indices(sentences, separators, request.text)
        pieces: list[Segment] = []
        between = separators[:1]
        for sentence, separator in zip(sentences, separators[1:], strict=True):
            of_sentence = self.cut(sentence, number, self.max_length)
            pieces += of_sentence
            between += [" "] * (len(of_sentence) - 1) + [separator]
        if pieces and request.is_constrained:
            self._constrain(pieces, request)
        elif request.target_prefix and not request.is_copied:
            # The translation of a blank text is the target prefix.
            between = [request.target_prefix.strip()]
        if options.terms is not None:
            for piece in pieces:
                self._add_terms(piece, options)
        return Layout(pieces, between)

    def split(self, request: Request, options: TranslationOptions) -> tuple[list[str], list[str]]:
        """Run step 1 of a translation: split a text into N parts that are translated separately. Return the
        parts, and the N + 1 separators before, between and after the parts. A separator contains white space
        and sentences that are copied.
        """
        stripped = request.text.strip()
        untagged = request.text[self.segment_tokenizer.start_of(request.text) :]
        is_blank = not untagged.strip()
        if is_blank or not (request.is_constrained or has_words(untagged)):
            return [], [untagged if options.split_sentences else untagged.strip()]
        tagged = self.segment_tokenizer.with_tag(stripped, options.tgt_lang)
        if not options.split_sentences:
            return [tagged], ["", ""]
        sentences, separators = split_sentences(untagged)
        if not request.is_constrained:
            sentences, separators = copy_symbols(sentences, separators)
        tag = self.segment_tokenizer.tag_of(tagged)
        # Repeat the tag before each sentence, because each sentence is translated separately.
        return [f"{tag} {sentence}" if tag else sentence for sentence in sentences], separators

    def source_segments(self, texts: Iterable[str], options: TranslationOptions) -> list[Segment]:
        """Tokenize whole texts: a text is neither split into sentences nor truncated. If the tokenizer has
        tags of target languages, each text gets the tag of the option `tgt_lang`.
        """
        tagged = [self.segment_tokenizer.with_tag(text, options.tgt_lang) for text in texts]
        return self.segment_tokenizer.tokenize(tagged, options, self.max_length)

    def cut(self, segment: Segment, number: int, max_length: int) -> list[Segment]:
        """Divide a segment into pieces of at most `max_length` tokens. Each piece of the segment begins with
        the segment's language tag or language token, if there is one.
        """
        if len(segment.token_ids) <= max_length:
            return [segment]
        *ids, end_id = segment.token_ids
        words = segment.words or [-1] * len(segment.token_ids)
        tag_ids = ids[:1] if ids[0] in self.segment_tokenizer.first_ids else []
        start = len(tag_ids)
        tag_words = words[:start]
        # The maximum number of tokens that a piece takes from the segment, not counting the language tag and
        # `</s>`.
        room = max_length - 1 - len(tag_ids)
        if room < 1:
            raise ValueError(
                f"The model can read at most {max_length} tokens, but a piece of line {number} needs at least "
                f"{max_length - room + 1} tokens with `</s>`; raise `model_max_length` in tokenizer_config.json."
            )
        pieces = []
        while start < len(ids):
            stop = min(start + room, len(ids))
            if stop < len(ids):
                # Do not cut the segment inside a word, unless one word fills a whole piece.
                boundaries = (i for i in range(stop, start, -1) if words[i] != words[i - 1])
                stop = next(boundaries, stop)
            piece = replace(
                segment,
                text=self.source_tokenizer.decode(ids[start:stop]),
                token_ids=[*tag_ids, *ids[start:stop], end_id],
                words=[*tag_words, *words[start:stop], -1],
            )
            pieces.append(piece)
            tag_words = [-1] * len(tag_ids)
            start = stop
        logger.warning(
            f"Line {number} has {len(segment.token_ids)} tokens, but the model can read at most "
            f"{max_length} tokens, so the line is translated in {len(pieces)} pieces."
        )
        return pieces

    def _constrain(self, segments: list[Segment], request: Request) -> None:
        """Step 3 of a translation: assign the target prefix to the first segment of a text, and each required
        phrase to one segment.
        """
        segments[0].prefix = prefix_token_ids(request.target_prefix, self.target_tokenizer)
        segments[0].forced_text = request.target_prefix
        if not request.must_contain:
            return
        phrases_of = assign_phrases(request.must_contain, [segment.text for segment in segments])
        for segment, phrases in zip(segments, phrases_of, strict=True):
            segment.phrases = [phrase_token_ids(phrase, self.target_tokenizer) for phrase in phrases]
            segment.phrase_texts = phrases
            segment.forced_text = " ".join([segment.forced_text, *phrases])

    def _add_terms(self, segment: Segment, options: TranslationOptions) -> None:
        """Step 3 of a translation: add target terms of the glossary to the required phrases of a segment.
        Ignore a glossary term that contradicts another search setting, or is too long for the translation.
        """
        assert options.terms is not None
        config = config_with(_TERM_SETTINGS, options.generate, self.backend.generation_config)
        room = self._room_for_terms(segment, config)
        for phrase in options.terms.phrases(segment.text):
            token_ids = phrase_token_ids(phrase, self.target_tokenizer)
            obstacle = self._obstacle_to_term(token_ids, room, config)
            if obstacle is not None:
                logger.warning(
                    f"The glossary asks for {phrase[:40]!r} in the translation of {segment.text[:40]!r}, but "
                    f"{obstacle}; the term is ignored."
                )
            elif phrase not in segment.phrase_texts:
                room -= len(token_ids)
                segment.phrases = [*segment.phrases, token_ids]
                segment.phrase_texts = [*segment.phrase_texts, phrase]
                segment.forced_text = f"{segment.forced_text} {phrase}"

    def _room_for_terms(self, segment: Segment, config: GenerationConfig) -> int:
        """Return the number of tokens that the terms of the glossary may have in the translation of a segment."""
        prompt_length = 1 + len(segment.prefix)
        num_positions = self.backend.max_positions or math.inf
        longest = max_new_tokens_of(config, len(segment.token_ids), prompt_length, num_positions)
        num_others = len(language_token(segment)) + sum(map(len, segment.phrases))
        # Subtract 1 for `</s>`.
        return max(0, longest - num_others - 1)

    def _obstacle_to_term(self, token_ids: list[int], room: int, config: GenerationConfig) -> str | None:
        """Return the reason why no translation can contain a term of the glossary, or None."""
        num_classes = len(self.target_tokenizer)
        has_tokens = bool(token_ids) and has_ordinary_tokens(token_ids, config, num_classes)
        if not has_tokens or self.target_tokenizer.unk_token_id in token_ids:
            return "the vocabulary lacks a part of the term"
        if len(token_ids) > room:
            return f"the term has {len(token_ids)} tokens, and the translation has room for {room}"
        if repeated_ngram(token_ids, config.no_repeat_ngram_size):
            return f"`no_repeat_ngram_size` is {config.no_repeat_ngram_size} and forbids a repetition in the term"
        return forbidden_tokens(token_ids, config)

    # Steps 4 to 6 of a translation: from segments to translations of segments.

    def translate_segments(
        self, segments: list[Segment], options: TranslationOptions
    ) -> list[list[Translation]]:
        """Run steps 4 to 6 of a translation: search, search again for loops, and compute scores. Return the
        translations of each segment, best first. The segments may belong to different texts.
        """
        hypotheses = self._search(segments, options)
        if options.repetition_guard and "streamer" not in options.generate:
            self._search_loops_again(segments, hypotheses, options)
        if options.is_scored:
            return self._score_hypotheses(segments, hypotheses, options)
        return [_without_scores(of_segment) for of_segment in hypotheses]

    def _search(self, segments: list[Segment], options: TranslationOptions) -> list[list[Hypothesis]]:
        """Step 4 of a translation: run the search. Return the hypotheses of each segment, best first."""
        hypotheses: list[list[Hypothesis]] = [[] for _ in segments]
        token_ids = [segment.token_ids for segment in segments]
        for batch in batches_by_length(token_ids, options.tokens_per_batch, options.batch_size):
            found = self.backend.search([segments[i] for i in batch], options.is_scored, **options.generate)
            for i, of_segment in zip(batch, found, strict=True):
                for hypothesis in of_segment:
                    hypothesis.text = self.decode(hypothesis, segments[i], options)
                    hypothesis.unmet_phrases = _unmet_phrases(segments[i], hypothesis)
                hypotheses[i] = of_segment
        return hypotheses

    def decode(self, hypothesis: Hypothesis, segment: Segment, options: TranslationOptions) -> str:
        """Return the text of a hypothesis."""
        text = self.target_tokenizer.decode(hypothesis.token_ids, skip_special_tokens=True, **options.decode)
        # Replace line breaks by spaces, because the translation of a line must be one line.
        return text if "\n" in segment.text else text.replace("\n", " ")

    def _search_loops_again(
        self, segments: list[Segment], hypotheses: list[list[Hypothesis]], options: TranslationOptions
    ) -> None:
        """Step 5 of a translation: if the best translation of a segment is a loop, run the search for the
        segment again, and forbid repeated n-grams. Use the new translation only if the new translation does
        not repeat itself and contains all required phrases.
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

    def _score_hypotheses(
        self, segments: list[Segment], hypotheses: list[list[Hypothesis]], options: TranslationOptions
    ) -> list[list[Translation]]:
        """Step 6 of a translation: compute the scores and the word alignments of all hypotheses."""
        config = scoring_config(self.backend.generation_config, options.generate)
        num_layers = num_layers_for(config, options.return_alignments)
        pairs: list[tuple[Segment, Hypothesis]] = []
        for segment, of_segment in zip(segments, hypotheses, strict=True):
            pairs += [(segment, hypothesis) for hypothesis in of_segment]
        token_ids = [segment.token_ids + hypothesis.token_ids for segment, hypothesis in pairs]
        scored: dict[int, Translation] = {}
        for batch in batches_by_length(token_ids, 2 * options.tokens_per_batch, options.batch_size):
            of_batch = [pairs[i] for i in batch]
            scores = self.backend.score(
                [pair[0] for pair in of_batch], [pair[1] for pair in of_batch], num_layers
            )
            for i, (log_probs, attention) in zip(batch, scores, strict=True):
                segment, hypothesis = pairs[i]
                words = segment.words if options.return_alignments else None
                scored[i] = scored_translation(
                    hypothesis, log_probs, attention, words, self.target_tokenizer, config
                )
        in_order = iter([scored[i] for i in range(len(pairs))])
        return [list(islice(in_order, len(of_segment))) for of_segment in hypotheses]

    # Step 7 of a translation: from translations of segments to translations of texts.

    def join(
        self,
        request: Request,
        of_segments: list[list[Translation]],
        separators: list[str],
        options: TranslationOptions,
    ) -> list[Translation]:
        """Run step 7 of a translation: join the translated segments of a text. Return the translations of the
        text, best first. `of_segments` contains the translations of the N segments. `separators` are the N +
        1 separators that the method `layouts` has returned for the text.
        """
        if of_segments:
            translations = _joined(of_segments, separators)
        else:
            translations = self._translate_blank_text(request, separators, options)
        return self._calibrated(translations, options)

    def _calibrated(self, translations: list[Translation], options: TranslationOptions) -> list[Translation]:
        """Add the calibrated confidence to the translations of a text. If the calibrated confidence of the
        best translation is below `min_confidence`, return an empty translation with an error.
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
        """Return the translations of a text without words: the target prefix, or the text itself."""
        prefix = request.target_prefix.strip()
        translation = join_translations([], separators)
        if prefix or request.must_contain:
            translation = replace(
                translation,
                token_ids=prefix_token_ids(prefix, self.target_tokenizer),
                unmet_phrases=[phrase for phrase in request.must_contain if phrase not in prefix] or None,
            )
        number = setting_of("num_return_sequences", options.generate, self.backend.generation_config)
        return [translation] * (number or 1)

    def score(self, sources: Iterable[str], targets: Iterable[str], **options: Any) -> Iterator[Translation]:
        """Compute the scores of given translations, and yield the results in the order of the translations.

        The score equals the score of the search under two conditions: the tokenizer splits the translation
        into the tokens that the search chose, and the search ended the translation with `</s>`.

        Args:
            sources (Iterable): Source texts. `score` reads `window` texts at a time.
            targets (Iterable): A translation of each source text.
            **options: `return_alignments`, `window`, `tokens_per_batch`, `on_error`, `src_lang` and
                `tgt_lang` of `TranslationOptions`, and `length_penalty`, `length_penalty_type`,
                `coverage_penalty` and `generation_config` of `generate`. A batch has at most twice
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
        segments = self.source_segments([source for _, source, _ in pairs], options)
        if options.return_alignments:
            for segment, (_, source, _) in zip(segments, pairs, strict=True):
                self.segment_tokenizer.shift_word_indices([segment], ["", ""], source)
        with TOKENIZING:
            token_ids = self.target_tokenizer(text_target=targets, verbose=False)["input_ids"]
        positions = self.backend.max_positions
        hypotheses = []
        for (number, _, target), segment, ids in zip(pairs, segments, token_ids, strict=True):
            length = max(len(segment.token_ids), len(ids))
            if positions is not None and length > positions:
                raise ValueError(
                    f"Pair {number:,} must have at most {positions} tokens on each side, as many as the "
                    f"model has positions, but has {length}."
                )
            first_ids = language_token(segment)
            hypothesis = Hypothesis([*first_ids, *ids], len(first_ids), len(first_ids), text=target)
            hypotheses.append([hypothesis])
        return [translation for (translation,) in self._score_hypotheses(segments, hypotheses, options)]

    def _warn_of_limit(self, segments: list[Segment], options: TranslationOptions) -> None:
        given = (options.generate, self.backend.generation_config)
        limit = setting_of("max_new_tokens", *given) or setting_of("max_length", *given)
        longest = max((len(segment.token_ids) for segment in segments), default=0)
        # Warn at 90 % of the length limit, as transformers 4 does.
        if limit is not None and longest > 0.9 * limit:
            logger.warning(
                f"A text has {longest} tokens, and its translation has at most {limit} tokens; if the "
                "translation is cut off, give a larger `max_new_tokens`."
            )

    def _with_defaults(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of a call, completed with `task_settings` and `DEFAULT_SEARCH`."""
        if settings.get("generation_config") is not None:
            return settings
        defaults = _without_set_names(
            DEFAULT_SEARCH, {**self.backend.generation_config.to_diff_dict(), **self.task_settings}
        )
        if self.backend.max_positions is not None:
            defaults.pop("max_new_tokens", None)
        return {**_without_set_names({**self.task_settings, **defaults}, settings), **settings}


def _gives_records(options: TranslationOptions) -> bool:
    """Return True if `translate` yields `Translation` objects instead of strings."""
    config = options.generate.get("generation_config")
    number = (
        options.generate.get("num_return_sequences") or getattr(config, "num_return_sequences", None) or 1
    )
    return options.is_scored or number > 1


def _numbered_request(request: Request | InvalidInput, number: int) -> tuple[int, Request]:
    return number, unwrap(request)


def _numbered_pair(pair: tuple[Any, Any], number: int) -> tuple[int, str, str]:
    source, target = unwrap(pair[0]), unwrap(pair[1])
    check_text(source, f"Line {number:,} of `sources`")
    check_text(target, f"Line {number:,} of `targets`")
    return number, source.strip(), target.strip()


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
    attribute `line_number` of the error is the number of the line.
    """
    good: list[tuple[int, Any]] = []
    errors: dict[int, Exception] = {}
    for number, line in enumerate(lines, first_line):
        try:
            good.append((number, read(line, number)))
        except LINE_ERRORS as error:
            errors[number] = error
            if on_error == "fail":
                break
    found = _find_or_bisect(good, find, on_error)
    for number in range(first_line, first_line + len(good) + len(errors)):
        yield _skip_or_raise(errors[number], number, on_error) if number in errors else next(found)


def _find_or_bisect(
    lines: list[tuple[int, Any]], find: Callable[[list[Any]], Sequence[Any]], on_error: str
) -> Iterator[Any]:
    """Call `find` with a list of lines, and yield the result of each line. If `find` raises an error, halve
    the lines and call `find` for each half, until the invalid line is found.
    """
    try:
        found = find([line for _, line in lines]) if lines else []
    except LINE_ERRORS as error:
        if len(lines) == 1:
            yield _skip_or_raise(error, lines[0][0], on_error)
            return
        half = len(lines) // 2
        yield from _find_or_bisect(lines[:half], find, on_error)
        yield from _find_or_bisect(lines[half:], find, on_error)
    else:
        yield from found


def _skip_or_raise(error: Exception, number: int, on_error: str) -> Translation:
    if on_error == "skip":
        return Translation("", error=" ".join(str(error).split()))
    error.line_number = number  # type: ignore[attr-defined]
    raise error


def _without_set_names(defaults: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `defaults` whose keys are not in `settings`. If `settings` contains `max_length`
    or `max_new_tokens`, leave out the defaults of both `max_length` and `max_new_tokens`.
    """
    names = _LENGTHS | settings.keys() if _LENGTHS & settings.keys() else settings.keys()
    return {name: value for name, value in defaults.items() if name not in names}


def batches_by_length(
    pieces: Sequence[Sized], tokens_per_batch: int, batch_size: int | None = None
) -> Iterator[list[int]]:
    """Divide token sequences into batches of similar lengths. Yield the indices of the sequences in each
    batch, longest sequences first. A batch has at most `tokens_per_batch` tokens, including padding. A
    sequence with more than `tokens_per_batch` tokens forms a batch of its own.
    """
    longest_first = iter(sorted(range(len(pieces)), key=lambda i: -len(pieces[i])))
    for i in longest_first:
        size = max(1, tokens_per_batch // max(1, len(pieces[i])))
        yield [i, *islice(longest_first, min(size, batch_size or size) - 1)]


def _without_scores(hypotheses: list[Hypothesis]) -> list[Translation]:
    return [
        Translation(one.text, token_ids=one.token_ids, unmet_phrases=one.unmet_phrases) for one in hypotheses
    ]


def _unmet_phrases(segment: Segment, hypothesis: Hypothesis) -> list[str] | None:
    """Return the required phrases that a hypothesis lacks, or None if the hypothesis contains all phrases. A
    phrase may be a part of a longer word, because the translation may inflect the phrase.
    """
    unmet = []
    for token_ids, text in zip(segment.phrases, segment.phrase_texts, strict=True):
        if not contains(hypothesis.token_ids, token_ids) and text.strip() not in hypothesis.text:
            unmet.append(text)
    return unmet or None


def _is_looping(segment: Segment, hypothesis: Hypothesis) -> bool:
    return is_loop(hypothesis.text, f"{segment.text} {segment.forced_text}")


def _joined(parts: list[list[Translation]], separators: list[str]) -> list[Translation]:
    """Join the best translations of all parts of a text to the best translation of the text, the second-best
    translations to the second-best translation, and so on.
    """
    if len(parts) == 1 and not any(separators):
        return parts[0]
    number = min(len(part) for part in parts)
    return [join_translations([part[rank] for part in parts], separators) for rank in range(number)]


def assign_phrases(phrases: Sequence[str], texts: Sequence[str]) -> list[list[str]]:
    """Assign each required phrase to one segment of the source text. Return the assigned phrases of each
    segment. The entries of `texts` are the texts of the segments. A phrase is assigned to the first segment
    that contains the phrase. Required phrases are often names, and a name often has the same spelling in the
    source and in the translation. If no segment contains the phrase, the phrase is assigned to the longest
    segment.
    """
    assigned: list[list[str]] = [[] for _ in texts]
    longest = max(range(len(texts)), key=lambda i: len(texts[i]))
    for phrase in phrases:
        part = next((i for i, text in enumerate(texts) if phrase in text), longest)
        assigned[part].append(phrase)
    return assigned
