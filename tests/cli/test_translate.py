"""`vaswani translate` and `vaswani score`: files, JSON lines, continued runs, processes, wrong options."""

import codecs
import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from sentences import rows
from worker_processes import is_worker, needs_proc, processes_of

from vaswani_hf.cli import main
from vaswani_hf.cli.translate import _json_request
from vaswani_hf.model.translations_vaswani import Translation

LINES = ["eins nein", "", "der Hund", "ja? nein", "  größer. "]
LINES += ["die Straße", "Öl", "eins", "nein eins ja?", "zwei,"]
TRANSLATED = "".join(f"{line.strip()}\n" for line in LINES)
SPEED = r"{} sentences? in \d+\.\d s, [\d,]+\.\d sentences/s"


@pytest.fixture
def source(tmp_path) -> str:
    path = tmp_path / "source"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return str(path)


@pytest.fixture
def command(monkeypatch, capfdbinary, caplog):
    """Run a command in this process, and return its exit code, its output, and its warnings and errors."""

    def run(*argv, stdin: bytes = b"") -> tuple[int, str, str]:
        caplog.clear()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = main([str(word) for word in (*argv, "--device", "cpu")])
        sys.stdout.flush()
        out, errors = capfdbinary.readouterr()
        # During a test, pytest collects the warnings, so that Python does not print the warnings to stderr.
        warnings = "".join(f"{warning}\n" for warning in caplog.messages)
        return code, out.decode(), warnings + errors.decode()

    return run


@pytest.fixture
def translate(command, copier_checkpoint):
    """Run `vaswani translate` with the copier."""
    return lambda *argv, **stdin: command("translate", copier_checkpoint, *argv, **stdin)


@pytest.fixture
def score(command, copier_checkpoint, tmp_path):
    """Run `vaswani score` with the copier on a source and a target of these bytes."""

    def run(source: bytes, target: bytes, *argv):
        (tmp_path / "source").write_bytes(source)
        (tmp_path / "target").write_bytes(target)
        files = ["--source", tmp_path / "source", "--target", tmp_path / "target"]
        return command("score", copier_checkpoint, *files, *argv)

    return run


@pytest.fixture
def shown(monkeypatch) -> list[str]:
    """The parts of translations that `--stream` prints."""
    parts: list[str] = []
    monkeypatch.setattr("vaswani_hf.cli.stream._show", parts.append)
    return parts


def test_files_in_and_out(translate, source, tmp_path):
    output = tmp_path / "output"
    code, out, errors = translate("--input", source, "--output", output)
    assert (code, out) == (0, "")
    assert re.fullmatch(SPEED.format(10), errors.strip().split("\n")[-1])
    assert output.read_text(encoding="utf-8") == TRANSLATED
    content = Path(source).read_bytes()
    with gzip.open(tmp_path / "source.gz", "wb") as file:
        file.write(content)
    assert translate("--input", tmp_path / "source.gz")[1] == TRANSLATED
    # A byte order mark does not count as text.
    for stdin in (content, codecs.BOM_UTF8 + content):
        assert translate(stdin=stdin)[1] == TRANSLATED
    # The command prints no speed for a single text.
    assert translate("--text", " ja? nein ")[1:] == ("ja? nein\n", "")


def test_json_lines(translate, copier):
    rows = [
        {"text": "eins nein"},
        {"text": "nein", "target_prefix": "größer.", "must_contain": []},
        {"text": "ja?\nnein", "target_prefix": None, "must_contain": ["Öl"]},
        {"text": ""},
    ]
    stdin = "".join(json.dumps(row) + "\n" for row in rows).encode()
    options = ["--input_format", "json", "--num_beams", "4", "--split_sentences"]
    code, out, _ = translate(*options, "--json", stdin=stdin)
    records = [json.loads(line) for line in out.strip().split("\n")]
    assert code == 0 and len(records) == 4
    assert records[0]["text"] == "eins nein" and records[0]["alignment"] == "0-0 1-1"
    assert records[1]["text"].startswith("größer.")
    assert records[1]["words"][0] == {"word": "größer.", "confidence": 1.0}
    assert "Öl" in records[2]["text"] and "\n" in records[2]["text"]
    empty = {"text": "", "score": 0.0, "log_prob": 0.0, "confidence": 1.0, "alignment": ""}
    assert records[3] == empty | {"tokens": [], "token_log_probs": [], "words": []}
    (expected,) = copier.translate(["eins nein"], return_alignments=True, num_beams=4)
    assert records[0]["score"] == pytest.approx(expected.score, abs=2e-6)
    assert records[0]["tokens"] == expected.tokens
    # One line of output for each line of input.
    plain = translate(*options, stdin=stdin)[1]
    assert plain == "".join(" ".join(record["text"].split("\n")) + "\n" for record in records)
    # Several translations are JSON lines without `--json`.
    options = ["--num_beams", "3", "--num_return_sequences", "3"]
    record = json.loads(translate("--text", "ja?", *options)[1])
    assert record["text"] == "ja?" and len(record["alternatives"]) == 2
    assert record["score"] > record["alternatives"][0]["score"] > record["alternatives"][1]["score"]


