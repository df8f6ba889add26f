"""The files of configuration/accelerate on CPUs: several processes compute the results of one process."""

import contextlib
import json
import os
import random
import socket
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import torch
from factories import write_recipe
from recording_worker import RECORD
from tiny_runs import metrics, results, weights

from vaswani_hf.data.toy_corpora import english_words, german_words

ROOT = Path(__file__).parents[2]
CONFIGURATION = ROOT / "configuration" / "accelerate"
TRAIN = str(ROOT / "scripts" / "train.py")
# Let accelerate shard on a CPU, too.
TRAIN_SHARDED = [str(Path(__file__).with_name("fsdp_worker.py")), "train"]
TRAIN_BY_ZERO = str(Path(__file__).with_name("zero_worker.py"))
RECORD_BATCHES = str(Path(__file__).with_name("recording_worker.py"))
NUM_PAIRS = 300
CHANGES = {
    "training.max_steps": 20,
    "training.source_tokens_per_batch": 1300,
    "training.target_tokens_per_batch": 1300,
    "training.gradient_accumulation_steps": 1,
    "training.warmup_steps": 4000,
    "training.logging_steps": 1,
    "training.eval_steps": 20,
    "training.save_steps": 10,
}
SIDES = {
    f"{split}_{side}": f"{split}.{end}"
    for split in ("train", "validation")
    for side, end in (("source", "en"), ("target", "de"))
}
DATA = {"source_language": "en", "target_language": "de", "max_length": 64} | SIDES


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a recipe and its corpus; the corpus contains no sentence twice."""
    folder = tmp_path_factory.mktemp("runs")
    numbers = random.Random(0).sample(range(10000), NUM_PAIRS + 10)
    for language, words in (("en", english_words), ("de", german_words)):
        lines = [words(number) + "\n" for number in numbers]
        (folder / f"train.{language}").write_text("".join(lines[:NUM_PAIRS]), encoding="utf-8")
        (folder / f"validation.{language}").write_text("".join(lines[NUM_PAIRS:]), encoding="utf-8")
    write_recipe(folder / "recipe.yaml", CHANGES, data=DATA)
    return folder


@pytest.fixture(scope="module")
def start(python, folder):
    """Start `python -m MODULE …` in the folder, as forks of an interpreter that has imported the package."""

    def start(*words, **environment: str) -> subprocess.Popen:
        own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RECORD_FOLDER": str(folder)}
        return subprocess.Popen(
            [python, *map(str, words)],
            cwd=folder,
            env=os.environ | own | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def end(process: subprocess.Popen) -> str:
    """Return the standard output of a process, and check that the process succeeds."""
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err[-9000:]
    return out


def launched(start, name: str, *words) -> subprocess.Popen:
    return start("-m", "accelerate.commands.launch", "--config_file", CONFIGURATION / f"{name}.yaml", *words)


def assert_same_run(one: Path, several: Path) -> None:
    """Compare losses, gradients, validations (bf16 differs by up to 4e-3) and weights, which must change."""
    for left, right in zip(metrics(one), metrics(several), strict=True):
        for name in ("step", "loss", "grad_norm", "target_tokens", "eval_loss"):
            assert left.get(name, 0) == pytest.approx(right.get(name, 0), rel=5e-3), name
    end, middle = weights(several), weights(one / "checkpoint-10")
    torch.testing.assert_close(end, weights(one), rtol=0, atol=1e-5)
    assert all((end[name] - middle[name]).abs().max() > 5e-5 for name in end)


def train_alone(start, output: str, *words) -> None:
    end(start(TRAIN, "recipe.yaml", f"--output_dir={output}", *words))


@pytest.mark.parametrize(
    ("name", "script", "precision"),
    [("ddp", [TRAIN], "false"), pytest.param("fsdp2", TRAIN_SHARDED, "true", marks=pytest.mark.slow)],
)
def test_two_processes_are_one_with_twice_the_accumulation(start, folder, name, script, precision):
    output, bf16 = f"{name}-{precision}", f"--bf16={precision}"
    train_alone(start, f"one-{precision}", bf16, "--gradient_accumulation_steps=2")
    end(launched(start, name, *script, "recipe.yaml", bf16, f"--output_dir={output}"))
    assert_same_run(folder / f"one-{precision}", folder / output)
    assert results(folder / output)["training"]["processes"] == 2
    assert (folder / output / "checkpoint-20" / "pytorch_model_fsdp.bin").exists() == (name == "fsdp2")


def free_port() -> int:
    """A port below 32768, because Linux gives larger numbers to programs that ask for any free port."""
    for port in random.SystemRandom().sample(range(20_000, 30_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("No port is free.")


@pytest.mark.slow
def test_two_nodes_meet(start, folder):
    """Start two launchers with one process each, as on two machines of a network."""
    train_alone(start, "one-node", "--max_steps=2", "--gradient_accumulation_steps=2")
    place = ("--num_processes", 2, "--main_process_ip", "127.0.0.1", "--main_process_port", free_port())
    words = (TRAIN, "recipe.yaml", "--output_dir=two-nodes", "--max_steps=2")
    nodes = [launched(start, "two_nodes", "--machine_rank", rank, *place, *words) for rank in range(2)]
    for node in nodes:
        end(node)
    one, two = weights(folder / "one-node"), weights(folder / "two-nodes")
    torch.testing.assert_close(two, one, rtol=0, atol=1e-6)
    assert results(folder / "two-nodes")["training"]["processes"] == 2


@pytest.mark.slow
def test_deepspeed_goes_on_and_is_one_process(start, folder):
    pytest.importorskip("deepspeed", reason="needs DeepSpeed: pip install '.[deepspeed]'")
    short = ("--save_steps=3", "--eval_steps=3", "--average_checkpoints=2", "--max_grad_norm=1")
    train_alone(start, "one-zero", "--gradient_accumulation_steps=4", *short, "--max_steps=6")
    arguments = (TRAIN_BY_ZERO, "recipe.yaml", "--output_dir=zero", "--gradient_accumulation_steps=2", *short)
    end(launched(start, "deepspeed_zero2", *arguments, "--max_steps=3"))
    end(launched(start, "deepspeed_zero2", *arguments, "--max_steps=6", "--resume=true"))
    for left, right in zip(metrics(folder / "one-zero"), metrics(folder / "zero"), strict=True):
        for name in ("step", "loss", "grad_norm", "target_tokens", "eval_loss"):
            assert left.get(name, 0) == pytest.approx(right.get(name, 0), rel=1e-4), name
    for place in (Path("checkpoint-6"), Path()):
        one, two = weights(folder / "one-zero" / place), weights(folder / "zero" / place)
        # DeepSpeed gives the trainer copies of tied weights; numbered checkpoints hold the copies too.
        assert one.keys() <= two.keys() and (one.keys() == two.keys() or place.name)
        torch.testing.assert_close({name: two[name] for name in one}, one, rtol=0, atol=1e-6)
    sentence = "was saved with DeepSpeed; resume it with DeepSpeed, not without it"
    with pytest.raises(AssertionError, match=sentence):
        train_alone(
            start, "zero", "--gradient_accumulation_steps=4", *short, "--max_steps=7", "--resume=true"
        )


def batches_by_step(folder: Path, processes: int) -> dict[int, list[list[tuple[int, ...]]]]:
    """Return the recorded batches in the order of the run: step by step, and in each step process by
    process.
    """
    files = [folder / RECORD.format(rank) for rank in range(processes)]
    taken = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    for file in files:
        file.unlink()
    steps: dict[int, list] = {}
    for turn in zip(*taken, strict=True):
        for step, batch in turn:
            steps.setdefault(step, []).append([tuple(ids) for ids in batch])
    return steps


@pytest.mark.parametrize("streaming", ["false", pytest.param("true", marks=pytest.mark.slow)])
def test_every_pair_is_seen_once_per_epoch_by_any_number_of_processes(start, folder, streaming):
    """A step has six batches with one, three, and then two processes, so an epoch can end inside a step."""

    def run(output, processes, *overrides):
        launcher = "-m torch.distributed.run --standalone --local-addr=127.0.0.1 --nproc_per_node".split()
        words = [
            *((*launcher, processes) if processes > 1 else ()),
            RECORD_BATCHES,
            "recipe.yaml",
            f"--streaming={streaming}",
        ]
        words += [f"--output_dir={output}-{streaming}", f"--gradient_accumulation_steps={6 // processes}"]
        words += "--source_tokens_per_batch=500 --target_tokens_per_batch=700".split()
        end(start(*words, "--eval_steps=100", "--save_steps=100", *overrides))
        return batches_by_step(folder, processes)

    alone = run("alone", 1, "--max_steps=8")
    parts = run("parts", 3, "--max_steps=3") | run("parts", 2, "--max_steps=8", "--resume=true")
    assert [len(batches) for batches in alone.values()] == [6] * 8
    assert parts == alone
    pairs = [pair for batches in alone.values() for batch in batches for pair in batch]
    epochs = [pairs[first : first + NUM_PAIRS] for first in range(0, len(pairs), NUM_PAIRS)]
    assert len(epochs) >= 3
    for epoch in epochs[:-1]:
        assert set(Counter(epoch).values()) == {1}
        assert len(epoch) == NUM_PAIRS
    assert epochs[0] != epochs[1]
