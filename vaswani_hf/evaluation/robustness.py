"""Scores systems on changed copies of a test set, for example with typos, in upper case or without final
punctuation.

The changes are the perturbations of `data.augment` (perturbations.py). Each changed copy of the test set
applies one perturbation to all sentence pairs. Some perturbations, such as upper case, change the reference
translations too.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from ..data.perturbations import PERTURBATIONS, PLACEHOLDER, Perturbation
from .bleu import score_translations
from .evaluate import translate_test_set
from .systems import Report, System, TestSet

# Use a fixed seed, so that the random changes are the same for all systems and in all runs of the command.
SEED = 1
CLEAN = "clean"


def score_robustness(
    systems: Sequence[System],
    test_set: TestSet,
    scoring: Mapping[str, Any],
    recipe_note: str | None = None,
) -> Report:
    """Score systems on a test set and on its changed copies. `scoring` contains options of
    `score_translations`. `recipe_note` is a sentence about options that come from recipes.
    """
    test_sets = perturbed_test_sets(*test_set)
    rows = [{"system": system.name, "scores": _scores_of(system, test_sets, scoring)} for system in systems]
    # Score the references against themselves to get the signatures of sacreBLEU, because the signatures
    # depend only on the scoring options and are the same for all systems.
    any_scores = score_translations(test_set.references, test_set.references, **scoring)
    signatures = {name: any_scores[name] for name in ("bleu_signature", "chrf_signature")}
    scores = {"sentences": len(test_set.sources), "seed": SEED, **signatures, "systems": rows}
    if recipe_note is not None:
        scores["recipe_note"] = recipe_note
    return Report(scores, robustness_as_text(scores))


def perturbed_test_sets(sources: Sequence[str], references: Sequence[str]) -> dict[str, TestSet]:
    """Return a dict with the unchanged test set, under the key "clean", and one changed copy for each
    perturbation.
    """
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
    # Do not perturb a sentence pair with an empty source or an empty reference.
    return perturb(*pair, Random(f"{SEED} {row}")) if all(pair) else pair


def _scores_of(
    system: System, test_sets: Mapping[str, TestSet], scoring: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Translate the test set and its changed copies with one system, and return the scores for each
    perturbation.

    The perturbation "placeholders" has the additional score `placeholders_kept`. `placeholders_kept` is the
    percentage of translations that contain all placeholders of their sources, counted over the sources that
    the perturbation has changed.
    """
    translator = system.load()
    results = {}
    clean = test_sets[CLEAN]
    for perturbation, test_set in test_sets.items():
        what = f"{system.name} ({perturbation})"
        translations = translate_test_set(translator, test_set.sources, what, **system.options)
        scores = score_translations(translations, test_set.references, **scoring)
        row: dict[str, Any] = {
            "bleu": scores["bleu"],
            "chrf": scores["chrf"],
            "changed_sentences": sum(map(str.__ne__, test_set.sources, clean.sources)),
        }
        if perturbation == "placeholders":
            row["placeholders_kept"] = _share_of_kept_placeholders(test_set, clean, translations)
        results[perturbation] = row
    return results


def _share_of_kept_placeholders(test_set: TestSet, clean: TestSet, translations: list[str]) -> float:
    kept = []
    for source, original, translation in zip(test_set.sources, clean.sources, translations, strict=True):
        if source != original:
            kept.append(all(placeholder in translation for placeholder in PLACEHOLDER.findall(source)))
    return 100 * sum(kept) / max(1, len(kept))


def robustness_as_text(results: Mapping[str, Any]) -> str:
    """Format the results as a table with one line for each perturbation. The columns are BLEU and chrF of
    each system.
    """
    systems = results["systems"]
    width = max(map(len, PERTURBATIONS))
    names = [row["system"] for row in systems]
    columns = [max(13, len(name)) for name in names]
    titles = [f"{name:>{column}}" for name, column in zip(names, columns, strict=True)]
    heads = [f"{'BLEU   chrF':>{column}}" for column in columns]
    lines = [" ".join([" " * width, "changed", *titles]), " ".join([" " * width, " " * 7, *heads])]
    for perturbation in systems[0]["scores"]:
        changed = systems[0]["scores"][perturbation]["changed_sentences"]
        cells = []
        for system, column in zip(systems, columns, strict=True):
            scores = system["scores"][perturbation]
            cells.append(f"{scores['bleu']:{column - 7}.2f} {scores['chrf']:6.2f}")
        lines.append(" ".join([f"{perturbation:{width}}", f"{changed:7,}", *cells]))
    for system in systems:
        kept = system["scores"]["placeholders"]["placeholders_kept"]
        lines.append(f"{system['system']} keeps the placeholder in {kept:.1f} % of the sentences")
    lines += [results["bleu_signature"], results["chrf_signature"]]
    if "recipe_note" in results:
        lines.append(results["recipe_note"])
    return "\n".join(lines)
