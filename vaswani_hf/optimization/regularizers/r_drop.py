"""R-Drop (Liang et al. 2021, Section 2.1): two passes with different dropout should give the same result."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ...model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..entries import NOT_NEGATIVE, Regularizer, key
from .two_passes import TwoPassLoss


@dataclass
class RDropSettings:
    """The key of R-Drop: the weight of the divergence, 0 for none."""

    r_drop_alpha: float = key(0.0, NOT_NEGATIVE)


class RDropLoss(TwoPassLoss):
    """Half of the paper's sum, so that the loss is that of one token; Adam does not see the factor."""

    is_symmetric = True


def _build(
    model: VaswaniForSeq2SeqLM, settings: RDropSettings, autocast: Callable[[], AbstractContextManager]
) -> RDropLoss:
    return RDropLoss(model, settings.r_drop_alpha, autocast)


def _check(settings: RDropSettings, model: dict[str, Any]) -> None:
    rates = [model.get(name) for name in ("dropout", "attention_dropout", "activation_dropout")]
    if rates[0] == 0 and not any(rates[1:]):
        raise ValueError(
            f"`training.r_drop_alpha: {settings.r_drop_alpha}` compares two passes with other dropout, but "
            f"`model.dropout` is {rates[0]}, so that both are the same; raise it, or leave `r_drop_alpha` "
            "out."
        )


R_DROP = Regularizer("r_drop", _build, RDropSettings, strength="r_drop_alpha", num_passes=2, check=_check)
