"""The import of FSMT and M2M100 checkpoints: equal outputs also with padding on the left, and refusals."""

import json

import pytest
import torch
from parity import randomised, record_parity
from safetensors.torch import load_file, save_file
from sentences import refused
from transformers import (
    FSMTConfig,
    FSMTForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
)

from vaswani_hf import VaswaniForSeq2SeqLM, import_checkpoint
from vaswani_hf.cli import main

SIZES = {"d_model": 12, "encoder_layers": 3, "encoder_attention_heads": 3, "encoder_ffn_dim": 20}
SIZES |= {"decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 28}


def fsmt(source: int = 31, target: int = 23, **fields) -> FSMTForConditionalGeneration:
    """An FSMT model in which all weights are random."""
    config = FSMTConfig(src_vocab_size=source, tgt_vocab_size=target, langs=["en", "ru"], **SIZES, **fields)
    return randomised(FSMTForConditionalGeneration(config))


def m2m100(**fields) -> M2M100ForConditionalGeneration:
    """An M2M100 model in which all weights are random."""
    return randomised(M2M100ForConditionalGeneration(M2M100Config(vocab_size=29, **SIZES, **fields)))


MODELS = {
    "two vocabularies": fsmt,
    "one vocabulary": lambda: fsmt(23, 23, tie_word_embeddings=True),
    "unscaled": lambda: fsmt(scale_embedding=False, activation_function="gelu"),
    "another padding token": lambda: fsmt(pad_token_id=4),
    "M2M100": m2m100,
    "M2M100 with nothing tied": lambda: m2m100(tie_word_embeddings=False, activation_function="swish"),
}


@pytest.mark.parametrize("create", MODELS.values(), ids=MODELS)
def test_an_imported_model_computes_the_same(tmp_path, record_property, create):
    created = create()
    created.save_pretrained(tmp_path / "theirs")
    original = type(created).from_pretrained(tmp_path / "theirs").eval()
    report = import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    assert report.format == original.config.model_type
    title = {"fsmt": "FSMT", "m2m_100": "M2M100"}[report.format]
    record_parity(record_property, title, f"{title} of transformers", report.difference)
    pad = original.config.pad_token_id
    # fairseq pads source texts on the left.
    source = torch.tensor([[pad, pad, 8, 9, 2], [5, 6, 7, 8, 2]])
    batch = {"input_ids": source, "attention_mask": (source != pad).long()}
    target = torch.tensor([[2, 11, 12, 13], [2, 3, 5, 6]])
    ours = VaswaniForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        expected = original(**batch, decoder_input_ids=target, use_cache=False).logits
        logits = ours(**batch, decoder_input_ids=target).logits
    expected[..., pad] = float("-inf")
    logits[..., pad] = float("-inf")
    torch.testing.assert_close(logits.log_softmax(-1), expected.log_softmax(-1), rtol=0, atol=1e-4)
    generated = original.generate(**batch, num_beams=1, max_length=9, bad_words_ids=[[pad]])
    settings = {"num_beams": 1, "max_length": 9}
    assert torch.equal(ours.generate(**batch, **settings), generated)


def test_a_file_without_an_output_projection_has_tied_weights(tmp_path):
    model = fsmt()
    model.model.decoder.output_projection.weight = model.model.decoder.embed_tokens.weight
    model.save_pretrained(tmp_path / "theirs")
    report = import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    assert report.difference < 1e-4
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert config["tie_word_embeddings"] and not config["share_encoder_decoder_embeddings"]


def test_a_missing_weight_is_refused(tmp_path, capsys):
    m2m100().save_pretrained(tmp_path / "theirs")
    file = tmp_path / "theirs" / "model.safetensors"
    state = load_file(file)
    del state["model.encoder.layers.1.fc1.bias"]
    save_file(state, file, {"format": "pt"})
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 1
    assert "its config describes: model.encoder.layers.1.fc1.bias is missing" in capsys.readouterr().err
    assert not (tmp_path / "ours").exists()


def test_tied_embeddings_of_two_sizes_are_refused(tmp_path):
    fsmt(tie_word_embeddings=True).save_pretrained(tmp_path / "theirs")
    message = (
        "The original has `tie_word_embeddings` True, and cannot be imported, because `src_vocab_size` 31 and "
        "`tgt_vocab_size` 23 differ, and tied embeddings need equal sizes."
    )
    with refused(message):
        import_checkpoint(tmp_path / "theirs", tmp_path / "ours")


@pytest.mark.parametrize("create", [fsmt, m2m100])
def test_an_unknown_activation_is_refused(tmp_path, create):
    create().save_pretrained(tmp_path / "theirs")
    file = tmp_path / "theirs" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"activation_function": "snake"}))
    message = (
        "The original has `activation_function` 'snake', and cannot be imported, because transformers has no "
        "activation function with this name."
    )
    with refused(message):
        import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
