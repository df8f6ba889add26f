"""`vaswani evaluate`: scores translations, a parser (`--trees`) or a language model (`--text_file`)."""

import functools
import json
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from ..data.lines import read_lines, refuse_blank
from ..evaluation.comet import CometError, check_comet, comet_scores
from ..settings.base import as_yaml
from .lines import check_equally_many
from .options import (
    LANGUAGES,
    SEARCH,
    CodeOptions,
    ComputingOptions,
    check_different,
    check_file,
    on_command_line,
    translation_options,
)
from .output import check_output, output_file, standard_output

_REMEDY = "free disk space and run the command again with another name"
# The options that can be given with `--text_file`, and the options that can be given with `--trees`.
_WITH_TEXT = ("text_file", "code", "model", "revision", "as_json", "device", "dtype", "tokens_per_batch")
_WITH_TREES = (
    "trees",
    "code",
    "model",
    "revision",
    "as_json",
    "device",
    "dtype",
    "quantization",
    "output",
    *SEARCH,
)
# The options that have no effect if a file of translations or trees is scored, because no model runs.
_OF_MODELS = ("dtype", "quantization", *SEARCH[1:], *LANGUAGES, "repetition_guard", "device")
# The options that cannot be given with `--robustness`.
_NOT_WITH_ROBUSTNESS = ("output", "picture", "comet")
# The options whose default values come from the section `evaluation` of the checkpoint's recipe.
_SCORING = ("tokenize", "lowercase")
_SearchFields: Any = translation_options(*SEARCH, *LANGUAGES, "repetition_guard")


