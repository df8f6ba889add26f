"""The model card: the README.md of a repository, made from what the run has recorded beside the checkpoint.

The card of a checkpoint as a file of its own:

    python -c "from vaswani_hf.publish.model_card import model_card; model_card('FOLDER', 'user/name').save('model_cards/name.md')"
"""

import json
import math
import re
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.utils import validate_repo_id
from safetensors import safe_open

from ..checkpoint.loading import INDEX_FILE, weight_files
from ..data.number_words import english_words
from ..model.repository_vaswani import TARGET_FOLDER
from ..recipe import Recipe
from ..recipe.licenses import RESEARCH_ONLY, check_allowed, license_of_model
from .record import (
    CURVE_FILE,
    RECIPE_FILE,
    RESULTS_FILE,
    counted,
    data_facts,
    published_yaml,
    read_record,
    read_results,
    recorded_recipe,
)

# What the snippets translate, by the source language; none is from a corpus.
_EXAMPLES = {
    "en": "The model reads the whole sentence at once.",
    "de": "Das Modell liest den ganzen Satz auf einmal.",
    "fr": "Le modèle lit toute la phrase en une seule fois.",
}
_ANY_EXAMPLE = "Put a sentence of the source language here."
_DECODING_FIELDS = """
    num_beams length_penalty length_penalty_type max_length_a max_length_b max_length max_new_tokens early_stopping
    do_sample
""".split()


def model_card(
    folder: str | Path, repo_id: str, *, license: str | None = None, base_model: str | None = None
) -> ModelCard:
    """The card of a checkpoint; what its run has not recorded is said to be not known.

    Args:
        folder (str or Path): A checkpoint: `config.json`, and as far as they are there `recipe.yaml`, `results.json`,
            `generation_config.json`, `training_curve.png` and the weights.
        repo_id (str): The repository that the snippets load, user/name.
        license (str, optional): The licence to publish under, an identifier of the Hub or "research-only"; by default the
            recipe's, or else that of the training data.
        base_model (str, optional): The repository whose model this one was made from, if it was.

    Returns:
        ModelCard: Its metadata carries the scores; `str` of it is the README.md.

    Raises:
        ValueError: If the record cannot be read, the training data does not allow the licence, or the base model is no
            name of a repository.
    """
    folder = Path(folder)
    if base_model is not None:
        validate_repo_id(base_model)
    recipe, results = recorded_recipe(folder / RECIPE_FILE), read_results(folder / RESULTS_FILE)
    data = _recorded_data(recipe, results)
    chosen = license or (recipe.publishing.license if recipe else None)
    check_allowed(chosen, data.get("license"), "license" if license else "publishing.license")
    facts = {
        **_checkpoint_facts(folder, results),
        **_training_facts(recipe, results.get("training") or {}),
        **_score_facts(results),
        **_data_facts(recipe, data, results.get("corpus") or {}),
        "repo_id": repo_id,
        "name": repo_id.split("/")[-1],
        "license": license_of_model(chosen, data.get("license")),
        "is_chosen": chosen is not None,
        "is_recorded": bool(recipe or results),
        "is_finished": bool(results),
        "base_model": base_model,
        "recipe": published_yaml(folder / RECIPE_FILE).strip() if recipe else None,
    }
    card = ModelCard.from_template(_metadata(facts, results, data), template_str=_template(), **facts)
    # Where a part is left out, its empty lines are not.
    card.text = re.sub(r"\n{3,}", "\n\n", card.text).rstrip() + "\n"
    return card


