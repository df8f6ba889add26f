"""The `vaswani` command: one file per command, with the class of its options and the function that runs it.

The modules of the commands import the parts of the package that take long to import inside their functions.
"""

import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..checkpoint.hub import explain, sentence_of
from . import average, distill, evaluate, export, parse, plan, push, score, train, translate
from .options import CommandParser, Options, add_options, normalised


@dataclass(frozen=True)
class Command:
    """A command: its help, the class of its options, and the function that runs it."""

    help: str
    options: type[Options]
    run: Callable[[Any], None]

    @property
    def has_overrides(self) -> bool:
        """True if the keys of a recipe are options too."""
        return "overrides" in self.options.model_fields


COMMANDS = {
    "train": Command("train from a recipe", train.TrainOptions, train.run),
    "plan": Command(
        "estimate the cost of a recipe (parameters, FLOPs, memory, tokens, hours) without reading its data",
        plan.PlanOptions,
        plan.run,
    ),
    "distill": Command("pairs of a teacher, for a student to train on", distill.DistillOptions, distill.run),
    "evaluate": Command(
        "score a model, or translations, on a test set; compare several",
        evaluate.EvaluateOptions,
        evaluate.run,
    ),
    "translate": Command(
        "translate standard input, a file or --text", translate.TranslateOptions, translate.run
    ),
    "parse": Command(
        "give sentences their constituency trees, one line of brackets each", parse.ParseOptions, parse.run
    ),
    "score": Command("log-probabilities of given translations", score.ScoreOptions, score.run),
    "export": Command(
        "write a checkpoint for other libraries, and compare the two", export.ExportOptions, export.run
    ),
    "average": Command(
        "write the mean of the weights of several checkpoints", average.AverageOptions, average.run
    ),
    "push": Command("publish a checkpoint on the Hub, and check what arrived", push.PushOptions, push.run),
}


def main(argv: list[str] | None = None) -> int:
    """Run a command."""
    _fill_closed_streams()
    name, *words = _with_a_command(sys.argv[1:] if argv is None else argv)
    command = COMMANDS[name]
    parser = _parser_of(name)
    words = normalised(words, command.options)
    arguments, rest = parser.parse_known_args(words)
    values = vars(arguments)
    if command.has_overrides:
        values["overrides"] = rest
    elif rest:
        parser.refuse(rest)
    try:
        _hide_short_bars()
        command.run(command.options.of_command_line(values))
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # The program that reads our output has ended.
        _give_up_output()
        return 1
    except KeyboardInterrupt:
        print("vaswani: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        return _report(error, _give_up_output())
    return 0


def _with_a_command(words: list[str]) -> list[str]:
    """The words, the first of which is a command; ends the process with the help, or a sentence, otherwise."""
    if not words or words[0] not in COMMANDS:
        parser = CommandParser(prog="vaswani", description="Train, evaluate and use translation models.")
        commands = parser.add_subparsers(dest="command", required=True)
        for name, command in COMMANDS.items():
            commands.add_parser(name, help=command.help)
        parser.parse_args(words)
    return words


def _parser_of(name: str) -> CommandParser:
    command = COMMANDS[name]
    keys = "Any other key of the recipe can follow as --key value." if command.has_overrides else None
    parser = CommandParser(prog=f"vaswani {name}", epilog=keys, allow_abbrev=not command.has_overrides)
    add_options(parser, command.options)
    return parser


def _fill_closed_streams() -> None:
    """Open the null device for closed standard streams, so that no file gets their numbers and their output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        # `print(file=None)` writes to standard output.
        sys.stderr = os.fdopen(os.dup(2), "w", encoding="utf-8")


def _give_up_output() -> bool:
    """True if standard output cannot be written any more. Then the flush of Python at the end is made silent."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _hide_short_bars() -> None:
    """Hide the progress bars of loading and saving models, but not those of data preparation and of the Hub."""
    from huggingface_hub import constants
    from huggingface_hub.utils import enable_progress_bars
    from transformers.utils.logging import disable_progress_bar

    # This hides the bars of the Hub too.
    disable_progress_bar()
    if sys.stderr.isatty() and not constants.HF_HUB_DISABLE_PROGRESS_BARS:
        enable_progress_bars()


def _report(error: Exception, is_output_lost: bool) -> int:
    """Print one sentence on stderr, and a traceback with VASWANI_TRACEBACK=1; the exit code."""
    if os.environ.get("VASWANI_TRACEBACK") == "1":
        logging.getLogger("vaswani_hf").error("traceback", exc_info=error)
    message = sentence_of(error)
    is_explained = explain(error) is not None
    interrupted = type(error).__name__ == "InterruptedRunError"
    # Our errors are sentences. Errors of libraries may be long, and need the name of their class.
    is_ours = type(error).__module__.startswith("vaswani_hf.")
    if not is_explained and not isinstance(error, (ValueError, OSError)) and not is_ours:
        message = f"{type(error).__name__}: {message}"
    if isinstance(error, OSError) and error.strerror and not is_explained and not is_ours:
        # "[Errno 13] Permission denied: 'file'", or no file at all.
        name = "Standard output" if is_output_lost else f"'{error.filename}'" if error.filename else "A file"
        message = f"{name} cannot be read or written ({error.strerror})."
    if len(message) > 600:
        message = f"{message[:500]} … (VASWANI_TRACEBACK=1 shows all)"
    print(f"vaswani: {message}", file=sys.stderr)
    return 130 if interrupted else 1
