"""The import of FSMT and M2M100 checkpoints: equal outputs also with padding on the left, and refusals."""

import json

import pytest
import torch
from parity import import_refused, largest_difference, randomised, record_parity
from safetensors.torch import load_file, save_file
from transformers import (
    FSMTConfig,
    FSMTForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
)

from vaswani_hf import VaswaniForSeq2SeqLM, import_checkpoint

SIZES = {"d_model": 12, "encoder_layers": 3, "encoder_attention_heads": 3, "encoder_ffn_dim": 20}
SIZES |= {"decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 28}


def fsmt(source: int = 31, target: int = 23, **fields) -> FSMTForConditionalGeneration:
    """An FSMT model in which all weights are random."""
    config = FSMTConfig(src_vocab_size=source, tgt_vocab_size=target, langs=["en", "ru"], **SIZES, **fields)
    return randomised(FSMTForConditionalGeneration(config))


def m2m100(vocab_size: int = 29, **fields) -> M2M100ForConditionalGeneration:
    """An M2M100 model in which all weights are random."""
    config = M2M100Config(vocab_size=vocab_size, **SIZES, **fields)
    return randomised(M2M100ForConditionalGeneration(config))


def difference_to_original(folder, original) -> torch.Tensor:
    """The largest difference between log-probabilities of an imported checkpoint and of its original."""
    pad = original.config.pad_token_id
    # fairseq pads source texts on the left.
    batch = {"input_ids": torch.tensor([[pad, pad, 8, 7, 2], [5, 6, 7, 8, 2]])}
    batch["decoder_input_ids"] = torch.tensor([[2, 6, 5, 8], [2, 3, 5, 6]])
    with torch.no_grad():
        mask = (batch["input_ids"] != pad).long()
        expected = original(**batch, attention_mask=mask, use_cache=False).logits
    return largest_difference(folder, batch, expected, pad)


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
    assert difference_to_original(tmp_path / "ours", original) < 1e-4
    # The search starts from the same token.
    pad = original.config.pad_token_id
    settings = {"input_ids": torch.tensor([[5, 6, 7, 8, 2]]), "num_beams": 1, "max_length": 9}
    generated = original.generate(**settings, bad_words_ids=[[pad]])
    ours = VaswaniForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval()
    assert torch.equal(ours.generate(**settings), generated)


def test_a_file_without_an_output_projection_has_tied_weights(tmp_path):
    model = fsmt()
    model.model.decoder.output_projection.weight = model.model.decoder.embed_tokens.weight
    model.save_pretrained(tmp_path / "theirs")
    report = import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    assert report.difference < 1e-4
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert config["tie_word_embeddings"] and not config["share_encoder_decoder_embeddings"]


def test_a_missing_weight_is_refused(tmp_path):
    m2m100().save_pretrained(tmp_path / "theirs")
    file = tmp_path / "theirs" / "model.safetensors"
    state = load_file(file)
    del state["model.encoder.layers.1.fc1.bias"]
    save_file(state, file, {"format": "pt"})
    import_refused(tmp_path / "theirs", "its config describes: model.encoder.layers.1.fc1.bias is missing")


def test_tied_embeddings_of_two_sizes_are_refused(tmp_path):
    fsmt(tie_word_embeddings=True).save_pretrained(tmp_path / "theirs")
    message = (
        "The original has `tie_word_embeddings` True, and cannot be imported, because `src_vocab_size` 31 and "
        "`tgt_vocab_size` 23 differ, and tied embeddings need equal sizes."
    )
    import_refused(tmp_path / "theirs", message)


@pytest.mark.parametrize("create", [fsmt, m2m100])
def test_an_unknown_activation_is_refused(tmp_path, create):
    create().save_pretrained(tmp_path / "theirs")
    file = tmp_path / "theirs" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"activation_function": "snake"}))
    import_refused(
        tmp_path / "theirs", "has `activation_function` 'snake', and cannot be imported, because transformers"
    )
