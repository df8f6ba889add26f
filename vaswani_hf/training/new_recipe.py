"""`vaswani init`: writes a commented recipe that fits a corpus of sentence pairs.

The model sizes come from the recipes for Multi30k and Tatoeba, and from the paper's base model.
docs/explanation/results.md describes the results of these recipes.
"""

import math
import sys
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
from datasets import Dataset

from ..data.tokenizer_training import train_tokenizer
from ..recipe import make_recipe
from ..recipe.yaml_files import as_yaml, parse_yaml
from ..settings.sections import SMALLEST_VOCABULARY
from ..tasks.translation import TranslationData, TranslationTask
from .measure import measure_speed
from .plan import planned_run, step_seconds

# The largest number of sentence pairs from which `vaswani init` estimates the numbers of tokens.
SAMPLE_SIZE = 20_000
# The smallest number of sentence pairs that `vaswani init` accepts. The pairs are divided into a training, a
# validation and a test split.
FEWEST_PAIRS = 100
# The vocabulary of a new recipe has about one entry for each 320 bytes of the corpus, between a minimum and a
# maximum. The number 320 comes from the recipe for Multi30k: 80 tokens of training text for each entry of the
# vocabulary, and about 4 bytes for each token.
_BYTES_PER_ENTRY = 320
# Comments in the new recipe begin after the first `_COLUMN` characters of a line.
_COLUMN = 38

# The lines of a recipe section: tuples of a key, its value, and its comment (an empty string without a
# comment).
_Lines = tuple[tuple[str, Any, str], ...]


@dataclass(frozen=True)
class _Size:
    """The settings that `vaswani init` chooses for a corpus of at most `most_pairs` sentence pairs."""

    most_pairs: float
    # The origin of the settings, such as a recipe or a model of the paper, for a comment in the new recipe.
    reason: str
    vocab_size: int
    d_model: int
    encoder_layers: int
    decoder_layers: int
    heads: int
    ffn_dim: int
    dropout: float
    dropout_reason: str
    tokens_per_batch: int
    gradient_accumulation_steps: int
    epochs: int
    fewest_steps: int
    most_steps: int
    # The lines of the new recipe about the optimizer and the schedule.
    optimizer: _Lines
    # The highest learning rate, for batches of `tokens_per_batch` tokens. `learning_rate` is None if the
    # recipe has the paper's schedule.
    learning_rate: float | None
    # The length of the warm-up as a share of all steps.
    warmup_share: float
    average_checkpoints: int


_MUON: _Lines = (
    (
        "optimizer",
        "muon",
        "Muon for the matrices of the layers, AdamW for other weights; learns fast in few steps",
    ),
    ("lr_scheduler_type", "cosine", ""),
    ("ema_decay", 0.998, "the final weights are a moving average of the weights"),
)
_INVERSE_SQRT: _Lines = (("lr_scheduler_type", "inverse_sqrt", ""),)
_SIZES = (
    _Size(
        most_pairs=50_000,
        reason="the model of the recipe multi30k_en_de, 41.19 BLEU with 29,000 pairs after a second stage of training",
        vocab_size=10_000,
        d_model=128,
        encoder_layers=4,
        decoder_layers=4,
        heads=4,
        ffn_dim=256,
        dropout=0.3,
        dropout_reason="high, because a model overfits on fewer than 50,000 pairs",
        tokens_per_batch=4096,
        gradient_accumulation_steps=2,
        epochs=110,
        fewest_steps=1500,
        most_steps=7000,
        optimizer=_INVERSE_SQRT,
        learning_rate=0.005,
        warmup_share=0.3,
        average_checkpoints=10,
    ),
    _Size(
        most_pairs=500_000,
        reason="the model of the recipe tatoeba_en_de, 40.24 BLEU with 166,000 pairs",
        vocab_size=8000,
        d_model=128,
        encoder_layers=4,
        decoder_layers=3,
        heads=4,
        ffn_dim=512,
        dropout=0.1,
        dropout_reason="the value of the recipe tatoeba_en_de",
        tokens_per_batch=2048,
        gradient_accumulation_steps=2,
        epochs=8,
        fewest_steps=3500,
        most_steps=20_000,
        optimizer=_MUON,
        learning_rate=0.004,
        warmup_share=0.03,
        average_checkpoints=0,
    ),
    _Size(
        most_pairs=2_000_000,
        reason="between the recipe tatoeba_en_de and the paper's base model; this size is untested",
        vocab_size=16_000,
        d_model=256,
        encoder_layers=4,
        decoder_layers=4,
        heads=4,
        ffn_dim=1024,
        dropout=0.1,
        dropout_reason="the paper's value (Section 5.4)",
        tokens_per_batch=4096,
        gradient_accumulation_steps=2,
        epochs=8,
        fewest_steps=20_000,
        most_steps=40_000,
        optimizer=(),
        learning_rate=None,
        warmup_share=0.1,
        average_checkpoints=5,
    ),
    _Size(
        most_pairs=math.inf,
        reason="the paper's base model, which needs a GPU",
        vocab_size=37_000,
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        heads=8,
        ffn_dim=2048,
        dropout=0.1,
        dropout_reason="the paper's value (Section 5.4)",
        tokens_per_batch=4096,
        gradient_accumulation_steps=6,
        epochs=10,
        fewest_steps=100_000,
        most_steps=100_000,
        optimizer=(),
        learning_rate=None,
        warmup_share=0.04,
        average_checkpoints=5,
    ),
)


