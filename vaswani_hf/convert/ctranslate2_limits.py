"""Defines which configs CTranslate2 supports. This file does not import CTranslate2, because CTranslate2 may
not be installed.
"""

from ..model.extension_vaswani import POSITION_ENCODINGS
from .export_formats import Expressible, Limit, needs_end_token, needs_start_token, one_of
from .simplify import SCALED_DOT_LIMITS

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
_LIMITS: dict[str, Limit] = {
    "position_embedding": one_of(
        "position_embedding",
        POSITION_ENCODINGS.built_in,
        f"CTranslate2 has only {', '.join(POSITION_ENCODINGS.built_in)}",
    ),
    "activation_function": one_of(
        "activation_function", ACTIVATIONS, f"CTranslate2 has only {', '.join(sorted(ACTIVATIONS))}"
    ),
    "eos_token_id": needs_end_token,
    "decoder_start_token_id": needs_start_token,
    **SCALED_DOT_LIMITS,
}
_FIELDS = """
    vocab_size decoder_vocab_size d_model encoder_layers decoder_layers encoder_attention_heads
    decoder_attention_heads encoder_ffn_dim decoder_ffn_dim d_k d_v norm_position layer_norm_eps
    max_position_embeddings scale_embedding share_encoder_decoder_embeddings
    tie_word_embeddings attention_bias use_cache bos_token_id pad_token_id norm_position_of_decoder final_norm
    position_timescales position_offset lm_head_bias zero_start_embedding
""".split()
EXPRESSIBLE = Expressible("CTranslate2", frozenset(_FIELDS), _LIMITS)
