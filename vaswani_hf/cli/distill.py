"""`vaswani distill`: the training sources of a recipe with the translations of a teacher, as pairs that a recipe reads.

This is sequence-level knowledge distillation (Kim & Rush 2016, arXiv 1606.07947, Section 3.2): the student is trained
on the translations that the teacher's search finds. Each line of the output is a pair with the number of the training
pair that its source is from. The first line names the teacher, for the credits of the student.
"""

import fnmatch
import os
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sized
from contextlib import closing
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from ..checkpoint.files import recipe_file
from ..checkpoint.loading import checkpoint_folder
from ..checkpoint.tokenizers import direction_tag
from ..data.lines import parse_json
from ..model.inputs_vaswani import Request
from ..model.translator_vaswani import Translation, TranslationOptions
from ..translation.ctranslate2_files import CTranslate2Files
from .lines import CountedRequests, json_line, naming_bad_lines, translations_from, with_progress
from .options import SEARCH, EngineOptions, on_command_line, translation_options
from .output import check_output, output_file
from .train import RecipeOptions

_SearchFields: Any = translation_options(*SEARCH, "repetition_guard", "num_return_sequences", "on_error")
# The first line of an output begins with these bytes.
_BEGINNING = b'{"distillation": '


class DistillOptions(_SearchFields, EngineOptions, RecipeOptions):
    """The options of `vaswani distill`."""

    teacher: list[str] = on_command_line(metavar="MODEL")
    """a checkpoint (as for translate), or several of one vocabulary, whose probabilities are averaged"""
    output: str
    """a new file of JSON lines (.jsonl), for --train_pairs"""
    keep_references: bool = False
    """write the real pairs too"""
    resume: bool = False
    """go on where an --output that exists breaks off"""

    @model_validator(mode="after")
    def _check_teachers(self) -> Self:
        places = {os.path.realpath(name) if Path(name).is_dir() else name for name in self.teacher}
        if len(places) < len(self.teacher):
            raise ValueError(
                f"`--teacher` names one model twice, in {', '.join(self.teacher)}; name each once."
            )
        if self.engine == "ctranslate2" and len(self.teacher) > 1:
            raise ValueError(
                "`--teacher` must be one model with `--engine ctranslate2`, which has no ensembles, but is "
                f"{len(self.teacher)}."
            )
        return self

    @model_validator(mode="after")
    def _check_output(self) -> Self:
        if not self.output.endswith(".jsonl"):
            raise ValueError(
                f"`--output` must end in .jsonl, by which `--train_pairs` knows JSON lines, but is {self.output}."
            )
        check_output(self.output, {}, resume=self.resume)
        return self


def run(options: DistillOptions) -> None:
    """Write the pairs, and print how many there are."""
    from ..data.corpus import naming_the_split
    from ..recipe.loading import load_recipe
    from ..tasks import TASKS

    recipe = load_recipe(options.recipe, options.overrides)
    languages = _languages_of(recipe)
    _check_inputs(options, recipe.data)
    prefix = _prefix_of(options, languages)
    chosen = TranslationOptions.of(**options.translation_settings())
    # The file is locked before it is read, so that nothing that another process writes is lost.
    with output_file(options.output, "free space and go on with `--resume`", resume=options.resume) as file:
        done, size, record = _finished_part(options.output)
        # A continued distillation reads the commit of the dataset that it began with.
        earlier = None
        if record is not None:
            earlier = recipe.data.replace(dataset_revision=record.get("dataset_revision"))
        task = TASKS[recipe.task]
        data = task.pin_data(recipe.data, earlier)
        pairs: Any = naming_the_split("train", task.load_split, _seen_in_training(data), "train", recipe.seed)
        file.keep(size)
        header = {} if size else {"distillation": _record(options, chosen, data.dataset_revision)}
        counts = Counter[str]()
        for number, pair, translation in _translated(options, chosen, pairs, prefix, done):
            targets = _targets(pair, translation, options.keep_references)
            rows = [
                {"translation": dict(zip(languages, (pair["source"], target), strict=True)), "pair": number}
                for target in targets
            ]
            if rows:
                rows[0] = header | rows[0]
                header = {}
                file.write(b"".join(map(json_line, rows)))
            is_skipped = bool(getattr(translation, "error", None))
            counts.update(sentences=1, pairs=len(rows), skipped=is_skipped, empty=not rows and not is_skipped)
        if header:
            raise ValueError(
                f"`--teacher` {', '.join(options.teacher)} has only empty translations for the {counts['sentences']:,} "
                "sentences of the training split, or these are empty; take a teacher that is trained, or other text."
            )
    more = " more" if done else ""
    said = {"empty": "of the sentences or their translations are empty", "skipped": "sentences were skipped"}
    notes = "".join(f"; {counts[name]:,} {words}" for name, words in said.items() if counts[name])
    sentences = f"{counts['sentences']:,}{more} sentences"
    print(f"{counts['pairs']:,}{more} pairs from {sentences} are in '{options.output}'{notes}")


def _languages_of(recipe: Any) -> tuple[str, str]:
    """The source and the target language of a recipe of translation."""
    from ..tasks.translation import TranslationData

    if not isinstance(recipe.data, TranslationData):
        raise ValueError(
            f"`vaswani distill` is for recipes of `task: translation`, but `task` is {recipe.task}; give another recipe."
        )
    languages = (recipe.data.source_language, recipe.data.target_language)
    if languages[0] == languages[1]:
        raise ValueError(
            f"`data.source_language` and `data.target_language` are both {languages[0]!r}, but they name the two sides "
            "of a pair in `--output`; give one of them another name."
        )
    return languages


