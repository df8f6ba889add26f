"""Determines the licence of the training data, and checks the licence of the model."""

import re

from ..model.errors_vaswani import InvalidValueError
from ..settings.data import DataSettings

# `RESEARCH_ONLY` means that the training data may be used for research only. The Hub has no identifier for
# such a licence.
RESEARCH_ONLY = "research-only"

# Identifiers of the Hub for licences that exclude commercial use, such as cc-by-nc-4.0,
# fair-noncommercial-research-license and intel-research.
_NON_COMMERCIAL = re.compile(r"-nc\b|noncommercial|research")
# Identifiers of the Hub that do not say whether the licence excludes commercial use.
_UNDECIDED = ("other", "unknown")


def data_license(data: DataSettings) -> str | None:
    """Return the licence of the training data: an identifier of the Hub, "research-only", or None if
    unknown.
    """
    # The corpora of `data.corpus` have the licence of the package, because the package generates them.
    return data.license or ("apache-2.0" if data.corpus else None)


def check_license(license: str | None, of_data: str | None, key: str = "publishing.license") -> None:
    """Raise a ValueError if the licence of the model permits more than the licence of the training data.

    Share-alike and no-derivatives conditions of the training data are not checked, because the law does not
    say whether such conditions apply to a trained model. `license` is the licence of the model. The error
    message shows `key`, the name of the key or option that sets the licence.
    """
    if license is None or of_data is None:
        return
    if of_data == RESEARCH_ONLY and license != RESEARCH_ONLY:
        raise InvalidValueError(
            f"`{key}` must be {RESEARCH_ONLY} or left out, because the training data is for research only, "
            f"but is '{license}'."
        )
    excludes_commerce = license in _UNDECIDED or _NON_COMMERCIAL.search(license)
    if _NON_COMMERCIAL.search(of_data) and not excludes_commerce:
        raise InvalidValueError(
            f"`{key}` must not permit commercial use, because the training data has the licence {of_data}, "
            f"but is '{license}'; leave `{key}` out or write '{of_data}'."
        )