class EvaluateOptions(_SearchFields, ComputingOptions, CodeOptions):
    """The options of `vaswani evaluate`.

    A system is a checkpoint folder, a repository on the Hub (user/name or user/name@revision), or a file of
    translations.
    """

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
        """The name of the model. If `--revision` is given, the name is user/name@revision."""
        return str(self.model) if self.revision is None else f"{self.model}@{self.revision}"

    @property
    def systems(self) -> list[str]:
        """Return the names of the systems. The first system is the baseline of the comparison."""
        return [*([] if self.model is None else [self.model_name]), *self.compare]

    @property
    def scoring(self) -> dict[str, Any]:
        """Return the options `--tokenize` and `--lowercase`, if the user gives them."""
        return {name: value for name, value in self.given().items() if name in _SCORING}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.text_file is not None:
            self._refuse_others(_WITH_TEXT, "`--text_file` is for a language model")
            if self.model is None:
                raise ValueError("`vaswani evaluate --text_file` needs a model; name a checkpoint.")
            check_file("--text_file", self.text_file)
        elif self.trees is not None:
            self._refuse_others(_WITH_TREES, "`--trees` is for a parser")
            self._check_trees(self.trees)
        else:
            self._check_systems()
            self._check_robustness()
            self._check_calibration()
            self._check_outputs()
        return self

    def _refuse_others(self, possible: tuple[str, ...], chosen: str) -> None:
        for name in sorted(self.model_fields_set - {*possible}):
            owner = "a parser" if name == "trees" else "translations"
            raise ValueError(f"`--{name}` is for {owner}, but {chosen}; leave one of the two options out.")

    def _given_of_models(self) -> list[str]:
        """Return the names of the given options that have an effect only if a model runs. These options have
        no effect if a file of translations or trees is scored.
        """
        return [name for name in _OF_MODELS if name in self.model_fields_set]

    def _check_trees(self, trees: str) -> None:
        model = self.model
        if model is None:
            raise ValueError(
                "`vaswani evaluate --trees` needs a parser, or a file with the trees of a parser."
            )
        if "/" not in model and not Path(model).exists():
            raise ValueError(
                f"`model` must be a parser or a file with the trees of a parser, but '{model}' does not "
                "exist; check the name."
            )
        if _is_file(self.model_name) and self.output is not None:
            raise ValueError(
                f"`--output` is for the trees of a model, but {model} is a file of trees; leave `--output` "
                "out."
            )
        if _is_file(self.model_name) and (given := self._given_of_models()):
            raise ValueError(
                f"`--{given[0]}` is for a parser, but {model} is a file of trees; leave `--{given[0]}` out."
            )
        check_output(self.output, {"--trees": trees} if _is_file(trees) else {})

    def _check_systems(self) -> None:
        for name in ("source", "reference"):
            path = getattr(self, name)
            if path is None:
                raise ValueError(
                    f"`--{name}` must be given to evaluate translations; give `--text_file` instead to "
                    "evaluate a language model, or `--trees` to evaluate a parser."
                )
            check_file(f"--{name}", path)
        if self.revision is not None and self.model is None:
            raise ValueError(
                "`--revision` is for MODEL, but MODEL is not given; name the systems of `--compare` as "
                "user/name@revision."
            )
        if self.revision is not None and _is_file(str(self.model)):
            raise ValueError(
                f"`--revision` is the revision of a repository, but '{self.model}' is a file; leave "
                "`--revision` out."
            )
        systems = self.systems
        if not systems:
            raise ValueError(
                "`vaswani evaluate` needs a model or a file of translations, or several models or files as "
                "`--compare A B`."
            )
        if self.compare and len(systems) < 2:
            raise ValueError(
                f"`--compare` must have two systems or more, but there is only {systems[0]}; name another "
                "system, or leave out `--compare`."
            )
        check_different("--compare", systems)
        unused = [name for name in self._given_of_models() if name != "device" or not self.comet]
        if unused and all(map(_is_file, systems)):
            raise ValueError(
                f"`--{unused[0]}` is for a model, but only files of translations are given "
                f"({', '.join(systems)}); leave `--{unused[0]}` out."
            )

    def _check_robustness(self) -> None:
        if not self.robustness:
            return
        for name in _NOT_WITH_ROBUSTNESS:
            if name in self.model_fields_set:
                raise ValueError(f"`--{name}` must come without `--robustness`; leave one of them out.")
        for name in self.systems:
            if _is_file(name):
                raise ValueError(
                    "`--robustness` needs models, because the changed sources must be translated, but "
                    f"{name} is a file of translations; name the model."
                )

    def _check_calibration(self) -> None:
        if self.calibration is None:
            return
        for name in ("compare", "robustness", *_NOT_WITH_ROBUSTNESS):
            if name in self.model_fields_set:
                raise ValueError(f"`--{name}` must come without `--calibration`; leave one of them out.")
        if _is_file(self.systems[0]):
            raise ValueError(
                f"`--calibration` needs a model, but {self.systems[0]} is a file of translations; name the "
                "model."
            )
        if self.calibration == "fit" and not Path(self.systems[0]).is_dir():
            raise ValueError(
                f"`--calibration fit` writes into the folder of the checkpoint, but {self.systems[0]} is not "
                "a folder; download the checkpoint, and name its folder."
            )

    def _check_outputs(self) -> None:
        systems = self.systems
        if self.compare and self.output is not None:
            raise ValueError(
                "`--output` is for the translations of one model and must not be given with `--compare`; "
                "write the translations of each model with `vaswani translate --output`, and compare the "
                "files."
            )
        if self.output is not None and _is_file(systems[0]):
            raise ValueError(
                f"`--output` is for translations of a model, but {systems[0]} is a file of translations; "
                "leave `--output` out."
            )
        if self.picture is not None:
            if not self.compare:
                raise ValueError("`--picture` shows a comparison and must come with `--compare`.")
            if not self.picture.lower().endswith(".png"):
                raise ValueError(f"`--picture` must end in .png, but is {self.picture}.")
            from ..evaluation.comparison import COLORS

            if len(systems) > len(COLORS):
                raise ValueError(
                    f"`--picture` shows at most {len(COLORS)} systems, but there are {len(systems)}; "
                    "compare fewer systems."
                )
        inputs: dict[str, str | None] = {"--source": self.source, "--reference": self.reference}
        inputs |= {
            f"--compare {name}" if self.compare else "model": name for name in systems if _is_file(name)
        }
        # Check standard output (None) too, because the user may have redirected standard output to one of the
        # input files.
        for output, option in ((None, ""), (self.output, "--output"), (self.picture, "--picture")):
            check_output(output, inputs, option=option)


