"""Defines `vaswani certify`, the command that compares the outputs of a checkpoint and of its exports."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from ..model.errors_vaswani import InvalidValueError
from .options import ModelOptions, check_file, on_command_line
from .output import LineOutput, standard_output
from .recorded_split import NamedTestSet, recorded_test_set

if TYPE_CHECKING:
    from ..publish.certificate import Certificate
    from ..recipe.recipe import Recipe


class CertifyOptions(ModelOptions):
    """The options of `vaswani certify`."""

    source: str | None = None
    """a file with one source sentence per line (plain or .gz); by default the test set in the recipe of the
    checkpoint"""
    reference: str | None = None
    """a file whose line i is the reference translation of line i of `--source` (plain or .gz)"""
    num_sentences: int = Field(1000, ge=1)
    """the number of sentences to use; the command uses the first sentences of the test set"""
    num_beams: int | None = on_command_line(None, ge=1, group="search")
    """the number of beams; by default the number in generation_config.json of the checkpoint, or 4 if the
    file has no number; libraries without beam search, or with fixed settings of the beam search, use greedy
    search
    """
    formats: list[str] = on_command_line([], metavar="FORMAT")
    """the names of the export formats to measure, such as marian; by default all formats"""
    output: str | None = None
    """a new or empty folder for certificate.json; by default the file is written into the folder of the
    checkpoint, so that the model card shows the certificate"""

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        if (self.source is None) != (self.reference is None):
            raise InvalidValueError("`--source` and `--reference` must be given together.")
        for option, path in (("--source", self.source), ("--reference", self.reference)):
            if path is not None:
                check_file(option, path)
        if self.output is None and not (Path(self.model).is_dir() and os.access(self.model, os.W_OK)):
            raise InvalidValueError(
                f"`--output` must be given, because '{self.model}' is not a local folder with write permission, "
                "and the command needs a folder for certificate.json."
            )
        return self


def run(options: CertifyOptions) -> None:
    """Print and write the certificate. Raise an error if an export in float32 fails, or differs too much from
    the checkpoint.
    """
    from ..checkpoint.files import CERTIFICATE_FILE, new_folder, write_whole
    from ..checkpoint.loading import checkpoint_folder
    from ..convert.certify import CertificateError, faults
    from ..recipe.published import recorded_recipe

    output = standard_output()
    folder = checkpoint_folder(options.model_name)
    recipe = recorded_recipe(folder)
    if options.output is None:
        certificate = _measure(options, recipe, output)
        write_whole(folder / CERTIFICATE_FILE, certificate.as_text())
    else:
        # Check the folder before the measurement, because the measurement takes minutes.
        with new_folder(Path(options.output)) as new:
            certificate = _measure(options, recipe, output)
            new.mkdir()
            write_whole(new / CERTIFICATE_FILE, certificate.as_text())
    found = faults(certificate)
    if found:
        raise CertificateError("; ".join(found))


def _measure(options: CertifyOptions, recipe: "Recipe | None", output: LineOutput) -> "Certificate":
    """Measure the exports of the checkpoint on the test set, and print the table."""
    from ..convert.certify import certify

    test_set = _test_set(options, recipe)
    certificate = certify(
        options.model_name,
        test_set.sources[: options.num_sentences],
        test_set.references[: options.num_sentences],
        num_beams=options.num_beams,
        formats=options.formats,
        evaluation=None if recipe is None else recipe.evaluation,
        test_set=f"`{test_set.name}`",
        report=lambda line: print(line, file=sys.stderr, flush=True),
    )
    # Print the table before certificate.json is written, because the disk can be full.
    output.write(f"{certificate.as_table()}\n".encode(errors="replace"))
    return certificate


def _test_set(options: CertifyOptions, recipe: "Recipe | None") -> NamedTestSet:
    """Return the test set that the options name, or the test set of the recipe."""
    from ..evaluation.systems import read_test_set

    if options.source is None or options.reference is None:
        return recorded_test_set(recipe, "--source", "give `--source` and `--reference`")
    sources, references = read_test_set(options.source, options.reference)
    return NamedTestSet(sources, references, Path(options.source).name)
