"""Defines which configs CTranslate2 supports. This file does not import CTranslate2, because CTranslate2 is
perhaps not installed.
"""

from .export_formats import Expressible, Limit, needs_end_token, needs_start_token, one_of
from .simplify import SCALED_DOT_FIELDS, SCALED_DOT_LIMITS

# Maps the name of each activation in transformers to its name in CTranslate2.
ACTIVATIONS = {
    "gelu": "GELU",
    "gelu_fast": "GELUTanh",
    "gelu_new": "GELUTanh",
    "gelu_python": "GELU",
    "gelu_pytorch_tanh": "GELUTanh",
    "quick_gelu": "GELUSigmoid",
    "relu": "RELU",
    "sigmoid": "Sigmoid",
    "silu": "SWISH",
    "swish": "SWISH",
    "tanh": "Tanh",
}
_POSITION_ENCODINGS = ("sinusoidal", "learned", "none")
_LIMITS: dict[str, Limit] = {
    "position_embedding": one_of(
        "position_embedding", _POSITION_ENCODINGS, f"CTranslate2 has only {', '.join(_POSITION_ENCODINGS)}"
    ),
    "activation_function": one_of(
        "activation_function", ACTIVATIONS, f"CTranslate2 has only {', '.join(sorted(ACTIVATIONS))}"
    ),
    "eos_token_id": needs_end_token,
    "decoder_start_token_id": needs_start_token,
    **SCALED_DOT_LIMITS,
}
EXPRESSIBLE = Expressible("CTranslate2", SCALED_DOT_FIELDS, _LIMITS)
