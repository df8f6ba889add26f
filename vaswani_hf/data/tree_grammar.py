"""The quick corpus of a parser: English sentences with their trees, drawn from a small grammar.

The trees are made here, so nothing is downloaded, and each sentence has exactly one right tree, which its words decide:

- Number agrees, between determiner and noun and between subject and verb.
- What a phrase with a preposition belongs to shows in its noun: "sees the man with the beard" is about the man, "sees the man
  with the telescope" about the seeing. A place behind a verb belongs to it ("sees the man in the garden"), a place before the
  verb to the noun ("the man in the garden sleeps").
- A relative clause behind two nouns belongs to the one that its verb agrees with: "the dogs near the cat that bark", "the dogs
  near the cat that barks".
- "up", "on" and "in" are particles or prepositions: "puts the dog on", "sleeps on Monday".

What could be said in two ways, such as a place behind an object with a relative clause, is not said.
"""

import hashlib
import random
from collections.abc import Iterator

from .trees import CLOSE, OPEN, WORD, Tree

_SPLITS = ("train", "validation", "test")
# Words; sentences that come out longer are drawn again.
_LONGEST = 18

# Weight, left side, right side. A symbol is LABEL:kind, and its label alone becomes a bracket; without a label it becomes none.
# `#` is a number, singular (s) or plural (p), the same one everywhere in a rule, and `@` the other one; `~` is drawn for itself.
_RULES = """
10 S: -> NP:subject# VP:# .
 2 S: -> PP:time , NP:subject# VP:# .
 1 S: -> ADVP:when , NP:subject# VP:# .
 2 S: -> S:clause , cc S:clause .
 2 SQ: -> do# NP:subject# VP:infinitive ?
 1 S:clause -> NP:subject# VP:short#

 6 NP:subject# -> :base#
 1 NP:subject# -> pronoun#
 1 NP:subjects -> name
 2 NP:subject# -> NP:base# PP:attribute
 2 NP:subject# -> NP:base# PP:place
 1 NP:subject# -> NP:base# PP:attribute PP:place
 1 NP:subject# -> NP:base# PP:of
 2 NP:subject# -> NP:base# SBAR:relative#
 2 NP:subject# -> NP:base# PP:near@ SBAR:agreeing#
 2 NP:subject# -> NP:base# PP:low@
 2 NP:subjectp -> NP:base~ cc NP:base~

 5 :base# -> det# noun#
 3 :base# -> det# adj noun#
 1 :base# -> det# ADJP:degree noun#
 1 NP:base# -> :base#
 1 ADJP:degree -> degree adj

 6 NP:object -> :base~
 1 NP:object -> name
 1 NP:object -> them
 3 NP:object -> NP:base~ PP:attribute
 1 NP:object -> NP:base~ PP:of
 1 NP:object -> NP:base~ cc NP:base~
 1 NP:clausal -> NP:base# SBAR:relative#

 1 PP:attribute -> with NP:attribute
 1 NP:attribute -> a attribute
 1 NP:attribute -> a adj attribute
 1 PP:instrument -> with NP:instrument
 1 NP:instrument -> a instrument
 1 NP:instrument -> a adj instrument
 1 PP:place -> in NP:place
 3 NP:place -> a place
 1 NP:place -> a adj place
 1 PP:of -> of NP:base~
 1 PP:near# -> near NP:base#
 1 PP:low# -> near NP:followed#
 1 NP:followed# -> NP:base# SBAR:agreeing#
 1 PP:time -> on NP:time
 1 NP:time -> day
 1 NP:time -> day part
 1 PP:to -> to NP:base~

 2 SBAR:relative# -> WHNP: S:relative#
 1 SBAR:relative# -> WHNP: S:gap
 1 SBAR:agreeing# -> WHNP: S:agreeing#
 1 WHNP: -> that
 1 S:relative# -> VP:inner#
 1 S:agreeing# -> VP:inner#
 1 S:gap -> NP:simple# VP:gap#
 2 NP:simple# -> :base#
 1 NP:simple# -> pronoun#
 1 VP:gap# -> transitive#
 1 VP:gap# -> transitive# PP:place
 2 VP:inner# -> intransitive#
 2 VP:inner# -> transitive# NP:simpleobject
 1 VP:inner# -> transitive# NP:simpleobject PP:place
 1 VP:inner# -> transitive# NP:simpleobject PP:instrument
 1 VP:inner# -> intransitive# ADVP:manner
 2 NP:simpleobject -> :base~
 1 NP:simpleobject -> NP:base~ PP:attribute

 2 VP:short# -> intransitive#
 2 VP:short# -> transitive# NP:simpleobject
 1 VP:short# -> is# ADJP:predicate
 1 VP:short# -> intransitive# PP:place

 4 VP:# -> :finite#
 1 VP:# -> will VP:infinitive
 1 VP:# -> is# ADJP:predicate
 1 VP:# -> says# SBAR:that
 1 VP:# -> VP:short# cc VP:short#
 1 ADJP:predicate -> adj
 1 ADJP:predicate -> degree adj
 1 SBAR:that -> complementizer S:clause

 1 :finite# -> intransitive#
 1 :finite# -> intransitive# :adjunct
 3 :finite# -> transitive# NP:object
 1 :finite# -> transitive# NP:clausal
 2 :finite# -> transitive# NP:object PP:instrument
 2 :finite# -> transitive# NP:object :adjunct
 1 :finite# -> gives# NP:object PP:to
 1 :finite# -> turns# PRT: NP:object
 1 :finite# -> turns# NP:simpleobject PRT:
 1 PRT: -> particle
 1 :adjunct -> PP:place
 1 :adjunct -> PP:time
 1 :adjunct -> ADVP:manner
 1 ADVP:manner -> manner
 1 ADVP:manner -> degree manner
 1 ADVP:when -> when

 1 VP:infinitive -> intransitive
 1 VP:infinitive -> intransitive :adjunct
 2 VP:infinitive -> transitive NP:object
 1 VP:infinitive -> transitive NP:clausal
 2 VP:infinitive -> transitive NP:object PP:instrument
 1 VP:infinitive -> turn NP:simpleobject PRT:
"""

