"""Trains the model of a recipe, and scores the checkpoint: data -> model -> trainer -> training -> scores.

`_train` calls the functions of a run one after the other. This file defines the functions in the order in
which `_train` calls them. In training/, only functions in run.py, resume.py, ablation.py,
ablation_comparison.py and plan.py receive the whole recipe. Functions in the other files receive only
sections of the recipe.

To learn what a second run in the same folder does, read resume.py.

To follow a text from a corpus file to the loss, read `load_corpus` in tasks/base.py, then
data/corpus.py (text -> token ids), data/batching.py and batches.py (token ids -> batches), loop.py and
trainer.py (training steps) and model/modeling_vaswani.py. To understand how a model is trained, you need not
read resume.py (earlier runs), recipe_model.py (the model before training), initialization.py (weights of
other models), finished.py and run_results.py (the end of a run), stopping.py and processes.py (signals,
several processes).
"""

import contextlib
import dataclasses
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from transformers import PreTrainedModel, TrainerState
from transformers.integrations import get_available_reporting_integrations

from ..checkpoint.files import (
    MANIFEST_FILE,
    RECIPE_FILE,
    STATE_FILE,
    WEIGHTS_FILE,
    explain_write_errors,
    step_of,
    write_whole,
)
from ..checkpoint.hub import HubError
from ..checkpoint.locks import locked_run
from ..checkpoint.manifest import verify_manifest
from ..checkpoint.results import Results, TrainingRecord, read_results
from ..data.corpus import Corpus
from ..exit_codes import INTERRUPTED
from ..messages import said_at_intervals, say
from ..model.errors_vaswani import InvalidValueError
from ..optimization.optimizers import OPTIMIZERS
from ..publish.destination import Destination, check_destination
from ..publish.push import push
from ..recipe import Recipe
from ..recipe.data_record import data_record
from ..recipe.recipe import warmup_warnings
from ..settings.sections import PublishingSettings
from ..tasks import TASKS
from . import checkpoints, finished, initialization, resume, run_results
from .averaging import average_weights
from .hardware import resolve_defaults
from .loop import add_callbacks, run_training
from .processes import Processes
from .recipe_model import (
    build_model,
    frozen_weights,
    planned_config,
    planned_model,
    size_warnings,
)
from .resume import RunState
from .stopping import (
    GracefulShutdown,
    InterruptedRunError,
    Phase,
    ShutdownRequested,
    explain_lost_processes,
    interruption_message,
)
from .trainer import VaswaniTrainer, training_arguments


def train(recipe: Recipe) -> dict[str, Any]:
    """Train, score and save a model according to a recipe. Publish the model if the recipe has
    `publishing.push_to_hub`.

    The same recipe gives the same weights on the same machine with the same number of threads. A run that is
    interrupted and resumed gives the same weights as a run without an interruption.

    Example:
        >>> from vaswani_hf import load_recipe, train
        >>> results = train(load_recipe("numbers"))  # doctest: +SKIP
        >>> results["test"]["bleu"]  # doctest: +SKIP

    Args:
        recipe (Recipe): The recipe of the run, from `load_recipe`.

    Returns:
        dict: The content of results.json.

    Raises:
        InterruptedRunError: If a signal ended the run early.
        InUseError: If another run is using the output folder.
    """
    # Normalise the path of the output folder first, because a path such as `a/../b` cannot be opened while
    # the folder `a` does not exist.
    recipe = recipe.replace(output_dir=os.path.normpath(recipe.output_dir))
    processes = Processes()
    stop = GracefulShutdown(lambda: interruption_message(recipe.folder))
    try:
        with (
            stop.listening(processes),
            stop.phase(Phase.INTERRUPTIBLE),
            explain_lost_processes(recipe.folder, stop),
            _locked(recipe.folder, processes),
        ):
            return _train(recipe, processes, stop)
    except ShutdownRequested:
        if not processes.is_first:
            sys.exit(INTERRUPTED)
        raise InterruptedRunError(interruption_message(recipe.folder)) from None


