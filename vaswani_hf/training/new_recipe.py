"""`vaswani init`: writes a commented recipe that fits a corpus of sentence pairs.

The model sizes come from the recipes for Multi30k and Tatoeba, and from the paper's base model.
docs/explanation/results.md describes the results of these recipes.
"""

import math
import re
import sys
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import yaml
from datasets import Dataset

from ..data.tokenizer_training import train_tokenizer
from ..recipe import make_recipe
from ..settings.sections import SMALLEST_VOCABULARY
from ..tasks import TASKS
from .measure import measure_speed
from .plan import step_seconds
from .recipe_model import planned_config

# The largest number of sentence pairs from which `vaswani init` estimates the numbers of tokens.
SAMPLE_SIZE = 20_000
# The smallest corpus, because the pairs are divided into a training, a validation and a test split.
FEWEST_PAIRS = 100
# The vocabulary has one entry for each 320 bytes of the corpus, within limits. With the recipe for Multi30k,
# the training text has 80 tokens for each entry of the vocabulary, and a token has about 4 bytes.
_BYTES_PER_ENTRY = 320
# The column in which the comments in the new recipe begin.
_COLUMN = 38


@dataclass(frozen=True)
class _Size:
    """The settings that `vaswani init` chooses for a corpus of at most `most_pairs` sentence pairs."""

    most_pairs: float
    # The origin of the settings, for a comment in the new recipe.
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
    # The lines of the new recipe about the optimizer and the schedule. Each comment follows a tab.
    optimizer: str
    # The highest learning rate, for batches of `tokens_per_batch` tokens. None if the recipe has the paper's
    # schedule.
    learning_rate: float | None
    # The length of the warm-up as a share of all steps.
    warmup_share: float
    average_checkpoints: int


