"""The export to Argos Translate: the files of the package, equal segmentations and equal translations."""

import json
import shutil
import sys
import zipfile
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import pytest
import torch
from factories import save_checkpoint, tiny_model, tiny_tokenizer
from sentences import refused
from tokenizers.processors import TemplateProcessing

from vaswani_hf import VaswaniForSeq2SeqLM, import_checkpoint
from vaswani_hf.checkpoint.tokenizers import load_tokenizers, save_tokenizers
from vaswani_hf.cli import main
from vaswani_hf.convert.comparison import largest_difference_of_rows, log_probs_of
from vaswani_hf.convert.export import export

pytest.importorskip("ctranslate2", reason="needs CTranslate2 and SentencePiece: pip install '.[argos]'")
pytest.importorskip("sentencepiece", reason="needs CTranslate2 and SentencePiece: pip install '.[argos]'")

import sentencepiece
from marian_models import (
    RARE_TEXTS,
    digit_pairs,
    marian_config,
    random_marian,
    train_marian,
    write_marian_tokenizer,
)

from vaswani_hf.convert.argos import ArgosEngine
from vaswani_hf.translation.ctranslate2 import load_ctranslate2_translator

TEXTS = [pair["source"] for pair in digit_pairs(50, seed=1)]
ROOT = "translate-en_de-1_0"


@pytest.fixture(scope="module")
def opus(tmp_path_factory):
    """An imported MarianMT checkpoint without tags of target languages."""
    folder = tmp_path_factory.mktemp("argos")
    train_marian(folder / "marian", tags=("<first>", "<second>"))
    import_checkpoint(folder / "marian", folder / "ours")
    return folder


@pytest.fixture(scope="module")
def package(opus):
    words = ["export", str(opus / "ours"), str(opus / "package"), "--format", "argos"]
    assert main([*words, "--source_language", "en", "--target_language", "de"]) == 0
    return opus / "package" / f"{ROOT}.argosmodel"


@pytest.fixture(scope="module")
def argos(tmp_path_factory):
    """Modules of Argos Translate, in a temporary home folder, because the import creates folders."""
    if find_spec("argostranslate") is None:
        pytest.skip("needs Argos Translate: pip install argostranslate")
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "ARGOS_PACKAGES_DIR"):
            patch.setenv(name, str(folder / name.lower()))
        if find_spec("stanza") is None:
            # Argos Translate imports stanza, but splits sentences with another library.
            patch.setitem(sys.modules, "stanza", ModuleType("stanza"))
        from argostranslate import package, sbd, settings, translate

        yield SimpleNamespace(package=package, sbd=sbd, settings=settings, translate=translate)


@pytest.fixture(scope="module")
def our_translator(opus):
    export(opus / "ours", opus / "ctranslate2", "ctranslate2")
    return load_ctranslate2_translator(opus / "ctranslate2")


def test_the_package_has_the_files_of_argos_translate(package):
    assert [path.name for path in package.parent.iterdir()] == [package.name]
    with zipfile.ZipFile(package) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        metadata = json.loads(archive.read(f"{ROOT}/metadata.json"))
        config = json.loads(archive.read(f"{ROOT}/model/config.json"))
    model = {"config.json", "model.bin", "source_vocabulary.json", "target_vocabulary.json"}
    expected = {"README.md", "metadata.json", "sentencepiece.model", *(f"model/{name}" for name in model)}
    assert names == {f"{ROOT}/{name}" for name in expected}
    languages = [metadata[key] for key in ("from_code", "from_name", "to_code", "to_name")]
    assert languages == ["en", "English", "de", "German"]
    assert config["add_source_eos"] is True


def test_the_sentencepiece_model_segments_as_the_tokenizer(opus, package):
    source, target = load_tokenizers(opus / "ours")
    with zipfile.ZipFile(package) as archive:
        pieces = sentencepiece.SentencePieceProcessor(model_proto=archive.read(f"{ROOT}/sentencepiece.model"))
    for text in (*TEXTS, *RARE_TEXTS):
        found = source.convert_tokens_to_ids(pieces.encode(text, out_type=str))
        assert found == source(text, add_special_tokens=False)["input_ids"]
    for ids in target([pair["target"] for pair in digit_pairs(20, seed=2)], add_special_tokens=False)[
        "input_ids"
    ]:
        assert pieces.decode_pieces(target.convert_ids_to_tokens(ids)) == target.decode(ids)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_the_engine_gives_our_translations(argos, package, our_translator, num_beams):
    texts = [*TEXTS, "one two日本語", "Ärger: one", "да д one"]
    # Argos Translate has this length penalty, and stops when all beams have ended.
    search = {"num_beams": num_beams, "length_penalty": 0.2, "early_stopping": True}
    expected = list(our_translator.translate(texts, **search))
    assert len(set(expected)) > 20
    assert ArgosEngine(package.parent).translate(texts, num_beams) == expected


