"""The target tokenizer of a parser: a tree on one line to the symbols of its linearisation, each one token."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from datasets import Dataset
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ..checkpoint.tokenizers import TREE_MARK
from ..recipe.schema import TokenizerSection
from .tokenizer_training import SPECIAL_TOKENS, texts_of, train_tokenizer, with_transformers_interface
from .trees import CLOSE, OPEN, WORD, Tree, tree_over

# Of a word with its tag, (NN dog), the tag stays: without the bracket before it, and without the word and the bracket behind it.
_BEFORE_TAG = r"\((?=[^() ]+ [^() ]+\))"
_BEHIND_TAG = r" [^() ]+\)"


def train_parser_tokenizers(
    section: TokenizerSection, pairs: Dataset, model_max_length: int
) -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]:
    """The tokenizers of a treebank: byte-level BPE of the sentences, and the symbols of their trees.

    Args:
        section: The recipe's choice for the sentences.
        pairs: The columns `source` and `target`.
        model_max_length: The length, in tokens, to which `truncation=True` cuts.

    Returns:
        The source and the target tokenizer.
    """
    source = train_tokenizer(
        texts_of(pairs, ("source",), model_max_length),
        section.vocab_size,
        lowercase=section.lowercase,
        normalization=section.normalization,
        model_max_length=model_max_length,
    )
    return source, train_tree_tokenizer(texts_of(pairs, ("target",), model_max_length), model_max_length)


def train_tree_tokenizer(trees: Iterable[str], model_max_length: int | None = None) -> PreTrainedTokenizerFast:
    """The tokenizer whose vocabulary is the symbols of some trees.

    It reads trees as they are, `(S (NP (DT the) (NN dog)) (VP (VBZ barks)))`, and writes `(S (NP DT NN ) (VP VBZ ) )`: what
    word stands where is known from the sentence.

    Args:
        trees: Trees on one line each.
        model_max_length: The length, in tokens, to which `truncation=True` cuts.

    Returns:
        The tokenizer; `</s>` ends every tree, and a label or tag that it has not seen is `<unk>`.
    """
    backend = Tokenizer(models.WordLevel({}, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(_BEFORE_TAG), ""), normalizers.Replace(Regex(_BEHIND_TAG), "")]
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\)"), "isolated"), pre_tokenizers.WhitespaceSplit()]
    )
    counts: Counter[str] = Counter()
    for tree in trees:
        normal = backend.normalizer.normalize_str(tree)
        counts.update(normal.replace(CLOSE, f" {CLOSE} ").split())
    symbols = sorted(counts.keys() - {CLOSE, *SPECIAL_TOKENS}, key=lambda symbol: (-counts[symbol], symbol))
    backend.model = models.WordLevel(
        {symbol: number for number, symbol in enumerate((*SPECIAL_TOKENS, CLOSE, *symbols))}, unk_token="<unk>"
    )
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", SPECIAL_TOKENS.index("</s>"))]
    )
    tokenizer = with_transformers_interface(backend, model_max_length)
    # What transformers saves with a tokenizer, and gives back to it.
    tokenizer.init_kwargs[TREE_MARK] = True
    return tokenizer


def written_tree(tokenizer: Any, token_ids: list[int], words: list[str]) -> Tree:
    """The tree that a parser wrote for a sentence.

    Args:
        tokenizer: The tokenizer of trees.
        token_ids: What the parser wrote; special tokens are no symbols.
        words: The words of the sentence.
    """
    written = tokenizer.convert_ids_to_tokens(token_ids, skip_special_tokens=True)
    is_tag = [symbol != CLOSE and not symbol.startswith(OPEN) for symbol in written]
    tags = [symbol for symbol, is_one in zip(written, is_tag, strict=True) if is_one]
    symbols = [WORD if is_one else symbol for symbol, is_one in zip(written, is_tag, strict=True)]
    return tree_over(words, symbols, tags)
