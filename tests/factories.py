"""Recipes, configs, models and tokenizers that are small enough for tests. Each function makes a new
object.
"""

import copy
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani_hf.checkpoint.tokenizers import save_tokenizers
from vaswani_hf.data.tokenizer_training import train_tokenizer
from vaswani_hf.model import modeling_vaswani
from vaswani_hf.model.tokenizing_vaswani import LANGUAGE_TOKENS
from vaswani_hf.recipe import load_recipe


def stacks(**sizes: int) -> dict[str, int]:
    """Config fields of both stacks: `stacks(layers=2)` has `encoder_layers` and `decoder_layers`."""
    return {f"{stack}_{name}": size for stack in ("encoder", "decoder") for name, size in sizes.items()}


# The smallest config that has every part.
TINY_SHAPE = {"d_model": 16, **stacks(layers=2, attention_heads=2, ffn_dim=20)}
TINY_CONFIG = {"vocab_size": 23, "dropout": 0.0} | TINY_SHAPE
# Config fields for an encoder and a decoder with different sizes.
UNLIKE_STACKS = {"encoder_layers": 1, "decoder_layers": 3, "decoder_attention_heads": 4}
UNLIKE_STACKS |= {"encoder_ffn_dim": 12, "decoder_ffn_dim": 28}

# For each config field, a value that differs from the default and from the tiny config.
_OTHER_VALUES = """{
    vocab_size: 31, decoder_vocab_size: 29, d_model: 24, d_k: 5, d_v: 3, encoder_layers: 1, decoder_layers: 3,
    encoder_attention_heads: 4, decoder_attention_heads: 4, encoder_ffn_dim: 12, decoder_ffn_dim: 12,
    dropout: 0.5, attention_dropout: 0.3, activation_dropout: 0.2, activation_function: gelu,
    norm_position: pre, norm_position_of_decoder: pre, final_norm: true, layer_norm_eps: 0.1,
    position_embedding: learned, position_timescales: tensor2tensor, position_offset: 2,
    max_position_embeddings: 32, scale_embedding: false, share_encoder_decoder_embeddings: false,
    tie_word_embeddings: false, lm_head_bias: true, zero_start_embedding: true, attention_score: additive,
    cross_attention_score: additive_linear, attention_window: 3, attention_bias: true,
    initializer_range: 0.02, label_smoothing: 0.1, label_smoothing_form: torch, use_cache: false,
    bos_token_id: 7, pad_token_id: 0, eos_token_id: [2, 3, 4, 5, 6, 7, 8, 9, 10, 11], decoder_start_token_id: 7
}"""
# The other fields that such a value needs.
_NEEDED_FIELDS = {
    "decoder_vocab_size": {"share_encoder_decoder_embeddings": False},
    "encoder_attention_heads": {"d_k": 8, "d_v": 8},
    "decoder_attention_heads": {"d_k": 8, "d_v": 8},
    "position_embedding": {"max_position_embeddings": 24},
    "max_position_embeddings": {"position_embedding": "learned"},
    "zero_start_embedding": {"decoder_start_token_id": 1, "label_smoothing": 0.1},
    "label_smoothing_form": {"label_smoothing": 0.1},
    "pad_token_id": {"bos_token_id": 1, "decoder_start_token_id": 1},
}
CHANGED_FIELDS = {
    name: {name: value, **_NEEDED_FIELDS.get(name, {})}
    for name, value in yaml.safe_load(_OTHER_VALUES).items()
}

# The values of a run that takes a second, on the corpus of numbers and in float32.
TINY_RECIPE: dict[str, Any] = {
    "output_dir": "out",
    "data": {
        "source_language": "en",
        "target_language": "de",
        "corpus": "numbers",
        "numbers_train_size": 300,
        "max_length": 64,
    },
    "tokenizer": {"vocab_size": 280},
    "model": {
        "d_model": 16,
        **stacks(layers=1, attention_heads=2, ffn_dim=16),
        "dropout": 0.1,
        "label_smoothing": 0.1,
    },
    "training": {
        "bf16": False,
        "max_steps": 8,
        "source_tokens_per_batch": 1500,
        "target_tokens_per_batch": 1500,
        "gradient_accumulation_steps": 2,
        "warmup_steps": 4,
        "logging_steps": 2,
        "eval_steps": 4,
        "save_steps": 4,
    },
    "decoding": {"num_beams": 2, "max_length": 8},
}


