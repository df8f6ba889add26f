"""The import of tensor2tensor. tensor2tensor does not install on current versions of Python, so this file
writes models of this package under the names of tensor2tensor 1.15.

If TensorFlow is installed, TensorFlow writes and reads the checkpoints. Otherwise a module with the two
functions that the import calls replaces TensorFlow, and the checkpoints are files of NumPy.
"""

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from factories import tiny_model
from parity import import_refused, record_parity
from reference import Reference

from vaswani_hf import VaswaniForSeq2SeqLM, import_checkpoint
from vaswani_hf.checkpoint.tokenizers import load_tokenizers
from vaswani_hf.convert.tensor2tensor_tokenizers import subword_tokenizer
from vaswani_hf.convert.weights import to_halves, to_interleaved

HAS_TENSORFLOW = find_spec("tensorflow") is not None
RECORDED = Path(__file__).parent / "recorded" / "tensor2tensor"
D, VOCABULARY = 16, 19
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
    if HAS_TENSORFLOW:
        yield
        return
    folder = tmp_path_factory.mktemp("modules")
    (folder / "tensorflow.py").write_text(REPLACEMENT)
    monkeypatch.syspath_prepend(folder)
    yield
    sys.modules.pop("tensorflow", None)


# The names of this package, and the names of tensor2tensor. "NORM" depends on the norm position.
NAMES = {
    "model.": "transformer/body/",
    ".layers.": "/layer_",
    "self_attn_layer_norm.": "self_attention/NORM_",
    "encoder_attn_layer_norm.": "encdec_attention/NORM_",
    "final_layer_norm.": "ffn/NORM_",
    ".layer_norm.": "/NORM_",
    "self_attn.": "self_attention/multihead_attention/",
    "encoder_attn.": "encdec_attention/multihead_attention/",
    "out_proj": "output_transform",
    "_proj": "",
    "fc": "ffn/conv",
    "NORM_weight": "NORM_scale",
    ".weight": "/kernel",
    ".": "/",
}
EMBEDDINGS = {"input_emb": "model.encoder.embed_tokens", "target_emb": "model.decoder.embed_tokens"}
EMBEDDINGS |= {"softmax": "lm_head"}
SPACES = np.random.default_rng(0).standard_normal((32, D)).astype(np.float32)


def model_of(is_pre=True, is_shared=True):
    """A model of this package with random weights and the shape of a model of tensor2tensor."""
    fields = {"norm_position": "pre" if is_pre else "post", "position_timescales": "tensor2tensor"}
    fields |= {"share_encoder_decoder_embeddings": is_shared, "tie_word_embeddings": is_shared}
    return tiny_model(vocab_size=VOCABULARY, layer_norm_eps=1e-6, **fields)


def variables(model):
    """The weights under the names of tensor2tensor, and variables that the import does not read."""
    norm = "layer_prepostprocess" if model.config.norm_position == "pre" else "layer_postprocess"
    # tensor2tensor has the sines in the first half of the features.
    state = {name: tensor.numpy() for name, tensor in to_halves(model.state_dict()).items()}
    found = {"transformer/body/target_space_embedding/kernel": SPACES}
    kinds = {"shared": "lm_head"} if model.config.tie_word_embeddings else EMBEDDINGS
    for kind, name in kinds.items():
        for number, rows in enumerate(np.array_split(state[f"{name}.weight"], 16)):
            found[f"transformer/symbol_modality_{VOCABULARY}_{D}/{kind}/weights_{number}"] = rows
    for name, array in state.items():
        if ".layer" in name:
            name = re.sub(r"(layers\.\d)\.", r"\1/", name)
            for ours, theirs in NAMES.items():
                name = name.replace(ours, theirs)
            found[name.replace("NORM", f"{norm}/layer_norm/layer_norm")] = array.T
    found["training/transformer/body/encoder/layer_0/ffn/conv1/kernel/Adam"] = np.zeros((D, 20), np.float32)
    found["global_step"] = np.array(9, dtype=np.int64)
    return found


