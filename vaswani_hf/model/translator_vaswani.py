"""The translator: from texts to translations, in the order of the texts.

A window of texts is translated at once, in these steps:

1. split each text into sentences, if the options say so;
2. tokenize all sentences in one call, and cut those that are too long for the model: the results are
   segments;
3. give segments the constraints of their text: target prefix and phrases;
4. search batches of segments of similar length by the backend;
5. search again, without repetition, the segments whose translations fall into a loop, if the options say so;
6. score and align the translations, if the options say so;
7. join the translations of the segments of each text.

The translator works for all encoder-decoder models that generate. The backends are in `backend_vaswani`, the
options in `options_vaswani`.

This file travels with every checkpoint because the pipeline is an adapter of it. The package adds checkpoints
by name (`vaswani_hf.translation.Translator.from_pretrained`) and the backend CTranslate2.
"""

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice, repeat, zip_longest
from typing import Any, TypeVar

import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from .backend_vaswani import Backend, Hypothesis, PyTorchBackend, Segment
from .configuration_vaswani import eos_token_ids
from .options_vaswani import SCORE_SETTINGS, TranslationOptions, setting_of
from .phrase_search_vaswani import contains, repeated_ngram
from .scoring_vaswani import (
    Translation,
    Word,
    join_translations,
    num_layers_for,
    scored_translation,
    scoring_config,
    with_alternatives,
    words_at,
)
from .text_rules_vaswani import is_loop, ngram_size_without_loops, split_sentences

logger = logging.get_logger(__name__)

# During a call a tokenizer has a state: where it cuts, which language it reads. Therefore threads take turns.
TOKENIZING = threading.RLock()
# The longest input (tokens) if neither tokenizer nor model has a limit. Attention to it needs little memory.
DEFAULT_MAX_LENGTH = 1024
# Tokenizers without a limit have a `model_max_length` of 10^30.
_NO_LIMIT = 10**6
# The search if neither the call nor the checkpoint sets it, as in the pipeline of transformers 4. A Vaswani
# model has a limit of its own for each sentence and does not get `max_new_tokens` from here.
DEFAULT_SEARCH = {"num_beams": 4, "max_new_tokens": 256}
_LENGTHS = {"max_new_tokens", "max_length"}
# The options of `score` in addition to `SCORE_SETTINGS`.
_SCORE_OPTIONS = ("return_alignments", "window", "tokens_per_batch", "on_error", "generation_config")
T = TypeVar("T")
_TAG = re.compile(r">>\S+?<<")


# Requests: texts with their constraints, and lines that cannot be read or translated.

# What a bad line raises: when it is read, when it is tokenized, and in the search.
LINE_ERRORS = (ValueError, TypeError, ArithmeticError)


@dataclass(frozen=True)
class Request:
    """A text to translate, with the constraints of its translation.

    Attributes:
        text (str): The text.
        target_prefix (str): The text that its translation begins with.
        must_contain (sequence): The phrases that its translation contains.

    Raises:
        TypeError: If one of them is no str.
        ValueError: If UTF-8 cannot write one of them, or a phrase is empty.
    """

    text: str
    target_prefix: str = ""
    must_contain: Sequence[str] = ()

    def __post_init__(self):
        check_text(self.text, "A text to translate")
        if self.target_prefix != "":
            check_text(self.target_prefix, "A target prefix")
        for phrase in self.must_contain:
            check_text(phrase, "A phrase of `must_contain`")
            if not phrase.strip():
                raise ValueError("A phrase of `must_contain` must have at least one character, but is empty.")


@dataclass(frozen=True)
class InvalidInput:
    """A line that cannot be read, in place of its text or its request."""

    error: Exception


def try_parse(read: Callable[..., T], *args: Any) -> T | InvalidInput:
    """What a call that reads a line returns, or the error that it raises, as an `InvalidInput`."""
    try:
        return read(*args)
    except LINE_ERRORS as error:
        return InvalidInput(error)


def unwrap(line: T | InvalidInput) -> T:
    """The line, if it could be read; raises the error of an `InvalidInput`."""
    if isinstance(line, InvalidInput):
        raise line.error
    return line


