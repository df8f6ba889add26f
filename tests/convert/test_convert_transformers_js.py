"""The export to transformers.js: equal logits, greedy search, and translations in Node.js."""

import json
import random
import re

import pytest
import torch
from factories import save_checkpoint, tiny_config, tiny_model, tiny_tokenizer
from huggingface_hub import ModelCard
from sentences import refused
from shared_exports import export_once
from word_model import WORDS, random_sentences, trained_on_words

from vaswani_hf import Translator, VaswaniForSeq2SeqLM
from vaswani_hf.checkpoint.tokenizers import SHARED_IDS_MARK
from vaswani_hf.convert.export import export, format_of_export
from vaswani_hf.model.configuration_vaswani import eos_token_ids

pytest.importorskip("onnxscript", reason="needs ONNX and ONNX Runtime: pip install '.[transformers_js]'")
pytest.importorskip("onnxruntime", reason="needs ONNX and ONNX Runtime: pip install '.[transformers_js]'")

from vaswani_hf.convert.transformers_js import TRANSFORMERS_JS, _with_int8_embeddings, _zero_states
from vaswani_hf.convert.transformers_js_engine import DTYPES, TransformersJsEngine

RARE_TEXTS = ["", "five four ☃ «漢字»", "It's  two, isn't it?  \t1,234"]


def save(folder):
    """Write a model after a short training. The decoder starts from `</s>` and has keys and values of
    different widths.
    """
    tokenizer = tiny_tokenizer([" ".join(WORDS), " ".join(WORDS.values())] * 3, 290)
    fields = {"d_model": 32, "d_k": 5, "d_v": 7, "norm_position": "pre", "attention_window": 3}
    config = tiny_config(
        vocab_size=len(tokenizer), encoder_layers=1, decoder_start_token_id=tokenizer.eos_token_id, **fields
    )
    model = trained_on_words(config, tokenizer)
    model.generation_config.num_beams = 4
    model.generation_config.bad_words_ids = [[20, 21]]
    save_checkpoint(folder, model, tokenizer)


@pytest.fixture(scope="module")
def shared():
    return export_once("transformers_js", save, "--source_language", "en", "--target_language", "de")


@pytest.fixture(scope="module")
def checkpoint(shared):
    return shared.checkpoint


@pytest.fixture(scope="module")
def exported(shared):
    return shared.exported


@pytest.fixture(scope="module")
def translator(checkpoint):
    return Translator.from_pretrained(checkpoint)


@pytest.fixture(scope="module")
def texts(translator):
    texts, _ = random_sentences(20, random.Random(1))
    assert len({len(text.split()) for text in translator.translate(texts, num_beams=1)}) > 3
    return texts


def test_the_command_prints_a_difference_for_each_dtype(shared):
    found = re.findall(
        r"the (\w+) graphs and those of the checkpoint on sample inputs: (\S+?)\.(?=\s)", shared.output
    )
    assert [title for title, _ in found] == ["float32", "float16", "int8"]
    differences = [float(difference) for _, difference in found]
    assert differences[0] < 1e-4 < differences[1] < 0.1
    assert differences[1] < differences[2] < 2
    assert shared.errors == ""


def test_the_folder_has_the_files_and_settings_of_transformers_js(exported):
    graphs = {
        f"{name}{suffix}.onnx"
        for name in ("encoder_model", "decoder_model_merged")
        for suffix in DTYPES.values()
    }
    assert {path.name for path in (exported / "onnx").iterdir()} == graphs
    config, generation, tokenizer = (
        json.loads((exported / f"{name}.json").read_text())
        for name in ("config", "generation_config", "tokenizer_config")
    )
    assert config["model_type"] == "marian" and config["is_encoder_decoder"] is True
    assert generation["num_beams"] == 1 and generation["max_length"] >= 1024
    assert generation["decoder_start_token_id"] == 2 and generation["bad_words_ids"] == [[20, 21]]
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"
    card = ModelCard.load(exported / "README.md")
    assert card.data.library_name == "transformers.js" and card.data.pipeline_tag == "translation"
    assert card.data.language == ["en", "de"] and "transformers.js" in card.data.tags
    assert 'pipeline("translation", "exported"' in card.text
    assert format_of_export(exported) is TRANSFORMERS_JS


def test_the_inputs_have_the_names_and_the_fixed_sizes_that_transformers_js_needs(exported):
    import onnxruntime

    session = onnxruntime.InferenceSession(exported / "onnx" / "decoder_model_merged.onnx")
    shapes = {value.name: value.shape for value in session.get_inputs()}
    states = {
        f"{layer}.{stack}.{kind}"
        for layer in range(2)
        for stack in ("decoder", "encoder")
        for kind in ("key", "value")
    }
    others = {"input_ids", "encoder_attention_mask", "encoder_hidden_states", "use_cache_branch"}
    assert shapes.keys() == {f"past_key_values.{name}" for name in states} | others
    assert {value.name for value in session.get_outputs()} == {f"present.{name}" for name in states} | {
        "logits"
    }
    # transformers.js makes an empty cache from these shapes. It replaces "batch_size", and takes 0 for other
    # names.
    for name in states:
        batch_size, heads, length, width = shapes[f"past_key_values.{name}"]
        assert (batch_size, heads, width) == ("batch_size", 2, 5 if name.endswith("key") else 7)
        assert isinstance(length, str) and length != "batch_size"


