"""Converts a model to an equivalent model for export formats that support only scaled dot-product attention
and position tables of fixed length.
"""

import copy

import torch
from transformers import PreTrainedModel

from ..checkpoint.tokenizers import Tokenizers
from ..model.attention_vaswani import GeneralAttention, VaswaniAttention
from ..model.configuration_vaswani import VaswaniConfig
from ..model.length_limits_vaswani import PAPER_LIMIT, max_new_tokens_of
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..model.segmenter_vaswani import DEFAULT_MAX_LENGTH, token_limits
from .export_formats import Limit, one_of

# In Section 6.1 of the paper, the maximum output length is the input length plus 50 tokens.
EXTRA_TOKENS = PAPER_LIMIT.b
# The built-in score functions that can be converted to scaled dot products. Score functions that users
# register cannot be converted, because such functions can compute arbitrary scores.
_DOT_PRODUCTS = (None, "scaled_dot", "dot", "dot_mean", "general")
_ONLY_DOT_PRODUCTS = "the format supports only dot products as attention scores"
SMALLEST_TABLE = DEFAULT_MAX_LENGTH + EXTRA_TOKENS


def _whole_attention(config: VaswaniConfig) -> str | None:
    windows = {*config.shape_of("encoder").windows, *config.shape_of("decoder").windows}
    return None if windows == {None} else "the format does not support attention windows"


# Maps config fields to the functions that check their values. `SCALED_DOT_LIMITS` is for formats that support
# only scaled dot-product attention over all tokens.
SCALED_DOT_LIMITS: dict[str, Limit] = {
    "attention_score": one_of("attention_score", _DOT_PRODUCTS, _ONLY_DOT_PRODUCTS),
    "cross_attention_score": one_of("cross_attention_score", _DOT_PRODUCTS, _ONLY_DOT_PRODUCTS),
    "attention_window": _whole_attention,
}
# A format with only scaled dot-product attention can support all values of the config fields in
# `SCALED_DOT_FIELDS`. Each format can have additional limits.
SCALED_DOT_FIELDS = frozenset(
    """
    vocab_size decoder_vocab_size d_model encoder_layers decoder_layers encoder_attention_heads
    decoder_attention_heads encoder_ffn_dim decoder_ffn_dim d_k d_v norm_position norm_position_of_decoder
    final_norm layer_norm_eps position_timescales position_offset max_position_embeddings scale_embedding
    share_encoder_decoder_embeddings tie_word_embeddings lm_head_bias zero_start_embedding attention_bias
    use_cache bos_token_id pad_token_id
    """.split()
)


def with_scaled_dot(model: VaswaniForSeq2SeqLM) -> VaswaniForSeq2SeqLM:
    """Return a model with scaled dot-product attention that has the same outputs as `model`. The new query
    projection includes the scaling factor of the score function. For the score function "general", the query
    projection also includes the matrix of the score function.
    """
    config = model.config
    if {config.score_of(is_cross=False), config.score_of(is_cross=True)} == {"scaled_dot"}:
        return model
    config = copy.deepcopy(config)
    config.attention_score, config.cross_attention_score = "scaled_dot", None
    state = {
        name: tensor for name, tensor in model.state_dict().items() if not name.endswith(".score_weight")
    }
    for name, attention in model.named_modules():
        if isinstance(attention, VaswaniAttention):
            state |= {f"{name}.q_proj.{of}": value for of, value in _queries(attention).items()}
    folded = VaswaniForSeq2SeqLM(config).to(device=model.device, dtype=model.dtype)
    folded.load_state_dict(state)
    folded.generation_config = model.generation_config
    return folded.eval()


@torch.no_grad()
def _queries(attention: VaswaniAttention) -> dict[str, torch.Tensor]:
    """Return the weights of a query projection. With the returned weights, scaled dot-product attention has
    the same scores as `attention`.
    """
    folded = {}
    for name, value in attention.q_proj.named_parameters():
        heads = value.double().unflatten(0, (-1, attention.d_k))
        if isinstance(attention, GeneralAttention):
            matrices = attention.score_weight.double().view(-1, attention.d_k, attention.d_k)
            heads = torch.einsum("hij,hi...->hj...", matrices, heads)
        folded[name] = (heads.flatten(0, 1) * attention.scaling * attention.d_k**0.5).to(value.dtype)
    return folded


def num_positions(model: PreTrainedModel, tokenizers: Tokenizers | None) -> int:
    """Return the number of rows that a position table needs for the longest input and output. A new position
    table has at least 1,074 rows, because a source can have 1,024 tokens, and a translation 50 tokens more
    than its source. If the model already has a position table, return the number of rows of this table.
    """
    if model.config.position_table_size is not None:
        return model.config.position_table_size
    config = model.generation_config
    longest = max(token_limits(tokenizers or ()), default=DEFAULT_MAX_LENGTH)
    # Count the start token as an output token, because the decoder also reads the start token.
    longest_output = max_new_tokens_of(config, longest, prompt_length=0)
    return max(SMALLEST_TABLE, longest + EXTRA_TOKENS, longest_output)
