"""Defines `Recipe`, the settings of one run.

Each task has its own subclass of `Recipe`, because the keys of the sections depend on the task.
"""

import os
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, create_model, model_validator

from ..model.errors_vaswani import InvalidValueError
from ..optimization.regularizers import regularizer_of
from ..optimization.section import AnyTraining, training_settings
from ..settings.base import NO_DOCSTRINGS, Settings, format_value
from ..settings.keys import OnResume, on_resume, recipe_key
from ..settings.sections import MODEL_SETTINGS, ModelSettings, PublishingSettings
from ..tasks import TASKS, Task
from .licenses import check_license, data_license
from .yaml_files import as_yaml


class Recipe(Settings):
    """Contains all settings of one run: the data, the tokenizers, the model, the training, the evaluation and
    the publishing.
    """

    output_dir: Annotated[str, Field(min_length=1), AfterValidator(os.path.expanduser)] = recipe_key(
        on_resume="free"
    )
    """The folder into which the run writes checkpoints, the log and the scores."""
    task: str = "translation"
    """The task for which the model is trained."""
    seed: int = recipe_key(1, ge=0, lt=2**32)
    """The seed of all random numbers."""
    # The class of a section, such as `data`, can depend on the task. For each task, `recipe_class` creates a
    # subclass of `Recipe` with the section types of the task.
    data: Any
    tokenizer: Any
    model: ModelSettings
    training: AnyTraining
    decoding: Any
    evaluation: Any
    publishing: PublishingSettings

    def __reduce__(self) -> Any:
        # Pickle the values of the recipe instead of the object, because pickle cannot import a class that
        # `recipe_class` has created at run time.
        return make_recipe, ({name: getattr(self, name) for name in self.model_fields_set},)

    @property
    def folder(self) -> Path:
        """The output folder of the run: the key `output_dir` as a path."""
        return Path(self.output_dir)

    def make_task(self) -> Task:
        """Return the task of the run, with the sections of the recipe that the task reads."""
        return TASKS[self.task](self.data, self.tokenizer, self.evaluation, seed=self.seed)

    def to_yaml(self) -> str:
        """Return the recipe as YAML that `load_recipe` can read, with all keys of its task."""
        return as_yaml(self._content())

    def values(self, *, with_model_defaults: bool = False) -> dict[str, Any]:
        """Return a dict that maps the name `section.key` of each recipe key to its value. For the section
        `model`, the dict contains only the keys that are set in the recipe, unless `with_model_defaults` is
        True.
        """
        content = self._content()
        if with_model_defaults:
            content["model"] = self.model.model_dump()
        return flat(content)

    def on_resume(self, name: str) -> OnResume:
        """Return what a resumed run does with a new value of the key `name`, such as `training.max_steps`:
        "fixed", "free" or "continue" (see `OnResume` in settings/keys.py).
        """
        section, *keys = name.split(".")
        if keys:
            return on_resume(type(getattr(self, section)), keys[0])
        return on_resume(type(self), section)

    def training_warnings(self) -> list[str]:
        """Return warnings about possible mistakes in the recipe. Raise a ValueError if the recipe needs a
        validation split but has none. Only a training run calls `training_warnings`, because other commands
        accept a recipe without a validation split.
        """
        if not self.data.has_validation:
            needs = f"needs a validation split, but there is none; give {self.data.validation_keys}"
            if key := self.training.early_stopping_key:
                value = getattr(self.training, key)
                raise InvalidValueError(f"`training.{key}: {value}` {needs}, or leave `{key}` out.")
            if switch := self.evaluation.validation_switch:
                raise InvalidValueError(f"`evaluation.{switch}: true` {needs}, or set `{switch}` to false.")
        return [*self.data.warnings(), *warmup_warnings(self.training, self.training.max_steps)]

    def _content(self) -> dict[str, Any]:
        content = self.model_dump()
        content["model"] = self.model.model_dump(exclude_unset=True)
        # Leave out sections without keys, except the section `model`.
        return {name: value for name, value in content.items() if value != {} or name == "model"}

    @model_validator(mode="after")
    def _check_sections(self) -> Self:
        self.training.check_run_length()
        regularizer = regularizer_of(self.training)
        if regularizer is not None:
            regularizer.check(self.training, self.model)
        metric = self.training.metric_for_best_model
        metrics = ("loss", *self.make_task().validation_metrics())
        if metric not in metrics:
            raise InvalidValueError(
                "`training.metric_for_best_model` must be a score that the validation computes "
                f"({', '.join(metrics)}), but is {metric!r}; turn this score on in the section `evaluation`, "
                "or choose another metric."
            )
        self.data.check_with(self.tokenizer, self.training)
        if not self.tokenizer.keep and self.model.init_from is None:
            raise InvalidValueError(
                "`tokenizer.keep: false` needs `model.init_from`, but the recipe has none; leave "
                "`tokenizer.keep` out."
            )
        num_positions = self.model.make_config().num_positions
        longest = max(self.data.max_length, self.decoding.max_length or 0)
        if num_positions < longest:
            raise InvalidValueError(
                f"`model.max_position_embeddings` must be at least {longest}, the larger of "
                f"`data.max_length` and `decoding.max_length`, but is {num_positions}."
            )
        check_license(self.publishing.license, data_license(self.data))
        return self


