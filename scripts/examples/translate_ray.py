"""Translates a column of Parquet files with Ray Data on one machine or on a cluster.

Run `python scripts/examples/translate_ray.py CHECKPOINT INPUT OUTPUT --column text --workers 2` after `pip
install '.[ray]'` in the folder of the project. INPUT is a Parquet file or a folder of Parquet files. OUTPUT
is a folder, but not the folder of the input files. All machines must have access to INPUT and OUTPUT. The
script writes the rows of NAME.parquet in the same order to NAME-00000-of-00003.parquet and so on, and adds
the column `translation`. Each output file has at most `--rows_per_file` rows. If a text is null, its
translation is null. Each worker loads one model and uses one CPU core. The script writes an output file under
a temporary name, and renames the complete file. To continue after an interruption, run the same command
again: the script translates only the missing or damaged output files. If RAY_ADDRESS is set, Ray joins the
cluster at the address in
RAY_ADDRESS. If RAY_ADDRESS is not set, Ray runs on this machine only, and its processes listen on the
loopback interface.
"""

import argparse
import hashlib
import json
import logging
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

# The number of rows that a worker reads and translates at once. Use many rows, because the translator sorts
# the texts of these rows by length to reduce padding.
BATCH_ROWS = 4096
# A key of the schema metadata of an output file. The value is a hash that identifies the input file, the
# checkpoint and the options.
ORIGIN = b"vaswani_hf.origin"


class PartTranslator:
    """A Ray worker that loads one model, and translates one range of rows after another."""

    def __init__(self, arguments: argparse.Namespace):
        """Load no model. The model is loaded in `__call__`, so that loading errors are reported like other
        errors.
        """
        self._arguments = arguments
        self._translator: Any = None

    def __call__(self, part: dict[str, Any]) -> dict[str, Any]:
        """Write one output file, and return the path of the file and an error message. The message is empty
        if the file is written.
        """
        try:
            from vaswani_hf.translation.ctranslate2 import Translator, load_ctranslate2_translator

            load: Any = {"torch": Translator.from_pretrained, "ctranslate2": load_ctranslate2_translator}
            arguments = self._arguments
            self._translator = self._translator or load[arguments.engine](
                arguments.checkpoint, arguments.device
            )
            self._write(part)
        except (ValueError, OSError, RuntimeError, pyarrow.ArrowException) as error:
            return {"target": part["target"], "error": f"'{part['path']}' cannot be translated: {error}"}
        return {"target": part["target"], "error": ""}

    def _write(self, part: dict[str, Any]) -> None:
        target, arguments = Path(part["target"]), self._arguments
        beams = {} if arguments.num_beams is None else {"num_beams": arguments.num_beams}
        # Use a unique name, because a worker of an earlier, killed run may still be writing an unfinished
        # file.
        unfinished = target.with_name(f".{target.name}.{uuid.uuid4().hex}.unfinished")
        with pyarrow.parquet.ParquetFile(part["path"]) as file:
            field = pyarrow.field(arguments.output_column, pyarrow.string())
            metadata = {**(file.schema_arrow.metadata or {}), ORIGIN: part["origin"]}
            schema = file.schema_arrow.append(field).with_metadata(metadata)
            with pyarrow.parquet.ParquetWriter(unfinished, schema, write_page_checksum=True) as writer:
                for batch in batches_of(file, part["start"], part["stop"]):
                    texts = batch.column(arguments.column).to_pylist()
                    found = self._translator.translate([text for text in texts if text is not None], **beams)
                    column = pyarrow.array(
                        [None if text is None else next(found) for text in texts], field.type
                    )
                    writer.write_batch(pyarrow.record_batch([*batch.columns, column], schema=schema))
        os.replace(unfinished, target)


def batches_of(file: Any, start: int, stop: int) -> Iterator[Any]:
    """Yield the rows from `start` to `stop` (exclusive) in batches. The function does not read row groups
    outside the range.
    """
    first = 0
    for group in range(file.num_row_groups):
        last = first + file.metadata.row_group(group).num_rows
        if first < stop and last > start:
            for batch in file.iter_batches(batch_size=BATCH_ROWS, row_groups=[group]):
                begin, end = max(start - first, 0), min(stop - first, len(batch))
                if begin < end:
                    yield batch.slice(begin, end - begin)
                first += len(batch)
        first = last