def write(folder, model, hparams):
    folder.mkdir()
    found = variables(model)
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


HPARAMS = {
    "num_heads": 2,
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
    model = model_of(is_pre, is_shared)
    hparams = (HPARAMS if is_pre else HPARAMS | POST) | {"target_space_id": target_space}
    report = import_checkpoint(write(tmp_path / "t2t", model, hparams), tmp_path / "ours")
    assert report.format == "tensor2tensor" and "No tokenizers were written" in report.text
    state = model.state_dict()
    source_table, target_table = (f"{EMBEDDINGS[kind]}.weight" for kind in ("input_emb", "target_emb"))
    spaces = to_interleaved({source_table: torch.from_numpy(SPACES)})[source_table]
    state[source_table] = state[source_table] + spaces[target_space] * D**-0.5
    # The first input of the decoder is a vector of zeros.
    state[target_table] = state[target_table].index_fill(0, torch.tensor([0]), 0)
    source, target = [5, 9, 2, 18, 7, 1], [0, 3, 11, 4, 8]
    ours = VaswaniForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        expected = Reference(state, model.config).log_probs(source, target, excluded_class=0)
        logits = ours(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([target])).logits
    difference = (logits.log_softmax(-1)[0] - expected)[:, 1:].abs().max()
    record_parity(record_property, "tensor2tensor", "the formulas of the paper", difference, 1e-5)
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
    folder = write(tmp_path / "t2t", model_of(), HPARAMS | {name: value})
    import_refused(folder, f"has `{name}` {value!r}, and cannot be imported")


FLAGS = "--nodecode\n--hparams_set=transformer_base_v1\n--model=transformer\n--hparams=num_heads=2,batch_size=[1,2]\n"


def test_the_flags_of_an_old_version_give_the_hyperparameters(tmp_path, vaswani):
    folder = write(tmp_path / "t2t", model_of(is_pre=False), {})
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


def test_a_vocabulary_in_the_folder_becomes_the_tokenizer(tmp_path):
    pytest.importorskip("sentencepiece", reason="needs SentencePiece: pip install '.[sentencepiece]'")
    folder = write(tmp_path / "t2t", model_of(), HPARAMS)
    tokens = ["<pad>_", "<EOS>_", "a", "b", "_", "\\", "u", ";", *"0123456789"]
    vocabulary = folder / "vocab.translate.19.subwords"
    vocabulary.write_text("".join(f"'{token}'\n" for token in tokens))
    assert "No tokenizers" not in import_checkpoint(folder, tmp_path / "imported").text
    source, target = load_tokenizers(tmp_path / "imported")
    assert source is target
    # The vocabulary lacks the space and the euro sign.
    assert source.convert_ids_to_tokens(source("ab €").input_ids) == [*"ab_\\32;\\8364;_", "<EOS>_"]
    vocabulary.write_text("'a'\n'b'\n")
    import_refused(folder, "must begin with the tokens <pad>_ and <EOS>_")


def test_a_file_gives_the_hyperparameters(tmp_path, vaswani):
    folder = write(tmp_path / "t2t", model_of(), HPARAMS)
    (folder / "hparams.json").unlink()
    words = ["import", folder / "model.ckpt-9.index", tmp_path / "ours"]
    code, _, error = vaswani(*words)
    assert code == 2 and "`num_heads`" in error
    (tmp_path / "facts.yaml").write_text("num_heads: 2\n")
    assert vaswani(*words, "--config", tmp_path / "facts.yaml")[0] == 0


def test_a_damaged_checkpoint_is_refused_in_one_sentence(tmp_path):
    folder = write(tmp_path / "t2t", model_of(), HPARAMS)
    for file in [*folder.glob("*.data-*"), *folder.glob("*.npz")]:
        file.write_bytes(file.read_bytes()[:50])
    import_refused(folder, "The checkpoint 'model.ckpt-9' cannot be read")
