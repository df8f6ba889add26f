"""Detects the language of a text, and checks whether the text is in the source language of a model."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

from ..checkpoint.languages import languages_to, recorded_languages
from ..checkpoint.loading import checkpoint_folder
from ..data.perturbations import divide_tag
from ..model.errors_vaswani import InvalidValueError
from ..model.requests_vaswani import Request
from ..model.tokenizing_vaswani import TAG
from ..version import install_command

# Returns the probability of each language (a code of ISO 639-1, such as "en") for a text.
LanguageDetector = Callable[[str], Mapping[str, float]]

# If the detector gives the source language a probability below `_LEAST_PROBABILITY`, the text counts as a
# text in another language. With py3langid 0.4.0, 0 % of 1,000 sentences and 0.6 % of 1,000 two-word texts in
# the source language were classified wrongly (scripts/benchmarks/serving.md). The check recognised 98.5 % of
# 2,000 sentences in other languages, and 71.6 % of 1,000 two-word texts in other languages.
_LEAST_PROBABILITY = 0.01
# A text with fewer than `_LEAST_LETTERS` letters is not checked, because many languages have the same short
# words, such as "OK".
_LEAST_LETTERS = 5


def has_detector() -> bool:
    """Return True if the library that detects languages is installed."""
    return find_spec("py3langid") is not None


def load_detector() -> LanguageDetector:
    """Return the detector of py3langid. The detector loads its model in the first call (0.4 s)."""
    if not has_detector():
        raise InvalidValueError(
            f"`--language_check` needs the library py3langid; run `{install_command('language_check')}`."
        )
    return lambda text: dict(_identifier().rank(text))


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


class LanguageCheck:
    """Checks whether texts are in the source language `language` of a model, such as "en". For a text in
    another language, the action "pass" returns the text without a translation, and the action "refuse" raises
    a ValueError. A language that `detector` does not support also raises a ValueError.
    """

    def __init__(self, language: str, action: Literal["pass", "refuse"], detector: LanguageDetector):
        if language not in detector("a"):
            raise InvalidValueError(
                "`--language_check` must be left out, because the language detector does not know the "
                f"language {language!r}."
            )
        self._language = language
        self._action = action
        self._detector = detector

    def __call__(self, request: Request) -> Request:
        """Return the request. For a text in another language, the action "pass" sets `is_copied`, so that the
        translator returns the text unchanged. The action "refuse" raises a ValueError.
        """
        _, text = divide_tag(request.text.lstrip())
        if sum(map(str.isalpha, text)) < _LEAST_LETTERS:
            return request
        probabilities = self._detector(text)
        if probabilities[self._language] >= _LEAST_PROBABILITY:
            return request
        if self._action == "pass":
            return replace(request, is_copied=True)
        found = max(probabilities, key=lambda language: probabilities[language])
        raise ValueError(
            f"The text must be in the language {self._language}, but seems to be in the language {found}."
        )


def check_of_checkpoint(
    name: str, action: Literal["pass", "refuse"], src_lang: str | None, tgt_lang: str | None
) -> Callable[[Request], Request]:
    """Return a function that checks a request as `LanguageCheck` does. The source language is `src_lang`.
    Without `src_lang`, the source language depends on the languages that the checkpoint records, and on the
    target language: the language of the tag in the text, or else `tgt_lang`.
    """
    languages = recorded_languages(checkpoint_folder(name))
    if languages is None and src_lang is None:
        raise InvalidValueError(
            f"`--language_check` needs `--src_lang`, because '{name}' does not record its languages."
        )
    detector = load_detector()
    check_of = cache(lambda source: LanguageCheck(source, action, detector))

    def check(request: Request) -> Request:
        if languages is None or src_lang is not None:
            return check_of(src_lang)(request)
        tag = TAG.match(request.text.lstrip())
        target = tag[0].strip("><") if tag else tgt_lang
        return check_of(languages_to(target or languages[1], languages)[0])(request)

    # Check the source language of a text without a tag before the model is loaded.
    check(Request(""))
    return check
