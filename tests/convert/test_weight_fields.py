"""The tables of weight names, and the config fields that follow from the weights of an imported
checkpoint.
"""

import pytest
import torch
from factories import tiny_model
from sentences import refused

from vaswani_hf.checkpoint.loading import load_with_report, refuse_load_faults
from vaswani_hf.convert.weights import (
    EMBEDDINGS,
    WeightNames,
    equal_embeddings,
    norm_fields,
    parts,
    same_names,
    stack_names,
    to_halves,
    to_interleaved,
    weight_fields,
)

SOURCE, TARGET = EMBEDDINGS


def test_weights_under_one_name_give_the_fields_and_a_model_with_tied_weights():
    model = tiny_model(lm_head_bias=True)
    state = model.state_dict()
    for name in ("model.shared.weight", TARGET, "lm_head.weight"):
        del state[name]
    fields = weight_fields(state, "Toy", is_shared=True, is_tied=True)
    assert fields == {name: getattr(model.config, name) for name in fields}
    assert (
        fields["share_encoder_decoder_embeddings"]
        and fields["tie_word_embeddings"]
        and fields["lm_head_bias"]
    )
    loaded, report = load_with_report(type(model), None, config=model.config, state_dict=state)
    refuse_load_faults(report, "Toy")
    for name, weight in loaded.state_dict().items():
        assert weight.equal(model.state_dict()[name])


@pytest.mark.parametrize(("is_shared", "is_tied"), [(True, True), (False, True), (False, False)])
def test_equal_values_are_tied_weights(is_shared, is_tied):
    model = tiny_model(share_encoder_decoder_embeddings=is_shared, tie_word_embeddings=is_tied)
    assert equal_embeddings(model.state_dict(), "Toy") == (is_shared, is_tied)


@pytest.mark.parametrize("missing", [SOURCE, TARGET, "model.decoder.layers.0.fc1.weight"])
def test_a_missing_weight_is_one_sentence(missing):
    state = tiny_model().state_dict()
    del state[missing]
    with refused(
        f"The checkpoint of Toy lacks the weight that corresponds to {missing}; take all weights from one checkpoint."
    ):
        weight_fields(state, "Toy", is_shared=False, is_tied=False)


def test_a_missing_output_projection_is_one_sentence():
    state = tiny_model().state_dict()
    del state["lm_head.weight"]
    with refused(
        "The checkpoint of Toy lacks the weight that corresponds to lm_head.weight; take all weights from one "
        "checkpoint."
    ):
        equal_embeddings(state, "Toy")


def test_one_table_names_the_weights_of_both_stacks_in_both_directions():
    names = WeightNames(
        stack_names(
            {"ff": "fc1", "cross.kv": parts("encoder_attn", "kv")},
            prefix="net.",
            layer="blocks.{}",
            norm="ln",
            weight="w",
            bias="b",
        )
    )
    theirs = {
        "net.encoder.blocks.1.ff.w": torch.randn(2, 3),
        "net.encoder.ln.b": torch.randn(3),
        "net.decoder.blocks.0.cross.kv.w": torch.randn(4, 3),
    }
    ours = names.to_ours(theirs, "Toy")
    keys, values = theirs["net.decoder.blocks.0.cross.kv.w"].chunk(2)
    expected = {
        "model.encoder.layers.1.fc1.weight": theirs["net.encoder.blocks.1.ff.w"],
        "model.encoder.layer_norm.bias": theirs["net.encoder.ln.b"],
        "model.decoder.layers.0.encoder_attn.k_proj.weight": keys,
        "model.decoder.layers.0.encoder_attn.v_proj.weight": values,
    }
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)
    torch.testing.assert_close(names.to_theirs(ours), theirs, rtol=0, atol=0)
    with refused(
        "The weight net.encoder.blocks.0.cross.kv.w is not a weight of Toy; take the weights and the config from "
        "one checkpoint."
    ):
        names.to_ours({"net.encoder.blocks.0.cross.kv.w": keys}, "Toy")


def test_a_format_with_equal_names_has_all_weights_of_the_layers():
    state = tiny_model(attention_bias=True, norm_position="pre").state_dict()
    layers = {name: tensor for name, tensor in state.items() if "layer" in name}
    ours = WeightNames(same_names("model.")).to_ours(layers, "Toy")
    torch.testing.assert_close(ours, layers, rtol=0, atol=0)


def test_features_in_halves_return_to_their_order():
    state = tiny_model(attention_bias=True, d_k=5, d_v=3).state_dict()
    halves = to_halves(state)
    torch.testing.assert_close(to_interleaved(halves), state, rtol=0, atol=0)
    name = "model.encoder.layers.0.fc1.weight"
    assert halves[name].equal(torch.cat((state[name][:, 0::2], state[name][:, 1::2]), dim=1))
    name = "model.encoder.layers.0.fc2.bias"
    assert halves[name].equal(torch.cat((state[name][0::2], state[name][1::2])))


def test_a_final_layer_norm_in_only_one_stack_is_one_sentence():
    state = {"model.decoder.layer_norm.weight": torch.ones(1)}
    with refused(
        "The original has `final LayerNorm` 'only in the decoder', and cannot be imported, because either both "
        "the encoder and the decoder must end with a LayerNorm, or neither."
    ):
        norm_fields(state, "pre", "pre")
