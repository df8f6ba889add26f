"""Translating lists and streams of texts: sorted by length in windows, batched by tokens, given back in order."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice, repeat
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging

from ..checkpoint.loading import check_config, checkpoint_folder, load_model
from ..checkpoint.tokenizers import load_tokenizers
from ..model.alignment_vaswani import source_word_indices
from ..model.constraints_vaswani import (
    assign_phrases,
    constraint_arguments,
    phrase_token_ids,
    prefix_token_ids,
    translation_token_ids,
)
from ..model.repetition_vaswani import is_loop, ngram_size_without_loops
from ..model.scoring_vaswani import (
    Hypothesis,
    Scorer,
    Translation,
    join_translations,
    scoring_config,
    with_alternatives,
)
from ..model.sentences_vaswani import split_sentences

logger = logging.get_logger(__name__)

# The limit of a tokenizer without one (transformers then says 10^30): what attention handles in little memory.
DEFAULT_MAX_LENGTH = 1024
# Where one of them is, CTranslate2 has written the folder.
CTRANSLATE2_VOCABULARIES = ("shared_vocabulary.json", "target_vocabulary.json")


@dataclass(frozen=True)
class Request:
    """A text to translate.

    Attributes:
        text (str): The text.
        target_prefix (str): What its translation begins with.
        must_contain (sequence): Phrases (str) that its translation contains.
    """

    text: str
    target_prefix: str = ""
    must_contain: Sequence[str] = ()


@dataclass(frozen=True)
class TranslationOptions:
    """How texts are translated; see `Translator.translate`."""

    window: int = 1000
    tokens_per_batch: int = 4096
    split_sentences: bool = False
    repetition_guard: bool = True
    return_scores: bool = False
    return_alignments: bool = False
    seed: int | None = None
    generate: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, **options: Any) -> "TranslationOptions":
        """The options of a call; what is none of them goes to `generate`.

        Args:
            **options: By name.

        Raises:
            ValueError: If a size is not positive.
        """
        names = {field.name for field in fields(cls)} - {"generate"}
        own = {name: options.pop(name) for name in names & options.keys()}
        for name in {"window", "tokens_per_batch"} & own.keys():
            if own[name] < 1:
                raise ValueError(f"`{name}` must be a positive integer, but is {own[name]}.")
        return cls(**own, generate=options)

    @property
    def wants_records(self) -> bool:
        """Whether translations come as `Translation` and not as text."""
        several = (self.generate.get("num_return_sequences") or 1) > 1
        return self.return_scores or self.return_alignments or several


@dataclass(frozen=True)
class Segment:
    """A sentence, or a part of one that is longer than the model takes: what is translated at a time.

    Attributes:
        text (str): The text.
        token_ids (list): Its tokens, `</s>` last.
        words (list): For each of them the word of the whole text that it belongs to, -1 for none.
        prefix (list): The tokens that its translation begins with.
        phrases (list): The phrases, as tokens, that its translation contains.
        forced (str): The text of both.
    """

    text: str
    token_ids: list[int]
    words: list[int]
    prefix: list[int] = field(default_factory=list)
    phrases: list[list[int]] = field(default_factory=list)
    forced: str = ""


class Translator:
    """A model, or several, with the tokenizers.

    Args:
        model (PreTrainedModel): A sequence-to-sequence model.
        source_tokenizer (PreTrainedTokenizerFast): Of the language that is translated.
        target_tokenizer (PreTrainedTokenizerFast): Of the language that it is translated to; may be the same object.
        ensemble (sequence): More models of the same vocabulary, whose probabilities are averaged with the first one's.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        source_tokenizer: PreTrainedTokenizerFast,
        target_tokenizer: PreTrainedTokenizerFast,
        ensemble: Sequence[PreTrainedModel] = (),
    ):
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.ensemble = list(ensemble)
        is_learned = getattr(model.config, "position_embedding", None) == "learned"
        positions = model.config.max_position_embeddings if is_learned else None
        limits = [limit for limit in (source_tokenizer.model_max_length, positions) if limit and limit < 10**6]
        self.max_length = min(limits, default=DEFAULT_MAX_LENGTH)

    @classmethod
    def from_pretrained(
        cls, name_or_path: str, device: str | None = None, *, ensemble: Sequence[str] = (), **hub_kwargs: Any
    ) -> "Translator":
        """The translator that a checkpoint holds.

        Args:
            name_or_path (str): A local folder, or a repository on the Hub: user/name or user/name@revision.
            device (str, optional): Where to run; a GPU where there is one by default.
            ensemble (sequence): More checkpoints, of the same vocabulary.
            **hub_kwargs: `revision` (of each repository that is named without one), `token`, `cache_dir`,
                `local_files_only` and `force_download`, as `snapshot_download` takes them.

        Returns:
            Translator: In eval mode.

        Raises:
            ValueError: If there is no such checkpoint or no such device, if a vocabulary differs, or if a checkpoint is
                damaged or of another architecture.
            HubError: If a repository cannot be downloaded, or what was downloaded is not what the Hub has.
        """
        place = _checked_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        names = [name_or_path, *ensemble]
        folders = []
        for option, name in zip(["model", *["ensemble"] * len(ensemble)], names, strict=True):
            folders.append(checkpoint_folder(name, option=option, **hub_kwargs))
            if any((folders[-1] / vocabulary).is_file() for vocabulary in CTRANSLATE2_VOCABULARIES):
                raise ValueError(f"'{name}' was exported for CTranslate2; add `--engine ctranslate2`.")
            check_config(folders[-1], name)
        tokenizers = [load_tokenizers(folder, name) for folder, name in zip(folders, names, strict=True)]
        for name, others in zip(ensemble, tokenizers[1:], strict=True):
            _check_vocabularies(name_or_path, tokenizers[0], name, others)
        models = [load_model(folder, name).to(place) for folder, name in zip(folders, names, strict=True)]
        return cls(models[0], *tokenizers[0], ensemble=models[1:])

    def translate(
        self,
        lines: Iterable[str],
        *,
        target_prefixes: Iterable[str | None] | None = None,
        must_contain: Iterable[Sequence[str] | None] | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """Translations in the order of the lines.

        A line of nothing but spaces gives an empty one. A line longer than the model was made for is cut at word
        boundaries, its pieces translated and joined by a space, and a warning says so.

        Args:
            lines (Iterable): Texts; read as far as a window at a time.
            target_prefixes (Iterable, optional): For each line the text that its translation begins with, or None.
            must_contain (Iterable, optional): For each line the phrases that its translation contains, or None. They
                are looked for as they are inside a sentence, behind a space.
            **options: `window` (lines that are read before their translations are given, 1000), `tokens_per_batch`
                (source positions of a batch, padding included, 4096), `split_sentences` (whether a line is translated
                sentence by sentence, its line breaks and spaces kept, False), `repetition_guard` (whether what falls
                into a loop is translated once more, True), `return_scores` and `return_alignments` (False), `seed`
                (for sampling). All others are passed to `generate`.

        Returns:
            Iterator: A str for each line; a `Translation` with scores if `return_scores`, `return_alignments` or a
            `num_return_sequences` above 1 is given.
        """
        requests = _requests(lines, target_prefixes, must_contain)
        return self.translate_requests(requests, TranslationOptions.of(**options))

    def translate_requests(
        self, requests: Iterable[Request], options: TranslationOptions, first_line: int = 1
    ) -> Iterator[Any]:
        """Translations in the order of the requests.

        Args:
            requests (Iterable): Texts with what is asked of their translations.
            options (TranslationOptions): How to translate.
            first_line (int): The number of the first one, for warnings and for the seed.

        Yields:
            str or Translation: One for each.
        """
        requests = iter(requests)
        while window := list(islice(requests, options.window)):
            if options.seed is not None:
                # A run that is continued, or shared by processes, draws the same at the same line.
                torch.manual_seed(options.seed + first_line)
            yield from self._translate_window(window, first_line, options)
            first_line += len(window)

    def score(
        self,
        sources: Iterable[str],
        targets: Iterable[str],
        *,
        return_alignments: bool = False,
        window: int = 1000,
        tokens_per_batch: int = 4096,
        **settings: Any,
    ) -> Iterator[Translation]:
        """Scores of given translations, in their order.

        A translation that the model has produced itself gets the score that the search reported, if the tokenizer
        splits it into the tokens that the search chose, and it ended by itself.

        Args:
            sources (Iterable): Texts; read as far as a window at a time.
            targets (Iterable): Their translations.
            return_alignments (bool): Whether to align their words.
            window (int): Pairs that are read before their scores are given.
            tokens_per_batch (int): Source and target positions of a batch, each half on the average.
            **settings: `length_penalty`, `length_penalty_type` and `coverage_penalty`; the checkpoint's by default.

        Yields:
            Translation: One for each pair.

        Raises:
            TypeError: If there is no such setting.
            ValueError: If there are not as many translations as sources, or one is longer than learned positions.
        """
        unknown = settings.keys() - {"length_penalty", "length_penalty_type", "coverage_penalty"}
        if unknown:
            raise TypeError(f"`score` takes no argument `{min(unknown)}`.")
        options = TranslationOptions(
            window, tokens_per_batch, return_alignments=return_alignments, generate=dict(settings)
        )
        pairs = zip(sources, targets, strict=True)
        done = 0
        while batch := list(islice(pairs, window)):
            segments, hypotheses = [], []
            for number, (source, target) in enumerate(batch, done + 1):
                segment = self._segment(source.strip())
                token_ids = self.target_tokenizer(text_target=target.strip(), verbose=False)["input_ids"]
                self._check_positions(max(len(segment.token_ids), len(token_ids)), number)
                segments.append(segment)
                hypotheses.append([Hypothesis(token_ids, 0, target.strip())])
            for (scored,) in self._scored(segments, hypotheses, options):
                yield scored
            done += len(batch)

    def _check_positions(self, length: int, number: int) -> None:
        config = self.model.config
        if getattr(config, "position_embedding", None) == "learned" and length > config.max_position_embeddings:
            raise ValueError(
                f"Pair {number:,} must have at most {config.max_position_embeddings} tokens on each side, as many as "
                f"the model has positions, but has {length}."
            )

    def _translate_window(
        self, requests: list[Request], first_line: int, options: TranslationOptions
    ) -> list[str] | list[Translation]:
        lines = [self.segments(request, first_line + i, options) for i, request in enumerate(requests)]
        segments = [segment for line, _ in lines for segment in line]
        hypotheses = self._hypotheses(segments, options)
        if options.wants_records:
            results = iter(self._scored(segments, hypotheses, options))
        else:
            results = iter([[Translation(h.text) for h in of_segment] for of_segment in hypotheses])
        num_alternatives = options.generate.get("num_return_sequences") or 1
        translations = []
        for line, separators in lines:
            parts = list(islice(results, len(line)))
            joined = [join_translations([part[i] for part in parts], separators) for i in range(num_alternatives)]
            if not options.return_alignments:
                joined = [replace(translation, alignment=None) for translation in joined]
            translations.append(with_alternatives(joined))
        return translations if options.wants_records else [translation.text for translation in translations]

    def segments(self, request: Request, number: int, options: TranslationOptions) -> tuple[list[Segment], list[str]]:
        """What is translated at a time.

        Args:
            request (Request): A text.
            number (int): Its number, for warnings.
            options (TranslationOptions): Whether to split it into sentences.

        Returns:
            tuple: N segments, and N + 1 strings of white space before, between and after their translations.
        """
        if options.split_sentences:
            sentences, separators = split_sentences(request.text)
        else:
            sentences, separators = [request.text.strip()] if request.text.strip() else [], ["", ""]
            separators = separators[: len(sentences) + 1]
        segments: list[Segment] = []
        between = separators[:1]
        num_words = 0
        for sentence, separator in zip(sentences, separators[1:], strict=True):
            pieces = self._pieces(self._segment(sentence, num_words), number)
            segments += pieces
            between += [" "] * (len(pieces) - 1) + [separator]
            num_words += len(sentence.split())
        return self._constrained(segments, request), between

    def _segment(self, text: str, num_words: int = 0) -> Segment:
        encoded = self.source_tokenizer(
            text, verbose=False, return_offsets_mapping=True, return_special_tokens_mask=True
        )
        words = source_word_indices(text, encoded["offset_mapping"], encoded["special_tokens_mask"])
        return Segment(text, encoded["input_ids"], [word + num_words if word >= 0 else -1 for word in words])

    def _pieces(self, segment: Segment, number: int) -> list[Segment]:
        """A segment in as many pieces as the longest input of the model asks for."""
        ids, words = segment.token_ids, segment.words
        if len(ids) <= self.max_length:
            return [segment]
        pieces, start, room = [], 0, self.max_length - 1
        while start < len(ids) - 1:
            end = min(start + room, len(ids) - 1)
            # Back to the last word boundary, unless one word fills the piece.
            boundaries = [i for i in range(end, start, -1) if words[i] != words[i - 1]]
            end = boundaries[0] if end < len(ids) - 1 and boundaries else end
            text = self.source_tokenizer.decode(ids[start:end])
            pieces.append(Segment(text, [*ids[start:end], ids[-1]], [*words[start:end], -1]))
            start = end
        logger.warning(
            f"Line {number} has {len(ids)} tokens, more than the {self.max_length} of this model; it is translated in "
            f"{len(pieces)} pieces."
        )
        return pieces

    def _constrained(self, segments: list[Segment], request: Request) -> list[Segment]:
        """The segments of a text, the first with its prefix, and phrases where they are or in the longest."""
        if not segments or not (request.target_prefix or request.must_contain):
            return segments
        prefix = prefix_token_ids(request.target_prefix, self.target_tokenizer)
        segments[0] = replace(segments[0], prefix=prefix, forced=request.target_prefix)
        phrases_of = assign_phrases(request.must_contain, [segment.text for segment in segments])
        for i, phrases in enumerate(phrases_of):
            ids = [phrase_token_ids(phrase, self.target_tokenizer) for phrase in phrases]
            segments[i] = replace(segments[i], phrases=ids, forced=" ".join([segments[i].forced, *phrases]))
        return segments

    def _hypotheses(self, segments: list[Segment], options: TranslationOptions) -> list[list[Hypothesis]]:
        """What the search finds for each segment, best first; those that are loops once more without."""
        hypotheses = self._search(segments, options.tokens_per_batch, options.generate)
        if not options.repetition_guard or "streamer" in options.generate:
            return hypotheses

        def loops(segment: Segment, found: list[Hypothesis]) -> bool:
            return is_loop(found[0].text, f"{segment.text} {segment.forced}")

        looping = [i for i, segment in enumerate(segments) if loops(segment, hypotheses[i])]
        sizes = [ngram_size_without_loops(segments[i].text) for i in looping]
        for size in set(sizes):
            again = [i for i, own in zip(looping, sizes, strict=True) if own == size]
            generate = {**options.generate, "no_repeat_ngram_size": size}
            mended = self._search([segments[i] for i in again], options.tokens_per_batch, generate)
            for i, found in zip(again, mended, strict=True):
                if not loops(segments[i], found):
                    hypotheses[i] = found
        return hypotheses

    def _search(
        self, segments: list[Segment], tokens_per_batch: int, generate: dict[str, Any]
    ) -> list[list[Hypothesis]]:
        hypotheses: list[list[Hypothesis]] = [[] for _ in segments]
        for batch in batches_by_length([segment.token_ids for segment in segments], tokens_per_batch):
            found = self.generate_batch([segments[i] for i in batch], **generate)
            for i, of_segment in zip(batch, found, strict=True):
                hypotheses[i] = of_segment
        return hypotheses

    def generate_batch(self, segments: list[Segment], **generate_kwargs: Any) -> list[list[Hypothesis]]:
        """What the search finds for a batch; another engine has another one.

        Args:
            segments (list): B of them.
            **generate_kwargs: As `generate` takes them.

        Returns:
            list: For each segment `num_return_sequences` hypotheses, best first.
        """
        model = self.model
        inputs = self._padded(segments)
        inputs |= constraint_arguments(model, [s.prefix for s in segments], [s.phrases for s in segments])
        arguments = dict(generate_kwargs)
        if arguments.get("num_beams") == 1:
            # What the checkpoint says of beams would make transformers warn at each batch.
            arguments = {"length_penalty": 1.0, "early_stopping": False, **arguments}
        if arguments.get("max_new_tokens"):
            # So would its `max_length`.
            arguments = {"max_length": None, **arguments}
        if self.ensemble:
            arguments["ensemble"] = self.ensemble
        sequences = model.generate(**inputs, **arguments)
        prompt_length = inputs["decoder_input_ids"].shape[1] if "decoder_input_ids" in inputs else 1
        rows = iter(sequences.tolist())
        found = []
        for segment in segments:
            of_segment = []
            for row in islice(rows, len(sequences) // len(segments)):
                token_ids = translation_token_ids(row, len(segment.prefix), prompt_length, model)
                text = self.target_tokenizer.decode(token_ids, skip_special_tokens=True)
                of_segment.append(Hypothesis(token_ids, len(segment.prefix), " ".join(text.split("\n"))))
            found.append(of_segment)
        return found

    def _scored(
        self, segments: list[Segment], hypotheses: list[list[Hypothesis]], options: TranslationOptions
    ) -> list[list[Translation]]:
        """The scored translations of each segment."""
        pairs = [(s, h) for s, of_segment in zip(segments, hypotheses, strict=True) for h in of_segment]
        lengths = [[0] * (len(segment.token_ids) + len(hypothesis.token_ids)) for segment, hypothesis in pairs]
        translations: dict[int, Translation] = {}
        for batch in batches_by_length(lengths, 2 * options.tokens_per_batch):
            scored = self.score_batch([pairs[i][0] for i in batch], [pairs[i][1] for i in batch], options)
            translations |= zip(batch, scored, strict=True)
        in_order = iter([translations[i] for i in range(len(pairs))])
        return [list(islice(in_order, len(of_segment))) for of_segment in hypotheses]

    @torch.inference_mode()
    def score_batch(
        self, segments: list[Segment], hypotheses: list[Hypothesis], options: TranslationOptions
    ) -> list[Translation]:
        """The scored translations of a batch; another engine has another one.

        Args:
            segments (list): B of them.
            hypotheses (list): One for each.
            options (TranslationOptions): Whether to align words, and the penalties.

        Returns:
            list: B translations.
        """
        generate = dict(options.generate)
        config = scoring_config(generate.pop("generation_config", None) or self.model.generation_config, **generate)
        scorer = Scorer([self.model, *self.ensemble], self.target_tokenizer, config)
        words = [segment.words for segment in segments] if options.return_alignments else None
        return scorer(self._padded(segments), hypotheses, words)

    def _padded(self, segments: list[Segment]) -> dict[str, Any]:
        ids = {"input_ids": [segment.token_ids for segment in segments]}
        return dict(self.source_tokenizer.pad(ids, return_tensors="pt").to(self.model.device))


def _requests(
    lines: Iterable[str],
    target_prefixes: Iterable[str | None] | None,
    must_contain: Iterable[Sequence[str] | None] | None,
) -> Iterator[Request]:
    """Lines with what is asked of their translations.

    Raises:
        TypeError: If the phrases of a line are one text.
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
        if isinstance(of_line, str):
            raise TypeError(
                f"`must_contain` must hold a list of phrases per line, but for line {number:,} it is a str."
            )
        yield Request(line, prefix or "", tuple(of_line or ()))  # type: ignore[arg-type]
    for name, given, rest in (("target_prefixes", target_prefixes, prefixes), ("must_contain", must_contain, phrases)):
        if given is not None and next(rest, nothing) is not nothing:
            raise ValueError(f"`{name}` must hold one entry per line, but has more than the {number:,} lines.")


def _checked_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(f"`device` must be one of this machine, such as cpu or cuda, but is {name!r}.") from None
    return device


def _check_vocabularies(name: str, tokenizers: tuple, other_name: str, others: tuple) -> None:
    for tokenizer, other in zip(tokenizers, others, strict=True):
        if tokenizer.get_vocab() != other.get_vocab():
            raise ValueError(
                f"`ensemble` must hold checkpoints with the vocabulary of '{name}', but '{other_name}' has another one "
                f"({len(tokenizer):,} and {len(other):,} entries)."
            )


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
