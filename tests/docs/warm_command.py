"""Runs `vaswani` or `hf` in an interpreter that has imported everything: `python warm_command.py COMMAND
ARGUMENTS`.

huggingface_hub reads its environment variables when it is imported, and therefore this file sets its
constants again. The corpora of numbers and trees have few examples for validation and test. Runs and `vaswani
figures` write the same small picture in place of their pictures. Plans do not run the paper's models. The
speed of a training is measured for a tenth of a second. The exports to ONNX write no graphs, unless the
environment variable TRACE is 1.
"""

import base64
import dataclasses
import os
import sys
from pathlib import Path

from huggingface_hub import constants
from huggingface_hub.cli import hf

from vaswani_hf.cli import main
from vaswani_hf.convert.export import EXPORT_FORMATS
from vaswani_hf.data import toy_corpora
from vaswani_hf.pictures import figures
from vaswani_hf.training import measure, plan, run_results

# A PNG file of one pixel.
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SWITCHES = ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_XET", "HF_HUB_DISABLE_UPDATE_CHECK")


def apply_environment() -> None:
    """Set the constants of huggingface_hub from the environment variables of this process."""
    for name in SWITCHES:
        setattr(constants, name, os.environ.get(name) == "1")
    constants.HF_HOME = os.path.abspath(os.environ["HF_HOME"])
    constants.HF_HUB_CACHE = os.path.join(constants.HF_HOME, "hub")


def draw_nothing() -> None:
    """Do not draw pictures, because drawing takes a quarter of a run and most of `vaswani figures`."""
    figures.save = lambda figure, path: path.write_bytes(PICTURE)
    run_results.plot_training_curve = lambda metrics, path: Path(path).write_bytes(PICTURE)
    run_results.attention_picture = lambda model, text, path: Path(path).write_bytes(PICTURE)


def write_no_graphs() -> None:
    """Do not write ONNX graphs, because this takes ten seconds, and the tests of the formats write them."""
    for name in ("onnx", "transformers_js"):
        EXPORT_FORMATS[name] = dataclasses.replace(EXPORT_FORMATS[name], export=_write_config)


def measure_for_a_moment() -> None:
    """Measure the speed of a training for a tenth of a second, in place of seconds."""
    measure_for_seconds = measure._mean_seconds
    measure._mean_seconds = lambda compute, seconds: measure_for_seconds(compute, 0.1)


def _write_config(model, tokenizers, folder, quantization=None) -> str:
    folder.mkdir(exist_ok=True)
    model.config.save_pretrained(folder)
    return "not compared"


if __name__ == "__main__":
    apply_environment()
    if os.environ.get("TRACE") != "1":
        write_no_graphs()
    toy_corpora.NUMBERS_HELD_OUT = 10
    toy_corpora.TREES_HELD_OUT = 10
    draw_nothing()
    measure_for_a_moment()
    # The paper's models run for seconds to count their operations.
    plan._paper_steps = lambda length: [(10**15, 0.4)]
    command = sys.argv.pop(1)
    sys.exit(main() if command == "vaswani" else hf.main())
