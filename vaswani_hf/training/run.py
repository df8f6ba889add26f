"""From a recipe to a scored checkpoint."""

import dataclasses
import json
import math
import os
import platform
import shlex
import shutil
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import EarlyStoppingCallback, GenerationConfig, PrinterCallback, Seq2SeqTrainingArguments, set_seed
from transformers.integrations import get_available_reporting_integrations

from ..checkpoint.files import CURVE_FILE, RECIPE_FILE, RESULTS_FILE
from ..checkpoint.hub import HubError
from ..checkpoint.tokenizers import save_tokenizers
from ..data.corpus import Corpus, load_corpus, pin_dataset
from ..evaluation.evaluate import evaluate_translator
from ..model.configuration_vaswani import VaswaniConfig
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..publish.during_training import PushCheckpointsCallback, fetch_checkpoints
from ..publish.push import Destination, check_destination, push_checkpoint
from ..publish.record import data_facts
from ..recipe.schema import Recipe, load_recipe, published_recipe
from ..translation.translator import Translator
from ..version import __version__
from .averaging import average_checkpoints, checkpoints_in
from .hardware import hardware_name
from .plots import plot_training_curve
from .trainer import (
    METRICS_FILE,
    STATE_FILE,
    STREAM_FILE,
    CompleteCheckpoint,
    EndlessBatches,
    RunLog,
    StopOnSignal,
    VaswaniTrainer,
    read_metrics,
    step_of,
)

TRANSLATIONS_FILE = "test_translations.txt"

# What a resumed run may change: where things are and how often something is done, not what is computed.
FREE_TO_CHANGE = """
    output_dir data.train_source data.train_target data.train_pairs data.validation_source data.validation_target
    data.validation_pairs data.test_source data.test_target data.test_pairs data.num_proc data.license data.attribution
    training.max_steps
    training.num_train_epochs training.logging_steps training.eval_steps training.save_steps
    training.save_total_limit training.average_checkpoints training.early_stopping_patience training.report_to
    training.dataloader_num_workers training.resume
""".split()
FREE_SECTIONS = ("decoding", "evaluation", "publishing")


class InterruptedRunError(Exception):
    """A signal ended the training after a checkpoint was saved; the message says how to continue."""


def train(recipe: Recipe) -> dict[str, Any]:
    """Run a recipe: data, tokenizer, model, training, checkpoint, scores on the test split.

    The same recipe gives the same weights on the same machine; a resumed run those of an uninterrupted one.

    Args:
        recipe (Recipe): The run.

    Returns:
        dict: What results.json says.

    Raises:
        InterruptedRunError: If a signal ended the training early.
    """
    # Without the word, transformers starts no process group where there is no accelerator.
    state, folder = PartialState(cpu=not torch.accelerator.is_available()), Path(recipe.output_dir)
    with state.main_process_first():
        if state.is_main_process and recipe.training.resume and recipe.publishing.hub_model_id:
            fetch_checkpoints(folder, recipe.publishing.hub_model_id, recipe.training)
    recipe = pin_dataset(recipe, _earlier_recipe(recipe))
    checkpoint = find_checkpoint(recipe)
    if is_finished(recipe):
        if state.is_main_process:
            print(f"the run in '{folder}' is finished; nothing is left to do", flush=True)
            publish(recipe, _earlier_recipe(recipe))
        return _results(folder)
    _check_reporters(recipe)
    if recipe.publishing.push_to_hub and state.is_main_process:
        # Who may not push should know before the training, not after it.
        check_destination(Destination(recipe.publishing.hub_model_id or "", recipe.publishing.hub_private_repo))
    folder.mkdir(parents=True, exist_ok=True)
    with state.main_process_first():
        corpus = load_corpus(recipe, folder, new_tokenizers=checkpoint is None and state.is_main_process)
    if state.is_main_process:
        (folder / RECIPE_FILE).write_text(recipe.to_yaml(), encoding="utf-8")
        for split, report in corpus.reports.items():
            if report.read:
                print(f"{split}: {report}", flush=True)
    # Before the model is built: its weights are drawn now.
    set_seed(recipe.seed)
    model = build_model(recipe, corpus)
    trainer = make_trainer(recipe, corpus, model, checkpoint)
    if checkpoint is None or step_of(checkpoint) < trainer.args.max_steps:
        run_training(trainer, checkpoint)
    state.wait_for_everyone()
    if state.is_main_process:
        finish_model(trainer, checkpoint)
        save_model(model, corpus, folder)
        write_results(recipe, trainer, corpus)
    state.wait_for_everyone()
    if state.is_main_process:
        # After the last wait of the others, which has an end.
        publish(recipe)
    return _results(folder)


