"""The results of a run: scores on the test split, results.json, the translations, and the picture of the training.

Scores are computed in evaluation/; publish/record.py reads what is written here.
"""

import dataclasses
import json
import math
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from transformers import PreTrainedModel

from ..checkpoint.files import (
    CURVE_FILE,
    METRICS_FILE,
    RECIPE_FILE,
    RESULTS_FILE,
    TRANSLATIONS_FILE,
    TREES_FILE,
    finite,
    write_whole,
)
from ..checkpoint.loading import load_model
from ..checkpoint.tokenizers import load_tokenizers
from ..data.corpus import Corpus
from ..data.toy_corpora import SMALLEST_HELD_OUT, english_words, german_words, num_digits
from ..data.trees import Tree, tree_of
from ..evaluation.bleu import exact_match_by
from ..evaluation.evaluate import evaluate_translator
from ..evaluation.texts import LANGUAGE_MODELS, evaluate_texts
from ..parsing.bracketing import evaluate_parser, lines_of
from ..parsing.parser import Parser
from ..publish.record import data_facts
from ..settings.data import TEXT_TASKS, AnyData
from ..settings.sections import AnyEvaluation
from ..translation.translator import Translator
from ..version import __version__
from .callbacks import read_metrics
from .hardware import hardware_name
from .processes import say
from .trainer import VaswaniTrainer


def read_results(folder: Path) -> dict[str, Any]:
    """The content of the results.json of a finished run.

    Args:
        folder (Path): The output folder.

    Returns:
        dict: The results as `results_of_run` gave them.
    """
    return json.loads((folder / RESULTS_FILE).read_text(encoding="utf-8"))


def asked_of(values: dict[str, Any]) -> dict[str, Any]:
    """The values that may differ if a finished run is asked for again: its length, final weights, scores and test split.

    Args:
        values (dict): The values of the published form of the recipe, by `section.key`. The data may have moved.
    """
    training = "max_steps num_train_epochs average_checkpoints early_stopping_patience".split()
    names = {f"training.{key}" for key in training}
    return {
        name: value
        for name, value in values.items()
        if name in names or name.startswith(("decoding.", "evaluation.", "data.test_"))
    }


def record_recipe(folder: Path, recipe: str, data: AnyData, corpus: Corpus) -> None:
    """Writes recipe.yaml, and prints how many pairs or texts of each split were dropped, and what of weighted corpora an epoch has.

    Args:
        folder (Path): The output folder.
        recipe (str): The content of recipe.yaml.
        data (DataSettings): The section of the recipe.
        corpus (Corpus): Its counts by split.
    """
    write_whole(folder / RECIPE_FILE, recipe)
    weighted = corpus.weighted
    for split, report in corpus.reports.items():
        if report.read:
            is_twice = split == "train" and data.both_directions
            both = ", each pair in both directions" if is_twice else ""
            # Translations of the validation and the test split are scored line by line, without any dropped.
            name = "validation loss" if split == "validation" else split
            say(f"{name}{both}: {report.in_words(data.is_text)}")
    if weighted is None:
        return
    names = data.listed("train_source") or data.listed("train_pairs") or data.listed("train_text")
    columns = (names, data.train_weights, weighted.num_pairs, weighted.num_places)
    for name, weight, num_pairs, num_places in zip(*columns, strict=True):
        say(
            f"train, '{name}': {num_pairs:,} {'texts' if data.is_text else 'pairs'}, {num_places:,} in an epoch (weight {weight:g})"
        )


def facts_of_this_end(folder: Path, trainer: VaswaniTrainer) -> dict[str, Any]:
    """What the training took by the results of a run that had ended at this step; nothing where steps were trained since.

    Args:
        folder (Path): The output folder.
        trainer (VaswaniTrainer): The trainer.
    """
    try:
        facts = dict(read_results(folder)["training"])
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    return facts if not trainer.state.global_step and facts.get("steps") == trainer.start_step else {}


