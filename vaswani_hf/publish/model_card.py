"""Writes the model card (the README.md of a repository) from the files that a run has saved with its
checkpoint.

To write the card of a checkpoint to a file:

    from vaswani_hf.publish.model_card import model_card
    model_card("FOLDER", "user/name").save("model_cards/name.md")
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

from ..checkpoint.files import (
    ATTENTION_FILE,
    CERTIFICATE_FILE,
    CONFIG_FILE,
    CURVE_FILE,
    GENERATION_FILE,
    INDEX_FILE,
    LICENSE_FILE,
    weight_files,
)
from ..checkpoint.results import (
    ExampleRecord,
    OriginRecord,
    Results,
    check_scores,
    read_record,
    read_results,
)
from ..model.configuration_vaswani import TARGET_FOLDER
from ..model.inputs_vaswani import DECODING_SETTINGS
from ..packaged import packaged_folder
from ..recipe.data_record import data_record
from ..recipe.licenses import RESEARCH_ONLY, check_license
from ..recipe.published import is_folder_of_base, published_yaml, recorded_recipe
from ..settings.data import last_part
from ..tasks import TASKS, CardWords, Task
from ..version import INSTALL_INSTRUCTION, __version__
from .certificate import certificate_table, hashes_of_weights

# The maximum number of example texts in the metadata of a card.
NUM_WIDGETS = 3


def model_card(
    folder: str | Path, repo_id: str, *, license: str | None = None, base_model: str | None = None
) -> ModelCard:
    """Create the model card of a checkpoint. The metadata of the card has the scores. If a value, such as the
    hardware, is not in the files, the card says "not known".

    The code examples in the card load `repo_id`. `license` and `base_model` replace the values in the files
    of the run.
    """
    folder = Path(folder)
    if base_model is not None:
        validate_repo_id(base_model)
    recipe, results, data = _record(folder)
    test = _scores(results)
    chosen = license or (recipe.publishing.license if recipe else None)
    check_license(chosen, data.get("license"), "license" if license else "publishing.license")
    begun_with = recipe.model.bases() if recipe else []
    certificate = _certificate(folder)
    facts: dict[str, Any] = {
        **_checkpoint_facts(folder),
        "origin": results.origin,
        "training": results.training,
        "test": test,
        "examples": results.examples or [],
        "decoding": results.decoding or {},
        "corpus": results.corpus or {},
        "weights_changed": results.weights_changed,
        "data": data,
        "repo_id": repo_id,
        "install": INSTALL_INSTRUCTION,
        "version": __version__,
        "name": repo_id.split("/")[-1],
        "license": chosen or data.get("license"),
        "is_chosen": chosen is not None,
        "is_recorded": bool(recipe or results.model_fields_set - {"origin", "data"}),
        "is_finished": bool(results.model_fields_set - {"average_of", "origin", "data"})
        and results.asked is not None,
        "average_of": results.average_of,
        "base_model": base_model or _base_repositories(begun_with) or _repository_of(results.origin),
        "base_name": " and ".join(last_part(name) for name in begun_with) or None,
        "recipe": recipe,
        "recipe_yaml": (published_yaml(folder, license) or "").strip() or None,
        "certificate": certificate,
        "certificate_table": certificate_table(certificate) if certificate else None,
    }
    task = _task_of(folder, recipe, test)
    check_scores(folder, test, task.test_scores)
    words = task.card_words(data, recipe.data if recipe else None, test, repo_id)
    facts |= {
        "words": words,
        "example": json.dumps(words.example, ensure_ascii=False),
        "auto_class": task.model_class.__name__.replace("Vaswani", "AutoModel"),
        "in_table": _in_table,
        "has_search": bool(task.decoding_settings.model_fields),
    }
    card = ModelCard.from_template(_metadata(facts, task, words), template_str=_template(), **facts)
    # Remove repeated empty lines, which remain where the template leaves out a part.
    card.text = re.sub(r"\n{3,}", "\n\n", card.text).rstrip() + "\n"
    return card


def check_card(path: Path) -> None:
    """Raise an error if a handwritten card cannot be read, or if the licence of the training data does not
    permit the licence that the card states.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(
            f"The card '{path}' must be text in UTF-8, but is not; save it as UTF-8, or move it away to get "
            "a new card."
        ) from None
    try:
        metadata = ModelCard(content).data
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(
            f"The card '{path}' must begin with YAML between two lines of ---, but the YAML cannot be read: "
            f"{error}"
        ) from error
    _, _, data = _record(path.parent)
    stated = metadata.get("license")
    if stated == "other" and metadata.get("license_name") == RESEARCH_ONLY:
        stated = RESEARCH_ONLY
    for license in stated if isinstance(stated, list) else [stated]:
        # Check the licence only if its value is a str, because the Hub refuses all other values.
        if isinstance(license, str):
            check_license(license, data.get("license"), "license")


