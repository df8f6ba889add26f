"""The target tokenizer of a parser. Each symbol of a linearised tree is one token."""

from collections import Counter
from collections.abc import Iterable

from datasets import Dataset
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ..checkpoint.tokenizers import TREE_MARK
from ..settings.sections import AnyTokenizer
from .tokenizer_training import SPECIAL_TOKENS, texts_of, train_tokenizer, with_transformers_interface
from .trees import CLOSE, OPEN, WORD, Tree, tree_over

# The tokenizer reads `(NN dog)` as `NN`. These patterns match what it removes: the bracket before the tag,
# and the word with the bracket after it.
_BEFORE_TAG = r"\((?=[^() ]+ [^() ]+\))"
_AFTER_TAG = r" [^() ]+\)"


def train_parser_tokenizers(
    section: AnyTokenizer, pairs: Dataset, model_max_length: int
) -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]:
    """The source and the target tokenizer of a treebank.

    The first is byte-level BPE of the sentences, the second has the symbols of the trees. `truncation=True`
    cuts to `model_max_length` tokens.
    """
    source = train_tokenizer(
        texts_of(pairs, ("source",), model_max_length),
        section.vocab_size,
        lowercase=section.lowercase,
        normalization=section.normalization,
        model_max_length=model_max_length,
    )
    target = train_tree_tokenizer(texts_of(pairs, ("target",), model_max_length), model_max_length)
    return source, target


def train_tree_tokenizer(trees: Iterable[str], model_max_length: int | None = None) -> PreTrainedTokenizerFast:
    """The tokenizer whose vocabulary is the symbols of some trees, each of them on one line.

    It reads `(S (NP (DT the) (NN dog)) (VP (VBZ barks)))` and writes `(S (NP DT NN ) (VP VBZ ) )`, because
    the words are known from the sentence. `</s>` ends every tree. An unknown label or tag is `<unk>`.
    """
    backend = Tokenizer(models.WordLevel({}, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(_BEFORE_TAG), ""), normalizers.Replace(Regex(_AFTER_TAG), "")]
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\)"), "isolated"), pre_tokenizers.WhitespaceSplit()]
    )
    vocabulary = [*SPECIAL_TOKENS, CLOSE, *_symbols_by_frequency(trees, backend.normalizer)]
    token_ids = {symbol: token_id for token_id, symbol in enumerate(vocabulary)}
    backend.model = models.WordLevel(token_ids, unk_token="<unk>")
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", token_ids["</s>"])]
    )
    tokenizer = with_transformers_interface(backend, model_max_length)
    # transformers saves these arguments with a tokenizer and passes them to the tokenizer that it loads.
    tokenizer.init_kwargs[TREE_MARK] = True
    return tokenizer


def _symbols_by_frequency(trees: Iterable[str], normalizer: normalizers.Normalizer) -> list[str]:
    """All labels with their brackets, and all tags."""
    counts: Counter[str] = Counter()
    for tree in trees:
        symbols = normalizer.normalize_str(tree)
        counts.update(symbols.replace(CLOSE, f" {CLOSE} ").split())
    return sorted(counts.keys() - {CLOSE, *SPECIAL_TOKENS}, key=lambda symbol: (-counts[symbol], symbol))


def decode_tree(tokenizer: PreTrainedTokenizerFast, token_ids: list[int], words: list[str]) -> Tree:
    """The tree over the words of a sentence that a parser wrote; special tokens are left out."""
    symbols = []
    tags = []
    for token in tokenizer.convert_ids_to_tokens(token_ids, skip_special_tokens=True):
        if token == CLOSE or token.startswith(OPEN):
            symbols.append(token)
        else:
            symbols.append(WORD)
            tags.append(token)
    return tree_over(words, symbols, tags)
