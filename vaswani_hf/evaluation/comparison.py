"""Systems on one test set: significance and intervals of BLEU and chrF by sacrebleu, and scores by length.

`compare_systems` computes the numbers, `comparison_as_text` shows them as tables, and `comparison_picture` as
bars.
"""

import io
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from sacrebleu.significance import PairedTest, Result

from .bleu import SPLIT_COMPOUNDS_NOTE, corpus_metrics

# sacrebleu's own numbers: resamples of the bootstrap, and trials of the approximate randomization.
RESAMPLES = 1000
TRIALS = 10_000
# If m sentences have different translations, the randomization gives the observed difference or a larger one
# in at least 2 of 2^m cases, 0.002 of them with 10. sacrebleu does not count equal ones: of a single sentence
# it would say p = 0.0001.
FEWEST_SENTENCES = 10
# sacrebleu holds a number of 8 bytes per sentence and trial: 1.6 GB.
MOST_SENTENCES = 20_000
# The most words of each bucket but the last, as in compare-mt (Neubig et al., 2019).
BUCKETS = (10, 20, 30, 40, 50)
METRIC_NAMES = {"bleu": "BLEU", "chrf": "chrF", "comet": "COMET"}
# Okabe and Ito's colours, which stay apart for the colour-blind and in print; the baseline is grey.
COLORS = ("#999999", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")

Systems = Mapping[str, Sequence[str]]


def check_comparable(num_sentences: int) -> None:
    """Refuse what sacrebleu's tests cannot do."""
    if num_sentences > MOST_SENTENCES:
        raise ValueError(
            f"`--compare` takes at most {MOST_SENTENCES:,} sentences, beyond which the tests would need"
            f" gigabytes of memory, but `--source` has {num_sentences:,}; take a sample."
        )
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    # With 0 sacrebleu would draw other numbers for each system, and say that it did not.
    if seed.lower() != "none" and not (seed.isdecimal() and int(seed) > 0):
        raise ValueError(f"SACREBLEU_SEED must be a positive integer or none, but is {seed!r}.")


def length_buckets(sources: Sequence[str]) -> dict[str, list[int]]:
    """The indices of the sentences of each length, by names such as "11-20" words, short ones first."""
    first = (0, *(most + 1 for most in BUCKETS))
    names = [*(f"{least}-{most}" for least, most in zip(first, BUCKETS, strict=False)), f"{first[-1]}+"]
    buckets: dict[str, list[int]] = {name: [] for name in names}
    for index, source in enumerate(sources):
        num_words = len(source.split())
        buckets[names[sum(num_words > most for most in BUCKETS)]].append(index)
    return {name: indices for name, indices in buckets.items() if indices}


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
    """The scores of systems, in all and by source length, and their significance against the first one.

    The p-values are those of sacrebleu (Post, 2018): paired bootstrap resampling (Koehn, 2004) and paired
    approximate randomization (Riezler and Maxwell, 2005). The intervals are of 95 %, by the bootstrap.
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
    # disable=None: no bar where stderr is no terminal.
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
    return {**shape, **signatures, "notes": _notes(rows, len(sources), split_compounds)}


def _test(
    kind: str, num_samples: int, systems: Systems, references: Sequence[str], metric: Any
) -> tuple[Any, list[Result]]:
    """The signature and the result of each system: "bs" by the bootstrap, "ar" by the randomization."""
    test = PairedTest(
        list(systems.items()), {"": metric}, [references], test_type=kind, n_samples=num_samples
    )
    signatures, columns = test()
    ((name, signature),) = signatures.items()
    return signature, columns[name]  # type: ignore[return-value]


def _is_testable(row: Mapping[str, Any]) -> bool:
    return row["differing_sentences"] >= FEWEST_SENTENCES


def _add_scores(rows: list[dict[str, Any]], key: str, results: list[Result], num_sentences: int) -> None:
    """Adds the score and the confidence interval of each system."""
    for row, result in zip(rows, results, strict=True):
        # sacrebleu's mean is a float32.
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
    """Adds the p-values of all systems but the baseline, which is the first one of both results."""
    by_name = {row["system"]: result for row, result in zip(testable, randomization[1:], strict=True)}
    for row, result in zip(rows[1:], bootstrap[1:], strict=True):
        p_values: tuple[Any, Any] = (None, None)
        if row["system"] in by_name:
            p_values = (result.p_value, by_name[row["system"]].p_value)
            # sacrebleu counts larger differences and no equal ones: of equal scores it would say p = 0.001.
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
                f"{row['system']} differs from the baseline in {row['differing_sentences']:,} of the"
                f" translations; p-values need {FEWEST_SENTENCES} that differ."
            )
    if num_sentences < FEWEST_SENTENCES:
        notes.append(f"Intervals need {FEWEST_SENTENCES} sentences, but there are {num_sentences:,}.")
    if len(rows) > 2:
        notes.append("Each p-value is of one comparison with the baseline, not corrected for their number.")
    return notes


def comparison_as_text(results: Mapping[str, Any]) -> str:
    """The results as tables: for each metric the systems, then the systems by source length."""
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
    lines = [f"{METRIC_NAMES[key]} by words of the source"]
    lines.append("  ".join([f"{'words':5}", f"{'sentences':>9}", *(f"{name:>7}" for name in names)]))
    for bucket in results["lengths"]:
        scores = [f"{row[key]['score']:{max(7, len(row['system']))}.{digits}f}" for row in bucket["systems"]]
        lines.append("  ".join([f"{bucket['words']:5}", f"{bucket['sentences']:9,}", *scores]))
    return "\n".join(lines)


def comparison_picture(results: Mapping[str, Any]) -> bytes:
    """A PNG: BLEU of each system on all sentences and by words of the source, with 95 % intervals.

    The results are those of `compare_systems`, of at most as many systems as there are colours.
    """
    # Only a picture needs matplotlib.
    from matplotlib.figure import Figure

    all_sentences = {"words": "all", "sentences": results["sentences"], "systems": results["systems"]}
    groups = [all_sentences, *results["lengths"]]
    names = [row["system"] for row in results["systems"]]
    width = 0.8 / len(names)
    figure = Figure(figsize=(max(7.0, 1.3 * len(groups)), 4.5), layout="constrained")
    bleu = "compound-split BLEU" if "split_compounds" in results["bleu_signature"] else "BLEU"
    axes = figure.add_subplot(xlabel="words of the source (sentences)", ylabel=bleu)
    for number, name in enumerate(names):
        scores = [group["systems"][number]["bleu"] for group in groups]
        places = [place + (number - (len(names) - 1) / 2) * width for place in range(len(groups))]
        # A dollar sign would begin a formula, and a first underscore hide the name.
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
    title = f"lines: 95 % interval by the bootstrap, from {FEWEST_SENTENCES} sentences on"
    figure.legend(loc="outside upper left", frameon=False, title=title, alignment="left")
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150, metadata={"Software": None})
    return content.getvalue()
