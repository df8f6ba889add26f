"""`vaswani parse` and `vaswani evaluate --trees`: sentences and treebanks in files."""

import functools
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..data.treebank import read_treebank, tree_files
from ..translation.files import TranslationJob
from ..translation.output import check_output, output_file, standard_output
from .bracketing import bracketing_scores
from .evaluate import evaluate_parser, lines_of, scores_as_text, trees_with_words
from .parser import Parser


@dataclass(frozen=True, kw_only=True)
class ParsingJob(TranslationJob):
    """The work of one `vaswani parse`; its options have the same names."""

    work: str = "parsing"

    def loader(self) -> Callable[..., Parser]:
        """What loads the parser, in this process or in others."""
        device = "cpu" if self.workers > 1 else self.device
        precision = {"dtype": self.dtype, "quantization": self.quantization}
        return functools.partial(Parser.from_pretrained, self.model, device, ensemble=self.ensemble, **precision)


@dataclass(frozen=True, kw_only=True)
class TreeEvaluationJob:
    """What `vaswani evaluate --trees` is asked for.

    Attributes:
        model (str): A checkpoint folder or a repository on the Hub, or a file of finished trees.
        trees (str): A treebank, as `tree_files` takes it.
        json (bool): Print JSON.
        output (str): A new file for the trees of a model, one a line.
        device (str): As in `Parser.from_pretrained`.
        precision (Mapping): `dtype` and `quantization`, as in `Parser.from_pretrained`.
        options (Mapping): For `Parser.parse`.

    Raises:
        ValueError: If these contradict each other.
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
                f"`model` must be a parser or a file of finished trees, but there is no '{self.model}' here; check its name."
            )
        if self.is_finished and self.output is not None:
            raise ValueError(
                f"`--output` is for the trees of a model, but {self.model} is a file of trees; leave it out."
            )
        of_models = {**self.precision, **self.options, "device": self.device, "tokens_per_batch": None}.items()
        unused = [name for name, value in of_models if value is not None and value is not False]
        if self.is_finished and unused:
            raise ValueError(f"`--{unused[0]}` is for a parser, but {self.model} is a file of trees; leave it out.")
        check_output(self.output, {"--trees": self.trees} if Path(self.trees).is_file() else {})

    @property
    def is_finished(self) -> bool:
        """The trees are there, in a file."""
        return self.model is not None and Path(self.model).is_file()


def evaluate_trees(job: TreeEvaluationJob) -> None:
    """Score the trees of a parser, or finished ones, and print the scores.

    Args:
        job (TreeEvaluationJob): The work.

    Raises:
        ValueError: If a file is no treebank, or has not as many trees as the other.
    """
    stdout = standard_output()
    gold = [tree for path in tree_files([job.trees]) for tree in read_treebank(path)]
    if not any(tree.words for tree in gold):
        raise ValueError(f"`--trees` must have a tree with words in it, but {job.trees} has none.")
    if job.is_finished:
        with_words = trees_with_words(gold)
        predicted = [tree for tree in read_treebank(str(job.model)) if tree.words]
        if len(predicted) != len(with_words):
            raise ValueError(
                f"{job.trees} and {job.model} must have equally many trees with words, but have {len(with_words):,} and "
                f"{len(predicted):,}."
            )
        scores: dict[str, Any] = bracketing_scores(with_words, predicted)
    else:
        parser = Parser.from_pretrained(str(job.model), job.device, **job.precision)
    with ExitStack() as files:
        if job.output is not None:
            file = files.enter_context(output_file(job.output, "free space and run it again with another name"))
        if not job.is_finished:
            scores = evaluate_parser(parser, gold, **job.options)
        trees = scores.pop("trees", [])
        stdout.write(
            f"{json.dumps(scores, indent=2) if job.json else scores_as_text(scores)}\n".encode(errors="replace")
        )
        if job.output is not None:
            file.write(lines_of(trees).encode(errors="replace"))