def publish(recipe: Recipe, recorded: Recipe | None = None) -> None:
    """Push a finished run, if its recipe says so.

    Args:
        recipe (Recipe): The run.
        recorded (Recipe, optional): What the run recorded of itself when it was finished at an earlier time; the licences
            are those that are asked for now.

    Raises:
        HubError: If that is not possible; the run is finished all the same.
    """
    if not recipe.publishing.push_to_hub:
        return
    folder, repo_id = recipe.output_dir, recipe.publishing.hub_model_id or ""
    private = recipe.publishing.hub_private_repo
    if recorded is not None:
        data = dataclasses.replace(recorded.data, license=recipe.data.license, attribution=recipe.data.attribution)
        recorded = dataclasses.replace(recorded, data=data, publishing=recipe.publishing)
        Path(folder, RECIPE_FILE).write_text(recorded.to_yaml(), encoding="utf-8")
    try:
        push_checkpoint(folder, repo_id, private=private)
    except HubError as error:
        again = f"vaswani push {shlex.quote(folder)} {repo_id}{' --private' if private else ''}"
        raise HubError(f"{error} The trained checkpoint is complete in '{folder}'; push it with `{again}`.") from error


def _earlier_recipe(recipe: Recipe) -> Recipe | None:
    """What the run that is to be resumed has recorded."""
    path = Path(recipe.output_dir) / RECIPE_FILE
    return load_recipe(path) if recipe.training.resume and path.is_file() else None


def _results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / RESULTS_FILE).read_text(encoding="utf-8"))


def is_finished(recipe: Recipe) -> bool:
    """Whether the recipe's output folder holds the result of a run of as many steps as the recipe asks for.

    Args:
        recipe (Recipe): The run.

    Returns:
        bool: True if so.
    """
    folder = Path(recipe.output_dir)
    if not (folder / RESULTS_FILE).exists() or not (folder / "model.safetensors").exists():
        return False
    asked = [recipe.training.max_steps, recipe.training.num_train_epochs]
    return _results(folder)["training"].get("asked_steps_and_epochs") == asked


def _check_reporters(recipe: Recipe) -> None:
    available = get_available_reporting_integrations()
    for name in recipe.training.report_to:
        if name not in available:
            raise ValueError(
                f"`training.report_to` must name what is installed ({', '.join(available) or 'nothing is'}), but has {name!r}."
            )


def find_checkpoint(recipe: Recipe) -> Path | None:
    """The newest complete checkpoint of the run in the recipe's output folder.

    Args:
        recipe (Recipe): The run.

    Returns:
        Path: Its folder; None where nothing was trained yet.

    Raises:
        ValueError: If there is an earlier run and the recipe does not say to resume it, or is another recipe.
    """
    folder = Path(recipe.output_dir)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`output_dir` must be a folder, but '{folder}' is a file.")
    complete = [path for path in checkpoints_in(folder) if _is_complete(path, recipe.data.streaming)]
    if not complete and not (folder / "model.safetensors").exists():
        return None
    if not recipe.training.resume:
        raise ValueError(
            f"`output_dir` '{folder}' holds an earlier run; continue it with `--resume true` or choose another "
            "`--output_dir`."
        )
    if (folder / RECIPE_FILE).exists():
        _refuse_another_recipe(recipe, load_recipe(folder / RECIPE_FILE))
    if not complete and not is_finished(recipe):
        raise ValueError(
            f"`output_dir` '{folder}' holds a finished model, but no checkpoint to continue from; choose another "
            "`--output_dir`."
        )
    return complete[-1] if complete else None


