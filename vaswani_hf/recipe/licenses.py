"""Determines the licence of the training data, and checks the licence of the model."""

import re

from ..model.errors_vaswani import InvalidValueError
from ..settings.data import DataSettings

# The value of `data.license` for training data whose licence allows only research. The Hub has no general
# identifier for a research-only licence.
RESEARCH_ONLY = "research-only"

# Matches the Hub's identifiers of licences that exclude commercial use, such as cc-by-nc-4.0,
# fair-noncommercial-research-license and intel-research.
_NON_COMMERCIAL = re.compile(r"-nc\b|noncommercial|research")
# The Hub's licence identifiers that do not say whether the licence excludes commercial use.
_UNDECIDED = ("other", "unknown")


def data_license(data: DataSettings) -> str | None:
    """Return the licence of the training data: an identifier of the Hub, "research-only", or None for an
    unknown licence.
    """
    # The package generates the corpus that `data.corpus` names, so the corpus has the licence of the package.
    return data.license or ("apache-2.0" if data.corpus else None)


def check_license(license: str | None, of_data: str | None, key: str = "publishing.license") -> None:
    """Raise a ValueError if the licence `of_data` of the training data or the imported checkpoint forbids
    commercial use or all use except research, but the licence `license` of the model permits such use.

    `key` is the recipe key or the option that sets `license`, for the error message. Share-alike and
    no-derivatives conditions are not checked, because the law does not say whether such conditions apply to a
    trained model.
    """
    if license is None or of_data is None:
        return
    if of_data == RESEARCH_ONLY and license != RESEARCH_ONLY:
        raise InvalidValueError(
            f"`{key}` must be {RESEARCH_ONLY} or left out, but is '{license}'; "
            "the training data is for research only."
        )
    excludes_commerce = license in _UNDECIDED or _NON_COMMERCIAL.search(license)
    if _NON_COMMERCIAL.search(of_data) and not excludes_commerce:
        raise InvalidValueError(
            f"`{key}` must not be a licence for commercial use, but is '{license}', and the training data or "
            f"the imported checkpoint has the licence {of_data}; leave `{key}` out or write '{of_data}'."
        )
