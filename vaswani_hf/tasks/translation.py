"""Translation, the task of the paper: settings, corpus, BLEU and chrF scores, and model card.

To follow a sentence pair from a corpus file to the loss, start reading at `load_corpus` of tasks/base.py.
"""

import math
import os
from functools import partial
from pathlib import Path
from typing import Any, Self

from datasets import Dataset, IterableDataset
from pydantic import Field, model_validator
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..checkpoint.files import TRANSLATIONS_FILE
from ..checkpoint.results import DataRecord, ExampleRecord
from ..checkpoint.tokenizers import Tokenizers, direction_tag, is_tree_tokenizer
from ..data.batching import PairCollator, SentenceEncoder, TokenizerEncoder
from ..data.bpe_dropout import BpeDropout
from ..data.corpus import Corpus, encode_corpus
from ..data.corpus_cache import explain_cache_errors
from ..data.dataset_hub import pin_dataset
from ..data.loading import PairSource, load_pairs, load_recipe_split
from ..data.pair_files import distillation_metadata
from ..data.perturbations import Augmenter
from ..data.splits import split_name
from ..data.tokenizer_training import SENTENCE, train_on_sides, with_form
from ..data.toy_corpora import SMALLEST_HELD_OUT, english_words, german_words, num_digits, number_split
from ..evaluation.bleu import check_tokenizer, exact_match_by, score_translations
from ..evaluation.evaluate import translate_and_measure
from ..model.errors_vaswani import InvalidValueError
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..model.tokenizing_vaswani import languages_of
from ..settings.data import SPLITS, Augmentation, CorpusData, Files
from ..settings.keys import recipe_key
from ..settings.sections import SMALLEST_VOCABULARY, EvaluationSettings, TokenizerSettings
from ..translation.translator import Translator
from .base import PAPER, CardWords, Scores, Task

# Maps a source language to the example sentence in model cards. The example sentences do not come from a
# corpus.
_EXAMPLES = {
    "en": "The model reads the whole sentence at once.",
    "de": "Das Modell liest den ganzen Satz auf einmal.",
    "fr": "Le modèle lit toute la phrase en une seule fois.",
}
_ANY_EXAMPLE = "Put a sentence of the source language here."
_VALIDATION_METRICS = ("bleu", "chrf", "exact_match")


