"""The benchmark of a large corpus: pairs by rules, the memory of a process with its children, and the table of a run."""

import os
import subprocess
import sys

import pytest


def test_it_generates_pairs_once(script, tmp_path, monkeypatch):
    benchmark = script("corpus")
    monkeypatch.setattr(benchmark, "NUM_WORDS", 5000)
    monkeypatch.setattr(benchmark, "GENERATED_AT_ONCE", 300)
    for _ in range(2):
        benchmark.generate(tmp_path, "train", 1000, seed=1)
        sources, targets = (
            (tmp_path / f"train.{side}").read_text().splitlines() for side in ("source", "target")
        )
        assert len(sources) == len(targets) == len(set(sources)) == 1000
        monkeypatch.setattr(benchmark, "words_of_language", pytest.fail)
    assert 20 < sum(len(line.split()) for line in sources) / 1000 < 30
    words = [word for line in sources for word in line.split()]
    # Zipf: the most frequent word is a tenth of the text, and most words are rare.
    assert 0.05 < max(map(words.count, set(words[:100]))) / len(words) < 0.2
    assert len(set(words)) > 2000


@pytest.mark.skipif(
    not os.path.exists("/proc/self/smaps_rollup"), reason="the kernel does not say what is resident"
)
def test_children_count_as_memory(script):
    resident = script("corpus").resident
    alone = resident(os.getpid())
    assert all(alone[:2] > 10_000)
    # All resident pages of a process are at least its share of them.
    assert alone[0] >= alone[1] >= alone[2]
    code = "held = bytearray(b'x' * 2**26); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        more = resident(os.getpid()) - alone
        child.communicate(b"\n")
    assert all(more > 2**16)


def test_the_table_of_a_run(script):
    spans = [
        ("imports", 1, 8),
        ("tokenise", 10, 12),
        ("tokenise", 14, 15),
        ("batch", 16, 17),
        ("step", 17, 18),
    ]
    spans += [("batch", 18, 18.1), ("step", 18.1, 20)]
    phases = [{"phase": name, "start": start, "end": end} for name, start, end in spans]
    samples = [(time, time * 2**20, 2**20, 2**19) for time in range(21)]
    assert script("corpus").table("first", phases, samples, 0.5) == [
        "| first | imports | 7.0 | 8.00 | 1.00 | 0.50 |",
        "| first | tokenise | 3.0 | 15.00 | 1.00 | 0.50 |",
        "| first | first batch | 1.0 | 17.00 | 1.00 | 0.50 |",
        "| first | 2 steps | 3.0 | 20.00 | 1.00 | 0.50 |",
        "| first | start to the end of the first step | 17.5 | 18.00 | 1.00 | 0.50 |",
        "| first | of which after the imports | 10.0 | 18.00 | 1.00 | 0.50 |",
        "| first | whole run | 19.5 | 20.00 | 1.00 | 0.50 |",
    ]
