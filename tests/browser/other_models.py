"""Tiny encoder-decoder models of transformers, with the special tokens of the tokenizers of this package.

The models are trained on word-for-word translations for a second, so that their translations end, and their
beams are different.
"""

from typing import Any

import torch
from factories import stacks
from transformers import MarianConfig, MarianMTModel, T5Config, T5ForConditionalGeneration
from word_model import train_on_words

START, PAD, EOS = 0, 1, 2
IDS = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": START, "decoder_start_token_id": START}
SIZES = stacks(layers=2, attention_heads=2, ffn_dim=32) | {"d_model": 32, "max_position_embeddings": 64}
T5_SIZES = {"d_model": 32, "d_kv": 16, "d_ff": 32, "num_layers": 2, "num_heads": 2}


def other_model(kind: str, tokenizer: Any) -> Any:
    """A trained model with eager attention, in eval mode."""
    torch.manual_seed(0)
    config = {"vocab_size": len(tokenizer), "forced_eos_token_id": None, **IDS}
    if kind == "marian":
        model: Any = MarianMTModel(MarianConfig(**config, **SIZES))
    else:
        model = T5ForConditionalGeneration(T5Config(**config, **T5_SIZES))
    model.set_attn_implementation("eager")
    return train_on_words(model, tokenizer)
