"""The engine that translates texts: segments, batches of similar length, hypotheses, and texts in the order of the input.

This file travels with every checkpoint because the pipeline is an adapter of it. It serves all encoder-decoder models that
generate. `vaswani_hf.translation.Translator` adds scores, alignments, constraints, sentences and the repetition guard.
"""

import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import logging

from .beam_search_vaswani import SentenceError
from .configuration_vaswani import eos_token_ids
from .generation_vaswani import FiniteLogits, VaswaniGeneration, checked_models
from .options_vaswani import TranslationOptions

logger = logging.get_logger(__name__)

# A tokenizer keeps in itself where it cuts and in which language it reads: threads take turns.
TOKENIZING = threading.RLock()
# The longest input (tokens) where neither tokenizer nor model has a limit: what attention handles in little memory.
DEFAULT_MAX_LENGTH = 1024
# Tokenizers without a limit have one of 10^30.
_NO_LIMIT = 10**6
# The search where neither the call nor the checkpoint sets it: that of the pipeline of transformers 4. A Vaswani model
# has a limit of its own for each sentence and takes no `max_new_tokens` from here.
DEFAULT_SEARCH = {"num_beams": 4, "max_new_tokens": 256}
_LENGTHS = {"max_new_tokens", "max_length"}


@dataclass(frozen=True)
class Request:
    """A text to translate, with the beginning of its translation and phrases that its translation contains."""

    text: str
    target_prefix: str = ""
    must_contain: Sequence[str] = ()


@dataclass(frozen=True)
class Segment:
    """A sentence, or a part of one that is longer than the model takes, which is translated at a time."""

    text: str
    # `</s>` last; and for each token the word of the whole text that it belongs to, -1 for none.
    token_ids: list[int]
    words: list[int]
    # Arguments of `generate` that the tokenizer gives, such as the language of the translation.
    generate: dict[str, Any] = field(default_factory=dict)
    # The tokens that its translation begins with, the phrases that it contains as tokens and as texts, and the text of all.
    prefix: list[int] = field(default_factory=list)
    phrases: list[list[int]] = field(default_factory=list)
    phrase_texts: list[str] = field(default_factory=list)
    forced: str = ""


@dataclass(frozen=True)
class Hypothesis:
    """A result of a search, as tokens and as text."""

    # The decoder's start is left out; forced tokens, of a target prefix, come first; `</s>` is last, unless it was cut off.
    token_ids: list[int]
    num_forced: int
    text: str = ""


class GenerateBackend:
    """The backend that travels. Each has `generation_config`, `max_positions`, `seed` and `search`, for `Translator` also `score`."""

    def __init__(self, model: PreTrainedModel, ensemble: Sequence[PreTrainedModel] = ()):
        self.model: Any = model
        self.ensemble = checked_models(ensemble)
        if self.ensemble and not isinstance(model, VaswaniGeneration):
            raise ValueError(
                f"`ensemble` needs a Vaswani model as the first one, but that is a {type(model).__name__}; change their order."
            )

    @property
    def generation_config(self) -> GenerationConfig:
        """The checkpoint's settings."""
        return self.model.generation_config

    @property
    def max_positions(self) -> float | None:
        """Source tokens at most, infinite without a limit; None for other models than ours, whose texts are not cut."""
        config = self.model.config
        if config.model_type != "vaswani":
            return None
        return config.max_position_embeddings if config.position_embedding == "learned" else math.inf

    def seed(self, seed: int) -> None:
        """Makes sampling draw what it always draws after this seed."""
        torch.manual_seed(seed)

    def inputs(self, segments: list[Segment]) -> dict[str, torch.Tensor]:
        """`input_ids` and `attention_mask` [batch, source length] int64, on the model's device."""
        rows = [torch.tensor(segment.token_ids) for segment in segments]
        ids = pad_sequence(rows, batch_first=True, padding_value=self.model.config.pad_token_id or 0)
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        return {"input_ids": ids.to(self.model.device), "attention_mask": mask.to(self.model.device)}

    def constraints(self, segments: list[Segment]) -> tuple[list[list[int]], dict[str, Any]]:
        """The prefixes of the translations, and what constraints add to the arguments of `generate`: nothing here."""
        return [[] for _ in segments], {}

    def search(self, segments: list[Segment], with_attention: bool = False, **settings: Any) -> list[list[Hypothesis]]:
        """For each segment of a batch its hypotheses, best first; the settings are those of `generate`.

        There are fewer hypotheses than `num_return_sequences` if the search has found fewer.

        `with_attention` tells a backend that cannot find the attention later, when it scores, to keep it.

        Raises:
            SentenceError: If logits are not finite, or settings contradict each other; it names the text.
        """
        prefixes, constraints = self.constraints(segments)
        settings = {"ensemble": self.ensemble, **settings} if self.ensemble else settings
        # Settings of the checkpoint that others make idle, of which transformers would warn.
        idle: dict[str, Any] = {"max_length": None} if settings.get("max_new_tokens") else {}
        if settings.get("num_beams") == 1:
            idle |= {"length_penalty": 1.0, "early_stopping": False}
        idle = {name: idle[name] for name in idle if getattr(self.generation_config, name, None) is not None}
        arguments = {**self.inputs(segments), **segments[0].generate, **constraints, **idle, **settings}
        finite = FiniteLogits()
        if not isinstance(self.model, VaswaniGeneration):
            # Models of others do not look at their logits.
            arguments["logits_processor"] = [*(arguments.get("logits_processor") or ()), finite]
        try:
            sequences = self.model.generate(**arguments | {"return_dict_in_generate": False})
            finite.refuse(len(segments))
        except SentenceError as error:
            error.text = segments[error.sentence].text
            raise
        prompt_length = constraints["decoder_input_ids"].shape[1] if any(prefixes) else 1
        found = []
        for rows, prefix in zip(sequences.view(len(segments), -1, sequences.shape[1]), prefixes, strict=True):
            ids = [translation_token_ids(row, len(prefix), prompt_length, self.model) for row in rows.tolist()]
            # A row without tokens of its own is no translation.
            existing = [token_ids for token_ids in ids if len(token_ids) > len(prefix)]
            found.append([Hypothesis(token_ids, len(prefix)) for token_ids in existing or ids[:1]])
        return found