def run(options: EvaluateOptions) -> None:
    """Print the scores."""
    # Raise an error immediately if standard output is closed.
    standard_output()
    if options.text_file is not None:
        _evaluate_text(options, options.text_file)
    elif options.trees is not None:
        _evaluate_trees(options, options.trees)
    elif options.source is not None and options.reference is not None:
        _evaluate_translations(options, options.source, options.reference)


AsText = Callable[[dict[str, Any]], str]


def _print_scores(options: EvaluateOptions, scores: dict[str, Any], as_text: AsText) -> None:
    """Print the scores as JSON if `--json` is given, else as text."""
    text = json.dumps(scores, indent=2) if options.as_json else as_text(scores)
    standard_output().write(f"{text}\n".encode(errors="replace"))


def _evaluate_text(options: EvaluateOptions, path: str) -> None:
    """Print the perplexity of a language model on the texts of a file."""
    from ..tasks.language_modeling import evaluate_text_file, scores_of_texts_as_text

    scores = evaluate_text_file(
        options.model_name,
        path,
        device=options.device,
        dtype=options.dtype,
        tokens_per_batch=options.tokens_per_batch,
    )
    _print_scores(options, scores, scores_of_texts_as_text)


def _evaluate_trees(options: EvaluateOptions, treebank: str) -> None:
    """Print the scores of a parser on a treebank, or the scores of a file with the trees that a parser has
    written.
    """
    from ..data.trees import read_treebank, treebank_files
    from ..parsing import bracketing
    from ..parsing.parser import Parser

    gold = [tree for path in treebank_files([treebank]) for tree in read_treebank(path)]
    if not any(tree.words for tree in gold):
        raise ValueError(f"`--trees` must have a tree with words in it, but {treebank} has none.")
    if _is_file(options.model_name):
        with_words = bracketing.trees_with_words(gold)
        predicted = [tree for tree in read_treebank(options.model_name) if tree.words]
        check_equally_many("trees with words", treebank, len(with_words), options.model_name, len(predicted))
        scores = bracketing.bracketing_scores(with_words, predicted)
        _print_scores(options, scores, bracketing.scores_as_text)
        return
    parser = Parser.from_pretrained(options.model_name, options.device, **options.precision)
    with ExitStack() as files:
        file = files.enter_context(output_file(options.output, _REMEDY)) if options.output else None
        scores = bracketing.evaluate_parser(parser, gold, **options.translation_settings())
        trees = scores.pop("trees")
        _print_scores(options, scores, bracketing.scores_as_text)
        if file is not None:
            file.write(bracketing.trees_as_lines(trees).encode(errors="replace"))


@dataclass
class _TestSet:
    """The sentences on which systems are scored.

    Attributes:
        sources (list): The source sentences.
        references (list): The reference translation of each source sentence.
        finished (dict): The systems that are files, with their translations.
        recipes (dict): The systems that are checkpoints with a recipe, with their recipes.
    """

    sources: list[str]
    references: list[str]
    finished: dict[str, list[str]]
    recipes: dict[str, Any]


@dataclass
class _Result:
    """The result of one kind of evaluation.

    Attributes:
        scores (dict): The scores.
        as_text (Callable): The function that formats the scores as text.
        translations (list): The translations for the file of `--output`.
        comet_error (CometError, optional): The error of COMET. The command prints the other scores before it
            raises the error.
    """

    scores: dict[str, Any]
    as_text: AsText
    translations: list[str] = field(default_factory=list)
    comet_error: CometError | None = None


