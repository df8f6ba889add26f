"""The target tokenizer of a parser: a tree on one line to the symbols of its linearisation, each one token."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from .tokenizer_training import SPECIAL_TOKENS, with_transformers_interface
from .trees import CLOSE, OPEN, WORD

# A word with its tag, as in (NN dog).
_LEAF = r"\([^() ]+ [^() ]+\)"


def train_tree_tokenizer(trees: Iterable[str], model_max_length: int | None = None) -> PreTrainedTokenizerFast:
    """The tokenizer whose vocabulary is the symbols of some trees.

    It reads trees as they are, `(S (NP (DT the) (NN dog)) (VP (VBZ barks)))`, and writes `(S (NP XX XX ) (VP XX ) )`: what
    word stands where is known from the sentence.

    Args:
        trees: Trees on one line each.
        model_max_length: The length, in tokens, to which `truncation=True` cuts.

    Returns:
        The tokenizer; `</s>` ends every tree, and a label that it has not seen is `<unk>`.
    """
    backend = Tokenizer(models.WordLevel({}, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(Regex(_LEAF), WORD)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\)"), "isolated"), pre_tokenizers.WhitespaceSplit()]
    )
    counts: Counter[str] = Counter()
    for tree in trees:
        normal = backend.normalizer.normalize_str(tree)
        counts.update(symbol for symbol in normal.replace(CLOSE, f" {CLOSE} ").split() if symbol not in (WORD, CLOSE))
    labels = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
    backend.model = models.WordLevel(
        {symbol: number for number, symbol in enumerate((*SPECIAL_TOKENS, WORD, CLOSE, *labels))}, unk_token="<unk>"
    )
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", SPECIAL_TOKENS.index("</s>"))]
    )
    return with_transformers_interface(backend, model_max_length)


def is_tree_tokenizer(tokenizer: Any) -> bool:
    """True for the target tokenizer of a parser, which is known by its vocabulary: brackets, words and nothing else.

    Args:
        tokenizer: Any tokenizer of transformers.
    """
    vocabulary = tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens)
    return {WORD, CLOSE} <= vocabulary and all(symbol.startswith(OPEN) for symbol in vocabulary - {WORD, CLOSE})


def symbols_of(tokenizer: Any, token_ids: list[int]) -> list[str]:
    """The symbols of a linearisation; special tokens are none.

    Args:
        tokenizer: The tokenizer of trees.
        token_ids: What a parser wrote.
    """
    return tokenizer.convert_ids_to_tokens(token_ids, skip_special_tokens=True)
