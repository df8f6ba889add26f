"""Training: from a recipe to a scored checkpoint."""

from .run import train
from .stopping import InterruptedRunError

__all__ = ["InterruptedRunError", "train"]
