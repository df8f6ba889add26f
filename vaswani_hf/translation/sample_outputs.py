"""What a checkpoint computes of a few texts, by which a copy of it is known to be the same."""

from pathlib import Path
from typing import Any

import torch

from ..checkpoint.kinds import KINDS
from ..checkpoint.loading import load_model
from ..checkpoint.tokenizers import load_tokenizers
from ..model.translator_vaswani import check_tokenizers
from .translator import Translator

_SAMPLES = ("The model reads the whole sentence at once.", "Ärger, naïve: 3.14 €!", "日本語 и русский")


@torch.inference_mode()
def sample_outputs(folder: Path) -> dict[str, Any]:
    """The tokens and logits of sample texts, and a translation where the model translates.

    Args:
        folder (Path): The checkpoint, of any kind.

    Raises:
        ValueError: If it is damaged, its tokenizers are not those of the model, or its logits are not finite.
    """
    model, tokenizers = load_model(folder, kinds=tuple(KINDS)), load_tokenizers(folder)
    check_tokenizers(model, *tokenizers, str(folder))
    translator = Translator(model, *tokenizers) if model.config.is_encoder_decoder else None
    is_learned = model.config.position_embedding == "learned"
    longest = translator.max_length if translator else model.config.max_position_embeddings if is_learned else None
    tokens, logits = [], []
    for text in _SAMPLES:
        source, target = (tokenizer(text, return_tensors="pt")["input_ids"][:, :longest] for tokenizer in tokenizers)
        tokens.append((source.tolist(), target.tolist()))
        target_ids = {"decoder_input_ids": target} if translator else {}
        logits.append(model(input_ids=source, **target_ids).logits)
    if not all(of_text.isfinite().all() for of_text in logits):
        raise ValueError(f"The model in '{folder}' must compute finite logits, but there are infinite ones or NaN.")
    translation = list(translator.translate(_SAMPLES[:1])) if translator else None
    return {"tokens": tokens, "logits": [of_text.tolist() for of_text in logits], "the translation": translation}