@contextlib.contextmanager
def _locked(folder: Path, processes: Processes) -> Iterator[None]:
    """Lock the output folder against other runs. The first process holds the lock for all processes."""
    with contextlib.ExitStack() as stack:

        def lock() -> None:
            with explain_write_errors(folder):
                stack.enter_context(locked_run(folder))

        processes.run_on_main(lock)
        yield


def _train(recipe: Recipe, processes: Processes, stop: GracefulShutdown) -> dict[str, Any]:
    """Execute all steps of a run, in order. Each process of the run calls this function.

    The state of the output folder determines what the run does. resume.py lists the states of the folder, and
    chooses the checkpoint from which a run continues.
    """

    # 1. Compare the recipe with the earlier run in the output folder.
    processes.run_on_main(resume.restore_files, recipe)
    saved = processes.run_on_main(resume.saved_recipe, recipe.folder) if recipe.training.resume else None
    recipe = processes.run_on_main(resolve, recipe, saved)
    state = processes.run_on_main(resume.find_state, recipe, saved)

    # 2. If the run is finished, publish the checkpoint.
    if state is RunState.FINISHED:
        if processes.is_first:
            _publish_again(recipe, saved)
        return read_results(recipe.folder).as_json()

    # 3. Check the recipe, find the checkpoint to continue from, and prepare the output folder.
    _check_recipe(recipe, processes)
    checkpoint = processes.run_on_main(
        resume.checkpoint_to_continue, recipe.folder, recipe.training, processes.count
    )
    if checkpoint is not None:
        resume.keep_number_of_threads(checkpoint)
    processes.run_on_main(_check_publishing, recipe)
    processes.run_on_main(_prepare_folder, recipe.folder)

    # 4. Load the data, and make the model and the trainer.
    with said_at_intervals("preparing the data") if processes.is_first else contextlib.nullcontext():
        corpus = processes.main_process_first(_load_corpus, recipe, processes, checkpoint)
    model = _initial_model(recipe, corpus, checkpoint, processes)
    _warn(size_warnings(model, corpus, recipe.model, recipe.tokenizer), processes)
    trainer = _build_trainer(recipe, corpus, model, checkpoint, processes, stop)
    if checkpoint is not None:
        processes.run_on_main(_refuse_changes, recipe, trainer, checkpoint)
    if state is RunState.UNFINISHED:
        processes.run_on_main(_write_recipe, recipe, corpus)
    if checkpoint is not None:
        processes.run_on_main(_delete_old_checkpoints, recipe, checkpoint)

    # 5. Train the model.
    if not resume.is_training_complete(checkpoint, recipe.training, trainer.args.max_steps):
        run_training(trainer, checkpoint)

    # 6. Compute the final weights, score them, write results.json, and publish the checkpoint.
    if state is RunState.DAMAGED:
        processes.run_on_main(_repair_run, recipe, trainer)
    else:
        processes.run_on_main(finish_run, recipe, trainer)
    if processes.is_first:
        # All processes except the first process end without waiting for the push to the Hub.
        push_result(recipe.output_dir, recipe.publishing)
    return read_results(recipe.folder).as_json()


# 1. Compare the recipe with the earlier run in the output folder


def resolve(recipe: Recipe, saved: Recipe | None) -> Recipe:
    """Fill in the values that depend on the data, the initial model and the machine. The filled-in values
    include the commit of the dataset, the config fields of the model in `init_from`, and `training.bf16`. A
    resumed run takes the filled-in values from its saved recipe (`saved`), so that the resumed run computes
    the same result.
    """
    # Record the commit of a dataset on the Hub, and the licence that the card of the dataset states.
    data = recipe.make_task().pin_data(saved.data if saved else None)
    recipe = _with_fields_of_bases(recipe.replace(data=data), saved)
    training = resolve_defaults(
        recipe.training,
        saved.training if saved else None,
        _planned_model(recipe),
        streams=getattr(recipe.data, "streaming", False),
    )
    return recipe.replace(training=training)


