"""`vaswani distill`: the training sources of a recipe with the translations of a teacher, as pairs that a recipe reads.

This is sequence-level knowledge distillation (Kim & Rush 2016, arXiv 1606.07947, Section 3.2): the student is trained on what
the teacher's search finds. Each line of the file is a pair, with the number of the training pair that its source is from; the
first one has the record of what the file was made with, so that another distillation does not continue it.
"""

import fnmatch
import hashlib
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from datasets import Dataset

from ..checkpoint.files import CHECKPOINT_FILES, recipe_file
from ..checkpoint.loading import checkpoint_folder
from ..checkpoint.tokenizers import direction_tag
from ..data.corpus import load_split, naming_the_split, pin_dataset
from ..data.lines import parse_json
from ..settings.data import AnyData, last_part
from .ctranslate2_files import MODEL_FILE, CTranslate2Files
from .files import Job, Requests, json_line, named, translations_from, with_progress
from .output import LineOutput, check_output, output_file
from .scoring import Translation
from .translator import Request

# Digits of a hash that tell one teacher from another.
_DIGITS = 16


@dataclass(frozen=True, kw_only=True)
class DistillationJob(Job):
    """The work of one `vaswani distill`; its options have the same names. `model` and `ensemble` are the teachers.

    Attributes:
        recipe (Recipe): Its training sources are translated.
        output (str): A file of JSON lines.
        keep_references (bool): The real pairs are written too.
        resume (bool): An output that is there is continued.
    """

    recipe: Any
    output: str
    keep_references: bool = False
    resume: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.recipe.task != "translation":
            raise ValueError(
                f"`vaswani distill` is for recipes of `task: translation`, but `task` is {self.recipe.task}; give another recipe."
            )
        if len(set(self.languages)) < len(self.languages):
            raise ValueError(
                f"`data.source_language` and `data.target_language`, by which `--output` has the sides of a pair, must differ, but "
                f"are both {self.languages[0]!r}; name one of them otherwise."
            )
        places = [os.path.realpath(name) if Path(name).is_dir() else name for name in self.teachers]
        if len(set(places)) < len(places):
            raise ValueError(f"`--teacher` names one model twice, in {', '.join(self.teachers)}; name each once.")
        if self.engine == "ctranslate2" and self.ensemble:
            raise ValueError(
                f"`--teacher` must be one model with `--engine ctranslate2`, which has no ensembles, but is {len(self.teachers)}."
            )
        if not self.output.endswith(".jsonl"):
            raise ValueError(
                f"`--output` must end in .jsonl, by which `--train_pairs` knows JSON lines, but is {self.output}."
            )
        for option in ("train_source", "train_target", "train_pairs"):
            given = getattr(self.recipe.data, option) or []
            for path in [given] if isinstance(given, str) else given:
                if fnmatch.fnmatch(os.path.abspath(self.output), os.path.abspath(path)):
                    raise ValueError(
                        f"`--output` must be another file than `--{option}`, but {self.output} is one of {path}."
                    )
                check_output(self.output, {f"--{option}": path}, resume=self.resume)
        check_output(self.output, {}, resume=self.resume)

    @property
    def teachers(self) -> tuple[str, ...]:
        """All of them, as they were named."""
        return (self.model, *self.ensemble)

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language."""
        return self.recipe.data.source_language, self.recipe.data.target_language


def distill(job: DistillationJob) -> str:
    """Writes the pairs of a job, and says on stderr how fast it went.

    Args:
        job (DistillationJob): The work.

    Returns:
        str: How many pairs there are now.

    Raises:
        ValueError: If a teacher has other languages, or the file to be continued was made with other teachers, settings or text.
    """
    folders = [_folder_of(teacher, job.engine) for teacher in job.teachers]
    prefixes = {_prefix_for(teacher, folder, job) for teacher, folder in zip(job.teachers, folders, strict=True)}
    if len(prefixes) > 1:
        raise ValueError(
            f"`--teacher` must name models that are asked alike, but of {', '.join(job.teachers)} one needs a tag in front of the "
            "text, as a model of both directions, and another does not; take teachers of one kind."
        )
    record = _record(job, folders)
    # The file is locked before it is read: what another process writes meanwhile would be lost.
    with output_file(job.output, "free space and go on with `--resume`", resume=job.resume) as file:
        data: Any = pin_dataset(job.recipe.data, _data_of_beginning(job, record))
        if data.dataset_revision is not None:
            record["dataset_revision"] = data.dataset_revision
        data = _seen_in_training(data)
        pairs: Any = naming_the_split("train", load_split, data, "train", job.recipe.seed)
        done, end = _kept(job, pairs)
        file.keep(end)
        counts = _write(job, file, pairs, None if end else record, done, prefixes.pop())
    more = " more" if done else ""
    said = {"empty": "of the sentences or their translations are empty", "skipped": "sentences were skipped"}
    none = "".join(f"; {counts[name]:,} {words}" for name, words in said.items() if counts[name])
    return f"{counts['pairs']:,}{more} pairs from {counts['sentences']:,}{more} sentences are in '{job.output}'{none}"


def _folder_of(teacher: str, engine: str) -> Path:
    if engine != "ctranslate2":
        return checkpoint_folder(teacher, option="--teacher")
    CTranslate2Files.read(Path(teacher))
    return Path(teacher)


def _prefix_for(teacher: str, folder: Path, job: DistillationJob) -> str:
    """What a teacher needs before a source: the tag of its second direction, or nothing.

    Raises:
        ValueError: If its run has recorded other languages than the recipe has.
    """
    path = recipe_file(folder)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))["data"] if path else {}
        recorded = (data["source_language"], data["target_language"])
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        print(f"'{teacher}' has no record of its languages, which are not compared with the recipe's", file=sys.stderr)
        return ""
    if recorded == job.languages:
        return ""
    is_reverse = recorded == job.languages[::-1]
    if is_reverse and data.get("both_directions"):
        return f"{direction_tag(recorded[0])} "
    remedy = "turn the languages and the files of the recipe round" if is_reverse else "take a recipe of its languages"
    raise ValueError(
        f"`--teacher` '{teacher}' translates from {recorded[0]!r} to {recorded[1]!r}, but the recipe is for "
        f"{job.languages[0]!r} to {job.languages[1]!r}; take another teacher, or {remedy}."
    )


def _seen_in_training(data: AnyData) -> AnyData:
    """The sources without the corpora of weight 0."""
    if not data.train_weights:
        return data
    of_kinds: dict[str, Any] = {
        name: [path for path, weight in zip(paths, data.train_weights, strict=True) if weight]
        for name in ("train_source", "train_target", "train_pairs")
        if (paths := data.listed(name))
    }
    return data.replace(train_weights=[], **of_kinds)


def _record(job: DistillationJob, folders: list[Path]) -> dict[str, Any]:
    """What the translations depend on, but for the text, as JSON; no folder of this machine is in it."""
    names = [last_part(name) if Path(name).is_dir() else name for name in job.teachers]
    settings: dict[str, Any] = {
        "languages": list(job.languages),
        "keep_references": job.keep_references,
        "engine": job.engine,
    }
    settings |= {name: value for name in ("dtype", "quantization") if (value := getattr(job, name)) is not None}
    settings |= {"repetition_guard": True} if job.options.repetition_guard else {}
    return {
        "teachers": [f"{name} sha256:{_digest(folder)}" for name, folder in zip(names, folders, strict=True)],
        **settings,
        **job.options.generate,
    }


def _digest(folder: Path) -> str:
    """The beginning of a hash of all files that translating needs."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in (*CHECKPOINT_FILES, MODEL_FILE) for path in folder.glob(pattern)}):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:_DIGITS]