@pytest.mark.parametrize("batch_size", [1, 7])
def test_log_probs_are_those_of_the_model(checkpoint, exported, translator, texts, batch_size):
    model = VaswaniForSeq2SeqLM.from_pretrained(checkpoint).eval()
    tokenizer = translator.source_tokenizer
    source_ids, target_ids = (tokenizer(rows)["input_ids"] for rows in (texts, texts[::-1]))
    rows = TransformersJsEngine(exported, batch_size=batch_size).log_probs(source_ids, target_ids)
    for source, target, row in zip(source_ids, target_ids, rows, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([source]), labels=torch.tensor([target])).logits
        expected = logits[0].log_softmax(-1)[range(len(target)), target]
        torch.testing.assert_close(torch.tensor(row), expected, rtol=0, atol=1e-4)


def search_of_transformers_js(engine, inputs, ends, limit=60):
    """Greedy search that ends when all sentences of a batch have `</s>` as their last token."""
    target = torch.full((len(inputs["input_ids"]), 1), 2)
    for step in range(limit):
        logits = engine.logits({**inputs, "decoder_input_ids": target}, num_steps=step)[:, -1]
        target = torch.cat((target, logits.argmax(-1, keepdim=True)), dim=1)
        if torch.isin(target[:, -1], torch.tensor(ends)).all():
            return target
    raise AssertionError("the translations did not end at the same time")


def test_the_greedy_search_of_transformers_js_gives_our_translations(exported, checkpoint, translator, texts):
    tokenizer = translator.source_tokenizer
    model = VaswaniForSeq2SeqLM.from_pretrained(checkpoint).eval()
    inputs = tokenizer(texts[:8], return_tensors="pt", padding=True)
    expected = model.generate(**inputs, num_beams=1)
    ends = eos_token_ids(model.config)
    found = search_of_transformers_js(TransformersJsEngine(exported), dict(inputs), ends)
    # After the end, transformers.js has `</s>` where our search has `<pad>`.
    assert torch.equal(found, expected.masked_fill(expected == model.config.pad_token_id, ends[0]))
    assert len(set((expected == model.config.pad_token_id).sum(1).tolist())) > 2


@pytest.mark.skipif(
    not TransformersJsEngine.is_available(),
    reason="needs Node.js and its package @huggingface/transformers, in a folder of NODE_PATH",
)
@pytest.mark.parametrize("batch_size", [1, 8])
def test_node_gives_our_translations(exported, translator, texts, batch_size):
    texts = [*texts, *RARE_TEXTS[1:]]
    expected = list(translator.translate(texts, num_beams=1))
    assert TransformersJsEngine(exported, batch_size=batch_size).translate(texts, num_beams=1) == expected


def test_without_node_the_engine_is_not_available(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert TransformersJsEngine.is_available() is False


def test_two_tokenizers_with_different_ids_are_refused(tmp_path):
    source, target = (tiny_tokenizer(["one two three", "eins zwei"], size) for size in (270, 275))
    sizes = {"vocab_size": len(source), "decoder_vocab_size": len(target)}
    model = tiny_model(**sizes, share_encoder_decoder_embeddings=False)
    save_checkpoint(tmp_path / "two", model, source, target)
    message = (
        "`tokenizers` are a source and a target tokenizer with different ids, which transformers.js cannot express: it "
        "has one tokenizer per model; use another format, or train with a joint vocabulary."
    )
    with refused(message):
        export(tmp_path / "two", tmp_path / "out", "transformers_js")
    assert [path.name for path in tmp_path.iterdir()] == ["two"]


def test_two_tokenizers_with_the_same_ids_are_accepted(tmp_path, monkeypatch):
    source, target = (tiny_tokenizer(["one two three", "eins zwei"], 270) for _ in range(2))
    target.init_kwargs[SHARED_IDS_MARK] = True
    save_checkpoint(tmp_path / "two", tiny_model(vocab_size=len(source)), source, target)
    # Do not trace the graphs, because tracing takes seconds and the test concerns only the tokenizers.
    for name in ("_encoder_program", "_decoder_program", "_differences"):
        monkeypatch.setattr(f"vaswani_hf.convert.transformers_js.{name}", lambda *arguments: ["compared"])
    monkeypatch.setattr("vaswani_hf.convert.transformers_js._write_graph", lambda *arguments: None)
    assert export(tmp_path / "two", tmp_path / "out", "transformers_js") == "compared"
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (
        tmp_path / "two" / "tokenizer.json"
    ).read_bytes()
    assert not (tmp_path / "out" / "target_tokenizer").exists()


def test_the_cache_has_the_widths_of_the_decoder():
    # If the stacks have different numbers of heads, `d_k` of the config stays None.
    model = tiny_model(d_model=16, encoder_attention_heads=4, decoder_attention_heads=2, d_v=3)
    assert [tuple(state.shape[1:]) for state in _zero_states(model, 5)[:2]] == [(2, 5, 8), (2, 5, 3)]


def test_embeddings_are_stored_in_int8_and_a_tied_projection_as_a_matrix():
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    table = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    table[3] = 0
    helper = onnx.helper
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["embedded"], name="embed"),
        helper.make_node("Transpose", ["table"], ["projection"], name="transpose", perm=[1, 0]),
        helper.make_node("MatMul", ["embedded", "projection"], ["logits"], name="project"),
    ]
    inputs = [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [None])]
    outputs = [helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, [None, 5])]
    weights = [onnx.numpy_helper.from_array(table.numpy(), "table")]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    model = _with_int8_embeddings(model)
    kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    assert kinds.keys() == {"embed_codes", "embed_scales", "projection"}
    assert kinds["embed_codes"] == onnx.TensorProto.INT8
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    ids = torch.tensor([4, 0, 3])
    (logits,) = session.run(["logits"], {"ids": ids.numpy()})
    expected = table[ids] @ table.T
    differences = (torch.from_numpy(logits) - expected).abs()
    assert 0 < differences.max() < 0.1 and differences[2].max() == 0
