"""With any model, limit and search, the parser writes trees over exactly the words of a sentence."""

import itertools

import pytest
import torch
from factories import save_checkpoint, tiny_model
from sentences import refused

from vaswani_hf.data.tokenizer_training import train_tokenizer
from vaswani_hf.data.toy_corpora import grammar_trees
from vaswani_hf.data.trees import tree_from_symbols, tree_from_text
from vaswani_hf.parsing import Parser
from vaswani_hf.parsing.bracketing import evaluate_parser
from vaswani_hf.parsing.parser import WellFormedTrees
from vaswani_hf.tasks.parsing import train_tree_tokenizer
from vaswani_hf.translation import Translator

SENTENCES = [
    "dog",
    "the dog sees the cat .",
    "( a ) -LRB- x(y)z </s> XX",
    "Ünïcödé 日本\u00a0😀 (S )",
    "of " * 12,
]
WORDS = [len(sentence.split()) for sentence in SENTENCES]


@pytest.fixture(scope="module")
def tokenizers():
    trees = grammar_trees(60, 1, "train")
    source = train_tokenizer([tree.sentence for tree in trees], 300, model_max_length=64)
    return source, train_tree_tokenizer(map(str, trees), 64)


def untrained_parser(tokenizers, **fields) -> Parser:
    """An untrained parser, which would open brackets without end."""
    source, target = tokenizers
    model = tiny_model(
        vocab_size=len(source),
        decoder_vocab_size=len(target),
        share_encoder_decoder_embeddings=False,
        bos_token_id=target.bos_token_id,
        pad_token_id=target.pad_token_id,
        eos_token_id=target.eos_token_id,
        decoder_start_token_id=target.bos_token_id,
        **fields,
    )
    return Parser(model, source, target)


@pytest.fixture(scope="module")
def random_parser(tokenizers) -> Parser:
    return untrained_parser(tokenizers)


@pytest.mark.parametrize("limit", [{}, {"max_length_a": 0, "max_length_b": 20}, {"max_new_tokens": 15}])
@pytest.mark.parametrize("beams", [1, 2, 21])
def test_all_trees_are_well_formed_over_the_words(random_parser, beams, limit):
    trees = random_parser(SENTENCES, num_beams=beams, **limit)
    for tree, sentence, num_words in zip(trees, SENTENCES, WORDS, strict=True):
        most = limit.get("max_new_tokens") or limit.get("max_length_b") or 200
        assert len(tree.words) == num_words and len(tree.symbols) < most
        # Both functions that read trees accept the tree.
        assert tree_from_symbols(tree.words, tree.symbols, tree.tags) == tree == tree_from_text(str(tree)), (
            sentence
        )
    # The tree has the words of its own sentence.
    assert trees[2].words[:4] == ("-LRB-", "a", "-RRB-", "-LRB-") and trees[2].sentence.startswith(
        "( a ) ( x(y)z"
    )


def test_beams_that_are_drawn_are_trees_too(random_parser):
    for tree in random_parser(SENTENCES, do_sample=True, num_beams=3, max_new_tokens=40, seed=1):
        assert tree_from_symbols(tree.words, tree.symbols, tree.tags) == tree


def test_sentences_of_a_batch_have_the_trees_that_they_have_alone(random_parser):
    together = random_parser(SENTENCES, num_beams=4, max_new_tokens=30)
    assert together == [random_parser(sentence, num_beams=4, max_new_tokens=30) for sentence in SENTENCES]


def test_the_constraint_allows_exactly_the_beginnings_of_trees(tokenizers):
    _, tokenizer = tokenizers
    vocabulary = tokenizer.get_vocab()
    symbols = {
        name: vocabulary[name] for name in ("(S", "(NP", "DT", "NN", ")", "</s>", "<s>", "<pad>", "<unk>")
    }
    num_words, limit = 2, 10

    def is_tree(written):
        try:
            tree_from_symbols(["a"] * num_words, ["XX" if symbol == "DT" else symbol for symbol in written])
        except ValueError:
            return False
        return True

    trees = [
        (*written, "</s>")
        for length in range(limit)
        for written in itertools.product(("(S", "DT", ")"), repeat=length)
        if is_tree(written)
    ]
    beginnings = {tree[:length] for tree in trees for length in range(len(tree) + 1)}
    constraint = WellFormedTrees(tokenizer, [num_words], [limit])
    assert len(trees) == 10
    for written in sorted(beginnings - set(trees)):
        ids = torch.tensor([[0, *(symbols[symbol] for symbol in written)]])
        scores = constraint(ids, torch.zeros(1, len(vocabulary)))[0]
        allowed = {name for name, i in symbols.items() if scores[i] == 0}
        # The constraint does not depend on the labels, so one label is enough.
        expected = {symbol for symbol in ("(S", "DT", ")", "</s>") if (*written, symbol) in beginnings}
        expected |= {other for one, other in (("(S", "(NP"), ("DT", "NN")) if one in expected}
        assert allowed == expected, written


