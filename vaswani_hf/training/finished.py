"""A finished run: the manifest of its final files, and making again what is damaged or missing.

The manifest of the output folder has the sizes and hashes of the final files, the whole text of recipe.yaml and results.json, and
the digest of the training pairs. It is there from the end of the run until the run goes on, or is to end in another way.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..checkpoint.files import (
    CHECKPOINT_FILES,
    CURVE_FILE,
    MANIFEST_FILE,
    RECIPE_FILE,
    RESULTS_FILE,
    WEIGHTS_FILE,
    checkpoints_in,
    open_to_readers,
    write_whole,
)
from ..checkpoint.manifest import describe, faults_of, read_manifest, verify_manifest, write_manifest
from ..checkpoint.tokenizers import save_tokenizers
from ..data.corpus import Corpus
from ..tasks import TASKS
from .checkpoints import refuse_vanished_folder
from .processes import say
from .results import draw_curve

# The checkpoint of a finished run is written into this folder of it first.
FINAL_STAGING_FOLDER = ".staging"


def _outputs_files() -> list[str]:
    """The files for the outputs on a test set, of all tasks."""
    return [task.outputs_file for task in TASKS.values() if task.outputs_file]


def _final_files() -> list[str]:
    """The files that the end of a run writes. A user may have other files in the folder."""
    return [*CHECKPOINT_FILES, "*_vaswani.py", CURVE_FILE, *_outputs_files()]


def write_final_record(folder: Path, recipe: str, results: str, training_pairs: dict[str, Any]) -> None:
    """Writes the manifest of a finished run, and then its recipe.yaml and results.json, which the manifest can restore."""
    paths = {path for pattern in _final_files() for path in folder.glob(pattern) if path.is_file()}
    files: dict[str, Path | bytes] = {path.relative_to(folder).as_posix(): path for path in sorted(paths)}
    files |= {RECIPE_FILE: recipe.encode(), RESULTS_FILE: results.encode()}
    write_manifest(folder, {"training_pairs": training_pairs, "recipe": recipe, "results": results}, files)
    write_whole(folder / RECIPE_FILE, recipe)
    write_whole(folder / RESULTS_FILE, results)


def read_final_record(folder: Path) -> dict[str, Any]:
    """What the manifest of a finished run says; nothing where there is none, or it is damaged."""
    try:
        recorded = read_manifest(folder)
    except (OSError, ValueError):
        return {}
    return recorded if recorded.keys() >= {"recipe", "results", "training_pairs"} else {}


def restore_records(folder: Path) -> None:
    """Restores the recipe and the results of a finished run from its manifest, and draws its picture again."""
    recorded = read_final_record(folder)
    if not recorded:
        return
    texts = {RECIPE_FILE: recorded["recipe"], RESULTS_FILE: recorded["results"]}
    faults = faults_of(folder, [*texts, *({CURVE_FILE} & recorded["files"].keys())])
    for name in texts.keys() & faults.keys():
        write_whole(folder / name, texts[name])
    if CURVE_FILE in faults:
        draw_curve(folder, json.loads(recorded["results"])["training"]["steps"])
    restored = [fault for name, fault in faults.items() if verify_manifest(folder, [name]) is None]
    if restored:
        say(f"restored in '{folder}': {'; '.join(restored)}")


def find_damage(folder: Path) -> str:
    """What is damaged or missing of a finished run."""
    fault = "; ".join(faults_of(folder).values())
    if not fault or any(verify_manifest(checkpoint) is None for checkpoint in checkpoints_in(folder)):
        return fault
    if read_final_record(folder):
        raise ValueError(
            f"The run in '{folder}' is finished, but {fault}; no whole checkpoint is left to make that again from, so restore it "
            "from a copy, or choose another `--output_dir`."
        )
    say(f"the files in '{folder}' cannot be checked: {fault}")
    return ""


def stage_model(model: PreTrainedModel, corpus: Corpus, folder: Path) -> Path:
    """Writes model and tokenizers of a run into a folder within its output folder."""
    staging = folder / FINAL_STAGING_FOLDER
    refuse_vanished_folder(folder)
    shutil.rmtree(staging, ignore_errors=True)
    model.save_pretrained(staging)
    open_to_readers(staging)
    save_tokenizers(corpus.source_tokenizer, corpus.target_tokenizer, staging)
    return staging


def move_into_place(staging: Path, folder: Path) -> None:
    """Moves the files that `stage_model` has written to their places, each of them whole."""
    for path in sorted(path for path in staging.rglob("*") if path.is_file()):
        target = folder / path.relative_to(staging)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)
    shutil.rmtree(staging)


def repair_run(
    folder: Path, model: PreTrainedModel, corpus: Corpus, recorded: dict[str, Any], score: Callable[[], Any]
) -> None:
    """Makes the damaged and missing files of a finished run again. Its results stay, because its weights are the same."""
    staging, faults = stage_model(model, corpus, folder), faults_of(folder)
    if WEIGHTS_FILE in faults and describe(staging / WEIGHTS_FILE) != recorded["files"][WEIGHTS_FILE]:
        shutil.rmtree(staging)
        raise ValueError(
            f"The run in '{folder}' is finished, but {'; '.join(faults.values())}, and its checkpoints give other weights than "
            f"those that it had ended with; restore it from a copy, or delete {MANIFEST_FILE} to end the run with other weights."
        )
    for name in faults:
        if (staging / name).is_file():
            (folder / name).parent.mkdir(exist_ok=True)
            os.replace(staging / name, folder / name)
    shutil.rmtree(staging)
    if {*_outputs_files()} & faults.keys():
        score()
    others = faults_of(folder)
    if others:
        say(f"made again, but not to the same bytes: {', '.join(others)}")
    write_final_record(folder, recorded["recipe"], recorded["results"], recorded["training_pairs"])
