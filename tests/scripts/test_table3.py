"""The planned rows of Table 3 agree with the manual, with the recipes, and roughly with the paper."""

import re
from pathlib import Path

import pytest

from vaswani_hf.training.recipe_model import planned_config, planned_model

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def table3(script):
    return script("table3")


@pytest.fixture(scope="module")
def rows(table3):
    return table3.planned_rows(("base", "big", "b_d_k_16", "c_n_2"))


def manual_page():
    return (ROOT / "docs" / "explanation" / "paper_experiments.md").read_text(encoding="utf-8")


def test_the_manual_has_the_rows(table3, rows):
    assert set(table3.table(rows)) <= set(manual_page().splitlines())


@pytest.mark.slow
def test_the_manual_has_what_the_script_prints(table3, capsys):
    table3.main([])
    assert capsys.readouterr().out in manual_page()


def test_each_row_has_a_recipe_that_says_the_same_of_the_paper(table3):
    assert {path.stem for path in table3.FOLDER.glob("*.yaml")} == table3.PAPER.keys()
    for name, row in table3.PAPER.items():
        text = (table3.FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
        comment = " ".join(re.findall("^# (.*)", text, flags=re.MULTILINE))
        figures = [f"perplexity {row.perplexity:.2f}", f"{row.bleu} BLEU"]
        figures += [f"{row.millions} million parameters"] if row.millions else []
        assert f"The paper reports {', '.join(figures[:-1])} and {figures[-1]}." in comment, name


def test_the_paper_s_numbers_are_near_the_plan(rows):
    for row in rows.values():
        if row.paper.millions is not None:
            assert row.millions == pytest.approx(row.paper.millions, rel=0.07)
        if row.paper.flops is not None:
            assert row.by_paper.run == pytest.approx(row.paper.flops, rel=0.08)


def parameters(row, vocab_size):
    tokenizer = row.recipe.tokenizer.replace(vocab_size=vocab_size)
    model = planned_model(planned_config(row.recipe.model, tokenizer))
    return model.num_parameters()


def test_the_classes_of_a_row_give_the_paper_s_number(rows):
    for row in rows.values():
        for classes, half in zip(row.classes or (), (-0.5, 0.5), strict=False):
            assert parameters(row, round(classes)) / 1e6 == pytest.approx(
                row.paper.millions + half, abs=0.001
            )


def test_one_vocabulary_gives_the_paper_s_parameters_of_every_row_but_big(rows):
    for name, row in rows.items():
        if row.paper.millions is not None and name != "big":
            assert round(parameters(row, 41_100) / 1e6) == row.paper.millions
