"""Settings: strict types, ranges, and one sentence for the first fault."""

import inspect
from typing import Literal

import pytest
import yaml
from pydantic import Field, ValidationError
from sentences import refused, rows

from vaswani_hf.optimization.section import EncoderDecoderTraining, TextTraining
from vaswani_hf.recipe.recipe import recipe_classes
from vaswani_hf.settings import sections
from vaswani_hf.settings.base import Settings, explain_invalid, first_line_of

RECIPES = recipe_classes()


class Part(Settings):
    encoder: str | None = None


class Section(Settings):
    files: str | list[str] | None = None
    """Files of text."""
    count: int = Field(1, gt=0)
    rate: float = Field(0.5, ge=0, lt=1)
    weights: list[float | int] = []
    mode: bool | Literal["auto"] = "auto"
    form: Literal["a", "b"] | None = None
    language: str = "en"
    begin: str | Part | None = None
    sizes: dict[str, int] | int = 0


class Whole(Settings):
    section: Section = Section()
    name: str


WRONG = """
{files: 3} | `section.files` must be text or a list, but is 3.
{files: [a, 1]} | `section.files[1]` must be text, but is 1.
{files: "caf\\udce9.en"} | `section.files` must be UTF-8 text or a list, but is 'caf\\udce9.en'.
{language: "caf\\udce9"} | `section.language` must be UTF-8 text, but is 'caf\\udce9'.
{count: 0} | `section.count` must be greater than 0, but is 0.
{count: true} | `section.count` must be an integer, but is true.
{count: 1.5} | `section.count` must be an integer, but is 1.5.
{rate: 1} | `section.rate` must be less than 1, but is 1.
{rate: .nan} | `section.rate` must be a finite number, but is nan.
{weights: [1, x]} | `section.weights[1]` must be a number, but is 'x'.
{mode: 1} | `section.mode` must be true or false or 'auto', but is 1.
{form: c} | `section.form` must be 'a' or 'b', but is 'c'.
{language: false} | `section.language` must be text, but is false; put the word in quotes.
{begin: {encodr: x}} | `section.begin.encodr` is not a key, but is set to 'x'; the nearest key is `section.begin.encoder`.
{begin: {encoder: 1}} | `section.begin.encoder` must be text, but is 1.
{cuont: 1} | `section.cuont` is not a key, but is set to 1; the nearest key is `section.count`.
{sizes: {int: x}} | `section.sizes.int` must be an integer, but is 'x'.
3 | `section` must be a mapping of keys to values, but is 3.
"""


@pytest.mark.parametrize(("values", "sentence"), rows(WRONG))
def test_a_wrong_value_is_one_sentence(values, sentence):
    with refused(sentence):
        Whole.load({"section": yaml.safe_load(values), "name": "x"})


def test_a_missing_value_and_a_prefix_are_named():
    with pytest.raises(ValidationError) as error:
        Whole()
    assert explain_invalid(error.value, {}, "--") == "`--name` must be given, but is missing."


def test_integers_are_floats_and_sections_never_change():
    section = Section(rate=0, weights=[1, 0.5])
    assert (section.rate, type(section.rate)) == (0.0, float)
    assert [type(weight) for weight in section.weights] == [int, float]
    with pytest.raises(ValidationError):
        section.rate = 0.1
    other = section.replace(count=2)
    assert (other.count, other.rate, section.count, other.model_fields_set) == (
        2,
        0,
        1,
        {"rate", "weights", "count"},
    )
    with pytest.raises(ValueError, match="^`count` must be greater than 0"):
        section.replace(count=0)


@pytest.mark.parametrize(
    ("message", "line"),
    [("a b.\nc", "a b"), ("\n", "ValueError"), ("", "ValueError"), ("a" * 201, "a" * 200)],
)
def test_the_first_line_of_an_error(message, line):
    assert first_line_of(ValueError(message)) == line


def classes() -> list[type[Settings]]:
    found = [kind for _, kind in inspect.getmembers(sections, inspect.isclass) if issubclass(kind, Settings)]
    return [*found, EncoderDecoderTraining, TextTraining, *RECIPES.values()]


@pytest.mark.parametrize("kind", classes(), ids=lambda kind: kind.__name__)
def test_each_key_has_a_help(kind):
    sections_of_recipe = {"data", "tokenizer", "model", "training", "decoding", "evaluation", "publishing"}
    silent = {name for name, field in kind.model_fields.items() if not field.description}
    assert silent <= (sections_of_recipe if kind in RECIPES.values() else set())