_MUON = """\
  optimizer: muon\t# Muon for the matrices of the layers, AdamW for other weights; learns fast in few steps
  lr_scheduler_type: cosine
  ema_decay: 0.998\t# the final weights are a moving average of the weights
"""
_SIZES = (
    _Size(
        most_pairs=50_000,
        reason="the model of the recipe multi30k_en_de, 41.19 BLEU with 29,000 pairs after a second stage",
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
        optimizer="  lr_scheduler_type: inverse_sqrt\n",
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
        reason="between the recipe tatoeba_en_de and the paper's base model; no run has measured this size",
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
        optimizer="",
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
        optimizer="",
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
    # The mean of the number of tokens in the longer text of each pair.
    mean_length: int
    max_length: int
    # The fraction of the pairs whose source or target has more than `max_length` tokens.
    share_too_long: float
    words_per_target: float


def new_recipe(data: dict[str, Any], output_dir: str, seconds: float) -> tuple[str, str]:
    """Return a new recipe as YAML, and a summary in one sentence. `data` is the section `data` with the
    languages and the training files. To estimate the hours of a run, training steps are measured for
    `seconds` seconds.
    """
    section = TASKS["translation"].data_settings.load(data, "data.")
    print("reading the training data", file=sys.stderr, flush=True)
    pairs: Any = TASKS["translation"].load_split(section, "train", 1)
    if len(pairs) < FEWEST_PAIRS:
        raise ValueError(
            f"The training data must have at least {FEWEST_PAIRS} sentence pairs, but has {len(pairs):,}; "
            "give more data, or write a recipe yourself."
        )
    size = next(size for size in _SIZES if len(pairs) <= size.most_pairs)
    corpus = _survey(pairs, size.vocab_size)
    body = f"output_dir: {_as_yaml(output_dir)}\nseed: 1\n{_sections(data, corpus, size)}"
    recipe = make_recipe(yaml.safe_load(body))
    config = planned_config(recipe.model, recipe.tokenizer)
    length = min(corpus.mean_length, corpus.max_length)
    model_class = TASKS["translation"].model_class
    speed, hardware = measure_speed(config, recipe.training, model_class, length, seconds)
    steps = recipe.training.max_steps
    assert steps is not None
    hours = steps * step_seconds(recipe.training, speed) / 3600
    summary = (
        f"{corpus.num_pairs:,} sentence pairs, a vocabulary of at most {corpus.vocab_size:,} tokens, "
        f"{steps:,} steps, about {hours:.2g} hours on this machine"
    )
    header = [
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
    return "".join(f"# {line}\n" for line in header) + "\n" + body, summary


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
    held_out = min(1000, corpus.num_pairs // 20)
    tokens_per_epoch = max(corpus.source_tokens, corpus.target_tokens)
    tokens_per_batch = size.tokens_per_batch
    while tokens_per_batch > 512 and tokens_per_epoch < 32 * tokens_per_batch:
        tokens_per_batch //= 2
    steps_per_epoch = tokens_per_epoch / (tokens_per_batch * size.gradient_accumulation_steps)
    steps = min(size.most_steps, max(size.fewest_steps, math.ceil(size.epochs * steps_per_epoch)))
    save_steps = steps // 100
    vocabulary_reason = "an entry for about 80 tokens of text, as in the recipe multi30k_en_de"
    if corpus.vocab_size == size.vocab_size:
        tokens_per_entry = (corpus.source_tokens + corpus.target_tokens) / corpus.vocab_size
        vocabulary_reason = f"the text has about {tokens_per_entry:,.0f} tokens for each entry"
    tokenize, tokenize_reason = _bleu_tokenizer(data["target_language"], corpus)
    files = "".join(f"  {key}: {_as_yaml(value)}\n" for key, value in data.items())
    # A tab stands before each comment. `_align_comments` replaces the tab by spaces.
    return _align_comments(f"""
data:
{files}\
  validation_size: {held_out}\t# pairs taken out of the training data; validation_source and validation_target name files
  test_size: {held_out}\t# pairs taken out of the training data; test_source and test_target name files instead
  max_length: {corpus.max_length}\t# tokens; {100 * corpus.share_too_long:.1f} % of the pairs are longer and are dropped from training

tokenizer:
  vocab_size: {corpus.vocab_size}\t# joint byte-level BPE; {vocabulary_reason}

model:\t# {size.reason}
  d_model: {size.d_model}
  encoder_layers: {size.encoder_layers}
  decoder_layers: {size.decoder_layers}
  encoder_attention_heads: {size.heads}
  decoder_attention_heads: {size.heads}
  encoder_ffn_dim: {size.ffn_dim}
  decoder_ffn_dim: {size.ffn_dim}
  dropout: {size.dropout}\t# {size.dropout_reason}
  label_smoothing: 0.1\t# the paper's value (Section 5.4)

training:
  max_steps: {steps}\t# about {steps / steps_per_epoch:,.0f} epochs
  source_tokens_per_batch: {tokens_per_batch}\t# positions of a batch, padding included, on each side
  target_tokens_per_batch: {tokens_per_batch}
  gradient_accumulation_steps: {size.gradient_accumulation_steps}\t# batches per step
{size.optimizer}{_learning_rate(size, tokens_per_batch)}\
  warmup_steps: {round(size.warmup_share * steps)}\t# steps until the highest learning rate
  logging_steps: 50
  eval_steps: {5 * save_steps}\t# steps between two validations
  save_steps: {save_steps}\t# steps between two checkpoints
  save_total_limit: {max(2, size.average_checkpoints)}\t# the number of checkpoints that are kept
  average_checkpoints: {size.average_checkpoints}\t# the number of checkpoints whose mean gives the final weights; 0 keeps the last weights

decoding:\t# written to generation_config.json
  num_beams: 4\t# the paper's search (Section 6.1)
  length_penalty: 0.6

evaluation:
  tokenize: {_as_yaml(tokenize)}\t# {tokenize_reason}
  validation_bleu: true\t# translate the validation pairs at each validation, by greedy search
""")


def _learning_rate(size: _Size, tokens_per_batch: int) -> str:
    """Return the line about the learning rate, or an empty string for the paper's schedule."""
    if size.learning_rate is None:
        return ""
    comment = "the highest learning rate, at the end of the warm-up"
    if tokens_per_batch < size.tokens_per_batch:
        comment = "the highest learning rate; lower than in the recipe of the model, because the batches are smaller"
    # Smaller batches have noisier gradients. `size.learning_rate` is for batches of `size.tokens_per_batch`
    # tokens.
    rate = float(f"{size.learning_rate * math.sqrt(tokens_per_batch / size.tokens_per_batch):.2g}")
    return f"  learning_rate: {rate}\t# {comment}\n"


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


def _align_comments(text: str) -> str:
    """Replace the tab before each comment by spaces, so that all comments begin in the same column."""
    return re.sub("(?m)^(.*)\\t", lambda found: f"{found[1]:<{_COLUMN - 1}} ", text)


def _as_yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=math.inf)
    return text.removesuffix("...\n").strip()
