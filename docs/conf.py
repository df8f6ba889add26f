"""Defines the settings of Sphinx for the manual. `make docs` builds the manual without network access."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent / "_ext"), str(ROOT)]

from vaswani_hf import __version__  # noqa: E402

project = "vaswani_hf"
author = "The vaswani_hf authors"
copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "formats_table", "percent_script"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autoclass_content = "class"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
# Show a name in single backticks as code. The docstrings use single backticks, as Markdown does.
default_role = "code"

html_theme = "furo"
html_title = f"vaswani_hf {__version__}"
html_copy_source = False
html_show_sphinx = False
# The colours of code blocks.
pygments_style = "default"
