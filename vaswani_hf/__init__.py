"""The 2017 Transformer as a first-class Hugging Face model; importing it registers the model with the Auto classes."""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from .configuration_vaswani import VaswaniConfig
from .modeling_vaswani import (
    VaswaniDecoder,
    VaswaniEncoder,
    VaswaniForSeq2SeqLM,
    VaswaniModel,
    VaswaniPreTrainedModel,
)
from .version import __version__

AutoConfig.register("vaswani", VaswaniConfig, exist_ok=True)
AutoModel.register(VaswaniConfig, VaswaniModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(VaswaniConfig, VaswaniForSeq2SeqLM, exist_ok=True)

__all__ = [
    "VaswaniConfig",
    "VaswaniDecoder",
    "VaswaniEncoder",
    "VaswaniForSeq2SeqLM",
    "VaswaniModel",
    "VaswaniPreTrainedModel",
    "__version__",
]
