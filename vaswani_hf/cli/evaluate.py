"""`vaswani evaluate`: scores of translations, of a parser (`--trees`) or of a language model (`--text`).

Each of the three forms has a class of options. `EvaluateOptions` has the options of all forms: the command line is made
from it, and `run` chooses the form.
"""

import json
import os
import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator
from pydantic.fields import FieldInfo

from ..checkpoint.hub import HubError
from ..checkpoint.loading import check_config, checkpoint_folder
from ..data.lines import read_lines, refuse_blank
from ..evaluation.comet import CometError, check_comet, comet_scores
from .options import SEARCH, ComputingOptions, DeviceOptions, Options, on_command_line, translation_options
from .output import LineOutput, check_output, output_file, standard_output

_REMEDY = "free space and run it again with another name"
# Options that finished translations and trees are scored without. The size of a batch changes no score.
_OF_MODELS = ("dtype", "quantization", *SEARCH[1:], "repetition_guard", "device")
_SearchFields: Any = translation_options(*SEARCH, "repetition_guard")
_TreeSearchFields: Any = translation_options(*SEARCH)
_BatchFields: Any = translation_options("tokens_per_batch")


class _SystemOptions(Options):
    # A comparison can name all its systems itself.
    model: str | None = on_command_line(None, positional=True)
    """a checkpoint folder or a repository on the Hub, or a file of finished translations or trees"""
    revision: str | None = None
    """a branch, tag or commit of the repository, or refs/pr/N; main by default"""
    as_json: bool = on_command_line(False, option="json")
    """print JSON"""

    @property
    def model_name(self) -> str:
        """The model with its revision, as user/name@revision."""
        return str(self.model) if self.revision is None else f"{self.model}@{self.revision}"

    def given_of_models(self) -> list[str]:
        """The options of models that the user has given."""
        return [name for name in _OF_MODELS if name in self.model_fields_set]

    def print_scores(self, scores: dict[str, Any], as_text: Any, stdout: LineOutput) -> None:
        """Print scores as JSON or as text."""
        text = json.dumps(scores, indent=2) if self.as_json else as_text(scores)
        stdout.write(f"{text}\n".encode(errors="replace"))


class TextEvaluation(_BatchFields, DeviceOptions, _SystemOptions):
    """The options of `vaswani evaluate --text`."""

    text: str
    """texts, one per line (plain or .gz), for the perplexity of a language model"""

    @model_validator(mode="after")
    def _check_places(self) -> Self:
        if self.model is None:
            raise ValueError("`vaswani evaluate --text` needs a model.")
        if not Path(self.text).is_file():
            raise ValueError(f"`--text` must be an existing file, but is {self.text}.")
        return self


class TreeEvaluation(_TreeSearchFields, ComputingOptions, _SystemOptions):
    """The options of `vaswani evaluate --trees`."""

    trees: str
    """a treebank (a file, plain or .gz; a folder of .mrg files; a pattern), for the F1 of a parser"""
    output: str | None = None
    """a file for the translations or trees of one model"""

    @property
    def is_finished(self) -> bool:
        """True if `model` is a file of trees and not a parser."""
        return Path(self.model_name).is_file()

    @model_validator(mode="after")
    def _check_places(self) -> Self:
        if self.model is None:
            raise ValueError("`vaswani evaluate --trees` needs a model, or a file of finished trees.")
        if "/" not in self.model and not Path(self.model).exists():
            raise ValueError(
                f"`model` must be a parser or a file of finished trees, but there is no '{self.model}' here; check its name."
            )
        if self.is_finished and self.output is not None:
            raise ValueError(
                f"`--output` is for the trees of a model, but {self.model} is a file of trees; leave it out."
            )
        if self.is_finished and (given := self.given_of_models()):
            raise ValueError(
                f"`--{given[0]}` is for a parser, but {self.model} is a file of trees; leave it out."
            )
        check_output(self.output, {"--trees": self.trees} if Path(self.trees).is_file() else {})
        return self


