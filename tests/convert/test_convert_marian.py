"""The MarianMT export: equal outputs, fields without an equivalent, files, and the rules of `export`."""

import copy
import errno
import re
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from factories import UNLIKE_STACKS, tiny_model, tiny_tokenizer
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
)

from vaswani_hf.checkpoint.files import new_folder
from vaswani_hf.checkpoint.tokenizers import load_tokenizers, save_tokenizers
from vaswani_hf.cli import main
from vaswani_hf.convert.comparison import report, sample_batch
from vaswani_hf.convert.export import export
from vaswani_hf.convert.marian import to_marian

TEXTS = ("one two three four five", "eins zwei drei vier")
TWO = {"vocab_size": 23, "decoder_vocab_size": 19, "share_encoder_decoder_embeddings": False}
EXPRESSIBLE = {
    "the paper": {},
    "output bias": {"lm_head_bias": True},
    "other activation": {"activation_function": "gelu", "scale_embedding": False},
    "unlike stacks": UNLIKE_STACKS,
    "two vocabularies": TWO,
    "two vocabularies, nothing tied": {**TWO, "tie_word_embeddings": False},
    "shared embeddings, own projection": {"tie_word_embeddings": False},
    "padding is the end": {"pad_token_id": 2},
    "padding is the start": {"pad_token_id": 0},
    "padding is one of two ends": {"eos_token_id": [2, 1]},
    "no padding": {"pad_token_id": None},
    "start by default": {"decoder_start_token_id": None, "bos_token_id": 4},
    "dot": {"attention_score": "dot"},
    "mean of products": {"attention_score": "dot_mean", "attention_bias": True},
    "general": {"attention_score": "general", "attention_bias": True},
    "general source": {"cross_attention_score": "general", **TWO},
}


def batch_of(config):
    """Sentences of different lengths without special tokens, and a mask of the real target positions."""
    batch = sample_batch(config)
    for name in ("input_ids", "decoder_input_ids"):
        batch[name][:, 1:] = batch[name][:, 1:].clamp(min=3)
    return batch, batch["decoder_attention_mask"].bool()


@pytest.mark.parametrize("fields", EXPRESSIBLE.values(), ids=EXPRESSIBLE)
def test_logits_and_probabilities_are_the_same(fields):
    model = tiny_model(**fields)
    before = copy.deepcopy(model.state_dict())
    marian = to_marian(model)
    assert type(marian) is MarianMTModel and not marian.training and marian.config.forced_eos_token_id is None
    batch, is_real = batch_of(model.config)
    with torch.no_grad():
        expected, logits = model(**batch).logits[is_real], marian(**batch).logits[is_real]
    classes = list(range(model.config.decoder_vocab_size))
    if fields.get("pad_token_id") == 0:
        # The embedding of the start token must not become zero, so class 0 keeps its logit.
        classes.remove(0)
    # The differences depend on the processor, because processors add float32 numbers in different orders.
    torch.testing.assert_close(logits[:, classes], expected[:, classes], rtol=0, atol=5e-5)
    torch.testing.assert_close(logits.softmax(-1), expected.softmax(-1), rtol=0, atol=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_dtype_stays():
    model = tiny_model().bfloat16()
    assert {tensor.dtype for tensor in to_marian(model).state_dict().values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("longest", "settings", "expected"),
    [
        (None, {}, 1074),
        (100, {}, 1074),
        (2000, {}, 2050),
        (2000, {"max_length_a": 2.0, "max_length_b": 10}, 4010),
        (2000, {"max_length": 3000}, 3000),
        (2000, {"max_new_tokens": 2500}, 2500),
    ],
)
def test_the_tables_hold_the_longest_input_and_output(longest, settings, expected):
    model = tiny_model()
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    tokenizers = (
        longest and [PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), model_max_length=longest)] * 2
    )
    assert to_marian(model, tokenizers).config.max_position_embeddings == expected


