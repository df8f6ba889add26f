"""Ray translates Parquet files with two workers: the order of the rows is kept, and no row is missing or
repeated.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import uuid
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from vaswani_hf.translation import Translator

SCRIPT = Path(__file__).parents[2] / "scripts/examples/translate_ray.py"
# The numbers of rows of a row group and of an output file; one output begins inside a row group, another
# output ends with one.
GROUP_ROWS, ROWS_PER_FILE = 4, 6
TEXTS = ["der Hund läuft", None, "", "Hund", "  ", "der der läuft\nHund"] * 3
PARTS = (
    "a-00000-of-00003",
    "a-00001-of-00003",
    "a-00002-of-00003",
    "b-00000-of-00001",
    "empty-00000-of-00001",
)
NAMES = [f"{part}.parquet" for part in PARTS]


def processes_of(folder: str) -> dict[int, str]:
    """Return the command lines of all processes that have a file in a folder open; the script and all
    processes of Ray have log files there.

    The group or the environment of a process does not identify the processes of Ray.
    """
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(os.readlink(file).startswith(folder) for file in (process / "fd").iterdir()):
                found[int(process.name)] = (process / "cmdline").read_bytes().decode()
    return found


def kill_all(folder: str) -> None:
    """Kill these processes until no process is left, for at most a minute."""
    for _ in range(600):
        processes = processes_of(folder).keys() - {os.getpid()}
        if not processes:
            return
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        threading.Event().wait(0.1)


@pytest.fixture
def lines_of(python):
    """Yield the output lines of the script; its processes end with the test, or after 180 seconds."""
    pytest.importorskip("ray.data", reason="Ray is not installed: pip install '.[ray]'")
    with contextlib.ExitStack() as stack:
        # Use a short path, because Ray creates sockets in the folder.
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True)
        )
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environment |= {"RAY_TMPDIR": folder, "RAY_AUTH_TOKEN": uuid.uuid4().hex * 2, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = str(SCRIPT.parents[2])
        limit = threading.Timer(180, kill_all, [folder])
        stack.callback(kill_all, folder)
        stack.callback(limit.cancel)
        limit.start()

        def start(*words):
            command = [python, str(SCRIPT), *map(str, words)]
            log = stack.enter_context(open(f"{folder}/log", "a+"))
            with subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
            ) as process:
                for line in process.stdout:
                    yield line.rstrip("\n"), processes_of(folder)
            log.seek(0)
            assert process.returncode == 0, log.read()

        start.kill = lambda: kill_all(folder)
        yield start


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name, texts in {"a": TEXTS, "b": TEXTS[:3], "empty": []}.items():
        table = pyarrow.table({"id": range(len(texts)), "text": pyarrow.array(texts, pyarrow.string())})
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet", row_group_size=GROUP_ROWS)
    return folder


def test_two_workers_go_on_where_they_were_killed(lines_of, source, tiny_checkpoint, tmp_path):
    checkpoint, output = tiny_checkpoint(), tmp_path / "out"
    words = [checkpoint, source, output, "--workers", 2, "--device", "cpu", "--rows_per_file", ROWS_PER_FILE]
    first = lines_of(*words)
    assert next(first)[0] == "5 files, 0 of them translated already"
    line, processes = next(first)
    assert line.startswith("1 of 5: ")
    workers = {number for number, command in processes.items() if command.startswith("ray::MapWorker")}
    assert len(workers) == 2
    lines_of.kill()
    with pytest.raises(AssertionError):
        list(first)
    # A file with its final name is complete; incomplete files have other names.
    kept = {path.name: path.stat().st_mtime_ns for path in output.glob("*.parquet")}
    assert kept and kept.keys() <= set(NAMES)
    damaged = line.split("'")[1]
    content = bytearray(Path(damaged).read_bytes())
    content[8] ^= 1
    Path(damaged).write_bytes(content)
    (output / ".b.parquet.0.unfinished").write_bytes(b"PAR1")
    again = [line for line, _ in lines_of(*words, "--workers", 1)]
    assert again[:2] == [
        f"'{damaged}' is damaged and is translated again",
        f"5 files, {len(kept) - 1} of them translated already",
    ]
    assert len(again) == 2 + 5 - (len(kept) - 1)
    assert sorted(path.name for path in output.iterdir()) == NAMES
    del kept[Path(damaged).name]
    assert {name: (output / name).stat().st_mtime_ns for name in kept} == kept
    expected = list(
        Translator.from_pretrained(str(checkpoint), "cpu").translate([text or "" for text in TEXTS])
    )
    expected = [None if text is None else made for text, made in zip(TEXTS, expected, strict=True)]
    tables = [pyarrow.parquet.read_table(output / name) for name in NAMES]
    assert [table.num_rows for table in tables] == [6, 6, 6, 3, 0]
    assert all(table.column_names == ["id", "text", "translation"] for table in tables)
    whole = pyarrow.concat_tables([table.replace_schema_metadata() for table in tables[:3]])
    assert whole.to_pydict() == {"id": list(range(len(TEXTS))), "text": TEXTS, "translation": expected}
    assert tables[3].column("translation").to_pylist() == expected[:3]


@pytest.fixture
def translated(script, source, tiny_checkpoint, tmp_path, monkeypatch):
    """A function that runs the script's `main` with one worker in this process, and gives the folder of its outputs."""
    module = script("translate_ray")

    def translate(parts, arguments):
        worker = module.PartTranslator(arguments)
        for part in parts:
            made = worker(part)
            if made["error"]:
                module.refuse(made["error"])
            print(f"made {Path(part['target']).name}")

    monkeypatch.setattr(module, "translate", translate)
    monkeypatch.setattr(module, "BATCH_ROWS", 5)
    checkpoint = tiny_checkpoint()

    def run(*words, checkpoint=checkpoint, rows=ROWS_PER_FILE):
        module.main(
            [str(checkpoint), str(source), str(tmp_path / "out"), "--rows_per_file", str(rows), *words]
        )
        return tmp_path / "out"

    return run


