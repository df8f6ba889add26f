"""Formats the certificate of a checkpoint as a table for the model card. A certificate shows how much the
outputs of exported models differ from the outputs of the checkpoint. The code that measures the differences
is in `convert/certify.py`.
"""

from pathlib import Path
from typing import Any

from ..checkpoint.files import weight_files
from ..checkpoint.manifest import describe

_HEAD = (
    "| engine | weights | beams | length penalty | largest difference (nats) | changed translations "
    "| changed at the length limit | BLEU | sentences/s | MB |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def hashes_of_weights(folder: Path) -> dict[str, str]:
    """Return the SHA-256 hash of each weight file of a checkpoint."""
    files = [name for name in weight_files(folder) if (folder / name).is_file()]
    return {name: describe(folder / name)["sha256"] for name in files}


def certificate_table(certificate: dict[str, Any]) -> str:
    """Return a certificate as a Markdown table, with a list of the engines that were not measured."""
    lines = [_HEAD]
    others = []
    for row in certificate["rows"]:
        if row["status"] == "measured":
            lines.append(_table_row(row))
        else:
            others.append(f"- {row['engine']} ({row['weights']}): {row['message']}")
    if others:
        lines += ["", "Not measured:", "", *others]
    return "\n".join(lines)


def _table_row(row: dict[str, Any]) -> str:
    is_checkpoint = row["largest_difference"] is None
    cells = [
        row["engine"],
        row["weights"],
        str(row["num_beams"]),
        row["length_penalty"],
        "" if is_checkpoint else f"{row['largest_difference']:.1e}",
        "" if is_checkpoint else f"{row['changed']:,} of {row['sentences']:,}",
        "" if is_checkpoint else f"{row['changed_at_length_limit']:,}",
        f"{row['bleu']:.2f}",
        f"{row['sentences_per_second']:.1f}",
        f"{row['megabytes']:.1f}",
    ]
    return f"| {' | '.join(cells)} |"
