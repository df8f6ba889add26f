"""The errors that a search raises if the search cannot translate a sentence of the batch.

This file is saved with every checkpoint because `generate` raises the errors of this file.
"""

from transformers import GenerationConfig

from .inputs_vaswani import FORBIDDING_SETTINGS


class SentenceError(ValueError):
    """Raised if a sentence cannot be translated. `sentence` is the index of the sentence in the batch."""

    def __init__(self, sentence: int, text: str | None = None):
        super().__init__(sentence, text)
        self.sentence = sentence
        self.text = text

    @property
    def place(self) -> str:
        """The name of the sentence in an error message: its text or its index."""
        return (
            f"sentence {self.sentence} of the batch" if self.text is None else f"the text {self.text[:40]!r}"
        )


class NotFiniteError(SentenceError):
    """Raised if the model computes logits that are NaN or infinite for a sentence."""

    def __str__(self) -> str:
        return (
            f"The model's logits for {self.place} are NaN or infinite: the weights of the model are damaged, "
            "or too large for their dtype; if the dtype is float16, try bfloat16 or float32."
        )


class NoTranslationError(SentenceError):
    """Raised if settings forbid every translation of a sentence. `settings` is a text with the names and
    values of the settings.
    """

    def __init__(self, sentence: int, settings: str, text: str | None = None):
        super().__init__(sentence, text)
        self.args = (sentence, settings, text)
        self.settings = settings

    def __str__(self) -> str:
        return (
            f"No translation of {self.place} was found, because at some step every token is forbidden by "
            f"{self.settings}; change these settings."
        )


def forbidding_settings(config: GenerationConfig) -> str:
    """Return the names and values of the settings that can forbid tokens, as a text for an error message."""
    values = {name: getattr(config, name, None) for name in FORBIDDING_SETTINGS}
    if values["min_new_tokens"]:
        # Leave `min_length` out of the error message, because transformers has computed `min_length` from
        # `min_new_tokens`.
        del values["min_length"]
    given = [
        f"`{name}` = {str(value):.60}" for name, value in values.items() if value not in (None, [], False)
    ]
    return ", ".join(given) or "the given `logits_processor` and `prefix_allowed_tokens_fn`"