def test_a_row_is_in_one_part(translated, source):
    for rows in (1, 4, 5, 7, 18, 19):
        folder = translated(rows=rows)
        made = [pyarrow.parquet.read_table(path) for path in sorted(folder.glob("a*.parquet"))]
        assert [number for table in made for number in table.column("id").to_pylist()] == list(
            range(len(TEXTS))
        )
        assert len(made) == -(-len(TEXTS) // rows)
        for path in folder.iterdir():
            path.unlink()


def test_nothing_is_translated_twice(translated, source, capsys):
    output = translated()
    assert capsys.readouterr().out.count("made ") == 5
    translated()
    assert capsys.readouterr().out == "5 files, 5 of them translated already\n"
    content = (output / NAMES[0]).read_bytes()
    (output / NAMES[0]).write_bytes(content[: len(content) // 2])
    (output / NAMES[1]).write_bytes(b"")
    (output / NAMES[3]).unlink()
    translated()
    assert capsys.readouterr().out == (
        f"'{output / NAMES[0]}' is damaged and is translated again\n'{output / NAMES[1]}' is damaged and is translated "
        f"again\n5 files, 2 of them translated already\nmade {NAMES[0]}\nmade {NAMES[1]}\nmade {NAMES[3]}\n"
    )
    assert (output / NAMES[0]).read_bytes() == content


def test_outputs_of_something_else_are_kept(translated, source, capsys):
    output = translated()
    with pytest.raises(SystemExit) as caught:
        translated("--num_beams", "1")
    remedy = "choose another OUTPUT, or remove the file."
    assert str(caught.value) == (
        f"translate_ray: '{output / NAMES[0]}' was made from another input file or checkpoint, or with other options; {remedy}"
    )
    with pytest.raises(SystemExit) as caught:
        translated(rows=len(TEXTS))
    assert str(caught.value) == (
        f"translate_ray: OUTPUT must contain only output files of this run, but contains '{output / NAMES[0]}'; choose another OUTPUT."
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"input": "none"},
            "INPUT must be a Parquet file or a folder of Parquet files, but '{0}/none' does not exist.",
        ),
        ({"output": "in"}, "OUTPUT must not be the folder of INPUT, but is '{0}/in'."),
        (
            {"input": "in/a.parquet", "output": "in"},
            "OUTPUT must not be the folder of INPUT, but is '{0}/in'.",
        ),
        ({"output": "in/a.parquet"}, "OUTPUT must be a folder, but '{0}/in/a.parquet' is a file."),
        ({"input": "."}, "INPUT must hold .parquet files, but '{0}' has none."),
        (
            {"column": "texts"},
            "`--column` must be one of the columns of '{0}/in/a.parquet' (id, text), but is texts.",
        ),
        ({"column": "id"}, "The column `id` of '{0}/in/a.parquet' must hold text, but holds int64."),
        (
            {"output_column": "id"},
            "`--output_column` must be a new column, but '{0}/in/a.parquet' has `id` already.",
        ),
        ({"workers": "0"}, "`--workers` must be positive, but is 0."),
        ({"rows_per_file": "-1"}, "`--rows_per_file` must be positive, but is -1."),
        ({"damage": "x"}, "'{0}/in/b.parquet' must be a Parquet file, but is damaged or has another format."),
    ],
)
def test_what_cannot_be_translated_is_one_sentence(script, source, tmp_path, change, sentence):
    if change.pop("damage", None):
        (source / "b.parquet").write_bytes(b"PAR1")
    places = [
        str(tmp_path / change.pop(name, default)) for name, default in (("input", "in"), ("output", "out"))
    ]
    options = [word for name, value in change.items() for word in (f"--{name}", value)]
    with pytest.raises(SystemExit) as caught:
        script("translate_ray").main(["checkpoint", *places, *options])
    assert str(caught.value) == f"translate_ray: {sentence.format(tmp_path)}"
    assert not (tmp_path / "out").exists()
