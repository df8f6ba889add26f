"""The `vaswani` command."""

import argparse
import json
import os
import re
import sys
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, NoReturn

from .model.configuration_vaswani import nearest_name
from .reporting import fill_closed_streams, give_up_output, report, without_bars_for_moments


def _train(arguments: argparse.Namespace, overrides: list[str]) -> None:
    from .recipe import load_recipe
    from .training import train
    from .training.processes import Outliving, Processes

    # Of several processes one reads the recipe, and says what is wrong with it.
    recipe = Processes().by_first(lambda: load_recipe(arguments.recipe, overrides))
    with redirect_stderr(Outliving(sys.stderr)):
        train(recipe)


def _plan(arguments: argparse.Namespace, overrides: list[str]) -> None:
    from .recipe import load_recipe
    from .training.plan import plan_as_text, plan_run

    rates = {"hardware": arguments.hardware, "tokens_per_second": arguments.tokens_per_second}
    recipe = load_recipe(arguments.recipe, overrides, needs_data=False)
    plan = plan_run(recipe, **rates, mean_length=arguments.mean_length)
    print(json.dumps(plan, indent=2) if arguments.json else plan_as_text(plan))


def _distill(arguments: argparse.Namespace, overrides: list[str]) -> None:
    from .recipe import load_recipe
    from .translation.distillation import DistillationJob, distill
    from .translation.translator import TranslationOptions

    of_search = {name: getattr(arguments, name) for name in ("tokens_per_batch", "repetition_guard", "on_error")}
    options = TranslationOptions.of(**of_search, **_generate_arguments(arguments))
    names = ("output", "keep_references", "resume", "workers", "engine", "device", "dtype", "quantization")
    given: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    recipe, (first, *others) = load_recipe(arguments.recipe, overrides), arguments.teacher
    print(distill(DistillationJob(recipe=recipe, model=first, ensemble=tuple(others), options=options, **given)))


def _evaluate_text(arguments: argparse.Namespace) -> None:
    from .evaluation.texts import TextEvaluationJob, evaluate_text_file

    if arguments.model is None:
        raise ValueError("`vaswani evaluate --text` needs a model.")
    given = {name: value for name, value in vars(arguments).items() if value is not None and value is not False}
    known = {"model", "text", "json", "device", "dtype", "tokens_per_batch", "revision"}
    if others := sorted(given.keys() - known - {"command", "parser", "debug"}):
        owner = "a parser" if others[0] == "trees" else "translations"
        raise ValueError(
            f"`--{others[0]}` is for {owner}, but `--text` is for a language model; leave one of them out."
        )
    names = ("text", "json", "device", "dtype", "tokens_per_batch")
    evaluate_text_file(TextEvaluationJob(_model(arguments), **{name: getattr(arguments, name) for name in names}))


def _evaluate_trees(arguments: argparse.Namespace) -> None:
    from .parsing.files import TreeEvaluationJob, evaluate_trees

    of_translations = (
        "source reference compare picture tokenize lowercase split_compounds comet repetition_guard".split()
    )
    for name in of_translations:
        if getattr(arguments, name):
            raise ValueError(f"`--{name}` is for translations, but `--trees` is for a parser; leave one of them out.")
    names = ("trees", "json", "output", "device")
    options = {"tokens_per_batch": arguments.tokens_per_batch, **_generate_arguments(arguments)}
    given: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    model = arguments.model and _model(arguments)
    evaluate_trees(TreeEvaluationJob(model=model, precision=_precision(arguments), options=options, **given))


