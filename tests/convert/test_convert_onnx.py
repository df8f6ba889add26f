"""The ONNX export: the same logits in ONNX Runtime, with the cache, for batches and lengths that were not
traced.
"""

import re

import pytest
import torch
from factories import save_checkpoint, tiny_model, tiny_tokenizer
from sentences import refused
from shared_exports import export_once
from transformers import AutoModelForSeq2SeqLM

from vaswani_hf.checkpoint.tokenizers import load_tokenizers
from vaswani_hf.model.modeling_vaswani import VaswaniForSeq2SeqLM

pytest.importorskip("onnxscript", reason="needs ONNX and ONNX Runtime: pip install '.[onnx]'")
pytest.importorskip("onnxruntime", reason="needs ONNX and ONNX Runtime: pip install '.[onnx]'")

from vaswani_hf.convert.comparison import sample_batch
from vaswani_hf.convert.export import export, format_of_export
from vaswani_hf.convert.onnx import ONNX, run_onnx
from vaswani_hf.convert.onnx_engine import OnnxEngine
from vaswani_hf.model.backend_vaswani import Hypothesis, Segment
from vaswani_hf.translation.translator import Translator

SMALL = {"encoder_layers": 1, "decoder_layers": 1}


def save(folder):
    """Write a checkpoint with two vocabularies, windows and two kinds of attention scores."""
    texts = ["one two three four five", "eins zwei drei vier"]
    source, target = (tiny_tokenizer(texts, size) for size in (270, 275))
    sizes = {"vocab_size": len(source), "decoder_vocab_size": len(target)}
    sizes |= {"share_encoder_decoder_embeddings": False, "d_k": 5}
    fields = {"norm_position": "pre", "cross_attention_score": "additive", "attention_window": 2}
    model = tiny_model(**SMALL, **sizes, **fields)
    save_checkpoint(folder, model.bfloat16(), source, target)


@pytest.fixture(scope="module")
def shared():
    return export_once("onnx", save)


@pytest.fixture(scope="module")
def checkpoint(shared):
    return shared.checkpoint


@pytest.fixture(scope="module")
def exported(shared):
    return shared.exported


def test_the_command_prints_one_line(shared):
    found = re.fullmatch(
        r"Largest difference between the logits of ONNX Runtime and those of the checkpoint on sample inputs: (\S+)\.\n",
        shared.output,
    )
    assert float(found.group(1)) < 1e-4
    assert shared.errors == ""


@pytest.mark.parametrize("shape", [(1, 1, 4), (1, 30, 40), (7, 9, 3)], ids=str)
def test_batch_and_lengths_are_free(checkpoint, exported, shape):
    model = AutoModelForSeq2SeqLM.from_pretrained(checkpoint, dtype=torch.float32)
    torch.manual_seed(0)
    batch_size, source_length, target_length = shape
    lengths = torch.randint(1, source_length + 1, (batch_size, 1)).clamp(max=source_length)
    mask = (torch.arange(source_length) < lengths).long()
    input_ids = torch.randint(4, 270, (batch_size, source_length)) * mask + (1 - mask)
    target = torch.randint(4, 275, (batch_size, target_length))
    target[:, 0] = 0
    batch = {"input_ids": input_ids, "attention_mask": mask, "decoder_input_ids": target}
    with torch.no_grad():
        logits = model(**batch).logits
        torch.testing.assert_close(run_onnx(exported, batch), logits, rtol=0, atol=1e-4)
        model.config.attention_window = None
        full = VaswaniForSeq2SeqLM(model.config)
        full.load_state_dict(model.state_dict())
        if max(shape) > 5:
            # The attention window changes the logits of texts with more than 5 tokens.
            assert (full.eval()(**batch).logits - logits)[mask.sum(1) > 5].abs().max() > 1e-2


