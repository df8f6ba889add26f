"""`vaswani translate` and `vaswani score`: files, JSON lines, runs that are continued, several processes, mistakes."""

import codecs
import gzip
import io
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from worker_processes import is_worker, needs_proc, processes_of

from vaswani_hf.cli import main
from vaswani_hf.model.translator_vaswani import Translation

LINES = [
    "eins nein",
    "",
    "der Hund",
    "ja? nein",
    "  größer. ",
    "die Straße",
    "Öl",
    "eins",
    "nein eins ja?",
    "zwei,",
]
TRANSLATED = "".join(f"{line.strip()}\n" for line in LINES)
SPEED = r"{} sentences? in \d+\.\d s, [\d,]+\.\d sentences/s"


@pytest.fixture
def source(tmp_path) -> str:
    path = tmp_path / "source"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return str(path)


@pytest.fixture
def command(monkeypatch, capfdbinary):
    """Run a command in this process: its exit code, output and errors."""

    def run(*argv: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = main([*argv, "--device", "cpu"])
        sys.stdout.flush()
        out, errors = capfdbinary.readouterr()
        return code, out.decode(), errors.decode()

    return run


@pytest.fixture(scope="module", autouse=True)
def quick_workers(python):
    """Worker processes are forked from a Python that has imported the package."""
    multiprocessing.set_executable(python)
    yield
    multiprocessing.set_executable(sys.executable)


COMMAND = """
import multiprocessing, sys
multiprocessing.set_executable(sys.argv.pop(1))
from vaswani_hf.cli import main
sys.exit(main())
"""


def test_files_in_and_out(command, copier_checkpoint, source, tmp_path):
    output = str(tmp_path / "output")
    code, out, errors = command("translate", copier_checkpoint, "--input", source, "--output", output)
    assert (code, out) == (0, "")
    assert re.fullmatch(SPEED.format(10), errors.strip().split("\n")[-1])
    assert Path(output).read_text(encoding="utf-8") == TRANSLATED
    with gzip.open(tmp_path / "source.gz", "wb") as file:
        file.write(Path(source).read_bytes())
    assert command("translate", copier_checkpoint, "--input", str(tmp_path / "source.gz"))[1] == TRANSLATED
    assert command("translate", copier_checkpoint, stdin=Path(source).read_bytes())[1] == TRANSLATED
    # A byte order mark is no text.
    marked = codecs.BOM_UTF8 + Path(source).read_bytes()
    assert command("translate", copier_checkpoint, stdin=marked)[1] == TRANSLATED
    # A text of its own says nothing of speed.
    assert command("translate", copier_checkpoint, "--text", " ja? nein ")[1:] == ("ja? nein\n", "")


def test_a_file_that_cannot_be_read_is_found_at_once(command, copier_checkpoint, tmp_path):
    (tmp_path / "source").write_bytes(b"a\n\xff\n")
    output = tmp_path / "output"
    argv = ("translate", copier_checkpoint, "--input", str(tmp_path / "source"), "--output", str(output))
    code, _, errors = command(*argv)
    assert (code, output.exists()) == (1, False)
    assert errors.strip() == f"vaswani: {tmp_path / 'source'} must be UTF-8 text, but line 2 is not."


def test_json_lines(command, copier_checkpoint, copier):
    rows = [
        {"text": "eins nein"},
        {"text": "nein", "target_prefix": "größer.", "must_contain": []},
        {"text": "ja?\nnein", "target_prefix": None, "must_contain": ["Öl"]},
        {"text": ""},
    ]
    stdin = "".join(json.dumps(row) + "\n" for row in rows).encode()
    options = ["--input_format", "json", "--num_beams", "4", "--split_sentences"]
    code, out, _ = command("translate", copier_checkpoint, *options, "--json", stdin=stdin)
    records = [json.loads(line) for line in out.strip().split("\n")]
    assert code == 0 and len(records) == 4
    assert records[0]["text"] == "eins nein" and records[0]["alignment"] == "0-0 1-1"
    assert records[1]["text"].startswith("größer.") and records[1]["words"][0] == {
        "word": "größer.",
        "confidence": 1.0,
    }
    assert "Öl" in records[2]["text"] and "\n" in records[2]["text"]
    assert records[3] == {
        "text": "",
        "score": 0.0,
        "log_prob": 0.0,
        "confidence": 1.0,
        "tokens": [],
        "token_log_probs": [],
        "words": [],
        "alignment": "",
    }
    (expected,) = copier.translate(["eins nein"], return_alignments=True, num_beams=4)
    assert records[0]["score"] == pytest.approx(expected.score, abs=2e-6)
    assert records[0]["tokens"] == expected.tokens
    # One line of output for each line of input.
    plain = command("translate", copier_checkpoint, *options, stdin=stdin)[1]
    assert plain == "".join(" ".join(record["text"].split("\n")) + "\n" for record in records)


def test_several_translations_are_json_lines(command, copier_checkpoint):
    options = ["--num_beams", "3", "--num_return_sequences", "3"]
    record = json.loads(command("translate", copier_checkpoint, "--text", "ja?", *options)[1])
    assert record["text"] == "ja?" and len(record["alternatives"]) == 2
    assert record["score"] > record["alternatives"][0]["score"] > record["alternatives"][1]["score"]


def test_search_options_reach_the_search(command, copier_checkpoint, copier, monkeypatch):
    calls = []
    generate = type(copier.model).generate
    monkeypatch.setattr(
        type(copier.model), "generate", lambda self, **given: calls.append(given) or generate(self, **given)
    )
    options = {
        "num_beams": 3,
        "length_penalty": 0.7,
        "length_penalty_type": "gnmt",
        "coverage_penalty": 0.1,
        "max_length_a": 1.5,
        "max_length_b": 4,
        "max_new_tokens": 30,
        "no_repeat_ngram_size": 5,
        "do_sample": True,
        "temperature": 0.9,
        "top_k": 7,
        "top_p": 0.8,
    }
    argv = [word for name, value in options.items() for word in (f"--{name}", str(value).lower())]
    code, _, errors = command("translate", copier_checkpoint, "--text", "ja? nein", "--seed", "3", *argv)
    assert code == 0, errors
    assert {name: calls[0].get(name) for name in options} == options
    command("translate", copier_checkpoint, "--text", "ja? nein")
    # This checkpoint sets nothing, and the default is that of the pipeline.
    assert {name: calls[1][name] for name in options.keys() & calls[1].keys()} == {"num_beams": 4}


def test_long_texts_keep_their_lines(command, copier_checkpoint):
    text = "eins zwei, drei! ja? nein\n\n  der Hund größer."
    assert command("translate", copier_checkpoint, "--text", text, "--split_sentences")[1] == text + "\n"
    assert (
        command("translate", copier_checkpoint, "--text", text, "--split_sentences", "--stream")[1]
        == text + "\n"
    )


def test_streams_show_words_as_they_come(command, copier_checkpoint, monkeypatch):
    shown = []
    monkeypatch.setattr("vaswani_hf.cli.translate._show", shown.append)
    stdin = "die Straße nein\n\nja? Öl\n".encode()
    assert command("translate", copier_checkpoint, "--stream", stdin=stdin)[0] == 0
    assert "".join(shown) == stdin.decode()
    assert len([part for part in shown if part.strip()]) == 5


def test_a_seed_draws_the_same_shown_as_it_comes_or_in_processes(command, copier_checkpoint, monkeypatch):
    stdin = "die Straße nein\n\nja? Öl der eins\nzwei, nein ja?\n".encode() * 3
    argv = ("translate", copier_checkpoint, "--do_sample", "--num_beams", "1", "--temperature", "3")
    drawn = [command(*argv, "--seed", str(seed), "--stream", stdin=stdin)[1] for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert command(*argv, "--seed", "5", "--window", "1", stdin=stdin)[1] == drawn[0]
    # Several processes translate windows of the size that one process has.
    sizes = []
    monkeypatch.setattr(
        "vaswani_hf.cli.lines.translate_in_processes",
        lambda load, requests, options, **given: sizes.append(options.window) or iter(()),
    )
    for seed in ([], ["--seed", "5"]):
        command(*argv, *seed, "--window", "4", "--workers", "2", stdin=stdin)
    assert sizes == [2, 4]


def test_a_run_that_broke_off_is_continued(command, copier_checkpoint, source, tmp_path):
    output = tmp_path / "output"
    argv = (
        "translate",
        copier_checkpoint,
        "--input",
        source,
        "--output",
        str(output),
        "--window",
        "4",
        "--json",
    )
    argv += (
        "--do_sample",
        "--num_beams",
        "1",
        "--seed",
        "5",
        "--repetition_guard",
        "false",
        "--temperature",
        "2.0",
    )
    assert command(*argv)[0] == 0
    whole = output.read_bytes()
    lines = whole.split(b"\n")
    code, _, errors = command(*argv)
    assert code == 1
    assert errors.strip() == (
        f"vaswani: `--output` must be a new file, but {output} exists; continue it with `--resume` or give another name."
    )
    for complete in (0, 1, 4, 6, 9, 10):
        output.write_bytes(b"".join(line + b"\n" for line in lines[:complete]) + (lines[complete][:7]))
        code, _, errors = command(*argv, "--resume", *(["true"] if complete % 2 else []))
        assert code == 0 and output.read_bytes() == whole
        assert re.search(SPEED.format(10 - complete), errors)
    # A whole output, and what a run that broke off has left behind it.
    output.write_bytes(whole + b'{"te')
    assert command(*argv, "--resume")[0] == 0 and output.read_bytes() == whole
    output.write_bytes(whole + b"more\n")
    code, _, errors = command(*argv, "--resume")
    assert code == 1 and "must not have more lines than" in errors
    output.unlink()
    assert command(*argv, "--resume")[0] == 0 and output.read_bytes() == whole


def test_a_run_that_fails_at_once_leaves_nothing(command, copier_checkpoint, tmp_path):
    output = tmp_path / "output"
    argv = ("translate", copier_checkpoint, "--output", str(output), "--input_format", "json")
    assert command(*argv, stdin=b"nothing\n")[0] == 1
    assert not output.exists()
    assert command(*argv, "--window", "1", stdin=b'{"text": "ja?"}\nnothing\n')[0] == 1
    assert output.read_text() == "ja?\n"


BAD = b'{"text": "ja?"}\n{"text": "\\ud800"}\n\xff\n{"text": "\xc3\x96l"}\nno JSON\n{"text": "nein", "must_contain": ["Hund"]}\n'


@pytest.mark.parametrize("options", [[], ["--split_sentences", "--window", "2"]])
def test_bad_lines_are_skipped_named_and_counted(command, copier_checkpoint, tmp_path, options):
    (tmp_path / "in").write_bytes(BAD)
    argv = (
        "translate",
        copier_checkpoint,
        "--input_format",
        "json",
        "--on_error",
        "skip",
        "--num_beams",
        "2",
        *options,
    )
    code, out, errors = command(*argv, "--input", str(tmp_path / "in"))
    lines = out.split("\n")
    assert code == 0 and lines[:5] == ["ja?", "", "", "Öl", ""] and "Hund" in lines[5]
    assert [line for line in errors.splitlines() if line.startswith("vaswani:")] == [
        f"vaswani: skipped: Line 2 of {tmp_path / 'in'} must hold text, but holds '\\ud800', half a character, which UTF-8 "
        "cannot write.",
        f"vaswani: skipped: {tmp_path / 'in'} must be UTF-8 text, but line 3 is not.",
        f"vaswani: skipped: Line 5 of {tmp_path / 'in'} must be a JSON object, but begins with 'no JSON'.",
        "vaswani: 3 of 6 lines were skipped",
    ]
    records = [json.loads(line) for line in command(*argv, "--json", stdin=BAD)[1].splitlines()]
    assert [("error" in record) for record in records] == [False, True, True, False, True, False]
    assert records[1]["text"] == "" and records[1]["error"].startswith(
        "Line 2 of standard input must hold text"
    )
    # A run that broke off skips the same.
    output = tmp_path / "out"
    output.write_text("ja?\n\n", encoding="utf-8")
    assert command(*argv, "--input", str(tmp_path / "in"), "--output", str(output), "--resume")[0] == 0
    assert output.read_text(encoding="utf-8") == out


def test_a_bad_line_ends_the_work_behind_the_lines_before_it(command, copier_checkpoint, tmp_path):
    argv = (
        "translate",
        copier_checkpoint,
        "--input_format",
        "json",
        "--num_beams",
        "2",
        "--max_new_tokens",
        "9",
    )
    code, out, errors = command(*argv, stdin=BAD)
    assert (code, out) == (1, "ja?\n") and "Line 2 of standard input must hold text" in errors
    # The search does not know the line.
    rows = [
        {"text": "ja?"},
        {"text": "eins"},
        {"text": "nein", "must_contain": ["Hund " * 30]},
        {"text": "zwei,"},
    ]
    (tmp_path / "in").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for options in ([], ["--workers", "2"]):
        code, out, errors = command(*argv, "--input", str(tmp_path / "in"), *options)
        assert (code, out) == (1, "ja?\neins\n")
        assert f"vaswani: Line 3 of {tmp_path / 'in'}: `must_contain` has 'Hund Hund" in errors
    code, out, errors = command(*argv, "--input", str(tmp_path / "in"), "--on_error", "skip")
    assert (code, out) == (0, "ja?\neins\n\nzwei,\n") and "vaswani: 1 of 4 lines were skipped" in errors


def test_a_setting_that_nothing_can_be_translated_with_ends_the_work(command, copier_checkpoint):
    argv = ("translate", copier_checkpoint, "--on_error", "skip", "--num_return_sequences", "8")
    code, _, errors = command(*argv, stdin=b"ja?\n\neins\n")
    assert code == 1
    last = errors.splitlines()[-1]
    assert last.startswith(
        "vaswani: All lines were skipped, 2 of 3, and the others are blank; the first one: Line 1 of"
    )
    assert "`num_return_sequences`" in last


def test_where_all_lines_that_are_not_blank_are_bad_something_else_is(
    command, copier_checkpoint, monkeypatch
):
    argv = ("translate", copier_checkpoint, "--on_error", "skip")
    for options in ([], ["--stream"]):
        code, out, errors = command(*argv, *options, stdin=b"\xff\n\n\xfe\n")
        assert (code, out) == (1, "\n\n\n")
        assert errors.splitlines()[-1].startswith(
            "vaswani: All lines were skipped, 2 of 3, and the others are blank; the first"
        )
    # An empty translation is not a blank line.
    monkeypatch.setattr("vaswani_hf.model.translator_vaswani._joined", lambda *_: [Translation("")])
    code, out, errors = command(*argv, stdin=b"ja?\n\xff\n")
    assert (code, out) == (0, "\n\n") and "vaswani: 1 of 2 lines were skipped" in errors


def test_streams_skip_bad_lines(command, copier_checkpoint, monkeypatch):
    shown = []
    monkeypatch.setattr("vaswani_hf.cli.translate._show", shown.append)
    argv = ("translate", copier_checkpoint, "--stream", "--on_error")
    code, _, errors = command(*argv, "skip", stdin=b"ja?\n\xff\neins\n")
    assert code == 0 and "".join(shown) == "ja?\n\neins\n"
    assert "vaswani: skipped: standard input must be UTF-8 text, but line 2 is not." in errors
    assert command(*argv, "fail", stdin=b"ja?\n\xff\neins\n")[0] == 1


def test_bad_pairs_are_skipped_too(command, copier_checkpoint, copier, tmp_path):
    (tmp_path / "source").write_bytes(b"ja?\n\xff\neins\n")
    (tmp_path / "target").write_bytes(b"ja?\nnein\n\xff\n")
    argv = (
        "score",
        copier_checkpoint,
        "--source",
        str(tmp_path / "source"),
        "--target",
        str(tmp_path / "target"),
    )
    assert command(*argv)[:2] == (1, "")
    code, out, errors = command(*argv, "--on_error", "skip")
    assert code == 0 and [bool(line) for line in out.split("\n")] == [True, False, False, False]
    assert "vaswani: 2 of 3 lines were skipped" in errors
    records = [json.loads(line) for line in command(*argv, "--on_error", "skip", "--json")[1].splitlines()]
    assert records[0]["tokens"] and records[2]["error"].endswith(
        "target must be UTF-8 text, but line 3 is not."
    )


def test_scores(command, copier_checkpoint, copier, source, tmp_path):
    target = tmp_path / "target"
    target.write_text(TRANSLATED, encoding="utf-8")
    options = [
        "--source",
        source,
        "--target",
        str(target),
        "--length_penalty",
        "0.6",
        "--length_penalty_type",
        "gnmt",
    ]
    code, out, errors = command("score", copier_checkpoint, *options)
    assert code == 0 and re.search(SPEED.format(10), errors)
    expected = list(
        copier.score(LINES, LINES, length_penalty=0.6, length_penalty_type="gnmt", return_alignments=True)
    )
    for line, translation in zip(out.strip("\n").split("\n"), expected, strict=True):
        log_prob, score, tokens = line.split("\t")
        assert float(log_prob) == pytest.approx(translation.log_prob, abs=1e-4)
        assert float(score) == pytest.approx(translation.score, abs=1e-4)
        assert list(map(float, tokens.split())) == pytest.approx(translation.token_log_probs, abs=1e-4)
    records = [
        json.loads(line)
        for line in command("score", copier_checkpoint, *options, "--json")[1].strip().split("\n")
    ]
    assert [record["alignment"] for record in records] == [translation.alignment for translation in expected]
    assert [record["tokens"] for record in records] == [translation.tokens for translation in expected]


def test_misaligned_files_are_named(command, copier_checkpoint, source, tmp_path):
    (tmp_path / "target").write_text("a\n")
    code, out, errors = command(
        "score", copier_checkpoint, "--source", source, "--target", str(tmp_path / "target")
    )
    assert (code, out) == (1, "")
    expected = f"{source} and {tmp_path / 'target'} must have equally many lines, but have 10 and 1."
    assert errors.strip() == f"vaswani: {expected}"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--text", "a", "--input", "b"], "`--text` and `--input` must not both be given."),
        (["--input", "nowhere"], "`--input` must be an existing file, but is nowhere."),
        (["--output", "x.gz"], "`--output` is written as it is and must not end in .gz, but is x.gz."),
        (
            ["--text", "a\udcff"],
            "`--text` must hold text, but holds '\\udcff', half a character, which UTF-8 cannot write.",
        ),
        (["--resume"], "`--resume` must come with `--output`, the file that is continued."),
        (
            ["--resume", "--text", "a", "--output", "x"],
            "`--resume` continues a file and must come without `--text`.",
        ),
        (
            ["--text", "a", "--input_format", "json"],
            "`--input_format json` must come with a file or standard input, not with `--text`.",
        ),
        (
            ["--stream", "--num_return_sequences", "2"],
            "`--stream` must come without `--json`, `--output` and `--workers`: it shows one text at a time.",
        ),
        (
            ["--stream", "--num_beams", "2"],
            "`--stream` shows greedy search; it must come without more beams or translations of a text.",
        ),
        (
            ["--stream", "--repetition_guard"],
            "`--stream` shows the search of one model while it goes on; it must come without `--ensemble` and "
            "`--repetition_guard`.",
        ),
        (
            ["--stream", "--engine", "ctranslate2"],
            "`--stream` must come without `--engine ctranslate2`, which gives translations when they are whole.",
        ),
        (["--seed", "-1"], "`--seed` must be 0 or more, but is -1."),
        (["--top_p", "2"], "`--top_p` must be 1 or less, but is 2.0."),
        (["--length_penalty", "nan"], "`--length_penalty` must be a finite number, but is nan."),
        (
            ["--length_penalty_type", "google"],
            "`--length_penalty_type` must be 'gnmt' or 'power', but is 'google'.",
        ),
        (["--workers", "0"], "`--workers` must be 1 or more, but is 0."),
        (
            ["--num_beams", "2", "--num_return_sequences", "3"],
            "`--num_return_sequences` must be at most `--num_beams`, 2, but is 3.",
        ),
    ],
)
def test_a_mistake_is_one_sentence_before_the_model_is_loaded(command, argv, message):
    assert command("translate", "nowhere/at-all", *argv, stdin=b"ja?\n") == (1, "", f"vaswani: {message}\n")