_NOUNS = """
    dog cat bird horse man boy girl king queen doctor teacher farmer child sailor painter baker nurse driver student singer
    lion bear fox mouse cow
""".split()
_TRANSITIVE = "see find follow help like know watch hear paint visit call meet greet draw catch".split()
_INTRANSITIVE = "sleep bark sing run laugh wait smile work dance shout swim arrive".split()
_PLURALS = {"man": "men", "child": "children", "mouse": "mice", "fox": "foxes"}
_SINGULARS = {"watch": "watches", "catch": "catches"}


def _words(tag: str, words: str) -> tuple[str, tuple[str, ...]]:
    return tag, tuple(words.split())


def _verb(symbol: str, verbs: list[str]) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {
        f"{symbol}s": ("VBZ", tuple(_SINGULARS.get(verb, f"{verb}s") for verb in verbs)),
        f"{symbol}p": ("VBP", tuple(verbs)),
        symbol: ("VB", tuple(verbs)),
    }


# The tag and the words of each symbol that stands for a word.
_LEXICON = {
    **_verb("transitive", _TRANSITIVE),
    **_verb("intransitive", _INTRANSITIVE),
    **_verb("says", "say know think hope believe".split()),
    **_verb("gives", "give show bring send".split()),
    **_verb("turns", "turn put pick take".split()),
    "turn": _words("VB", "turn put pick take"),
    "nouns": ("NN", tuple(_NOUNS)),
    "nounp": ("NNS", tuple(_PLURALS.get(noun, f"{noun}s") for noun in _NOUNS)),
    "name": _words("NNP", "Anna Ben Clara David Emma Frank Greta Hugo"),
    "pronouns": _words("PRP", "he she it"),
    "pronounp": _words("PRP", "we they you"),
    "them": _words("PRP", "him her it us them"),
    "dets": _words("DT", "the the a this every"),
    "detp": _words("DT", "the the some these many"),
    "a": _words("DT", "the a"),
    "adj": _words("JJ", "old young small big happy sad quiet red green clever tired hungry"),
    "degree": _words("RB", "very quite rather too"),
    "manner": _words("RB", "loudly quietly slowly often here well"),
    "when": _words("RB", "today yesterday sometimes now"),
    "attribute": _words("NN", "beard tail hat scarf nose coat"),
    "instrument": _words("NN", "telescope camera brush stick rope lamp"),
    "place": _words("NN", "garden house park river forest kitchen street castle"),
    "day": _words("NNP", "Monday Tuesday Friday Sunday"),
    "part": _words("NN", "morning evening"),
    "with": _words("IN", "with without"),
    "in": _words("IN", "in near behind on"),
    "near": _words("IN", "near behind with"),
    "of": _words("IN", "of"),
    "on": _words("IN", "on before after"),
    "to": _words("TO", "to"),
    "that": _words("WDT", "that"),
    "complementizer": _words("IN", "that"),
    "particle": _words("RP", "on up in off"),
    "cc": _words("CC", "and or"),
    "iss": _words("VBZ", "is"),
    "isp": _words("VBP", "are"),
    "dos": _words("VBZ", "does"),
    "dop": _words("VBP", "do"),
    "will": _words("MD", "will can may"),
    ".": _words(".", "."),
    "?": _words(".", "?"),
    ",": _words(",", ","),
}


