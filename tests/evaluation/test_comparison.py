"""Comparisons of systems: p-values against slow definitions, buckets against direct scores, few sentences,
the picture.
"""

import io
import itertools
import math
import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from pydantic import ValidationError
from tqdm.auto import tqdm

import vaswani_hf.evaluation.comparison as comparison
from vaswani_hf.evaluation.bleu import score_translations
from vaswani_hf.evaluation.comparison import (
    Comparison,
    LengthBucket,
    Score,
    SystemRow,
    check_comparable,
    compare_systems,
    comparison_as_text,
    comparison_picture,
    length_buckets,
)

WORDS = [f"w{number}" for number in range(30)]
DIFFERING = 12


def noisy(sentence, kept, chance):
    return " ".join(word if chance.random() < kept else chance.choice(WORDS) for word in sentence.split())


@pytest.fixture(scope="module")
def texts():
    """Sources, references, and the translations of two systems that differ in the first twelve sentences."""
    chance = random.Random(5)
    references = [" ".join(chance.choices(WORDS, k=length)) for length in [9, 12, 25, 14, 60, 33] * 5]
    worse = [noisy(sentence, 0.8, chance) for sentence in references]
    better = [noisy(sentence, 0.86, chance) for sentence in references[:DIFFERING]] + worse[DIFFERING:]
    assert sum(map(str.__ne__, worse, better)) == DIFFERING
    # Each source has one word more than its reference.
    return [f"the {sentence}" for sentence in references], references, {"worse": worse, "better": better}


@pytest.fixture
def few_samples(monkeypatch):
    monkeypatch.setattr(comparison, "RESAMPLES", 50)
    monkeypatch.setattr(comparison, "TRIALS", 50)


@pytest.fixture(scope="module")
def results(texts):
    sources, references, systems = texts
    return compare_systems(systems, sources, references, tokenize="none")


def statistics_of(hypotheses, references):
    """[sentences, 10]: both lengths, and for each n the numbers of matching n-grams and of all n-grams."""
    rows = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        row = [len(hypothesis.split()), len(reference.split())]
        for n in range(1, 5):
            grams = [
                Counter(zip(*(text.split()[i:] for i in range(n)), strict=False))
                for text in (hypothesis, reference)
            ]
            row += [(grams[0] & grams[1]).total(), grams[0].total()]
        rows.append(row)
    return np.array(rows)


def bleu(sums):
    """BLEU (Papineni et al. 2002) of each row of summed statistics with matching n-grams of each length."""
    assert (sums > 0).all()
    precision = np.exp(np.log(sums[..., 2::2] / sums[..., 3::2]).mean(-1))
    return 100 * precision * np.exp(np.minimum(0, 1 - sums[..., 1] / sums[..., 0]))


def test_randomization_equals_the_enumeration_of_all_exchanges(texts, results):
    _, references, systems = texts
    worse, better = (statistics_of(systems[name], references) for name in ("worse", "better"))
    masks = np.array(list(itertools.product([0, 1], repeat=DIFFERING)))
    masks = np.pad(masks, ((0, 0), (0, len(references) - DIFFERING)))
    differences = np.abs(
        bleu(masks @ worse + (1 - masks) @ better) - bleu(masks @ better + (1 - masks) @ worse)
    )
    observed = abs(bleu(worse.sum(0)) - bleu(better.sum(0)))
    exact = (differences >= observed - 1e-9).mean()
    assert 0.01 < exact < 0.6
    found = results.systems[1].bleu
    assert found.score == pytest.approx(bleu(better.sum(0)))
    # Four standard deviations of 10,000 trials.
    assert found.p_randomization == pytest.approx(
        exact, abs=4 * math.sqrt(exact * (1 - exact) / 10_000) + 2e-3
    )