def results_of_run(
    trainer: VaswaniTrainer,
    model: PreTrainedModel,
    task: str,
    data: AnyData,
    asked: dict[str, Any],
    search: Iterable[str],
    steps: list[int],
    before: dict[str, Any],
) -> str:
    """Scores the saved checkpoint on the test split, and draws the picture of the training.

    Args:
        trainer (VaswaniTrainer): The trainer after its training.
        model (PreTrainedModel): The model with its final weights.
        task (str): The task of the recipe.
        data (DataSettings): The section of the recipe.
        asked (dict): As from `asked_of`.
        search (Iterable): The names of the settings of the search.
        steps (list): The steps of the checkpoints that these were made of.
        before (dict): What the training took, where the run had come to this end before; else nothing.

    Returns:
        str: The content of results.json, which is written last and says that the run is finished.
    """
    folder, corpus = Path(trainer.args.output_dir), trainer.corpus
    step = trainer.state.global_step or trainer.start_step
    results: dict[str, Any] = {"training": _training_facts(trainer, _metrics_until(folder, step))}
    results["training"] |= before
    results["training"]["averaged_steps"] = steps if trainer.training.average_checkpoints else []
    results["training"]["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    scores = score_test_split(trainer, task, data)
    if scores is not None:
        results["test"] = scores
    results["decoding"] = {name: getattr(model.generation_config, name) for name in search}
    results["asked"] = asked
    results["data"] = data_facts(data)
    if data.streaming and corpus.reports["train"].read:
        # A stream is counted while it is read, each epoch again.
        say(f"train, as far as the stream was read: {corpus.reports['train'].in_words(data.is_text)}")
    results["corpus"] = {split: dataclasses.asdict(report) for split, report in corpus.reports.items()}
    draw_curve(folder, step)
    return json.dumps(finite(results), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def score_test_split(trainer: VaswaniTrainer, task: str, data: AnyData) -> dict[str, Any] | None:
    """Loads the saved checkpoint, scores it on the test split, and writes its translations or trees.

    Args:
        trainer (VaswaniTrainer): The trainer after its training.
        task (str): The task of the recipe.
        data (DataSettings): The section of the recipe.

    Returns:
        dict: The scores; None without a test split.
    """
    folder, test = Path(trainer.args.output_dir), trainer.corpus.test_text
    if test is None:
        return None
    if task in TEXT_TASKS:
        return _scores_of_texts(trainer)
    if task == "parsing":
        return _scores_of_trees(trainer)
    translator = Translator.from_pretrained(str(folder), device=str(trainer.args.device))
    scores, translations = _test_scores(folder, translator, test, trainer.evaluation)
    if data.corpus == "numbers":
        scores["digits"] = _scores_by_digits(translator, test, translations)
    return scores


def _scores_of_texts(trainer: VaswaniTrainer) -> dict[str, Any]:
    folder, texts = Path(trainer.args.output_dir), cast(Dataset, trainer.corpus.test_text)["source"]
    model = load_model(folder, kinds=LANGUAGE_MODELS).to(trainer.args.device)
    tokenizer, _ = load_tokenizers(folder)
    scores = evaluate_texts(model, tokenizer, texts, tokens_per_batch=trainer.evaluation.tokens_per_batch)
    bits = f" · {scores['bits_per_byte']:.4f} bits per byte" if "bits_per_byte" in scores else ""
    say(f"test: perplexity {scores['perplexity']:.3f} · accuracy {scores['accuracy']:.2f} %{bits}")
    return scores


def _scores_of_trees(trainer: VaswaniTrainer) -> dict[str, Any]:
    folder, texts = Path(trainer.args.output_dir), cast(Dataset, trainer.corpus.test_text)["target"]
    parser = Parser.from_pretrained(str(folder), device=str(trainer.args.device))
    gold = [tree_of(text) if text else Tree((), (), ()) for text in texts]
    scores = evaluate_parser(parser, gold, tokens_per_batch=trainer.evaluation.tokens_per_batch)
    trees = scores.pop("trees")
    (folder / TREES_FILE).write_text(lines_of(trees), encoding="utf-8")
    say(
        f"test: F1 {scores['f1']:.2f} · precision {scores['precision']:.2f} · recall {scores['recall']:.2f} · exact match "
        f"{scores['exact_match']:.1f} %"
    )
    return scores


def _test_scores(
    folder: Path, translator: Translator, text: Dataset, evaluation: AnyEvaluation
) -> tuple[dict[str, Any], list[str]]:
    # The whole test set, as `vaswani evaluate` scores it: an empty source has an empty translation.
    scores = evaluate_translator(
        translator,
        list(text["source"]),
        list(text["target"]),
        tokenize=evaluation.tokenize,
        lowercase=evaluation.lowercase,
        tokens_per_batch=evaluation.tokens_per_batch,
    )
    translations = scores.pop("translations")
    # A text of JSON or CSV may have several lines, and its translation too.
    lines = [" ".join(translation.split("\n")) for translation in translations]
    (folder / TRANSLATIONS_FILE).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    say(
        f"test: BLEU {scores['bleu']:.2f} · chrF {scores['chrf']:.2f} · exact match {scores['exact_match']:.1f} % · "
        f"perplexity {scores['perplexity'] or math.nan:.3f}"
    )
    return scores, translations


def _scores_by_digits(translator: Translator, text: Dataset, translations: list[str]) -> dict[str, dict[str, Any]]:
    """The exact match per number of digits: of the test split, and of the short numbers that no split holds out."""
    short = range(SMALLEST_HELD_OUT)
    sources = [*map(english_words, short), *text["source"]]
    scores = exact_match_by(
        [num_digits(source) for source in sources],
        [*translator.translate(sources[: len(short)]), *translations],
        [*map(german_words, short), *text["target"]],
    )
    exact_matches = " · ".join(f"{digits}: {row['exact_match']:.1f} %" for digits, row in scores.items())
    say(f"exact match per number of digits: {exact_matches} (trained on all below {SMALLEST_HELD_OUT})")
    return {str(digits): {**row, "held_out": 10**digits > SMALLEST_HELD_OUT} for digits, row in scores.items()}


def _training_facts(trainer: VaswaniTrainer, metrics: list[dict[str, Any]]) -> dict[str, Any]:
    last = metrics[-1] if metrics else {}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "seed": trainer.args.seed,
        "dtype": "bfloat16" if trainer.training.bf16 is True else "float32",
        "steps": trainer.state.global_step or trainer.start_step,
        "epochs": last.get("epoch"),
        "target_tokens": int(trainer.target_tokens_seen),
        "seconds": last.get("seconds", 0.0),
        # Machine and versions, below, are those of the last part of a run that was resumed.
        "resumed_at_step": trainer.start_step or None,
        "hardware": hardware_name(trainer.args.device, trainer.args.world_size),
        "processes": trainer.args.world_size,
        "threads": torch.get_num_threads(),
        "versions": {
            "vaswani_hf": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "tokenizers", "datasets", "sacrebleu")},
        },
    }


