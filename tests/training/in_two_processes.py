"""Functions that tests call in two processes, which form a process group on this machine."""

import json
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import PartialState
from mortal_runs import forking_server, join_group

import vaswani_hf.data.toy_corpora
from vaswani_hf.recipe import load_recipe
from vaswani_hf.training.processes import Processes
from vaswani_hf.training.recipe_model import build_model
from vaswani_hf.training.trainer import VaswaniTrainer, training_arguments


def in_two_processes(function, folder: Path, *, backend: str) -> list:
    """The result of a function of this module in each of two processes."""
    context, store = forking_server(), dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    processes = [
        context.Process(target=_meet, args=(function, folder, backend, rank, store.port)) for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(500)
        process.kill()
    return [json.loads((folder / f"answer-{rank}").read_text()) for rank in range(2)]


def _meet(function, folder, backend, rank, port) -> None:
    torch.set_num_threads(1)
    join_group(backend, dist.TCPStore("localhost", port), rank, 2)
    (folder / f"answer-{rank}").write_text(json.dumps(function(rank, folder)))
    dist.destroy_process_group()


def validate(rank, folder) -> dict[str, float]:
    """The scores of an untrained model, by the recipe and tokenizers in the folder."""
    vaswani_hf.data.toy_corpora.NUMBERS_HELD_OUT = 20
    recipe = load_recipe(folder / "recipe.yaml", ["--validation_bleu", "true"])
    task = recipe.make_task()
    corpus = task.load_corpus(folder, new_tokenizers=False)
    arguments = training_arguments(recipe.training, str(folder), 1, validates=True)
    trainer = VaswaniTrainer(
        corpus,
        recipe.training,
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
