"""Writes the results of a run: results.json, the outputs on the test split, and the training curve.

The task computes the scores. publish/records.py defines the parts of results.json.
"""

import dataclasses
import json
import platform
from collections.abc import Iterable
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
    RECIPE_FILE,
    RESULTS_FILE,
    finite,
    read_metrics,
    write_whole,
)
from ..data.corpus import Corpus
from ..pictures.attention import attention_picture
from ..pictures.training_curve import draw_training_curve
from ..publish.model_card import data_facts
from ..publish.records import TrainingRecord
from ..recipe.licenses import RESEARCH_ONLY, data_license
from ..settings.data import DataSettings
from ..settings.sections import PublishingSettings
from ..version import __version__
from .hardware import hardware_name
from .processes import said_at_intervals, say
from .trainer import VaswaniTrainer

# The model card shows the outputs for at most `NUM_EXAMPLES` texts of the test split. Each of these texts has
# at most `LONGEST_EXAMPLE` characters.
NUM_EXAMPLES = 5
LONGEST_EXAMPLE = 200


def results_of_finished_run(folder: Path) -> dict[str, Any]:
    """Return the content of the results.json of a finished run."""
    return json.loads((folder / RESULTS_FILE).read_text(encoding="utf-8"))


def changeable_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that a user may change after a run has finished: the settings that determine the
    length of the run, the averaged checkpoints and the scores.

    `values` maps each key of the published recipe, such as "training.max_steps", to its value. A published
    recipe names data files without their folders, because the data may have been moved.
    """
    lengths = "max_steps num_train_epochs early_stopping_patience early_stopping_score".split()
    names = {f"training.{key}" for key in [*lengths, "average_checkpoints"]}
    return {
        name: value
        for name, value in values.items()
        if name in names or name.startswith(("decoding.", "evaluation.", "data.test_"))
    }


def record_recipe(folder: Path, recipe: str, corpus: Corpus) -> None:
    """Write recipe.yaml, and print the numbers of kept and removed sentence pairs. If the training corpora
    have weights, also print the number of pairs from each corpus in an epoch.
    """
    write_whole(folder / RECIPE_FILE, recipe)
    for split, report in corpus.reports.items():
        if report.read:
            is_twice = split == "train" and corpus.both_directions
            both = ", each pair in both directions" if is_twice else ""
            # Print "validation loss" instead of "validation", because the removed pairs are missing only in
            # the validation loss. The validation BLEU includes all pairs.
            name = "validation loss" if split == "validation" else split
            say(f"{name}{both}: {report}")
    if corpus.weighted is None:
        return
    examples = f"{corpus.reports['train'].example}s"
    columns = (corpus.corpora, corpus.weighted.num_pairs, corpus.weighted.num_places)
    for (name, weight), num_pairs, num_places in zip(*columns, strict=True):
        say(f"train, '{name}': {num_pairs:,} {examples}, {num_places:,} in an epoch (weight {weight:g})")


def recorded_cost(folder: Path, trainer: VaswaniTrainer) -> dict[str, Any]:
    """Return the recorded cost of the training (such as its time) from results.json. Return an empty dict if
    the run has trained more steps since results.json was written.
    """
    try:
        facts = dict(results_of_finished_run(folder)["training"])
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    return facts if not trainer.state.global_step and facts.get("steps") == trainer.start_step else {}


def results_of_run(
    trainer: VaswaniTrainer,
    model: PreTrainedModel,
    data: DataSettings,
    asked: dict[str, Any],
    search: Iterable[str],
    steps: list[int],
    before: dict[str, Any],
    publishing: PublishingSettings,
) -> str:
    """Score the saved checkpoint, draw the training curve, and return the text of results.json.

    `steps` are the steps of the checkpoints from which the final weights were computed. `before` is the cost
    of the training that an earlier results.json records, or an empty dict.
    """
    folder = Path(trainer.args.output_dir)
    corpus = trainer.corpus
    step = trainer.state.global_step or trainer.start_step
    results: dict[str, Any] = {"training": _training_facts(trainer, _metrics_until(folder, step))}
    results["training"] |= before
    results["training"]["averaged_steps"] = steps if trainer.training.average_checkpoints else []
    results["training"]["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    scores = score_test_split(trainer, data)
    if scores is not None:
        results["test"] = scores
    examples = _card_examples(trainer, data, publishing)
    results["examples"] = examples
    (folder / ATTENTION_FILE).unlink(missing_ok=True)
    if examples:
        attention_picture(str(folder), examples[0]["source"], folder / ATTENTION_FILE)
    results["decoding"] = {name: getattr(model.generation_config, name) for name in search}
    results["asked"] = asked
    results["data"] = data_facts(data)
    if isinstance(corpus.train, IterableDataset) and corpus.reports["train"].read:
        # Print the number of pairs in a stream after the training, because the run counts the pairs while it
        # reads the stream. The printed number includes the pairs of all epochs.
        say(f"train, as far as the stream was read: {corpus.reports['train']}")
    results["corpus"] = {split: dataclasses.asdict(report) for split, report in corpus.reports.items()}
    draw_curve(folder, step)
    return json.dumps(finite(results), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def score_test_split(trainer: VaswaniTrainer, data: DataSettings) -> dict[str, Any] | None:
    """Score the saved checkpoint on the test split, write the outputs, and print the scores. Return the
    scores, or None if the corpus has no test split.
    """
    folder = Path(trainer.args.output_dir)
    test = trainer.corpus.texts["test"]
    if test is None:
        return None
    task = trainer.task
    with said_at_intervals("scoring the test split"):
        found = task.score_test_split(folder, test, data, trainer.evaluation, str(trainer.args.device))
    if task.outputs_file is not None and found.outputs is not None:
        (folder / task.outputs_file).write_text(found.outputs, encoding="utf-8")
    for line in found.lines:
        say(line, is_result=True)
    return found.scores


def _card_examples(
    trainer: VaswaniTrainer, data: DataSettings, publishing: PublishingSettings
) -> list[dict[str, Any]]:
    texts = publishing.examples
    if texts is None:
        texts = _shareable_texts(trainer, data)
    if not texts:
        return []
    return trainer.task.example_outputs(Path(trainer.args.output_dir), texts, str(trainer.args.device))


def _shareable_texts(trainer: VaswaniTrainer, data: DataSettings) -> list[str]:
    """Return the first short texts of the test split. Return no texts if the licence of the data is unknown
    or does not permit to publish the texts.
    """
    test = trainer.corpus.texts["test"]
    if test is None or data_license(data) in (None, "unknown", RESEARCH_ONLY):
        return []
    fitting = (text for text in test["source"] if text.strip() and len(text) <= LONGEST_EXAMPLE)
    return list(islice(fitting, NUM_EXAMPLES))


def end_in_words(trainer: VaswaniTrainer) -> str:
    """Describe the end of a run: the last step, the last losses, and the folder of the checkpoint."""
    folder = Path(trainer.args.output_dir)
    step = trainer.state.global_step or trainer.start_step
    rows = _metrics_until(folder, step)
    parts = [f"finished at step {step:,}"]
    for key, name in (("loss", f"last {trainer.loss_name}"), ("eval_loss", "last validation loss")):
        losses = [row[key] for row in rows if row.get(key) is not None]
        if losses:
            parts.append(f"{name} {losses[-1]:.4f}")
    return " · ".join([*parts, f"the checkpoint is in '{folder}'"])


def _training_facts(trainer: VaswaniTrainer, metrics: list[dict[str, Any]]) -> dict[str, Any]:
    last = metrics[-1] if metrics else {}
    versions = {"vaswani_hf": __version__, "python": platform.python_version()}
    for library in ("torch", "transformers", "tokenizers", "datasets", "sacrebleu"):
        versions[library] = version(library)
    record = TrainingRecord(
        date=datetime.now(UTC).date().isoformat(),
        seed=trainer.args.seed,
        dtype="bfloat16" if trainer.training.bf16 is True else "float32",
        steps=trainer.state.global_step or trainer.start_step,
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
    return record.as_json()


def draw_curve(folder: Path, step: int) -> None:
    """Draw the training curve of a run up to a step, and save the picture in the folder of the run."""
    plot_training_curve(_metrics_until(folder, step), folder / CURVE_FILE)


def _metrics_until(folder: Path, step: int) -> list[dict[str, Any]]:
    return [row for row in read_metrics(folder / METRICS_FILE) if row["step"] <= step]


def plot_training_curve(metrics: list[dict[str, Any]], path: str | Path) -> None:
    """Save the training curve as a PNG file. Write no file if the metrics contain neither losses nor scores."""
    figure = draw_training_curve(metrics)
    if figure is not None:
        figure.savefig(path, dpi=120)
