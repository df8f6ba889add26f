"""The generated page of the keys of a recipe, and the schema for editors."""

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CONFIGURATION = ROOT / "configuration"
RECIPES = [
    path
    for path in sorted(CONFIGURATION.rglob("*.yaml"))
    if path.relative_to(CONFIGURATION).parts[0] not in ("accelerate", "ablations")
]


@pytest.fixture(scope="module")
def reference(script):
    return script("recipe_reference")


def test_the_page_and_the_schema_are_up_to_date(reference):
    remedy = "run python scripts/reference/recipe_reference.py"
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(), remedy
    assert reference.SCHEMA.read_text(encoding="utf-8") == reference.schema_text(), remedy
    assert reference.KEYS.read_text(encoding="utf-8") == reference.keys_text(), remedy


def test_each_count_has_a_unit(reference):
    counts = [row for row in reference.rows() if "integer" in row["type"] and row["key"] != "seed"]
    assert [row["key"] for row in counts if not row["unit"]] == []


def test_each_key_has_a_use_a_file_and_a_help(reference):
    for section, keys in reference.all_keys().items():
        for key, found in keys.items():
            place = f"{section}.{key}"
            assert reference.uses_of(section, key), f"No code reads `{place}`."
            assert (ROOT / "vaswani_hf" / reference.file_of_field(section, key)).is_file(), place
            assert reference.description(found), place


def test_a_key_without_a_use_is_found(reference):
    assert reference.uses_of("training", "not_a_key") == []
    assert reference.uses_of("publishing", "max_steps") == []


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_each_recipe_names_the_schema_which_knows_its_keys(reference, path):
    schema = reference.schema()["properties"]
    first = path.read_text(encoding="utf-8").splitlines()[0]
    place = first.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / place).resolve() == reference.SCHEMA
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert content.keys() <= schema.keys()
    for section, keys in content.items():
        if isinstance(keys, dict):
            assert keys.keys() <= schema[section]["properties"].keys()


def test_the_schema_has_types_ranges_and_help(reference):
    properties = reference.schema()["properties"]
    steps = properties["training"]["properties"]["max_steps"]
    assert steps["description"].startswith("The number of optimizer steps.")
    assert {"type": "integer", "exclusiveMinimum": 0} in steps["anyOf"]
    assert properties["task"]["enum"] == ["translation", "causal_lm", "masked_lm", "parsing"]
    assert not properties["training"]["additionalProperties"]