def test_an_unknown_device_is_named(capsys, copier_checkpoint):
    assert main(["translate", copier_checkpoint, "--text", "a", "--device", "tpu9"]) == 1
    assert (
        "`device` must be one of this machine, such as cpu or cuda, but is 'tpu9'." in capsys.readouterr().err
    )
    assert main(["translate", copier_checkpoint, "--text", "a", "--device", "cuda", "--workers", "2"]) == 1
    assert "`--workers` is for the CPU; with more than one leave out `--device`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "must be a JSON object, but begins with '[1]'."),
        (
            '{"text": "a", "must_contain": ["b", "\\ud800"]}',
            "must hold text, but holds '\\ud800', half a character, which UTF-8 cannot write.",
        ),
        ('{"txt": "a"}', "must have no other keys than text, target_prefix, must_contain, but has 'txt'."),
        ("{}", "must have a string as `text`, and as `target_prefix` if there is one."),
        (
            '{"text": "a", "must_contain": ["b", " "]}',
            "must have a list of phrases as `must_contain`, none of them empty.",
        ),
    ],
)
def test_a_json_line_that_is_none_is_named_with_its_number(command, copier_checkpoint, line, message):
    stdin = b'{"text": "ja?"}\n' + line.encode() + b"\n"
    code, _, errors = command("translate", copier_checkpoint, "--input_format", "json", stdin=stdin)
    assert code == 1
    assert errors.strip().split("\n")[-1] == f"vaswani: Line 2 of standard input {message}"


