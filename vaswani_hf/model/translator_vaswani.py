"""Translates texts, and returns the translations in the order of the texts.

`Translator.translate` reads a window of texts (1000 by default) and translates the window in seven steps:

1. Split each text into sentences, if `split_sentences` is set.
2. Tokenize all sentences of the window in one call. Cut sentences that are too long for the model. Each
   sentence or piece becomes a `Segment`.
3. Attach the target prefix and the phrases of each text to its segments.
4. Search: `PyTorchBackend.search` of backend_vaswani calls `model.generate` for each batch of segments with
   similar lengths. Each translation of a segment is a `Hypothesis`.
5. Search again, without repetition, for segments whose translations repeat a phrase in a loop, if
   `repetition_guard` is set.
6. Compute scores and word alignments, if `return_scores` or `return_alignments` is set.
7. Join the translations of the segments of each text.

The methods of `BaseTranslator` are in the order of the seven steps. The file backend_vaswani declares the
interface `Backend` and the classes `Segment` and `Hypothesis`, and contains `PyTorchBackend`. The translator
works for all encoder-decoder models that have `generate`.

The file inputs_vaswani validates options and texts. The class `Request` combines a text with the constraints
of its translation. The file text_rules_vaswani splits sentences, aligns words and detects loops.

This file is saved with every checkpoint, because the translation pipeline of the checkpoint uses the
translator. `Translator.from_pretrained` and the CTranslate2 backend are in the folder `translation` of the
package.

In tensor shapes, S is the source length and T the target length (both in tokens). N is the number of decoder
layers.
"""

import copy
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from .backend_vaswani import Backend, Hypothesis, PyTorchBackend, Segment, language_token
from .beam_search_vaswani import coverage_score, length_penalty
from .configuration_vaswani import eos_token_ids
from .errors_vaswani import InvalidValueError
from .generation_vaswani import setting_of
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
    validate_search_fields,
    zip_pairs,
)
from .phrase_search_vaswani import contains, forbidden_tokens, repeated_ngram
from .text_rules_vaswani import (
    align_words,
    is_loop,
    join_sentences,
    ngram_size_without_loops,
    shift_alignment,
    split_sentences,
    target_word_indices,
    to_pharaoh,
    token_texts,
    words_at,
)

logger = logging.get_logger(__name__)

# Hold this lock during each call of a tokenizer, because a call changes the state of the tokenizer
# (truncation and language).
TOKENIZING = threading.RLock()
# The maximum number of input tokens if neither the tokenizer nor the model has a limit.
DEFAULT_MAX_LENGTH = 1024
# Tokenizers without a limit have a `model_max_length` of 10^30.
_NO_LIMIT = 10**6
# The default settings of the search, for settings that neither the call nor the checkpoint sets. The values
# are the defaults of the pipeline of transformers 4. For a Vaswani model the default of `max_new_tokens` is
# not used, because the model limits the length of each sentence itself.
DEFAULT_SEARCH = {"num_beams": 4, "max_new_tokens": 256}
_LENGTHS = {"max_new_tokens", "max_length"}
# The options that `score` accepts in addition to `SCORE_SETTINGS`.
_SCORE_OPTIONS = (
    *("return_alignments", "window", "tokens_per_batch", "on_error", "generation_config"),
    *("src_lang", "tgt_lang"),
)
_TAG = re.compile(r">>\S+?<<")
# The key of tokenizer_config.json that maps each language to its token. The source begins with the token of
# the source language, and the target begins with the token of the target language, as in M2M100 and NLLB.
LANGUAGE_TOKENS = "language_tokens"

# Word alignments use the mean attention of the last two decoder layers, at the position that predicts the
# target token. Garg et al. 2019 (arXiv 1909.02074, Section 4.1) recommend the fifth of six layers. The
# alignment error rate was measured on Multi30k with a model of 4 layers. The reference alignments are the
# intersection of the alignments of word translation models. The alignment error rate is 0.22 for the mean of
# the last two layers, 0.23 for the last layer, 0.34 for the third layer and 0.24 for the mean of all layers.
# At the position that reads the target token (Chen et al. 2020, arXiv 2004.14837) the alignment error rate of
# every layer is at least 0.82.
ALIGNMENT_LAYERS = 2


@dataclass(frozen=True)
class Word:
    """Contains a word of a translation and its confidence.

    Attributes:
        word (str): The word.
        confidence (float): The product of the probabilities of the word's tokens. If the search chose none of
            these tokens because all are forced, the value is 1. On Multi30k this confidence predicts whether
            the reference contains the word (AUC 0.787) better than the geometric mean of the token
            probabilities (AUC 0.782) or the lowest token probability (AUC 0.785).
    """

    word: str
    confidence: float


