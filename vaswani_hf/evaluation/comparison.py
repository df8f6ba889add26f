"""Systems on one test set: intervals and significance of their BLEU and chrF, by sacrebleu, and scores by source length."""

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
# Of m sentences whose translations differ the randomization gives the observed difference or a larger one in at least 2 of
# 2^m cases, 0.002 of them with 10. sacrebleu does not count equal ones: of a single sentence it would say p = 0.0001.
FEWEST_SENTENCES = 10
# sacrebleu holds a number of 8 bytes per sentence and trial: 1.6 GB.
MOST_SENTENCES = 20_000
# The most words of each bucket but the last, as in compare-mt (Neubig et al., 2019).
BUCKETS = (10, 20, 30, 40, 50)
METRIC_NAMES = {"bleu": "BLEU", "chrf": "chrF", "comet": "COMET"}

Systems = Mapping[str, Sequence[str]]


def check_comparable(num_sentences: int) -> None:
    """Refuse what sacrebleu's tests cannot do.

    Args:
        num_sentences (int): The length of the test set.

    Raises:
        ValueError: If there are too many sentences, or the seed that sacrebleu takes from the environment is none.
    """
    if num_sentences > MOST_SENTENCES:
        raise ValueError(
            f"`--compare` takes at most {MOST_SENTENCES:,} sentences, beyond which the tests would need gigabytes of memory, "
            f"but `--source` has {num_sentences:,}; take a sample."
        )
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    # With 0 sacrebleu would draw other numbers for each system, and say that it did not.
    if seed.lower() != "none" and not (seed.isdecimal() and int(seed) > 0):
        raise ValueError(f"SACREBLEU_SEED must be a positive integer or none, but is {seed!r}.")


def length_buckets(sources: Sequence[str]) -> dict[str, list[int]]:
    """The sentences of each length that occurs, in words, which are what white space separates.

    Args:
        sources (Sequence): Sentences.

    Returns:
        dict: Indices of sentences by names such as "11-20" words, short ones first.
    """
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
    **scoring: Any,
) -> dict[str, Any]:
    """The scores of systems, the significance of their differences from the first one, and their scores by source length.

    The p-values are those of sacrebleu (Post, 2018): paired bootstrap resampling (Koehn, 2004) and paired approximate
    randomization (Riezler and Maxwell, 2005). The intervals are of 95 %, by the bootstrap.

    Args:
        systems (Mapping): The translations of each system, by its name; the first one is the baseline.
        sources (Sequence): Sentences.
        references (Sequence): Their references.
        comet (Mapping, optional): COMET's score of each translation, by the name of the system.
        **scoring: `tokenize`, `lowercase` and `split_compounds`, as in `score_translations`.

    Returns:
        dict: `baseline`; `sentences`; `systems`, a list with `system`, `differing_sentences` from the baseline, and for
            each metric `score`, `confidence_interval` and, except for the baseline, `p_bootstrap` and `p_randomization`;
            `lengths`, a list with `words`, `sentences` and such `systems`, without p-values; `bleu_signature` and
            `chrf_signature`; `notes`. An interval or p-value that too few sentences support is None.

    Raises:
        ValueError: If sacrebleu's tests cannot be done.
    """
    check_comparable(len(sources))
    metrics = corpus_metrics(**{"tokenize": "13a", "lowercase": False, "split_compounds": False, **scoring})
    baseline = next(iter(systems.values()))
    rows: list[dict[str, Any]] = [
        {"system": name, "differing_sentences": sum(map(str.__ne__, texts, baseline))}
        for name, texts in systems.items()
    ]
    signatures: dict[str, str] = {}
    lengths: list[dict[str, Any]] = []
    with _Tests(_work(rows, len(sources)) * len(metrics)) as tests:
        for key, metric in metrics.items():
            signatures[f"{key}_signature"] = _add_metric(rows, key, metric, systems, references, tests)
        for words, indices in length_buckets(sources).items():
            lengths.append(
                {"words": words, "sentences": len(indices), "systems": [{"system": name} for name in systems]}
            )
            of_bucket = {name: [texts[index] for index in indices] for name, texts in systems.items()}
            its_references = [references[index] for index in indices]
            for key, metric in metrics.items():
                _add_intervals(lengths[-1]["systems"], key, metric, of_bucket, its_references, tests)
    if comet is not None:
        _add_comet(rows, comet, range(len(sources)))
        for bucket, indices in zip(lengths, length_buckets(sources).values(), strict=True):
            _add_comet(bucket["systems"], comet, indices)
    shape = {"baseline": next(iter(systems)), "sentences": len(sources), "systems": rows, "lengths": lengths}
    return {**shape, **signatures, "notes": _notes(rows, len(sources), bool(scoring.get("split_compounds")))}


