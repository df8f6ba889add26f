"""Compares systems on one test set: significance tests, confidence intervals, and scores by source length."""

import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from sacrebleu.significance import PairedTest

from ..checkpoint.results import JsonObject
from ..model.errors_vaswani import InvalidValueError
from .bleu import SPLIT_COMPOUNDS_NOTE, corpus_metrics, notes_on_short_texts
from .comet import comet_scores_or_error
from .png import BLUE, GREEN, GREY, LIGHT_BLUE, ORANGE, PURPLE, RED, YELLOW, png_bytes
from .systems import Report, System, TestSet

# The numbers of bootstrap resamples and randomization trials are the defaults of sacreBLEU.
RESAMPLES = 1000
TRIALS = 10_000
# A p-value needs at least `FEWEST_SENTENCES` translations that differ. A confidence interval needs at least
# `FEWEST_SENTENCES` sentences. If m translations of two systems differ, the randomization test has 2^m ways
# to swap translations. Two of the 2^m ways to swap translations always give a difference of the observed
# size: to swap no translation, and to swap all. Therefore, if m translations differ, the p-value cannot be
# below 2 / 2^m, for example 0.002 for m = 10. If only one translation differs, the correct p-value is 1, but
# sacreBLEU computes 0.0001. For the p-value, sacreBLEU counts only the trials with a larger difference than
# the observed difference.
FEWEST_SENTENCES = 10
# The maximum number of sentences in a comparison. sacreBLEU needs 8 bytes of memory per sentence and
# randomization trial: 1.6 GB for 20,000 sentences and 10,000 trials.
MOST_SENTENCES = 20_000
# Sentences are grouped by source length. `BUCKETS` contains the maximum number of words for each group except
# the last, as in compare-mt (Neubig et al. 2019).
BUCKETS = (10, 20, 30, 40, 50)
METRIC_NAMES = {"bleu": "BLEU", "chrf": "chrF", "comet": "COMET"}
# The colours of the systems. The baseline is grey.
COLORS = (GREY, BLUE, ORANGE, GREEN, PURPLE, LIGHT_BLUE, RED, YELLOW)
# The mark of the baseline in tables and in the picture.
_BASELINE = " (baseline)"

Systems = Mapping[str, Sequence[str]]


class Score(JsonObject):
    """The BLEU, chrF or COMET of a system. The field `score` of COMET is the mean of all sentences.

    Attributes:
        confidence_interval: The 95 % confidence interval. None for COMET, and for fewer than
            `FEWEST_SENTENCES` sentences.
        p_bootstrap: The p-value (from 0 to 1) that the bootstrap computes for the difference from the
            baseline; None if fewer than `FEWEST_SENTENCES` translations differ from the baseline.
            `p_bootstrap` is also None for the baseline, for COMET, and for a range of source lengths.
        p_randomization: The p-value from the randomization test.
    """

    score: float
    confidence_interval: tuple[float, float] | None = None
    p_bootstrap: float | None = None
    p_randomization: float | None = None


# Maps each metric, such as "bleu", to the score of each system.
ScoresByMetric = dict[str, dict[str, Score]]


class SystemRow(JsonObject):
    """The scores of a system on all sentences, or on the sentences of a length bucket.

    Attributes:
        differing_sentences: The number of translations that differ from the translations of the baseline
            system; None if the row contains the scores of a length bucket.
        comet: The COMET score; None if COMET is not computed.
    """

    system: str
    differing_sentences: int | None = None
    bleu: Score
    chrf: Score
    comet: Score | None = None


class LengthBucket(JsonObject):
    """The scores on the sentences with similar source lengths. `words` is the range of the source lengths in
    words, such as "11-20".
    """

    words: str
    sentences: int
    systems: list[SystemRow]


class Comparison(JsonObject):
    """The scores of several systems on one test set.

    Attributes:
        baseline: The name of the first system.
        systems: The scores of each system on all sentences of the test set. The first system is the baseline.
        lengths: The scores by source length. Buckets without sentences are left out.
        bleu_signature: The settings of BLEU and of the significance tests.
        chrf_signature: The settings of chrF and of the significance tests.
        comet_model: The name of the COMET model; None if COMET is not computed.
    """

    baseline: str
    sentences: int
    systems: list[SystemRow]
    lengths: list[LengthBucket]
    bleu_signature: str
    chrf_signature: str
    notes: list[str]
    comet_model: str | None = None

    @property
    def metrics(self) -> list[str]:
        """The keys of `METRIC_NAMES` for which the comparison has scores."""
        return ["bleu", "chrf"] if self.systems[0].comet is None else ["bleu", "chrf", "comet"]


