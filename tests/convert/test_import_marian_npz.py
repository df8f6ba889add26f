"""The import of Marian's `.npz` models: word scores and translations that Marian has computed, vocabularies, refusals.

recorded/marian/ has models that pymarian 1.12.42 has written, and scores.json with the word scores of
`marian-scorer` and the translations of `marian-decoder` with 4 beams. "post", "pre" and "new" are trained on number
words. Random numbers were added to the weights of the other models. Marian 1.12.42 cannot run the model "learned".
Its scores come from the environment variable TRANSFORMER_FLAVOR=experimental, with the same table under the names of
"transformer-new".
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
from vaswani_hf.cli import main
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


def test_a_folder_with_decoder_yml_needs_no_options(tmp_path, capsys):
    folder = tmp_path / "marian"
    folder.mkdir()
    for file in ("post.npz", "post.npz.decoder.yml", "joint.spm"):
        shutil.copy(RECORDED / file, folder)
    # Add a file with the state of the optimizer, which does not contain the options of the model.
    numpy.savez(folder / "post.npz.optimizer.npz", adam_mt=numpy.zeros(3))
    assert main(["import", str(folder), str(tmp_path / "ours")]) == 0
    settings = json.loads((tmp_path / "ours" / "generation_config.json").read_text())
    assert (settings["num_beams"], settings["length_penalty"], settings["max_length_a"]) == (4, 0.6, 3.0)
    assert settings["suppress_tokens"] == [1]
    capsys.readouterr()
    text = SCORES["sources"][0]
    assert main(["translate", str(tmp_path / "ours"), "--text", text]) == 0
    assert capsys.readouterr().out == SCORES["post"]["translations"][0] + "\n"
    assert "imported from `marian`, a checkpoint of Marian (C++)" in (
        tmp_path / "ours" / "README.md"
    ).read_text().replace("\n", " ")


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
]


@pytest.mark.parametrize("field, value, reason", REFUSED, ids=[f"{row[0]}={row[1]}" for row in REFUSED])
def test_models_that_cannot_be_expressed_are_refused(tmp_path, capsys, field, value, reason):
    changed("post", tmp_path / "model.npz", {field: value})
    words = [str(tmp_path / "model.npz"), str(tmp_path / "ours")]
    assert main(["import", *words, "--vocabularies", str(RECORDED / "joint.spm")]) == 1
    message = f"vaswani: The original has `{field}` {value!r}, and cannot be imported, because {reason}"
    assert capsys.readouterr().err.startswith(message)
    assert [path.name for path in tmp_path.iterdir()] == ["model.npz"]


def test_other_orders_of_the_sublayer_are_refused(tmp_path, capsys):
    changed("post", tmp_path / "model.npz", {"transformer-postprocess": "dhn"})
    words = [str(tmp_path / "model.npz"), str(tmp_path / "ours")]
    assert main(["import", *words, "--vocabularies", str(RECORDED / "joint.spm")]) == 1
    assert (
        "`transformer-postprocess` 'dhn', and cannot be imported, because `transformer-preprocess` is ''"
        in capsys.readouterr().err
    )


def test_damaged_and_missing_files_give_one_sentence(tmp_path, capsys):
    vocabulary = ["--vocabularies", str(RECORDED / "joint.spm")]
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
        words = ["import", str(file), str(tmp_path / "ours"), "--from", "marian_npz", *vocabulary]
        assert main(words) == 1, name
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, (name, error)
        file.unlink()
    (tmp_path / "model.bin").write_bytes(b"\1\0\0\0")
    words = ["import", str(tmp_path / "model.bin"), str(tmp_path / "ours"), "--from", "marian_npz"]
    assert main(words) == 1
    assert "The original has `model` 'model.bin'" in capsys.readouterr().err
    words = ["import", str(RECORDED / "pre.npz"), str(tmp_path / "ours")]
    assert main(words) == 1
    assert "needs one or two vocabularies, but none are named" in capsys.readouterr().err
    assert main([*words, "--vocabularies", str(tmp_path / "no.yml")]) == 1
    assert "must exist, but does not" in capsys.readouterr().err
    (tmp_path / "bad.yml").write_text("one: two\n")
    assert main([*words, "--vocabularies", str(tmp_path / "bad.yml")]) == 1
    assert "must map each token to an id" in capsys.readouterr().err
    assert not (tmp_path / "ours").exists() and not list(tmp_path.glob("*unfinished*"))


def test_a_file_without_the_options_is_no_model_of_marian(tmp_path, capsys):
    with zipfile.ZipFile(tmp_path / "weights.npz", "w") as archive:
        archive.writestr("weights", b"")
    assert main(["import", str(tmp_path / "weights.npz"), str(tmp_path / "ours")]) == 1
    assert "is not recognised as a checkpoint of a format that can be imported" in capsys.readouterr().err
