"""Translate a column of Parquet files with Ray Data, on the processors of this machine or of a whole cluster.

Run `python scripts/translate_ray.py CHECKPOINT INPUT OUTPUT --column text [--workers 2]` after `pip install 'vaswani_hf[ray]'`.
INPUT is a Parquet file or a folder of them, OUTPUT another folder; all machines see both. Each file gives one of the same name
and the same rows, with a column `translation` beside the others; null stays null. Each worker holds one model and takes file
after file, so that there should be more files than workers. A file is there when it is whole: run the command again after it
was killed, and only what is missing is translated. With RAY_ADDRESS set, Ray joins that cluster.
"""

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

# Rows that are in memory at once, enough to sort by length.
BATCH_ROWS = 4096
# What a finished file was made of, in the metadata of its schema.
ORIGIN = b"vaswani_hf.origin"


class FileTranslator:
    """A worker: one model, which translates a column of file after file."""

    def __init__(self, place: dict[str, Any]):
        """Loads the model."""
        from vaswani_hf.translation import Translator

        self._translator = Translator.from_pretrained(place["checkpoint"], place["device"])
        self._place = place

    def __call__(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Writes a translated file, which has its name when all of it is there, and says which."""
        target = Path(entry["target"])
        unfinished = target.with_name(f".{target.name}.unfinished")
        with pyarrow.parquet.ParquetFile(entry["path"]) as file:
            field = pyarrow.field(self._place["output_column"], pyarrow.string())
            metadata = {**(file.schema_arrow.metadata or {}), ORIGIN: entry["origin"]}
            schema = file.schema_arrow.append(field).with_metadata(metadata)
            with pyarrow.parquet.ParquetWriter(unfinished, schema) as writer:
                for batch in file.iter_batches(batch_size=self._place["batch_rows"]):
                    columns = [*batch.columns, self._translations(batch.column(self._place["column"]).to_pylist())]
                    writer.write_batch(pyarrow.record_batch(columns, schema=schema))
        os.replace(unfinished, target)
        return {"target": entry["target"]}

    def _translations(self, texts: list[str | None]) -> pyarrow.Array:
        found = self._translator.translate([text for text in texts if text is not None], **self._place["options"])
        return pyarrow.array([None if text is None else next(found) for text in texts], pyarrow.string())


def refuse(sentence: str) -> None:
    """End with a sentence."""
    sys.exit(f"translate_ray: {sentence}")


def input_files(source: Path, output: Path) -> list[Path]:
    """The Parquet files of the input, by name."""
    if not source.exists():
        refuse(f"INPUT must be a Parquet file or a folder of them, but '{source}' does not exist.")
    folder = source if source.is_dir() else source.parent
    if output.resolve() == folder.resolve():
        refuse(f"OUTPUT must be another folder than that of INPUT, but is '{output}'.")
    if output.exists() and not output.is_dir():
        refuse(f"OUTPUT must be a folder, but '{output}' is a file.")
    files = sorted(source.glob("*.parquet")) if source.is_dir() else [source]
    if not files:
        refuse(f"INPUT must hold .parquet files, but '{source}' has none.")
    return files


def check_column(path: Path, column: str, output_column: str) -> None:
    """Refuse a file without a column of texts, or with one that the translations would replace."""
    try:
        schema = pyarrow.parquet.read_schema(path)
    except (pyarrow.ArrowInvalid, OSError):
        refuse(f"'{path}' must be a Parquet file, but is damaged or something else.")
    if column not in schema.names:
        refuse(f"`--column` must be one of {', '.join(schema.names)}, which '{path}' has, but is {column}.")
    kind = schema.field(column).type
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind) or pyarrow.types.is_null(kind)):
        refuse(f"The column `{column}` of '{path}' must hold text, but holds {kind}.")
    if output_column in schema.names:
        refuse(f"`--output_column` must be a new column, but '{path}' has `{output_column}` already.")


def origin_of(path: Path, arguments: argparse.Namespace) -> bytes:
    """What a translated file depends on: the file, the checkpoint and the options."""
    stamp = path.stat()
    config = Path(arguments.checkpoint, "model.safetensors")
    model = [config.stat().st_size, config.stat().st_mtime_ns] if config.is_file() else []
    facts = [path.name, stamp.st_size, stamp.st_mtime_ns, os.fspath(arguments.checkpoint), *model]
    facts += [arguments.column, arguments.output_column, arguments.num_beams]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest().encode()


def is_done(target: Path, path: Path, origin: bytes) -> bool:
    """True if a file is translated; one that is damaged is named, and one of another origin is refused."""
    if not target.exists():
        return False
    try:
        made = pyarrow.parquet.ParquetFile(target)
        # Every page is read: a file may be cut off, or changed, in its middle.
        rows = sum(len(batch) for batch in made.iter_batches())
    except (pyarrow.ArrowException, OSError):
        print(f"'{target}' is damaged and is translated again", flush=True)
        return False
    if (made.schema_arrow.metadata or {}).get(ORIGIN) != origin:
        refuse(
            f"'{target}' was made from another file, checkpoint or options than these; choose another OUTPUT, or remove it."
        )
    if rows != pyarrow.parquet.read_metadata(path).num_rows:
        print(f"'{target}' is damaged and is translated again", flush=True)
        return False
    return True


def translate(missing: list[tuple[Path, Path, bytes]], arguments: argparse.Namespace) -> None:
    """Translate files, as many at once as there are workers."""
    import ray.data

    names = ("checkpoint", "device", "column", "output_column")
    place = {name: getattr(arguments, name) for name in names} | {"batch_rows": BATCH_ROWS}
    place["options"] = {} if arguments.num_beams is None else {"num_beams": arguments.num_beams}
    entries = [
        {"path": str(path.resolve()), "target": str(target.resolve()), "origin": origin}
        for path, target, origin in missing
    ]
    # A block for each file, or a worker would take several before another has one.
    worker: Any = FileTranslator
    files = ray.data.from_items(entries, override_num_blocks=len(entries)).map(
        worker,
        fn_constructor_args=(place,),
        compute=ray.data.ActorPoolStrategy(size=min(arguments.workers, len(entries))),
        num_gpus=arguments.num_gpus,
    )
    for number, made in enumerate(files.iter_rows(), 1):
        print(f"{number:,} of {len(entries):,}: '{made['target']}'", flush=True)


def main(words: list[str] | None = None) -> None:
    """Translate every file that is not translated yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="a checkpoint folder, or a repository of the Hub")
    parser.add_argument("input", type=Path, help="a Parquet file or a folder of them")
    parser.add_argument("output", type=Path, help="the folder of the translated files")
    parser.add_argument("--column", default="text", help="the texts (text)")
    parser.add_argument("--output_column", default="translation", help="the new column (translation)")
    parser.add_argument("--workers", type=int, default=1, help="models at work at once (1)")
    parser.add_argument("--num_gpus", type=float, default=0, help="GPUs of each (0)")
    parser.add_argument("--device", help="cpu or cuda; by default a GPU where a worker has one")
    parser.add_argument("--num_beams", type=int, help="by default that of the checkpoint")
    arguments = parser.parse_args(words)
    if arguments.workers < 1:
        refuse(f"`--workers` must be positive, but is {arguments.workers}.")
    if os.path.isdir(arguments.checkpoint):
        # Workers have another working directory.
        arguments.checkpoint = os.path.abspath(arguments.checkpoint)
    files = input_files(arguments.input, arguments.output)
    for path in files:
        check_column(path, arguments.column, arguments.output_column)
    arguments.output.mkdir(parents=True, exist_ok=True)
    targets = [(path, arguments.output / path.name, origin_of(path, arguments)) for path in files]
    missing = [entry for entry in targets if not is_done(entry[1], entry[0], entry[2])]
    print(f"{len(files):,} files, {len(files) - len(missing):,} of them translated already", flush=True)
    if not missing:
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        refuse("Ray is not installed; install it with `pip install 'vaswani_hf[ray]'`.")
    if not ray.is_initialized():
        local: dict[str, Any] = {"num_cpus": arguments.workers, "_node_ip_address": "127.0.0.1"}
        ray.init(include_dashboard=False, log_to_driver=False, **({} if os.environ.get("RAY_ADDRESS") else local))
    translate(missing, arguments)


if __name__ == "__main__":
    main()
