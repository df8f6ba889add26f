"""The model card: the README.md of a repository, made from the record of a run in the folder of its checkpoint.

The card of a checkpoint as a file of its own:

    from vaswani_hf.publish.model_card import model_card
    model_card("FOLDER", "user/name").save("model_cards/name.md")
"""

import json
import math
import re
from dataclasses import dataclass
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
from ..recipe.licenses import RESEARCH_ONLY, check_license
from ..recipe.published import is_folder_of_base, published_yaml, recorded_recipe
from ..settings.data import TEXT_TASKS, last_part
from .record import data_facts, read_record

# The sentences that the snippets translate, by the source language; none is from a corpus.
_EXAMPLES = {
    "en": "The model reads the whole sentence at once.",
    "de": "Das Modell liest den ganzen Satz auf einmal.",
    "fr": "Le modèle lit toute la phrase en une seule fois.",
}
_ANY_EXAMPLE = "Put a sentence of the source language here."


@dataclass(frozen=True)
class _TaskWords:
    """A task in the metadata of a card: the task in the Hub's terms, and its scores with their titles."""

    # None if the Hub has no such task.
    pipeline_tag: str | None
    task_type: str
    task_name: str
    tags: list[str]
    scores: dict[str, str]


_TRANSLATION = _TaskWords(
    pipeline_tag="translation",
    task_type="translation",
    task_name="Translation",
    tags=["translation", "vaswani", "transformer", "seq2seq"],
    scores={"bleu": "BLEU", "chrf": "chrF"},
)
_TASK_WORDS = {
    "translation": _TRANSLATION,
    "parsing": _TaskWords(
        pipeline_tag=None,
        task_type="constituency-parsing",
        task_name="Constituency parsing",
        tags=["constituency-parsing", "vaswani", "transformer", "seq2seq"],
        scores={"f1": "labelled bracketing F1"},
    ),
    "causal_lm": _TaskWords(
        pipeline_tag="text-generation",
        task_type="text-generation",
        task_name="Text generation",
        tags=["text-generation", "vaswani", "transformer"],
        scores={"perplexity": "perplexity per token", "accuracy": "accuracy"},
    ),
    "masked_lm": _TaskWords(
        pipeline_tag="fill-mask",
        task_type="fill-mask",
        task_name="Filling in hidden tokens",
        tags=["fill-mask", "vaswani", "transformer"],
        scores={"perplexity": "perplexity per token", "accuracy": "accuracy"},
    ),
}


def model_card(
    folder: str | Path, repo_id: str, *, license: str | None = None, base_model: str | None = None
) -> ModelCard:
    """The card of a checkpoint with the scores in its metadata. Facts without a record are "not known".

    The snippets load `repo_id`. `license` and `base_model` replace what the run has recorded.
    """
    folder = Path(folder)
    if base_model is not None:
        validate_repo_id(base_model)
    recipe, results, data = _record(folder)
    words = _TASK_WORDS[recipe.task] if recipe else _TRANSLATION
    chosen = license or (recipe.publishing.license if recipe else None)
    check_license(chosen, data.get("license"), "license" if license else "publishing.license")
    begun_with = recipe.model.bases() if recipe else []
    facts = {
        **_checkpoint_facts(folder),
        "training": results.get("training") or {},
        "test": results.get("test") or {},
        "decoding": results.get("decoding") or {},
        "corpus": results.get("corpus") or {},
        "weights_changed": results.get("weights_changed") or {},
        "data": data,
        "repo_id": repo_id,
        "name": repo_id.split("/")[-1],
        "license": chosen or data.get("license"),
        "is_chosen": chosen is not None,
        "is_recorded": bool(recipe or results),
        "is_finished": bool(results.keys() - {"average_of"}) and results.get("asked", {}) is not None,
        "average_of": results.get("average_of"),
        "base_model": base_model or _base_repositories(begun_with),
        "base_name": " and ".join(last_part(name) for name in begun_with) or None,
        "recipe": recipe,
        "recipe_yaml": (published_yaml(folder, license) or "").strip() or None,
        "example": json.dumps(_example(recipe, data), ensure_ascii=False),
    }
    try:
        card = ModelCard.from_template(_metadata(facts, words), template_str=_template(), **facts)
    except (AttributeError, TypeError, ValueError, TemplateError) as error:
        raise ValueError(
            f"The record '{folder / RESULTS_FILE}' must hold what `vaswani train` writes, but does not "
            f"({error}); restore it or remove it."
        ) from error
    # A part of the template that is left out leaves its empty lines.
    card.text = re.sub(r"\n{3,}", "\n\n", card.text).rstrip() + "\n"
    return card


def check_card(path: Path) -> None:
    """Refuse a card written by hand if it cannot be read, or if the training data does not allow its licence."""
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(
            f"The card '{path}' must be text in UTF-8, but is not; save it as UTF-8, or move it away to have one made."
        ) from None
    try:
        metadata = ModelCard(content).data
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(
            f"The card '{path}' must begin with YAML between two lines of ---, but that cannot be read: {error}"
        ) from error
    _, _, data = _record(path.parent)
    stated = metadata.get("license")
    if stated == "other" and metadata.get("license_name") == RESEARCH_ONLY:
        stated = RESEARCH_ONLY
    for license in stated if isinstance(stated, list) else [stated]:
        # The Hub refuses values that are no text.
        if isinstance(license, str):
            check_license(license, data.get("license"), "license")


