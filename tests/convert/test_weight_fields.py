"""The config fields that follow from the weights of an imported checkpoint."""

import pytest
import torch
from factories import tiny_model
from sentences import refused

from vaswani_hf.convert.weights import EMBEDDINGS, norm_fields, weight_fields

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


def test_a_final_layer_norm_in_only_one_stack_is_one_sentence():
    state = {"model.decoder.layer_norm.weight": torch.ones(1)}
    with refused(
        "The original has `final LayerNorm` 'only in the decoder', and cannot be imported, because either both "
        "the encoder and the decoder must end with a LayerNorm, or neither."
    ):
        norm_fields(state, "pre", "pre")
