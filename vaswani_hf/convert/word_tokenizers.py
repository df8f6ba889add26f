"""Creates fast tokenizers for texts whose tokens are separated by spaces.

Some libraries expect texts that other programs have already segmented into subwords. The tokenizers in this
file split a segmented text at spaces, and join the subwords in a translation to words.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ..checkpoint.tokenizers import IMPORTED_MARK, SHARED_IDS_MARK

# In the merges of subword-nmt and fastBPE, the last token of a word ends with "</w>".
END_OF_WORD = "</w>"
# A message to the user who imports a model whose training data was segmented by other programs.
SPLITS_AT_SPACES = (
    "The tokenizers split texts only at spaces; tokenize and segment texts with the programs that prepared "
    "the training data."
)


class SpecialTokens(NamedTuple):
    """The special tokens of an imported tokenizer. Tokenizers add `end` to each text, but not `start`, the
    token from which the decoder starts. The default values are the special tokens that many libraries use.
    """

    pad: str = "<pad>"
    start: str = "<s>"
    end: str = "</s>"
    unknown: str = "<unk>"


USUAL_TOKENS = SpecialTokens()


def word_tokenizer(
    ids: Mapping[str, int],
    special: SpecialTokens = USUAL_TOKENS,
    *,
    joiner: str | None = "@@",
    model_max_length: int | None = None,
) -> PreTrainedTokenizerFast:
    """Create a tokenizer that splits texts at spaces. The decoder joins each token that ends with `joiner` to
    the next token.
    """
    backend = Tokenizer(models.WordLevel(dict(ids), unk_token=special.unknown))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # `decoders.WordPiece` adds a space before a token, unless the token begins with `prefix`. Use the
    # private-use character U+E000 as `prefix`, so that the decoder writes spaces between all tokens: no token
    # begins with U+E000.
    steps = [decoders.WordPiece(prefix="\ue000", cleanup=False), decoders.Fuse()]
    if joiner is not None:
        steps.append(decoders.Replace(Regex(f"{joiner}( |$)"), ""))
    backend.decoder = decoders.Sequence(steps)
    return imported_tokenizer(backend, ids, special, model_max_length=model_max_length)


def merging_tokenizer(
    ids: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    special: SpecialTokens = USUAL_TOKENS,
) -> PreTrainedTokenizerFast | None:
    """Create a tokenizer that splits texts at spaces, and splits the words with the merges of subword-nmt or
    fastBPE. The last token of a word ends with `END_OF_WORD`. Return None if the vocabulary lacks a token of
    the merges, because the library `tokenizers` does not support tokens without an id.
    """
    needed = {token for left, right in merges for token in (left, right, left + right)}
    if not needed <= ids.keys():
        return None
    model = models.BPE(dict(ids), list(merges), unk_token=special.unknown, end_of_word_suffix=END_OF_WORD)
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    backend.decoder = decoders.BPEDecoder(END_OF_WORD)
    return imported_tokenizer(backend, ids, special)


def imported_tokenizer(
    backend: Tokenizer,
    ids: Mapping[str, int],
    special: SpecialTokens = USUAL_TOKENS,
    *,
    model_max_length: int | None = None,
) -> PreTrainedTokenizerFast:
    """Create a fast tokenizer that appends `special.end` to each text."""
    backend.post_processor = processors.TemplateProcessing(
        single=["$A", special.end],
        pair=["$A", "$B", special.end],
        special_tokens=[(special.end, ids[special.end])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=special.start,
        pad_token=special.pad,
        eos_token=special.end,
        unk_token=special.unknown,
        model_max_length=model_max_length,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        **{IMPORTED_MARK: True},
    )


def tokenizer_pair(
    tokenizers: Iterable[PreTrainedTokenizerFast], vocabularies: Sequence[Collection[str]]
) -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]:
    """Return the source and the target tokenizer. If the source and the target tokenizer are equal, return
    the same object twice.
    """
    source, target = tokenizers
    if source.backend_tokenizer.to_str() == target.backend_tokenizer.to_str():
        target = source
    # Record whether the two tokenizers have the same token ids, because training and the export to
    # transformers.js need this information.
    target.init_kwargs[SHARED_IDS_MARK] = vocabularies[0] == vocabularies[1]
    return source, target
