"""The import of the Annotated Transformer against a short implementation of the book's formulas."""

import json
import math

import pytest
import torch
from parity import record_parity
from safetensors.torch import save_file
from torch.nn.functional import linear

from vaswani_hf import VaswaniForSeq2SeqLM, import_checkpoint
from vaswani_hf.cli import main
from vaswani_hf.convert.comparison import sample_batch

D, FFN, HEADS = 12, 20, 3


def book_state(source_size=17, target_size=13, num_encoder=2, num_decoder=1):
    """A state dict with the names of the book, with random weights everywhere."""
    torch.manual_seed(0)
    linears = {"src_embed.0.lut": None, "tgt_embed.0.lut": None, "generator.proj": (target_size, D)}
    norms = ["encoder.norm", "decoder.norm"]
    for stack, num_layers, attentions in (
        ("encoder", num_encoder, ["self_attn"]),
        ("decoder", num_decoder, ["self_attn", "src_attn"]),
    ):
        for layer in range(num_layers):
            prefix = f"{stack}.layers.{layer}"
            linears |= {f"{prefix}.{name}.linears.{i}": (D, D) for name in attentions for i in range(4)}
            linears |= {f"{prefix}.feed_forward.w_1": (FFN, D), f"{prefix}.feed_forward.w_2": (D, FFN)}
            norms += [f"{prefix}.sublayer.{i}.norm" for i in range(len(attentions) + 1)]
    state = {}
    for name, size in linears.items():
        if size is not None:
            state[f"{name}.weight"] = 0.4 * torch.randn(size)
            state[f"{name}.bias"] = 0.4 * torch.randn(size[0])
    state["src_embed.0.lut.weight"] = torch.randn(source_size, D)
    state["tgt_embed.0.lut.weight"] = torch.randn(target_size, D)
    for name in norms:
        state[f"{name}.a_2"] = 1 + 0.4 * torch.randn(D)
        state[f"{name}.b_2"] = 0.4 * torch.randn(D)
    angles = torch.arange(50)[:, None] * torch.exp(torch.arange(0, D, 2) * -(math.log(10000.0) / D))
    table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).unsqueeze(0)
    return state | {"src_embed.1.pe": table, "tgt_embed.1.pe": table.clone()}


def book_log_probs(state, batch):
    """The book's `EncoderDecoder` and `Generator`."""

    def apply(name, x):
        return linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    def norm(name, x):
        mean, deviation = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return state[f"{name}.a_2"] * (x - mean) / (deviation + 1e-6) + state[f"{name}.b_2"]

    def attention(name, query, memory, mask):
        heads = [
            apply(f"{name}.linears.{i}", x).view(len(x), -1, HEADS, D // HEADS).transpose(1, 2)
            for i, x in enumerate((query, memory, memory))
        ]
        scores = heads[0] @ heads[1].transpose(-2, -1) / math.sqrt(D // HEADS)
        weights = scores.masked_fill(~mask.unsqueeze(1), -1e9).softmax(-1)
        return apply(f"{name}.linears.3", (weights @ heads[2]).transpose(1, 2).flatten(2))

    def feed_forward(name, x):
        return apply(f"{name}.feed_forward.w_2", apply(f"{name}.feed_forward.w_1", x).relu())

    def embed(side, ids):
        embedded = state[f"{side}_embed.0.lut.weight"][ids] * math.sqrt(D)
        return embedded + state[f"{side}_embed.1.pe"][:, : ids.shape[1]]

    source_mask = batch["attention_mask"].bool().unsqueeze(1)  # [B, 1, S]
    memory = embed("src", batch["input_ids"])
    for layer in range(2):
        prefix = f"encoder.layers.{layer}"
        x = norm(f"{prefix}.sublayer.0.norm", memory)
        memory = memory + attention(f"{prefix}.self_attn", x, x, source_mask)
        memory = memory + feed_forward(prefix, norm(f"{prefix}.sublayer.1.norm", memory))
    memory = norm("encoder.norm", memory)
    states = embed("tgt", batch["decoder_input_ids"])
    causal = torch.ones(states.shape[1], states.shape[1], dtype=torch.bool).tril().unsqueeze(0)
    prefix = "decoder.layers.0"
    x = norm(f"{prefix}.sublayer.0.norm", states)
    states = states + attention(f"{prefix}.self_attn", x, x, causal)
    states = states + attention(
        f"{prefix}.src_attn", norm(f"{prefix}.sublayer.1.norm", states), memory, source_mask
    )
    states = states + feed_forward(prefix, norm(f"{prefix}.sublayer.2.norm", states))
    logits = apply("generator.proj", norm("decoder.norm", states))
    # The probability of `<blank>` is 0 in this package.
    logits[..., 2] = -math.inf
    return logits.log_softmax(-1)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_the_imported_model_computes_the_formulas_of_the_book(tmp_path, record_property, suffix):
    state = book_state()
    file = tmp_path / f"model{suffix}"
    if suffix == ".pt":
        torch.save({f"module.{name}": tensor for name, tensor in state.items()}, file)
    else:
        save_file(state, file)
    (tmp_path / "facts.yaml").write_text(f"h: {HEADS}\n")
    assert main(["import", str(file), str(tmp_path / "ours"), "--config", str(tmp_path / "facts.yaml")]) == 0
    ours = VaswaniForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval()
    batch = sample_batch(ours.config)
    with torch.no_grad():
        differences = ours(**batch).logits.log_softmax(-1) - book_log_probs(state, batch)
    is_real = batch["decoder_attention_mask"].bool()
    difference = differences[is_real][:, [0, 1, *range(3, 13)]].abs().max()
    record_parity(record_property, "The Annotated Transformer", "the formulas of the book", difference)


REFUSED = {
    "no heads": ({}, {}, "`h` must be given, but is missing"),
    "other heads": ({"h": 5}, {}, "`d_model` must be a multiple of .* 12 is no multiple of 5"),
    "another table": (
        {"h": 3},
        {"src_embed.1.pe": torch.ones(1, 9, 12)},
        "has `src_embed.1.pe` .* cannot be",
    ),
    "another weight": ({"h": 3}, {"encoder.gate": torch.ones(2)}, "The weight encoder.gate is not a weight"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_other_values_are_refused(tmp_path, case):
    facts, weights, message = case
    torch.save(book_state() | weights, tmp_path / "model.pt")
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    with pytest.raises(ValueError, match=message):
        import_checkpoint(tmp_path / "model.pt", tmp_path / "ours", config=tmp_path / "facts.json")
    assert not (tmp_path / "ours").exists()
