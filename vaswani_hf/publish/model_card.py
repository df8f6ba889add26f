"""Writes the model card (the README.md of a repository) from the files that a run has saved with its
checkpoint.

To write the card of a checkpoint to a file:

    from vaswani_hf.publish.model_card import model_card
    model_card("FOLDER", "user/name").save("model_cards/name.md")
"""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.utils import validate_repo_id
from safetensors import safe_open

from ..checkpoint.files import (
    ATTENTION_FILE,
    CONFIG_FILE,
    CURVE_FILE,
    GENERATION_FILE,
    INDEX_FILE,
    LICENSE_FILE,
    TOKENIZER_FILES,
    weight_files,
)
from ..checkpoint.results import (
    DataRecord,
    ExampleRecord,
    OriginRecord,
    Results,
    SplitRecord,
    check_scores,
    read_record,
    read_results,
)
from ..messages import counted
from ..model.configuration_vaswani import TARGET_FOLDER
from ..model.inputs_vaswani import DECODING_SETTINGS
from ..model.tokenizing_vaswani import LANGUAGE_TOKENS
from ..packaged import packaged_folder
from ..recipe.data_record import data_record
from ..recipe.licenses import RESEARCH_ONLY, check_license
from ..recipe.published import is_folder_of_base, published_yaml, recorded_recipe
from ..recipe.recipe import Recipe
from ..settings.data import last_part
from ..tasks import TASKS, CardWords, Task
from ..version import INSTALL_INSTRUCTION, __version__
from .certificate import Certificate, read_certificate

# The maximum number of example texts in the metadata of a card.
NUM_WIDGETS = 3


@dataclass(frozen=True, kw_only=True)
class CardContext:
    """The values that the template of a model card inserts. The template and the metadata of a card refer to
    the fields of `CardContext` by name.
    """

    repo_id: str
    """The repository that the code examples of the card load."""
    name: str
    """The last part of `repo_id`."""
    install: str = INSTALL_INSTRUCTION
    """A sentence that says how to install the package."""
    version: str = __version__
    """The version of the package."""

    task: type[Task]
    """The task of the model."""
    words: CardWords
    """The texts of the card that depend only on the task."""
    description: str
    """The first sentences of the card: what the model is, and what the model does."""
    example: str
    """An input for the code examples, as a Python string in quotation marks."""
    languages: str
    """The arguments of the pipeline that name two languages; empty for a model without language tokens."""
    auto_class: str
    """The class of transformers that loads the model, such as "AutoModelForSeq2SeqLM"."""
    has_search: bool
    """True if the model generates its output by a search."""

    recipe: Recipe | None
    """The recipe of the run, or None if the checkpoint has no recipe."""
    recipe_yaml: str | None
    """The recipe as YAML, without the folders of files (see recipe/published.py), or None."""
    data: DataRecord
    """The data of the run. The object is empty if the data is not known."""
    results: Results
    """The content of results.json."""
    test: dict[str, Any]
    """The scores on the test split. The names of the scores depend on the task."""
    scores: list[str]
    """The scores on the test split, one per line; empty if the scores are not known."""
    scored: str
    """The amount of test data that was scored, such as "1,000 sentences"."""
    is_recorded: bool
    """True if the checkpoint has a record of its training."""
    is_finished: bool
    """True if the run has finished."""

    license: str | None
    """The licence of the model."""
    is_license_chosen: bool
    """True if the publisher of the model, or of the imported checkpoint, has chosen the licence. False if the
    licence is that of the training data.
    """
    base_model: str | list[str] | None
    """The Hub repositories of the base models. A base model is a model from which the training started, or
    the model that `vaswani import` has converted.
    """
    base_name: str | None
    """The names of the models from which the training started, without owner or parent folder, joined by
    "and".
    """

    parameters: int
    """The number of parameters of the model."""
    shape: str
    """A text about the layers, the sizes and the attention of the model."""
    generation: dict[str, Any]
    """The search settings of generation_config.json."""
    has_curve: bool
    """True if the checkpoint has a picture of the training curve."""
    has_attention: bool
    """True if the checkpoint has a picture of the attention."""
    has_target_tokenizer: bool
    """True if the target has a tokenizer of its own."""
    certificate: Certificate | None
    """The differences between the model and its exports, which `vaswani certify` has measured."""


