"""Translators that several test files of this folder use."""

import pytest
import torch

from vaswani_hf.translation import Translator


@pytest.fixture(scope="module")
def babbler(copier):
    """An untrained translator with the vocabulary of the copier; its beams have different lengths."""
    torch.manual_seed(0)
    model = type(copier.model)(copier.model.config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        # Its sentences end.
        model.lm_head.weight[2] += 0.5 * model.lm_head.weight.mean(0)
    return Translator(model, copier.source_tokenizer, copier.target_tokenizer)
