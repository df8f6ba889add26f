"""The `vaswani` command: the table of all subcommands, and the function that runs a subcommand.

Each subcommand has a file in this folder. The file of a subcommand defines the class of the options and the
function `run`. `vaswani --help` imports no file of a subcommand, and a subcommand imports torch and
transformers only after it has checked its options, because these imports take seconds.
"""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from .options import Options

Implementation = tuple[type["Options"], Callable[[Any], None]]


def _recipes() -> Implementation:
    from . import recipes

    return recipes.RecipesOptions, recipes.run


def _init() -> Implementation:
    from . import init

    return init.InitOptions, init.run


def _train() -> Implementation:
    from . import train

    return train.RecipeOptions, train.run


def _ablate() -> Implementation:
    from . import ablate

    return ablate.AblateOptions, ablate.run


def _plan() -> Implementation:
    from . import plan

    return plan.PlanOptions, plan.run


def _distill() -> Implementation:
    from . import distill

    return distill.DistillOptions, distill.run


def _evaluate() -> Implementation:
    from . import evaluate

    return evaluate.EvaluateOptions, evaluate.run


def _translate() -> Implementation:
    from . import translate

    return translate.TranslateOptions, translate.run


def _parse() -> Implementation:
    from . import parse

    return parse.ParseOptions, parse.run


def _score() -> Implementation:
    from . import score

    return score.ScoreOptions, score.run


def _export() -> Implementation:
    from . import export

    return export.ExportOptions, export.run


def _average() -> Implementation:
    from . import average

    return average.AverageOptions, average.run


def _push() -> Implementation:
    from . import push

    return push.PushOptions, push.run


class Command(NamedTuple):
    """The help text of a command, and a function that imports the class of the options and the function `run`."""

    help: str
    load: Callable[[], Implementation]


COMMANDS = {
    "recipes": Command("list the recipes of the package; `vaswani train NAME` runs a recipe", _recipes),
    "init": Command("write a recipe that fits files of sentence pairs", _init),
    "train": Command("train a model from a recipe", _train),
    "ablate": Command(
        "train variations of one recipe with several seeds, and compare their validation scores", _ablate
    ),
    "plan": Command(
        "estimate the cost of a recipe (parameters, FLOPs, memory, tokens, hours) without reading the data",
        _plan,
    ),
    "distill": Command(
        "translate the training sources with a teacher model, to get training pairs for a student model",
        _distill,
    ),
    "evaluate": Command(
        "score a model or a file of translations on a test set, or compare several models and files",
        _evaluate,
    ),
    "translate": Command("translate standard input, a file or --text", _translate),
    "parse": Command("write the constituency tree of each sentence as one line of brackets", _parse),
    "score": Command("compute the log-probabilities of given translations", _score),
    "export": Command(
        "convert a checkpoint for another library, and compare the outputs of both models", _export
    ),
    "average": Command("write the mean of the weights of several checkpoints", _average),
    "push": Command("upload a checkpoint to the Hub, and verify the uploaded files", _push),
}


def main(argv: list[str] | None = None) -> int:
    """Run a command. Return the exit code of the process."""
    _open_closed_streams()
    words = sys.argv[1:] if argv is None else argv
    if not words or words[0] not in COMMANDS:
        _list_commands(words)
    name = words[0]
    options_class, run = COMMANDS[name].load()
    from .arguments import parse_words

    values = parse_words(name, options_class, words[1:])
    try:
        options = options_class.of_command_line(values)
    except ValueError as error:
        print(f"vaswani: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        return _report(error, _discard_lost_output())
    try:
        _prepare_libraries()
        _run_user_code(options)
        run(options)
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


def _run_user_code(options: "Options") -> None:
    """Execute the file of the option `--code`, if the command has this option."""
    from ..user_code import run_user_code
    from .options import CodeOptions

    if isinstance(options, CodeOptions) and options.code is not None:
        run_user_code(options.code, "--code")


def _list_commands(words: list[str]) -> NoReturn:
    """Print the help or an error about the first word, and end the process."""
    if words in (["-h"], ["--help"]):
        print("usage: vaswani COMMAND ...\n\nTrain, evaluate and use translation models.\n\ncommands:")
        width = max(map(len, COMMANDS)) + 2
        for name, command in COMMANDS.items():
            print(f"  {name:{width}}{command.help}")
        print("\nvaswani COMMAND --help shows the options of a command.")
        sys.exit(0)
    # Import here, because only an error needs the module.
    import difflib

    message = "the first word must be a command"
    if words:
        message = f"there is no command {words[0]!r}"
        similar = difflib.get_close_matches(words[0], COMMANDS, n=1)
        message += f"; the most similar command is {similar[0]}" if similar else ""
    print(f"vaswani: {message}; see vaswani --help", file=sys.stderr)
    sys.exit(2)


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


def _prepare_libraries() -> None:
    """Register the models and tasks of this package with transformers. Hide the progress bars of loading and
    saving models. Keep the progress bars of data preparation and of the Hub.
    """
    from .. import registration  # noqa: F401, I001  (registers when imported, and must be imported first)
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
    import logging

    from ..checkpoint.hub import explain, sentence_of

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
