"""One run, from a recipe to a scored checkpoint. `train` has all steps in their order.

Outside recipe/ and the commands only this module receives the whole recipe; the functions of other modules receive
the sections that they need. resume.py finds an earlier run, trainer.py optimises, and results.py writes the results.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from transformers import GenerationConfig, PreTrainedModel, PrinterCallback, TrainerState, set_seed
from transformers.integrations import get_available_reporting_integrations

from ..checkpoint.files import (
    MANIFEST_FILE,
    RECIPE_FILE,
    RESULTS_FILE,
    STATE_FILE,
    WEIGHTS_FILE,
    checkpoints_in,
    naming_the_folder,
    step_of,
    write_whole,
)
from ..checkpoint.hub import HubError
from ..checkpoint.locks import locked_run
from ..checkpoint.manifest import metadata_of, verify_manifest
from ..data.columns import keep_free_memory
from ..data.corpus import Corpus
from ..model.configuration_vaswani import VaswaniConfig
from ..optimization.section import AnyTraining
from ..publish.during_training import PushCheckpointsCallback, fetch_checkpoints
from ..publish.push import Destination, check_destination, push
from ..recipe import Recipe, load_recipe
from ..recipe.published import published_recipe
from ..recipe.recipe import check_warmup
from ..settings.sections import PublishingSettings
from ..tasks import TASKS
from .averaging import average_checkpoints
from .callbacks import EarlyStoppingCallback, NothingLeftError, RunLogCallback, StopCallback
from .checkpoints import (
    STAGING_FOLDER,
    final_checkpoints,
    final_weights_file,
    naming_a_vanished_folder,
    number_of,
    put_back_replaced,
    refuse_vanished,
    rotate_checkpoints,
)
from .finished import (
    FINAL_STAGING_FOLDER,
    fault_of_end,
    mend_run,
    put_in_place,
    recorded_end,
    restore_records,
    stage_model,
    write_end,
)
from .hardware import described, resolve_defaults
from .initialization import (
    begin_with_bases,
    continues,
    find_bases,
    frozen_weights,
    with_kept_tokenizers,
    with_recorded_shape,
    with_shape_of,
    write_kept_tokenizers,
)
from .planned_model import planned_config, planned_model
from .processes import Processes, say
from .results import (
    asked_of,
    facts_of_this_end,
    read_results,
    record_recipe,
    results_of_run,
    score_test_split,
)
from .resume import (
    check_earlier_run,
    find_checkpoint,
    is_finished,
    refuse_fewer_steps,
    refuse_other_data,
    stopped_early,
)
from .stopping import INTERRUPTED, GracefulShutdown, ShutdownRequested
from .trainer import DivergedRunError, VaswaniTrainer, training_arguments

# What gloo and NCCL say of a process that is no more there.
_LOST_PROCESS = "[Cc]onnection (closed|reset) by peer|third_party/gloo|NCCL"


class LostProcessError(Exception):
    """Another process of the run is no more there."""


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
        InterruptedRunError: If a signal ended the run early.
        InUseError: If another run is at work in the output folder.
    """
    # Normalise first: `a/../b` changes its meaning once `a` exists.
    recipe = recipe.replace(output_dir=os.path.normpath(recipe.output_dir))
    folder = Path(recipe.output_dir)
    processes, stop = Processes(), GracefulShutdown()
    try:
        with (
            stop.listening(processes),
            stop.ending_at_once(lambda: _interruption(folder)),
            _naming_lost(folder, stop),
            _locked(folder, processes),
        ):
            return _train(recipe, processes, stop)
    except ShutdownRequested:
        if not processes.is_first:
            sys.exit(INTERRUPTED)
        raise InterruptedRunError(_interruption(folder)) from None


@contextlib.contextmanager
def _locked(folder: Path, processes: Processes) -> Iterator[None]:
    """Keeps other runs out of the output folder. The first process holds the lock for all processes of the run."""
    with contextlib.ExitStack() as stack:

        def lock() -> None:
            with naming_the_folder(folder):
                stack.enter_context(locked_run(folder))

        processes.run_on_main(lock)
        yield