def _record(folder: Path) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The recipe, the results and the facts of the data, as far as they are recorded."""
    recipe = recorded_recipe(folder)
    results = read_record(folder / RESULTS_FILE)
    data = data_facts(recipe.data) if recipe else results.get("data") or {}
    return recipe, results, data


def _base_repositories(begun_with: list[str]) -> str | list[str] | None:
    """The repositories among the models that a run began with, without their commits."""
    names = [name.partition("@")[0] for name in begun_with if not is_folder_of_base(name)]
    if len(names) == 1:
        return names[0]
    return names or None


def _template() -> str:
    package = Path(__file__).parents[1]
    # An installed package contains the folder of the template; in a checkout it lies beside the package.
    places = [folder / "model_cards" / "template.md" for folder in (package, package.parent)]
    return next(path for path in places if path.is_file()).read_text(encoding="utf-8")


def _example(recipe: Any, data: dict[str, Any]) -> str:
    if recipe is None:
        return _EXAMPLES.get(data.get("source_language") or "", _ANY_EXAMPLE)
    if recipe.task == "parsing":
        return "the dog sees the cat ."
    if recipe.task in TEXT_TASKS and recipe.data.corpus:
        return "twenty-three =" if recipe.task == "causal_lm" else "twenty-<mask> = dreiundzwanzig"
    if recipe.task in TEXT_TASKS:
        return "This is a" if recipe.task == "causal_lm" else "This is a <mask>."
    if recipe.data.corpus:
        return "four hundred and seventy-one thousand and five"
    return _EXAMPLES.get(recipe.data.source_language, _ANY_EXAMPLE)


def _metadata(facts: dict[str, Any], words: _TaskWords) -> ModelCardData:
    data = facts["data"]
    licenses = {"license": facts["license"]}
    if facts["license"] == RESEARCH_ONLY:
        licenses = {"license": "other", "license_name": RESEARCH_ONLY}
    languages = []
    for key in ("source_language", "target_language", "language"):
        # The Hub accepts codes of two or three letters: "de_AT" becomes "de".
        code = re.split("[-_]", data.get(key) or "")[0].lower()
        if re.fullmatch("[a-z]{2,3}", code) and code not in languages:
            languages.append(code)
    scores = _eval_results(facts, words)
    dataset = (data.get("train") or {}).get("dataset")
    return ModelCardData(
        language=languages or None,
        **licenses,
        base_model=facts["base_model"],
        datasets=[dataset] if dataset else None,
        pipeline_tag=words.pipeline_tag,
        library_name="transformers",
        tags=words.tags,
        metrics=[*words.scores] if scores else None,
        model_name=facts["name"] if scores else None,
        eval_results=scores or None,
    )


def _eval_results(facts: dict[str, Any], words: _TaskWords) -> list[EvalResult]:
    test = facts["test"]
    test_set = facts["data"].get("test") or {}
    config = test_set.get("config")
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
    """The facts in the files of the checkpoint."""
    generation = read_record(folder / GENERATION_FILE)
    return {
        "parameters": _count_parameters(folder),
        "shape": _shape(read_record(folder / CONFIG_FILE)),
        "generation": {name: generation[name] for name in DECODING_SETTINGS if name in generation},
        "has_curve": (folder / CURVE_FILE).is_file(),
        "has_target_tokenizer": (folder / TARGET_FOLDER).is_dir(),
    }


def _shape(config: dict[str, Any]) -> str:
    """The layers, sizes and kind of attention of a model in words."""
    depths = [str(config[key]) for key in ("encoder_layers", "decoder_layers") if key in config]
    # A language model has only one of the two.
    heads = config.get("encoder_attention_heads", config.get("decoder_attention_heads"))
    d_ff = config.get("encoder_ffn_dim", config.get("decoder_ffn_dim"))
    vocabularies = [config.get("vocab_size")]
    if not config.get("share_encoder_decoder_embeddings", True):
        vocabularies.append(config.get("decoder_vocab_size"))
    parts = [
        f"{' + '.join(depths) or None} layers",
        f"{heads} head{'' if heads == 1 else 's'}",
        f"d_model {config.get('d_model')}",
        f"d_ff {d_ff}",
        f"vocabulary {' and '.join(f'{size:,}' for size in vocabularies if size)}",
    ]
    for name in ("attention_score", "cross_attention_score", "attention_window"):
        if config.get(name) not in (None, "scaled_dot"):
            parts.append(f"`{name}` {config[name]}")
    return ", ".join(parts)


def _count_parameters(folder: Path) -> int:
    total = 0
    for name in weight_files(folder):
        if name == INDEX_FILE or not (folder / name).is_file():
            continue
        with safe_open(folder / name, framework="pt") as weights:
            for key in weights.keys():  # noqa: SIM118
                total += math.prod(weights.get_slice(key).get_shape())
    return total
