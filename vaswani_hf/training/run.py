"""One run, from a recipe to a scored checkpoint: `train` tells it from the beginning to the end.

An earlier run is found in resume.py, the optimisation is in trainer.py, and what a run says of itself in results.py.
"""

import dataclasses
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import EarlyStoppingCallback, GenerationConfig, PrinterCallback, set_seed
from transformers.integrations import get_available_reporting_integrations

from ..checkpoint.files import step_of
from ..checkpoint.hub import HubError
from ..checkpoint.tokenizers import save_tokenizers
from ..data.corpus import Corpus, load_corpus, pin_dataset
from ..model.configuration_vaswani import VaswaniConfig
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..publish.during_training import PushCheckpointsCallback, fetch_checkpoints
from ..publish.push import Destination, check_destination, push_checkpoint
from ..recipe import Recipe
from ..recipe.licenses import check_allowed
from ..recipe.schema import PublishingSection
from .averaging import load_final_weights
from .callbacks import CompleteCheckpointCallback, RunLogCallback, StopOnSignalCallback
from .results import read_results, record_licenses, record_recipe, write_results
from .resume import earlier_recipe, find_checkpoint, is_finished
from .sharding import whole_model
from .trainer import VaswaniTrainer, training_arguments


class InterruptedRunError(Exception):
    """A signal ended the training after a checkpoint was saved; the message says how to continue."""


def train(recipe: Recipe) -> dict[str, Any]:
    """Runs a recipe: data, tokenizer, model, training, checkpoint, scores on the test split.

    The same recipe gives the same weights on the same machine; a resumed run those of an uninterrupted one.

    Args:
        recipe (Recipe): The run.

    Returns:
        dict: The content of results.json.

    Raises:
        InterruptedRunError: If a signal ended the training early.
    """
    # transformers starts no process group without an accelerator unless `cpu` is given.
    state = PartialState(cpu=not torch.accelerator.is_available())
    folder, training, publishing = Path(recipe.output_dir), recipe.training, recipe.publishing
    with state.main_process_first():
        if state.is_main_process and training.resume and publishing.hub_model_id:
            fetch_checkpoints(folder, publishing.hub_model_id, training)
    earlier = earlier_recipe(folder) if training.resume else None
    recipe = _with_pinned_data(recipe, earlier)
    checkpoint = find_checkpoint(recipe, earlier)
    if is_finished(folder, training):
        if state.is_main_process:
            _publish_again(recipe, earlier)
        return read_results(folder)
    _check_reporters(training.report_to)
    if publishing.push_to_hub and state.is_main_process:
        # A user who may not push should know before the training, not after it.
        check_destination(Destination(publishing.hub_model_id or "", publishing.hub_private_repo))
    folder.mkdir(parents=True, exist_ok=True)
    with state.main_process_first():
        new_tokenizers = checkpoint is None and state.is_main_process
        corpus = load_corpus(recipe.data, recipe.tokenizer, recipe.seed, folder, new_tokenizers=new_tokenizers)
    if state.is_main_process:
        record_recipe(recipe, corpus.reports)
    model = build_model(recipe, corpus)
    arguments = training_arguments(training, recipe.output_dir, recipe.seed, validates=corpus.validation is not None)
    trainer = VaswaniTrainer(corpus, training, recipe.evaluation, checkpoint, model=model, args=arguments)
    add_callbacks(trainer, publishing)
    if checkpoint is None or step_of(checkpoint) < trainer.args.max_steps:
        run_training(trainer, checkpoint)
    state.wait_for_everyone()
    model = whole_model(trainer.accelerator.unwrap_model(trainer.model))
    if state.is_main_process:
        load_final_weights(trainer, model, checkpoint)
        save_model(model, corpus, folder)
        write_results(recipe, trainer)
    state.wait_for_everyone()
    if state.is_main_process:
        # A push may take longer than the other processes would wait, so they wait no more.
        push_result(recipe.output_dir, publishing)
    return read_results(folder)


def _with_pinned_data(recipe: Recipe, earlier: Recipe | None) -> Recipe:
    data = pin_dataset(recipe.data, earlier.data if earlier else None)
    # Pinning may have found the licence of the data.
    check_allowed(recipe.publishing.license, data.license)
    return dataclasses.replace(recipe, data=data)


def _publish_again(recipe: Recipe, recorded: Recipe | None) -> None:
    print(f"the run in '{Path(recipe.output_dir)}' is finished; nothing is left to do", flush=True)
    if recipe.publishing.push_to_hub and recorded is not None:
        record_licenses(recipe, recorded)
    push_result(recipe.output_dir, recipe.publishing)


