"""The kinds of models that a checkpoint may hold, by the `model_type` of the config."""

import os
from typing import Any, NamedTuple

from ..model.language_models_vaswani import VaswaniForCausalLM, VaswaniForMaskedLM
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM


class Kind(NamedTuple):
    """A kind of model.

    Attributes:
        model_class: Its class.
        words: What it is, for a sentence.
        use: What it is used by.
    """

    model_class: Any
    words: str
    use: str


TRANSLATION = "vaswani"
KINDS = {
    TRANSLATION: Kind(VaswaniForSeq2SeqLM, "a translation model", '`pipeline("translation")`'),
    "vaswani_decoder": Kind(VaswaniForCausalLM, "a causal language model", '`pipeline("text-generation")`'),
    "vaswani_encoder": Kind(VaswaniForMaskedLM, "a masked language model", '`pipeline("fill-mask")`'),
}


def check_kind(model_type: Any, name: str | os.PathLike, kinds: tuple[str, ...], needed: str = "") -> None:
    """Refuse a checkpoint of another kind than `kinds`, or of another package. `needed` describes `kinds`."""
    if model_type in kinds:
        return
    if model_type in KINDS:
        found, needed = KINDS[model_type], needed or " or ".join(KINDS[kind].words for kind in kinds)
        raise ValueError(
            f"`model` must be {needed}, but '{name}' is {found.words}; it is used by {found.use}."
        )
    raise ValueError(
        f"`model` must be a checkpoint of this package, but '{name}' is one of model type {model_type!r}; "
        "load it with transformers."
    )
