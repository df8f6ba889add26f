"""Defines `Task`, the base class of all tasks, such as translation and parsing. A task defines the data, the
model, the scores and the model card of a run.

To add a task, write a file with a subclass of `Task` in tasks/, and add an entry to the table `TASKS`. No
other module of the package depends on the name of a particular task.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from datasets import Dataset, IterableDataset
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..checkpoint.results import DataRecord, ExampleRecord
from ..checkpoint.tokenizers import Tokenizers
from ..data.corpus import Corpus
from ..settings.base import Settings
from ..settings.data import DataSettings
from ..settings.sections import DecodingSettings, EvaluationSettings, TokenizerSettings

BOTH_STACKS = ("encoder", "decoder")
# The text with which model cards link to the paper "Attention Is All You Need".
PAPER = "[Attention Is All You Need](https://arxiv.org/abs/1706.03762) (Vaswani et al. 2017)"


@dataclass(frozen=True)
class Scores:
    """The scores of a model on a test set.

    Attributes:
        scores: The entry `test` of results.json.
        lines: The lines that the run prints.
        outputs: The text of the file `Task.outputs_file`, with one output of the model per line; None if the
            task has no outputs.
    """

    scores: dict[str, Any]
    lines: list[str]
    outputs: str | None = None


@dataclass(frozen=True, kw_only=True)
class CardWords:
    """The texts that differ between the model cards of different tasks.

    Attributes:
        task_type: The name of the task on the Hub, or the usual name of the task if the Hub does not have the
            task.
        task_name: The name of the task for readers of the card, such as "Text generation".
        pipeline_tag: `task_type` if the Hub has the task, otherwise None.
        description: The first sentences of the model card: what the model is, and what the model does.
        example: An input for the code snippets.
        pipeline: The pipeline task with which `transformers.pipeline` loads the model; None if no pipeline
            can load the model.
        is_translator: True if the pipeline returns translations.
        snippet: For a model without a pipeline, Python code that prints the output for `example`.
        snippet_note: A note about the code snippets of the model card.
        use_after_generated_corpus: The text about the use of the model if its training corpus was generated
            by this package (`data.corpus`), such as number words.
        work: A sentence about the inputs of the model, such as "The model translates sentence by sentence."
        warning: A warning about possible errors in outputs.
        scored: The size of the test set as text, such as "1,000 sentences".
        scored_how: A sentence about the scoring method; empty if the names of the scores explain the method.
        scores: The scores on the test set, one per line; empty without a test set.
        examples: The word for the training examples, such as "sentence pairs".
        tokens: The kind of tokens that the training loss includes, such as "target".
    """

    task_type: str
    task_name: str
    pipeline_tag: str | None = None
    description: str
    example: str
    pipeline: str | None = None
    is_translator: bool = False
    snippet: str = ""
    snippet_note: str = ""
    use_after_generated_corpus: str = ""
    work: str
    warning: str
    scored: str = ""
    scored_how: str = ""
    scores: Sequence[str] = ()
    examples: str
    tokens: str = "target"


def language_of(record: DataRecord) -> str:
    """Return the name of the language of a monolingual model, for the model card."""
    return f"`{record.language}`" if record.language else "a language that is not known"


class Task(Protocol):
    """Base class of the tasks that a model can be trained for, such as translation and parsing.

    Each task is a subclass of `Task`. The methods of `Task` itself are sufficient for a task that uses no
    dataset of the Hub and computes only the loss in validations. The arguments `data`, `tokenizer` and
    `evaluation` of the methods are sections of a recipe.

    Attributes:
        name: The value of the key `task` of a recipe.
        data_settings: The class of the section `data` of a recipe.
        tokenizer_settings: The class of the section `tokenizer` of a recipe.
        decoding_settings: The class of the section `decoding` of a recipe.
        evaluation_settings: The class of the section `evaluation` of a recipe.
        model_class: The class of the models that learn the task, such as `VaswaniForSeq2SeqLM`.
        stacks: The stacks of the model: "encoder", "decoder" or both.
        outputs_file: The name of the file to which a run writes the outputs for the test set; None if the
            task has no outputs.
        metrics: The names and titles of the scores, the most important score first. The model card shows the
            scores of the test set. The training curve labels a validation score with the title of the score.
        test_scores: The names of the scores that the model card shows together. If results.json contains the
            first score in `test_scores`, results.json must contain all scores in `test_scores`.
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
    test_scores: tuple[str, ...] = ()

    def pin_data(self, data: Any, earlier: Any | None) -> Any:
        """Return the section `data` with additional facts about the data, such as the commit of a dataset on
        the Hub.

        For a resumed run, `earlier` is the section `data` in the saved recipe of the run. For a new run,
        `earlier` is None.
        """
        return data

    def load_split(self, data: Any, split: str, seed: int) -> Dataset | IterableDataset | None:
        """Return the split "train", "validation" or "test" with the columns `source` and `target`. Return
        None if the recipe names no data for the split.

        If the training corpora have weights, the training split also has the column `corpus` with the index
        of each pair's corpus.
        """
        ...

    def load_corpus(
        self, data: Any, tokenizer: Any, seed: int, folder: Path, *, new_tokenizers: bool
    ) -> Corpus:
        """Load the corpus of a recipe, and encode the corpus with the tokenizers in `folder`. If
        `new_tokenizers` is true, first train the tokenizers on the corpus.
        """
        ...

    def adopt_tokenizers(
        self, source: PreTrainedTokenizerFast, target: PreTrainedTokenizerFast
    ) -> Tokenizers:
        """Convert the tokenizers of another model for this task. Raise a ValueError if the task cannot use
        the tokenizers.
        """
        ...

    def validation_metrics(self, evaluation: Any) -> tuple[str, ...]:
        """Return the names of the validation scores except the loss. The training curve shows only the first
        score that `validation_metrics` returns.
        """
        return ()

    def validation_outputs(
        self, model: PreTrainedModel, corpus: Corpus, sources: list[str], evaluation: Any
    ) -> list[str]:
        """Return the outputs of the model, such as translations, for source texts of the validation split. In
        a run with several processes, each process calls this method with its own part of the texts.
        """
        return []

    def score_outputs(self, outputs: list[str], targets: list[str], evaluation: Any) -> dict[str, Any]:
        """Compare the outputs of the model with the correct targets. Return a dict that maps the name of each
        score to its value.

        A run logs only the scores in `validation_metrics`. `vaswani evaluate` prints only the scores in
        `metrics`. `vaswani evaluate` passes the section `evaluation` of the checkpoint's recipe, changed by
        the options `--tokenize` and `--lowercase`.
        """
        return {}

    def score_test_split(
        self, folder: Path, test: Dataset, data: Any, evaluation: Any, device: str
    ) -> Scores:
        """Return the scores of the checkpoint in `folder` on the test split."""
        ...

    def example_outputs(self, folder: Path, texts: list[str], device: str) -> list[ExampleRecord]:
        """Return the examples of the model card: each text in `texts` with the output of the model. By
        default, `example_outputs` returns an empty list, and the card has no examples.
        """
        return []

    def card_words(
        self, record: DataRecord, data: Any | None, test: dict[str, Any], repo_id: str
    ) -> CardWords:
        """Return the passages of the model card that depend on the task. `record` describes the data of the
        run. `data` is the section `data` of the recipe, or None if there is no recipe. `test` contains the
        scores on the test split.
        """
        ...
