"""`--engine ctranslate2`: the same options and the same output as the search of this package."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from factories import cut, damage, save_checkpoint, tiny_config, tiny_tokenizer

from vaswani_hf import VaswaniForSeq2SeqLM
from vaswani_hf.cli import main
from vaswani_hf.model.inputs_vaswani import DECODING_SETTINGS, TranslationOptions
from vaswani_hf.model.requests_vaswani import Request
from vaswani_hf.translation import Translator

pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install '.[ctranslate2]'")


from vaswani_hf.convert.export import export
from vaswani_hf.evaluation.evaluate import evaluate
from vaswani_hf.translation.ctranslate2 import CTranslate2Backend, load_ctranslate2_translator

LINES = ["one two three", "", "five four", "three three two one", "two\u2028five", "four"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A checkpoint whose translations end and are uncertain, and its export."""
    folder = tmp_path_factory.mktemp("engine")
    tokenizer = tiny_tokenizer(["one two three four five eins zwei drei vier fünf"] * 4, 300)
    torch.manual_seed(5)
    model = VaswaniForSeq2SeqLM(tiny_config(vocab_size=len(tokenizer))).eval()
    with torch.no_grad():
        model.lm_head.weight[model.config.eos_token_id] += 0.2
        model.lm_head.weight.mul_(3)
    settings = {"num_beams": 4, "length_penalty_type": "gnmt", "length_penalty": 0.6, "max_length_b": 12}
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    save_checkpoint(folder / "checkpoint", model, tokenizer)
    export(folder / "checkpoint", folder / "exported", "ctranslate2")
    return str(folder / "checkpoint"), str(folder / "exported")


def both(folders, **options):
    ours = Translator.from_pretrained(folders[0], "cpu")
    theirs = load_ctranslate2_translator(folders[1], "cpu")
    return list(ours.translate(LINES, **options)), list(theirs.translate(LINES, **options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 2, "window": 2},
        {"num_beams": 1},
        {"split_sentences": True, "length_penalty_type": "power", "early_stopping": "never"},
        {"target_prefixes": ["eins", None, "zwei", None, None, None]},
        {"repetition_guard": True, "max_new_tokens": 5},
    ],
    ids=str,
)
def test_translations_are_the_same(folders, options):
    ours, theirs = both(folders, **options)
    assert theirs == ours
    assert ours[1] == "" and len(set(ours)) > 2


def test_scores_words_and_alternatives_are_the_same(folders):
    ours, theirs = both(folders, return_scores=True, return_alignments=True, num_return_sequences=2)
    for mine, other in zip(ours, theirs, strict=True):
        pairs = zip([mine, *mine.alternatives], [other, *other.alternatives], strict=True)
        for a, b in pairs:
            assert (a.text, a.tokens) == (b.text, b.tokens)
            assert b.score == pytest.approx(a.score, abs=1e-4)
            assert b.confidence == pytest.approx(a.confidence, abs=1e-4)
            assert b.token_log_probs == pytest.approx(a.token_log_probs, abs=1e-4)
            assert [word.word for word in a.words] == [word.word for word in b.words]
            # CTranslate2 takes the alignments from one layer, and PyTorch takes them from two layers, so
            # compare only the numbers of aligned pairs.
            assert len(a.alignment.split()) == len(b.alignment.split())
    engines = Translator.from_pretrained(folders[0], "cpu"), load_ctranslate2_translator(folders[1], "cpu")
    mine, other = (evaluate(engine, LINES, LINES)["loss"] for engine in engines)
    assert other == pytest.approx(mine, rel=1e-4)


def test_the_command_line_gives_the_same_lines(folders, tmp_path, capfdbinary):
    source = tmp_path / "in.txt"
    source.write_text("".join(line + "\n" for line in LINES), encoding="utf-8")
    outputs = []
    for engine, folder in zip(("torch", "ctranslate2"), folders, strict=True):
        assert main(["translate", folder, "--engine", engine, "--input", str(source), "--json"]) == 0
        outputs.append([json.loads(line)["text"] for line in capfdbinary.readouterr().out.split(b"\n")[:-1]])
    assert outputs[0] == outputs[1] and len(outputs[0]) == len(LINES)


