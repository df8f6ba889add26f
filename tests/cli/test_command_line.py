"""The command line that is made from the classes of options, the page of all options, and where the commands
write.
"""

import contextlib
import dataclasses
import io
import logging
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from unittest.mock import Mock

import pytest
from factories import files_in
from sentences import rows
from transformers.utils import logging as transformers_logging

import vaswani_hf
from vaswani_hf.checkpoint.locks import InUseError
from vaswani_hf.cli import COMMANDS, main
from vaswani_hf.cli.arguments import (
    CommandParser,
    add_options,
    make_parser,
    normalised,
    option_of,
    parse_words,
    type_of_field,
)
from vaswani_hf.cli.certify import CertifyOptions
from vaswani_hf.cli.options import Options, on_command_line
from vaswani_hf.cli.output import LineOutput, check_output, output_file
from vaswani_hf.cli.recipe_keys import read_keys
from vaswani_hf.cli.train import RecipeOptions
from vaswani_hf.cli.translate import TranslateOptions
from vaswani_hf.messages import say
from vaswani_hf.model.checks_vaswani import union_members
from vaswani_hf.model.glossary_vaswani import Glossary
from vaswani_hf.model.inputs_vaswani import SearchSettings, TranslationOptions
from vaswani_hf.model.precedence_vaswani import DEFAULT_SEARCH
from vaswani_hf.settings.base import properties_of
from vaswani_hf.version import __version__

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
    return _Example.load(values, "--")


def test_words_become_the_values_of_a_class():
    options = parse("here", "--more_places", "a", "b", "--more_places", "c", "--number", "3", "--share=1")
    expected = {"place": "here", "more_places": ["a", "b", "c"], "number": 3, "share": 1.0}
    assert options.model_dump(exclude_unset=True) == expected


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
    "translate m --foo": "there is no option --foo; see",
    "translate m --num_b 3": "there is no option --num_b; the most similar name is --num_beams; see",
    "translate m --beam-size 3": "there is no option --beam_size; the most similar name is --num_beams; see",
    "translate m --batch_size 3": "there is no option --batch_size; the most similar name is --tokens_per_batch; see",
    "train numbers --lr 1": "there is no option or recipe key --lr; the most similar name is --learning_rate; see",
    "train numbers --help-key d_ff": "`d_ff` is not a key of a recipe; the nearest key is `encoder_ffn_dim`; see",
    "train numbers --help-key zzz": "`zzz` is not a key of a recipe; `--help-keys` describes all keys; see",
    "train numbers --gpus 1": "there is no option or recipe key --gpus; use CUDA_VISIBLE_DEVICES to choose GPUs",
    "translate": "the following arguments are required: model",
    "score m --source=x": "the following arguments are required: --target",
    "export m x y --format onnx": "the argument 'y' is not expected",
    "evaluate m --source a --reference b --reference c": "--reference is given twice; give it once; see",
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tranlate"], "there is no command 'tranlate'; the most similar command is translate; see"),
        (["fly"], "there is no command 'fly'; see vaswani --help"),
        ([], "the first argument must be a command; see vaswani --help"),
    ],
)
def test_a_word_that_is_no_command_is_answered_by_a_similar_command(capsys, words, message):
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1 and said.startswith(f"vaswani: {message}")


IMPOSSIBLE = {
    "ablate no.yaml --output c": "`runs` must be an existing file, but is no.yaml.",
    "recipes numbers --json": "Only one of `name`, `--json` and `--folder` can be given; ",
    "translate m --num_beams two": "`--num_beams` must be a positive integer, but is 'two'.",
    "translate m --dtype int4": "`--dtype` must be 'float32', 'bfloat16', 'float16' or 'auto', but is ",
}


@pytest.mark.parametrize("words", IMPOSSIBLE)
def test_impossible_values_are_one_sentence(vaswani, words):
    code, out, said = vaswani(*words.split())
    assert (code, out) == (2, "") and said.startswith(IMPOSSIBLE[words])