def _written_rows(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Where each complete line of a file begins (bytes), and what it holds."""
    start = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                yield start, parse_json(line.decode(errors="replace"), dict, f"Line {number:,} of {path}")
            start += len(line)


def _data_of_beginning(job: DistillationJob, record: dict[str, Any]) -> AnyData | None:
    """The data section that an output was begun with; None if it has no complete line.

    Raises:
        ValueError: If no distillation wrote the output, or one with another record.
    """
    _, row = next(_written_rows(job.output), (0, None))
    if row is None and _is_beginning(Path(job.output).read_bytes(), record):
        return None
    earlier = (row or {}).get("distillation")
    if not isinstance(earlier, dict):
        raise ValueError(
            f"`--resume` continues what `vaswani distill` wrote, but the first line of {job.output} is no record of that; give "
            "another name, or delete the file."
        )
    revision = earlier.pop("dataset_revision", None)
    for name in dict.fromkeys([*record, *earlier]):
        before, now = (_words(found.get(name)) for found in (earlier, record))
        if before != now and not (name == "teachers" and _hashes(before) == _hashes(now)):
            raise ValueError(
                f"{job.output} was begun with `{name}` {before}, and cannot be continued with {now}; continue it as it was "
                "begun, or give another name."
            )
    return job.recipe.data.replace(dataset_revision=revision)


def _hashes(teachers: str) -> list[str]:
    """Those of the teachers of a record; a folder may have been renamed."""
    return [teacher.rpartition(" ")[2] for teacher in teachers.split(", ")]


def _is_beginning(fragment: bytes, record: dict[str, Any]) -> bool:
    """True if a first line that broke off can be this record's; text of somebody else must not be lost."""
    begin = json_line({"distillation": record}).rstrip(b"}\n")
    return fragment[: len(begin)] == begin[: len(fragment)]


def _words(value: Any) -> str:
    return "left out" if value is None else ", ".join(value) if isinstance(value, list) else str(value).lower()


def _kept(job: DistillationJob, pairs: Iterable[dict[str, str]]) -> tuple[int, int]:
    """How many training pairs are done, and how many bytes of the output stay; the lines of the last pair may not be all there.

    Raises:
        ValueError: If the output has another source than its pair.
    """
    sources = enumerate((pair["source"] for pair in pairs), 1)
    last, end, source = 1, 0, None
    for line, (start, row) in enumerate(_written_rows(job.output), 1):
        if source is None or row.get("pair") != last:
            last, end = row.get("pair", 0), start
            source = next((source for number, source in sources if number == last), None)
        translation = row.get("translation")
        if source is None or not isinstance(translation, dict) or translation.get(job.languages[0]) != source:
            raise ValueError(
                f"Line {line:,} of {job.output} has another source than the training pair {last} of the recipe; continue it "
                "with the recipe that it was begun with, or give another name."
            )
    return last - 1, end


def _write(
    job: DistillationJob, file: LineOutput, pairs: Any, record: dict[str, Any] | None, done: int, prefix: str
) -> dict[str, int]:
    """Writes the pairs after those that are done, the first line with the record; the prefix is for the teacher alone.

    Raises:
        ValueError: If there is nothing to write.
    """
    waiting: deque[tuple[int, dict[str, str]]] = deque()

    def requests() -> Iterator[Request]:
        for number, pair in enumerate(pairs, 1):
            if number > done:
                waiting.append((number, pair))
            yield Request(prefix + pair["source"])

    counts = {"sentences": 0, "empty": 0, "skipped": 0, "pairs": 0}
    total = len(pairs) if isinstance(pairs, Dataset) else None
    given = Requests(requests())
    with closing(translations_from(job, given, done)) as translations:
        new = named(translations, "the training split", done, given)
        for translation in with_progress(new, "distilling", total, done, to_file=True):
            number, pair = waiting.popleft()
            rows: list[dict[str, Any]] = [{"translation": of, "pair": number} for of in _texts(job, pair, translation)]
            if rows and record is not None:
                rows[0], record = {"distillation": record} | rows[0], None
            if rows:
                file.write(b"".join(map(json_line, rows)))
            is_skipped = bool(getattr(translation, "error", None))
            for name, count in (
                ("sentences", 1),
                ("empty", not (rows or is_skipped)),
                ("skipped", is_skipped),
                ("pairs", len(rows)),
            ):
                counts[name] += count
        if record is not None:
            raise ValueError(
                f"`--teacher` {', '.join(job.teachers)} has only empty translations for the {counts['sentences']:,} sentences of the "
                "training split, or these are empty; take a teacher that is trained, or other text."
            )
    return counts


def _texts(job: DistillationJob, pair: dict[str, str], translation: str | Translation) -> list[dict[str, str]]:
    """The pairs to train on that a training pair gives, each once; none with an empty side, and none of a sentence that is skipped."""
    if getattr(translation, "error", None):
        return []
    if isinstance(translation, str):
        targets = [translation]
    else:
        targets = [translation.text, *(other.text for other in translation.alternatives or ())]
    targets += [pair["target"]] if job.keep_references else []
    filled = [target for target in dict.fromkeys(targets) if target.strip() and pair["source"].strip()]
    return [dict(zip(job.languages, (pair["source"], target), strict=True)) for target in filled]
