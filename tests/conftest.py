"""What several test files share: one thread, and models small enough for slow loops."""

import pytest
import torch

from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM

torch.set_num_threads(1)

TINY = {
    "vocab_size": 23,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
    "dropout": 0.0,
}


def _make_config(**fields) -> VaswaniConfig:
    return VaswaniConfig(**TINY | fields)


def _make_model(**fields) -> VaswaniForSeq2SeqLM:
    torch.manual_seed(0)
    model = VaswaniForSeq2SeqLM(_make_config(**fields)).eval()
    with torch.no_grad():
        # Biases of 0 and gains of 1 would hide that they are not used, and small weights that a mask is missing.
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="session")
def tiny_config():
    """Make the smallest config that has every part, with these fields changed."""
    return _make_config


@pytest.fixture(scope="session")
def tiny_model():
    """Make the model of such a config, the same at every call, in eval mode."""
    return _make_model
