"""The script that compares variations of a recipe: what it trains, what it scores on, how it goes on, what it says."""

import json
import shutil
from pathlib import Path

import pytest

from vaswani_hf.data.toy_corpora import number_pairs
from vaswani_hf.evaluation.evaluate import evaluate
from vaswani_hf.training.run import InterruptedRunError
from vaswani_hf.translation.translator import Translator

ROOT = Path(__file__).parents[2]

RECIPE = """
output_dir: nowhere
data: {source_language: en, target_language: de, max_length: 64}
tokenizer: {vocab_size: 300}
model: {d_model: 16, encoder_layers: 1, decoder_layers: 1, encoder_attention_heads: 2, decoder_attention_heads: 2,
        encoder_ffn_dim: 32, decoder_ffn_dim: 32}
training:
  {bf16: false,
   max_steps: 4, source_tokens_per_batch: 512, target_tokens_per_batch: 512, eval_steps: 2, save_steps: 2,
   logging_steps: 2, lr_scheduler_type: constant, learning_rate: 0.01}
decoding: {num_beams: 2}
"""

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
    folder = tmp_path_factory.mktemp("ablation")
    for name, (first, number) in {"train": (0, 200), "validation": (200, 20), "test": (300, 5)}.items():
        pairs = number_pairs(400, 1, "train")[first : first + number]
        for side in ("source", "target"):
            (folder / f"{name}.{side}").write_text("".join(pair[side] + "\n" for pair in pairs))
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "list.yaml").write_text(LIST)
    return folder


@pytest.fixture(scope="module")
def words(folder):
    files = [
        (f"--{split}_{side}", folder / f"{split}.{side}")
        for split in ("train", "validation", "test")
        for side in ("source", "target")
    ]
    return [str(folder / "list.yaml"), str(folder / "runs"), *[str(word) for pair in files for word in pair]]


@pytest.fixture(scope="module")
def first_time(ablation, words):
    return ablation.main(words)


def test_runs_that_cannot_be_leave_the_others_alone(first_time, folder):
    assert first_time == 1
    lines = (folder / "runs" / "list.md").read_text().split("\n")
    assert [line.split(" | ")[0] for line in lines[2:6]] == [
        "| plain",
        "| simcut",
        "| impossible",
        "| further",
    ]
    assert "| seed 2, simcut_alpha 3.0, ema_decay 0.5 |" in lines[3]
    assert "has not ended: `training.report_to`" in lines[4]
    assert "init_from simcut" in lines[5] and "max_steps 2" in lines[5]
    assert (folder / "runs" / "list.png").read_bytes().startswith(b"\x89PNG")


def test_scores_are_those_of_the_validation_split_with_the_recipe_s_search(first_time, folder):
    texts = [(folder / f"validation.{side}").read_text().splitlines() for side in ("source", "target")]
    run = folder / "runs" / "simcut"
    scores = evaluate(Translator.from_pretrained(str(run), "cpu"), *texts, num_beams=2)
    result = json.loads((run / "results.json").read_text())["test"]
    assert (result["sentences"], result["chrf"]) == (20, pytest.approx(scores["chrf"]))
    assert f"| {scores['chrf']:.2f} |" in (folder / "runs" / "list.md").read_text().split("\n")[3]


def test_the_second_time_trains_nothing_again(first_time, ablation, words, folder, capsys):
    table = (folder / "runs" / "list.md").read_text()
    weights = (folder / "runs" / "plain" / "model.safetensors").stat().st_mtime_ns
    assert ablation.main(words) == 1
    assert (folder / "runs" / "list.md").read_text() == table
    assert capsys.readouterr().out == table
    assert (folder / "runs" / "plain" / "model.safetensors").stat().st_mtime_ns == weights