def test_the_arguments_are_checked_before_torch_is_imported():
    code = """
import sys
sys.argv = ["vaswani"]
from vaswani_hf.cli import main
for words in (["--help"], ["--bad"], ["translate", "--help"], ["translate", "m", "--bad"], ["train", "no.yaml"],
              ["score", "m", "--source", "no", "--target", "no"]):
    try:
        main(words)
    except SystemExit:
        pass
slow = {"torch", "transformers", "datasets", "huggingface_hub", "numpy", "matplotlib", "filelock"}
sys.exit(", ".join(slow & sys.modules.keys()) or None)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "`--source` must be an existing file, but is no." in done.stderr
    assert "`recipe` must be an existing file or the name of a recipe, but is no.yaml; " in done.stderr


@pytest.mark.parametrize(("words", "is_command"), [([], True), (["--multiprocessing-fork"], False)])
def test_a_worker_process_registers_the_models_before_it_imports_transformers(monkeypatch, words, is_command):
    monkeypatch.setattr(sys, "argv", ["/bin/vaswani", "translate"])
    monkeypatch.setattr(sys, "orig_argv", ["python", *words])
    assert vaswani_hf._is_command() == is_command


def test_a_name_has_one_meaning_in_all_commands_and_recipe_keys():
    """An option has the same kind in all commands and recipe keys: a switch, one value, or several values."""
    kinds = {}
    for name, command in COMMANDS.items():
        for field_name, field in command.options.command_line().items():
            if not properties_of(field).get("positional"):
                kind = type_of_field(field)
                kinds.setdefault(option_of(field_name, field), {})[name] = kind is bool
    for place, key in read_keys().items():
        kinds.setdefault(f"--{key.key}", {})[place] = key.is_boolean
    assert {option: of for option, of in kinds.items() if len(set(of.values())) > 1} == {}
    assert [name for name, of in kinds.items() if name == "--text" and "evaluate" in of] == []


def test_several_processes_translate_on_the_cpu():
    for num_workers, device in ((1, None), (2, "cpu")):
        values = {"model": "m", "text": "a", "workers": num_workers}
        options = TranslateOptions.load(values, "--")
        assert options.translator_loader("m", []).args == ("m", device)


def test_a_boolean_recipe_key_needs_no_value():
    given = "--resume --lowercase false --bf16 auto --model.final_norm null --early_stopping never --bf16"
    words = normalised(given.split(), RecipeOptions, read_keys())
    assert words == given.replace("--resume", "--resume=true").split()[:-1] + ["--bf16=true"]


def test_quiet_and_verbose_are_for_every_command():
    for name, command in COMMANDS.items():
        text = make_parser(name, command).format_help()
        # Python 3.13 prints the values once.
        assert (
            re.search(r"-v( \[true\|false\])?, --verbose \[true\|false\]", text) and command.example in text
        )
        assert not any(
            group.title == "optional arguments" for group in make_parser(name, command)._action_groups
        )


@pytest.mark.parametrize(
    ("words", "verbosity"),
    [
        ("-q m", -1),
        ("--quiet m", -1),
        ("--quiet true m", -1),
        ("--quiet=false m", 0),
        ("m -v", 1),
        ("--verbose m", 1),
        ("-q -v m", 0),
    ],
)
def test_a_flag_takes_no_other_word_as_its_value(words, verbosity):
    assert parse_words("translate", COMMANDS["translate"], words.split()) == ({"model": "m"}, verbosity)


def test_quiet_shows_warnings_of_python(vaswani, monkeypatch, caplog):
    def run(options):
        warnings.warn("A warning of a library.", stacklevel=1)

    monkeypatch.setitem(COMMANDS, "env", COMMANDS["env"]._replace(run=run))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert vaswani("env", "-q")[0] == 0
    assert "A warning of a library." in caplog.text


@pytest.mark.parametrize(("flag", "is_said"), [("-v", True), ("-q", False)])
def test_quiet_hides_messages_and_keeps_results_and_errors(
    files, capsys, copier_checkpoint, monkeypatch, flag, is_said
):
    loggers = [logging.getLogger(name) for name in ("vaswani_hf", "vaswani_hf.messages")]
    levels = [logger.level for logger in loggers]
    words = [
        "score",
        str(copier_checkpoint),
        flag,
        *"--source source --target reference --device cpu".split(),
    ]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 2 and ("sentences/s" in err) == is_said
    say("a line of a run")
    assert (capsys.readouterr().out != "") == is_said
    assert main(["score", "no/model", *words[2:]]) == 2
    err = capsys.readouterr().err
    assert "vaswani: There is no repository" in err
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    transformers_logging.set_verbosity_warning()
    logging.captureWarnings(False)


def test_quiet_shows_warnings(python, copier_checkpoint, tmp_path):
    glossary = tmp_path / "glossary"
    glossary.write_text("ja\teins eins\n", encoding="utf-8")
    words = ["--text", "ja?", "--glossary", glossary, "--no_repeat_ngram_size", "1", "--device", "cpu", "-q"]
    command = [python, "-m", "vaswani_hf.cli", "translate", copier_checkpoint, *words]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    warning = (
        "The glossary asks for 'eins eins' in the translation of 'ja?', but `no_repeat_ngram_size` is 1 and "
        "forbids a repetition in the term; the term is ignored.\n"
    )
    assert (result.returncode, result.stderr) == (0, warning)


def test_the_version_and_the_environment(capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_ENDPOINT", "http://user:word@localhost")
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"vaswani_hf {__version__}\n"
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    assert (
        f"vaswani_hf: {__version__}" in out and "torch: " in out and "HF_ENDPOINT: http://…@localhost" in out
    )
    assert f"; {os.cpu_count()} cores\n" in out and "threads of torch: 1\n" in out
    assert "secret" not in out and "word" not in out


# Each row has a shell with its options, code that completes words, and a part of what the code prints.
COMPLETIONS = [
    ("bash", "COMP_WORDS=(vaswani translate --num_b); {}", "--num_beams\n"),
    ("bash", "COMP_WORDS=(vaswani train --training.r_drop); {}", "--training.r_drop_alpha\n"),
    ("bash", "COMP_WORDS=(vaswani train --max_st); {}", "--max_steps\n"),
    # Completion works only in an interactive zsh, so check that zsh assigns the function to the command.
    ("zsh -f", "whence -w _vaswani; print ${_comps[vaswani]}", "_vaswani: function\n_bash_complete"),
    ("fish --no-config", "complete -C 'vaswani translate --num_b'", "--num_beams"),
]


@pytest.mark.parametrize(("shell", "code", "completed"), COMPLETIONS)
def test_a_shell_completes_commands_and_options(capsys, tmp_path, shell, code, completed):
    name, *options = shell.split()
    assert main(["completion", name]) == 0
    path = tmp_path / "script"
    path.write_text(capsys.readouterr().out)
    assert all(command in path.read_text() for command in COMMANDS)
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    code = code.replace("{}", "COMP_CWORD=2; _vaswani; echo ${COMPREPLY[@]}")
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    words = [name, *options, "-c", f"source {path}; {code}"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    assert completed in done.stdout


def test_an_interrupt_while_the_words_are_parsed(capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("vaswani_hf.cli.arguments.make_parser", interrupt)
    assert main(["translate", "model", "--text", "a"]) == 130
    assert capsys.readouterr().err == "vaswani: interrupted\n"


def test_a_closed_pipe_is_no_failure(python, files, copier_checkpoint):
    command = f'set -o pipefail; yes "ja?" | head -300 > many; "{python}" -m vaswani_hf translate "{copier_checkpoint}" '
    command += "--device cpu --window 1 --input many | head -1"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ja?\n"), done.stderr


# Each row has a command, and a text in its output: messages have escape sequences, results are in UTF-8.
UNENCODABLE = {
    "translate --help": r"\u2026",
    "recipes numbers": "ö, ü, ß",
    "translate {model} --text 日本 --device cpu": "日本",
}


@pytest.mark.parametrize("words", UNENCODABLE)
def test_an_encoding_without_a_character_ends_no_command(copier_checkpoint, monkeypatch, words):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stdout)
    with contextlib.suppress(SystemExit):
        assert main(words.format(model=copier_checkpoint).split()) == 0
    stdout.flush()
    assert UNENCODABLE[words] in stdout.buffer.getvalue().decode()


def test_translate_has_every_option_of_a_translation():
    declared = [
        field
        for kind in (SearchSettings, TranslationOptions)
        for field in dataclasses.fields(kind)
        if field.metadata["command_line"]
    ]
    found = TranslateOptions.command_line()
    assert len(declared) >= 18
    for field in declared:
        assert found[field.name].description.startswith(field.metadata["help"])
        # The value of a search setting that is not given is None. A command line gives names of files, not
        # objects such as a `Glossary`.
        types = {*union_members(field.type), type(None)} - {Glossary}
        assert {*union_members(found[field.name].annotation), type(None)} == types


@pytest.mark.parametrize("options", [TranslateOptions, CertifyOptions])
def test_the_help_names_the_default_number_of_beams(options):
    description = options.command_line()["num_beams"].description
    default = f"by default the number in generation_config.json of the checkpoint, or {DEFAULT_SEARCH['num_beams']} if"
    assert default in " ".join(description.split())


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    """Write a test set into the current folder, and links to its source under other names."""
    monkeypatch.chdir(tmp_path)
    Path("source").write_text("ja?\nnein\n", encoding="utf-8")
    Path("reference").write_text("ja?\nnein\n", encoding="utf-8")
    Path("linked").symlink_to("source")
    Path("other").write_text("kept\n", encoding="utf-8")
    Path("folder").mkdir()
    return tmp_path


EVALUATE = ("--source", "source", "--reference", "reference", "--device", "cpu")


OUTPUTS = f"""
linked | `--output` must be another file than `--source`, but both are linked.
./reference | `--output` must be another file than `--reference`, but both are ./reference.
other | `--output` must be a new file, but other exists; give another name.
folder | `--output` must be a file, but 'folder' is a folder.
no/where | `--output` must be in an existing folder, but is no/where.
new.gz | `--output` is written without compression and must not end in .gz, but is new.gz.
{"n" * 300} | '{"n" * 300}' cannot be read or written (File name too long).
"""


@pytest.mark.parametrize(("output", "message"), rows(OUTPUTS))
def test_an_output_of_evaluate_is_refused_before_the_model_is_loaded(files, vaswani, output, message):
    before = files_in(files)
    assert vaswani("evaluate", "no/model", *EVALUATE, "--output", output)[1:] == ("", message)
    assert files_in(files) == before


def test_evaluate_writes_its_translations_or_nothing(files, vaswani, copier_checkpoint):
    code, out, _ = vaswani("evaluate", copier_checkpoint, *EVALUATE, "--output", "new")
    assert code == 0 and out.startswith("BLEU ") and Path("new").read_text(encoding="utf-8") == "ja?\nnein\n"
    assert vaswani("evaluate", "no/model", *EVALUATE, "--output", "another")[0] == 2
    assert not Path("another").exists()


def test_a_full_disk_costs_no_scores(files, vaswani, copier_checkpoint, monkeypatch):
    full = Mock(**{"write.side_effect": OSError(28, "No space left on device")})
    monkeypatch.setattr(
        "vaswani_hf.cli.output.LineOutput",
        lambda file, name, remedy: LineOutput(full if name == "new" else file, name, remedy),
    )
    message = (
        "new cannot be written (No space left on device); free disk space and run the command again with {}."
    )
    code, out, sentence = vaswani("evaluate", copier_checkpoint, *EVALUATE, "--output", "new")
    assert code == 1 and out.startswith("BLEU ") and sentence == message.format("another name")
    code, _, sentence = vaswani("translate", copier_checkpoint, "--input", "source", "--output", "new")
    assert (code, sentence) == (1, message.format("`--resume`"))
    assert not Path("new").exists()


def test_parts_of_a_line_are_written_until_it_is_whole():
    class Slow:
        written = b""

        def write(self, line) -> int:
            self.written += bytes(line[:3])
            return len(line[:3])

        def flush(self) -> None:
            pass

    slow = Slow()
    LineOutput(slow, "slow", "wait").write(b"eins zwei\n")
    assert slow.written == b"eins zwei\n"


def test_an_output_is_for_one_process_and_what_was_there_stays(tmp_path):
    path = tmp_path / "there"
    path.write_text("one line\nno end")
    with output_file(str(path), "wait", resume=True) as file:
        file.keep(len("one line\n"))
        sentence = (
            rf"^`--output` {path} is being written by process {os.getpid()} on \S+ since [\d: +-]+; "
            "wait until it ends, or give another name.$"
        )
        with pytest.raises(InUseError, match=sentence), output_file(str(path), "wait", resume=True):
            pass
        with pytest.raises(InUseError, match=sentence):
            check_output(str(path), {})
    assert path.read_text() == "one line\nno end"
    with output_file(str(path), "wait", resume=True) as file:
        file.keep(len("one line\n"))
        file.write(b"more\n")
    assert path.read_text() == "one line\nmore\n"
    path.write_text("")
    with pytest.raises(KeyError), output_file(str(path), "wait", resume=True):
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_an_output_that_another_process_has_made_meanwhile_stays(tmp_path):
    path = tmp_path / "new"
    check_output(str(path), {})
    path.write_text("of another process\n")
    sentence = f"^`--output` must be a new file, but {path} exists"
    with pytest.raises(ValueError, match=sentence), output_file(str(path), "wait") as file:
        file.write(b"mixed\n")
    assert path.read_text() == "of another process\n"


def test_standard_output_is_no_input(files, monkeypatch):
    with open("linked", "a", encoding="utf-8") as stdout, open("source", encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "stdin", stdin)
        for inputs, name in (
            ({"--source": "source"}, "`--source`, but both are source"),
            ({"--input": None}, "standard"),
        ):
            with pytest.raises(ValueError, match=f"^Standard output must be another file than {name}"):
                check_output(None, inputs)
        with pytest.raises(
            ValueError, match="^`--output` must be another file than standard input, but both are source"
        ):
            check_output("source", {"--input": None}, resume=True)
        check_output(None, {"--source": "other"})


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("streams", "code", "out", "message"),
    [
        ("<&- --text ja?", 0, "ja?\n", ""),
        ("<&-", 2, "", "Standard input is closed; open it, or give the texts with `--input` or `--text`."),
        ("--text ja? >&-", 1, "", "Standard output is closed, and the results would be lost; open standard"),
        ("--text ja? >/dev/full", 1, "", "Standard output cannot be written (No space left on device); free"),
        ("--input source 2>&-", 0, "ja?\nnein\n", ""),
    ],
)
def test_streams_that_are_closed_or_full(python, files, copier_checkpoint, streams, code, out, message):
    command = f'"{python}" -m vaswani_hf.cli translate "{copier_checkpoint}" --device cpu {streams}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (code, out), done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("vaswani: ")]
    assert len(said) == bool(message) and all(line.startswith(f"vaswani: {message}") for line in said)
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


QUICK = """
import sys
sys.argv[0] = "vaswani"
# Python cannot import a module that is None here.
for name in "accelerate datasets evaluate matplotlib pyarrow sacrebleu tensorboard".split():
    sys.modules[name] = None
from vaswani_hf.cli import main
options = ["--device", "cpu"]
assert main(["translate", sys.argv[1], "--text", "der Hund", *options]) == 0
assert main(["score", sys.argv[1], "--source", "source", "--target", "reference", "-q", *options]) == 0
for name in ("sympy", "torch._dynamo", "torch.distributed.tensor", "sklearn", "vaswani_hf.data.corpus"):
    assert name not in sys.modules, name
import torch
from transformers import pipeline
assert pipeline("translation", model=sys.argv[1], device="cpu")("der Hund")
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist() == [2, 2]
assert "torch._dynamo" in sys.modules
"""


def test_a_command_that_only_infers_imports_nothing_that_trains(files, copier_checkpoint):
    """The interpreters of the fixtures have imported all parts of torch, so start a new interpreter."""
    command = [sys.executable, "-c", QUICK, copier_checkpoint]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    translation, *scores = done.stdout.splitlines()
    assert (translation, len(scores), done.stderr) == ("der Hund", 2, "")
