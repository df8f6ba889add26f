"""Where a model was loaded from, and the tokenizers that fit it: this file travels with every checkpoint for the pipeline."""

import os
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download, try_to_load_from_cache

from .configuration_vaswani import TARGET_FOLDER, eos_token_ids


class FromRepository:
    """Loading of a model together with the place that it is loaded from."""

    # The local folder, in the cache that of the commit; None for a model that was built, and for one in a subfolder.
    origin: Path | None = None

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)  # type: ignore[misc]
        name, model = pretrained_model_name_or_path, loaded[0] if isinstance(loaded, tuple) else loaded
        if model._tp_size not in (None, 1) and any(hasattr(module, "init_scores") for module in model.modules()):
            raise ValueError(
                "`tp_plan` must be left out: attention scores with parameters are not split between devices."
            )
        if name is None or kwargs.get("subfolder"):
            return loaded
        if os.path.isdir(name):
            model.origin = Path(name).absolute()
            return loaded
        cached = try_to_load_from_cache(name, "config.json", kwargs.get("cache_dir"), kwargs.get("revision"))
        model.origin = Path(cached).parent if isinstance(cached, str) else None
        if model.origin is not None and not model.config.share_encoder_decoder_embeddings:
            # The commit is that of the weights, even if the branch has moved on. It is fetched now, because the token is not kept.
            place = {key: kwargs[key] for key in ("cache_dir", "token", "local_files_only") if key in kwargs}
            files = [f"{TARGET_FOLDER}/tokenizer*.json"]
            snapshot_download(name, revision=model.origin.name, allow_patterns=files, **place)
        return loaded


def check_tokenizers(model: Any, source_tokenizer: Any, target_tokenizer: Any, name: str = "") -> None:
    """Refuse tokenizers that are not those of a Vaswani model, of a checkpoint of this name; it may have spare classes.

    Raises:
        ValueError: If one has ids that the model lacks, or another `<pad>` or `</s>` than the model.
    """
    config, ends = model.config, eos_token_ids(model.config) + eos_token_ids(model.generation_config)
    sides = {"source": (source_tokenizer, config.vocab_size), "target": (target_tokenizer, config.decoder_vocab_size)}
    for side, (tokenizer, classes) in sides.items():
        largest, faults = max(tokenizer.get_vocab().values(), default=0), []
        if largest >= classes:
            faults.append(f"has ids up to {largest:,}, more than the {classes:,} classes of the model")
        for token, ids in (("pad_token", [config.pad_token_id]), ("eos_token", ends if side == "target" else [])):
            own = getattr(tokenizer, f"{token}_id")
            if own is not None and own not in ids and ids not in ([], [None]):
                faults.append(f"its `{token}` has the id {own}, and that of the model {ids[0]}")
        if faults:
            raise ValueError(
                f"The {side} tokenizer must fit {repr(name) if name else 'the model'}, but {faults[0]}; take both from one checkpoint."
            )