def has_text(request: Any) -> bool:
    """True for a request with something to translate; False for a blank one and for an `InvalidInput`."""
    return isinstance(request, Request) and not request.text.isspace() and request.text != ""


def results_of_lines(
    lines: Sequence[Any],
    first_line: int,
    read: Callable[[Any, int], Any],
    find: Callable[[list[Any]], Sequence[Any]],
    on_error: str,
) -> Iterator[Any]:
    """The result of each line of a window. All results are found at once, and a bad line costs no other line.

    `read` makes what `find` needs from a line and its number, and `find` gives the results of a list of them.
    With "skip" a bad line gives a `Translation` with an `error`. With "fail" its error is raised after the
    results of the lines before it, with the number of the line as `line_number`.
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
    found = _results(good, find, on_error)
    for number in range(first_line, first_line + len(good) + len(errors)):
        yield _failed(errors[number], number, on_error) if number in errors else next(found)


def _results(
    lines: list[tuple[int, Any]], find: Callable[[list[Any]], Sequence[Any]], on_error: str
) -> Iterator[Any]:
    """The results of lines. After an error, which does not name its line, each half of the lines is tried."""
    try:
        found = find([line for _, line in lines]) if lines else []
    except LINE_ERRORS as error:
        if len(lines) == 1:
            yield _failed(error, lines[0][0], on_error)
            return
        half = len(lines) // 2
        yield from _results(lines[:half], find, on_error)
        yield from _results(lines[half:], find, on_error)
    else:
        yield from found


def _failed(error: Exception, number: int, on_error: str) -> Translation:
    if on_error == "skip":
        return Translation("", error=" ".join(str(error).split()))
    error.line_number = number  # type: ignore[attr-defined]
    raise error


def refuse_one_text(name: str, texts: Any) -> None:
    """Refuse a text, or anything else that is no iterable of texts."""
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise TypeError(
            f"`{name}` must be a list or another iterable of texts, but is of type {type(texts).__name__}."
        )


def pairs_of(sources: Iterable[str], targets: Iterable[str]) -> Iterator[tuple[Any, Any]]:
    """Texts with their translations; refuses columns of different lengths."""
    missing = object()
    for number, pair in enumerate(zip_longest(sources, targets, fillvalue=missing), 1):
        if missing in pair:
            fewer, more = ("sources", "targets") if pair[0] is missing else ("targets", "sources")
            raise ValueError(
                f"`{fewer}` must hold as many texts as `{more}`, but ends before number {number:,}."
            )
        yield pair


def requests_of(
    lines: Iterable[str],
    target_prefixes: Iterable[str | None] | None,
    must_contain: Iterable[Sequence[str] | None] | None,
) -> Iterator[Request | InvalidInput]:
    """Lines with the constraints of their translations; refuses columns of different lengths."""
    missing = object()
    prefixes = repeat(None) if target_prefixes is None else iter(target_prefixes)
    phrases = repeat(None) if must_contain is None else iter(must_contain)
    number = 0
    for number, line in enumerate(lines, 1):
        prefix = next(prefixes, missing)
        of_line = next(phrases, missing)
        for name, value in (("target_prefixes", prefix), ("must_contain", of_line)):
            if value is missing:
                raise ValueError(f"`{name}` must hold one entry per line, but ends before line {number:,}.")
        yield try_parse(_request, number, line, prefix, of_line)
    for name, given, rest in (
        ("target_prefixes", target_prefixes, prefixes),
        ("must_contain", must_contain, phrases),
    ):
        if given is not None and next(rest, missing) is not missing:
            raise ValueError(
                f"`{name}` must hold one entry per line, but has more than the {number:,} lines."
            )


def _request(number: int, line: Any, prefix: Any, phrases: Any) -> Request:
    """The request of a line of `translate`; None is no constraint."""
    phrases = () if phrases is None else phrases
    if isinstance(phrases, (str, bytes)) or not isinstance(phrases, Iterable):
        raise TypeError(
            f"`must_contain` must hold a list of phrases per line, but for line {number:,} it is of type "
            f"{type(phrases).__name__}."
        )
    try:
        return Request(line, "" if prefix is None else prefix, tuple(phrases))
    except (TypeError, ValueError) as error:
        raise type(error)(f"Line {number:,}: {error}") from error


def check_text(text: Any, name: str) -> None:
    """Refuse what is no str, and what UTF-8 cannot write; `name` is the name of the text in the message."""
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str, but is of type {type(text).__name__}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} must hold text, but holds {text[error.start]!r}, half a character, which UTF-8 cannot write."
        ) from None


class BaseTranslator:
    """A model, or several, with the tokenizers.

    A subclass for other outputs than texts overrides `split`, `cut`, `decode` and `backend_class`.

    Args:
        model (PreTrainedModel or Backend): An encoder-decoder model, or another backend.
        source_tokenizer (PreTrainedTokenizerBase): The tokenizer of the language that is translated.
        target_tokenizer (PreTrainedTokenizerBase): The tokenizer of the other language; may be the same
            object.
        ensemble (sequence): More models of the same vocabulary, whose probabilities are averaged with the
            first one's.
        prefix (str): A text that is put before each text, as T5 needs it.
        task_settings (mapping): Settings of `generate` that the checkpoint has for its task.
    """

    backend_class: type = PyTorchBackend

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
        is_model = isinstance(model, torch.nn.Module)
        self.backend: Backend = self.backend_class(model, ensemble) if is_model else model
        self.source_tokenizer: Any = source_tokenizer
        self.target_tokenizer: Any = target_tokenizer
        self.prefix = prefix
        self.task_settings = dict(task_settings or {})

    @property
    def model(self) -> Any:
        """The first model."""
        return self.backend.model  # type: ignore[attr-defined]

    @property
    def max_length(self) -> int:
        """The largest number of tokens of a segment. Longer segments are cut."""
        if self.backend.max_positions is None:
            return _NO_LIMIT
        limits: list[Any] = [self.source_tokenizer.model_max_length, self.backend.max_positions]
        return min((limit for limit in limits if limit < _NO_LIMIT), default=DEFAULT_MAX_LENGTH)

    @cached_property
    def _tags(self) -> dict[str, int]:
        return tags_of(self.source_tokenizer)

    def translate(
        self,
        lines: Iterable[str],
        *,
        target_prefixes: Iterable[str | None] | None = None,
        must_contain: Iterable[Sequence[str] | None] | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """Translations in the order of the lines.

        A line of white space has an empty translation, or, with `split_sentences`, the white space. A line
        that is longer than the model permits is cut at word boundaries. The translations of its pieces are
        joined by spaces, and a warning says so.

        Args:
            lines (Iterable): Texts. A window of them is read at a time.
            target_prefixes (Iterable, optional): For each line the text that its translation begins with, or
                None.
            must_contain (Iterable, optional): For each line the phrases that its translation contains, or
                None. A phrase is tokenized as it is inside a sentence, after a space. If the other settings
                permit no translation with all phrases, the translation has as many of them as possible. A
                warning names the line and the other phrases, and a `Translation` has them as `unmet_phrases`.
            **options: The fields of `TranslationOptions`. All other options go to `generate`.

        Returns:
            Iterator: A str for each line; a `Translation` if `return_scores`, `return_alignments` or a
            `num_return_sequences` above 1 is given; a `Translation` with an `error` for a line that is
            skipped.

        Raises:
            TypeError: If a text is given where several are due, or a line is no str.
            ValueError: If an option is impossible, or a line cannot be translated.
        """
        for name, texts in (
            ("lines", lines),
            ("target_prefixes", target_prefixes),
            ("must_contain", must_contain),
        ):
            if texts is not None or name == "lines":
                refuse_one_text(name, texts)
        chosen = TranslationOptions.of(**options)
        if _gives_records(chosen):
            chosen = replace(chosen, return_scores=True)
        return self.translate_requests(requests_of(lines, target_prefixes, must_contain), chosen)

    def translate_requests(
        self, requests: Iterable[Request | InvalidInput], options: TranslationOptions, first_line: int = 1
    ) -> Iterator[Any]:
        """For each request its translation: a str, or a `Translation` if scores or several are asked for.

        `first_line` is the number of the first request, for warnings and for the seed.
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
        """For each request its translations, best first; there may be fewer than `num_return_sequences`."""
        completed = replace(options, generate=self._with_defaults(options.generate))
        requests = iter(requests)
        while window := list(islice(requests, options.window)):
            self.prepare(window, options)
            if options.seed is not None:
                # A continued run, or one of several processes, draws the same translations for a line.
                self.backend.seed(options.seed + first_line)
            find = partial(self._translate_lines, options=completed)
            for result in results_of_lines(window, first_line, _numbered_request, find, options.on_error):
                yield [result] if isinstance(result, Translation) else result
            first_line += len(window)

    def prepare(self, requests: Sequence[Request | InvalidInput], options: TranslationOptions) -> None:
        """Does nothing. It is called before each window, so that a subclass may choose its backend."""

    def _translate_lines(
        self, lines: list[tuple[int, Request]], options: TranslationOptions
    ) -> list[list[Translation]]:
        """The translations of each of some numbered requests."""
        requests = [request for _, request in lines]
        layouts = self.layouts(requests, [number for number, _ in lines], options)
        segments: list[Segment] = []
        for of_text, _ in layouts:
            segments += of_text
        if options.warn_of_limit:
            self._warn_of_limit(segments, options)
        hypotheses = self._search(segments, options)
        if options.repetition_guard and "streamer" not in options.generate:
            self._mend_loops(segments, hypotheses, options)
        if options.is_scored:
            of_segments = iter(self._scored(segments, hypotheses, options))
        else:
            of_segments = map(_unscored, segments, hypotheses)
        results = []
        for (number, request), (of_text, separators) in zip(lines, layouts, strict=True):
            if of_text:
                translations = _joined(list(islice(of_segments, len(of_text))), separators)
            else:
                translations = self._blank(request, separators, options)
            if unmet := translations[0].unmet_phrases:
                logger.warning(
                    f"Line {number} has {', '.join(map(repr, unmet))} in `must_contain`, but no translation with that "
                    "was found under the other settings; its translation is without it."
                )
            results.append(translations)
        return results

    # Steps 1 to 3: from texts to segments.

    def layouts(
        self, requests: Sequence[Request], numbers: Iterable[int], options: TranslationOptions
    ) -> list[tuple[list[Segment], list[str]]]:
        """For each numbered request the N segments of its text, and the N + 1 separators of their
        translations.
        """
        texts = [self.split(request.text, options) for request in requests]
        sentences: list[str] = []
        for of_text, _ in texts:
            sentences += of_text
        segments = iter(self._tokenize(sentences, options))
        max_length = self.max_length
        layouts = []
        for request, number, (of_text, separators) in zip(requests, numbers, texts, strict=False):
            of_request = list(islice(segments, len(of_text)))
            if options.return_alignments and len(of_request) > 1:
                self._count_words_of_text(of_request)
            pieces: list[Segment] = []
            between = separators[:1]
            for segment, separator in zip(of_request, separators[1:], strict=True):
                of_segment = self.cut(segment, number, max_length)
                pieces += of_segment
                between += [" "] * (len(of_segment) - 1) + [separator]
            if pieces and (request.target_prefix or request.must_contain):
                self._constrain(pieces, request)
            elif request.target_prefix:
                # The translation of a blank text is its prefix.
                between = [request.target_prefix.strip()]
            layouts.append((pieces, between))
        return layouts

    def split(self, text: str, options: TranslationOptions) -> tuple[list[str], list[str]]:
        """The N parts of a text that are translated separately, and N + 1 separators of white space."""
        stripped = text.strip()
        tag = self._tag_of(stripped)
        if stripped == tag:
            # White space, or a direction and nothing to translate.
            return [], [text if options.split_sentences and not tag else ""]
        if not options.split_sentences:
            return [stripped], ["", ""]
        if not tag:
            return split_sentences(text)
        # The direction of a text is the direction of each of its sentences.
        sentences, separators = split_sentences(text.lstrip().removeprefix(tag).lstrip())
        return [f"{tag} {sentence}" for sentence in sentences], separators

    def _tag_of(self, text: str) -> str:
        """The tag of the direction that a text begins with, such as ">>en<<"; empty if there is none."""
        tag = _TAG.match(text)
        return tag[0] if tag and tag[0] in self._tags else ""

    def _tokenize(self, texts: list[str], options: TranslationOptions) -> list[Segment]:
        """Texts as segments. They have `words` if they are cut or aligned, and the tokenizer is fast."""
        if not texts:
            return []
        settings: dict[str, Any] = {"verbose": False, **options.tokenize, "padding": False}
        languages = {name: settings.pop(name, None) for name in ("src_lang", "tgt_lang")}
        prefixed = [self.prefix + text for text in texts]
        tokenizer = self.source_tokenizer
        if hasattr(tokenizer, "_build_translation_inputs"):
            # A tokenizer of several languages, such as that of mBART.
            settings = {"return_tensors": None, **languages, **settings}
            tokenizer = tokenizer._build_translation_inputs
        with TOKENIZING:
            inputs = tokenizer(prefixed, **settings)
        generate = {name: value for name, value in inputs.items() if not isinstance(value, list)}
        max_length = self.max_length
        segments = []
        for row, (text, token_ids) in enumerate(zip(texts, inputs["input_ids"], strict=True)):
            segment = Segment(text, token_ids, generate=generate)
            if self.source_tokenizer.is_fast and (options.return_alignments or len(token_ids) > max_length):
                segment.words = self._source_words(prefixed[row], inputs[row])
            segments.append(segment)
        return segments

    def _source_words(self, text: str, encoding: Any) -> list[int]:
        """For each token the word of the text without the prefix of the task, -1 for none."""
        starts = []
        for (start, _), is_special in zip(encoding.offsets, encoding.special_tokens_mask, strict=True):
            starts.append(-1 if is_special else start)
        num_before = len(self.prefix.split())
        return [word - num_before if word >= num_before else -1 for word in words_at(text, starts)]

    def _count_words_of_text(self, segments: list[Segment]) -> None:
        """Makes words of sentences count from the beginning of their text, which has the tag only once."""
        num_words = 0
        for number, segment in enumerate(segments):
            repeats_tag = number > 0 and segment.token_ids[0] in self._tags.values()
            num_words -= repeats_tag
            segment.words = [word + num_words if word >= 0 else -1 for word in segment.words]
            if repeats_tag and segment.words:
                segment.words[0] = -1
            num_words += len(segment.text.split())

    def cut(self, segment: Segment, number: int, max_length: int) -> list[Segment]:
        """A segment of line `number` in pieces of at most `max_length` tokens, each with the segment's tag."""
        if len(segment.token_ids) <= max_length:
            return [segment]
        *ids, end_id = segment.token_ids
        words = segment.words or [-1] * len(segment.token_ids)
        tag_ids = ids[:1] if ids[0] in self._tags.values() else []
        start = len(tag_ids)
        tag_words = words[:start]
        pieces = []
        while start < len(ids):
            stop = min(start + max_length - 1 - len(tag_ids), len(ids))
            if stop < len(ids):
                # The piece ends at its last word boundary, unless one word fills it.
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
            f"Line {number} has {len(segment.token_ids)} tokens, more than the {max_length} of this model: it is translated "
            f"in {len(pieces)} pieces."
        )
        return pieces

    def _constrain(self, segments: list[Segment], request: Request) -> None:
        """Gives the target prefix to the first segment of a text, and each phrase to one of the segments."""
        segments[0].prefix = prefix_token_ids(request.target_prefix, self.target_tokenizer)
        segments[0].forced_text = request.target_prefix
        if not request.must_contain:
            return
        phrases_of = assign_phrases(request.must_contain, [segment.text for segment in segments])
        for segment, phrases in zip(segments, phrases_of, strict=True):
            segment.phrases = [phrase_token_ids(phrase, self.target_tokenizer) for phrase in phrases]
            segment.phrase_texts = phrases
            segment.forced_text = " ".join([segment.forced_text, *phrases])

    # Steps 4 and 5: from segments to hypotheses.

    def _search(self, segments: list[Segment], options: TranslationOptions) -> list[list[Hypothesis]]:
        """The hypotheses of each segment, best first, with their texts."""
        hypotheses: list[list[Hypothesis]] = [[] for _ in segments]
        token_ids = [segment.token_ids for segment in segments]
        for batch in batches_by_length(token_ids, options.tokens_per_batch, options.batch_size):
            found = self.backend.search([segments[i] for i in batch], options.is_scored, **options.generate)
            for i, of_segment in zip(batch, found, strict=True):
                for hypothesis in of_segment:
                    hypothesis.text = self.decode(hypothesis, segments[i], options)
                hypotheses[i] = of_segment
        return hypotheses

    def decode(self, hypothesis: Hypothesis, segment: Segment, options: TranslationOptions) -> str:
        """The text of a hypothesis of a segment."""
        text = self.target_tokenizer.decode(hypothesis.token_ids, skip_special_tokens=True, **options.decode)
        # A line stays a line.
        return text if "\n" in segment.text else text.replace("\n", " ")

    def _mend_loops(
        self, segments: list[Segment], hypotheses: list[list[Hypothesis]], options: TranslationOptions
    ) -> None:
        """Replaces loops by the results of a second search without repetition, if these are no loops."""
        rows_of_size: dict[int, list[int]] = {}
        for row, (segment, found) in enumerate(zip(segments, hypotheses, strict=True)):
            size = ngram_size_without_loops(segment.text)
            may_mend = not any(repeated_ngram(phrase, size) for phrase in segment.phrases)
            if may_mend and _loops(segment, found[0]):
                rows_of_size.setdefault(size, []).append(row)
        for size, rows in rows_of_size.items():
            generate = {**options.generate, "no_repeat_ngram_size": size}
            mended = self._search([segments[row] for row in rows], replace(options, generate=generate))
            for row, found in zip(rows, mended, strict=True):
                if not _loops(segments[row], found[0]) and not _unmet_phrases(segments[row], found[0]):
                    hypotheses[row] = found

    # Steps 6 and 7: from hypotheses to translations of texts.

    def _scored(
        self, segments: list[Segment], hypotheses: list[list[Hypothesis]], options: TranslationOptions
    ) -> list[list[Translation]]:
        """The translations of each segment, with scores."""
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
                translation = scored_translation(
                    hypothesis, log_probs, attention, words, self.target_tokenizer, config
                )
                if segment.phrases:
                    translation = replace(translation, unmet_phrases=_unmet_phrases(segment, hypothesis))
                scored[i] = translation
        in_order = iter([scored[i] for i in range(len(pairs))])
        return [list(islice(in_order, len(of_segment))) for of_segment in hypotheses]

    def _blank(
        self, request: Request, separators: list[str], options: TranslationOptions
    ) -> list[Translation]:
        """The translations of a text without words: its target prefix, or its white space."""
        prefix = request.target_prefix.strip()
        translation = join_translations([], separators)
        if prefix or request.must_contain:
            translation = replace(
                translation,
                token_ids=prefix_token_ids(prefix, self.target_tokenizer),
                words=[Word(word, 1.0) for word in prefix.split()],
                unmet_phrases=[phrase for phrase in request.must_contain if phrase not in prefix] or None,
            )
        number = setting_of("num_return_sequences", options.generate, self.backend.generation_config)
        return [translation] * (number or 1)

    def score(self, sources: Iterable[str], targets: Iterable[str], **options: Any) -> Iterator[Translation]:
        """Scores of given translations, in their order.

        A translation of the model itself gets the score that the search reported, if the tokenizer splits it
        into the tokens of the search, and it ended by itself.

        Args:
            sources (Iterable): Texts. A window of them is read at a time.
            targets (Iterable): Their translations.
            **options: `return_alignments`, `window`, `tokens_per_batch` (source and target positions, each half
                on the average) and `on_error` of `TranslationOptions`; and `length_penalty`,
                `length_penalty_type` and `coverage_penalty`, also in a `generation_config`.

        Returns:
            Iterator: A `Translation` for each pair.

        Raises:
            TypeError: If there is no such option, or a text is given where several are due.
            ValueError: If an option is impossible, or there are not equally many sources and targets.
        """
        unknown = options.keys() - {*SCORE_SETTINGS, *_SCORE_OPTIONS}
        if unknown:
            raise TypeError(f"`score` takes no argument `{min(unknown)}`.")
        refuse_one_text("sources", sources)
        refuse_one_text("targets", targets)
        given = {name: value for name, value in options.items() if value is not None}
        chosen = TranslationOptions.of(return_scores=True, **given)
        return self._score_pairs(pairs_of(sources, targets), chosen)

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
        segments = self._tokenize([source for _, source, _ in pairs], options)
        with TOKENIZING:
            token_ids = self.target_tokenizer(text_target=targets, verbose=False)["input_ids"]
        positions = self.backend.max_positions
        hypotheses = []
        for (number, _, target), segment, ids in zip(pairs, segments, token_ids, strict=True):
            length = max(len(segment.token_ids), len(ids))
            if positions is not None and length > positions:
                raise ValueError(
                    f"Pair {number:,} must have at most {positions} tokens on each side, as many as the model has positions, "
                    f"but has {length}."
                )
            hypotheses.append([Hypothesis(ids, text=target)])
        return [translation for (translation,) in self._scored(segments, hypotheses, options)]

    def _warn_of_limit(self, segments: list[Segment], options: TranslationOptions) -> None:
        given = (options.generate, self.backend.generation_config)
        limit = setting_of("max_new_tokens", *given) or setting_of("max_length", *given)
        longest = max((len(segment.token_ids) for segment in segments), default=0)
        # transformers 4 warns at this share too.
        if limit is not None and longest > 0.9 * limit:
            logger.warning(
                f"A text has {longest} tokens, its translation at most {limit}; if it is cut off, give a larger "
                "`max_new_tokens`."
            )

    def _with_defaults(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Settings of `generate`, completed by those of the task and by `DEFAULT_SEARCH`."""
        if settings.get("generation_config") is not None:
            return settings
        defaults = _unset(
            DEFAULT_SEARCH, {**self.backend.generation_config.to_diff_dict(), **self.task_settings}
        )
        if self.backend.max_positions is not None:
            defaults.pop("max_new_tokens", None)
        return {**_unset({**self.task_settings, **defaults}, settings), **settings}


def _unset(defaults: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of what is not set. One maximum length stands for both: `generate` refuses two of them."""
    names = _LENGTHS | settings.keys() if _LENGTHS & settings.keys() else settings.keys()
    return {name: value for name, value in defaults.items() if name not in names}


def _gives_records(options: TranslationOptions) -> bool:
    """True if a text gives a `Translation` and not a str."""
    config = options.generate.get("generation_config")
    number = (
        options.generate.get("num_return_sequences") or getattr(config, "num_return_sequences", None) or 1
    )
    return options.is_scored or number > 1


def _joined(parts: list[list[Translation]], separators: list[str]) -> list[Translation]:
    """The translations of a text from those of its segments: the best of each, the second best of each, …"""
    if len(parts) == 1 and not any(separators):
        return parts[0]
    number = min(len(part) for part in parts)
    return [join_translations([part[rank] for part in parts], separators) for rank in range(number)]


def _unscored(segment: Segment, hypotheses: list[Hypothesis]) -> list[Translation]:
    """The translations of a segment, without scores."""
    translations = []
    for hypothesis in hypotheses:
        unmet = _unmet_phrases(segment, hypothesis) if segment.phrases else None
        translations.append(Translation(hypothesis.text, token_ids=hypothesis.token_ids, unmet_phrases=unmet))
    return translations


def _unmet_phrases(segment: Segment, hypothesis: Hypothesis) -> list[str] | None:
    """The phrases of a segment that a hypothesis lacks; None if it has all."""
    unmet = []
    for token_ids, text in zip(segment.phrases, segment.phrase_texts, strict=True):
        if not contains(hypothesis.token_ids, token_ids) and text.strip() not in hypothesis.text:
            unmet.append(text)
    return unmet or None


def _loops(segment: Segment, hypothesis: Hypothesis) -> bool:
    return is_loop(hypothesis.text, f"{segment.text} {segment.forced_text}")


def prefix_token_ids(prefix: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens of the beginning of a translation, without `</s>` and the white space around it."""
    return _target_token_ids(prefix.strip(), tokenizer) if prefix.strip() else []


def phrase_token_ids(phrase: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens of a phrase inside a sentence, after a space.

    Many tokenizers have different tokens for a word after a space and for the same letters elsewhere.
    """
    # Put the phrase after some word, and take the tokens of the word away.
    word = _target_token_ids("a", tokenizer)
    with_word = _target_token_ids(f"a {phrase.strip()}", tokenizer)
    if with_word[: len(word)] == word:
        return with_word[len(word) :]
    return _target_token_ids(phrase.strip(), tokenizer)


def _target_token_ids(text: str, tokenizer: Any) -> list[int]:
    with TOKENIZING:
        return tokenizer(text_target=text, add_special_tokens=False)["input_ids"]


def assign_phrases(phrases: Sequence[str], texts: Sequence[str]) -> list[list[str]]:
    """For each part of a text the phrases that its translation must contain.

    A phrase goes to the first part that has it in its text, such as a name, or else to the longest part.
    """
    assigned: list[list[str]] = [[] for _ in texts]
    longest = max(range(len(texts)), key=lambda i: len(texts[i]))
    for phrase in phrases:
        part = next((i for i, text in enumerate(texts) if phrase in text), longest)
        assigned[part].append(phrase)
    return assigned


def batches_by_length(
    pieces: Sequence[Sequence[int]], tokens_per_batch: int, batch_size: int | None = None
) -> Iterator[list[int]]:
    """Batches of indices of pieces, longest first, each within the budget of tokens or a single piece."""
    longest_first = iter(sorted(range(len(pieces)), key=lambda i: -len(pieces[i])))
    for i in longest_first:
        size = max(1, tokens_per_batch // max(1, len(pieces[i])))
        yield [i, *islice(longest_first, min(size, batch_size or size) - 1)]


def tags_of(tokenizer: Any) -> dict[str, int]:
    """The tags of directions that a tokenizer knows, such as ">>en<<", with their ids."""
    tags = {}
    for token_id, token in getattr(tokenizer, "added_tokens_decoder", {}).items():
        if not token.special and _TAG.fullmatch(token.content):
            tags[token.content] = token_id
    return tags


def _numbered_request(request: Request | InvalidInput, number: int) -> tuple[int, Request]:
    return number, unwrap(request)


def _numbered_pair(pair: tuple[Any, Any], number: int) -> tuple[int, str, str]:
    source, target = unwrap(pair[0]), unwrap(pair[1])
    check_text(source, f"Line {number:,} of `sources`")
    check_text(target, f"Line {number:,} of `targets`")
    return number, source.strip(), target.strip()


def check_tokenizers(model: Any, source_tokenizer: Any, target_tokenizer: Any, name: str = "") -> None:
    """Refuse tokenizers that do not fit a Vaswani model. The model may have spare classes."""
    config = model.config
    fitting = f"must fit {name!r}" if name else "must fit the model"
    sides = {
        "source": (source_tokenizer, config.vocab_size),
        "target": (target_tokenizer, config.decoder_vocab_size),
    }
    for side, (tokenizer, num_classes) in sides.items():
        fault = ""
        largest = max(tokenizer.get_vocab().values(), default=0)
        if largest >= num_classes:
            fault = f"has ids up to {largest:,}, more than the {num_classes:,} classes of the model"
        special = {"pad_token": [] if config.pad_token_id is None else [config.pad_token_id]}
        if side == "target":
            special["eos_token"] = eos_token_ids(config) + eos_token_ids(model.generation_config)
        for token, ids in special.items():
            token_id = getattr(tokenizer, f"{token}_id")
            if not fault and ids and token_id is not None and token_id not in ids:
                fault = f"its `{token}` has the id {token_id}, and that of the model {ids[0]}"
        if fault:
            raise ValueError(f"The {side} tokenizer {fitting}, but {fault}; take both from one checkpoint.")