def refuse(sentence: str, is_so: bool = True) -> None:
    """End the process with the error message `sentence`, if `is_so` is True."""
    if is_so:
        sys.exit(f"translate_ray: {sentence}")


def input_files(source: Path, output: Path) -> list[Path]:
    """Return the Parquet files of the input, sorted by name."""
    refuse(
        f"INPUT must be a Parquet file or a folder of Parquet files, but '{source}' does not exist.",
        not source.exists(),
    )
    folder = source if source.is_dir() else source.parent
    is_input = output.resolve() == folder.resolve()
    refuse(f"OUTPUT must not be the folder of INPUT, but is '{output}'.", is_input)
    refuse(f"OUTPUT must be a folder, but '{output}' is a file.", output.is_file())
    files = sorted(source.glob("*.parquet")) if source.is_dir() else [source]
    refuse(f"INPUT must contain .parquet files, but '{source}' contains none.", not files)
    return files


def parts_of(path: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Divide a file into ranges of rows, each with its output file. The file must contain the text column,
    and must not contain the output column.
    """
    column, output_column = arguments.column, arguments.output_column
    try:
        schema, rows = pyarrow.parquet.read_schema(path), pyarrow.parquet.read_metadata(path).num_rows
    except (pyarrow.ArrowInvalid, OSError):
        refuse(f"'{path}' must be a Parquet file, but is damaged or has another format.")
    names = schema.names
    refuse(
        f"`--column` must be one of the columns of '{path}' ({', '.join(names)}), but is {column}.",
        column not in names,
    )
    kind = schema.field(column).type
    is_text = kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view(), pyarrow.null())
    refuse(f"The column `{column}` of '{path}' must contain text, but contains {kind}.", not is_text)
    has_output = output_column in names
    refuse(f"`--output_column` must be a new column, but '{path}' has `{output_column}` already.", has_output)
    weights = [
        file for kind in ("*.safetensors", "*.bin") for file in sorted(Path(arguments.checkpoint).glob(kind))
    ]
    stamps = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in (path, *weights)]
    facts = [
        stamps,
        arguments.checkpoint,
        column,
        output_column,
        arguments.num_beams,
        arguments.rows_per_file,
    ]
    origin = hashlib.sha256(json.dumps(facts).encode()).hexdigest().encode()
    starts, parts = range(0, max(rows, 1), arguments.rows_per_file), []
    for number, start in enumerate(starts):
        # Number the output file even if there is only one, so that two input files never have the same output
        # file.
        name = f"{path.stem}-{number:05}-of-{len(starts):05}.parquet"
        part = {
            "path": str(path.resolve()),
            "origin": origin,
            "target": str(arguments.output.resolve() / name),
        }
        parts.append({**part, "start": start, "stop": min(start + arguments.rows_per_file, rows)})
    return parts


def is_done(part: dict[str, Any]) -> bool:
    """Return True if the output file of a range of rows (`part`) is complete. If the output file is damaged,
    print its name and return False. End the process with an error if the file was made from another input or
    with other options.
    """
    target, remedy = part["target"], "choose another OUTPUT, or remove the file"
    if not os.path.exists(target):
        return False
    try:
        with pyarrow.parquet.ParquetFile(target, page_checksum_verification=True) as made:
            # Read all pages, because only a full read finds damage in the middle of a file.
            rows = sum(len(batch) for batch in made.iter_batches())
            origin = (made.schema_arrow.metadata or {}).get(ORIGIN)
    except (pyarrow.ArrowException, OSError):
        rows, origin = -1, part["origin"]
    is_other = origin != part["origin"]
    refuse(
        f"'{target}' was made from another input file or checkpoint, or with other options; {remedy}.",
        is_other,
    )
    is_whole = rows == part["stop"] - part["start"]
    if not is_whole:
        print(f"'{target}' is damaged and is translated again", flush=True)
    return is_whole


def missing_parts(parts: list[dict[str, Any]], output: Path) -> list[dict[str, Any]]:
    """Return the ranges of rows (`parts`) that are not translated yet. End the process with an error if the
    output folder has files of another run.
    """
    targets = {part["target"] for part in parts}
    for path in sorted(output.resolve().glob("*.parquet")):
        is_stranger = str(path) not in targets
        refuse(
            f"OUTPUT must contain only output files of this run, but contains '{path}'; choose another OUTPUT.",
            is_stranger,
        )
    return [part for part in parts if not is_done(part)]


def translate(parts: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Translate ranges of rows in parallel. Each worker translates one range at a time."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    is_local = not os.environ.get("RAY_ADDRESS")
    if is_local:
        # Turn off the cluster mode of Ray, so that all processes of Ray listen only on the loopback
        # interface.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    local: Any = {"num_cpus": arguments.workers, "include_dashboard": False} if is_local else {}
    try:
        import ray.data
    except ImportError:
        from vaswani_hf.version import install_command

        refuse(f"Ray is not installed; install it with `{install_command('ray')}`.")
    ray.init(log_to_driver=False, logging_level=logging.ERROR, **local)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    lacks = is_local and ray.cluster_resources().get("GPU", 0) < arguments.num_gpus
    refuse(
        f"`--num_gpus` must be at most the number of GPUs of this machine, but is {arguments.num_gpus:g}.",
        lacks,
    )
    # Give Ray one block for each range of rows (`part`), because with larger blocks one worker could get
    # several ranges while another worker waits.
    entries: Any = ray.data.from_items(parts, override_num_blocks=len(parts))
    pool = ray.data.ActorPoolStrategy(size=min(arguments.workers, len(parts)))
    made = entries.map(
        PartTranslator, fn_constructor_args=(arguments,), compute=pool, num_gpus=arguments.num_gpus
    )
    for number, part in enumerate(made.iter_rows(), 1):
        refuse(part["error"], bool(part["error"]))
        print(f"{number:,} of {len(parts):,}: '{part['target']}'", flush=True)


def main(words: list[str] | None = None) -> None:
    """Translate the ranges of rows that are not translated yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", help="a checkpoint folder, or a repository of the Hub")
    parser.add_argument("input", type=Path, help="a Parquet file or a folder of Parquet files")
    parser.add_argument("output", type=Path, help="the folder of the translated files")
    parser.add_argument("--column", default="text", help="the column of the texts; default: text")
    parser.add_argument("--output_column", default="translation", help="the new column; default: translation")
    parser.add_argument(
        "--rows_per_file",
        type=int,
        default=100_000,
        help="the maximum number of rows of an output file; default: 100000",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help="number of workers, each with one model; default: 1",
    )
    parser.add_argument("--num_gpus", type=float, default=0, help="GPUs of each worker; default: 0")
    parser.add_argument("--device", help="cpu or cuda; default: a GPU if the worker has one")
    parser.add_argument(
        "--num_beams", type=int, help="number of beams; default: `num_beams` of the checkpoint"
    )
    parser.add_argument(
        "--engine",
        choices=("torch", "ctranslate2"),
        default="torch",
        help="the backend of the search; default: torch",
    )
    arguments = parser.parse_args(words)
    for name in ("workers", "rows_per_file"):
        refuse(
            f"`--{name}` must be positive, but is {getattr(arguments, name)}.", getattr(arguments, name) < 1
        )
    if os.path.isdir(arguments.checkpoint):
        # Use an absolute path, because workers have another working directory.
        arguments.checkpoint = os.path.abspath(arguments.checkpoint)
    parts = [
        part for path in input_files(arguments.input, arguments.output) for part in parts_of(path, arguments)
    ]
    arguments.output.mkdir(parents=True, exist_ok=True)
    missing = missing_parts(parts, arguments.output)
    for unfinished in arguments.output.glob(".*.unfinished"):
        unfinished.unlink()
    print(f"{len(parts):,} files, {len(parts) - len(missing):,} of them translated already", flush=True)
    if missing:
        translate(missing, arguments)


if __name__ == "__main__":
    main()
