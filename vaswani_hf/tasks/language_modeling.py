"""Language modelling: a decoder (causal) or an encoder (masked) learns from text without translations.

In tensor shapes, B is the number of texts in a batch, L the length of a text in tokens, and V the size of the
vocabulary.
"""

import copy
import math
import time
import zlib
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from datasets import Dataset, IterableDataset
from pydantic import Field, model_validator
from tokenizers import processors
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging

from ..checkpoint.loading import KINDS, TRANSLATION, check_config, checkpoint_folder, load_model
from ..checkpoint.results import DataRecord, JsonObject
from ..checkpoint.tokenizers import Tokenizers, is_tree_tokenizer, load_tokenizers
from ..data.batching import PairCollator
from ..data.corpus import Corpus, encode_corpus
from ..data.dataset_hub import pin_dataset
from ..data.lines import read_lines
from ..data.loading import PairSource, load_pairs, load_recipe_split
from ..data.tokenizer_training import TextForm, train_on_sides, with_form
from ..data.toy_corpora import number_split
from ..evaluation.evaluate import perplexity
from ..model.errors_vaswani import InvalidValueError
from ..model.language_models_vaswani import VaswaniForCausalLM, VaswaniForMaskedLM
from ..model.loss_vaswani import IGNORED_LABEL
from ..model.segment_search_vaswani import batches_by_length
from ..model.tokenizing_vaswani import TOKENIZING
from ..settings.data import CorpusData, Files
from ..settings.keys import recipe_key
from ..settings.sections import NoDecoding, TokenizerSettings
from ..translation.translator import checked_device
from .base import PAPER, CardWords, Scores, Task, language_of

logger = logging.get_logger(__name__)

# Devlin et al. 2019, Section 3.1: the model predicts 15 % of the tokens. In the input, `<mask>` replaces 80 %
# of the tokens to predict, a random token replaces 10 %, and 10 % stay unchanged.
PREDICTED_RATE = 0.15
MASKED_RATE = 0.8
REPLACED_RATE = 0.1
# The model types of language models.
LANGUAGE_MODELS = tuple(kind for kind in KINDS if kind != TRANSLATION)


class TextData(CorpusData):
    """The section `data` of a recipe for language modelling."""

    file_kinds = ("text",)
    source_keys = ("corpus", "dataset", "train_text")

    language: str = Field(min_length=1)
    """The language of the texts, such as en."""
    train_text: Files = recipe_key(None, on_resume="free")
    """Text files with one text per line, for training."""
    validation_text: Files = recipe_key(None, on_resume="free")
    """Text files with one text per line, for validation."""
    test_text: Files = recipe_key(None, on_resume="continue")
    """Text files with one text per line, for the test at the end of the run."""
    text_column: str = "text"
    """The column of the dataset that contains the texts."""

    @model_validator(mode="after")
    def _check_column(self) -> Self:
        if self.dataset is None and self.text_column != "text":
            raise InvalidValueError(
                f"`data.text_column` needs a `data.dataset`, but is {self.text_column!r} without a dataset; "
                "leave `data.text_column` out."
            )
        return self


class TextTokenizer(TokenizerSettings):
    """The section `tokenizer` of a recipe for language modelling: one tokenizer for all texts."""


def _card_words(hub_task: str, task_name: str, scored_how: str = "") -> CardWords:
    """Return the texts of the model cards of a task. `hub_task` is the name of the task on the Hub and in
    `pipeline`.
    """
    return CardWords(
        task_type=hub_task,
        task_name=task_name,
        pipeline_tag=hub_task,
        pipeline=hub_task,
        use_after_generated_corpus=(
            "The model knows English number words below one million, each followed by the German number "
            "word. The model shows how the package works, and has no other use."
        ),
        work="The model reads texts.",
        warning=(
            "The texts of the model can be fluent and wrong. The training data were not filtered for "
            "offensive or one-sided content. If a mistake can do harm, a person must check the text."
        ),
        test_counts={"texts": "texts", "tokens": "predicted tokens"},
        scored_how=scored_how,
        examples="texts",
        tokens="predicted",
    )