def _with_fields_of_bases(recipe: Recipe, saved: Recipe | None) -> Recipe:
    """Fill in the config fields of the recipe from the models in `init_from`. Also fill in the tokenizer
    settings of the recipe, if `tokenizer.keep` is true. A resumed run takes the config fields and the
    tokenizer settings from its saved recipe.
    """
    model = recipe.model
    tokenizer = recipe.tokenizer
    if (
        saved is not None
        and saved.task == recipe.task
        and initialization.has_begun_from(recipe.folder, model, saved.model)
    ):
        model = initialization.with_recorded_shape(model, saved.model)
        if tokenizer.keep:
            tokenizer = tokenizer.kept(saved.tokenizer)
    elif bases := initialization.find_bases(model):
        model = initialization.with_shape_of_bases(model, bases)
        if tokenizer.keep:
            tokenizer = initialization.with_kept_tokenizers(
                tokenizer, bases, TASKS[recipe.task], recipe.data.tags
            )
    return recipe.replace(model=model, tokenizer=tokenizer)


def _planned_model(recipe: Recipe) -> Any:
    return planned_model(planned_config(recipe.model, recipe.tokenizer), TASKS[recipe.task].model_class)


# 2. A finished run


def _publish_again(recipe: Recipe, saved: Recipe | None) -> None:
    """Print that the run is finished. If the recipe has `publishing.push_to_hub`, write the licences and the
    section `publishing` of the recipe into recipe.yaml, and push the checkpoint.
    """
    say(f"the run in '{recipe.folder}' is finished; nothing is left to do")
    if recipe.publishing.push_to_hub and saved is not None:
        # Use the licence and the attribution of the new recipe, because a user can change both after a run
        # has finished.
        data = saved.data.replace(license=recipe.data.license, attribution=recipe.data.attribution)
        text = saved.replace(data=data, publishing=recipe.publishing).to_yaml()
        end = finished.read_finished_run(recipe.folder)
        if end is not None:
            finished.write_final_manifest(recipe.folder, text, end.results, end.training_pairs)
        else:
            write_whole(recipe.folder / RECIPE_FILE, text)
    push_result(recipe.output_dir, recipe.publishing)


# 3. Check the recipe, find the checkpoint to continue from, and prepare the output folder


def _check_recipe(recipe: Recipe, processes: Processes) -> None:
    """Print warnings, and raise an error for values that the model or the optimizer does not accept."""
    _warn(processes.run_on_main(recipe.training_warnings), processes)
    planned = _planned_model(recipe)
    # An unknown name in `training.frozen` raises an error.
    frozen_weights(planned, recipe.training.frozen)
    # Build an optimizer now, so that a missing library is reported before the data is loaded.
    OPTIMIZERS[recipe.training.optimizer].build(planned, recipe.training, bf16=False)


def _warn(sentences: list[str], processes: Processes) -> None:
    if processes.is_first:
        for sentence in sentences:
            say(f"warning: {sentence}")


def _check_publishing(recipe: Recipe) -> None:
    """Check the experiment trackers and the permission to push."""
    publishing = recipe.publishing
    _check_reporters(recipe.training.report_to, publishing)
    if publishing.push_to_hub:
        # A run without the permission to push should fail before the training.
        check_destination(Destination(publishing.hub_model_id or "", publishing.hub_private_repo))


def _check_reporters(report_to: list[str], publishing: PublishingSettings) -> None:
    if publishing.trackio and "trackio" not in report_to:
        names = " and ".join(f"`publishing.{name}`" for name in publishing.trackio)
        raise InvalidValueError(
            f"{names} need `training.report_to: [trackio]`, but `training.report_to` is {report_to}; add "
            "trackio, or leave the settings of Trackio out."
        )
    available = get_available_reporting_integrations()
    for name in report_to:
        if name not in available:
            raise InvalidValueError(
                "`training.report_to` must name installed tools "
                f"({', '.join(available) or 'none is installed'}), but has {name!r}."
            )