class TranslationEvaluation(_SearchFields, ComputingOptions, _SystemOptions):
    """The options of `vaswani evaluate` for translations.

    A system is a checkpoint folder, user/name or user/name@revision on the Hub, or a file of finished translations.
    """

    source: str
    """sentences, one per line (plain or .gz)"""
    reference: str
    """their translations, line by line (plain or .gz)"""
    compare: list[str] = on_command_line([], metavar="SYSTEM")
    """compare these with MODEL, or with the first of them: checkpoints (folders, user/name or user/name@revision) or
    files of translations, one per line; significance by sacrebleu, scores by source length"""
    picture: str | None = None
    """a new .png for the comparison: BLEU by source length"""
    tokenize: str = "13a"
    """sacreBLEU's tokenizer: 13a, intl, char, none, …"""
    lowercase: bool = False
    """compare without case"""
    split_compounds: bool = False
    """split words at hyphens, for BLEU as published for WMT 2014 English-German, which is not sacreBLEU's"""
    comet: str | None = on_command_line(None, metavar="MODEL")
    """score by comet-score too, such as Unbabel/wmt22-comet-da"""
    output: str | None = None
    """a file for the translations or trees of one model"""

    @property
    def systems(self) -> list[str]:
        """The systems, the baseline first."""
        return [*([] if self.model is None else [self.model_name]), *self.compare]

    @property
    def scoring(self) -> dict[str, Any]:
        """The arguments of `score_translations`."""
        return {name: getattr(self, name) for name in ("tokenize", "lowercase", "split_compounds")}

    @model_validator(mode="after")
    def _check_systems(self) -> Self:
        if self.revision is not None and self.model is None:
            raise ValueError(
                "`--revision` is of the model before `--compare`; write others as user/name@revision."
            )
        if self.revision is not None and Path(str(self.model)).is_file():
            raise ValueError(f"`--revision` is of a repository, but '{self.model}' is a file; leave it out.")
        for option in ("source", "reference"):
            path = getattr(self, option)
            if not Path(path).is_file():
                raise ValueError(f"`--{option}` must be an existing file, but is {path}.")
        systems = self.systems
        if not systems:
            raise ValueError(
                "`vaswani evaluate` needs a model, a file of translations, or several of them as `--compare A B`."
            )
        if self.compare and len(systems) < 2:
            raise ValueError(
                f"`--compare` must have two systems or more, but there is only {systems[0]}; name another one, or leave "
                "out `--compare`."
            )
        # A folder with two names is one system.
        places = [os.path.realpath(name) if os.path.exists(name) else name for name in systems]
        for number, name in enumerate(systems):
            if places[number] in places[:number]:
                raise ValueError(f"`--compare` must have different systems, but {name} is there twice.")
        unused = [name for name in self.given_of_models() if name != "device" or not self.comet]
        if unused and all(map(_is_file, systems)):
            raise ValueError(
                f"`--{unused[0]}` is for a model, but there are finished translations only ({', '.join(systems)}); leave "
                "it out."
            )
        return self

    @model_validator(mode="after")
    def _check_outputs(self) -> Self:
        systems = self.systems
        if self.compare and self.output is not None:
            raise ValueError(
                "`--output` is for the translations of one model; with `--compare` write those of each by `vaswani "
                "translate --output`, and compare the files."
            )
        if self.output is not None and _is_file(systems[0]):
            raise ValueError(
                f"`--output` is for translations of a model, but {systems[0]} is a file of translations; leave it out."
            )
        if self.picture is not None:
            if not self.compare:
                raise ValueError("`--picture` shows a comparison and must come with `--compare`.")
            if not self.picture.lower().endswith(".png"):
                raise ValueError(f"`--picture` must end in .png, but is {self.picture}.")
            from ..evaluation.comparison import COLORS

            if len(systems) > len(COLORS):
                raise ValueError(
                    f"`--picture` shows at most {len(COLORS)} systems, but there are {len(systems)}; leave some out."
                )
        inputs: dict[str, str | None] = {"--source": self.source, "--reference": self.reference}
        inputs |= {
            f"--compare {name}" if self.compare else "model": name for name in systems if _is_file(name)
        }
        # Standard output may be a file too.
        for output, option in ((None, ""), (self.output, "--output"), (self.picture, "--picture")):
            check_output(output, inputs, option=option)
        return self


