"""Pushing while a model is trained, and going on with the training on another machine.

What is pushed beside the finished checkpoint, by `publishing.hub_strategy`, which is named as in transformers:

- "end": nothing.
- "every_save": at each save the model as it then is.
- "checkpoint": also what a resumed run needs, in the folder `last-checkpoint`.
- "all_checkpoints": the same in one folder for each save, `checkpoint-STEP`.
"""

import json
import os
import re
import shutil
import threading
from pathlib import Path

from accelerate import PartialState
from huggingface_hub import HfApi, snapshot_download
from transformers import TrainerCallback

from ..checkpoint.files import METRICS_FILE, STATE_FILE, checkpoints_in, step_of
from ..checkpoint.hub_errors import explained, patiently, sentence_of
from ..checkpoint.loading import refuse_changed_files
from ..checkpoint.tokenizers import load_tokenizers, save_tokenizers
from ..recipe.schema import PublishingSection, TrainingSection
from .push import Destination, check_destination, commit_files, refuse_private_text, repository_files
from .record import RECIPE_FILE

LAST_CHECKPOINT = "last-checkpoint"
_STAGING = ".publishing"
_STATE = re.compile(rf"({LAST_CHECKPOINT}|checkpoint-\d+)/{re.escape(STATE_FILE)}")


class PushCheckpointsCallback(TrainerCallback):
    """Pushes each save in the background; one that comes while another is pushed is left out, the last one never is.

    Args:
        folder (str or Path): The output folder of the run.
        publishing (PublishingSection): The repository and the strategy.
    """

    def __init__(self, folder: str | Path, publishing: PublishingSection):
        self.folder, self.publishing = Path(folder), publishing
        self.thread: threading.Thread | None = None
        self.pushed_step = -1

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """Clear away what a run that was killed has left."""
        if state.is_world_process_zero:
            shutil.rmtree(self.folder / _STAGING, ignore_errors=True)

    def on_save(self, args, state, control, **kwargs) -> None:
        """Begin to push."""
        # Each process writes its generator's state.
        PartialState().wait_for_everyone()
        if state.is_world_process_zero and not (self.thread and self.thread.is_alive()):
            self._begin(state.global_step)

    def on_train_end(self, args, state, control, **kwargs) -> None:
        """Wait, and push the last checkpoint if it was left out."""
        if self.thread is None:
            return
        self.thread.join()
        if self.pushed_step < state.global_step and (self.folder / f"checkpoint-{state.global_step}").is_dir():
            self._begin(state.global_step)
            self.thread.join()
        shutil.rmtree(self.folder / _STAGING, ignore_errors=True)

    def _begin(self, step: int) -> None:
        try:
            staged = self._stage(step)
        except OSError as error:
            print(f"step {step:,} could not be pushed: {sentence_of(error)}", flush=True)
            return
        # A daemon, so that a second Ctrl-C ends the process.
        self.thread = threading.Thread(target=self._push, args=(staged, step), daemon=True)
        self.thread.start()

    def _stage(self, step: int) -> Path:
        staged = self.folder / _STAGING / f"checkpoint-{step}"
        # Links: the Trainer may delete the checkpoint before it is uploaded.
        shutil.copytree(self.folder / staged.name, staged, copy_function=_link_or_copy, dirs_exist_ok=True)
        for name in (RECIPE_FILE, METRICS_FILE):
            shutil.copy(self.folder / name, staged)
        return staged

    def _push(self, staged: Path, step: int) -> None:
        publishing = self.publishing
        try:
            to = check_destination(Destination(publishing.hub_model_id or "", publishing.hub_private_repo))
            files = repository_files(staged, to.repo_id)
            if publishing.hub_strategy != "every_save":
                name = LAST_CHECKPOINT if publishing.hub_strategy == "checkpoint" else staged.name
                files |= {f"{name}/{path}": content for path, content in resumable_files(staged).items()}
            refuse_private_text(files, self.folder)
            commit_files(to, files, f"Training in progress, step {step}")
            self.pushed_step = step
            print(f"pushed step {step:,} to {to.repo_id}", flush=True)
        except Exception as error:
            # Hours of training are worth more than a push; what is pushed next has what this one lacks.
            print(f"step {step:,} could not be pushed: {sentence_of(error)}", flush=True)
        finally:
            shutil.rmtree(staged, ignore_errors=True)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def resumable_files(checkpoint: Path) -> dict[str, Path | bytes]:
    """What a run needs to go on from a checkpoint, without the paths of this machine.

    Args:
        checkpoint (Path): A checkpoint of the Trainer.

    Returns:
        dict: Files, or the contents of those that are changed, by name.
    """
    # training_args.bin is a pickle with local paths, which nothing needs; code and recipe lie beside the model.
    left_out = {"training_args.bin", RECIPE_FILE, *(path.name for path in checkpoint.glob("*.py"))}
    paths = {path.relative_to(checkpoint).as_posix(): path for path in checkpoint.rglob("*") if path.is_file()}
    files: dict[str, Path | bytes] = {name: path for name, path in paths.items() if name not in left_out}
    state = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
    if state.get("best_model_checkpoint"):
        state["best_model_checkpoint"] = Path(state["best_model_checkpoint"]).name
    files[STATE_FILE] = json.dumps(state, indent=2).encode()
    return files


