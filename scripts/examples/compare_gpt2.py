"""Compares the causal language model of this package with GPT-2: the perplexity and the time of a step.

    python scripts/examples/compare_gpt2.py --train train.en.gz --test test.en.gz

The two models have the same size and are trained on the same texts. Both models train on each batch, one
after the other, so that other programs on the machine slow down both models to the same extent. The model of
this package has the architecture and the initialization of GPT-2: layer normalization before each sub-layer,
learned positions, GELU, biases in attention, and initial weights from a normal distribution with the standard
deviation 0.02.
"""

import argparse
import math
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import torch
from timing import print_header, ratio, seconds_of
from transformers import GPT2Config, GPT2LMHeadModel

from vaswani_hf import VaswaniDecoderConfig, VaswaniForCausalLM
from vaswani_hf.data.batching import PairRows, TokenBudgetSampler, cut_into_batches
from vaswani_hf.data.columns import pair_lengths
from vaswani_hf.tasks.language_modeling import CausalLanguageModelingTask, TextData, TextTokenizer
from vaswani_hf.training.validation import negative_log_likelihood

WIDTH = 128
LAYERS = 4
HEADS = 4
INNER = 512
MAX_LENGTH = 64
DROPOUT = 0.1


def build_models(tokenizer: Any) -> dict[str, Any]:
    """Return both models with random weights."""
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = VaswaniDecoderConfig(
        vocab_size=len(tokenizer),
        d_model=WIDTH,
        decoder_layers=LAYERS,
        decoder_attention_heads=HEADS,
        decoder_ffn_dim=INNER,
        max_position_embeddings=MAX_LENGTH,
        position_embedding="learned",
        norm_position="pre",
        activation_function="gelu_new",
        attention_bias=True,
        scale_embedding=False,
        initializer_range=0.02,
        dropout=DROPOUT,
        attention_dropout=DROPOUT,
        **ids,
    )
    gpt2 = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        n_inner=INNER,
        n_positions=MAX_LENGTH,
        **ids,
    )
    return {"VaswaniForCausalLM": VaswaniForCausalLM(config), "GPT2LMHeadModel": GPT2LMHeadModel(gpt2)}


def train_step(model: Any, optimizer: torch.optim.Optimizer, batch: dict[str, Any], rate: float) -> None:
    """Run one training step with AdamW at the learning rate `rate`."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    model.train()(**batch).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def train_both(corpus: Any, arguments: argparse.Namespace, seed: int) -> dict[str, tuple[float, list[float]]]:
    """Train both models, and return for each model its perplexity and the seconds of each step."""
    torch.manual_seed(seed)
    models = build_models(corpus.source_tokenizer)
    optimizers = {
        name: torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
        for name, model in models.items()
    }
    rows = PairRows(corpus.train)
    budget = arguments.tokens_per_batch
    sampler = TokenBudgetSampler(*pair_lengths(corpus.train), budget, budget, seed=seed)
    times: dict[str, list[float]] = {name: [] for name in models}
    step = 0
    while step < arguments.steps:
        sampler.set_epoch(step)
        for numbers in sampler:
            batch = corpus.train_collator(rows.__getitems__(numbers))
            # The learning rate is `learning_rate` times two factors: a warm-up that rises from 0 to 1 in the
            # first tenth of the steps, and a decay that falls linearly from 1 to 0 over all steps.
            warm_up = min(1.0, 10 * (step + 1) / arguments.steps)
            rate = arguments.learning_rate * warm_up * (1 - step / arguments.steps)
            for name, model in models.items():
                times[name].append(seconds_of(partial(train_step, model, optimizers[name], batch, rate)))
            step += 1
            if step == arguments.steps:
                break
    return {name: (perplexity(model, corpus, budget), times[name]) for name, model in models.items()}


def perplexity(model: Any, corpus: Any, budget: int) -> float:
    """Return the perplexity of the texts in the file `--test`."""
    rows = PairRows(corpus.validation)
    numbers_of_batches = cut_into_batches(*pair_lengths(corpus.validation), budget, budget)
    batches = (corpus.validation_collator(rows.__getitems__(numbers)) for numbers in numbers_of_batches)
    nats, tokens = negative_log_likelihood(model, batches)
    return math.exp(nats / tokens)


def main(argv: list[str] | None = None) -> None:
    """Train both models with each seed, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--train", required=True, help="a file with one text per line, plain or .gz")
    parser.add_argument("--test", required=True, help="held-out texts")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument(
        "--seeds",
        type=int,
        default=2,
        help="the number of times that both models are trained, each time with another seed; default: 2",
    )
    parser.add_argument("--vocab_size", type=int, default=4000)
    parser.add_argument("--tokens_per_batch", type=int, default=2048)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    data = TextData(
        language="en", train_text=arguments.train, validation_text=arguments.test, max_length=MAX_LENGTH
    )
    tokenizer = TextTokenizer(vocab_size=arguments.vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        corpus = CausalLanguageModelingTask(data, tokenizer).load_corpus(Path(folder), new_tokenizers=True)
    print_header()
    perplexities: dict[str, list[str]] = {}
    times: dict[str, list[float]] = {}
    for seed in range(1, arguments.seeds + 1):
        for name, (value, seconds) in train_both(corpus, arguments, seed).items():
            perplexities.setdefault(name, []).append(f"{value:.2f}")
            times.setdefault(name, []).extend(seconds)
    print("| model | parameters | perplexity of the held-out text, by seed | median seconds of a step |")
    print("|---|---|---|---|")
    for name, model in build_models(corpus.source_tokenizer).items():
        seconds_of_step = f"{statistics.median(times[name]):.4f}"
        print(
            f"| {name} | {model.num_parameters():,} | {', '.join(perplexities[name])} | {seconds_of_step} |"
        )
    ours, theirs = times.values()
    print(f"time of a step of GPT-2 / time of a step of this package: {ratio(theirs, ours).median:.2f}")


if __name__ == "__main__":
    main()
