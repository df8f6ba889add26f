"""`generate` in a training loop uses the cache despite checkpointing, and changes no training step."""

import peft
import pytest
import torch
from factories import tiny_model
from search_models import SCORED, SOURCES, batch_of, translator

# Newer versions of transformers deprecate the older name.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

APIS = ["gradient_checkpointing_enable", "activation_checkpointing_enable"]
MODES = {
    "sampling": {"do_sample": True},
    "scores of beams": {"num_beams": 3, "output_attentions": True, **SCORED},
    "phrases and coverage": {
        "num_beams": 2,
        "coverage_penalty": 0.2,
        "must_contain": [[[6, 7]], [], [], [], []],
    },
    "ensemble": {"num_beams": 2},
}


def enable(model, api):
    if not hasattr(model, api):
        pytest.skip(f"this version of transformers has no `{api}`")
    getattr(model, api)()


def tensors_of(outputs):
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    return [outputs.sequences, *outputs.scores]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("api", "use_cache"), [(APIS[0], True), (APIS[1], False)])
def test_checkpointing_changes_no_translation(mode, api, use_cache):
    found = []
    for is_on in (False, True):
        model, other = (translator(seed).float().train() for seed in (0, 1))
        if is_on:
            enable(model, api)
            enable(other, api)
        options = {**MODES[mode], "max_new_tokens": 6, "use_cache": use_cache}
        if mode == "ensemble":
            options["ensemble"] = [other]
        torch.manual_seed(0)
        found.append(tensors_of(model.generate(**batch_of(SOURCES), **options)))
    for without, checkpointed in zip(*found, strict=True):
        assert torch.equal(without, checkpointed)


def test_an_adapted_model_generates_under_checkpointing():
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], task_type="SEQ_2_SEQ_LM")
    model = peft.get_peft_model(translator().float(), config).train()
    for options in ({}, {"num_beams": 2, "num_return_sequences": 2, **SCORED}):
        options = {**options, "max_new_tokens": 6}
        model.base_model.disable_adapter_layers()
        expected = tensors_of(model.generate(**batch_of(SOURCES), **options))
        enable(model, APIS[0])
        model.enable_input_require_grads()
        with torch.no_grad():
            found = tensors_of(model.generate(**batch_of(SOURCES), **options))
        model.gradient_checkpointing_disable()
        for without, checkpointed in zip(expected, found, strict=True):
            assert torch.equal(without, checkpointed)


@pytest.mark.parametrize(("api", "generates"), [(APIS[0], True), (APIS[1], False)])
def test_training_goes_on_after_it_with_the_same_gradients(api, generates):
    gradients = []
    for is_on in (False, True):
        model = tiny_model(dropout=0.3).float().train()
        if is_on:
            enable(model, api)
        recomputed = []
        model.get_decoder().layers[0].fc1.register_forward_hook(lambda *_, seen=recomputed: seen.append(1))
        if generates and is_on:
            model.generate(**batch_of(SOURCES), max_new_tokens=6)
        recomputed.clear()
        torch.manual_seed(1)
        batch = batch_of(SOURCES)
        model(**batch, labels=batch["input_ids"]).loss.backward()
        # The backward pass computes the layer a second time.
        assert len(recomputed) == 1 + is_on
        assert model.is_gradient_checkpointing == is_on
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)


def test_dropout_is_drawn_in_training_mode():
    model = tiny_model(dropout=0.5).float().train()
    enable(model, APIS[0])
    drawn = set()
    for seed in range(5):
        torch.manual_seed(seed)
        drawn.add(str(model.generate(**batch_of(SOURCES), max_new_tokens=6, num_beams=2).tolist()))
    assert len(drawn) > 1
