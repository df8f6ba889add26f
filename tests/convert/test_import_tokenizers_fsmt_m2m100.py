"""The tokenizers of imported M2M100, NLLB and FSMT checkpoints: equal ids, equal texts, and the options for
languages.
"""

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_import_fsmt_m2m100 import SIZES, fsmt, randomised
from transformers import FSMTTokenizer, M2M100Config, M2M100ForConditionalGeneration, NllbTokenizer, pipeline
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

from vaswani_hf import Translator, VaswaniForSeq2SeqLM, export, import_checkpoint
from vaswani_hf.checkpoint.tokenizers import load_tokenizers
from vaswani_hf.cli import main
from vaswani_hf.tasks.translation import TranslationTask
from vaswani_hf.translation.ctranslate2 import load_ctranslate2_translator

pytest.importorskip("sentencepiece", reason="needs SentencePiece: pip install '.[sentencepiece]'")

from marian_models import RARE_TEXTS, digit_pairs, write_sentencepiece
from transformers import M2M100Tokenizer

PAIRS = digit_pairs(300, seed=0)
TEXTS = [text for pair in PAIRS for text in pair.values()]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def write_vocabulary(path, tokens):
    path.write_text(json.dumps({token: number for number, token in enumerate(tokens)}, ensure_ascii=False))


def write_m2m100(folder, kind="bpe"):
    """Write an M2M100 checkpoint. The ids are in another order than the pieces."""
    folder.mkdir()
    pieces = write_sentencepiece(TEXTS, folder / "sentencepiece.bpe.model", 160, model_type=kind)
    random.Random(0).shuffle(pieces)
    write_vocabulary(folder / "vocab.json", [*SPECIAL, *pieces])
    tags = [f"__{language}__" for language in FAIRSEQ_LANGUAGE_CODES["m2m100"]]
    settings = {"tokenizer_class": "M2M100Tokenizer", "additional_special_tokens": tags}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    # The embeddings of M2M100 have rows without a token.
    write_model(folder, len(SPECIAL) + len(pieces) + len(tags) + 8)


def write_model(folder, num_tokens):
    # The output projection is not tied, because otherwise random weights repeat one token.
    config = M2M100Config(vocab_size=num_tokens, tie_word_embeddings=False, **SIZES)
    model = randomised(M2M100ForConditionalGeneration(config))
    model.generation_config.bad_words_ids = [[1]]
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def m2m100(tmp_path_factory):
    """An M2M100 checkpoint and its import."""
    folder = tmp_path_factory.mktemp("m2m100")
    write_m2m100(folder / "theirs")
    assert import_checkpoint(folder / "theirs", folder / "ours").difference < 1e-4
    return folder


def generated(folder, texts, source, target, **settings):
    """The translations of transformers."""
    tokenizer = M2M100Tokenizer.from_pretrained(folder, src_lang=source)
    model = M2M100ForConditionalGeneration.from_pretrained(folder).eval()
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    language = tokenizer.get_lang_id(target)
    ids = model.generate(**inputs, forced_bos_token_id=language, **settings)
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_tokenizer_gives_the_ids_and_the_texts_of_m2m100(tmp_path, kind):
    write_m2m100(tmp_path / "theirs", kind)
    import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    slow = M2M100Tokenizer.from_pretrained(tmp_path / "theirs", src_lang="en", tgt_lang="de")
    source, target = load_tokenizers(tmp_path / "ours")
    assert source is target
    texts = [*RARE_TEXTS, *TEXTS[:60], "one __fr__two", "a</s>b", "one<unk>two"]
    # The translator adds the token of the source language.
    assert source(texts).input_ids == [ids[1:] for ids in slow(texts).input_ids]
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(len(source)) for _ in range(9)]
        expected = slow.decode(ids, skip_special_tokens=True)
        assert source.decode(ids, skip_special_tokens=True) == expected