def model_card(
    folder: str | Path, repo_id: str, *, license: str | None = None, base_model: str | None = None
) -> ModelCard:
    """Create the model card of a checkpoint. If a value is missing in the files of the checkpoint, the card
    says "not known".

    The code examples in the card load `repo_id`. The arguments `license` and `base_model` take precedence
    over the values in the files of the run.
    """
    if base_model is not None:
        validate_repo_id(base_model)
    context = _card_context(Path(folder), repo_id, license, base_model)
    template = (packaged_folder("model_cards") / "template.md").read_text(encoding="utf-8")
    card = ModelCard.from_template(
        _metadata(context), template_str=template, in_table=_in_table, **vars(context)
    )
    # Remove repeated empty lines, which remain where the template leaves out a part.
    card.text = re.sub(r"\n{3,}", "\n\n", card.text).rstrip() + "\n"
    return card


def _card_context(folder: Path, repo_id: str, license: str | None, base_model: str | None) -> CardContext:
    recipe, results, data = recorded_run(folder)
    chosen = license or (recipe.publishing.license if recipe else None)
    check_license(chosen, data.license, "license" if license else "publishing.license")
    test = _scores(results)
    task = _task_of(folder, recipe, test)
    words = task.card_words
    section = recipe.data if recipe else None
    bases = recipe.model.bases() if recipe else []
    recorded = results.model_fields_set - {"origin", "data"}
    generation = read_record(folder / GENERATION_FILE)
    return CardContext(
        repo_id=repo_id,
        name=repo_id.split("/")[-1],
        task=task,
        words=words,
        description=task.card_description(data, section),
        example=json.dumps(task.card_example(data, section), ensure_ascii=False),
        languages=_languages(folder),
        auto_class=task.model_class.__name__.replace("Vaswani", "AutoModel"),
        has_search=bool(task.decoding_settings.model_fields),
        recipe=recipe,
        recipe_yaml=(published_yaml(folder, license) or "").strip() or None,
        data=data,
        results=results,
        test=test,
        scores=task.card_scores(test),
        scored=" and ".join(f"{test.get(name) or 0:,} {unit}" for name, unit in words.test_counts.items()),
        is_recorded=bool(recipe or recorded),
        is_finished=bool(recorded - {"average_of"}) and results.finished_with is not None,
        license=chosen or data.license,
        is_license_chosen=chosen is not None or results.origin is not None,
        base_model=base_model or _base_repositories(bases) or _repository_of(results.origin),
        base_name=" and ".join(last_part(name) for name in bases) or None,
        parameters=_count_parameters(folder),
        shape=_shape(read_record(folder / CONFIG_FILE)),
        generation={name: generation[name] for name in DECODING_SETTINGS if name in generation},
        has_curve=(folder / CURVE_FILE).is_file(),
        has_attention=(folder / ATTENTION_FILE).is_file(),
        has_target_tokenizer=(folder / TARGET_FOLDER).is_dir(),
        certificate=read_certificate(folder),
    )


def recorded_run(folder: Path) -> tuple[Recipe | None, Results, DataRecord]:
    """Return the saved recipe (or None), the results, and the information about the data."""
    recipe = recorded_recipe(folder)
    results = read_results(folder)
    data = data_record(recipe.data) if recipe else results.data
    return recipe, results, data or DataRecord()


def _scores(results: Results) -> dict[str, Any]:
    """Return the scores on the test split as a dict, because the names of the scores depend on the task."""
    return results.test.as_json() if results.test else {}


def _task_of(folder: Path, recipe: Recipe | None, test: dict[str, Any]) -> type[Task]:
    """Return the task in the recipe. Without a recipe, choose the task by the model type in config.json and
    by the names of the scores in `test`. Raise an error if `test` has only some of the scores of the task.
    """
    if recipe is not None:
        task = TASKS[recipe.task]
    else:
        model_type = read_record(folder / CONFIG_FILE).get("model_type")
        of_model = [each for each in TASKS.values() if each.model_class.config_class.model_type == model_type]
        scored = [each for each in of_model if each.metrics.keys() <= test.keys()]
        task = [*scored, *of_model, *TASKS.values()][0]
    check_scores(folder, test, task.test_scores)
    return task


def pipeline_of(folder: Path) -> str | None:
    """Return the name of the `transformers.pipeline` task that a model supports; None if no pipeline can load
    the model.
    """
    recipe, results, _ = recorded_run(folder)
    return _task_of(folder, recipe, _scores(results)).card_words.pipeline


def _base_repositories(begun_with: list[str]) -> str | list[str] | None:
    """Return the Hub repositories, as user/name without `@revision`, of the models that a run started
    from.
    """
    names = [name.partition("@")[0] for name in begun_with if not is_folder_of_base(name)]
    if len(names) == 1:
        return names[0]
    return names or None


