"""Defines `Task`, the base class of all tasks, such as translation and parsing.

To add a task, write a subclass of `Task` in tasks/, and add an entry to the table `TASKS`. No module outside
tasks/ depends on the name of a task, except on "translation".
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..checkpoint.results import DataRecord, ExampleRecord
from ..checkpoint.tokenizers import Tokenizers, load_tokenizers
from ..data.batching import PairCollator
from ..data.corpus import Corpus, encode_corpus
from ..data.held_out import hold_out
from ..data.splits import explain_split_errors, refuse_unusable
from ..data.tokenizer_training import write_tokenizers
from ..settings.base import Settings
from ..settings.data import SPLITS, DataSettings
from ..settings.sections import DecodingSettings, EvaluationSettings, TokenizerSettings

BOTH_STACKS = ("encoder", "decoder")
PAPER = "[Attention Is All You Need](https://arxiv.org/abs/1706.03762) (Vaswani et al. 2017)"


@dataclass(frozen=True)
class Scores:
    """The scores of a model on a test set.

    Attributes:
        scores: The entry `test` of results.json.
        lines: The lines that the run prints.
        outputs: The text of `Task.outputs_file`, with one output per line; None if the task has no outputs.
    """

    scores: dict[str, Any]
    lines: list[str]
    outputs: str | None = None


@dataclass(frozen=True, kw_only=True)
class CardWords:
    """The texts of the model card that are equal for all models of a task.

    Attributes:
        task_type: The name of the task on the Hub, or the usual name if the Hub does not have the task.
        task_name: The name of the task for readers, such as "Text generation".
        pipeline_tag: The same name as `task_type` if the Hub has the task, otherwise None.
        pipeline: The task of `transformers.pipeline`; None if no pipeline can load the model.
        is_translator: True if the pipeline returns translations.
        snippet: For a model without a pipeline, Python code that prints the output for an example input.
            `{repo_id}` stands for the repository of the model, and `{example}` for the example input in
            quotation marks.
        snippet_note: A note about the input and the output of the code.
        use_after_generated_corpus: The intended use of a model that was trained on a generated corpus.
        work: A sentence about how the model works on a text, such as "The model translates sentence by
            sentence."
        warning: A warning about possible errors in outputs.
        test_counts: Maps the counts of the test data in results.json to their units on the card, such as
            "sentences".
        scored_how: A sentence about the scoring method; empty if the names of the scores explain the method.
        examples: The word for the training examples, such as "sentence pairs".
        tokens: The kind of tokens that the training loss includes, such as "target".
    """

    task_type: str
    task_name: str
    pipeline_tag: str | None = None
    pipeline: str | None = None
    is_translator: bool = False
    snippet: str = ""
    snippet_note: str = ""
    use_after_generated_corpus: str = ""
    work: str
    warning: str
    test_counts: dict[str, str]
    scored_how: str = ""
    examples: str
    tokens: str = "target"


def language_of(record: DataRecord) -> str:
    """Return the name of the language of a monolingual model, for the model card."""
    return f"`{record.language}`" if record.language else "a language that is not known"


class Task(ABC):
    """Base class of the tasks that a model can be trained for, such as translation and parsing.

    A class of a task describes the task. An object of the class is the task of one run, and contains the
    seed and the sections of the recipe that the methods read. The class methods need no recipe.

    A new task sets the attributes without a default value (`name`, `data_settings`, `model_class`, `metrics`,
    `card_words` and `unusable`) and defines the abstract methods.

    The method `pin_data` of this class is for a task without a dataset on the Hub. If a task does not
    override the methods for the validation, a validation computes only the loss and the perplexity.

    Attributes:
        name: The value of the key `task` of a recipe.
        data_settings, tokenizer_settings, decoding_settings, evaluation_settings: The settings classes of the
            recipe sections `data`, `tokenizer`, `decoding` and `evaluation`.
        model_class: The class of the models that learn the task, such as `VaswaniForSeq2SeqLM`.
        stacks: The stacks of the model: only "encoder", only "decoder", or "encoder" and "decoder".
        outputs_file: The name of the file of outputs for the test set; None if the task has no outputs.
        metrics: The names and titles of the scores, the most important score first.
        test_scores: The names of the test scores for the model card. If results.json has the first score in
            `test_scores`, results.json must have all scores in `test_scores`.
        card_words: The texts of the model card that are equal for all models of the task.
        unusable: The end of the error message about a split without usable examples. `{count}` stands for the
            number of examples.
        data, tokenizer, evaluation: Sections of the recipe. By default, all values of the sections
            `tokenizer` and `evaluation` are default values.
        seed: The seed in the recipe.
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
    card_words: CardWords
    unusable: str

    def __init__(self, data: Any, tokenizer: Any = None, evaluation: Any = None, *, seed: int = 1):
        self.data = data
        self.tokenizer = tokenizer or self.tokenizer_settings()
        self.evaluation = evaluation or self.evaluation_settings()
        self.seed = seed

    def pin_data(self, earlier: Any | None) -> Any:
        """Return the section `data` with additional values, such as the commit of a dataset on the Hub.
        `earlier` is the section `data` in the saved recipe of the resumed run, or None for a new run.
        """
        return self.data

    @abstractmethod
    def load_split(self, split: str) -> Dataset | IterableDataset | None:
        """Return the split "train", "validation" or "test" with the columns `source` and `target`, or None if
        the recipe names no data for the split. If the corpora have weights, the column `corpus` has the index
        of the corpus. Other code calls `load_texts`, because `load_split` does not take out validation and
        test examples.
        """

    def load_texts(self, split: str) -> Any:
        """Return the texts of one split, after the validation and test examples have been taken out of the
        training data (see `hold_out`). The texts are not checked.
        """
        sizes = self.data.held_out_sizes
        whole = "train" if split in sizes else split
        with explain_split_errors(whole):
            texts: Any = self.load_split(whole)
        return hold_out(texts, sizes)[split] if sizes and whole == "train" else texts

    def load_splits(self) -> dict[str, Any]:
        """Load the texts of each split (None for a missing split). Call `check_split` for each split that is
        a `Dataset`.
        """
        texts: dict[str, Any] = {}
        for split in SPLITS:
            with explain_split_errors(split):
                texts[split] = self.load_split(split)
        if self.data.held_out_sizes:
            texts |= hold_out(texts["train"], self.data.held_out_sizes)
        for split, pairs in texts.items():
            if isinstance(pairs, Dataset):
                with explain_split_errors(split):
                    self.check_split(pairs, split)
        return texts

    def load_corpus(self, folder: Path, *, new_tokenizers: bool) -> Corpus:
        """Load and encode the corpus. If `new_tokenizers` is true, first train the tokenizers, and write the
        tokenizers into `folder`.
        """
        data = self.data
        texts = self.load_splits()
        if new_tokenizers:
            train = partial(self.train_tokenizers, texts["train"])
            write_tokenizers(
                train, self.tokenizer, texts["train"], data.max_length, folder, task=self.name, tags=data.tags
            )
        return self.make_corpus(texts, load_tokenizers(folder))

    def check_split(self, texts: Dataset, split: str) -> None:
        """Raise an error if no example of a split can be used."""
        refuse_unusable(texts, self.data, split, self.unusable.format(count=len(texts)))

    @abstractmethod
    def train_tokenizers(self, texts: Dataset | IterableDataset) -> Tokenizers:
        """Train the source and the target tokenizer on the training split `texts`."""

    def make_corpus(self, texts: dict[str, Any], tokenizers: Tokenizers) -> Corpus:
        """Encode the splits in `texts`."""
        collator = PairCollator(tokenizers[0].pad_token_id)
        return encode_corpus(
            texts, tokenizers, self.data, train_collator=collator, validation_collator=collator
        )

    @classmethod
    @abstractmethod
    def adopt_tokenizers(cls, source: PreTrainedTokenizerFast, target: PreTrainedTokenizerFast) -> Tokenizers:
        """Convert the tokenizers of another model to tokenizers of the task. Raise a ValueError if the task
        cannot use the tokenizers.
        """

    def validation_metrics(self) -> tuple[str, ...]:
        """Return the names of the validation scores, without the loss and the perplexity. The training curve
        shows the first score in `validation_metrics`.
        """
        return ()

    def validation_outputs(self, model: PreTrainedModel, corpus: Corpus, sources: list[str]) -> list[str]:
        """Return the outputs of the model for source texts of the validation split. In a run with several
        processes, each process calls `validation_outputs` with a part of the texts.
        """
        return []

    def score_outputs(self, outputs: list[str], targets: list[str]) -> dict[str, Any]:
        """Compare the outputs with the correct targets. Return the value of each score by name.

        A run logs only the scores in `validation_metrics`. `vaswani evaluate` prints only the scores in
        `metrics`. The options `--tokenize` and `--lowercase` of `vaswani evaluate` replace values of
        the section `evaluation`.
        """
        return {}

    @abstractmethod
    def score_test_split(self, folder: Path, test: Dataset, device: str) -> Scores:
        """Return the scores of the checkpoint in `folder` on the test split."""

    def example_outputs(self, folder: Path, texts: list[str], device: str) -> list[ExampleRecord]:
        """Return each text in `texts` with the output of the model, for the examples of the model card."""
        return []

    @classmethod
    @abstractmethod
    def card_description(cls, record: DataRecord, data: Any | None) -> str:
        """Return the first sentences of the model card: what the model is, and what the model does. `record`
        describes the data of the run. `data` is None if there is no recipe.
        """

    @classmethod
    @abstractmethod
    def card_example(cls, record: DataRecord, data: Any | None) -> str:
        """Return an input for the code in the model card. The arguments are those of `card_description`."""

    @classmethod
    @abstractmethod
    def card_scores(cls, test: dict[str, Any]) -> list[str]:
        """Return the scores on the test split as lines of the model card. `test` contains the scores in
        results.json, and is empty if the model was not scored.
        """
