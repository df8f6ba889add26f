"""`vaswani distill`: the pairs of a teacher, killed and continued runs, and refused inputs."""

import json
import re
import shutil
from pathlib import Path

import pytest
from factories import write_recipe

from vaswani_hf.cli import main
from vaswani_hf.convert.export import export
from vaswani_hf.model.backend_vaswani import PyTorchBackend
from vaswani_hf.publish.model_card import model_card
from vaswani_hf.publish.push import push
from vaswani_hf.recipe import load_recipe
from vaswani_hf.tasks.translation import TranslationData, TranslationTask
from vaswani_hf.training import train
from vaswani_hf.translation.translator import Translator

ROOT = Path(__file__).parents[2]
CHANGES = {
    **dict.fromkeys(("model.d_model", "model.encoder_ffn_dim", "model.decoder_ffn_dim"), 32),
    **{"data.numbers_train_size": 60, "model.dropout": 0.0, "model.label_smoothing": 0.0},
    **dict.fromkeys(("training.source_tokens_per_batch", "training.target_tokens_per_batch"), 512),
    **{"training.learning_rate_factor": 0.5, "training.warmup_steps": 20},
    **{"training.gradient_accumulation_steps": 1, "training.save_steps": 20, "training.eval_steps": 100},
    "decoding": {"max_length_b": 10},
}
# The command refuses the languages before it reads the file.
OTHER_PAIRS = ["--corpus", "null", "--train_pairs", "a.jsonl"]
OTHER_TASK = (
    "{output_dir: x, task: causal_lm, data: {language: en, corpus: numbers}, training: {max_steps: 2}}"
)
OTHERS = "`--teacher` '{}' translates from 'en' to 'de', but the recipe is for {} to {}; give another teacher, or {}."


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """The folder of a run with few steps, because its translations must differ from the references."""
    folder = tmp_path_factory.mktemp("teacher")
    longer = {"training.max_steps": 100, "data.numbers_train_size": 2000}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("vaswani_hf.data.toy_corpora.NUMBERS_HELD_OUT", 10)
        path = write_recipe(folder / "recipe.yaml", CHANGES | longer, output_dir=str(folder / "numbers"))
        train(load_recipe(path))
    return folder / "numbers"


@pytest.fixture
def recipe(tmp_path):
    """The recipe of the teacher with fewer steps and pairs, as a file."""
    folder = str(tmp_path / "checkpoints" / "numbers")
    return write_recipe(tmp_path / "recipe.yaml", CHANGES, output_dir=folder)


@pytest.fixture
def output(tmp_path):
    return tmp_path / "distilled.jsonl"


def write_pairs(path: Path, pairs: list[tuple[str, str]]) -> list:
    """Write pairs as JSON lines, and return the options that train on these pairs."""
    lines = [json.dumps({"translation": {"en": en, "de": de}}) + "\n" for en, de in pairs]
    path.write_text("".join(lines), encoding="utf-8")
    return ["--corpus", "null", "--train_pairs", path]


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_back(recipe: Path, path: Path) -> list[tuple[str, str]]:
    task = load_recipe(recipe, ["--corpus", "null", "--train_pairs", str(path)]).make_task()
    return [(pair["source"], pair["target"]) for pair in task.load_split("train")]


def corpus(recipe: Path) -> list[tuple[str, str]]:
    pairs = load_recipe(recipe).make_task().load_split("train")
    return [(pair["source"], pair["target"]) for pair in pairs]