@dataclass(frozen=True)
class _Corpus:
    """Statistics of a corpus. The numbers of tokens are estimated from a sample of the pairs."""

    num_pairs: int
    num_sampled: int
    vocab_size: int
    source_tokens: int
    target_tokens: int
    # On average, the longer text of a pair has `mean_length` tokens.
    mean_length: int
    max_length: int
    # The fraction of the pairs whose source or target has more than `max_length` tokens.
    share_too_long: float
    words_per_target: float


class _RecipeText:
    """The text of a new recipe. Comments after keys begin in the same column."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def section(self, name: str, comment: str = "") -> None:
        """Add an empty line and the first line of a section."""
        self.lines.append("")
        self._add(f"{name}:", comment)

    def key(self, name: str, value: Any, comment: str = "") -> None:
        """Add a key of the current section."""
        self._add(f"  {name}: {_as_yaml(value)}", comment)

    def _add(self, line: str, comment: str) -> None:
        self.lines.append(f"{line:<{_COLUMN - 1}} # {comment}" if comment else line)

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def new_recipe(data: dict[str, Any], output_dir: str, seconds: float) -> tuple[str, str]:
    """Return a new recipe as YAML, and a summary in one sentence. `data` is the section `data` with the
    languages and the training files. To estimate the hours of a run, training steps are measured for
    `seconds` seconds.
    """
    section = TranslationData.load(data, "data.")
    print("reading the training data", file=sys.stderr, flush=True)
    pairs: Any = TranslationTask(section).load_split("train")
    if len(pairs) < FEWEST_PAIRS:
        raise ValueError(
            f"The training data must have at least {FEWEST_PAIRS} sentence pairs, but has {len(pairs):,}; "
            "give more data, or write a recipe yourself."
        )
    size = next(size for size in _SIZES if len(pairs) <= size.most_pairs)
    corpus = _survey(pairs, size.vocab_size)
    body = f"output_dir: {_as_yaml(output_dir)}\nseed: 1\n{_sections(data, corpus, size)}"
    recipe = make_recipe(parse_yaml("recipe", body))
    length = min(corpus.mean_length, corpus.max_length)
    speed, hardware = measure_speed(planned_run(recipe), length, seconds)
    steps = recipe.training.max_steps
    assert steps is not None
    hours = steps * step_seconds(recipe.training, speed) / 3600
    summary = (
        f"{corpus.num_pairs:,} sentence pairs, a vocabulary of at most {corpus.vocab_size:,} tokens, "
        f"{steps:,} steps, about {hours:.2g} hours on this machine"
    )
    return f"{_header(corpus, hours, hardware, seconds)}\n{body}", summary


def _header(corpus: _Corpus, hours: float, hardware: str, seconds: float) -> str:
    """Return the comment at the beginning of the new recipe."""
    lines = [
        f"{corpus.num_pairs:,} sentence pairs with about {corpus.source_tokens:,} source tokens and "
        f"{corpus.target_tokens:,} target tokens, estimated from {corpus.num_sampled:,} pairs.",
        f"The training takes about {hours:.2g} hours on {hardware}. `vaswani init` measured training steps "
        "of this model",
        f"with random tokens for {seconds:g} seconds ({date.today()}). Validations and the scores at the end "
        "take more time.",
        "The names of the files are relative to the folder in which `vaswani train` runs. "
        "docs/recipe_keys.md and",
        "`vaswani train --help-keys` describe all keys.",
    ]
    return "".join(f"# {line}\n" for line in lines)


def _survey(pairs: Dataset, largest_vocabulary: int) -> _Corpus:
    """Estimate the statistics of a corpus from a sample, with a tokenizer that is trained on the sample."""
    step = -(-len(pairs) // SAMPLE_SIZE)
    sample = pairs.select(range(0, len(pairs), step))
    sources = [text.strip() for text in sample["source"]]
    targets = [text.strip() for text in sample["target"]]
    texts = [text for text in (*sources, *targets) if text]
    num_bytes = sum(len(text.encode()) for text in texts) * len(pairs) / len(sample)
    fewest = SMALLEST_VOCABULARY + len(set().union(*texts))
    vocab_size = min(largest_vocabulary, max(fewest, round(num_bytes / _BYTES_PER_ENTRY, -2)))
    tokenizer = train_tokenizer(texts, int(vocab_size))
    source_lengths = np.array([len(ids) for ids in tokenizer(sources)["input_ids"]])
    target_lengths = np.array([len(ids) for ids in tokenizer(targets)["input_ids"]])
    longer = np.maximum(source_lengths, target_lengths)
    longest = int(np.quantile(longer, 0.999))
    max_length = min(256, max(32, -(-longest // 8) * 8))
    return _Corpus(
        num_pairs=len(pairs),
        num_sampled=len(sample),
        vocab_size=int(vocab_size),
        source_tokens=round(source_lengths.mean() * len(pairs)),
        target_tokens=round(target_lengths.mean() * len(pairs)),
        mean_length=round(longer.mean()),
        max_length=max_length,
        share_too_long=float(np.mean(longer > max_length)),
        words_per_target=float(np.mean([len(text.split()) for text in targets])),
    )


def _sections(data: dict[str, Any], corpus: _Corpus, size: _Size) -> str:
    """Return the text of the sections of the new recipe."""
    text = _RecipeText()
    _add_data(text, data, corpus)
    text.section("tokenizer")
    text.key("vocab_size", corpus.vocab_size, f"joint byte-level BPE; {_vocabulary_reason(corpus, size)}")
    _add_model(text, size)
    _add_training(text, corpus, size)
    text.section("decoding", "written to generation_config.json")
    text.key("num_beams", 4, "the paper's search (Section 6.1)")
    text.key("length_penalty", 0.6)
    text.section("evaluation")
    text.key("tokenize", *_bleu_tokenizer(data["target_language"], corpus))
    text.key("validation_bleu", True, "translate the validation pairs at each validation, by greedy search")
    return str(text)


def _add_data(text: _RecipeText, data: dict[str, Any], corpus: _Corpus) -> None:
    held_out = min(1000, corpus.num_pairs // 20)
    text.section("data")
    for key, value in data.items():
        text.key(key, value)
    text.key(
        "validation_size",
        held_out,
        "pairs from the training data; to use files, set validation_source and validation_target instead",
    )
    text.key(
        "test_size",
        held_out,
        "pairs from the training data; to use files, set test_source and test_target instead",
    )
    percent = 100 * corpus.share_too_long
    text.key(
        "max_length",
        corpus.max_length,
        f"tokens; {percent:.1f} % of the pairs are longer and are dropped from training",
    )


def _vocabulary_reason(corpus: _Corpus, size: _Size) -> str:
    if corpus.vocab_size < size.vocab_size:
        return (
            "the text has about 80 tokens for each entry of the vocabulary, as in the recipe multi30k_en_de"
        )
    tokens_per_entry = (corpus.source_tokens + corpus.target_tokens) / corpus.vocab_size
    return f"the text has about {tokens_per_entry:,.0f} tokens for each entry of the vocabulary"


def _add_model(text: _RecipeText, size: _Size) -> None:
    text.section("model", size.reason)
    text.key("d_model", size.d_model)
    text.key("encoder_layers", size.encoder_layers)
    text.key("decoder_layers", size.decoder_layers)
    text.key("encoder_attention_heads", size.heads)
    text.key("decoder_attention_heads", size.heads)
    text.key("encoder_ffn_dim", size.ffn_dim)
    text.key("decoder_ffn_dim", size.ffn_dim)
    text.key("dropout", size.dropout, size.dropout_reason)
    text.key("label_smoothing", 0.1, "the paper's value (Section 5.4)")


def _add_training(text: _RecipeText, corpus: _Corpus, size: _Size) -> None:
    tokens_per_epoch = max(corpus.source_tokens, corpus.target_tokens)
    tokens_per_batch = size.tokens_per_batch
    while tokens_per_batch > 512 and tokens_per_epoch < 32 * tokens_per_batch:
        tokens_per_batch //= 2
    steps_per_epoch = tokens_per_epoch / (tokens_per_batch * size.gradient_accumulation_steps)
    steps = min(size.most_steps, max(size.fewest_steps, math.ceil(size.epochs * steps_per_epoch)))
    save_steps = steps // 100
    text.section("training")
    text.key("max_steps", steps, f"about {steps / steps_per_epoch:,.0f} epochs")
    text.key(
        "source_tokens_per_batch",
        tokens_per_batch,
        "positions of a batch, padding included, on each side",
    )
    text.key("target_tokens_per_batch", tokens_per_batch)
    text.key("gradient_accumulation_steps", size.gradient_accumulation_steps, "batches per step")
    for key, value, comment in size.optimizer:
        text.key(key, value, comment)
    if size.learning_rate is not None:
        _add_learning_rate(text, size.learning_rate, tokens_per_batch, size.tokens_per_batch)
    text.key("warmup_steps", round(size.warmup_share * steps), "steps until the highest learning rate")
    text.key("logging_steps", 50)
    text.key("eval_steps", 5 * save_steps, "steps between two validations")
    text.key("save_steps", save_steps, "steps between two checkpoints")
    text.key(
        "save_total_limit",
        max(2, size.average_checkpoints),
        "the number of checkpoints that are kept",
    )
    text.key(
        "average_checkpoints",
        size.average_checkpoints,
        "the number of checkpoints whose mean gives the final weights; 0 keeps the last weights",
    )


def _add_learning_rate(text: _RecipeText, rate: float, tokens_per_batch: int, usual: int) -> None:
    """Add the key `learning_rate` to the recipe. The value is the learning rate for batches of
    `tokens_per_batch` tokens. `rate` is the learning rate for batches of `usual` tokens.
    """
    comment = "the highest learning rate"
    if tokens_per_batch < usual:
        comment += "; lower than in the recipe of the model, because the batches are smaller"
    else:
        comment += ", at the end of the warm-up"
    # Multiply the learning rate by sqrt(tokens_per_batch / usual), because smaller batches have noisier
    # gradients.
    scaled = rate * math.sqrt(tokens_per_batch / usual)
    text.key("learning_rate", float(f"{scaled:.2g}"), comment)


def _bleu_tokenizer(target_language: str, corpus: _Corpus) -> tuple[str, str]:
    if target_language == "zh":
        return "zh", "sacreBLEU's tokenizer for Chinese"
    if target_language in ("ja", "ko", "th"):
        return (
            "char",
            "BLEU over characters, because the language has no spaces, or needs another library to find "
            "words",
        )
    if corpus.words_per_target < 4:
        return "char", "BLEU over characters, because BLEU over words needs sentences of at least four words"
    return "13a", "sacreBLEU's default"


def _as_yaml(value: Any) -> str:
    text = as_yaml(value, default_flow_style=True, width=math.inf)
    return text.removesuffix("...\n").strip()