def check_comparable(num_sentences: int) -> None:
    """Raise an error if the test set is too large, or if sacreBLEU's tests cannot use the seed in the
    environment variable `SACREBLEU_SEED`.
    """
    if num_sentences > MOST_SENTENCES:
        raise InvalidValueError(
            f"`--compare` accepts at most {MOST_SENTENCES:,} sentences, because the significance tests would "
            f"need gigabytes of memory for more, but `--source` has {num_sentences:,}; take a sample."
        )
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    # sacreBLEU treats the seed 0 as "no seed", and would draw different bootstrap samples for each system.
    if seed.lower() != "none" and not (seed.isdecimal() and int(seed) > 0):
        raise InvalidValueError(f"`SACREBLEU_SEED` must be a positive integer or 'none', but is {seed!r}.")


def length_buckets(sources: Sequence[str]) -> dict[str, list[int]]:
    """Map each range of source word counts, such as "11-20", to the indices of the sentences in the range."""
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
    """Translate the test set, and compare all systems with the first system. `scoring` contains arguments of
    `compare_systems`.
    """
    translations = {system.name: system.translations(test_set.sources) for system in systems}
    comet, comet_error = comet_scores_or_error(comet_model, translations, *test_set, device)
    comparison = compare_systems(translations, *test_set, comet, **scoring)
    if comet is not None:
        comparison.comet_model = comet_model
    return Report(
        comparison.as_json(),
        comparison_as_text(comparison),
        draw=partial(comparison_picture, comparison),
        comet_error=comet_error,
    )


def compare_systems(
    systems: Systems,
    sources: Sequence[str],
    references: Sequence[str],
    comet: Mapping[str, Sequence[float]] | None = None,
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    split_compounds: bool = False,
) -> Comparison:
    """Score each system on all sentences and on each length bucket, and compute p-values for the differences
    from the first system.

    sacreBLEU (Post 2018) computes p-values with two tests: paired bootstrap resampling (Koehn 2004) and
    paired approximate randomization (Riezler and Maxwell 2005). The bootstrap computes the 95 % confidence
    intervals.
    """
    from tqdm.auto import tqdm

    metrics = corpus_metrics(tokenize, lowercase, split_compounds)
    buckets = length_buckets(sources)
    differing = _differing_sentences(systems)
    signatures = {}
    scores: ScoresByMetric = {}
    scores_by_length: dict[str, ScoresByMetric] = {words: {} for words in buckets}
    # With `disable=None`, tqdm shows no progress bar if stderr is not a terminal.
    with tqdm(total=len(metrics) * (1 + len(buckets)), desc="comparing", disable=None, leave=False) as bar:
        for key, metric in metrics.items():
            bar.set_description(f"comparing {METRIC_NAMES[key]}")
            signatures[key], scores[key] = _tested_scores(metric, systems, references, differing)
            bar.update()
            for words, indices in buckets.items():
                of_bucket = {name: _entries(texts, indices) for name, texts in systems.items()}
                _, results = _test("bs", RESAMPLES, of_bucket, _entries(references, indices), metric)
                scores_by_length[words][key] = _scores(results, len(indices))
                bar.update()
    if comet is not None:
        scores["comet"] = _mean_comet(comet, range(len(sources)))
        for words, indices in buckets.items():
            scores_by_length[words]["comet"] = _mean_comet(comet, indices)
    rows = _rows(systems, scores)
    for row in rows:
        row.differing_sentences = differing[row.system]
    lengths = [
        LengthBucket(words=words, sentences=len(indices), systems=_rows(systems, scores_by_length[words]))
        for words, indices in buckets.items()
    ]
    notes = [SPLIT_COMPOUNDS_NOTE] if split_compounds else []
    notes += _notes_on_tests(differing, len(sources))
    for name, texts in systems.items():
        bleu_score = metrics["bleu"].corpus_score(list(texts), [references])
        notes += [f"{name}: {note}" for note in notes_on_short_texts(bleu_score, tokenize)]
    return Comparison(
        baseline=rows[0].system,
        sentences=len(sources),
        systems=rows,
        lengths=lengths,
        bleu_signature=signatures["bleu"],
        chrf_signature=signatures["chrf"],
        notes=notes,
    )


