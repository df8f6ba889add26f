"""`Task`: everything in which one kind of run differs from another. Each task is one file of this folder.

A new task is a new file with a class and one entry of the table `TASKS`. No other code compares the name of a
task.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from datasets import Dataset, IterableDataset
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..data.corpus import Corpus
from ..settings.base import Settings
from ..settings.data import DataSettings
from ..settings.sections import DecodingSettings, EvaluationSettings, TokenizerSettings

BOTH_STACKS = ("encoder", "decoder")
Tokenizers = tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]


@dataclass(frozen=True)
class Scores:
    """The scores of a model on a test set.

    Attributes:
        scores: The entry `test` of results.json.
        lines: The scores as the run prints them.
        outputs: The outputs of the model, one per line, for the file `Task.outputs_file`; None if there are
            none.
    """

    scores: dict[str, Any]
    lines: list[str]
    outputs: str | None = None


@dataclass(frozen=True, kw_only=True)
class CardWords:
    """What the model card of a task says.

    Attributes:
        task_type: The task in the Hub's terms, or in the terms of the field.
        task_name: The task for people.
        pipeline_tag: `task_type` if the Hub has such a task; otherwise None.
        model: The beginning of the first sentence, before the title of the paper.
        ability: The rest of the first sentence.
        example: An input for the snippets.
        pipeline: The task of `pipeline` that uses the model; None if no pipeline does.
        is_translator: True if the output of the pipeline is a translation.
        snippet: Code that shows the output for the example, for a model without a pipeline.
        snippet_note: What a user of the snippets has to know.
        toy_use: What the model is good for, if the package makes its corpus.
        work: The beginning of a sentence such as "It translates sentence by sentence".
        warning: What may be wrong with the outputs.
        scored: The size of the test set.
        scored_how: How the test set was scored.
        scores: The scores, one per line; empty if the test set was not scored.
        examples: The name of the examples of the corpus.
        tokens: The kind of the tokens that the loss counts.
    """

    task_type: str
    task_name: str
    pipeline_tag: str | None = None
    model: str = "An encoder-decoder Transformer as in"
    ability: str
    example: str
    pipeline: str | None = None
    is_translator: bool = False
    snippet: str = ""
    snippet_note: str = ""
    toy_use: str = ""
    work: str
    warning: str
    scored: str = ""
    scored_how: str = ""
    scores: Sequence[str] = ()
    examples: str
    tokens: str = "target"


def language_of(facts: dict[str, Any]) -> str:
    """The language of a model of one language, for its card."""
    return f"`{facts['language']}`" if facts.get("language") else "a language that is not known"


class Task(Protocol):
    """One kind of run: its data, its model, its scores and its model card.

    A class that derives from `Task` has the methods with a body, which are right for a task without a dataset
    on the Hub, without tokenizers of its own kind, and whose validation measures the loss alone. The arguments `data`,
    `tokenizer` and `evaluation` are sections of a recipe, of the classes of the task.

    Attributes:
        name: The value of the key `task` of a recipe.
        data_settings: The class of the section `data` of a recipe. The other classes of sections follow.
        model_class: The class of the model.
        stacks: The parts of an encoder-decoder that the model has: "encoder", "decoder" or both.
        outputs_file: The file for the outputs on the test set; None if there are no outputs.
        metrics: The scores in the metadata of the card, with their titles; the first one is the most
            important.
    """

    name: str
    data_settings: type[DataSettings]
    tokenizer_settings: type[TokenizerSettings] = TokenizerSettings
    decoding_settings: type[Settings] = DecodingSettings
    evaluation_settings: type[EvaluationSettings] = EvaluationSettings
    model_class: type[PreTrainedModel]
    stacks: tuple[str, ...] = BOTH_STACKS
    outputs_file: str | None = None
    metrics: dict[str, str]

    def pin_data(self, data: Any, earlier: Any | None) -> Any:
        """The section `data` with the facts that its sources state, such as the commit of a dataset.

        `earlier` is the section that the run to be resumed has recorded.
        """
        return data

    def load_split(self, data: Any, split: str, seed: int) -> Dataset | IterableDataset | None:
        """The columns `source` and `target` of a split, as text; None without such a split.

        The splits are "train", "validation" and "test". A training split of weighted corpora also has the
        column `corpus`, the number of the weight.
        """
        ...

    def load_corpus(
        self, data: Any, tokenizer: Any, seed: int, folder: Path, *, new_tokenizers: bool
    ) -> Corpus:
        """The whole corpus, with the tokenizers in `folder`, which `new_tokenizers` trains and writes."""
        ...

    def adopt_tokenizers(
        self, source: PreTrainedTokenizerFast, target: PreTrainedTokenizerFast
    ) -> Tokenizers:
        """The tokenizers of another model as this task needs them."""
        ...

    def validation_metrics(self, evaluation: Any) -> tuple[str, ...]:
        """The scores that a validation computes from outputs, in addition to the loss."""
        return ()

    def validation_outputs(
        self, model: PreTrainedModel, corpus: Corpus, sources: list[str], evaluation: Any
    ) -> list[str]:
        """The outputs for these texts of the validation split, which are the share of one process."""
        return []

    def validation_scores(self, outputs: list[str], targets: list[str], evaluation: Any) -> dict[str, float]:
        """The scores of `validation_metrics` for the outputs for the whole validation split."""
        return {}

    def score_test_split(
        self, folder: Path, test: Dataset, data: Any, evaluation: Any, device: str
    ) -> Scores:
        """The scores of the checkpoint in `folder` on the test split."""
        ...

    def card_words(
        self, facts: dict[str, Any], data: Any | None, test: dict[str, Any], repo_id: str
    ) -> CardWords:
        """What the card of a model says."""
        ...
