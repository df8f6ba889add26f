"""The import of JoeyNMT: log-probabilities and token ids that JoeyNMT 2.3.0 has computed, and refusals.

recorded/joeynmt.pt has two models that JoeyNMT has trained on number words, without the tables of positions.
"word" has no key `layer_norm`, different factors `alpha` and two vocabularies. "sp" is pre-norm, and has a
SentencePiece model and one joint vocabulary.
"""

import marian_models
import pytest
import torch
import yaml
from factories import cut, damage
from parity import import_refused, largest_difference, load_recorded, record_parity, write_files

from vaswani_hf import Translator, VaswaniForSeq2SeqLM, import_checkpoint
from vaswani_hf.checkpoint.tokenizers import load_tokenizers
from vaswani_hf.convert.export_formats import NotExpressibleError
from vaswani_hf.convert.joeynmt import NAMES
from vaswani_hf.convert.joeynmt_tokenizers import joeynmt_tokenizers
from vaswani_hf.convert.sentencepiece_models import sentencepiece_model
from vaswani_hf.model.modeling_vaswani import sinusoids

CASES = ["word", "sp"]


@pytest.fixture
def recorded():
    return load_recorded("joeynmt")


def write(case, folder, change=lambda settings: None):
    """Write a folder as JoeyNMT. `change` changes the settings of config.yaml."""
    write_files(case, folder)
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    change(settings)
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    table = sinusoids(torch.arange(5000), 32).unsqueeze(0)
    state = case["state"] | {f"{stack}.pe.pe": table for stack in ("encoder", "decoder")}
    torch.save({"model_state": state, "stats_state": {"steps": 9}}, folder / "best.ckpt")
    return folder


@pytest.mark.parametrize("name", CASES)
def test_the_imported_model_computes_the_log_probabilities_of_joeynmt(
    recorded, tmp_path, record_property, name
):
    if name == "sp":
        pytest.importorskip("sentencepiece", reason="needs SentencePiece: pip install '.[sentencepiece]'")
    case = recorded[name]
    report = import_checkpoint(write(case, tmp_path / "joeynmt"), tmp_path / "ours")
    assert report.format == "joeynmt"
    difference = largest_difference(tmp_path / "ours", case, case["log_probs"], padding=1)
    record_parity(record_property, "JoeyNMT", "JoeyNMT 2.3.0 (recorded)", difference, 1e-5)
    ours = VaswaniForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    search = ours.generation_config
    assert (search.num_beams, search.length_penalty, search.length_penalty_type) == (5, 1.0, "gnmt")
    assert search.max_new_tokens == 40
    config = ours.config
    is_word = name == "word"
    assert config.final_norm is (False if is_word else None)
    assert (config.norm_position, config.norm_position_of_decoder) == ("pre", "post" if is_word else None)
    assert config.tie_word_embeddings is not is_word


@pytest.mark.parametrize(
    ("testing", "least", "suppressed", "note"),
    [
        ({}, None, None, ""),
        ({"generate_unk": True, "min_output_length": 1, "repetition_penalty": -1}, None, None, ""),
        (
            {"generate_unk": False, "min_output_length": 4, "repetition_penalty": 2},
            4,
            [0],
            "The import leaves out `repetition_penalty` 2 of the original.",
        ),
    ],
)
def test_the_search_options(recorded, tmp_path, testing, least, suppressed, note):
    folder = write(
        recorded["word"], tmp_path / "joeynmt", lambda settings: settings["testing"].update(testing)
    )
    report = import_checkpoint(folder, tmp_path / "ours")
    search = VaswaniForSeq2SeqLM.from_pretrained(tmp_path / "ours").generation_config
    assert (search.min_new_tokens, search.suppress_tokens) == (least, suppressed)
    assert note in report.text and bool(note) == ("repetition_penalty" in report.text)


@pytest.mark.parametrize("name", CASES)
def test_joeynmt_itself_computes_the_same(recorded, tmp_path, record_property, name):
    pytest.importorskip("joeynmt.model", reason="needs JoeyNMT: pip install joeynmt")
    report = import_checkpoint(write(recorded[name], tmp_path / "joeynmt"), tmp_path / "ours")
    record_parity(record_property, "JoeyNMT", "JoeyNMT", report.difference)


