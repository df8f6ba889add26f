"""Sequence-level knowledge distillation (Kim & Rush 2016, arXiv 1606.07947, Section 3.2): a student model is
trained on the translations that the search of a teacher model finds.

`vaswani distill` writes the training pairs of the student to a file of JSON lines. The key `pair` of a line
is the number of the training pair from which the source sentence comes. The first line of the file also has
the key `distillation`. `distillation` contains the teachers, the search settings, the languages that the user
gives, the options `--repetition_guard` and `--keep_references` if they are true, and the commit of the
dataset.
"""

import fnmatch
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..checkpoint.files import recipe_file
from ..checkpoint.loading import checkpoint_folder
from ..checkpoint.tokenizers import direction_tag
from ..data.lines import parse_json
from ..model.errors_vaswani import InvalidValueError
from ..model.inputs_vaswani import TranslationOptions
from ..model.translations_vaswani import Translation
from ..recipe.loading import try_load_recorded_recipe
from ..tasks.translation import TranslationData, TranslationTask
from ..translation.ctranslate2_files import CTranslate2Files

logger = logging.getLogger(__name__)

# The first bytes of each output file of `vaswani distill`. `--resume` refuses a file that does not begin with
# `_BEGINNING`.
_BEGINNING = b'{"distillation": '


def languages_of(task: str, data: Any) -> tuple[str, str]:
    """Return the source and the target language. `data` is the section `data` of a translation recipe."""
    if not isinstance(data, TranslationData):
        raise InvalidValueError(
            f"`vaswani distill` is for recipes of `task: translation`, but `task` is {task}; give another "
            "recipe."
        )
    languages = (data.source_language, data.target_language)
    if languages[0] == languages[1]:
        raise InvalidValueError(
            f"`data.source_language` and `data.target_language` are both {languages[0]!r}, but the languages "
            "name the two sides of a pair in `--output`; give one of the two languages another name."
        )
    return languages


def check_is_no_input(output: str, data: TranslationData) -> None:
    """Raise an error if `--output` is a training file of the recipe, or matches a file name pattern of the
    training data.
    """
    for name in ("train_source", "train_target", "train_pairs"):
        for path in data.listed(name):
            if fnmatch.fnmatch(os.path.realpath(output), os.path.realpath(path)):
                raise InvalidValueError(
                    f"`--output` must not be a file of `--{name}`, but {output} is one of the files {path}."
                )


def tag_for_teachers(teachers: Sequence[str], engine: str, languages: tuple[str, str]) -> str:
    """Return the direction tag and a space that the teachers need before a source text, or an empty text."""
    tags = {_tag_for_teacher(teacher, engine, languages) for teacher in teachers}
    if len(tags) > 1:
        raise ValueError(
            "The models of `--teacher` must either all be trained in both directions or all in one "
            f"direction, but {', '.join(teachers)} are of both kinds; leave some models out."
        )
    return tags.pop()


def _tag_for_teacher(teacher: str, engine: str, languages: tuple[str, str]) -> str:
    """Return the direction tag and a space that one teacher needs before a source text, or an empty text.
    Raise an error if the teacher and the recipe have different languages.
    """
    if engine == "ctranslate2":
        folder = Path(teacher)
        CTranslate2Files.read(folder)
    else:
        folder = checkpoint_folder(teacher, option="--teacher")
    recipe = try_load_recorded_recipe(recipe_file(folder))
    if recipe is None:
        logger.warning(
            f"'{teacher}' does not record its languages; therefore the languages are not compared with the "
            "recipe"
        )
        return ""
    if not isinstance(recipe.data, TranslationData):
        raise InvalidValueError(
            f"`--teacher` must be a translation model, but '{teacher}' has `task: {recipe.task}`; give another "
            "teacher."
        )
    recorded = (recipe.data.source_language, recipe.data.target_language)
    if recorded == languages:
        return ""
    remedy = "give a recipe for the languages of the teacher"
    if recorded == languages[::-1]:
        if recipe.data.both_directions:
            return f"{direction_tag(recorded[0])} "
        remedy = "exchange the source and the target (languages and files) in the recipe"
    raise InvalidValueError(
        f"`--teacher` '{teacher}' translates from {recorded[0]!r} to {recorded[1]!r}, but the recipe is for "
        f"{languages[0]!r} to {languages[1]!r}; give another teacher, or {remedy}."
    )


