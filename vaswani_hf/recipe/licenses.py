"""The licence of the training data, and the licences that it excludes for the model."""

import re

from ..settings.data import DataSettings

# The licence of data for which nothing is stated except that research may use it. The Hub has no such
# identifier.
RESEARCH_ONLY = "research-only"

# Identifiers of the Hub that exclude commercial use, such as cc-by-nc-4.0,
# fair-noncommercial-research-license and intel-research. "other" and "unknown" may exclude it too.
_NON_COMMERCIAL = re.compile(r"-nc\b|noncommercial|research")
_UNDECIDED = ("other", "unknown")


def data_license(data: DataSettings) -> str | None:
    """The licence of the training data, an identifier of the Hub or "research-only"; None if not known."""
    # The package generates the corpora of `data.corpus` itself.
    return data.license or ("apache-2.0" if data.corpus else None)


def check_license(license: str | None, of_data: str | None, key: str = "publishing.license") -> None:
    """Refuse to publish a model under a licence that permits more than the licence of its training data.

    A share-alike or no-derivatives licence of the data excludes nothing here, because it is not settled whether it
    applies to a model. `key` is the key or option of the licence, for the message.
    """
    if license is None or of_data is None:
        return
    if of_data == RESEARCH_ONLY and license != RESEARCH_ONLY:
        raise ValueError(
            f"`{key}` must be {RESEARCH_ONLY} or left out, because the training data is for research only, "
            f"but is '{license}'."
        )
    excludes_commerce = license in _UNDECIDED or _NON_COMMERCIAL.search(license)
    if _NON_COMMERCIAL.search(of_data) and not excludes_commerce:
        raise ValueError(
            f"`{key}` must not permit commercial use, because the licence of the training data, {of_data}, "
            f"does not, but is '{license}'; leave it out or write '{of_data}'."
        )