def test_pairs_are_those_of_the_translator_and_the_card_of_a_student_says_so(
    vaswani, teacher, recipe, output, tmp_path
):
    code, out, _ = vaswani("distill", recipe, "--teacher", teacher, "--output", output)
    assert (code, out) == (0, f"60 pairs from 60 sentences are in '{output}'\n")
    sources, references = zip(*corpus(recipe), strict=True)
    translations = list(Translator.from_pretrained(str(teacher), "cpu").translate(sources))
    assert read_back(recipe, output) == list(zip(sources, translations, strict=True))
    assert set(translations) - set(references)
    first, second = rows_of(output)[:2]
    assert second == {"translation": {"en": sources[1], "de": translations[1]}, "pair": 2}
    # The record must not name a folder of this machine.
    assert first["distillation"] == {"teachers": ["numbers"]}
    student = tmp_path / "student"
    given = ["--corpus", "null", "--train_pairs", output, "--output_dir", student, "--max_steps", "2"]
    assert vaswani("train", recipe, *given, "--attribution", "A. Author")[0] == 0
    card = str(model_card(student, "user/student"))
    assert "Training data: A. Author; translations by the model numbers, made with `vaswani distill`" in card


def test_pairs_without_a_teacher_credit_nobody(tmp_path):
    pair = {"translation": {"en": "one", "de": "eins"}}
    record = {"teachers": ["teacher"]}
    for name, row in (("distilled", {"distillation": record} | pair), ("mine", pair)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    files = [str(tmp_path / f"{name}.jsonl") for name in ("distilled", "mine")]
    data = TranslationData(source_language="en", target_language="de", train_pairs=files)
    (warning,) = data.replace(test_size=1).warnings()
    assert warning.startswith(
        "`data.test_size: 1` takes the test pairs out of a file of `vaswani distill`, so"
    )
    assert "by the model teacher" in TranslationTask(data).pin_data(None).attribution
    (tmp_path / "array.jsonl").write_text('[["one", "eins"]]')
    for file in (files[1], str(tmp_path / "array.jsonl")):
        other = data.replace(train_pairs=[file])
        assert TranslationTask(other).pin_data(None) == other
        assert other.replace(test_size=1).warnings() == []


def test_a_corpus_that_is_never_seen_is_not_translated(vaswani, teacher, recipe, output, tmp_path):
    for name, source in (("seen", "seven"), ("unseen", "eight")):
        write_pairs(tmp_path / f"{name}.jsonl", [(source, source)])
    files = f"[{tmp_path}/unseen.jsonl, {tmp_path}/seen.jsonl]"
    given = ["--corpus", "null", "--train_pairs", files, "--train_weights", "[0, 3]"]
    assert vaswani("distill", recipe, *given, "--teacher", teacher, "--output", output)[0] == 0
    assert [row["translation"]["en"] for row in rows_of(output)] == ["seven"]


def test_several_translations_of_an_ensemble_with_the_references(
    vaswani, teacher, recipe, output, monkeypatch
):
    names = [str(teacher / "checkpoint-80"), str(teacher)]
    options = ["--num_return_sequences", 3, "--num_beams", 5, "--keep_references"]
    words = ["distill", recipe, "--teacher", *names, "--output", output, *options]
    numbers = []
    with monkeypatch.context() as patch:
        name = "vaswani_hf.translation.workers.translate_in_processes"
        patch.setattr(name, lambda *_, num_workers, **__: numbers.append(num_workers) or iter(()))
        assert vaswani(*words, "--workers", 2, "--numbers_train_size", 600)[0] == 1
    assert numbers == [2]
    code, _, sentence = vaswani(*words)
    assert code == 0, sentence
    translator, expected = Translator.from_pretrained(names[0], "cpu", ensemble=names[1:]), []
    pairs = corpus(recipe)
    found = translator.translate([source for source, _ in pairs], num_return_sequences=3, num_beams=5)
    for (source, reference), best in zip(pairs, found, strict=True):
        texts = [best.text, *(other.text for other in best.alternatives), reference]
        expected += [(source, text) for text in dict.fromkeys(texts)]
    assert read_back(recipe, output) == expected
    assert len(expected) > 180 and rows_of(output)[0]["distillation"]["num_return_sequences"] == 3


def test_empty_sides(vaswani, teacher, recipe, output, tmp_path):
    pairs = [("", "null"), ("seven", None), ("two", "zwei"), (" ", "")]
    given = write_pairs(tmp_path / "train.jsonl", pairs)
    words = ["distill", recipe, *given, "--teacher", teacher, "--output"]
    code, out, _ = vaswani(*words, output, "--keep_references")
    assert code == 0 and "from 4 sentences" in out
    assert out.endswith("; for 2 sentences, the source or the translation is empty\n")
    seven, two = Translator.from_pretrained(str(teacher), "cpu").translate(["seven", "two"])
    assert read_back(recipe, output) == [("seven", seven), ("two", two), ("two", "zwei")]
    # If every pair has an empty side, the command writes no file.
    write_pairs(tmp_path / "train.jsonl", [(" ", "zwei")])
    code, _, sentence = vaswani(*words, tmp_path / "none.jsonl")
    assert code == 1 and "is empty or has an empty translation by" in sentence
    assert not (tmp_path / "none.jsonl").exists()


def test_sentences_that_are_skipped_have_no_pairs(teacher, recipe, output, tmp_path, monkeypatch, capsys):
    given = write_pairs(tmp_path / "train.jsonl", [(text, "x") for text in ("seven", "two", "five", "nine")])
    words = ["distill", recipe, *given, "--teacher", teacher, "--output", output, "--on_error", "skip"]
    words = [str(word) for word in (*words, "--keep_references")]
    assert main([*words, "--num_return_sequences", "40"]) == 2 and not output.exists()
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert sentence.startswith("vaswani: `num_return_sequences` must be at most `num_beams`, which is ")
    search = PyTorchBackend.search

    def refusing(self, segments, *given, **settings):
        if any(segment.text == "five" for segment in segments):
            raise ValueError("Not this one.")
        return search(self, segments, *given, **settings)

    monkeypatch.setattr(PyTorchBackend, "search", refusing)
    assert main(words) == 0
    assert capsys.readouterr().out.endswith("; the command skipped 1 sentence\n")
    assert {source for source, _ in read_back(recipe, output)} == {"seven", "two", "nine"}


def test_wherever_it_breaks_off_it_goes_on_to_the_same_bytes(vaswani, teacher, recipe, output):
    words = ["distill", recipe, "--num_return_sequences", 2, "--teacher", teacher, "--output", output]
    size_key = "--numbers_train_size"
    shorter, words = [*words, "--resume", size_key], [*words, size_key, 11]
    assert vaswani(*words)[0] == 0
    whole = output.read_bytes()
    ends = [match.end() for match in re.finditer(b"\n", whole)]
    assert len(ends) == 22
    # In the first line, between two pairs or two translations of one source, in a line, and at the end.
    for size in (0, 5, ends[1], ends[8], ends[13] - 1, ends[-2], ends[-1]):
        output.write_bytes(whole[:size])
        code, out, _ = vaswani(*words, "--resume")
        assert code == 0 and output.read_bytes() == whole, size
    assert out == f"0 pairs from 0 sentences were added to '{output}'\n"
    for fewer in (3, 10):
        code, _, sentence = vaswani(*shorter, fewer)
        assert code == 2 and output.read_bytes() == whole
        assert sentence.startswith(
            f"`--output` must not have more training pairs than the recipe, but {output} has 11"
        )
    # Do not mix the translations of two searches in one file.
    for option, value in (("num_beams", 3), ("repetition_guard", True), ("keep_references", True)):
        code, _, sentence = vaswani(*words, "--resume", f"--{option}", value)
        assert code == 2 and output.read_bytes() == whole
        assert sentence.startswith(
            f"`--resume` needs the teachers and the settings of '{output}', but `{option}` is {value}"
        )
    # Do not overwrite a file whose first line is not the record of `vaswani distill`.
    for mine in (b'{"dist', b'{"translation": {"en": "one", "de": "eins"}}\n', b"text"):
        output.write_bytes(mine)
        code, _, sentence = vaswani(*words, "--resume")
        is_ours = mine == b'{"dist'
        assert is_ours == (code == 0) == (output.read_bytes() == whole)
        assert is_ours or f"{output} does not begin like a file of `vaswani distill`" in sentence
        assert is_ours or output.read_bytes() == mine


def test_a_recipe_of_another_task_has_no_pairs(vaswani, teacher, tmp_path):
    (tmp_path / "texts.yaml").write_text(OTHER_TASK)
    words = ["--teacher", teacher, "--output", tmp_path / "d.jsonl"]
    code, _, sentence = vaswani("distill", tmp_path / "texts.yaml", *words)
    message = "`vaswani distill` is for recipes of `task: translation`, but `task` is causal_lm; give another recipe."
    assert (code, sentence) == (2, message)


@pytest.mark.parametrize(
    ("languages", "place", "remedy"),
    [
        (("de", "en"), ".", "exchange the source and the target (languages and files) in the recipe"),
        (("fr", "de"), "checkpoint-80", "give a recipe for the languages of the teacher"),
    ],
)
def test_a_teacher_of_other_languages_is_refused(vaswani, teacher, recipe, output, languages, remedy, place):
    given = [*OTHER_PAIRS, "--source_language", languages[0], "--target_language", languages[1]]
    code, _, sentence = vaswani("distill", recipe, "--teacher", teacher / place, "--output", output, *given)
    assert code == 2 and sentence == OTHERS.format(teacher / place, *map(repr, languages), remedy)
    assert not output.exists()


def test_a_teacher_of_both_directions_is_asked_for_the_second_by_its_tag(
    vaswani, teacher, recipe, output, tmp_path
):
    given = write_pairs(tmp_path / "pairs.jsonl", corpus(recipe))
    both = tmp_path / "both"
    of_both = ["--both_directions", "true", "--vocab_size", "290", "--max_steps", "60", "--output_dir", both]
    assert vaswani("train", recipe, *given, *of_both)[0] == 0
    turned = ["--source_language", "de", "--target_language", "en"]
    assert vaswani("distill", recipe, *given, *turned, "--teacher", both, "--output", output)[0] == 0
    sources, translator = [de for _, de in corpus(recipe)], Translator.from_pretrained(str(both), "cpu")
    found = [row["translation"] for row in rows_of(output)]
    assert [row["de"] for row in found] == sources
    translations = [row["en"] for row in found]
    assert translations == list(translator.translate(f">>en<< {source}" for source in sources))
    assert translations != list(translator.translate(sources))
    words = ["--teacher", both, teacher, "--output", tmp_path / "x.jsonl", *given, *turned]
    code, _, sentence = vaswani("distill", recipe, *words)
    assert code == 2 and sentence.startswith(f"`--teacher` '{teacher}' translates from 'en' to 'de'")


def test_a_teacher_on_the_hub_has_its_languages_with_it(vaswani, teacher, recipe, output, repo_id):
    push(str(teacher), repo_id)
    words = ["distill", recipe, "--teacher", repo_id, "--output", output]
    code, _, sentence = vaswani(*words, *OTHER_PAIRS, "--source_language", "fr")
    assert code == 2 and sentence == OTHERS.format(
        repo_id, "'fr'", "'de'", "give a recipe for the languages of the teacher"
    )
    assert vaswani(*words, "--numbers_train_size", "5")[0] == 0
    assert rows_of(words[-1])[0]["distillation"]["teachers"] == [repo_id]


def test_a_teacher_does_not_sample(vaswani, teacher, recipe, output, tmp_path):
    sampler = Path(shutil.copytree(teacher, tmp_path / "sampler"))
    path = sampler / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"do_sample": True, "temperature": 9.0}))
    words = ["distill", recipe, "--teacher", sampler, "--output", output, "--numbers_train_size", 9]
    assert vaswani(*words)[0] == 0
    sources, targets = zip(*read_back(recipe, output), strict=True)
    assert list(targets) == list(Translator.from_pretrained(str(teacher), "cpu").translate(sources))


