"""A second run on a corpus trains no tokenizer and hashes no pairs; memory is given back."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from datasets import Dataset

from vaswani_hf.data import corpus_cache, memory, tokenizer_training
from vaswani_hf.data.batching import PairRows
from vaswani_hf.data.corpus_cache import cached_digest, corpus_digest
from vaswani_hf.tasks.translation import TranslationData, TranslationTask, TranslationTokenizer

pytestmark = pytest.mark.usefixtures("own_cache")

TOKENIZER = TranslationTokenizer(vocab_size=263)


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    """A list that records the calls of the slow functions by name."""
    names = []

    def count(module, name):
        own = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *args, **kwargs: (names.append(name), own(*args, **kwargs))[1]
        )

    count(TranslationTask, "train_tokenizers")
    count(corpus_cache, "corpus_digest")
    return names


@pytest.fixture
def run(tmp_path):
    """A function that loads the corpus of a run as `train` does, into a folder of its own."""
    data = TranslationData(
        source_language="en",
        target_language="de",
        train_source=str(tmp_path / "a.en"),
        train_target=str(tmp_path / "a.de"),
    )
    for path in (data.train_source, data.train_target):
        Path(path).write_text("ab ab ab\nabc\n" * 40, encoding="utf-8")
    runs = iter(range(100))

    def load(tokenizer=TOKENIZER, folder=None, **changes):
        folder = folder or tmp_path / f"run{next(runs)}"
        folder.mkdir(exist_ok=True)
        changed = data.replace(**changes)
        return TranslationTask(changed, tokenizer).load_corpus(folder, new_tokenizers=True), folder

    return load


def test_tokenizers_and_digest_are_made_once_for_a_corpus(run, calls, tmp_path):
    first, folder = run()
    digest = first.digest
    assert calls == ["train_tokenizers", "corpus_digest"]
    second, other = run()
    assert second.digest == digest == corpus_digest(second.train)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        path.name: path.read_bytes() for path in other.iterdir()
    }
    # The tokenizer does not depend on the rate of BPE-dropout.
    run(TOKENIZER.replace(bpe_dropout=0.1))
    assert calls == ["train_tokenizers", "corpus_digest"]


@pytest.mark.parametrize(
    "change",
    [{"vocab_size": 262}, {"lowercase": True}, {"normalization": "NFC"}, {"shared_vocabulary": False}],
)
def test_another_tokenizer_is_trained(run, calls, change):
    run()
    corpus, _ = run(TOKENIZER.replace(**change))
    assert calls == ["train_tokenizers"] * 2
    assert (corpus.source_tokenizer is corpus.target_tokenizer) == change.get("shared_vocabulary", True)
    # The second run does not change the tokenizers of the first run.
    assert run()[0].source_tokenizer.get_vocab() == run()[0].target_tokenizer.get_vocab()


def test_other_pairs_have_another_tokenizer_and_digest(run, calls, tmp_path):
    digest = run()[0].digest
    (tmp_path / "a.en").write_text("ac ac ac\nacc\n" * 40, encoding="utf-8")
    corpus, _ = run()
    assert corpus.digest != digest
    assert calls == ["train_tokenizers", "corpus_digest"] * 2
    # The tokenizer is the same, but another `max_length` keeps other pairs.
    assert run(max_length=5)[0].digest == corpus_digest(run(max_length=5)[0].train)


def test_a_training_that_was_broken_off_leaves_nothing(run, monkeypatch, tmp_path):
    def fail(source, target, folder):
        (folder / "tokenizer.json").write_text("half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(tokenizer_training, "save_tokenizers", fail)
        with pytest.raises(OSError, match="could not be written: No space left on device"):
            run()
    assert not list(tmp_path.rglob("tokenizers-*"))
    assert len(run()[0].source_tokenizer) == 263


@pytest.mark.parametrize("fault", ["missing", "empty"])
def test_damaged_tokenizers_are_trained_again(run, calls, fault, tmp_path):
    _, folder = run()
    (kept,) = (tmp_path / "cache").rglob("tokenizer.json")
    kept.unlink() if fault == "missing" else kept.write_text("")
    for number in (2, 2):
        _, other = run()
        assert (other / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
        assert calls.count("train_tokenizers") == number


def test_folders_are_open_to_whom_they_were(run, tmp_path):
    for mode in (0o750, 0o755):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run").chmod(mode)
        run(folder=tmp_path / "run")
        assert (tmp_path / "run").stat().st_mode & 0o777 == mode
    (kept,) = (path for path in (tmp_path / "cache").rglob("tokenizers-*") if path.is_dir())
    (tmp_path / "new").mkdir()
    assert kept.stat().st_mode == (tmp_path / "new").stat().st_mode


@pytest.mark.parametrize("content", ["[1]", '{"count": 79, "sha256": "a"}', '{"count": 80'])
def test_a_damaged_digest_is_computed_again(run, calls, content, tmp_path):
    digest = run()[0].digest
    (kept,) = tmp_path.rglob("digest-*.json")
    kept.write_text(content)
    assert run()[0].digest == digest
    assert json.loads(kept.read_text()) == digest.as_json()
    assert calls == ["train_tokenizers", "corpus_digest", "corpus_digest"]


def test_pairs_in_memory_are_hashed_each_time(calls):
    pairs = Dataset.from_dict(
        {"input_ids": [[1]], "labels": [[2]], "source_length": [1], "target_length": [1]}
    )
    assert cached_digest(pairs) == cached_digest(pairs) == corpus_digest(pairs)
    assert calls == ["corpus_digest"] * 2


@pytest.mark.parametrize("count", [1, 2500, 10_000, 12_345])
def test_a_tokenizer_sees_evenly_spread_pairs(monkeypatch, count):
    monkeypatch.setattr(tokenizer_training, "TRAINING_PAIRS", 5000)
    pairs = Dataset.from_dict({"source": [str(row) for row in range(count)], "target": ["x"] * count})
    seen = [int(text) for text in tokenizer_training.training_texts(pairs, ("source",), max_length=8)]
    assert len(seen) == len(set(seen)) == min(count, 5000) if count != 12_345 else 4000 < len(seen) <= 5000
    assert max(np.diff([-1, *seen, count])) <= (1 if count <= 5000 else 2001)
    streamed = tokenizer_training.training_texts(pairs.to_iterable_dataset(), ("source",), max_length=8)
    assert [int(text) for text in streamed] == list(range(min(count, 5000)))


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="the kernel does not say what is resident")
def test_the_pages_of_a_mapped_file_are_given_back(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_MAX_MAPPED_BYTES", 2**23)
    path, size = tmp_path / "pairs.arrow", 4000
    ids = pyarrow.array([np.full(size, row, np.int32) for row in range(2000)], pyarrow.list_(pyarrow.int32()))
    table = pyarrow.table({"input_ids": ids, "source_length": np.full(2000, size)})
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    pairs = PairRows(Dataset.from_file(str(path)))

    def resident() -> int:
        """The bytes of the file, of 32 MB, that are in memory."""
        maps = Path("/proc/self/smaps").read_text().split(str(path))[1:]
        return sum(int(part.split("Rss:")[1].split()[0]) for part in maps) * 1024

    views, most = [], 0
    for start in range(0, 2000, 50):
        views += [pair["input_ids"] for pair in pairs.__getitems__(range(start, start + 50))]
        assert views[-1].sum() == (start + 49) * size
        most = max(most, resident())
    assert most < 2 * 2**23
    # The views still have the right values after the pages were dropped.
    assert [int(view[-1]) for view in views] == list(range(2000))
