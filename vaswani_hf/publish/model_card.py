"""The model card: the README.md of a repository, made from the record that a run has left beside the checkpoint.

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
from jinja2 import TemplateError
from safetensors import safe_open

from ..checkpoint.decoding import DECODING_SETTINGS
from ..checkpoint.files import (
    CONFIG_FILE,
    CURVE_FILE,
    GENERATION_FILE,
    INDEX_FILE,
    RESULTS_FILE,
    weight_files,
)
from ..model.configuration_vaswani import TARGET_FOLDER
from ..recipe.licenses import RESEARCH_ONLY, UNCERTAIN, check_allowed
from ..recipe.published import base_repositories, bases, card_words, last_part
from ..recipe.schema import TEXT_TASKS, Recipe
from .record import data_facts, published_yaml, read_record, recorded_recipe

# The sentences that the snippets translate, by the source language; none is from a corpus.
_EXAMPLES = {
    "en": "The model reads the whole sentence at once.",
    "de": "Das Modell liest den ganzen Satz auf einmal.",
    "fr": "Le modèle lit toute la phrase en une seule fois.",
}
_ANY_EXAMPLE = "Put a sentence of the source language here."


def model_card(
    folder: str | Path, repo_id: str, *, license: str | None = None, base_model: str | None = None
) -> ModelCard:
    """The card of a checkpoint, with the scores in its metadata; facts that its run has not recorded are "not known".

    Args:
        folder (str or Path): A checkpoint: `config.json`, and as far as they are there `recipe.yaml`, `results.json`,
            `generation_config.json`, `training_curve.png` and the weights.
        repo_id (str): The repository that the snippets load, user/name.
        license (str, optional): The licence to publish under, an identifier of the Hub or "research-only"; by default the
            recipe's, or else that of the training data.
        base_model (str, optional): The repository whose model this one was made from; by default that which the run began with.

    Raises:
        ValueError: If the record cannot be read, the training data does not allow the licence, or the base model is no
            name of a repository.
    """
    folder = Path(folder)
    if base_model is not None:
        validate_repo_id(base_model)
    recipe, results, data = _record(folder)
    chosen = license or (recipe.publishing.license if recipe else None)
    check_allowed(chosen, data.get("license"), "license" if license else "publishing.license")
    begun = base_repositories(recipe) if recipe else []
    facts = {
        **_checkpoint_facts(folder),
        **{name: results.get(name) or {} for name in ("training", "test", "decoding", "corpus", "weights_changed")},
        "data": data,
        "repo_id": repo_id,
        "name": repo_id.split("/")[-1],
        "license": chosen or (None if data.get("license") in UNCERTAIN else data.get("license")),
        "is_chosen": chosen is not None,
        "is_recorded": bool(recipe or results),
        "is_finished": bool(results.keys() - {"average_of"}) and results.get("asked", {}) is not None,
        "average_of": results.get("average_of"),
        "base_model": base_model or (begun[0] if len(begun) == 1 else begun or None),
        "base_name": " and ".join(map(last_part, bases(recipe))) or None if recipe else None,
        "recipe": recipe,
        "recipe_yaml": (published_yaml(folder, license) or "").strip() or None,
        "example": json.dumps(_example(recipe, data), ensure_ascii=False),
    }
    try:
        card = ModelCard.from_template(_metadata(facts), template_str=_template(), **facts)
    except (AttributeError, TypeError, ValueError, TemplateError) as error:
        raise ValueError(
            f"The record '{folder / RESULTS_FILE}' must hold what `vaswani train` writes, but does not ({error}); restore it or "
            "remove it."
        ) from error
    # A part that is left out leaves its empty lines.
    card.text = re.sub(r"\n{3,}", "\n\n", card.text).rstrip() + "\n"
    return card


def check_card(path: Path) -> None:
    """Refuse a card that somebody wrote if it is no text, or if the training data does not allow its licence.

    Args:
        path (Path): The README.md of a checkpoint.

    Raises:
        ValueError: If it, or the record beside it, cannot be read, or the training data does not allow its licence.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(
            f"The card '{path}' must be text in UTF-8, but is not; save it as UTF-8, or move it away to have one made."
        ) from None
    _, _, data = _record(path.parent)
    try:
        metadata = ModelCard(content, ignore_metadata_errors=True).data
    except (ValueError, yaml.YAMLError):
        # The Hub says what is wrong with it, before anything is pushed.
        return
    stated = metadata.get("license")
    for license in stated if isinstance(stated, list) else [stated]:
        if isinstance(license, str):
            is_ours = license == "other" and metadata.get("license_name") == RESEARCH_ONLY
            check_allowed(RESEARCH_ONLY if is_ours else license, data.get("license"), "license")