def _record(folder: Path) -> tuple[Any, Results, dict[str, Any]]:
    """Return the saved recipe (or None), the results, and the information about the data."""
    recipe = recorded_recipe(folder)
    results = read_results(folder)
    data = data_record(recipe.data) if recipe else results.data
    return recipe, results, data.as_json() if data else {}


def _scores(results: Results) -> dict[str, Any]:
    """Return the scores on the test split as a dict, because the names of the scores depend on the task."""
    return results.test.as_json() if results.test else {}


def _certificate(folder: Path) -> dict[str, Any]:
    """Return the certificate of a checkpoint. The result is empty if the checkpoint has no certificate, or if
    the certificate belongs to other weights.
    """
    certificate = read_record(folder / CERTIFICATE_FILE)
    return certificate if certificate.get("weights") == hashes_of_weights(folder) else {}


def _task_of(folder: Path, recipe: Any, test: dict[str, Any]) -> Task:
    """Return the task of a model. The task comes from the recipe or, if there is no recipe, from the model
    type and the names of the scores.
    """
    if recipe is not None:
        return TASKS[recipe.task]
    model_type = read_record(folder / CONFIG_FILE).get("model_type")
    of_model = [task for task in TASKS.values() if task.model_class.config_class.model_type == model_type]
    scored = [task for task in of_model if task.metrics.keys() <= test.keys()]
    return [*scored, *of_model, *TASKS.values()][0]


def pipeline_of(folder: Path) -> str | None:
    """Return the task for which `transformers.pipeline` can load a model. Return None if no pipeline can load
    the model.
    """
    recipe, results, data = _record(folder)
    test = _scores(results)
    task = _task_of(folder, recipe, test)
    check_scores(folder, test, task.test_scores)
    return task.card_words(data, recipe.data if recipe else None, test, "").pipeline


def _base_repositories(begun_with: list[str]) -> str | list[str] | None:
    """Return the names of the Hub repositories whose models a run started from. Leave out local folders, and
    remove the commit from each name.
    """
    names = [name.partition("@")[0] for name in begun_with if not is_folder_of_base(name)]
    if len(names) == 1:
        return names[0]
    return names or None


def _repository_of(origin: OriginRecord | None) -> str | None:
    """Return the repository from which the weights were imported, without the revision. Return None for a
    local folder.
    """
    return origin.name.partition("@")[0] if origin and origin.is_on_hub else None


def _template() -> str:
    return (packaged_folder("model_cards") / "template.md").read_text(encoding="utf-8")


