"""Registers the models with the Auto classes of transformers, and the task "translation" with `pipeline`.

`import vaswani_hf` imports this module. The command `vaswani` imports this module after it has read its arguments.
"""

import logging
import sys
import warnings
from typing import Any

from transformers.utils import is_torchao_available

# torchao logs at each import which of its CUDA parts it cannot load.
logging.getLogger("torchao").addFilter(lambda record: "Failed to load" not in record.getMessage())
logging.getLogger("torch.utils._pytree").addFilter(
    lambda record: "register_constant" not in record.getMessage()
)
# Where Python writes no bytecode, each import compiles torchao and warns of its invalid escape sequences.
warnings.filterwarnings("ignore", message=".*invalid escape sequence", module=r".*\btorchao\b")


def _flatten_tensor_state_dict(*args: Any) -> Any:
    """torchao's function of this name, without the import of torchao before it is called."""
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    return flatten_tensor_state_dict(*args)


def _import_quantizers_without_torchao() -> None:
    """Import the quantizers of transformers, but not torchao.

    Every use of transformers imports torchao if torchao is installed, for one function of one quantizer.
    The import takes a second, and prints warnings. In this package only weights in int8 need torchao.
    """
    if not {"torchao", "transformers.quantizers"}.isdisjoint(sys.modules):
        return
    # `importlib.util.find_spec` does not find a module whose entry is None.
    sys.modules["torchao"] = None  # type: ignore[assignment]
    try:
        import transformers.quantizers.quantizer_torchao as quantizer
    finally:
        del sys.modules["torchao"]
        is_torchao_available.cache_clear()
    if is_torchao_available():
        quantizer.flatten_tensor_state_dict = _flatten_tensor_state_dict  # type: ignore[attr-defined]


_import_quantizers_without_torchao()

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
from .model.configuration_vaswani import VaswaniConfig
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
    """Translations of texts by any encoder-decoder model that generates; see the base class."""

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> Any:
        """Pushes the model with its tokenizers and its code; a Vaswani model is checked as `vaswani push` checks it."""
        if self.model.config.model_type != "vaswani":
            return super().push_to_hub(repo_id, **kwargs)
        # Importing the code that pushes takes long.
        from .publish.push import push_pipeline

        return push_pipeline(self, repo_id, **kwargs)


class _NoDefault(dict):
    """The default model of the task: a sentence that there is none."""

    def __getitem__(self, key: Any) -> Any:
        raise ValueError(
            f"`model` must be given for the task {TASK!r}, which has no default: a folder, user/name on the Hub or a model."
        )


def register_translation_pipeline() -> None:
    """Makes `pipeline("translation")` and `pipeline("translation_XX_to_YY")` work where transformers lacks the task.

    Does nothing where transformers has it, or after the first call.
    """
    if TASK in PIPELINE_REGISTRY.supported_tasks:
        return
    # pipeline() refuses tasks of this list before it asks the registry; older versions have no such list.
    getattr(pipelines, "REMOVED_TASKS", {}).pop(TASK, None)
    kinds: dict[str, Any] = {"pt_model": AutoModelForSeq2SeqLM, "type": "text"}
    PIPELINE_REGISTRY.register_pipeline(TASK, TranslationPipeline, **kinds, default=_NoDefault(model=None))
    # Pipeline.save_pretrained would otherwise write `custom_pipelines` into the config of any model that translates,
    # T5 for example, and pipeline() would then demand `trust_remote_code` for that checkpoint.
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
