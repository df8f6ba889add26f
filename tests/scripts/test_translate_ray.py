"""Ray translates Parquet files with two workers: the order is kept, no row is missing or repeated."""

import os
import subprocess
import tempfile
import uuid
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from sentences import refused, rows

from vaswani_hf.translation import Translator

SCRIPT = Path(__file__).parents[2] / "scripts/examples/translate_ray.py"
# Rows per row group and output file; one output begins inside a row group, another ends with one.
GROUP_ROWS, ROWS_PER_FILE = 4, 6
TEXTS = ["der Hund läuft", None, "", "Hund", "  ", "der der läuft\nHund"] * 3
PARTS = "a-00000-of-00003 a-00001-of-00003 a-00002-of-00003 b-00000-of-00001 empty-00000-of-00001"
NAMES = [f"{part}.parquet" for part in PARTS.split()]


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name, texts in {"a": TEXTS, "b": TEXTS[:3], "empty": []}.items():
        table = pyarrow.table({"id": range(len(texts)), "text": pyarrow.array(texts, pyarrow.string())})
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet", row_group_size=GROUP_ROWS)
    return folder


def test_two_workers_translate_every_row_in_order(python, source, tiny_checkpoint, tmp_path):
    pytest.importorskip("ray.data", reason="Ray is not installed: pip install '.[ray]'")
    checkpoint, output = tiny_checkpoint(), tmp_path / "out"
    output.mkdir()
    (output / ".b.parquet.0.unfinished").write_bytes(b"PAR1")
    words = [checkpoint, source, output, "--workers", 2, "--device", "cpu", "--rows_per_file", ROWS_PER_FILE]
    # Use a short path, because Ray creates sockets in the folder.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environment |= {"RAY_TMPDIR": folder, "RAY_AUTH_TOKEN": uuid.uuid4().hex * 2, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = str(SCRIPT.parents[2])
        command = [python, str(SCRIPT), *map(str, words)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    first, *others = done.stdout.splitlines()
    assert first == "5 files, 0 of them translated already" and len(others) == 5
    assert sorted(path.name for path in output.iterdir()) == NAMES
    made = Translator.from_pretrained(str(checkpoint), "cpu").translate([text or "" for text in TEXTS])
    expected = [None if text is None else translation for text, translation in zip(TEXTS, made, strict=True)]
    tables = [pyarrow.parquet.read_table(output / name) for name in NAMES]
    assert [table.num_rows for table in tables] == [6, 6, 6, 3, 0]
    assert all(table.column_names == ["id", "text", "translation"] for table in tables)
    whole = pyarrow.concat_tables([table.replace_schema_metadata() for table in tables[:3]])
    assert whole.to_pydict() == {"id": list(range(len(TEXTS))), "text": TEXTS, "translation": expected}
    assert tables[3].column("translation").to_pylist() == expected[:3]


@pytest.fixture
def translated(script, source, tiny_checkpoint, tmp_path, monkeypatch):
    """A function that runs the script's `main` with one worker in this process, and gives the folder of its
    outputs.
    """
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

    def run(*words, num_rows=ROWS_PER_FILE):
        output = tmp_path / "out"
        module.main([str(checkpoint), str(source), str(output), "--rows_per_file", str(num_rows), *words])
        return output

    return run


def test_a_row_is_in_one_part(translated, source):
    for num_rows in (1, 4, 5, 18, 19):
        folder = translated(num_rows=num_rows)
        made = [pyarrow.parquet.read_table(path) for path in sorted(folder.glob("a*.parquet"))]
        numbers = [number for table in made for number in table.column("id").to_pylist()]
        assert numbers == list(range(len(TEXTS)))
        assert len(made) == -(-len(TEXTS) // num_rows)
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
    place = f"'{output / NAMES[0]}'"
    message = (
        f"translate_ray: {place} was made from another input file or checkpoint, or with other options; "
    )
    with refused(f"{message}choose another OUTPUT, or remove the file.", SystemExit):
        translated("--num_beams", "1")
    message = f"translate_ray: OUTPUT must contain only output files of this run, but contains {place}; "
    with refused(f"{message}choose another OUTPUT.", SystemExit):
        translated(num_rows=len(TEXTS))


# The arguments of the script, and its error. {0} is the folder of the test.
WRONG = """
{0}/none out | INPUT must be a Parquet file or a folder of Parquet files, but '{0}/none' does not exist.
{0}/in {0}/in | OUTPUT must not be the folder of INPUT, but is '{0}/in'.
{0}/in/a.parquet {0}/in | OUTPUT must not be the folder of INPUT, but is '{0}/in'.
{0}/in {0}/in/a.parquet | OUTPUT must be a folder, but '{0}/in/a.parquet' is a file.
{0} out | INPUT must contain .parquet files, but '{0}' contains none.
{0}/damaged out | '{0}/damaged/b.parquet' must be a Parquet file, but is damaged or has another format.
{0}/in out --column texts | `--column` must be one of the columns of '{0}/in/a.parquet' (id, text), but is texts.
{0}/in out --column id | The column `id` of '{0}/in/a.parquet' must contain text, but contains int64.
{0}/in out --output_column id | `--output_column` must be a new column, but '{0}/in/a.parquet' has `id` already.
{0}/in out --workers 0 | `--workers` must be positive, but is 0.
{0}/in out --rows_per_file -1 | `--rows_per_file` must be positive, but is -1.
"""


@pytest.mark.parametrize(("words", "sentence"), rows(WRONG))
def test_what_cannot_be_translated_is_one_sentence(script, source, tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "b.parquet").write_bytes(b"PAR1")
    with refused(f"translate_ray: {sentence.format(tmp_path)}", SystemExit):
        script("translate_ray").main(["checkpoint", *words.format(tmp_path).split()])
    assert not (tmp_path / "out").exists()