def _is_complete(checkpoint: Path, streaming: bool) -> bool:
    """Whether a checkpoint was saved to its end: the state is written last, and after it the place in the stream."""
    try:
        step_of(checkpoint)
    except (OSError, ValueError, KeyError):
        return False
    return not streaming or (checkpoint / STREAM_FILE).exists()


def _refuse_another_recipe(recipe: Recipe, earlier: Recipe) -> None:
    # On another machine the data may lie in another folder.
    now, before = (_flat(dataclasses.asdict(published_recipe(one))) for one in (recipe, earlier))
    for key in sorted(now.keys() | before.keys()):
        fixed = key not in FREE_TO_CHANGE and key.split(".")[0] not in FREE_SECTIONS
        if fixed and now.get(key) != before.get(key):
            raise ValueError(
                f"`{key}` is {now.get(key)!r}, but the run in '{recipe.output_dir}' that is to be resumed has "
                f"{before.get(key)!r}; give it the same value or choose another `--output_dir`."
            )


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def build_model(recipe: Recipe, corpus: Corpus) -> VaswaniForSeq2SeqLM:
    """The untrained model of a recipe, with the recipe's decoding settings.

    Args:
        recipe (Recipe): The run.
        corpus (Corpus): Its tokenizers say how many classes there are.

    Returns:
        VaswaniForSeq2SeqLM: Its weights drawn from PyTorch's generator as it stands.
    """
    source, target = corpus.source_tokenizer, corpus.target_tokenizer
    config = VaswaniConfig(
        **recipe.model,
        vocab_size=len(source),
        decoder_vocab_size=len(target),
        share_encoder_decoder_embeddings=source is target,
        bos_token_id=target.bos_token_id,
        pad_token_id=target.pad_token_id,
        eos_token_id=target.eos_token_id,
        decoder_start_token_id=target.bos_token_id,
    )
    model = VaswaniForSeq2SeqLM(config)
    model.generation_config = GenerationConfig.from_model_config(config)
    # Without the word it would leave out those that transformers does not know.
    model.generation_config.update(allow_custom_entries=True, **decoding_settings(recipe))
    return model


def decoding_settings(recipe: Recipe) -> dict[str, Any]:
    """What the recipe says of decoding, in the fields of a GenerationConfig.

    Args:
        recipe (Recipe): The run.

    Returns:
        dict: Fields by name; without those of beam search where there is one beam, which transformers refuses.
    """
    settings = dataclasses.asdict(recipe.decoding)
    if recipe.decoding.num_beams == 1:
        del settings["length_penalty"], settings["length_penalty_type"], settings["early_stopping"]
    return {name: value for name, value in settings.items() if value is not None}


def make_trainer(
    recipe: Recipe, corpus: Corpus, model: VaswaniForSeq2SeqLM, checkpoint: Path | None
) -> VaswaniTrainer:
    """The trainer of a recipe with its callbacks.

    Args:
        recipe (Recipe): The run.
        corpus (Corpus): Its data.
        model (VaswaniForSeq2SeqLM): What is trained.
        checkpoint (Path, optional): Where the run continues from.

    Returns:
        VaswaniTrainer: Ready for `train`.
    """
    training = recipe.training
    if training.gradient_checkpointing:
        # transformers 5.23 deprecates the name that earlier ones know.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable()
    trainer = VaswaniTrainer(
        recipe,
        corpus,
        checkpoint,
        model=model,
        args=training_arguments(recipe, 1),
        train_dataset=corpus.train,
        eval_dataset=corpus.validation,
    )
    if training.max_steps is not None:
        trainer.args.max_steps = training.max_steps
    elif isinstance(trainer.train_batches, EndlessBatches) and training.num_train_epochs is not None:
        batches = training.num_train_epochs * len(trainer.train_batches.sampler)
        trainer.args.max_steps = max(1, round(batches / training.gradient_accumulation_steps))
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(RunLog(trainer))
    trainer.add_callback(CompleteCheckpoint(trainer))
    if recipe.publishing.push_to_hub and recipe.publishing.hub_strategy != "end":
        trainer.add_callback(PushCheckpointsCallback(recipe.output_dir, recipe.publishing))
    if training.early_stopping_patience is not None:
        trainer.add_callback(EarlyStoppingCallback(training.early_stopping_patience))
    return trainer