class _Tests:
    """The tests of sacrebleu, with progress and the time left on a terminal.

    Args:
        work (int): As from `_work`, of all tests.
    """

    def __init__(self, work: int):
        from tqdm.auto import tqdm

        shape = "{desc}{percentage:3.0f} % [{elapsed}<{remaining}]"
        # disable=None: no bar where stderr is no terminal.
        self._bar = tqdm(total=work, bar_format=shape, desc="comparing: ", disable=None, leave=False)

    def __enter__(self) -> "_Tests":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def run(self, kind: str, systems: Systems, references: Sequence[str], metric: Any) -> tuple[Any, list[Result]]:
        """The signature of a test, and the results of each system: "bs" by the bootstrap, "ar" by randomization."""
        number = RESAMPLES if kind == "bs" else TRIALS
        what = "bootstrap resamples" if kind == "bs" else "randomization trials"
        self._bar.set_description(f"{number:,} {what} of {type(metric).__name__.replace('CHRF', 'chrF')}")
        test = PairedTest(list(systems.items()), {"": metric}, [references], test_type=kind, n_samples=number)
        signatures, columns = test()
        ((name, signature),) = signatures.items()
        self._bar.update(_bootstrap_work(len(systems), len(references)) if kind == "bs" else 4 * len(references))
        return signature, columns[name]  # type: ignore[return-value]


def _bootstrap_work(num_systems: int, num_sentences: int) -> int:
    # sacrebleu resamples the baseline once more for each other system.
    return (2 * num_systems - 1) * num_sentences


def _work(rows: Sequence[Mapping[str, Any]], num_sentences: int) -> int:
    """What the tests of one metric cost, in bootstraps of one sentence; a randomization takes as long as about four."""
    return 2 * _bootstrap_work(len(rows), num_sentences) + 4 * num_sentences * sum(map(_is_testable, rows))


def _is_testable(row: Mapping[str, Any]) -> bool:
    return row["differing_sentences"] >= FEWEST_SENTENCES


def _add_intervals(
    rows: list[dict[str, Any]], key: str, metric: Any, systems: Systems, references: Sequence[str], tests: _Tests
) -> tuple[Any, list[Result]]:
    """Adds the score and the confidence interval of each system; gives back what the bootstrap did."""
    signature, results = tests.run("bs", systems, references, metric)
    for row, result in zip(rows, results, strict=True):
        # sacrebleu's mean is a float32.
        ends = [max(0.0, float(result.mean - result.ci)), min(100.0, float(result.mean + result.ci))]  # type: ignore[operator]
        interval = ends if len(references) >= FEWEST_SENTENCES else None
        row[key] = {"score": float(result.score), "confidence_interval": interval}
    return signature, results