class TranslationData(CorpusData):
    """The section `data` of a recipe for translation. The section selects the sentence pairs of each split.

    A split comes from two aligned text files (keys such as `train_source` and `train_target`), from files of
    pairs (keys such as `train_pairs`), from a dataset, or from the generated corpus of number words (`corpus:
    numbers`).
    """

    file_kinds = ("source", "target", "pairs")
    source_keys = ("corpus", "dataset", "train_pairs", "train_source")

    source_language: str = Field(min_length=1)
    """The source language, such as en. The language code is also the name of the column with the source
    texts.
    """
    target_language: str = Field(min_length=1)
    """The target language, such as de. The language code is also the name of the column with the target
    texts.
    """
    train_source: Files = recipe_key(None, on_resume="free")
    """Text files with one source sentence per line, for training."""
    train_target: Files = recipe_key(None, on_resume="free")
    """Text files with one translation per line: the translations of the sentences in `train_source`."""
    train_pairs: Files = recipe_key(None, on_resume="free")
    """Files of training pairs: JSON lines, CSV or Parquet with a `translation` column."""
    validation_source: Files = recipe_key(None, on_resume="free")
    """Text files with one source sentence per line, for validation."""
    validation_target: Files = recipe_key(None, on_resume="free")
    """Text files with one translation per line: the translations of the sentences in `validation_source`."""
    validation_pairs: Files = recipe_key(None, on_resume="free")
    """Files of validation pairs: JSON lines, CSV or Parquet with a `translation` column."""
    test_source: Files = recipe_key(None, on_resume="continue")
    """Text files with one source sentence per line, for the test at the end of the run."""
    test_target: Files = recipe_key(None, on_resume="continue")
    """Text files with one translation per line: the translations of the sentences in `test_source`."""
    test_pairs: Files = recipe_key(None, on_resume="continue")
    """Files of test pairs: JSON lines, CSV or Parquet with a `translation` column."""
    both_directions: bool = False
    """Train on each pair and on the reversed pair. The source of a reversed pair begins with a tag that names
    the language to translate into: `>>en<<` if `source_language` is en. The tag is one token of the
    vocabulary. Pairs from `source_language` to `target_language` have no tag. The validation, the test and
    the exports only translate from `source_language` to `target_language`, so their texts have no tag.
    """
    augment: Augmentation | None = None
    """The rates of random changes of training pairs: `upper_case`, `title_case`, `typos`, `final_punctuation`
    (removed), `spaces` (added or removed) and `placeholders`. The changes imitate text that people write.
    Each rate is the fraction of the pairs that are changed in an epoch, from 0 to 1. The default of each rate
    is 0.
    """
    max_length_ratio: float | None = recipe_key(None, ge=1)
    """The largest allowed length ratio of a training pair: the number of tokens of the longer side divided by
    the number of tokens of the shorter side. Training pairs with a larger ratio are removed.
    """

    @property
    def tags(self) -> tuple[str, ...]:
        """The language tags that the vocabulary needs for `both_directions`."""
        return (direction_tag(self.source_language),) if self.both_directions else ()

    def warnings(self) -> list[str]:
        """Return warnings about possible mistakes in the section `data`."""
        warnings = []
        for split in SPLITS:
            sources = {os.path.realpath(path) for path in self.listed(f"{split}_source")}
            for path in self.listed(f"{split}_target"):
                if os.path.realpath(path) in sources:
                    warnings.append(
                        f"`data.{split}_source` and `data.{split}_target` both name the file '{path}', so "
                        "the model learns to copy; correct one of the two keys."
                    )
        if self.test_size and any(distillation_metadata(self.listed("train_pairs"))):
            warnings.append(
                f"`data.test_size: {self.test_size}` takes the test pairs out of a file of `vaswani distill`, so the "
                "references can be translations of the teacher; leave `data.test_size` out, and give "
                "`data.test_source` and `data.test_target`."
            )
        if self.source_language != self.target_language:
            return warnings
        return [
            *warnings,
            f"`data.source_language` and `data.target_language` are both {self.source_language!r}; "
            "correct one of the two keys unless the targets are paraphrases or corrections of the sources.",
        ]

    def check_with(self, tokenizer: Any, training: Any) -> None:
        """Check the section `data` together with the sections `tokenizer` and `training`."""
        super().check_with(tokenizer, training)
        if not self.both_directions:
            return
        if not tokenizer.shared_vocabulary:
            raise InvalidValueError(
                "`data.both_directions: true` needs one vocabulary for both languages, but "
                "`tokenizer.shared_vocabulary` is false; set `tokenizer.shared_vocabulary: true`."
            )
        if tokenizer.vocab_size <= SMALLEST_VOCABULARY:
            raise InvalidValueError(
                f"`tokenizer.vocab_size` must be at least {SMALLEST_VOCABULARY + 1} with "
                "`data.both_directions: true` (256 bytes, 4 special tokens and the tag), but is "
                f"{tokenizer.vocab_size}; raise `tokenizer.vocab_size`."
            )

    @model_validator(mode="after")
    def _check_sides(self) -> Self:
        for split in SPLITS:
            source = getattr(self, f"{split}_source")
            target = getattr(self, f"{split}_target")
            if (source is None) != (target is None):
                raise InvalidValueError(
                    f"`data.{split}_source` and `data.{split}_target` must be given together, but are "
                    f"{source!r} and {target!r}."
                )
        return self

    @model_validator(mode="after")
    def _check_languages(self) -> Self:
        language = self.source_language
        if self.both_directions and language.split() != [language]:
            raise InvalidValueError(
                "`data.source_language` must be one word with `data.both_directions: true`, but is "
                f"{language!r}; name the language by a code such as en, because the name is part of the tag."
            )
        if self.corpus and (language, self.target_language) != ("en", "de"):
            raise InvalidValueError(
                f"`data.corpus: {self.corpus}` has pairs from en to de, but `data.source_language` and "
                f"`data.target_language` are {language!r} and {self.target_language!r}; set the two keys to en "
                "and de."
            )
        if language != self.target_language:
            return self
        same_language = f"`data.source_language` and `data.target_language` are both {language!r}"
        if self.both_directions:
            raise InvalidValueError(
                f"`data.both_directions: true` needs two languages, but {same_language}; change one of the "
                "two languages."
            )
        for key in ("dataset", "train_pairs", "validation_pairs", "test_pairs"):
            if getattr(self, key):
                raise InvalidValueError(
                    f"`data.{key}` has a column for each language, but {same_language}; set the two "
                    "keys to the names of the two columns."
                )
        return self

    def _sources_in_words(self) -> str:
        return f"{super()._sources_in_words()} with `data.train_target`"