def test_a_seed_draws_the_same_with_any_number_of_threads_and_from_any_window(folders):
    settings = {"do_sample": True, "num_beams": 1, "top_k": 20, "temperature": 2.0}
    options = TranslationOptions.of(window=10, seed=5, tokens_per_batch=40, **settings)
    requests = [Request(f"{one} {other}") for one in LINES[2:] for other in LINES[2:]]

    def drawn(num_threads: int, first: int, options: TranslationOptions) -> list[str]:
        backend = CTranslate2Backend(folders[1], "cpu", num_threads)
        translator = Translator(backend, backend.source_tokenizer, backend.target_tokenizer)
        return list(translator.translate_requests(requests[first:], options, first + 1))

    whole = drawn(1, 0, options)
    assert drawn(3, 0, options) == whole
    assert drawn(2, 10, options) == whole[10:]
    assert drawn(1, 0, replace(options, seed=6)) != whole
    # `top_k` can be larger than the vocabulary.
    all_tokens = [replace(options, generate={**settings, "top_k": top_k}) for top_k in (1000, 0)]
    assert drawn(1, 0, all_tokens[0]) == drawn(1, 0, all_tokens[1])
    # CTranslate2 would replace the largest seed by a random seed.
    largest = replace(options, seed=2**32 - 1 - 1)
    assert drawn(1, 0, largest) == drawn(1, 0, largest)


REFUSED = {
    "--stream --text one": "`--stream` must come without `--engine ctranslate2`",
    "--ensemble x --text one": "`ensemble` must be left out with the engine ctranslate2",
    "--max_length_a -1 --text one": "`--max_length_a` must be a number of 0 or more",
    "--do_sample --top_k 7 --num_beams 4 --text one": "`top_k` must be at least 8 (twice `num_beams`) or 0",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_it_cannot_is_one_sentence(folders, vaswani, words):
    code, _, sentence = vaswani("translate", folders[1], "--engine", "ctranslate2", *words.split())
    assert code == 2 and sentence.startswith(REFUSED[words])


def test_phrases_are_refused(folders):
    engine = load_ctranslate2_translator(folders[1], "cpu")
    with pytest.raises(ValueError, match="^`must_contain` must be left out, because the engine"):
        list(engine.translate(["one"], must_contain=[["eins"]]))


def test_a_new_setting_of_the_search_is_refused_in_a_call_and_named_in_a_checkpoint(
    folders, tmp_path, monkeypatch, caplog
):
    """The engine treats a new field of `SearchSettings` in this way until the engine lists the field."""
    monkeypatch.setitem(DECODING_SETTINGS, "diversity", 0.0)
    folder = shutil.copytree(folders[1], tmp_path / "new")
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"diversity": 0.5}))
    engine = load_ctranslate2_translator(folder, "cpu")
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "`diversity` is 0.5 in the generation config, which CTranslate2 cannot"
    )
    message = "^`diversity` is no setting of the engine ctranslate2, which has num_beams, "
    with pytest.raises(ValueError, match=message):
        list(engine.translate(["one"], diversity=0.5))


def edited(change):
    """Return a function that changes the content of a JSON file."""

    def edit(content):
        value = json.loads(content)
        changed = change(value)
        return json.dumps(value if changed is None else changed).encode()

    return edit