class TranslationEngine:
    """A backend with the tokenizers, the prefix of each text, as T5 asks for, and the settings that the checkpoint has for its task."""

    backend_class: type = GenerateBackend

    def __init__(self, model, source_tokenizer, target_tokenizer, ensemble=(), *, prefix="", task_settings=None):
        self.backend: Any = self.backend_class(model, ensemble) if isinstance(model, torch.nn.Module) else model
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.prefix, self.task_settings = prefix, task_settings or {}

    @property
    def max_length(self) -> int:
        """Tokens of a segment at most; longer ones are cut."""
        if self.backend.max_positions is None:
            return _NO_LIMIT
        limits = (self.source_tokenizer.model_max_length, self.backend.max_positions)
        return min((limit for limit in limits if limit < _NO_LIMIT), default=DEFAULT_MAX_LENGTH)

    def translations(self, requests: Iterable[Any], options: TranslationOptions, first_line: int = 1) -> Iterator[Any]:
        """For each text its `num_return_sequences` translations, which have `text` and `token_ids`, best first.

        There are fewer if the search has found fewer. White space has empty ones. A text longer than the model takes is cut at word boundaries, its pieces joined by a space, and a
        warning says so. Texts are read a window at a time; `first_line` is the first one's number, for warnings and the seed.
        """
        options = replace(options, generate=self._with_defaults(options.generate))
        requests = iter(requests)
        while window := list(islice(requests, options.window)):
            if options.seed is not None:
                # A run that is continued, or shared by processes, draws the same at the same line.
                self.backend.seed(options.seed + first_line)
            yield from self._found(window, range(first_line, first_line + len(window)), options)
            first_line += len(window)

    def _found(self, requests: Sequence[Any], numbers: Sequence[int], options: TranslationOptions) -> Iterable[Any]:
        """The translations of each of some texts, which have these numbers."""
        layouts = self.layouts(requests, numbers, options)
        segments = [segment for of_text, _ in layouts for segment in of_text]
        given = (options.generate, self.backend.generation_config)
        limit = setting_of("max_new_tokens", *given) or setting_of("max_length", *given)
        longest = max((len(segment.token_ids) for segment in segments), default=0)
        # transformers 4 warns at this share too.
        if options.warn_of_limit and limit is not None and longest > 0.9 * limit:
            logger.warning(
                f"A text has {longest} tokens, its translation at most {limit}; if it is cut off, give a larger `max_new_tokens`."
            )
        results = iter(self._described(segments, self._search(segments, options), options))
        most = setting_of("num_return_sequences", *given) or 1
        for of_text, separators in layouts:
            parts = list(islice(results, len(of_text)))
            number = min((len(part) for part in parts), default=most)
            yield [self._joined([part[rank] for part in parts], separators) for rank in range(number)]

    def layouts(
        self, requests: Sequence[Request], numbers: Iterable[int], options: TranslationOptions
    ) -> list[tuple[list[Segment], list[str]]]:
        """For each text its N segments, and N + 1 strings of white space before, between and after their translations."""
        texts = [self._split(checked_text(request.text), options) for request in requests]
        sentences = [sentence for of_text, _ in texts for sentence in of_text]
        segments = iter(self._segments(sentences, options) if sentences else ())
        layouts, max_length = [], self.max_length
        for number, (sentences, separators) in zip(numbers, texts, strict=False):
            of_text, between, num_words = [], separators[:1], 0
            for sentence, separator in zip(sentences, separators[1:], strict=True):
                pieces = self._pieces(next(segments), number, max_length)
                of_text += [replace(p, words=[w + num_words if w >= 0 else -1 for w in p.words]) for p in pieces]
                between += [" "] * (len(pieces) - 1) + [separator]
                num_words += len(sentence.split())
            layouts.append((of_text, between))
        return layouts

    def _split(self, text: str, options: TranslationOptions) -> tuple[list[str], list[str]]:
        """The N parts of a text that are translated by themselves, and N + 1 strings of white space around them."""
        text = text.strip()
        return ([text], ["", ""]) if text else ([], [""])

    def _segments(self, texts: list[str], options: TranslationOptions) -> list[Segment]:
        """The tokens of texts; their words where they are cut or aligned, if the tokenizer knows characters."""
        tokenizer, settings = self.source_tokenizer, {"verbose": False, **options.tokenize, "padding": False}
        languages = {name: settings.pop(name, None) for name in ("src_lang", "tgt_lang")}
        prefixed, before = [self.prefix + text for text in texts], len(self.prefix.split())
        if hasattr(tokenizer, "_build_translation_inputs"):
            settings = {"return_tensors": None, **languages, **settings}
            tokenizer = tokenizer._build_translation_inputs
        with TOKENIZING:
            inputs = tokenizer(prefixed, **settings)
        generate = {name: value for name, value in inputs.items() if not isinstance(value, list)}
        segments, max_length = [], self.max_length
        for row, (text, ids) in enumerate(zip(texts, inputs["input_ids"], strict=True)):
            words = [-1] * len(ids)
            if self.source_tokenizer.is_fast and (options.return_alignments or len(ids) > max_length):
                columns = zip(inputs[row].offsets, inputs[row].special_tokens_mask, strict=True)
                indices = words_at(prefixed[row], [-1 if is_special else start for (start, _), is_special in columns])
                words = [word - before if word >= before else -1 for word in indices]
            segments.append(Segment(text, ids, words, generate))
        return segments

    def _pieces(self, segment: Segment, number: int, max_length: int) -> list[Segment]:
        """A segment in as many pieces as the longest input of the model asks for."""
        ids, words = segment.token_ids, segment.words
        if len(ids) <= max_length:
            return [segment]
        pieces, start = [], 0
        while start < len(ids) - 1:
            end = min(start + max_length - 1, len(ids) - 1)
            # The piece ends at its last word boundary, unless one word fills it.
            boundaries = [i for i in range(end, start, -1) if words[i] != words[i - 1]]
            end = boundaries[0] if end < len(ids) - 1 and boundaries else end
            text, own = self.source_tokenizer.decode(ids[start:end]), [*ids[start:end], ids[-1]]
            pieces.append(replace(segment, text=text, token_ids=own, words=[*words[start:end], -1]))
            start = end
        logger.warning(
            f"Line {number} has {len(ids)} tokens, more than the {max_length} of this model: it is translated in {len(pieces)} pieces."
        )
        return pieces

    def _search(self, segments: list[Segment], options: TranslationOptions) -> list[list[Hypothesis]]:
        """The hypotheses of each segment, best first."""
        hypotheses: list[list[Hypothesis]] = [[] for _ in segments]
        token_ids = [segment.token_ids for segment in segments]
        for batch in batches_by_length(token_ids, options.tokens_per_batch, options.batch_size):
            found = self.backend.search([segments[i] for i in batch], options.is_scored, **options.generate)
            for i, of_segment in zip(batch, found, strict=True):
                for h in of_segment:
                    text = self.target_tokenizer.decode(h.token_ids, skip_special_tokens=True, **options.decode)
                    # A line stays a line.
                    text = text if "\n" in segments[i].text else text.replace("\n", " ")
                    hypotheses[i].append(replace(h, text=text))
        return hypotheses

    def _described(self, segments: list[Segment], hypotheses: list[list[Hypothesis]], options: Any) -> list[list[Any]]:
        """The hypotheses with what else is asked for."""
        return hypotheses

    def _joined(self, parts: Sequence[Any], separators: list[str]) -> Any:
        """The translation of a text from those of its segments."""
        texts = [part.text + separator for part, separator in zip(parts, separators[1:], strict=True)]
        return Hypothesis([i for part in parts for i in part.token_ids], 0, "".join([separators[0], *texts]))

    def _with_defaults(self, settings: dict[str, Any]) -> dict[str, Any]:
        if settings.get("generation_config") is not None:
            return settings
        defaults = _unset(DEFAULT_SEARCH, {**self.backend.generation_config.to_diff_dict(), **self.task_settings})
        if self.backend.max_positions is not None:
            defaults.pop("max_new_tokens", None)
        return {**_unset({**self.task_settings, **defaults}, settings), **settings}