def test_results_of_another_search_are_not_shown_as_those_of_this_one(
    first_time, ablation, words, folder, tmp_path, monkeypatch
):
    output = shutil.copytree(folder / "runs", tmp_path / "runs")

    def interrupted(recipe):
        raise InterruptedRunError("A signal ended the run.")

    monkeypatch.setattr(ablation, "train", interrupted)
    recipes = ablation.planned_runs(Path(words[0]), output, [*words[2:], "--num_beams", "1"])
    with pytest.raises(InterruptedRunError):
        ablation.run_all(recipes, output, "list")
    monkeypatch.setattr(ablation, "train", lambda recipe: {"training": {}})
    shown = []
    monkeypatch.setattr(ablation, "table", lambda recipes, results: shown.append([*results]) or [""])
    monkeypatch.setattr(ablation, "draw", lambda *_: None)
    ablation.run_all(recipes, output, "list")
    assert shown[0] == ["plain"]


def test_an_interrupted_list_goes_on_where_it_was(ablation, words, folder, tmp_path, monkeypatch):
    words = [words[0], str(tmp_path / "runs"), *words[2:]]
    train, started = ablation.train, []

    def interrupted(recipe):
        started.append(Path(recipe.output_dir).name)
        if len(started) == 2:
            raise InterruptedRunError("A signal ended the run.")
        return train(recipe)

    monkeypatch.setattr(ablation, "train", interrupted)
    assert ablation.main(words) == 130
    assert started == ["plain", "simcut"]
    assert (tmp_path / "runs" / "list.md").read_text().count("\n| ") == 1
    monkeypatch.setattr(ablation, "train", train)
    assert ablation.main(words) == 1
    assert (tmp_path / "runs" / "further" / "results.json").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("runs: [", "is no YAML"),
        ("runs: {a: {}}", "must have the keys `recipe`, a file, `runs`"),
        (
            "recipe: recipe.yaml\nruns: {../a: {}}",
            "must have a name for its folder, as text, and a mapping of keys, but has '../a'",
        ),
        ("recipe: recipe.yaml\nruns: {a: 3}", "but has 'a': 3"),
        ("recipe: recipe.yaml\nruns: {2017: {}}", "as text, and a mapping of keys, but has 2017"),
        ("recipe: recipe.yaml\nruns: {}", "must name at least one run, but is empty"),
        ("recipe: recipe.yaml\nruns: {a: {}, a: {}}", "`a` stands twice"),
        ("recipe: recipe.yaml\nruns: {a: {init_from: b}, b: {}}", "`init_from: b` is a run that comes later"),
        (
            "recipe: recipe.yaml\nruns: {a: {init_from: 'no|where'}}",
            "`init_from: no|where` must be a run of the list",
        ),
        (
            "recipe: recipe.yaml\nruns: {a: {simcut_alfa: 3}}",
            "The run `a` in '{}': `--simcut_alfa` is no key",
        ),
        ("recipe: recipe.yaml\nruns: {a: {simcut_alpha: 3, r_drop_alpha: 1}}", "turn on two regularisers"),
        (
            "recipe: texts.yaml\nruns: {a: {}}",
            "runs are compared by BLEU, which `task: causal_lm` has none of; list recipes of translation.",
        ),
        ("recipe: missing.yaml\nruns: {a: {}}", "missing.yaml' cannot be read"),
    ],
)
def test_a_list_that_cannot_be_is_refused_before_anything_is_trained(
    ablation, words, folder, tmp_path, content, sentence, capsys
):
    path = folder / "bad.yaml"
    path.write_text(content)
    (folder / "texts.yaml").write_text(
        "output_dir: x\ntask: causal_lm\ndata: {language: en, corpus: numbers}\ntraining: {max_steps: 2}\n"
    )
    given = words[2:] if "texts" not in content else []
    assert ablation.main([str(path), str(tmp_path / "runs"), *given]) == 1
    said = capsys.readouterr().err
    assert sentence.replace("{}", str(path)) in said and said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_the_command_line_takes_the_place_of_what_holds_for_all_and_not_of_what_a_run_tries(
    ablation, words, folder, tmp_path
):
    path = folder / "two.yaml"
    path.write_text(
        "recipe: recipe.yaml\nall: {seed: 3, max_steps: 2}\nruns: {plain: {}, dropout: {dropout: 0.3}}"
    )
    recipes = ablation.planned_runs(path, tmp_path / "runs", [*words[2:], "--seed", "4", "--max_steps=6"])
    assert [(recipe.seed, recipe.training.max_steps) for recipe in recipes.values()] == [(4, 6), (4, 6)]
    with pytest.raises(
        ValueError, match="The run `dropout` in .*`--dropout` is given twice; keep one of them"
    ):
        ablation.planned_runs(path, tmp_path / "runs", [*words[2:], "--dropout", "0.1"])


