"""Constituency parsing (Section 6.3 of the paper): the model translates a sentence into its linearised
tree.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset, IterableDataset
from pydantic import Field
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ..checkpoint.files import TREES_FILE
from ..checkpoint.results import DataRecord
from ..checkpoint.tokenizers import TREE_MARK, Tokenizers, is_tree_tokenizer
from ..data.corpus_cache import explain_cache_errors
from ..data.loading import PairSource, dataset_of_generator, load_pairs
from ..data.tokenizer_training import (
    SPECIAL_TOKENS,
    train_on_sides,
    training_texts,
    with_transformers_interface,
)
from ..data.toy_corpora import tree_split
from ..data.trees import CLOSE, Tree, read_treebank, tree_from_text, treebank_files
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..parsing.bracketing import evaluate_parser, trees_as_lines
from ..parsing.parser import Parser
from ..settings.data import DataSettings, Files
from ..settings.keys import recipe_key
from ..settings.sections import TokenizerSettings
from ..version import __version__
from .base import PAPER, CardWords, Scores, Task, language_of

# The number of target symbols for the treebank of the Wall Street Journal: 26 labels, 45 parts of speech, the
# closing bracket, and 4 special tokens.
_WALL_STREET_JOURNAL_SYMBOLS = 76
# The tokenizer of trees reduces `(NN dog)` to `NN`. `_BEFORE_TAG` matches the bracket before the tag.
# `_AFTER_TAG` matches the word and the bracket after the tag.
_BEFORE_TAG = r"\((?=[^() ]+ [^() ]+\))"
_AFTER_TAG = r" [^() ]+\)"


class TreebankData(DataSettings):
    """The section `data` of a recipe for parsing: a treebank for each split.

    Keys such as `train_trees` name files with trees in bracket notation, or folders with .mrg files. A tree
    is on one line, or on several lines as in the Penn Treebank.
    """

    file_kinds = ("trees",)
    source_keys = ("corpus", "train_trees")

    corpus: Literal["trees"] | None = None
    """The corpus "trees" contains trees of a small grammar."""
    trees_train_size: int = recipe_key(20000, gt=0, unit="examples")
    """The number of training examples of `corpus: trees`."""
    language: str = Field(min_length=1)
    """The language of the sentences, such as en."""
    train_trees: Files = recipe_key(None, on_resume="free")
    """Files or folders of trees, for training."""
    validation_trees: Files = recipe_key(None, on_resume="free")
    """Files or folders of trees, for validation."""
    test_trees: Files = recipe_key(None, on_resume="continue")
    """Files or folders of trees, for the test at the end of the run."""


class TreebankTokenizer(TokenizerSettings):
    """The section `tokenizer` of a parsing recipe: the settings of the tokenizer for the sentences. The
    symbols of the trees have a separate vocabulary.
    """

    @property
    def planned_target_size(self) -> int:
        return _WALL_STREET_JOURNAL_SYMBOLS

    @property
    def has_one_vocabulary(self) -> bool:
        return False


class ParsingTask(Task):
    """The source of a pair is a sentence, and the target is the tree of the sentence in bracket notation."""

    name = "parsing"
    data_settings = TreebankData
    tokenizer_settings = TreebankTokenizer
    model_class = VaswaniForSeq2SeqLM
    outputs_file = TREES_FILE
    metrics = {"f1": "labelled bracketing F1"}
    test_scores = ("f1", "precision", "recall", "exact_match")
    card_words = CardWords(
        task_type="constituency-parsing",
        task_name="Constituency parsing",
        snippet=(
            "from vaswani_hf.parsing import Parser\n\n"
            'parser = Parser.from_pretrained("{repo_id}")\n'
            "print(parser({example}))"
        ),
        snippet_note=(
            "The trees are always well-formed and have exactly the words of the sentence. White space "
            "separates words. Tokenize sentences as in the treebank, with punctuation marks as separate words."
        ),
        use_after_generated_corpus=(
            "The model parses the sentences of a small grammar. The model shows how the package works, and has "
            "no other use."
        ),
        work="The model parses sentence by sentence.",
        warning="A tree can be well-formed and wrong. If a mistake can do harm, a person must check the tree.",
        test_counts={"sentences": "sentences"},
        scored_how="The scores compare labelled brackets by the rules of evalb.",
        examples="trees",
    )
    unusable = "must hold a tree with words, but none of its {count:,} trees has words."
    data: TreebankData

    def load_split(self, split: str) -> Dataset | None:
        if self.data.corpus:
            trees = tree_split(self.data.trees_train_size, self.seed, split)
            return load_pairs(PairSource(dataset=[_pair_of(tree) for tree in trees]))
        files = self.data.listed(f"{split}_trees")
        return load_treebank(files) if files else None

    def train_tokenizers(self, texts: Dataset | IterableDataset) -> Tokenizers:
        """Train a BPE tokenizer for the sentences, and build a tokenizer with the symbols of the trees."""
        length = self.data.max_length
        trees = training_texts(texts, ("target",), length)
        return train_on_sides(self.tokenizer, texts, ("source",), length), train_tree_tokenizer(trees, length)

    @classmethod
    def adopt_tokenizers(cls, source: PreTrainedTokenizerFast, target: PreTrainedTokenizerFast) -> Tokenizers:
        if not is_tree_tokenizer(target):
            raise ValueError("has no target vocabulary of trees")
        return source, target

    def score_test_split(self, folder: Path, test: Dataset, device: str) -> Scores:
        parser = Parser.from_pretrained(str(folder), device=device)
        gold = [tree_from_text(text) if text else Tree((), (), ()) for text in test["target"]]
        trees, scores = evaluate_parser(parser, gold, tokens_per_batch=self.evaluation.tokens_per_batch)
        line = (
            f"test: F1 {scores.f1:.2f} · precision {scores.precision:.2f} · recall {scores.recall:.2f} · "
            f"exact match {scores.exact_match:.1f} %"
        )
        return Scores(scores.as_json(), [line], trees_as_lines(trees))

    @classmethod
    def card_description(cls, record: DataRecord, data: TreebankData | None) -> str:
        return (
            f"An encoder-decoder Transformer as in {PAPER} that gives sentences in {language_of(record)} their "
            "constituency trees (Section 6.3)."
        )

    @classmethod
    def card_example(cls, record: DataRecord, data: TreebankData | None) -> str:
        return "the dog sees the cat ."

    @classmethod
    def card_scores(cls, test: dict[str, Any]) -> list[str]:
        if test.get("f1") is None:
            return []
        return [
            f"F1 {test['f1']:.2f}, precision {test['precision']:.2f}, recall {test['recall']:.2f}",
            f"exact match {test['exact_match']:.2f} %",
        ]


def _pair_of(tree: Tree) -> dict[str, str]:
    return {"source": tree.sentence, "target": str(tree)}


def load_treebank(names: list[str]) -> Dataset:
    """Load files into a dataset with the sentences in the column `source` and the trees in the column
    `target`. The library `datasets` caches the dataset. If a tree contains only traces (elements without
    words), the sentence and the tree are empty texts.
    """
    files = treebank_files(names)
    stamps = [(os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in files]
    # Pass the file names as a tuple, because the library `datasets` regards a list as a list of shards.
    arguments = {"files": tuple(files), "cache_key": (__version__, *stamps)}
    with explain_cache_errors():
        return dataset_of_generator(_tree_pairs, arguments)


def _tree_pairs(files: tuple[str, ...], cache_key: tuple) -> Iterator[dict[str, str]]:
    """For each tree in the files, yield a dict with the sentence and the tree. If `cache_key` changes, the
    library `datasets` reads the files again.
    """
    for file in files:
        for tree in read_treebank(file):
            yield _pair_of(tree)


def train_tree_tokenizer(
    trees: Iterable[str], model_max_length: int | None = None
) -> PreTrainedTokenizerFast:
    """Build the target tokenizer of a parser from trees. Each tree is one line of text.

    The tokens of a tree do not include its words, because the parser takes the words from the sentence. For
    example, the tokens of `(S (NP (DT the) (NN dog)) (VP (VBZ barks)))` are `(S (NP DT NN ) (VP VBZ ) )` and
    `</s>`. An unknown label or tag becomes `<unk>`.
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
    # Mark the tokenizer as a tree tokenizer in `init_kwargs`, because transformers saves `init_kwargs` with
    # the tokenizer.
    tokenizer.init_kwargs[TREE_MARK] = True
    return tokenizer


def _symbols_by_frequency(trees: Iterable[str], normalizer: normalizers.Normalizer) -> list[str]:
    """Return all symbols, such as `(NP` and `NN`, the most frequent first."""
    counts: Counter[str] = Counter()
    for tree in trees:
        symbols = normalizer.normalize_str(tree)
        counts.update(symbols.replace(CLOSE, f" {CLOSE} ").split())
    return sorted(counts.keys() - {CLOSE, *SPECIAL_TOKENS}, key=lambda symbol: (-counts[symbol], symbol))
