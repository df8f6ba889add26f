"""`output_attentions=True` returns attention weights with every attention implementation, and changes nothing
else.
"""

import pytest
import torch
from factories import tiny_model
from transformers import AttentionInterface, AutoModelForSeq2SeqLM

from vaswani_hf import (
    VaswaniDecoderModel,
    VaswaniEncoderModel,
    VaswaniForCausalLM,
    VaswaniForMaskedLM,
    VaswaniForSeq2SeqLM,
    VaswaniModel,
)

PAD, EOS = 1, 2
SOURCES = torch.tensor([[5, 9, 4, 7, EOS], [6, 3, EOS, PAD, PAD]])
TARGETS = torch.tensor([[0, 8, 5], [0, 7, 4]])
PAIR = {"encoder_attentions": (5, 5), "decoder_attentions": (3, 3), "cross_attentions": (3, 5)}
TEXT = {"attentions": (5, 5)}
MODELS = dict.fromkeys((VaswaniModel, VaswaniForSeq2SeqLM), PAIR)
MODELS |= dict.fromkeys((VaswaniDecoderModel, VaswaniEncoderModel), TEXT)
MODELS |= dict.fromkeys((VaswaniForCausalLM, VaswaniForMaskedLM), TEXT)
IMPLEMENTATIONS = ["eager", "sdpa", "flex_attention", "flash_without_weights"]


def fused(module, query, key, value, *args, **kwargs):
    """A kernel that returns no weights."""
    return torch.zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None


AttentionInterface.register("flash_without_weights", fused)


def make(model_class, implementation="sdpa", **fields):
    """A small model with one windowed layer per stack."""
    model = tiny_model(model_class, **{"attention_window": [1, None]} | fields)
    model.config._attn_implementation = implementation
    return model


def inputs_of(model):
    if model.config.is_encoder_decoder:
        return {"input_ids": SOURCES, "decoder_input_ids": TARGETS}
    return {"input_ids": SOURCES}


@torch.no_grad()
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("model_class", MODELS)
def test_every_model_returns_attentions_with_every_implementation(model_class, implementation):
    model = make(model_class, implementation)
    inputs = inputs_of(model)
    outputs = model(**inputs, output_attentions=True)
    expected = make(model_class, "eager")(**inputs, output_attentions=True)
    plain = make(model_class)(**inputs)
    real = slice(None) if model.config.is_encoder_decoder else SOURCES != PAD
    torch.testing.assert_close(outputs[0][real], plain[0][real], atol=1e-5, rtol=1e-5)
    for name, shape in MODELS[model_class].items():
        assert name not in plain and len(outputs[name]) == 2
        for weights, eager_weights in zip(outputs[name], expected[name], strict=True):
            assert weights.shape == (2, 2, *shape)
            torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))
            torch.testing.assert_close(weights, eager_weights)
    assert model.config._attn_implementation == implementation
    assert len(model(**inputs, output_attentions=True, return_dict=False)) == len(outputs.to_tuple())


@torch.no_grad()
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[1:])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_generate_returns_attentions_with_every_implementation(implementation, num_beams):
    options = {"num_beams": num_beams, "min_new_tokens": 3, "max_new_tokens": 3, "output_attentions": True}
    # A cache of flex attention keeps tokens outside of the window.
    window = None if implementation == "flex_attention" else 1
    outputs, expected = (
        make(VaswaniForSeq2SeqLM, name, attention_window=window).generate(
            SOURCES, return_dict_in_generate=True, **options
        )
        for name in (implementation, "eager")
    )
    assert torch.equal(outputs.sequences, expected.sequences)
    for name in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
        torch.testing.assert_close(outputs[name], expected[name], atol=1e-5, rtol=1e-5)
    for name in ("decoder_attentions", "cross_attentions"):
        assert [step[1].shape[:3] for step in outputs[name]] == [(2 * num_beams, 2, 1)] * 3


@torch.no_grad()
def test_the_config_may_ask_for_attentions_with_every_implementation(tmp_path):
    model = make(VaswaniForSeq2SeqLM)
    model.config.output_attentions = True
    assert len(model(**inputs_of(model)).cross_attentions) == 2
    assert model(**inputs_of(model), output_attentions=False).cross_attentions is None
    for num_beams in (1, 2):
        outputs = model.generate(SOURCES, num_beams=num_beams, max_new_tokens=2, return_dict_in_generate=True)
        assert len(outputs.encoder_attentions) == 2 and len(outputs.cross_attentions[0]) == 2
    assert model.generate(SOURCES, max_new_tokens=2).shape == (2, 3)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, attn_implementation="sdpa").eval()
    assert (loaded.config.output_attentions, loaded.config._attn_implementation) == (True, "sdpa")
    assert len(loaded(**inputs_of(loaded)).encoder_attentions) == 2
    language_model = make(VaswaniForMaskedLM)
    language_model.config.output_attentions = True
    assert language_model(SOURCES).attentions[1].shape == (2, 2, 5, 5)


def test_gradients_flow_through_recorded_attentions():
    model = make(VaswaniForSeq2SeqLM).train()
    outputs = model(input_ids=SOURCES, labels=TARGETS, output_attentions=True)
    outputs.cross_attentions[0][..., 0].sum().backward()
    assert model.get_decoder().layers[0].encoder_attn.q_proj.weight.grad.abs().sum() > 0
