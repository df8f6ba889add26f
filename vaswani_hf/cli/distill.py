"""`vaswani distill`: translates the training sources of a recipe with a teacher model, to train a student
model.

The command does sequence-level knowledge distillation (Kim & Rush 2016, arXiv 1606.07947, Section 3.2): the
student is trained on the translations that the teacher's search finds. Each line of the output file is one
sentence pair in JSON. The key `pair` of a line is the number of the training pair from which the source
sentence comes. The first line of the output file also has the key `distillation`, with the names of the
teachers and the search settings.
"""

import fnmatch
import os
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sized
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator

from ..data.lines import parse_json
from ..model.errors_vaswani import InvalidValueError
from ..model.inputs_vaswani import Request, TranslationOptions
from .lines import CountedRequests, json_line, report_bad_lines, with_progress
from .options import LANGUAGES, SEARCH, EngineOptions, check_different, on_command_line, translation_options
from .output import check_output, output_file
from .train import RecipeOptions

if TYPE_CHECKING:
    from ..model.translator_vaswani import Translation

_SearchFields: Any = translation_options(
    *SEARCH, *LANGUAGES, "repetition_guard", "num_return_sequences", "on_error"
)
# Each file that `vaswani distill` writes begins with these bytes. `--resume` refuses a file that begins with
# other bytes.
_BEGINNING = b'{"distillation": '


class DistillOptions(_SearchFields, EngineOptions, RecipeOptions):
    """The options of `vaswani distill`."""

    teacher: list[str] = on_command_line(group="search", metavar="MODEL")
    """a checkpoint folder or a repository on the Hub; several teachers must have the same vocabulary, and
    their probabilities are averaged"""
    output: str
    """a new file of JSON lines (.jsonl); `vaswani train RECIPE --train_pairs FILE` trains the student on this
    file
    """
    keep_references: bool = False
    """also write the original training pairs, with the reference translations as targets"""
    resume: bool = False
    """continue an existing --output file; the last training pair in the file is translated again, because it
    may be incomplete
    """

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_different("--teacher", self.teacher)
        if self.engine == "ctranslate2" and len(self.teacher) > 1:
            raise InvalidValueError(
                "`--teacher` must be one model with `--engine ctranslate2`, which has no ensembles, but is "
                f"{len(self.teacher)} models; give one model."
            )
        if not self.output.endswith(".jsonl"):
            raise InvalidValueError(
                "`--output` must end in .jsonl, because `--train_pairs` recognises JSON lines by this "
                f"ending, but is {self.output}."
            )
        check_output(self.output, {}, resume=self.resume)
        return self


def run(options: DistillOptions) -> None:
    """Write the sentence pairs to the output, and print how many pairs were written."""
    from ..recipe.loading import load_recipe

    recipe = load_recipe(options.recipe, options.overrides)
    languages = _languages_of(recipe)
    _check_inputs(options, recipe.data)
    tag = _tag_for_teachers(options, languages)
    chosen = TranslationOptions.of(**options.translation_settings())
    # Lock the output file before this process reads the file, because another process may be writing to the
    # file.
    with output_file(
        options.output, "free disk space and run the command again with `--resume`", resume=options.resume
    ) as file:
        done, size, record = _finished_part(options.output)
        pairs, dataset_revision = _training_pairs(recipe, record)
        file.keep(size)
        header = {} if size else {"distillation": _record(options, chosen, dataset_revision)}
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
                f"Each of the {counts['sentences']:,} sentences of the training split is empty or has an "
                f"empty translation by `--teacher` {', '.join(options.teacher)}; give a trained teacher, or "
                "other training data."
            )
    print(_summary(counts, options.output, " more" if done else ""))