class TranslationTokenizer(TokenizerSettings):
    """The section `tokenizer` of a recipe for translation: the tokenizers of the source and of the target."""

    target_vocab_size: int | None = recipe_key(None, ge=SMALLEST_VOCABULARY, unit="tokens")
    """The maximum number of tokens in the target vocabulary, if the vocabulary is not shared. If
    `target_vocab_size` is null, the maximum is `vocab_size`.
    """
    shared_vocabulary: bool = True
    """Use one vocabulary for source and target (Section 5.1)."""
    bpe_dropout: float = recipe_key(0.0, ge=0, lt=1)
    """The probability with which BPE-dropout leaves out a merge in training (Provilkov et al. 2020)."""

    @property
    def planned_target_size(self) -> int:
        return self.target_vocab_size or self.vocab_size

    @property
    def has_one_vocabulary(self) -> bool:
        return self.shared_vocabulary

    def kept(self, recorded: Any) -> "TranslationTokenizer":
        """Return the tokenizer settings `recorded` of an earlier run, but with the `bpe_dropout` of this
        recipe.
        """
        return recorded.replace(bpe_dropout=self.bpe_dropout)

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        if self.target_vocab_size and self.shared_vocabulary:
            raise InvalidValueError(
                "`tokenizer.target_vocab_size` needs `tokenizer.shared_vocabulary: false`."
            )
        return self


class TranslationEvaluation(EvaluationSettings):
    """The section `evaluation` of a recipe for translation: the options of BLEU and chrF."""

    tokenize: str = "13a"
    """The tokenizer that sacreBLEU uses for BLEU."""
    lowercase: bool = False
    """Ignore the difference between upper and lower case in the scores."""
    validation_bleu: bool = False
    """Translate the validation split at each validation, and log the BLEU of the translations."""

    @property
    def validation_switch(self) -> str | None:
        """The name "validation_bleu" if each validation computes BLEU, else None."""
        return "validation_bleu" if self.validation_bleu else None

    def check_dependencies(self) -> None:
        """Raise an error if the BLEU tokenizer is not installed."""
        check_tokenizer(self.tokenize, "evaluation.tokenize")


