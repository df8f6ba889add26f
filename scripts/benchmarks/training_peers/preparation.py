"""Prepares the inputs of all toolkits that training.py compares: the encoded corpus, the subword tokens as
text, vocabularies, and the number of FLOPs per token.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from training_peers.turns import Shape, read_settings
from training_peers.vaswani import corpus_of, recipe_of
from vaswani_hf.data.columns import pair_lengths
from vaswani_hf.data.corpus import Corpus


def training_flops(shape: Shape, source: np.ndarray, target: np.ndarray) -> float:
    """Return the number of FLOPs of a training step on N sentence pairs without padding. `source` and
    `target` [N] contain the numbers of tokens of the sentences.

    The product of a token's features and a weight matrix takes 2 FLOPs per parameter. Attention scores and
    weighted sums of values take 4 * width FLOPs for each pair of a query and a key. A backward pass takes
    twice the FLOPs of a forward pass.
    """
    width = shape.width
    # Self-attention has four projections per token. Cross-attention has two projections per source token (key
    # and value) and two projections per target token (query and output).
    per_source = shape.layers * (6 * width**2 + 2 * width * shape.ffn)
    per_target = shape.layers * (6 * width**2 + 2 * width * shape.ffn) + shape.vocabulary * width
    source = source.astype(np.float64)
    target = target.astype(np.float64)
    # In decoder self-attention, a position attends to itself and to all earlier positions.
    queries_and_keys = source**2 + target * (target + 1) / 2 + source * target
    products = 2 * (per_source * source + per_target * target) + 4 * width * shape.layers * queries_and_keys
    return float(3 * products.sum())


def write_pieces(corpus: Corpus, folder: Path, vocabulary: int) -> None:
    """Write the sentences as subword tokens that are separated by spaces, and write the vocabulary files of
    JoeyNMT and Marian.
    """
    tokenizer = corpus.source_tokenizer
    splits: dict[str, Any] = {"train": corpus.train, "validation": corpus.validation}
    for split, pairs in splits.items():
        for side, column in (("source", "input_ids"), ("target", "labels")):
            lines = (" ".join(tokenizer.convert_ids_to_tokens(ids[:-1])) for ids in pairs[column])
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{split}.pieces.{side}").write_text(text, encoding="utf-8")
    special = set(tokenizer.all_special_tokens)
    by_id = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    pieces = [piece for piece, _ in by_id if piece not in special]
    for name, first in (("joeynmt", ["<unk>", "<pad>", "<s>", "</s>"]), ("marian", ["</s>", "<unk>"])):
        unused = [f"<unused{number}>" for number in range(vocabulary - len(pieces) - len(first))]
        text = "".join(f"{piece}\n" for piece in [*first, *pieces, *unused])
        (folder / f"vocabulary.{name}").write_text(text, encoding="utf-8")


def main() -> None:
    """Prepare a folder that holds train.source, train.target, validation.source and validation.target."""
    settings = read_settings()
    folder = Path(settings.folder)
    corpus = corpus_of(recipe_of(settings), new_tokenizers=True)
    write_pieces(corpus, folder, settings.shape.vocabulary)
    source, target = (lengths.astype(np.int64) for lengths in pair_lengths(corpus.train))
    tokens = int(source.sum() + target.sum())
    facts = {
        "pairs": len(source),
        "tokens": tokens,
        "tokens_per_target_token": tokens / int(target.sum()),
        "flops_per_token": training_flops(settings.shape, source, target) / tokens,
    }
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