class LanguageModelingTask(Task):
    """Base class of causal and masked language modelling. A text is stored as a pair with the text as source
    and as target. Therefore language modelling can use the code for sentence pairs.
    """

    data_settings = TextData
    tokenizer_settings = TextTokenizer
    decoding_settings = NoDecoding
    metrics = {"perplexity": "perplexity per token", "accuracy": "accuracy"}
    test_scores = ("perplexity", "accuracy")
    unusable = "must hold text, but each of its {count:,} texts is empty."
    data: TextData
    # Describes which special tokens the tokenizer of the task adds to a text, and whether the tokenizer adds
    # a space before the text.
    form: TextForm
    # The first sentence of the model card. `{language}` stands for the language.
    description: str
    # Two example inputs for model cards: the first for a model that is trained on number words
    # (`data.corpus`), the second for any other model.
    examples: tuple[str, str]

    @staticmethod
    def training_encoder(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
        """Return the tokenizer that encodes texts for training and for scoring."""
        return tokenizer

    @staticmethod
    @abstractmethod
    def collator(tokenizer: PreTrainedTokenizerFast, seed: int) -> PairCollator:
        """Return the collator that pads texts and sets labels. `seed` determines which tokens are masked."""

    @staticmethod
    def predictions(labels: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the labels, and the logits that predict the labels. Causal models predict the next token."""
        return labels, logits

    def pin_data(self, earlier: TextData | None) -> TextData:
        return pin_dataset(self.data, earlier)

    def load_split(self, split: str) -> Dataset | IterableDataset | None:
        data = self.data
        if data.corpus:
            numbers = number_split(data.numbers_train_size, self.seed, split)
            texts = [f"{pair['source']} = {pair['target']}" for pair in numbers]
            rows = [{"source": text, "target": text} for text in texts]
            return load_pairs(PairSource(dataset=rows, streaming=data.streaming and split == "train"))
        return load_recipe_split(data, split, (data.text_column, data.text_column))

    def train_tokenizers(self, texts: Dataset | IterableDataset) -> Tokenizers:
        length = self.data.max_length
        tokenizer = train_on_sides(self.tokenizer, texts, ("source",), length, form=self.form)
        return tokenizer, tokenizer

    def make_corpus(self, texts: dict[str, Any], tokenizers: Tokenizers) -> Corpus:
        own, _ = tokenizers
        return encode_corpus(
            texts,
            (own, own),
            self.data,
            train_collator=self.collator(own, self.seed),
            validation_collator=self.collator(own, 0),
            text_tokenizer=self.training_encoder(own),
            weights=self.data.train_weights,
            seed=self.seed,
        )

    @classmethod
    def adopt_tokenizers(cls, source: PreTrainedTokenizerFast, target: PreTrainedTokenizerFast) -> Tokenizers:
        # If a causal language model starts from the decoder of a translation model, use the target tokenizer,
        # because the decoder was trained on the target language.
        tokenizer = target if cls.stacks == ("decoder",) else source
        if is_tree_tokenizer(tokenizer):
            raise ValueError("is a parser with a target vocabulary of trees")
        own = with_form(tokenizer, cls.form)
        return own, own

    def score_test_split(self, folder: Path, test: Dataset, device: str) -> Scores:
        model = load_model(folder, kinds=LANGUAGE_MODELS).to(device)
        tokenizer, _ = load_tokenizers(folder)
        scores = evaluate_texts(
            model, tokenizer, test["source"], tokens_per_batch=self.evaluation.tokens_per_batch
        )
        line = f"test: perplexity {scores.perplexity:.3f} · accuracy {scores.accuracy:.2f} %"
        if scores.bits_per_byte is not None:
            line += f" · {scores.bits_per_byte:.4f} bits per byte"
        return Scores(scores.as_json(), [line])

    @classmethod
    def card_description(cls, record: DataRecord, data: TextData | None) -> str:
        return cls.description.format(language=language_of(record))

    @classmethod
    def card_example(cls, record: DataRecord, data: TextData | None) -> str:
        example_of_numbers, example = cls.examples
        return example_of_numbers if data is not None and data.corpus else example

    @classmethod
    def card_scores(cls, test: dict[str, Any]) -> list[str]:
        lines = []
        if test.get("perplexity") is not None:
            lines += [f"perplexity {test['perplexity']:.3f} per token", f"accuracy {test['accuracy']:.2f} %"]
        if test.get("bits_per_byte"):
            lines.append(f"{test['bits_per_byte']:.4f} bits per byte")
        return lines


class CausalLanguageModelingTask(LanguageModelingTask):
    """A decoder predicts each token, except the first token `<s>`, from the earlier tokens."""

    name = "causal_lm"
    model_class = VaswaniForCausalLM
    stacks = ("decoder",)
    form = TextForm(begins_with_a_space=False, is_open=True)
    card_words = _card_words("text-generation", "Text generation")
    description = (
        f"The decoder of the Transformer in {PAPER}, without attention to a source, as a language model: it "
        "continues texts in {language}."
    )
    examples = ("twenty-three =", "This is a")

    @staticmethod
    def training_encoder(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
        """Return a copy of the tokenizer that adds `</s>`, so that the model learns to end texts."""
        closed = copy.deepcopy(tokenizer)
        begin, end = tokenizer.bos_token, tokenizer.eos_token
        ids = [(begin, tokenizer.bos_token_id), (end, tokenizer.eos_token_id)]
        closed.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A {end}", special_tokens=ids
        )
        return closed

    @staticmethod
    def collator(tokenizer: PreTrainedTokenizerFast, seed: int) -> PairCollator:
        return CausalCollator(tokenizer.pad_token_id)

    @staticmethod
    def predictions(labels: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        return labels[:, 1:], logits[:, :-1]


class MaskedLanguageModelingTask(LanguageModelingTask):
    """Masked language modelling: an encoder predicts masked tokens (Devlin et al. 2019, Section 3.1)."""

    name = "masked_lm"
    model_class = VaswaniForMaskedLM
    stacks = ("encoder",)
    form = TextForm(begins_with_a_space=False, has_mask=True)
    card_words = _card_words(
        "fill-mask",
        "Filling in masked tokens",
        scored_how="For the scores, the model predicted 15 % of all tokens.",
    )
    description = (
        f"The encoder of the Transformer in {PAPER} as a language model: it fills in masked tokens of texts in "
        "{language}."
    )
    examples = ("twenty-<mask> = dreiundzwanzig", "This is a <mask>.")

    @staticmethod
    def collator(tokenizer: PreTrainedTokenizerFast, seed: int) -> PairCollator:
        return MaskingCollator(tokenizer, seed)


class TextCollator(PairCollator):
    """Pads texts. The labels of a text have the same length as the text."""

    def trim(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        # Count the tokens instead of the labels, because some labels inside a text are `IGNORED_LABEL`.
        length = int(batch["attention_mask"].sum(1).max())
        return {name: tensor[:, :length].contiguous() for name, tensor in batch.items()}


class CausalCollator(TextCollator):
    """Pads texts. The labels are all tokens except the first token, `<s>`."""

    def _encode(self, example: dict[str, Any]) -> tuple[Any, Any]:
        ids = np.array(example["labels"])
        # The loss ignores the label of `<s>`, because the model does not predict `<s>`.
        return ids, np.concatenate([[IGNORED_LABEL], ids[1:]])


class MaskingCollator(TextCollator):
    """Pads texts, and masks tokens that the model must predict (Devlin et al. 2019, Section 3.1). In each
    text, the model must predict at least one token, unless all tokens are special tokens.

    The choice of the tokens to predict depends only on the seed, the epoch, the text, and the copy of the
    text. If an epoch contains a text several times, `copy` is the index of the copy, counted from 0 (see
    `EpochPairs`). Interruptions and the number of data workers do not change the tokens to predict. In
    validation, the tokens to predict do not depend on the epoch, so that the losses of all validations can be
    compared.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int):
        super().__init__(tokenizer.pad_token_id, seed=seed)
        self._mask_token_id = tokenizer.mask_token_id
        special = set(tokenizer.all_special_ids)
        self._special_ids = np.array(sorted(special))
        self._other_ids = np.array(
            [token_id for token_id in range(len(tokenizer)) if token_id not in special]
        )

    def _encode(self, example: dict[str, Any]) -> tuple[Any, Any]:
        ids = np.array(example["input_ids"])
        content = zlib.crc32(np.ascontiguousarray(ids, "<i4"))
        rng = np.random.default_rng([self._seed, example.get("epoch", 0), example.get("copy", 0), content])
        candidates = np.flatnonzero(~np.isin(ids, self._special_ids))
        labels = np.full(len(ids), IGNORED_LABEL)
        if len(candidates):
            predicted = rng.permutation(candidates)[: max(1, round(PREDICTED_RATE * len(candidates)))]
            labels[predicted] = ids[predicted]
            draw = rng.random(len(predicted))
            ids[predicted[draw < MASKED_RATE]] = self._mask_token_id
            replaced = predicted[(draw >= MASKED_RATE) & (draw < MASKED_RATE + REPLACED_RATE)]
            ids[replaced] = rng.choice(self._other_ids, len(replaced))
        return ids, labels


def _task_of(model: PreTrainedModel) -> type[LanguageModelingTask]:
    return CausalLanguageModelingTask if isinstance(model, VaswaniForCausalLM) else MaskedLanguageModelingTask


class TextScores(JsonObject):
    """The scores of a language model on texts.

    Attributes:
        loss: The loss in nats per predicted token.
        perplexity: The perplexity per predicted token.
        accuracy: The percentage of predicted tokens for which the model's most likely token is right.
        bits_per_byte: The loss in bits per byte of the texts, so that models with different vocabularies can
            be compared; None for a masked language model.
        tokens: The number of predicted tokens.
    """

    loss: float
    perplexity: float
    accuracy: float
    bits_per_byte: float | None = None
    tokens: int
    texts: int
    seconds: float


@torch.inference_mode()
def evaluate_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    texts: list[str],
    *,
    tokens_per_batch: int = 4096,
) -> TextScores:
    """Return the scores of a language model on `texts`. `model` must be in eval mode. Empty texts, and texts
    that are too long for the model, are left out.

    A causal model predicts each token and `</s>`. A masked language model predicts 15 % of the tokens. Every
    evaluation masks the same tokens.
    """
    task = _task_of(model)
    start = time.perf_counter()
    nats = 0.0
    hits = 0
    tokens = 0
    num_bytes = 0
    num_texts = 0
    for batch, of_batch in _batches(task, model, tokenizer, texts, tokens_per_batch):
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        outputs = model(**batch, num_items_in_batch=1)
        nats += outputs.loss.item()
        labels, logits = task.predictions(batch["labels"], outputs.logits)
        hits += int((logits.argmax(dim=-1) == labels).sum())
        tokens += int((labels != IGNORED_LABEL).sum())
        num_texts += len(of_batch)
        # Count one additional byte (a line feed) for the end of each text, because a causal model also
        # predicts the end of the text.
        num_bytes += sum(len(text.encode()) + 1 for text in of_batch)
    if not tokens:
        raise ValueError("There must be at least one text to evaluate, but there is none.")
    if not math.isfinite(nats):
        raise ValueError(
            "The model's logits are NaN or infinite: the weights of the model are damaged, or too large for "
            "their dtype; if the dtype is float16, try bfloat16 or float32."
        )
    scores = TextScores(
        loss=nats / tokens,
        perplexity=perplexity(nats / tokens),
        accuracy=100 * hits / tokens,
        tokens=tokens,
        texts=num_texts,
        seconds=time.perf_counter() - start,
    )
    if isinstance(model, VaswaniForCausalLM):
        scores.bits_per_byte = nats / math.log(2) / num_bytes
    return scores


