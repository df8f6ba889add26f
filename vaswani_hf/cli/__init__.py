"""Defines the command `vaswani`: the table of all subcommands, and the function that runs a subcommand.

Each subcommand has a file in `cli/` with the class of the options and the function `run`. The files in
`cli/`, except stream.py, import torch and transformers only inside functions. The import takes seconds, and
the command must report an invalid option at once.
"""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from typing import NoReturn

from ..exit_codes import INTERRUPTED, USAGE_ERROR
from ..model.errors_vaswani import InvalidValueError
from ..version import __version__
from . import (
    ablate,
    average,
    certify,
    completion,
    demo,
    distill,
    env,
    evaluate,
    export,
    figures,
    import_checkpoint,
    init,
    look,
    parse,
    plan,
    push,
    recipes,
    score,
    serve,
    train,
    translate,
)
from .arguments import Command, parse_words
from .options import CodeOptions, Options
from .report import report
from .standard_streams import (
    discard_lost_output,
    escape_unencodable_characters,
    is_reader_gone,
    open_closed_streams,
)
from .threads import leaving_busy_cores, limit_spinning


def _print_completion(options: completion.CompletionOptions) -> None:
    """Pass `COMMANDS` to completion.py. completion.py cannot import `COMMANDS`, because the import would be
    circular.
    """
    completion.run(options, COMMANDS)


