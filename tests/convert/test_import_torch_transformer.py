"""The import of torch.nn.Transformer: the log-probabilities equal PyTorch's, and wrong facts are refused."""

import json
import math

import pytest
import torch
from parity import import_refused, largest_difference, record_parity
from torch import nn

from vaswani_hf import VaswaniForSeq2SeqLM, import_checkpoint
from vaswani_hf.cli import main
from vaswani_hf.convert.comparison import sample_batch

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")

FACTS = {
    "nhead": 3,
    "source_embedding": "src_tok_emb.embedding.weight",
    "target_embedding": "tgt_tok_emb.embedding.weight",
    "output_weight": "generator.weight",
    "output_bias": "generator.bias",
    "scale_embedding": True,
    "positions": "positional_encoding.pos_embedding",
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
}


class Embedding(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embedding = nn.Embedding(size, 12)

    def forward(self, ids):
        return self.embedding(ids) * math.sqrt(12)


class Positions(nn.Module):
    """The table [L, 1, D] of the tutorial of PyTorch, and the table with the sines in the first half."""

    def __init__(self, layout):
        super().__init__()
        angles = torch.arange(40)[:, None] / 10000 ** (torch.arange(0, 12, 2) / 12)
        table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
        if layout == "halves":
            table = torch.cat((angles.sin(), angles.cos()), dim=1)
        if layout == "learned":
            table = torch.randn(40, 12)
        self.register_buffer("pos_embedding", table.unsqueeze(1))

    def forward(self, states):
        return states + self.pos_embedding[: states.shape[1], 0]


class Seq2SeqTransformer(nn.Module):
    """The model of the translation tutorial of PyTorch, with the names of its weights."""

    def __init__(self, layout="interleaved", **arguments):
        super().__init__()
        self.transformer = nn.Transformer(12, 3, 2, 1, 20, batch_first=True, **arguments)
        self.src_tok_emb = Embedding(17)
        self.tgt_tok_emb = Embedding(13)
        self.positional_encoding = Positions(layout)
        self.generator = nn.Linear(12, 13)

    def forward(self, batch):
        is_padding = batch["attention_mask"] == 0
        target = batch["decoder_input_ids"]
        states = self.transformer(
            self.positional_encoding(self.src_tok_emb(batch["input_ids"])),
            self.positional_encoding(self.tgt_tok_emb(target)),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1]),
            src_key_padding_mask=is_padding,
            memory_key_padding_mask=is_padding,
        )
        return self.generator(states)


def write_model(folder, layout="interleaved", facts=None, **arguments):
    """Write a random model and the facts that the import needs, and return the model."""
    torch.manual_seed(0)
    model = Seq2SeqTransformer(layout, **arguments).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    torch.save(model.state_dict(), folder / "model.pt")
    (folder / "facts.json").write_text(json.dumps(FACTS | (facts or {})))
    return model


CASES = {
    "post-norm": ("interleaved", {}, {}),
    "pre-norm": ("halves", {"norm_first": True, "layer_norm_eps": 1e-3}, {}),
    "gelu": ("learned", {"activation": "gelu"}, {}),
    "no biases": ("interleaved", {}, {"bias": False}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_imported_model_computes_what_pytorch_computes(tmp_path, record_property, case):
    layout, facts, arguments = case
    model = write_model(tmp_path, layout, facts, **facts, **arguments)
    report = import_checkpoint(tmp_path / "model.pt", tmp_path / "ours", config=tmp_path / "facts.json")
    assert report.format == "torch_transformer"
    record_parity(record_property, "torch.nn.Transformer", "PyTorch", report.difference)
    batch = sample_batch(VaswaniForSeq2SeqLM.from_pretrained(tmp_path / "ours").config)
    with torch.no_grad():
        expected = model(batch)
    assert largest_difference(tmp_path / "ours", batch, expected, padding=1) < 1e-4


def test_one_embedding_for_everything_stays_tied(tmp_path):
    write_model(tmp_path)
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    kept = {name: tensor for name, tensor in state.items() if name.startswith("transformer.")}
    kept["embedding"] = state["src_tok_emb.embedding.weight"]
    torch.save({"epoch": 3, "model_state_dict": kept}, tmp_path / "model.pt")
    facts = FACTS | {"source_embedding": "embedding", "positions": "sinusoidal"}
    facts |= dict.fromkeys(["target_embedding", "output_weight", "output_bias"])
    (tmp_path / "facts.yaml").write_text(json.dumps(facts))
    words = [str(tmp_path / "model.pt"), str(tmp_path / "ours"), "--config", str(tmp_path / "facts.yaml")]
    assert main(["import", *words]) == 0
    config = VaswaniForSeq2SeqLM.from_pretrained(tmp_path / "ours").config
    assert config.tie_word_embeddings and config.share_encoder_decoder_embeddings and config.final_norm


def test_weights_that_the_model_has_tied_stay_tied(tmp_path):
    write_model(tmp_path, facts={"target_embedding": "src_tok_emb.embedding.weight"})
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    del state["tgt_tok_emb.embedding.weight"]
    state["generator.weight"] = state["src_tok_emb.embedding.weight"]
    state["generator.bias"] = torch.randn(17)
    torch.save(state, tmp_path / "model.pt")
    report = import_checkpoint(tmp_path / "model.pt", tmp_path / "ours", config=tmp_path / "facts.json")
    assert report.difference < 1e-4
    config = VaswaniForSeq2SeqLM.from_pretrained(tmp_path / "ours").config
    assert config.tie_word_embeddings and config.share_encoder_decoder_embeddings


REFUSED = {
    "no heads": ({"nhead": 0}, "`nhead` must be 1 or more, but is 0"),
    "other heads": ({"nhead": 5}, "`d_model` must be a multiple of"),
    "activation": ({"activation": "silu"}, "`activation` must be 'relu' or 'gelu', but is 'silu'"),
    "an unknown key": ({"heads": 3}, "`heads` is not a key, but is set to 3"),
    "an unknown name": (
        {"target_embedding": "tgt"},
        "`target_embedding` must name a weight ... is 'tgt'; ... generator",
    ),
    "a bias as an embedding": ({"source_embedding": "generator.bias"}, "must name a matrix"),
    "an unused weight": ({"output_bias": None}, "The weight generator.bias is neither a weight of torch.nn"),
    "unused positions": ({"positions": "none"}, "The weight positional_encoding.pos_embedding is neither"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_wrong_facts_are_refused(tmp_path, case):
    facts, message = case
    write_model(tmp_path, facts=facts)
    import_refused(tmp_path / "model.pt", message, config=tmp_path / "facts.json")


def test_the_message_without_facts_lists_the_keys(tmp_path):
    write_model(tmp_path)
    message = "`nhead`, `source_embedding`, `scale_embedding`, `positions`, `pad_token_id`"
    import_refused(tmp_path / "model.pt", message)
