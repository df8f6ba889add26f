"""The names of all files of a checkpoint and of a run, and finding them in a folder."""

import json
from pathlib import Path

from ..model.configuration_vaswani import TARGET_FOLDER

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
# The files that translating needs; code, card and recipe are not among them.
MODEL_FILES = (CONFIG_FILE, GENERATION_FILE, WEIGHTS_FILE, "model-*.safetensors", INDEX_FILE)
CHECKPOINT_FILES = (*MODEL_FILES, *TOKENIZER_FILES, f"{TARGET_FOLDER}/*.json")

# The files that a run leaves beside its model.
CARD_FILE = "README.md"
RECIPE_FILE = "recipe.yaml"
RESULTS_FILE = "results.json"
CURVE_FILE = "training_curve.png"
RECORD_FILES = (CARD_FILE, RECIPE_FILE, RESULTS_FILE, CURVE_FILE)
METRICS_FILE = "metrics.jsonl"
TRANSLATIONS_FILE = "test_translations.txt"

# The files that a numbered checkpoint has beside the model: the Trainer's state, and the place in a stream of pairs.
STATE_FILE = "trainer_state.json"
STREAM_FILE = "stream_state.json"


def checkpoints_in(folder: str | Path) -> list[Path]:
    """The checkpoints that a training run left, oldest first.

    Args:
        folder (str or Path): The run's output folder.

    Returns:
        list: Folders named checkpoint-STEP, by step.
    """
    numbered = [(path.name.removeprefix("checkpoint-"), path) for path in Path(folder).glob("checkpoint-*")]
    return [path for step, path in sorted((int(step), path) for step, path in numbered if step.isdecimal())]


def step_of(checkpoint: Path) -> int:
    """The optimizer step that a checkpoint was saved after.

    Args:
        checkpoint (Path): Its folder.

    Returns:
        int: The step.
    """
    return json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))["global_step"]


def weight_files(folder: Path) -> list[str]:
    """The names of the files that hold the weights of a checkpoint, with their index where there is one.

    Args:
        folder (Path): The folder.

    Returns:
        list: Names; there need not be such files.
    """
    if (folder / WEIGHTS_FILE).is_file() or not (folder / INDEX_FILE).is_file():
        return [WEIGHTS_FILE]
    shards = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))["weight_map"].values()
    return [*sorted(set(shards)), INDEX_FILE]