def _prepare_folder(folder: Path) -> None:
    """Create the output folder, and delete incomplete files of a killed run."""
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for staging in (checkpoints.STAGING_FOLDER, finished.FINAL_STAGING_FOLDER):
        shutil.rmtree(folder / staging, ignore_errors=True)


# 4. Data -> model -> trainer


def _load_corpus(recipe: Recipe, processes: Processes, checkpoint: Path | None) -> Corpus:
    task = recipe.make_task()
    # A resumed run reads the tokenizers from its checkpoint.
    folder = checkpoint or recipe.folder
    new_tokenizers = checkpoint is None and processes.is_first
    with explain_write_errors(folder):
        if new_tokenizers and recipe.model.init_from is not None and recipe.tokenizer.keep:
            initialization.write_kept_tokenizers(recipe.model, type(task), folder)
            new_tokenizers = False
        return task.load_corpus(folder, new_tokenizers=new_tokenizers)


def _initial_model(
    recipe: Recipe, corpus: Corpus, checkpoint: Path | None, processes: Processes
) -> PreTrainedModel:
    """Create the model with random weights, or with the weights of the models in `model.init_from`. The
    trainer later loads the weights of a checkpoint.
    """
    model = _random_model(recipe, corpus)
    if checkpoint is None:
        message = processes.main_process_first(initialization.load_base_weights, model, recipe.model, corpus)
        if message and processes.is_first:
            say(message)
    return model


def _random_model(recipe: Recipe, corpus: Corpus) -> PreTrainedModel:
    model_class = TASKS[recipe.task].model_class
    model: PreTrainedModel = build_model(
        recipe.model, model_class, corpus, recipe.decoding.settings(), recipe.seed
    )
    return model


def _build_trainer(
    recipe: Recipe,
    corpus: Corpus,
    model: PreTrainedModel,
    checkpoint: Path | None,
    processes: Processes,
    stop: GracefulShutdown,
) -> VaswaniTrainer:
    training = recipe.training
    trainer = VaswaniTrainer(
        corpus,
        training,
        checkpoint,
        processes,
        stop,
        task=recipe.make_task(),
        model=model,
        args=training_arguments(
            training,
            recipe.output_dir,
            recipe.seed,
            validates=corpus.validation is not None,
            publishing=recipe.publishing,
        ),
    )
    if training.max_steps is None:
        # Check the warm-up only now, because the trainer has computed the number of steps from the number of
        # epochs.
        _warn(warmup_warnings(training, trainer.args.max_steps), processes)
    add_callbacks(trainer, recipe.publishing)
    return trainer


def _refuse_changes(recipe: Recipe, trainer: VaswaniTrainer, checkpoint: Path) -> None:
    """Raise an error if the training data has changed, if the run needs fewer steps than the checkpoint has,
    or if early stopping would compare scores of different validations.
    """
    before = checkpoints.CheckpointRecord.of(checkpoint).training_pairs
    resume.refuse_other_data(recipe.folder, before, trainer.corpus.digest)
    resume.refuse_fewer_steps(recipe.folder, recipe.training, checkpoint, trainer.args.max_steps)
    if not resume.is_training_complete(checkpoint, recipe.training, trainer.args.max_steps):
        resume.refuse_other_validation(
            recipe.folder, recipe.training, checkpoint, trainer.validation.comparison_key
        )


def _write_recipe(recipe: Recipe, corpus: Corpus) -> None:
    """Write recipe.yaml, and print the numbers of examples. If a finished run continues, delete its manifest,
    because the continued run will replace the final files.
    """
    with explain_write_errors(recipe.folder):
        (recipe.folder / MANIFEST_FILE).unlink(missing_ok=True)
        write_whole(recipe.folder / RECIPE_FILE, recipe.to_yaml())
    for split, size in recipe.data.held_out_sizes.items():
        say(f"{split}: {size:,} examples were taken out of the training data (`data.{split}_size`)")
    run_results.say_counts_of_corpus(corpus, recipe.data)


