"""Prints for each format the largest difference between log-probabilities of original and imported models.

Run `python scripts/benchmarks/imports.py` from a clone. The script runs the tests of the imports that call
`record_parity` of tests/parity.py. If the library of a format is not installed, pytest skips the test, and
the table has no row for the format.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from timing import print_header

_TESTS = Path(__file__).parents[2] / "tests" / "convert"


def measured(files: list[Path]) -> dict[tuple[str, str], list[float]]:
    """Run the tests in `files`. Return for each pair (format, original model) the recorded differences in
    nats.
    """
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = ["-q", "-p", "no:xdist", "-k", "compute", "-o", "junit_family=xunit1"]
        words += [f"--junitxml={report}", *map(str, files)]
        subprocess.run([sys.executable, "-m", "pytest", *words], check=True, stdout=sys.stderr)
        found: dict[tuple[str, str], list[float]] = {}
        for element in ElementTree.parse(report).iter("property"):
            if element.get("name") == "parity":
                format, original, difference = json.loads(element.get("value", ""))
                found.setdefault((format, original), []).append(difference)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "tests", nargs="*", type=Path, help="the files of tests; by default the tests of all imports"
    )
    arguments = parser.parse_args()
    rows = measured(arguments.tests or sorted(_TESTS.glob("test_import_*.py")))
    print_header()
    print()
    print("| format | compared with | comparisons | largest difference (nats) |")
    print("|---|---|---|---|")
    for (format, original), differences in sorted(rows.items()):
        print(f"| {format} | {original} | {len(differences)} | {max(differences):.1e} |")


if __name__ == "__main__":
    main()
