"""Creates argparse arguments from a class of options, and converts the words of a command line to values."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from types import NoneType
from typing import Any, Literal, NamedTuple, NoReturn, get_args, get_origin

from pydantic.fields import FieldInfo

from ..exit_codes import USAGE_ERROR
from ..settings.base import properties_of
from ..settings.names import suggestion
from .options import OnlyOnce, Options, RecipeKeyOptions
from .recipe_keys import RecipeKey, read_keys

# The help lists the options in these groups. The declaration of an option names its group.
GROUPS = ("input and output", "search", "sampling", "computing")
# The options of all commands: the short form, the long form and the help text.
COMMON_OPTIONS = (
    ("-q", "--quiet", "print only results, warnings and errors"),
    ("-v", "--verbose", "print debug messages and the traceback of an error"),
)
# Options that choose GPUs in other toolkits, but do not exist in `vaswani train`.
_GPU_OPTIONS = ("--gpus", "--gpu", "--cuda", "--use_cuda", "--num_gpus", "--device", "--devices")


class Command(NamedTuple):
    """A subcommand: the help text, an example, the class of the options, and the function to run."""

    help: str
    example: str
    options: type[Options]
    run: Callable[[Any], None]


def parse_words(name: str, command: Command, words: list[str]) -> tuple[dict[str, Any], int]:
    """Return a dict from field names to values, and the verbosity (-1 for `--quiet`, 1 for `--verbose`, else
    0).
    """
    takes_recipe_keys = issubclass(command.options, RecipeKeyOptions)
    parser = make_parser(name, command)
    keys = read_keys() if takes_recipe_keys else {}
    known, unknown = parser.parse_known_args(normalised(words, command.options, keys))
    values = vars(known)
    verbosity = int(values.pop("verbose", False)) - int(values.pop("quiet", False))
    if takes_recipe_keys:
        parser.check_keys(unknown, keys)
        values["overrides"] = unknown
    elif unknown:
        parser.refuse(unknown)
    return values, verbosity


def make_parser(name: str, command: Command) -> "CommandParser":
    """Create the argparse parser of a command. The help of the parser lists the options in groups."""
    epilog = f"example:\n  {command.example}"
    if issubclass(command.options, RecipeKeyOptions):
        epilog = (
            "Any key of the recipe can follow as --key value; vaswani train --help-keys describes all keys."
            f"\n\n{epilog}"
        )
    parser = CommandParser(
        prog=f"vaswani {name}",
        description=f"{command.help[:1].upper()}{command.help[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # Refuse abbreviated options, because an abbreviation could become ambiguous in the next version.
        allow_abbrev=False,
    )
    add_options(parser, command.options)
    for short, option, meaning in COMMON_OPTIONS:
        parser.add_argument(
            short,
            option,
            default=argparse.SUPPRESS,
            help=meaning,
            nargs="?",
            const=True,
            type=_read_switch,
            metavar="true|false",
        )
    return parser


class CommandParser(argparse.ArgumentParser):
    """A subclass of `argparse.ArgumentParser` that reports an error in one sentence."""

    def error(self, message: str) -> NoReturn:
        """Print one sentence, and end the process. argparse would print all options before the error."""
        self.exit(USAGE_ERROR, f"{self.prog}: {message.removesuffix('.')}; see {self.prog} --help\n")

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """End the process with an error about the first unknown option, and suggest a similar option."""
        option = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
        if option is None:
            self.error(f"the argument {words[0]!r} is not expected")
        self.error(self._unknown(option, []))

    def check_keys(self, words: Sequence[str], keys: Mapping[str, RecipeKey]) -> None:
        """End the process with an error if an option is neither an option of the command nor a recipe key."""
        short_names = [key.key for key in keys.values()]
        for word in words:
            option = word.partition("=")[0]
            if word.startswith("--") and option[2:] not in (*short_names, *keys):
                self.error(self._unknown(option, short_names))

    def _unknown(self, option: str, keys: list[str]) -> str:
        options = [name[2:] for name in self._option_string_actions if name.startswith("--")]
        found = suggestion(option.lstrip("-").split(".")[-1], [*options, *keys])
        kind = "option or recipe key" if keys else "option"
        message = f"there is no {kind} {option}"
        if found is not None:
            return f"{message}; the most similar name is --{found}"
        if keys and option in _GPU_OPTIONS:
            return (
                f"{message}; use CUDA_VISIBLE_DEVICES to choose GPUs, and accelerate launch to use several "
                "GPUs"
            )
        return message


def add_options(parser: argparse.ArgumentParser, options: type[Options]) -> None:
    """Add one argument for each field. The parsed namespace does not contain the options that are not
    given.
    """
    groups = {title: parser.add_argument_group(title) for title in GROUPS}
    for name, field in options.command_line().items():
        is_positional = properties_of(field).get("positional")
        kind = type_of_field(field)
        argument: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _help_of(field).replace("%", "%%")}
        argument |= {"type": _reader_of(kind), "metavar": placeholder_of(field), "action": OnlyOnce}
        if get_origin(kind) is list:
            # `--pairs a --pairs b` gives the same list as `--pairs a b`.
            argument |= {"nargs": "+", "action": "extend"}
        elif kind is bool:
            argument |= {"nargs": "?", "const": True}
        elif is_positional and not field.is_required():
            argument["nargs"] = "?"
        if "action" in properties_of(field):
            argument["action"] = properties_of(field)["action"]
        group = groups[group_of(field)]
        if is_positional:
            group.add_argument(name, **argument)
        else:
            group.add_argument(option_of(name, field), dest=name, required=field.is_required(), **argument)


def group_of(field: FieldInfo) -> str:
    """Return the title of the group in which the help lists an option."""
    return properties_of(field).get("group", "input and output")


def option_of(name: str, field: FieldInfo) -> str:
    """Return the name of a field on the command line: `--num_beams`, or `model` for a positional argument."""
    settings = properties_of(field)
    return name if settings.get("positional") else f"--{settings.get('option', name)}"


def type_of_field(field: FieldInfo) -> Any:
    """Return the type of a field. For a type such as `int | None`, return `int`."""
    if isinstance(field.annotation, type) or get_origin(field.annotation) in (Literal, list):
        return field.annotation
    (kind,) = [kind for kind in get_args(field.annotation) if kind is not NoneType]
    return kind


def placeholder_of(field: FieldInfo) -> str | None:
    """Return the placeholder that the help shows for the value of a field."""
    kind = type_of_field(field)
    if get_origin(kind) is Literal:
        return "{" + ",".join(get_args(kind)) + "}"
    return "true|false" if kind is bool else properties_of(field).get("metavar")


def _help_of(field: FieldInfo) -> str:
    """Return the help text of a field on one line. A default other than None, False and an empty list follows
    in parentheses.
    """
    words = " ".join((field.description or "").split())
    if field.is_required() or field.default in (None, False, []):
        return words
    return f"{words} ({field.default})"


def _reader_of(kind: Any) -> Callable[[str], Any]:
    """Return a function that converts a command-line word to `kind`."""
    if kind is bool:
        return _read_switch
    return partial(_read_number, kind) if kind in (int, float) else str


def _read_switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"must be true or false, but is {text!r}")
    return text.lower() == "true"


def _read_number(kind: type, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        # Return the word unchanged, because `Settings` then reports that the word is not a number.
        return text


def normalised(
    words: Sequence[str], options: type[Options], keys: Mapping[str, RecipeKey] | None = None
) -> list[str]:
    """Return the words of a command line with underscores instead of hyphens in the option names
    (`--some_name`), and with `--quiet` for `-q`. If a boolean option or recipe key has no value, append
    `=true` (`--json=true`). `keys` is the result of `read_keys`.
    """
    fields = options.command_line().items()
    long_forms = {short: option for short, option, _ in COMMON_OPTIONS}
    switches = [option_of(name, field) for name, field in fields if type_of_field(field) is bool]
    # The possible values of each boolean option and recipe key, such as "true", "false" and "auto".
    values = {switch: ["true", "false"] for switch in (*switches, *long_forms.values())}
    for place, key in (keys or {}).items():
        if key.is_boolean:
            values |= dict.fromkeys((f"--{place}", f"--{key.key}"), key.type.split(" or "))
    found = []
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        word = long_forms.get(word, word)
        if word.startswith("--"):
            name, sign, value = word.partition("=")
            word = "--" + name[2:].replace("-", "_") + sign + value
            if word in values and following.lower() not in values[word]:
                word += "=true"
        found.append(word)
    return found
