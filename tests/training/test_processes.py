"""Runs of several processes on one machine."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.state import AcceleratorState, GradientState
from tiny_runs import metrics, same, weights

from vaswani_hf.checkpoint.files import checkpoints_in
from vaswani_hf.data.corpus import load_corpus
from vaswani_hf.recipe import load_recipe
from vaswani_hf.training.processes import Processes
from vaswani_hf.training.run import build_model
from vaswani_hf.training.trainer import VaswaniTrainer, training_arguments

ROOT = Path(__file__).parents[2]


def _in_group(rank, function, folder, backend, seconds):
    """One of two processes, forked, whose default group has this backend and gives up after so many seconds."""
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ.update(place, MASTER_ADDR="localhost", MASTER_PORT="29500")
    dist.init_process_group(
        backend, f"file://{folder}/meeting", rank=rank, world_size=2, timeout=timedelta(seconds=seconds)
    )
    for state in (PartialState, AcceleratorState, GradientState):
        state._reset_state()
    (folder / f"answer-{rank}").write_text(json.dumps(function(rank)))
    dist.destroy_process_group()


def in_two_processes(function, folder, *, backend, seconds=60):
    """What a function gives in each of two processes."""
    torch.multiprocessing.start_processes(
        _in_group, (function, folder, backend, seconds), nprocs=2, start_method="fork"
    )
    return [json.loads((folder / f"answer-{rank}").read_text()) for rank in range(2)]


def test_validation_works_in_a_group_without_the_cpu(finished, tmp_path):
    recipe = load_recipe(finished / "recipe.yaml", ["--validation_bleu", "true"])

    def validate(rank):
        corpus = load_corpus(recipe.data, recipe.tokenizer, recipe.seed, finished, new_tokenizers=False)
        arguments = training_arguments(recipe.training, str(tmp_path), 1, validates=True)
        model = build_model(recipe, corpus)
        trainer = VaswaniTrainer(corpus, recipe.training, recipe.evaluation, model=model, args=arguments)
        assert trainer.args.world_size == 2
        return {name: value for name, value in trainer.evaluate().items() if name != "eval_seconds"}

    first, second = in_two_processes(validate, tmp_path, backend="cuda:gloo")
    assert first == second
    corpus = load_corpus(recipe.data, recipe.tokenizer, recipe.seed, finished, new_tokenizers=False)
    arguments = training_arguments(recipe.training, str(tmp_path), 1, validates=True)
    model = build_model(recipe, corpus)
    alone = VaswaniTrainer(corpus, recipe.training, recipe.evaluation, model=model, args=arguments).evaluate()
    assert first == pytest.approx({name: alone[name] for name in first}, rel=1e-5)


def test_the_others_wait_for_the_first_process_as_long_as_it_takes(tmp_path):
    def prepare(rank):
        def slowly():
            # Longer than the default group waits.
            time.sleep(4)
            (tmp_path / "corpus").write_text("prepared")
            return rank

        processes = Processes()
        return [
            processes.by_first(slowly),
            processes.first_alone(lambda: (tmp_path / "corpus").read_text() + str(rank)),
        ]

    assert in_two_processes(prepare, tmp_path, backend="gloo", seconds=2) == [[0, "prepared0"], [0, "prepared1"]]


def test_where_the_first_process_fails_the_others_end_and_say_nothing(tmp_path, capfd):
    def fail(rank):
        def refuse():
            raise ValueError("The corpus is empty.")

        try:
            Processes().by_first(refuse)
        except ValueError as error:
            return str(error)
        except SystemExit as end:
            return end.code

    assert in_two_processes(fail, tmp_path, backend="gloo") == ["The corpus is empty.", 1]


def test_where_any_process_fails_all_end(tmp_path):
    def fail_in_second(rank):
        def write():
            if rank == 1:
                raise OSError("No space left on device")

        try:
            Processes().together(write)
        except OSError as error:
            return str(error)
        except SystemExit as end:
            return end.code

    assert in_two_processes(fail_in_second, tmp_path, backend="gloo") == [1, "No space left on device"]


STOPPED = """
import os, signal, sys
from vaswani_hf.cli import main
from vaswani_hf.training.trainer import VaswaniTrainer
import vaswani_hf.data.corpus

vaswani_hf.data.corpus.NUMBERS_HELD_OUT = 20
step = VaswaniTrainer.training_step

def interrupted(self, *args, **kwargs):
    if self.state.global_step == 4 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGTERM)
    return step(self, *args, **kwargs)

VaswaniTrainer.training_step = interrupted
sys.exit(main(["train", *sys.argv[1:]]))
"""


def test_a_signal_to_one_process_stops_all_and_one_process_goes_on(run, tmp_path):
    """Two batches a step are two processes, or two in turn in one; what was left is trained on, and counted, alike."""
    exact = ("--model.dropout", "0", "--label_smoothing", "0")
    whole = run("whole", *exact)
    (tmp_path / "stopped.py").write_text(STOPPED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += [str(tmp_path / "stopped.py"), str(run.recipe), f"--output_dir={tmp_path / 'part'}", *exact]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    outcome = subprocess.run(
        [*command, "--gradient_accumulation_steps", "1"], env=environment, capture_output=True, text=True, timeout=300
    )
    assert [path.name for path in checkpoints_in(tmp_path / "part")] == ["checkpoint-4", "checkpoint-5"]
    assert outcome.stderr.count("Interrupted after step 5, which is saved in") == 1
    assert json.loads((tmp_path / "part" / "checkpoint-5" / "manifest.json").read_text())["processes"] == 2
    with pytest.raises(ValueError, match="is 1 in 1 process, which makes 1 batches per step, .* has 2; set it to 2."):
        run("part", *exact, "--gradient_accumulation_steps", "1", "--resume", "true")
    part = run("part", *exact, "--resume", "true")
    counts = [{row["step"]: row["target_tokens"] for row in metrics(folder)} for folder in (whole, part)]
    assert counts[0].items() <= counts[1].items()
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(weights(part)[name], tensor, rtol=1e-4, atol=1e-5)
    assert not same(weights(whole), weights(whole / "checkpoint-4"))
    assert re.search(r"SIGTERM", outcome.stdout) is None
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
