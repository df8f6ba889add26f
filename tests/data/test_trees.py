"""Trees are read, cleaned, linearised and restored; an error about a wrong tree names the line."""

import gzip

import pytest
from factories import tiny_tokenizer
from sentences import refused

from vaswani_hf.checkpoint.tokenizers import is_tree_tokenizer, load_tokenizers, save_tokenizers
from vaswani_hf.data.trees import (
    read_treebank,
    read_trees,
    tree_from_symbols,
    tree_from_text,
    treebank_files,
)
from vaswani_hf.parsing.parser import decode_tree
from vaswani_hf.tasks.parsing import load_treebank, train_tree_tokenizer

PENN = """*x*x*x* a header of old files *x*x*x*

( (S
    (NP-SBJ-1 (DT The) (NN dog))
    (VP (VBD was)
      (VP (VBN seen)
        (NP (-NONE- *-1))
        (PP-LOC=2 (IN in)
          (NP|ADJP (DT the) (NN garden)))))
    (. .)))
( (S (NP-SBJ (-NONE- *)) (VP (VB Go)) (-LRB- -LRB-) (ADVP (RB now)) (-RRB- -RRB-)))
"""


def test_a_penn_file_loses_traces_function_tags_and_wrappers():
    assert list(map(str, read_trees(PENN.split("\n"), "wsj.mrg"))) == [
        "(S (NP (DT The) (NN dog)) (VP (VBD was) (VP (VBN seen) (PP (IN in) (NP (DT the) (NN garden))))) (. .))",
        "(S (VP (VB Go)) (-LRB- -LRB-) (ADVP (RB now)) (-RRB- -RRB-))",
    ]


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("(NN dog)", "(TOP (NN dog))"),
        ("( (NN dog))", "(TOP (NN dog))"),
        ("(TOP (ROOT (FRAG (NN dog))))", "(FRAG (NN dog))"),
        ("( (S (NN a)) (. .))", "(TOP (S (NN a)) (. .))"),
        ("(S (NP (NP (NN a))))", "(S (NP (NP (NN a))))"),
        ("(S ((NN a) (NN b)) (WHNP-1 (WP c)))", "(S (NN a) (NN b) (WHNP (WP c)))"),
        ("(S (NP (NP (-NONE- *)) (SBAR (-NONE- 0))) (VP-TPC-1 (VB a)))", "(S (VP (VB a)))"),
        ("(S (X-=1 (NN|VB a)) (-- --) (PRP$ b))", "(S (X (NN a)) (-- --) (PRP$ b))"),
        ("(S (CD 1\u00a0000))", "(S (CD 1\u00a0000))"),
    ],
)
def test_labels_and_brackets_are_cleaned(text, cleaned):
    assert str(tree_from_text(text)) == cleaned
    # Cleaning a clean tree changes nothing.
    assert str(tree_from_text(cleaned)) == cleaned


def test_a_tree_is_its_symbols_over_its_words():
    tree = tree_from_text("(S (NP (DT the) (NN dog)) (VP (VBZ barks)))")
    assert tree.symbols == ("(S", "(NP", "XX", "XX", ")", "(VP", "XX", ")", ")")
    assert tree.constituents == [("NP", 0, 2), ("VP", 2, 3), ("S", 0, 3)]
    assert tree_from_symbols(tree.words, tree.symbols, tree.tags) == tree
    assert str(tree_from_symbols(["f(x)"], ["(S", "XX", ")"])) == "(S (XX f-LRB-x-RRB-))"
    assert tree_from_text("(S (-LRB- -LRB-) (NN a\u00a0b) (-RRB- -RRB-))").sentence == "( a_b )"


@pytest.mark.parametrize(
    "symbols",
    ["(S XX", "(S XX ) )", "XX", "(S ) XX", "(S (NP ) XX )", "(S XX ) (S XX )", "(S XX XX )", ")", ""],
)
def test_symbols_that_are_no_tree_over_a_word_are_refused(symbols):
    with pytest.raises(ValueError, match="^The symbols must be a tree"):
        tree_from_symbols(["dog"], symbols.split())


