"""The `vaswani` command: one file per command, with the class of its options and the function that runs it.

The modules of the commands import the parts of the package that take long to import inside their functions.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import average, distill, evaluate, export, parse, plan, push, score, train, translate
from .options import CommandParser, Options, add_options, normalised
from .reporting import fill_closed_streams, give_up_output, report, without_bars_for_moments


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
        "what a recipe will cost: parameters, operations, memory, tokens, hours; nothing is read or downloaded",
        plan.PlanOptions,
        plan.run,
    ),
    "distill": Command("pairs of a teacher, for a student to train on", distill.DistillOptions, distill.run),
    "evaluate": Command(
        "score a model, or translations, on a test set; compare several", evaluate.EvaluateOptions, evaluate.run
    ),
    "translate": Command("translate standard input, a file or --text", translate.TranslateOptions, translate.run),
    "parse": Command(
        "give sentences their constituency trees, one line of brackets each", parse.ParseOptions, parse.run
    ),
    "score": Command("log-probabilities of given translations", score.ScoreOptions, score.run),
    "export": Command("write a checkpoint for other libraries, and compare the two", export.ExportOptions, export.run),
    "average": Command("write the mean of the weights of several checkpoints", average.AverageOptions, average.run),
    "push": Command("publish a checkpoint on the Hub, and check what arrived", push.PushOptions, push.run),
}


def main(argv: list[str] | None = None) -> int:
    """Run a command.

    Args:
        argv (list, optional): Words after `vaswani`; those of the process by default.

    Returns:
        int: 0, or 1 with one sentence on stderr; 130 after an interruption. An unknown or a missing
        option ends the process with code 2 and one sentence.
    """
    fill_closed_streams()
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
        without_bars_for_moments()
        command.run(command.options.of_command_line(values))
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # The program that reads our output has ended.
        give_up_output()
        return 1
    except KeyboardInterrupt:
        print("vaswani: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        return report(error, give_up_output())
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