def _evaluate(arguments: argparse.Namespace) -> None:
    if arguments.text is not None:
        _evaluate_text(arguments)
        return
    if arguments.trees is not None:
        _evaluate_trees(arguments)
        return
    for name in ("source", "reference"):
        if getattr(arguments, name) is None:
            raise ValueError(
                f"`--{name}` must be given to evaluate translations, or `--text` to evaluate a language model, or `--trees` to "
                "evaluate a parser."
            )
    from .evaluation.files import EvaluationJob, evaluate_files

    if arguments.model is None and arguments.revision is not None:
        raise ValueError("`--revision` is of the model before `--compare`; write others as user/name@revision.")
    if arguments.revision is not None and Path(arguments.model).is_file():
        raise ValueError(f"`--revision` is of a repository, but '{arguments.model}' is a file; leave it out.")
    options = {name: getattr(arguments, name) for name in ("tokens_per_batch", "repetition_guard")}
    names = ("source", "reference", "comet", "json", "output", "picture", "device")
    evaluate_files(
        EvaluationJob(
            **{name: getattr(arguments, name) for name in names},
            model=arguments.model and _model(arguments),
            compare=tuple(arguments.compare or ()),
            scoring={
                "tokenize": arguments.tokenize or "13a",
                **{name: getattr(arguments, name) for name in ("lowercase", "split_compounds")},
            },
            precision=_precision(arguments),
            options=options | _generate_arguments(arguments),
        )
    )


def _translate(arguments: argparse.Namespace) -> None:
    from .translation.files import TranslationJob, translate_file
    from .translation.translator import TranslationOptions

    # Somebody who types sees each translation at once; a file is sorted by length in windows, which is faster.
    is_typed = arguments.text is None and arguments.input is None and sys.stdin is not None and sys.stdin.isatty()
    # A line of text holds one translation only.
    arguments.json |= (arguments.num_return_sequences or 1) > 1
    options = TranslationOptions.of(
        window=arguments.window or (1 if is_typed else 1000),
        tokens_per_batch=arguments.tokens_per_batch,
        split_sentences=arguments.split_sentences,
        repetition_guard=arguments.repetition_guard,
        return_scores=arguments.json,
        return_alignments=arguments.json,
        seed=arguments.seed,
        on_error=arguments.on_error,
        **_generate_arguments(arguments),
    )
    names = ("device", "text", "input", "output", "input_format", "json", "resume", "workers", "stream", "engine")
    given = {name: getattr(arguments, name) for name in names} | _precision(arguments)
    translate_file(
        TranslationJob(model=_model(arguments), options=options, ensemble=tuple(arguments.ensemble), **given)
    )


def _parse(arguments: argparse.Namespace) -> None:
    from .parsing.files import ParsingJob
    from .translation.files import translate_file
    from .translation.translator import TranslationOptions

    is_typed = arguments.text is None and arguments.input is None and sys.stdin is not None and sys.stdin.isatty()
    options = TranslationOptions.of(
        window=arguments.window or (1 if is_typed else 1000),
        tokens_per_batch=arguments.tokens_per_batch,
        return_scores=arguments.json,
        on_error=arguments.on_error,
        **_generate_arguments(arguments),
    )
    names = ("device", "text", "input", "output", "json", "resume", "workers")
    given = {name: getattr(arguments, name) for name in names} | _precision(arguments)
    translate_file(ParsingJob(model=_model(arguments), options=options, ensemble=tuple(arguments.ensemble), **given))


def _score(arguments: argparse.Namespace) -> None:
    from .model.options_vaswani import SCORE_SETTINGS
    from .translation.files import ScoringJob, score_files

    _generate_arguments(arguments)
    options = {name: getattr(arguments, name) for name in (*SCORE_SETTINGS, "tokens_per_batch", "on_error")}
    score_files(
        ScoringJob(
            model=_model(arguments),
            source=arguments.source,
            target=arguments.target,
            device=arguments.device,
            ensemble=tuple(arguments.ensemble),
            json=arguments.json,
            options={**options, "return_alignments": arguments.json},
            **_precision(arguments),
        )
    )


def _export(arguments: argparse.Namespace) -> None:
    from .convert.export import export

    print(export(_model(arguments), arguments.output, arguments.format, arguments.quantization))