class EvaluateOptions(Options):
    """The options of `vaswani evaluate`, which are those of one of its three forms."""

    @classmethod
    def command_line(cls) -> dict[str, FieldInfo]:
        """The options of all forms. None is needed, because another form may be meant."""
        found: dict[str, FieldInfo] = {}
        for form in (TranslationEvaluation, TreeEvaluation, TextEvaluation):
            for name, field in form.command_line().items():
                optional = FieldInfo(annotation=field.annotation, default=None, description=field.description)
                found.setdefault(name, optional if field.is_required() else field)
        return found

    @classmethod
    def of_command_line(cls, values: dict[str, Any]) -> Options:
        """The options of the form that `--text` or `--trees` chooses."""
        if "text" in values:
            _refuse_foreign(values, TextEvaluation, "`--text` is for a language model")
            return TextEvaluation.of_command_line(values)
        if "trees" in values:
            _refuse_foreign(values, TreeEvaluation, "`--trees` is for a parser")
            return TreeEvaluation.of_command_line(values)
        for name in ("source", "reference"):
            if name not in values:
                raise ValueError(
                    f"`--{name}` must be given to evaluate translations, or `--text` to evaluate a language model, or "
                    "`--trees` to evaluate a parser."
                )
        return TranslationEvaluation.of_command_line(values)


def _refuse_foreign(values: dict[str, Any], form: type[Options], chosen: str) -> None:
    """Refuse options that belong to another form."""
    for name in sorted(values.keys() - form.model_fields.keys()):
        owner = "a parser" if name == "trees" else "translations"
        raise ValueError(f"`--{name}` is for {owner}, but {chosen}; leave one of them out.")


def run(options: TextEvaluation | TreeEvaluation | TranslationEvaluation) -> None:
    """Print the scores."""
    if isinstance(options, TextEvaluation):
        _evaluate_text(options)
    elif isinstance(options, TreeEvaluation):
        _evaluate_trees(options)
    else:
        _evaluate_translations(options)


def _evaluate_text(options: TextEvaluation) -> None:
    """Score a language model on a file of texts."""
    from ..tasks.language_modeling import evaluate_text_file, scores_of_texts_as_text

    stdout = standard_output()
    settings = {name: getattr(options, name) for name in ("device", "dtype", "tokens_per_batch")}
    scores = evaluate_text_file(options.model_name, options.text, **settings)
    options.print_scores(scores, scores_of_texts_as_text, stdout)


def _evaluate_trees(options: TreeEvaluation) -> None:
    """Score the trees of a parser, or finished ones."""
    from ..data.trees import read_treebank, treebank_files
    from ..parsing.bracketing import (
        bracketing_scores,
        evaluate_parser,
        lines_of,
        scores_as_text,
        trees_with_words,
    )
    from ..parsing.parser import Parser

    stdout = standard_output()
    gold = [tree for path in treebank_files([options.trees]) for tree in read_treebank(path)]
    if not any(tree.words for tree in gold):
        raise ValueError(f"`--trees` must have a tree with words in it, but {options.trees} has none.")
    if options.is_finished:
        with_words = trees_with_words(gold)
        predicted = [tree for tree in read_treebank(options.model_name) if tree.words]
        if len(predicted) != len(with_words):
            raise ValueError(
                f"{options.trees} and {options.model_name} must have equally many trees with words, but have "
                f"{len(with_words):,} and {len(predicted):,}."
            )
        options.print_scores(bracketing_scores(with_words, predicted), scores_as_text, stdout)
        return
    parser = Parser.from_pretrained(options.model_name, options.device, **options.precision)
    with ExitStack() as files:
        file = files.enter_context(output_file(options.output, _REMEDY)) if options.output else None
        scores = evaluate_parser(parser, gold, **options.translation_settings())
        trees = scores.pop("trees")
        options.print_scores(scores, scores_as_text, stdout)
        if file is not None:
            file.write(lines_of(trees).encode(errors="replace"))


