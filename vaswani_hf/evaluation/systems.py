"""Defines the systems that `vaswani evaluate` scores, the test set, and the result of an evaluation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..checkpoint.hub import HubError
from ..checkpoint.loading import check_config, checkpoint_folder
from ..data.lines import check_equally_many, read_lines, refuse_blank
from ..model.errors_vaswani import InvalidValueError
from ..translation.translator import Translator
from .comet import CometError
from .evaluate import translate_test_set


class TestSet(NamedTuple):
    """Source sentences, and one reference translation of each source sentence."""

    sources: list[str]
    references: list[str]


@dataclass(frozen=True)
class System:
    """A checkpoint, or a file of translations.

    Attributes:
        name: The name or the path that the user has given.
        load: Loads the checkpoint. Accepts the keyword arguments of `Translator.from_pretrained`.
        options: The options of `Translator.translate`.
        folder: The local folder of the checkpoint; None for a file of translations.
        finished: The translations in the file; None for a checkpoint.
    """

    name: str
    load: Callable[..., Translator]
    options: Mapping[str, Any]
    folder: Path | None = None
    finished: list[str] | None = None

    def translations(self, sources: list[str]) -> list[str]:
        """Return the translations. Keep no model, because the model of the next system needs the memory."""
        if self.finished is not None:
            return self.finished
        return translate_test_set(self.load(), sources, self.name, **self.options)


@dataclass(frozen=True)
class Report:
    """The result of an evaluation.

    Attributes:
        scores: The dict that `vaswani evaluate --json` prints.
        outputs: The lines for the file of `--output`.
        draw: Draws the picture of `--picture` as PNG; None if the evaluation has no picture.
        comet_error: The error that prevented the COMET scores, or None. `vaswani evaluate` prints all other
            scores before raising `comet_error`.
    """

    scores: dict[str, Any]
    text: str
    outputs: str = ""
    draw: Callable[[], bytes] | None = None
    comet_error: CometError | None = None


def read_test_set(source: str, reference: str) -> TestSet:
    """Read the files of `--source` and `--reference`."""
    sources = list(read_lines(source))
    references = _stripped_lines(reference)
    refuse_blank(sources, "--source", source)
    refuse_blank(references, "--reference", reference)
    check_equally_many("lines", source, len(sources), reference, len(references))
    return TestSet(sources, references)


def read_systems(
    names: Sequence[str],
    source: str,
    num_sentences: int,
    load: Callable[..., Translator],
    options: Mapping[str, Any],
) -> list[System]:
    """Read the files of translations, and find the checkpoints. Do not load the models yet, so that an error
    in a file is reported before a model translates for hours. `num_sentences` is the number of lines of
    `source`.
    """
    # Read all files first, so that an error in a file is reported before the first download of a checkpoint.
    finished = {}
    for name in names:
        if Path(name).is_file():
            finished[name] = _stripped_lines(name)
            check_equally_many("lines", source, num_sentences, name, len(finished[name]))
    systems = []
    for name in names:
        folder = None if name in finished else _folder_of_checkpoint(name)
        systems.append(System(name, partial(load, name), options, folder, finished.get(name)))
    return systems


def _stripped_lines(path: str) -> list[str]:
    return [line.strip() for line in read_lines(path)]


def _folder_of_checkpoint(name: str) -> Path:
    """Return the local folder of a checkpoint. Download a checkpoint of the Hub."""
    if Path(name).is_dir():
        check_config(Path(name), name)
        return Path(name)
    try:
        folder = checkpoint_folder(name)
        check_config(folder, name)
        return folder
    except (ValueError, HubError) as error:
        raise InvalidValueError(
            f"`model` must be a checkpoint or a file of translations, but '{name}' is not a file, and "
            f"loading it as a checkpoint fails: {error}"
        ) from error