def _evaluate_translations(options: EvaluateOptions, source: str, reference: str) -> None:
    """Print the scores of one system, or the comparison of several systems."""
    from ..evaluation.comparison import comparison_picture

    test_set = _read_test_set(options, source, reference)
    from_recipes = _scoring_of_recipes(options, test_set.recipes)
    scoring = from_recipes | options.scoring
    if options.comet is not None and len(test_set.finished) < len(options.systems):
        # Score one sentence with COMET first, because an error of COMET should end the command before a model
        # translates for hours.
        first = test_set.references[:1]
        comet_scores(options.comet, {"": first}, test_set.sources[:1], first, options.device)
    with ExitStack() as files:
        output = picture = None
        if options.output:
            output = files.enter_context(output_file(options.output, _REMEDY))
        if options.picture:
            picture = files.enter_context(output_file(options.picture, _REMEDY, "--picture"))
        if options.calibration is not None:
            result = _calibrate(options, test_set)
        elif options.robustness:
            result = _score_robustness(options, test_set, scoring)
        elif options.compare:
            result = _compare(options, test_set, scoring)
        else:
            result = _score_one(options, test_set, scoring)
        if from_recipes and "bleu_signature" in result.scores:
            result.scores["recipe_note"] = _recipe_note(from_recipes, test_set.recipes)
        try:
            # Print the scores before the output files are written, because the write can fail, for example on
            # a full disk.
            _print_scores(options, result.scores, result.as_text)
        finally:
            if output is not None:
                lines = "".join(f"{line}\n" for line in result.translations)
                output.write(lines.encode(errors="replace"))
            if picture is not None:
                picture.write(comparison_picture(result.scores))
    if result.comet_error is not None:
        raise result.comet_error


def _read_test_set(options: EvaluateOptions, source: str, reference: str) -> _TestSet:
    """Read all files, and find all checkpoints and their recipes, so that an error is reported before a model
    translates for hours.
    """
    from ..checkpoint.files import recipe_file
    from ..evaluation.bleu import check_tokenizer
    from ..evaluation.comparison import check_comparable
    from ..recipe.loading import readable_record

    if options.tokenize is not None:
        check_tokenizer(options.tokenize)
    if options.comet is not None:
        check_comet(options.comet)
    sources = list(read_lines(source))
    references = _stripped_lines(reference)
    refuse_blank(sources, "`--source`", source)
    refuse_blank(references, "`--reference`", reference)
    check_equally_many("lines", source, len(sources), reference, len(references))
    if options.compare:
        check_comparable(len(sources))
    finished = {}
    for name in filter(_is_file, options.systems):
        finished[name] = _stripped_lines(name)
        check_equally_many("lines", source, len(sources), name, len(finished[name]))
    recipes = {}
    for name in options.systems:
        if name in finished:
            continue
        recipe = readable_record(recipe_file(_checkpoint(name)))
        if recipe is not None:
            recipes[name] = recipe
    return _TestSet(sources, references, finished, recipes)


def _load(options: EvaluateOptions, name: str) -> Any:
    """Load the translator of a checkpoint."""
    from ..translation.translator import Translator

    return Translator.from_pretrained(name, options.device, **options.precision)


def _compare(options: EvaluateOptions, test_set: _TestSet, scoring: dict[str, Any]) -> _Result:
    """Compare all systems. `scoring` contains `tokenize` and `lowercase` if the user or a recipe sets these
    options.
    """
    from ..evaluation.comparison import compare_systems, comparison_as_text
    from ..evaluation.evaluate import translate_test_set

    translations = {}
    for name in options.systems:
        if name in test_set.finished:
            translations[name] = test_set.finished[name]
            continue
        # Free the memory of each model (`del translator`) before the next model is loaded.
        translator = _load(options, name)
        settings = options.translation_settings()
        translations[name] = translate_test_set(translator, test_set.sources, name, **settings)
        del translator
    comet, comet_error = _comet(options, translations, test_set)
    scores = compare_systems(
        translations,
        test_set.sources,
        test_set.references,
        comet,
        **scoring,
        split_compounds=options.split_compounds,
    )
    if comet is not None:
        scores["comet_model"] = options.comet
    return _Result(scores, comparison_as_text, comet_error=comet_error)