def _repository_of(origin: OriginRecord | None) -> str | None:
    """Return the Hub repository from which the weights were imported, without its revision. Return None if
    the weights were not imported from a Hub repository.
    """
    return origin.name.partition("@")[0] if origin and origin.is_on_hub else None


def _metadata(context: CardContext) -> ModelCardData:
    data = context.data
    licenses: dict[str, Any] = {"license": context.license}
    if context.license == RESEARCH_ONLY:
        licenses = {"license": "other", "license_name": RESEARCH_ONLY}
    if context.license:
        licenses["license_link"] = LICENSE_FILE
    languages = []
    for language in (data.source_language, data.target_language, data.language):
        # Shorten a code such as de-AT to de, because the Hub accepts only language codes of two or three
        # letters.
        code = re.split("[-_]", language or "")[0].lower()
        if re.fullmatch("[a-z]{2,3}", code) and code not in languages:
            languages.append(code)
    scores = _eval_results(context)
    dataset = data.train.dataset if data.train else None
    return ModelCardData(
        language=languages or None,
        **licenses,
        base_model=context.base_model,
        datasets=[dataset] if dataset else None,
        pipeline_tag=context.words.pipeline_tag,
        library_name="transformers",
        tags=_tags(context),
        widget=_widget(context.results.examples or []),
        metrics=[*context.task.metrics] if scores else None,
        model_name=context.name if scores else None,
        eval_results=scores or None,
    )


def _tags(context: CardContext) -> list[str]:
    tags = [context.words.task_type, "vaswani", "transformer"]
    if len(context.task.stacks) == 2:
        tags.append("seq2seq")
    training = context.results.training
    added = training.model_tags if training else None
    return [*tags, *(added or [])]


def _eval_results(context: CardContext) -> list[EvalResult]:
    test = context.test
    test_set = context.data.test or SplitRecord()
    name_of_set = test_set.name or "unknown"
    if test_set.config:
        name_of_set += f" ({test_set.config})"
    return [
        EvalResult(
            task_type=context.words.task_type,
            task_name=context.words.task_name,
            dataset_type=_dataset_id(test_set),
            dataset_name=test_set.title or name_of_set,
            dataset_config=test_set.config,
            dataset_split=test_set.split,
            dataset_revision=test_set.revision,
            metric_type=name,
            metric_name=title,
            metric_value=round(test[name], 2),
            metric_args={"signature": test.get(f"{name}_signature"), **(context.results.decoding or {})},
        )
        for name, title in context.task.metrics.items()
        if test.get(name) is not None
    ]


def _dataset_id(test_set: SplitRecord) -> str:
    """Return the Hub dataset that contains a test set. Return "unknown" if the dataset is not known."""
    if test_set.files:
        # Do not return `test_set.name`, because it is the name of a local file.
        return test_set.stated_dataset or "unknown"
    return test_set.stated_dataset or test_set.dataset or test_set.name or "unknown"


def _widget(examples: list[ExampleRecord]) -> list[dict[str, Any]] | None:
    """Return example texts and outputs, which the page of the repository on the Hub shows."""
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


def _languages(folder: Path) -> str:
    """Return the arguments of the pipeline that name two languages of a model with language tokens."""
    languages = read_record(folder / TOKENIZER_FILES[1]).get(LANGUAGE_TOKENS, ())
    # Choose English first, because the input of the code examples is an English text.
    ordered = sorted(languages, key=lambda language: not language.startswith("en"))
    return f', src_lang="{ordered[0]}", tgt_lang="{ordered[-1]}"' if ordered else ""


def _shape(config: dict[str, Any]) -> str:
    """Return a text about the layers, the sizes and the attention. Leave out values that the config lacks."""
    depths = [str(config[key]) for key in ("encoder_layers", "decoder_layers") if key in config]
    # Read the `decoder_` field if the `encoder_` field is missing, because the config of a decoder-only model
    # has no `encoder_` fields.
    heads = config.get("encoder_attention_heads", config.get("decoder_attention_heads"))
    d_model = config.get("d_model")
    d_ff = config.get("encoder_ffn_dim", config.get("decoder_ffn_dim"))
    vocabularies = [config.get("vocab_size")]
    if not config.get("share_encoder_decoder_embeddings", True):
        vocabularies.append(config.get("decoder_vocab_size"))
    sizes = [f"{size:,}" for size in vocabularies if size]
    parts = []
    if depths:
        parts.append(f"{' + '.join(depths)} layers")
    if heads:
        parts.append(counted(heads, "head"))
    if d_model:
        parts.append(f"d_model {d_model}")
    if d_ff:
        parts.append(f"d_ff {d_ff}")
    if sizes:
        parts.append(f"vocabulary {' and '.join(sizes)}")
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
