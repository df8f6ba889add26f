"""`vaswani evaluate`: scores translations, a parser (`--trees`) or a language model (`--text_file`)."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from pydantic import model_validator

from ..model.errors_vaswani import InvalidValueError
from .options import (
    CodeOptions,
    ComputingOptions,
    LanguageOptions,
    SearchOptions,
    check_different,
    check_file,
    on_command_line,
    translation_option,
)
from .output import check_output, output_file, standard_output

if TYPE_CHECKING:
    from ..evaluation.systems import Report, System, TestSet
    from ..recipe.recipe import Recipe

_REMEDY = "free disk space and run the command again with another name"
_SEARCH = tuple(SearchOptions.model_fields)
_TRANSLATING = ("quantization", *_SEARCH, *LanguageOptions.model_fields, "repetition_guard")
_SCORING = ("tokenize", "lowercase", "split_compounds")
_READ_BY_ALL = ("model", "revision", "code", "device", "dtype", "as_json")
# Options that have no effect if every system is a file of translations. With `--comet`, the option `--device`
# always has an effect, because COMET computes on the device.
_OF_MODELS = ("output", "device", "dtype", *_TRANSLATING)


class EvaluateOptions(SearchOptions, LanguageOptions, ComputingOptions, CodeOptions):
    """The options of `vaswani evaluate`. A system is a checkpoint folder, a repository on the Hub (user/name
    or user/name@revision), or a file of translations.
    """

    repetition_guard: bool = translation_option("repetition_guard")
    # `model` is optional, because `--compare` alone can name all systems.
    model: str | None = on_command_line(None, positional=True)
    """a checkpoint folder, a repository on the Hub, or a file with translations or trees to score"""
    revision: str | None = None
    """a branch, tag or commit of the repository, or refs/pr/N; main by default"""
    source: str | None = None
    """a file with one source sentence per line (plain or .gz)"""
    reference: str | None = None
    """a file whose line i is the reference translation of line i of `--source` (plain or .gz)"""
    trees: str | None = None
    """a treebank: a file (plain or .gz), a folder of .mrg files, or a pattern such as "wsj/*.mrg"; prints the
    F1 score of a parser on the sentences of the treebank"""
    text_file: str | None = None
    """a file with one text per line (plain or .gz); prints the perplexity of a language model on the texts"""
    compare: list[str] = on_command_line([], metavar="SYSTEM")
    """checkpoints (folders, user/name or user/name@revision) or files with one translation per line; compares
    each system with MODEL, or with the first system if MODEL is not given; prints BLEU and chrF with the
    significance tests of sacreBLEU, and scores by source length"""
    picture: str | None = None
    """write a picture of the comparison to this new .png file: BLEU by source length"""
    tokenize: str | None = None
    """the tokenizer of sacreBLEU: 13a, intl, char, none, …; by default the tokenizer in the recipe of the
    checkpoint, or 13a"""
    lowercase: bool | None = None
    """ignore upper and lower case in BLEU and chrF; by default the value in the recipe of the checkpoint, or
    false"""
    split_compounds: bool = False
    """split words at hyphens before BLEU is computed, as in the published scores for WMT 2014 English-German;
    the score is not comparable with the scores of sacreBLEU"""
    comet: str | None = on_command_line(None, metavar="MODEL")
    """also compute COMET with the command comet-score; the value is the COMET model, such as
    Unbabel/wmt22-comet-da"""
    robustness: bool = False
    """also translate the test set in upper case, in title case, with typos, without final punctuation, with
    wrong spaces and with placeholders; prints BLEU and chrF of MODEL and of the systems of `--compare` for
    each kind of change"""
    calibration: Literal["fit", "check"] | None = None
    """fit writes calibration.json and calibration.png into the checkpoint folder, from a validation set;
    check measures an existing calibration on another test set; both compare the expected share of good
    translations (chrF of 60 or more) with the measured share"""
    output: str | None = None
    """a new file for the translations or trees that the model writes"""
    as_json: bool = on_command_line(False, option="json")
    """print JSON"""

    @property
    def model_name(self) -> str:
        """The name of the model: `model`, or `model@revision` with `--revision`."""
        return str(self.model) if self.revision is None else f"{self.model}@{self.revision}"

    @property
    def systems(self) -> list[str]:
        """The names of the systems. The first system is the baseline of the comparison."""
        return [*([] if self.model is None else [self.model_name]), *self.compare]

    @property
    def kind(self) -> str:
        """The kind of the evaluation, a key of `_KINDS`."""
        return next((name for name in _KINDS if getattr(self, name) not in (None, False, [])), "model")

    @property
    def _given(self) -> set[str]:
        """The names of the options whose values are not the default values."""
        return set(self.model_dump(exclude_defaults=True))

    @model_validator(mode="after")
    def _check(self) -> Self:
        chosen = "one system" if self.kind == "model" else f"`--{self.kind}`"
        kind = _KINDS[self.kind]
        self._refuse(self._given - {self.kind, *kind.reads, *_READ_BY_ALL}, chosen)
        if self.revision is not None and _is_file(str(self.model)):
            raise InvalidValueError(
                f"`--revision` is the revision of a repository, but '{self.model}' is a file; leave "
                "`--revision` out."
            )
        kind.check(self)
        return self

    def _refuse(self, options: set[str], chosen: str) -> None:
        if options:
            name = min(options)
            raise InvalidValueError(f"`--{name}` has no effect with {chosen}; leave `--{name}` out.")

    def _refuse_options_of_models(self) -> None:
        """If all systems are files, raise an error for an option that has an effect only on models."""
        if self.systems and all(map(_is_file, self.systems)):
            read_by_comet = {"device"} if self.comet else set()
            unread = self._given & {*_OF_MODELS} - read_by_comet
            self._refuse(unread, f"files and no model ({', '.join(self.systems)})")

    def check_text_file(self) -> None:
        """Check the options of an evaluation with `--text_file`."""
        if self.model is None:
            raise InvalidValueError("`vaswani evaluate --text_file` needs a model; name a checkpoint.")
        check_file("--text_file", str(self.text_file))

    def check_trees(self) -> None:
        """Check the options of an evaluation with `--trees`."""
        trees = str(self.trees)
        model = self.model
        if model is None:
            raise InvalidValueError(
                "`vaswani evaluate --trees` needs a parser, or a file with the trees of a parser."
            )
        if "/" not in model and not Path(model).exists():
            raise InvalidValueError(
                f"`model` must be a parser or a file with the trees of a parser, but '{model}' does not "
                "exist; check the name."
            )
        self._refuse_options_of_models()
        check_output(self.output, {"--trees": trees} if _is_file(trees) else {})

    def check_translations(self) -> None:
        """Check the options of an evaluation of translations."""
        self._check_systems()
        self._check_outputs()

    def _check_systems(self) -> None:
        for name in ("source", "reference"):
            path = getattr(self, name)
            if path is None:
                raise InvalidValueError(
                    f"`--{name}` must be given to evaluate translations; give `--text_file` instead to "
                    "evaluate a language model, or `--trees` to evaluate a parser."
                )
            check_file(f"--{name}", path)
        if self.revision is not None and self.model is None:
            raise InvalidValueError(
                "`--revision` is for MODEL, but MODEL is not given; name the systems of `--compare` as "
                "user/name@revision."
            )
        systems = self.systems
        if not systems:
            raise InvalidValueError(
                "`vaswani evaluate` needs a model or a file of translations, or several models or files as "
                "`--compare A B`."
            )
        if self.compare and len(systems) < 2:
            raise InvalidValueError(
                f"`--compare` must have two systems or more, but there is only {systems[0]}; name another "
                "system, or leave out `--compare`."
            )
        check_different("--compare", systems)
        self._refuse_options_of_models()
        files = [name for name in systems if _is_file(name)]
        if files and (self.robustness or self.calibration):
            raise InvalidValueError(
                f"`--{self.kind}` needs models, because a model must translate, but {files[0]} is a file of "
                "translations; name the model."
            )
        is_writable = Path(systems[0]).is_dir() and os.access(systems[0], os.W_OK)
        if self.calibration == "fit" and not is_writable:
            raise InvalidValueError(
                f"`--calibration fit` writes into the folder of the checkpoint, but {systems[0]} is not "
                "a local folder with write permission; name the folder of a copy of the checkpoint."
            )

    def _check_outputs(self) -> None:
        systems = self.systems
        if self.picture is not None:
            if not self.picture.lower().endswith(".png"):
                raise InvalidValueError(f"`--picture` must end in .png, but is {self.picture}.")
            from ..evaluation.comparison import COLORS

            if len(systems) > len(COLORS):
                raise InvalidValueError(
                    f"`--picture` shows at most {len(COLORS)} systems, but there are {len(systems)}; "
                    "compare fewer systems."
                )
        inputs: dict[str, str | None] = {"--source": self.source, "--reference": self.reference}
        for name in filter(_is_file, systems):
            inputs[f"--compare {name}" if self.compare else "model"] = name
        # The value None stands for standard output. Also check standard output, because a user can redirect
        # it to an input file.
        for output, option in ((None, ""), (self.output, "--output"), (self.picture, "--picture")):
            check_output(output, inputs, option=option)


def _is_file(system: str) -> bool:
    """Return True if the system is a file of translations or trees, False if the system is a checkpoint."""
    return Path(system).is_file()


def run(options: EvaluateOptions) -> None:
    """Evaluate the systems, and print the scores."""
    # `standard_output` raises an error if standard output is closed.
    output = standard_output()
    with ExitStack() as files:
        outputs = options.output and files.enter_context(output_file(options.output, _REMEDY))
        picture = options.picture and files.enter_context(output_file(options.picture, _REMEDY, "--picture"))
        report = _KINDS[options.kind].evaluate(options)
        text = json.dumps(report.scores, indent=2) if options.as_json else report.text
        try:
            # Print the scores first, because the write of a file can fail, for example on a full disk.
            output.write(f"{text}\n".encode(errors="replace"))
        finally:
            if outputs:
                outputs.write(report.outputs.encode(errors="replace"))
            if picture and report.draw is not None:
                picture.write(report.draw())
    if report.comet_error is not None:
        raise report.comet_error


def _evaluate_text_file(options: EvaluateOptions) -> "Report":
    """Compute the perplexity of a language model on the texts of a file."""
    from ..evaluation.systems import Report
    from ..tasks.language_modeling import evaluate_text_file, text_scores_as_text

    scores = evaluate_text_file(
        options.model_name,
        str(options.text_file),
        device=options.device,
        dtype=options.dtype,
        tokens_per_batch=options.tokens_per_batch,
    )
    return Report(scores.as_json(), text_scores_as_text(scores))


def _evaluate_trees(options: EvaluateOptions) -> "Report":
    """Score a parser, or a file with the trees that a parser has written."""
    from ..evaluation.systems import Report
    from ..parsing import bracketing
    from ..parsing.parser import Parser

    treebank = str(options.trees)
    gold = bracketing.read_gold_trees(treebank)
    if _is_file(options.model_name):
        scores = bracketing.score_tree_file(options.model_name, gold, treebank)
        return Report(scores.as_json(), bracketing.bracketing_scores_as_text(scores))
    parser = Parser.from_pretrained(options.model_name, options.device, **options.precision)
    trees, scores = bracketing.evaluate_parser(parser, gold, **options.translation_settings())
    lines = bracketing.trees_as_lines(trees)
    return Report(scores.as_json(), bracketing.bracketing_scores_as_text(scores), lines)


def _calibrate(options: EvaluateOptions) -> "Report":
    """Run `--calibration fit` or `--calibration check`."""
    from ..evaluation import calibration

    test_set = _read_test_set(options)
    (checkpoint,) = _read_systems(options, test_set)
    if options.calibration == "fit":
        return calibration.fit(checkpoint, test_set)
    return calibration.check(checkpoint, test_set)


def _score_robustness(options: EvaluateOptions) -> "Report":
    """Score systems on a test set and on changed copies of the test set."""
    from ..evaluation.robustness import score_robustness

    test_set = _read_test_set(options)
    systems = _read_systems(options, test_set)
    scoring = _scoring(options, systems)
    return scoring.add_note(score_robustness(systems, test_set, scoring.options))


def _compare(options: EvaluateOptions) -> "Report":
    """Compare the systems with the first system."""
    from ..evaluation.comparison import check_comparable, compare

    test_set = _read_test_set(options)
    check_comparable(len(test_set.sources))
    systems = _read_systems(options, test_set)
    scoring = _scoring(options, systems)
    _try_comet(options, systems, test_set)
    return scoring.add_note(compare(systems, test_set, scoring.options, options.comet, options.device))


def _score_one_system(options: EvaluateOptions) -> "Report":
    """Score a checkpoint, or a file of translations."""
    from ..evaluation.one_system import score_system

    test_set = _read_test_set(options)
    systems = _read_systems(options, test_set)
    scoring = _scoring(options, systems)
    _try_comet(options, systems, test_set)
    (system,) = systems
    titles, score = _metrics(scoring, system.name)
    return scoring.add_note(score_system(system, test_set, score, titles, options.comet, options.device))


class _Scoring(NamedTuple):
    """The scoring options for all systems.

    Attributes:
        options: The options of `score_translations`, from the command line and from the recipes.
        given: The values of `--tokenize` and `--lowercase` on the command line. Recipes also have keys named
            `tokenize` and `lowercase`.
        recipes: Maps the name of each checkpoint to its recipe; checkpoints without a recipe are left out.
        recipe_note: A sentence about the options that come from recipes; None without such options.
    """

    options: dict[str, Any]
    given: dict[str, Any]
    recipes: "dict[str, Recipe]"
    recipe_note: str | None

    def add_note(self, report: "Report") -> "Report":
        """Add `recipe_note` to a report, if the report contains BLEU."""
        if self.recipe_note is None or "bleu_signature" not in report.scores:
            return report
        scores = {**report.scores, "recipe_note": self.recipe_note}
        return replace(report, scores=scores, text=f"{report.text}\n\n{self.recipe_note}")


def _scoring(options: EvaluateOptions, systems: "list[System]") -> _Scoring:
    """Return the scoring options. The options of the user take precedence over the recipes."""
    from ..checkpoint.files import recipe_file
    from ..evaluation.bleu import RECIPE_KEYS, recipe_note, scoring_of_recipes
    from ..recipe.loading import try_load_recorded_recipe

    recipes = {}
    for system in systems:
        recipe = None if system.folder is None else try_load_recorded_recipe(recipe_file(system.folder))
        if recipe is not None:
            recipes[system.name] = recipe
    given = options.model_dump(include=set(RECIPE_KEYS), exclude_unset=True)
    from_recipes = scoring_of_recipes(given, {name: recipe.evaluation for name, recipe in recipes.items()})
    return _Scoring(
        options={**from_recipes, **given, "split_compounds": options.split_compounds},
        given=given,
        recipes=recipes,
        recipe_note=recipe_note(from_recipes, recipes) if from_recipes else None,
    )


def _try_comet(options: EvaluateOptions, systems: "list[System]", test_set: "TestSet") -> None:
    """Score one sentence with COMET, so that an error of COMET ends the command before a long translation."""
    from ..evaluation.comet import comet_scores

    if options.comet is not None and any(system.finished is None for system in systems):
        first = test_set.references[:1]
        comet_scores(options.comet, {"": first}, test_set.sources[:1], first, options.device)


def _metrics(scoring: _Scoring, system: str) -> tuple[Mapping[str, str], Callable[..., dict[str, Any]]]:
    """Return the titles of the scores, and the function that computes the scores. By default, the recipe's
    task defines the scores. Without a recipe, or with `--split_compounds`, the task `translation` defines the
    scores.
    """
    from ..evaluation.bleu import score_translations
    from ..tasks import TASKS

    recipe = scoring.recipes.get(system)
    if recipe is None or scoring.options["split_compounds"]:
        return TASKS["translation"].metrics, partial(score_translations, **scoring.options)
    task = recipe.replace(evaluation=recipe.evaluation.replace(**scoring.given)).make_task()
    return task.metrics, task.score_outputs


def _read_test_set(options: EvaluateOptions) -> "TestSet":
    """Read the test set. Before the files are read, check the values of `--tokenize` and `--comet`."""
    from ..evaluation.bleu import check_tokenizer
    from ..evaluation.comet import check_comet
    from ..evaluation.systems import read_test_set

    if options.tokenize is not None:
        check_tokenizer(options.tokenize)
    if options.comet is not None:
        check_comet(options.comet)
    return read_test_set(str(options.source), str(options.reference))


def _read_systems(options: EvaluateOptions, test_set: "TestSet") -> "list[System]":
    from ..evaluation.systems import read_systems
    from ..translation.translator import Translator

    load = partial(Translator.from_pretrained, device=options.device, **options.precision)
    num_sentences = len(test_set.sources)
    settings = options.translation_settings()
    return read_systems(options.systems, str(options.source), num_sentences, load, settings)


class _Kind(NamedTuple):
    """A kind of evaluation. `reads` contains the names of the options that the evaluation reads. Every
    evaluation also reads the options in `_READ_BY_ALL`.
    """

    reads: tuple[str, ...]
    check: Callable[[EvaluateOptions], None]
    evaluate: Callable[[EvaluateOptions], "Report"]


_ON_TEST_SET = ("source", "reference", *_TRANSLATING)
# The first key of `_KINDS` that the user gives as an option, such as `--trees`, selects the kind of the
# evaluation. If no option selects a kind, the evaluation has the kind `model`. An evaluation of the kind
# `model` scores one model or one file of translations.
_KINDS = {
    "text_file": _Kind(("tokens_per_batch",), EvaluateOptions.check_text_file, _evaluate_text_file),
    "trees": _Kind(("quantization", *_SEARCH, "output"), EvaluateOptions.check_trees, _evaluate_trees),
    "calibration": _Kind(_ON_TEST_SET, EvaluateOptions.check_translations, _calibrate),
    "robustness": _Kind(
        (*_ON_TEST_SET, *_SCORING, "compare"), EvaluateOptions.check_translations, _score_robustness
    ),
    "compare": _Kind(
        (*_ON_TEST_SET, *_SCORING, "comet", "picture"),
        EvaluateOptions.check_translations,
        _compare,
    ),
    "model": _Kind(
        (*_ON_TEST_SET, *_SCORING, "comet", "output"),
        EvaluateOptions.check_translations,
        _score_one_system,
    ),
}