def _training_pairs(recipe: Any, record: dict[str, Any] | None) -> tuple[Any, str | None]:
    """Return the training pairs of a recipe, and the commit of the dataset. If an earlier run was
    interrupted, `record` is the value of the key `distillation` in its output file, else None.
    """
    from ..data.corpus import naming_split
    from ..data.held_out import hold_out
    from ..tasks import TASKS

    earlier = None
    if record is not None:
        # Read the same commit of the dataset as the earlier run, because each training pair must have the
        # same number in both runs.
        earlier = recipe.data.replace(dataset_revision=record.get("dataset_revision"))
    task = TASKS[recipe.task]
    data = task.pin_data(recipe.data, earlier)
    used = _without_unused_corpora(data)
    with naming_split("train"):
        pairs: Any = task.load_split(used, "train", recipe.seed)
    if data.held_out_sizes:
        # Leave out the validation and test pairs, because the student must not be trained on sentences that
        # are used to score the student.
        pairs = hold_out(pairs, data.held_out_sizes)["train"]
    return pairs, data.dataset_revision


def _summary(counts: Counter[str], output: str, more: str) -> str:
    text = f"{counts['pairs']:,}{more} pairs from {counts['sentences']:,}{more} sentences are in '{output}'"
    if counts["empty"]:
        text += f"; for {counts['empty']:,} sentences, the source or the translation is empty"
    if counts["skipped"]:
        text += f"; {counts['skipped']:,} sentences were skipped"
    return text


def _languages_of(recipe: Any) -> tuple[str, str]:
    """Return the source language and the target language of a translation recipe."""
    from ..tasks.translation import TranslationData

    if not isinstance(recipe.data, TranslationData):
        raise InvalidValueError(
            f"`vaswani distill` is for recipes of `task: translation`, but `task` is {recipe.task}; give "
            "another recipe."
        )
    languages = (recipe.data.source_language, recipe.data.target_language)
    if languages[0] == languages[1]:
        raise InvalidValueError(
            f"`data.source_language` and `data.target_language` are both {languages[0]!r}, but the languages "
            "name the two sides of a pair in `--output`; give one of the two languages another name."
        )
    return languages


def _check_inputs(options: DistillOptions, data: Any) -> None:
    """Raise an error if `--output` is a training file of the recipe or matches a pattern of these files."""
    for name in ("train_source", "train_target", "train_pairs"):
        for path in data.listed(name):
            if fnmatch.fnmatch(os.path.realpath(options.output), os.path.realpath(path)):
                raise InvalidValueError(
                    f"`--output` must not be a file of `--{name}`, but {options.output} is one of the files "
                    f"{path}."
                )


def _tag_for_teachers(options: DistillOptions, languages: tuple[str, str]) -> str:
    """Return the prefix that the teachers need before each source sentence: a direction tag and a space, or
    an empty text if the teachers need no tag.
    """
    tags = {_tag_for_teacher(teacher, options.engine, languages) for teacher in options.teacher}
    if len(tags) > 1:
        raise ValueError(
            "The models of `--teacher` must either all be trained in both directions or all in one "
            f"direction, but {', '.join(options.teacher)} are of both kinds; leave some models out."
        )
    return tags.pop()


def _tag_for_teacher(teacher: str, engine: str, languages: tuple[str, str]) -> str:
    """Return the direction tag that one teacher needs before each source sentence, or an empty text. Raise an
    error if the languages of the teacher differ from the languages of the recipe.
    """
    from ..checkpoint.files import recipe_file
    from ..checkpoint.loading import checkpoint_folder
    from ..checkpoint.tokenizers import direction_tag
    from ..recipe.loading import readable_record
    from ..translation.ctranslate2_files import CTranslate2Files

    if engine == "ctranslate2":
        folder = Path(teacher)
        CTranslate2Files.read(folder)
    else:
        folder = checkpoint_folder(teacher, option="--teacher")
    record = readable_record(recipe_file(folder))
    if record is None:
        print(
            f"'{teacher}' does not record its languages; therefore the languages are not compared with the "
            "recipe",
            file=sys.stderr,
        )
        return ""
    recorded = (record.data.source_language, record.data.target_language)
    if recorded == languages:
        return ""
    remedy = "give a recipe for the languages of the teacher"
    if recorded == languages[::-1]:
        if record.data.both_directions:
            return f"{direction_tag(recorded[0])} "
        remedy = "exchange the source and the target (languages and files) in the recipe"
    raise InvalidValueError(
        f"`--teacher` '{teacher}' translates from {recorded[0]!r} to {recorded[1]!r}, but the recipe is for "
        f"{languages[0]!r} to {languages[1]!r}; give another teacher, or {remedy}."
    )


