import json

import pytest
import torch

from vaswani_hf import VaswaniForSeq2SeqLM
from vaswani_hf.model.decoding_vaswani import TreeAttentionDecoder
from vaswani_hf.translation import Translator, precision

TEXTS = ["eins nein", "", "der Hund", "ja? nein", "größer.", "die Straße", "nein eins ja?", "zwei,"]


@pytest.fixture
def sources(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("".join(text + "\n" for text in TEXTS), encoding="utf-8")
    return path


@pytest.fixture
def in_hardware(set_bfloat16):
    """PyTorch says that the processor multiplies bfloat16."""
    set_bfloat16(True)


@pytest.fixture
def unstable(tiny_checkpoint) -> str:
    """A model with random weights, whose nearly equal scores bfloat16 changes."""
    folder = tiny_checkpoint("unstable")
    model = VaswaniForSeq2SeqLM.from_pretrained(folder)
    with torch.no_grad():
        # Fix one value that depends on earlier tests.
        model.model.encoder.layers[0].fc1.bias[0] = 1.0
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def warnings(monkeypatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(precision.logger, "warning", said.append)
    return said


@pytest.mark.parametrize("dtype", ["float16", "float32", torch.bfloat16])
def test_a_translator_computes_in_the_dtype_that_is_asked_for(copier_checkpoint, dtype, monkeypatch):
    used = []
    start = TreeAttentionDecoder.start

    def watched(self, input_ids):
        logits = start(self, input_ids)
        used.append((self.encoder_states.dtype, self.is_direct, logits.dtype))
        return logits

    monkeypatch.setattr(TreeAttentionDecoder, "start", watched)
    ensemble = [copier_checkpoint]
    translator = Translator.from_pretrained(copier_checkpoint, "cpu", dtype=dtype, ensemble=ensemble)
    assert list(translator.translate(TEXTS)) == TEXTS
    expected = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    # The search adds scores in float32 and takes the fast steps.
    assert used and set(used) == {(expected, True, torch.float32)}


@pytest.mark.parametrize(
    "options", [{"dtype": "bfloat16"}, {"dtype": "float16"}, {"quantization": "int8"}], ids=str
)
def test_scores_are_those_of_the_search_and_nearly_of_float32(copier_checkpoint, copier, options):
    if "quantization" in options:
        pytest.importorskip("torchao")
    translator = Translator.from_pretrained(copier_checkpoint, "cpu", **options)
    texts = [text for text in TEXTS if text]
    inputs = translator.source_tokenizer(texts, return_tensors="pt", padding=True)
    found = translator.model.generate(**inputs, return_dict_in_generate=True, output_scores=True, num_beams=4)
    translated = list(translator.translate(texts, return_scores=True))
    scored, expected = list(translator.score(texts, texts)), list(copier.score(texts, texts))
    rows = zip(translated, scored, expected, found.sequences_scores.tolist(), strict=True)
    for of_translation, of_score, in_float32, of_search in rows:
        assert of_search == pytest.approx(of_score.score, abs=1e-2)
        assert of_translation.score == pytest.approx(of_score.score, abs=1e-2)
        assert of_score.score == pytest.approx(in_float32.score, abs=5e-2)
    assert [row.score for row in scored] != [row.score for row in expected]


def test_every_command_takes_a_dtype_and_int8(copier_checkpoint, sources, vaswani):
    pytest.importorskip("torchao")
    columns = []
    for words in ("--dtype float32", "--dtype bfloat16", "--quantization int8"):
        options = (copier_checkpoint, *words.split())
        code, out, _ = vaswani("translate", *options, "--input", sources, "--json")
        assert code == 0
        rows = [json.loads(line) for line in out.splitlines()]
        assert [row["text"] for row in rows] == TEXTS
        code, out, _ = vaswani("score", *options, "--source", sources, "--target", sources)
        assert code == 0
        evaluated = vaswani("evaluate", *options, "--source", sources, "--reference", sources, "--json")
        assert evaluated[0] == 0
        assert json.loads(evaluated[1])["exact_match"] == 100
        columns.append((rows[0]["score"], out, json.loads(evaluated[1])["loss"]))
    assert all(len(set(values)) == len(columns) for values in zip(*columns, strict=True))


def test_another_dtype_is_refused(copier_checkpoint, vaswani):
    message = '^`dtype` must be "float32", "bfloat16", "float16" or "auto", but is .float64..$'
    with pytest.raises(ValueError, match=message):
        Translator.from_pretrained(copier_checkpoint, dtype="float64")
    options = ("--engine", "ctranslate2", "--text", "eins")
    code, _, sentence = vaswani("translate", "no folder", *options, "--dtype", "bfloat16")
    assert code == 2 and sentence.startswith("`dtype` must be left out with the engine ctranslate2; `vaswani")


def test_auto_is_float32_where_no_hardware_multiplies_bfloat16(copier_checkpoint, set_bfloat16):
    set_bfloat16(False)
    translator = Translator.from_pretrained(copier_checkpoint, "cpu", dtype="auto")
    assert list(translator.translate(TEXTS)) == TEXTS
    assert translator.model.dtype == torch.float32


def test_auto_is_bfloat16_where_the_first_texts_agree(copier_checkpoint, in_hardware, warnings):
    ensemble = [copier_checkpoint]
    translator = Translator.from_pretrained(copier_checkpoint, "cpu", dtype="auto", ensemble=ensemble)
    translator.calibration = lambda translation: 1.0
    assert [one.text for one in translator.translate(TEXTS, min_confidence=0.5)] == TEXTS
    assert {model.dtype for model in (translator.model, *translator.backend.ensemble)} == {torch.bfloat16}
    assert warnings == []


def test_auto_is_float32_where_they_do_not_agree(unstable, in_hardware, warnings, caplog):
    settings = {"num_beams": 4, "max_new_tokens": 30, "max_length_a": None, "max_length_b": None}
    texts = [f"der Hund {'läuft ' * number}" for number in range(12)]
    dtypes = ("bfloat16", "float32")
    coarse, fine = (Translator.from_pretrained(unstable, "cpu", dtype=dtype) for dtype in dtypes)
    expected = list(fine.translate(texts, **settings))
    num_same = sum(map(str.__eq__, list(coarse.translate(texts[:8], **settings)), expected))
    assert num_same < 8
    translator = Translator.from_pretrained(unstable, "cpu", dtype="auto")
    assert list(translator.translate(texts, **settings)) == expected
    assert translator.model.dtype == torch.float32
    assert warnings == [
        "`dtype` auto: float32 is used, because bfloat16 gives the same translation as float32 for only "
        f"{num_same} of the first 8 texts."
    ]


def test_a_failure_in_bfloat16_alone_is_no_agreement(copier_checkpoint, in_hardware, warnings, monkeypatch):
    translator = Translator.from_pretrained(copier_checkpoint, "cpu", dtype="auto")
    search = type(translator.backend).search

    def failing(self, *arguments, **settings):
        if self.model.dtype == torch.bfloat16:
            raise ValueError("The logits are no numbers.")
        return search(self, *arguments, **settings)

    monkeypatch.setattr(type(translator.backend), "search", failing)
    assert list(translator.translate(TEXTS)) == TEXTS
    assert warnings == [
        "`dtype` auto: float32 is used, because bfloat16 gives the same translation as float32 for only "
        "0 of the first 7 texts."
    ]


def test_nothing_and_empty_texts_decide_nothing(copier_checkpoint, in_hardware, warnings):
    translator = Translator.from_pretrained(copier_checkpoint, "cpu", dtype="auto")
    for texts in ([], ["", " "]):
        assert list(translator.translate(texts)) == ["" for _ in texts]
        assert translator.is_undecided
    # The first window contains only blank lines.
    assert list(translator.translate(["", " ", *TEXTS], window=2)) == ["", "", *TEXTS]
    assert (translator.is_undecided, translator.model.dtype, warnings) == (False, torch.bfloat16, [])


def test_scoring_decides_too(copier_checkpoint, in_hardware):
    translator = Translator.from_pretrained(copier_checkpoint, "cpu", dtype="auto")
    in_bfloat16 = Translator.from_pretrained(copier_checkpoint, "cpu", dtype="bfloat16")
    assert list(translator.score(TEXTS, TEXTS)) == list(in_bfloat16.score(TEXTS, TEXTS))


def test_sampling_is_compared_by_search_and_draws_as_without(copier_checkpoint, in_hardware):
    settings = {"do_sample": True, "num_beams": 1, "temperature": 3.0, "num_return_sequences": 2, "seed": 3}
    dtypes = ("auto", "bfloat16")
    auto, named = (Translator.from_pretrained(copier_checkpoint, "cpu", dtype=dtype) for dtype in dtypes)
    assert list(auto.translate(TEXTS, **settings)) == list(named.translate(TEXTS, **settings))


@pytest.mark.parametrize(("workers", "num_done"), [(1, 5), (2, 3)])
def test_one_decision_is_made_for_a_file(
    copier_checkpoint, sources, in_hardware, tmp_path, vaswani, workers, num_done, monkeypatch, request
):
    if workers > 1:
        request.getfixturevalue("quick_workers")
    decided_by = []
    choose_dtype = precision.choose_dtype

    def watched(translator, requests, options):
        decided_by.append([request.text for request in requests])
        choose_dtype(translator, requests, options)

    monkeypatch.setattr("vaswani_hf.translation.translator.choose_dtype", watched)
    options = ("translate", copier_checkpoint, "--input", sources, "--json")
    # Use small windows, because several processes translate windows of this size.
    assert vaswani(*options, "--dtype", "bfloat16", "--output", tmp_path / "named", "--window", 2)[0] == 0
    lines = (tmp_path / "named").read_bytes().splitlines(keepends=True)
    output = tmp_path / "auto"
    output.write_bytes(b"".join(lines[:num_done]))
    options = (*options, "--dtype", "auto", "--output", output, "--resume", "--window", 2 * workers)
    assert vaswani(*options, "--workers", workers)[0] == 0
    # The first lines of a file determine the precision, also if the run is continued.
    assert decided_by[0] == TEXTS[: 2 * workers]
    assert output.read_bytes() == b"".join(lines)