@dataclass(frozen=True)
class Translation:
    """Contains the translation of a text. The fields with scores and alignments are None if the options do
    not request scores or alignments.

    Attributes:
        text (str): The translation.
        score (float): The score of beam search: the summed log-probability divided by the length penalty,
            plus the weighted coverage penalty. If a text is translated in parts, the score is the sum of the
            scores of the parts.
        log_prob (float): The summed log-probability (nats).
        confidence (float): The geometric mean of the probabilities of the tokens.
        tokens (list): The tokens as texts (str), including `</s>`, without forced tokens, which the search
            did not choose. For a byte-level tokenizer, `tokens` are not the entries of the vocabulary: "
            läuft" stands for the entry "ĠlÃ¤uft", and a byte of a character that is divided between tokens is
            an escape such as "\\xc3". To get the entries of the vocabulary, call
            `tokenizer.convert_ids_to_tokens(translation.token_ids)`.
        token_log_probs (list): The log-probabilities of `tokens` (nats).
        words (list): The words of the translation, separated by white space, each a `Word`.
        alignment (str): The word alignment in Pharaoh format, such as "0-0 1-2". Each word of the translation
            is aligned with the source word that has the highest attention. Each pair "i-j" aligns source word
            i with target word j, counted from 0.
        alternatives (list): The other translations of the same text, each a `Translation`.
        token_ids (list): The ids of all tokens, including forced tokens and `</s>`.
        error (str): The reason why the text was skipped, or why the option `min_confidence` has removed the
            translation. If `error` is set, `text` is empty.
        unmet_phrases (list): The phrases (str) of `must_contain` that the translation lacks, because the
            search found no translation with all phrases. The value is None if the translation contains all
            phrases.
        calibrated_confidence (float): The probability that the translation is good, as estimated by the
            calibration of the checkpoint. None if the checkpoint has no calibration.
    """

    text: str
    score: float | None = None
    log_prob: float | None = None
    confidence: float | None = None
    tokens: list[str] | None = None
    token_log_probs: list[float] | None = None
    words: list[Word] | None = None
    alignment: str | None = None
    alternatives: list["Translation"] | None = None
    token_ids: list[int] | None = None
    error: str | None = None
    unmet_phrases: list[str] | None = None
    calibrated_confidence: float | None = None

    def record(self, with_scores: bool, with_alignment: bool) -> dict[str, Any]:
        """Return the fields of this translation that the pipeline returns in addition to the text."""
        record: dict[str, Any] = {}
        if with_scores:
            record["score"] = self.score
            record["confidence"] = self.confidence
            record["words"] = [asdict(word) for word in self.words or ()]
        if with_alignment:
            record["alignment"] = self.alignment
        return record

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dict for JSON, without the token ids and without fields whose value is None.
        Numbers are rounded to six decimals, because float32 is not more precise.
        """
        return _rounded(asdict(self))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        fields = {name: entry for name, entry in value.items() if entry is not None and name != "token_ids"}
        return {name: _rounded(entry) for name, entry in fields.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, list) else value


class BaseTranslator:
    """Translates texts with one model or an ensemble of models, and with the tokenizers of the models.

    A subclass whose outputs are not texts overrides `split`, `cut`, `decode` and `make_backend`.

    Args:
        model (PreTrainedModel or Backend): An encoder-decoder model, or another backend.
        source_tokenizer (PreTrainedTokenizerBase): The tokenizer of the source language.
        target_tokenizer (PreTrainedTokenizerBase): The tokenizer of the target language. `target_tokenizer`
            may be the same object as `source_tokenizer`.
        ensemble (sequence): Other models with the same vocabulary. The search averages the token
            probabilities of all models.
        prefix (str): A text that is put before each source text, such as the task prefix of T5.
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
        is_model = isinstance(model, torch.nn.Module)
        # A function that estimates the probability that a `Translation` with scores is good. None if the
        # checkpoint has no calibration.
        self.calibration: Callable[[Translation], float] | None = None
        self.backend: Backend = self.make_backend(model, ensemble) if is_model else model

    def make_backend(self, model: PreTrainedModel, ensemble: Sequence[PreTrainedModel]) -> Backend:
        """Return the backend for a model and its ensemble."""
        return PyTorchBackend(model, ensemble)

    @property
    def model(self) -> Any:
        """The model of the backend; in an ensemble, the first model."""
        return self.backend.model  # type: ignore[attr-defined]

    @property
    def max_length(self) -> int:
        """The maximum number of tokens of a segment. `cut` divides longer segments."""
        if self.backend.max_positions is None:
            return _NO_LIMIT
        limits: list[Any] = [self.source_tokenizer.model_max_length, self.backend.max_positions]
        return min((limit for limit in limits if limit < _NO_LIMIT), default=DEFAULT_MAX_LENGTH)

    @cached_property
    def tags(self) -> dict[str, int]:
        """The tags of target languages, such as ">>en<<", with their token ids."""
        return tags_of(self.source_tokenizer)

    @cached_property
    def _languages(self) -> dict[str, int]:
        return languages_of(self.source_tokenizer)

    def translate(
        self,
        lines: Iterable[str],
        *,
        target_prefixes: Iterable[str | None] | None = None,
        must_contain: Iterable[Sequence[str] | None] | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """Translate lines, and yield the translations in the order of the lines.

        The translation of a line of white space is empty; with `split_sentences` the translation is the white
        space itself. A line that is longer than the model permits is cut between words, and its translated
        pieces are joined by spaces. A warning names each line that is cut.

        Args:
            lines (Iterable): Texts. `translate` reads `window` texts at a time.
            target_prefixes (Iterable, optional): For each line the text that the translation must begin with,
                or None.
            must_contain (Iterable, optional): For each line a list of phrases that the translation must
                contain, or None. If the search finds no translation with all phrases, the translation
                contains as many phrases as possible. A warning names the line and the missing phrases, and
                the field `unmet_phrases` of a `Translation` contains the missing phrases.
            **options: The fields of `TranslationOptions`. All other options are passed to `generate`.

        Returns:
            Iterator: By default, a str for each line. If `return_scores`, `return_alignments` or a
                `num_return_sequences` above 1 is given, a `Translation` for each line. With
                `on_error="skip"`, the result of an invalid line is a `Translation` with an `error`.

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
        """Yield a str for each request, or a `Translation` if the options request scores or several
        translations.

        `first_line` is the line number of the first request. Warnings contain the line number. If the search
        samples tokens, the random seed depends on the line number.
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
        """Yield for each request at most `num_return_sequences` translations, best first."""
        completed = self.complete(options)
        requests = iter(requests)
        while window := list(islice(requests, options.window)):
            self.prepare(window, options)
            if options.seed is not None:
                # Add the line number to the seed, so that a resumed run or several parallel processes draw
                # the same translations as a single run.
                self.backend.seed(options.seed + first_line)
            # If a line of the window raises an error, `results_of_lines` finds the line and translates the
            # other lines without this line.
            find = partial(self._translate_lines, options=completed)
            for result in results_of_lines(window, first_line, _numbered_request, find, options.on_error):
                yield [result] if isinstance(result, Translation) else result
            first_line += len(window)

    def complete(self, options: TranslationOptions) -> TranslationOptions:
        """Return a copy of the options in which each missing search setting has its default value. `layouts`,
        `translate_segments` and `join` need complete options.

        Raises:
            ValueError: If the search cannot give `num_return_sequences` translations, if `min_confidence` is
                given and the checkpoint has no calibration, or if a glossary is given and the search does not
                support phrases.
        """
        if options.terms is not None and not self.backend.supports_phrases:
            raise InvalidValueError(
                "`glossary` must be left out, because the engine of the model does not support phrases."
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
        """Raise a ValueError if the settings of the search cannot give `num_return_sequences` translations."""
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
        """Do nothing. The translator calls this method before it translates a window of texts. A subclass may
        override the method, for example to choose a dtype.
        """

    def _translate_lines(
        self, lines: list[tuple[int, Request]], options: TranslationOptions
    ) -> list[list[Translation]]:
        """Run all seven steps of a translation. Return the translations of each request, best translation
        first. `lines` contains pairs of a line number and a request.
        """
        requests = [request for _, request in lines]
        # Steps 1 to 3 of a translation: split, tokenize, cut, and attach constraints.
        layouts = self.layouts(requests, [number for number, _ in lines], options)
        segments: list[Segment] = []
        for of_text, _ in layouts:
            segments += of_text
        if options.warn_of_limit:
            self._warn_of_limit(segments, options)
        # Steps 4 to 6 of a translation: search, search again if a translation repeats itself, and score.
        of_segments = iter(self.translate_segments(segments, options))
        # Step 7 of a translation: join the translated segments of each text.
        results = []
        for (number, request), (of_text, separators) in zip(lines, layouts, strict=True):
            translations = self.join(request, list(islice(of_segments, len(of_text))), separators, options)
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
    ) -> list[tuple[list[Segment], list[str]]]:
        """Run steps 1 to 3 of a translation. Return for each request its N segments, and the N + 1 separators
        before, between and after the translations of the segments.

        The translation of a text is `separators[0] + translation[0] + separators[1] + … + separators[N]`.
        """
        texts: list[tuple[list[str], list[str]]] = []
        for request in requests:
            is_copied = request.is_copied
            texts.append(([], [request.text]) if is_copied else self.split(request.text, options))
        sentences: list[str] = []
        for of_text, _ in texts:
            sentences += of_text
        segments = iter(self._tokenize(sentences, options))
        max_length = self.max_length
        layouts = []
        for request, number, (of_text, separators) in zip(requests, numbers, texts, strict=False):
            of_request = list(islice(segments, len(of_text)))
            if options.return_alignments:
                self._shift_word_indices(of_request, request.text)
            pieces: list[Segment] = []
            # The separators before, between and after the translated pieces.
            between = separators[:1]
            for segment, separator in zip(of_request, separators[1:], strict=True):
                of_segment = self.cut(segment, number, max_length)
                pieces += of_segment
                between += [" "] * (len(of_segment) - 1) + [separator]
            if pieces and (request.target_prefix or request.must_contain):
                self._constrain(pieces, request)
            elif request.target_prefix and not request.is_copied:
                # The translation of a blank text is the target prefix.
                between = [request.target_prefix.strip()]
            if options.terms is not None:
                for piece in pieces:
                    self._add_terms(piece, options)
            layouts.append((pieces, between))
        return layouts

    def split(self, text: str, options: TranslationOptions) -> tuple[list[str], list[str]]:
        """Return the N parts of a text that are translated separately, and the N + 1 separators before,
        between and after the parts.
        """
        text = self._with_tag(text, options)
        stripped = text.strip()
        tag = self._tag_of(stripped)
        if stripped == tag:
            # The text contains no words: only white space, or a tag and white space.
            return [], [text if options.split_sentences and not tag else ""]
        if not options.split_sentences:
            return [stripped], ["", ""]
        if not tag:
            return split_sentences(text)
        # Repeat the tag before each sentence, because each sentence is translated separately.
        sentences, separators = split_sentences(text.lstrip().removeprefix(tag).lstrip())
        return [f"{tag} {sentence}" for sentence in sentences], separators

    def _with_tag(self, text: str, options: TranslationOptions) -> str:
        """If the tokenizer has tags of target languages and the text begins with no tag, add the tag of the
        option `tgt_lang` to the text.
        """
        language = options.tgt_lang
        if language is None or not self.tags or not text.strip() or self._tag_of(text.lstrip()):
            return text
        tag = f">>{language}<<"
        if tag not in self.tags:
            languages = ", ".join(known.strip("><") for known in self.tags)
            raise InvalidValueError(
                f"`tgt_lang` must be a target language of the model ({languages}), but is {language!r}."
            )
        return f"{tag} {text.lstrip()}"

    def _tag_of(self, text: str) -> str:
        """Return the tag of the target language at the beginning of a text, such as ">>en<<", or an empty
        str.
        """
        tag = _TAG.match(text)
        return tag[0] if tag and tag[0] in self.tags else ""

    def source_segments(self, texts: Iterable[str], options: TranslationOptions) -> list[Segment]:
        """Tokenize whole texts, without splitting or cutting the texts. If the options name a target language
        and the tokenizer has tags of target languages, each text begins with the tag.
        """
        return self._tokenize([self._with_tag(text, options) for text in texts], options)

    def _tokenize(self, texts: list[str], options: TranslationOptions) -> list[Segment]:
        """Step 2 of a translation: convert texts to segments. Set the field `words` only if a word alignment
        or the division of long segments needs the word indices.
        """
        if not texts:
            return []
        settings: dict[str, Any] = {"verbose": False, **options.tokenize, "padding": False}
        prefixed = [self.prefix + text for text in texts]
        tokenizer = self.source_tokenizer
        if hasattr(tokenizer, "_build_translation_inputs"):
            # Pass the languages, because tokenizers of multilingual models, such as mBART, need the
            # languages.
            languages = {"src_lang": options.src_lang, "tgt_lang": options.tgt_lang}
            settings = {"return_tensors": None, **languages, **settings}
            tokenizer = tokenizer._build_translation_inputs
        with TOKENIZING:
            inputs = tokenizer(prefixed, **settings)
        generate = {name: value for name, value in inputs.items() if not isinstance(value, list)}
        first_ids = []
        if self._languages:
            first_ids = [self._language_id("src_lang", options.src_lang)]
            generate["forced_bos_token_id"] = self._language_id("tgt_lang", options.tgt_lang)
        max_length = self.max_length
        segments = []
        for row, (text, token_ids) in enumerate(zip(texts, inputs["input_ids"], strict=True)):
            segment = Segment(text, [*first_ids, *token_ids], generate=generate)
            is_long = len(segment.token_ids) > max_length
            if self.source_tokenizer.is_fast and (options.return_alignments or is_long):
                segment.words = [-1] * len(first_ids) + self._source_words(prefixed[row], inputs[row])
            segments.append(segment)
        return segments

    def _language_id(self, name: str, language: str | None) -> int:
        """Return the token id of a language. `name` is the name of the option for error messages."""
        if language not in self._languages:
            raise InvalidValueError(
                f"`{name}` must be a language of the model ({', '.join(self._languages)}), but is "
                f"{language!r}."
            )
        return self._languages[language]

    def _source_words(self, text: str, encoding: Any) -> list[int]:
        """Return for each token the index of its word in the text without the task prefix, or -1 if the token
        belongs to no word.
        """
        starts = []
        for (start, _), is_special in zip(encoding.offsets, encoding.special_tokens_mask, strict=True):
            starts.append(-1 if is_special else start)
        num_before = len(self.prefix.split())
        return [word - num_before if word >= num_before else -1 for word in words_at(text, starts)]

    def _shift_word_indices(self, segments: list[Segment], text: str) -> None:
        """Change the word indices of the sentences of a text, so that the indices count from the beginning of
        the text. A tag that the translator has added to the text gets the index -1.
        """
        has_tag = bool(self._tag_of(text.lstrip()))
        num_words = 0
        for number, segment in enumerate(segments):
            is_added_tag = segment.token_ids[0] in self.tags.values() and not (has_tag and number == 0)
            num_words -= is_added_tag
            segment.words = [word + num_words if word >= 0 else -1 for word in segment.words]
            if is_added_tag and segment.words:
                segment.words[0] = -1
            num_words += len(segment.text.split())

    def cut(self, segment: Segment, number: int, max_length: int) -> list[Segment]:
        """Divide a segment into pieces of at most `max_length` tokens. If the segment begins with a language
        tag or a language token, each piece also begins with this tag or token.
        """
        if len(segment.token_ids) <= max_length:
            return [segment]
        *ids, end_id = segment.token_ids
        words = segment.words or [-1] * len(segment.token_ids)
        first_ids = {*self.tags.values(), *self._languages.values()}
        tag_ids = ids[:1] if ids[0] in first_ids else []
        start = len(tag_ids)
        tag_words = words[:start]
        # The number of tokens of a piece without the tag and without `</s>`.
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
                # End the piece between two words, unless a single word fills the piece.
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
        """Step 3 of a translation: assign the target prefix to the first segment of a text, and each phrase
        to one segment.
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
        """Step 3 of a translation: add the target terms of the glossary to the required phrases of a segment.
        A target term is ignored if it contradicts another search setting.
        """
        assert options.terms is not None
        config = GenerationConfig()
        names = ("bad_words_ids", "suppress_tokens", "no_repeat_ngram_size", "max_new_tokens")
        for name in names:
            setattr(config, name, setting_of(name, options.generate, self.backend.generation_config))
        room = config.max_new_tokens or math.inf
        room -= 1 + len(segment.prefix) + sum(map(len, segment.phrases))
        for phrase in options.terms.phrases(segment.text):
            token_ids = phrase_token_ids(phrase, self.target_tokenizer)
            is_impossible = (
                forbidden_tokens(token_ids, config)
                or repeated_ngram(token_ids, config.no_repeat_ngram_size)
                or len(token_ids) > room
                or self.target_tokenizer.unk_token_id in token_ids
            )
            if is_impossible:
                logger.warning(
                    f"The glossary asks for {phrase!r} in the translation of {segment.text[:40]!r}, but "
                    "other settings or the vocabulary make the term impossible; the term is ignored."
                )
            elif phrase not in segment.phrase_texts:
                room -= len(token_ids)
                segment.phrases = [*segment.phrases, token_ids]
                segment.phrase_texts = [*segment.phrase_texts, phrase]
                segment.forced_text = f"{segment.forced_text} {phrase}"

    # Steps 4 to 6 of a translation: from segments to translations of segments.

    def translate_segments(
        self, segments: list[Segment], options: TranslationOptions
    ) -> list[list[Translation]]:
        """Run steps 4 to 6 of a translation. Return the translations of each segment, best first. The
        segments may belong to different texts.
        """
        hypotheses = self._search(segments, options)
        if options.repetition_guard and "streamer" not in options.generate:
            self._search_loops_again(segments, hypotheses, options)
        if options.is_scored:
            return self._score_hypotheses(segments, hypotheses, options)
        return list(map(_without_scores, segments, hypotheses))

    def _search(self, segments: list[Segment], options: TranslationOptions) -> list[list[Hypothesis]]:
        """Step 4 of a translation: search. Return the hypotheses of each segment with their texts, best
        first.
        """
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
        """Return the text of a hypothesis."""
        text = self.target_tokenizer.decode(hypothesis.token_ids, skip_special_tokens=True, **options.decode)
        # Replace line breaks in the translation by spaces, because the translation of a line must be one
        # line.
        return text if "\n" in segment.text else text.replace("\n", " ")

    def _search_loops_again(
        self, segments: list[Segment], hypotheses: list[list[Hypothesis]], options: TranslationOptions
    ) -> None:
        """Step 5 of a translation: search again, without repetition, for segments whose translations contain
        a loop. Use the new translation only if it has no loop and contains all required phrases.
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
                if not _is_looping(segments[row], found[0]) and not _unmet_phrases(segments[row], found[0]):
                    hypotheses[row] = found

    def _score_hypotheses(
        self, segments: list[Segment], hypotheses: list[list[Hypothesis]], options: TranslationOptions
    ) -> list[list[Translation]]:
        """Step 6 of a translation: compute scores. Return the translations of each segment, with scores."""
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

    # Step 7 of a translation: from translations of segments to translations of texts.

    def join(
        self,
        request: Request,
        of_segments: list[list[Translation]],
        separators: list[str],
        options: TranslationOptions,
    ) -> list[Translation]:
        """Step 7 of a translation: join segments. Return the translations of a text, best first.
        `of_segments` contains the translations of the N segments of the text, and `separators` contains the N
        + 1 separators that `layouts` returned.
        """
        if of_segments:
            translations = _joined(of_segments, separators)
        else:
            translations = self._translate_blank_text(request, separators, options)
        return self._calibrated(translations, options)

    def _calibrated(self, translations: list[Translation], options: TranslationOptions) -> list[Translation]:
        """Add the calibrated confidence to the translations of a text. If the confidence of the best
        translation is below `min_confidence`, return a translation without text.
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
        """Return the translations of a text that contains no words: the target prefix, or the white space of
        the text.
        """
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
        """Score given translations, and yield the results in the order of the translations.

        The score of a translation equals the score that the search reports, if the tokenizer splits the text
        into the same tokens and the search ended the translation by `</s>`.

        Args:
            sources (Iterable): Texts. `score` reads `window` texts at a time.
            targets (Iterable): The translations of the texts.
            **options: `return_alignments`, `window`, `tokens_per_batch`, `on_error`, `src_lang` and
                `tgt_lang` of `TranslationOptions`, and `length_penalty`, `length_penalty_type`, `coverage_penalty` and
                `generation_config` of `generate`. A batch has at most twice `tokens_per_batch` tokens, source
                and target together.

        Returns:
            Iterator: A `Translation` for each pair.

        Raises:
            TypeError: If an option does not exist, or an argument is a single text.
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
                self._shift_word_indices([segment], source)
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
        # Warn at 90 % of the limit, because transformers 4 also warns at 90 %.
        if limit is not None and longest > 0.9 * limit:
            logger.warning(
                f"A text has {longest} tokens, and its translation has at most {limit} tokens; if the "
                "translation is cut off, give a larger `max_new_tokens`."
            )

    def _with_defaults(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of `generate`, completed by `task_settings` and by `DEFAULT_SEARCH`."""
        if settings.get("generation_config") is not None:
            return settings
        defaults = _without_set_names(
            DEFAULT_SEARCH, {**self.backend.generation_config.to_diff_dict(), **self.task_settings}
        )
        if self.backend.max_positions is not None:
            defaults.pop("max_new_tokens", None)
        return {**_without_set_names({**self.task_settings, **defaults}, settings), **settings}


def _gives_records(options: TranslationOptions) -> bool:
    """Return True if the result for a text is a `Translation`, False if it is a str."""
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
    """Yield the result of each line of a window. An invalid line does not change the results of the other
    lines.

    `read(line, number)` converts a line to an input of `find`, and `find(inputs)` returns the results. If
    `on_error` is "skip", the result of an invalid line is a `Translation` with an `error`. If `on_error` is
    "fail", the error of an invalid line is raised after the results of the earlier lines, and the attribute
    `line_number` of the error is the number of the line.
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
    """Yield the results of lines. If `find` raises an error, call `find` for each half of the lines, to find
    the line that causes the error.
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
    """Return the default search settings without the keys of `settings`. If `settings` contains `max_length`
    or `max_new_tokens`, the result contains neither of the two keys.
    """
    names = _LENGTHS | settings.keys() if _LENGTHS & settings.keys() else settings.keys()
    return {name: value for name, value in defaults.items() if name not in names}


def batches_by_length(
    pieces: Sequence[Sized], tokens_per_batch: int, batch_size: int | None = None
) -> Iterator[list[int]]:
    """Divide token sequences into batches of similar lengths. Yield the indices of the sequences of each
    batch, longest sequences first. A batch has at most `tokens_per_batch` tokens including padding. A longer
    sequence forms a batch of its own.
    """
    longest_first = iter(sorted(range(len(pieces)), key=lambda i: -len(pieces[i])))
    for i in longest_first:
        size = max(1, tokens_per_batch // max(1, len(pieces[i])))
        yield [i, *islice(longest_first, min(size, batch_size or size) - 1)]


def _without_scores(segment: Segment, hypotheses: list[Hypothesis]) -> list[Translation]:
    """Return the translations of a segment, without scores."""
    translations = []
    for hypothesis in hypotheses:
        unmet = _unmet_phrases(segment, hypothesis) if segment.phrases else None
        translations.append(Translation(hypothesis.text, token_ids=hypothesis.token_ids, unmet_phrases=unmet))
    return translations


def _unmet_phrases(segment: Segment, hypothesis: Hypothesis) -> list[str] | None:
    """Return the required phrases of a segment that are missing in a hypothesis. Return None if the
    hypothesis contains all phrases.
    """
    unmet = []
    for token_ids, text in zip(segment.phrases, segment.phrase_texts, strict=True):
        if not contains(hypothesis.token_ids, token_ids) and text.strip() not in hypothesis.text:
            unmet.append(text)
    return unmet or None


def _is_looping(segment: Segment, hypothesis: Hypothesis) -> bool:
    return is_loop(hypothesis.text, f"{segment.text} {segment.forced_text}")


def _joined(parts: list[list[Translation]], separators: list[str]) -> list[Translation]:
    """Join the best translations of all parts of a text, then the second-best translations, and so on."""
    if len(parts) == 1 and not any(separators):
        return parts[0]
    number = min(len(part) for part in parts)
    return [join_translations([part[rank] for part in parts], separators) for rank in range(number)]


def scoring_config(generation_config: GenerationConfig, settings: Mapping[str, Any]) -> GenerationConfig:
    """Copy the generation config, and set in the copy the settings of a call that affect scores."""
    config = copy.copy(generation_config)
    for name in SCORE_SETTINGS:
        setattr(config, name, setting_of(name, settings, generation_config))
    if config.length_penalty is None:
        config.length_penalty = 1.0
    validate_search_fields(config)
    return config


def num_layers_for(config: GenerationConfig, with_alignment: bool) -> int:
    """Return the number of last decoder layers whose attention word alignments or scores need."""
    return ALIGNMENT_LAYERS if with_alignment else int(bool(config.coverage_penalty))


def scored_translation(
    hypothesis: Hypothesis,
    log_probs: list[float],
    attention: torch.Tensor | None,
    source_words: Sequence[int] | None,
    tokenizer: PreTrainedTokenizerBase,
    config: GenerationConfig,
) -> Translation:
    """Compute the scores of a hypothesis from the log-probabilities (nats) of the tokens that were not
    forced.

    The attention [N, T, S] is needed only for the alignment and the coverage penalty. `source_words` [S],
    needed for the alignment only, contains for each source token the index of its word, or -1 if the token
    belongs to no word.
    """
    own_ids = hypothesis.token_ids[hypothesis.num_forced : len(hypothesis.token_ids) - hypothesis.num_ending]
    # A forced language token and a forced `</s>` add nothing to the score, because the search gives both
    # tokens the probability 1. Count the forced language token and the forced `</s>` in the length, as the
    # search does.
    length = len(log_probs) + hypothesis.num_counted + hypothesis.num_ending
    score = sum(log_probs) / length_penalty(max(1, length), config)
    if config.coverage_penalty and attention is not None:
        score += config.coverage_penalty * coverage_score(attention[-1].sum(dim=0), None).item()
    words, word_of_token = target_word_indices(hypothesis.token_ids, tokenizer)
    word_log_probs = [0.0] * len(words)
    for word, log_prob in zip(word_of_token[hypothesis.num_forced :], log_probs, strict=False):
        if word >= 0:
            word_log_probs[word] += log_prob
    alignment = None
    if source_words is not None and attention is not None:
        alignment = to_pharaoh(align_words(attention.mean(dim=0), source_words, word_of_token))
    log_prob_sum = math.fsum(log_probs)
    return Translation(
        hypothesis.text,
        score=score,
        log_prob=log_prob_sum,
        confidence=math.exp(log_prob_sum / max(1, len(log_probs))),
        tokens=token_texts(own_ids, tokenizer),
        token_log_probs=log_probs,
        words=[Word(word, math.exp(value)) for word, value in zip(words, word_log_probs, strict=True)],
        alignment=alignment,
        token_ids=hypothesis.token_ids,
    )


def join_translations(parts: Sequence[Translation], separators: list[str]) -> Translation:
    """Join the translations of the N parts of a text with N + 1 separators.

    The result has scores only if all parts have scores. The score of the text is the sum of the scores of its
    parts. In the alignments of the parts, source word indices must count from the beginning of the whole
    text, and target word indices from the beginning of the part.
    """
    if len(parts) == 1 and not any(separators):
        return parts[0]
    text = join_sentences([part.text for part in parts], separators)
    token_ids: list[int] = []
    unmet: list[str] = []
    for part in parts:
        token_ids += part.token_ids or []
        unmet += part.unmet_phrases or []
    if any(part.score is None for part in parts):
        return Translation(text, token_ids=token_ids, unmet_phrases=unmet or None)
    log_probs: list[float] = []
    tokens: list[str] = []
    words: list[Word] = []
    alignments: list[str] = []
    for part in parts:
        log_probs += part.token_log_probs or []
        tokens += part.tokens or []
        alignments.append(shift_alignment(part.alignment or "", len(words)))
        words += part.words or []
    is_aligned = all(part.alignment is not None for part in parts)
    return Translation(
        text,
        score=math.fsum(part.score or 0.0 for part in parts),
        log_prob=math.fsum(log_probs),
        confidence=math.exp(math.fsum(log_probs) / max(1, len(log_probs))),
        tokens=tokens,
        token_log_probs=log_probs,
        words=words,
        alignment=" ".join(filter(None, alignments)) if is_aligned else None,
        token_ids=token_ids,
        unmet_phrases=unmet or None,
    )


def with_alternatives(translations: Sequence[Translation]) -> Translation:
    """Return the first translation, with the other translations as its `alternatives`."""
    first, *others = translations
    return replace(first, alternatives=others) if others else first


def prefix_token_ids(prefix: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the token ids of a target prefix, without `</s>` and without surrounding white space."""
    return _target_token_ids(prefix.strip(), tokenizer) if prefix.strip() else []


def phrase_token_ids(phrase: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the token ids of a phrase inside a sentence, where a space precedes the phrase. Many tokenizers
    produce other tokens for a phrase at the beginning of a text.
    """
    # Tokenize the phrase together with a word before the phrase, and remove the tokens of the word.
    word = _target_token_ids("a", tokenizer)
    with_word = _target_token_ids(f"a {phrase.strip()}", tokenizer)
    if with_word[: len(word)] == word:
        return with_word[len(word) :]
    return _target_token_ids(phrase.strip(), tokenizer)


def _target_token_ids(text: str, tokenizer: Any) -> list[int]:
    with TOKENIZING:
        return tokenizer(text_target=text, add_special_tokens=False, verbose=False)["input_ids"]


def assign_phrases(phrases: Sequence[str], texts: Sequence[str]) -> list[list[str]]:
    """Distribute the required phrases of a translation among the parts of its text. Return one list of
    phrases for each part of the text.

    If a part of the source text contains the phrase itself, such as a name, the phrase is assigned to the
    first part that contains the phrase. If no part contains the phrase, the phrase is assigned to the longest
    part.
    """
    assigned: list[list[str]] = [[] for _ in texts]
    longest = max(range(len(texts)), key=lambda i: len(texts[i]))
    for phrase in phrases:
        part = next((i for i, text in enumerate(texts) if phrase in text), longest)
        assigned[part].append(phrase)
    return assigned


def tags_of(tokenizer: Any) -> dict[str, int]:
    """Return the tags of target languages in a tokenizer's vocabulary, such as ">>en<<", with their token
    ids.
    """
    tags = {}
    for token_id, token in getattr(tokenizer, "added_tokens_decoder", {}).items():
        if not token.special and _TAG.fullmatch(token.content):
            tags[token.content] = token_id
    return tags


def languages_of(tokenizer: Any) -> dict[str, int]:
    """Map each language of a multilingual tokenizer to the id of its language token. Return an empty dict if
    the tokenizer has no language tokens.
    """
    tokens = getattr(tokenizer, "init_kwargs", {}).get(LANGUAGE_TOKENS, {})
    return {language: tokenizer.convert_tokens_to_ids(token) for language, token in tokens.items()}


def check_tokenizers(model: Any, source_tokenizer: Any, target_tokenizer: Any, name: str = "") -> None:
    """Raise an error if tokenizers do not match a Vaswani model. The model may have more embedding rows than
    the tokenizer has tokens.
    """
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
                fault = f"its `{token}` has the id {token_id}, but the model has the id {ids[0]}"
        if fault:
            raise ValueError(
                f"The {side} tokenizer {fitting}, but {fault}; take the tokenizer and the model from one "
                "checkpoint."
            )
