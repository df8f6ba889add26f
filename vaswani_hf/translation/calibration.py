"""Estimates the probability that a translation is good, from the token probabilities of the translation."""

import json
import math
import operator
from pathlib import Path
from typing import Any

from ..checkpoint.files import CALIBRATION_FILE
from ..model.translations_vaswani import Translation


def features_of(translation: Translation) -> list[float]:
    """Return four features: the constant 1 for the bias, the mean log-probability (nats) of the tokens, the
    lowest log-probability of the tokens, and the log of the number of tokens.
    """
    log_probs = translation.token_log_probs or [0.0]  # [T]
    return [1.0, math.fsum(log_probs) / len(log_probs), min(log_probs), math.log(len(log_probs))]


class Calibration:
    """Estimates the probability that a translation is good: a logistic regression on `features_of`."""

    def __init__(self, weights: list[float]):
        """`weights` has one weight for each feature that `features_of` returns."""
        self.weights = weights

    def __call__(self, translation: Translation) -> float:
        """Return the probability, from 0 to 1, that a translation is good."""
        if not translation.token_log_probs:
            # A translation without generated tokens counts as good: the source text has no letters and no
            # digits, or the translator has copied the source text because of the language check.
            return 1.0
        products = map(operator.mul, self.weights, features_of(translation))
        logit = math.fsum(products)
        # Limit the logit, because `math.exp` raises an OverflowError for large numbers.
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, logit))))


def load_calibration(folder: Path) -> Calibration | None:
    """Load the calibration of a checkpoint. Return None if the checkpoint has no calibration.json."""
    path = folder / CALIBRATION_FILE
    if not path.is_file():
        return None
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        weights = [float(weight) for weight in content["weights"]]
    except (ValueError, TypeError, KeyError):
        weights = []
    if len(weights) != len(features_of(Translation(""))) or not all(map(math.isfinite, weights)):
        raise ValueError(
            f"'{path}' is damaged; write it again with `vaswani evaluate --calibration fit`, or delete it."
        )
    return Calibration(weights)