def test_a_first_run_of_another_shape_or_beginning_is_told_from_the_others(ablation, words, folder, tmp_path):
    (folder / "base").mkdir()
    path = folder / "shapes.yaml"
    path.write_text(
        f"recipe: recipe.yaml\nruns: {{wide: {{d_k: 16, init_from: {folder / 'base'}}}, plain: {{}}, deep: {{d_v: 4}}}}"
    )
    recipes = ablation.planned_runs(path, tmp_path / "runs", words[2:])
    said = [ablation.changes(recipe, recipes["wide"]) for recipe in recipes.values()]
    assert [set(words.split(", ")) for words in said] == [
        {""},
        {"d_k null", "init_from null"},
        {"d_k null", "d_v 4", "init_from null"},
    ]
    assert ablation.changes(recipes["wide"], recipes["plain"]) == "init_from base, d_k 16"


def test_a_relative_output_is_no_repository(ablation, words, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = folder / "relative.yaml"
    path.write_text("recipe: recipe.yaml\nruns: {first: {}, second: {init_from: first}}")
    recipes = ablation.planned_runs(path, Path("runs"), words[2:])
    assert not any(ablation._has_ended(recipe) for recipe in recipes.values())


def test_parts_of_other_models_are_begun_with(ablation, words, folder, tmp_path):
    (folder / "part").mkdir()
    text = RECIPE.replace("model: {", f"model: {{init_from: {{encoder: {folder / 'part'}}}, ")
    (folder / "parts.yaml").write_text(text)
    path = folder / "of_parts.yaml"
    path.write_text("recipe: parts.yaml\nruns: {plain: {}}")
    recipe = ablation.planned_runs(path, tmp_path / "runs", words[2:])["plain"]
    assert recipe.model.init_from.by_stack() == {"encoder": str(folder / "part")}
    path.write_text("recipe: recipe.yaml\nruns: {first: {}, second: {init_from: {decoder: first}}}")
    recipe = ablation.planned_runs(path, tmp_path / "runs", words[2:])["second"]
    assert recipe.model.init_from.by_stack() == {"decoder": str(tmp_path / "runs" / "first")}


def test_runs_without_validation_cannot_be_compared(ablation, words, tmp_path, capsys):
    assert ablation.main([words[0], str(tmp_path / "runs"), *words[2:6]]) == 1
    assert (
        "`data.validation_source` and `data.validation_target`, which runs are compared by, must be given"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configuration" / "ablations").glob("*.yaml")), ids=lambda path: path.stem
)
def test_each_list_of_the_project_can_be_run(ablation, words, path, tmp_path):
    recipes = ablation.planned_runs(path, tmp_path, words[2:])
    assert len(recipes) > 1
    assert len(
        {ablation.changes(recipe, next(iter(recipes.values()))) for recipe in recipes.values()}
    ) == len(recipes)


def test_a_run_that_was_another_one_earlier_is_refused_before_anything_is_trained(
    first_time, ablation, words, folder, capsys
):
    path, table = folder / "other.yaml", (folder / "runs" / "list.md").read_text()
    path.write_text(
        LIST.replace("plain: {}", "plain: {}\n  new: {}").replace("simcut_alpha: 3.0", "simcut_alpha: 2.0")
    )
    assert ablation.main([str(path), *words[1:]]) == 1
    assert "The run `simcut` in" in (said := capsys.readouterr().err) and "simcut_alpha` is 2.0" in said
    assert not (folder / "runs" / "new").exists()
    assert (folder / "runs" / "list.md").read_text() == table
