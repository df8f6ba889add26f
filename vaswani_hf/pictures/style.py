"""Defines the style of all pictures: colours, sizes and file formats.

This module imports matplotlib inside functions, because the import is slow and only pictures need matplotlib.
"""

import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers.utils import logging

from ..evaluation.png import BLUE, GREEN, PURPLE, RED, png_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

logger = logging.get_logger(__name__)

# Lines of one plot also differ in `LINE_STYLES`, so that a grey print shows the difference.
COLORS = (BLUE, RED, GREEN, PURPLE)
LINE_STYLES = ("-", "--", ":", "-.")
# The lightness of `WEIGHT_MAP` and of `SIGNED_MAP` changes steadily with the value, so that a grey print
# keeps the order of the values.
WEIGHT_MAP = "Blues"
SIGNED_MAP = "cividis"
# The maximum number of characters in a line of a caption, for each inch of the picture's width.
_CHARACTERS_PER_INCH = 16
# The warning of matplotlib about a character that the font lacks.
_MISSING_GLYPH = "Glyph .* missing from"


class Picture(NamedTuple):
    """A drawn picture: file name without suffix, figure, caption, and the numbers for figures.json."""

    name: str
    figure: "Figure"
    caption: str
    numbers: dict[str, Any]


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure. `width` and `height` are in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: "Figure", path: Path) -> None:
    """Write a figure as .png (150 dots per inch) or .svg. Equal figures give files with equal bytes."""
    from matplotlib import rc_context

    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", _MISSING_GLYPH)
        if path.suffix == ".png":
            path.write_bytes(png_bytes(figure))
        else:
            with rc_context({"svg.hashsalt": "vaswani_hf"}):
                figure.savefig(path, dpi=150, metadata={"Date": None}, facecolor="white")
    is_glyph_missing = False
    for warning in caught:
        if re.match(_MISSING_GLYPH, str(warning.message)):
            is_glyph_missing = True
        else:
            warnings.warn(warning.message, warning.category, stacklevel=2)
    if is_glyph_missing:
        logger.warning_once(
            "Pictures show boxes in place of some characters, because the font of matplotlib lacks the characters; "
            "name a font that contains the characters as `font.family` in the file matplotlibrc."
        )


def heat_map(
    axes: "Axes", values: torch.Tensor, color_map: str = WEIGHT_MAP, lowest: float = 0.0, highest: float = 1.0
) -> Any:
    """Draw a matrix, row 0 at the top, with colours from `lowest` to `highest`. Return the image."""
    return axes.imshow(
        values.float().cpu().numpy(),
        cmap=color_map,
        vmin=lowest,
        vmax=highest,
        aspect="auto",
        interpolation="nearest",
    )


def label_ticks(axes: "Axes", columns: Iterable[str], rows: Iterable[str], size: float = 8) -> None:
    """Write one label for each column and each row of a heat map."""
    columns, rows = list(map(literal, columns)), list(map(literal, rows))
    axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize=size)
    axes.set_yticks(range(len(rows)), rows, fontsize=size)


def literal(text: str) -> str:
    """Remove surrounding spaces, and escape dollar signs, so that matplotlib draws a dollar sign and not a
    formula.
    """
    return text.strip().replace("$", r"\$")


def write_caption(figure: "Figure", text: str) -> None:
    """Write a caption below a figure."""
    import textwrap

    width = int(figure.get_figwidth() * _CHARACTERS_PER_INCH)
    figure.supxlabel("\n".join(textwrap.wrap(literal(text), width)), fontsize=8, x=0.01, ha="left")
