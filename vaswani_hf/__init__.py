"""The 2017 Transformer as a first-class Hugging Face model.

Importing it registers the model with the Auto classes, and the task "translation" with `pipeline`.
"""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from .model.configuration_vaswani import PACKAGE_PARTS, VaswaniConfig
from .model.modeling_vaswani import (
    VaswaniDecoder,
    VaswaniEncoder,
    VaswaniForSeq2SeqLM,
    VaswaniModel,
    VaswaniPreTrainedModel,
)
from .model.pipeline_vaswani import TranslationPipeline, register_translation_pipeline
from .version import __version__

AutoConfig.register("vaswani", VaswaniConfig, exist_ok=True)
AutoModel.register(VaswaniConfig, VaswaniModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(VaswaniConfig, VaswaniForSeq2SeqLM, exist_ok=True)
register_translation_pipeline()


def _push_pipeline():
    from .publish.push import push_pipeline

    return push_pipeline


PACKAGE_PARTS["push_pipeline"] = _push_pipeline

__all__ = [
    "TranslationPipeline",
    "VaswaniConfig",
    "VaswaniDecoder",
    "VaswaniEncoder",
    "VaswaniForSeq2SeqLM",
    "VaswaniModel",
    "VaswaniPreTrainedModel",
    "__version__",
]
