"""Defines the table of the regularisers that a recipe can turn on.

To add a regulariser, add a file to this folder, and add the entry of the regulariser to `REGULARIZERS`.
"""

from typing import Any

from ..entries import Regularizer
from .r_drop import R_DROP
from .simcut import SIMCUT

REGULARIZERS: dict[str, Regularizer] = {entry.name: entry for entry in (R_DROP, SIMCUT)}


def regularizer_of(training: Any) -> Regularizer | None:
    """Return the regulariser that the section `training` of a recipe turns on, or None."""
    for entry in REGULARIZERS.values():
        # Use the default 0, because the section `training` of a language model lacks the keys of some
        # regularisers.
        if getattr(training, entry.strength, 0):
            return entry
    return None


def num_passes(training: Any) -> int:
    """Return the number of forward passes over each batch."""
    regularizer = regularizer_of(training)
    return 1 if regularizer is None else regularizer.num_passes
