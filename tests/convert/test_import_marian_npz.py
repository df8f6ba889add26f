"""The import of Marian's `.npz` models: word scores and translations that Marian has computed, vocabularies,
refusals.

recorded/marian/ has models that pymarian 1.12.42 has written, and scores.json with the word scores of
`marian-scorer` and the translations of `marian-decoder` with 4 beams. "post", "pre" and "new" are trained on
number words. Random numbers were added to the weights of the other models. Marian 1.12.42 cannot run the
model "learned". Its scores come from the environment variable TRANSFORMER_FLAVOR=experimental, with the same
table under the names of "transformer-new".
"""

import io
import json
import shutil
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy
import pytest
import torch
import yaml
from marian_models import RARE_TEXTS
from parity import record_parity

from vaswani_hf import Translator, VaswaniForSeq2SeqLM, import_checkpoint
from vaswani_hf.checkpoint.tokenizers import load_tokenizers
from vaswani_hf.convert.marian_npz import OPTIONS_ENTRY, read_npz

sentencepiece = pytest.importorskip(
    "sentencepiece", reason="needs SentencePiece: pip install '.[sentencepiece]'"
)

RECORDED = Path(__file__).parent / "recorded" / "marian"
SCORES = json.loads((RECORDED / "scores.json").read_text(encoding="utf-8"))
MODELS = ("post", "pre", "new", "learned", "legacy", "no_positions", "pre_without_top", "new_without_bias")
HAS_MARIAN = find_spec("pymarian") is not None


def import_recorded(name, folder):
    vocabularies = [RECORDED / file for file in SCORES[name]["vocabularies"]]
    return import_checkpoint(RECORDED / f"{name}.npz", folder, vocabularies=tuple(vocabularies))


def changed(name, path, options=None, **arrays):
    """Write a recorded model with other options and arrays; None removes an array."""
    weights, settings = read_npz(RECORDED / f"{name}.npz")
    text = yaml.safe_dump(settings | (options or {})).encode() + b"\0"
    weights = {**weights, OPTIONS_ENTRY: numpy.frombuffer(text, dtype=numpy.int8), **arrays}
    numpy.savez(path, **{key: array for key, array in weights.items() if array is not None})


@pytest.mark.parametrize("name", MODELS)
def test_the_imported_model_computes_the_word_scores_of_marian(tmp_path, record_property, name):
    report = import_recorded(name, tmp_path / "ours")
    assert report.format == "marian_npz"
    if HAS_MARIAN and name != "learned":
        record_parity(record_property, "Marian (C++)", "pymarian", report.difference)
    else:
        assert report.difference is None
    model = VaswaniForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval()
    source, target = load_tokenizers(tmp_path / "ours")
    scores = SCORES[name]["word_scores"]
    pairs = zip(SCORES["sources"][: len(scores)], SCORES["targets"][: len(scores)], scores, strict=True)
    for source_text, target_text, expected in pairs:
        labels = target(text_target=target_text, return_tensors="pt").input_ids
        with torch.no_grad():
            logits = model(**source(source_text, return_tensors="pt"), labels=labels).logits
        log_probs = logits.log_softmax(dim=-1)[0].gather(1, labels[0].unsqueeze(1)).squeeze(1)
        difference = (log_probs - torch.tensor(expected)).abs().max()
        record_parity(record_property, "Marian (C++)", "pymarian 1.12.42 (recorded)", difference)


@pytest.mark.parametrize("name, equal", [("post", 99), ("new", 100)])
def test_the_translations_are_those_of_marian(tmp_path, name, equal):
    # In "post" Marian misses one translation with a higher score.
    import_recorded(name, tmp_path / "ours")
    translator = Translator.from_pretrained(tmp_path / "ours")
    texts = translator.translate(SCORES["sources"], num_beams=4, length_penalty=0.6)
    found = [ours == theirs for ours, theirs in zip(texts, SCORES[name]["translations"], strict=True)]
    assert sum(found) >= equal


