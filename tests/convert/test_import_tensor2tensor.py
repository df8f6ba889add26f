"""The import of tensor2tensor. tensor2tensor does not install on current versions of Python, so the reference
is a forward pass in NumPy that this file defines after the source of tensor2tensor 1.15.

If TensorFlow is installed, TensorFlow writes and reads the checkpoints. Otherwise a module with the two
functions that the import calls replaces TensorFlow, and the checkpoints are files of NumPy.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from parity import record_parity

from vaswani_hf import VaswaniForSeq2SeqLM, import_checkpoint
from vaswani_hf.checkpoint.tokenizers import load_tokenizers
from vaswani_hf.convert.tensor2tensor_tokenizers import subword_tokenizer

HAS_TENSORFLOW = find_spec("tensorflow") is not None
RECORDED = Path(__file__).parent / "recorded" / "tensor2tensor"
D, FFN, HEADS, SOURCE, TARGET = 16, 24, 2, 19, 19
REPLACEMENT = """
import types
import numpy


class Reader:
    def __init__(self, prefix):
        try:
            self.arrays = dict(numpy.load(prefix + ".npz"))
        except Exception as error:
            raise ValueError("damaged") from error

    def get_variable_to_shape_map(self):
        return {name: array.shape for name, array in self.arrays.items()}

    def get_tensor(self, name):
        return self.arrays[name]


