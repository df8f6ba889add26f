"""What a run records about itself for others to read: its data, its machine, and its recipe without local paths."""

import dataclasses
import json
import os
import platform
from pathlib import Path
from typing import Any

import torch
import yaml

from ..model.repository_vaswani import RECORD
from ..recipe import Recipe, load_recipe
from ..recipe.licenses import data_license
from ..recipe.published import is_on_hub, last_part, published_recipe
from ..recipe.schema import DataSection

CARD_FILE, RECIPE_FILE, RESULTS_FILE, CURVE_FILE = RECORD


_NUMBERS = (int, float)
# What the values of results.json must be where they are there and not null; "*" stands for every key.
_RESULTS: dict[str, Any] = {
    "training": {
        **dict.fromkeys(("parameters", "seconds", "steps", "target_tokens"), _NUMBERS),
        "averaged_steps": list,
        "versions": {},
    },
    "test": dict.fromkeys(("bleu", "chrf", "exact_match", "perplexity", "sentences"), _NUMBERS),
    "decoding": {},
    "corpus": {"*": {"*": _NUMBERS}},
    "data": {
        **dict.fromkeys(("source_language", "target_language", "license", "attribution"), str),
        **dict.fromkeys(("train", "validation", "test"), {"name": str, "files": list, "*": (str, list)}),
    },
}
_KIND_NAMES = {str: "text", list: "a list", _NUMBERS: "a number", (str, list): "text or a list"}


def read_results(path: Path) -> dict[str, Any]:
    """What a run has written of itself at its end.

    Args:
        path (Path): results.json; need not be there.

    Returns:
        dict: Empty if there is none.

    Raises:
        ValueError: If it is no JSON object, or a value in it is not of its kind.
    """
    results = read_record(path)
    _check_kinds(results, _RESULTS, "", path)
    return results


def _check_kinds(content: dict[str, Any], kinds: dict[str, Any], place: str, path: Path) -> None:
    for key, value in content.items():
        kind = kinds.get(key, kinds.get("*"))
        if value is None or kind is None:
            continue
        is_mapping = isinstance(kind, dict)
        if isinstance(value, bool) or not isinstance(value, dict if is_mapping else kind):
            expected = "a mapping" if is_mapping else _KIND_NAMES[kind]
            raise ValueError(
                f"The record '{path}' must hold {expected} as `{place}{key}`, but holds {value!r}; restore it or remove it."
            )
        if is_mapping:
            _check_kinds(value, kind, f"{place}{key}.", path)


def read_record(path: Path) -> dict[str, Any]:
    """A JSON file of a run.

    Args:
        path (Path): The file; need not be there.

    Returns:
        dict: Empty if there is none.

    Raises:
        ValueError: If it is no JSON object.
    """
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"The record '{path}' must hold a JSON object, but does not; restore it or remove it.")
    return content


def recorded_recipe(path: Path) -> Recipe | None:
    """The recipe that a run has recorded.

    Args:
        path (Path): recipe.yaml; need not be there.

    Returns:
        Recipe: None if there is none.

    Raises:
        ValueError: If it is no recipe.
    """
    try:
        return load_recipe(path) if path.is_file() else None
    except ValueError as error:
        raise ValueError(f"The record '{path}' cannot be used: {error}") from error


def data_facts(data: DataSection) -> dict[str, Any]:
    """What the data of a run is, without the folders that it lies in.

    Args:
        data (DataSection): The sources.

    Returns:
        dict: `source_language`, `target_language`, `license`, `attribution`, and for each of `train`, `validation` and
        `test` None or a dict of `name`, `files`, `dataset` (where it is one of the Hub), `config`, `revision` and
        `split`, as far as they apply.
    """
    facts: dict[str, Any] = {"source_language": data.source_language, "target_language": data.target_language}
    facts |= {"license": data_license(data), "attribution": data.attribution}
    return facts | {split: _split_facts(data, split) for split in ("train", "validation", "test")}


def _split_facts(data: DataSection, split: str) -> dict[str, Any] | None:
    if data.corpus:
        return {"name": data.corpus, "split": split}
    given = [getattr(data, f"{split}_{kind}") for kind in ("source", "target", "pairs")]
    files = [last_part(path) for path in given if path]
    if files:
        return {"name": files[0], "files": files}
    name = getattr(data, f"{split}_split")
    if not (data.dataset and name):
        return None
    if not is_on_hub(data.dataset):
        facts: dict[str, str | None] = {"name": last_part(data.dataset)}
    else:
        facts = {"name": data.dataset, "dataset": data.dataset, "revision": data.dataset_revision}
    facts |= {"config": data.dataset_config, "split": name}
    return {key: value for key, value in facts.items() if value}


def published_yaml(path: str | Path) -> str:
    """A recipe's file as others may see it.

    Args:
        path (str or Path): What a run has recorded; an older version of the package knew fewer keys.

    Returns:
        str: YAML that `load_recipe` reads, with the keys of the file and no others.

    Raises:
        ValueError: If it is no recipe, or there is none.
    """
    recipe = published_recipe(recorded_recipe(Path(path)) or load_recipe(path))
    recorded = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    return yaml.safe_dump(_restricted(dataclasses.asdict(recipe), recorded), sort_keys=False, allow_unicode=True)


def _restricted(content: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _restricted(value, keys[key] or {}) if isinstance(value, dict) else value
        for key, value in content.items()
        if key in keys
    }


def hardware_name(device: torch.device, num_processes: int) -> str:
    """The hardware of a run as a person would name it.

    Args:
        device (torch.device): What each process computes on.
        num_processes (int): How many processes there are.

    Returns:
        str: "8 x NVIDIA H100", or the model of the CPU, its logical cores, and how many threads the run had of them.
    """
    if device.type == "cuda":
        return f"{num_processes} x {torch.cuda.get_device_name(device)}"
    if device.type != "cpu":
        return f"{num_processes} x {device.type} of {_cpu_name()}"
    threads = counted(torch.get_num_threads(), "thread")
    shares = f"{num_processes} processes of {threads}" if num_processes > 1 else threads
    return f"{_cpu_name()}, {counted(os.cpu_count() or 1, 'logical core')}, {shares}"


def counted(number: int, noun: str) -> str:
    """A number and what it counts.

    Args:
        number (int): How many.
        noun (str): In the singular.

    Returns:
        str: "1 thread", "2,000 threads".
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _cpu_name() -> str:
    # On Linux `platform` knows the architecture only.
    path = Path("/proc/cpuinfo")
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()