def _average(arguments: argparse.Namespace) -> None:
    from .training.averaging import numbered_checkpoints, write_average

    chosen = arguments.checkpoints
    if arguments.metric and not arguments.best:
        raise ValueError(f"`--metric {arguments.metric}` is for `--best`, which is not given; leave it out.")
    if arguments.last or arguments.best:
        if len(chosen) != 1:
            raise ValueError(f"`--last` and `--best` choose from one run, but {len(chosen):,} folders are given.")
        which = (arguments.last, arguments.best, arguments.metric or "loss")
        chosen = numbered_checkpoints(Path(chosen[0]), *which, raw=arguments.raw)
    elif len(chosen) < 2:
        raise ValueError("`checkpoints` must be two or more, or one run with `--last` or `--best`, but is one.")
    elif len({os.path.abspath(name) for name in chosen}) < len(chosen):
        raise ValueError(f"`checkpoints` names one twice, in {', '.join(chosen)}; name each once.")
    write_average(chosen, arguments.output, raw=arguments.raw)
    print(f"the mean of {', '.join(Path(name).name for name in chosen)} is in '{arguments.output}'")


def _push(arguments: argparse.Namespace) -> None:
    from .publish.push import push_checkpoint

    names = ("private", "revision", "create_pr", "tag", "license", "base_model")
    push_checkpoint(arguments.checkpoint, arguments.repository, **{name: getattr(arguments, name) for name in names})


def _model(arguments: argparse.Namespace) -> str:
    """The model with its revision, as user/name@revision, which is how one of an ensemble names its own."""
    return arguments.model if arguments.revision is None else f"{arguments.model}@{arguments.revision}"


def _precision(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"dtype": arguments.dtype, "quantization": arguments.quantization}


def _generate_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    from .model.options_vaswani import DECODING_SETTINGS, validate_search_fields

    given = {name: value for name in DECODING_SETTINGS if (value := getattr(arguments, name, None)) is not None}
    # Impossible ones are refused before a model is loaded, whose own settings may ask for sampling.
    validate_search_fields(argparse.Namespace(**given | {"do_sample": True}))  # type: ignore[arg-type]
    return given


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # One sentence; argparse would put all options before it.
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")

    def refuse(self, words: list[str]) -> NoReturn:
        """End because of words that this command does not know; the first option among them has a nearest one."""
        option = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
        if option is None:
            self.error(f"there is no argument {words[0]!r} to take")
        known = re.findall(r"--[\w-]+", self.format_help())
        self.error(f"there is no option {option}; the nearest one is {nearest_name(option, known)}")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, but is {text!r}")
    return int(text)


def _yes_or_no(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"must be true or false, but is {text!r}")
    return text.lower() == "true"


def _add_switch(parser: argparse.ArgumentParser, name: str, default: bool | None, help: str) -> None:
    """An option that can be given alone, as `--name true` and as `--name false`."""
    parser.add_argument(name, type=_yes_or_no, nargs="?", const=True, default=default, metavar="true|false", help=help)


def _add_model(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    parser.add_argument("model", nargs=nargs, help="a checkpoint folder or a repository on the Hub")
    parser.add_argument("--revision", help="a branch, tag or commit of the repository, or refs/pr/N; main by default")


def _add_model_options(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    _add_model(parser, nargs)
    _add_computing_options(parser)


def _add_computing_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="cpu, cuda, cuda:1 …; a GPU where there is one by default")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16", "auto"),
        help="what to compute in; auto: bfloat16 where the processor or GPU has it in hardware and the first texts have "
        "the same translations, else float32; the checkpoint's by default",
    )
    parser.add_argument(
        "--quantization", choices=("int8",), help="multiply by weights in int8, on the CPU; needs vaswani_hf[int8]"
    )
    parser.add_argument(
        "--tokens_per_batch", type=_positive, default=4096, help="source positions per batch, padding included (4096)"
    )
    parser.add_argument("--length_penalty", type=float, help="exponent of the length; the checkpoint's by default")
    parser.add_argument(
        "--length_penalty_type", help="gnmt, ((5 + length) / 6)^exponent, or power; the checkpoint's by default"
    )
    parser.add_argument("--coverage_penalty", type=float, help="weight of the coverage; the checkpoint's by default")


