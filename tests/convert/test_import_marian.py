"""The import of MarianMT checkpoints: equal outputs, equal tokenizers, round trips, and the use of the
imported model.
"""

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from factories import TINY_SHAPE, damage, save_checkpoint, tiny_model, tiny_tokenizer, write_recipe
from huggingface_hub import HfApi
from parity import import_refused, record_parity
from safetensors.torch import load_file
from transformers import MarianMTModel, MarianTokenizer, pipeline

from vaswani_hf import Translator, VaswaniForSeq2SeqLM, import_checkpoint, load_recipe, train
from vaswani_hf.checkpoint.tokenizers import load_tokenizers
from vaswani_hf.convert.export import EXPORT_FORMATS, export
from vaswani_hf.convert.onnx_engine import OnnxEngine
from vaswani_hf.convert.sentencepiece_models import fast_tokenizer, read_sentencepiece
from vaswani_hf.publish.certificate import Certificate, CertificateRow, hashes_of_weights
from vaswani_hf.publish.push import stage_repository

pytest.importorskip("sentencepiece", reason="needs SentencePiece: pip install '.[sentencepiece]'")

from marian_models import (
    RARE_TEXTS,
    digit_pairs,
    marian_config,
    random_marian,
    train_marian,
    write_marian_tokenizer,
    write_sentencepiece,
)
from sentencepiece import SentencePieceProcessor

SHAPES = {
    "shared": marian_config(60),
    "two vocabularies": marian_config(60, 40),
    "nothing tied": marian_config(60, 40, tie_word_embeddings=False),
    "one vocabulary, nothing tied": marian_config(60, tie_word_embeddings=False),
    "unscaled": marian_config(60, scale_embedding=False, activation_function="gelu"),
    "start from another token": marian_config(60, decoder_start_token_id=2),
}


@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_an_imported_model_computes_the_same_and_returns_with_equal_tensors(
    tmp_path, record_property, config
):
    random_marian(config).save_pretrained(tmp_path / "marian")
    original = MarianMTModel.from_pretrained(tmp_path / "marian").eval()
    report = import_checkpoint(tmp_path / "marian", tmp_path / "ours")
    assert report.format == "marian_mt"
    record_parity(record_property, "MarianMT", "MarianMT of transformers", report.difference)
    source = torch.tensor([[5, 6, 7, 0], [8, 9, 0, config.pad_token_id]])
    if config.pad_token_id >= config.vocab_size:
        source = source[:1]
    start = config.decoder_start_token_id
    target = torch.tensor([[start, 11, 12]] * len(source))
    mask = source != config.pad_token_id
    ours = VaswaniForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        expected = original(input_ids=source, attention_mask=mask.long(), decoder_input_ids=target).logits
        logits = ours(input_ids=source, attention_mask=mask.long(), decoder_input_ids=target).logits
    classes = [number for number in range(config.decoder_vocab_size) if number != config.pad_token_id]
    torch.testing.assert_close(logits[..., classes], expected[..., classes], rtol=0, atol=1e-4)
    assert logits.softmax(-1)[..., config.pad_token_id].max() == 0

    export(tmp_path / "ours", tmp_path / "back", "marian")
    before = load_file(tmp_path / "marian" / "model.safetensors")
    after = load_file(tmp_path / "back" / "model.safetensors")
    excluded = config.pad_token_id if start != config.pad_token_id else None
    for name, tensor in after.items():
        if excluded is not None and name in ("final_logits_bias", "model.shared.weight"):
            # The export excludes `<pad>` with a low bias if the decoder does not start from `<pad>`.
            continue
        assert torch.equal(tensor, before[name]), name
    assert before.keys() - after.keys() <= {"model.shared.weight"}


@pytest.fixture(scope="module")
def opus(tmp_path_factory):
    """A trained MarianMT checkpoint and its import."""
    folder = tmp_path_factory.mktemp("opus")
    train_marian(folder / "marian")
    report = import_checkpoint(folder / "marian", folder / "ours")
    assert report.difference < 1e-4
    return folder


def test_translations_equal_those_of_transformers(opus):
    texts = [pair["source"] for pair in digit_pairs(30, seed=1)]
    tokenizer, original = (
        MarianTokenizer.from_pretrained(opus / "marian"),
        MarianMTModel.from_pretrained(opus / "marian"),
    )
    generated = original.eval().generate(**tokenizer(texts, return_tensors="pt", padding=True))
    expected = tokenizer.batch_decode(generated, skip_special_tokens=True)
    assert len(set(expected)) > 5
    translator = Translator.from_pretrained(opus / "ours")
    assert list(translator.translate(texts)) == expected
    translate = pipeline("translation", model=str(opus / "ours"))
    assert [row["translation_text"] for row in translate(texts[:2])] == expected[:2]
    (aligned,) = translator.translate(texts[:1], return_alignments=True)
    assert aligned.alignment and aligned.text == expected[0]


