"""The generated pages of recipe keys and commands, and the schema for editors."""

from pathlib import Path

import command_reference
import pytest
import recipe_reference
import yaml

ROOT = Path(__file__).parents[2]
CONFIGURATION = ROOT / "configuration"
RECIPES = [
    path
    for path in sorted(CONFIGURATION.rglob("*.yaml"))
    if path.relative_to(CONFIGURATION).parts[0] not in ("accelerate", "ablations")
]


def test_the_page_and_the_schema_are_up_to_date():
    remedy = "run python docs/generators/recipe_reference.py"
    assert recipe_reference.PAGE.read_text(encoding="utf-8") == recipe_reference.page(), remedy
    assert recipe_reference.SCHEMA.read_text(encoding="utf-8") == recipe_reference.schema_text(), remedy
    assert recipe_reference.KEYS.read_text(encoding="utf-8") == recipe_reference.keys_text(), remedy


def test_each_count_has_a_unit():
    counts = [row for row in recipe_reference.rows() if "integer" in row.type and row.key != "seed"]
    assert [row.key for row in counts if not row.unit] == []


def test_each_key_has_a_use_a_file_and_a_help():
    for section, keys in recipe_reference.all_keys().items():
        for key, found in keys.items():
            place = f"{section}.{key}"
            assert recipe_reference.uses_of(section, key), f"No code reads `{place}`."
            assert (ROOT / "vaswani_hf" / recipe_reference.file_of_field(section, key)).is_file(), place
            assert recipe_reference.description(found), place


def test_a_key_without_a_use_is_found():
    assert recipe_reference.uses_of("training", "not_a_key") == []
    assert recipe_reference.uses_of("publishing", "max_steps") == []


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_each_recipe_names_the_schema_which_knows_its_keys(path):
    schema = recipe_reference.schema()["properties"]
    first = path.read_text(encoding="utf-8").splitlines()[0]
    place = first.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / place).resolve() == recipe_reference.SCHEMA
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert content.keys() <= schema.keys()
    for section, keys in content.items():
        if isinstance(keys, dict):
            assert keys.keys() <= schema[section]["properties"].keys()


def test_the_schema_has_types_ranges_and_help():
    properties = recipe_reference.schema()["properties"]
    steps = properties["training"]["properties"]["max_steps"]
    assert steps["description"].startswith("The number of optimizer steps.")
    assert {"type": "integer", "exclusiveMinimum": 0} in steps["anyOf"]
    assert properties["task"]["enum"] == ["translation", "causal_lm", "masked_lm", "parsing"]
    assert not properties["training"]["additionalProperties"]


def test_the_page_of_commands_is_up_to_date():
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert page == command_reference.command_reference(), (
        "run python docs/generators/command_reference.py > docs/commands.md"
    )