# Several processes take seconds to start.


def test_without_a_text_no_process_starts(command, copier_checkpoint, source, tmp_path, monkeypatch):
    def start(*_):
        raise AssertionError("A process was started.")

    monkeypatch.setattr("vaswani_hf.translation.workers._start", start)
    for stdin in (b"", codecs.BOM_UTF8):
        assert command("translate", copier_checkpoint, "--workers", "2", stdin=stdin)[:2] == (0, "")
    output = tmp_path / "output"
    output.write_text(TRANSLATED, encoding="utf-8")
    argv = ("--workers", "2", "--window", "10", "--input", source, "--output", str(output), "--resume")
    assert command("translate", copier_checkpoint, *argv)[0] == 0
    assert output.read_text(encoding="utf-8") == TRANSLATED
    (tmp_path / "empty").touch()
    argv = ("--workers", "2", "--input", str(tmp_path / "empty"), "--output", str(tmp_path / "nothing"))
    assert command("translate", copier_checkpoint, *argv)[0] == 0
    assert (tmp_path / "nothing").read_bytes() == b""


@pytest.fixture
def long_run(python, copier_checkpoint, tmp_path):
    """A command with two workers that has begun to write, on input that does not end."""
    feeder = subprocess.Popen(["yes", "eins nein"], stdout=subprocess.PIPE)
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            COMMAND,
            python,
            "translate",
            copier_checkpoint,
            "--workers",
            "2",
            "--window",
            "4",
        ],
        stdin=feeder.stdout,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    feeder.stdout.close()
    try:
        assert process.stdout.readline() == b"eins nein\n"
        workers = [pid for pid in processes_of(process.pid) if is_worker(pid)]
        assert len(workers) == 2
        yield process, workers
    finally:
        feeder.kill()
        feeder.wait()
        process.kill()
        process.wait()


