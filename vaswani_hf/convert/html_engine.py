"""Runs a model that `vaswani export --format html` has exported. The model runs in Node.js."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .formats import Engine

# The names of the exported files.
PAGE_FILE, MODULE_FILE = "index.html", "vaswani.mjs"
_SCRIPT = Path(__file__).parent.parent / "browser" / "node_job.mjs"


class HtmlEngine(Engine):
    """Runs an exported HTML page in Node.js."""

    installation = "apt install nodejs"

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder).absolute()

    @classmethod
    def is_available(cls) -> bool:
        """Return True if Node.js is installed."""
        return shutil.which("node") is not None

    def log_probs(self, source_ids: list[list[int]], target_ids: list[list[int]]) -> list[list[float]]:
        """See `Engine.log_probs`."""
        return self._run("logProbs", source_ids=source_ids, target_ids=target_ids)

    def translate(self, texts: list[str], num_beams: int) -> list[str]:
        """See `Engine.translate`."""
        found = self.translations(texts, num_beams=num_beams)
        return [of_text[0]["text"] for of_text in found]

    def translations(self, texts: Sequence[str], **options: Any) -> list[list[dict[str, Any]]]:
        """Return for each text a list of translations, best first.

        `options` may contain arguments of `generate`, `target_prefix`, `must_contain`, `split_sentences` and
        `repetition_guard`. Each translation is a dict with the fields of `Translation`.
        """
        return self._run("translate", texts=list(texts), options=options)

    def explanations(self, texts: Sequence[str], **options: Any) -> list[dict[str, Any]]:
        """Return for each text the explanation of its translation, as a dict with the fields of
        `Explanation`.
        """
        return self._run("explain", texts=list(texts), options=options)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of source texts."""
        return self._run("encode", texts=list(texts))

    def decode(self, token_ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each list of target token ids."""
        return self._run("decode", token_ids=[list(ids) for ids in token_ids])

    def split(self, texts: Sequence[str]) -> list[dict[str, list[str]]]:
        """Split each text into sentences. Return the sentences and the separators between the sentences, as
        `split_sentences` does.
        """
        return self._run("split", texts=list(texts))

    def is_loop(self, translations: Sequence[str], sources: Sequence[str]) -> list[bool]:
        """Return True for each translation that repeats itself endlessly, as `is_loop` of
        text_rules_vaswani.py does.
        """
        return self._run("isLoop", texts=list(translations), sources=list(sources))

    def _run(self, method: str, **arguments: Any) -> Any:
        job = json.dumps({"folder": str(self._folder), "method": method, **arguments})
        result = subprocess.run(
            ["node", _SCRIPT], input=job, capture_output=True, text=True, encoding="utf-8"
        )
        if result.returncode != 0:
            lines = result.stderr.splitlines()
            message = next((line for line in lines if "Error:" in line), result.stderr.strip()[-500:])
            raise ValueError(f"Node.js cannot run '{self._folder}': {message}")
        return json.loads(result.stdout)
