"""BPE-dropout (Provilkov et al. 2020, Algorithm 1): byte-level BPE leaves out merges at random, so that a
text is split into different tokens in each epoch.

In the shape [L], L is the length of a sentence in tokens, `</s>` included.
"""

import itertools
import json
import re
from random import Random

from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ..model.errors_vaswani import InvalidValueError
from ..model.tokenizing_vaswani import tags_of

# A cache stores the possible merges of partly merged words. The limits of the cache are the maximum number of
# words, and the maximum number of pieces in a word. The full cache needs about 30 MB for European text.
_MAX_CACHED_WORDS = 100_000
_MAX_CACHED_PIECES = 32


class BpeDropout:
    """Encodes text with BPE-dropout. The class replaces the BPE-dropout of the library `tokenizers`, which
    cannot be seeded.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rate: float):
        """`tokenizer` comes from `train_tokenizer`. `rate` is the probability of leaving out a merge."""
        backend = tokenizer.backend_tokenizer
        is_bpe = isinstance(backend.model, models.BPE)
        is_byte_level = isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel)
        if not (is_bpe and is_byte_level and backend.normalizer is not None):
            raise InvalidValueError(
                "`tokenizer` must be byte-level BPE as `train_tokenizer` makes it, but is another kind."
            )
        merges = json.loads(backend.to_str())["model"]["merges"]
        self.rate = rate
        self._normalizer = backend.normalizer
        self._pre_tokenizer = backend.pre_tokenizer
        self._token_ids = backend.get_vocab(with_added_tokens=False)
        self._eos_token_id = tokenizer.eos_token_id
        self._tags = tags_of(tokenizer)
        # Put each language tag in a group of the regular expression, because `split` removes matched text
        # outside groups. Exclude the characters \x1c to \x1f from white space, as the library `tokenizers`
        # does.
        space = r"[^\S\x1c-\x1f]*"
        pattern = "|".join(f"{space}({re.escape(tag)}){space}" for tag in self._tags)
        self._tag_pattern = re.compile(pattern or "(?!)")
        self._ranks = {tuple(pair): rank for rank, pair in enumerate(merges)}
        # Never skip a merge that joins the bytes of one character. If BPE dropout skipped merges of bytes,
        # the model would learn tokens for parts of a character, and could write incomplete characters.
        self._merges_of_bytes = set(itertools.takewhile(_are_in_one_character, self._ranks))
        self._merges_of: dict[tuple[str, ...], list[int]] = {}

    def encode(self, text: str, rng: Random) -> list[int]:
        """Return the token ids [L] of one random split of a sentence, with `</s>` at the end."""
        token_ids = []
        for part in filter(None, self._tag_pattern.split(text)):
            if part in self._tags:
                token_ids.append(self._tags[part])
                continue
            for word, _ in self._pre_tokenizer.pre_tokenize_str(self._normalizer.normalize_str(part)):
                token_ids += [self._token_ids[piece] for piece in self._split(word, rng)]
        return [*token_ids, self._eos_token_id]

    def _split(self, word: str, rng: Random) -> tuple[str, ...]:
        pieces = tuple(word)
        while True:
            # Skip each possible merge with the probability `rate`, in the order in which BPE applies merges.
            # Apply only one merge: the merge that BPE learned first among the merges that are not skipped.
            for position in self._possible_merges(pieces):
                pair = pieces[position : position + 2]
                if pair in self._merges_of_bytes or rng.random() >= self.rate:
                    merged = "".join(pair)
                    pieces = (*pieces[:position], merged, *pieces[position + 2 :])
                    break
            else:
                return pieces

    def _possible_merges(self, pieces: tuple[str, ...]) -> list[int]:
        """Return the positions of pieces that BPE can merge with the next piece, sorted by the rank of the
        merge.
        """
        positions = self._merges_of.get(pieces)
        if positions is not None:
            return positions
        ranked = [
            (self._ranks[pair], position)
            for position, pair in enumerate(zip(pieces, pieces[1:], strict=False))
            if pair in self._ranks
        ]
        positions = [position for _, position in sorted(ranked)]
        if len(pieces) <= _MAX_CACHED_PIECES:
            if len(self._merges_of) >= _MAX_CACHED_WORDS:
                self._merges_of.clear()
            self._merges_of[pieces] = positions
        return positions


def _are_in_one_character(pair: tuple[str, str]) -> bool:
    # Return True if the two byte-level BPE pieces in `pair` together are one character, or the first bytes of
    # one character. If the last bytes of a character are missing, `decoders.ByteLevel` decodes the other
    # bytes as one replacement character (U+FFFD).
    return len(decoders.ByteLevel().decode(["".join(pair)])) == 1