def _check_inputs(options: DistillOptions, data: Any) -> None:
    """Refuse an output that is one of the training files, or that their pattern matches."""
    for name in ("train_source", "train_target", "train_pairs"):
        for path in data.listed(name):
            if fnmatch.fnmatch(os.path.realpath(options.output), os.path.realpath(path)):
                raise ValueError(
                    f"`--output` must be another file than `--{name}`, but {options.output} is one of {path}."
                )


def _prefix_of(options: DistillOptions, languages: tuple[str, str]) -> str:
    """The text that the teachers need before each source: the tag of a second direction, or nothing."""
    prefixes = {_prefix_of_teacher(teacher, options.engine, languages) for teacher in options.teacher}
    if len(prefixes) > 1:
        raise ValueError(
            f"`--teacher` must name models that are asked alike, but of {', '.join(options.teacher)} one needs a tag in "
            "front of the text, as a model of both directions, and another does not; take teachers of one kind."
        )
    return prefixes.pop()


def _prefix_of_teacher(teacher: str, engine: str, languages: tuple[str, str]) -> str:
    from ..recipe.loading import readable_record

    if engine == "ctranslate2":
        folder = Path(teacher)
        CTranslate2Files.read(folder)
    else:
        folder = checkpoint_folder(teacher, option="--teacher")
    record = readable_record(recipe_file(folder))
    if record is None:
        print(
            f"'{teacher}' has no record of its languages, which are not compared with the recipe's",
            file=sys.stderr,
        )
        return ""
    recorded = (record.data.source_language, record.data.target_language)
    if recorded == languages:
        return ""
    is_reverse = recorded == languages[::-1]
    if is_reverse and record.data.both_directions:
        return f"{direction_tag(recorded[0])} "
    remedy = (
        "turn the languages and the files of the recipe round"
        if is_reverse
        else "take a recipe of its languages"
    )
    raise ValueError(
        f"`--teacher` '{teacher}' translates from {recorded[0]!r} to {recorded[1]!r}, but the recipe is for "
        f"{languages[0]!r} to {languages[1]!r}; take another teacher, or {remedy}."
    )


def _finished_part(path: str) -> tuple[int, int, dict[str, Any] | None]:
    """The number of training pairs that a file has, their size in bytes, and the record of the first line.

    The lines of the last training pair are not counted, because some of them may be missing.
    """
    record = None
    pair = start = size = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if (
                number == 1
                and not line.startswith(_BEGINNING)
                and not (size == 0 and _BEGINNING.startswith(line))
            ):
                raise ValueError(
                    f"`--resume` continues what `vaswani distill` wrote, but the first line of {path} is no record of "
                    "that; give another name, or delete the file."
                )
            if not line.endswith(b"\n"):
                break
            row = parse_json(line.decode(errors="replace"), dict, f"Line {number:,} of {path}")
            record = record or row["distillation"]
            if row.get("pair", pair) != pair:
                pair, start = row["pair"], size
            size += len(line)
    return max(0, pair - 1), start, record


def _seen_in_training(data: Any) -> Any:
    """The sources without the corpora of weight 0."""
    if not data.train_weights:
        return data
    kept: dict[str, Any] = {}
    for name in ("train_source", "train_target", "train_pairs"):
        if paths := data.listed(name):
            kept[name] = [path for path, weight in zip(paths, data.train_weights, strict=True) if weight]
    return data.replace(train_weights=[], **kept)


def _record(
    options: DistillOptions, chosen: TranslationOptions, dataset_revision: str | None
) -> dict[str, Any]:
    """The teachers and their search. No folder of this machine is in the record."""
    teachers = [
        os.path.basename(os.path.abspath(name)) if Path(name).is_dir() else name for name in options.teacher
    ]
    record = {"teachers": teachers, **chosen.generate}
    return record if dataset_revision is None else record | {"dataset_revision": dataset_revision}


def _translated(
    options: DistillOptions, chosen: TranslationOptions, pairs: Any, prefix: str, done: int
) -> Iterator[tuple[int, dict[str, str], Any]]:
    """The number, the training pair and the translation of each training pair after the first `done`."""
    waiting: deque[tuple[int, dict[str, str]]] = deque()

    def requests() -> Iterator[Request]:
        for number, pair in enumerate(pairs, 1):
            if number > done:
                waiting.append((number, pair))
            yield Request(prefix + pair["source"])

    counted = CountedRequests(requests())
    first, *others = options.teacher
    load = options.translator_loader(first, others)
    total = len(pairs) if isinstance(pairs, Sized) else None
    with closing(translations_from(load, options, counted, chosen, done)) as translations:
        lines = naming_bad_lines(translations, "the training split", done, counted)
        for translation in with_progress(lines, "distilling", total, done, to_file=True):
            yield *waiting.popleft(), translation
    if counted.num_read < done:
        raise ValueError(
            f"{options.output} must not have more training pairs than the recipe to be continued, but has {done + 1:,}; "
            "give another name."
        )


def _targets(pair: dict[str, str], translation: str | Translation, keep_references: bool) -> list[str]:
    """The targets of a training pair, each once. A skipped sentence has none, and none is empty."""
    if getattr(translation, "error", None) or not pair["source"].strip():
        return []
    if isinstance(translation, str):
        targets = [translation]
    else:
        targets = [translation.text, *(other.text for other in translation.alternatives or ())]
    if keep_references:
        targets.append(pair["target"])
    return [target for target in dict.fromkeys(targets) if target.strip()]
