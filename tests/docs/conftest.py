"""Makes the modules of this folder and the generators of reference pages importable by their names."""

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parents[1] / "docs" / "generators")]