def test_search_options_reach_the_search(translate, copier, monkeypatch):
    calls = []
    generate = type(copier.model).generate
    monkeypatch.setattr(
        type(copier.model), "generate", lambda self, **given: calls.append(given) or generate(self, **given)
    )
    options = {
        **{"num_beams": 3, "length_penalty": 0.7, "length_penalty_type": "gnmt", "coverage_penalty": 0.1},
        **{"max_length_a": 1.5, "max_length_b": 4, "max_new_tokens": 30, "no_repeat_ngram_size": 5},
        **{"do_sample": True, "temperature": 0.9, "top_k": 7, "top_p": 0.8},
    }
    argv = [word for name, value in options.items() for word in (f"--{name}", str(value).lower())]
    code, _, errors = translate("--text", "ja? nein", "--seed", "3", *argv)
    assert code == 0, errors
    assert {name: calls[0].get(name) for name in options} == options
    translate("--text", "ja? nein")
    # This checkpoint sets no number of beams, so the command uses the default of the pipeline.
    assert {name: calls[1][name] for name in options.keys() & calls[1].keys()} == {"num_beams": 4}


def test_streams_show_words_as_they_come_and_long_texts_keep_their_lines(translate, shown):
    text = "eins zwei, drei! ja? nein\n\n  der Hund größer."
    assert translate("--text", text, "--split_sentences")[1] == text + "\n"
    assert translate("--text", text, "--split_sentences", "--stream")[0] == 0
    assert "".join(shown) == text + "\n"
    shown.clear()
    stdin = "die Straße nein\n\nja? Öl\n".encode()
    assert translate("--stream", stdin=stdin)[0] == 0
    assert "".join(shown) == stdin.decode()
    shown.clear()
    stdin = json.dumps({"text": text}).encode()
    assert translate("--stream", "--split_sentences", "--input_format", "json", stdin=stdin)[0] == 0
    assert "".join(shown) == text.replace("\n", " ") + "\n"
    # The streamer of transformers 5.24 shows parts of words.
    assert len([part for part in shown if part.strip()]) >= 5


def test_a_stream_has_the_spaces_after_sentences_without_white_space(translate, shown):
    text = "eins nein。eins der。😀！nein"
    expected = translate("--text", text, "--split_sentences", "--num_beams", 1)[1]
    assert translate("--text", text, "--split_sentences", "--stream")[0] == 0
    assert "".join(shown) == expected


