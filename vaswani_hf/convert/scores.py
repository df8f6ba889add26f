"""Folds the factors of other score functions into scaled dot products, for formats that have nothing else."""

import copy

import torch

from ..model.attention_vaswani import UNFUSED_SCORES, GeneralAttention, VaswaniAttention
from ..model.configuration_vaswani import VaswaniConfig
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from .formats import Limit


def _whole_attention(config: VaswaniConfig) -> str | None:
    windows = {*config.windows_of(is_causal=False), *config.windows_of(is_causal=True)}
    return None if windows == {None} else "it attends to all tokens"


def _dot_product(name: str) -> Limit:
    return lambda config: "its scores are dot products" if getattr(config, name) in UNFUSED_SCORES else None


# The limits of a format whose attention is the paper's.
SCALED_DOT_LIMITS: dict[str, Limit] = {
    "attention_score": _dot_product("attention_score"),
    "cross_attention_score": _dot_product("cross_attention_score"),
    "attention_window": _whole_attention,
}


def with_scaled_dot(model: VaswaniForSeq2SeqLM) -> VaswaniForSeq2SeqLM:
    """The same function with scaled dot products in all attentions: factors and matrices are folded into the queries."""
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
    """Weight and bias of the queries, which make dot products divided by sqrt(d_k) the attention's own scores."""
    folded = {}
    for name, value in attention.q_proj.named_parameters():
        heads = value.double().unflatten(0, (-1, attention.d_k))
        if isinstance(attention, GeneralAttention):
            matrices = attention.score_weight.double().view(-1, attention.d_k, attention.d_k)
            heads = torch.einsum("hij,hi...->hj...", matrices, heads)
        folded[name] = (heads.flatten(0, 1) * attention.scaling * attention.d_k**0.5).to(value.dtype)
    return folded
