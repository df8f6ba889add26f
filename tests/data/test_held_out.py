"""`data.validation_size` and `data.test_size`: the splits are fixed, and the training has none of their
pairs.
"""

import json

import pytest
from datasets import Dataset

from vaswani_hf.data.held_out import hold_out
from vaswani_hf.tasks.language_modeling import TextData
from vaswani_hf.tasks.translation import TranslationData, TranslationTask, TranslationTokenizer

PAIRS = [(f"source {number}", f"target {number}") for number in range(40)]
SIZES = {"validation": 6, "test": 4}
LANGUAGES = {"source_language": "en", "target_language": "de"}


def dataset_of(pairs):
    return Dataset.from_list([{"source": source, "target": target} for source, target in pairs])


def texts_of(pairs):
    return list(zip(pairs["source"], pairs["target"], strict=True))


def test_the_held_out_pairs_depend_on_the_texts_and_not_on_their_order():
    here = hold_out(dataset_of(PAIRS), SIZES)
    there = hold_out(dataset_of(PAIRS[::-1]), SIZES)
    assert all(set(texts_of(here[name])) == set(texts_of(there[name])) for name in here)


def test_duplicates_of_held_out_pairs_leave_the_training():
    copies = [(f" {source}", f"{target}  ") for source, target in PAIRS]
    splits = hold_out(dataset_of([*PAIRS, *copies]), SIZES)
    held_out = {*texts_of(splits["validation"]), *texts_of(splits["test"])}
    assert len(held_out) == 10
    train = [(source.strip(), target.strip()) for source, target in texts_of(splits["train"])]
    assert len(train) == 60
    assert not held_out & {*train}


def test_pairs_with_an_empty_side_are_not_held_out():
    empty = [("", "target"), ("source", " "), ("", "")] * 20
    splits = hold_out(dataset_of([*empty, *PAIRS]), SIZES)
    assert {*texts_of(splits["validation"]), *texts_of(splits["test"])} <= {*PAIRS}
    assert len(splits["train"]) == 90


def test_held_out_pairs_must_leave_training_pairs():
    with pytest.raises(ValueError, match="must leave pairs for the training.* has only 10 different pairs"):
        hold_out(dataset_of(PAIRS[:10] * 3), SIZES)


@pytest.fixture
def written(tmp_path):
    """The pairs as two files of lines, as JSON lines, and as a folder that `datasets` loads."""
    for side, column in (("en", 0), ("de", 1)):
        (tmp_path / f"train.{side}").write_text("".join(f"{pair[column]}\n" for pair in PAIRS))
    rows = [{"en": source, "de": target} for source, target in PAIRS]
    (tmp_path / "dataset").mkdir()
    for name in ("train.jsonl", "dataset/train.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.parametrize("form", ["files", "weights", "pairs", "dataset"])
def test_every_form_of_training_data_has_the_same_splits(written, form):
    source, target = str(written / "train.en"), str(written / "train.de")
    keys = {
        "files": {"train_source": source, "train_target": target},
        "weights": {"train_source": [source], "train_target": [target], "train_weights": [1]},
        "pairs": {"train_pairs": str(written / "train.jsonl")},
        "dataset": {"dataset": str(written / "dataset"), "validation_split": None, "test_split": None},
    }[form]
    data = TranslationData(**LANGUAGES, validation_size=6, test_size=4, num_proc=1, **keys)
    assert data.has_validation
    tokenizer = TranslationTokenizer(vocab_size=300)
    found = TranslationTask(data, tokenizer).load_corpus(written, new_tokenizers=True)
    expected = hold_out(dataset_of(PAIRS), SIZES)
    for split in ("train", "validation", "test"):
        assert texts_of(found.texts[split]) == texts_of(expected[split])
    assert len(found.train) == 30
    assert len(found.validation) == 6


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"corpus": "numbers"}, "`data.corpus: numbers`.* leave `data.validation_size` out"),
        ({"train_text": "a", "validation_text": "b"}, "`data.validation_text` cannot be given together"),
        ({"train_text": "a", "streaming": True}, "cannot be given with `data.streaming: true`"),
        ({"dataset": "user/name"}, "set `data.validation_split: null`"),
    ],
)
def test_a_second_source_of_the_split_is_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        TextData(language="en", validation_size=5, **keys)