def _differing_sentences(systems: Systems) -> dict[str, int]:
    """Count the translations of each system that differ from the translations of the first system."""
    baseline = next(iter(systems.values()))
    return {name: sum(map(str.__ne__, texts, baseline)) for name, texts in systems.items()}


def _entries(values: Sequence[Any], indices: Iterable[int]) -> list[Any]:
    return [values[index] for index in indices]


def _tested_scores(
    metric: Any, systems: Systems, references: Sequence[str], differing: Mapping[str, int]
) -> tuple[str, dict[str, Score]]:
    """For one metric, compute the score and the p-values of each system on the whole test set. Return the
    signature of the metric, and the scores.
    """
    signature, bootstrap = _test("bs", RESAMPLES, systems, references, metric)
    baseline, *others = systems
    testable = [name for name in others if differing[name] >= FEWEST_SENTENCES]
    compared = {name: systems[name] for name in [baseline, *testable]}
    _, randomization = _test("ar", TRIALS, compared, references, metric)
    signature.update("ar", TRIALS)
    scores = _scores(bootstrap, len(references))
    for name in others:
        score = scores[name]
        if name not in testable:
            score.p_bootstrap = score.p_randomization = None
        elif math.isclose(score.score, scores[baseline].score, abs_tol=1e-9):
            # Set p to 1 for equal scores. If all scores were 0, sacreBLEU would report p = 0.001, because
            # sacreBLEU counts only samples with a difference above the observed difference.
            score.p_bootstrap = score.p_randomization = 1.0
        else:
            score.p_bootstrap = float(bootstrap[name].p_value)
            score.p_randomization = float(randomization[name].p_value)
    return str(signature), scores


def _test(
    kind: str, num_samples: int, systems: Systems, references: Sequence[str], metric: Any
) -> tuple[Any, dict[str, Any]]:
    """Run the bootstrap (`kind` "bs") or the randomization ("ar"). Return sacreBLEU's signature and the
    result of each system.
    """
    test = PairedTest(
        list(systems.items()), {"": metric}, [references], test_type=kind, n_samples=num_samples
    )
    signatures, columns = test()
    ((name, signature),) = signatures.items()
    results: Any = columns[name]
    return signature, dict(zip(systems, results, strict=True))


def _scores(results: Mapping[str, Any], num_sentences: int) -> dict[str, Score]:
    """Return the score of each system, from the results of the bootstrap."""
    scores = {}
    for name, result in results.items():
        # Convert each value to float, because the module `json` cannot write a NumPy float32.
        mean = float(result.mean)
        half = float(result.ci)
        interval = None
        if num_sentences >= FEWEST_SENTENCES:
            # Clamp both ends, because a mean of 100 can be slightly above 100 in float32.
            lower, upper = (max(0.0, min(100.0, end)) for end in (mean - half, mean + half))
            interval = (lower, upper)
        scores[name] = Score(score=float(result.score), confidence_interval=interval)
    return scores


def _mean_comet(comet: Mapping[str, Sequence[float]], indices: Iterable[int]) -> dict[str, Score]:
    """Return the mean COMET score of each system."""
    return {
        name: Score(score=statistics.fmean(_entries(of_system, indices))) for name, of_system in comet.items()
    }


def _rows(names: Iterable[str], scores: ScoresByMetric) -> list[SystemRow]:
    """Return the `SystemRow` of each system."""
    rows = []
    for name in names:
        of_system: dict[str, Any] = {key: of_metric[name] for key, of_metric in scores.items()}
        rows.append(SystemRow(system=name, **of_system))
    return rows


def _notes_on_tests(differing: Mapping[str, int], num_sentences: int) -> list[str]:
    notes = []
    _, *others = differing.items()
    for name, number in others:
        if number < FEWEST_SENTENCES:
            notes.append(
                f"{name} differs from the baseline in {number:,} of the translations, but a p-value needs at "
                f"least {FEWEST_SENTENCES} different translations."
            )
    if num_sentences < FEWEST_SENTENCES:
        notes.append(
            f"Confidence intervals need {FEWEST_SENTENCES} sentences, but there are {num_sentences:,}."
        )
    if len(others) > 1:
        notes.append("The p-values are not corrected for the number of comparisons with the baseline.")
    return notes


def comparison_as_text(comparison: Comparison) -> str:
    """For each metric, format one table of the systems and one table of the scores by source length."""
    blocks = [_score_table(comparison, key) for key in comparison.metrics]
    blocks += [_length_table(comparison, key) for key in comparison.metrics]
    return "\n\n".join([*blocks, *comparison.notes])