NO_OBJECT = "must hold a JSON object, but does not: it is damaged; copy or download the file again."
NO_LIST = "must hold a list of tokens, but does not: it is damaged; copy or export it again."
AGAIN = "copy or export it again."
NUMBER = "tokens, one for each row of the model's embedding, but has "
DAMAGES = [
    ("model.bin", None, "`model` must be a folder that `vaswani export --format ctranslate2` wrote, but"),
    ("model.bin", lambda content: b"", f"is damaged or incomplete; {AGAIN}"),
    ("model.bin", lambda content: content + b"x", f"is damaged; {AGAIN}"),
    ("model.bin", lambda content: b"<html>" * 99, f"(Unsupported model binary version); {AGAIN}"),
    ("shared_vocabulary.json", None, f"is missing; {AGAIN}"),
    ("shared_vocabulary.json", cut, NO_LIST),
    ("shared_vocabulary.json", lambda content: b"{}", NO_LIST),
    ("shared_vocabulary.json", edited(lambda tokens: list(range(len(tokens)))), NO_LIST),
    ("shared_vocabulary.json", edited(lambda tokens: tokens[:-3]), NUMBER),
    (
        "shared_vocabulary.json",
        edited(lambda tokens: tokens[::-1]),
        "must have the same tokens as the tokenizer, but has other tokens",
    ),
    ("config.json", None, "it has no config.json; copy or download the file again."),
    ("config.json", lambda content: b"null", NO_OBJECT),
    (
        "config.json",
        edited(lambda config: config.update(max_position_embeddings=-4)),
        "must have `max_position_embeddings` of 1074, the number of rows of the model's position encodings, but has -4; ",
    ),
    (
        "config.json",
        edited(lambda config: config.pop("eos_token") and None),
        f"must name a token as its `eos_token`, but has None; {AGAIN}",
    ),
    ("generation_config.json", cut, NO_OBJECT),
    (
        "generation_config.json",
        edited(lambda config: config.update(num_beams="x")),
        f"has an impossible setting (`num_beams` must be a positive integer, but is 'x'); {AGAIN}",
    ),
    (
        "generation_config.json",
        edited(lambda config: config.update(eos_token_id=999)),
        f"must name tokens as its `eos_token_id`, but has 999; {AGAIN}",
    ),
    ("tokenizer_config.json", None, "has no tokenizer_config.json; copy or download the file again."),
]


@pytest.mark.parametrize(("file", "change", "sentence"), DAMAGES, ids=range(len(DAMAGES)))
def test_a_damaged_folder_is_refused_in_a_sentence(folders, tmp_path, vaswani, file, change, sentence):
    folder = tmp_path / "damaged"
    shutil.copytree(folders[1], folder)
    damage(folder / file, change)
    _, out, found = vaswani("translate", folder, "--engine", "ctranslate2", "--text", "one two")
    assert out == "" and f"'{folder}'" in found and "\n" not in found
    assert sentence in found and found.endswith((" again.", "holds no CTranslate2 model."))


def test_the_export_keeps_the_calibration(folders, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(folders[0], checkpoint)
    (checkpoint / "calibration.json").write_text('{"weights": [0.5, 1.0, 0.1, -0.2]}')
    export(checkpoint, tmp_path / "exported", "ctranslate2")
    texts = LINES[:1]
    (expected,) = Translator.from_pretrained(str(checkpoint), "cpu").translate(texts, return_scores=True)
    translator = load_ctranslate2_translator(tmp_path / "exported", "cpu")
    (found,) = translator.translate(texts, return_scores=True)
    assert 0.01 < found.calibrated_confidence < 0.99
    assert found.calibrated_confidence == pytest.approx(expected.calibrated_confidence, abs=1e-4)
    (withheld,) = translator.translate(texts, min_confidence=0.999)
    assert withheld.error.endswith("is below 0.999")


def test_files_of_two_exports_are_not_mixed(folders, tmp_path, vaswani):
    tokenizer = tiny_tokenizer(["six seven eight nine ten sechs sieben acht neun zehn"] * 4, 270)
    model = VaswaniForSeq2SeqLM(tiny_config(vocab_size=len(tokenizer)))
    save_checkpoint(tmp_path / "checkpoint", model, tokenizer)
    export(tmp_path / "checkpoint", tmp_path / "other", "ctranslate2")
    for file in ("model.bin", "tokenizer.json", "shared_vocabulary.json"):
        folder = tmp_path / file
        shutil.copytree(folders[1], folder)
        shutil.copy(tmp_path / "other" / file, folder / file)
        code, out, sentence = vaswani("translate", folder, "--engine", "ctranslate2", "--text", "one two")
        assert (code, out) == (1, "")
        assert sentence.startswith(f"shared_vocabulary.json of '{folder}' must have ")


def test_a_prefix_beyond_the_positions_is_named_with_its_line(folders, monkeypatch):
    translator = load_ctranslate2_translator(folders[1], "cpu")
    monkeypatch.setattr(translator.backend, "_num_positions", 3)
    prefixes = [None, "eins zwei drei vier"]
    message = "`target_prefix` must have fewer tokens than the 3 positions of the exported model, but has"
    with pytest.raises(ValueError, match=message) as raised:
        list(translator.translate(["one", "two"], target_prefixes=prefixes))
    assert raised.value.line_number == 2
    first, second = translator.translate(["one", "two"], target_prefixes=prefixes, on_error="skip")
    assert isinstance(first, str) and message in second.error