def _record(folder: Path) -> tuple[Recipe | None, dict[str, Any], dict[str, Any]]:
    """The recipe, the results and the facts of the data, as far as they were recorded."""
    recipe, results = recorded_recipe(folder), read_record(folder / RESULTS_FILE)
    return recipe, results, data_facts(recipe.data) if recipe else results.get("data") or {}


def _template() -> str:
    package = Path(__file__).parents[1]
    # In an installed package it lies inside, in a checkout beside it.
    places = [folder / "model_cards" / "template.md" for folder in (package, package.parent)]
    return next(path for path in places if path.is_file()).read_text(encoding="utf-8")


def _example(recipe: Recipe | None, data: dict[str, Any]) -> str:
    if recipe and recipe.task == "parsing":
        return "the dog sees the cat ."
    if recipe and recipe.task in TEXT_TASKS and recipe.data.corpus:
        return "twenty-three =" if recipe.task == "causal_lm" else "twenty-<mask> = dreiundzwanzig"
    if recipe and recipe.task in TEXT_TASKS:
        return "This is a" if recipe.task == "causal_lm" else "This is a <mask>."
    if recipe and recipe.data.corpus:
        return "four hundred and seventy-one thousand and five"
    return _EXAMPLES.get(data.get("source_language") or "", _ANY_EXAMPLE)


def _metadata(facts: dict[str, Any]) -> ModelCardData:
    licenses, data = {"license": facts["license"]}, facts["data"]
    if facts["license"] == RESEARCH_ONLY:
        licenses = {"license": "other", "license_name": RESEARCH_ONLY}
    # The Hub wants codes of two or three letters: "de_AT" is "de".
    sides, words = ("source_language", "target_language", "language"), card_words(facts["recipe"])
    given = [re.split("[-_]", data.get(side) or "")[0].lower() for side in sides]
    scores, trained_on = _eval_results(facts), data.get("train") or {}
    return ModelCardData(
        language=[code for code in dict.fromkeys(given) if re.fullmatch("[a-z]{2,3}", code)] or None,
        **licenses,
        base_model=facts["base_model"],
        datasets=[trained_on["dataset"]] if "dataset" in trained_on else None,
        pipeline_tag=words.pipeline_tag,
        library_name="transformers",
        tags=words.tags,
        metrics=[*words.scores] if scores else None,
        model_name=facts["name"] if scores else None,
        eval_results=scores or None,
    )


def _eval_results(facts: dict[str, Any]) -> list[EvalResult]:
    test, test_set = facts["test"], facts["data"].get("test") or {}
    config, words = test_set.get("config"), card_words(facts["recipe"])
    return [
        EvalResult(
            task_type=words.task_type,
            task_name=words.task_name,
            dataset_type=test_set.get("dataset") or test_set.get("name") or "unknown",
            dataset_name=test_set.get("name", "unknown") + (f" ({config})" if config else ""),
            dataset_config=config,
            dataset_split=test_set.get("split"),
            dataset_revision=test_set.get("revision"),
            metric_type=name,
            metric_name=title,
            metric_value=round(test[name], 2),
            metric_args={"signature": test.get(f"{name}_signature"), **facts["decoding"]},
        )
        for name, title in words.scores.items()
        if test.get(name) is not None
    ]


def _checkpoint_facts(folder: Path) -> dict[str, Any]:
    """The facts that the files of the checkpoint tell."""
    config, generation = read_record(folder / CONFIG_FILE), read_record(folder / GENERATION_FILE)
    depths = [config[key] for key in ("encoder_layers", "decoder_layers") if key in config]
    heads, width = (
        config.get(f"encoder_{key}", config.get(f"decoder_{key}")) for key in ("attention_heads", "ffn_dim")
    )
    shared = config.get("share_encoder_decoder_embeddings", True)
    sizes = [config.get("vocab_size")] + ([] if shared else [config.get("decoder_vocab_size")])
    fields = ("attention_score", "cross_attention_score", "attention_window")
    others = [f", `{name}` {config[name]}" for name in fields if config.get(name) not in (None, "scaled_dot")]
    return {
        "parameters": _count_parameters(folder),
        "shape": f"{' + '.join(map(str, depths)) or None} layers, "
        f"{heads} head{'' if heads == 1 else 's'}, d_model {config.get('d_model')}, d_ff {width}, "
        f"vocabulary {' and '.join(f'{size:,}' for size in sizes if size)}{''.join(others)}",
        "generation": {name: generation[name] for name in DECODING_SETTINGS if name in generation},
        "has_curve": (folder / CURVE_FILE).is_file(),
        "has_target_tokenizer": (folder / TARGET_FOLDER).is_dir(),
    }


def _count_parameters(folder: Path) -> int:
    total = 0
    for path in (folder / name for name in weight_files(folder) if name != INDEX_FILE):
        if path.is_file():
            with safe_open(path, framework="pt") as weights:
                total += sum(math.prod(weights.get_slice(key).get_shape()) for key in weights.keys())  # noqa: SIM118
    return total