def test_a_teacher_without_a_record_is_taken(vaswani, teacher, recipe, output, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(teacher, bare)
    (bare / "recipe.yaml").unlink()
    (tmp_path / "pairs.jsonl").write_text('{"fr": "un", "de": "eins"}\n')
    options = ["--corpus", "null", "--train_pairs", tmp_path / "pairs.jsonl", "--source_language", "fr"]
    assert vaswani("distill", recipe, "--teacher", bare, "--output", output, *options)[0] == 0
    assert rows_of(output)[0]["translation"].keys() == {"fr", "de"}


# The first words of the message for each command line.
REFUSED = {
    "--output x.txt": "`--output` must end in .jsonl, but is x.txt; `--train_pairs` recognises JSON lines by this ending.",
    "--output there.jsonl": "`--output` must be a new file, but there.jsonl exists; continue it with `--resume` or",
    "--output there.jsonl --resume": "`--resume` continues a file that `vaswani distill` wrote, but there",
    "--output train-2.jsonl --corpus null --train_pairs a.jsonl,./train-*.jsonl": (
        "`--output` must not be a file of `--train_pairs`, but train-2.jsonl is one of the files ./train-*.jsonl."
    ),
    "--target_language en --corpus null --train_source a.en --train_target a.de": (
        "`data.source_language` and `data.target_language` are both 'en', but the languages name the two sides of a pair"
    ),
    "--teacher there ./there": "`--teacher` names ./there twice; name it once.",
    "--teacher no/at/all": "`--teacher` must be a checkpoint folder or user/name on the Hub, but there is no folder 'no/at/all'; check the name.",
    "--teacher there": "`--teacher` must be a translation model, but 'there' has `task: causal_lm`; give another",
    "--teacher recipe.yaml --engine ctranslate2": "`model` must be a folder that `vaswani export ",
    "--teacher a b --engine ctranslate2": "`--teacher` must be one model with `--engine ctranslate2`, but is 2 models; give one",
    "--corpus null --train_pairs gone.jsonl": "`data`, train split: `train_pairs` must be an existing ",
    "--num_return_sequences 9": "`num_return_sequences` must be at most `num_beams`, which is 4, but is 9.",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_is_refused(vaswani, teacher, recipe, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    there = '{"translation": {"en": "one", "de": "eins"}}\n'
    Path("there.jsonl").write_text(there)
    Path("there").mkdir()
    Path("there", "recipe.yaml").write_text(OTHER_TASK)
    given = ["recipe.yaml"]
    for option, value in (("--output", "new.jsonl"), ("--teacher", str(teacher))):
        if option not in words:
            given += [option, value]
    code, _, found = vaswani("distill", *given, *words.split())
    assert code == 2 and found.startswith(REFUSED[words])
    assert {path.name for path in tmp_path.iterdir()} == {"recipe.yaml", "there", "there.jsonl"}
    assert Path("there.jsonl").read_text() == there


def test_ctranslate2_gives_the_same_pairs_and_knows_its_languages(vaswani, teacher, recipe, tmp_path):
    pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install '.[ctranslate2]'")
    exported, outputs = tmp_path / "exported", [tmp_path / "torch.jsonl", tmp_path / "ctranslate2.jsonl"]
    export(teacher, exported, "ctranslate2")
    assert str(teacher) not in (exported / "recipe.yaml").read_text()
    for model, output in zip((teacher, exported), outputs, strict=True):
        engine = output.stem
        words = ["distill", recipe, "--teacher", model, "--engine", engine, "--output", output]
        assert vaswani(*words, "--num_return_sequences", "2")[0] == 0
    assert read_back(recipe, outputs[0]) == read_back(recipe, outputs[1])
    code, _, sentence = vaswani(*words[:-1], tmp_path / "x.jsonl", *OTHER_PAIRS, "--source_language", "fr")
    assert code == 2 and sentence == OTHERS.format(
        exported, "'fr'", "'de'", "give a recipe for the languages of the teacher"
    )


def test_the_recipe_of_the_student():
    given = ["--train_pairs", "distilled.jsonl"]
    folder = ROOT / "configuration"
    base, student = (load_recipe(folder / f"multi30k_en_de{kind}.yaml", given) for kind in ("", "_student"))
    assert (student.model.encoder_layers, student.model.decoder_layers) == (12, 1)
    assert student.data == base.data and student.output_dir != base.output_dir