def fetch_checkpoints(folder: Path, repo_id: str, training: TrainingSection) -> None:
    """Download the checkpoints that an earlier run has pushed, as if it had been trained in the output folder.

    Nothing happens where the repository has none, or the folder has some.

    Args:
        folder (Path): The output folder.
        repo_id (str): The repository.
        training (TrainingSection): How many checkpoints are kept, and for what.

    Raises:
        HubError: If the repository cannot be read.
        ValueError: If the checkpoints are of another trainer.
    """
    if checkpoints_in(folder) or (folder / "model.safetensors").exists():
        return
    with explained():
        snapshot, names = _download(repo_id, training.save_total_limit)
    if not names:
        print(f"'{repo_id}' has no checkpoint to continue from", flush=True)
        return
    staging = folder / _STAGING
    shutil.rmtree(staging, ignore_errors=True)
    # The oldest first: the Trainer deletes them by their times.
    steps = {name: _localize(shutil.copytree(snapshot / name, staging / name), folder, names) for name in names}
    newest = names[-1]
    os.replace(staging / newest / METRICS_FILE, folder / METRICS_FILE)
    shutil.copy(snapshot / RECIPE_FILE, folder)
    save_tokenizers(*load_tokenizers(staging / newest), folder)
    # The newest first: what is interrupted after it can go on from it.
    for name in reversed(names):
        (staging / name / METRICS_FILE).unlink(missing_ok=True)
        if not (folder / f"checkpoint-{steps[name]}").exists():
            os.replace(staging / name, folder / f"checkpoint-{steps[name]}")
    shutil.rmtree(staging)
    print(f"continuing from '{newest}' of {repo_id}, step {steps[newest]:,}", flush=True)
    _say_what_is_missing(training, folder / f"checkpoint-{steps[newest]}", len(set(steps.values())))


def _download(repo_id: str, limit: int) -> tuple[Path, list[str]]:
    """The folder of the newest commit in the cache, and the checkpoints that are needed of it, by step.

    Raises:
        ValueError: If they are of another trainer.
    """
    api = HfApi()
    if "/" not in repo_id:
        repo_id = f"{patiently(api.whoami)['name']}/{repo_id}"
    if not patiently(api.repo_exists, repo_id):
        return Path(), []
    commit = patiently(api.model_info, repo_id).sha
    files = patiently(api.list_repo_files, repo_id, revision=commit)
    states = [found.group(1) for file in files if (found := _STATE.fullmatch(file))]
    if states and RECIPE_FILE not in files:
        raise ValueError(
            f"`publishing.hub_model_id` '{repo_id}' has checkpoints but no {RECIPE_FILE}, so that they are of another trainer; "
            "choose another repository, or leave out `--resume true`."
        )
    numbered = sorted((name for name in states if name != LAST_CHECKPOINT), key=lambda name: int(name.split("-")[1]))
    names = numbered[-limit:] + [name for name in states if name == LAST_CHECKPOINT]
    patterns = [RECIPE_FILE, *(f"{name}/*" for name in names)]
    snapshot = Path(patiently(snapshot_download, repo_id, revision=commit, allow_patterns=patterns))
    if numbered:
        state = json.loads((snapshot / names[-1] / STATE_FILE).read_text(encoding="utf-8"))
        best = state.get("best_model_checkpoint")
        if best in set(numbered) - set(names):
            patiently(snapshot_download, repo_id, revision=commit, allow_patterns=[f"{best}/*"])
            names.insert(0, best)
            patterns.append(f"{best}/*")
    refuse_changed_files(snapshot, repo_id, patterns)
    return snapshot, sorted(names, key=lambda name: step_of(snapshot / name))


def _localize(checkpoint: Path, folder: Path, names: list[str]) -> int:
    """Make the state of a pushed checkpoint that of one in the output folder, and say after which step it was saved.

    Raises:
        ValueError: If the state is none of ours.
    """
    state = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
    step, best = state.get("global_step"), state.get("best_model_checkpoint")
    # Both become paths.
    if type(step) is not int or step < 0 or not (best is None or re.fullmatch(r"checkpoint-\d+", str(best))):
        raise ValueError(
            f"{checkpoint.name}/{STATE_FILE} of the repository must be a state of the Trainer, but is not."
        )
    if best is not None:
        # Without it the best one is looked for from here on.
        is_there = best in (*names, f"checkpoint-{step}")
        state["best_model_checkpoint"] = str(folder / best) if is_there else None
        state["best_metric"] = state["best_metric"] if is_there else None
    (checkpoint / STATE_FILE).write_text(json.dumps(state, indent=2), encoding="utf-8")
    return step


def _say_what_is_missing(training: TrainingSection, newest: Path, num_checkpoints: int) -> None:
    """Say in which way the end of the run will not be that of an uninterrupted one."""
    wanted = training.average_checkpoints
    if num_checkpoints < wanted:
        print(
            f"of the checkpoints to average ({wanted}) {num_checkpoints} are here: the average is of those and of the ones to "
            "come; `hub_strategy: all_checkpoints` keeps them all",
            flush=True,
        )
    state = json.loads((newest / STATE_FILE).read_text(encoding="utf-8"))
    if training.early_stopping_patience is not None and state["best_model_checkpoint"] is None:
        print(
            "the best checkpoint so far is not here: the best one is looked for from here on; "
            "`hub_strategy: all_checkpoints` keeps them all",
            flush=True,
        )
