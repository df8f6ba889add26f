"""The Hub's checks of the metadata of a card, and the tags that it shows."""

import re

import yaml

LICENSES = set(
    """\
apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m afl-3.0
artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0
cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0
cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0
cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl
lgpl-2.1 lgpl-3.0 isc intel-research h-research lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl openmdw-1.0
openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license fair-noncommercial-research-license
llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 grok2-community gemma unknown other""".split()
)
TEXT_LISTS = ["language", "license", "tags", "datasets", "metrics", "base_model"]


def metadata(content: str) -> dict:
    """The mapping between the two lines of three dashes that a card begins with.

    Raises:
        ValueError: If there is such a block, and it is no mapping.
    """
    found = re.match(r"\s*---\r?\n(.*?)\r?\n?---(?:\r?\n|$)", content, re.DOTALL)
    try:
        fields = yaml.safe_load(found[1]) if found else {}
    except yaml.YAMLError as error:
        raise ValueError(f"Invalid YAML in card metadata: {error}") from error
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise ValueError("Card metadata must be a mapping")
    return fields


def as_list(value) -> list:
    return value if isinstance(value, list) else [] if value is None else [value]


def problems(content: str) -> tuple[list[str], list[str]]:
    """The errors and warnings of a card."""
    try:
        fields = metadata(content)
    except ValueError as error:
        return [str(error)], []
    if not fields:
        return [], ["empty or missing yaml metadata in repo card"]
    errors = [
        f'"{name}[{i}]" must be a string'
        for name in TEXT_LISTS
        for i, value in enumerate(as_list(fields.get(name)))
        if not isinstance(value, str)
    ]
    errors += [
        f'"{name}" must be a string'
        for name in ("pipeline_tag", "library_name", "license_name", "license_link")
        if not isinstance(fields.get(name, ""), str)
    ]
    if not errors:
        errors = _value_problems(fields)
    return errors + _index_problems(fields.get("model-index")), []


def _value_problems(fields: dict) -> list[str]:
    errors = []
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
                errors.append(
                    f'"{name}" with value "{value}" is not valid. Use a model id from https://hf.co/models.'
                )
    return errors


def _index_problems(index) -> list[str]:
    """The errors in the evaluation results."""
    if index is None:
        return []
    errors = []
    try:
        for i, model in enumerate(index):
            if not isinstance(model.get("name"), str):
                errors.append(f'"model-index[{i}].name" is required')
            for j, result in enumerate(model["results"]):
                place = f"model-index[{i}].results[{j}]"
                required = [("task", "type"), ("dataset", "type"), ("dataset", "name")]
                errors += [
                    f'"{place}.{part}.{key}" is required'
                    for part, key in required
                    if not result[part].get(key)
                ]
                for k, metric in enumerate(result["metrics"]):
                    if not metric.get("type") or "value" not in metric:
                        errors.append(f'"{place}.metrics[{k}]" needs a type and a value')
    except (TypeError, KeyError, AttributeError) as error:
        errors.append(f'"model-index" is not of the form that is expected: {error!r}')
    return errors


def tags(fields: dict) -> list[str]:
    """The tags that the Hub shows for this metadata."""
    found = (
        as_list(fields.get("library_name"))
        + as_list(fields.get("tags"))
        + as_list(fields.get("pipeline_tag"))
    )
    found += as_list(fields.get("language"))
    for name, prefix in (("datasets", "dataset"), ("base_model", "base_model"), ("license", "license")):
        found += [f"{prefix}:{value}" for value in as_list(fields.get(name))]
    return list(dict.fromkeys(str(tag) for tag in found))
