"""The section `training` of a recipe: its own keys, and the keys of all optimizers, schedules and regularisers."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, create_model, field_validator, model_validator

from ..model.configuration_vaswani import nearest_name
from ..settings.base import NO_DOCSTRINGS, Settings
from .entries import Optimizer, Regularizer, Schedule
from .optimizers import OPTIMIZERS
from .regularizers import REGULARIZERS, regularizer_of
from .schedules import SCHEDULES


def _keys_of(name: str, entries: Iterable[Optimizer | Schedule | Regularizer]) -> Any:
    """A class with the fields of all entries. A required field may be null, because another entry may be selected."""
    fields: dict[str, Any] = {}
    for entry in entries:
        for key, field in entry.settings.model_fields.items():
            if field.is_required():
                annotation: Any = Annotated[(field.annotation, *field.metadata)]
                fields[key] = (annotation | None, Field(None, description=field.description))
            else:
                fields[key] = (field.annotation, field)
    return create_model(name, __base__=Settings, __cls_kwargs__=NO_DOCSTRINGS, **fields)


_for_all_tasks = [entry for entry in REGULARIZERS.values() if not entry.needs_encoder_decoder]
_EntryKeys: Any = _keys_of("_EntryKeys", [*OPTIMIZERS.values(), *SCHEDULES.values(), *_for_all_tasks])
_EncoderDecoderKeys: Any = _keys_of("_EncoderDecoderKeys", REGULARIZERS.values())


class TrainingSettings(_EntryKeys):
    """Optimisation; names are those of `TrainingArguments` where it has them.

    Code outside an entry must not read the keys of the entry, because another entry may be selected.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    # The keys with the size of a batch.
    batch_keys: ClassVar[tuple[str, ...]] = ()

    max_steps: int | None = Field(None, gt=0)
    """The number of optimizer steps. Either this or `num_train_epochs` is given."""
    num_train_epochs: float | None = Field(None, gt=0)
    """The number of passes over the corpus. Either this or `max_steps` is given."""
    gradient_accumulation_steps: int = Field(1, gt=0)
    """The number of batches whose gradients make one step."""
    optimizer: str = "adam"
    """The name of an optimizer. Adam is the paper's."""
    lr_scheduler_type: str = "paper"
    """The name of a learning rate schedule. "paper" is Section 5.3, Eq. (3)."""
    warmup_steps: int = Field(4000, gt=0)
    """The number of steps in which the learning rate rises."""
    max_grad_norm: float = Field(0.0, ge=0)
    """Scale larger gradients down to this norm. 0 leaves gradients as they are."""
    ema_decay: float | None = Field(None, gt=0, lt=1)
    """The decay of an exponential moving average of the weights, such as 0.999. The run validates the average and ends
    with it."""
    frozen: list[str] = []
    """Parts of the model that are not trained, such as encoder or decoder.layers.0."""
    bf16: bool | Literal["auto"] = "auto"
    """Compute in bfloat16. "auto" does so if the processor or GPU multiplies bfloat16 and the model is large enough to
    gain by it. The run records the decision, true or false."""
    torch_compile: bool = False
    """Compile the model."""
    gradient_checkpointing: bool = False
    """Compute the layers again in the backward pass to save memory."""
    logging_steps: int = Field(50, gt=0)
    """The number of steps from one line of the log to the next."""
    eval_steps: int = Field(500, gt=0)
    """The number of steps from one validation to the next."""
    save_steps: int = Field(500, gt=0)
    """The number of steps from one checkpoint to the next."""
    save_total_limit: int = Field(5, gt=0)
    """The number of checkpoints that are kept."""
    average_checkpoints: int = Field(0, ge=0)
    """The final weights are the average of this number of the last checkpoints (Section 6.1). 0 takes the last one."""
    early_stopping_patience: int | None = Field(None, gt=0)
    """Stop after this number of validations without an improvement, and end with the best checkpoint."""
    metric_for_best_model: str = "loss"
    """What improves: the validation loss, or a score of the validation such as bleu (with `evaluation.validation_bleu`)."""
    dataloader_num_workers: int | None = Field(None, ge=0)
    """The number of processes that prepare batches. Null takes none for a processor and some for an accelerator."""
    report_to: list[str] = []
    """Tools that receive the log, such as tensorboard."""
    resume: bool = False
    """Continue the run in `output_dir`."""

    def check_length(self) -> None:
        """Refuse a run without a length; not all uses of this section need one."""
        if (self.max_steps is None) == (self.num_train_epochs is None):
            raise ValueError(
                "Exactly one of `training.max_steps` and `training.num_train_epochs` must be given, but they are "
                f"{self.max_steps} and {self.num_train_epochs}."
            )

    @model_validator(mode="after")
    def _check_checkpoints(self) -> Self:
        if self.average_checkpoints > self.save_total_limit:
            raise ValueError(
                f"`training.average_checkpoints` is {self.average_checkpoints}, but only `training.save_total_limit` = "
                f"{self.save_total_limit} checkpoints are kept; raise the limit."
            )
        if self.early_stopping_patience and self.average_checkpoints:
            raise ValueError(
                "`training.early_stopping_patience` ends with the best checkpoint and `training.average_checkpoints` "
                "with an average of the last ones; give only one of them."
            )
        if self.early_stopping_patience and self.save_steps % self.eval_steps:
            raise ValueError(
                "`training.save_steps` must be a multiple of `training.eval_steps` for early stopping, but "
                f"{self.save_steps} is no multiple of {self.eval_steps}."
            )
        return self

    @model_validator(mode="after")
    def _check_entries(self) -> Self:
        self._check_entry("optimizer", OPTIMIZERS)
        self._check_entry("lr_scheduler_type", SCHEDULES)
        self._check_regularizers()
        return self

    def _check_entry(self, key: str, table: Mapping[str, Optimizer | Schedule]) -> None:
        """Refuse a name that the table of a key does not have, and the keys of entries that are not selected."""
        selected = getattr(self, key)
        if selected not in table:
            names = " or ".join(repr(name) for name in table)
            raise ValueError(
                f"`training.{key}` must be {names}, but is {selected!r}; the nearest name is "
                f"{nearest_name(selected, table)!r}."
            )
        own = table[selected].settings.model_fields
        for name, field in own.items():
            if field.is_required() and getattr(self, name) is None:
                raise ValueError(
                    f"`training.{name}` must be given with `training.{key}: {selected}`, but is missing."
                )
        for entry in table.values():
            for name in entry.settings.model_fields.keys() - own.keys():
                value = getattr(self, name)
                if value == type(self).model_fields[name].default:
                    continue
                owners = [owner for owner, other in table.items() if name in other.settings.model_fields]
                raise ValueError(
                    f"`training.{name}` belongs to `training.{key}: {' or '.join(owners)}`, but is {value} with "
                    f"`training.{key}: {selected}`; leave one of them out."
                )

    def _check_regularizers(self) -> None:
        """Refuse two regularisers, and the keys of a regulariser that is off."""
        selected = regularizer_of(self)
        for entry in REGULARIZERS.values():
            strength = getattr(self, entry.strength, 0)
            if strength and selected is not None and entry is not selected:
                raise ValueError(
                    f"`training.{selected.strength}: {getattr(self, selected.strength)}` and `training.{entry.strength}: "
                    f"{strength}` turn on two regularisers, but a run has one; set one of them to 0."
                )
            for name in entry.settings.model_fields.keys() & type(self).model_fields.keys():
                value = getattr(self, name)
                if not strength and value != type(self).model_fields[name].default:
                    raise ValueError(
                        f"`training.{name}: {value}` needs `training.{entry.strength}`, but that is {strength}; set it "
                        f"to a positive number, or leave `{name}` out."
                    )


