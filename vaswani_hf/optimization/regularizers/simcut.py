"""The regulariser SimCut (Gao et al. 2022, Section 3): trains the model to give nearly the same probabilities
with and without some of the input tokens.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from ...model.configuration_vaswani import decoder_start_token_id, eos_token_ids
from ...model.modeling_vaswani import VaswaniForSeq2SeqLM
from ...settings.base import Settings
from ...settings.keys import recipe_key
from ..entries import Regularizer
from .two_passes import TwoPassLoss


class SimCutSettings(Settings):
    """The recipe keys of SimCut."""

    simcut_alpha: float = recipe_key(0.0, ge=0)
    """The weight of the divergence in the loss of SimCut. 0 turns SimCut off."""
    simcut_p: float = recipe_key(0.05, ge=0, lt=1)
    """The probability with which the second pass of SimCut sets the embedding of an input token to zero."""


@dataclass(kw_only=True)
class SimCutLoss(TwoPassLoss):
    """Computes the loss of SimCut. The loss contains the cross-entropy of the first pass only."""

    # The probability that the second pass of SimCut replaces a token embedding by zeros.
    cut_rate: float
    is_symmetric = False

    def second_pass(self, states: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return the token embeddings of the first pass, with zeros in place of randomly chosen
        embeddings.
        """
        kept = torch.rand(ids.shape, device=ids.device) >= self.cut_rate
        # Never replace the embedding of an end token or of the start token by zeros, because these tokens are
        # not text.
        config = self.model.config
        for token_id in (*eos_token_ids(config), decoder_start_token_id(config)):
            kept |= ids == token_id
        return states * kept[..., None]


def _build(
    model: VaswaniForSeq2SeqLM, settings: SimCutSettings, autocast: Callable[[], AbstractContextManager]
) -> SimCutLoss:
    return SimCutLoss(model, settings.simcut_alpha, autocast, cut_rate=settings.simcut_p)


SIMCUT = Regularizer("simcut", _build, SimCutSettings, strength="simcut_alpha", num_passes=2)
