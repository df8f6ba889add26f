"""`vaswani distill`: translates the training sources of a recipe with a teacher model, for a student model.

This is sequence-level knowledge distillation (Kim & Rush 2016, arXiv 1606.07947, Section 3.2): the student is
trained on the translations that the teacher's search finds. Each line of the output is one pair in JSON. The
key `pair` is the number of the training pair that has the same source. The first line also records the
teachers and their search.
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
from .lines import CountedRequests, json_line, report_bad_lines, translate_remaining, with_progress
from .options import SEARCH, EngineOptions, check_different, on_command_line, translation_options
from .output import check_output, output_file
from .train import RecipeOptions

_SearchFields: Any = translation_options(*SEARCH, "repetition_guard", "num_return_sequences", "on_error")
# An output begins with these bytes. `--resume` recognises an output by them.
_BEGINNING = b'{"distillation": '


class DistillOptions(_SearchFields, EngineOptions, RecipeOptions):
    """The options of `vaswani distill`."""

    teacher: list[str] = on_command_line(metavar="MODEL")
    """a checkpoint folder or a repository on the Hub; or several with one vocabulary, whose probabilities are
    averaged"""
    output: str
    """a new file of JSON lines (.jsonl); train the student with `--train_pairs` and the name of this file"""
    keep_references: bool = False
    """write the training pairs with their real targets too"""
    resume: bool = False
    """continue an existing --output after its last complete sentence"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_different("--teacher", self.teacher)
        if self.engine == "ctranslate2" and len(self.teacher) > 1:
            raise ValueError(
                "`--teacher` must be one model with `--engine ctranslate2`, which has no ensembles, but is "
                f"{len(self.teacher)}."
            )
        if not self.output.endswith(".jsonl"):
            raise ValueError(
                "`--output` must end in .jsonl, by which `--train_pairs` knows JSON lines, but is "
                f"{self.output}."
            )
        check_output(self.output, {}, resume=self.resume)
        return self


def run(options: DistillOptions) -> None:
    """Write the pairs, and print their number."""
    from ..data.corpus import call_naming_split
    from ..recipe.loading import load_recipe
    from ..tasks import TASKS

    recipe = load_recipe(options.recipe, options.overrides)
    languages = _languages_of(recipe)
    _check_inputs(options, recipe.data)
    tag = _tag_for_teachers(options, languages)
    chosen = TranslationOptions.of(**options.translation_settings())
    # Lock the file before reading it, because another process may be writing it.
    with output_file(options.output, "free space and go on with `--resume`", resume=options.resume) as file:
        done, size, record = _finished_part(options.output)
        earlier = None
        if record is not None:
            # Continue with the commit of the dataset that the output began with.
            earlier = recipe.data.replace(dataset_revision=record.get("dataset_revision"))
        task = TASKS[recipe.task]
        data = task.pin_data(recipe.data, earlier)
        pairs: Any = call_naming_split(
            "train", task.load_split, _without_unused_corpora(data), "train", recipe.seed
        )
        file.keep(size)
        header = {} if size else {"distillation": _record(options, chosen, data.dataset_revision)}
        counts = Counter[str]()
        for number, pair, translation in _translated(options, chosen, pairs, tag, done):
            rows = []
            for target in _targets(pair, translation, options.keep_references):
                sides = dict(zip(languages, (pair["source"], target), strict=True))
                rows.append({"translation": sides, "pair": number})
            if rows:
                rows[0] = header | rows[0]
                header = {}
                file.write(b"".join(map(json_line, rows)))
            is_skipped = bool(getattr(translation, "error", None))
            counts.update(sentences=1, pairs=len(rows), skipped=is_skipped, empty=not rows and not is_skipped)
        if header:
            raise ValueError(
                f"`--teacher` {', '.join(options.teacher)} has only empty translations for the "
                f"{counts['sentences']:,} sentences of the training split, or these are empty; take a "
                "teacher that is trained, or other text."
            )
    more = " more" if done else ""
    message = f"{counts['pairs']:,}{more} pairs from {counts['sentences']:,}{more} sentences"
    message += f" are in '{options.output}'"
    if counts["empty"]:
        message += f"; {counts['empty']:,} of the sentences or their translations are empty"
    if counts["skipped"]:
        message += f"; {counts['skipped']:,} sentences were skipped"
    print(message)


