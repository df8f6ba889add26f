"""The changes of `data.augment` and of `vaswani evaluate --robustness`."""

import pickle
from random import Random

import pytest

from vaswani_hf.data.batching import PairCollator, TokenizerEncoder
from vaswani_hf.data.perturbations import PERTURBATIONS, PLACEHOLDER, Augmenter
from vaswani_hf.evaluation.robustness import perturbed_test_sets
from vaswani_hf.settings.data import Augmentation

SOURCE = "My friend Maria reads don't books, and Peter sleeps until 10."
TARGET = "Meine Freundin Maria liest Bücher, und Peter schläft bis 10."


def test_each_rate_has_a_perturbation():
    assert set(PERTURBATIONS) == set(Augmentation.model_fields)


def test_case_changes_both_sides():
    rng = Random(1)
    assert PERTURBATIONS["upper_case"](SOURCE, TARGET, rng) == (SOURCE.upper(), TARGET.upper())
    source, target = PERTURBATIONS["title_case"](SOURCE, "„gut“ so", rng)
    assert source == "My Friend Maria Reads Don't Books, And Peter Sleeps Until 10."
    assert target == "„Gut“ So"


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        (("Stop!", "Halt!"), ("Stop", "Halt")),
        (("Why ...?", "Wieso?"), ("Why", "Wieso")),
        (("Stop!", "Halt"), ("Stop!", "Halt")),
        (("...", "..."), ("...", "...")),
    ],
)
def test_final_punctuation_is_removed_from_both_sides_or_from_none(pair, expected):
    assert PERTURBATIONS["final_punctuation"](*pair, Random(1)) == expected


def test_a_typo_changes_one_long_word_of_the_source():
    seen = set()
    for seed in range(2000):
        source, target = PERTURBATIONS["typos"](SOURCE, TARGET, Random(seed))
        assert target == TARGET
        pairs = zip(SOURCE.split(), source.split(), strict=True)
        changed = [(old, new) for old, new in pairs if old != new]
        # Some typos leave the word as it is, for example the exchange of two equal letters.
        assert len(changed) <= 1
        for old, new in changed:
            assert len(old) >= 4
            assert new[0] == old[0]
            assert abs(len(new) - len(old)) <= 1
        seen |= {*changed}
    assert {("friend", "freind"), ("friend", "frend"), ("friend", "friiend")} <= seen


def test_spaces_change_nothing_else():
    changed = {PERTURBATIONS["spaces"](SOURCE, TARGET, Random(seed)) for seed in range(300)}
    assert {target for _, target in changed} == {TARGET}
    sources = {source for source, _ in changed}
    assert SOURCE not in sources
    assert {source.replace(" ", "") for source in sources} == {SOURCE.replace(" ", "")}
    for part in ("Myfriend", "My  friend", "fr iend", "until 10 ."):
        assert any(part in source for source in sources), part


def test_a_placeholder_replaces_a_word_of_both_sides():
    forms = set()
    for seed in range(100):
        source, target = PERTURBATIONS["placeholders"](SOURCE, TARGET, Random(seed))
        (placeholder,) = PLACEHOLDER.findall(source)
        assert PLACEHOLDER.findall(target) == [placeholder]
        places = [("Maria", "Maria"), ("Peter", "Peter"), ("10", "10")]
        possible = [(SOURCE.replace(a, placeholder), TARGET.replace(b, placeholder)) for a, b in places]
        assert (source, target) in possible
        forms.add(placeholder[:2])
    assert len(forms) > 5
    source, target = PERTURBATIONS["placeholders"]("I was here.", "Ich was hier.", Random(1))
    assert source.endswith(" I was here.")
    assert target.removesuffix(" Ich was hier.") == source.removesuffix(" I was here.")


@pytest.mark.parametrize("text", ["", "a", "日本語。", ">", "?", "\u00df", "{x}"])
@pytest.mark.parametrize("name", PERTURBATIONS)
def test_a_short_text_stays_a_text(name, text):
    source, target = PERTURBATIONS[name](text, text, Random(1))
    assert bool(source) == bool(text) or name == "placeholders"
    assert bool(target) == bool(source)


def test_a_rate_is_the_share_of_changed_pairs_and_a_tag_is_kept():
    augment = Augmenter(Augmentation(upper_case=0.3))
    source = f">>en<< {TARGET}"
    results = [augment(source, SOURCE, Random(seed)) for seed in range(1000)]
    changed = (f">>en<< {TARGET.upper()}", SOURCE.upper())
    assert {*results} == {(source, SOURCE), changed}
    assert 250 < results.count(changed) < 350


def test_the_changed_test_sets_keep_the_tag():
    test_sets = perturbed_test_sets([f">>en<< {TARGET}", SOURCE], [SOURCE, TARGET])
    plain = perturbed_test_sets([TARGET, SOURCE], [SOURCE, TARGET])
    for name, (sources, references) in test_sets.items():
        assert sources == [f">>en<< {plain[name].sources[0]}", plain[name].sources[1]]
        assert references == plain[name].references


def test_the_training_pairs_depend_on_seed_epoch_and_pair_only(short_pairs):
    pairs, tokenizer = short_pairs
    augment = Augmenter(Augmentation(**dict.fromkeys(Augmentation.model_fields, 0.5)))
    encoders = (TokenizerEncoder(tokenizer), TokenizerEncoder(tokenizer))

    def encoded(seed: int, epoch: int, numbers=range(20)) -> list[tuple]:
        collator = PairCollator(tokenizer.pad_token_id, encoders=encoders, augment=augment, seed=seed)
        # A worker of a `DataLoader` has a copy.
        collator = pickle.loads(pickle.dumps(collator))
        batches = [collator([{**pairs[number], "epoch": epoch}]) for number in numbers]
        return [(batch["input_ids"].tolist(), batch["labels"].tolist()) for batch in batches]

    first = encoded(1, 0)
    assert encoded(1, 0, range(19, -1, -1)) == first[::-1]
    assert encoded(1, 1) != first != encoded(2, 0)


def test_without_changes_the_encoder_gives_the_ids_of_the_corpus(short_pairs):
    pairs, tokenizer = short_pairs
    encoder = TokenizerEncoder(tokenizer)
    for pair in pairs:
        assert encoder.encode(pair["source"], Random(1)) == pair["input_ids"]
        assert encoder.encode(pair["target"], Random(1)) == pair["labels"]