def push_result(folder: str, publishing: PublishingSection) -> None:
    """Pushes a finished run, if its recipe says so.

    Args:
        folder (str): The output folder.
        publishing (PublishingSection): The repository.

    Raises:
        HubError: If that is not possible; the run is finished all the same.
    """
    if not publishing.push_to_hub:
        return
    repo_id, private = publishing.hub_model_id or "", publishing.hub_private_repo
    try:
        push_checkpoint(folder, repo_id, private=private)
    except HubError as error:
        again = f"vaswani push {shlex.quote(folder)} {repo_id}{' --private' if private else ''}"
        raise HubError(f"{error} The trained checkpoint is complete in '{folder}'; push it with `{again}`.") from error


def _check_reporters(report_to: list[str]) -> None:
    available = get_available_reporting_integrations()
    for name in report_to:
        if name not in available:
            raise ValueError(
                f"`training.report_to` must name what is installed ({', '.join(available) or 'nothing is'}), but has {name!r}."
            )


def build_model(recipe: Recipe, corpus: Corpus) -> VaswaniForSeq2SeqLM:
    """The untrained model of a run, with the search of its checkpoint; the seed of the run decides its weights.

    Args:
        recipe (Recipe): The run.
        corpus (Corpus): Its tokenizers decide the number of classes.

    Returns:
        VaswaniForSeq2SeqLM: On the CPU.
    """
    set_seed(recipe.seed)
    source, target = corpus.source_tokenizer, corpus.target_tokenizer
    config = VaswaniConfig(
        **recipe.model,
        vocab_size=len(source),
        decoder_vocab_size=len(target),
        share_encoder_decoder_embeddings=source is target,
        bos_token_id=target.bos_token_id,
        pad_token_id=target.pad_token_id,
        eos_token_id=target.eos_token_id,
        decoder_start_token_id=target.bos_token_id,
    )
    model = VaswaniForSeq2SeqLM(config)
    model.generation_config = GenerationConfig.from_model_config(config)
    # transformers leaves out fields that it does not know unless they are allowed.
    model.generation_config.update(allow_custom_entries=True, **recipe.decoding.settings())
    return model


def add_callbacks(trainer: VaswaniTrainer, publishing: PublishingSection) -> None:
    """Gives a trainer the callbacks of a run in place of its printer.

    Args:
        trainer (VaswaniTrainer): The trainer.
        publishing (PublishingSection): Pushing on the way.
    """
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(RunLogCallback(trainer))
    trainer.add_callback(CompleteCheckpointCallback(trainer))
    if publishing.push_to_hub and publishing.hub_strategy != "end":
        trainer.add_callback(PushCheckpointsCallback(trainer.args.output_dir, publishing))
    if trainer.training.early_stopping_patience is not None:
        trainer.add_callback(EarlyStoppingCallback(trainer.training.early_stopping_patience))


def run_training(trainer: VaswaniTrainer, checkpoint: Path | None) -> None:
    """Trains to the end, or to the first signal.

    Args:
        trainer (VaswaniTrainer): The trainer with its callbacks.
        checkpoint (Path, optional): The checkpoint that the run continues from.

    Raises:
        InterruptedRunError: If a signal ended the training early.
    """
    stop = StopOnSignalCallback()
    trainer.add_callback(stop)
    if trainer.is_world_process_zero():
        parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
        device = trainer.args.device.type
        print(f"{parameters:,} parameters, {trainer.args.max_steps:,} steps on {device}", flush=True)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if stop.received:
        raise InterruptedRunError(
            f"Interrupted after step {trainer.state.global_step}, which is saved in '{trainer.args.output_dir}'; continue "
            "with `--resume true`."
        )


def save_model(model: VaswaniForSeq2SeqLM, corpus: Corpus, folder: Path) -> None:
    """Writes model and tokenizers into a folder, file by file complete or not at all.

    Args:
        model (VaswaniForSeq2SeqLM): The model with its final weights.
        corpus (Corpus): Its tokenizers are saved too.
        folder (Path): The checkpoint's folder.
    """
    staging = folder / ".staging"
    shutil.rmtree(staging, ignore_errors=True)
    # The Trainer has switched it off.
    model.config.use_cache = True
    model.save_pretrained(staging)
    save_tokenizers(corpus.source_tokenizer, corpus.target_tokenizer, staging)
    for path in sorted(path for path in staging.rglob("*") if path.is_file()):
        target = folder / path.relative_to(staging)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)
    shutil.rmtree(staging)