def draw_curve(folder: Path, step: int) -> None:
    """Draws the picture of a run from its log.

    Args:
        folder (Path): The output folder.
        step (int): The last step of the run.
    """
    plot_training_curve(_metrics_until(folder, step), folder / CURVE_FILE)


def _metrics_until(folder: Path, step: int) -> list[dict[str, Any]]:
    return [row for row in read_metrics(folder / METRICS_FILE) if row["step"] <= step]


def plot_training_curve(metrics: list[dict[str, Any]], path: str | Path) -> None:
    """Draws training loss, validation loss and, where it was measured, validation BLEU over steps.

    Args:
        metrics (list): Rows of a metrics.jsonl.
        path (str or Path): The PNG, which is not written where there is nothing to draw.
    """
    # A run needs matplotlib only at its end.
    from matplotlib.figure import Figure

    curves = {"training loss, smoothed": "loss", "validation loss": "eval_loss", "validation BLEU": "eval_bleu"}
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="optimizer steps", ylabel="nats per target token")
    right = axes.twinx() if any("eval_bleu" in row for row in metrics) else axes
    for (label, name), color in zip(curves.items(), ("tab:gray", "tab:blue", "tab:orange"), strict=True):
        points = [(row["step"], row[name]) for row in metrics if row.get(name) is not None]
        if points:
            (right if name == "eval_bleu" else axes).plot(*zip(*points, strict=True), label=label, color=color)
    if not any(a.lines for a in (axes, right)):
        return
    if right is not axes:
        right.set_ylabel("BLEU")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(path, dpi=120)