def warmup_warnings(training: AnyTraining, max_steps: int | None) -> list[str]:
    """Return a list with a warning if the warm-up is longer than the run, else an empty list."""
    if max_steps is None or training.warmup_steps <= max_steps:
        return []
    return [
        f"`training.warmup_steps` is {training.warmup_steps:,}, but the run has {max_steps:,} steps, so the "
        "learning rate never reaches its highest value; lower `training.warmup_steps`, or train for more "
        "steps."
    ]


def flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Convert nested mappings to one dict with keys such as `section.key`."""
    values: dict[str, Any] = {}
    for key, value in content.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return values


def _sections_of(task: type[Task]) -> dict[str, type[Settings]]:
    """Map the name of each section of a recipe to the settings class that the task uses."""
    return {
        "data": task.data_settings,
        "tokenizer": task.tokenizer_settings,
        "model": MODEL_SETTINGS[task.stacks],
        "training": training_settings(task.stacks),
        "decoding": task.decoding_settings,
        "evaluation": task.evaluation_settings,
        "publishing": PublishingSettings,
    }


# The recipes of all tasks have the same sections.
SECTIONS = tuple(_sections_of(TASKS["translation"]))
# The sections that a recipe must contain. If a recipe leaves out an optional section, all keys of the section
# have their defaults.
_REQUIRED_SECTIONS = ("data", "training")


@cache
def recipe_class(task: type[Task]) -> type[Recipe]:
    """Return the subclass of `Recipe` for a task."""
    help_of_task = Recipe.model_fields["task"].description
    fields: dict[str, Any] = {"task": (Literal[task.name], Field("translation", description=help_of_task))}
    for name, settings in _sections_of(task).items():
        fields[name] = (settings, ... if name in _REQUIRED_SECTIONS else settings())
    return create_model(f"{task.name}_recipe", __base__=Recipe, __cls_kwargs__=NO_DOCSTRINGS, **fields)


def recipe_classes() -> dict[str, type[Recipe]]:
    """Return a dict that maps each task to its subclass of `Recipe`."""
    return {name: recipe_class(task) for name, task in TASKS.items()}  # type: ignore[arg-type]


def task_of(values: dict[str, Any]) -> str:
    """Return the value of the key `task` of a recipe, or "translation" if the recipe has no key `task`."""
    task = values.get("task", "translation")
    if not isinstance(task, str) or task not in TASKS:
        raise InvalidValueError(
            f"`task` must be {' or '.join(map(repr, TASKS))}, but is {format_value(task)}."
        )
    return task


def make_recipe(values: dict[str, Any]) -> Recipe:
    """Create a recipe from `values`, which maps each section to a mapping or to a settings object."""
    return recipe_classes()[task_of(values)].load(values)
