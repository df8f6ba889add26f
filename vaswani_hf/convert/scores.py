"""Other score functions as the paper's, for formats that know no other."""

import copy

import torch

from ..model.attention_vaswani import UNFUSED_SCORES, GeneralAttention, VaswaniAttention
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM


def with_scaled_dot(model: VaswaniForSeq2SeqLM, format: str) -> VaswaniForSeq2SeqLM:
    """The same function with scaled dot products in all attentions: factors and matrices are folded into the queries.

    Args:
        model (VaswaniForSeq2SeqLM): The model, which stays as it is.
        format (str): The name of the format, for the message.

    Returns:
        VaswaniForSeq2SeqLM: The model itself, if it has no other scores.

    Raises:
        ValueError: If no projection of the queries expresses a score, or the model has an `attention_window`.
    """
    config = model.config
    if {*config.windows_of(is_causal=False), *config.windows_of(is_causal=True)} != {None}:
        raise ValueError(
            f"`attention_window` is {config.attention_window!r}, which {format} cannot express: it attends to all tokens."
        )
    for name in ("attention_score", "cross_attention_score"):
        if getattr(config, name) in UNFUSED_SCORES:
            raise ValueError(
                f"`{name}` is {getattr(config, name)!r}, which {format} cannot express: its scores are dot products."
            )
    if {config.score_of(is_cross=False), config.score_of(is_cross=True)} == {"scaled_dot"}:
        return model
    config = copy.deepcopy(config)
    config.attention_score, config.cross_attention_score = "scaled_dot", None
    state = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith(".score_weight")}
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
