"""`vaswani train --help-keys` and `--help-key`."""

import re

import pytest

from vaswani_hf.cli import main
from vaswani_hf.cli.recipe_keys import describe_all_keys, describe_key


def printed(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["train", *words])
    out, error = capsys.readouterr()
    return ended.value.code, out, error


@pytest.mark.parametrize("name", ["training.warmup_steps", "warmup_steps"])
def test_one_key(capsys, name):
    code, out, _ = printed(capsys, "--help-key", name)
    assert code == 0
    facts = dict(line.strip().split(maxsplit=1) for line in out.splitlines()[1:6])
    assert out.startswith("training.warmup_steps\n")
    assert facts == {
        "type": "integer",
        "default": "4000",
        "unit": "steps",
        "range": "above 0",
        "meaning": "The number of steps in which the learning rate rises (warm-up).",
    }


def test_all_keys(capsys):
    code, out, _ = printed(capsys, "--help-keys")
    assert (code, out) == (0, describe_all_keys() + "\n")
    assert "\n\ntraining.warmup_steps  (integer; default: 4000; unit: steps; range: above 0)\n" in out
    assert "\n\nmodel.d_model  (" in out
    # The output leaves out the default, unit or range if a key has none.
    assert not re.search(r"(default|unit|range): [;)]", out)


def test_keys_of_several_sections_are_all_described():
    assert [block.split("\n")[0] for block in describe_key("max_length").split("\n\n")] == [
        "data.max_length",
        "decoding.max_length",
    ]