def read_card(path: str | Path) -> str:
    """The text of a card that somebody wrote.

    Args:
        path (str or Path): The README.md.

    Returns:
        str: The text.

    Raises:
        ValueError: If it is not text in UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(
            f"The card '{path}' must be text in UTF-8, but is not; save it as UTF-8, or move it away to have one made."
        ) from None


def check_card(folder: str | Path, content: str) -> None:
    """Refuse a card that somebody wrote if the training data does not allow its licence.

    Args:
        folder (str or Path): The checkpoint, with what its run has recorded.
        content (str): The README.md.

    Raises:
        ValueError: If the record cannot be read, or the training data does not allow the licence.
    """
    recipe, results = recorded_recipe(Path(folder) / RECIPE_FILE), read_results(Path(folder) / RESULTS_FILE)
    try:
        metadata = ModelCard(content, ignore_metadata_errors=True).data
    except (ValueError, yaml.YAMLError):
        # What is wrong with it the Hub says, before anything is pushed.
        return
    stated = metadata.get("license")
    for license in stated if isinstance(stated, list) else [stated]:
        if isinstance(license, str):
            is_ours = license == "other" and metadata.get("license_name") == RESEARCH_ONLY
            data = _recorded_data(recipe, results)
            check_allowed(RESEARCH_ONLY if is_ours else license, data.get("license"), "license")


def _recorded_data(recipe: Recipe | None, results: dict[str, Any]) -> dict[str, Any]:
    return data_facts(recipe.data) if recipe else results.get("data") or {}


def _template() -> str:
    package = Path(__file__).parents[1]
    # In an installed package it lies inside, in a checkout beside it.
    places = [folder / "model_cards" / "template.md" for folder in (package, package.parent)]
    return next(path for path in places if path.is_file()).read_text(encoding="utf-8")


def _metadata(facts: dict[str, Any], results: dict[str, Any], data: dict[str, Any]) -> ModelCardData:
    licenses = {"license": facts["license"]}
    if facts["license"] == RESEARCH_ONLY:
        licenses = {"license": "other", "license_name": RESEARCH_ONLY}
    scores, trained_on = _eval_results(results, data.get("test") or {}), data.get("train") or {}
    return ModelCardData(
        language=_language_codes(data) or None,
        **licenses,
        base_model=facts["base_model"],
        datasets=[trained_on["dataset"]] if "dataset" in trained_on else None,
        pipeline_tag="translation",
        library_name="transformers",
        tags=["translation", "vaswani", "transformer", "seq2seq"],
        metrics=["bleu", "chrf"] if scores else None,
        model_name=facts["name"] if scores else None,
        eval_results=scores or None,
    )


def _language_codes(data: dict[str, Any]) -> list[str]:
    """The languages that have a code of two or three letters, as the Hub wants it: "de_AT" is "de"."""
    given = [data.get("source_language") or "", data.get("target_language") or ""]
    codes = [re.split("[-_]", language)[0].lower() for language in given]
    return [code for code in dict.fromkeys(codes) if re.fullmatch("[a-z]{2,3}", code)]


def _eval_results(results: dict[str, Any], test_set: dict[str, Any]) -> list[EvalResult]:
    test = results.get("test") or {}
    config = test_set.get("config")
    return [
        EvalResult(
            task_type="translation",
            task_name="Translation",
            dataset_type=test_set.get("dataset") or test_set.get("name") or "unknown",
            dataset_name=test_set.get("name", "unknown") + (f" ({config})" if config else ""),
            dataset_config=config,
            dataset_split=test_set.get("split"),
            dataset_revision=test_set.get("revision"),
            metric_type=name,
            metric_name=title,
            metric_value=round(test[name], 2),
            metric_args={"signature": test.get(f"{name}_signature"), **(results.get("decoding") or {})},
        )
        for name, title in (("bleu", "BLEU"), ("chrf", "chrF"))
        if test.get(name) is not None
    ]


def _checkpoint_facts(folder: Path, results: dict[str, Any]) -> dict[str, Any]:
    """What the files of the checkpoint say."""
    config, generation = read_record(folder / "config.json"), read_record(folder / "generation_config.json")
    parameters = (results.get("training") or {}).get("parameters") or _count_parameters(folder)
    return {
        "parameters": f"{parameters:,}" if parameters else None,
        "shape": _shape(config),
        "generation": _settings({name: generation[name] for name in _DECODING_FIELDS if name in generation}),
        "has_curve": (folder / CURVE_FILE).is_file(),
        "has_target_tokenizer": (folder / TARGET_FOLDER).is_dir(),
    }


def _shape(config: dict[str, Any]) -> str:
    layers = f"{config.get('encoder_layers')} + {config.get('decoder_layers')} layers"
    heads = counted(config.get("encoder_attention_heads", 0), "head")
    shared = config.get("share_encoder_decoder_embeddings", True)
    sizes = [config.get("vocab_size")] + ([] if shared else [config.get("decoder_vocab_size")])
    vocabulary = " and ".join(f"{size:,}" for size in sizes if size)
    return f"{layers}, {heads}, d_model {config.get('d_model')}, d_ff {config.get('encoder_ffn_dim')}, vocabulary {vocabulary}"


def _count_parameters(folder: Path) -> int:
    total = 0
    for name in weight_files(folder):
        if name == INDEX_FILE or not (folder / name).is_file():
            continue
        with safe_open(folder / name, framework="pt") as weights:
            total += sum(math.prod(weights.get_slice(key).get_shape()) for key in weights.keys())  # noqa: SIM118
    return total


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"`{name}` {json.dumps(value)}" for name, value in settings.items() if value is not None)


def _training_facts(recipe: Recipe | None, training: dict[str, Any]) -> dict[str, Any]:
    seconds, steps = training.get("seconds"), training.get("steps")
    hours = f"{seconds / 3600:.2f} hours" if seconds and seconds >= 360 else f"{seconds} seconds"
    return {
        "steps": f"{steps:,}" + _of_at_most(recipe, steps) if steps else None,
        "target_tokens": f"{training['target_tokens']:,}" if training.get("target_tokens") else None,
        "epochs": training.get("epochs"),
        "final_weights": _final_weights(recipe, training),
        "time": hours if seconds else None,
        "hardware": training.get("hardware"),
        "seed": str(training.get("seed", recipe.seed if recipe else "")),
        "versions": ", ".join(f"{name} {version}" for name, version in (training.get("versions") or {}).items()),
        "date": training.get("date"),
        "resumed_at_step": training.get("resumed_at_step"),
    }


def _of_at_most(recipe: Recipe | None, steps: int) -> str:
    if recipe is None or not recipe.training.early_stopping_patience:
        return ""
    most = recipe.training.max_steps
    return f" of at most {most:,}; validation got no better" if most and steps < most else ""


def _final_weights(recipe: Recipe | None, training: dict[str, Any]) -> str | None:
    if not training or recipe is None:
        return None
    if training.get("averaged_steps"):
        return f"mean of the checkpoints of the steps {', '.join(f'{step:,}' for step in training['averaged_steps'])}"
    if recipe.training.average_checkpoints:
        return f"mean of the last {recipe.training.average_checkpoints} checkpoints"
    if recipe.training.early_stopping_patience:
        return f"the checkpoint with the best validation {recipe.training.metric_for_best_model}"
    return "those of the last step"


def _score_facts(results: dict[str, Any]) -> dict[str, Any]:
    test = results.get("test") or {}
    numbers = {
        name: f"{test[name]:.2f}"
        for name in ("bleu", "chrf", "exact_match", "perplexity")
        if test.get(name) is not None
    }
    return {
        **numbers,
        "bleu_signature": test.get("bleu_signature"),
        "chrf_signature": test.get("chrf_signature"),
        "sentences": f"{test.get('sentences', 0):,}",
        "decoding": _settings(results.get("decoding") or {}),
    }


def _data_facts(recipe: Recipe | None, data: dict[str, Any], counts: dict[str, Any]) -> dict[str, Any]:
    source_language = data.get("source_language")
    corpus = recipe.data.corpus if recipe else None
    example = english_words(471_005) if corpus else _EXAMPLES.get(source_language or "", _ANY_EXAMPLE)
    return {
        "source_language": source_language,
        "target_language": data.get("target_language"),
        "data_license": data.get("license"),
        "attribution": data.get("attribution"),
        "corpus": corpus,
        "max_length": recipe.data.max_length if recipe else None,
        "lowercase": recipe.tokenizer.lowercase if recipe else None,
        "example": json.dumps(example, ensure_ascii=False),
        **{f"{split}_data": _split_text(data.get(split)) for split in ("train", "validation", "test")},
        **{f"{split}_pairs": _pairs_text(counts.get(split)) for split in ("train", "validation")},
    }


def _split_text(split: dict[str, Any] | None) -> str | None:
    if not split:
        return None
    text = " and ".join(f"`{name}`" for name in split.get("files") or [split.get("name", "unknown")])
    if "config" in split:
        text += f", configuration `{split['config']}`"
    if "split" in split:
        text += f", split `{split['split']}`"
    if "dataset" in split:
        text += (
            f" at {'revision `' + split['revision'] + '`' if 'revision' in split else 'a revision that is not known'}"
        )
    return text


def _pairs_text(counts: dict[str, int] | None) -> str | None:
    # A stream that is read in parts counts nothing.
    return f"{counts['kept']:,} of {sum(counts.values()):,} sentence pairs" if counts and counts.get("kept") else None
