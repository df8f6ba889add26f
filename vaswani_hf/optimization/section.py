"""Defines the section `training` of a recipe, with the keys of all optimizers, schedules and regularisers."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, create_model, model_validator

from ..model.checks_vaswani import nearest_name
from ..model.errors_vaswani import InvalidValueError
from ..settings.base import NO_DOCSTRINGS, Settings, field_with_properties, properties_of
from ..settings.keys import recipe_key
from .entries import Optimizer, Regularizer, Schedule
from .optimizers import OPTIMIZERS
from .regularizers import REGULARIZERS, regularizer_of
from .schedules import SCHEDULES

# Section 5.1: a batch has about 25,000 source tokens and 25,000 target tokens.
PAPER_TOKENS_PER_BATCH = 25_000


def _keys_of(name: str, entries: Iterable[Optimizer | Schedule | Regularizer]) -> Any:
    """Return a settings class with all recipe keys of `entries`. All keys are optional, because a recipe sets
    only keys of the selected entries.
    """
    fields: dict[str, Any] = {}
    for entry in entries:
        for key, field in entry.settings.model_fields.items():
            if field.is_required():
                annotation: Any = Annotated[(field.annotation, *field.metadata)]
                optional = field_with_properties(None, properties_of(field), description=field.description)
                fields[key] = (annotation | None, optional)
            else:
                fields[key] = (field.annotation, field)
    return create_model(name, __base__=Settings, __cls_kwargs__=NO_DOCSTRINGS, **fields)


_for_all_tasks = [entry for entry in REGULARIZERS.values() if not entry.needs_encoder_decoder]
_EntryKeys: Any = _keys_of("_EntryKeys", [*OPTIMIZERS.values(), *SCHEDULES.values(), *_for_all_tasks])
_EncoderDecoderKeys: Any = _keys_of("_EncoderDecoderKeys", REGULARIZERS.values())


class TrainingSettings(_EntryKeys):
    """The keys of the section `training` that all tasks share.

    Settings that also exist in `TrainingArguments` of transformers have the same names.

    The keys of an optimizer, schedule or regulariser have no meaning if the recipe does not select the
    optimizer, schedule or regulariser. Therefore only the code of an optimizer, schedule or regulariser reads
    its keys.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    # The keys that limit the number of tokens in a batch.
    batch_keys: ClassVar[tuple[str, ...]] = ()

    max_steps: int | None = recipe_key(None, gt=0, unit="steps", on_resume="continue")
    """The number of optimizer steps. Give either `max_steps` or `num_train_epochs`."""
    num_train_epochs: float | None = recipe_key(None, gt=0, unit="epochs", on_resume="continue")
    """The number of passes over the corpus. Give either `num_train_epochs` or `max_steps`."""
    # A resumed run must not change the product of `gradient_accumulation_steps` and the number of processes
    # (see `checkpoint_to_continue` in training/resume.py).
    gradient_accumulation_steps: int = recipe_key(1, gt=0, unit="batches", on_resume="free")
    """The number of batches whose gradients are summed for one optimizer step."""
    optimizer: str = recipe_key("adam", range=", ".join(OPTIMIZERS))
    """The name of the optimizer. The paper uses Adam (Section 5.3)."""
    lr_scheduler_type: str = recipe_key("paper", range=", ".join(SCHEDULES))
    """The name of the learning rate schedule. "paper" is the schedule of the paper (Equation 3 in Section
    5.3)."""
    warmup_steps: int = recipe_key(4000, gt=0, unit="steps")
    """The number of steps in which the learning rate rises (warm-up)."""
    max_grad_norm: float = recipe_key(0.0, ge=0)
    """The maximum norm of the gradient. A gradient with a larger norm is scaled down to the maximum norm.
    0 turns the scaling off."""
    ema_decay: float | None = recipe_key(None, gt=0, lt=1)
    """The decay of an exponential moving average of the weights, such as 0.999. Validations and the final
    checkpoint use the average. If `ema_decay` is null, the run computes no moving average."""
    frozen: list[str] = []
    """The parts of the model that are not trained, such as `encoder` or `decoder.layers.0`."""
    bf16: bool | Literal["auto"] = "auto"
    """Compute in bfloat16. "auto" turns bfloat16 on for a GPU with bfloat16 instructions. For a CPU with
    bfloat16 instructions, "auto" turns bfloat16 on if the model and the batches are so large that a step
    becomes faster. With DeepSpeed, "auto" turns bfloat16 off. The recorded recipe of a run contains true or
    false instead of "auto".
    """
    torch_compile: bool = False
    """Compile the model with `torch.compile`."""
    gradient_checkpointing: bool = False
    """Save memory: do not store the activations of the layers. The backward pass computes the activations
    again."""
    logging_steps: int = recipe_key(50, gt=0, unit="steps", on_resume="free")
    """The number of steps between two lines of the log."""
    eval_steps: int = recipe_key(500, gt=0, unit="steps", on_resume="free")
    """The number of steps between two validations."""
    save_steps: int = recipe_key(500, gt=0, unit="steps", on_resume="free")
    """The number of steps between two checkpoints."""
    save_total_limit: int = recipe_key(5, gt=0, unit="checkpoints", on_resume="free")
    """The number of checkpoints that a run keeps. The run deletes older checkpoints."""
    average_checkpoints: int = recipe_key(0, ge=0, unit="checkpoints", on_resume="continue")
    """The number of last checkpoints whose average becomes the final weights (Section 6.1). 0 turns averaging
    off."""
    early_stopping_patience: int | None = recipe_key(None, gt=0, unit="validations", on_resume="continue")
    """The number of validations without an improvement after which the training stops. With early stopping,
    the final weights are the weights of the best checkpoint. If `early_stopping_patience` is null,
    validations without an improvement do not stop the training.
    """
    early_stopping_score: float | None = recipe_key(None, on_resume="continue")
    """The value of the validation score `metric_for_best_model` at which the training stops, such as 100 for
    `exact_match`. With early stopping, the final weights are the weights of the best checkpoint. If
    `early_stopping_score` is null, no score stops the training.
    """
    metric_for_best_model: str = "loss"
    """The validation score by which early stopping finds the best checkpoint. `loss` is always available. The
    scores `bleu`, `chrf` and `exact_match` need `evaluation.validation_bleu: true`.
    """
    dataloader_num_workers: int | None = recipe_key(None, ge=0, unit="processes", on_resume="free")
    """The number of processes that prepare batches. The default is 2 on an accelerator, and 0 on a CPU or
    with `data.streaming: true`."""
    report_to: list[str] = recipe_key([], on_resume="free")
    """Additional tools that receive the log, such as `tensorboard`."""
    resume: bool = recipe_key(False, on_resume="free")
    """Continue the earlier run in `output_dir` from its newest checkpoint."""

    @property
    def optimizer_averages_weights(self) -> bool:
        """True if the optimizer averages the weights, so that the final weights of the run are averaged
        weights.
        """
        return OPTIMIZERS[self.optimizer].averages_weights

    @property
    def early_stopping_key(self) -> str | None:
        """The key that turns early stopping on: "early_stopping_patience" if set, else "early_stopping_score"
        if set, else None.
        """
        keys = ("early_stopping_patience", "early_stopping_score")
        return next((key for key in keys if getattr(self, key) is not None), None)

    @property
    def stops_early(self) -> bool:
        """True if the run has early stopping. The final weights of a run with early stopping are the weights
        of the best checkpoint.
        """
        return self.early_stopping_key is not None

    def check_run_length(self) -> None:
        """Raise an error if the section does not set exactly one of `max_steps` and `num_train_epochs`."""
        if (self.max_steps is None) == (self.num_train_epochs is None):
            raise InvalidValueError(
                "Exactly one of `training.max_steps` and `training.num_train_epochs` must be given, but "
                f"they are {self.max_steps} and {self.num_train_epochs}; give one of the keys, and set the other "
                "to null."
            )

    @model_validator(mode="after")
    def _check_checkpoints(self) -> Self:
        if self.average_checkpoints > self.save_total_limit:
            raise InvalidValueError(
                f"`training.average_checkpoints` is {self.average_checkpoints}, but only "
                f"`training.save_total_limit` = {self.save_total_limit} checkpoints are kept; raise "
                "`training.save_total_limit`."
            )
        if self.stops_early and self.average_checkpoints:
            raise InvalidValueError(
                f"`training.{self.early_stopping_key}` selects the best checkpoint for the final weights, "
                "but `training.average_checkpoints` averages the last checkpoints; give only one of these "
                "keys."
            )
        if self.stops_early and self.save_steps % self.eval_steps:
            raise InvalidValueError(
                "`training.save_steps` must be a multiple of `training.eval_steps` for early stopping, but "
                f"{self.save_steps} is no multiple of {self.eval_steps}."
            )
        return self

    @model_validator(mode="after")
    def _check_entries(self) -> Self:
        self._check_entry("optimizer", OPTIMIZERS)
        self._check_entry("lr_scheduler_type", SCHEDULES)
        OPTIMIZERS[self.optimizer].check(self)
        if self.optimizer_averages_weights:
            self._refuse_second_average()
        self._check_regularizers()
        return self

    def _refuse_second_average(self) -> None:
        """Raise an error if `ema_decay` or `average_checkpoints` is set, because the optimizer already
        averages the weights.
        """
        optimizer = f"`training.optimizer: {self.optimizer}`"
        if self.ema_decay is not None:
            raise InvalidValueError(
                f"`training.ema_decay` must be null with {optimizer}, but is {self.ema_decay}; leave "
                "`training.ema_decay` out."
            )
        if self.average_checkpoints:
            raise InvalidValueError(
                f"`training.average_checkpoints` must be 0 with {optimizer}, but is {self.average_checkpoints}; "
                "set `training.average_checkpoints: 0`."
            )

    def _check_entry(self, key: str, table: Mapping[str, Optimizer | Schedule]) -> None:
        """Check that the value of the recipe key `key` is the name of an entry in `table`. Raise an error if
        a required key of the selected entry is missing, or if a key that belongs only to other entries of
        `table` is set.
        """
        selected = getattr(self, key)
        if selected not in table:
            names = " or ".join(repr(name) for name in table)
            raise InvalidValueError(
                f"`training.{key}` must be {names}, but is {selected!r}; the nearest name is "
                f"{nearest_name(selected, table)!r}."
            )
        own = table[selected].settings.model_fields
        for name, field in own.items():
            if field.is_required() and getattr(self, name) is None:
                raise InvalidValueError(
                    f"`training.{name}` must be given with `training.{key}: {selected}`, but is missing."
                )
        for entry in table.values():
            for name in entry.settings.model_fields.keys() - own.keys():
                value = getattr(self, name)
                if value == type(self).model_fields[name].default:
                    continue
                owners = [owner for owner, other in table.items() if name in other.settings.model_fields]
                raise InvalidValueError(
                    f"`training.{name}` belongs to `training.{key}: {' or '.join(owners)}`, but is {value} "
                    f"with `training.{key}: {selected}`; leave `training.{name}` out, "
                    f"or select {' or '.join(owners)}."
                )

    def _check_regularizers(self) -> None:
        """Raise an error if two regularisers are on, or if the section has keys of a regulariser that is
        off.
        """
        selected = regularizer_of(self)
        for entry in REGULARIZERS.values():
            strength = getattr(self, entry.strength, 0)
            if strength and selected is not None and entry is not selected:
                raise InvalidValueError(
                    f"`training.{selected.strength}: {getattr(self, selected.strength)}` and "
                    f"`training.{entry.strength}: {strength}` turn on two regularisers, but a run can have "
                    "only one; set one of these keys to 0."
                )
            for name in entry.settings.model_fields.keys() & type(self).model_fields.keys():
                value = getattr(self, name)
                if not strength and value != type(self).model_fields[name].default:
                    raise InvalidValueError(
                        f"`training.{name}: {value}` needs `training.{entry.strength}`, but "
                        f"`{entry.strength}` is {strength}; set `{entry.strength}` to a positive number, or "
                        f"leave `{name}` out."
                    )