@pytest.mark.parametrize("name", CASES)
def test_the_tokenizers_give_the_ids_of_joeynmt(recorded, tmp_path, name):
    if name == "sp":
        pytest.importorskip("sentencepiece", reason="needs SentencePiece: pip install '.[sentencepiece]'")
    case = recorded[name]
    import_checkpoint(write(case, tmp_path / "joeynmt"), tmp_path / "ours")
    source, target = load_tokenizers(tmp_path / "ours")
    assert [source(text).input_ids for text in case["texts"]] == case["ids"]
    texts = [target.decode(ids, skip_special_tokens=True) for ids in case["target_ids"]]
    assert texts == case["target_texts"]
    translator = Translator.from_pretrained(tmp_path / "ours")
    assert list(translator.translate(["nine hundred eighty three"])) == ["neun hundert drei und achtzig"]


@pytest.mark.parametrize(
    ("option", "steps"), [("lowercase", "Replace, Lowercase"), ("normalize", "NFKC, Replace, Strip")]
)
def test_rules_of_joeynmt_cannot_be_written_to_a_sentencepiece_model(tmp_path, option, steps):
    pytest.importorskip("sentencepiece", reason="needs SentencePiece: pip install '.[sentencepiece]'")
    pieces = marian_models.write_sentencepiece(["one two", "two one"], tmp_path / "sp.model", 12)
    vocabulary = ["<unk>", "<pad>", "<s>", "</s>", *pieces]
    side = {"level": "bpe", "tokenizer_cfg": {"model_file": "sp.model"}, option: True}
    (source, target), _ = joeynmt_tokenizers(tmp_path, (side, side), (vocabulary, vocabulary))
    with pytest.raises(NotExpressibleError, match=f"its normalizer has the steps {steps}, and"):
        sentencepiece_model(source, target)


def test_the_level_char_gives_the_tokens_of_joeynmt(recorded, tmp_path):
    side = {"level": "char", "lowercase": True, "normalize": True}
    characters = recorded["characters"]
    letters = sorted({letter for text in characters for letter in text})
    vocabulary = ["<unk>", "<pad>", "<s>", "</s>", *letters]
    (source, target), notes = joeynmt_tokenizers(tmp_path, (side, side), (vocabulary, vocabulary))
    assert source is target and not notes
    texts = recorded["word"]["texts"]
    assert [source.convert_ids_to_tokens(source(text).input_ids[:-1]) for text in texts] == characters
    assert source.decode(source("one  two ?").input_ids, skip_special_tokens=True) == "one two?"


SUBWORD_NMT = {"level": "bpe", "tokenizer_type": "subword-nmt", "tokenizer_cfg": {"codes": "data/codes"}}
MERGES = ["o n", "on e</w>", "t h", "th i", "thi r", "t y</w>"]


def merging_side(folder, version="0.2"):
    """Write merges of subword-nmt, and return the settings of a side and a vocabulary with all parts."""
    (folder / "codes").write_text("\n".join([f"#version: {version}", *MERGES]) + "\n")
    letters = sorted(set("".join(marian_models.RARE_TEXTS[2:4]) + "onethirtyße日") - {" ", "\t", "\n", "w"})
    parts = [*letters, *(f"{letter}@@" for letter in letters)]
    parts += ["on@@", "one", "th@@", "thi@@", "thir@@", "ty"]
    return SUBWORD_NMT, ["<unk>", "<pad>", "<s>", "</s>", *dict.fromkeys(parts)]


def test_the_merges_of_subword_nmt_give_equal_ids_and_texts(tmp_path):
    apply_bpe = pytest.importorskip(
        "subword_nmt.apply_bpe", reason="needs subword-nmt: pip install subword-nmt"
    )
    side, vocabulary = merging_side(tmp_path)
    (source, target), notes = joeynmt_tokenizers(tmp_path, (side, side), (vocabulary, vocabulary))
    assert source is target and not notes
    with (tmp_path / "codes").open(encoding="utf-8") as codes:
        bpe = apply_bpe.BPE(codes)
    bpe.vocab = set(vocabulary)
    for text in [*marian_models.RARE_TEXTS, "one thirty", "thirtyone  three ty", "日ße日"]:
        expected = bpe.process_line(text).strip().split()
        ids = [vocabulary.index(token) if token in vocabulary else 0 for token in expected]
        assert source(text).input_ids == [*ids, 3], text
    ids = source("thirtyone three on").input_ids
    assert source.decode(ids, skip_special_tokens=True) == "thirtyone three on"


