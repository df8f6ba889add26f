"""SimCut (Gao et al. 2022, Section 3): a pass that lacks some tokens should give the same result."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from ...model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..entries import NOT_NEGATIVE, SHARE, Regularizer, key
from .two_passes import TwoPassLoss


@dataclass
class SimCutSettings:
    """The keys of SimCut: the weight of the divergence, and the share of the tokens that the second pass lacks."""

    simcut_alpha: float = key(0.0, NOT_NEGATIVE)
    simcut_p: float = key(0.05, SHARE)


@dataclass
class SimCutLoss(TwoPassLoss):
    """The second pass has no cross-entropy of its own.

    Attributes:
        cut_rate (float): The probability with which the second pass lacks a token.
    """

    cut_rate: float = SimCutSettings.simcut_p
    is_symmetric = False

    def second_pass(self, states: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The embeddings of the first pass with zeros for some tokens."""
        kept = torch.rand(ids.shape, device=ids.device) >= self.cut_rate
        # The end of the source and the start of the target are not words.
        kept |= (ids == self.model.config.eos_token_id) | (ids == self.model.config.decoder_start_token_id)
        return states * kept[..., None]


def _build(
    model: VaswaniForSeq2SeqLM, settings: SimCutSettings, autocast: Callable[[], AbstractContextManager]
) -> SimCutLoss:
    return SimCutLoss(model, settings.simcut_alpha, autocast, settings.simcut_p)


SIMCUT = Regularizer("simcut", _build, SimCutSettings, strength="simcut_alpha", num_passes=2)