def _delete_old_checkpoints(recipe: Recipe, checkpoint: Path) -> None:
    """Delete the checkpoints that an earlier run did not delete, perhaps because the run was killed."""
    state = TrainerState.load_from_json(str(checkpoint / STATE_FILE))
    with explain_write_errors(recipe.folder):
        checkpoints.rotate_checkpoints(recipe.folder, recipe.training, state)


# 6. Final weights, scores and publishing


def _repair_run(recipe: Recipe, trainer: VaswaniTrainer) -> None:
    """Write the damaged and missing final files of a finished run again."""
    finished_run = finished.read_finished_run(recipe.folder)
    assert finished_run is not None
    if verify_manifest(recipe.folder, [WEIGHTS_FILE]) is None:
        model = _random_model(recipe, trainer.corpus)
        model.load_state_dict(load_file(recipe.folder / WEIGHTS_FILE))
    else:
        model, _ = _final_model(recipe, trainer)
    with checkpoints.explain_output_errors(recipe.folder):
        finished.repair_run(
            recipe.folder,
            model,
            trainer.corpus,
            finished_run,
            lambda: run_results.score_test_split(trainer),
        )
    run_results.say_end(trainer)


def finish_run(recipe: Recipe, trainer: VaswaniTrainer) -> None:
    """Compute the final checkpoint from the numbered checkpoints, score it, and write results.json."""
    corpus = trainer.corpus
    model, averaged_steps = _final_model(recipe, trainer)
    with checkpoints.explain_output_errors(recipe.folder):
        recorded = run_results.recorded_training(recipe.folder, trainer)
        finished.save_model(model, corpus, recipe.folder, recorded)
        training = run_results.training_record(trainer, model, averaged_steps, recorded)
        found = _results_of_run(recipe, trainer, model, training)
        checkpoints.refuse_vanished_folder(recipe.folder)
        recipe_text = (recipe.folder / RECIPE_FILE).read_text(encoding="utf-8")
        finished.write_final_manifest(recipe.folder, recipe_text, found.as_text(), corpus.digest)
    run_results.say_end(trainer)


def _final_model(recipe: Recipe, trainer: VaswaniTrainer) -> tuple[PreTrainedModel, list[int]]:
    """Return a model with the final weights, and the steps of the averaged checkpoints. The list of averaged
    steps is empty if the run averages no checkpoints.
    """
    training = recipe.training
    # Build a new model for the final weights, because the model of the trainer may be sharded.
    model = _random_model(recipe, trainer.corpus)
    chosen = checkpoints.final_checkpoints(recipe.folder, training, trainer.last_step)
    if training.average_checkpoints:
        say(f"averaging the last {len(chosen)} checkpoints")
    file = checkpoints.final_weights_file(training)
    model.load_state_dict(average_weights([checkpoint / file for checkpoint in chosen]))
    averaged = chosen if training.average_checkpoints else []
    return model, [step_of(checkpoint) for checkpoint in averaged]


def _results_of_run(
    recipe: Recipe, trainer: VaswaniTrainer, model: PreTrainedModel, training: TrainingRecord
) -> Results:
    """Score the saved checkpoint, draw its pictures, and return the content of results.json."""
    corpus = trainer.corpus
    scores = run_results.score_test_split(trainer)
    examples = run_results.card_examples(trainer, recipe.publishing)
    run_results.draw_attention(recipe.folder, examples)
    run_results.say_counts_of_stream(corpus)
    run_results.draw_curve(recipe.folder, trainer.last_step)
    found = Results(
        training=training,
        examples=examples,
        decoding={name: getattr(model.generation_config, name) for name in recipe.decoding.settings()},
        finished_with=resume.values_that_continue(recipe),
        data=data_record(recipe.data),
        corpus={split: dataclasses.asdict(report) for split, report in corpus.reports.items()},
    )
    if scores is not None:
        # Without a test split, results.json has no key `test`.
        found.test = scores
        found.test_sha256 = corpus.hash_of_test
    return found


def push_result(folder: str, publishing: PublishingSettings) -> None:
    """Push the finished checkpoint if the recipe has `publishing.push_to_hub`."""
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