def test_merges_that_cannot_be_expressed_are_noted(tmp_path):
    side, vocabulary = merging_side(tmp_path)
    without_part = [token for token in vocabulary if token != "thi@@"]
    _, notes = joeynmt_tokenizers(tmp_path, (side, side), (without_part, without_part))
    assert len(notes) == 1 and "lacks tokens of the merges file codes" in notes[0]
    side, vocabulary = merging_side(tmp_path, version="0.1")
    _, notes = joeynmt_tokenizers(tmp_path, (side, side), (vocabulary, vocabulary))
    assert len(notes) == 1 and "do not have the format 0.2" in notes[0]


TOKENIZERS = {
    "fastBPE": ({"level": "bpe", "tokenizer_type": "fastbpe"}, "segments texts with fastbpe"),
    "missing merges": (SUBWORD_NMT, "lacks the file codes with the BPE merges"),
    "Moses": ({"tokenizer_cfg": {"pretokenizer": "moses"}}, "tokenizes texts with moses"),
    "missing model": ({"level": "bpe", "tokenizer_cfg": {"model_file": "data/x.model"}}, "model x.model"),
}


@pytest.mark.parametrize("case", TOKENIZERS.values(), ids=TOKENIZERS)
def test_other_tokenizers_split_segmented_texts_at_spaces(tmp_path, case):
    side, note = case
    vocabulary = ["<unk>", "<pad>", "<s>", "</s>", "thir@@", "ty", "one"]
    (source, _), notes = joeynmt_tokenizers(tmp_path, (side, side), (vocabulary, vocabulary))
    assert source("thir@@ ty one x").input_ids == [4, 5, 6, 0, 3]
    assert source.decode([4, 5, 6, 3], skip_special_tokens=True) == "thirty one"
    assert len(notes) == 1 and note in notes[0]


def test_the_table_of_names_is_used_in_both_directions(recorded):
    state = recorded["word"]["state"]
    back = NAMES.to_theirs(NAMES.to_ours(state, "JoeyNMT"))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def change(section, **values):
    """A function that changes values of a section of config.yaml, such as "model.encoder"."""

    def changed(settings):
        for name in section.split("."):
            settings = settings.setdefault(name, {})
        settings.update(values)

    return changed


REFUSED = {
    "recurrent": (change("model.encoder", type="recurrent"), "has `encoder.type` 'recurrent'"),
    "activation": (change("model.encoder", activation="tanh"), "has `activation` 'tanh'"),
    "two activations": (change("model.decoder", activation="relu"), "has `decoder.activation` 'relu'"),
    "scale": (change("model.decoder.embeddings", scale=False), "has `decoder.embeddings.scale` False"),
    "alpha": (change("model.decoder", alpha=0.0), "has `decoder.alpha` 0.0"),
    "prompts": (change("data.special_symbols", sep_token="<sep>"), "has `sep_token` '<sep>'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_settings_are_refused(recorded, tmp_path, name):
    changed, message = REFUSED[name]
    folder = write(recorded["word"], tmp_path / "joeynmt", changed)
    import_refused(folder, message)


NO_SECTIONS = b"data: 1\ntraining: 1\nmodel: 1\n"
# The name of a file, the function that changes the content of the file (None deletes the file), and a part of
# the message.
DAMAGES = [
    ("src_vocab.txt", None, "must contain the vocabulary file src_vocab.txt, but does not"),
    ("trg_vocab.txt", lambda content: content.rstrip().rpartition(b"\n")[0], "has `tokens of trg_vocab.txt`"),
    ("best.ckpt", cut, "'best.ckpt' was not written by `torch.save`, or is incomplete"),
    ("best.ckpt", None, "must contain best.ckpt, latest.ckpt or exactly one `.ckpt` file, but contains no"),
    ("config.yaml", lambda content: NO_SECTIONS, "must have the section `data.src`, but does not"),
]


@pytest.mark.parametrize(("file", "change", "message"), DAMAGES, ids=range(len(DAMAGES)))
def test_a_damaged_folder_is_refused_in_one_sentence(recorded, tmp_path, file, change, message):
    folder = write(recorded["word"], tmp_path / "joeynmt")
    damage(folder / file, change)
    import_refused(folder, message)
