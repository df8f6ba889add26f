"""Training: from a recipe to a scored checkpoint."""

from .run import InterruptedRunError, train

__all__ = ["InterruptedRunError", "train"]