def _calibrate(options: EvaluateOptions, test_set: _TestSet) -> _Result:
    """Fit or check the calibration of a checkpoint (the probability that a translation is good). A fitted
    calibration is written into the folder of the checkpoint.
    """
    from ..checkpoint.files import CALIBRATION_FILE, CALIBRATION_PICTURE, write_whole
    from ..evaluation.calibration import (
        FEWEST_SENTENCES,
        fit_calibration,
        reliability,
        reliability_as_text,
        reliability_picture,
        scored_translations,
    )

    if options.calibration == "fit" and len(test_set.sources) < FEWEST_SENTENCES:
        raise ValueError(
            f"`--calibration fit` needs at least {FEWEST_SENTENCES} sentences, but `--source` has "
            f"{len(test_set.sources)}; give a larger validation set."
        )
    translator = _load(options, options.model_name)
    calibration = translator.calibration
    if options.calibration == "check" and calibration is None:
        raise ValueError(
            f"`--calibration check` needs the {CALIBRATION_FILE} of the checkpoint, but "
            f"'{options.model_name}' has none; write the file with `--calibration fit`."
        )
    settings = options.translation_settings()
    translations, good = scored_translations(translator, test_set.sources, test_set.references, settings)
    if options.calibration == "check":
        return _Result(reliability(calibration, translations, good), reliability_as_text)
    calibration = fit_calibration(translations, good)
    results = reliability(calibration, translations, good)
    path = Path(options.model_name) / CALIBRATION_FILE
    path.with_name(CALIBRATION_PICTURE).write_bytes(reliability_picture(results))
    write_whole(path, json.dumps({"weights": calibration.weights, **results}, indent=2) + "\n")
    return _Result({**results, "written": str(path)}, reliability_as_text)


def _score_robustness(options: EvaluateOptions, test_set: _TestSet, scoring: dict[str, Any]) -> _Result:
    """Score all systems on the test set and on changed copies of the test set, for example with typos."""
    from ..evaluation.bleu import score_translations
    from ..evaluation.robustness import SEED, perturbed_test_sets, robustness_as_text, score_robustness

    scoring = {**scoring, "split_compounds": options.split_compounds}
    test_sets = perturbed_test_sets(test_set.sources, test_set.references)
    systems = []
    for name in options.systems:
        # Free the memory of each model (`del translator`) before the next model is loaded.
        translator = _load(options, name)
        settings = options.translation_settings()
        scores = score_robustness(translator, name, test_sets, scoring, settings)
        systems.append({"system": name, "scores": scores})
        del translator
    # Score the references against themselves to get the signatures of sacreBLEU, because the signatures
    # depend only on the scoring options and are the same for all systems.
    any_scores = score_translations(test_set.references, test_set.references, **scoring)
    signatures = {name: any_scores[name] for name in ("bleu_signature", "chrf_signature")}
    all_scores = {"sentences": len(test_set.sources), "seed": SEED, **signatures, "systems": systems}
    return _Result(all_scores, robustness_as_text)


def _score_one(options: EvaluateOptions, test_set: _TestSet, scoring: dict[str, Any]) -> _Result:
    """Score one system. The task in the recipe of the checkpoint determines the metrics.

    With `--split_compounds`, the outputs are always scored as translations. A file with outputs is also
    scored as translations, because the file does not name a task.
    """
    from ..evaluation.bleu import score_translations
    from ..evaluation.evaluate import translate_and_measure
    from ..tasks import TASKS

    (name,) = options.systems
    references = test_set.references
    if name in test_set.finished:
        translations = test_set.finished[name]
        measured: dict[str, Any] = {"sentences": len(references)}
    else:
        translator = _load(options, name)
        settings = options.translation_settings()
        measured = translate_and_measure(translator, test_set.sources, references, **settings)
        translations = measured.pop("translations")
    recipe = test_set.recipes.get(name)
    task = TASKS["translation" if recipe is None or options.split_compounds else recipe.task]
    if options.split_compounds:
        scores: dict[str, Any] = score_translations(translations, references, **scoring, split_compounds=True)
    else:
        evaluation: Any = task.evaluation_settings() if recipe is None else recipe.evaluation
        scores = task.score_outputs(translations, references, evaluation.replace(**options.scoring))
    scores |= measured
    comet, comet_error = _comet(options, {"": translations}, test_set)
    if comet is not None:
        scores |= {"comet": statistics.fmean(comet[""]), "comet_model": options.comet}
    return _Result(scores, functools.partial(scores_as_text, task.metrics), translations, comet_error)


