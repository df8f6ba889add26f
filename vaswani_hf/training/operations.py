"""The floating-point operations of a training run: counted, and by the method of the paper (Section 5.2, Table 2).

The paper multiplies the time of its training by the number of its GPUs and by "an estimate of the sustained
single-precision floating-point capacity of each GPU" (footnote 5). That capacity is close to what these GPUs reach at best,
and no training reaches it, so that the paper's numbers are larger than what is counted.
"""

import math
from typing import Any

import torch
from torch import nn

from ..checkpoint.kinds import CLASSES_OF_TASKS
from ..model.attention_vaswani import VaswaniAttention
from ..model.configuration_vaswani import VaswaniConfig, nearest_name
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from .optimizer import NUM_STEPS, muon_matrices

# Sustained FLOPs per second (footnote 5), and the number of P100 that all models were trained on (Section 5.2).
PAPER_GPUS = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}
NUM_PAPER_GPUS = 8
# Section 5.1: source tokens, and as many target tokens, of a batch of all GPUs.
PAPER_BATCH = 25_000
# Table 3, "big", where it is not the default.
BIG = {
    "d_model": 1024,
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 16),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 4096),
}
# With the output projection: the cross-entropy has 3 for each pass that it is of, the divergence 3 for both passes.
_OUTPUT_PRODUCTS = {None: 3, "simcut": 3 + 6, "r_drop": 6 + 6}
# Section 5.2: shapes and the seconds of a step.
_PAPER_STEPS: tuple[tuple[dict[str, int], float], ...] = (({}, 0.4), (BIG, 1.0))


def meta_model(config: VaswaniConfig, task: str = "translation") -> Any:
    """A model without memory for its weights.

    Args:
        config (VaswaniConfig): Its shape.
        task (str): That of the recipe.

    Returns:
        PreTrainedModel: On the meta device, its weights tied.
    """
    with torch.device("meta"):
        return CLASSES_OF_TASKS[task](config)


def forward_flops(model: VaswaniForSeq2SeqLM, positions: tuple[int, int], length: int) -> tuple[int, int]:
    """The products of a forward pass, two operations for a multiplication and an addition, as PyTorch counts them.

    A matrix takes 2 per position and number in it; of the cross-attention, those of keys and values are at the source's
    positions. Scores and weighted sums take 2 * heads * (d_k + d_v) per query and key. A query has all keys of its sentence,
    since kernels may compute those that causality hides, too; with an `attention_window` those that it leaves. Sums, norms,
    softmax, dropout and the parameters of other scores than the paper's are not counted.

    Args:
        model (VaswaniForSeq2SeqLM): On any device.
        positions (tuple): Source and target positions of the batch (tokens).
        length (int): The length of all sentences (tokens).

    Returns:
        tuple: The operations of the layers, and those of the output projection.
    """
    source, target = positions
    layers = 0
    for name, module in model.model.named_modules():
        is_of_source = name.startswith("encoder.") or name.endswith(("encoder_attn.k_proj", "encoder_attn.v_proj"))
        of_module = source if is_of_source else target
        if isinstance(module, nn.Linear):
            layers += 2 * module.weight.numel() * of_module
        elif isinstance(module, VaswaniAttention):
            sides = 1 if module.is_causal else 2
            keys = length if module.window is None else min(length, sides * module.window + 1)
            layers += 2 * of_module * keys * (module.q_proj.out_features + module.v_proj.out_features)
    return layers, 2 * model.lm_head.weight.numel() * target


def step_flops(
    model: VaswaniForSeq2SeqLM,
    positions: tuple[int, int],
    length: int,
    *,
    gradient_checkpointing: bool = False,
    second_pass: str | None = None,
) -> int:
    """The operations of a training step: a product has two in the backward pass, for the gradients of both its factors.

    Args:
        model (VaswaniForSeq2SeqLM): On any device.
        positions (tuple): Source and target positions of the step (tokens).
        length (int): The length of all sentences (tokens).
        gradient_checkpointing (bool): The layers compute their forward pass twice.
        second_pass (str, optional): "simcut" or "r_drop", which compute all layers for two passes.

    Returns:
        int: Forward and backward, without the optimizer.
    """
    layers, output = forward_flops(model, positions, length)
    passes = 1 if second_pass is None else 2
    return (4 if gradient_checkpointing else 3) * passes * layers + _OUTPUT_PRODUCTS[second_pass] * output


def muon_flops(model: VaswaniForSeq2SeqLM) -> int:
    """The products of a step of Muon: for each matrix [m, n] and step of its iteration two of m m n and one of m m m.

    Args:
        model (VaswaniForSeq2SeqLM): On any device.

    Returns:
        int: Operations.
    """
    shapes = (sorted(matrix.shape) for matrix in muon_matrices(model))
    return sum(NUM_STEPS * (4 * m * m * n + 2 * m**3) for m, n in shapes)


def paper_seconds(flops: float, length: int) -> float:
    """The seconds of a step on the paper's eight P100, from those that it gives for its base and its big model.

    Of the two, the one with the more similar number of operations is taken, and the step is assumed to reach as many per
    second as that one.

    Args:
        flops (float): The counted operations of the step.
        length (int): The length of the sentences that were counted (tokens).

    Returns:
        float: 0.4 for the base model, 1.0 for the big one (Section 5.2).
    """
    steps = [
        (step_flops(meta_model(VaswaniConfig(**shape)), (PAPER_BATCH, PAPER_BATCH), length), seconds)
        for shape, seconds in _PAPER_STEPS
    ]
    reference, seconds = min(steps, key=lambda step: abs(math.log(step[0] / flops)))
    return seconds * flops / reference


def gpu_rate(name: str) -> float:
    """The sustained rate of a GPU that the paper gives (FLOPs per second).

    Args:
        name (str): K80, K40, M40 or P100, in any case.

    Returns:
        float: Footnote 5.

    Raises:
        ValueError: If the paper does not give it.
    """
    if name.upper() not in PAPER_GPUS:
        raise ValueError(
            f"`--hardware` must be one of {', '.join(PAPER_GPUS)}, whose rates the paper gives, but is {name!r}; the nearest "
            f"name is {nearest_name(name.upper(), PAPER_GPUS)}. For other hardware measure a rate, such as the one that the "
            "lines of a run show, and give it as `--tokens_per_second`."
        )
    return PAPER_GPUS[name.upper()]
