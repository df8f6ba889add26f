"""Runs of several processes on one machine."""

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.state import AcceleratorState, GradientState

from vaswani_hf.data.corpus import load_corpus
from vaswani_hf.recipe import load_recipe
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
        torch.manual_seed(1)
        model = build_model(recipe.model, recipe.decoding, corpus)
        trainer = VaswaniTrainer(corpus, recipe.training, recipe.evaluation, model=model, args=arguments)
        assert trainer.args.world_size == 2
        return {name: value for name, value in trainer.evaluate().items() if name != "eval_seconds"}

    first, second = in_two_processes(validate, tmp_path, backend="cuda:gloo")
    assert first == second
    corpus = load_corpus(recipe.data, recipe.tokenizer, recipe.seed, finished, new_tokenizers=False)
    arguments = training_arguments(recipe.training, str(tmp_path), 1, validates=True)
    torch.manual_seed(1)
    model = build_model(recipe.model, recipe.decoding, corpus)
    alone = VaswaniTrainer(corpus, recipe.training, recipe.evaluation, model=model, args=arguments).evaluate()
    assert first == pytest.approx({name: alone[name] for name in first}, rel=1e-5)
