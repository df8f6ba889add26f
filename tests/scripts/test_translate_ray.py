"""Ray translates Parquet files with two workers: every row in its place, nothing twice, nothing half."""

import os

import pyarrow
import pyarrow.parquet
import pytest

from vaswani_hf.translation import Translator

TEXTS = ["der Hund läuft", None, "", "Hund", "  ", "der der läuft\nHund"] * 3


@pytest.fixture
def ray_script(script, monkeypatch):
    module = script("translate_ray")
    # Workers import the class by value, not by the name of a module that they do not have.
    pytest.importorskip("ray.data", reason="Ray is not installed: pip install 'vaswani_hf[ray]'")
    import ray

    monkeypatch.setattr(module, "BATCH_ROWS", 4)
    ray.cloudpickle.register_pickle_by_value(module)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield module
    ray.shutdown()


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name, texts in {"a": TEXTS, "b": TEXTS[:3], "empty": []}.items():
        table = pyarrow.table({"id": range(len(texts)), "text": pyarrow.array(texts, pyarrow.string())})
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet")
    return folder


def test_rows_keep_their_places_and_nothing_is_translated_twice(
    ray_script, source, tiny_checkpoint, tmp_path, capsys, monkeypatch
):
    checkpoint, output = tiny_checkpoint(), tmp_path / "out"
    words = [str(checkpoint), str(source), str(output), "--workers", "2", "--device", "cpu"]
    ray_script.main(words)
    expected = list(Translator.from_pretrained(str(checkpoint), "cpu").translate([text or "" for text in TEXTS]))
    expected = [None if text is None else made for text, made in zip(TEXTS, expected, strict=True)]
    table = pyarrow.parquet.read_table(output / "a.parquet")
    assert table.column_names == ["id", "text", "translation"]
    assert table.column("id").to_pylist() == list(range(len(TEXTS)))
    assert table.column("text").to_pylist() == TEXTS
    assert table.column("translation").to_pylist() == expected
    assert pyarrow.parquet.read_table(output / "b.parquet").column("translation").to_pylist() == expected[:3]
    assert pyarrow.parquet.read_table(output / "empty.parquet").num_rows == 0
    assert sorted(path.name for path in output.iterdir()) == ["a.parquet", "b.parquet", "empty.parquet"]
    # A run that was killed: one file is missing, one is cut off, one is half written under another name.
    times = {path.name: path.stat().st_mtime_ns for path in output.iterdir()}
    content = (output / "a.parquet").read_bytes()
    (output / "a.parquet").write_bytes(content[: len(content) // 2])
    (output / "b.parquet").rename(output / ".b.parquet.unfinished")
    capsys.readouterr()
    ray_script.main(words)
    out = capsys.readouterr().out
    assert f"'{output}/a.parquet' is damaged and is translated again\n3 files, 1 of them translated already\n" in out
    assert sorted(path.name for path in output.iterdir()) == ["a.parquet", "b.parquet", "empty.parquet"]
    assert pyarrow.parquet.read_table(output / "a.parquet").equals(table)
    assert (output / "empty.parquet").stat().st_mtime_ns == times["empty.parquet"]
    monkeypatch.setattr(ray_script, "translate", pytest.fail)
    ray_script.main(words)
    assert capsys.readouterr().out == "3 files, 3 of them translated already\n"
    os.utime(source / "b.parquet", ns=(1, 1))
    with pytest.raises(SystemExit) as caught:
        ray_script.main(words)
    assert str(caught.value) == (
        f"translate_ray: '{output}/b.parquet' was made from another file, checkpoint or options than these; choose another "
        "OUTPUT, or remove it."
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"input": "none"}, "INPUT must be a Parquet file or a folder of them, but '{0}/none' does not exist."),
        ({"output": "in"}, "OUTPUT must be another folder than that of INPUT, but is '{0}/in'."),
        (
            {"input": "in/a.parquet", "output": "in"},
            "OUTPUT must be another folder than that of INPUT, but is '{0}/in'.",
        ),
        ({"output": "in/a.parquet"}, "OUTPUT must be a folder, but '{0}/in/a.parquet' is a file."),
        ({"input": "."}, "INPUT must hold .parquet files, but '{0}' has none."),
        ({"column": "texts"}, "`--column` must be one of id, text, which '{0}/in/a.parquet' has, but is texts."),
        ({"column": "id"}, "The column `id` of '{0}/in/a.parquet' must hold text, but holds int64."),
        ({"output_column": "id"}, "`--output_column` must be a new column, but '{0}/in/a.parquet' has `id` already."),
        ({"workers": "0"}, "`--workers` must be positive, but is 0."),
        ({"damage": "x"}, "'{0}/in/b.parquet' must be a Parquet file, but is damaged or something else."),
    ],
)
def test_what_cannot_be_translated_is_one_sentence(script, source, tmp_path, change, sentence):
    if change.pop("damage", None):
        (source / "b.parquet").write_bytes(b"PAR1")
    places = [str(tmp_path / change.pop(name, default)) for name, default in (("input", "in"), ("output", "out"))]
    options = [word for name, value in change.items() for word in (f"--{name}", value)]
    with pytest.raises(SystemExit) as caught:
        script("translate_ray").main(["checkpoint", *places, *options])
    assert str(caught.value) == f"translate_ray: {sentence.format(tmp_path)}"
    assert not (tmp_path / "out").exists()
