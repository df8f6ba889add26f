"""`vaswani import`: writes a checkpoint from a checkpoint of another library."""

from typing import Literal

from .options import Options, on_command_line


class ImportOptions(Options):
    """The options of `vaswani import`."""

    source: str = on_command_line(positional=True)
    """a file, a folder, or a repository on the Hub, as user/name or user/name@revision"""
    output: str = on_command_line(positional=True)
    """a new or empty folder"""
    format: str | None = on_command_line(None, option="from")
    """the name of a format, such as marian_mt; by default the format is recognised; an unknown name gives an
    error that lists all formats"""
    timescales: Literal["paper", "tensor2tensor"] | None = None
    """the timescales of the sinusoids, if they differ from the timescales that the original's library uses;
    tensor2tensor for OPUS-MT models, because Marian trained the OPUS-MT models with the timescales of
    tensor2tensor"""
    vocabularies: list[str] = []
    """one joint vocabulary file, or the source and the target vocabulary file, if the checkpoint does not
    contain the vocabularies"""
    config: str | None = on_command_line(None, metavar="FILE")
    """a JSON or YAML file with facts that the checkpoint does not contain, such as the number of heads"""


def run(options: ImportOptions) -> None:
    """Import the checkpoint. Print the difference between the outputs of the original and the imported
    checkpoint.
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