class EncoderDecoderTraining(TrainingSettings, _EncoderDecoderKeys):
    """The section `training` for models with an encoder and a decoder."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    batch_keys = ("source_tokens_per_batch", "target_tokens_per_batch")

    source_tokens_per_batch: int = recipe_key(PAPER_TOKENS_PER_BATCH, gt=0, unit="tokens")
    """The largest number of source tokens in a batch, including padding (Section 5.1)."""
    target_tokens_per_batch: int = recipe_key(PAPER_TOKENS_PER_BATCH, gt=0, unit="tokens")
    """The largest number of target tokens in a batch, including padding (Section 5.1)."""


class TextTraining(TrainingSettings):
    """The section `training` for language models."""

    batch_keys = ("text_tokens_per_batch",)

    text_tokens_per_batch: int = recipe_key(PAPER_TOKENS_PER_BATCH, gt=0, unit="tokens")
    """The largest number of tokens in a batch, including padding."""

    @property
    def source_tokens_per_batch(self) -> int:
        """The largest number of source tokens in a batch, equal to the recipe key `text_tokens_per_batch`.
        The source and the target of a language model are the same text.
        """
        return self.text_tokens_per_batch

    @property
    def target_tokens_per_batch(self) -> int:
        """The largest number of target tokens in a batch, equal to the recipe key `text_tokens_per_batch`.
        The source and the target of a language model are the same text.
        """
        return self.text_tokens_per_batch


AnyTraining = EncoderDecoderTraining | TextTraining


def training_settings(stacks: tuple[str, ...]) -> type[TrainingSettings]:
    """Return the settings class that validates the section `training` of a recipe. `stacks` contains the
    stacks of the model: "encoder", "decoder", or both.
    """
    return EncoderDecoderTraining if len(stacks) == 2 else TextTraining