def test_the_folder_is_complete(exported):
    assert {path.name for path in exported.iterdir()} >= {
        *(f"{name}.onnx{part}" for name in ("encoder", "prefill", "decode") for part in ("", ".data")),
        "config.json",
        "generation_config.json",
    }
    assert [len(tokenizer) for tokenizer in load_tokenizers(exported)] == [270, 275]
    assert format_of_export(exported) is ONNX
    assert [path.name for path in exported.parent.iterdir() if path.name.startswith(".")] == []


def test_the_engine_searches_as_the_checkpoint(checkpoint, exported):
    engine = OnnxEngine(exported)
    translator = Translator.from_pretrained(str(checkpoint), dtype="float32")
    texts = ["one two three four five", "two", "five five one"]
    for num_beams in (1, 3):
        options = {"num_beams": num_beams, "length_penalty_type": "power", "max_new_tokens": 12}
        expected = list(translator.translate(texts, **options))
        assert list(engine.translator.translate(texts, **options)) == expected
    source_ids = translator.source_tokenizer(texts)["input_ids"]
    target_ids = translator.target_tokenizer(["eins zwei", "drei", "vier vier vier"])["input_ids"]
    segments = [Segment("", ids) for ids in source_ids]
    scored = translator.backend.score(segments, [Hypothesis(ids) for ids in target_ids], 0)
    for own, (expected, _) in zip(engine.log_probs(source_ids, target_ids), scored, strict=True):
        assert own == pytest.approx(expected, abs=1e-4)


def test_transformers_loads_the_folder(checkpoint, exported):
    base = pytest.importorskip("transformers.exporters.base")
    if not hasattr(base, "ExportedModel"):
        pytest.skip("this transformers has no ExportedModel")
    loaded = base.ExportedModel.from_pretrained(exported)
    assert list(loaded.components) == ["encoder", "prefill", "decode"]
    model = AutoModelForSeq2SeqLM.from_pretrained(checkpoint, dtype=torch.float32)
    inputs = {
        name: tensor for name, tensor in sample_batch(model.config).items() if not name.startswith("decoder")
    }
    states = loaded.runners["encoder"](**inputs).last_hidden_state
    expected = model.get_encoder()(**inputs).last_hidden_state
    is_real = inputs["attention_mask"].bool()
    torch.testing.assert_close(states[is_real], expected[is_real], rtol=0, atol=1e-4)


@pytest.fixture
def without_graphs(monkeypatch):
    """Do not trace the graphs, because tracing takes seconds and the test concerns only the comparison."""
    monkeypatch.setattr("vaswani_hf.convert.onnx._export", lambda part, inputs: None)
    monkeypatch.setattr("vaswani_hf.convert.onnx._save", lambda graphs, model, folder: None)


def test_what_computes_something_else_is_not_kept(checkpoint, without_graphs, tmp_path, monkeypatch):
    monkeypatch.setattr("vaswani_hf.convert.onnx.run_onnx", lambda folder, batch: torch.zeros(3, 11, 275))
    with pytest.raises(ValueError, match="^The largest difference between the logits of ONNX Runtime and"):
        export(checkpoint, tmp_path / "out", "onnx")
    assert not list(tmp_path.iterdir())


def test_without_onnx_runtime_the_line_says_so(checkpoint, without_graphs, tmp_path, monkeypatch):
    monkeypatch.setattr("vaswani_hf.convert.onnx.find_spec", lambda name: None)
    line = export(checkpoint, tmp_path / "out", "onnx")
    assert (
        line == "The ONNX graphs were not compared with the checkpoint, because onnxruntime is not installed."
    )


def test_a_table_shorter_than_what_is_traced_is_named(tmp_path):
    tiny_model(**SMALL, position_embedding="learned", max_position_embeddings=3).save_pretrained(
        tmp_path / "short"
    )
    message = "`max_position_embeddings` is 3, but the format onnx needs at least 5, because the model is traced with 5 tokens."
    with refused(message):
        export(tmp_path / "short", tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()