class TranslationTask(Task):
    """The task machine translation (Section 6.1 of the paper)."""

    name = "translation"
    data_settings = TranslationData
    tokenizer_settings = TranslationTokenizer
    evaluation_settings = TranslationEvaluation
    model_class = VaswaniForSeq2SeqLM
    outputs_file = TRANSLATIONS_FILE
    metrics = {"bleu": "BLEU", "chrf": "chrF"}
    test_scores = ("bleu", "chrf", "exact_match")
    card_words = CardWords(
        task_type="translation",
        task_name="Translation",
        pipeline_tag="translation",
        pipeline="translation",
        is_translator=True,
        use_after_generated_corpus=(
            "The model translates English number words below one million into German number words. The model "
            "shows how the package works, and has no other use."
        ),
        work="The model translates sentence by sentence.",
        warning=(
            "A translation can be fluent and wrong: words, names and numbers can be missing, added, or "
            "changed. The training data were not filtered for offensive or one-sided content. If a mistake can "
            "do harm, a person must check the translation."
        ),
        test_counts={"sentences": "sentences"},
        examples="sentence pairs",
    )
    unusable = "must hold a pair with text on both sides, but each of its {count:,} pairs has an empty side."
    data: TranslationData
    tokenizer: TranslationTokenizer
    evaluation: TranslationEvaluation

    def pin_data(self, earlier: TranslationData | None) -> TranslationData:
        pinned = pin_dataset(self.data, earlier)
        return _with_credit_for_teachers(pinned)

    def load_split(self, split: str) -> Dataset | IterableDataset | None:
        data = self.data
        if data.corpus:
            pairs = number_split(data.numbers_train_size, self.seed, split)
            return load_pairs(PairSource(dataset=pairs, streaming=data.streaming and split == "train"))
        return load_recipe_split(data, split, (data.source_language, data.target_language))

    def check_split(self, texts: Dataset, split: str) -> None:
        """Raise an error if a split has no usable pairs. In a test split, at least one source and at least
        one target must contain text, but not necessarily in the same pair.
        """
        if split != "test":
            super().check_split(texts, split)
            return
        for side in ("source", "target"):
            if not any(text.strip() for text in texts[side]):
                place = " and ".join(self.data.listed(f"test_{side}")) or split_name(self.data, split)
                state = "has only empty lines" if len(texts) else "is empty"
                raise ValueError(f"the {side} side must hold text, but {place} {state}.")

    def train_tokenizers(self, texts: Dataset | IterableDataset) -> Tokenizers:
        """Train the source tokenizer and the target tokenizer. With a shared vocabulary, return the same
        tokenizer twice.
        """
        data = self.data
        section = self.tokenizer
        train = partial(train_on_sides, section, texts, model_max_length=data.max_length, tags=data.tags)
        if section.shared_vocabulary:
            joint = train(("source", "target"))
            return joint, joint
        return train(("source",)), train(("target",), vocab_size=section.target_vocab_size)

    def make_corpus(self, texts: dict[str, Any], tokenizers: Tokenizers) -> Corpus:
        data = self.data
        for tag in data.tags:
            texts["train"] = in_both_directions(texts["train"], tag, data.num_proc)
        encoders = _encoders(*tokenizers, self.tokenizer.bpe_dropout, data.augment)
        pad_token_id = tokenizers[0].pad_token_id
        train_collator = PairCollator(
            pad_token_id,
            encoders=encoders,
            augment=None if data.augment is None else Augmenter(data.augment),
            seed=self.seed,
            max_length=data.max_length,
        )
        return encode_corpus(
            texts,
            tokenizers,
            data,
            train_collator=train_collator,
            validation_collator=PairCollator(pad_token_id),
            max_length_ratio=data.max_length_ratio,
            keep_text=encoders is not None,
            weights=data.train_weights,
            seed=self.seed,
        )

    @classmethod
    def adopt_tokenizers(cls, source: PreTrainedTokenizerFast, target: PreTrainedTokenizerFast) -> Tokenizers:
        if is_tree_tokenizer(target):
            raise ValueError("is a parser with a target vocabulary of trees")
        if languages_of(source):
            raise ValueError(
                "needs language tokens in sources and targets, and a run adds no language tokens to texts"
            )
        own_source = with_form(source, SENTENCE)
        return own_source, own_source if target is source else with_form(target, SENTENCE)

    def validation_metrics(self) -> tuple[str, ...]:
        return _VALIDATION_METRICS if self.evaluation.validation_bleu else ()

    def validation_outputs(self, model: PreTrainedModel, corpus: Corpus, sources: list[str]) -> list[str]:
        translator = Translator(model.eval(), corpus.source_tokenizer, corpus.target_tokenizer)
        # Translate with greedy search, because the scores of greedy search are accurate enough to compare the
        # validations of a run.
        tokens_per_batch = self.evaluation.tokens_per_batch
        return list(
            translator.translate(sources, tokens_per_batch=tokens_per_batch, num_beams=1, do_sample=False)
        )

    def score_outputs(self, outputs: list[str], targets: list[str]) -> dict[str, Any]:
        # Remove spaces at both ends of a reference, because a line of a corpus can end with spaces.
        references = [target.strip() for target in targets]
        return score_translations(
            outputs, references, tokenize=self.evaluation.tokenize, lowercase=self.evaluation.lowercase
        )

    def score_test_split(self, folder: Path, test: Dataset, device: str) -> Scores:
        translator = Translator.from_pretrained(str(folder), device=device)
        # Score the whole test set, as `vaswani evaluate` does. The translation of an empty source is an empty
        # text.
        targets = list(test["target"])
        translations, measured = translate_and_measure(
            translator, list(test["source"]), targets, tokens_per_batch=self.evaluation.tokens_per_batch
        )
        scores = self.score_outputs(translations, targets) | measured.as_json()
        lines = [
            f"test: BLEU {scores['bleu']:.2f} · chrF {scores['chrf']:.2f} · exact match "
            f"{scores['exact_match']:.1f} % · perplexity {scores['perplexity'] or math.nan:.3f}"
        ]
        if self.data.corpus:
            scores["digits"] = _scores_by_digits(translator, test, translations)
            by_digits = " · ".join(
                f"{digits}: {row['exact_match']:.1f} %" for digits, row in scores["digits"].items()
            )
            lines.append(
                f"exact match per number of digits: {by_digits} (trained on all numbers below "
                f"{SMALLEST_HELD_OUT})"
            )
        # Write each translation on one line. A source sentence from a JSON or CSV file can contain line
        # breaks. The translation of a sentence with line breaks can contain line breaks, too.
        outputs = [" ".join(translation.split("\n")) + "\n" for translation in translations]
        return Scores(scores, lines, "".join(outputs))

    def example_outputs(self, folder: Path, texts: list[str], device: str) -> list[ExampleRecord]:
        translator = Translator.from_pretrained(str(folder), device=device)
        examples = []
        for source, translation in zip(
            texts, translator.translate(texts, return_scores=True, seed=1), strict=True
        ):
            examples.append(
                ExampleRecord(
                    source=source,
                    output=translation.text,
                    confidence=round(translation.confidence or 0.0, 4),
                    words=[(word.word, round(word.confidence, 4)) for word in translation.words or ()],
                )
            )
        return examples

    @classmethod
    def card_description(cls, record: DataRecord, data: TranslationData | None) -> str:
        source, target = record.source_language, record.target_language
        if not source:
            return (
                f"An encoder-decoder Transformer as in {PAPER} for translation; the two languages are not "
                "known."
            )
        description = (
            f"An encoder-decoder Transformer as in {PAPER} that translates from `{source}` to `{target}`."
        )
        if data is not None and data.both_directions:
            description += f" It also translates from `{target}` to `{source}` if the text begins with "
            description += f"`>>{source}<<` and a space."
        return description

    @classmethod
    def card_example(cls, record: DataRecord, data: TranslationData | None) -> str:
        if data is not None and data.corpus:
            return "four hundred and seventy-one thousand and five"
        return _EXAMPLES.get(record.source_language or "", _ANY_EXAMPLE)

    @classmethod
    def card_scores(cls, test: dict[str, Any]) -> list[str]:
        if test.get("bleu") is None:
            return []
        lines = [
            f"BLEU {test['bleu']:.2f} (`{test.get('bleu_signature')}`)",
            f"chrF {test['chrf']:.2f} (`{test.get('chrf_signature')}`)",
            f"exact match {test['exact_match']:.2f} %",
        ]
        if test.get("perplexity"):
            lines.append(f"perplexity {test['perplexity']:.2f} per token")
        return lines


