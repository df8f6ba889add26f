"""The tables of weight names, and the config fields that follow from the weights of an imported checkpoint."""

import pytest
import torch
from factories import tiny_model
from sentences import refused

from vaswani_hf.convert.weights import (
    EMBEDDINGS,
    WeightNames,
    norm_fields,
    parts,
    same_names,
    stack_names,
    to_halves,
    to_interleaved,
    weight_fields,
)

SOURCE, TARGET = EMBEDDINGS


@pytest.mark.parametrize("is_shared", [True, None], ids=["by a setting", "by equal values"])
def test_a_shared_embedding_gets_all_its_names(is_shared):
    model = tiny_model(lm_head_bias=True)
    state = model.state_dict()
    del state["model.shared.weight"]
    if is_shared:
        del state[TARGET], state["lm_head.weight"]
    fields = weight_fields(state, "Toy", is_shared=is_shared, is_tied=is_shared)
    assert fields == {name: getattr(model.config, name) for name in fields}
    assert (
        fields["share_encoder_decoder_embeddings"]
        and fields["tie_word_embeddings"]
        and fields["lm_head_bias"]
    )
    for name in ("model.shared.weight", TARGET, "lm_head.weight"):
        assert state[name].equal(state[SOURCE])


@pytest.mark.parametrize("is_shared", [True, None])
def test_a_missing_weight_is_one_sentence(is_shared):
    state = tiny_model().state_dict()
    del state[SOURCE]
    with refused(
        f"The checkpoint of Toy lacks the weight that corresponds to {SOURCE}; take all weights from one checkpoint."
    ):
        weight_fields(state, "Toy", is_shared=is_shared, is_tied=is_shared)


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