@pytest.mark.slow
def test_onnx_and_the_alignment_of_an_imported_model(opus, tmp_path):
    pytest.importorskip("onnxscript", reason="needs ONNX: pip install '.[onnx]'")
    pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install onnxruntime")
    export(opus / "ours", tmp_path / "onnx", "onnx")
    texts = [pair["source"] for pair in digit_pairs(8, seed=1)]
    translations = list(Translator.from_pretrained(opus / "ours").translate(texts, return_alignments=True))
    assert OnnxEngine(tmp_path / "onnx").translate(texts, 4) == [one.text for one in translations]
    for text, translation in zip(texts, translations, strict=True):
        pairs = [pair.split("-") for pair in translation.alignment.split()]
        assert {int(source) for source, _ in pairs} <= set(range(len(text.split())))
        assert {int(target) for _, target in pairs} == set(range(len(translation.text.split())))


@pytest.mark.parametrize("separate", [False, True])
def test_the_tokenizers_of_an_export_return(tmp_path, separate):
    source = tiny_tokenizer()
    target = tiny_tokenizer(vocab_size=270) if separate else None
    sizes = {"decoder_vocab_size": 270, "share_encoder_decoder_embeddings": False} if separate else {}
    model = tiny_model(vocab_size=len(source), attention_bias=True, **sizes)
    export(save_checkpoint(tmp_path / "ours", model, source, target), tmp_path / "marian", "marian")
    report = import_checkpoint(tmp_path / "marian", tmp_path / "again")
    assert "No tokenizers" not in report.text
    text = "one two drei"
    for side, expected in zip(load_tokenizers(tmp_path / "again"), (source, target or source), strict=True):
        assert side(text).input_ids == expected(text).input_ids


@pytest.mark.parametrize(
    ("kind", "symbol", "is_refused"),
    [
        ("bpe", "<sep>", True),
        ("bpe", "#", False),
        ("bpe", ">>deu<<", False),
        ("unigram", "<sep>", False),
        ("unigram", "▁<x>", True),
        # The normalization changes these brackets.
        ("unigram", "｟sep｠", True),
    ],
)
def test_user_defined_symbols(tmp_path, kind, symbol, is_refused):
    texts = [pair["source"] for pair in digit_pairs(300, seed=0)]
    path = tmp_path / "x.model"
    write_sentencepiece(texts, path, 60, model_type=kind, user_defined_symbols=[symbol])
    if is_refused:
        with pytest.raises(
            ValueError, match=f"user-defined symbol '{symbol}' in texts; import the checkpoint"
        ):
            read_sentencepiece(path)
        return
    model = read_sentencepiece(path)
    text = f"one{symbol}two {symbol} three"
    if not symbol.startswith(">>"):
        expected = SentencePieceProcessor(str(path)).encode(text)
        assert fast_tokenizer(model, model.ids)(text, add_special_tokens=False).input_ids == expected


@pytest.mark.parametrize("separate", [False, True])
def test_tokenizers_give_the_ids_and_the_texts_of_marian(opus, tmp_path, separate):
    pairs = digit_pairs(300, seed=0)
    slow = write_marian_tokenizer(tmp_path / "marian", pairs, separate)
    sizes = (len(slow.encoder), len(slow.target_encoder)) if separate else (len(slow.encoder), None)
    random_marian(marian_config(*sizes)).save_pretrained(tmp_path / "marian")
    import_checkpoint(tmp_path / "marian", tmp_path / "ours")
    source, target = load_tokenizers(tmp_path / "ours")
    texts = [*RARE_TEXTS, *(text for pair in pairs[:50] for text in pair.values())]
    assert source(texts).input_ids == slow(texts).input_ids
    assert target(texts).input_ids == slow(text_target=texts).input_ids
    for ids in slow(text_target=texts).input_ids:
        expected = slow.decode(ids, skip_special_tokens=True)
        assert target.decode(ids, skip_special_tokens=True) == expected
    rows = torch.randint(len(target), (200, 9), generator=torch.Generator().manual_seed(0)).tolist()
    for ids in rows:
        assert target.decode(ids, skip_special_tokens=True) == slow.decode(ids, skip_special_tokens=True)
    assert (target.get_vocab() == source.get_vocab()) is False
    assert source.convert_tokens_to_ids(">>deu<<") == slow.encoder[">>deu<<"]


def test_the_timescales_of_marian_change_the_positions(opus, tmp_path, vaswani):
    words = [opus / "marian", tmp_path / "ours", "--timescales", "tensor2tensor"]
    assert vaswani("import", *words)[0] == 0
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert config["position_timescales"] == "tensor2tensor"