def _evaluate_translations(options: TranslationEvaluation) -> None:
    """Score the translations of one system, or compare several."""
    from ..evaluation.bleu import check_tokenizer, score_translations
    from ..evaluation.comparison import (
        check_comparable,
        compare_systems,
        comparison_as_text,
        comparison_picture,
    )
    from ..evaluation.evaluate import evaluate, translate_test_set
    from ..translation.translator import Translator

    stdout = standard_output()
    check_tokenizer(options.tokenize)
    if options.comet is not None:
        check_comet(options.comet)
    sources, references = _test_set(options)
    if options.compare:
        check_comparable(len(sources))
    systems = options.systems
    translations = {
        name: _read_translations(name, options.source, len(sources)) for name in systems if _is_file(name)
    }
    missing = [name for name in systems if name not in translations]
    for name in missing if options.compare else []:
        _check_checkpoint(name)
    if options.comet is not None and missing:
        # Fail before hours of translating if the model of COMET is not available.
        comet_scores(options.comet, {"": references[:1]}, sources[:1], references[:1], options.device)
    with ExitStack() as files:
        output = files.enter_context(output_file(options.output, _REMEDY)) if options.output else None
        picture = (
            files.enter_context(output_file(options.picture, _REMEDY, "--picture"))
            if options.picture
            else None
        )
        if missing and not options.compare:
            settings = options.precision | options.scoring | options.translation_settings()
            scores = evaluate(systems[0], sources, references, device=options.device, **settings)
            translations[systems[0]] = scores.pop("translations")
        for name in missing if options.compare else []:
            # One model at a time is in memory.
            translator = Translator.from_pretrained(name, options.device, **options.precision)
            translations[name] = translate_test_set(
                translator, sources, name, **options.translation_settings()
            )
        translations = {name: translations[name] for name in systems}
        # COMET may fail, which costs no other score.
        comet, failure = _comet(options, translations, sources, references)
        if options.compare:
            scores = compare_systems(translations, sources, references, comet, **options.scoring)
        elif not missing:
            scores = score_translations(translations[systems[0]], references, **options.scoring)
            scores["sentences"] = len(sources)
        if comet is not None:
            scores |= {} if options.compare else {"comet": statistics.fmean(comet[systems[0]])}
            scores["comet_model"] = options.comet
        try:
            # A full disk costs no scores.
            options.print_scores(scores, comparison_as_text if options.compare else scores_as_text, stdout)
        finally:
            if output is not None:
                lines = "".join(f"{line}\n" for line in translations[systems[0]])
                output.write(lines.encode(errors="replace"))
            if picture is not None:
                picture.write(comparison_picture(scores))
    if failure is not None:
        raise failure


def _is_file(system: str) -> bool:
    """True for a file of translations, False for a checkpoint."""
    return Path(system).is_file()


def _test_set(options: TranslationEvaluation) -> tuple[list[str], list[str]]:
    """The sources, and equally many references without outer spaces."""
    sources = list(read_lines(options.source))
    references = [line.strip() for line in read_lines(options.reference)]
    refuse_blank(sources, "`--source`", options.source)
    refuse_blank(references, "`--reference`", options.reference)
    _check_lines(options.source, len(sources), options.reference, len(references))
    return sources, references


def _read_translations(path: str, source: str, num_sentences: int) -> list[str]:
    translations = [line.strip() for line in read_lines(path)]
    _check_lines(source, num_sentences, path, len(translations))
    return translations


def _check_lines(path: str, number: int, other: str, other_number: int) -> None:
    if number != other_number:
        raise ValueError(
            f"{path} and {other} must have equally many lines, but have {number:,} and {other_number:,}."
        )


def _check_checkpoint(name: str) -> None:
    """Refuse what is no checkpoint before other systems translate. A checkpoint on the Hub is downloaded."""
    if Path(name).is_dir():
        check_config(Path(name), name)
        return
    try:
        check_config(checkpoint_folder(name), name)
    except (ValueError, HubError) as error:
        raise ValueError(f"'{name}' is no file of translations; as a checkpoint: {error}") from error


def _comet(
    options: TranslationEvaluation, systems: dict[str, list[str]], sources: list[str], references: list[str]
) -> tuple[dict[str, list[float]] | None, CometError | None]:
    if options.comet is None:
        return None, None
    try:
        return comet_scores(options.comet, systems, sources, references, options.device), None
    except CometError as error:
        return None, error


def scores_as_text(results: dict[str, Any]) -> str:
    """The scores of one system, one per line. Only a model has a perplexity and a speed."""
    lines = [
        f"BLEU {results['bleu']:.2f}  {results['bleu_signature']}",
        f"chrF {results['chrf']:.2f}  {results['chrf_signature']}",
        f"exact match {results['exact_match']:.2f} %",
    ]
    if "comet" in results:
        lines.append(f"COMET {results['comet']:.4f}  {results['comet_model']}")
    if "perplexity" in results:
        value = results["perplexity"]
        lines.append(f"perplexity per token {'unknown' if value is None else f'{value:.3f}'}")
        speed = f"in {results['seconds']:.1f} s, {results['sentences_per_second']:.1f} sentences/s"
        lines.append(f"{results['sentences']:,} sentences {speed}")
    else:
        lines.append(f"{results['sentences']:,} sentences")
    if "bleu_note" in results:
        lines.append(results["bleu_note"])
    return "\n".join(lines)