def test_a_seed_draws_the_same_shown_as_it_comes_or_in_processes(translate, monkeypatch):
    stdin = "die Straße nein\n\nja? Öl der eins\nzwei, nein ja?\n".encode() * 2
    argv = ("--do_sample", "--num_beams", "1", "--temperature", "3")
    drawn = [translate(*argv, "--seed", seed, "--stream", stdin=stdin)[1] for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert translate(*argv, "--seed", "5", "--window", "1", stdin=stdin)[1] == drawn[0]
    # Several processes use windows of the same size as a single process.
    sizes = []
    monkeypatch.setattr(
        "vaswani_hf.translation.workers.translate_in_processes",
        lambda load, requests, options, **given: sizes.append(options.window) or iter(()),
    )
    for seed in ([], ["--seed", "5"]):
        translate(*argv, *seed, "--window", "4", "--workers", "2", stdin=stdin)
    assert sizes == [2, 4]


def test_a_run_that_broke_off_is_continued(translate, source, tmp_path):
    output = tmp_path / "output"
    argv = ["--input", source, "--output", output, "--window", 4, "--json", "--do_sample", "--num_beams", 1]
    argv += ["--seed", 5, "--repetition_guard", "false", "--temperature", 2.0]
    assert translate(*argv)[0] == 0
    whole = output.read_bytes()
    lines = whole.split(b"\n")
    code, _, errors = translate(*argv)
    message = f"`--output` must be a new file, but {output} exists; continue it with `--resume` or give another name."
    assert (code, errors.strip()) == (2, f"vaswani: {message}")
    for complete in (0, 1, 6, 9, 10):
        output.write_bytes(b"".join(line + b"\n" for line in lines[:complete]) + (lines[complete][:7]))
        code, _, errors = translate(*argv, "--resume", *(["true"] if complete % 2 else []))
        assert code == 0 and output.read_bytes() == whole
        assert re.search(SPEED.format(10 - complete), errors)
    # The output is complete, but the interrupted run has also written an incomplete line.
    output.write_bytes(whole + b'{"te')
    assert translate(*argv, "--resume")[0] == 0 and output.read_bytes() == whole
    output.unlink()
    assert translate(*argv, "--resume")[0] == 0 and output.read_bytes() == whole


def test_a_run_that_fails_at_once_leaves_nothing(translate, tmp_path):
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_bytes(b"a\n\xff\n")
    code, _, errors = translate("--input", source, "--output", output)
    assert (code, output.exists()) == (1, False)
    assert errors.strip() == f"vaswani: {source} must be UTF-8 text, but line 2 is not."
    argv = ("--output", output, "--input_format", "json", "--window", "1")
    assert translate(*argv, stdin=b'{"text": "ja?"}\nnothing\n')[0] == 1
    assert output.read_text() == "ja?\n"


BAD = b'{"text": "ja?"}\n{"text": "\\ud800"}\n\xff\n{"text": "\xc3\x96l"}\nno JSON\n{"text": "nein", "must_contain": ["Hund"]}\n'


def test_bad_lines_are_skipped_named_and_counted(translate, tmp_path):
    path = tmp_path / "in"
    path.write_bytes(BAD)
    argv = ("--input_format", "json", "--on_error", "skip", "--num_beams", "2", "--window", "2")
    code, out, errors = translate(*argv, "--input", path)
    lines = out.split("\n")
    assert code == 0 and lines[:5] == ["ja?", "", "", "Öl", ""] and "Hund" in lines[5]
    assert [line for line in errors.splitlines() if line.startswith("vaswani:")] == [
        f"vaswani: skipped: Line 2 of {path} must hold text, but holds '\\ud800', a lone surrogate, which UTF-8 "
        "cannot write.",
        f"vaswani: skipped: {path} must be UTF-8 text, but line 3 is not.",
        f"vaswani: skipped: Line 5 of {path} must be a JSON object, but begins with 'no JSON'.",
        "vaswani: 3 of 6 lines were skipped",
    ]
    records = [json.loads(line) for line in translate(*argv, "--json", stdin=BAD)[1].splitlines()]
    assert [("error" in record) for record in records] == [False, True, True, False, True, False]
    assert records[1]["text"] == ""
    assert records[1]["error"].startswith("Line 2 of standard input must hold text")
    # A continued run skips the same lines.
    output = tmp_path / "out"
    output.write_text("ja?\n\n", encoding="utf-8")
    assert translate(*argv, "--input", path, "--output", output, "--resume")[0] == 0
    assert output.read_text(encoding="utf-8") == out


def test_a_bad_line_ends_the_work_behind_the_lines_before_it(translate, tmp_path):
    argv = ("--input_format", "json", "--num_beams", "2", "--max_new_tokens", "9")
    code, out, errors = translate(*argv, stdin=BAD)
    assert (code, out) == (1, "ja?\n") and "Line 2 of standard input must hold text" in errors
    # The error of the search has no line number, so the command must find the line.
    rows = [{"text": text} for text in ("ja?", "eins", "nein", "zwei,")]
    rows[2]["must_contain"] = ["Hund " * 30]
    (tmp_path / "in").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    code, out, errors = translate(*argv, "--input", tmp_path / "in")
    assert (code, out) == (1, "ja?\neins\n")
    assert f"vaswani: Line 3 of {tmp_path / 'in'}: `must_contain` has 'Hund Hund" in errors
    code, out, errors = translate(*argv, "--input", tmp_path / "in", "--on_error", "skip")
    assert (code, out) == (0, "ja?\neins\n\nzwei,\n") and "vaswani: 1 of 4 lines were skipped" in errors


def test_where_all_lines_that_are_not_blank_are_bad_something_else_is(translate, monkeypatch):
    sentence = "vaswani: All lines that are not blank were skipped, 2 of 3; the first"
    for options in ([], ["--stream"]):
        code, out, errors = translate("--on_error", "skip", *options, stdin=b"\xff\n\n\xfe\n")
        assert (code, out) == (1, "\n\n\n") and errors.splitlines()[-1].startswith(sentence)
    code, _, errors = translate("--on_error", "skip", "--num_return_sequences", "8", stdin=b"ja?\n\neins\n")
    assert code == 2 and errors.splitlines()[-1].startswith("vaswani: `num_return_sequences` must be at most")
    # A text with an empty translation is not a blank line.
    monkeypatch.setattr(
        "vaswani_hf.model.translator_vaswani.BaseTranslator.join", lambda *_: [Translation("")]
    )
    code, out, errors = translate("--on_error", "skip", stdin=b"ja?\n\xff\n")
    assert (code, out) == (0, "\n\n") and "vaswani: 1 of 2 lines were skipped" in errors


def test_streams_skip_bad_lines(translate, shown):
    stdin = b"ja?\n\xff\neins\n"
    code, _, errors = translate("--stream", "--on_error", "skip", stdin=stdin)
    assert code == 0 and "".join(shown) == "ja?\n\neins\n"
    assert "vaswani: skipped: standard input must be UTF-8 text, but line 2 is not." in errors
    assert translate("--stream", "--on_error", "fail", stdin=stdin)[0] == 1
    stdin = b'{"text": "ja?", "must_contain": ["nein"]}\n'
    errors = translate("--stream", "--input_format", "json", stdin=stdin)[2]
    assert "`must_contain` must be left out with `--stream`, because" in errors


def test_bad_pairs_are_skipped_too(score):
    files = b"ja?\n\xff\neins\n", b"ja?\nnein\n\xff\n"
    assert score(*files)[:2] == (1, "")
    code, out, errors = score(*files, "--on_error", "skip")
    assert code == 0 and [bool(line) for line in out.split("\n")] == [True, False, False, False]
    assert "vaswani: 2 of 3 lines were skipped" in errors
    records = [json.loads(line) for line in score(*files, "--on_error", "skip", "--json")[1].splitlines()]
    assert records[0]["tokens"]
    assert records[2]["error"].endswith("target must be UTF-8 text, but line 3 is not.")


def test_scores(score, copier, tmp_path):
    files = "".join(f"{line}\n" for line in LINES).encode(), TRANSLATED.encode()
    options = ["--length_penalty", "0.6", "--length_penalty_type", "gnmt"]
    code, out, errors = score(*files, *options)
    assert code == 0 and re.search(SPEED.format(10), errors)
    settings = {"length_penalty": 0.6, "length_penalty_type": "gnmt", "return_alignments": True}
    expected = list(copier.score(LINES, LINES, **settings))
    for line, translation in zip(out.strip("\n").split("\n"), expected, strict=True):
        log_prob, score_, tokens = line.split("\t")
        assert float(log_prob) == pytest.approx(translation.log_prob, abs=1e-4)
        assert float(score_) == pytest.approx(translation.score, abs=1e-4)
        assert list(map(float, tokens.split())) == pytest.approx(translation.token_log_probs, abs=1e-4)
    records = [json.loads(line) for line in score(*files, *options, "--json")[1].strip().split("\n")]
    assert [record["alignment"] for record in records] == [translation.alignment for translation in expected]
    assert [record["tokens"] for record in records] == [translation.tokens for translation in expected]
    code, out, errors = score(files[0], b"a\n")
    names = f"{tmp_path / 'source'} and {tmp_path / 'target'}"
    assert (code, out) == (1, "")
    assert errors.strip() == f"vaswani: {names} must have equally many lines, but have 10 and 1."


# The first words of the error message for each command line. The command must fail before it loads the model.
MISTAKES = {
    "--text a --input b": "`--text` and `--input` must not both be given; leave out `--text` or `--input`.",
    "--input nowhere": "`--input` must be an existing file, but is nowhere.",
    "--text a\udcff": "`--text` must hold text, but holds '\\udcff', a lone surrogate, which UTF-8 cannot write.",
    "--resume": "`--resume` must come with `--output`, because `--output` names the file to continue.",
    "--resume --text a --output x": "`--resume` continues a file and must come without `--text`.",
    "--text a --input_format json": "`--input_format json` must come with a file or standard input, not with `--text`.",
    "--stream --num_return_sequences 2": "`--stream` must come without `--json`, `--output` and `--workers`, because",
    "--stream --num_beams 2": "`--num_beams` must be 1 with `--stream`, but is 2; `--stream` needs greedy search.",
    "--stream --repetition_guard": "`--stream` shows the running search of one model and must come without",
    "--stream --min_confidence 0.5": "`--stream` must come without `--glossary` and `--min_confidence`, because",
    "--stream --engine ctranslate2": "`--stream` must come without `--engine ctranslate2`, which returns only complete translations",
    "--ensemble x --min_confidence 0.5": "`--min_confidence` must come without `--ensemble`, because a",
    "--top_p 2": "`--top_p` must be a number above 0 and at most 1, but is 2.0.",
    "--top_p 0.5": "`--top_p` is a setting of sampling and must come with `--do_sample`; set `--do_sample`, or leave",
    "--workers 0": "`--workers` must be 1 or more, but is 0.",
    "--num_beams 2 --num_return_sequences 3": "`--num_return_sequences` must be at most `--num_beams`, 2, but is 3.",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_sentence_before_the_model_is_loaded(command, words):
    code, out, errors = command("translate", "nowhere/at-all", *words.split(), stdin=b"ja?\n")
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(f"vaswani: {MISTAKES[words]}")


def test_an_unknown_device_is_named(vaswani, copier_checkpoint):
    words = ["translate", copier_checkpoint, "--text", "a", "--device"]
    message = "`device` is '{}', but PyTorch finds no such device on this machine; give cpu"
    for device, *others in (["tpu9"], ["cuda:99"], ["gpu", "--quantization", "int8"]):
        code, _, sentence = vaswani(*words, device, *others)
        assert code == 2 and sentence.startswith(message.format(device))
    code, _, sentence = vaswani(*words, "cuda", "--workers", "2")
    assert code == 2 and "`--workers` above 1 is for the CPU; leave out `--device`" in sentence


# A JSON line and the beginning of its error after the number of the line.
BAD_LINES = r"""
[1] | must be a JSON object, but begins with '[1]'.
{"text": "a", "must_contain": ["b", "\ud800"]} | must hold text, but holds '\ud800', a lone surrogate
{"txt": "a"} | must have no other keys than text, target_prefix, must_contain, but has 'txt'.
{} | must have a string as `text`, and a string or nothing as `target_prefix`.
{"text": "a", "must_contain": ["b", " "]} | must have a list of non-empty phrases as `must_contain`.
"""


@pytest.mark.parametrize(("line", "message"), rows(BAD_LINES))
def test_a_json_line_that_is_none_is_named_with_its_number(line, message):
    with pytest.raises(ValueError, match=f"^{re.escape(f'Line 2 of file {message}')}"):
        _json_request(line.encode(), 2, "file")


def test_a_blank_json_line_is_a_blank_text():
    assert _json_request(b"  ", 1, "file").text == "  "


def test_without_work_for_two_no_process_starts(translate, source, tmp_path, monkeypatch):
    def start(*_):
        raise AssertionError("A process was started.")

    monkeypatch.setattr("vaswani_hf.translation.workers._start", start)
    for stdin in (b"", codecs.BOM_UTF8):
        assert translate("--workers", "2", stdin=stdin)[:2] == (0, "")
    output = tmp_path / "output"
    output.write_text(TRANSLATED, encoding="utf-8")
    argv = ("--workers", "2", "--window", "10", "--input", source, "--output", output, "--resume")
    assert translate(*argv)[0] == 0
    assert output.read_text(encoding="utf-8") == TRANSLATED
    # If there is only one window, or if a user types the texts, the main process translates without workers.
    assert translate("--workers", "2", stdin=b"eins\nja?\n")[:2] == (0, "eins\nja?\n")
    monkeypatch.setattr("vaswani_hf.cli.texts.is_terminal", lambda stream: stream is sys.stdin)
    code, out, errors = translate("--workers", "2", stdin=b"eins\nja?\n")
    assert (code, out) == (0, "eins\nja?\n")
    message = "vaswani waits for texts: type one text per line, and end the input with Ctrl-D\n"
    assert errors.startswith(message)
    assert message not in translate("--text", "eins")[2]


# The command has a session of its own, so that a test can send a signal to the command and its workers only.
IN_A_SESSION = """
import os, sys
from vaswani_hf.cli import main
os.setsid()
print(os.getpid(), flush=True)
sys.exit(main(sys.argv[1:]))
"""


class LongRun(NamedTuple):
    """A command with two workers on endless input."""

    process: subprocess.Popen
    pid: int
    workers: list[int]

    def errors_at_the_end(self) -> str:
        """The errors that the command has printed; the workers must end, too."""
        _, errors = self.process.communicate(timeout=300)
        deadline = time.monotonic() + 60
        while any(map(is_worker, self.workers)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(is_worker, self.workers))
        assert "Traceback" not in errors
        return errors


@pytest.fixture
def long_run(python, copier_checkpoint):
    command = [python, "-c", IN_A_SESSION, "translate", copier_checkpoint, "--workers", "2", "--window", "4"]
    feeder = subprocess.Popen(["yes", "eins nein"], stdout=subprocess.PIPE)
    process = subprocess.Popen(
        command, stdin=feeder.stdout, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    feeder.stdout.close()
    try:
        pid = int(process.stdout.readline())
        assert process.stdout.readline() == "eins nein\n"
        workers = [worker for worker in processes_of(pid) if is_worker(worker)]
        assert len(workers) == 2
        yield LongRun(process, pid, workers)
    finally:
        feeder.kill()
        feeder.wait()
        process.kill()
        process.wait()


@needs_proc
def test_ctrl_c_ends_all(long_run):
    # The workers ignore SIGINT.
    for pid in long_run.workers:
        os.kill(pid, signal.SIGINT)
    time.sleep(0.5)
    assert all(map(is_worker, long_run.workers))
    os.killpg(long_run.pid, signal.SIGINT)
    assert long_run.errors_at_the_end() == "vaswani: interrupted\n"
    assert long_run.process.returncode == 130


@needs_proc
def test_who_was_killed_leaves_no_one_behind(long_run):
    os.kill(long_run.pid, signal.SIGKILL)
    assert long_run.errors_at_the_end() == ""
    assert long_run.process.returncode == -signal.SIGKILL


@needs_proc
def test_a_broken_pipe_ends_all(long_run):
    long_run.process.stdout.close()
    assert long_run.process.wait(300) == 0
    assert long_run.errors_at_the_end() == ""


def test_what_is_there_already_is_never_cut_off(translate, command, tmp_path):
    source, link, there = (tmp_path / name for name in ("source", "link", "there"))
    source.write_text("eins\nohne Ende", encoding="utf-8")
    link.symlink_to(source)
    for output in (source, link):
        code, _, errors = translate("--input", source, "--output", output, "--resume")
        assert code == 2
        assert errors == f"vaswani: `--output` must be another file than `--input`, but both are {output}.\n"
    assert source.read_text(encoding="utf-8") == "eins\nohne Ende"
    there.write_text("a\nb\nc\nd", encoding="utf-8")
    code, _, errors = translate("--input", source, "--output", there, "--resume")
    assert code == 2 and "must not have more lines" in errors
    code, _, errors = translate("--output", there, "--resume", stdin=b"eins\nja?\n")
    message = f"the existing file `--output` must not have more lines than standard input, but {there} has 3; give another name."
    assert code == 2 and errors.splitlines()[-1] == f"vaswani: {message}"
    assert there.read_text(encoding="utf-8") == "a\nb\nc\nd"
    source.write_text("eins\nja?\nnein\n")
    for content, options, message in (
        ("eins\n", ["--json"], "plain text; continue the file without `--json`, or"),
        ('{"text": "eins"}\n', [], "JSON lines; continue the file with `--json`, or"),
    ):
        there.write_text(content)
        code, _, errors = translate("--input", source, "--output", there, "--resume", *options)
        assert code == 2 and f"contains {message} give another name." in errors
        assert there.read_text() == content
    there.write_text("eins\nno end")
    code, _, errors = command("translate", "no/such/model", "--input", source, "--output", there, "--resume")
    assert code == 2 and "`model` must be" in errors and there.read_text() == "eins\nno end"