@contextlib.contextmanager
def _naming_lost(folder: Path, stop: GracefulShutdown) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not re.search(_LOST_PROCESS, str(error)):
            raise
        if stop.received:
            # Another process was the first to end.
            raise ShutdownRequested from error
        raise LostProcessError(
            f"Another process of the run in '{folder}' has ended, and this one with it; look why, and continue with "
            "`--resume true`."
        ) from error


def _interruption(folder: Path) -> str:
    newest = checkpoints_in(folder)[-1:]
    place = f"and its newest checkpoint is '{newest[0]}'" if newest else "before its first checkpoint"
    return f"The run was interrupted, {place}; continue with `--resume true`."


def _train(recipe: Recipe, processes: Processes, stop: GracefulShutdown) -> dict[str, Any]:
    folder, training, publishing = Path(recipe.output_dir), recipe.training, recipe.publishing
    if training.resume and publishing.hub_model_id:
        repo_id = publishing.hub_model_id
        processes.run_on_main(lambda: fetch_checkpoints(folder, repo_id, training))
    earlier = processes.run_on_main(lambda: _earlier_recipe(folder) if training.resume else None)
    recipe = processes.run_on_main(lambda: resolve(recipe, earlier))
    training = recipe.training
    processes.run_on_main(lambda: refuse_another_run(recipe, earlier))
    finished = processes.run_on_main(lambda: has_ended(recipe, earlier))
    fault = processes.run_on_main(lambda: fault_of_end(folder) if finished else "")
    if finished and not fault:
        processes.run_on_main(lambda: _refuse_other_data(recipe))
        if processes.is_first:
            _publish_again(recipe, earlier)
        return read_results(folder)
    _warn(processes.run_on_main(recipe.check_training), processes)
    if fault and processes.is_first:
        say(f"the run in '{folder}' is finished, but {fault}; that is made again from the checkpoints")
    # Refuse names of parts that the model will not have, before anything is read.
    frozen_weights(_planned_model(recipe), training.frozen)
    checkpoint = processes.run_on_main(lambda: _newest_checkpoint(folder, training, processes.count))
    processes.run_on_main(lambda: _prepare_folder(recipe))
    corpus = processes.main_process_first(lambda: _load_corpus(recipe, processes, checkpoint))
    model = build_model(recipe, corpus)
    if checkpoint is None:
        begun = processes.main_process_first(lambda: _begin(model, recipe, corpus))
        if begun and processes.is_first:
            say(begun)
    for weight in frozen_weights(model, training.frozen):
        weight.requires_grad_(False)
    arguments = training_arguments(
        training, recipe.output_dir, recipe.seed, validates=corpus.validation is not None
    )
    task = TASKS[recipe.task]
    trainer = VaswaniTrainer(
        corpus, training, recipe.evaluation, checkpoint, processes, task=task, model=model, args=arguments
    )
    trainer.stop = stop
    if training.max_steps is None:
        # Epochs are turned into steps after the corpus was read.
        _warn(check_warmup(training, trainer.args.max_steps), processes)
    add_callbacks(trainer, publishing)
    processes.run_on_main(lambda: _record_beginning(recipe, trainer, checkpoint, is_mended=finished))
    if not _is_trained(checkpoint, trainer):
        run_training(trainer, checkpoint)
    processes.run_on_main(lambda: finish_run(recipe, trainer))
    if processes.is_first:
        # The other processes need not wait for a push.
        push_result(recipe.output_dir, publishing)
    return read_results(folder)


def _warn(sentences: list[str], processes: Processes) -> None:
    if processes.is_first:
        for sentence in sentences:
            say(f"warning: {sentence}")


def _is_trained(checkpoint: Path | None, trainer: VaswaniTrainer) -> bool:
    if checkpoint is None or not metadata_of(checkpoint).get("validated", True):
        return False
    return step_of(checkpoint) >= trainer.args.max_steps or stopped_early(checkpoint, trainer.training)


def _earlier_recipe(folder: Path) -> Recipe | None:
    with naming_the_folder(folder):
        restore_records(folder)
    return earlier_recipe(folder)


