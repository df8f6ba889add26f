"""Fits and measures the calibration of a checkpoint. The calibration converts the token probabilities of a
translation to the probability that the translation is good. A translation is good if its chrF is at least
`GOOD_CHRF`. The calibration error is the expected calibration error of Guo et al. 2017 (arXiv 1706.04599,
Equation 3) with 10 bins, in percentage points.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sacrebleu.metrics.chrf import CHRF

from ..checkpoint.files import CALIBRATION_FILE, CALIBRATION_PICTURE, write_whole
from ..checkpoint.results import JsonObject
from ..model.errors_vaswani import InvalidValueError
from ..model.translations_vaswani import Translation
from ..translation.calibration import Calibration, features_of, load_calibration
from .evaluate import translate_test_set
from .png import BLUE, GREY, png_bytes
from .systems import Report, System, TestSet

GOOD_CHRF = 60
_NUM_BINS = 10
# The L2 penalty of the logistic regression. Without a penalty, the weights would grow without limit if all
# translations of the validation set are good or all are bad.
_WEIGHT_DECAY = 1e-3
FEWEST_SENTENCES = 100


class CurvePoint(JsonObject):
    """The translations whose estimated probabilities are in one bin of the reliability curve.

    Attributes:
        expected: The mean estimated probability that a translation is good, from 0 to 1.
        found: The actual share of good translations, from 0 to 1.
    """

    expected: float
    found: float
    sentences: int


class Reliability(JsonObject):
    """The reliability of a calibration on a test set.

    Attributes:
        good_chrf: The lowest chrF of a good translation.
        good_share: The share of good translations, from 0 to 1.
        calibration_error: The expected calibration error, in percentage points.
        curve: The reliability curve, without empty bins.
        written: The path of the calibration.json that `--calibration fit` wrote; None for `--calibration
            check`.
    """

    good_chrf: int
    sentences: int
    good_share: float
    calibration_error: float
    curve: list[CurvePoint]
    written: str | None = None


def fit(checkpoint: System, test_set: TestSet) -> Report:
    """Fit the calibration to a validation set, and write the calibration and its reliability curve into the
    checkpoint folder.
    """
    if len(test_set.sources) < FEWEST_SENTENCES:
        raise InvalidValueError(
            f"`--calibration fit` needs at least {FEWEST_SENTENCES} sentences, but `--source` has "
            f"{len(test_set.sources)}; give a larger validation set."
        )
    translations, good = _scored_translations(checkpoint, test_set)
    calibration = fit_calibration(translations, good)
    result = reliability(calibration, translations, good)
    path = Path(checkpoint.name) / CALIBRATION_FILE
    text = json.dumps({"weights": calibration.weights, **result.as_json()}, indent=2) + "\n"
    write_whole(path, text)
    write_whole(path.with_name(CALIBRATION_PICTURE), reliability_picture(result))
    result.written = str(path)
    return Report(result.as_json(), reliability_as_text(result))


def check(checkpoint: System, test_set: TestSet) -> Report:
    """Measure the calibration of a checkpoint on a test set."""
    calibration = None if checkpoint.folder is None else load_calibration(checkpoint.folder)
    if calibration is None:
        raise InvalidValueError(
            f"`--calibration check` needs the {CALIBRATION_FILE} of the checkpoint, but '{checkpoint.name}' "
            "has none; write the file with `--calibration fit`."
        )
    translations, good = _scored_translations(checkpoint, test_set)
    result = reliability(calibration, translations, good)
    return Report(result.as_json(), reliability_as_text(result))


def _scored_translations(checkpoint: System, test_set: TestSet) -> tuple[list[Translation], list[bool]]:
    """Translate a test set. Return the translations, and a list of bools: True for each good translation."""
    # Load no calibration, because `--calibration fit` must be able to replace a damaged calibration.json.
    translator = checkpoint.load(with_calibration=False)
    translations: Any = translate_test_set(
        translator, test_set.sources, return_scores=True, **checkpoint.options
    )
    chrf = CHRF()
    good = []
    for translation, reference in zip(translations, test_set.references, strict=True):
        good.append(chrf.sentence_score(translation.text, [reference.strip()]).score >= GOOD_CHRF)
    return translations, good


def fit_calibration(translations: Sequence[Translation], good: Sequence[bool]) -> Calibration:
    """Fit a logistic regression from token probabilities to the probability of a good translation."""
    features = torch.tensor([features_of(translation) for translation in translations], dtype=torch.float64)
    labels = torch.tensor(good, dtype=torch.float64)
    weights = torch.zeros(features.size(1), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=500, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        likelihood = torch.nn.functional.binary_cross_entropy_with_logits(features @ weights, labels)
        value = likelihood + _WEIGHT_DECAY * weights.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return Calibration(weights.tolist())


def reliability(
    calibration: Calibration, translations: Sequence[Translation], good: Sequence[bool]
) -> Reliability:
    """Measure on a test set how well the calibrated confidences match the share of good translations."""
    confidences = list(map(calibration, translations))
    bins: list[list[int]] = [[] for _ in range(_NUM_BINS)]
    for row, confidence in enumerate(confidences):
        bins[min(int(confidence * _NUM_BINS), _NUM_BINS - 1)].append(row)
    curve = []
    for rows in filter(None, bins):
        expected = sum(confidences[row] for row in rows) / len(rows)
        found = sum(good[row] for row in rows) / len(rows)
        curve.append(CurvePoint(expected=expected, found=found, sentences=len(rows)))
    gaps = [abs(point.expected - point.found) * point.sentences for point in curve]
    return Reliability(
        good_chrf=GOOD_CHRF,
        sentences=len(good),
        good_share=sum(good) / len(good),
        calibration_error=100 * sum(gaps) / len(good),
        curve=curve,
    )


def reliability_as_text(result: Reliability) -> str:
    """Format a reliability curve as a table."""
    lines = ["expected  found  sentences"]
    for point in result.curve:
        lines.append(f"{point.expected:8.2f}  {point.found:5.2f}  {point.sentences:9,}")
    lines.append(
        f"{100 * result.good_share:.1f} % of {result.sentences:,} translations are good (chrF of "
        f"{result.good_chrf} or more); calibration error {result.calibration_error:.1f} points"
    )
    if result.written is not None:
        lines.append(f"written to {result.written}")
    return "\n".join(lines)


def reliability_picture(result: Reliability) -> bytes:
    """Draw the reliability curve as PNG. The size of a point shows the number of sentences in the bin."""
    # Import matplotlib here, because the import is slow and only pictures need matplotlib.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5, 4.5), layout="constrained")
    axes = figure.add_subplot(
        xlabel="expected share of good translations", ylabel="actual share of good translations"
    )
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":")
    expected = [point.expected for point in result.curve]
    found = [point.found for point in result.curve]
    axes.plot(expected, found, color=BLUE)
    sizes = [400 * point.sentences / result.sentences + 5 for point in result.curve]
    axes.scatter(expected, found, sizes, color=BLUE)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_title(
        f"calibration error {result.calibration_error:.1f} points, {result.sentences:,} sentences",
        fontsize=10,
    )
    return png_bytes(figure)
