"""The script that compares variations of a recipe: its runs, their scores, continuing a list, and errors."""

import json
from pathlib import Path

import pytest
from factories import write_recipe

from vaswani_hf.data.toy_corpora import number_pairs
from vaswani_hf.evaluation.evaluate import evaluate
from vaswani_hf.training.run import InterruptedRunError
from vaswani_hf.translation.translator import Translator

TRAINING = {
    "max_steps": 4,
    "eval_steps": 2,
    "save_steps": 2,
    "lr_scheduler_type": "constant",
    "learning_rate": 0.01,
}
ROOT = Path(__file__).parents[2]
LIST = """
recipe: recipe.yaml
all: {seed: 3}
runs:
  plain: {}
  simcut: {simcut_alpha: 3.0, ema_decay: 0.5, seed: 2}
  impossible: {report_to: nothing_of_this_name}
  further: {init_from: simcut, max_steps: 2}
"""


@pytest.fixture(scope="module")
def ablation(script):
    return script("ablation")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a list, its recipe and the texts of the recipe."""
    folder = tmp_path_factory.mktemp("ablation")
    data = {"source_language": "en", "target_language": "de", "max_length": 64}
    pairs = number_pairs(400, 1, "train")
    for split, part in {"train": pairs[:200], "validation": pairs[200:220], "test": pairs[300:305]}.items():
        for side in ("source", "target"):
            data[f"{split}_{side}"] = str(folder / f"{split}.{side}")
            (folder / f"{split}.{side}").write_text("".join(pair[side] + "\n" for pair in part))
    changes = {f"training.{key}": value for key, value in TRAINING.items()}
    write_recipe(folder / "recipe.yaml", {**changes, "decoding.max_length": None}, data=data)
    (folder / "list.yaml").write_text(LIST)
    return folder


@pytest.fixture(scope="module")
def words(folder):
    return [str(folder / "list.yaml"), str(folder / "runs")]


@pytest.fixture(scope="module")
def first_time(ablation, words):
    return ablation.main(words)


def test_a_failed_run_does_not_stop_the_other_runs(first_time, folder):
    assert first_time == 1
    lines = (folder / "runs" / "list.md").read_text().split("\n")
    names = [line.split(" | ")[0].strip("| ") for line in lines[2:6]]
    assert names == ["plain", "simcut", "impossible", "further"]
    assert "| seed 2, simcut_alpha 3.0, ema_decay 0.5 |" in lines[3]
    assert "failed: `training.report_to`" in lines[4]
    assert "init_from simcut" in lines[5] and "max_steps 2" in lines[5]
    assert (folder / "runs" / "list.png").read_bytes().startswith(b"\x89PNG")


def test_scores_are_those_of_the_validation_split_with_the_search_of_the_recipe(first_time, folder):
    texts = [(folder / f"validation.{side}").read_text().splitlines() for side in ("source", "target")]
    run = folder / "runs" / "simcut"
    scores = evaluate(Translator.from_pretrained(str(run), "cpu"), *texts, num_beams=2)
    result = json.loads((run / "results.json").read_text())["test"]
    assert (result["sentences"], result["chrf"]) == (20, pytest.approx(scores["chrf"]))
    assert f"| {scores['chrf']:.2f} |" in (folder / "runs" / "list.md").read_text().split("\n")[3]


def test_a_finished_run_is_not_trained_again(first_time, ablation, words, folder, capsys):
    table = (folder / "runs" / "list.md").read_text()
    weights = (folder / "runs" / "plain" / "model.safetensors").stat().st_mtime_ns
    assert ablation.main(words) == 1
    assert (folder / "runs" / "list.md").read_text() == table == capsys.readouterr().out
    assert (folder / "runs" / "plain" / "model.safetensors").stat().st_mtime_ns == weights


def test_an_interrupted_list_is_continued(ablation, words, tmp_path, monkeypatch):
    words = [words[0], str(tmp_path / "runs")]
    started = []

    def interrupted(recipe):
        started.append(Path(recipe.output_dir).name)
        raise InterruptedRunError("A signal ended the run.")

    with monkeypatch.context() as patch:
        patch.setattr(ablation, "train", interrupted)
        assert ablation.main(words) == 130
    assert started == ["plain"]
    assert ablation.main(words) == 1
    assert (tmp_path / "runs" / "further" / "results.json").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("runs: {a: {}}", "must have the keys `recipe` (a file), `runs`"),
        ("recipe: recipe.yaml\nruns: {../a: {}}", "must have a name for its folder, as text, and a mapping"),
        ("recipe: recipe.yaml\nruns: {a: 3}", "but has 'a': 3"),
        ("recipe: recipe.yaml\nruns: {}", "must name at least one run, but is empty"),
        ("recipe: recipe.yaml\nruns: {a: {init_from: b}, b: {}}", "`init_from: b` must be an earlier run"),
        ("recipe: recipe.yaml\nruns: {a: {init_from: 'no|where'}}", "`init_from: no|where` must be a run"),
        (
            "recipe: recipe.yaml\nruns: {a: {simcut_alfa: 3}}",
            "The run `a` in '{}': `--simcut_alfa` is no key",
        ),
        ("recipe: texts.yaml\nruns: {a: {}}", "`task: causal_lm` has no BLEU; list recipes of translation."),
        (
            "recipe: numbers.yaml\nruns: {a: {}}",
            "runs are compared on the validation split; give `data.validation_source`",
        ),
    ],
)
def test_an_invalid_list_is_refused_before_the_training(ablation, folder, tmp_path, content, message, capsys):
    path = folder / "bad.yaml"
    path.write_text(content)
    text = "output_dir: x\ntask: causal_lm\ndata: {language: en, corpus: numbers}\ntraining: {max_steps: 2}\n"
    (folder / "texts.yaml").write_text(text)
    write_recipe(folder / "numbers.yaml")
    assert ablation.main([str(path), str(tmp_path / "runs")]) == 1
    said = capsys.readouterr().err
    assert message.replace("{}", str(path)) in said and said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_keys_of_the_command_line_replace_keys_of_all_runs_only(ablation, folder, tmp_path):
    path = folder / "two.yaml"
    path.write_text(
        "recipe: recipe.yaml\nall: {seed: 3, max_steps: 2}\nruns: {plain: {}, dropout: {dropout: 0.3}}"
    )
    recipes = ablation.planned_runs(path, tmp_path / "runs", ["--seed", "4", "--max_steps=6"])
    assert [(recipe.seed, recipe.training.max_steps) for recipe in recipes.values()] == [(4, 6), (4, 6)]
    with pytest.raises(ValueError, match="The run `dropout` in .*`--dropout` is given twice"):
        ablation.planned_runs(path, tmp_path / "runs", ["--dropout", "0.1"])


def test_differences_from_the_first_run_include_its_base_and_its_shape(ablation, folder, tmp_path):
    (folder / "base").mkdir()
    path = folder / "shapes.yaml"
    runs = f"{{wide: {{d_k: 16, init_from: {folder / 'base'}}}, plain: {{}}, deep: {{d_v: 4}}}}"
    path.write_text(f"recipe: recipe.yaml\nruns: {runs}")
    recipes = ablation.planned_runs(path, tmp_path / "runs", [])
    said = [ablation.changes(recipe, recipes["wide"]) for recipe in recipes.values()]
    expected = [{""}, {"d_k null", "init_from null"}, {"d_k null", "d_v 4", "init_from null"}]
    assert [set(words.split(", ")) for words in said] == expected


@pytest.mark.parametrize("name", ["multi30k_en_de", "table3_small"])
def test_each_list_of_the_project_is_valid(ablation, folder, name, tmp_path):
    path = ROOT / "configuration" / "ablations" / f"{name}.yaml"
    files = [f"--{kind}={folder / kind.replace('_', '.')}" for kind in ("train_source", "train_target")]
    files += [
        f"--{kind}={folder / kind.replace('_', '.')}" for kind in ("validation_source", "validation_target")
    ]
    recipes = ablation.planned_runs(path, tmp_path, files)
    first = next(iter(recipes.values()))
    assert len({ablation.changes(recipe, first) for recipe in recipes.values()}) == len(recipes) > 1


def test_another_run_in_the_same_folder_is_refused(first_time, ablation, words, folder, capsys):
    path = folder / "other.yaml"
    path.write_text(LIST.replace("simcut_alpha: 3.0", "simcut_alpha: 2.0"))
    assert ablation.main([str(path), words[1]]) == 1
    said = capsys.readouterr().err
    assert "The run `simcut` in" in said and "simcut_alpha` is 2.0" in said