def _finished_part(path: str) -> tuple[int, int, dict[str, Any] | None]:
    """Return three facts about an output file: the number of finished training pairs, the size in bytes of
    their lines, and the value of the key `distillation` in the first line.

    The last training pair is not counted, because an interrupted run may have written only some lines of this
    pair.
    """
    record = None
    pair = 0
    start_of_pair = 0
    size = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1 and line[: len(_BEGINNING)] != _BEGINNING[: len(line)]:
                raise InvalidValueError(
                    f"`--resume` continues a file that `vaswani distill` wrote, but {path} does not begin "
                    "like a file of `vaswani distill`; give another name, or delete the file."
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
    """Return the section `data` of the recipe without the training corpora of weight 0, because training
    never uses these corpora.
    """
    if not data.train_weights:
        return data
    if data.held_out_sizes:
        # Do not leave out the corpora of weight 0 here, because the choice of the held-out pairs depends on
        # all corpora.
        keys = " and ".join(f"`data.{split}_size`" for split in data.held_out_sizes)
        raise InvalidValueError(
            f"`vaswani distill` does not accept `data.train_weights` together with {keys}; leave "
            "`data.train_weights` out."
        )
    kept: dict[str, Any] = {}
    for name in ("train_source", "train_target", "train_pairs"):
        if paths := data.listed(name):
            kept[name] = [path for path, weight in zip(paths, data.train_weights, strict=True) if weight]
    return data.replace(train_weights=[], **kept)


def _record(
    options: DistillOptions, chosen: TranslationOptions, dataset_revision: str | None
) -> dict[str, Any]:
    """Return the value of the key `distillation` in the first line of the output: the teachers, the search
    settings, the languages that the user gives, and the commit of the dataset.

    If a teacher is a local folder, the value contains only the last part of its path, because the output may
    be published.
    """
    teachers = []
    for name in options.teacher:
        teachers.append(os.path.basename(os.path.abspath(name)) if Path(name).is_dir() else name)
    languages = {name: getattr(chosen, name) for name in LANGUAGES if getattr(chosen, name) is not None}
    record = {"teachers": teachers, **chosen.generate, **languages}
    return record if dataset_revision is None else record | {"dataset_revision": dataset_revision}


def _translated(
    options: DistillOptions, chosen: TranslationOptions, pairs: Any, tag: str, done: int
) -> Iterator[tuple[int, dict[str, str], Any]]:
    """Translate the training pairs after the first `done` pairs. Yield the number of each pair, the pair
    (source and target), and the translation of the source by the teachers.
    """
    from ..translation.workers import translate_remaining

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
    translations = translate_remaining(
        load, counted, chosen, done, num_workers=options.workers, dtype=options.dtype
    )
    with closing(translations):
        lines = report_bad_lines(translations, "the training split", done, counted)
        for translation in with_progress(lines, "distilling", total, done, to_file=True):
            number, pair = waiting.popleft()
            yield number, pair, translation
    if counted.num_read < done:
        raise InvalidValueError(
            f"`--output` must not have more training pairs than the recipe, but {options.output} has "
            f"{done + 1:,}; give another name."
        )


def _targets(pair: dict[str, str], translation: "str | Translation", keep_references: bool) -> list[str]:
    """Return the target sentences for the source of a training pair, without duplicates and empty sentences.
    If the translation was skipped because of an error, return no target.
    """
    if getattr(translation, "error", None) or not pair["source"].strip():
        return []
    if isinstance(translation, str):
        targets = [translation]
    else:
        targets = [translation.text, *(other.text for other in translation.alternatives or ())]
    if keep_references:
        targets.append(pair["target"])
    return [target for target in dict.fromkeys(targets) if target.strip()]
