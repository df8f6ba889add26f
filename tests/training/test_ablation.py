"""`vaswani ablate`: its trainings, their scores over the seeds, continuing a list, and errors."""

import json
import statistics
from pathlib import Path

import pytest
from factories import write_recipe

from vaswani_hf.cli import main
from vaswani_hf.data.toy_corpora import number_pairs
from vaswani_hf.evaluation.evaluate import evaluate
from vaswani_hf.training import ablation, ablation_comparison
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
seeds: 2
all: {seed: 3}
runs:
  plain: {}
  simcut: {simcut_alpha: 3.0, ema_decay: 0.5}
"""
# One run that fails, and one run that starts from another run.
OTHER_LIST = """
recipe: recipe.yaml
all: {max_steps: 2}
runs:
  plain: {}
  impossible: {report_to: nothing_of_this_name}
  further: {init_from: plain, learning_rate: 0.001}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with two lists, their recipe and the texts of the recipe."""
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
    (folder / "other.yaml").write_text(OTHER_LIST)
    return folder


@pytest.fixture(scope="module")
def words(folder):
    return ["ablate", str(folder / "list.yaml"), "--output", str(folder / "runs")]


@pytest.fixture(scope="module")
def first_time(words):
    return main(words)


def test_each_run_is_trained_with_each_seed(first_time, folder):
    assert first_time == 0
    compared = json.loads((folder / "runs" / "list.json").read_text())["runs"]
    assert [run["name"] for run in compared] == ["plain", "simcut"]
    assert [run["changes"] for run in compared] == ["", "simcut_alpha 3.0, ema_decay 0.5"]
    for run in compared:
        assert [seed["seed"] for seed in run["seeds"]] == [3, 4]
        for seed in run["seeds"]:
            result = json.loads((Path(seed["folder"]) / "results.json").read_text())
            assert result["training"]["seed"] == seed["seed"] and result["test"]["chrf"] == seed["chrf"]
        for score in ("perplexity", "bleu", "chrf"):
            values = [seed[score] for seed in run["seeds"]]
            assert run["mean"][score] == pytest.approx(statistics.mean(values))
            assert run["std"][score] == pytest.approx(statistics.stdev(values))
    assert compared[0]["std"]["perplexity"] > 0
    lines = (folder / "runs" / "list.md").read_text().split("\n")
    mean, deviation = compared[1]["mean"], compared[1]["std"]
    assert lines[3].startswith("| simcut | simcut_alpha 3.0, ema_decay 0.5 | 2 of 2 | ")
    assert f" | {mean['chrf']:.2f} ± {deviation['chrf']:.2f} |" in lines[3]
    assert "± the sample standard deviation" in lines[5]
    assert (folder / "runs" / "list.png").read_bytes().startswith(b"\x89PNG")


def test_scores_are_those_of_the_validation_split_with_the_search_of_the_recipe(first_time, folder):
    texts = [(folder / f"validation.{side}").read_text().splitlines() for side in ("source", "target")]
    run = folder / "runs" / "simcut" / "seed_3"
    scores = evaluate(Translator.from_pretrained(str(run), "cpu"), *texts, num_beams=2)
    result = json.loads((run / "results.json").read_text())["test"]
    assert (result["sentences"], result["chrf"]) == (20, pytest.approx(scores["chrf"]))


def test_a_finished_training_is_not_repeated(first_time, words, folder, capsys, monkeypatch):
    written = {name: (folder / "runs" / f"list.{name}").read_text() for name in ("md", "json")}
    monkeypatch.setattr(ablation, "train", None)
    assert main(words) == 0
    assert capsys.readouterr().out == written["md"]
    assert main([*words, "--json"]) == 0
    assert capsys.readouterr().out == written["json"]
    assert (folder / "runs" / "list.md").read_text() == written["md"]


def test_a_finished_training_is_scored_on_changed_validation_texts(
    first_time, words, folder, capsys, monkeypatch
):
    path = folder / "validation.target"
    text = path.read_text()
    monkeypatch.setattr(ablation, "_write_files", lambda *args: None)
    monkeypatch.setattr(ablation, "train", lambda recipe: json.loads(results.read_text()))
    results = folder / "runs" / "plain" / "seed_3" / "results.json"
    try:
        path.write_text(text.replace("e", "a"))
        assert main(words) == 0
    finally:
        path.write_text(text)
    assert "training 1 of 4: plain, seed 3\n" in capsys.readouterr().err


def test_more_seeds_continue_a_list_and_tell_the_progress(first_time, words, capsys, monkeypatch):
    started = []

    def failing(recipe):
        started.append((recipe.folder.parts[-2:], recipe.seed))
        raise OSError("No space left.")

    monkeypatch.setattr(ablation, "train", failing)
    monkeypatch.setattr(ablation, "_write_files", lambda *args: None)
    assert main([*words, "--seeds", "3"]) == 1
    assert started == [(("plain", "seed_5"), 5), (("simcut", "seed_5"), 5)]
    said = capsys.readouterr()
    assert "training 5 of 6: plain, seed 5\n" in said.err
    assert "training 6 of 6: simcut, seed 5 (about 0.0 minutes left)\n" in said.err
    assert "2 of 6 trainings failed" in said.err
    assert "| 2 of 3 |" in said.out and "simcut, seed 5, failed: No space left." in said.out


def test_a_failed_training_does_not_stop_the_list_and_an_interrupted_list_is_continued(
    folder, tmp_path, monkeypatch, capsys
):
    words = ["ablate", str(folder / "other.yaml"), "--output", str(tmp_path / "runs")]

    def interrupted(recipe):
        raise InterruptedRunError("A signal ended the run.")

    with monkeypatch.context() as patch:
        patch.setattr(ablation, "train", interrupted)
        assert main(words) == 130
    assert "A signal ended the run. To continue the trainings, repeat the command." in capsys.readouterr().err
    assert main(words) == 1
    lines = (tmp_path / "runs" / "other.md").read_text().split("\n")
    assert lines[3].startswith("| impossible | report_to ['nothing_of_this_name'] | 0 of 1 | – |")
    assert lines[4].startswith("| further | ") and "init_from plain" in lines[4] and " ± " not in lines[4]
    assert "impossible, seed 1, failed: `training.report_to`" in "\n".join(lines)
    assert (tmp_path / "runs" / "further" / "seed_1" / "results.json").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    {
        "runs: {a: {}}": "The list '{}': `recipe` must be given, but is missing.",
        "recipe: recipe.yaml\nrun: {a: 1}": "`run` is not a key, but is set to {'a': 1}; the nearest key is `runs`",
        "recipe: recipe.yaml\nruns: {../a: {}}": "must be valid as a folder name",
        "recipe: recipe.yaml\nruns: {}": "`runs` must be",
        "recipe: recipe.yaml\nseeds: 0\nruns: {a: {}}": "`seeds` must be 1 or more, but is 0.",
        "recipe: recipe.yaml\nruns: {a: {init_from: b}, b: {}}": "`init_from: b` must be an earlier run",
        "recipe: recipe.yaml\nruns: {a: {init_from: 'no|where'}}": "`init_from: no|where` must be a run",
        "recipe: recipe.yaml\nruns: {b: {}, a: {simcut_alfa: 3}}": "The run `a` in '{}': `--simcut_alfa` is not a key",
        "recipe: recipe.yaml\nruns: {b: {}, a: {simcut_alpha: many}}": "The run `a` in '{}': `",
        "recipe: texts.yaml\nruns: {a: {}}": "`task: causal_lm` has no BLEU; list recipes of translation.",
        "recipe: numbers.yaml\nruns: {a: {}}": (
            "runs are compared on a validation split that the recipe names; give `data.validation_source`"
        ),
    }.items(),
)
def test_an_invalid_list_is_refused_before_the_training(folder, tmp_path, content, message, capsys):
    path = folder / "bad.yaml"
    path.write_text(content)
    text = "output_dir: x\ntask: causal_lm\ndata: {language: en, corpus: numbers}\ntraining: {max_steps: 2}\n"
    (folder / "texts.yaml").write_text(text)
    write_recipe(folder / "numbers.yaml")
    assert main(["ablate", str(path), "--output", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err
    assert message.replace("{}", str(path)) in said and said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_keys_of_the_command_line_replace_keys_of_all_runs_only(folder, tmp_path):
    path = folder / "two.yaml"
    path.write_text(
        "recipe: recipe.yaml\nall: {seed: 3, training.max_steps: 2}\nruns: {plain: {}, dropout: {dropout: 0.3}}"
    )
    runs = ablation.plan_runs(path, tmp_path / "runs", ["--seed", "4", "--max_steps=6", "--resume", "true"])
    for (recipe,) in runs.values():
        assert (recipe.seed, recipe.training.max_steps, recipe.training.resume) == (4, 6, True)
    sentence = "`model.dropout` must not be given as an option, because this run of the list sets `model.dropout` to 0.3; leave"
    with pytest.raises(ValueError, match=f"The run `dropout` in .*: {sentence}"):
        ablation.plan_runs(path, tmp_path / "runs", ["--dropout", "0.1"])


def test_runs_push_nothing_and_do_not_name_the_test_set(folder, tmp_path):
    publishing = "push_to_hub: true, hub_model_id: user/name, hub_strategy: checkpoint"
    path = folder / "published.yaml"
    path.write_text(
        f"recipe: recipe.yaml\nall: {{{publishing}, test_dataset: user/test}}\n"
        "runs: {plain: {test_name: 2014-02-01}}"
    )
    ((recipe,),) = ablation.plan_runs(path, tmp_path / "runs", []).values()
    assert recipe.publishing == recipe.publishing.replace(
        push_to_hub=False, hub_model_id=None, hub_strategy="end"
    )
    assert (recipe.data.test_name, recipe.data.test_dataset) == (None, None)


def test_differences_from_the_first_run_include_its_base_and_its_shape(folder, tmp_path):
    (folder / "base").mkdir()
    path = folder / "shapes.yaml"
    runs = f"{{wide: {{d_k: 16, init_from: {folder / 'base'}}}, plain: {{}}, deep: {{d_v: 4}}}}"
    path.write_text(f"recipe: recipe.yaml\nruns: {runs}")
    planned = ablation.plan_runs(path, tmp_path / "runs", [])
    said = [ablation_comparison.changes(recipe, planned["wide"][0]) for (recipe,) in planned.values()]
    expected = [{""}, {"d_k null", "init_from null"}, {"d_k null", "d_v 4", "init_from null"}]
    assert [set(words.split(", ")) for words in said] == expected


@pytest.mark.parametrize("name", ["multi30k_en_de", "table3_small"])
def test_each_list_of_the_project_is_valid(folder, name, tmp_path):
    path = ROOT / "configuration" / "ablations" / f"{name}.yaml"
    kinds = ("train_source", "train_target", "validation_source", "validation_target")
    files = [f"--{kind}={folder / kind.replace('_', '.')}" for kind in kinds]
    runs = ablation.plan_runs(path, tmp_path, files)
    (first,), *_ = runs.values()
    assert len({ablation_comparison.changes(recipe, first) for (recipe,) in runs.values()}) == len(runs) > 1


def test_another_run_in_the_same_folder_is_refused(first_time, words, folder, capsys):
    path = folder / "changed.yaml"
    path.write_text(LIST.replace("simcut_alpha: 3.0", "simcut_alpha: 2.0"))
    assert main(["ablate", str(path), *words[2:]]) == 2
    said = capsys.readouterr().err
    assert "The run `simcut` in" in said and "simcut_alpha` is 2.0" in said
