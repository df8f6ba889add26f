"""`Task`: the data, the model, the scores and the model card of one kind of run. One file per task.

A new task is a new file with a class, and one entry in the table `TASKS`. No other code compares names of
tasks.
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
        scores: The entry `test` of results.json. lines: The lines that the run prints. outputs: The outputs
        of the model, one per line, for the file `Task.outputs_file`; None without outputs.
    """

    scores: dict[str, Any]
    lines: list[str]
    outputs: str | None = None


@dataclass(frozen=True, kw_only=True)
class CardWords:
    """The texts of a task for the model card.

    Attributes:
        task_type: The task in the Hub's terms, or in the terms of the field if the Hub has no term.
        task_name: The task in words.
        pipeline_tag: `task_type` if the Hub has this task; otherwise None.
        model: The beginning of the first sentence, before the title of the paper.
        ability: The end of the first sentence, after the title of the paper.
        example: An input for the code snippets.
        pipeline: The task of `pipeline` that loads the model; None without a pipeline.
        is_translator: True if the output of the pipeline is a translation.
        snippet: Code that prints the output for `example`, for a model without a pipeline.
        snippet_note: A note about the code snippets.
        toy_use: The use of a model that was trained on a corpus of the package.
        work: The predicate of a sentence about the model, such as "translates sentence by sentence".
        warning: The possible errors of outputs.
        scored: The size of the test set.
        scored_how: The method of the scoring.
        scores: The scores, one per line; empty without a test set.
        examples: The name of the training examples, such as "sentence pairs".
        tokens: The kind of the tokens that the loss counts, such as "target".
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
    """The language of a model of one language, in words for the model card."""
    return f"`{facts['language']}`" if facts.get("language") else "a language that is not known"


class Task(Protocol):
    """One kind of run: its data, its model, its scores and its model card.

    Derive a class from `Task`. The methods with a body suit a task without a dataset of the Hub whose
    validation computes the loss only. The arguments `data`, `tokenizer` and `evaluation` are sections of a
    recipe.

    Attributes:
        name: The value of the key `task` of a recipe. data_settings: The class of the section `data` of a
        recipe. The other `*_settings` are classes of other sections. model_class: The class of the model.
        stacks: The stacks of the model: "encoder", "decoder" or both. outputs_file: The name of the file for
        outputs on the test set; None without outputs. metrics: The names and titles of the scores. The model
        card has the scores of the test set, the most important
            score first. The training curve uses the titles for scores of the validation.
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
        """The section `data` with facts of its sources, such as the commit of a dataset of the Hub.

        `earlier` is the recorded section of the run to be resumed; None for a new run.
        """
        return data

    def load_split(self, data: Any, split: str, seed: int) -> Dataset | IterableDataset | None:
        """The split "train", "validation" or "test" as columns `source` and `target`; None if missing.

        A training split of weighted corpora also has the column `corpus`, the number of the corpus of each
        pair.
        """
        ...

    def load_corpus(
        self, data: Any, tokenizer: Any, seed: int, folder: Path, *, new_tokenizers: bool
    ) -> Corpus:
        """The encoded corpus. Its tokenizers are in `folder`; `new_tokenizers` trains them first."""
        ...

    def adopt_tokenizers(
        self, source: PreTrainedTokenizerFast, target: PreTrainedTokenizerFast
    ) -> Tokenizers:
        """The tokenizers of another model in the form of this task; ValueError if they are unusable."""
        ...

    def validation_metrics(self, evaluation: Any) -> tuple[str, ...]:
        """The names of the validation scores in addition to the loss. The curve shows the first one."""
        return ()

    def validation_outputs(
        self, model: PreTrainedModel, corpus: Corpus, sources: list[str], evaluation: Any
    ) -> list[str]:
        """The outputs for source texts of the validation split. Each process calls it for its share."""
        return []

    def score_outputs(self, outputs: list[str], targets: list[str], evaluation: Any) -> dict[str, Any]:
        """The scores of outputs, by their names, for a test set with these targets.

        The validation logs the scores that `validation_metrics` names. `vaswani evaluate` prints the scores that
        `metrics` names, with their titles. It passes only the settings of `evaluation` that its options give.
        """
        return {}

    def score_test_split(
        self, folder: Path, test: Dataset, data: Any, evaluation: Any, device: str
    ) -> Scores:
        """The scores of the checkpoint in `folder` on the test split."""
        ...

    def card_words(
        self, facts: dict[str, Any], data: Any | None, test: dict[str, Any], repo_id: str
    ) -> CardWords:
        """The texts of the model card. `test` has the scores, `facts` come from publish/model_card.py."""
        ...
