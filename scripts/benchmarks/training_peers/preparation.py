"""What the competitors share, made once: the encoded corpus, the same as pieces between spaces, vocabularies, and FLOPs."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from training_peers.turns import read_settings
from training_peers.vaswani import corpus_of, recipe_of
from vaswani_hf.data.columns import pair_lengths
from vaswani_hf.data.corpus import Corpus


def training_flops(shape: dict[str, int], source: np.ndarray, target: np.ndarray) -> float:
    """The floating-point operations of a step on these pairs, without padding: forward, and backward twice as many.

    A multiplication by a matrix takes 2 per token and parameter; scores and weighted sums 4 * width per query and key,
    of which a decoder position has those before it and itself.

    Args:
        shape (dict): The measures of the model.
        source (ndarray): [N] source lengths (tokens).
        target (ndarray): [N] target lengths (tokens).

    Returns:
        float: The sum over the pairs.
    """
    width, layers, ffn = shape["width"], shape["layers"], shape["ffn"]
    # Query, key, value and output of a self-attention; of the cross-attention, key and value are of the source.
    per_source = layers * (4 * width**2 + 2 * width * ffn) + layers * 2 * width**2
    per_target = layers * (6 * width**2 + 2 * width * ffn) + shape["vocabulary"] * width
    source, target = source.astype(np.float64), target.astype(np.float64)
    pairs_of_positions = source**2 + target * (target + 1) / 2 + source * target
    products = 2 * (per_source * source + per_target * target) + 4 * width * layers * pairs_of_positions
    return float(3 * products.sum())


def write_pieces(corpus: Corpus, folder: Path, vocabulary: int) -> None:
    """The corpus for competitors that read text: SPLIT.SIDE.pieces, `vocabulary.pieces`, and files of vocabularies."""
    tokenizer = corpus.source_tokenizer
    splits: dict[str, Any] = {"train": corpus.train, "validation": corpus.validation}
    for split, pairs in splits.items():
        for side, column in (("source", "input_ids"), ("target", "labels")):
            lines = (" ".join(tokenizer.convert_ids_to_tokens(ids[:-1])) for ids in pairs[column])
            (folder / f"{split}.pieces.{side}").write_text(
                "".join(f"{line}\n" for line in lines), encoding="utf-8"
            )
    special = set(tokenizer.all_special_tokens)
    pieces = [piece for piece, _ in sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])]
    pieces = [piece for piece in pieces if piece not in special]
    for name, first in (("joeynmt", ["<unk>", "<pad>", "<s>", "</s>"]), ("marian", ["</s>", "<unk>"])):
        unused = [f"<unused{number}>" for number in range(vocabulary - len(pieces) - len(first))]
        text = "".join(f"{piece}\n" for piece in [*first, *pieces, *unused])
        (folder / f"vocabulary.{name}").write_text(text, encoding="utf-8")


def main() -> None:
    """Prepares a folder with train.source, train.target and so on."""
    settings = read_settings()
    folder = Path(settings.folder)
    corpus = corpus_of(recipe_of(settings), new_tokenizers=True)
    write_pieces(corpus, folder, settings.shape["vocabulary"])
    source, target = (lengths.astype(np.int64) for lengths in pair_lengths(corpus.train))
    tokens = int(source.sum() + target.sum())
    facts = {
        "pairs": len(source),
        "validation_pairs": len(corpus.validation) if corpus.validation is not None else 0,
        "pieces": len(corpus.source_tokenizer),
        "tokens": tokens,
        "tokens_per_target_token": tokens / int(target.sum()),
        "flops_per_token": training_flops(settings.shape, source, target) / tokens,
    }
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