def test_a_folder_with_decoder_yml_needs_no_options(tmp_path, vaswani):
    folder = tmp_path / "marian"
    folder.mkdir()
    for file in ("post.npz", "post.npz.decoder.yml", "joint.spm"):
        shutil.copy(RECORDED / file, folder)
    # Add a file with the state of the optimizer, which does not contain the options of the model.
    numpy.savez(folder / "post.npz.optimizer.npz", adam_mt=numpy.zeros(3))
    assert vaswani("import", folder, tmp_path / "ours")[0] == 0
    settings = json.loads((tmp_path / "ours" / "generation_config.json").read_text())
    assert (settings["num_beams"], settings["length_penalty"], settings["max_length_a"]) == (4, 0.6, 3.0)
    assert settings["suppress_tokens"] == [1]
    found = vaswani("translate", tmp_path / "ours", "--text", SCORES["sources"][0])
    assert found == (0, SCORES["post"]["translations"][0] + "\n", "")
    card = (tmp_path / "ours" / "README.md").read_text().replace("\n", " ")
    assert "imported from `marian`, a checkpoint of Marian (C++)" in card


def test_sentencepiece_vocabularies_keep_their_ids_and_texts(tmp_path):
    import_recorded("new", tmp_path / "ours")
    for file, tokenizer in zip(("en.spm", "de.spm"), load_tokenizers(tmp_path / "ours"), strict=True):
        model = sentencepiece.SentencePieceProcessor(str(RECORDED / file))
        # Without text normalization, a text that begins with the character of a space loses one space.
        rare = [text for text in RARE_TEXTS if not text.startswith("▁")]
        for text in [*rare, *SCORES["sources"], *SCORES["targets"]]:
            ids = model.encode(text)
            assert tokenizer(text).input_ids == [*ids, model.eos_id()]
            if model.unk_id() not in ids:
                assert tokenizer.decode(ids) == model.decode(ids)


def test_the_start_token_has_a_row_of_zeros_and_no_probability(tmp_path):
    # The target vocabulary has 30 of the 42 words.
    weights, _ = read_npz(RECORDED / "legacy.npz")
    changed(
        "legacy",
        tmp_path / "model.npz",
        decoder_Wemb=weights["decoder_Wemb"][:30],
        decoder_ff_logit_out_W=weights["decoder_ff_logit_out_W"][:, :30],
        decoder_ff_logit_out_b=weights["decoder_ff_logit_out_b"][:, :30],
    )
    words = yaml.safe_load((RECORDED / "words.yml").read_text(encoding="utf-8"))
    (tmp_path / "target.txt").write_text("".join(f"{word}\n" for word in list(words)[:30]), encoding="utf-8")
    vocabularies = (RECORDED / "words.yml", tmp_path / "target.txt")
    import_checkpoint(tmp_path / "model.npz", tmp_path / "ours", vocabularies=vocabularies)
    model = VaswaniForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval()
    source, target = load_tokenizers(tmp_path / "ours")
    pad = model.config.pad_token_id
    assert model.config.zero_start_embedding and model.config.decoder_start_token_id == pad == len(words)
    assert source.pad_token_id == target.pad_token_id == pad
    assert not model.model.decoder.embed_tokens.weight[pad].any()
    with torch.no_grad():
        logits = model(**source("one", return_tensors="pt"), decoder_input_ids=torch.tensor([[pad]])).logits
    assert logits.softmax(dim=-1)[0, 0, 30:].max() == 0


