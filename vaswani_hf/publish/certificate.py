"""Reads and formats certificate.json, the certificate of a checkpoint. A certificate shows how much the
outputs of exported models differ from the outputs of the checkpoint. The code that measures the differences
is in `convert/certify.py`.
"""

import json
from pathlib import Path

from ..checkpoint.files import CERTIFICATE_FILE, weight_files
from ..checkpoint.manifest import describe
from ..checkpoint.results import Record, read_record, validate_record

_HEAD = (
    "| engine | weights | beams | length penalty | largest difference (nats) | changed translations "
    "| changed at the length limit | BLEU | sentences/s | MB |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


class CertificateRow(Record):
    """The results of one engine with one dtype of the weights and one number of beams. An engine is a library
    that runs the model.

    Attributes:
        engine (str): The title of the export format, such as "CTranslate2", or "vaswani_hf".
        weights (str): The dtype of the weights: "float32", or a quantization such as "int8".
        status (str): "measured", "not installed", "failed", or "not expressible" if the export format cannot
            express a part of the checkpoint.
        message (str): Why the engine was not measured, or the limit that a result of the engine exceeds.
        num_beams (int): The number of beams of the search.
        length_penalty (str): The length penalty, such as "gnmt 0.6", or an empty str for greedy search.
        largest_difference (float, optional): The largest difference (nats) between log-probabilities of the
            engine and of the checkpoint, for the tokens of the checkpoint's translations. For the engine
            vaswani_hf, `largest_difference` is None, because vaswani_hf runs the checkpoint itself.
        changed (int): The number of translations that differ from the translations of the checkpoint, except
            the translations that `changed_at_length_limit` counts.
        changed_at_length_limit (int): The number of changed translations among the sentences for which
            vaswani_hf reached a length limit. Changed translations at a length limit are counted separately,
            because the length limits of the engine differ from the limits of vaswani_hf.
        sentences (int): The number of translated sentences.
        bleu (float): The BLEU score of the translations.
        sentences_per_second (float): The number of sentences that the engine translates in one second.
        megabytes (float): The size of the exported folder in MB (10^6 bytes).
        seconds (float): The time in seconds for the export, the translations and the log-probabilities.
    """

    engine: str
    weights: str
    status: str
    message: str = ""
    num_beams: int = 0
    length_penalty: str = ""
    largest_difference: float | None = None
    changed: int = 0
    changed_at_length_limit: int = 0
    sentences: int = 0
    bleu: float = 0.0
    sentences_per_second: float = 0.0
    megabytes: float = 0.0
    seconds: float = 0.0


class Certificate(Record):
    """The content of certificate.json.

    Attributes:
        rows (list): The results of the checkpoint and of each engine.
        test_set (str): The name of the test set.
        sentences (int): The number of sentences of the test set.
        hardware (str): The processor and the number of threads.
        versions (dict): The versions of the libraries.
        date (str): The date of the measurement.
        weights (dict): The hash of each weight file of the checkpoint.
    """

    rows: list[CertificateRow]
    test_set: str
    sentences: int
    hardware: str
    versions: dict[str, str]
    date: str
    weights: dict[str, str]

    def as_text(self) -> str:
        """Return the text of certificate.json."""
        return json.dumps(self.model_dump(), indent=2, ensure_ascii=False) + "\n"

    def as_table(self) -> str:
        """Return a Markdown table, with a list of the engines that were not measured."""
        lines = [_HEAD]
        others = []
        for row in self.rows:
            if row.status == "measured":
                lines.append(_table_row(row))
            else:
                others.append(f"- {row.engine} ({row.weights}): {row.message}")
        if others:
            lines += ["", "Not measured:", "", *others]
        return "\n".join(lines)


def _table_row(row: CertificateRow) -> str:
    is_checkpoint = row.largest_difference is None
    cells = [
        row.engine,
        row.weights,
        str(row.num_beams),
        row.length_penalty,
        "" if is_checkpoint else f"{row.largest_difference:.1e}",
        "" if is_checkpoint else f"{row.changed:,} of {row.sentences:,}",
        "" if is_checkpoint else f"{row.changed_at_length_limit:,}",
        f"{row.bleu:.2f}",
        f"{row.sentences_per_second:.1f}",
        f"{row.megabytes:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def hashes_of_weights(folder: Path) -> dict[str, str]:
    """Return the SHA-256 hash of each weight file of a checkpoint."""
    files = [name for name in weight_files(folder) if (folder / name).is_file()]
    return {name: describe(folder / name)["sha256"] for name in files}


def read_certificate(folder: Path) -> Certificate | None:
    """Read the certificate of a checkpoint. Return None if the certificate is missing or belongs to other
    weights.
    """
    path = folder / CERTIFICATE_FILE
    content = read_record(path)
    if content.get("weights") != hashes_of_weights(folder):
        return None
    return validate_record(Certificate, content, path, "vaswani certify")