def training_arguments(recipe: Recipe, max_steps: int) -> Seq2SeqTrainingArguments:
    """transformers' arguments for a recipe.

    Args:
        recipe (Recipe): The run.
        max_steps (int): Optimizer steps.

    Returns:
        Seq2SeqTrainingArguments: With data, seeds and schedule left to the recipe.
    """
    training = recipe.training
    early_stopping = training.early_stopping_patience is not None
    same_names = """
        gradient_accumulation_steps adam_beta1 adam_beta2 adam_epsilon max_grad_norm bf16 torch_compile
        logging_steps eval_steps save_steps save_total_limit
    """.split()
    return Seq2SeqTrainingArguments(
        **{name: getattr(training, name) for name in same_names},
        output_dir=recipe.output_dir,
        max_steps=max_steps,
        seed=recipe.seed,
        report_to=training.report_to or "none",
        # AdamW without weight decay is Adam (Section 5.3).
        optim="adamw_torch_fused",
        weight_decay=0.0,
        eval_strategy="steps" if has_validation(recipe) else "no",
        save_strategy="steps",
        load_best_model_at_end=early_stopping,
        # A best checkpoint would be kept in place of one of the last, which are averaged.
        metric_for_best_model=training.metric_for_best_model if early_stopping else None,
        greater_is_better=training.metric_for_best_model == "bleu",
        restore_callback_states_from_checkpoint=True,
        # The batches begin where the checkpoint ended; nothing is replayed.
        ignore_data_skip=True,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        use_cpu=not torch.accelerator.is_available(),
    )


def has_validation(recipe: Recipe) -> bool:
    """Whether the recipe names a validation split.

    Args:
        recipe (Recipe): The run.

    Returns:
        bool: True if so.
    """
    data = recipe.data
    named = data.dataset and data.validation_split
    return bool(data.corpus or data.validation_source or data.validation_pairs or named)


def run_training(trainer: VaswaniTrainer, checkpoint: Path | None) -> None:
    """Train to the end, or to the first signal.

    Args:
        trainer (VaswaniTrainer): Made by `make_trainer`.
        checkpoint (Path, optional): Where the run continues from.

    Raises:
        InterruptedRunError: If a signal ended the training early.
    """
    stop = StopOnSignal()
    trainer.add_callback(stop)
    if trainer.is_world_process_zero():
        parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
        device = trainer.args.device.type
        print(f"{parameters:,} parameters, {trainer.args.max_steps:,} steps on {device}", flush=True)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if stop.received:
        raise InterruptedRunError(
            f"Interrupted after step {trainer.state.global_step}, which is saved in '{trainer.args.output_dir}'; continue "
            "with `--resume true`."
        )


def finish_model(trainer: VaswaniTrainer, checkpoint: Path | None) -> None:
    """Give the model its final weights: averaged, the best, or the last ones.

    Args:
        trainer (VaswaniTrainer): After its training.
        checkpoint (Path, optional): The checkpoint of a run that had nothing left to train.
    """
    folder, number = Path(trainer.args.output_dir), trainer.recipe.training.average_checkpoints
    if number:
        last = checkpoints_in(folder)[-number:]
        print(f"averaging the last {len(last)} checkpoints", flush=True)
        _load_weights(trainer, average_checkpoints(last))
    elif trainer.state.global_step == 0 and checkpoint is not None:
        # Nothing was left to train: the run was stopped between its last step and its results.
        state = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
        best = state.get("best_model_checkpoint")
        early_stopping = trainer.recipe.training.early_stopping_patience is not None
        _load_weights(
            trainer, average_checkpoints([folder / Path(best).name if best and early_stopping else checkpoint])
        )


def _load_weights(trainer: VaswaniTrainer, weights: dict[str, torch.Tensor]) -> None:
    model = trainer.accelerator.unwrap_model(trainer.model)
    # Tied copies are not in a checkpoint; they follow the weight that they are tied to.
    outcome = model.load_state_dict(weights, strict=False)
    missing = set(outcome.missing_keys) - set(model.get_expanded_tied_weights_keys(all_submodels=True))
    if missing or outcome.unexpected_keys:
        raise ValueError(f"The checkpoint does not fit the model: {sorted(missing) + outcome.unexpected_keys}.")