def test_vocabularies_of_words(tmp_path):
    vocabulary = {"eos": 0, "UNK": 1, "one": 2, "no": 3, "1": 4, "<pad>": 5, "too many": 600}
    (tmp_path / "words.yml").write_text(
        "".join(f"{token}: {number}\n" for token, number in vocabulary.items())
    )
    import_checkpoint(RECORDED / "pre.npz", tmp_path / "ours", vocabularies=(tmp_path / "words.yml",))
    tokenizer = load_tokenizers(tmp_path / "ours")[0]
    assert tokenizer("one no 1 other <pad>").input_ids == [2, 3, 4, 1, 5, 0]
    assert tokenizer.pad_token == "<start>"
    (tmp_path / "words.txt").write_text("</s>\n<unk>\nwor@@\nld\n")
    import_checkpoint(RECORDED / "pre.npz", tmp_path / "text", vocabularies=(tmp_path / "words.txt",))
    tokenizer = load_tokenizers(tmp_path / "text")[0]
    assert tokenizer("wor@@ ld").input_ids == [2, 3, 0] and tokenizer.decode([2, 3]) == "world"


def test_sentencepiece_models_segment_for_a_vocabulary_of_opus_mt(tmp_path):
    for side, file in (("source", "en.spm"), ("target", "de.spm")):
        shutil.copy(RECORDED / file, tmp_path / f"{side}.spm")
    pieces = {}
    for file in ("en.spm", "de.spm"):
        model = sentencepiece.SentencePieceProcessor(str(RECORDED / file))
        for number in range(len(model)):
            pieces.setdefault(model.id_to_piece(number), len(pieces))
    (tmp_path / "opus.vocab.yml").write_text(json.dumps(pieces, ensure_ascii=False))
    settings = {"models": ["opus.npz"], "vocabs": ["/training/opus.vocab.yml"] * 2, "word-penalty": 0.2}
    (tmp_path / "decoder.yml").write_text(yaml.safe_dump(settings))
    weights, _ = read_npz(RECORDED / "post.npz")
    shape = (len(pieces), 24)
    changed(
        "post",
        tmp_path / "opus.npz",
        Wemb=numpy.ones(shape, numpy.float32),
        decoder_ff_logit_out_b=numpy.zeros((1, len(pieces)), numpy.float32),
    )
    report = import_checkpoint(tmp_path, tmp_path / "ours")
    assert "ignores `word-penalty` 0.2 of the original" in report.text
    source, target = load_tokenizers(tmp_path / "ours")
    model = sentencepiece.SentencePieceProcessor(str(RECORDED / "de.spm"))
    text = SCORES["targets"][0]
    assert target.convert_ids_to_tokens(target(text).input_ids)[:-1] == model.encode(text, out_type=str)
    assert target.get_vocab()["</s>"] == source.get_vocab()["</s>"] == pieces["</s>"]


@pytest.mark.parametrize(
    "version, activation", [("v1.12.42 b7be0e9", "gelu"), ("v1.9.0 ba94c5b", "quick_gelu")]
)
def test_old_versions_approximate_gelu(tmp_path, version, activation):
    changed("new", tmp_path / "model.npz", {"version": version})
    vocabularies = (RECORDED / "en.spm", RECORDED / "de.spm")
    if HAS_MARIAN and activation == "quick_gelu":
        pytest.skip("a current version of Marian computes another function")
    import_checkpoint(tmp_path / "model.npz", tmp_path / "ours", vocabularies=vocabularies)
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert config["activation_function"] == activation


REFUSED = [
    ("type", "s2s", "only Transformer models can be imported"),
    ("type", "amun", "only Transformer models can be imported"),
    ("transformer-decoder-autoreg", "rnn", "the decoder must use self-attention over the previous tokens"),
    ("transformer-decoder-autoreg", "average-attention", "the decoder must use self-attention"),
    ("transformer-attention-mask", "alibi", "positions must be absolute"),
    ("transformer-ffn-depth", 3, "each feed-forward network must have two projections"),
    ("transformer-decoder-ffn-depth", 1, "each feed-forward network must have two projections"),
    ("transformer-postprocess-emb", "dn", "only dropout can follow the embeddings"),
    ("transformer-postprocess-top", "da", "only a LayerNorm can follow the last layer"),
    ("transformer-tied-layers", [1, 1], "each layer must have its own weights"),
    ("transformer-no-projection", True, "attention layers without an output projection cannot be imported"),
    ("lemma-dim-emb", 8, "this package does not support factors of tokens"),
    ("input-types", ["sequence", "alignment"], "the model must have one source text and one target text"),
    ("right-left", True, "the decoder must write from left to right"),
    ("transformer-postprocess", "dhn", "`transformer-preprocess` is ''"),
]


