"""Defines `vaswani init`, the command that writes a recipe for a corpus."""

import os
import re
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from ..model.errors_vaswani import InvalidValueError
from .options import Options, check_file, on_command_line


class InitOptions(Options):
    """The options of `vaswani init`."""

    recipe: str = on_command_line(positional=True)
    """the new YAML file; a training run of NAME.yaml writes to the folder checkpoints/NAME"""
    source: list[str] = []
    """text files with one source sentence per line, plain or .gz"""
    target: list[str] = []
    """text files whose line i is the translation of line i of the source file"""
    pairs: list[str] = []
    """files of sentence pairs in place of `--source` and `--target`: .jsonl, .json, .csv or .parquet with a
    column `translation`, or with one column per language"""
    source_language: str | None = None
    """the language of the source sentences, such as en; by default the ending of the name of the source file,
    such as en for train.en"""
    target_language: str | None = None
    """the language of the target sentences, such as de; by default the ending of the name of the target
    file"""
    seconds: float = on_command_line(5.0, gt=0, group="computing")
    """the number of seconds for which training steps are measured on this machine, to estimate the training
    time
    """

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        path = Path(self.recipe)
        if os.path.lexists(path):
            raise InvalidValueError(f"`recipe` must be a new file, but {path} exists; give another name.")
        if path.suffix not in (".yaml", ".yml") or not path.parent.is_dir():
            raise InvalidValueError(
                f"`recipe` must be the name of a .yaml file in an existing folder, but is {path}."
            )
        if bool(self.pairs) == bool(self.source) or bool(self.source) != bool(self.target):
            raise InvalidValueError(
                "Either `--source` and `--target`, or `--pairs` must be given; use these options to give the "
                "paths of the training files."
            )
        for option in ("source", "target", "pairs"):
            for name in getattr(self, option):
                check_file(f"--{option}", name)
        for side in ("source", "target"):
            if self.language(side) is None:
                raise InvalidValueError(
                    f"`--{side}_language` must be given, because no file name ends in a language code such "
                    "as .en."
                )
        return self

    def language(self, side: str) -> str | None:
        """Return the language of `side` ("source" or "target") from its option or from the ending of the file
        name.
        """
        given = getattr(self, f"{side}_language")
        files = getattr(self, side)
        if given or not files:
            return given
        code = re.search(r"\.([a-z]{2,3})(\.gz)?$", files[0])
        return code.group(1) if code and code.group(1) != "txt" else None

    @property
    def data(self) -> dict[str, Any]:
        """The section `data` of the recipe: the languages and the training files."""
        files = {"train_source": self.source, "train_target": self.target, "train_pairs": self.pairs}
        return {
            "source_language": self.language("source"),
            "target_language": self.language("target"),
            **{key: names[0] if len(names) == 1 else names for key, names in files.items() if names},
        }


def run(options: InitOptions) -> None:
    """Write the recipe to a new file. Raise an error if the file already exists."""
    from ..messages import hide_progress_bars_without_terminal
    from ..training.new_recipe import new_recipe

    hide_progress_bars_without_terminal()
    path = Path(options.recipe)
    text, summary = new_recipe(options.data, f"checkpoints/{path.stem}", options.seconds)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    print(f"{path}: {summary}\nNext: vaswani train {path}")
