"""The manual builds without a warning, and README's links lead to files and headings of the manual."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_the_manual_builds_without_a_warning(python, tmp_path):
    pytest.importorskip("sphinx")
    pytest.importorskip("furo")
    command = [python, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "dummy", "docs", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub and MyST give to the headings of a page."""
    headings = re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_every_link_leads_somewhere(name):
    for link in LINK.findall((ROOT / name).read_text(encoding="utf-8")):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = ROOT / (path or name)
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link
