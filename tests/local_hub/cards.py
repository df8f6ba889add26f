"""The Hub's checks of the metadata of a card, and the tags that the Hub shows."""

import re

import yaml

LICENSES = set(
    """
    afl-3.0 agpl-3.0 apache-2.0 bsd-2-clause bsd-3-clause cc cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-nc-2.0
    cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0
    cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 gpl-3.0 lgpl-3.0 mit mpl-2.0 openrail other pddl unknown unlicense wtfpl
    """.split()
)
TEXT_LISTS = ("language", "license", "tags", "datasets", "metrics", "base_model")


def metadata(content: str) -> dict:
    """The mapping between the two lines of three dashes that a card begins with.

    Raises:
        ValueError: If the block between the dashes is not a mapping.
    """
    found = re.match(r"\s*---\r?\n(.*?)\r?\n?---(?:\r?\n|$)", content, re.DOTALL)
    try:
        fields = yaml.safe_load(found[1]) if found else {}
    except yaml.YAMLError as error:
        raise ValueError(f"Invalid YAML in card metadata: {error}") from error
    if not isinstance(fields, dict | None):
        raise ValueError("Card metadata must be a mapping")
    return fields or {}


def as_list(value) -> list:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def problems(content: str) -> list[str]:
    """The errors of a card."""
    # The client may be imported only after the tests have set its environment.
    from huggingface_hub.repocard_data import model_index_to_eval_results

    try:
        fields = metadata(content)
    except ValueError as error:
        return [str(error)]
    errors = [
        f'"{name}[{number}]" must be a string'
        for name in TEXT_LISTS
        for number, value in enumerate(as_list(fields.get(name)))
        if not isinstance(value, str)
    ]
    if errors:
        return errors
    for code in as_list(fields.get("language")):
        if not re.fullmatch(r"[a-z]{2,3}(-[A-Za-z]+)?|code|multilingual", code):
            errors.append(
                f'"language" with value "{code}" is not valid. It must be an ISO 639-1, 639-2 or 639-3 code'
            )
    if not set(as_list(fields.get("license"))) <= LICENSES:
        errors.append(f'"license" must be one of [{", ".join(sorted(LICENSES))}]')
    for name in ("base_model", "datasets"):
        for value in as_list(fields.get(name)):
            if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", value):
                errors.append(f'"{name}" with value "{value}" is not valid. Use an id from https://hf.co.')
    try:
        if fields.get("model-index") is not None:
            model_index_to_eval_results(fields["model-index"])
    except (TypeError, KeyError, ValueError) as error:
        errors.append(f'"model-index" is not of the form that is expected: {error!r}')
    return errors


def tags(fields: dict) -> list[str]:
    """The tags that the Hub shows for this metadata."""
    found = []
    for name, prefix in (("library_name", ""), ("tags", ""), ("pipeline_tag", ""), ("language", "")):
        found += [prefix + str(value) for value in as_list(fields.get(name))]
    for name, prefix in (("datasets", "dataset:"), ("base_model", "base_model:"), ("license", "license:")):
        found += [prefix + str(value) for value in as_list(fields.get(name))]
    return list(dict.fromkeys(found))
