"""Licences by the identifiers of the Hub, and which of them the licence of the training data rules out for a model."""

from ..model.configuration_vaswani import nearest_name
from .schema import DataSection

# Data that has no licence but the permission to use it for research.
RESEARCH_ONLY = "research-only"

# https://huggingface.co/docs/hub/repositories-licenses
_HUB_LICENSES = """
    apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m afl-3.0
    artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0
    cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0
    cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0
    etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c
    ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl openmdw-1.0 openmdw-1.1 openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense
    zlib pddl lgpl-lr deepfloyd-if-license fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4
    grok2-community gemma unknown other
""".split()
KNOWN_LICENSES = (*_HUB_LICENSES, RESEARCH_ONLY)
_NON_COMMERCIAL = {
    *(name for name in _HUB_LICENSES if name.startswith("cc-by-nc")),
    *("h-research", "intel-research", "apple-amlr", "deepfloyd-if-license", "fair-noncommercial-research-license"),
    RESEARCH_ONLY,
}
# They do not say what they permit.
UNCERTAIN = {"cc", "other", "unknown"}


def check_known(license: str | None, key: str) -> None:
    """Refuse a licence identifier that the Hub does not know.

    Args:
        license (str, optional): An identifier; None passes.
        key (str): The key that it was given as, for the message.

    Raises:
        ValueError: If the Hub does not know it.
    """
    if license is not None and license not in KNOWN_LICENSES:
        raise ValueError(
            f"`{key}` must be a licence identifier of the Hub, such as apache-2.0, or {RESEARCH_ONLY}, but is {license!r}; "
            f"the nearest known one is '{nearest_name(license.lower(), KNOWN_LICENSES)}'."
        )


def check_allowed(license: str | None, data_license: str | None, key: str = "publishing.license") -> None:
    """Refuses to publish a model under a licence that certainly permits more than that of its training data.

    That is any other one for data for research only, and one that permits commercial use for data that does not. The
    meaning of share-alike and no-derivatives licences of data for a model is not settled; they rule nothing out here.

    Args:
        license (str, optional): The licence that the model is to be published under; None passes.
        data_license (str, optional): That of the training data; None where it is not known.
        key (str): The key that the first was given as, for the message.

    Raises:
        ValueError: If the data does not allow it.
    """
    check_known(license, key)
    if license is None:
        return
    if data_license == RESEARCH_ONLY and license != RESEARCH_ONLY:
        raise ValueError(
            f"`{key}` must be {RESEARCH_ONLY} or left out, because the training data is for research only, but is "
            f"'{license}'."
        )
    if data_license in _NON_COMMERCIAL and license not in _NON_COMMERCIAL | UNCERTAIN:
        raise ValueError(
            f"`{key}` must not permit commercial use, because the licence of the training data, {data_license}, does not, "
            f"but is '{license}'; leave it out or write '{data_license}'."
        )


def data_license(data: DataSection) -> str | None:
    """The licence of the training data.

    Args:
        data (DataSection): The sources.

    Returns:
        str: An identifier of the Hub or "research-only"; None where it is not known.
    """
    # The package makes these corpora itself.
    return data.license or ("apache-2.0" if data.corpus else None)


def strictest(stated: list) -> str | None:
    """The licence that those of a card mean together for what is made of all the data.

    One that is for research only comes first, then one that forbids commercial use and most beside it; "other" stands for a single
    one that the Hub does not know, and None for several others, because it is not known what they permit together.

    Args:
        stated (list): The licences on the card; None where it says nothing.
    """
    if restricting := {license for license in stated if isinstance(license, str)} & _NON_COMMERCIAL:
        return max(restricting, key=lambda name: (name == RESEARCH_ONLY, name[:3] != "cc-", name.count("-"), name))
    if len(stated) != 1 or stated[0] is None:
        return None
    return stated[0] if stated[0] in KNOWN_LICENSES else "other"