def _metadata(facts: dict[str, Any], task: Task, words: CardWords) -> ModelCardData:
    data = facts["data"]
    licenses = {"license": facts["license"]}
    if facts["license"] == RESEARCH_ONLY:
        licenses = {"license": "other", "license_name": RESEARCH_ONLY}
    if facts["license"]:
        licenses["license_link"] = LICENSE_FILE
    languages = []
    for key in ("source_language", "target_language", "language"):
        # Shorten a code such as "de_AT" to "de", because the Hub accepts only language codes of two or three
        # letters.
        code = re.split("[-_]", data.get(key) or "")[0].lower()
        if re.fullmatch("[a-z]{2,3}", code) and code not in languages:
            languages.append(code)
    scores = _eval_results(facts, task, words)
    dataset = (data.get("train") or {}).get("dataset")
    return ModelCardData(
        language=languages or None,
        **licenses,
        base_model=facts["base_model"],
        datasets=[dataset] if dataset else None,
        pipeline_tag=words.pipeline_tag,
        library_name="transformers",
        tags=_tags(facts, task, words),
        widget=_widget(facts["examples"]),
        metrics=[*task.metrics] if scores else None,
        model_name=facts["name"] if scores else None,
        eval_results=scores or None,
    )


def _tags(facts: dict[str, Any], task: Task, words: CardWords) -> list[str]:
    tags = [words.task_type, "vaswani", "transformer"]
    if len(task.stacks) == 2:
        tags.append("seq2seq")
    training = facts["training"]
    added = training.model_tags if training else None
    return [*tags, *(added or [])]


def _eval_results(facts: dict[str, Any], task: Task, words: CardWords) -> list[EvalResult]:
    test = facts["test"]
    test_set = facts["data"].get("test") or {}
    config = test_set.get("config")
    return [
        EvalResult(
            task_type=words.task_type,
            task_name=words.task_name,
            dataset_type=_dataset_id(test_set),
            dataset_name=test_set.get("title")
            or test_set.get("name", "unknown") + (f" ({config})" if config else ""),
            dataset_config=config,
            dataset_split=test_set.get("split"),
            dataset_revision=test_set.get("revision"),
            metric_type=name,
            metric_name=title,
            metric_value=round(test[name], 2),
            metric_args={"signature": test.get(f"{name}_signature"), **facts["decoding"]},
        )
        for name, title in task.metrics.items()
        if test.get(name) is not None
    ]


def _dataset_id(test_set: dict[str, Any]) -> str:
    """Return the Hub dataset that contains a test set. Return "unknown" if the dataset is not known."""
    if test_set.get("files"):
        # Do not return `test_set["name"]`, because the test set is a local file and not a Hub dataset.
        return test_set.get("stated_dataset") or "unknown"
    return test_set.get("stated_dataset") or test_set.get("dataset") or test_set.get("name") or "unknown"


def _widget(examples: list[ExampleRecord]) -> list[dict[str, Any]] | None:
    """Return example texts and outputs for the metadata of the card. The page of the repository on the Hub
    shows the example texts and their outputs.
    """
    shown = [
        {
            "example_title": f"Example {number}",
            "text": example.source,
            "output": {"text": example.output},
        }
        for number, example in enumerate(examples[:NUM_WIDGETS], 1)
    ]
    return shown or None


def _in_table(text: str) -> str:
    """Escape a text for a cell of a Markdown table, so that the rendered table shows the text unchanged."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&$])", r"\\\1", " ".join(text.split()))


def _checkpoint_facts(folder: Path) -> dict[str, Any]:
    """Return the facts for the card that come from the files of the checkpoint, such as the number of
    parameters.
    """
    generation = read_record(folder / GENERATION_FILE)
    return {
        "parameters": _count_parameters(folder),
        "shape": _shape(read_record(folder / CONFIG_FILE)),
        "generation": {name: generation[name] for name in DECODING_SETTINGS if name in generation},
        "has_curve": (folder / CURVE_FILE).is_file(),
        "has_attention": (folder / ATTENTION_FILE).is_file(),
        "has_target_tokenizer": (folder / TARGET_FOLDER).is_dir(),
    }


def _shape(config: dict[str, Any]) -> str:
    """Return a text about the layers, the sizes and the attention of a model."""
    depths = [str(config[key]) for key in ("encoder_layers", "decoder_layers") if key in config]
    # Read the encoder key of the config, or else the decoder key, because a language model has only an
    # encoder or only a decoder.
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