def _add_ensemble(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ensemble",
        nargs="+",
        default=[],
        metavar="MODEL",
        help="more checkpoints of the same vocabulary (folders, user/name or user/name@revision), whose probabilities are "
        "averaged with the first one's",
    )


def _add_on_error(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--on_error",
        choices=("fail", "skip"),
        default="fail",
        help="skip: name a bad line, write an empty one (or its `error`, in JSON) and go on; exit code 1 if all are bad",
    )


def _add_search_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num_beams", type=_positive, help="beams; the checkpoint's by default, 4 if it has none")
    parser.add_argument(
        "--max_new_tokens", type=_positive, help="longest translation in tokens; the checkpoint's by default"
    )
    for name, kind, what in (("a", float, "per source token"), ("b", int, "beside those")):
        parser.add_argument(f"--max_length_{name}", type=kind, help=f"longest translation: tokens {what}")
    parser.add_argument("--no_repeat_ngram_size", type=_positive, help="no sequence of as many tokens occurs twice")
    _add_switch(parser, "--repetition_guard", False, "translate once more what has fallen into a loop (false)")


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        choices=("torch", "ctranslate2"),
        default="torch",
        help="ctranslate2: the model is what `vaswani export --format ctranslate2` wrote",
    )
    parser.add_argument("--workers", type=_positive, default=1, help="processes on the CPU (1)")


def _add_sampling_options(parser: argparse.ArgumentParser) -> None:
    _add_switch(parser, "--do_sample", None, "draw translations instead of searching the best")
    parser.add_argument("--temperature", type=float, help="of sampling: above 1 more varied, below 1 less")
    parser.add_argument("--top_k", type=_positive, help="sample from as many tokens only")
    parser.add_argument("--top_p", type=float, help="sample from the tokens that make up this probability only")
    parser.add_argument("--seed", type=int, help="the same one draws the same")


def _parser() -> _Parser:
    parser = _Parser(prog="vaswani", description="Train, evaluate and use translation models.")
    commands = parser.add_subparsers(dest="command", required=True)
    _add_recipe_command(commands, "train", "train from a recipe", "numbers.yaml")
    _add_plan(commands)
    _add_distill(commands)
    _add_evaluate(commands)
    _add_translate(commands)
    _add_parse(commands)
    _add_score(commands)
    export = commands.add_parser("export", help="write a checkpoint for other libraries, and compare the two")
    _add_model(export)
    export.add_argument("output", help="a folder that is new or empty")
    export.add_argument(
        "--format", required=True, help="the name of a format, such as marian; a wrong name is answered by all names"
    )
    export.add_argument(
        "--quantization",
        help="the dtype of the weights, such as int8, for ctranslate2; the checkpoint's dtype by default",
    )
    _add_average(commands)
    _add_push(commands)
    for command in commands.choices.values():
        command.set_defaults(parser=command)
    return parser


def _add_recipe_command(commands: Any, name: str, help: str, example: str) -> argparse.ArgumentParser:
    keys = "Any other key of the recipe can follow as --key value."
    command = commands.add_parser(name, help=help, epilog=keys, allow_abbrev=False)
    command.add_argument("recipe", help=f"a YAML file, such as configuration/{example}")
    return command


def _add_plan(commands: Any) -> None:
    what = "what a recipe will cost: parameters, operations, memory, tokens, hours; nothing is read or downloaded"
    plan = _add_recipe_command(commands, "plan", what, "wmt14/base_en_de.yaml")
    rate = plan.add_mutually_exclusive_group()
    rate.add_argument("--hardware", help="hours on eight GPUs of the paper's: K80, K40, M40 or P100")
    rate.add_argument(
        "--tokens_per_second",
        type=float,
        help="hours at a measured rate: target tokens per second, as a run shows them",
    )
    plan.add_argument("--mean_length", type=_positive, help="the mean length of a sentence to assume (32 tokens)")
    plan.add_argument("--json", action="store_true", help="print JSON")