def _score_table(comparison: Comparison, key: str) -> str:
    width = max(len(row.system) for row in comparison.systems) + len(_BASELINE)
    columns = f"{'score':>7}"
    if key != "comet":
        columns += "    95 % interval  p bootstrap  p randomization"
    lines = [f"{METRIC_NAMES[key]:{width}}  {columns}"]
    for number, row in enumerate(comparison.systems):
        name = row.system + (_BASELINE if number == 0 else "")
        score: Score = getattr(row, key)
        cells = f"{score.score:7.4f}" if key == "comet" else _cells(score, has_p_values=number > 0)
        lines.append(f"{name:{width}}  {cells}".rstrip())
    signature = getattr(comparison, f"{key}_signature", None)
    if signature is not None:
        lines.append(signature)
    return "\n".join(lines)


def _cells(score: Score, has_p_values: bool) -> str:
    interval = score.confidence_interval
    ends = "-" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"
    cells = f"{score.score:7.2f}  {ends:>15}  "
    if has_p_values:
        cells += f"{_p_value_cell(score.p_bootstrap):>11}  {_p_value_cell(score.p_randomization):>15}"
    return cells


def _p_value_cell(p_value: float | None) -> str:
    return "-" if p_value is None else f"{p_value:.4f}"


def _length_table(comparison: Comparison, key: str) -> str:
    names = [row.system for row in comparison.systems]
    digits = 4 if key == "comet" else 2
    lines = [f"{METRIC_NAMES[key]} by number of source words"]
    lines.append("  ".join([f"{'words':5}", f"{'sentences':>9}", *(f"{name:>7}" for name in names)]))
    for bucket in comparison.lengths:
        scores = [f"{getattr(row, key).score:{max(7, len(row.system))}.{digits}f}" for row in bucket.systems]
        lines.append("  ".join([f"{bucket.words:5}", f"{bucket.sentences:9,}", *scores]))
    return "\n".join(lines)


def comparison_picture(comparison: Comparison) -> bytes:
    """Draw the BLEU of each system by source length, with 95 % confidence intervals. Return the picture as
    PNG. There can be at most `len(COLORS)` systems.
    """
    # Import matplotlib here, because the import is slow and only pictures need matplotlib.
    from matplotlib.figure import Figure

    all_sentences = LengthBucket(words="all", sentences=comparison.sentences, systems=comparison.systems)
    groups = [all_sentences, *comparison.lengths]
    figure = Figure(figsize=(max(7.0, 1.3 * len(groups)), 4.5), layout="constrained")
    bleu = "compound-split BLEU" if "split_compounds" in comparison.bleu_signature else "BLEU"
    axes = figure.add_subplot(xlabel="number of source words (number of sentences)", ylabel=bleu)
    for number in range(len(comparison.systems)):
        _draw_system(axes, groups, number)
    axes.set_xticks(range(len(groups)), [f"{group.words}\n({group.sentences:,})" for group in groups])
    axes.set_ylim(bottom=0)
    axes.axvline(0.5, color="black", linewidth=0.6, linestyle=":")
    axes.spines[["top", "right"]].set_visible(False)
    title = f"lines: 95 % confidence interval (bootstrap), from {FEWEST_SENTENCES} sentences on"
    figure.legend(loc="outside upper left", frameon=False, title=title, alignment="left")
    return png_bytes(figure)


def _draw_system(axes: Any, groups: Sequence[LengthBucket], number: int) -> None:
    """Draw the bars of the system with the index `number`: one bar for each group of sentences."""
    systems = groups[0].systems
    width = 0.8 / len(systems)
    places = [place + (number - (len(systems) - 1) / 2) * width for place in range(len(groups))]
    scores = [group.systems[number].bleu for group in groups]
    # matplotlib reads a dollar sign as the start of a formula, so the label escapes dollar signs. matplotlib
    # hides a label that begins with an underscore, so the label begins with a zero-width space.
    label = f"\u200b{systems[number].system}".replace("$", r"\$") + (_BASELINE if number == 0 else "")
    axes.bar(places, [score.score for score in scores], 0.92 * width, label=label, color=COLORS[number])
    for place, score in zip(places, scores, strict=True):
        if score.confidence_interval is not None:
            axes.plot([place, place], score.confidence_interval, color="black", linewidth=1.2)
