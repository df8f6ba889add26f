"""`vaswani export`."""

from .options import ModelOptions, on_command_line


class ExportOptions(ModelOptions):
    """The options of `vaswani export`."""

    output: str = on_command_line(positional=True)
    """a folder that is new or empty"""
    format: str
    """the name of a format, such as marian; a wrong name is answered by all names"""
    quantization: str | None = None
    """the dtype of the weights, such as int8, for ctranslate2; the checkpoint's dtype by default"""


def run(options: ExportOptions) -> None:
    """Write the checkpoint in the format, and print how exactly it computes the same."""
    from ..convert.export import export

    print(export(options.model_name, options.output, options.format, options.quantization))
