"""A tiny recipe, and what the tests look at in the folders of its runs."""

import json

import torch
from safetensors.torch import load_file

RECIPE = """
output_dir: out
data: {source_language: en, target_language: de, corpus: numbers, numbers_train_size: 300, max_length: 64}
tokenizer: {vocab_size: 280}
model:
  {d_model: 16, encoder_layers: 1, decoder_layers: 1, encoder_attention_heads: 2, decoder_attention_heads: 2,
   encoder_ffn_dim: 16, decoder_ffn_dim: 16, dropout: 0.1, label_smoothing: 0.1}
training:
  {bf16: false,
   max_steps: 8, source_tokens_per_batch: 1500, target_tokens_per_batch: 1500, gradient_accumulation_steps: 2,
   warmup_steps: 4, logging_steps: 2, eval_steps: 4, save_steps: 4}
decoding: {num_beams: 2, max_length: 8}
"""


def weights(folder):
    """The weights in a folder."""
    return load_file(folder / "model.safetensors")


def same(left, right):
    """True if two models are the same to the bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def metrics(folder):
    """The rows of a run's log."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
