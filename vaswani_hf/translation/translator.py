"""`Translator`: the engine with all that the package adds: checkpoints by name, ensembles, scores, constraints, sentences.

The engine itself, which travels with checkpoints, is in `model.translator_vaswani`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice, repeat, zip_longest
from typing import Any, Self

import torch
from transformers.utils import logging

from ..checkpoint.loading import check_config, checkpoint_folder, load_model
from ..checkpoint.tokenizers import is_tree_tokenizer, load_tokenizers, tags_of
from ..data.lines import refuse_half_characters
from ..model.options_vaswani import SCORE_SETTINGS
from ..model.phrase_search_vaswani import contains, repeated_ngram
from ..model.translator_vaswani import (
    TOKENIZING,
    Hypothesis,
    Request,
    Segment,
    TranslationEngine,
    TranslationOptions,
    batches_by_length,
    check_tokenizers,
    checked_text,
)
from ..processor import has_bfloat16
from .bad_lines import BadLine, attempted, line_by_line, readable
from .constraints import assign_phrases, phrase_token_ids, prefix_token_ids
from .ctranslate2_files import VOCABULARIES
from .precision import checked_dtype, settle
from .pytorch import PyTorchBackend
from .quantization import check_quantization, quantize
from .repetition import is_loop, ngram_size_without_loops
from .scoring import (
    Translation,
    Word,
    join_translations,
    num_layers_for,
    scored_translation,
    scoring_config,
    with_alternatives,
)
from .sentences import split_sentences

logger = logging.get_logger(__name__)


class Translator(TranslationEngine):
    """A model, or several, with the tokenizers.

    Args:
        model (PreTrainedModel): A sequence-to-sequence model, or another backend.
        source_tokenizer (PreTrainedTokenizerFast): The tokenizer of the language that is translated.
        target_tokenizer (PreTrainedTokenizerFast): The tokenizer of the other language; may be the same object.
        ensemble (sequence): More models of the same vocabulary, whose probabilities are averaged with the first one's.
        prefix (str): A text that is put before each text.
        task_settings (mapping): Settings of `generate` that the checkpoint has for its task.
    """

    backend_class = PyTorchBackend
    # A checkpoint whose translations are trees is for a `Parser`.
    makes_trees = False
    # The first texts are to decide between float32 and bfloat16.
    is_undecided = False

    @property
    def model(self) -> Any:
        """The first model."""
        return self.backend.model

    @cached_property
    def _tags(self) -> dict[str, int]:
        return tags_of(self.source_tokenizer)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str,
        device: str | None = None,
        *,
        ensemble: Sequence[str] = (),
        dtype: str | torch.dtype | None = None,
        quantization: str | None = None,
        **hub_kwargs: Any,
    ) -> Self:
        """The translator that a checkpoint holds.

        Args:
            name_or_path (str): A local folder, or a repository on the Hub: user/name or user/name@revision.
            device (str, optional): The device; by default a GPU where there is one, but the CPU for int8.
            ensemble (sequence): More checkpoints, of the same vocabulary.
            dtype (str or torch.dtype, optional): "float32", "bfloat16" or "float16"; "auto" for bfloat16 where the
                device multiplies it in hardware and the first texts have the same translations, else float32. By
                default that of the checkpoint.
            quantization (str, optional): "int8" for weights in int8, on the CPU; it needs torchao.
            **hub_kwargs: `revision` (of each repository that is named without one), `token`, `cache_dir`,
                `local_files_only` and `force_download`, as `snapshot_download` takes them.

        Returns:
            Translator: In eval mode.

        Raises:
            ValueError: If there is no such checkpoint, device, dtype or quantization, if a vocabulary differs, or if a checkpoint is
                damaged or of another architecture.
            HubError: If a repository cannot be downloaded, or what was downloaded is not what the Hub has.
        """
        if isinstance(ensemble, str):
            raise ValueError(f"`ensemble` must be a list of checkpoints, but is the str {ensemble!r}.")
        dtype = checked_dtype(dtype)
        check_quantization(quantization, dtype, device)
        is_on_gpu = torch.cuda.is_available() and quantization is None
        place = checked_device(device or ("cuda" if is_on_gpu else "cpu"))
        names = [name_or_path, *ensemble]
        folders = []
        for option, name in zip(["model", *["ensemble"] * len(ensemble)], names, strict=True):
            folders.append(checkpoint_folder(name, option=option, **hub_kwargs))
            if any((folders[-1] / vocabulary).is_file() for vocabulary in VOCABULARIES):
                raise ValueError(
                    f"'{name}' was exported for CTranslate2; `vaswani translate --engine ctranslate2` runs it."
                )
            check_config(folders[-1], name, needed="a parser" if cls.makes_trees else "")
        tokenizers = [load_tokenizers(folder, name) for folder, name in zip(folders, names, strict=True)]
        _check_trees(name_or_path, is_tree_tokenizer(tokenizers[0][1]), cls.makes_trees)
        for name, others in zip(ensemble, tokenizers[1:], strict=True):
            _check_vocabularies(name_or_path, tokenizers[0], name, others)
        given: dict[str, Any] = {"dtype": torch.float32 if dtype == "auto" or quantization else dtype}
        given = {} if given["dtype"] is None else given
        models = [load_model(folder, name, **given).to(place) for folder, name in zip(folders, names, strict=True)]
        for model, of_model, name in zip(models, tokenizers, names, strict=True):
            check_tokenizers(model, *of_model, str(name))
        if quantization is not None:
            models = [quantize(model) for model in models]
        translator = cls(models[0], *tokenizers[0], ensemble=models[1:])
        translator.is_undecided = dtype == "auto" and has_bfloat16(place)
        return translator

    def settled(self, requests: Iterable[Request], options: TranslationOptions) -> Iterator[Request]:
        """The requests, of which the first have decided on the dtype if that is open.

        Args:
            requests (Iterable): The work, from its beginning; if it decides, a window of it is read.
            options (TranslationOptions): How it is translated.
        """
        requests, first = iter(requests), []
        while self.is_undecided and (window := list(islice(requests, options.window))):
            # Blank lines decide nothing.
            first += window
            settle(self, window, options)
        return chain(first, requests)

    def translate(
        self,
        lines: Iterable[str],
        *,
        target_prefixes: Iterable[str | None] | None = None,
        must_contain: Iterable[Sequence[str] | None] | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """Translations in the order of the lines.

        A line of nothing but spaces gives an empty one, or, with `split_sentences`, the spaces. A line longer than the model was
        made for is cut at word boundaries, its pieces translated and joined by a space, and a warning says so.

        Args:
            lines (Iterable): Texts; read as far as a window at a time.
            target_prefixes (Iterable, optional): For each line the text that its translation begins with, or None.
            must_contain (Iterable, optional): For each line the phrases that its translation contains, or None. They
                are looked for as they are inside a sentence, behind a space. If no translation with all phrases is
                found under the other settings, the best one with as many of them as possible is given. A warning names
                the line and the other phrases, and a `Translation` has them as `unmet_phrases`.
            **options: The fields of `TranslationOptions`: `window`, `tokens_per_batch`, `split_sentences` (whether a
                line is translated sentence by sentence, its line breaks and spaces kept), `repetition_guard` (whether
                a translation that falls into a loop is searched once more), `return_scores`, `return_alignments`,
                `seed` (for sampling) and `on_error` ("fail", or "skip": a line that cannot be translated costs no
                other). All others are passed to `generate`.

        Returns:
            Iterator: A str for each line; a `Translation` with scores if `return_scores`, `return_alignments` or a
            `num_return_sequences` above 1 is given; for a line that is skipped a `Translation` with an `error`.
        """
        for name, texts in (("lines", lines), ("target_prefixes", target_prefixes), ("must_contain", must_contain)):
            if texts is not None or name == "lines":
                _refuse_one_text(name, texts)
        requests: Any = _requests(lines, target_prefixes, must_contain)
        chosen = TranslationOptions.of(**options)
        return self.translate_requests(requests, replace(chosen, return_scores=_gives_records(chosen)))

    def translate_requests(
        self, requests: Iterable[Request], options: TranslationOptions, first_line: int = 1
    ) -> Iterator[Any]:
        """Translations in the order of the requests; several of a text have no scores unless the options ask for them.

        Args:
            requests (Iterable): Texts with the constraints of their translations; a `BadLine` for one that cannot be
                read.
            options (TranslationOptions): How to translate.
            first_line (int): The number of the first one, for warnings and for the seed.

        Yields:
            str or Translation: One for each.
        """
        gives_records = _gives_records(options)
        for translations in self.translations(self.settled(requests, options), options, first_line):
            is_record = gives_records or translations[0].error
            yield with_alternatives(translations) if is_record else translations[0].text

    def _found(self, requests: Sequence[Any], numbers: Sequence[int], options: TranslationOptions) -> Iterator[Any]:
        find = super()._found

        def checked(request: Any, number: int) -> tuple[Request, int]:
            checked_text(readable(request).text)
            return request, number

        def found(checked: list[tuple[Request, int]]) -> list[list[Any]]:
            good, numbers = zip(*checked, strict=True)
            found = zip(checked, find(good, numbers, options), strict=True)
            return [self._with_constraints(*of, translations, options) for of, translations in found]

        for translations in line_by_line(requests, numbers[0], checked, found, _skips(options.on_error)):
            yield [translations] if isinstance(translations, Translation) else translations

    def _with_constraints(
        self, request: Request, number: int, translations: list[Translation], options: TranslationOptions
    ) -> list[Translation]:
        """The translations of a line; a blank line has its prefix and lacks its phrases. A warning names unmet phrases."""
        prefix = request.target_prefix.strip()
        if not translations[0].token_ids and (prefix or request.must_contain):
            token_ids = prefix_token_ids(prefix, self.target_tokenizer)
            unmet = [phrase for phrase in request.must_contain if phrase not in prefix] or None
            words = [Word(word, 1.0) for word in prefix.split()] if options.is_scored else None
            translations = [
                replace(translation, token_ids=token_ids, words=words, unmet_phrases=unmet)
                for translation in translations
            ]
        if unmet := translations[0].unmet_phrases:
            logger.warning(
                f"Line {number} has {', '.join(map(repr, unmet))} in `must_contain`, but no translation with that was "
                "found under the other settings; its translation is without it."
            )
        return translations

    def score(
        self,
        sources: Iterable[str],
        targets: Iterable[str],
        *,
        return_alignments: bool = False,
        window: int = TranslationOptions.window,
        tokens_per_batch: int = TranslationOptions.tokens_per_batch,
        on_error: str = TranslationOptions.on_error,
        **settings: Any,
    ) -> Iterator[Translation]:
        """Scores of given translations, in their order.

        A translation that the model has produced itself gets the score that the search reported, if the tokenizer
        splits it into the tokens that the search chose, and it ended by itself.

        Args:
            sources (Iterable): Texts; read as far as a window at a time.
            targets (Iterable): Their translations.
            return_alignments (bool): True if their words are aligned.
            window (int): Pairs that are read before their scores are given.
            tokens_per_batch (int): Source and target positions of a batch, each half on the average.
            on_error (str): "fail", or "skip": a pair that cannot be scored gives a `Translation` with an `error`.
            **settings: `length_penalty`, `length_penalty_type` and `coverage_penalty`, also in a `generation_config`;
                the checkpoint's by default.

        Returns:
            Iterator: A `Translation` for each pair.

        Raises:
            TypeError: If there is no such setting, or one text is given where several are due.
        """
        unknown = settings.keys() - {*SCORE_SETTINGS, "generation_config"}
        if unknown:
            raise TypeError(f"`score` takes no argument `{min(unknown)}`.")
        settings = {name: value for name, value in settings.items() if value is not None}
        _refuse_one_text("sources", sources)
        _refuse_one_text("targets", targets)
        options = TranslationOptions(
            window,
            tokens_per_batch,
            return_scores=True,
            return_alignments=return_alignments,
            on_error=on_error,
            generate=settings,
        )
        return self._score_pairs(_pairs(sources, targets), options)

    def _score_pairs(self, pairs: Iterator[tuple[Any, Any]], options: TranslationOptions) -> Iterator[Translation]:
        def checked(pair: tuple[Any, Any], number: int) -> tuple[int, str, str]:
            source, target = (readable(text) for text in pair)
            return number, _checked(source, number, "`sources`").strip(), _checked(target, number, "`targets`").strip()

        def scored(checked: list[tuple[int, str, str]]) -> list[Translation]:
            numbers, sources, targets = (list(column) for column in zip(*checked, strict=True))
            segments = self._segments(sources, options)
            with TOKENIZING:
                token_ids = self.target_tokenizer(text_target=targets, verbose=False)["input_ids"]
            for number, segment, ids in zip(numbers, segments, token_ids, strict=True):
                self._check_positions(max(len(segment.token_ids), len(ids)), number)
            hypotheses = [[Hypothesis(ids, 0, text)] for ids, text in zip(token_ids, targets, strict=True)]
            return [translation for (translation,) in self._described(segments, hypotheses, options)]

        first = 1
        while batch := list(islice(pairs, options.window)):
            # What cannot be read decides nothing.
            settle(self, [Request(source) for source, _ in batch if isinstance(source, str)], options)
            yield from line_by_line(batch, first, checked, scored, _skips(options.on_error))
            first += len(batch)

    def _check_positions(self, length: int, number: int) -> None:
        positions = self.backend.max_positions
        if positions is not None and length > positions:
            raise ValueError(
                f"Pair {number:,} must have at most {positions} tokens on each side, as many as the model has positions, "
                f"but has {length}."
            )

    def _split(self, text: str, options: TranslationOptions) -> tuple[list[str], list[str]]:
        """The N parts of a text that are translated by themselves, and N + 1 strings of white space around them."""
        if text.strip() in self._tags:
            # A direction and nothing to translate.
            return super()._split("", options)
        if not options.split_sentences:
            return super()._split(text, options)
        tag = next((tag for tag in self._tags if text.lstrip().startswith(tag)), None)
        if tag is None:
            return split_sentences(text)
        # The direction of a text is that of each of its sentences.
        sentences, separators = split_sentences(text.lstrip().removeprefix(tag).lstrip())
        return [f"{tag} {sentence}" for sentence in sentences], separators

    def _pieces(self, segment: Segment, number: int, max_length: int) -> list[Segment]:
        """A segment in as many pieces as the longest input of the model asks for, each with the tag of the segment."""
        ids, words = segment.token_ids, segment.words
        if ids[0] not in self._tags.values() or len(ids) <= max_length:
            return super()._pieces(segment, number, max_length)
        pieces = super()._pieces(replace(segment, token_ids=ids[1:], words=words[1:]), number, max_length - 1)
        return [
            replace(piece, token_ids=[ids[0], *piece.token_ids], words=[-1 if i else words[0], *piece.words])
            for i, piece in enumerate(pieces)
        ]

    def layouts(
        self, requests: Sequence[Request], numbers: Iterable[int], options: TranslationOptions
    ) -> list[tuple[list[Segment], list[str]]]:
        """For each text its N segments, and N + 1 strings of white space before, between and after their translations.

        Args:
            requests (sequence): The texts.
            numbers (iterable): Their numbers, for warnings.
            options (TranslationOptions): How to translate.
        """
        layouts = super().layouts(requests, numbers, options)
        if self._tags and options.split_sentences:
            layouts = [(_with_one_tag(segments, {*self._tags.values()}), between) for segments, between in layouts]
        constrained = []
        for request, (segments, between) in zip(requests, layouts, strict=True):
            if segments:
                constrained.append((self._constrained(segments, request), between))
            else:
                # The translation of a blank text is its prefix.
                constrained.append((segments, [request.target_prefix.strip()] if request.target_prefix else between))
        return constrained

    def _constrained(self, segments: list[Segment], request: Request) -> list[Segment]:
        """The segments of a text, the first with its prefix, and phrases where they are or in the longest."""
        if not (request.target_prefix or request.must_contain):
            return segments
        prefix = prefix_token_ids(request.target_prefix, self.target_tokenizer)
        segments[0] = replace(segments[0], prefix=prefix, forced=request.target_prefix)
        token_ids = {phrase: phrase_token_ids(phrase, self.target_tokenizer) for phrase in request.must_contain}
        phrases_of = assign_phrases(request.must_contain, [segment.text for segment in segments])
        for i, phrases in enumerate(phrases_of):
            ids = [token_ids[phrase] for phrase in phrases]
            forced = " ".join([segments[i].forced, *phrases])
            segments[i] = replace(segments[i], phrases=ids, phrase_texts=phrases, forced=forced)
        return segments

    def _search(self, segments: list[Segment], options: TranslationOptions) -> list[list[Hypothesis]]:
        """The hypotheses of each segment, best first; those of loops from a second search without repetition."""
        hypotheses = super()._search(segments, options)
        if not options.repetition_guard or "streamer" in options.generate:
            return hypotheses

        def loops(segment: Segment, found: list[Hypothesis]) -> bool:
            return is_loop(found[0].text, f"{segment.text} {segment.forced}")

        def may_be_mended(segment: Segment) -> bool:
            size = ngram_size_without_loops(segment.text)
            return not any(repeated_ngram(phrase, size) for phrase in segment.phrases)

        looping = [i for i, segment in enumerate(segments) if loops(segment, hypotheses[i]) and may_be_mended(segment)]
        sizes = [ngram_size_without_loops(segments[i].text) for i in looping]
        for size in set(sizes):
            again = [i for i, own in zip(looping, sizes, strict=True) if own == size]
            generate = {**options.generate, "no_repeat_ngram_size": size}
            mended = super()._search([segments[i] for i in again], replace(options, generate=generate))
            for i, found in zip(again, mended, strict=True):
                if not loops(segments[i], found) and not _unmet_phrases(segments[i], found[0]):
                    hypotheses[i] = found
        return hypotheses

    def _described(
        self, segments: list[Segment], hypotheses: list[list[Hypothesis]], options: TranslationOptions
    ) -> list[list[Any]]:
        """The translations of each segment, scored where that is asked for."""
        unmet = [
            [_unmet_phrases(segment, hypothesis) or None for hypothesis in of_segment]
            for segment, of_segment in zip(segments, hypotheses, strict=True)
        ]
        if not options.is_scored:
            return [
                [
                    Translation(hypothesis.text, token_ids=hypothesis.token_ids, unmet_phrases=phrases)
                    for hypothesis, phrases in zip(of_segment, unmet_of_segment, strict=True)
                ]
                for of_segment, unmet_of_segment in zip(hypotheses, unmet, strict=True)
            ]
        config = scoring_config(self.backend.generation_config, options.generate)
        num_layers = num_layers_for(config, options.return_alignments)
        pairs = [(s, h) for s, of_segment in zip(segments, hypotheses, strict=True) for h in of_segment]
        lengths = [[0] * (len(segment.token_ids) + len(hypothesis.token_ids)) for segment, hypothesis in pairs]
        translations: dict[int, Translation] = {}
        for batch in batches_by_length(lengths, 2 * options.tokens_per_batch, options.batch_size):
            scores = self.backend.score([pairs[i][0] for i in batch], [pairs[i][1] for i in batch], num_layers)
            for i, (log_probs, attention) in zip(batch, scores, strict=True):
                segment, hypothesis = pairs[i]
                words = segment.words if options.return_alignments else None
                translations[i] = scored_translation(
                    hypothesis, log_probs, attention, words, self.target_tokenizer, config
                )
        lacking = [phrases for of_segment in unmet for phrases in of_segment]
        in_order = iter([replace(translations[i], unmet_phrases=lacking[i]) for i in range(len(pairs))])
        return [list(islice(in_order, len(of_segment))) for of_segment in hypotheses]

    def _joined(self, parts: Sequence[Translation], separators: list[str]) -> Translation:
        """The translation of a text from those of its segments."""
        return join_translations(parts, separators)


def _gives_records(options: TranslationOptions) -> bool:
    """True if a text gives a `Translation` and not a str."""
    config = options.generate.get("generation_config")
    numbers = (options.generate.get("num_return_sequences"), getattr(config, "num_return_sequences", None))
    return options.is_scored or (next(filter(None, numbers), None) or 1) > 1


def _unmet_phrases(segment: Segment, hypothesis: Hypothesis) -> list[str]:
    """The phrases of a segment that a hypothesis lacks."""
    return [
        text
        for ids, text in zip(segment.phrases, segment.phrase_texts, strict=True)
        if not contains(hypothesis.token_ids, ids) and text.strip() not in hypothesis.text
    ]


def _with_one_tag(segments: list[Segment], tag_ids: set[int]) -> list[Segment]:
    """The segments of a text with the words that it has, of which its tag is one, and not one in each sentence."""
    counted, too_many = [], -1
    for segment in segments:
        words = segment.words
        if segment.token_ids[0] in tag_ids and words[0] >= 0:
            too_many += 1
            words = [-1 if too_many else words[0], *(word - too_many if word >= 0 else -1 for word in words[1:])]
        elif too_many > 0:
            words = [word - too_many if word >= 0 else -1 for word in words]
        counted.append(replace(segment, words=words))
    return counted


def _skips(on_error: str) -> bool:
    if on_error not in ("fail", "skip"):
        raise ValueError(f'`on_error` must be "fail" or "skip", but is {on_error!r}.')
    return on_error == "skip"


def _refuse_one_text(name: str, texts: Any) -> None:
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise TypeError(
            f"`{name}` must be a list or another iterable of texts, but is of type {type(texts).__name__}."
        )


def _pairs(sources: Iterable[str], targets: Iterable[str]) -> Iterator[tuple[Any, Any]]:
    """Texts with their translations.

    Raises:
        ValueError: If there are not equally many.
    """
    nothing = object()
    for number, pair in enumerate(zip_longest(sources, targets, fillvalue=nothing), 1):
        if nothing in pair:
            fewer, more = ("sources", "targets") if pair[0] is nothing else ("targets", "sources")
            raise ValueError(f"`{fewer}` must hold as many texts as `{more}`, but ends before number {number:,}.")
        yield pair


def _requests(
    lines: Iterable[str],
    target_prefixes: Iterable[str | None] | None,
    must_contain: Iterable[Sequence[str] | None] | None,
) -> Iterator[Request | BadLine]:
    """Lines with the constraints of their translations.

    Raises:
        ValueError: If there is not one prefix and one list of phrases for each line.
    """
    lines = iter(lines)
    prefixes = repeat(None) if target_prefixes is None else iter(target_prefixes)
    phrases = repeat(None) if must_contain is None else iter(must_contain)
    nothing = object()
    number = 0
    for number, line in enumerate(lines, 1):
        prefix, of_line = next(prefixes, nothing), next(phrases, nothing)
        for name, value in (("target_prefixes", prefix), ("must_contain", of_line)):
            if value is nothing:
                raise ValueError(f"`{name}` must hold one entry per line, but ends before line {number:,}.")
        yield attempted(_request, number, line, prefix, of_line)
    for name, given, rest in (("target_prefixes", target_prefixes, prefixes), ("must_contain", must_contain, phrases)):
        if given is not None and next(rest, nothing) is not nothing:
            raise ValueError(f"`{name}` must hold one entry per line, but has more than the {number:,} lines.")


def _request(number: int, line: Any, prefix: Any, phrases: Any) -> Request:
    """A line with its constraints, of which None is no constraint.

    Raises:
        TypeError: If something of it is no text.
    """
    phrases = () if phrases is None else phrases
    if isinstance(phrases, (str, bytes)) or not isinstance(phrases, Iterable):
        raise TypeError(
            f"`must_contain` must hold a list of phrases per line, but for line {number:,} it is of type "
            f"{type(phrases).__name__}."
        )
    text = _checked(line, number, "`lines`")
    prefix = "" if prefix is None else _checked(prefix, number, "`target_prefixes`")
    return Request(text, prefix, tuple(_checked(phrase, number, "`must_contain`") for phrase in phrases))


def _checked(text: Any, number: int, name: str) -> str:
    """The text of a line.

    Raises:
        TypeError: If it is no str.
    """
    place = f"Line {number:,} of {name}"
    if not isinstance(text, str):
        raise TypeError(f"{place} must be a str, but is of type {type(text).__name__}.")
    refuse_half_characters(text, place)
    return text


def checked_device(name: str) -> torch.device:
    """The device of a name.

    Args:
        name (str): Such as "cpu" or "cuda:1".

    Raises:
        ValueError: If this machine has none of that name.
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(f"`device` must be one of this machine, such as cpu or cuda, but is {name!r}.") from None
    return device


def _check_trees(name: str, makes_trees: bool, is_asked_for_trees: bool) -> None:
    if makes_trees and not is_asked_for_trees:
        raise ValueError(
            f"`model` must be a translation model, but '{name}' is a parser; it is used by `vaswani parse`, and by `Parser` of "
            "vaswani_hf.parsing."
        )
    if is_asked_for_trees and not makes_trees:
        raise ValueError(
            f"`model` must be a parser, but '{name}' is a translation model; it is used by `vaswani translate`, and by "
            "`Translator` of vaswani_hf.translation."
        )


def _check_vocabularies(name: str, tokenizers: tuple, other_name: str, others: tuple) -> None:
    for tokenizer, other in zip(tokenizers, others, strict=True):
        if tokenizer.get_vocab() != other.get_vocab():
            raise ValueError(
                f"`ensemble` must hold checkpoints with the vocabulary of '{name}', but '{other_name}' has another one "
                f"({len(tokenizer):,} and {len(other):,} entries)."
            )
