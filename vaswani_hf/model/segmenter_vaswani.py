"""Divides texts into tokenized segments: steps 1 to 3 of a translation, see translator_vaswani.

This file is saved with every checkpoint because the translator divides texts with this file.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from transformers.utils import logging

from .backend_vaswani import Backend, Layout, Segment
from .constraints_vaswani import ConstraintAssigner
from .glossary_vaswani import Glossary
from .inputs_vaswani import TranslationOptions
from .requests_vaswani import Request
from .segment_tokenizer_vaswani import SegmentTokenizer
from .text_rules_vaswani import copy_symbols, has_words, split_sentences

logger = logging.get_logger(__name__)

# The maximum number of input tokens if neither the tokenizer nor the model has a limit.
DEFAULT_MAX_LENGTH = 1024
# A tokenizer without a limit has the `model_max_length` 10^30. Ignore limits of `NO_LIMIT` tokens or more.
NO_LIMIT = 10**6


class Segmenter:
    """Divides texts into segments. A segment contains the target prefix and the required phrases for its
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
        limits: list[Any] = [self.tokenizer.tokenizer.model_max_length, self.backend.max_positions]
        return min((limit for limit in limits if limit < NO_LIMIT), default=DEFAULT_MAX_LENGTH)

    def layouts(
        self, requests: Sequence[Request], numbers: Iterable[int], options: TranslationOptions
    ) -> list[Layout]:
        """Divide the texts into tokenized segments (steps 1 to 3 of a translation). Return a `Layout` for
        each request.
        """
        texts: list[tuple[list[str], list[str]]] = []
        for request in requests:
            texts.append(([], [request.text]) if request.is_copied else self.split(request, options))
        sentences: list[str] = []
        for of_text, _ in texts:
            sentences += of_text
        segments = iter(self.tokenizer.tokenize(sentences, options, self.max_length))
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
        """Cut the sentences of a request into pieces, and assign the target prefix and the required phrases
        to pieces.
        """
        if options.return_alignments:
            self.tokenizer.shift_word_indices(sentences, separators, request.text)
        pieces: list[Segment] = []
        between = separators[:1]
        for sentence, separator in zip(sentences, separators[1:], strict=True):
            of_sentence = self.cut(sentence, number)
            pieces += of_sentence
            between += [" "] * (len(of_sentence) - 1) + [separator]
        if pieces and request.is_constrained:
            self.constraints.assign(pieces, request)
        elif request.target_prefix and not request.is_copied:
            # The translation of a blank text is the target prefix.
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

    def cut(self, segment: Segment, number: int) -> list[Segment]:
        """Divide a segment into pieces of at most `max_length` tokens. Each piece begins with the language
        tag or language token of the segment, if there is one.
        """
        max_length = self.max_length
        if len(segment.token_ids) <= max_length:
            return [segment]
        *ids, end_id = segment.token_ids
        words = segment.words or [-1] * len(segment.token_ids)
        tag_ids = ids[:1] if ids[0] in self.tokenizer.first_ids else []
        start = len(tag_ids)
        tag_words = words[:start]
        # The maximum number of tokens in a piece of the segment, not counting the language tag and `</s>`.
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
                # Cut the segment at the boundary of a word. Cut inside a word only if the word has more
                # tokens than fit in one piece.
                boundaries = (i for i in range(stop, start, -1) if words[i] != words[i - 1])
                stop = next(boundaries, stop)
            piece = replace(
                segment,
                text=self.tokenizer.tokenizer.decode(ids[start:stop]),
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

    def source_segments(self, texts: Iterable[str], options: TranslationOptions) -> list[Segment]:
        """Tokenize whole texts, each with the tag of `tgt_lang`, without splitting or truncating."""
        tagged = [self.tokenizer.with_tag(text, options.tgt_lang) for text in texts]
        return self.tokenizer.tokenize(tagged, options, self.max_length)
