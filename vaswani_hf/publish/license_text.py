"""Writes the file LICENSE of a repository: the licence of the weights, and the licence of the code.

Each pushed repository contains code files of this package. The code has the Apache License 2.0. Section 4 of
the Apache License requires a copy of the licence with each copy of the code.
"""

import re
from importlib.metadata import distribution
from typing import Any

from ..recipe.licenses import RESEARCH_ONLY

_NOT_KNOWN = (
    "The licence of the weights and of the other files of the model is not known. Ask the publisher of the\n"
    "model before you use the model."
)
_FOR_RESEARCH = (
    "The weights and the other files of the model may be used for research only, because the texts that "
    "the\nmodel was trained on may be used for research only, or because the publisher of the model has "
    "decided so."
)
_CODE = (
    "The code files of this repository (*.py) are part of the package vaswani_hf. The code files are under "
    "the\nApache License 2.0:"
)


def license_text(metadata: dict[str, Any]) -> str:
    """Return the text of the file LICENSE for a model. `metadata` is the metadata of the model card."""
    name = metadata.get("license_name") or metadata.get("license")
    names = name if isinstance(name, list) else [name]
    if names == [RESEARCH_ONLY]:
        weights = _FOR_RESEARCH
    elif names in ([], [None], ["unknown"], ["other"]):
        weights = _NOT_KNOWN
    else:
        weights = (
            "The weights and the other files of the model are under the licence "
            f"{', '.join(map(_with_address, names))}.\nThe model card (README.md) says more about the licence and "
            "about the training data."
        )
    # Read the licence text from the metadata of the package, because an installed package contains the text
    # only there.
    apache = distribution("vaswani_hf").read_text("licenses/LICENSE") or ""
    return f"{weights}\n\n{_CODE}\n\n{apache}"


def _with_address(license: str) -> str:
    """Return the Hub's identifier of a licence. For a Creative Commons licence, add the address of the
    licence, because Creative Commons requires the address.
    """
    if found := re.fullmatch(r"cc-(by[a-z-]*)-(\d\.\d)", license):
        return f"{license} (https://creativecommons.org/licenses/{found[1]}/{found[2]}/)"
    if license == "cc0-1.0":
        return f"{license} (https://creativecommons.org/publicdomain/zero/1.0/)"
    return license