def test_bootstrap_and_interval_equal_resampling_with_the_same_sentences_for_both(texts, results):
    _, references, systems = texts
    worse, better = (statistics_of(systems[name], references) for name in ("worse", "better"))
    chance, samples = random.Random(1), []
    for _ in range(4000):
        indices = chance.choices(range(len(references)), k=len(references))
        samples.append((bleu(worse[indices].sum(0)), bleu(better[indices].sum(0))))
    samples = np.array(samples)
    differences = np.abs(samples[:, 1] - samples[:, 0])
    observed = bleu(better.sum(0)) - bleu(worse.sum(0))
    expected = (differences - differences.mean() > observed).mean()
    found = [row.bleu for row in results.systems]
    assert 0.01 < expected < 0.6
    assert found[1].p_bootstrap == pytest.approx(expected, abs=0.05)
    # The interval has the width of the percentile interval, around the mean.
    for score, scores in zip(found, samples.T, strict=True):
        ends = np.percentile(scores, [2.5, 97.5])
        half = (ends[1] - ends[0]) / 2
        assert score.confidence_interval == pytest.approx(
            (scores.mean() - half, scores.mean() + half), abs=0.15 * half
        )


def test_buckets_have_the_direct_scores_of_their_sentences(texts, results):
    sources, references, systems = texts
    assert [bucket.words for bucket in results.lengths] == ["0-10", "11-20", "21-30", "31-40", "51+"]
    for bucket, (least, most) in zip(
        results.lengths, [(0, 10), (11, 20), (21, 30), (31, 40), (51, 99)], strict=True
    ):
        chosen = [number for number, source in enumerate(sources) if least <= len(source.split()) <= most]
        assert bucket.sentences == len(chosen)
        for row in bucket.systems:
            ours = [systems[row.system][number] for number in chosen]
            direct = score_translations(ours, [references[number] for number in chosen], tokenize="none")
            assert row.bleu.score == pytest.approx(direct["bleu"])
            assert row.chrf.score == pytest.approx(direct["chrf"])
            assert (row.bleu.confidence_interval is None) == (len(chosen) < 10)


def test_the_bucket_of_a_length():
    sources = ["x " * number for number in (0, 10, 11, 50, 51)]
    assert length_buckets(sources) == {"0-10": [0, 1], "11-20": [2], "41-50": [3], "51+": [4]}


@pytest.mark.parametrize("number", [1, 9])
def test_few_sentences_have_scores_but_neither_intervals_nor_p_values(texts, number, few_samples):
    # sacrebleu would call the difference of a single sentence significant.
    sources, references, systems = texts
    few = {name: translations[:number] for name, translations in systems.items()}
    found = compare_systems(few, sources[:number], references[:number])
    assert found.systems[1].differing_sentences == number
    for key in ("bleu", "chrf"):
        score = getattr(found.systems[1], key)
        direct = score_translations(few["better"], references[:number])[key]
        assert score.score == pytest.approx(direct)
        assert score.confidence_interval is None
        assert (score.p_bootstrap, score.p_randomization) == (None, None)
    assert found.notes == [
        f"better differs from the baseline in {number} of the translations, but a p-value needs at least 10 different translations.",
        f"Confidence intervals need 10 sentences, but there are {number}.",
    ]


@pytest.mark.parametrize(("mean", "half", "interval"), [(100.00001, 0.0, (100, 100)), (1, 2, (0, 3))])
def test_both_ends_of_an_interval_are_from_0_to_100(mean, half, interval):
    result = SimpleNamespace(mean=mean, ci=half, score=mean)
    assert comparison._scores({"model": result}, 10)["model"].confidence_interval == interval


def test_equal_translations_have_no_p_value_and_empty_ones_no_score(texts, few_samples):
    sources, references, systems = texts
    translations = {"one": systems["worse"], "other": systems["worse"], "empty": [""] * len(sources)}
    _, other, empty = compare_systems(translations, sources, references).systems
    assert other.bleu.confidence_interval is not None
    assert (other.bleu.p_bootstrap, other.bleu.p_randomization) == (None, None)
    assert empty.bleu.score == empty.chrf.score == 0