def test_the_tokenizer_gives_the_ids_and_the_texts_of_nllb(tmp_path):
    pieces = [*SPECIAL, "▁", *sorted(set("".join(TEXTS)) - {" "}), "▁o", "▁on", "ei", "▁one"]
    merges = [("▁", "o"), ("e", "i"), ("▁o", "n"), ("▁on", "e")]
    slow = NllbTokenizer(vocab={piece: number for number, piece in enumerate(pieces)}, merges=merges)
    slow.save_pretrained(tmp_path / "theirs")
    write_model(tmp_path / "theirs", len(slow))
    import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    source, _ = load_tokenizers(tmp_path / "ours")
    texts = [*RARE_TEXTS, *TEXTS[:60]]
    assert source(texts).input_ids == [ids[1:] for ids in slow(texts).input_ids]
    for ids in source(TEXTS[:60]).input_ids:
        expected = slow.decode(ids, skip_special_tokens=True)
        assert source.decode(ids, skip_special_tokens=True) == expected
    translator = Translator.from_pretrained(tmp_path / "ours")
    (translation,) = translator.translate(
        ["one"], src_lang="eng_Latn", tgt_lang="zul_Latn", max_new_tokens=3, return_scores=True
    )
    assert translation.token_ids[0] == slow.convert_tokens_to_ids("zul_Latn")


@pytest.mark.parametrize("num_beams", [1, 3])
def test_translations_into_a_language_equal_those_of_transformers(m2m100, num_beams):
    texts = TEXTS[:6]
    settings = {"num_beams": num_beams, "max_new_tokens": 9}
    expected = generated(m2m100 / "theirs", texts, "en", "fr", **settings)
    assert len(set(expected)) > 1
    assert expected != generated(m2m100 / "theirs", texts, "en", "uk", **settings)
    translator = Translator.from_pretrained(m2m100 / "ours")
    languages = {"src_lang": "en", "tgt_lang": "fr"}
    assert list(translator.translate(texts, **languages, **settings)) == expected
    translate = pipeline("translation", model=str(m2m100 / "ours"))
    rows = translate(texts, **languages, **settings)
    assert [row["translation_text"] for row in rows] == expected


def test_the_score_of_a_translation_is_the_score_of_the_search(m2m100):
    translator = Translator.from_pretrained(m2m100 / "ours")
    languages = {"src_lang": "en", "tgt_lang": "fr"}
    found = list(translator.translate(TEXTS[:8], **languages, num_beams=2, return_scores=True))
    ended = [i for i, translation in enumerate(found) if translation.token_ids[-1] == 2]
    ids = [translator.target_tokenizer(found[i].text).input_ids for i in ended]
    # Random weights give tokens that are not the segmentation of the text. Compare the other translations.
    kept = [i for i, own in zip(ended, ids, strict=True) if own == found[i].token_ids[1:]]
    sources = [TEXTS[i] for i in kept]
    scored = translator.score(sources, [found[i].text for i in kept], **languages)
    for i, translation in zip(kept, scored, strict=True):
        assert translation.score == pytest.approx(found[i].score, abs=1e-5)
        assert translation.token_ids == found[i].token_ids


def test_commands_evaluate_and_score_with_the_languages(m2m100, tmp_path, capsys):
    pairs = PAIRS[:6]
    files = [str(tmp_path / "test.en"), str(tmp_path / "test.fr")]
    for path, side in zip(files, ("source", "target"), strict=True):
        Path(path).write_text("".join(pair[side] + "\n" for pair in pairs))
    words = [str(m2m100 / "ours"), "--source", files[0]]
    languages = ["--src_lang", "en", "--tgt_lang", "fr"]
    limit = ["--max_new_tokens", "4"]
    assert main(["evaluate", *words, "--reference", files[1], "--json", *languages, *limit]) == 0
    loss = json.loads(capsys.readouterr().out)["loss"]
    tokenizer = M2M100Tokenizer.from_pretrained(m2m100 / "theirs", src_lang="en", tgt_lang="fr")
    original = M2M100ForConditionalGeneration.from_pretrained(m2m100 / "theirs").eval()
    nats = []
    with torch.no_grad():
        for pair in pairs:
            batch = tokenizer(pair["source"], text_target=pair["target"], return_tensors="pt")
            # The imported model gives `<pad>` the probability 0.
            logits = original(**batch).logits[0].index_fill(1, torch.tensor([1]), -torch.inf)
            log_probs = logits.log_softmax(dim=-1)
            nats += (-log_probs[range(batch.labels.shape[1]), batch.labels[0]]).tolist()
    assert loss == pytest.approx(sum(nats) / len(nats), abs=1e-4)
    assert main(["score", *words, "--target", files[1], *languages]) == 0
    first = capsys.readouterr().out.splitlines()[0].split("\t")
    # The first log-probability belongs to the token of the language, and `score` does not count this token.
    num_tokens = len(tokenizer(text_target=pairs[0]["target"]).input_ids)
    assert float(first[0]) == pytest.approx(-sum(nats[1:num_tokens]), abs=1e-4)


