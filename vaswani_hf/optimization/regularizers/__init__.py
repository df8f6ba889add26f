"""The regularisers that a recipe can turn on. A new regulariser is a file in this folder and a line that imports its
entry."""

from typing import Any

from ..entries import Regularizer
from .r_drop import R_DROP as R_DROP
from .simcut import SIMCUT as SIMCUT

# All entries that this module imports.
REGULARIZERS = {entry.name: entry for entry in [*globals().values()] if isinstance(entry, Regularizer)}


def regularizer_of(training: Any) -> Regularizer | None:
    """The regulariser that a recipe turns on."""
    for entry in REGULARIZERS.values():
        # The tasks without an encoder and a decoder have fewer keys.
        if getattr(training, entry.strength, 0):
            return entry
    return None


def num_passes(training: Any) -> int:
    """The number of forward passes over a batch that a run computes at once; 1 without a regulariser."""
    regularizer = regularizer_of(training)
    return 1 if regularizer is None else regularizer.num_passes