def _add_evaluate(commands: Any) -> None:
    evaluate = commands.add_parser("evaluate", help="score a model, or translations, on a test set; compare several")
    # A comparison can name all its systems itself.
    _add_model_options(evaluate, "?")
    _add_search_options(evaluate)
    evaluate.add_argument("--source", help="sentences, one per line (plain or .gz)")
    evaluate.add_argument("--reference", help="their translations, line by line (plain or .gz)")
    evaluate.add_argument(
        "--trees", help="a treebank (a file, plain or .gz; a folder of .mrg files; a pattern), for the F1 of a parser"
    )
    evaluate.add_argument("--text", help="texts, one per line (plain or .gz), for the perplexity of a language model")
    evaluate.add_argument(
        "--compare",
        nargs="+",
        metavar="SYSTEM",
        help="compare these with MODEL, or with the first of them: checkpoints (folders, user/name or user/name@revision) or "
        "files of translations, one per line; significance by sacrebleu, scores by source length",
    )
    evaluate.add_argument("--picture", help="a new .png for the comparison: BLEU by source length")
    evaluate.add_argument("--tokenize", help="sacreBLEU's tokenizer: 13a (default), intl, char, none, …")
    evaluate.add_argument("--lowercase", action="store_true", help="compare without case")
    evaluate.add_argument(
        "--split_compounds",
        action="store_true",
        help="split words at hyphens, for BLEU as published for WMT 2014 English-German, which is not sacreBLEU's",
    )
    evaluate.add_argument("--comet", metavar="MODEL", help="score by comet-score too, such as Unbabel/wmt22-comet-da")
    evaluate.add_argument("--json", action="store_true", help="print JSON")
    evaluate.add_argument("--output", help="a file for the translations of one model")


def _add_distill(commands: Any) -> None:
    distill = _add_recipe_command(commands, "distill", "pairs of a teacher, for a student to train on", "numbers.yaml")
    teachers = "a checkpoint (as for translate), or several of one vocabulary, whose probabilities are averaged"
    distill.add_argument("--teacher", nargs="+", required=True, metavar="MODEL", help=teachers)
    distill.add_argument("--output", required=True, help="a new file of JSON lines (.jsonl), for --train_pairs")
    distill.add_argument("--num_return_sequences", type=_positive, help="translations of each sentence (1)")
    _add_switch(distill, "--keep_references", False, "write the real pairs too (false)")
    _add_switch(distill, "--resume", False, "go on where an --output that exists breaks off")
    _add_computing_options(distill)
    _add_search_options(distill)
    _add_engine_options(distill)
    _add_on_error(distill)


def _add_score(commands: Any) -> None:
    score = commands.add_parser("score", help="log-probabilities of given translations")
    _add_model_options(score)
    _add_ensemble(score)
    _add_on_error(score)
    score.add_argument("--source", required=True, help="sentences, one per line (plain or .gz)")
    score.add_argument("--target", required=True, help="their translations, line by line (plain or .gz)")
    score.add_argument(
        "--json",
        action="store_true",
        help="print JSON lines, with tokens, words, confidences and alignment, in place of columns: the summed "
        "log-probability, the score (with length penalty and coverage), the log-probabilities of the tokens",
    )


def _add_average(commands: Any) -> None:
    average = commands.add_parser("average", help="write the mean of the weights of several checkpoints")
    average.add_argument("checkpoints", nargs="+", help="checkpoints of one model; or a run, with --last or --best")
    average.add_argument("--output", required=True, help="a folder that is new or empty")
    choice = average.add_mutually_exclusive_group()
    choice.add_argument("--last", type=_positive, help="as many of the run's last checkpoints")
    choice.add_argument("--best", type=_positive, help="as many of its checkpoints with the best validation")
    average.add_argument("--metric", choices=("loss", "bleu"), help="of the best ones (loss)")
    average.add_argument("--raw", action="store_true", help="the weights themselves of a run with a moving average")