def _encoders(
    source: PreTrainedTokenizerFast,
    target: PreTrainedTokenizerFast,
    bpe_dropout: float,
    augment: Augmentation | None,
) -> tuple[SentenceEncoder, SentenceEncoder] | None:
    """Return encoders for source and target that tokenize a sentence again in each epoch. BPE-dropout and
    `data.augment` change the token ids in each epoch. Return None if the run uses neither BPE-dropout nor
    `data.augment`.
    """
    if bpe_dropout > 0:
        return BpeDropout(source, bpe_dropout), BpeDropout(target, bpe_dropout)
    if augment is not None:
        return TokenizerEncoder(source), TokenizerEncoder(target)
    return None


def _with_credit_for_teachers(data: TranslationData) -> TranslationData:
    """If `vaswani distill` has written training files, add the teacher models to `data.attribution`."""
    distillations = distillation_metadata(data.listed("train_pairs"))
    if not any(distillations):
        return data
    teachers = [name for one in distillations for name in one.get("teachers") or []]
    names = dict.fromkeys(str(name).split(" sha256:")[0] for name in teachers)
    credit = f"translations by the model {' and '.join(names)}, made with `vaswani distill`"
    credits = [data.attribution] if data.attribution else []
    credits += [] if credit in (data.attribution or "") else [credit]
    return data.replace(attribution="; ".join(credits))


def in_both_directions(
    pairs: Dataset | IterableDataset, tag: str, num_proc: int = 1
) -> Dataset | IterableDataset:
    """After each pair, add the reversed pair, whose source begins with `tag`."""
    options: dict[str, Any] = {"batched": True, "features": pairs.features, "fn_kwargs": {"tag": tag}}
    if isinstance(pairs, IterableDataset):
        return pairs.map(_add_reversed, **options)
    processes = num_proc if num_proc > 1 else None
    with explain_cache_errors():
        return pairs.map(_add_reversed, **options, num_proc=processes, desc="Reversing sentence pairs")


def _add_reversed(batch: dict[str, list], tag: str) -> dict[str, list]:
    reversed_columns = {
        # Do not add a tag to an empty text, because the run removes pairs with an empty text.
        "source": [f"{tag} {text.strip()}" if text.strip() else "" for text in batch["target"]],
        "target": batch["source"],
    }
    columns = {}
    for name, values in batch.items():
        both = zip(values, reversed_columns.get(name, values), strict=True)
        columns[name] = [value for pair in both for value in pair]
    return columns


def _scores_by_digits(
    translator: Translator, test: Dataset, translations: list[str]
) -> dict[str, dict[str, Any]]:
    """Return the exact match for each number of digits. The scored numbers are the test split and all numbers
    below 100.
    """
    short = range(SMALLEST_HELD_OUT)
    short_sources = [english_words(number) for number in short]
    sources = [*short_sources, *test["source"]]
    scores = exact_match_by(
        [num_digits(source) for source in sources],
        [*translator.translate(short_sources), *translations],
        [*map(german_words, short), *test["target"]],
    )
    return {
        str(digits): {**row, "held_out": 10**digits > SMALLEST_HELD_OUT} for digits, row in scores.items()
    }