def ended(process, workers) -> str:
    errors = process.communicate(timeout=300)[1].decode()
    deadline = time.monotonic() + 60
    while any(map(is_worker, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_worker, workers))
    assert "Traceback" not in errors
    return errors


@needs_proc
def test_ctrl_c_ends_all(long_run):
    process, workers = long_run
    # The workers leave it to the process that has started them.
    for pid in workers:
        os.kill(pid, signal.SIGINT)
    time.sleep(0.5)
    assert all(map(is_worker, workers))
    os.killpg(process.pid, signal.SIGINT)
    errors = ended(process, workers)
    assert process.returncode == 130
    assert errors.strip() == "vaswani: interrupted"


@needs_proc
def test_who_was_killed_leaves_no_one_behind(long_run):
    process, workers = long_run
    process.kill()
    assert ended(process, workers) == ""


@needs_proc
def test_a_broken_pipe_ends_all(long_run):
    process, workers = long_run
    process.stdout.close()
    process.stdout = None
    errors = ended(process, workers)
    assert (process.returncode, errors) == (1, "")


def test_what_is_there_already_is_never_cut_off(command, copier_checkpoint, tmp_path):
    source, other = tmp_path / "source", tmp_path / "link"
    source.write_text("eins\nohne Ende", encoding="utf-8")
    other.symlink_to(source)
    for output in (source, other):
        code, _, errors = command(
            "translate", copier_checkpoint, "--input", str(source), "--output", str(output), "--resume"
        )
        assert code == 1
        assert errors == f"vaswani: `--output` must be another file than `--input`, but both are {output}.\n"
    longer = tmp_path / "longer"
    longer.write_text("a\nb\nc\nd", encoding="utf-8")
    code, _, errors = command(
        "translate", copier_checkpoint, "--input", str(source), "--output", str(longer), "--resume"
    )
    assert code == 1 and "must not have more lines" in errors
    assert longer.read_text(encoding="utf-8") == "a\nb\nc\nd"
    assert source.read_text(encoding="utf-8") == "eins\nohne Ende"
    code, _, errors = command(
        "translate", copier_checkpoint, "--output", str(longer), "--resume", stdin=b"eins\nja?\n"
    )
    assert code == 1 and errors.splitlines()[-1] == (
        f"vaswani: {longer} must not have more lines than standard input to be continued, but has 3; give another name."
    )
    assert longer.read_text(encoding="utf-8") == "a\nb\nc\nd"
    three = tmp_path / "three"
    three.write_text("eins\nja?\nnein\n")
    for content, options, message in (
        ("no line that is complete", [], "`model` must be"),
        ("eins\nno end", [], "`model` must be"),
        ("eins\n", ["--json"], "holds plain text; continue it without `--json`, or give another name."),
        ('{"text": "eins"}\n', [], "holds JSON lines; continue it with `--json`, or give another name."),
    ):
        longer.write_text(content)
        model = "no/such/model" if "model" in message else copier_checkpoint
        code, _, errors = command(
            "translate", model, "--input", str(three), "--output", str(longer), "--resume", *options
        )
        assert code == 1 and message in errors
        assert longer.read_text() == content
    code, _, errors = command(
        "translate", copier_checkpoint, "--text", "eins", "--output", str(longer), "--resume"
    )
    assert (code, errors) == (1, "vaswani: `--resume` continues a file and must come without `--text`.\n")
