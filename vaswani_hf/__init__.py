"""The 2017 Transformer as a first-class Hugging Face model.

Importing it registers the model with the Auto classes, and the task "translation" with `pipeline`.
"""

import logging
from importlib import import_module

# transformers imports torchao where it is installed, and that says every time which of its CUDA parts it cannot load.
logging.getLogger("torchao").addFilter(lambda record: "Failed to load" not in record.getMessage())
logging.getLogger("torch.utils._pytree").addFilter(lambda record: "register_constant" not in record.getMessage())

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
# Parts of the package that the travelling code finds where the package is imported, each imported when it is asked for.
PACKAGE_PARTS["Translator"] = lambda: import_module(".translation.translator", __name__).Translator
PACKAGE_PARTS["constrained_requests"] = lambda: (
    import_module(".translation.constraints", __name__).constrained_requests
)
PACKAGE_PARTS["constrained_search"] = lambda: import_module(".translation.constrained_search", __name__)
PACKAGE_PARTS["push_pipeline"] = lambda: import_module(".publish.push", __name__).push_pipeline
PACKAGE_PARTS["DecoderLayerStep"] = lambda: import_module(".translation.direct_steps", __name__).DecoderLayerStep
PACKAGE_PARTS["ensembles"] = lambda: import_module(".translation.ensembles", __name__)


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
