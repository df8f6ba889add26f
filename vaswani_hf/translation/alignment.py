"""Word alignments from cross-attention: which source word each target word was translated from.

Letters of shapes: S source length, T target length, both in tokens.
"""

import os
from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerBase

from ..model.translator_vaswani import words_at


def target_word_indices(token_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> tuple[list[str], list[int]]:
    """The words of a translation, and for each of its tokens the word that it belongs to.

    Args:
        token_ids: [T] the translation, of which a token may be a part of a character only.
        tokenizer: Of the target language.

    Returns:
        The words, which white space separates, and [T] indices of them; -1 for special tokens.
    """
    special = set(tokenizer.all_special_ids)
    text = _decode(token_ids, tokenizer)
    starts: list[int] = []
    # What is decoded for a token begins with those of the last step, so that the work grows with the length, not its
    # square: `known` characters of the text came of the tokens before `read`, `before` of those from `window` to there.
    window, read, known, before = 0, 0, 0, ""
    for i, token_id in enumerate(token_ids):
        begun = _decode(token_ids[window:i], tokenizer)[len(before) :]
        # Decoding ends in a replacement character where the last token is the first part of a character.
        common = os.path.commonprefix([begun, text[known : known + len(begun)]])
        starts.append(-1 if token_id in special else known + len(common))
        if begun and begun == common:
            window, read, known = read, i, known + len(begun)
            before = _decode(token_ids[window:read], tokenizer)
    return text.split(), words_at(text, starts)


def _decode(token_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    return tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def align_words(
    attention: torch.Tensor, source_words: Sequence[int], target_words: Sequence[int]
) -> list[tuple[int, int]]:
    """For each target word the source word that it attends to most.

    A source word counts with its most attended token, a target word with the sum over its tokens.

    Args:
        attention: [T, S] float, row t from the decoder's position that predicts target token t.
        source_words: [S] the word of each source token, -1 for none.
        target_words: [T] the word of each target token, -1 for none.

    Returns:
        Pairs (source word, target word), one for each target word, in their order; none if the source has no words.
    """
    num_source, num_target = max(source_words, default=-1) + 1, max(target_words, default=-1) + 1
    if not num_source:
        return []
    columns = torch.tensor([i for i, word in enumerate(source_words) if word >= 0], device=attention.device)
    words = torch.tensor([word for word in source_words if word >= 0], device=attention.device)
    by_source_word = attention.new_zeros(len(attention), num_source)
    by_source_word.scatter_reduce_(1, words.expand(len(attention), -1), attention[:, columns], "amax")
    rows = torch.tensor([i for i, word in enumerate(target_words) if word >= 0], device=attention.device).long()
    words = torch.tensor([word for word in target_words if word >= 0], device=attention.device).long()
    by_word = attention.new_zeros(num_target, num_source).index_add_(0, words, by_source_word[rows])
    return [(source, target) for target, source in enumerate(by_word.argmax(dim=1).tolist())]


def to_pharaoh(pairs: Sequence[tuple[int, int]]) -> str:
    """The Pharaoh format of an alignment: "0-0 1-2 2-1", each pair source word - target word.

    Args:
        pairs: (source word, target word), from 0.
    """
    return " ".join(f"{source}-{target}" for source, target in pairs)


def shift_alignment(alignment: str, num_target: int) -> str:
    """The alignment of a translation behind other words.

    Args:
        alignment: In Pharaoh format.
        num_target: Words before the translation.

    Returns:
        In Pharaoh format.
    """
    pairs = [pair.split("-") for pair in alignment.split()]
    return to_pharaoh([(int(source), int(target) + num_target) for source, target in pairs])


__all__ = ["align_words", "shift_alignment", "target_word_indices", "to_pharaoh"]