def _expansions() -> dict[str, list[tuple[str, ...]]]:
    """The right sides of each left side, as often as their weight says."""
    expansions: dict[str, list[tuple[str, ...]]] = {}
    for line in _RULES.split("\n"):
        if line:
            rule, _, right = line.partition(" -> ")
            weight, left = rule.split()
            for number, other in ("sp", "ps") if "#" in line else ("sp",):
                side, *symbols = (text.replace("#", number).replace("@", other) for text in (left, *right.split()))
                expansions.setdefault(side, []).extend([tuple(symbols)] * int(weight))
    return expansions


_EXPANSIONS = _expansions()
_START = ("S:",) * 17 + ("SQ:",) * 2


def grammar_trees(num_trees: int, seed: int, split: str) -> list[Tree]:
    """Sentences of one split with their trees, drawn at random, all of them different.

    A sentence belongs to one split whatever the seed: about 5 % each to "validation" and "test", the others to "train". The
    trees for a seed are the same on every machine, and a smaller `num_trees` gives the first of them.

    Args:
        num_trees (int): The number of trees.
        seed (int): Chooses which sentences of the split are drawn and in which order.
        split (str): "train", "validation" or "test".

    Raises:
        ValueError: If `num_trees` is not positive, or `split` is unknown.
    """
    if split not in _SPLITS:
        raise ValueError(f'`split` must be "train", "validation" or "test", but is {split!r}.')
    if num_trees < 1:
        raise ValueError(f"`num_trees` must be a positive integer, but is {num_trees}.")
    found: dict[str, Tree] = {}
    for tree in _drawn_trees(random.Random(seed)):
        sentence = " ".join(tree.words)
        if _split_of(sentence) == split:
            found.setdefault(sentence, tree)
        if len(found) == num_trees:
            break
    return list(found.values())


def _split_of(sentence: str) -> str:
    # SHA-256 rather than hash(), which may differ between Python versions; 20 parts of 5 % each.
    part = int.from_bytes(hashlib.sha256(sentence.encode()).digest()[:8], "big") % 20
    return {0: "test", 1: "validation"}.get(part, "train")


def _drawn_trees(generator: random.Random) -> Iterator[Tree]:
    while True:
        tree = _drawn_tree(generator)
        if tree is not None:
            yield tree


def _drawn_tree(generator: random.Random) -> Tree | None:
    """A tree, or None where its sentence comes out too long."""

    def drawn(choices: tuple | list):
        # random() is the only method whose sequence Python promises to keep from version to version.
        return choices[int(generator.random() * len(choices))]

    symbols, words, tags = [], [], []
    left = [drawn(_START)]
    while left:
        symbol = left.pop().replace("~", drawn(("s", "p")))
        if symbol == CLOSE:
            symbols.append(CLOSE)
        elif symbol in _LEXICON:
            tag, choices = _LEXICON[symbol]
            symbols.append(WORD)
            words.append(drawn(choices))
            tags.append(tag)
            if len(words) > _LONGEST:
                return None
        else:
            label = symbol.partition(":")[0]
            symbols += [OPEN + label] if label else []
            left += [CLOSE] if label else []
            left += reversed(drawn(_EXPANSIONS[symbol]))
    return Tree(tuple(symbols), tuple(words), tuple(tags))