# The code files in the repository of a translation checkpoint.
CODE_FILES = {path.name for path in Path(modeling_vaswani.__file__).parent.glob("*_vaswani.py")}
CODE_FILES.remove("language_models_vaswani.py")


def tiny_config(**fields) -> VaswaniConfig:
    """Make the smallest config that has every part, with these fields changed."""
    return VaswaniConfig(**TINY_CONFIG | fields)


def tiny_model(model_class: Any = VaswaniForSeq2SeqLM, **fields) -> Any:
    """The model of `tiny_config(**fields)` in eval mode. The weights are the same at every call."""
    torch.manual_seed(0)
    model = model_class(tiny_config(**fields)).eval()
    with torch.no_grad():
        # Random numbers, because biases of 0 and gains of 1 would hide unused parameters and missing masks.
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def tiny_recipe(changes: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """The values of the tiny recipe, with other values of `section.key`.

    `changes` are values by dotted key (`{"training.max_steps": 4}`); keywords are whole sections or top-level
    keys (`task="causal"`, `data={...}`). The value None removes a key or a section.
    """
    recipe = copy.deepcopy(TINY_RECIPE)
    for name, value in keys.items():
        recipe[name] = value
        if value is None:
            del recipe[name]
    for dotted, value in (changes or {}).items():
        *sections, key = dotted.split(".")
        place = recipe
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
        if value is None:
            del place[key]
    return recipe


def write_recipe(path: Path, changes: dict[str, Any] | None = None, **keys: Any) -> Path:
    """Write `tiny_recipe(changes, **keys)` as YAML, and return the path."""
    path.write_text(yaml.safe_dump(tiny_recipe(changes, **keys), sort_keys=False), encoding="utf-8")
    return path


def loaded_recipe(path: Path, changes: dict[str, Any] | None = None, **keys: Any):
    """Write the recipe of `write_recipe`, and load the recipe."""
    return load_recipe(write_recipe(path, changes, **keys))


def save_checkpoint(folder: Path, model: Any, source_tokenizer: Any, target_tokenizer: Any = None) -> Path:
    """Write a model and its tokenizers, and return the folder. By default both sides have one tokenizer."""
    model.save_pretrained(folder)
    target_tokenizer = source_tokenizer if target_tokenizer is None else target_tokenizer
    save_tokenizers(source_tokenizer, target_tokenizer, folder)
    return folder


@functools.cache
def _trained_tokenizer(texts: tuple[str, ...], vocab_size: int, options: tuple):
    return train_tokenizer(list(texts), vocab_size, **dict(options))


def tiny_tokenizer(
    texts: Sequence[str] = ("one two three eins zwei drei",), vocab_size: int = 280, **options
):
    """A tokenizer trained on these texts. A process trains each tokenizer once, and returns copies."""
    texts = (texts,) if isinstance(texts, str) else tuple(texts)
    return copy.deepcopy(_trained_tokenizer(texts, vocab_size, tuple(sorted(options.items()))))


def add_languages(folder: Path, **tokens: str) -> None:
    """Add a language token for each language to the tokenizer of a checkpoint."""
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {LANGUAGE_TOKENS: tokens}
    path.write_text(json.dumps(config))


def files_in(folder: Path) -> dict[str, bytes]:
    """The contents of all files in a folder by relative path."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def damage(path: Path, change: Callable[[bytes], bytes] | None) -> None:
    """Change the content of a file with a function, or delete the file."""
    content = path.read_bytes()
    path.unlink()
    if change is not None:
        path.write_bytes(change(content))


def cut(content: bytes) -> bytes:
    """The first half of a content."""
    return content[: len(content) // 2]