train = types.SimpleNamespace(latest_checkpoint=lambda folder: None, load_checkpoint=Reader)
"""


@pytest.fixture(autouse=True)
def tensorflow(tmp_path_factory, monkeypatch):
    if not HAS_TENSORFLOW:
        folder = tmp_path_factory.mktemp("modules")
        (folder / "tensorflow.py").write_text(REPLACEMENT)
        monkeypatch.syspath_prepend(folder)
        yield
        sys.modules.pop("tensorflow", None)
        return
    yield


def variables(is_pre, is_shared):
    """The variables of a model with random weights, under the names of tensor2tensor."""
    draw = np.random.default_rng(0)

    def array(*shape):
        return (draw.standard_normal(shape) * 0.3).astype(np.float32)

    found = {"transformer/body/target_space_embedding/kernel": array(32, D)}
    kinds = ["shared"] if is_shared else ["input_emb", "target_emb", "softmax"]
    for kind in kinds:
        table = array(SOURCE, D)
        for number, rows in enumerate(np.array_split(table, 16)):
            found[f"transformer/symbol_modality_{SOURCE}_{D}/{kind}/weights_{number}"] = rows
    position = "layer_prepostprocess" if is_pre else "layer_postprocess"

    def add_norm(scope, name):
        found[f"{scope}/{name}/layer_norm/layer_norm_scale"] = 1 + array(D)
        found[f"{scope}/{name}/layer_norm/layer_norm_bias"] = array(D)

    attentions = {"encoder": ["self_attention"], "decoder": ["self_attention", "encdec_attention"]}
    for stack, names in attentions.items():
        for layer in range(2):
            scope = f"transformer/body/{stack}/layer_{layer}"
            for name in names:
                for part in ("q", "k", "v", "output_transform"):
                    found[f"{scope}/{name}/multihead_attention/{part}/kernel"] = array(D, D)
                add_norm(f"{scope}/{name}", position)
            for number, shape in ((1, (D, FFN)), (2, (FFN, D))):
                found[f"{scope}/ffn/conv{number}/kernel"] = array(*shape)
                found[f"{scope}/ffn/conv{number}/bias"] = array(shape[1])
            add_norm(f"{scope}/ffn", position)
        if is_pre:
            add_norm(f"transformer/body/{stack}", "layer_prepostprocess")
    found["training/transformer/body/encoder/layer_0/ffn/conv1/kernel/Adam"] = array(D, FFN)
    found["global_step"] = np.array(9, dtype=np.int64)
    return found


def write(folder, found, hparams):
    folder.mkdir()
    prefix = str(folder / "model.ckpt-9")
    if HAS_TENSORFLOW:
        import tensorflow

        tensorflow.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=list(found),
            shape_and_slices=[""] * len(found),
            tensors=list(found.values()),
        )
    else:
        np.savez(prefix + ".npz", **found)
        (folder / "model.ckpt-9.index").write_text("\n".join(found))
    (folder / "hparams.json").write_text(json.dumps(hparams))
    return folder


def log_probs(found, source, target, is_pre, target_space):
    """The log-probabilities [T, V] of one sentence pair without padding. `target` has no start token."""

    def table(kind):
        shards = [
            found.get(f"transformer/symbol_modality_{SOURCE}_{D}/{kind}/weights_{i}") for i in range(16)
        ]
        return table("shared") if shards[0] is None else np.concatenate(shards)

    def norm(x, scope):
        scale = found[f"{scope}/layer_norm/layer_norm_scale"]
        centred = x - x.mean(-1, keepdims=True)
        root = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
        return centred / root * scale + found[f"{scope}/layer_norm/layer_norm_bias"]

    def softmax(x):
        exponentials = np.exp(x - x.max(-1, keepdims=True))
        return exponentials / exponentials.sum(-1, keepdims=True)

    def attention(x, scope, is_causal, memory=None):
        memory = x if memory is None else memory
        q, k, v = (
            states @ found[f"{scope}/multihead_attention/{part}/kernel"]
            for part, states in (("q", x), ("k", memory), ("v", memory))
        )
        heads = []
        for head in np.split(np.arange(D), HEADS):
            scores = q[:, head] * (D // HEADS) ** -0.5 @ k[:, head].T
            if is_causal:
                scores = np.where(np.tril(np.ones_like(scores)) > 0, scores, -1e9)
            heads.append(softmax(scores) @ v[:, head])
        return np.concatenate(heads, -1) @ found[f"{scope}/multihead_attention/output_transform/kernel"]

    def feed_forward(x, scope):
        inner = np.maximum(x @ found[f"{scope}/conv1/kernel"] + found[f"{scope}/conv1/bias"], 0)
        return inner @ found[f"{scope}/conv2/kernel"] + found[f"{scope}/conv2/bias"]

    def sublayer(x, function, scope, *arguments):
        if is_pre:
            return x + function(norm(x, f"{scope}/layer_prepostprocess"), scope, *arguments)
        return norm(x + function(x, scope, *arguments), f"{scope}/layer_postprocess")

    def timing(length):
        timescales = np.exp(-np.arange(D // 2) * np.log(10000) / (D // 2 - 1))
        angles = np.arange(length)[:, None] * timescales
        return np.concatenate((np.sin(angles), np.cos(angles)), 1)

    def stack(x, name, memory=None):
        for layer in range(2):
            scope = f"transformer/body/{name}/layer_{layer}"
            x = sublayer(x, attention, f"{scope}/self_attention", memory is not None)
            if memory is not None:
                x = sublayer(x, attention, f"{scope}/encdec_attention", False, memory)
            x = sublayer(x, feed_forward, f"{scope}/ffn")
        return norm(x, f"transformer/body/{name}/layer_prepostprocess") if is_pre else x

    inputs = table("input_emb")[source] * D**0.5
    inputs += found["transformer/body/target_space_embedding/kernel"][target_space]
    memory = stack(inputs + timing(len(source)), "encoder")
    outputs = table("target_emb")[target] * D**0.5
    shifted = np.concatenate((np.zeros((1, D)), outputs[:-1]))
    logits = stack(shifted + timing(len(target)), "decoder", memory) @ table("softmax").T
    # `<pad>` has probability 0 in this package.
    logits[:, 0] = -1e9
    return np.log(softmax(logits)[:, 1:])


HPARAMS = {
    "num_heads": HEADS,
    "layer_preprocess_sequence": "n",
    "layer_postprocess_sequence": "da",
    "pos": "timing",
}
POST = {"layer_preprocess_sequence": "none", "layer_postprocess_sequence": "dan"}


@pytest.mark.parametrize(
    "is_pre, is_shared, target_space", [(True, True, 0), (False, True, 3), (True, False, 0)]
)
def test_the_imported_model_computes_the_reference(
    tmp_path, record_property, is_pre, is_shared, target_space
):
    found = variables(is_pre, is_shared)
    hparams = HPARAMS if is_pre else HPARAMS | POST
    folder = write(tmp_path / "t2t", found, hparams | {"target_space_id": target_space})
    report = import_checkpoint(folder, tmp_path / "ours")
    assert report.format == "tensor2tensor" and "No tokenizers were written" in report.text
    source, target = [5, 9, 2, 18, 7, 1], [3, 11, 4, 8, 1]
    ours = VaswaniForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        logits = ours(
            input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[0, *target[:-1]]])
        ).logits
    expected = torch.tensor(log_probs(found, source, target, is_pre, target_space)).float()
    difference = (logits.log_softmax(-1)[0, :, 1:] - expected).abs().max()
    record_parity(record_property, "tensor2tensor", "a forward pass in NumPy", difference, 1e-5)
    assert ours.config.tie_word_embeddings is is_shared
    assert ours.generation_config.length_penalty_type == "gnmt"


REFUSED = {
    "pos": "emb",
    "self_attention_type": "dot_product_relative",
    "ffn_layer": "local_moe",
    "norm_type": "noam",
    "layer_postprocess_sequence": "dan",
    "num_heads": 5,
    "target_space_id": 32,
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_hyperparameters_are_refused(tmp_path, name):
    value = REFUSED[name]
    folder = write(tmp_path / "t2t", variables(True, True), HPARAMS | {name: value})
    with pytest.raises(ValueError, match=f"has `{name}` {value!r}, and cannot be imported"):
        import_checkpoint(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


FLAGS = "--nodecode\n--hparams_set=transformer_base_v1\n--model=transformer\n--hparams=num_heads=2,batch_size=[1,2]\n"


def test_the_flags_of_an_old_version_give_the_hyperparameters(tmp_path, vaswani):
    folder = write(tmp_path / "t2t", variables(False, True), {})
    (folder / "hparams.json").unlink()
    flags = folder / "flags.txt"
    flags.write_text(FLAGS)
    import_checkpoint(folder, tmp_path / "ours")
    config = VaswaniForSeq2SeqLM.from_pretrained(tmp_path / "ours").config
    assert (config.encoder_attention_heads, config.norm_position) == (2, "post")
    assert config.attention_dropout == 0
    words = ["import", folder, tmp_path / "other"]
    for old, new, message in (
        ("transformer_base_v1", "universal", "`hparams_set` in flags.txt must be"),
        ("model=transformer", "model=lstm", "has `model` 'lstm'"),
        ("batch_size=[1,2]", "pos=emb", "has `pos` 'emb'"),
    ):
        flags.write_text(FLAGS.replace(old, new))
        assert message in vaswani(*words)[2]
    flags.write_text(FLAGS.replace("transformer_base_v1", "universal"))
    facts, norms = tmp_path / "facts.yaml", "layer_preprocess_sequence: none, layer_postprocess_sequence: dan"
    facts.write_text(f"{{{norms}}}")
    assert "`num_heads`" in vaswani(*words, "--config", facts)[2]
    facts.write_text(f"{{num_heads: 2, {norms}}}")
    assert vaswani(*words, "--config", facts)[0] == 0


def test_the_tokenizer_has_the_ids_of_tensor2tensor():
    pytest.importorskip("sentencepiece", reason="needs SentencePiece: pip install '.[sentencepiece]'")
    tokenizer = subword_tokenizer(RECORDED / "vocab.recorded.600.subwords")
    texts = json.loads((RECORDED / "texts.json").read_text(encoding="utf-8"))
    assert len(texts["texts"]) > 60
    for text, ids, decoded in zip(texts["texts"], texts["ids"], texts["decoded"], strict=True):
        assert tokenizer(text).input_ids == [*ids, 1], text
        if set(text) <= {*"".join(tokenizer.get_vocab()), " "}:
            assert tokenizer.decode([*ids, 1], skip_special_tokens=True) == decoded


def test_a_vocabulary_in_the_folder_becomes_the_tokenizer(tmp_path, vaswani):
    pytest.importorskip("sentencepiece", reason="needs SentencePiece: pip install '.[sentencepiece]'")
    folder = write(tmp_path / "t2t", variables(True, True), HPARAMS)
    tokens = ["<pad>_", "<EOS>_", "a", "b", "_", "\\", "u", ";", *"0123456789"]
    vocabulary = folder / "vocab.translate.19.subwords"
    vocabulary.write_text("".join(f"'{token}'\n" for token in tokens))
    assert "No tokenizers" not in import_checkpoint(folder, tmp_path / "ours").text
    source, target = load_tokenizers(tmp_path / "ours")
    assert source is target
    # The vocabulary lacks the space and the euro sign.
    assert source.convert_ids_to_tokens(source("ab €").input_ids) == [*"ab_\\32;\\8364;_", "<EOS>_"]
    vocabulary.write_text("'a'\n'b'\n")
    code, _, error = vaswani("import", folder, tmp_path / "other")
    assert code == 1 and "must begin with the tokens <pad>_ and <EOS>_" in error


def test_a_file_gives_the_hyperparameters(tmp_path, vaswani):
    folder = write(tmp_path / "t2t", variables(True, True), HPARAMS)
    (folder / "hparams.json").unlink()
    words = ["import", folder / "model.ckpt-9.index", tmp_path / "ours"]
    code, _, error = vaswani(*words)
    assert code == 2 and "`num_heads`" in error
    (tmp_path / "facts.yaml").write_text("num_heads: 2\n")
    assert vaswani(*words, "--config", tmp_path / "facts.yaml")[0] == 0


def test_a_damaged_checkpoint_is_refused_in_one_sentence(tmp_path, vaswani):
    folder = write(tmp_path / "t2t", variables(True, True), HPARAMS)
    for file in [*folder.glob("*.data-*"), *folder.glob("*.npz")]:
        file.write_bytes(file.read_bytes()[:50])
    code, _, error = vaswani("import", folder, tmp_path / "ours")
    assert code == 1 and "The checkpoint 'model.ckpt-9' cannot be read" in error
    assert not (tmp_path / "ours").exists()
