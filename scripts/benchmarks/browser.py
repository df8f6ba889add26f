"""Compares the translations of an exported HTML page with the translations in Python, and measures times.

    python scripts/benchmarks/browser.py CHECKPOINT SOURCE [--num_beams 4] [--sentences 1000]
        [--quantization float32 int8]

The script exports the checkpoint to an HTML page with float32 weights, and to an HTML page with int8 weights.
The script translates the lines of SOURCE in Python, in Node.js and in headless Chromium. Python computes in
float32 with the same weights as the page. For a page with int8 weights, the script first rounds the weights
of the Python model to the int8 values of the page.

For each page, the script prints three results of Node.js and of Chromium: the number of translations that
differ from Python, the largest difference of a score from Python, and the median wall-clock time of a
sentence of 13 words. For Node.js, the script also prints the CPU time, because other programs on the machine
can increase the wall-clock time. JavaScript uses one thread.
"""

import argparse
import gzip
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright
from timing import print_header

from vaswani_hf import VaswaniForSeq2SeqLM
from vaswani_hf.checkpoint.tokenizers import load_tokenizers
from vaswani_hf.convert.export import export
from vaswani_hf.convert.html_engine import MODULE_FILE, PAGE_FILE
from vaswani_hf.convert.html_page import with_int8_weights
from vaswani_hf.model.translator_vaswani import BaseTranslator

NUM_WORDS = 13
# The script fails if a score in Python and a score in JavaScript differ by more than this number.
TOLERANCE = 1e-4
# A JavaScript function that translates texts one after the other. The function returns for each text the
# translation, the score, the wall-clock time and the CPU time. The times are in milliseconds.
TRANSLATE = """
    ({ texts, options }) => texts.map((text) => {
      const cpu = globalThis.process?.cpuUsage();
      const start = performance.now();
      const [{ text: translation, score }] = translator.translate(text, options);
      const milliseconds = performance.now() - start;
      const used = cpu && process.cpuUsage(cpu);
      return { translation, score, milliseconds, cpu: used && (used.user + used.system) / 1000 };
    })
"""


def in_node(folder: Path, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Translate texts in Node.js."""
    script = f"""
        import {{ readFileSync }} from "node:fs";
        import {{ readPage }} from {json.dumps((folder / MODULE_FILE).as_uri())};
        const translator = readPage(readFileSync({json.dumps(str(folder / PAGE_FILE))}, "utf-8"));
        console.log(JSON.stringify(({TRANSLATE})(JSON.parse(readFileSync(0, "utf-8")))));
    """
    command = ["node", "--input-type=module", "--eval", script]
    done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def in_chromium(folder: Path, job: dict[str, Any], executable: str) -> list[dict[str, Any]]:
    """Translate texts in headless Chromium, without a network."""
    with sync_playwright() as playwright:
        # Without these arguments, Chromium looks for updates.
        offline = ["--no-proxy-server", "--host-resolver-rules=MAP * ~NOTFOUND"]
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", *offline])
        page = browser.new_context(offline=True).new_page()
        page.set_default_timeout(0)
        page.goto((folder / PAGE_FILE).as_uri())
        page.wait_for_function("globalThis.vaswani !== undefined")
        found = page.evaluate(
            f"(job) => {{ const {{ translator }} = vaswani; return ({TRANSLATE})(job); }}", job
        )
        browser.close()
    return found


def print_comparison(name: str, texts: list[str], expected: list[Any], found: list[dict[str, Any]]) -> int:
    """Print the results of one program, and each text whose translation differs from Python. Return the
    number of different translations, plus 1 if a score differs by more than `TOLERANCE`. If the function
    returns 0, the program agrees with Python.
    """
    num_different = 0
    largest = 0.0
    for text, own, other in zip(texts, expected, found, strict=True):
        largest = max(largest, abs(own.score - other["score"]))
        if own.text != other["translation"]:
            num_different += 1
            print(f"  {text}\n    Python {own.score:.7f}: {own.text}")
            print(f"    {name} {other['score']:.7f}: {other['translation']}")
    rows = [row for text, row in zip(texts, found, strict=True) if len(text.split()) == NUM_WORDS]
    if not rows:
        raise SystemExit(f"No text has {NUM_WORDS} words; give a file with sentences of {NUM_WORDS} words.")
    times = f"{statistics.median(row['milliseconds'] for row in rows):.1f} ms"
    if rows[0].get("cpu") is not None:
        times += f" (CPU {statistics.median(row['cpu'] for row in rows):.1f} ms)"
    print(
        f"{name}: {num_different} of {len(texts):,} translations differ, largest difference of scores {largest:.1e}, "
        f"median of {len(rows)} sentences of {NUM_WORDS} words {times}",
        flush=True,
    )
    return num_different + (largest > TOLERANCE)


def main() -> None:
    """Export the checkpoint with each quantization. Run each page in Node.js and in Chromium, and compare the
    results with the results of Python.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("source", type=Path, help="a text file, or a text file that gzip has compressed")
    parser.add_argument("--num_beams", type=int, default=4)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--quantization", nargs="+", default=["float32", "int8"])
    parser.add_argument("--chromium", default="/usr/bin/chromium", help="the path of Chromium")
    arguments = parser.parse_args()
    print_header()
    open_text: Callable[..., Any] = gzip.open if arguments.source.suffix == ".gz" else open
    with open_text(arguments.source, "rt", encoding="utf-8") as file:
        texts = [line.strip() for line in file][: arguments.sentences]
    job = {"texts": texts, "options": {"num_beams": arguments.num_beams}}
    tokenizers = load_tokenizers(arguments.checkpoint)
    model = VaswaniForSeq2SeqLM.from_pretrained(arguments.checkpoint, dtype="float32").eval()
    failures = 0
    with tempfile.TemporaryDirectory() as temporary:
        for quantization in arguments.quantization:
            folder = Path(temporary) / quantization
            print(f"{quantization}: {export(arguments.checkpoint, folder, 'html', quantization)}")
            print(f"{quantization}: {(folder / PAGE_FILE).stat().st_size / 1e6:.2f} MB")
            same = with_int8_weights(model) if quantization == "int8" else model
            translator = BaseTranslator(same, *tokenizers)
            started = time.perf_counter()
            expected = list(translator.translate(texts, num_beams=arguments.num_beams, return_scores=True))
            seconds = time.perf_counter() - started
            print(f"{quantization}, Python: {len(texts):,} sentences in batches took {seconds:.1f} s")
            failures += print_comparison(f"{quantization}, Node.js", texts, expected, in_node(folder, job))
            found = in_chromium(folder, job, arguments.chromium)
            failures += print_comparison(f"{quantization}, Chromium", texts, expected, found)
    raise SystemExit(failures > 0)


if __name__ == "__main__":
    main()
