"""Divides texts into tokenized segments: steps 1 to 3 of a translation, see translator_vaswani.

`Segmenter` splits a text into sentences (step 1), and cuts sentences that are too long for the model.
`SegmentTokenizer` tokenizes the sentences (step 2). `SegmentTokenizer` adds the task prefix, language tags
and language tokens, and finds for each token the word that contains the token. `ConstraintAssigner` assigns
the target prefix and the required phrases of a text to its segments, and adds the terms of the glossary
(step 3).

This file is saved with every checkpoint because the translator runs the code of this file.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from transformers import GenerationConfig
from transformers.utils import logging

from .backend_vaswani import Backend, Layout, Segment, language_token
from .errors_vaswani import InvalidValueError
from .glossary_vaswani import Glossary
from .inputs_vaswani import TranslationOptions
from .length_limits_vaswani import max_new_tokens_of
from .phrases_vaswani import forbidden_tokens, has_ordinary_tokens, repeated_ngram
from .precedence_vaswani import config_of_call
from .requests_vaswani import Request
from .text_rules_vaswani import copy_symbols, has_words, split_sentences, words_at
from .tokenizing_vaswani import TAG, TOKENIZING, languages_of, phrase_token_ids, prefix_token_ids, tags_of

logger = logging.get_logger(__name__)

# The maximum number of input tokens if neither the tokenizer nor the model has a limit.
DEFAULT_MAX_LENGTH = 1024
# A tokenizer without a limit has the `model_max_length` 10^30. Ignore limits of `NO_LIMIT` tokens or more.
NO_LIMIT = 10**6


def token_limits(tokenizers: Iterable[Any]) -> list[int]:
    """Return the maximum number of tokens of each tokenizer that has a limit."""
    limits = [tokenizer.model_max_length for tokenizer in tokenizers]
    return [limit for limit in limits if limit < NO_LIMIT]


class SegmentTokenizer:
    """Tokenizes source texts with the tokenizer of the source language.

    Attributes:
        tags (dict): Maps each tag of a target language, such as ">>en<<", to its token id.
        languages (dict): Maps each language of a multilingual tokenizer to the id of its language token.
        first_ids (set): All token ids in `tags` and `languages`.
    """

    def __init__(self, tokenizer: Any, prefix: str):
        self.tokenizer = tokenizer
        self.prefix = prefix
        self.tags = tags_of(tokenizer)
        self.languages = languages_of(tokenizer)
        self.first_ids = {*self.tags.values(), *self.languages.values()}

    def tag_of(self, text: str) -> str:
        """Return the tag at the beginning of a text, such as ">>en<<", or an empty str. White space before
        the tag is ignored.
        """
        tag = TAG.match(text.lstrip())
        return tag[0] if tag and tag[0] in self.tags else ""

    def start_of(self, text: str) -> int:
        """Return the position at which the text after the tag begins, or 0 for a text without a tag."""
        tag = self.tag_of(text)
        return len(text) - len(text.lstrip().removeprefix(tag).lstrip()) if tag else 0

    def with_tag(self, text: str, language: str | None) -> str:
        """Put the tag of a target language before a text without a tag, if the tokenizer has tags."""
        if language is None or not self.tags or not text.strip() or self.tag_of(text):
            return text
        tag = f">>{language}<<"
        if tag not in self.tags:
            languages = ", ".join(known.strip("><") for known in self.tags)
            raise InvalidValueError(
                f"`tgt_lang` must be a target language of the model ({languages}), but is {language!r}."
            )
        return f"{tag} {text.lstrip()}"

    def tokenize(self, texts: Sequence[str], options: TranslationOptions, max_length: int) -> list[Segment]:
        """Convert texts to segments. Set `Segment.words` only for word alignments, and for segments with more
        than `max_length` tokens, because such segments must be cut.
        """
        if not texts:
            return []
        prefixed = [self.prefix + text for text in texts]
        inputs = self._token_ids(prefixed, options, max_length)
        arguments = {name: value for name, value in inputs.items() if not isinstance(value, list)}
        first_ids = []
        if self.languages:
            first_ids = [self._language_id("src_lang", options.src_lang)]
            arguments["forced_bos_token_id"] = self._language_id("tgt_lang", options.tgt_lang)
        segments = []
        for row, (text, token_ids) in enumerate(zip(texts, inputs["input_ids"], strict=True)):
            segment = Segment(text, [*first_ids, *token_ids], generate_arguments=arguments)
            is_long = len(segment.token_ids) > max_length
            if self.tokenizer.is_fast and (options.return_alignments or is_long):
                segment.words = [-1] * len(first_ids) + self._words(prefixed[row], inputs[row])
            segments.append(segment)
        return segments

    def _token_ids(self, texts: list[str], options: TranslationOptions, max_length: int) -> Any:
        """Return the output of the tokenizer. If a value in the tokenizer's output is not a list, the value
        is an argument for `generate`.
        """
        settings: dict[str, Any] = {"verbose": False, **options.tokenize, "padding": False}
        if self.languages and options.tokenize.get("truncation"):
            # Leave room for the token of the source language.
            settings.setdefault("max_length", max_length - 1)
        tokenize = self.tokenizer
        if hasattr(self.tokenizer, "_build_translation_inputs"):
            # Pass the languages, because tokenizers of multilingual models, such as mBART, need the
            # languages.
            languages = {"src_lang": options.src_lang, "tgt_lang": options.tgt_lang}
            settings = {"return_tensors": None, **languages, **settings}
            tokenize = self.tokenizer._build_translation_inputs
        with TOKENIZING:
            return tokenize(texts, **settings)

    def _language_id(self, name: str, language: str | None) -> int:
        """Return the token id of a language. `name` is the name of the option in an error message."""
        if language not in self.languages:
            raise InvalidValueError(
                f"`{name}` must be a language of the model ({', '.join(self.languages)}), but is "
                f"{language!r}."
            )
        return self.languages[language]

    def _words(self, text: str, encoding: Any) -> list[int]:
        """Return the index of each token's word, or -1 for a token outside of words. The first word after the
        task prefix has the index 0.
        """
        starts = []
        for (start, _), is_special in zip(encoding.offsets, encoding.special_tokens_mask, strict=True):
            starts.append(-1 if is_special else start)
        num_before = len(self.prefix.split())
        return [word - num_before if word >= num_before else -1 for word in words_at(text, starts)]

    def shift_word_indices(self, segments: list[Segment], separators: list[str], text: str) -> None:
        """Make the word indices of the sentences count from the beginning of the text. A language tag that
        the translator has added to a sentence gets the word index -1.

        Without white space between two sentences, the last word of the first sentence and the first word of
        the second sentence are one word.
        """
        starts = []
        position = self.start_of(text)
        for segment, separator in zip(segments, separators[:-1], strict=True):
            position += len(separator)
            starts.append(position)
            position += len(segment.text) - self.start_of(segment.text)
        has_tag = self.start_of(text) > 0
        for number, (segment, first_word) in enumerate(zip(segments, words_at(text, starts), strict=True)):
            start = self.start_of(segment.text)
            shift = first_word - words_at(segment.text, [start])[0]
            tag_word = segment.words[:1] if has_tag and number == 0 else [-1]
            segment.words = [word + shift if word >= 0 else -1 for word in segment.words]
            if start and segment.words:
                segment.words[:1] = tag_word


class ConstraintAssigner:
    """Assigns target prefixes, required phrases and glossary terms to segments."""

    def __init__(self, target_tokenizer: Any, backend: Backend):
        self.target_tokenizer = target_tokenizer
        self.backend = backend

    def assign(self, segments: list[Segment], request: Request) -> None:
        """Assign the target prefix of a text to its first segment, and each required phrase to one
        segment.
        """
        segments[0].prefix = prefix_token_ids(request.target_prefix, self.target_tokenizer)
        segments[0].prefix_text = request.target_prefix
        if not request.must_contain:
            return
        if not self.backend.supports_phrases:
            raise InvalidValueError(
                "`must_contain` must be left out, because the engine of the model does not support phrases."
            )
        phrases_of = assign_phrases(request.must_contain, [segment.text for segment in segments])
        for segment, phrases in zip(segments, phrases_of, strict=True):
            segment.phrases = [phrase_token_ids(phrase, self.target_tokenizer) for phrase in phrases]
            segment.phrase_texts = phrases

    def add_terms(self, segment: Segment, terms: Glossary, settings: Mapping[str, Any]) -> None:
        """Add target terms of the glossary to the required phrases of a segment. Ignore a term that cannot
        occur in the translation, for example because a search setting in `settings` forbids the term.
        """
        config = config_of_call(settings, self.backend.generation_config)
        room = self._room_for_terms(segment, config)
        for phrase in terms.phrases(segment.text):
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

    def _room_for_terms(self, segment: Segment, config: GenerationConfig) -> int:
        """Return the number of tokens that glossary terms can occupy in the translation of a segment."""
        prompt_length = 1 + len(segment.prefix)
        longest = max_new_tokens_of(config, len(segment.token_ids), prompt_length, self.backend.max_positions)
        num_others = len(language_token(segment)) + sum(map(len, segment.phrases))
        # Subtract 1 for `</s>`.
        return max(0, longest - num_others - 1)

    def _obstacle_to_term(self, token_ids: list[int], room: int, config: GenerationConfig) -> str | None:
        """Return the reason why a glossary term cannot occur in the translation, or None."""
        num_classes = len(self.target_tokenizer)
        has_tokens = bool(token_ids) and has_ordinary_tokens(token_ids, config, num_classes)
        if not has_tokens or self.target_tokenizer.unk_token_id in token_ids:
            return "the vocabulary lacks a part of the term"
        if len(token_ids) > room:
            return f"the term has {len(token_ids)} tokens, and the translation has room for {room}"
        if repeated_ngram(token_ids, config.no_repeat_ngram_size):
            return f"`no_repeat_ngram_size` is {config.no_repeat_ngram_size} and forbids a repetition in the term"
        return forbidden_tokens(token_ids, config)


def assign_phrases(phrases: Sequence[str], texts: Sequence[str]) -> list[list[str]]:
    """Assign each phrase to the first text that contains the phrase. Required phrases are often names, and a
    name often has the same spelling in the source and in the translation. If no text contains the phrase,
    assign the phrase to the longest text. For each text, return the list of its phrases.
    """
    assigned: list[list[str]] = [[] for _ in texts]
    longest = max(range(len(texts)), key=lambda i: len(texts[i]))
    for phrase in phrases:
        part = next((i for i, text in enumerate(texts) if phrase in text), longest)
        assigned[part].append(phrase)
    return assigned


class Segmenter:
    """Divides texts into segments. A `Segment` also stores the target prefix and the required phrases of its
    translation.

    If the inputs or outputs of a model are not texts, a subclass overrides `split` and `cut`.
    """

    def __init__(self, tokenizer: SegmentTokenizer, constraints: ConstraintAssigner, backend: Backend):
        self.tokenizer = tokenizer
        self.constraints = constraints
        self.backend = backend

    @property
    def max_length(self) -> int:
        """The maximum number of tokens in a segment."""
        if not self.backend.is_vaswani:
            return NO_LIMIT
        longest: Any = min([*token_limits([self.tokenizer.tokenizer]), self.backend.max_positions])
        return longest if longest < NO_LIMIT else DEFAULT_MAX_LENGTH

    def layouts(self, requests: Sequence[Request], options: TranslationOptions) -> list[Layout]:
        """Divide the texts into tokenized segments (steps 1 to 3 of a translation). Return a `Layout` for
        each request.
        """
        texts = [self.split(request, options) for request in requests]
        sentences: list[str] = []
        for of_text, _ in texts:
            sentences += of_text
        segments = iter(self.tokenizer.tokenize(sentences, options, self.max_length))
        layouts = []
        for request, (of_text, separators) in zip(requests, texts, strict=True):
            of_request = list(islice(segments, len(of_text)))
            layouts.append(self._layout(request, of_request, separators, options))
        return layouts

    def _layout(
        self,
        request: Request,
        sentences: list[Segment],
        separators: list[str],
        options: TranslationOptions,
    ) -> Layout:
        """Divide sentences that are too long for the model into pieces, and assign the target prefix and the
        required phrases of the request to sentences and pieces.
        """
        if options.return_alignments:
            self.tokenizer.shift_word_indices(sentences, separators, request.text)
        pieces: list[Segment] = []
        between = separators[:1]
        for sentence, separator in zip(sentences, separators[1:], strict=True):
            of_sentence = self.cut(sentence, request.line_number)
            pieces += of_sentence
            between += [" "] * (len(of_sentence) - 1) + [separator]
        if pieces and request.is_constrained:
            self.constraints.assign(pieces, request)
        elif request.target_prefix and not request.is_copied:
            # If a blank text has a target prefix, the translation is the target prefix.
            between = [request.target_prefix.strip()]
        if isinstance(options.glossary, Glossary):
            for piece in pieces:
                self.constraints.add_terms(piece, options.glossary, options.generate)
        return Layout(pieces, between)

    def split(self, request: Request, options: TranslationOptions) -> tuple[list[str], list[str]]:
        """Split a text into N parts that are translated separately. Return the N parts, and N + 1 texts
        before, between and after the parts (the separators). A separator is copied to the translation.
        Besides white space, a separator can contain sentences without letters and digits.
        """
        stripped = request.text.strip()
        untagged = request.text[self.tokenizer.start_of(request.text) :]
        if request.is_copied:
            return [], [untagged]
        is_blank = not untagged.strip()
        if is_blank or not (request.is_constrained or has_words(untagged)):
            return [], [untagged if options.split_sentences else untagged.strip()]
        tagged = self.tokenizer.with_tag(stripped, options.tgt_lang)
        if not options.split_sentences:
            return [tagged], ["", ""]
        sentences, separators = split_sentences(untagged)
        if not request.is_constrained:
            sentences, separators = copy_symbols(sentences, separators)
        tag = self.tokenizer.tag_of(tagged)
        # Repeat the tag before each sentence, because each sentence is translated separately.
        return [f"{tag} {sentence}" if tag else sentence for sentence in sentences], separators

    def cut(self, segment: Segment, line_number: int) -> list[Segment]:
        """Divide a segment into pieces of at most `max_length` tokens. Each piece begins with the language
        tag or language token of the segment, if there is one.
        """
        max_length = self.max_length
        if len(segment.token_ids) <= max_length:
            return [segment]
        tokenizer = self.tokenizer.tokenizer
        ids = list(segment.token_ids)
        end_ids = []
        # A source without `</s>` is possible, because OpenNMT-py adds no `</s>` to sources.
        if ids[-1] in (tokenizer.eos_token_id, tokenizer.sep_token_id):
            end_ids = [ids.pop()]
        words = segment.words or [-1] * len(segment.token_ids)
        tag_ids = ids[:1] if ids[0] in self.tokenizer.first_ids else []
        start = len(tag_ids)
        tag_words = words[:start]
        # The maximum number of tokens in a piece of the segment, not counting the language tag and `</s>`.
        room = max_length - len(end_ids) - len(tag_ids)
        if room < 1:
            raise ValueError(
                f"The model can read at most {max_length} tokens, but a piece of line {line_number} needs at least "
                f"{max_length - room + 1} tokens with `</s>`; raise `model_max_length` in tokenizer_config.json."
            )
        pieces = []
        while start < len(ids):
            stop = min(start + room, len(ids))
            if stop < len(ids):
                # Cut the segment at the boundary of a word. Cut inside a word only if the word has more
                # tokens than fit in one piece.
                boundaries = (i for i in range(stop, start, -1) if words[i] != words[i - 1])
                stop = next(boundaries, stop)
            piece = replace(
                segment,
                text=tokenizer.decode(ids[start:stop]),
                token_ids=[*tag_ids, *ids[start:stop], *end_ids],
                words=[*tag_words, *words[start:stop], *words[len(ids) :]],
            )
            pieces.append(piece)
            tag_words = [-1] * len(tag_ids)
            start = stop
        logger.warning(
            f"Line {line_number} has {len(segment.token_ids)} tokens, but the model can read at most "
            f"{max_length} tokens, so the line is translated in {len(pieces)} pieces."
        )
        return pieces

    def source_segments(self, texts: Iterable[str], options: TranslationOptions) -> list[Segment]:
        """Tokenize whole texts, each with the tag of `tgt_lang`, without splitting or truncating."""
        tagged = [self.tokenizer.with_tag(text, options.tgt_lang) for text in texts]
        return self.tokenizer.tokenize(tagged, options, self.max_length)