def earlier_recipe(folder: Path) -> Recipe | None:
    """The recipe that an earlier run has recorded in its output folder; None if there is none."""
    path = folder / RECIPE_FILE
    return load_recipe(path, is_record=True) if path.is_file() else None


def resolve(recipe: Recipe, earlier: Recipe | None) -> Recipe:
    """A recipe with the facts of its data, the model that it begins with, and the decisions for this machine.

    `earlier` is the recipe that the run to be resumed has recorded, which has these facts already.
    """
    # The card of a dataset on the Hub may state a licence.
    recipe = recipe.replace(data=TASKS[recipe.task].pin_data(recipe.data, earlier.data if earlier else None))
    model = recipe.model
    tokenizer = recipe.tokenizer
    same = earlier if earlier is not None and earlier.task == recipe.task else None
    if same is not None and continues(Path(recipe.output_dir), model, same.model):
        model = with_recorded_shape(model, same.model)
        if tokenizer.keep:
            tokenizer = recipe.tokenizer.kept(same.tokenizer)
    elif bases := find_bases(model):
        model = with_shape_of(model, bases)
        if tokenizer.keep:
            tokenizer = with_kept_tokenizers(tokenizer, bases, TASKS[recipe.task], recipe.data.tags)
    recipe = recipe.replace(model=model, tokenizer=tokenizer)
    training = resolve_defaults(
        recipe.training,
        earlier.training if earlier else None,
        _planned_model(recipe),
        streams=getattr(recipe.data, "streaming", False),
    )
    return recipe.replace(training=training)


def _planned_model(recipe: Recipe) -> Any:
    return planned_model(planned_config(recipe.model, recipe.tokenizer), TASKS[recipe.task].model_class)


def refuse_another_run(recipe: Recipe, earlier: Recipe | None) -> None:
    """Refuse an output folder that holds a run which the recipe does not continue; `earlier` is the recorded recipe."""
    before = None if earlier is None else published_recipe(earlier).values()
    now = published_recipe(recipe).values()
    check_earlier_run(Path(recipe.output_dir), recipe.training, recipe.data, now, before)


def has_ended(recipe: Recipe, earlier: Recipe | None) -> bool:
    """True if the run has ended and the recipe asks for nothing new."""
    return is_finished(Path(recipe.output_dir), _asked_of(recipe), _asked_of(earlier or recipe))


def _asked_of(recipe: Recipe) -> dict[str, Any]:
    return asked_of(published_recipe(recipe).values())


def _refuse_other_data(recipe: Recipe) -> None:
    """Refuses training data that are not those of a finished run."""
    folder = Path(recipe.output_dir)
    if recorded_end(folder):
        load_corpus = TASKS[recipe.task].load_corpus
        corpus = load_corpus(recipe.data, recipe.tokenizer, recipe.seed, folder, new_tokenizers=False)
        refuse_other_data(folder, folder, corpus.digest)


def _newest_checkpoint(folder: Path, training: AnyTraining, num_processes: int) -> Path | None:
    with naming_the_folder(folder):
        put_back_replaced(folder)
    return find_checkpoint(folder, training, num_processes)


def _begin(model: PreTrainedModel, recipe: Recipe, corpus: Corpus) -> str:
    bases = find_bases(recipe.model)
    return begin_with_bases(model, bases, corpus) if bases else ""


