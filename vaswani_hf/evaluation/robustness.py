"""Scores systems on changed copies of a test set, for example with typos, in upper case or without final
punctuation.

The changes of the test set are the perturbations of `data.augment` (perturbations.py). Each changed copy of
the test set applies one perturbation to all sentence pairs. Some perturbations, such as upper case, change
the reference translations too.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from ..checkpoint.results import JsonObject
from ..data.perturbations import PERTURBATIONS, PLACEHOLDER, Perturbation, divide_tag
from .bleu import score_translations
from .evaluate import translate_test_set
from .systems import Report, System, TestSet

# Use a fixed seed, so that the random changes are the same for all systems and in all runs of the command.
SEED = 1
CLEAN = "clean"
# A key of `PERTURBATIONS`.
_PLACEHOLDERS = "placeholders"


class PerturbedScores(JsonObject):
    """The scores of a system on the test set or on a changed copy.

    Attributes:
        bleu: The BLEU of the translations, from 0 to 100.
        chrf: The chrF of the translations, from 0 to 100.
        changed_sentences: The number of sources that the perturbation has changed.
        placeholders_kept: The percentage of the changed sources for which the translation contains all
            placeholders; only for the perturbation "placeholders".
    """

    bleu: float
    chrf: float
    changed_sentences: int
    placeholders_kept: float | None = None


class SystemRobustness(JsonObject):
    """The scores of a system on the original test set ("clean"), and on each changed copy of the test set."""

    system: str
    scores: dict[str, PerturbedScores]


class Robustness(JsonObject):
    """The scores of systems on a test set and on its changed copies.

    Attributes:
        seed: The seed of the random changes.
        bleu_signature: The settings of BLEU, in the format of a sacreBLEU signature.
        chrf_signature: The settings of chrF, in the format of a sacreBLEU signature.
    """

    sentences: int
    seed: int
    bleu_signature: str
    chrf_signature: str
    systems: list[SystemRobustness]


def score_robustness(systems: Sequence[System], test_set: TestSet, scoring: Mapping[str, Any]) -> Report:
    """Score systems on a test set and its changed copies. `scoring` contains options of
    `score_translations`.
    """
    test_sets = perturbed_test_sets(*test_set)
    rows = [
        SystemRobustness(system=system.name, scores=_scores_of(system, test_sets, scoring))
        for system in systems
    ]
    # Score one sentence, because the signatures of sacreBLEU depend only on the scoring options.
    any_scores: dict[str, Any] = score_translations(["any"], ["any"], **scoring)
    robustness = Robustness(
        sentences=len(test_set.sources),
        seed=SEED,
        bleu_signature=any_scores["bleu_signature"],
        chrf_signature=any_scores["chrf_signature"],
        systems=rows,
    )
    return Report(robustness.as_json(), robustness_as_text(robustness))


def perturbed_test_sets(sources: Sequence[str], references: Sequence[str]) -> dict[str, TestSet]:
    """Return the unchanged test set ("clean") and one changed copy for each perturbation."""
    pairs = [
        (source.strip(), reference.strip()) for source, reference in zip(sources, references, strict=True)
    ]
    test_sets = {CLEAN: _test_set(pairs)}
    for name, perturb in PERTURBATIONS.items():
        test_sets[name] = _test_set([_perturbed(perturb, pair, row) for row, pair in enumerate(pairs)])
    return test_sets


def _test_set(pairs: list[tuple[str, str]]) -> TestSet:
    return TestSet([source for source, _ in pairs], [reference for _, reference in pairs])


def _perturbed(perturb: Perturbation, pair: tuple[str, str], row: int) -> tuple[str, str]:
    if not all(pair):
        return pair
    source, reference = pair
    tag, text = divide_tag(source)
    text, reference = perturb(text, reference, Random(f"{SEED} {row}"))
    return tag + text, reference


def _scores_of(
    system: System, test_sets: Mapping[str, TestSet], scoring: Mapping[str, Any]
) -> dict[str, PerturbedScores]:
    """Return the scores of one system for the test set and each of its changed copies."""
    translator = system.load()
    results = {}
    clean = test_sets[CLEAN]
    for perturbation, test_set in test_sets.items():
        what = f"{system.name} ({perturbation})"
        translations = translate_test_set(translator, test_set.sources, what, **system.options)
        scores: dict[str, Any] = score_translations(translations, test_set.references, **scoring)
        results[perturbation] = PerturbedScores(
            bleu=scores["bleu"],
            chrf=scores["chrf"],
            changed_sentences=sum(map(str.__ne__, test_set.sources, clean.sources)),
        )
        if perturbation == _PLACEHOLDERS:
            kept = _share_of_kept_placeholders(test_set, clean, translations)
            results[perturbation].placeholders_kept = kept
    return results


def _share_of_kept_placeholders(test_set: TestSet, clean: TestSet, translations: list[str]) -> float:
    kept = []
    for source, original, translation in zip(test_set.sources, clean.sources, translations, strict=True):
        if source != original:
            kept.append(all(placeholder in translation for placeholder in PLACEHOLDER.findall(source)))
    return 100 * sum(kept) / max(1, len(kept))


def robustness_as_text(robustness: Robustness) -> str:
    """Format the BLEU and chrF of each system as a table with one line for each perturbation."""
    systems = robustness.systems
    width = max(map(len, PERTURBATIONS))
    names = [row.system for row in systems]
    columns = [max(13, len(name)) for name in names]
    titles = [f"{name:>{column}}" for name, column in zip(names, columns, strict=True)]
    heads = [f"{'BLEU   chrF':>{column}}" for column in columns]
    lines = [" ".join([" " * width, "changed", *titles]), " ".join([" " * width, " " * 7, *heads])]
    for perturbation, first in systems[0].scores.items():
        cells = []
        for row, column in zip(systems, columns, strict=True):
            scores = row.scores[perturbation]
            cells.append(f"{scores.bleu:{column - 7}.2f} {scores.chrf:6.2f}")
        lines.append(" ".join([f"{perturbation:{width}}", f"{first.changed_sentences:7,}", *cells]))
    for row in systems:
        kept = row.scores[_PLACEHOLDERS].placeholders_kept
        lines.append(f"{row.system} keeps the placeholder in {kept:.1f} % of the sentences")
    lines += [robustness.bleu_signature, robustness.chrf_signature]
    return "\n".join(lines)