def _scoring_of_recipes(options: EvaluateOptions, recipes: dict[str, Any]) -> dict[str, Any]:
    """Return `tokenize` and `lowercase` from the recipes of the checkpoints, unless the user sets the option.

    Raise an error if the recipes have different values, because all systems must be scored with the same
    options.
    """
    from ..evaluation.bleu import check_tokenizer

    scoring = {}
    for key in _SCORING:
        if key in options.scoring:
            continue
        values = {}
        for name, recipe in recipes.items():
            if hasattr(recipe.evaluation, key):
                values[name] = getattr(recipe.evaluation, key)
        if len(set(values.values())) > 1:
            of_systems = ", ".join(f"{as_yaml(value)} for {name}" for name, value in values.items())
            raise ValueError(
                f"`--{key}` must be given, because `evaluation.{key}` differs between the recipes of the "
                f"systems ({of_systems}), and all systems must be scored alike."
            )
        if values:
            scoring[key] = next(iter(values.values()))
    if "tokenize" in scoring:
        check_tokenizer(scoring["tokenize"], "evaluation.tokenize")
    return scoring


def _recipe_note(scoring: dict[str, Any], recipes: dict[str, Any]) -> str:
    """Return a sentence about the settings that come from the recipes of the checkpoints."""
    settings = " and ".join(
        f"`{key}: {value if key == 'tokenize' else as_yaml(value)}`" for key, value in scoring.items()
    )
    options = " and ".join(f"`--{key}`" for key in scoring)
    names = " and ".join(recipes)
    return f"The scores use {settings} from the recipe of {names}; {options} would override the recipe."


def _is_file(system: str) -> bool:
    """Return True if the system is a file of translations, False if the system is a checkpoint."""
    return Path(system).is_file()


def _stripped_lines(path: str) -> list[str]:
    return [line.strip() for line in read_lines(path)]


def _checkpoint(name: str) -> Path:
    """Return the local folder of a checkpoint. Raise an error if `name` is not a checkpoint. `vaswani
    evaluate` calls this function for all systems first, so that a wrong name is reported before a model
    translates for a long time.

    If `name` is a repository on the Hub, this function downloads the checkpoint.
    """
    from ..checkpoint.hub import HubError
    from ..checkpoint.loading import check_config, checkpoint_folder

    if Path(name).is_dir():
        check_config(Path(name), name)
        return Path(name)
    try:
        folder = checkpoint_folder(name)
        check_config(folder, name)
        return folder
    except (ValueError, HubError) as error:
        raise type(error)(
            f"`model` must be a checkpoint or a file of translations, but '{name}' is not a file, and "
            f"loading it as a checkpoint fails: {error}"
        ) from error


def _comet(
    options: EvaluateOptions, systems: dict[str, list[str]], test_set: _TestSet
) -> tuple[dict[str, list[float]] | None, CometError | None]:
    """Return the COMET scores of each system, or None if `--comet` is not given or COMET fails. The second
    value is the error of COMET, or None.
    """
    if options.comet is None:
        return None, None
    try:
        return comet_scores(
            options.comet, systems, test_set.sources, test_set.references, options.device
        ), None
    except CometError as error:
        return None, error


def scores_as_text(titles: dict[str, str], results: dict[str, Any]) -> str:
    """Format the scores of one system, one score per line. `titles` maps the name of each score to its title,
    like the attribute `metrics` of a task.
    """
    lines = []
    for name, title in titles.items():
        signature = results.get(f"{name}_signature", "")
        lines.append(f"{title} {results[name]:.2f}  {signature}".rstrip())
    if "exact_match" in results:
        lines.append(f"exact match {results['exact_match']:.2f} %")
    if "comet" in results:
        lines.append(f"COMET {results['comet']:.4f}  {results['comet_model']}")
    if "seconds" in results:
        value = results["perplexity"]
        lines.append(f"perplexity per token {'unknown' if value is None else f'{value:.3f}'}")
        speed = f"in {results['seconds']:.1f} s, {results['sentences_per_second']:.1f} sentences/s"
        lines.append(f"{results['sentences']:,} sentences {speed}")
    else:
        lines.append(f"{results['sentences']:,} sentences")
    for note in ("recipe_note", "bleu_note"):
        if note in results:
            lines.append(results[note])
    return "\n".join(lines)