@pytest.mark.parametrize("field, value, reason", REFUSED, ids=[f"{row[0]}={row[1]}" for row in REFUSED])
def test_models_that_cannot_be_expressed_are_refused(tmp_path, vaswani, field, value, reason):
    model = tmp_path / "model.npz"
    changed("post", model, {field: value})
    code, _, error = vaswani("import", model, tmp_path / "ours", "--vocabularies", RECORDED / "joint.spm")
    message = f"The original has `{field}` {value!r}, and cannot be imported, because {reason}"
    assert code == 1 and error.startswith(message)
    assert [path.name for path in tmp_path.iterdir()] == ["model.npz"]


def test_damaged_and_missing_files_give_one_sentence(tmp_path, vaswani):
    def error_of(model, *options):
        code, _, error = vaswani("import", model, tmp_path / "ours", *options)
        assert code == 1
        return error

    options = ["--from", "marian_npz", "--vocabularies", RECORDED / "joint.spm"]
    whole = (RECORDED / "post.npz").read_bytes()
    weights, _ = read_npz(RECORDED / "post.npz")
    pickled = io.BytesIO()
    numpy.savez(pickled, **{OPTIONS_ENTRY: numpy.array([{"type": "transformer"}], dtype=object)})
    quantized = weights["Wemb"].astype(numpy.int8)
    changed("post", tmp_path / "int8.npz", Wemb=quantized)
    changed("post", tmp_path / "unknown.npz", encoder_l1_ffn_W9=weights["Wemb"])
    changed("post", tmp_path / "incomplete.npz", encoder_l1_ffn_W1=None)
    numpy.savez(tmp_path / "optimizer.npz", adam_mt=numpy.zeros(3))
    cases = {
        "cut": (whole[: len(whole) // 2], "cannot be read"),
        "changed": (whole.replace(b"\x93NUMPY", b"\x93NUMPX"), "cannot be read"),
        "pickled": (pickled.getvalue(), "cannot be read"),
        "int8": (None, "The original has `dtype of Wemb` 'int8'"),
        "unknown": (None, "The weight encoder_l1_ffn_W9 is not a weight of Marian"),
        "incomplete": (None, "lacks the weight"),
        "optimizer": (None, "has no entry special:model.yml"),
    }
    for name, (content, message) in cases.items():
        file = tmp_path / f"{name}.npz"
        if content is not None:
            file.write_bytes(content)
        assert message in error_of(file, *options), name
        file.unlink()
    (tmp_path / "model.bin").write_bytes(b"\1\0\0\0")
    assert "The original has `model` 'model.bin'" in error_of(tmp_path / "model.bin", *options[:2])
    pre = RECORDED / "pre.npz"
    assert "needs one or two vocabularies, but none are named" in error_of(pre)
    assert "must exist, but does not" in error_of(pre, "--vocabularies", tmp_path / "no.yml")
    (tmp_path / "bad.yml").write_text("one: two\n")
    assert "must map each token to an id" in error_of(pre, "--vocabularies", tmp_path / "bad.yml")
    assert not (tmp_path / "ours").exists() and not list(tmp_path.glob("*unfinished*"))


def test_a_file_without_the_options_is_no_model_of_marian(tmp_path, vaswani):
    with zipfile.ZipFile(tmp_path / "weights.npz", "w") as archive:
        archive.writestr("weights", b"")
    code, _, error = vaswani("import", tmp_path / "weights.npz", tmp_path / "ours")
    assert code == 1 and "is not recognised as a checkpoint of a format that can be imported" in error
