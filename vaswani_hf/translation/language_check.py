"""Detects the language of a text, and finds texts that are not in the source language of a model."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Literal

from ..model.inputs_vaswani import Request
from ..version import install_command

# Returns the probability of each language for a text. The languages are codes of ISO 639-1, such as "en".
LanguageDetector = Callable[[str], Mapping[str, float]]

# A text whose source language has a lower probability is in another language. With py3langid 0.4.0, 1,000 sentences of
# Tatoeba in English and German had no lower probability, and of 1,000 texts of two words 0.6 % had a lower
# probability. Of 2,000 sentences in another language than expected, 98.5 % had a lower probability, and of 1,000
# texts of two words 71.6 % (scripts/benchmarks/serving.md).
_LEAST_PROBABILITY = 0.01
# A shorter text is not checked, because many languages have the same short words, such as "OK".
_LEAST_LETTERS = 5


def has_detector() -> bool:
    """Return True if the library that detects languages is installed."""
    return find_spec("py3langid") is not None


def load_detector() -> LanguageDetector:
    """Load the detector of py3langid, whose model is part of its wheel."""
    if not has_detector():
        raise ValueError(
            f"`--language_check` needs the library py3langid; run `{install_command('language_check')}`."
        )
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    return lambda text: dict(identifier.rank(text))


class LanguageCheck:
    """Finds texts that are not in the source language of a model.

    Args:
        language (str): The source language.
        action (str): "pass" copies a text in another language. "refuse" raises an error.
        detector (callable): Returns the probability of each language for a text.

    Raises:
        ValueError: If the detector does not know the source language.
    """

    def __init__(self, language: str, action: Literal["pass", "refuse"], detector: LanguageDetector):
        if language not in detector("a"):
            raise ValueError(
                f"`--language_check` must be left out, because the language detector does not know the language "
                f"{language!r}."
            )
        self._language = language
        self._action = action
        self._detector = detector

    def __call__(self, request: Request) -> Request:
        """Return the request. If its text is in another language, mark the text as its own translation, or raise a
        ValueError.
        """
        if sum(map(str.isalpha, request.text)) < _LEAST_LETTERS:
            return request
        probabilities = self._detector(request.text)
        if probabilities[self._language] >= _LEAST_PROBABILITY:
            return request
        if self._action == "pass":
            return replace(request, is_copied=True)
        found = max(probabilities, key=lambda language: probabilities[language])
        raise ValueError(
            f"The text must be in the language {self._language}, but seems to be in the language {found}."
        )
