"""Runs the blocks of one page in this process, in the current folder: `python page_runner.py BLOCKS.json`.

Python blocks share their names, as in a notebook. A shell block is one call of bash, which stops at the first
command that fails. A YAML block must load as a recipe, or as a part of a recipe. If its first line is `#
NAME.yaml`, a small recipe of this name is written for the following blocks.
"""

import json
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import yaml

from vaswani_hf.recipe import load_recipe

# These values replace those of a recipe, so that its run takes a second. A key that a task does not have is
# left out.
SMALL: dict[str, dict[str, Any]] = {
    "data": {"numbers_train_size": 200, "trees_train_size": 60},
    "tokenizer": {"vocab_size": 290},
    "model": {
        "d_model": 8,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 8,
        "decoder_ffn_dim": 8,
    },
    "training": {
        "bf16": False,
        "max_steps": 4,
        "warmup_steps": 2,
        "save_steps": 1,
        "eval_steps": 2,
        "logging_steps": 1,
        "save_total_limit": 4,
        "average_checkpoints": 2,
        "gradient_accumulation_steps": 1,
        "source_tokens_per_batch": 500,
        "target_tokens_per_batch": 500,
        "text_tokens_per_batch": 500,
    },
    "decoding": {"num_beams": 2, "max_length_a": 1, "max_length_b": 8},
}
# The beginnings of the keys that a task does not have.
MISSING_KEYS = {
    "translation": ("trees_", "text_"),
    "parsing": ("numbers_", "text_"),
    "causal_lm": ("trees_", "encoder_", "source_", "target_"),
    "masked_lm": ("trees_", "decoder_", "source_", "target_"),
}
# The keys that a part of a recipe may lack.
LANGUAGES = {"translation": {"source_language": "en", "target_language": "de"}}
# The keys that replace a corpus.
SOURCES = {"dataset", "train_source", "train_pairs", "train_text", "train_trees"}


def small_recipe(recipe: dict[str, Any]) -> dict[str, Any]:
    """The recipe with a small model, a small vocabulary and few steps."""
    task = recipe.get("task", "translation")
    small = dict(recipe)
    for section, keys in SMALL.items():
        if task in ("causal_lm", "masked_lm") and section == "decoding":
            continue
        of_task = {key: value for key, value in keys.items() if not key.startswith(MISSING_KEYS[task])}
        small[section] = {**(recipe.get(section) or {}), **of_task}
    # Remove the widths of the heads, because the recipe's widths belong to a larger model.
    for key in ("d_k", "d_v"):
        small["model"].pop(key, None)
    if small["training"].get("early_stopping_patience"):
        small["training"]["average_checkpoints"] = 0
    # Do not stop early, because a small model is never exact.
    for key in ("early_stopping_score", "metric_for_best_model"):
        small["training"].pop(key, None)
    return small


def check_recipe(code: str) -> None:
    """Load a YAML block as a recipe, or as a part of a recipe of any task."""
    values = yaml.safe_load(code)
    place = Path("block.yaml")
    if "output_dir" in values:
        place.write_text(code)
        load_recipe(place)
        return
    errors = []
    for task in [values["task"]] if "task" in values else MISSING_KEYS:
        data = {**LANGUAGES.get(task, {"language": "en"}), **(values.get("data") or {})}
        if not SOURCES & data.keys():
            data["corpus"] = "trees" if task == "parsing" else "numbers"
        whole = {"output_dir": "out", "task": task, "training": {"max_steps": 8}, **values, "data": data}
        place.write_text(yaml.safe_dump(whole))
        try:
            load_recipe(place)
            return
        except ValueError as error:
            errors.append(str(error))
    raise ValueError(errors[0])


def run_block(block: dict[str, Any], names: dict[str, Any]) -> None:
    """Run one block."""
    code = block["code"]
    if block["language"] == "bash":
        subprocess.run(["bash", "-eu", "-c", code], check=True)
    elif block["language"] == "python":
        exec(compile(code, f"line {block['line']}", "exec"), names)
    else:
        check_recipe(code)
        first = code.partition("\n")[0]
        if first.startswith("# ") and first.endswith(".yaml"):
            Path(first[2:]).write_text(yaml.safe_dump(small_recipe(yaml.safe_load(code))))


def main(path: str) -> None:
    """Run all blocks; if a block fails, exit with the line number of the block."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in json.loads(Path(path).read_text()):
        print(f"--- {block['language']} block in line {block['line']}", flush=True)
        try:
            run_block(block, names)
        except BaseException:
            traceback.print_exc()
            sys.exit(f"The {block['language']} block in line {block['line']} does not run.")


if __name__ == "__main__":
    main(sys.argv[1])
