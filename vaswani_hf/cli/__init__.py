"""The `vaswani` command: the table of all subcommands, and the code that parses the command line and runs a
subcommand.

Each subcommand has a file in this folder. The file of a subcommand defines the class of the options and the
function `run`. Slow parts of the package are imported inside functions, so that `vaswani --help` is fast.
"""

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_origin

from pydantic.fields import FieldInfo

from ..checkpoint.hub import explain, sentence_of
from ..model.configuration_vaswani import nearest_name
from ..user_code import run_user_code
from . import average, distill, evaluate, export, parse, plan, push, score, train, translate
from .options import CodeOptions, Options, command_line_settings


@dataclass(frozen=True)
class Command:
    """The help text, the class of the options, and the function that runs the command."""

    help: str
    options: type[Options]
    run: Callable[[Any], None]

    @property
    def has_recipe_keys(self) -> bool:
        """True if the command accepts the keys of a recipe as additional options."""
        return "overrides" in self.options.model_fields


COMMANDS = {
    "train": Command("train a model from a recipe", train.RecipeOptions, train.run),
    "plan": Command(
        "estimate the cost of a recipe (parameters, FLOPs, memory, tokens, hours) without reading the data",
        plan.PlanOptions,
        plan.run,
    ),
    "distill": Command(
        "translate the training sources with a teacher model, to get training pairs for a student model",
        distill.DistillOptions,
        distill.run,
    ),
    "evaluate": Command(
        "score a model or a file of translations on a test set, or compare several models and files",
        evaluate.EvaluateOptions,
        evaluate.run,
    ),
    "translate": Command(
        "translate standard input, a file or --text", translate.TranslateOptions, translate.run
    ),
    "parse": Command(
        "write the constituency tree of each sentence as one line of brackets",
        parse.ParseOptions,
        parse.run,
    ),
    "score": Command("compute the log-probabilities of given translations", score.ScoreOptions, score.run),
    "export": Command(
        "convert a checkpoint for another library, and compare the outputs of both models",
        export.ExportOptions,
        export.run,
    ),
    "average": Command(
        "write the mean of the weights of several checkpoints", average.AverageOptions, average.run
    ),
    "push": Command(
        "upload a checkpoint to the Hub, and verify the uploaded files", push.PushOptions, push.run
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run a command. Return the exit code of the process."""
    _open_closed_streams()
    words = sys.argv[1:] if argv is None else argv
    if not words or words[0] not in COMMANDS:
        _list_commands(words)
    command = COMMANDS[words[0]]
    values = _values_of_words(words[0], command, words[1:])
    try:
        _hide_short_bars()
        options = command.options.of_command_line(values)
        if isinstance(options, CodeOptions) and options.code is not None:
            run_user_code(options.code, "--code")
        command.run(options)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # The program that reads standard output through a pipe has ended.
        _discard_lost_output()
        return 1
    except KeyboardInterrupt:
        print("vaswani: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        return _report(error, _discard_lost_output())
    return 0


def _list_commands(words: list[str]) -> NoReturn:
    """Print the help or an error that names all commands, and end the process."""
    parser = CommandParser(prog="vaswani", description="Train, evaluate and use translation models.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.help)
    parser.parse_args(words)
    parser.error("the first word must be a command")


def _values_of_words(name: str, command: Command, words: list[str]) -> dict[str, Any]:
    """Parse the words of a command line. The keys of the result are the field names of the options."""
    keys = "Any other key of the recipe can follow as --key value." if command.has_recipe_keys else None
    # Abbreviations are not allowed, because an abbreviated option could be a key of the recipe.
    parser = CommandParser(prog=f"vaswani {name}", epilog=keys, allow_abbrev=not command.has_recipe_keys)
    add_options(parser, command.options)
    known, unknown = parser.parse_known_args(normalised(words, command.options))
    values = vars(known)
    if command.has_recipe_keys:
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


def _open_closed_streams() -> None:
    """Open the null device for each closed standard stream.

    Without the null device, the next opened file would get the file descriptor of the closed stream, and
    prints to this stream would go into the file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        # `print(file=None)` writes to standard output.
        sys.stderr = os.fdopen(os.dup(2), "w", encoding="utf-8")


def _discard_lost_output() -> bool:
    """Flush standard output, and return True if standard output can no longer be written.

    If standard output cannot be written, redirect it to the null device, because Python flushes standard
    output at exit.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _hide_short_bars() -> None:
    """Hide the progress bars of loading and saving models. Keep the progress bars of data preparation and of
    the Hub.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import enable_progress_bars
    from transformers.utils.logging import disable_progress_bar

    # `disable_progress_bar` hides the progress bars of the Hub too, so enable them again.
    disable_progress_bar()
    if sys.stderr.isatty() and not constants.HF_HUB_DISABLE_PROGRESS_BARS:
        enable_progress_bars()


def _report(error: Exception, is_output_lost: bool) -> int:
    """Print the error in one sentence to stderr. VASWANI_TRACEBACK=1 adds the traceback. Return the exit
    code.
    """
    if os.environ.get("VASWANI_TRACEBACK") == "1":
        logging.getLogger("vaswani_hf").error("traceback", exc_info=error)
    message = sentence_of(error)
    is_explained = explain(error) is not None
    # Error messages of this package are complete sentences. Messages of other libraries may be unclear
    # without the name of the exception class, so add the name.
    is_ours = type(error).__module__.startswith("vaswani_hf.")
    if not is_explained and not isinstance(error, (ValueError, OSError)) and not is_ours:
        message = f"{type(error).__name__}: {message}"
    if isinstance(error, OSError) and error.strerror and not is_explained and not is_ours:
        # Write a sentence in place of Python's message "[Errno 13] Permission denied: 'file'", because
        # Python's message may omit the file name.
        name = f"'{error.filename}'" if error.filename else "A file"
        if is_output_lost:
            name = "Standard output"
        message = f"{name} cannot be read or written ({error.strerror})."
    if len(message) > 600:
        message = f"{message[:500]} … (VASWANI_TRACEBACK=1 shows all)"
    print(f"vaswani: {message}", file=sys.stderr)
    return 130 if type(error).__name__ == "InterruptedRunError" else 1
