"""The import of the Annotated Transformer against the reference with the LayerNorm of the book."""

import json

import pytest
import torch
from factories import stacks, tiny_model
from parity import import_refused, largest_difference, record_parity
from reference import Reference, sinusoid
from safetensors.torch import save_file

from vaswani_hf.cli import main

# The names of this package, and the names of the book.
NAMES = {
    "model.encoder.embed_tokens": "src_embed.0.lut",
    "model.decoder.embed_tokens": "tgt_embed.0.lut",
    "lm_head": "generator.proj",
    "encoder_attn.": "src_attn.",
    **{f"{part}_proj": f"linears.{i}" for i, part in enumerate(("q", "k", "v", "out"))},
    "fc": "feed_forward.w_",
    "self_attn_layer_norm": "sublayer.0.norm",
    "encoder_attn_layer_norm": "sublayer.1.norm",
    "layer_norm": "norm",
    "norm.weight": "norm.a_2",
    "norm.bias": "norm.b_2",
    "model.": "",
}


class Book(Reference):
    """The reference with the LayerNorm of the book."""

    def layer_norm(self, name, states):
        mean, deviation = states.mean(-1, keepdim=True), states.std(-1, keepdim=True)
        normalized = (states - mean) / (deviation + 1e-6)
        return self.weights[f"{name}.weight"] * normalized + self.weights[f"{name}.bias"]


def book_model():
    """A model of this package with random weights and the shape of the book's model."""
    shape = stacks(attention_heads=3) | {"d_model": 12, "decoder_layers": 1, "norm_position": "pre"}
    embeddings = {"vocab_size": 17, "decoder_vocab_size": 13, "share_encoder_decoder_embeddings": False}
    return tiny_model(
        **shape, **embeddings, tie_word_embeddings=False, attention_bias=True, lm_head_bias=True
    )


def book_state():
    """A state dict with the names of the book, with random weights everywhere."""
    state = {}
    for name, tensor in book_model().state_dict().items():
        last = "sublayer.1.norm" if "encoder.layers" in name else "sublayer.2.norm"
        for ours, theirs in ({"final_layer_norm": last} | NAMES).items():
            name = name.replace(ours, theirs)
        state[name] = tensor
    table = torch.tensor([[sinusoid(position, 12) for position in range(50)]])
    return state | {"src_embed.1.pe": table, "tgt_embed.1.pe": table.clone()}


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_the_imported_model_computes_the_formulas_of_the_book(tmp_path, record_property, suffix):
    state, file = book_state(), tmp_path / f"model{suffix}"
    if suffix == ".pt":
        torch.save({f"module.{name}": tensor for name, tensor in state.items()}, file)
    else:
        save_file(state, file)
    (tmp_path / "facts.yaml").write_text("h: 3\n")
    assert main(["import", str(file), str(tmp_path / "ours"), "--config", str(tmp_path / "facts.yaml")]) == 0
    source, target = [5, 9, 3, 16, 7, 1], [0, 3, 11, 4, 8]
    model = book_model()
    with torch.no_grad():
        logits = Book(model.state_dict(), model.config).logits(source, target)
    batch = {"input_ids": torch.tensor([source]), "decoder_input_ids": torch.tensor([target])}
    difference = largest_difference(tmp_path / "ours", batch, logits.unsqueeze(0), padding=2)
    record_parity(record_property, "The Annotated Transformer", "the formulas of the book", difference)


REFUSED = {
    "no heads": ({}, {}, "`h` must be given, but is missing"),
    "a number of heads that does not fit": (
        {"h": 5},
        {},
        "`d_model` must be a multiple of ... 12 is no multiple of 5",
    ),
    "another table": (
        {"h": 3},
        {"src_embed.1.pe": torch.ones(1, 9, 12)},
        "has `src_embed.1.pe` ... cannot be imported",
    ),
    "another weight": (
        {"h": 3},
        {"encoder.gate": torch.ones(2)},
        "The weight encoder.gate is not a weight of",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_other_values_are_refused(tmp_path, case):
    facts, weights, message = case
    torch.save(book_state() | weights, tmp_path / "model.pt")
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    import_refused(tmp_path / "model.pt", message, config=tmp_path / "facts.json")
