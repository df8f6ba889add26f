"""Makes the arguments of argparse from a class of options, and converts the words of a command line to values."""

import argparse
import re
from collections.abc import Callable, Sequence
from itertools import zip_longest
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_origin

from pydantic.fields import FieldInfo

from ..model.inputs_vaswani import nearest_name
from .options import Options, command_line_settings


def parse_words(name: str, options: type[Options], words: list[str]) -> dict[str, Any]:
    """Parse the words of a command line. The keys of the result are the field names of the options."""
    has_recipe_keys = "overrides" in options.model_fields
    keys = "Any other key of the recipe can follow as --key value." if has_recipe_keys else None
    # Abbreviations are not allowed, because an abbreviated option could be a key of the recipe.
    parser = CommandParser(prog=f"vaswani {name}", epilog=keys, allow_abbrev=not has_recipe_keys)
    add_options(parser, options)
    known, unknown = parser.parse_known_args(normalised(words, options))
    values = vars(known)
    if has_recipe_keys:
        values["overrides"] = unknown
    elif unknown:
        parser.refuse(unknown)
    return values


class CommandParser(argparse.ArgumentParser):
    """An argparse parser that reports an error in one sentence."""

    def error(self, message: str) -> NoReturn:
        """Print one sentence and end the process. argparse itself would print all options first."""
        self.exit(2, f"{self.prog}: {message.removesuffix('.')}; see {self.prog} --help\n")

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """End the process with an error. The error names the unknown option and the most similar known
        option.
        """
        option = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
        if option is None:
            self.error(f"there is no argument {words[0]!r} to take")
        known = re.findall(r"--[\w-]+", self.format_help())
        self.error(f"there is no option {option}; the nearest one is {nearest_name(option, known)}")


def add_options(parser: argparse.ArgumentParser, options: type[Options]) -> None:
    """Add one argument to the parser for each field of the class `options`.

    If an option is missing on the command line, the parsed result has no attribute for this option.
    """
    for name, field in options.command_line().items():
        is_positional = command_line_settings(field).get("positional")
        kind = type_of_field(field)
        argument: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _help_of(field).replace("%", "%%")}
        argument |= {"type": _reader_of(kind), "metavar": values_of(field)}
        if get_origin(kind) is list:
            argument["nargs"] = "+"
        elif kind is bool:
            argument |= {"nargs": "?", "const": True}
        elif is_positional and not field.is_required():
            argument["nargs"] = "?"
        if "action" in command_line_settings(field):
            argument["action"] = command_line_settings(field)["action"]
        if is_positional:
            parser.add_argument(name, **argument)
        else:
            parser.add_argument(option_of(name, field), dest=name, required=field.is_required(), **argument)


def option_of(name: str, field: FieldInfo) -> str:
    """The name of a field on the command line, such as `--num_beams`. The name of a positional argument has
    no hyphens.
    """
    settings = command_line_settings(field)
    return name if settings.get("positional") else f"--{settings.get('option', name)}"


def type_of_field(field: FieldInfo) -> Any:
    """Return the type that the values of a field have, without None."""
    if isinstance(field.annotation, type) or get_origin(field.annotation) in (Literal, list):
        return field.annotation
    (kind,) = [kind for kind in get_args(field.annotation) if kind is not NoneType]
    return kind


def values_of(field: FieldInfo) -> str | None:
    """Return the placeholder that the help shows for the value of a field."""
    kind = type_of_field(field)
    if get_origin(kind) is Literal:
        return "{" + ",".join(get_args(kind)) + "}"
    return "true|false" if kind is bool else command_line_settings(field).get("metavar")


def _help_of(field: FieldInfo) -> str:
    """The help text of a field on one line, followed by the default value in parentheses."""
    words = " ".join((field.description or "").split())
    if field.is_required() or field.default in (None, False, []) or f"({field.default}" in words:
        return words
    return f"{words} ({field.default})"


def _reader_of(kind: Any) -> Callable[[str], Any]:
    """Return a function that converts a word of the command line to a value of the type `kind`.

    If a number is expected, a word that is not a number stays text, and `Settings` reports the error.
    """

    def read(text: str) -> Any:
        if kind is bool:
            if text.lower() not in ("true", "false"):
                raise argparse.ArgumentTypeError(f"must be true or false, but is {text!r}")
            return text.lower() == "true"
        if kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                return text
        return text

    return read


def normalised(words: Sequence[str], options: type[Options]) -> list[str]:
    """Replace `--some-name` by `--some_name`, and replace a boolean option without a value, such as `--json`,
    by `--json=true`.
    """
    fields = options.command_line().items()
    switches = {option_of(name, field) for name, field in fields if type_of_field(field) is bool}
    found = []
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        if word.startswith("--"):
            name, sign, value = word.partition("=")
            word = "--" + name[2:].replace("-", "_") + sign + value
            if word in switches and following.lower() not in ("true", "false"):
                word += "=true"
        found.append(word)
    return found