def test_the_engine_gives_our_log_probs(argos, opus, package, our_translator):
    source, target = load_tokenizers(opus / "ours")
    source_ids = source(TEXTS[:5])["input_ids"]
    target_ids = target([pair["target"] for pair in digit_pairs(5, seed=3)])["input_ids"]
    found = ArgosEngine(package.parent).log_probs(source_ids, target_ids)
    expected = our_translator.backend.log_probs(source_ids, [ids[:-1] for ids in target_ids])
    for row, expected_row in zip(found, expected, strict=True):
        torch.testing.assert_close(row, expected_row, rtol=0, atol=1e-5)


def test_a_source_without_an_end_token_stays_without_an_end_token(opus, tmp_path, monkeypatch):
    shutil.copytree(opus / "ours", tmp_path / "ours")
    source, target = load_tokenizers(tmp_path / "ours")
    # The tokenizers that are imported from OpenNMT-py have this post-processor.
    source.backend_tokenizer.post_processor = TemplateProcessing(single=["$A"], pair=["$A", "$B"])
    save_tokenizers(source, target, tmp_path / "ours")
    export(tmp_path / "ours", tmp_path / "package", "argos", source_language="en", target_language="de")
    monkeypatch.setitem(sys.modules, "argostranslate", ModuleType("argostranslate"))
    monkeypatch.setitem(sys.modules, "argostranslate.package", SimpleNamespace(Package=str))
    target_ids = target(["eins zwei"])["input_ids"]
    source_ids = source(["one two"])["input_ids"]
    model = VaswaniForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    start = model.config.decoder_start_token_id
    engine = ArgosEngine(tmp_path / "package")
    for ids in (source_ids, [[*source_ids[0], source.eos_token_id]]):
        difference = largest_difference_of_rows(
            engine.log_probs(ids, target_ids), log_probs_of(model, ids, target_ids, start)
        )
        assert (difference < 1e-4) is (ids is source_ids)


def test_argos_translate_installs_the_package(argos, package, our_translator, monkeypatch):
    class WholeText:
        def __init__(self, *arguments, **options):
            pass

        def sentences(self, text):
            return [text]

    # The sentence splitter loads its model from the network.
    monkeypatch.setattr(argos.sbd, "SBDetect", WholeText)
    monkeypatch.setattr(argos.settings, "beam_size", 4)
    argos.package.install_from_path(package)
    languages = {str(language): language for language in argos.translate.get_installed_languages()}
    assert languages.keys() == {"English", "German"}
    translation = languages["English"].get_translation(languages["German"])
    expected = our_translator.translate(TEXTS[:5], num_beams=4, length_penalty=0.2, early_stopping=True)
    assert [translation.hypotheses(text, 1)[0].value for text in TEXTS[:5]] == list(expected)


def assert_refused(checkpoint, output, message, **languages):
    with refused(message):
        export(checkpoint, output, "argos", **languages)
    assert not output.exists()


def test_byte_level_bpe_is_refused(tmp_path):
    tokenizer = tiny_tokenizer()
    save_checkpoint(tmp_path / "bpe", tiny_model(vocab_size=len(tokenizer)), tokenizer)
    message = (
        "SentencePiece cannot express the tokenizer, a byte-level BPE model, because the tokenizer splits texts with "
        "a regular expression and merges bytes, and SentencePiece only merges characters; use another format."
    )
    assert_refused(tmp_path / "bpe", tmp_path / "out", message, source_language="en", target_language="de")
    message = (
        f"'{tmp_path / 'bpe'}' must record its source language and its target language for the format argos, but does "
        "not; name the languages with the options `--source_language` and `--target_language` of `vaswani export`."
    )
    assert_refused(tmp_path / "bpe", tmp_path / "out", message)


def test_tags_of_target_languages_are_refused(tmp_path):
    tokenizer = write_marian_tokenizer(tmp_path / "marian", digit_pairs(300, seed=0))
    random_marian(marian_config(len(tokenizer.encoder))).save_pretrained(tmp_path / "marian")
    import_checkpoint(tmp_path / "marian", tmp_path / "ours")
    message = (
        "The tokenizer has several target languages, such as >>deu<<, but a package of Argos Translate has one target "
        "language; use another format."
    )
    # The record of the import names the languages.
    assert_refused(tmp_path / "ours", tmp_path / "out", message)


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        (
            {"source_language": "English", "target_language": "de"},
            "`source_language` must be a code of two or three letters, such as en, but is 'English'.",
        ),
        (
            {"target_language": "de"},
            "`source_language` and `target_language` must be given together; give both or neither.",
        ),
    ],
)
def test_languages_are_checked_before_anything_is_done(tmp_path, languages, message):
    assert_refused("no/such/model", tmp_path / "out", message, **languages)