def _unset(defaults: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults for what is not set; either maximum length stands for both, which `generate` must not get at once."""
    settled = _LENGTHS | settings.keys() if _LENGTHS & settings.keys() else settings.keys()
    return {name: value for name, value in defaults.items() if name not in settled}


def setting_of(name: str, settings: Mapping[str, Any], generation_config: GenerationConfig) -> Any:
    """The value of a setting of `generate`: the call's, even if that is None, or that of its config, or the checkpoint's."""
    values = (getattr(config, name, None) for config in (settings.get("generation_config"), generation_config))
    return settings[name] if name in settings else next((value for value in values if value is not None), None)


def checked_text(text: Any, name: str = "A text to translate") -> str:
    """The text.

    Raises:
        TypeError: If it is no str.
        ValueError: If UTF-8 cannot write it, because half a surrogate pair stands in it.
    """
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str, but one is of type {type(text).__name__}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} must be valid Unicode, but one holds {text[error.start]!r}, half a character, which UTF-8 cannot write."
        ) from None
    return text


def words_at(text: str, starts: Sequence[int]) -> list[int]:
    """The index of the word at or behind each position in a text; -1 where there is none, or for the position -1."""
    # For each character, and the end, how many words end before it.
    ended = [0]
    for character, following in zip(text, (text + " ")[1:], strict=True):
        ended.append(ended[-1] + (not character.isspace() and following.isspace()))
    return [ended[start] if start >= 0 and ended[start] < ended[-1] else -1 for start in starts]


def translation_token_ids(sequence: Sequence[int], num_forced: int, prompt_length: int, model: Any) -> list[int]:
    """The tokens of a translation that `generate` gave back: the prefix, the prompt's last `num_forced`, first, `</s>` last if any."""
    ends, own = eos_token_ids(model.generation_config), list(sequence[prompt_length:])
    end = next((position + 1 for position, token_id in enumerate(own) if token_id in ends), len(own))
    # A translation that was cut off before the others of its batch is filled up.
    while end > 0 and own[end - 1] == model.config.pad_token_id and own[end - 1] not in ends:
        end -= 1
    return [*sequence[prompt_length - num_forced : prompt_length], *own[:end]]


def batches_by_length(
    pieces: Sequence[Sequence[int]], tokens_per_batch: int, batch_size: int | None = None
) -> Iterator[list[int]]:
    """Indices of pieces of similar length, longest first, each batch within the budget or a single piece."""
    longest_first = iter(sorted(range(len(pieces)), key=lambda i: -len(pieces[i])))
    for i in longest_first:
        size = max(1, tokens_per_batch // max(1, len(pieces[i])))
        yield [i, *islice(longest_first, min(size, batch_size or size) - 1)]


def check_tokenizers(model: Any, source_tokenizer: Any, target_tokenizer: Any, name: str = "") -> None:
    """Refuse tokenizers that are not those of a Vaswani model, of a checkpoint of this name; it may have spare classes.

    Raises:
        ValueError: If one has ids that the model lacks, or another `<pad>` or `</s>` than the model.
    """
    config, ends = model.config, eos_token_ids(model.config) + eos_token_ids(model.generation_config)
    sides = {"source": (source_tokenizer, config.vocab_size), "target": (target_tokenizer, config.decoder_vocab_size)}
    for side, (tokenizer, classes) in sides.items():
        largest, faults = max(tokenizer.get_vocab().values(), default=0), []
        if largest >= classes:
            faults.append(f"has ids up to {largest:,}, more than the {classes:,} classes of the model")
        for token, ids in (("pad_token", [config.pad_token_id]), ("eos_token", ends if side == "target" else [])):
            own = getattr(tokenizer, f"{token}_id")
            if own is not None and own not in ids and ids not in ([], [None]):
                faults.append(f"its `{token}` has the id {own}, and that of the model {ids[0]}")
        if faults:
            raise ValueError(
                f"The {side} tokenizer must fit {repr(name) if name else 'the model'}, but {faults[0]}; take both from one checkpoint."
            )