def _add_push(commands: Any) -> None:
    push = commands.add_parser("push", help="publish a checkpoint on the Hub, and check what arrived")
    push.add_argument("checkpoint", help="a checkpoint folder")
    push.add_argument("repository", help="user/name; made if there is none")
    push.add_argument("--private", action="store_true", help="make the repository as a private one")
    push.add_argument("--revision", help="a branch, made if there is none, or refs/pr/N; main by default")
    push.add_argument("--create-pr", "--create_pr", action="store_true", help="open a pull request to main")
    push.add_argument("--tag", help="a new tag for the commit, such as v1.0")
    push.add_argument("--license", help="the licence for the card, as the Hub names it, such as cc-by-4.0")
    push.add_argument(
        "--base-model", "--base_model", help="for the card: the repository whose model this one was made from"
    )


def _add_translate(commands: Any) -> None:
    translate = commands.add_parser("translate", help="translate standard input, a file or --text")
    _add_model_options(translate)
    _add_ensemble(translate)
    _add_search_options(translate)
    _add_sampling_options(translate)
    _add_on_error(translate)
    translate.add_argument("--text", help="one text in place of standard input")
    translate.add_argument("--input", help="a file in place of standard input (plain or .gz)")
    translate.add_argument("--output", help="a new file in place of standard output")
    _add_switch(translate, "--resume", False, "go on where an --output that exists breaks off")
    translate.add_argument(
        "--input_format",
        choices=("text", "json"),
        default="text",
        help='json: each line is an object like {"text": …, "target_prefix": …, "must_contain": [phrase, …]}',
    )
    translate.add_argument(
        "--json",
        action="store_true",
        help="print JSON lines, with score, tokens, words, confidences and word alignment",
    )
    translate.add_argument(
        "--num_return_sequences",
        type=_positive,
        help="translations of each text (1); more than one are printed as JSON lines",
    )
    _add_switch(translate, "--split_sentences", False, "translate long texts sentence by sentence")
    translate.add_argument(
        "--window", type=_positive, help="lines read before they are translated (1000; 1 at a terminal)"
    )
    _add_engine_options(translate)
    _add_switch(translate, "--stream", False, "show each translation while it comes about, greedily")


def _add_parse(commands: Any) -> None:
    parse = commands.add_parser("parse", help="give sentences their constituency trees, one line of brackets each")
    _add_model_options(parse)
    _add_ensemble(parse)
    parse.add_argument("--num_beams", type=_positive, help="beams; the checkpoint's by default")
    parse.add_argument("--max_new_tokens", type=_positive, help="most symbols of a tree; the checkpoint's by default")
    _add_on_error(parse)
    parse.add_argument("--text", help="one sentence in place of standard input, its words separated by spaces")
    parse.add_argument("--input", help="a file in place of standard input (plain or .gz)")
    parse.add_argument("--output", help="a new file in place of standard output")
    _add_switch(parse, "--resume", False, "go on where an --output that exists breaks off")
    parse.add_argument("--json", action="store_true", help="print JSON lines, with the score and that of each symbol")
    parse.add_argument("--window", type=_positive, help="lines read before they are parsed (1000; 1 at a terminal)")
    parse.add_argument("--workers", type=_positive, default=1, help="processes on the CPU (1)")


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand.

    Args:
        argv (list, optional): Words after `vaswani`; those of the process by default.

    Returns:
        int: 0, or 1 with one sentence on stderr; 130 after an interruption.
    """
    fill_closed_streams()
    arguments, rest = _parser().parse_known_args(argv)
    with_overrides = {"train": _train, "plan": _plan, "distill": _distill}
    if rest and arguments.command not in with_overrides:
        arguments.parser.refuse(rest)
    commands = {"evaluate": _evaluate, "translate": _translate, "score": _score, "export": _export, "push": _push}
    commands |= {"average": _average, "parse": _parse}
    try:
        without_bars_for_moments()
        if arguments.command in with_overrides:
            with_overrides[arguments.command](arguments, rest)
        else:
            commands[arguments.command](arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has enough.
        give_up_output()
        return 1
    except KeyboardInterrupt:
        print("vaswani: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        return report(error, give_up_output())
    return 0


if __name__ == "__main__":
    sys.exit(main())
