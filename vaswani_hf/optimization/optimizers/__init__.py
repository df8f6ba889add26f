"""The optimizers that a recipe can select.

A new optimizer is a file in this folder and an import of its entry here.
"""

from ..entries import Optimizer
from .adam import ADAM as ADAM
from .adamw import ADAMW as ADAMW
from .muon import MUON as MUON

# The table OPTIMIZERS has all entries that this module imports.
OPTIMIZERS = {entry.name: entry for entry in [*globals().values()] if isinstance(entry, Optimizer)}