@pytest.fixture(scope="module")
def number_files(opus):
    """Files with sources and references for the imported model."""
    pairs = digit_pairs(40, seed=2)
    for side in ("source", "target"):
        (opus / f"test.{side}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
    return str(opus / "test.source"), str(opus / "test.target")


def fine_tuning(opus, number_files, folder):
    """A recipe that trains an imported model further."""
    changes = {f"model.{name}": None for name in TINY_SHAPE} | {"tokenizer.vocab_size": None}
    changes |= {"output_dir": str(folder / "run"), "model.init_from": str(opus / "ours")}
    changes |= {"data.corpus": None, "data.numbers_train_size": None}
    changes |= {"training.max_steps": 3, "training.learning_rate_factor": 0.01}
    for split in ("train", "validation"):
        for side, file in zip(("source", "target"), number_files, strict=True):
            changes[f"data.{split}_{side}"] = file
    return write_recipe(folder / "recipe.yaml", changes)


def test_fine_tuning_keeps_the_start_from_zeros(opus, number_files, tmp_path):
    train(load_recipe(fine_tuning(opus, number_files, tmp_path)))
    base = load_file(opus / "ours" / "model.safetensors")["model.shared.weight"]
    weight = load_file(tmp_path / "run" / "model.safetensors")["model.shared.weight"]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    pad = config["pad_token_id"]
    assert config["zero_start_embedding"] and config["decoder_start_token_id"] == pad
    assert not weight[pad].any() and not torch.equal(weight[pad - 1], base[pad - 1])
    translator = Translator.from_pretrained(str(tmp_path / "run"))
    pair = digit_pairs(1, seed=3)[0]
    assert list(translator.translate([pair["source"]])) == [pair["target"]]


def test_commands_add_the_tag_of_the_target_language(opus, number_files, tmp_path, vaswani):
    source, reference = number_files
    tagged = tmp_path / "tagged.en"
    lines = Path(source).read_text().splitlines()
    tagged.write_text("".join(f">>nld<< {line}\n" for line in lines))
    results = []
    for path, languages in ((tagged, []), (source, ["--tgt_lang", "nld"])):
        words = [opus / "ours", "--source", path, *languages]
        scores = json.loads(vaswani("evaluate", *words, "--reference", reference, "--json")[1])
        scored = vaswani("score", *words, "--target", reference)
        assert scored[0] == 0
        results.append((scores["loss"], scores["chrf"], scored))
    assert results[0] == results[1]
    recipe, output = fine_tuning(opus, number_files, tmp_path), tmp_path / "distilled.jsonl"
    words = ["--teacher", opus / "ours", "--tgt_lang", "nld", "--output", output]
    assert vaswani("distill", recipe, *words)[0] == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert rows[0]["distillation"]["tgt_lang"] == "nld"
    translate = Translator.from_pretrained(opus / "ours").translate
    expected = list(translate(f">>nld<< {line}" for line in lines))
    assert [row["translation"]["de"] for row in rows] == expected


def test_a_repository_of_the_hub_is_downloaded(opus, tmp_path, repo_id):
    HfApi().create_repo(repo_id)
    HfApi().upload_folder(repo_id=repo_id, folder_path=opus / "marian")
    report = import_checkpoint(repo_id, tmp_path / "ours")
    assert report.difference < 1e-4
    assert f"base_model: {repo_id}" in (tmp_path / "ours" / "README.md").read_text()


def test_the_card_names_the_origin(opus):
    card = (opus / "ours" / "README.md").read_text()
    assert "were imported from `marian`, a checkpoint of MarianMT of transformers" in card
    assert "eng" in card and "deu" in card


def test_a_push_writes_the_card_again_unless_somebody_has_edited_it(opus, tmp_path):
    ours = shutil.copytree(opus / "ours", tmp_path / "ours")
    # The certificate changes the generated card, but not the card in the folder.
    rows = [CertificateRow(engine="vaswani_hf", weights="float32", status="measured")]
    certificate = Certificate(
        rows=rows,
        test_set="test.txt",
        sentences=1,
        hardware="a CPU",
        versions={},
        date="2026-01-01",
        weights=hashes_of_weights(ours),
    )
    (ours / "certificate.json").write_text(certificate.as_text())
    stage_repository(tmp_path / "ours", tmp_path / "staged", "user/opus")
    assert 'pipeline("translation", model="user/opus")' in (tmp_path / "staged" / "README.md").read_text()
    card = tmp_path / "ours" / "README.md"
    card.write_text(card.read_text() + "More.\n")
    stage_repository(tmp_path / "ours", tmp_path / "edited", "user/opus")
    assert (tmp_path / "edited" / "README.md").read_text() == card.read_text()


def test_the_option_tgt_lang_adds_the_tag(opus):
    translate = pipeline("translation", model=str(opus / "ours"))
    tagged = translate(">>deu<< one two")[0]["translation_text"]
    assert translate("one two", tgt_lang="deu")[0]["translation_text"] == tagged
    with pytest.raises(
        ValueError, match=r"^`tgt_lang` must be a target language .* \(deu, nld\), but is 'fra'\.$"
    ):
        translate("one two", tgt_lang="fra")


def test_folders_of_other_formats_are_refused(tmp_path, vaswani):
    for config, options, code, message in (
        ('{"add_source_eos": false}', ["--from", "marian_mt"], 1, "can be exported but not imported"),
        ('{"model_type": "vaswani"}', [], 1, "is already a checkpoint of this package; use the checkpoint"),
        ('{"model_type": "t5"}', [], 1, "is not recognised as a checkpoint of a format that can be imported"),
        ('{"model_type": "t5"}', ["--from", "eole"], 1, "is not recognised as a checkpoint of Eole, and"),
        ('{"model_type": "t5"}', ["--from", "t5"], 2, '`format` must be "marian_mt"'),
    ):
        (tmp_path / "config.json").write_text(config)
        found, _, error = vaswani("import", tmp_path, tmp_path / "ours", *options)
        assert found == code and message in error, config
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("name", ["snake", None])
def test_an_unknown_activation_is_refused(tmp_path, name):
    random_marian(SHAPES["shared"]).save_pretrained(tmp_path / "marian")
    file = tmp_path / "marian" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"activation_function": name}))
    message = f"The original has `activation_function` {name!r}, and cannot be imported, because transformers"
    import_refused(tmp_path / "marian", message)