class EncoderDecoderTraining(TrainingSettings, _EncoderDecoderKeys):
    """The training of an encoder and a decoder."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    batch_keys = ("source_tokens_per_batch", "target_tokens_per_batch")

    source_tokens_per_batch: int = Field(25000, gt=0)
    """The largest number of source tokens of a batch, padding included (Section 5.1)."""
    target_tokens_per_batch: int = Field(25000, gt=0)
    """The largest number of target tokens of a batch, padding included (Section 5.1)."""


class TextTraining(TrainingSettings):
    """The training of a language model, which has one side."""

    batch_keys = ("text_tokens_per_batch",)

    text_tokens_per_batch: int = Field(25000, gt=0)
    """The largest number of tokens of a batch, padding included."""

    @field_validator("text_tokens_per_batch", mode="before")
    @classmethod
    def _take_default(cls, value: Any) -> Any:
        return 25000 if value is None else value

    @property
    def source_tokens_per_batch(self) -> int:
        """The size of a batch on the side of the source, which is the text."""
        return self.text_tokens_per_batch

    @property
    def target_tokens_per_batch(self) -> int:
        """The size of a batch on the side of the target, which is the text."""
        return self.text_tokens_per_batch


AnyTraining = EncoderDecoderTraining | TextTraining


def training_settings(stacks: tuple[str, ...]) -> type[TrainingSettings]:
    """The class of the section `training` for a model with these parts of an encoder-decoder."""
    return EncoderDecoderTraining if len(stacks) == 2 else TextTraining
