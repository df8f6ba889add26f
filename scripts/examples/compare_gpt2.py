"""Our causal language model beside GPT-2 of transformers: the same text, batches, steps and size; perplexity and time of a step.

    python scripts/examples/compare_gpt2.py --train train.en.gz --test test.en.gz

The two take turns on every batch, so that a machine that becomes slower does so for both. Ours has the shape and the
initialisation of GPT-2: layer normalization before each sub-layer, learned positions, GELU, biases in attention, and weights with a
deviation of 0.02, less where a sub-layer ends.
"""

import argparse
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from vaswani_hf import VaswaniDecoderConfig, VaswaniForCausalLM
from vaswani_hf.data.batching import PairRows, TokenBudgetSampler
from vaswani_hf.data.columns import pair_lengths
from vaswani_hf.evaluation.evaluate import negative_log_likelihood
from vaswani_hf.tasks import TASKS
from vaswani_hf.tasks.language_modeling import TextData, TextTokenizer

WIDTH, LAYERS, HEADS, INNER, LONGEST, DROPOUT = 128, 4, 4, 512, 64, 0.1


def main(argv: list[str] | None = None) -> None:
    """Trains both and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", required=True, help="texts, one a line (plain or .gz)")
    parser.add_argument("--test", required=True, help="held-out texts")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=2, help="runs of each, with other weights and batches")
    parser.add_argument("--vocab_size", type=int, default=4000)
    parser.add_argument("--tokens_per_batch", type=int, default=2048)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        data = TextData(
            language="en", train_text=arguments.train, validation_text=arguments.test, max_length=LONGEST
        )
        tokenizer = TextTokenizer(vocab_size=arguments.vocab_size)
        corpus = TASKS["causal_lm"].load_corpus(data, tokenizer, 1, Path(folder), new_tokenizers=True)
    found: dict[str, list[tuple[float, float]]] = {}
    for seed in range(1, arguments.seeds + 1):
        for name, result in _run(corpus, arguments, seed).items():
            found.setdefault(name, []).append(result)
    print("| model | parameters | perplexity of held-out text, by seed | seconds of a step, median |")
    print("|---|---|---|---|")
    for name, results in found.items():
        model = _models(len(corpus.source_tokenizer), corpus.source_tokenizer)[name]
        size = sum(parameter.numel() for parameter in model.parameters())
        perplexities = ", ".join(f"{value:.2f}" for value, _ in results)
        print(
            f"| {name} | {size:,} | {perplexities} | {statistics.median(time for _, time in results):.4f} |"
        )
    ours, theirs = (statistics.median(time for _, time in results) for results in found.values())
    print(f"time per step, GPT-2 / ours: {theirs / ours:.2f}")


def _models(vocab_size: int, tokenizer: Any) -> dict[str, Any]:
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = VaswaniDecoderConfig(
        vocab_size=vocab_size,
        d_model=WIDTH,
        decoder_layers=LAYERS,
        decoder_attention_heads=HEADS,
        decoder_ffn_dim=INNER,
        max_position_embeddings=LONGEST,
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
    sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_inner": INNER, "n_positions": LONGEST}
    return {
        "VaswaniForCausalLM": VaswaniForCausalLM(config),
        "GPT2LMHeadModel": GPT2LMHeadModel(GPT2Config(vocab_size=vocab_size, **sizes, **ids)),
    }


def _run(corpus: Any, arguments: argparse.Namespace, seed: int) -> dict[str, tuple[float, float]]:
    """The perplexity and the median time of a step of each model."""
    torch.manual_seed(seed)
    models = _models(len(corpus.source_tokenizer), corpus.source_tokenizer)
    optimizers = {
        name: torch.optim.AdamW(
            model.parameters(), arguments.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
        )
        for name, model in models.items()
    }
    rows, budget = PairRows(corpus.train), arguments.tokens_per_batch
    times: dict[str, list[float]] = {name: [] for name in models}
    sampler = TokenBudgetSampler(*pair_lengths(corpus.train), budget, budget, seed=seed)
    step = 0
    while step < arguments.steps:
        sampler.set_epoch(step)
        for numbers in sampler:
            batch = corpus.train_collator(rows.__getitems__(numbers))
            # Linear to nothing, after a tenth.
            rate = min(1.0, 10 * (step + 1) / arguments.steps) * (1 - step / arguments.steps)
            for name, model in models.items():
                start = time.perf_counter()
                for group in optimizers[name].param_groups:
                    group["lr"] = arguments.learning_rate * rate
                model.train()(**batch).loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizers[name].step()
                optimizers[name].zero_grad()
                times[name].append(time.perf_counter() - start)
            step += 1
            if step == arguments.steps:
                break
    return {
        name: (_perplexity(model, corpus, budget), statistics.median(times[name]))
        for name, model in models.items()
    }


def _perplexity(model: Any, corpus: Any, budget: int) -> float:
    rows = PairRows(corpus.validation)
    batches = (
        corpus.validation_collator(rows.__getitems__(numbers))
        for numbers in TokenBudgetSampler(*pair_lengths(corpus.validation), budget, budget, seed=None)
    )
    nats, tokens = negative_log_likelihood(model, batches)
    return math.exp(nats / tokens)


if __name__ == "__main__":
    main()
