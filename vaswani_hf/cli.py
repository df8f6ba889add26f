"""The `vaswani` command."""

import argparse
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO


def _train(arguments: argparse.Namespace, overrides: list[str]) -> None:
    from .recipe import load_recipe
    from .training import train

    train(load_recipe(arguments.recipe, overrides))


def _evaluate(arguments: argparse.Namespace) -> None:
    from .data import read_lines
    from .evaluation import evaluate_translator
    from .translation import Translator

    for name in ("source", "reference"):
        if not Path(getattr(arguments, name)).is_file():
            raise ValueError(f"`--{name}` must be an existing file, but is {getattr(arguments, name)}.")
    if arguments.output and not Path(arguments.output).absolute().parent.is_dir():
        raise ValueError(f"`--output` must be in an existing folder, but is {arguments.output}.")
    sources, references = list(read_lines(arguments.source)), list(read_lines(arguments.reference))
    if len(sources) != len(references):
        raise ValueError(
            f"{arguments.source} and {arguments.reference} must have equally many lines, but have {len(sources):,} and "
            f"{len(references):,}."
        )
    results = evaluate_translator(
        Translator.from_pretrained(arguments.model, arguments.device),
        sources,
        references,
        tokenize=arguments.tokenize,
        lowercase=arguments.lowercase,
        tokens_per_batch=arguments.tokens_per_batch,
        **_generate_arguments(arguments),
    )
    translations = results.pop("translations")
    if arguments.output:
        Path(arguments.output).write_text("".join(line + "\n" for line in translations), encoding="utf-8")
    print(json.dumps(results, indent=2) if arguments.json else _scores_as_text(results))


def _scores_as_text(results: dict[str, Any]) -> str:
    return (
        f"BLEU {results['bleu']:.2f}  {results['bleu_signature']}\n"
        f"chrF {results['chrf']:.2f}  {results['chrf_signature']}\n"
        f"exact match {results['exact_match']:.2f} %\n"
        f"perplexity per token {_number(results['perplexity'])}\n"
        f"{results['sentences']:,} sentences in {results['seconds']:.1f} s, "
        f"{results['sentences_per_second']:.1f} sentences/s"
    )


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _translate(arguments: argparse.Namespace) -> None:
    from .translation import Translator

    translator = Translator.from_pretrained(arguments.model, arguments.device)
    lines = [arguments.text] if arguments.text is not None else _lines(sys.stdin)
    # Who types sees each translation at once; a file is sorted by length in windows, which is faster.
    window = arguments.window or (1 if sys.stdin.isatty() else 1000)
    translations = translator.translate(
        lines, window=window, tokens_per_batch=arguments.tokens_per_batch, **_generate_arguments(arguments)
    )
    for translation in translations:
        sys.stdout.buffer.write(translation.encode("utf-8") + b"\n")
        sys.stdout.buffer.flush()


def _lines(stream: TextIO) -> Iterator[str]:
    """Lines of UTF-8, ended by a line feed only; a byte that is no UTF-8 becomes a replacement character."""
    for line in stream.buffer:
        yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", errors="replace")


def _generate_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("num_beams", "length_penalty", "max_new_tokens")
    given = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, but is {text!r}")
    return int(text)


def _add_generation_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num_beams", type=_positive, help="beams; the checkpoint's by default")
    parser.add_argument("--length_penalty", type=float, help="exponent of the length; the checkpoint's by default")
    parser.add_argument(
        "--max_new_tokens", type=_positive, help="longest translation in tokens; the checkpoint's by default"
    )
    parser.add_argument(
        "--tokens_per_batch", type=_positive, default=4096, help="source positions per batch, padding included (4096)"
    )
    parser.add_argument("--device", help="cpu, cuda, cuda:1 …; a GPU where there is one by default")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vaswani", description="Train, evaluate and use translation models.")
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser(
        "train",
        help="train from a recipe",
        epilog="Any key of the recipe can follow as --key value.",
        allow_abbrev=False,
    )
    train.add_argument("recipe", help="a YAML file, such as configuration/numbers.yaml")
    evaluate = commands.add_parser("evaluate", help="score a model on a test set")
    evaluate.add_argument("model", help="a checkpoint folder or a repository on the Hub")
    evaluate.add_argument("--source", required=True, help="sentences, one per line (plain or .gz)")
    evaluate.add_argument("--reference", required=True, help="their translations, line by line (plain or .gz)")
    evaluate.add_argument(
        "--tokenize", default="13a", help="sacreBLEU's tokenizer: 13a (default), intl, char, none, …"
    )
    evaluate.add_argument("--lowercase", action="store_true", help="compare without case")
    evaluate.add_argument("--json", action="store_true", help="print JSON")
    evaluate.add_argument("--output", help="a file for the translations")
    translate = commands.add_parser("translate", help="translate standard input, or --text, to standard output")
    translate.add_argument("model", help="a checkpoint folder or a repository on the Hub")
    translate.add_argument("--text", help="one sentence in place of standard input")
    translate.add_argument(
        "--window", type=_positive, help="lines read before they are translated (1000; 1 at a terminal)"
    )
    for command in (evaluate, translate):
        _add_generation_options(command)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand.

    Args:
        argv (list, optional): Words after `vaswani`; those of the process by default.

    Returns:
        int: 0, or 1 with one sentence on stderr; 130 after an interruption.
    """
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest and arguments.command != "train":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        _without_bars_for_moments()
        if arguments.command == "train":
            _train(arguments, rest)
        else:
            {"evaluate": _evaluate, "translate": _translate}[arguments.command](arguments)
    except BrokenPipeError:
        # Whoever read our output has enough; keep Python from complaining when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("vaswani: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        return _report(error)
    return 0


def _without_bars_for_moments() -> None:
    """Leave the bars of data preparation; those of loading and saving small models say nothing."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def _report(error: Exception) -> int:
    """One sentence instead of a traceback; the traceback with VASWANI_TRACEBACK=1, for bug reports."""
    if os.environ.get("VASWANI_TRACEBACK") == "1":
        logging.getLogger("vaswani_hf").error("traceback", exc_info=error)
    message = " ".join(str(error).split()) or type(error).__name__
    interrupted = type(error).__name__ == "InterruptedRunError"
    # What we raise is a sentence; what others raise may be a page and need its name to be understood.
    if not isinstance(error, (ValueError, OSError)) and not interrupted:
        message = f"{type(error).__name__}: {message}"
    if len(message) > 600:
        message = f"{message[:500]} … (VASWANI_TRACEBACK=1 shows all)"
    print(f"vaswani: {message}", file=sys.stderr)
    return 130 if interrupted else 1


if __name__ == "__main__":
    sys.exit(main())