def _languages_of(recipe: Any) -> tuple[str, str]:
    """The source and the target language of a recipe of translation."""
    from ..tasks.translation import TranslationData

    if not isinstance(recipe.data, TranslationData):
        raise ValueError(
            f"`vaswani distill` is for recipes of `task: translation`, but `task` is {recipe.task}; give "
            "another recipe."
        )
    languages = (recipe.data.source_language, recipe.data.target_language)
    if languages[0] == languages[1]:
        raise ValueError(
            f"`data.source_language` and `data.target_language` are both {languages[0]!r}, but they name the "
            "two sides of a pair in `--output`; give one of them another name."
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


def _tag_for_teachers(options: DistillOptions, languages: tuple[str, str]) -> str:
    """The tag and the space that the teachers need before each source. Empty for teachers of one direction."""
    tags = {_tag_for_teacher(teacher, options.engine, languages) for teacher in options.teacher}
    if len(tags) > 1:
        raise ValueError(
            f"`--teacher` must name models of one kind, but of {', '.join(options.teacher)} one needs a tag "
            "before the text, as a model of both directions, and another does not; take teachers of one "
            "kind."
        )
    return tags.pop()


def _tag_for_teacher(teacher: str, engine: str, languages: tuple[str, str]) -> str:
    """The tag that one teacher needs. Refuses a teacher of other languages."""
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
    remedy = "take a recipe of its languages"
    if recorded == languages[::-1]:
        if record.data.both_directions:
            return f"{direction_tag(recorded[0])} "
        remedy = "turn the languages and the files of the recipe round"
    raise ValueError(
        f"`--teacher` '{teacher}' translates from {recorded[0]!r} to {recorded[1]!r}, but the recipe is for "
        f"{languages[0]!r} to {languages[1]!r}; take another teacher, or {remedy}."
    )


def _finished_part(path: str) -> tuple[int, int, dict[str, Any] | None]:
    """The number of training pairs that a file has, the size of their lines in bytes, and the record of the
    first line.

    The last training pair is not counted, because it may have more lines that are missing.
    """
    record = None
    pair = 0
    start_of_pair = 0
    size = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1 and line[: len(_BEGINNING)] != _BEGINNING[: len(line)]:
                raise ValueError(
                    f"`--resume` continues what `vaswani distill` wrote, but the first line of {path} is no "
                    "record of that; give another name, or delete the file."
                )
            if not line.endswith(b"\n"):
                break
            row = parse_json(line.decode(errors="replace"), dict, f"Line {number:,} of {path}")
            record = record or row["distillation"]
            if row.get("pair", pair) != pair:
                pair = row["pair"]
                start_of_pair = size
            size += len(line)
    return max(0, pair - 1), start_of_pair, record


def _without_unused_corpora(data: Any) -> Any:
    """The section `data` without the training corpora of weight 0, because a run never sees them."""
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
    """The teachers and their search.

    A folder is recorded by its name only, because the file may be published.
    """
    teachers = []
    for name in options.teacher:
        teachers.append(os.path.basename(os.path.abspath(name)) if Path(name).is_dir() else name)
    record = {"teachers": teachers, **chosen.generate}
    return record if dataset_revision is None else record | {"dataset_revision": dataset_revision}


def _translated(
    options: DistillOptions, chosen: TranslationOptions, pairs: Any, tag: str, done: int
) -> Iterator[tuple[int, dict[str, str], Any]]:
    """The number, the sides and the translation of each training pair after the first `done` pairs."""
    waiting: deque[tuple[int, dict[str, str]]] = deque()

    def requests() -> Iterator[Request]:
        for number, pair in enumerate(pairs, 1):
            if number > done:
                waiting.append((number, pair))
            yield Request(tag + pair["source"])

    counted = CountedRequests(requests())
    first, *others = options.teacher
    load = options.translator_loader(first, others)
    total = len(pairs) if isinstance(pairs, Sized) else None
    with closing(translate_remaining(load, options, counted, chosen, done)) as translations:
        lines = report_bad_lines(translations, "the training split", done, counted)
        for translation in with_progress(lines, "distilling", total, done, to_file=True):
            number, pair = waiting.popleft()
            yield number, pair, translation
    if counted.num_read < done:
        raise ValueError(
            f"{options.output} must not have more training pairs than the recipe to be continued, but has "
            f"{done + 1:,}; give another name."
        )


def _targets(pair: dict[str, str], translation: str | Translation, keep_references: bool) -> list[str]:
    """The targets of a training pair, without empty and repeated ones. A skipped sentence has no target."""
    if getattr(translation, "error", None) or not pair["source"].strip():
        return []
    if isinstance(translation, str):
        targets = [translation]
    else:
        targets = [translation.text, *(other.text for other in translation.alternatives or ())]
    if keep_references:
        targets.append(pair["target"])
    return [target for target in dict.fromkeys(targets) if target.strip()]
