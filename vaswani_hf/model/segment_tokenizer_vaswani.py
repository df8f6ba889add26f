"""Tokenizes source texts to segments (sentences, or parts of long sentences). `SegmentTokenizer` adds the
task prefix, language tags and language tokens, and finds for each token the word that contains the token.

This file is saved with every checkpoint because the class `Translator` tokenizes texts with this file.
"""

from collections.abc import Sequence
from typing import Any

from .backend_vaswani import Segment
from .errors_vaswani import InvalidValueError
from .inputs_vaswani import TranslationOptions
from .text_rules_vaswani import words_at
from .tokenizing_vaswani import TAG, TOKENIZING, languages_of, tags_of


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
        inputs = self._token_ids(prefixed, options)
        generate = {name: value for name, value in inputs.items() if not isinstance(value, list)}
        first_ids = []
        if self.languages:
            first_ids = [self._language_id("src_lang", options.src_lang)]
            generate["forced_bos_token_id"] = self._language_id("tgt_lang", options.tgt_lang)
        segments = []
        for row, (text, token_ids) in enumerate(zip(texts, inputs["input_ids"], strict=True)):
            segment = Segment(text, [*first_ids, *token_ids], generate=generate)
            is_long = len(segment.token_ids) > max_length
            if self.tokenizer.is_fast and (options.return_alignments or is_long):
                segment.words = [-1] * len(first_ids) + self._words(prefixed[row], inputs[row])
            segments.append(segment)
        return segments

    def _token_ids(self, texts: list[str], options: TranslationOptions) -> Any:
        """Return the output of the tokenizer. If a value in the tokenizer's output is not a list, the value
        is an argument for `generate`.
        """
        settings: dict[str, Any] = {"verbose": False, **options.tokenize, "padding": False}
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
