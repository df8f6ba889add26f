"""Functions that tests call in two processes, which form a process group on this machine."""

import json
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from accelerate import PartialState

import vaswani_hf.data.toy_corpora
from vaswani_hf.recipe import load_recipe
from vaswani_hf.tasks import TASKS
from vaswani_hf.training.processes import Processes
from vaswani_hf.training.recipe_model import build_model
from vaswani_hf.training.trainer import VaswaniTrainer, training_arguments


def in_two_processes(python: str, function, folder: Path, *, backend: str) -> list:
    """The result of a function of this module in each of two processes."""
    words = [function.__name__, str(folder), backend]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    processes = [
        subprocess.Popen([python, __file__, *words, str(rank)], env=environment) for rank in range(2)
    ]
    try:
        for process in processes:
            process.wait(500)
    finally:
        for process in processes:
            process.kill()
    return [json.loads((folder / f"answer-{rank}").read_text()) for rank in range(2)]


def meet(name: str, folder: Path, backend: str, rank: int) -> None:
    """Calls a function of this module in one of two processes, and writes its answer into the folder."""
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ.update(place, MASTER_ADDR="localhost", MASTER_PORT="29500")
    _wait_for_both(folder, rank)
    timeout = timedelta(minutes=5)
    dist.init_process_group(backend, f"file://{folder}/meeting", rank=rank, world_size=2, timeout=timeout)
    (folder / f"answer-{rank}").write_text(json.dumps(globals()[name](rank, folder)))
    dist.destroy_process_group()


def _wait_for_both(folder: Path, rank: int) -> None:
    """Wait until both processes have started, because one may start seconds later."""
    (folder / f"started-{rank}").touch()
    for _ in range(3000):
        if all((folder / f"started-{other}").exists() for other in range(2)):
            return
        time.sleep(0.1)
    raise TimeoutError("The other process has not started within five minutes.")


def validate(rank, folder) -> dict[str, float]:
    """The scores of an untrained model, by the recipe and tokenizers in the folder."""
    vaswani_hf.data.toy_corpora.NUMBERS_HELD_OUT = 20
    recipe = load_recipe(folder / "recipe.yaml", ["--validation_bleu", "true"])
    task = TASKS[recipe.task]
    corpus = task.load_corpus(recipe.data, recipe.tokenizer, recipe.seed, folder, new_tokenizers=False)
    arguments = training_arguments(recipe.training, str(folder), 1, validates=True)
    trainer = VaswaniTrainer(
        corpus,
        recipe.training,
        recipe.evaluation,
        task=task,
        model=build_model(recipe.model, task.model_class, corpus, recipe.decoding.settings(), recipe.seed),
        args=arguments,
    )
    assert trainer.args.world_size == PartialState().num_processes
    return {name: value for name, value in trainer.evaluate().items() if name != "eval_seconds"}


def wait_for_the_first(rank, folder) -> list:
    """Return the rank that worked longer than the timeout of the default group, and the result of the
    work.
    """

    def slowly():
        time.sleep(2)
        (folder / "corpus").write_text("prepared")
        return rank

    processes = Processes()
    # The processes have met. A shorter timeout would apply to their meeting, too.
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1))
    return [
        processes.run_on_main(slowly),
        processes.main_process_first(lambda: (folder / "corpus").read_text() + str(rank)),
    ]


def fail_in_first(rank, folder) -> str | int:
    """Return the message of the error, or the exit code."""

    def refuse():
        raise ValueError("The corpus is empty.")

    return _end_of(lambda: Processes().run_on_main(refuse))


def fail_in_second(rank, folder) -> str | int:
    """Return the message of the error, or the exit code."""

    def write():
        if rank == 1:
            raise OSError("No space left on device")

    return _end_of(lambda: Processes().run_all_or_exit(write))


def _end_of(work) -> str | int:
    try:
        work()
    except (ValueError, OSError) as error:
        return str(error)
    except SystemExit as end:
        return end.code
    return "no end"


if __name__ == "__main__":
    meet(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
