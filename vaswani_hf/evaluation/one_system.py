"""Scores one system (a checkpoint or a file of translations) on a test set."""

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from ..checkpoint.results import JsonObject
from .comet import comet_scores_or_error
from .evaluate import Measurements, translate_and_measure
from .systems import Report, System, TestSet


class SystemScores(JsonObject):
    """The scores of one system on a test set.

    Attributes:
        scores: Maps the name of each score to its value, see `Task.score_outputs`.
        measured: The measurements. If the system is a file of translations, `measured` contains only the
            number of sentences.
        comet: The mean COMET score of the sentences; None if COMET is not computed.
    """

    scores: dict[str, Any]
    measured: Measurements
    comet: float | None = None
    comet_model: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return a dict for JSON. The scores and the measurements are top-level keys of the dict."""
        others = super().as_json()
        return {**others.pop("scores"), **others.pop("measured"), **others}


def score_system(
    system: System,
    test_set: TestSet,
    score: Callable[[list[str], list[str]], dict[str, Any]],
    titles: Mapping[str, str],
    comet_model: str | None = None,
    device: str | None = None,
) -> Report:
    """Score a system. `score` computes the scores from the outputs and the references. `titles` maps the name
    of each score to its title.
    """
    if system.finished is not None:
        outputs = system.finished
        measured = Measurements(sentences=len(outputs))
    else:
        outputs, measured = translate_and_measure(system.load(), *test_set, **system.options)
    result = SystemScores(scores=score(outputs, test_set.references), measured=measured)
    comet, comet_error = comet_scores_or_error(comet_model, {"": outputs}, *test_set, device)
    if comet is not None:
        result.comet = statistics.fmean(comet[""])
        result.comet_model = comet_model
    lines = "".join(f"{output}\n" for output in outputs)
    return Report(result.as_json(), system_scores_as_text(result, titles), lines, comet_error=comet_error)


def system_scores_as_text(result: SystemScores, titles: Mapping[str, str]) -> str:
    """Format the scores of one system, one score per line, with their `titles`."""
    scores = result.scores
    measured = result.measured
    lines = []
    for name, title in titles.items():
        signature = scores.get(f"{name}_signature", "")
        lines.append(f"{title} {scores[name]:.2f}  {signature}".rstrip())
    if "exact_match" in scores:
        lines.append(f"exact match {scores['exact_match']:.2f} %")
    if result.comet is not None:
        lines.append(f"COMET {result.comet:.4f}  {result.comet_model}")
    sentences = f"{measured.sentences:,} sentences"
    if measured.seconds is not None:
        value = measured.perplexity
        lines.append(f"perplexity per token {'unknown' if value is None else f'{value:.3f}'}")
        sentences += f" in {measured.seconds:.1f} s, {measured.sentences_per_second:.1f} sentences/s"
    lines.append(sentences)
    if "bleu_note" in scores:
        lines.append(scores["bleu_note"])
    return "\n".join(lines)