def _prepare_folder(recipe: Recipe) -> None:
    _check_reporters(recipe.training.report_to)
    publishing = recipe.publishing
    if publishing.push_to_hub:
        # A user who may not push should know before the training, not after it.
        check_destination(Destination(publishing.hub_model_id or "", publishing.hub_private_repo))
    folder = Path(recipe.output_dir)
    with naming_the_folder(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for unfinished in (STAGING_FOLDER, FINAL_STAGING_FOLDER):
        shutil.rmtree(folder / unfinished, ignore_errors=True)


def _load_corpus(recipe: Recipe, processes: Processes, checkpoint: Path | None) -> Corpus:
    # A resumed run reads the tokenizers of its checkpoint.
    folder, new_tokenizers = checkpoint or Path(recipe.output_dir), checkpoint is None and processes.is_first
    with naming_the_folder(folder):
        if new_tokenizers and recipe.model.init_from is not None and recipe.tokenizer.keep:
            write_kept_tokenizers(find_bases(recipe.model), TASKS[recipe.task], folder)
            new_tokenizers = False
        load_corpus = TASKS[recipe.task].load_corpus
        return load_corpus(recipe.data, recipe.tokenizer, recipe.seed, folder, new_tokenizers=new_tokenizers)


def _record_beginning(
    recipe: Recipe, trainer: VaswaniTrainer, checkpoint: Path | None, *, is_mended: bool
) -> None:
    folder = Path(recipe.output_dir)
    if checkpoint is not None:
        refuse_other_data(folder, checkpoint, trainer.corpus.digest)
        refuse_fewer_steps(folder, recipe.training, checkpoint, trainer.args.max_steps)
    with naming_the_folder(folder):
        if not (is_mended and recorded_end(folder)):
            # The run goes on, so that the manifest of an earlier end is out of date.
            (folder / MANIFEST_FILE).unlink(missing_ok=True)
            record_recipe(folder, recipe.to_yaml(), trainer.corpus)
        if checkpoint is not None:
            # The run may have been killed between a save and this.
            rotate_checkpoints(
                folder, recipe.training, TrainerState.load_from_json(str(checkpoint / STATE_FILE))
            )


def _publish_again(recipe: Recipe, recorded: Recipe | None) -> None:
    folder = Path(recipe.output_dir)
    say(f"the run in '{folder}' is finished; nothing is left to do")
    if recipe.publishing.push_to_hub and recorded is not None:
        # The licences may change.
        data = recorded.data.replace(license=recipe.data.license, attribution=recipe.data.attribution)
        text = recorded.replace(data=data, publishing=recipe.publishing).to_yaml()
        end = recorded_end(folder)
        if end:
            write_end(folder, text, end["results"], end["training_pairs"])
        else:
            write_whole(folder / RECIPE_FILE, text)
    push_result(recipe.output_dir, recipe.publishing)


def push_result(folder: str, publishing: PublishingSettings) -> None:
    """Push a finished run if its recipe says so. If the push fails, the run is finished all the same."""
    if not publishing.push_to_hub:
        return
    repo_id, private = publishing.hub_model_id or "", publishing.hub_private_repo
    try:
        push(folder, repo_id, private=private)
    except HubError as error:
        again = f"vaswani push {shlex.quote(folder)} {repo_id}{' --private' if private else ''}"
        raise HubError(
            f"{error} The trained checkpoint is complete in '{folder}'; push it with `{again}`."
        ) from error


def _check_reporters(report_to: list[str]) -> None:
    available = get_available_reporting_integrations()
    for name in report_to:
        if name not in available:
            raise ValueError(
                f"`training.report_to` must name what is installed ({', '.join(available) or 'nothing is'}), but has {name!r}."
            )


def build_model(recipe: Recipe, corpus: Corpus) -> Any:
    """The untrained model of a run on the CPU, with the search of its checkpoint; the seed decides its weights."""
    set_seed(recipe.seed)
    source, target = corpus.source_tokenizer, corpus.target_tokenizer
    config = VaswaniConfig(
        **recipe.model.config_fields(),
        vocab_size=len(source),
        decoder_vocab_size=len(target),
        share_encoder_decoder_embeddings=source is target,
        bos_token_id=target.bos_token_id,
        pad_token_id=target.pad_token_id,
        eos_token_id=target.eos_token_id,
        decoder_start_token_id=target.bos_token_id,
    )
    model: Any = TASKS[recipe.task].model_class(config)
    search = recipe.decoding.settings()
    if not search:
        return model
    model.generation_config = GenerationConfig.from_model_config(config)
    # transformers leaves out fields that it does not know unless they are allowed.
    model.generation_config.update(allow_custom_entries=True, **search)
    return model


def add_callbacks(trainer: VaswaniTrainer, publishing: PublishingSettings) -> None:
    """Give a trainer the callbacks of a run in place of its printer."""
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(RunLogCallback(trainer))
    if publishing.push_to_hub and publishing.hub_strategy != "end":
        trainer.add_callback(PushCheckpointsCallback(trainer.args.output_dir, publishing))
    if trainer.training.early_stopping_patience is not None:
        trainer.add_callback(EarlyStoppingCallback(trainer.training))


def run_training(trainer: VaswaniTrainer, checkpoint: Path | None) -> None:
    """Train to the end or to the first signal, from the checkpoint that the run continues from, if there is one."""
    folder = Path(trainer.args.output_dir)
    trainer.add_callback(StopCallback(trainer, checkpoint))
    if trainer.is_world_process_zero():
        parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
        device = trainer.args.device
        means = described(trainer.training, device)
        if trainer.positions_of_a_part is not None:
            means += f", batches of more than {trainer.positions_of_a_part:,} positions a side in parts"
        say(f"{parameters:,} parameters, {trainer.args.max_steps:,} steps on {device.type}, {means}")
    keep_free_memory()
    try:
        with trainer.stop.saving_first(), naming_a_vanished_folder(folder), naming_the_folder(folder):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except NothingLeftError:
        pass
    except DivergedRunError:
        if trainer.processes.is_first:
            raise
        # All processes end, and the first one says why.
        sys.exit(1)
    # All wait here: the first process may be pushing its last checkpoint, and where one ends, a launcher ends the others. A
    # signal may have come after the last step.
    if any(trainer.processes.gather(trainer.stop.received)):
        if not trainer.processes.is_first:
            sys.exit(INTERRUPTED)
        raise InterruptedRunError(
            f"Interrupted after step {trainer.state.global_step}, which is saved in '{trainer.args.output_dir}'; continue "
            "with `--resume true`."
        )


def finish_run(recipe: Recipe, trainer: VaswaniTrainer) -> None:
    """Make the checkpoint and the results of a trained run from its numbered checkpoints.

    If the run was finished before, only what is damaged or missing is made again.
    """
    folder, corpus = Path(recipe.output_dir), trainer.corpus
    recorded = recorded_end(folder)
    # Build a new model, because the model of the trainer may be sharded.
    model = build_model(recipe, corpus)
    steps: list[int] = []
    if recorded and verify_manifest(folder, [WEIGHTS_FILE]) is None:
        model.load_state_dict(load_file(folder / WEIGHTS_FILE))
    else:
        step = trainer.state.global_step or trainer.start_step
        checkpoints = final_checkpoints(folder, recipe.training, step)
        steps = [number_of(checkpoint) for checkpoint in checkpoints]
        if recipe.training.average_checkpoints:
            say(f"averaging the last {len(checkpoints)} checkpoints")
        model.load_state_dict(average_checkpoints(checkpoints, final_weights_file(recipe.training)))
    before = facts_of_this_end(folder, trainer)
    with naming_a_vanished_folder(folder), naming_the_folder(folder):
        if recorded:
            mend_run(folder, model, corpus, recorded, lambda: score_test_split(trainer, recipe.data))
            return
        save_model(model, corpus, folder, before)
        results = results_of_run(
            trainer,
            model,
            recipe.data,
            _asked_of(recipe),
            recipe.decoding.settings(),
            steps=steps,
            before=before,
        )
        refuse_vanished(folder)
        write_end(folder, (folder / RECIPE_FILE).read_text(encoding="utf-8"), results, corpus.digest)


def save_model(model: PreTrainedModel, corpus: Corpus, folder: Path, before: dict[str, Any]) -> None:
    """Write model and tokenizers into a folder, file by file complete or not at all.

    `before` is the cost of the training, which stays if the scoring of these weights is interrupted.
    """
    staging = stage_model(model, corpus, folder)
    # The scores of an earlier end are not those of these weights.
    if before:
        facts = {key: value for key, value in before.items() if key != "averaged_steps"}
        write_whole(folder / RESULTS_FILE, json.dumps({"training": facts, "asked": None}))
    else:
        (folder / RESULTS_FILE).unlink(missing_ok=True)
    put_in_place(staging, folder)
