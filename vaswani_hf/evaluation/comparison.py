"""Compares systems on one test set: significance tests of sacreBLEU, confidence intervals, and scores by
source length.
"""

import io
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from sacrebleu.significance import PairedTest, Result

from ..model.errors_vaswani import InvalidValueError
from .bleu import SHORT_TEXTS_NOTE, SPLIT_COMPOUNDS_NOTE, corpus_metrics, is_zero_for_short_texts
from .comet import comet_scores_or_error
from .systems import Report, System, TestSet

# The numbers of bootstrap resamples and randomization trials are the defaults of sacreBLEU.
RESAMPLES = 1000
TRIALS = 10_000
# A p-value needs at least this number of sentences that the two systems translate differently. The
# randomization test decides at random for each sentence whether the two systems swap their translations. If m
# translations differ, there are 2^m ways to swap the translations. At least two of the 2^m ways to swap
# translations give the observed score difference or its negative: to swap no translation, and to swap all
# translations. Therefore the p-value for m different translations cannot be below 2 / 2^m, for example 0.002
# for m = 10. If only one translation differs (m = 1), sacreBLEU's p-value of 0.0001 is too small, because
# sacreBLEU does not count a trial with exactly the observed difference.
FEWEST_SENTENCES = 10
# The maximum number of sentences in a comparison. sacreBLEU needs 8 bytes of memory per sentence and
# randomization trial: 1.6 GB for 20,000 sentences and 10,000 trials.
MOST_SENTENCES = 20_000
# The length buckets group sentences by the number of source words. `BUCKETS` contains the maximum number of
# words per sentence for each bucket except the last, as in compare-mt (Neubig et al. 2019).
BUCKETS = (10, 20, 30, 40, 50)
METRIC_NAMES = {"bleu": "BLEU", "chrf": "chrF", "comet": "COMET"}
# The colours of the systems in the picture. The baseline is grey. All other colours are from the palette of
# Okabe and Ito, which colour-blind people can distinguish.
COLORS = ("#999999", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")

Systems = Mapping[str, Sequence[str]]


def check_comparable(num_sentences: int) -> None:
    """Raise an error if the test set is too large, or if the seed is invalid for sacreBLEU's significance
    tests.
    """
    if num_sentences > MOST_SENTENCES:
        raise InvalidValueError(
            f"`--compare` accepts at most {MOST_SENTENCES:,} sentences, because the significance tests would "
            f"need gigabytes of memory for more, but `--source` has {num_sentences:,}; take a sample."
        )
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    # Refuse the seed 0, because sacreBLEU treats 0 as "no seed" and would draw different bootstrap samples
    # for each system.
    if seed.lower() != "none" and not (seed.isdecimal() and int(seed) > 0):
        raise InvalidValueError(f"`SACREBLEU_SEED` must be a positive integer or 'none', but is {seed!r}.")


def length_buckets(sources: Sequence[str]) -> dict[str, list[int]]:
    """Group sentences by the number of source words. Return a dict that maps each range of word counts, such
    as "11-20", to the indices of its sentences.
    """
    first = (0, *(most + 1 for most in BUCKETS))
    names = [*(f"{least}-{most}" for least, most in zip(first, BUCKETS, strict=False)), f"{first[-1]}+"]
    buckets: dict[str, list[int]] = {name: [] for name in names}
    for index, source in enumerate(sources):
        num_words = len(source.split())
        buckets[names[sum(num_words > most for most in BUCKETS)]].append(index)
    return {name: indices for name, indices in buckets.items() if indices}


def compare(
    systems: Sequence[System],
    test_set: TestSet,
    scoring: Mapping[str, Any],
    comet_model: str | None = None,
    device: str | None = None,
) -> Report:
    """Translate the test set with all systems, and compare the systems with the first system. `scoring`
    contains options of `compare_systems`.
    """
    translations = {system.name: system.translations(test_set.sources) for system in systems}
    comet, comet_error = comet_scores_or_error(comet_model, translations, *test_set, device)
    scores = compare_systems(translations, *test_set, comet, **scoring)
    if comet is not None:
        scores["comet_model"] = comet_model
    return Report(scores, comparison_as_text, comet_error=comet_error)


def compare_systems(
    systems: Systems,
    sources: Sequence[str],
    references: Sequence[str],
    comet: Mapping[str, Sequence[float]] | None = None,
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    split_compounds: bool = False,
) -> dict[str, Any]:
    """Score each system on all sentences, and on groups of sentences with similar source lengths. Compute
    p-values for the differences from the first system.

    `systems` maps the name of each system to its translations. `comet` maps the name of each system to the
    COMET scores of its sentences. sacreBLEU (Post 2018) computes p-values with two tests: paired bootstrap
    resampling (Koehn 2004) and paired approximate randomization (Riezler and Maxwell 2005). The 95 %
    confidence intervals are computed by the bootstrap.
    """
    from tqdm.auto import tqdm

    check_comparable(len(sources))
    metrics = corpus_metrics(tokenize, lowercase, split_compounds)
    buckets = length_buckets(sources)
    baseline = next(iter(systems))
    rows: list[dict[str, Any]] = []
    for name, texts in systems.items():
        differing = sum(map(str.__ne__, texts, systems[baseline]))
        rows.append({"system": name, "differing_sentences": differing})
    lengths: list[dict[str, Any]] = []
    for words, indices in buckets.items():
        of_systems = [{"system": name} for name in systems]
        lengths.append({"words": words, "sentences": len(indices), "systems": of_systems})
    signatures: dict[str, str] = {}
    # Pass `disable=None`, so that tqdm shows no progress bar if stderr is not a terminal.
    with tqdm(total=len(metrics) * (2 + len(buckets)), desc="comparing", disable=None, leave=False) as bar:
        for key, metric in metrics.items():
            bar.set_description(f"comparing {METRIC_NAMES[key]}")
            signature, bootstrap = _test("bs", RESAMPLES, systems, references, metric)
            _add_scores(rows, key, bootstrap, len(references))
            bar.update()
            testable = [row for row in rows[1:] if _is_testable(row)]
            compared = {name: systems[name] for name in [baseline, *(row["system"] for row in testable)]}
            _, randomization = _test("ar", TRIALS, compared, references, metric)
            _add_p_values(rows, testable, key, bootstrap, randomization)
            bar.update()
            signature.update("ar", TRIALS)
            signatures[f"{key}_signature"] = str(signature)
            for bucket, indices in zip(lengths, buckets.values(), strict=True):
                of_bucket = {name: [texts[index] for index in indices] for name, texts in systems.items()}
                its_references = [references[index] for index in indices]
                _, results = _test("bs", RESAMPLES, of_bucket, its_references, metric)
                _add_scores(bucket["systems"], key, results, len(indices))
                bar.update()
    if comet is not None:
        _add_comet(rows, comet, range(len(sources)))
        for bucket, indices in zip(lengths, buckets.values(), strict=True):
            _add_comet(bucket["systems"], comet, indices)
    shape = {"baseline": baseline, "sentences": len(sources), "systems": rows, "lengths": lengths}
    notes = _notes(rows, len(sources), split_compounds)
    for name, texts in systems.items():
        if is_zero_for_short_texts(metrics["bleu"].corpus_score(list(texts), [references])):
            notes.append(f"{name}: {SHORT_TEXTS_NOTE}")
    return {**shape, **signatures, "notes": notes}


def _test(
    kind: str, num_samples: int, systems: Systems, references: Sequence[str], metric: Any
) -> tuple[Any, list[Result]]:
    """Run a significance test: `kind` is "bs" for the bootstrap or "ar" for the randomization. Return
    sacreBLEU's signature, a string with the options of the test, and the result of each system.
    """
    test = PairedTest(
        list(systems.items()), {"": metric}, [references], test_type=kind, n_samples=num_samples
    )
    signatures, columns = test()
    ((name, signature),) = signatures.items()
    return signature, columns[name]  # type: ignore[return-value]


def _is_testable(row: Mapping[str, Any]) -> bool:
    return row["differing_sentences"] >= FEWEST_SENTENCES


def _add_scores(rows: list[dict[str, Any]], key: str, results: list[Result], num_sentences: int) -> None:
    """Add the score and the confidence interval of each system to its table row."""
    for row, result in zip(rows, results, strict=True):
        # Convert the mean score from a NumPy float32 to a Python float, because the module `json` cannot
        # write a float32.
        mean = float(result.mean)  # type: ignore[arg-type]
        half = float(result.ci)  # type: ignore[arg-type]
        interval = None
        if num_sentences >= FEWEST_SENTENCES:
            interval = [max(0.0, mean - half), min(100.0, mean + half)]
        row[key] = {"score": float(result.score), "confidence_interval": interval}


def _add_p_values(
    rows: list[dict[str, Any]],
    testable: list[dict[str, Any]],
    key: str,
    bootstrap: list[Result],
    randomization: list[Result],
) -> None:
    """Add the p-values to the table rows of all systems except the baseline. In the results of both
    significance tests, the baseline is the first system.
    """
    by_name = {row["system"]: result for row, result in zip(testable, randomization[1:], strict=True)}
    for row, result in zip(rows[1:], bootstrap[1:], strict=True):
        p_values: tuple[Any, Any] = (None, None)
        if row["system"] in by_name:
            p_values = (result.p_value, by_name[row["system"]].p_value)
            # If both systems have equal scores, set the p-value to 1. sacreBLEU would report p = 0.001,
            # because sacreBLEU counts only differences that are larger than the observed difference.
            if math.isclose(result.score, bootstrap[0].score, abs_tol=1e-9):
                p_values = (1.0, 1.0)
        row[key] |= dict(zip(("p_bootstrap", "p_randomization"), p_values, strict=True))


def _add_comet(
    rows: list[dict[str, Any]], comet: Mapping[str, Sequence[float]], indices: Sequence[int]
) -> None:
    for row in rows:
        row["comet"] = {"score": statistics.fmean(comet[row["system"]][index] for index in indices)}


def _notes(rows: list[dict[str, Any]], num_sentences: int, is_split: bool) -> list[str]:
    notes = [SPLIT_COMPOUNDS_NOTE] if is_split else []
    for row in rows[1:]:
        if not _is_testable(row):
            notes.append(
                f"{row['system']} differs from the baseline in {row['differing_sentences']:,} of the "
                f"translations, but a p-value needs at least {FEWEST_SENTENCES} different translations."
            )
    if num_sentences < FEWEST_SENTENCES:
        notes.append(
            f"Confidence intervals need {FEWEST_SENTENCES} sentences, but there are {num_sentences:,}."
        )
    if len(rows) > 2:
        notes.append("The p-values are not corrected for the number of comparisons with the baseline.")
    return notes


def comparison_as_text(results: Mapping[str, Any]) -> str:
    """Format the results as tables. Each metric has one table of the systems and one table of scores by
    source length.
    """
    width = max(len(row["system"]) for row in results["systems"]) + len(" (baseline)")
    keys = [key for key in METRIC_NAMES if key in results["systems"][0]]
    blocks = []
    for key in keys:
        columns = f"{'score':>7}" + (
            "" if key == "comet" else "    95 % interval  p bootstrap  p randomization"
        )
        lines = [f"{METRIC_NAMES[key]:{width}}  {columns}"]
        for row in results["systems"]:
            name = row["system"] + (" (baseline)" if row is results["systems"][0] else "")
            lines.append(f"{name:{width}}  {_cells(row[key], key)}".rstrip())
        if f"{key}_signature" in results:
            lines.append(results[f"{key}_signature"])
        blocks.append("\n".join(lines))
    blocks += [_length_table(results, key) for key in keys]
    if "recipe_note" in results:
        blocks.append(results["recipe_note"])
    return "\n\n".join([*blocks, *results["notes"]])


def _cells(scores: Mapping[str, Any], key: str) -> str:
    if key == "comet":
        return f"{scores['score']:7.4f}"
    interval = scores["confidence_interval"]
    ends = "-" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"
    cells = f"{scores['score']:7.2f}  {ends:>15}  "
    if "p_bootstrap" in scores:
        p_values = [scores["p_bootstrap"], scores["p_randomization"]]
        bootstrap, randomization = ("-" if p_value is None else f"{p_value:.4f}" for p_value in p_values)
        cells += f"{bootstrap:>11}  {randomization:>15}"
    return cells


def _length_table(results: Mapping[str, Any], key: str) -> str:
    names = [row["system"] for row in results["systems"]]
    digits = 4 if key == "comet" else 2
    lines = [f"{METRIC_NAMES[key]} by number of source words"]
    lines.append("  ".join([f"{'words':5}", f"{'sentences':>9}", *(f"{name:>7}" for name in names)]))
    for bucket in results["lengths"]:
        scores = [f"{row[key]['score']:{max(7, len(row['system']))}.{digits}f}" for row in bucket["systems"]]
        lines.append("  ".join([f"{bucket['words']:5}", f"{bucket['sentences']:9,}", *scores]))
    return "\n".join(lines)


def comparison_picture(results: Mapping[str, Any]) -> bytes:
    """Draw a bar chart as PNG: the BLEU of each system on all sentences and by source length, with 95 %
    confidence intervals.

    `results` is the result of `compare_systems` for at most `len(COLORS)` systems,
    because each system needs a colour.
    """
    # Import matplotlib here, because the import is slow and only pictures need matplotlib.
    from matplotlib.figure import Figure

    all_sentences = {"words": "all", "sentences": results["sentences"], "systems": results["systems"]}
    groups = [all_sentences, *results["lengths"]]
    names = [row["system"] for row in results["systems"]]
    width = 0.8 / len(names)
    figure = Figure(figsize=(max(7.0, 1.3 * len(groups)), 4.5), layout="constrained")
    bleu = "compound-split BLEU" if "split_compounds" in results["bleu_signature"] else "BLEU"
    axes = figure.add_subplot(xlabel="number of source words (number of sentences)", ylabel=bleu)
    for number, name in enumerate(names):
        scores = [group["systems"][number]["bleu"] for group in groups]
        places = [place + (number - (len(names) - 1) / 2) * width for place in range(len(groups))]
        # Escape dollar signs, because matplotlib reads a dollar sign as the start of a formula. Write a
        # zero-width space before each label, because matplotlib hides a label that begins with an underscore.
        label = f"\u200b{name}".replace("$", r"\$") + (" (baseline)" if number == 0 else "")
        axes.bar(
            places, [score["score"] for score in scores], 0.92 * width, label=label, color=COLORS[number]
        )
        for place, score in zip(places, scores, strict=True):
            if score["confidence_interval"] is not None:
                axes.plot([place, place], score["confidence_interval"], color="black", linewidth=1.2)
    axes.set_xticks(range(len(groups)), [f"{group['words']}\n({group['sentences']:,})" for group in groups])
    axes.set_ylim(bottom=0)
    axes.axvline(0.5, color="black", linewidth=0.6, linestyle=":")
    axes.spines[["top", "right"]].set_visible(False)
    title = f"lines: 95 % confidence interval (bootstrap), from {FEWEST_SENTENCES} sentences on"
    figure.legend(loc="outside upper left", frameon=False, title=title, alignment="left")
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150, metadata={"Software": None})
    return content.getvalue()