def training_pairs(
    data: TranslationData, seed: int, metadata: dict[str, Any] | None
) -> tuple[Any, str | None]:
    """Return the training pairs of a recipe, and the commit of the dataset. `metadata` is the value of the
    key `distillation` in the output file of an interrupted run, or None.
    """
    earlier = None
    if metadata is not None:
        # Use the dataset commit of the interrupted run, so that each training pair has the same index (key
        # `pair`) as before.
        earlier = data.replace(dataset_revision=metadata.get("dataset_revision"))
    pinned = TranslationTask(data).pin_data(earlier)
    used = _without_unused_corpora(pinned)
    # `load_texts` leaves out the held-out pairs, because the student must not be trained on sentences that
    # are used to score the student.
    return TranslationTask(used, seed=seed).load_texts("train"), pinned.dataset_revision


def _without_unused_corpora(data: Any) -> Any:
    """Return the section `data` without the training corpora of weight 0."""
    if not data.train_weights:
        return data
    if data.held_out_sizes:
        # Raise an error, because the choice of the held-out pairs depends on all corpora, including the
        # corpora of weight 0.
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


class FinishedPart(NamedTuple):
    """The part of an output file that a resumed run keeps. A resumed run does not keep the last training
    pair, because the lines of the last pair are perhaps incomplete.
    """

    num_pairs: int
    size: int
    """The size of the kept part in bytes."""
    metadata: dict[str, Any] | None
    """The value of the key `distillation` in the first line, or None if the file has no complete line."""
    num_removed: int
    """The number of complete lines of the last training pair, which `--resume` writes again."""


def read_finished_part(path: str) -> FinishedPart:
    """Read the finished part of an output file of `vaswani distill`."""
    metadata = None
    pair = 0
    start_of_pair = 0
    lines_of_pair = 0
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
            metadata = metadata or row["distillation"]
            if row.get("pair", pair) != pair:
                pair = row["pair"]
                start_of_pair = size
                lines_of_pair = 0
            lines_of_pair += 1
            size += len(line)
    return FinishedPart(max(0, pair - 1), start_of_pair, metadata, lines_of_pair)


def metadata_of_distillation(
    teachers: Sequence[str], chosen: TranslationOptions, keep_references: bool, dataset_revision: str | None
) -> dict[str, Any]:
    """Return the value of the key `distillation`. `distillation` contains no local paths, because the user
    can publish the output.
    """
    names = []
    for teacher in teachers:
        names.append(os.path.basename(os.path.abspath(teacher)) if Path(teacher).is_dir() else teacher)
    options = {
        "src_lang": chosen.src_lang,
        "tgt_lang": chosen.tgt_lang,
        "repetition_guard": chosen.repetition_guard,
        "keep_references": keep_references,
    }
    given = {option: value for option, value in options.items() if value}
    metadata = {"teachers": names, **chosen.generate, **given}
    return metadata if dataset_revision is None else metadata | {"dataset_revision": dataset_revision}


def refuse_other_metadata(metadata: dict[str, Any], recorded: dict[str, Any], output: str) -> None:
    """Raise an error if a resumed run differs from the interrupted run, for example in the teachers.
    `recorded` is the value of the key `distillation` in the output file of the interrupted run.
    """
    for key in metadata | recorded:
        value, earlier = metadata.get(key), recorded.get(key)
        if value != earlier:
            raise InvalidValueError(
                f"`--resume` needs the teachers and the settings of '{output}', but `{key}` is {value!r} "
                f"instead of {earlier!r}; give the earlier value, or another name as `--output`."
            )


def targets_of(pair: dict[str, str], translation: str | Translation, keep_references: bool) -> list[str]:
    """Return the target sentences for the source of `pair`. Leave out duplicates and empty sentences. Return
    an empty list if the translation failed or the source is blank.
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
