"""Scores one system (a checkpoint or a file of translations) on a test set."""

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from .comet import comet_scores_or_error
from .evaluate import translate_and_measure
from .systems import Report, System, TestSet


def score_system(
    system: System,
    test_set: TestSet,
    score: Callable[[list[str], list[str]], dict[str, Any]],
    titles: Mapping[str, str],
    comet_model: str | None = None,
    device: str | None = None,
    recipe_note: str | None = None,
) -> Report:
    """Score a system. The function `score` computes the scores from the outputs of the system and the
    references. `titles` maps the name of each score to its title, like the attribute `metrics` of a task.
    `recipe_note` is a sentence about options of BLEU that come from the recipe.
    """
    if system.finished is not None:
        outputs = system.finished
        measured: dict[str, Any] = {"sentences": len(outputs)}
    else:
        measured = translate_and_measure(system.load(), *test_set, **system.options)
        outputs = measured.pop("translations")
    scores = {**score(outputs, test_set.references), **measured}
    comet, comet_error = comet_scores_or_error(comet_model, {"": outputs}, *test_set, device)
    if comet is not None:
        scores |= {"comet": statistics.fmean(comet[""]), "comet_model": comet_model}
    if recipe_note is not None and "bleu_signature" in scores:
        scores["recipe_note"] = recipe_note
    lines = "".join(f"{output}\n" for output in outputs)
    return Report(scores, _scores_as_text(titles, scores), lines, comet_error=comet_error)


def _scores_as_text(titles: Mapping[str, str], results: Mapping[str, Any]) -> str:
    """Format the scores of one system, one score per line."""
    lines = []
    for name, title in titles.items():
        signature = results.get(f"{name}_signature", "")
        lines.append(f"{title} {results[name]:.2f}  {signature}".rstrip())
    if "exact_match" in results:
        lines.append(f"exact match {results['exact_match']:.2f} %")
    if "comet" in results:
        lines.append(f"COMET {results['comet']:.4f}  {results['comet_model']}")
    if "seconds" in results:
        value = results["perplexity"]
        lines.append(f"perplexity per token {'unknown' if value is None else f'{value:.3f}'}")
        speed = f"in {results['seconds']:.1f} s, {results['sentences_per_second']:.1f} sentences/s"
        lines.append(f"{results['sentences']:,} sentences {speed}")
    else:
        lines.append(f"{results['sentences']:,} sentences")
    for note in ("recipe_note", "bleu_note"):
        if note in results:
            lines.append(results[note])
    return "\n".join(lines)