def test_each_piece_of_a_long_text_begins_with_the_token_of_the_language(m2m100):
    translator = Translator.from_pretrained(m2m100 / "ours")
    translator.source_tokenizer.model_max_length = 12
    given = {"src_lang": "en", "tgt_lang": "fr", "return_scores": True, "max_new_tokens": 4}
    (translation,) = translator.translate(["one two three " * 6], **given)
    french = translator.source_tokenizer.convert_tokens_to_ids("__fr__")
    assert translation.token_ids.count(french) > 1
    assert "__fr__" not in translation.text
    (truncated,) = translator.translate(["one two three " * 6], **given, tokenize={"truncation": True})
    assert truncated.token_ids.count(french) == 1


def test_ctranslate2_translates_into_the_language(m2m100, tmp_path):
    pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install '.[ctranslate2]'")
    export(m2m100 / "ours", tmp_path / "ct2", "ctranslate2", "float32")
    given = {"src_lang": "en", "tgt_lang": "fr", "num_beams": 2, "max_new_tokens": 6, "return_scores": True}
    texts = TEXTS[:6]
    expected = list(Translator.from_pretrained(m2m100 / "ours").translate(texts, **given))
    translations = list(load_ctranslate2_translator(tmp_path / "ct2", "cpu").translate(texts, **given))
    assert [one.text for one in translations] == [one.text for one in expected]
    for one, other in zip(translations, expected, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-4)


def test_the_command_needs_both_languages(m2m100, capsys):
    words = ["translate", str(m2m100 / "ours"), "--text", "one two", "--max_new_tokens", "4"]
    assert main([*words, "--src_lang", "en", "--tgt_lang", "fr"]) == 0
    assert main([*words, "--src_lang", "en", "--tgt_lang", "French"]) != 0
    assert "`tgt_lang` must be a language of the model (af, am, " in capsys.readouterr().err
    assert main([*words, "--tgt_lang", "fr"]) != 0
    assert "`src_lang` must be a language of the model" in capsys.readouterr().err


def test_programs_that_add_no_tokens_of_languages_are_refused(m2m100, tmp_path):
    tokenizers = load_tokenizers(m2m100 / "ours")
    with pytest.raises(ValueError, match="^needs language tokens in sources and targets"):
        TranslationTask.adopt_tokenizers(*tokenizers)
    pytest.importorskip("onnxscript", reason="needs ONNX: pip install '.[transformers_js]'")
    with pytest.raises(ValueError, match="^The tokenizer has language tokens"):
        export(m2m100 / "ours", tmp_path / "js", "transformers_js")


def test_a_vocabulary_without_all_pieces_gives_no_tokenizers(tmp_path):
    write_m2m100(tmp_path / "theirs")
    path = tmp_path / "theirs" / "vocab.json"
    tokens = list(json.loads(path.read_text()))
    write_vocabulary(path, ["removed" if token == "▁one" else token for token in tokens])
    report = import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    assert "vocab.json lacks pieces of sentencepiece.bpe.model" in report.text
    assert not (tmp_path / "ours" / "tokenizer.json").exists()


MERGES = [("o", "n"), ("on", "e</w>"), ("e", "i"), ("ei", "n"), ("t", "w"), ("tw", "o</w>")]


