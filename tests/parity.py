"""Compare imported models with originals, and record the differences for scripts/benchmarks/imports.py."""

import argparse
import json
from pathlib import Path

import pytest
import torch
from sentences import contains

from vaswani_hf import VaswaniForSeq2SeqLM, import_checkpoint

RECORDED = Path(__file__).parent / "convert" / "recorded"


def record_parity(record_property, format, original, difference, limit=1e-4):
    """Record a difference between log-probabilities (in nats), and check that it is below `limit`."""
    record_property("parity", json.dumps([format, original, float(difference)]))
    assert difference < limit


def load_recorded(name):
    """Models of another library, and the outputs that the library computed."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(RECORDED / f"{name}.pt", weights_only=True)


def write_files(case, folder):
    """Write the recorded text files of a model."""
    folder.mkdir()
    for name, content in case["files"].items():
        (folder / name).write_bytes(content.numpy().tobytes())


def randomised(model):
    """Add random numbers to all weights, but not to the sinusoids."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def largest_difference(folder, batch, expected, padding):
    """The largest difference between log-probabilities of a checkpoint and of the logits `expected`,
    without padding. The original model may give `<pad>` a probability.
    """
    model = VaswaniForSeq2SeqLM.from_pretrained(folder).eval()
    source, target = batch["input_ids"], batch["decoder_input_ids"]
    with torch.no_grad():
        logits = model(
            input_ids=source,
            attention_mask=(source != padding).long(),
            decoder_input_ids=target,
            decoder_attention_mask=(target != padding).long(),
        ).logits
    classes = [number for number in range(logits.shape[-1]) if number != padding]
    differences = logits.log_softmax(-1)[..., classes] - expected[..., classes].log_softmax(-1)
    return differences[target != padding].abs().max()


def import_refused(source, message, **options):
    """Check that the import raises a ValueError that contains the parts of `message`, and writes nothing."""
    with pytest.raises(ValueError) as raised:
        import_checkpoint(source, source.parent / "ours", **options)
    assert contains(str(raised.value), message), raised.value
    assert not (source.parent / "ours").exists()
