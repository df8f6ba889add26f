"""Defines `vaswani import`, the command that converts a checkpoint of another library."""

from typing import Literal

from .options import Options, on_command_line


class ImportOptions(Options):
    """The options of `vaswani import`."""

    source: str = on_command_line(positional=True)
    """the checkpoint to import: a file, a folder, or a repository on the Hub, as user/name or
    user/name@revision
    """
    output: str = on_command_line(positional=True)
    """a new or empty folder"""
    format: str | None = on_command_line(None, option="from")
    """the name of a format, such as marian_mt; by default the format is recognised from the files; to list
    all formats, give an unknown name
    """
    timescales: Literal["paper", "tensor2tensor"] | None = None
    """the timescales of the sinusoidal positions, if the model was trained with other timescales than the
    checkpoint's format assumes; use tensor2tensor for OPUS-MT models, because Marian trained them with these
    timescales
    """
    vocabularies: list[str] = []
    """the path of one joint vocabulary file, or the paths of the source and the target vocabulary file;
    necessary if the checkpoint does not contain the vocabularies
    """
    config: str | None = on_command_line(None, metavar="FILE")
    """a JSON or YAML file with settings that the checkpoint does not contain, such as the number of heads"""


def run(options: ImportOptions) -> None:
    """Import the checkpoint, and print the largest difference between the log-probabilities of the original
    and of the imported checkpoint.
    """
    from ..convert.importing import import_checkpoint

    report = import_checkpoint(
        options.source,
        options.output,
        options.format,
        timescales=options.timescales,
        vocabularies=tuple(options.vocabularies),
        config=options.config,
    )
    print(report.text)