def _add_metric(
    rows: list[dict[str, Any]], key: str, metric: Any, systems: Systems, references: Sequence[str], tests: _Tests
) -> str:
    """Adds scores, intervals and p-values of a metric; gives back the signature of all these."""
    signature, results = _add_intervals(rows, key, metric, systems, references, tests)
    signature.update("ar", TRIALS)
    baseline = next(iter(systems))
    for row, bootstrap in zip(rows[1:], results[1:], strict=True):
        row[key] |= {"p_bootstrap": None, "p_randomization": None}
        if _is_testable(row):
            pair = {name: systems[name] for name in (baseline, row["system"])}
            randomization = tests.run("ar", pair, references, metric)[1][1]
            # sacrebleu counts larger differences and no equal ones: of equal scores it would say p = 0.001.
            is_tied = math.isclose(bootstrap.score, results[0].score, abs_tol=1e-9)
            p_values = (1.0, 1.0) if is_tied else (bootstrap.p_value, randomization.p_value)
            row[key] |= dict(zip(("p_bootstrap", "p_randomization"), p_values, strict=True))
    return str(signature)


def _add_comet(rows: list[dict[str, Any]], comet: Mapping[str, Sequence[float]], indices: Sequence[int]) -> None:
    for row in rows:
        row["comet"] = {"score": statistics.fmean(comet[row["system"]][index] for index in indices)}


def _notes(rows: list[dict[str, Any]], num_sentences: int, is_split: bool) -> list[str]:
    notes = [SPLIT_COMPOUNDS_NOTE] if is_split else []
    for row in rows[1:]:
        if not _is_testable(row):
            notes.append(
                f"{row['system']} differs from the baseline in {row['differing_sentences']:,} of the translations; p-values need "
                f"{FEWEST_SENTENCES} that differ."
            )
    if num_sentences < FEWEST_SENTENCES:
        notes.append(f"Intervals need {FEWEST_SENTENCES} sentences, but there are {num_sentences:,}.")
    if len(rows) > 2:
        notes.append("Each p-value is of one comparison with the baseline, not corrected for their number.")
    return notes


def comparison_as_text(results: Mapping[str, Any]) -> str:
    """The results as tables: for each metric the systems, then the systems by source length.

    Args:
        results (Mapping): As from `compare_systems`.
    """
    width = max(len(row["system"]) for row in results["systems"]) + len(" (baseline)")
    blocks = []
    for key in (key for key in METRIC_NAMES if key in results["systems"][0]):
        columns = f"{'score':>7}" + ("" if key == "comet" else "    95 % interval  p bootstrap  p randomization")
        lines = [f"{METRIC_NAMES[key]:{width}}  {columns}"]
        for row in results["systems"]:
            name = row["system"] + (" (baseline)" if row is results["systems"][0] else "")
            lines.append(f"{name:{width}}  {_cells(row[key], key)}".rstrip())
        lines += [results[f"{key}_signature"]] if f"{key}_signature" in results else []
        blocks.append("\n".join(lines))
    blocks += [_length_table(results, key) for key in METRIC_NAMES if key in results["systems"][0]]
    return "\n\n".join([*blocks, *results["notes"]])


def _cells(scores: Mapping[str, Any], key: str) -> str:
    if key == "comet":
        return f"{scores['score']:7.4f}"
    interval = scores["confidence_interval"]
    ends = "-" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"
    p_values = [
        f"{scores[name]:.4f}" if scores.get(name) is not None else "-" for name in ("p_bootstrap", "p_randomization")
    ]
    return f"{scores['score']:7.2f}  {ends:>15}  " + (
        f"{p_values[0]:>11}  {p_values[1]:>15}" if "p_bootstrap" in scores else ""
    )


def _length_table(results: Mapping[str, Any], key: str) -> str:
    names = [row["system"] for row in results["systems"]]
    digits = 4 if key == "comet" else 2
    lines = [f"{METRIC_NAMES[key]} by words of the source"]
    lines.append("  ".join([f"{'words':5}", f"{'sentences':>9}", *(f"{name:>7}" for name in names)]))
    for bucket in results["lengths"]:
        scores = [f"{row[key]['score']:{max(7, len(row['system']))}.{digits}f}" for row in bucket["systems"]]
        lines.append("  ".join([f"{bucket['words']:5}", f"{bucket['sentences']:9,}", *scores]))
    return "\n".join(lines)
