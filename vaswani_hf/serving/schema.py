"""Defines the requests and the answers of the HTTP service: `LibreTranslateRequest` for `POST /translate`,
and `TranslationsRequest` for `POST /v1/translations`. Both request classes convert the fields of a request to
a `Wanted` object, and convert the translations to the answer for the client.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, Self

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from ..markup.html import visible_text
from ..model.checks_vaswani import A_PROBABILITY
from ..model.errors_vaswani import InvalidValueError
from ..model.translations_vaswani import Translation
from ..settings.base import Settings, explain_invalid
from .directions import AUTO, Direction

# The formats of the texts of a request. "html" and "template" are formats of documents.
TextFormat = Literal["text", "html", "template"]


class RequestSettings(Settings):
    """The settings of a request, with the names of the fields of `POST /v1/translations`. The class does not
    contain the texts of the request, so that requests with equal settings share cached translation options.
    """

    alternatives: int = Field(0, ge=0)
    """number of alternative translations of each text"""
    scores: bool = False
    """if true, the answer contains the scores, the tokens, the words and the confidences of each translation
    """
    alignments: bool = False
    """if true, the answer contains the word alignment of each translation"""
    stream: bool = False
    """return the parts of the translation as server-sent events, as soon as greedy search finds the parts"""
    glossary: str | None = None
    """the name of a glossary of the service"""
    min_confidence: float | None = Field(None, **A_PROBABILITY.limits)
    """if the confidence of a translation is below `min_confidence`, the answer contains an empty text instead
    of the translation; a sentence of a document stays in the source language
    """


@dataclass(frozen=True)
class Wanted:
    """The texts of a request, and the options of the translations. `source` can be "auto". `target` can be
    None if the source language has only one target language.
    """

    texts: tuple[str, ...]
    source: str
    target: str | None
    target_prefix: str = ""
    must_contain: tuple[str, ...] = ()
    format: TextFormat = "text"
    settings: RequestSettings = RequestSettings()

    @cached_property
    def texts_to_detect(self) -> Sequence[str]:
        """The texts whose language the service detects: HTML without tags and scripts, because most words of
        tags and scripts are English.
        """
        if self.source != AUTO or self.format != "html":
            return self.texts
        return [visible_text(document) or document for document in self.texts]


class ApiRequest(Protocol):
    """The interface that all request classes implement."""

    @classmethod
    def load(cls, fields: dict[str, Any]) -> Self:
        """Validate the fields of a request. Raise a ValueError that explains the first invalid field."""
        ...

    def wanted(self) -> Wanted:
        """Return the texts of the request and the settings of their translations."""
        ...

    def answer(
        self, direction: Direction, translations: list[list[Translation]], confidence: float
    ) -> dict[str, Any]:
        """Return the answer. `translations` contains a list for each source text, the best translation first.
        `confidence` is the probability of a detected source language.
        """
        ...


class DetectRequest(BaseModel):
    """The fields of a `POST /detect` request. Unknown fields are ignored, as in LibreTranslate."""

    q: str | list[str]

    @classmethod
    def load(cls, fields: dict[str, Any]) -> Self:
        """Validate the fields. Raise a ValueError that explains the first invalid field."""
        # Ignore fields with null or an empty text, because clients send null or an empty text for a field
        # without a value.
        given = {name: value for name, value in fields.items() if value not in (None, "")}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise ValueError(explain_invalid(error, given)) from None

    @model_validator(mode="before")
    @classmethod
    def _refuse_missing_fields(cls, values: Any) -> Any:
        for name, field in cls.model_fields.items():
            if field.is_required() and not values.get(name):
                # The error message is the same as in LibreTranslate.
                raise ValueError(f"Invalid request: missing {name} parameter")
        return values

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of the field `q`."""
        return (self.q,) if isinstance(self.q, str) else tuple(self.q)


