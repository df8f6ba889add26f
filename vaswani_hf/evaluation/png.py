"""Writes pictures as PNG, and defines the colours of pictures."""

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREY = "#999999"
# The colours of Okabe and Ito (2008), which people with any colour vision can distinguish.
BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
LIGHT_BLUE = "#56B4E9"
RED = "#D55E00"
YELLOW = "#F0E442"


def png_bytes(figure: "Figure") -> bytes:
    """Return a figure as PNG with 150 dots per inch. Equal figures give equal bytes."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150, metadata={"Software": None}, facecolor="white")
    return content.getvalue()
