"""Computes the results of a run: the record of the training, the scores, the examples of the model card and
the pictures.

run.py and finished.py call the functions of this file. checkpoint/results.py declares and writes
results.json.
"""

import contextlib
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import IterableDataset
from transformers import PreTrainedModel

from ..checkpoint.files import (
    ATTENTION_FILE,
    CURVE_FILE,
    METRICS_FILE,
    read_metrics,
)
from ..checkpoint.results import ExampleRecord, ScoresRecord, TrainingRecord, read_results
from ..data.corpus import Corpus
from ..data.loading import weights_of_corpora
from ..messages import said_at_intervals, say
from ..model.errors_vaswani import InvalidValueError
from ..pictures.attention import attention_picture
from ..pictures.training_curve import draw_training_curve
from ..recipe.licenses import RESEARCH_ONLY, data_license
from ..settings.sections import PublishingSettings
from ..version import __version__
from .hardware import hardware_name
from .trainer import VaswaniTrainer

# The limits for the examples of the model card: the number of texts, and the length of a text (characters).
NUM_EXAMPLES = 5
LONGEST_EXAMPLE = 200


def say_counts_of_corpus(corpus: Corpus, data: Any) -> None:
    """Print the numbers of kept and removed pairs. If the corpora have weights, also print the number of
    pairs from each corpus.
    """
    for split, report in corpus.reports.items():
        if report.read:
            is_twice = split == "train" and bool(data.tags)
            both = ", each pair in both directions" if is_twice else ""
            # The validation loss excludes the removed validation pairs, but the validation BLEU includes
            # these pairs.
            name = "validation loss" if split == "validation" else split
            say(f"{name}{both}: {report}")
    if corpus.weighted is None:
        return
    examples = f"{corpus.reports['train'].example}s"
    columns = (weights_of_corpora(data), corpus.weighted.num_pairs, corpus.weighted.num_places)
    for (name, weight), num_pairs, num_places in zip(*columns, strict=True):
        say(f"train, '{name}': {num_pairs:,} {examples}, {num_places:,} in an epoch (weight {weight:g})")


def recorded_training(folder: Path, trainer: VaswaniTrainer) -> TrainingRecord | None:
    """Return the training record of results.json. Return None if results.json is invalid, if the run has
    trained new steps, or if the training record has another number of steps than the resumed checkpoint.
    """
    try:
        training = read_results(folder).training
    except ValueError:
        return None
    if training is None or trainer.state.global_step or training.steps != trainer.start_step:
        return None
    return training


def training_record(
    trainer: VaswaniTrainer,
    model: PreTrainedModel,
    averaged_steps: list[int],
    recorded: TrainingRecord | None,
) -> TrainingRecord:
    """Return the record of the training. `model` has the final weights. `averaged_steps` contains the steps
    of the averaged checkpoints, and is empty if the run averages no checkpoints. `recorded` is the result of
    `recorded_training`.
    """
    record = recorded or _new_training_record(trainer)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return record.model_copy(update={"averaged_steps": averaged_steps, "parameters": parameters})


def _new_training_record(trainer: VaswaniTrainer) -> TrainingRecord:
    folder = Path(trainer.args.output_dir)
    metrics = _metrics_until(folder, trainer.last_step)
    last = metrics[-1] if metrics else {}
    versions = {"vaswani_hf": __version__, "python": platform.python_version()}
    for library in ("torch", "transformers", "tokenizers", "datasets", "sacrebleu"):
        versions[library] = version(library)
    return TrainingRecord(
        date=datetime.now(UTC).date().isoformat(),
        seed=trainer.args.seed,
        dtype="bfloat16" if trainer.training.bf16 is True else "float32",
        steps=trainer.last_step,
        epochs=last.get("epoch"),
        target_tokens=int(trainer.target_tokens_seen),
        seconds=last.get("seconds", 0.0),
        resumed_at_step=trainer.start_step or None,
        hardware=hardware_name(trainer.args.device, trainer.args.world_size),
        processes=trainer.args.world_size,
        threads=torch.get_num_threads(),
        model_tags=list(getattr(trainer.model, "model_tags", None) or []),
        versions=versions,
    )


