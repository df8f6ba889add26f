"""Runs the training steps of a run: from a checkpoint, or from the initial weights, until the last step."""

import sys
from pathlib import Path

from transformers import PrinterCallback

from ..data.memory import keep_free_memory, limit_primitive_cache
from ..exit_codes import FAILURE, INTERRUPTED
from ..messages import say
from ..patches import accept_numbered_cpus
from ..publish.during_training import PushCheckpointsCallback
from ..settings.sections import PublishingSettings
from . import checkpoints
from .callbacks import EarlyStoppingCallback, NoStepsLeftError, RunLogCallback, StopCallback
from .hardware import describe_computation
from .losses import DivergedRunError
from .stopping import InterruptedRunError, Phase
from .trainer import VaswaniTrainer


def add_callbacks(trainer: VaswaniTrainer, publishing: PublishingSettings) -> None:
    """Add the callbacks of a run, except `StopCallback`, to a trainer. Remove the `PrinterCallback` of
    transformers.
    """
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(RunLogCallback(trainer))
    if publishing.push_to_hub and publishing.hub_strategy != "end":
        trainer.add_callback(PushCheckpointsCallback(trainer.args.output_dir, publishing))
    if trainer.training.stops_early:
        trainer.add_callback(EarlyStoppingCallback(trainer.training))


def run_training(trainer: VaswaniTrainer, checkpoint: Path | None) -> None:
    """Train from the checkpoint, or from the initial weights, until the last step or a signal."""
    folder = Path(trainer.args.output_dir)
    trainer.add_callback(StopCallback(trainer, checkpoint))
    if trainer.is_world_process_zero():
        _say_beginning(trainer)
    keep_free_memory()
    limit_primitive_cache()
    accept_numbered_cpus()
    try:
        with trainer.stop.phase(Phase.TRAINING), checkpoints.explain_output_errors(folder):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except NoStepsLeftError:
        # Wait for the push of the last checkpoint, as at the end of a training.
        trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
    except DivergedRunError:
        if trainer.processes.is_first:
            raise
        # Only the first process prints the error.
        sys.exit(FAILURE)
    # In `gather`, the processes wait for each other, because the first process is perhaps still pushing a
    # checkpoint. Without the wait in `gather`, another process could end with an error code, and a launcher
    # such as torchrun would then end the first process. A signal can also arrive after the last step.
    if any(trainer.processes.gather(trainer.stop.received)):
        if not trainer.processes.is_first:
            sys.exit(INTERRUPTED)
        raise InterruptedRunError(
            f"Interrupted after step {trainer.state.global_step}, which is saved in "
            f"'{trainer.args.output_dir}'; continue with `--resume true`."
        )


def _say_beginning(trainer: VaswaniTrainer) -> None:
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    device = trainer.args.device
    means = describe_computation(trainer.training, device)
    if trainer.max_part_positions is not None:
        means += (
            f", batches of more than {trainer.max_part_positions:,} positions per side are computed in parts"
        )
    say(f"{parameters:,} parameters, {trainer.args.max_steps:,} steps on {device.type}, {means}")