def test_the_search_keeps_what_transformers_knows():
    model = tiny_model()
    assert to_marian(model).generation_config.max_length == 1074
    model.generation_config = GenerationConfig(
        num_beams=4,
        length_penalty=0.6,
        length_penalty_type="gnmt",
        max_length_a=1.0,
        max_length_b=50,
        eos_token_id=2,
    )
    model.generation_config.coverage_penalty = 0.0
    marian = to_marian(model)
    config = marian.generation_config.to_dict()
    assert (config["num_beams"], config["length_penalty"], config["max_length"]) == (4, 0.6, 1074)
    assert not {"length_penalty_type", "max_length_a", "max_length_b", "coverage_penalty"} & set(config)
    assert model.generation_config.length_penalty_type == "gnmt"


def test_a_decoder_that_starts_from_zeros_never_generates_padding():
    model = tiny_model(zero_start_embedding=True, decoder_start_token_id=1)
    model.generation_config.pad_token_id = None
    assert to_marian(model).generation_config.bad_words_ids == [[1]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Make a checkpoint folder with these fields changed."""

    def make(two_vocabularies=False, with_tokenizers=True, **fields):
        folder = tmp_path_factory.mktemp("checkpoint")
        source = tiny_tokenizer(TEXTS, 275, model_max_length=1200)
        target = tiny_tokenizer(TEXTS, 280, model_max_length=1200) if two_vocabularies else source
        if two_vocabularies:
            fields |= {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": len(target)}
        tiny_model(vocab_size=len(source), **fields).save_pretrained(folder)
        if with_tokenizers:
            save_tokenizers(source, target, folder)
        return folder

    return make


def test_the_folder_is_a_plain_marian_checkpoint(checkpoint, tmp_path, capsys):
    folder = checkpoint()
    assert main(["export", str(folder), str(tmp_path / "new" / "marian"), "--format", "marian"]) == 0
    modes = {
        (tmp_path / "new" / "marian" / name).stat().st_mode for name in ("config.json", "model.safetensors")
    }
    assert len(modes) == 1
    line = capsys.readouterr().out
    assert re.fullmatch(
        r"Largest difference between the logits of MarianMT and those of the checkpoint on sample inputs: \S+\.\n",
        line,
    )
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["marian"]
    marian = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "new" / "marian")
    assert type(marian) is MarianMTModel and marian.config.max_position_embeddings == 1250
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "new" / "marian")
    assert tokenizer("two five").input_ids == AutoTokenizer.from_pretrained(folder)("two five").input_ids
    original = AutoModelForSeq2SeqLM.from_pretrained(folder)
    batch, is_real = batch_of(original.config)
    torch.testing.assert_close(
        marian(**batch).logits[is_real], original(**batch).logits[is_real], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"tie_word_embeddings": False, "pad_token_id": 0},
        # As in Marian's models, the decoder starts with `<pad>`, which `bad_words_ids` forbids as a word.
        {"decoder_start_token_id": 1, "bad_words_ids": [[1]]},
        {"decoder_start_token_id": 2, "two_vocabularies": True, "tie_word_embeddings": False},
    ],
    ids=str,
)
def test_every_layout_is_written_and_translates_alike(checkpoint, tmp_path, fields):
    bad_words = fields.get("bad_words_ids")
    shape = {name: value for name, value in fields.items() if name != "bad_words_ids"}
    # Leave out the tokenizers if the test changes `pad_token_id`, because their `<pad>` has another id.
    folder = checkpoint(**shape, with_tokenizers="pad_token_id" not in fields)
    ours = AutoModelForSeq2SeqLM.from_pretrained(folder)
    ours.generation_config.bad_words_ids = bad_words
    ours.save_pretrained(folder)
    export(folder, tmp_path / "out", "marian")
    if "pad_token_id" in fields:
        assert not (tmp_path / "out" / "tokenizer.json").exists()
    else:
        vocabularies = [[t.get_vocab() for t in load_tokenizers(path)] for path in (folder, tmp_path / "out")]
        assert vocabularies[0] == vocabularies[1]
    theirs = MarianMTModel.from_pretrained(tmp_path / "out")
    assert theirs.generation_config.bad_words_ids == bad_words
    batch, is_real = batch_of(ours.config)
    with torch.no_grad():
        probabilities = [model(**batch).logits[is_real].softmax(-1) for model in (ours, theirs)]
    torch.testing.assert_close(*probabilities, rtol=0, atol=1e-5)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    for settings in ({"num_beams": 1}, {"num_beams": 3, "early_stopping": "never"}):
        translations = [model.generate(**inputs, **settings, max_new_tokens=12) for model in (ours, theirs)]
        assert torch.equal(*translations)


def test_an_export_that_fails_leaves_nothing(checkpoint, tmp_path, capsys, monkeypatch):
    folder = checkpoint(norm_position="pre")
    capsys.readouterr()
    assert main(["export", str(folder), str(tmp_path / "x"), "--format", "marian"]) == 2
    assert capsys.readouterr().err.startswith(
        "vaswani: `norm_position` is 'pre', which MarianMT cannot express"
    )
    folder = checkpoint(decoder_start_token_id=1)

    def exclude_another_class(state, config):
        state["final_logits_bias"][0, 5] = -1e3

    for name, mistake in (
        ("_exclude_padding", exclude_another_class),
        ("to_halves", lambda state: state),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"vaswani_hf.convert.marian.{name}", mistake)
            sentence = "^The largest difference between the logits of MarianMT and those of the checkpoint .* at most 0.0001"
            with pytest.raises(ValueError, match=sentence):
                export(folder, tmp_path / "x", "marian")
    assert not list(tmp_path.iterdir())


PLACES = (".", "", "x/..", "checkpoint", "checkpoint/.", "link", "dangling", "file", "file/out")


@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_overwritten(tmp_path, monkeypatch, place):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    # The current folder is refused even if it is empty.
    if place not in (".", "", "x/.."):
        (work / "checkpoint").mkdir()
        (work / "checkpoint" / "notes.txt").write_text("mine")
        (work / "file").write_text("mine")
        (work / "dangling").symlink_to(tmp_path / "nothing")
        (tmp_path / "empty").mkdir()
        (work / "link").symlink_to(tmp_path / "empty")
    before = sorted(tmp_path.rglob("*"))
    sentence = "^`output` must (be (a new or empty|in a) folder|not be the current folder), but .*; give .* (name|folder).$"
    with pytest.raises(ValueError, match=sentence), new_folder(place):
        pass
    assert sorted(tmp_path.rglob("*")) == before


def test_the_current_folder_stays_while_one_in_it_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with new_folder("new/../marian/") as folder:
        folder.mkdir()
    assert [path.name for path in tmp_path.iterdir()] == ["marian"]


@pytest.mark.parametrize("format", ["ctranslate2", "onnx"])
def test_a_missing_library_is_named(tmp_path, monkeypatch, format):
    # Import the module by its full name, because the package has a function of the same name.
    monkeypatch.setattr("vaswani_hf.version.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=f"install them with `pip install '{format}"):
        export("no/such/model", tmp_path / "x", format)


def test_a_difference_that_is_no_number_is_none_to_accept():
    assert report("logits", 3e-6).endswith(": 3e-06.")
    assert report("logits", 0.5, tolerance=None).endswith(": 0.5.")
    with pytest.raises(ValueError, match="must be at most 0.0001, but is"):
        report("logits", 2e-4)
    for tolerance in (1e-4, None):
        with pytest.raises(ValueError, match="must be numbers, but some are NaN; nothing was written.$"):
            report("logits", float("nan"), tolerance)


@pytest.mark.parametrize("is_mounted", [False, True])
def test_an_empty_folder_is_filled_and_nothing_else_is_left(tmp_path, is_mounted, monkeypatch):
    output = tmp_path / "out"
    output.mkdir()
    left = []
    if is_mounted:

        def busy(path):
            raise OSError(errno.EBUSY, "Device or resource busy", path)

        monkeypatch.setattr(Path, "rmdir", busy)
    with suppress(KeyError), new_folder(output) as folder:
        left.append(folder)
        raise KeyError
    with new_folder(output) as folder:
        assert folder not in left
        (folder / "inner").mkdir(parents=True)
        (folder / "inner" / "file").write_text("new")
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == [
        "out",
        "out/inner",
        "out/inner/file",
    ]


def test_two_that_write_one_folder_are_not_mixed(tmp_path):
    with pytest.raises(OSError), new_folder(tmp_path / "out") as folder:
        folder.mkdir()
        (folder / "a").touch()
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "b").touch()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b"]