def _batches(
    task: type[LanguageModelingTask],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    texts: list[str],
    tokens_per_batch: int,
) -> Iterator[tuple[dict[str, Tensor], list[str]]]:
    """Yield the model inputs and the texts of each batch, without empty and too long texts."""
    encoder = task.training_encoder(tokenizer)
    longest = model.config.num_positions
    with TOKENIZING:
        given = [text.strip() for text in texts if text.strip()]
        encoded = encoder(given, verbose=False)["input_ids"] if given else []
    if len(given) < len(texts):
        logger.warning(f"{len(texts) - len(given):,} of {len(texts):,} texts are empty and are left out.")
    kept = [row for row, ids in enumerate(encoded) if len(ids) <= longest]
    if len(kept) < len(encoded):
        logger.warning(f"{len(encoded) - len(kept)} texts longer than {longest} tokens are left out.")
    collator = task.collator(tokenizer, seed=0)
    for rows in batches_by_length([encoded[row] for row in kept], tokens_per_batch):
        chosen = [kept[row] for row in rows]
        batch = collator([{"input_ids": encoded[row], "labels": encoded[row]} for row in chosen])
        yield batch, [given[row] for row in chosen]


def evaluate_text_file(
    name: str, path: str, *, device: str | None = None, dtype: str | None = None, tokens_per_batch: int = 4096
) -> TextScores:
    """Score the language model `name` on a text file with one text per line."""
    texts = list(read_lines(path))
    if not any(text.strip() for text in texts):
        raise ValueError(f"{path} must hold texts, one per line, but is empty.")
    folder = checkpoint_folder(name)
    check_config(folder, name, tuple(KINDS))
    tokenizer, of_target = load_tokenizers(folder, name)
    if is_tree_tokenizer(of_target):
        raise InvalidValueError(
            f"`model` must be a language model, but '{name}' is a parser; evaluate a parser with `--trees`."
        )
    precision = {} if dtype is None else {"dtype": dtype}
    place = checked_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    model = load_model(folder, name, LANGUAGE_MODELS, **precision).to(place)
    return evaluate_texts(model, tokenizer, texts, tokens_per_batch=tokens_per_batch)


def text_scores_as_text(scores: TextScores) -> str:
    """Format the scores as lines of text."""
    lines = [
        f"perplexity per token {scores.perplexity:.3f}",
        f"accuracy {scores.accuracy:.2f} % of {scores.tokens:,} predicted tokens",
    ]
    if scores.bits_per_byte is not None:
        lines.append(f"bits per byte {scores.bits_per_byte:.4f}")
    speed = scores.texts / scores.seconds
    lines.append(f"{scores.texts:,} texts in {scores.seconds:.1f} s, {speed:.1f} texts/s")
    return "\n".join(lines)
