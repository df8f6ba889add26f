"""Registers the models with the Auto classes of transformers, and the task "translation" with `pipeline`.

`import vaswani_hf` imports this module. The command `vaswani` first reads its arguments and then imports this
module, because the import is slow.
"""

from typing import Any

from .patches import hide_warnings_of_torchao, import_quantizers_without_torchao
from .private_names import warn_of_missing_names

# Call `warn_of_missing_names` before the following imports, because a missing private name can make an import
# fail.
warn_of_missing_names()
hide_warnings_of_torchao()
import_quantizers_without_torchao()

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    pipelines,
)
from transformers.pipelines import PIPELINE_REGISTRY

from .model import pipeline_vaswani
from .model.configuration_vaswani import VaswaniConfig, is_vaswani_seq2seq
from .model.errors_vaswani import InvalidValueError
from .model.language_models_vaswani import (
    VaswaniDecoderConfig,
    VaswaniDecoderModel,
    VaswaniEncoderConfig,
    VaswaniEncoderModel,
    VaswaniForCausalLM,
    VaswaniForMaskedLM,
)
from .model.modeling_vaswani import VaswaniForSeq2SeqLM, VaswaniModel
from .model.pipeline_vaswani import DIRECTION, TASK


class TranslationPipeline(pipeline_vaswani.TranslationPipeline):
    """Translates texts with any encoder-decoder model that has `generate`.

    The arguments are the same as those of `pipeline_vaswani.TranslationPipeline`.

    Example:
        >>> from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM
        >>> from vaswani_hf.data.tokenizer_training import train_tokenizer
        >>> tokenizer = train_tokenizer(["A dog sleeps.", "Ein Hund schläft."], 280)
        >>> config = VaswaniConfig(vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=1)
        >>> translate = TranslationPipeline(VaswaniForSeq2SeqLM(config), tokenizer, device="cpu")
        >>> list(translate("A dog sleeps.", max_new_tokens=5)[0])
        ['translation_text']
    """

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> Any:
        """Push the model to the Hub, with its tokenizers and its code.

        For a Vaswani model, `push_to_hub` does the same as the command `vaswani push`.
        """
        if not is_vaswani_seq2seq(self.model):
            return super().push_to_hub(repo_id, **kwargs)
        # Import publish.push late, because the import is slow.
        from .publish.push import push_pipeline

        return push_pipeline(self, repo_id, **kwargs)


class _NoDefault(dict):
    """Raises an error if transformers looks up the default model of the task. The task has no default
    model.
    """

    def __getitem__(self, key: Any) -> Any:
        raise InvalidValueError(
            f"`model` must be given for the task {TASK!r}, because the task has no default model; give a "
            "folder, user/name on the Hub or a model."
        )


def register_translation_pipeline() -> None:
    """Add the tasks "translation" and "translation_XX_to_YY" to `pipeline` if transformers lacks them."""
    if TASK in PIPELINE_REGISTRY.supported_tasks:
        return
    # Remove the task from the dict REMOVED_TASKS, because `pipeline` refuses the tasks in REMOVED_TASKS.
    # Older versions of transformers lack REMOVED_TASKS.
    getattr(pipelines, "REMOVED_TASKS", {}).pop(TASK, None)
    kinds: dict[str, Any] = {"pt_model": AutoModelForSeq2SeqLM, "type": "text"}
    PIPELINE_REGISTRY.register_pipeline(TASK, TranslationPipeline, **kinds, default=_NoDefault(model=None))
    # Delete `_registered_impl`, because `Pipeline.save_pretrained` would otherwise write `custom_pipelines`
    # into the config of each translation model, for example T5. `pipeline` would then require
    # `trust_remote_code` for the saved checkpoint.
    del TranslationPipeline._registered_impl  # type: ignore[attr-defined]
    check_task = PIPELINE_REGISTRY.check_task

    def check_task_with_direction(task: str) -> tuple[str, dict, Any]:
        return check_task(TASK if DIRECTION.fullmatch(task) else task)

    PIPELINE_REGISTRY.check_task = check_task_with_direction  # type: ignore[method-assign]


AutoConfig.register("vaswani", VaswaniConfig, exist_ok=True)
AutoModel.register(VaswaniConfig, VaswaniModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(VaswaniConfig, VaswaniForSeq2SeqLM, exist_ok=True)
AutoConfig.register("vaswani_decoder", VaswaniDecoderConfig, exist_ok=True)
AutoModel.register(VaswaniDecoderConfig, VaswaniDecoderModel, exist_ok=True)
AutoModelForCausalLM.register(VaswaniDecoderConfig, VaswaniForCausalLM, exist_ok=True)
AutoConfig.register("vaswani_encoder", VaswaniEncoderConfig, exist_ok=True)
AutoModel.register(VaswaniEncoderConfig, VaswaniEncoderModel, exist_ok=True)
AutoModelForMaskedLM.register(VaswaniEncoderConfig, VaswaniForMaskedLM, exist_ok=True)
register_translation_pipeline()