def test_no_sentence_has_no_tree(random_parser):
    assert random_parser("  ") is None
    assert random_parser(["", "a"], num_beams=1)[0] is None


def test_a_limit_that_no_tree_keeps_is_refused(random_parser):
    with refused(
        "A tree over 3 words has at least 6 symbols, but no more than 5 are allowed for 'a b c'; raise `max_new_tokens`, "
        "`max_length` or `max_length_b`."
    ):
        random_parser("a b c", max_new_tokens=5)
    assert str(random_parser("a b c", max_new_tokens=6)).count("(") == 4


@pytest.mark.parametrize(
    "settings", [{"no_repeat_ngram_size": 2}, {"min_new_tokens": 20}, {"suppress_tokens": [3]}]
)
def test_a_setting_that_forbids_symbols_is_refused_by_name(random_parser, settings, monkeypatch):
    (name, value), *_ = settings.items()
    message = f"`{name}` forbids symbols that a tree may need, and must be left out for a parser."
    with pytest.raises(ValueError, match=f"^{message}$"):
        random_parser("a b c", **settings)
    monkeypatch.setattr(random_parser.backend.generation_config, name, value)
    with pytest.raises(ValueError, match=f"^{message}$"):
        random_parser("a b c")


def test_a_beginning_of_a_tree_is_refused(random_parser):
    with pytest.raises(ValueError, match="^`target_prefixes` must be left out for a parser"):
        list(random_parser.parse(["a b", "a"], target_prefixes=["(S", None], max_length=30))


def test_a_parser_and_a_translator_are_told_apart(random_parser, tmp_path):
    translator = tmp_path / "translator"
    model = tiny_model(vocab_size=300, pad_token_id=1, eos_token_id=2, bos_token_id=0)
    tokenizers = random_parser.source_tokenizer, random_parser.target_tokenizer
    save_checkpoint(translator, model, tokenizers[0])
    save_checkpoint(tmp_path, random_parser.model, *tokenizers)
    loaded = Parser.from_pretrained(str(tmp_path), device="cpu")
    assert loaded(SENTENCES[1], max_new_tokens=20) == random_parser(SENTENCES[1], max_new_tokens=20)
    with refused(
        f"`model` must be a translation model, but '{tmp_path}' is a parser; it is used by `vaswani parse`, and by `Parser` of "
        "vaswani_hf.parsing."
    ):
        Translator.from_pretrained(str(tmp_path))
    with refused(
        f"`model` must be a parser, but '{translator}' is a translation model; it is used by `vaswani translate`, and by "
        "`Translator` of vaswani_hf.translation."
    ):
        Parser.from_pretrained(str(translator))


def test_the_parser_is_scored_on_sentences_of_any_words(random_parser):
    gold = [
        tree_from_text("(S (NP (-LRB- -LRB-) (NN 1\u00a0000) (-RRB- -RRB-)) (VP (VB go)))"),
        tree_from_text("(S (-NONE- *) (NN b))"),
    ]
    trees, scores = evaluate_parser(random_parser, gold, num_beams=1)
    assert scores.sentences == 2 and scores.gold_brackets == 4
    assert [tree.words for tree in trees] == [tree.words for tree in gold]


def test_a_sentence_longer_than_the_positions_is_refused(tokenizers):
    parser = untrained_parser(tokenizers, position_embedding="learned", max_position_embeddings=12)
    assert len(parser("a b c", num_beams=2).words) == 3
    with pytest.raises(
        ValueError,
        match=r"^Line 1 must have at most 12 tokens, the number of positions of the model, but has",
    ):
        parser("the dog sees " * 9)
