"""Defines the table of the optimizers that a recipe can select.

To add an optimizer, add a file to this folder, and import the entry of the optimizer here.
"""

from ..entries import Optimizer
from .adam import ADAM as ADAM
from .adamw import ADAMW as ADAMW
from .muon import MUON as MUON
from .schedule_free import SCHEDULE_FREE_ADAMW as SCHEDULE_FREE_ADAMW

# The table OPTIMIZERS has the entries that are imported above.
OPTIMIZERS = {entry.name: entry for entry in [*globals().values()] if isinstance(entry, Optimizer)}
