"""Defines the Sphinx directives `{formats-table}` and `{import-formats-table}`, which describe the export
formats and the import formats of the package.
"""

from typing import Any

from sphinx.util.docutils import SphinxDirective

from vaswani_hf.convert.export import EXPORT_FORMATS
from vaswani_hf.convert.export_formats import ALL_FIELDS, FIELDS_OF_TRAINING, ExportFormat
from vaswani_hf.convert.import_formats import ImportFormat
from vaswani_hf.convert.importing import IMPORT_FORMATS
from vaswani_hf.model.configuration_vaswani import VaswaniConfig
from vaswani_hf.model.inputs_vaswani import DECODING_SETTINGS
from vaswani_hf.version import install_command


def _fields(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) or "none"


def _section(entry: ExportFormat) -> str:
    """Return the description of one export format in Markdown."""
    expressible = entry.expressible
    free = expressible.fields - FIELDS_OF_TRAINING
    limited = set(expressible.limits) - free
    fixed = ALL_FIELDS - free - limited - FIELDS_OF_TRAINING
    supported = set(DECODING_SETTINGS if entry.settings is None else entry.settings.names)
    lines = [f"## Export to {expressible.title}", "", f"The value of `--format` is `{entry.name}`.", ""]
    if entry.libraries:
        lines += ["Install the libraries:", "", "```text", install_command(entry.name), "```", ""]
    quantizations = ", ".join(f"`{name}`" for name in entry.quantizations) or "none"
    lines += [
        "| property | value |",
        "|---|---|",
        f"| values of `--quantization` | {quantizations} |",
        f"| the checkpoint needs tokenizers | {'yes' if entry.needs_tokenizers else 'no'} |",
        f"| fields of the config that may have any value | {_fields(free)} |",
        f"| fields of the config that may have only certain values | {_fields(limited)} |",
        f"| fields of the config that must have their default | {_defaults(fixed)} |",
        f"| search settings that the format does not support | {_fields(set(DECODING_SETTINGS) - supported)} |",
        "",
    ]
    return "\n".join(lines)


def _defaults(names: set[str]) -> str:
    texts = [f"`{name}` (`{getattr(VaswaniConfig, name)!r}`)" for name in sorted(names)]
    return ", ".join(texts) or "none"


class FormatsTable(SphinxDirective):
    """Writes one section for each export format."""

    def run(self) -> list[Any]:
        text = "\n".join(_section(entry) for entry in EXPORT_FORMATS.values())
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def _import_section(entry: ImportFormat) -> str:
    """Return the description of one import format in Markdown."""
    options = ", ".join(f"`--{name}`" for name in entry.options) or "none"
    lines = [
        f"## Import from {entry.title}",
        "",
        f"The value of `--from` is `{entry.name}`.",
        "",
        "| property | value |",
        "|---|---|",
        f"| what the import keeps | {entry.keeps} |",
        f"| what the import drops or refuses | {entry.loses} |",
        f"| options | {options} |",
        f"| files | {', '.join(f'`{name}`' for name in entry.files)} |",
        "",
    ]
    return "\n".join(lines)


class ImportFormatsTable(SphinxDirective):
    """Writes one section for each import format."""

    def run(self) -> list[Any]:
        text = "\n".join(_import_section(entry) for entry in IMPORT_FORMATS.values())
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app: Any) -> dict[str, Any]:
    """Register the directives `{formats-table}` and `{import-formats-table}`."""
    app.add_directive("formats-table", FormatsTable)
    app.add_directive("import-formats-table", ImportFormatsTable)
    return {"parallel_read_safe": True}
