"""Writes the final files of a run and their manifest, and repairs damaged or missing final files.

The manifest of the output folder contains the sizes and hashes of the final files, the texts of recipe.yaml
and results.json, and the digest of the training pairs. If a finished run continues, for example with more
steps, the run deletes the manifest.
"""

import filecmp
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from transformers.dynamic_module_utils import get_relative_imports

from ..checkpoint.files import (
    CALIBRATION_FILE,
    CALIBRATION_PICTURE,
    CHECKPOINT_FILES,
    CURVE_FILE,
    MANIFEST_FILE,
    RECIPE_FILE,
    RESULTS_FILE,
    WEIGHTS_FILE,
    open_to_readers,
    write_whole,
)
from ..checkpoint.manifest import describe, faults_of, read_manifest, verify_manifest, write_manifest
from ..checkpoint.results import Record, Results, TrainingRecord, read_results, write_results
from ..checkpoint.tokenizers import save_tokenizers
from ..data.corpus import Corpus
from ..data.corpus_cache import CorpusDigest
from ..messages import say
from ..model.extension_vaswani import ENTRY
from ..tasks import TASKS
from .checkpoints import refuse_vanished_folder
from .run_results import draw_curve

# The subfolder of the output folder in which a run first saves the final checkpoint.
FINAL_STAGING_FOLDER = ".staging"


class FinishedRun(Record):
    """The description of a finished run in the manifest of the output folder."""

    training_pairs: CorpusDigest
    # The text of recipe.yaml.
    recipe: str
    # The text of results.json.
    results: str
    # The size and the hash of each final file.
    files: dict[str, Any]


def _outputs_files() -> list[str]:
    return [task.outputs_file for task in TASKS.values() if task.outputs_file]


def _final_files(folder: Path) -> list[str]:
    """Return patterns for the final files that the manifest contains. The manifest contains the Python files
    of the user's classes, which `registered_vaswani.py` imports, but no other files of the user.
    """
    entry = folder / f"{ENTRY}.py"
    modules = get_relative_imports(entry) if entry.is_file() else []
    code_files = ["*_vaswani.py", *(f"{module}.py" for module in modules)]
    return [*CHECKPOINT_FILES, *code_files, CURVE_FILE, *_outputs_files()]


def write_final_manifest(folder: Path, recipe: str, results: str, training_pairs: CorpusDigest) -> None:
    """First write the manifest, which contains the texts of recipe.yaml and results.json. Then write
    recipe.yaml and results.json. If the run is killed after the first write, `restore_final_files` writes
    recipe.yaml and results.json again.
    """
    paths = {path for pattern in _final_files(folder) for path in folder.glob(pattern) if path.is_file()}
    files: dict[str, Path | bytes] = {path.relative_to(folder).as_posix(): path for path in sorted(paths)}
    files |= {RECIPE_FILE: recipe.encode(), RESULTS_FILE: results.encode()}
    metadata = {"training_pairs": training_pairs.as_json(), "recipe": recipe, "results": results}
    write_manifest(folder, metadata, files)
    write_whole(folder / RECIPE_FILE, recipe)
    write_whole(folder / RESULTS_FILE, results)


def read_finished_run(folder: Path) -> FinishedRun | None:
    """Read the description of a finished run from the manifest of the output folder. Return None if the
    manifest is missing or damaged, or if the run has not finished.
    """
    try:
        return FinishedRun.model_validate(read_manifest(folder))
    except (OSError, ValueError):
        return None


def restore_final_files(folder: Path) -> None:
    """Restore a damaged recipe.yaml or results.json of a finished run from the manifest, and redraw a damaged
    training curve.
    """
    recorded = read_finished_run(folder)
    if recorded is None:
        return
    texts = {RECIPE_FILE: recorded.recipe, RESULTS_FILE: recorded.results}
    faults = faults_of(folder, [*texts, *({CURVE_FILE} & recorded.files.keys())])
    for name in texts.keys() & faults.keys():
        write_whole(folder / name, texts[name])
    if CURVE_FILE in faults:
        draw_curve(folder, read_results(folder).as_json()["training"]["steps"])
    restored = [fault for name, fault in faults.items() if verify_manifest(folder, [name]) is None]
    if restored:
        say(f"restored in '{folder}': {'; '.join(restored)}")


def stage_model(model: PreTrainedModel, corpus: Corpus, folder: Path) -> Path:
    """Write the model and the tokenizers into a staging folder inside the output folder."""
    staging = folder / FINAL_STAGING_FOLDER
    refuse_vanished_folder(folder)
    shutil.rmtree(staging, ignore_errors=True)
    model.save_pretrained(staging)
    open_to_readers(staging)
    save_tokenizers(corpus.source_tokenizer, corpus.target_tokenizer, staging)
    return staging


def move_into_place(staging: Path, folder: Path) -> None:
    """Move the files of a staging folder into the output folder. Each move is atomic."""
    for path in sorted(path for path in staging.rglob("*") if path.is_file()):
        target = folder / path.relative_to(staging)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)
    shutil.rmtree(staging)


def save_model(model: PreTrainedModel, corpus: Corpus, folder: Path, recorded: TrainingRecord | None) -> None:
    """Write the model and the tokenizers into the output folder. `recorded` is the training record of an
    earlier results.json. Write `recorded` before the scoring, because an interruption of the scoring would
    otherwise lose the record.
    """
    staging = stage_model(model, corpus, folder)
    # Remove the scores from results.json, because the scores belong to the earlier weights in the folder.
    if recorded is not None:
        training = recorded.model_copy(update={"averaged_steps": None})
        write_results(folder, Results(training=training, finished_with=None))
    else:
        (folder / RESULTS_FILE).unlink(missing_ok=True)
    if not _is_same_file(staging / WEIGHTS_FILE, folder / WEIGHTS_FILE):
        # Delete the calibration, because the calibration belongs to the replaced weights.
        for path in (folder / CALIBRATION_FILE, folder / CALIBRATION_PICTURE):
            path.unlink(missing_ok=True)
    move_into_place(staging, folder)


def _is_same_file(path: Path, other: Path) -> bool:
    return path.is_file() and other.is_file() and filecmp.cmp(path, other, shallow=False)


def repair_run(
    folder: Path, model: PreTrainedModel, corpus: Corpus, recorded: FinishedRun, score: Callable[[], Any]
) -> None:
    """Write the damaged and missing files of a finished run again, with the same weights and results."""
    staging = stage_model(model, corpus, folder)
    faults = faults_of(folder)
    if WEIGHTS_FILE in faults and describe(staging / WEIGHTS_FILE) != recorded.files[WEIGHTS_FILE]:
        shutil.rmtree(staging)
        raise ValueError(
            f"The run in '{folder}' is finished, but {'; '.join(faults.values())}, and its checkpoints give "
            "other weights than the finished run had; restore the files from a copy, or delete "
            f"{MANIFEST_FILE} to finish the run again with the weights of its checkpoints."
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
        say(f"these files were written again, but differ from the original files: {', '.join(others)}")
    write_final_manifest(folder, recorded.recipe, recorded.results, recorded.training_pairs)
