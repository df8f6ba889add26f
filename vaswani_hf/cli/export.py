"""`vaswani export`: converts a checkpoint for another library."""

from .options import ModelOptions, on_command_line


class ExportOptions(ModelOptions):
    """The options of `vaswani export`."""

    output: str = on_command_line(positional=True)
    """a new or empty folder"""
    format: str
    """the name of a format, such as marian; an unknown name gives an error that lists all formats"""
    quantization: str | None = None
    """only for ctranslate2, argos and html: the dtype of the exported weights, such as int8 or float16; by default
    int8 for html, and else the dtype of the checkpoint; other commands load a checkpoint with int8 weights by their
    option of the same name"""
    source_language: str | None = None
    """only for formats that store the languages: the code of the source language, such as en; by default the
    language that the checkpoint records"""
    target_language: str | None = None
    """only for formats that store the languages: the code of the target language, such as de"""


def run(options: ExportOptions) -> None:
    """Export the checkpoint, and print the difference between the outputs of the original and the exported
    model.
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