def write_fsmt(folder, missing=()):
    model = fsmt(60, 60)
    model.save_pretrained(folder)
    letters = sorted(set("".join(TEXTS)) - {" "})
    tokens = [*SPECIAL, *letters, *(f"{letter}</w>" for letter in letters), *map("".join, MERGES)]
    tokens = [token for token in tokens if token not in missing]
    random.Random(0).shuffle(tokens := tokens[4:])
    for name in ("vocab-src.json", "vocab-tgt.json"):
        write_vocabulary(folder / name, [*SPECIAL, *tokens])
        tokens.reverse()
    assert len(tokens) <= 56
    # The last column has the frequency of the merge.
    (folder / "merges.txt").write_text("".join(f"{left} {right} 9\n" for left, right in MERGES))


def test_the_tokenizers_segment_the_words_as_fsmt(tmp_path):
    pytest.importorskip("sacremoses", reason="the tokenizer of FSMT needs sacremoses: pip install sacremoses")
    write_fsmt(tmp_path / "theirs")
    report = import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    assert "do not run Moses" in report.text
    slow = FSMTTokenizer.from_pretrained(tmp_path / "theirs", langs=["en", "ru"])
    source, target = load_tokenizers(tmp_path / "ours")
    for text in [*RARE_TEXTS, *TEXTS[:60], "onetwo ein EINS ei"]:
        expected = slow.convert_tokens_to_ids(slow._tokenize(text, bypass_tokenizer=True))
        assert source(text).input_ids == [*expected, 2]
    assert target.decode(target("ein zwei drei").input_ids, skip_special_tokens=True) == "ein zwei drei"
    assert source("one").input_ids != target("one").input_ids


def test_two_equal_vocabularies_of_fsmt_give_one_tokenizer(tmp_path):
    write_fsmt(tmp_path / "theirs")
    (tmp_path / "theirs" / "vocab-tgt.json").write_bytes(
        (tmp_path / "theirs" / "vocab-src.json").read_bytes()
    )
    import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    source, target = load_tokenizers(tmp_path / "ours")
    assert source is target


def test_a_vocabulary_without_a_merge_gives_no_tokenizers_of_fsmt(tmp_path):
    write_fsmt(tmp_path / "theirs", missing=("on",))
    report = import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    assert "the vocabularies lack tokens of merges.txt" in report.text
    assert VaswaniForSeq2SeqLM.from_pretrained(tmp_path / "ours").config.decoder_start_token_id == 2
    assert not (tmp_path / "ours" / "tokenizer.json").exists()


AGAIN = "copy or download the file again."
NO_OBJECT = "vocab.json of '{folder}' must hold a JSON object, but does not: it is damaged; " + AGAIN
NO_WEIGHTS = "A weight file of '{folder}' is damaged or incomplete; copy or download the file again."
NO_MERGES = "Line 2 of 'merges.txt' must have two tokens with a space between them, but is 'o'; " + AGAIN
NO_TEXT = (
    "'merges.txt' cannot be read ('utf-8' codec can't decode byte 0x89 in position 0: invalid start byte); "
    + AGAIN
)


@pytest.mark.parametrize(
    ("write", "file", "content", "sentence"),
    [
        (write_m2m100, "vocab.json", b"[]", NO_OBJECT),
        (write_m2m100, "model.safetensors", b"", NO_WEIGHTS),
        (write_fsmt, "merges.txt", b"o n 9\no", NO_MERGES),
        (write_fsmt, "merges.txt", b"\x89PNG", NO_TEXT),
    ],
)
def test_a_damaged_file_is_named(tmp_path, vaswani, write, file, content, sentence):
    folder = tmp_path / "theirs"
    write(folder)
    (folder / file).write_bytes(content)
    assert vaswani("import", folder, tmp_path / "ours") == (1, "", sentence.format(folder=folder))
    assert not (tmp_path / "ours").exists()


def test_a_part_of_a_bin_file_is_refused(tmp_path, vaswani):
    folder = tmp_path / "theirs"
    write_fsmt(folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    content = (folder / "pytorch_model.bin").read_bytes()
    for part in (b"", content[: len(content) // 2]):
        (folder / "pytorch_model.bin").write_bytes(part)
        assert vaswani("import", folder, tmp_path / "ours") == (1, "", NO_WEIGHTS.format(folder=folder))