NO_TREES = [
    (
        "(S (NN a))\n(S (NP (NN b))\n(S (NN c))",
        "line 2: the tree that begins here lacks a closing bracket before the next tree begins in line 3; add a closing bracket, or "
        "indent the lines that continue a tree.",
    ),
    (
        "(S (NN a))\n( (S\n  (NP (NN b))",
        "line 2: the tree that begins here lacks 2 closing brackets at the end of the file; add 2 closing brackets, or indent the "
        "lines that continue a tree.",
    ),
    (
        "(S (NN a)))",
        "line 1: a closing bracket has no opening bracket; remove the closing bracket, or add the opening bracket.",
    ),
    ("\n(S (NP the dog))", "line 2: the word 'the' has no tag of its own; write each word as (TAG word)."),
    ("(S (NP (NN a) b))", "line 1: the word 'b' has no tag of its own; write each word as (TAG word)."),
    ("(S (NN a (NN b)))", "line 1: the word 'a' has no tag of its own; write each word as (TAG word)."),
    (
        "(S (NP) (NN a))",
        "line 1: the bracket `(NP)` has no word in it; write (TAG word), or remove the bracket.",
    ),
    (
        "the dog",
        "line 1: 'the' stands outside of the brackets of a tree; remove it, or put it into brackets.",
    ),
]


@pytest.mark.parametrize(("text", "message"), NO_TREES)
def test_text_that_is_no_tree_is_named_with_file_and_line(text, message):
    with refused(f"x.mrg, {message}"):
        list(read_trees(text.split("\n"), "x.mrg"))


def test_depth_is_no_problem():
    tree = tree_from_text("(S " * 5000 + "(NN a)" + ")" * 5000)
    assert len(tree.constituents) == 5000 and tree_from_text(str(tree)) == tree


def test_files_patterns_and_folders_of_a_treebank(tmp_path):
    (tmp_path / "02" / "a").mkdir(parents=True)
    for name, label in (("02/b.mrg", "B"), ("02/a/c.mrg", "C"), ("02/notes.txt", "N"), ("one.txt", "T")):
        (tmp_path / name).write_text(f"({label} (NN a))\n(S (-NONE- *))\n", encoding="utf-8")
    (tmp_path / "two.txt.gz").write_bytes(gzip.compress(b"(G (NN a))"))
    names = [str(tmp_path / "0[2]"), str(tmp_path / "one.txt"), str(tmp_path / "*.gz")]
    assert [
        str(tree)[1] for path in treebank_files(names) for tree in read_treebank(path) if tree.words
    ] == list("CBTG")
    pairs = load_treebank(names[:1])
    assert pairs["source"] == ["a", "", "a", ""] and pairs["target"] == ["(C (NN a))", "", "(B (NN a))", ""]
    for name in ("none.mrg", "*.none", "two"):
        with pytest.raises(
            FileNotFoundError, match=r"^`trees` must be (an existing file|a folder with \.mrg files), but"
        ):
            treebank_files([str(tmp_path / name)])
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ValueError, match=r"empty\.txt must hold trees in brackets, but there are none\.$"):
        load_treebank([str(tmp_path / "empty.txt")])


def test_the_tokenizer_of_trees_reads_trees_and_survives_a_save(tmp_path):
    trees = [
        "(S (NP (DT the) (NN dog)) (VP (VBZ barks)) (. .))",
        "(S (VP (VB (go))) )".replace("(go)", "-LRB-"),
    ]
    tokenizer = train_tree_tokenizer(trees, 64)
    source = tiny_tokenizer(["the dog barks"], 300)
    save_tokenizers(source, tokenizer, tmp_path)
    for one in (tokenizer, load_tokenizers(tmp_path)[1]):
        ids = one(text_target="(S (NP (DT </s>) (NN 日本)) (VP (VBZ <s>)) (. .))")["input_ids"]
        assert one.convert_ids_to_tokens(ids) == "(S (NP DT NN ) (VP VBZ ) . ) </s>".split()
        assert decode_tree(one, ids, list("abcd")) == tree_from_text(
            "(S (NP (DT a) (NN b)) (VP (VBZ c)) (. d))"
        )
        assert one.convert_ids_to_tokens(one("(NEW (NN a))")["input_ids"]) == ["<unk>", "NN", ")", "</s>"]
        assert is_tree_tokenizer(one) and not is_tree_tokenizer(source)
