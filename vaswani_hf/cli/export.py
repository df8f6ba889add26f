"""`vaswani export`: converts a checkpoint for another library."""

from .options import ModelOptions, on_command_line


class ExportOptions(ModelOptions):
    """The options of `vaswani export`."""

    output: str = on_command_line(positional=True)
    """a new or empty folder"""
    format: str
    """the name of a format, such as marian; the error for an unknown name lists all names"""
    quantization: str | None = None
    """the dtype of the exported weights, such as int8; only for ctranslate2; the checkpoint's dtype by
    default"""


def run(options: ExportOptions) -> None:
    """Export the checkpoint, and print how much the outputs of both models differ."""
    from ..convert.export import export

    print(export(options.model_name, options.output, options.format, options.quantization))
