"""Evaluation of language models on plain text: perplexity, and how many hidden tokens are found."""

import math
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging

from ..checkpoint.kinds import KINDS, TRANSLATION
from ..checkpoint.loading import check_config, checkpoint_folder, load_model
from ..checkpoint.tokenizers import is_tree_tokenizer, load_tokenizers
from ..data.language_modeling import text_collator, with_both_ends
from ..data.lines import read_lines
from ..model.loss_vaswani import IGNORED_LABEL
from ..model.translator_vaswani import TOKENIZING
from ..translation.translator import batches_by_length, checked_device
from .evaluate import perplexity

logger = logging.get_logger(__name__)

LANGUAGE_MODELS = tuple(kind for kind in KINDS if kind != TRANSLATION)
# The task that a model type is of.
TASKS = {"vaswani_decoder": "causal_lm", "vaswani_encoder": "masked_lm"}


@torch.inference_mode()
def evaluate_texts(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: list[str], *, tokens_per_batch: int = 4096
) -> dict[str, Any]:
    """The scores of a language model on texts.

    A causal model predicts every token and the end. Of a masked one the scores are those of the hidden tokens, 15 % of all, which
    are the same in every evaluation of the same texts.

    Args:
        model (PreTrainedModel): A `VaswaniForCausalLM` or `VaswaniForMaskedLM`.
        tokenizer (PreTrainedTokenizerFast): Its tokenizer.
        texts (list): Texts. Empty ones are left out, and a warning counts them.
        tokens_per_batch (int): Positions of a batch, padding included (tokens).

    Returns:
        dict: `loss` (nats per predicted token), `perplexity`, `accuracy` (percent of the predicted tokens whose most likely token is
        right), `tokens` predicted, `texts`, `seconds`; of a causal model also `bits_per_byte` of the text, its end included,
        which can be compared between vocabularies.

    Raises:
        ValueError: If there is no text, or the logits are not finite.
    """
    task, start = TASKS[model.config.model_type], time.perf_counter()
    nats, hits, tokens, num_bytes, num_texts = 0.0, 0, 0, 0, 0
    was_training = model.training
    model.eval()
    for batch, of_batch in _batches(task, model, tokenizer, texts, tokens_per_batch):
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        outputs = model(**batch, num_items_in_batch=1)
        nats += outputs.loss.item()
        labels, logits = batch["labels"], outputs.logits
        if task == "causal_lm":
            labels, logits = labels[:, 1:], logits[:, :-1]
        hits += int((logits.argmax(dim=-1) == labels).sum())
        tokens += int((labels != IGNORED_LABEL).sum())
        num_texts += len(of_batch)
        # The end of a line is a byte.
        num_bytes += sum(len(text.encode()) + 1 for text in of_batch)
    model.train(was_training)
    if not tokens:
        raise ValueError("There must be at least one text to evaluate, but there is none.")
    if not math.isfinite(nats):
        raise ValueError(
            "The model's logits are NaN or infinite: its weights are damaged, or too large for their dtype; try bfloat16 or float32."
        )
    scores = {"loss": nats / tokens, "perplexity": perplexity(nats / tokens), "accuracy": 100 * hits / tokens}
    if task == "causal_lm":
        scores["bits_per_byte"] = nats / math.log(2) / num_bytes
    return scores | {"tokens": tokens, "texts": num_texts, "seconds": time.perf_counter() - start}


def _batches(
    task: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: list[str], tokens_per_batch: int
) -> Iterator[tuple[dict[str, torch.Tensor], list[str]]]:
    encoder = with_both_ends(tokenizer) if task == "causal_lm" else tokenizer
    is_learned = model.config.position_embedding == "learned"
    longest = model.config.max_position_embeddings if is_learned else sys.maxsize
    with TOKENIZING:
        given = [text.strip() for text in texts if text.strip()]
        encoded = encoder(given, verbose=False)["input_ids"] if given else []
    if len(given) < len(texts):
        logger.warning(f"{len(texts) - len(given):,} of {len(texts):,} texts are empty and are left out.")
    kept = [row for row, ids in enumerate(encoded) if len(ids) <= longest]
    if len(kept) < len(encoded):
        logger.warning(f"{len(encoded) - len(kept)} texts longer than {longest} tokens are left out.")
    collator = text_collator(task, tokenizer, seed=0)
    for rows in batches_by_length([encoded[row] for row in kept], tokens_per_batch):
        chosen = [kept[row] for row in rows]
        yield (
            collator([{"input_ids": encoded[row], "labels": encoded[row]} for row in chosen]),
            [given[row] for row in chosen],
        )


def evaluate_text_file(
    name: str, path: str, *, device: str | None = None, dtype: str | None = None, tokens_per_batch: int = 4096
) -> dict[str, Any]:
    """The scores of a language model, by its name, on a file with texts, one per line; see `evaluate_texts`."""
    texts = list(read_lines(path))
    if not any(text.strip() for text in texts):
        raise ValueError(f"{path} must hold texts, one a line, but is empty.")
    folder = checkpoint_folder(name)
    check_config(folder, name, tuple(KINDS))
    tokenizer, of_target = load_tokenizers(folder, name)
    if is_tree_tokenizer(of_target):
        raise ValueError(f"`model` must be a language model, but '{name}' is a parser; it is evaluated by `--trees`.")
    precision = {} if dtype is None else {"dtype": dtype}
    place = checked_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    model = load_model(folder, name, LANGUAGE_MODELS, **precision).to(place)
    return evaluate_texts(model, tokenizer, texts, tokens_per_batch=tokens_per_batch)


def scores_of_texts_as_text(results: dict[str, Any]) -> str:
    """The scores, a line each.

    Args:
        results (dict): As from `evaluate_texts`.
    """
    lines = [
        f"perplexity per token {results['perplexity']:.3f}",
        f"accuracy {results['accuracy']:.2f} % of {results['tokens']:,} predicted tokens",
    ]
    if "bits_per_byte" in results:
        lines.append(f"bits per byte {results['bits_per_byte']:.4f}")
    speed = results["texts"] / results["seconds"]
    return "\n".join([*lines, f"{results['texts']:,} texts in {results['seconds']:.1f} s, {speed:.1f} texts/s"])