def test_the_tables_show_all_systems_and_scores(results):
    lines = comparison_as_text(results).split("\n")
    cells = {line.split()[0]: line.split() for line in lines[:4]}
    score = results.systems[1].bleu
    low, high = score.confidence_interval
    numbers = [f"{score.score:.2f}", f"{low:.2f}", "to", f"{high:.2f}"]
    p_values = [f"{score.p_bootstrap:.4f}", f"{score.p_randomization:.4f}"]
    assert cells["better"] == ["better", *numbers, *p_values]
    assert cells["worse"][:2] == ["worse", "(baseline)"] and len(cells["worse"]) == 6
    assert lines[3] == results.bleu_signature
    assert "tok:none" in lines[3]
    for signature in (results.bleu_signature, results.chrf_signature):
        assert "|bs:1000|ar:10000|seed:12345|" in signature
    first = results.lengths[0]
    scores = [f"{row.chrf.score:.2f}" for row in first.systems]
    table = lines[lines.index("chrF by number of source words") :]
    assert table[1].split() == ["words", "sentences", "worse", "better"]
    assert table[2].split() == [first.words, str(first.sentences), *scores]


def test_the_json_has_no_keys_for_missing_values():
    tested = Score(score=30.0, confidence_interval=None, p_bootstrap=0.25, p_randomization=None)
    row = SystemRow(system="one", bleu=tested, chrf=Score(score=0.5))
    signatures = {"bleu_signature": "tok:none", "chrf_signature": "case:mixed"}
    lengths = [LengthBucket(words="0-10", sentences=7, systems=[row])]
    found = Comparison(baseline="one", sentences=9, systems=[row], lengths=lengths, notes=[], **signatures)
    of_one = {"score": 30.0, "confidence_interval": None, "p_bootstrap": 0.25, "p_randomization": None}
    rows = [{"system": "one", "bleu": of_one, "chrf": {"score": 0.5}}]
    expected = {
        **{"baseline": "one", "sentences": 9, "systems": rows},
        **{"lengths": [{"words": "0-10", "sentences": 7, "systems": rows}], **signatures, "notes": []},
    }
    assert found.as_json() == expected
    found.comet_model = "user/comet"
    assert found.as_json() == {**expected, "comet_model": "user/comet"}
    with pytest.raises(ValidationError, match="p_bootstrp"):
        Score(score=30.0, p_bootstrp=0.05)


def test_progress_names_the_metric_and_ends_when_the_work_does(texts, few_samples, monkeypatch):
    sources, references, systems = texts
    # Show the progress bar as on a terminal, because elsewhere the bar is off and counts nothing.
    terminal, bars = io.StringIO(), []
    settings = {"disable": False, "file": terminal, "ncols": 100, "mininterval": 0}
    monkeypatch.setattr("tqdm.auto.tqdm", lambda **given: bars.append(tqdm(**given | settings)) or bars[-1])
    # Compare one system with p-values and one system without p-values.
    compare_systems({**systems, "same": systems["worse"]}, sources, references)
    assert bars[0].n == bars[0].total > 0
    assert "\rcomparing chrF: " in terminal.getvalue()


def test_a_picture_takes_any_name_and_is_the_same_twice(results):
    systems = [row.model_copy(update={"system": f"_$\\{row.system}$"}) for row in results.systems]
    renamed = results.model_copy(update={"systems": systems})
    picture = comparison_picture(renamed)
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000
    assert picture == comparison_picture(renamed)
    assert picture != comparison_picture(results)


def test_too_many_sentences_are_refused_before_memory_is_full():
    check_comparable(20_000)
    with pytest.raises(ValueError, match="^`--compare` accepts at most 20,000 sentences, .* has 20,001"):
        check_comparable(20_001)


@pytest.mark.parametrize("seed", ["0", "x"])
def test_a_seed_that_is_none_is_refused(seed, monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", seed)
    with pytest.raises(ValueError, match=f"^`SACREBLEU_SEED` must be .* or 'none', but is {seed!r}.$"):
        check_comparable(3)


def test_equal_scores_of_other_translations_are_no_difference(few_samples):
    references = [f"a b c d {number}" for number in range(30)]
    # Each system has an error in another sentence.
    systems = {name: [*references] for name in ("one", "two")}
    for number in range(15):
        systems["one"][2 * number] = f"a x y d {2 * number}"
        systems["two"][2 * number + 1] = f"a x y d {2 * number + 1}"
    rows = compare_systems(systems, references, references).systems
    one, two = (row.bleu for row in rows)
    assert rows[1].differing_sentences == 30
    assert one.score == pytest.approx(two.score)
    assert (two.p_bootstrap, two.p_randomization) == (1.0, 1.0)