def save_model(model: VaswaniForSeq2SeqLM, corpus: Corpus, folder: Path) -> None:
    """Write model and tokenizers into a folder, file by file complete or not at all.

    Args:
        model (VaswaniForSeq2SeqLM): What is saved.
        corpus (Corpus): Its tokenizers are saved too.
        folder (Path): The checkpoint's folder.
    """
    staging = folder / ".staging"
    shutil.rmtree(staging, ignore_errors=True)
    # Trainer switches it off for its own time.
    model.config.use_cache = True
    model.save_pretrained(staging)
    save_tokenizers(corpus.source_tokenizer, corpus.target_tokenizer, staging)
    for path in sorted(path for path in staging.rglob("*") if path.is_file()):
        target = folder / path.relative_to(staging)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)
    shutil.rmtree(staging)


def write_results(recipe: Recipe, trainer: VaswaniTrainer, corpus: Corpus) -> None:
    """Load the saved checkpoint, score it on the test split, and write results.json and the picture of the training.

    Args:
        recipe (Recipe): The run.
        trainer (VaswaniTrainer): After its training.
        corpus (Corpus): Its test split, if there is one.
    """
    folder = Path(recipe.output_dir)
    step = trainer.state.global_step or step_of(checkpoints_in(folder)[-1])
    metrics = [row for row in read_metrics(folder / METRICS_FILE) if row["step"] <= step]
    results: dict[str, Any] = {"training": _training_facts(recipe, trainer, metrics)}
    if corpus.test_text is not None:
        pairs = [pair for pair in corpus.test_text if pair["source"].strip() and pair["target"].strip()]
        scores = evaluate_translator(
            Translator.from_pretrained(str(folder), device=str(trainer.args.device)),
            [pair["source"] for pair in pairs],
            [pair["target"] for pair in pairs],
            tokenize=recipe.evaluation.tokenize,
            lowercase=recipe.evaluation.lowercase,
            tokens_per_batch=recipe.evaluation.tokens_per_batch,
        )
        translations = scores.pop("translations")
        (folder / TRANSLATIONS_FILE).write_text("".join(line + "\n" for line in translations), encoding="utf-8")
        results["test"] = scores
        print(
            f"test: BLEU {scores['bleu']:.2f} · chrF {scores['chrf']:.2f} · exact match {scores['exact_match']:.1f} % · "
            f"perplexity {scores['perplexity'] or math.nan:.3f}",
            flush=True,
        )
    config = trainer.accelerator.unwrap_model(trainer.model).generation_config
    results["decoding"] = {name: getattr(config, name) for name in decoding_settings(recipe)}
    results["data"] = data_facts(recipe.data)
    results["corpus"] = {split: dataclasses.asdict(report) for split, report in corpus.reports.items()}
    (folder / RESULTS_FILE).write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    plot_training_curve(metrics, folder / CURVE_FILE)


def _training_facts(recipe: Recipe, trainer: VaswaniTrainer, metrics: list[dict[str, Any]]) -> dict[str, Any]:
    last, training = metrics[-1] if metrics else {}, recipe.training
    averaged = (
        checkpoints_in(recipe.output_dir)[-training.average_checkpoints :] if training.average_checkpoints else []
    )
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "seed": recipe.seed,
        "asked_steps_and_epochs": [training.max_steps, training.num_train_epochs],
        "steps": last.get("step", 0),
        "epochs": last.get("epoch"),
        "target_tokens": last.get("target_tokens", 0),
        "seconds": last.get("seconds", 0.0),
        # What follows of the machine and the versions is that of the last part of the run.
        "resumed_at_step": trainer.start_step or None,
        "averaged_steps": [step_of(checkpoint) for checkpoint in averaged],
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "hardware": hardware_name(trainer.args.device, trainer.args.world_size),
        "processes": trainer.args.world_size,
        "threads": torch.get_num_threads(),
        "versions": {
            "vaswani_hf": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "tokenizers", "datasets", "sacrebleu")},
        },
    }