@pytest.mark.parametrize("name", ["onnx", "transformers_js", "argos", "html"])
def test_exports_that_no_import_reads_are_refused(tmp_path, vaswani, name, repo_id):
    entry = EXPORT_FORMATS[name]
    file = tmp_path / "exported" / entry.main_file.replace("*", "model")
    file.parent.mkdir(parents=True)
    file.touch()
    if entry.model_type is not None:
        (tmp_path / "exported" / "config.json").write_text(json.dumps({"model_type": entry.model_type}))
    code, _, error = vaswani("import", tmp_path / "exported", tmp_path / "ours")
    message = (
        f" is an export to {entry.expressible.title}, and models in this format cannot be imported; use the "
        "checkpoint from which the export was made."
    )
    assert (code, error) == (1, f"'{tmp_path / 'exported'}'{message}")
    if name == "onnx":
        HfApi().create_repo(repo_id)
        HfApi().upload_folder(repo_id=repo_id, folder_path=tmp_path / "exported")
        code, _, error = vaswani("import", repo_id, tmp_path / "ours")
        assert (code, error) == (1, f"'{repo_id}'{message}")
    # A repository of OPUS-MT can contain both the weights and an export.
    (tmp_path / "exported" / "pytorch_model.bin").touch()
    code, _, error = vaswani("import", tmp_path / "exported", tmp_path / "ours")
    assert code == 1 and "is an export to" not in error


def test_the_oldest_models_are_refused(tmp_path):
    random_marian(SHAPES["shared"]).save_pretrained(tmp_path / "marian")
    (tmp_path / "marian" / "source.bpe").touch()
    message = (
        "The original has `tokenizer` 'source.bpe', and cannot be imported, because tokenizers with Moses"
    )
    import_refused(tmp_path / "marian", message)


def with_a_short_weight(content):
    state = safetensors.torch.load(content)
    state["model.encoder.layers.0.fc1.bias"] = torch.zeros(3)
    return safetensors.torch.save(state, {"format": "pt"})


# The name of a file, the function that changes the content of the file, and a part of the message.
DAMAGES = [
    ("model.safetensors", with_a_short_weight, "model.encoder.layers.0.fc1.bias is of another shape"),
    ("vocab.json", lambda content: b'{"</s>": "0"}', "must map each token to an id, but does not"),
    ("vocab.json", lambda content: content.replace(b"<unk>", b"<UNK>"), "must contain the token <unk>, but"),
    ("vocab.json", lambda content: content.replace(b"<pad>", b"<PAD>"), "must contain the token <pad>, but"),
    ("vocab.json", lambda content: b'{"</s>": 0}', "must contain a token with the id 70, but does"),
]


@pytest.mark.parametrize(("file", "change", "message"), DAMAGES, ids=range(len(DAMAGES)))
def test_a_damaged_folder_is_refused_in_one_sentence(opus, tmp_path, file, change, message):
    folder = shutil.copytree(opus / "marian", tmp_path / "marian")
    damage(folder / file, change)
    import_refused(folder, message)
