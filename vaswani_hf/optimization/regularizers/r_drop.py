"""The regulariser R-Drop (Liang et al. 2021, Section 2.1): trains the model to give similar probabilities in
two forward passes with different dropout.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

from ...model.errors_vaswani import InvalidValueError
from ...model.modeling_vaswani import VaswaniForSeq2SeqLM
from ...settings.base import Settings
from ...settings.keys import recipe_key
from ...settings.sections import ModelSettings
from ..entries import Regularizer
from .two_passes import TwoPassLoss


class RDropSettings(Settings):
    """The recipe key of R-Drop."""

    r_drop_alpha: float = recipe_key(0.0, ge=0)
    """The weight of the divergence in the loss of R-Drop. 0 turns R-Drop off."""


class RDropLoss(TwoPassLoss):
    """Computes the loss of R-Drop.

    The loss differs from the paper of R-Drop: the loss is multiplied by 1/2, so that the loss is similar to
    the loss of a single forward pass. With `max_grad_norm: 0`, the factor 1/2 hardly changes the steps of
    Adam, because Adam divides the mean gradient by the root mean square of the gradients.
    """

    is_symmetric = True


def _build(
    model: VaswaniForSeq2SeqLM, settings: RDropSettings, autocast: Callable[[], AbstractContextManager]
) -> RDropLoss:
    return RDropLoss(model, settings.r_drop_alpha, autocast)


def _check(settings: RDropSettings, model: ModelSettings) -> None:
    given = model.config_fields()
    if (
        given.get("dropout") == 0
        and not given.get("attention_dropout")
        and not given.get("activation_dropout")
    ):
        raise InvalidValueError(
            f"`training.r_drop_alpha: {settings.r_drop_alpha}` compares two passes with different dropout, "
            "but `model.dropout` is 0, so both passes are equal; raise `model.dropout`, or leave "
            "`r_drop_alpha` out."
        )


R_DROP = Regularizer("r_drop", _build, RDropSettings, strength="r_drop_alpha", num_passes=2, check=_check)
