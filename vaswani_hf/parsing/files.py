"""`vaswani parse` and `vaswani evaluate --trees`: sentences and treebanks in files."""

import functools
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..data.trees import Tree, read_treebank, tree_files
from ..translation.files import TranslationJob
from ..translation.output import LineOutput, check_output, output_file, standard_output
from .bracketing import bracketing_scores, evaluate_parser, lines_of, scores_as_text, trees_with_words
from .parser import Parser


@dataclass(frozen=True, kw_only=True)
class ParsingJob(TranslationJob):
    """The work of one `vaswani parse`, whose options have the same names."""

    work: str = "parsing"

    def loader(self) -> Callable[..., Parser]:
        """The function that loads the parser, in this process or in others."""
        return functools.partial(
            Parser.from_pretrained,
            self.model,
            "cpu" if self.workers > 1 else self.device,
            ensemble=self.ensemble,
            dtype=self.dtype,
            quantization=self.quantization,
        )


@dataclass(frozen=True, kw_only=True)
class TreeEvaluationJob:
    """The work of one `vaswani evaluate --trees`.

    Attributes:
        model (str): A checkpoint folder or a repository on the Hub, or a file of finished trees.
        trees (str): A treebank: a file, a folder or a pattern.
        json (bool): True to print JSON.
        output (str): A new file for the trees of a model, one per line.
        device (str): The device of a model, as in `Parser.from_pretrained`.
        precision (Mapping): `dtype` and `quantization`, as in `Parser.from_pretrained`.
        options (Mapping): Options of `Parser.parse`.

    Raises:
        ValueError: If two of these contradict each other.
    """

    model: str | None
    trees: str
    json: bool = False
    output: str | None = None
    device: str | None = None
    precision: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        if self.model is None:
            raise ValueError("`vaswani evaluate --trees` needs a model, or a file of finished trees.")
        if "/" not in self.model and not Path(self.model).exists():
            raise ValueError(
                f"`model` must be a parser or a file of finished trees, but there is no '{self.model}' here; check "
                "its name."
            )
        if self.is_finished:
            self._refuse_options_of_models()
        check_output(self.output, {"--trees": self.trees} if Path(self.trees).is_file() else {})

    def _refuse_options_of_models(self) -> None:
        if self.output is not None:
            raise ValueError(
                f"`--output` is for the trees of a model, but {self.model} is a file of trees; leave it out."
            )
        for name, value in {**self.precision, **self.options, "device": self.device}.items():
            # The number of tokens per batch always has a value.
            is_given = value is not None and value is not False and name != "tokens_per_batch"
            if is_given:
                raise ValueError(f"`--{name}` is for a parser, but {self.model} is a file of trees; leave it out.")

    @property
    def is_finished(self) -> bool:
        """True if `model` is a file of trees and not a parser."""
        return self.model is not None and Path(self.model).is_file()


def evaluate_trees(job: TreeEvaluationJob) -> None:
    """Score the trees of a parser, or finished ones, and print the scores.

    Raises:
        ValueError: If a file is not a treebank, or two files do not have equally many trees.
    """
    stdout = standard_output()
    gold = [tree for path in tree_files([job.trees]) for tree in read_treebank(path)]
    if not any(tree.words for tree in gold):
        raise ValueError(f"`--trees` must have a tree with words in it, but {job.trees} has none.")
    if job.is_finished:
        _write_scores(stdout, _scores_of_file(str(job.model), gold, job.trees), job.json)
        return
    parser = Parser.from_pretrained(str(job.model), job.device, **job.precision)
    with ExitStack() as files:
        file = None
        if job.output is not None:
            remedy = "free space and run it again with another name"
            file = files.enter_context(output_file(job.output, remedy))
        scores = evaluate_parser(parser, gold, **job.options)
        trees = scores.pop("trees")
        _write_scores(stdout, scores, job.json)
        if file is not None:
            file.write(lines_of(trees).encode(errors="replace"))


def _scores_of_file(path: str, gold: list[Tree], gold_path: str) -> dict[str, Any]:
    with_words = trees_with_words(gold)
    predicted = [tree for tree in read_treebank(path) if tree.words]
    if len(predicted) != len(with_words):
        raise ValueError(
            f"{gold_path} and {path} must have equally many trees with words, but have {len(with_words):,} "
            f"and {len(predicted):,}."
        )
    return bracketing_scores(with_words, predicted)


def _write_scores(stdout: LineOutput, scores: dict[str, Any], as_json: bool) -> None:
    text = json.dumps(scores, indent=2) if as_json else scores_as_text(scores)
    stdout.write(f"{text}\n".encode(errors="replace"))
