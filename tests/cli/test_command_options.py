"""The command line that is made from the classes of options, and the generated page of all options."""

import dataclasses
import importlib.util
from pathlib import Path

import pytest

from vaswani_hf.cli import COMMANDS, CommandParser, add_options, main, normalised
from vaswani_hf.cli.options import Options, on_command_line
from vaswani_hf.model.generation_vaswani import SearchSettings
from vaswani_hf.model.translator_vaswani import TranslationOptions

ROOT = Path(__file__).parents[2]


class _Example(Options):
    place: str = on_command_line(positional=True)
    """a place"""
    more_places: list[str] = []
    """more"""
    is_set: bool = False
    """a switch of 100 %"""
    number: int | None = None
    """a number"""
    share: float = 0.5
    """a share"""


def parse(*words: str) -> Options:
    parser = CommandParser(prog="example")
    add_options(parser, _Example)
    values = vars(parser.parse_args(normalised(words, _Example)))
    return _Example.of_command_line(values)


def test_words_become_the_values_of_a_class():
    options = parse("here", "--more_places", "a", "b", "--number", "3", "--share=1")
    assert options == _Example(place="here", more_places=["a", "b"], number=3, share=1.0)
    assert options.given() == {"place": "here", "more_places": ["a", "b"], "number": 3, "share": 1.0}


@pytest.mark.parametrize(
    ("words", "is_set"),
    [
        (["here", "--is_set"], True),
        (["--is_set", "here"], True),
        (["--is-set", "TRUE", "here"], True),
        (["--is_set", "false", "here"], False),
        (["here", "--is_set=false"], False),
        (["here"], False),
    ],
)
def test_a_switch_needs_no_value_and_takes_no_word_that_is_none(words, is_set):
    assert parse(*words) == _Example(place="here", is_set=is_set)


def test_the_help_has_descriptions_and_defaults(capsys):
    with pytest.raises(SystemExit) as ended:
        parse("--help")
    out = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    assert "a switch of 100 %" in out and "a share (0.5)" in out and "--is_set [true|false]" in out


MISTYPED = {
    "translate m --foo": "there is no option --foo; the nearest one is --format",
    "translate": "the following arguments are required: model",
    "score m --source=x": "the following arguments are required: --target",
    "export m x y --format onnx": "there is no argument 'y' to take",
    "translate m --json=maybe": "argument --json: must be true or false, but is 'maybe'",
}


@pytest.mark.parametrize("words", MISTYPED)
def test_words_that_fit_no_option_end_with_a_sentence_and_the_way_to_the_help(capsys, words):
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    name, said = words.split()[0], capsys.readouterr().err
    assert said.startswith(f"vaswani {name}: {MISTYPED[words]}") and said.endswith(
        f"; see vaswani {name} --help\n"
    )


def test_a_word_that_is_no_command_is_answered_by_all_commands(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["tranlsate"])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1
    assert all(name in said for name in COMMANDS)


IMPOSSIBLE = {
    "plan r.yaml --hardware P100 --tokens_per_second 3": "`--hardware` and `--tokens_per_second` ",
    "average a b --last 2 --output c": "`--last` and `--best` choose from one run, but 2 ",
    "average a --output c": "`checkpoints` must be two or more, or one run with `--last` or `--best`",
    "average a --metric bleu --output c": "`--metric bleu` is for `--best`, which is not given",
    "translate m --num_beams two": "`--num_beams` must be an integer, but is 'two'.",
    "translate m --dtype int4": "`--dtype` must be 'float32', 'bfloat16', 'float16' or 'auto', but is ",
}


@pytest.mark.parametrize("words", IMPOSSIBLE)
def test_impossible_values_are_one_sentence(vaswani, words):
    code, out, said = vaswani(*words.split())
    assert (code, out) == (1, "") and said.startswith(IMPOSSIBLE[words])


def test_translate_has_every_option_of_a_translation():
    declared = [
        field
        for kind in (SearchSettings, TranslationOptions)
        for field in dataclasses.fields(kind)
        if field.metadata["command_line"]
    ]
    found = COMMANDS["translate"].options.command_line()
    assert len(declared) >= 18
    for field in declared:
        assert found[field.name].description == field.metadata["help"]


def test_the_page_of_all_options_is_up_to_date():
    path = ROOT / "scripts" / "reference" / "command_reference.py"
    spec = importlib.util.spec_from_file_location("command_reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert page == module.command_reference(), "Run: python scripts/command_reference.py > docs/commands.md"
