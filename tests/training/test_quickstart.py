"""The script at the end of `make quickstart`: examples, all numbers below 10,000, and its exit codes."""

import importlib.util
import re
from pathlib import Path

import pytest

from vaswani_hf.data.toy_corpora import english_words

ROOT = Path(__file__).parents[2]


@pytest.fixture
def quickstart():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location(
        "quickstart", ROOT / "scripts" / "examples" / "quickstart.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_translates_whatever_the_manual_translates(quickstart):
    parts = "|".join(
        {word for number in range(1000) for word in re.split("[ -]", english_words(number))} | {"thousand"}
    )
    pages = [ROOT / "README.md", ROOT / "docs" / "tutorials" / "quick_start.md"]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    quoted = {*re.split(r"[\"']|\\n", text)}
    found = {text for text in quoted if re.fullmatch(f"(?:{parts})(?:[ -](?:{parts}))*", text)}
    assert {"three hundred and twelve", "eighty thousand and seven", "seven"} <= found
    assert found <= {english_words(number) for number in quickstart.EXAMPLES}


def test_a_wrong_example_ends_it_with_a_sentence(quickstart, finished, capsys):
    with pytest.raises(SystemExit) as ended:
        quickstart.main(str(finished))
    translation = capsys.readouterr().out.splitlines()[-1].removeprefix("three hundred and twelve -> ")
    # The exit code is 1 if `SystemExit` has a message.
    assert ended.value.code == (
        f"The translation of 'three hundred and twelve' must be 'dreihundertzwölf', but is '{translation}' with '{finished}'; "
        f"remove '{finished}' and run `make quickstart` again."
    )


def test_too_many_wrong_numbers_end_it_with_a_sentence(quickstart, finished, capsys, monkeypatch):
    monkeypatch.setattr(quickstart, "EXAMPLES", ())
    monkeypatch.setattr(quickstart, "END", 12)
    with pytest.raises(SystemExit) as ended:
        quickstart.main(str(finished))
    assert ended.value.code == (
        f"At least 99.5 % of the numbers below 12 must be translated correctly, but '{finished}' translates 0.00 % correctly; "
        f"remove '{finished}' and run `make quickstart` again."
    )
    rows = re.findall(r"(\d+) numbers of length (\d), (.*): exact match 0.00 %", capsys.readouterr().out)
    assert sum(int(sentences) for sentences, *_ in rows) == 12
    assert {length for _, length, _ in rows} == {"1", "2"}
    assert {kind for *_, kind in rows} <= {"trained on", "not trained on"}
