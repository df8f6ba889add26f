"""Defines the table of the optimizers that a recipe can select.

To add an optimizer, add a file to this folder, and add the entry of the optimizer to `OPTIMIZERS`.
"""

from ..entries import Optimizer
from .adam import ADAM
from .adamw import ADAMW
from .muon import MUON
from .schedule_free import SCHEDULE_FREE_ADAMW

OPTIMIZERS: dict[str, Optimizer] = {entry.name: entry for entry in (ADAM, ADAMW, MUON, SCHEDULE_FREE_ADAMW)}
