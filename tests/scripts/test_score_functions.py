"""The comparison of score functions: what it measures is what the formulas say."""

import json
import math

import pytest

from vaswani_hf.model.configuration_vaswani import ATTENTION_SCORES


@pytest.fixture
def functions(script):
    return script("score_functions")


def test_unscaled_scores_spread_with_the_width_and_saturate_the_softmax(functions, tmp_path, capsys):
    rows = functions.compare_scaling(tmp_path)
    assert (tmp_path / "scaling.png").stat().st_size > 10_000
    for score, power in (("dot", 0.5), ("scaled_dot", 0.0), ("dot_mean", -0.5)):
        for width, row in zip(functions.WIDTHS, rows[score], strict=True):
            assert row["deviation"] == pytest.approx(width**power, rel=0.15)
    even = math.log(functions.NUM_KEYS)
    assert (
        rows["dot"][-1]["entropy"]
        < 0.05 * even
        < 0.85 * even
        < rows["scaled_dot"][-1]["entropy"]
        < 0.9 * even
    )
    assert rows["dot_mean"][-1]["entropy"] > 0.999 * even
    # Gradients die with large scores, and stay with scaled ones.
    assert rows["dot"][-1]["gradient"] < 0.25 * rows["dot"][2]["gradient"]
    assert rows["scaled_dot"][-1]["gradient"] == pytest.approx(rows["scaled_dot"][2]["gradient"], rel=0.1)
    assert "entropy of weights" in capsys.readouterr().out


def test_the_table_has_what_a_run_has_found(functions, python, tmp_path, capfd, monkeypatch):
    text = functions.RECIPE.read_text(encoding="utf-8")
    monkeypatch.setattr(functions.sys, "executable", python)
    shorter = "num_beams: 1\n  max_length_a: 0\n  max_length_b: 2"
    for old, new in (("30000", "300"), ("d_model: 128", "d_model: 32"), ("num_beams: 4", shorter)):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(functions, "RECIPE", tmp_path / "recipe.yaml")
    arguments = ["--output", str(tmp_path), "--scores", "additive", "--repetitions", "2", "--max_steps", "2"]
    functions.main(["training", *arguments])
    config = json.loads((tmp_path / "additive" / "config.json").read_text(encoding="utf-8"))
    results = json.loads((tmp_path / "additive" / "results.json").read_text(encoding="utf-8"))
    assert config["attention_score"] == "additive" and results["training"]["steps"] == 2
    (line,) = [line for line in capfd.readouterr().out.splitlines() if line.startswith("| `additive` |")]
    assert "v tanh(W q + U k)" in line and f"| {results['test']['exact_match']:.1f} % |" in line
    assert set(functions.SOURCES) == set(ATTENTION_SCORES)