COMMANDS = {
    "recipes": Command(
        "list the recipes of the package; `vaswani train NAME` runs a recipe",
        "vaswani recipes numbers > my_run.yaml",
        recipes.RecipesOptions,
        recipes.run,
    ),
    "init": Command(
        "write a recipe for your files of sentence pairs",
        "vaswani init my_run.yaml --source train.en --target train.de",
        init.InitOptions,
        init.run,
    ),
    "train": Command(
        "train a model from a recipe",
        "vaswani train numbers --max_steps 500 --output_dir checkpoints/run",
        train.RecipeOptions,
        train.run,
    ),
    "ablate": Command(
        "train variations of one recipe with several seeds, and compare their validation scores",
        "vaswani ablate runs.yaml --output checkpoints/runs --seeds 3",
        ablate.AblateOptions,
        ablate.run,
    ),
    "plan": Command(
        "estimate the cost of a recipe (parameters, FLOPs, memory, tokens, hours) without reading the data",
        "vaswani plan wmt14/base_en_de --hardware P100",
        plan.PlanOptions,
        plan.run,
    ),
    "distill": Command(
        "translate the training sources with a teacher model, to get training pairs for a student model",
        "vaswani distill my_run.yaml --teacher checkpoints/run --output distilled.jsonl",
        distill.DistillOptions,
        distill.run,
    ),
    "evaluate": Command(
        "score a model or a file of translations on a test set, or compare several models and files",
        "vaswani evaluate checkpoints/run --source test.en --reference test.de",
        evaluate.EvaluateOptions,
        evaluate.run,
    ),
    "translate": Command(
        "translate standard input, a file or --text",
        "vaswani translate checkpoints/run --input test.en --output test.de --num_beams 4",
        translate.TranslateOptions,
        translate.run,
    ),
    "serve": Command(
        "start an HTTP service that translates texts, with the interface of LibreTranslate",
        "vaswani serve checkpoints/run --port 5000",
        serve.ServeOptions,
        serve.run,
    ),
    "parse": Command(
        "write the constituency tree of each sentence on one line, in bracket notation",
        'vaswani parse checkpoints/parser --text "The dog sleeps ."',
        parse.ParseOptions,
        parse.run,
    ),
    "score": Command(
        "compute the log-probabilities of given translations",
        "vaswani score checkpoints/run --source test.en --target test.de",
        score.ScoreOptions,
        score.run,
    ),
    "look": Command(
        "write a page that shows how a model translates a text: attention, the most probable other words "
        "and the beam search",
        'vaswani look checkpoints/run --text "A dog sleeps." --output page.html',
        look.LookOptions,
        look.run,
    ),
    "demo": Command(
        "open a page on which people try models: translations, confidences, alignments and attention",
        "vaswani demo checkpoints/run",
        demo.DemoOptions,
        demo.run,
    ),
    "export": Command(
        "convert a checkpoint to the format of another library, and compare the outputs of both models",
        "vaswani export checkpoints/run exported --format ctranslate2",
        export.ExportOptions,
        export.run,
    ),
    "certify": Command(
        "export a checkpoint to all formats, and measure how much the outputs of the exported models "
        "differ from the outputs of the checkpoint",
        "vaswani certify checkpoints/run --source test.en --reference test.de",
        certify.CertifyOptions,
        certify.run,
    ),
    "figures": Command(
        "draw pictures of a checkpoint: attention, position encodings, learning rate, smoothed targets and "
        "training curve",
        "vaswani figures checkpoints/run pictures --texts test.en",
        figures.FiguresOptions,
        figures.run,
    ),
    "import": Command(
        "convert a checkpoint of another library to a checkpoint of this package, and compare the outputs "
        "of both models",
        "vaswani import Helsinki-NLP/opus-mt-en-de opus-en-de",
        import_checkpoint.ImportOptions,
        import_checkpoint.run,
    ),
    "average": Command(
        "write a checkpoint with the mean of the weights of several checkpoints",
        "vaswani average checkpoints/run --last 5 --output averaged",
        average.AverageOptions,
        average.run,
    ),
    "push": Command(
        "upload a checkpoint to the Hub, and verify the uploaded files",
        "vaswani push checkpoints/run user/name --private",
        push.PushOptions,
        push.run,
    ),
    "env": Command("print versions and hardware for a bug report", "vaswani env", env.EnvOptions, env.run),
    "completion": Command(
        "print a script that completes commands and options in a shell",
        'eval "$(vaswani completion bash)"',
        completion.CompletionOptions,
        _print_completion,
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run the subcommand that the command line names, and return the exit code for the process."""
    open_closed_streams()
    escape_unencodable_characters()
    limit_spinning(os.environ)
    words = sys.argv[1:] if argv is None else argv
    try:
        code = _run(words)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError as error:
        # Report only a BrokenPipeError that does not come from standard output, but from another pipe, such
        # as the pipe to a worker process.
        is_lost = is_reader_gone()
        if not discard_lost_output() and not is_lost:
            return report(error, is_output_lost=False)
        # An early end of the program that reads standard output, such as `head`, is not an error of
        # `vaswani`.
        return 0
    except KeyboardInterrupt:
        print("vaswani: interrupted", file=sys.stderr)
        return INTERRUPTED
    except SystemExit:
        # Print no message here, because argparse has already printed the help or an error.
        discard_lost_output()
        raise
    except Exception as error:
        return report(error, discard_lost_output())
    return code


def _run(words: list[str]) -> int:
    if not words or words[0] not in COMMANDS:
        _list_commands(words)
    command = COMMANDS[words[0]]
    values, verbosity = parse_words(words[0], command, words[1:])
    try:
        options = command.options.load(values, "--")
    except InvalidValueError as error:
        # Do not call `report`, because the import of huggingface_hub takes time.
        print(f"vaswani: {error}", file=sys.stderr)
        return error.exit_code
    if options.needs_libraries:
        with leaving_busy_cores(is_quiet=verbosity < 0):
            _prepare_libraries(options.imports_quickly)
    _set_log_level(verbosity, options.needs_libraries)
    _run_user_code(options)
    if verbosity >= 0:
        command.run(options)
        return 0
    # Hide the progress and the information of the run. Warnings and the error message still appear:
    # `_set_log_level` has created a handler that writes warnings to the original stderr, and `main` prints
    # the error message after the `with` block.
    with open(os.devnull, "w", encoding="utf-8") as devnull, redirect_stderr(devnull):
        command.run(options)
    return 0


def _set_log_level(verbosity: int, has_libraries: bool) -> None:
    """If `verbosity` is -1, log only warnings and errors, and turn off the progress lines of a training. If
    `verbosity` is 1, also log debug messages. If `verbosity` is 0, keep the log level.
    """
    if verbosity == 0:
        return
    import logging

    if verbosity < 0:
        # Create a handler for the present stderr, because `_run` then redirects stderr.
        logging.basicConfig(format="%(message)s", level=logging.WARNING)
        # Print the warnings of `warnings.warn` with the same handler.
        logging.captureWarnings(True)
        logging.getLogger("vaswani_hf.messages").setLevel(logging.ERROR)
        return
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("vaswani_hf").setLevel(logging.DEBUG)
    if has_libraries:
        from transformers.utils import logging as transformers_logging

        transformers_logging.set_verbosity(logging.INFO)


def _run_user_code(options: Options) -> None:
    """Execute the file of the option `--code`, if the command has this option."""
    from ..user_code import run_user_code

    if isinstance(options, CodeOptions) and options.code is not None:
        run_user_code(options.code, "--code")


def _list_commands(words: list[str]) -> NoReturn:
    """Print the help, the version, or an error about an unknown command, and end the process."""
    if words in (["-h"], ["--help"]):
        print("usage: vaswani COMMAND ...\n\nTrain, evaluate and use translation models.\n\ncommands:")
        width = max(map(len, COMMANDS)) + 2
        for name, command in COMMANDS.items():
            print(f"  {name:{width}}{command.help}")
        print(
            "\nvaswani COMMAND --help shows the options of a command. vaswani --version prints the version."
        )
        sys.exit(0)
    if words == ["--version"]:
        print(f"vaswani_hf {__version__}")
        sys.exit(0)
    # Import `difflib` here, because only this error message needs `difflib`.
    import difflib

    message = "the first argument must be a command"
    if words:
        message = f"there is no command {words[0]!r}"
        similar = difflib.get_close_matches(words[0], COMMANDS, n=1)
        message += f"; the most similar command is {similar[0]}" if similar else ""
    print(f"vaswani: {message}; see vaswani --help", file=sys.stderr)
    sys.exit(USAGE_ERROR)


def _prepare_libraries(is_quick: bool) -> None:
    """Register the models and tasks with transformers, and hide the progress bars of transformers."""
    from ..patches import quick_imports

    with _without_garbage_collection(), quick_imports() if is_quick else nullcontext():
        from .. import registration  # noqa: F401  (registers when imported, and must be imported first)
    from huggingface_hub import constants
    from huggingface_hub.utils import enable_progress_bars
    from transformers.utils.logging import disable_progress_bar

    # Show the progress bars of the Hub again on a terminal, because `disable_progress_bar` also hides the
    # progress bars of the Hub.
    disable_progress_bar()
    if sys.stderr.isatty() and not constants.HF_HUB_DISABLE_PROGRESS_BARS:
        enable_progress_bars()


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Turn the garbage collector off during imports, because imports create many objects and delete almost
    none. Afterwards, the garbage collector ignores the objects that exist at the end of the `with` statement.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