def score_test_split(trainer: VaswaniTrainer) -> ScoresRecord | None:
    """Score the saved checkpoint on the test split, if the run has a test split. Write the outputs, and print
    the scores.
    """
    folder = Path(trainer.args.output_dir)
    test = trainer.corpus.texts["test"]
    if test is None:
        return None
    task = trainer.task
    with said_at_intervals("scoring the test split"):
        found = task.score_test_split(folder, test, str(trainer.args.device))
    if task.outputs_file is not None and found.outputs is not None:
        (folder / task.outputs_file).write_text(found.outputs, encoding="utf-8")
    for line in found.lines:
        say(line, is_important=True)
    return ScoresRecord(**found.scores)


def card_examples(trainer: VaswaniTrainer, publishing: PublishingSettings) -> list[ExampleRecord]:
    """Return the examples of the model card: a few texts, and the outputs of the saved checkpoint."""
    texts = publishing.examples
    if texts is None:
        texts = _shareable_texts(trainer)
    if not texts:
        return []
    return trainer.task.example_outputs(Path(trainer.args.output_dir), texts, str(trainer.args.device))


def _shareable_texts(trainer: VaswaniTrainer) -> list[str]:
    """Return the first short texts of the test split, if the licence of the data permits the publication of
    texts.
    """
    test = trainer.corpus.texts["test"]
    if test is None or data_license(trainer.task.data) in (None, "unknown", RESEARCH_ONLY):
        return []
    fitting = (text for text in test["source"] if text.strip() and len(text) <= LONGEST_EXAMPLE)
    return list(islice(fitting, NUM_EXAMPLES))


def draw_attention(folder: Path, examples: list[ExampleRecord]) -> None:
    """Replace the attention picture in a folder by a picture of the cross-attention for the translation of an
    example.

    Use the first example that has words and is not longer than the position table of the model. If no example
    has words and fits into the position table, delete the earlier picture and draw no picture.
    """
    (folder / ATTENTION_FILE).unlink(missing_ok=True)
    for example in examples:
        with contextlib.suppress(InvalidValueError):
            attention_picture(str(folder), example.source, folder / ATTENTION_FILE)
            return


def say_counts_of_stream(corpus: Corpus) -> None:
    """Print the numbers of kept and removed pairs of a stream, summed over all epochs."""
    if isinstance(corpus.train, IterableDataset) and corpus.reports["train"].read:
        say(f"train, as far as the stream was read: {corpus.reports['train']}")


def say_end(trainer: VaswaniTrainer) -> None:
    """Print a line about the end of a run: the last step, the last losses, and the checkpoint folder."""
    folder = Path(trainer.args.output_dir)
    rows = _metrics_until(folder, trainer.last_step)
    parts = [f"finished at step {trainer.last_step:,}"]
    for key, name in (("loss", f"last {trainer.losses.name}"), ("eval_loss", "last validation loss")):
        losses = [row[key] for row in rows if row.get(key) is not None]
        if losses:
            parts.append(f"{name} {losses[-1]:.4f}")
    parts.append(f"the checkpoint is in '{folder}'")
    say(" · ".join(parts), is_important=True)


def draw_curve(folder: Path, step: int) -> None:
    """Draw the training curve up to `step`, and save the curve in the folder of the run."""
    plot_training_curve(_metrics_until(folder, step), folder / CURVE_FILE)


def _metrics_until(folder: Path, step: int) -> list[dict[str, Any]]:
    return [row for row in read_metrics(folder / METRICS_FILE) if row["step"] <= step]


def plot_training_curve(metrics: list[dict[str, Any]], path: str | Path) -> None:
    """Save the training curve as a PNG file, if the metrics contain losses or scores."""
    figure = draw_training_curve(metrics)
    if figure is not None:
        figure.savefig(path, dpi=120)
