"""The import of Eole: logits that Eole 0.6.4 has computed, tokenizers, and refusals.

recorded/eole.pt has three models with random weights, inputs and logits. The tables of sinusoids are
shortened to 16 positions.
"""

import json

import pytest
from parity import import_refused, largest_difference, load_recorded, record_parity
from safetensors.torch import save_file

from vaswani_hf import VaswaniForSeq2SeqLM, import_checkpoint
from vaswani_hf.checkpoint.tokenizers import load_tokenizers


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


@pytest.mark.parametrize("has_tables", [True, False])
@pytest.mark.parametrize("name", EXPECTED)
def test_the_imported_model_computes_the_logits_of_eole(
    recorded, tmp_path, record_property, name, has_tables
):
    case = recorded[name]
    if not has_tables:
        # Eole 0.2 to 0.4.0 stores no sinusoids.
        case["state"] = {key: value for key, value in case["state"].items() if not key.endswith(".pe.pe")}
    report = import_checkpoint(write(case, tmp_path / "eole"), tmp_path / "ours")
    assert report.format == "eole"
    ours = VaswaniForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert EXPECTED[name].items() <= ours.config.to_dict().items()
    difference = largest_difference(tmp_path / "ours", case, case["logits"], padding=1)
    record_parity(record_property, "Eole", "Eole 0.6.4 (recorded)", difference)


def test_the_tokens_have_the_ids_of_the_vocabulary(recorded, tmp_path):
    import_checkpoint(write(recorded["concat"], tmp_path / "eole"), tmp_path / "ours")
    source, target = load_tokenizers(tmp_path / "ours")
    assert source("s1 s0 x").input_ids == [5, 4, 0]
    assert target("t1 t0").input_ids == [5, 4, 3]


# The part of the model, a field of the part, its value, and why the value is refused.
REFUSED = [
    ("", "layer_norm", "rms", ""),
    ("", "parallel_residual", True, ""),
    ("", "num_experts", 2, ""),
    ("", "heads_kv", 1, ""),
    ("", "left_pad", True, ""),
    ("", "add_estimator", True, ""),
    ("", "position_shift", 2, ""),
    ("decoder", "mlp_activation_fn", "gated-silu", ""),
    ("encoder", "norm_eps", 1e-5, "the encoder and the decoder must have the same value"),
    ("encoder", "encoder_layer_style", "postnorm", ""),
    ("decoder", "decoder_type", "rnn", ""),
    ("embeddings", "position_encoding_type", "Rotary", ""),
]


@pytest.mark.parametrize(("part", "field", "value", "reason"), REFUSED)
def test_other_values_are_refused(recorded, tmp_path, part, field, value, reason):
    config = json.loads(recorded["concat"]["config"])
    model = config["model"]
    (model[part] if part else model)[field] = value
    recorded["concat"]["config"] = json.dumps(config)
    message = f"has `{field}` {value!r}, and cannot be imported, because {reason}"
    import_refused(write(recorded["concat"], tmp_path / "eole"), message)
