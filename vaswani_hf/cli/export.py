"""Defines `vaswani export`, the command that converts a checkpoint to the format of another library."""

from .options import ModelOptions, on_command_line


class ExportOptions(ModelOptions):
    """The options of `vaswani export`."""

    output: str = on_command_line(positional=True)
    """a new or empty folder"""
    format: str
    """the name of a format, such as marian; to list all formats, give an unknown name"""
    quantization: str | None = on_command_line(None, group="computing")
    """the dtype of the exported weights, such as int8 or float16, only for the formats ctranslate2, argos and
    html; by default int8 for html, and the dtype of the checkpoint for ctranslate2 and argos; to use int8
    weights without an export, run `vaswani translate --quantization int8`
    """
    source_language: str | None = None
    """the code of the source language, such as en, only for formats that store the languages; by default the
    language that the checkpoint records
    """
    target_language: str | None = None
    """the code of the target language, such as de, only for formats that store the languages"""


def run(options: ExportOptions) -> None:
    """Export the checkpoint, and print the largest difference between the outputs of the checkpoint and of
    the exported model.
    """
    from ..convert.export import export

    compared = export(
        options.model_name,
        options.output,
        options.format,
        options.quantization,
        source_language=options.source_language,
        target_language=options.target_language,
    )
    print(compared)
