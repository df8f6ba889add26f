"""The optimizers that a recipe can select; a new one is a file in this folder and an entry."""

from ..entries import Optimizer
from .adam import ADAM
from .adamw import ADAMW
from .muon import MUON

OPTIMIZERS: dict[str, Optimizer] = {entry.name: entry for entry in (ADAM, ADAMW, MUON)}