class LibreTranslateRequest(DetectRequest):
    """The fields of a `POST /translate` request. Numbers can be given as text, because HTML forms contain
    only text.
    """

    source: str
    target: str
    format: TextFormat = "text"
    alternatives: int = Field(0, ge=0)
    glossary: str | None = None
    min_confidence: float | None = Field(None, **A_PROBABILITY.limits)

    @field_validator("alternatives", "min_confidence", mode="before")
    @classmethod
    def _refuse_booleans(cls, value: Any) -> Any:
        # Refuse true and false, because pydantic would convert true to 1 and false to 0.
        if isinstance(value, bool):
            raise PydanticCustomError("number_type", "a number")
        return value

    def wanted(self) -> Wanted:
        """Return the texts of the request and the settings of their translations."""
        settings = RequestSettings(
            # Ignore `alternatives` for documents, as LibreTranslate does for HTML documents.
            alternatives=self.alternatives if self.format == "text" else 0,
            glossary=self.glossary,
            min_confidence=self.min_confidence,
        )
        return Wanted(
            texts=self.texts,
            source=self.source,
            target=self.target,
            format=self.format,
            settings=settings,
        )

    def answer(
        self, direction: Direction, translations: list[list[Translation]], confidence: float
    ) -> dict[str, Any]:
        """Return the answer in the format of LibreTranslate. If `q` is a list, each field of the answer is a
        list.
        """
        entries: dict[str, list[Any]] = {
            "translatedText": [of_text[0].text for of_text in translations],
        }
        if self.source == AUTO:
            entries["detectedLanguage"] = [detection(direction.source, confidence) for _ in translations]
        if self.alternatives:
            entries["alternatives"] = [_other_texts(of_text) for of_text in translations]
        confidences = [of_text[0].calibrated_confidence for of_text in translations]
        if None not in confidences:
            entries["confidence"] = confidences
        if isinstance(self.q, list):
            return entries
        return {name: entry for name, (entry,) in entries.items()}


def _other_texts(translations: Sequence[Translation]) -> list[str]:
    """Return the alternatives to the text of the best translation, without duplicates and empty texts."""
    best, *others = [translation.text for translation in translations]
    return [text for text in dict.fromkeys(others) if text not in (best, "")]


def detection(language: str, confidence: float) -> dict[str, Any]:
    """Return a detected language and its confidence in percent, as LibreTranslate does."""
    return {"confidence": round(100 * confidence, 1), "language": language}


# The fields of a translation that the answer contains only if the request has `scores: true`.
_SCORES = ("score", "log_prob", "confidence", "tokens", "token_log_probs", "words")


# The fields that a request may have if its texts are documents.
_DOCUMENT_FIELDS = ("text", "source_language", "target_language", "format", "glossary", "min_confidence")


class TranslationsRequest(RequestSettings):
    """The fields of a `POST /v1/translations` request: the texts, their languages, and the settings."""

    text: str | list[str]
    """the source text, or a list of source texts"""
    source_language: str = AUTO
    """the source language; auto is allowed if the service detects languages, or if only one source language
    can be translated to the target language
    """
    target_language: str | None = None
    """the target language; can be left out if the source language has only one target language"""
    target_prefix: str = ""
    """the text that each translation must begin with"""
    must_contain: list[str] = Field([], max_length=20)
    """the phrases that each translation must contain"""
    format: TextFormat = "text"
    """with html, the texts are HTML documents whose tags stay as they are; with template, placeholders such
    as {name} and tags stay as they are
    """

    @model_validator(mode="after")
    def _check_stream(self) -> Self:
        if self.stream and not isinstance(self.text, str):
            raise InvalidValueError("`text` must be a single text if `stream` is true, but is a list.")
        if self.stream and (self.alternatives or self.must_contain or self.glossary is not None):
            raise InvalidValueError(
                "`stream` cannot be used together with `alternatives`, `must_contain` or `glossary`, because "
                "`stream` needs greedy search."
            )
        return self

    @model_validator(mode="after")
    def _check_format(self) -> Self:
        for name in type(self).model_fields:
            if self.format != "text" and name not in _DOCUMENT_FIELDS and getattr(self, name):
                raise InvalidValueError(f"`{name}` must be left out with `format` {self.format}.")
        return self

    def wanted(self) -> Wanted:
        """Return the texts of the request and the settings of their translations."""
        settings = {name: getattr(self, name) for name in RequestSettings.model_fields}
        return Wanted(
            texts=(self.text,) if isinstance(self.text, str) else tuple(self.text),
            source=self.source_language,
            target=self.target_language,
            target_prefix=self.target_prefix,
            must_contain=tuple(self.must_contain),
            format=self.format,
            settings=RequestSettings(**settings),
        )

    def answer(
        self, direction: Direction, translations: list[list[Translation]], confidence: float
    ) -> dict[str, Any]:
        """Return the answer: the languages, and for each text the fields of its best `Translation`."""
        entries = []
        for best, *others in translations:
            entry = self._entry(best)
            if self.alternatives:
                entry["alternatives"] = [self._entry(other) for other in others]
            entries.append(entry)
        return {
            "source_language": direction.source,
            "target_language": direction.target,
            "translations": entries,
        }

    def _entry(self, translation: Translation) -> dict[str, Any]:
        """Return the fields of a translation that the request asks for. A translation can have more fields
        than the request asks for, because `min_confidence` needs the scores.
        """
        entry = translation.as_dict()
        unwanted: tuple[str, ...] = () if self.scores else _SCORES
        if not self.alignments:
            unwanted += ("alignment",)
        return {name: value for name, value in entry.items() if name not in unwanted}
