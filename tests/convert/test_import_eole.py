"""The import of Eole: logits that Eole 0.6.4 has computed, tokenizers, and refusals.

recorded/eole.pt has three models with random weights, inputs and logits. The tables of sinusoids are shortened to
16 positions.
"""

import json

import pytest
from parity import largest_difference, load_recorded, record_parity
from safetensors.torch import save_file

from vaswani_hf import VaswaniForSeq2SeqLM, import_checkpoint
from vaswani_hf.checkpoint.tokenizers import load_tokenizers
from vaswani_hf.cli import main


@pytest.fixture
def recorded():
    return load_recorded("eole")


def write(case, folder):
    """Write a folder as Eole, with the weights in two shards."""
    folder.mkdir()
    (folder / "config.json").write_text(case["config"])
    (folder / "vocab.json").write_text(case["vocab"])
    names = sorted(case["state"])
    for number in range(2):
        save_file(
            {name: case["state"][name] for name in names[number::2]}, folder / f"model.0{number}.safetensors"
        )
    return folder


EXPECTED = {
    "concat": {"position_timescales": "tensor2tensor", "layer_norm_eps": 1e-6, "lm_head_bias": True},
    "interleaved": {"position_timescales": "paper", "layer_norm_eps": 1e-5, "tie_word_embeddings": True},
    "learned": {"position_embedding": "learned", "scale_embedding": False, "lm_head_bias": False},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_imported_model_computes_the_logits_of_eole(recorded, tmp_path, record_property, name):
    case = recorded[name]
    report = import_checkpoint(write(case, tmp_path / "eole"), tmp_path / "ours")
    assert report.format == "eole"
    ours = VaswaniForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert EXPECTED[name].items() <= ours.config.to_dict().items()
    difference = largest_difference(tmp_path / "ours", case, padding=1)
    record_parity(record_property, "Eole", "Eole 0.6.4 (recorded)", difference)


def test_the_tokens_have_the_ids_of_the_vocabulary(recorded, tmp_path):
    folder = write(recorded["concat"], tmp_path / "eole")
    assert main(["import", str(folder), str(tmp_path / "ours")]) == 0
    source, target = load_tokenizers(tmp_path / "ours")
    assert source("s1 s0 x").input_ids == [5, 4, 0]
    assert target("t1 t0").input_ids == [5, 4, 3]


REFUSED = {
    "layer_norm": ({"layer_norm": "rms"}, "has `layer_norm` 'rms', and cannot be imported"),
    "parallel_residual": ({"parallel_residual": True}, "has `parallel_residual` True"),
    "num_experts": ({"num_experts": 2}, "has `num_experts` 2"),
    "heads_kv": ({"heads_kv": 1}, "has `heads_kv` 1"),
    "left_pad": ({"left_pad": True}, "has `left_pad` True"),
    "add_estimator": ({"add_estimator": True}, "has `add_estimator` True"),
    "position_shift": ({"position_shift": 2}, "has `position_shift` 2"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_other_values_are_refused(recorded, tmp_path, case):
    values, message = case
    config = json.loads(recorded["concat"]["config"])
    config["model"] |= values
    recorded["concat"]["config"] = json.dumps(config)
    with pytest.raises(ValueError, match=message):
        import_checkpoint(write(recorded["concat"], tmp_path / "eole"), tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


OF_PARTS = {
    "activation": ("decoder", {"mlp_activation_fn": "gated-silu"}, "has `mlp_activation_fn` 'gated-silu'"),
    "eps": ("encoder", {"norm_eps": 1e-5},
        "has `norm_eps` 1e-05, .* the encoder and the decoder must have the same value"),
    "style": ("encoder", {"encoder_layer_style": "postnorm"}, "has `encoder_layer_style` 'postnorm'"),
    "type": ("decoder", {"decoder_type": "rnn"}, "has `decoder_type` 'rnn'"),
    "positions": ("embeddings", {"position_encoding_type": "Rotary"},
        "has `position_encoding_type` 'Rotary'"),
}  # fmt: skip


@pytest.mark.parametrize("case", OF_PARTS.values(), ids=OF_PARTS)
def test_other_values_of_a_part_are_refused(recorded, tmp_path, case):
    part, values, message = case
    config = json.loads(recorded["concat"]["config"])
    config["model"][part] |= values
    recorded["concat"]["config"] = json.dumps(config)
    with pytest.raises(ValueError, match=message):
        import_checkpoint(write(recorded["concat"], tmp_path / "eole"), tmp_path / "ours")
