"""The start of the decoder from zeros: the embedding of `<pad>` stays zero, and `<pad>` has probability 0."""

import pytest
import torch
from factories import tiny_config, tiny_model

from vaswani_hf import VaswaniForSeq2SeqLM

PAD = 1
ZERO_START = {"zero_start_embedding": True, "bos_token_id": None, "decoder_start_token_id": PAD}
OTHER_VOCABULARY = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 19}


@pytest.mark.parametrize("skip_logits", [True, False])
@pytest.mark.parametrize("fields", [{}, OTHER_VOCABULARY, {"tie_word_embeddings": False}], ids=len)
@pytest.mark.parametrize("form", ["t2t", "torch"])
def test_the_embedding_of_the_start_token_stays_zero(fields, form, skip_logits):
    torch.manual_seed(0)
    smoothing = {"label_smoothing": 0.1, "label_smoothing_form": form}
    model = VaswaniForSeq2SeqLM(tiny_config(**ZERO_START, **fields, **smoothing)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    batch = {
        "input_ids": torch.tensor([[5, 6, 2], [7, 2, PAD]]),
        "labels": torch.tensor([[8, 9, 2], [4, 2, -100]]),
    }
    before = model.get_decoder().embed_tokens.weight[5].clone()
    for _ in range(3):
        model(**batch, skip_logits=skip_logits).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    embedding = model.get_decoder().embed_tokens.weight
    assert not embedding[PAD].any() and not torch.equal(embedding[5], before)


def test_padding_has_probability_0_with_label_smoothing():
    model = tiny_model(**ZERO_START, label_smoothing=0.1).train()
    logits = model(input_ids=torch.tensor([[5, 6, 2]]), decoder_input_ids=torch.tensor([[PAD, 8]])).logits
    assert logits.softmax(dim=-1)[..., PAD].max() == 0


def test_the_start_token_must_be_the_padding_token():
    with pytest.raises(
        ValueError, match=r"^`decoder_start_token_id` must equal `pad_token_id` \(1\) if .* but is 0\.$"
    ):
        tiny_config(zero_start_embedding=True)
