"""Suggests a name for an unknown option or recipe key, and lists the allowed names in an error message."""

import difflib
from collections.abc import Collection, Iterable

from ..model.checks_vaswani import PAPER_SYMBOLS

# Maps names in other toolkits (fairseq, JoeyNMT, OpenNMT, Marian, Sockeye and transformers) to options and
# recipe keys of this package. Several names are separated by spaces, the preferred name first.
SYNONYMS = {
    **PAPER_SYMBOLS,
    "lr": "learning_rate",
    "beam": "num_beams",
    "beams": "num_beams",
    "beam_size": "num_beams",
    "beam_width": "num_beams",
    "nbest": "num_return_sequences",
    "n_best": "num_return_sequences",
    "lenpen": "length_penalty",
    "alpha": "length_penalty",
    "normalize": "length_penalty",
    "max_len": "max_new_tokens max_length",
    "max_len_a": "max_length_a",
    "max_len_b": "max_length_b",
    "max_output_length": "max_new_tokens",
    "max_tokens": "source_tokens_per_batch tokens_per_batch",
    "batch_size": "source_tokens_per_batch tokens_per_batch",
    "mini_batch": "source_tokens_per_batch tokens_per_batch",
    "batch_tokens": "source_tokens_per_batch tokens_per_batch",
    "per_device_train_batch_size": "source_tokens_per_batch tokens_per_batch",
    "heads": "encoder_attention_heads",
    "num_heads": "encoder_attention_heads",
    "layers": "encoder_layers",
    "num_layers": "encoder_layers",
    "enc_layers": "encoder_layers",
    "dec_layers": "decoder_layers",
    "hidden_size": "d_model",
    "embedding_dim": "d_model",
    "dim_emb": "d_model",
    "rnn_size": "d_model",
    "encoder_embed_dim": "d_model",
    "decoder_embed_dim": "d_model",
    "ff_size": "encoder_ffn_dim",
    "transformer_ff": "encoder_ffn_dim",
    "encoder_ffn_embed_dim": "encoder_ffn_dim",
    "decoder_ffn_embed_dim": "decoder_ffn_dim",
    "share_all_embeddings": "share_encoder_decoder_embeddings",
    "share_embeddings": "share_encoder_decoder_embeddings",
    "tied_embeddings_all": "share_encoder_decoder_embeddings",
    "patience": "early_stopping_patience",
    "warmup": "warmup_steps",
    "warmup_updates": "warmup_steps",
    "update_freq": "gradient_accumulation_steps",
    "accum_count": "gradient_accumulation_steps",
    "max_update": "max_steps",
    "max_updates": "max_steps",
    "train_steps": "max_steps",
    "steps": "max_steps",
    "epochs": "num_train_epochs",
    "max_epoch": "num_train_epochs",
    "num_epochs": "num_train_epochs",
    "precision": "dtype bf16",
    "fp16": "bf16 dtype",
    "gpus": "device",
    "gpu": "device",
    "cpu": "device",
    "cuda": "device",
    "use_cuda": "device",
    "num_workers": "workers dataloader_num_workers",
    "threads": "workers",
    "out": "output",
    "save_dir": "output_dir",
    "model_dir": "output_dir",
    "src": "source train_source",
    "source": "train_source",
    "ref": "reference",
    "tgt": "target train_target",
    "target": "train_target",
    "src_lang": "source_language",
    "tgt_lang": "target_language",
    "vocab": "vocab_size",
    "smoothing": "label_smoothing",
    "sampling": "do_sample",
    "sample": "do_sample",
    "random_seed": "seed",
    "fast": "engine",
    "int8": "quantization",
    "save_interval": "save_steps",
    "validate_interval": "eval_steps",
    "valid_steps": "eval_steps",
    "log_interval": "logging_steps",
    "clip_norm": "max_grad_norm",
}


def suggestion(name: str, known: Collection[str]) -> str | None:
    """Return the name in `known` that the user probably means: a synonym of `name`, or else a similar name.
    Return None if `known` contains neither a synonym of `name` nor a similar name.
    """
    for synonym in SYNONYMS.get(name, "").split():
        if synonym in known:
            return synonym
    similar = difflib.get_close_matches(name, known, n=1, cutoff=0.65)
    return similar[0] if similar else None


def alternatives(names: Iterable[str]) -> str:
    """Join names to a text such as '"a", "b" or "c"'."""
    return joined([f'"{name}"' for name in names], "or")


def joined(words: Iterable[str], conjunction: str) -> str:
    """Join words to a text such as "a, b or c"."""
    *others, last = words
    return f"{', '.join(others)} {conjunction} {last}" if others else last
