"""Generates two toy corpora, on which some recipes train without a download.

`number_pairs` generates numbers in English words and in German words. Each English number has exactly one
correct translation. In German a number is one word, and the ones precede the tens: "four hundred and
seventy-one thousand and five" is "vierhunderteinundsiebzigtausendfünf". Therefore the model must learn to
join words and to change the order of words.

`grammar_trees` generates English sentences with their constituency trees from a small grammar. Each sentence
has exactly one correct tree, because the words determine the tree:

- A determiner and its noun agree in number (singular or plural). A subject and its verb also agree in number.
- The words and the position of a prepositional phrase determine the parent node of the phrase in the tree. In
  "sees the man with the beard", the phrase "with the beard" belongs to "man". In "sees the man with the
  telescope", the phrase "with the telescope" belongs to the verb "sees". In the tree, a prepositional phrase
  that names a place belongs to the verb if the phrase comes after the verb. For example, in "sees the man in
  the garden", the phrase "in the garden" belongs to "sees". A phrase that names a place belongs to the noun
  before the phrase if the phrase precedes the verb ("the man in the garden sleeps").
- A relative clause after two nouns belongs to the noun that has the same number (singular or plural) as the
  verb of the clause. In "the dogs near the cat that bark", the clause "that bark" belongs to "dogs". In "the
  dogs near the cat that barks", the clause "that barks" belongs to "cat".
- "on" and "in" are particles in some sentences and prepositions in other sentences. In "puts the dog on", the
  word "on" is a particle. In "sleeps on Monday", the word "on" is a preposition.

The grammar generates no ambiguous sentences. For example, if an object has a relative clause, no
prepositional phrase with a place follows the object.

The corpora of this file are identical on every machine and in every Python version.
"""

import functools
import hashlib
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

from .trees import CLOSE, OPEN, WORD, Tree

Item = TypeVar("Item")

# The number of examples in the validation split, and also in the test split.
NUMBERS_HELD_OUT = 1000
TREES_HELD_OUT = 1000

# The training split contains all numbers below 100, because these numbers contain every number word except
# "hundred" and "thousand".
SMALLEST_HELD_OUT = 100

# Each number of the corpus is drawn as two integers: the number of thousands, and the remainder below 1000.
# For 471,005, the two integers are 471 and 5. Each integer is drawn from one of the ranges in `_RANGES`. The
# first range in `_RANGES` contains only zero. The second, third and fourth range contain the numbers with
# one, two and three digits.
_RANGES = (range(1), range(1, 10), range(10, 100), range(100, 1000))

_MAX_WORDS = 18
# The start symbols of the grammar: a statement (`S:`) has the probability 17/19, and a question (`SQ:`) has
# the probability 2/19.
_STARTS = ["S:"] * 17 + ["SQ:"] * 2

# Each line is a grammar rule: weight, left side, right side. The symbol `NP:base` is a constituent with the
# label NP. In the name of a symbol, the part after the colon distinguishes symbols that have the same label
# but different rules. The symbol `:base` has no label and adds no constituent to the tree. A symbol whose
# name has no colon is replaced by a word of the lexicon. In a rule, `#` stands for the letter `s` (singular)
# or `p` (plural). If a rule contains the character `#` several times, each `#` of the rule becomes the same
# letter. `@` stands for the other number: `p` (plural) if `#` is `s` (singular), and `s` if `#` is `p`.
# `~` stands for `s` (singular) or `p` (plural). If a rule contains several `~`, each `~` is replaced by `s`
# or `p` independently.
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

# Each line of the lexicon contains a symbol of the grammar, a part-of-speech tag, and words. The lexicon can
# have several lines for one symbol of the grammar.
_LEXICON = """
nouns NN dog cat bird horse man boy girl king queen doctor teacher farmer child sailor painter baker nurse
nouns NN driver student singer lion bear fox mouse cow
nounp NNS dogs cats birds horses men boys girls kings queens doctors teachers farmers children sailors
nounp NNS painters bakers nurses drivers students singers lions bears foxes mice cows
name NNP Anna Ben Clara David Emma Frank Greta Hugo
pronouns PRP he she it
pronounp PRP we they you
them PRP him her it us them
dets DT the the a this every
detp DT the the some these many
a DT the a
adj JJ old young small big happy sad quiet red green clever tired hungry

transitives VBZ sees finds follows helps likes knows watches hears paints visits calls meets greets draws
transitives VBZ catches
transitivep VBP see find follow help like know watch hear paint visit call meet greet draw catch
transitive VB see find follow help like know watch hear paint visit call meet greet draw catch
intransitives VBZ sleeps barks sings runs laughs waits smiles works dances shouts swims arrives
intransitivep VBP sleep bark sing run laugh wait smile work dance shout swim arrive
intransitive VB sleep bark sing run laugh wait smile work dance shout swim arrive
sayss VBZ says knows thinks hopes believes
saysp VBP say know think hope believe
givess VBZ gives shows brings sends
givesp VBP give show bring send
turnss VBZ turns puts picks takes
turnsp VBP turn put pick take
turn VB turn put pick take
iss VBZ is
isp VBP are
dos VBZ does
dop VBP do
will MD will can may

degree RB very quite rather too
manner RB loudly quietly slowly often here well
when RB today yesterday sometimes now
attribute NN beard tail hat scarf nose coat
instrument NN telescope camera brush stick rope lamp
place NN garden house park river forest kitchen street castle
day NNP Monday Tuesday Friday Sunday
part NN morning evening
with IN with without
in IN in near behind on
near IN near behind with
of IN of
on IN on before after
to TO to
that WDT that
complementizer IN that
particle RP on up in off
cc CC and or
. . .
? . ?
, , ,
"""


def english_words(number: int) -> str:
    """Write a number below 1,000,000 in British English: "one thousand one hundred and twenty-one"."""
    thousands, rest = divmod(number, 1000)
    if thousands == 0:
        return _words_below_1000(rest, "en")
    words = [_words_below_1000(thousands, "en"), "thousand"]
    if 0 < rest < 100:
        words.append("and")
    if rest > 0:
        words.append(_words_below_1000(rest, "en"))
    return " ".join(words)


def german_words(number: int) -> str:
    """Write a number below 1,000,000 as one German word, such as "eintausendeinhunderteinundzwanzig"."""
    thousands, rest = divmod(number, 1000)
    if thousands == 0:
        return _words_below_1000(rest, "de")
    word = _words_below_1000(thousands, "de")
    # Replace "eins" at the end of the thousands by "ein", because German writes "eintausend".
    if word.endswith("eins"):
        word = word.removesuffix("s")
    word += "tausend"
    if rest > 0:
        word += _words_below_1000(rest, "de")
    return word


@functools.cache
def _words_below_1000(number: int, language: str) -> str:
    # Call num2words only for numbers below 1000, because num2words writes a comma after "thousand", and
    # writes 101,000 as "einhunderteinstausend" instead of "einhunderteintausend". The cache of
    # `_words_below_1000` reduces the time for 30,000 pairs from 3 s to 0.1 s.
    from num2words import num2words

    return num2words(number, lang=language)


def num_digits(words: str) -> int:
    """Return the number of decimal digits of a number that is written in English words."""
    thousands, thousand, _ = words.partition(" thousand")
    digits = _num_digits_below_1000()[thousands]
    return digits + 3 if thousand else digits


@functools.cache
def _num_digits_below_1000() -> dict[str, int]:
    return {english_words(number): len(str(number)) for number in range(1000)}


def number_pairs(num_pairs: int, seed: int, split: str) -> list[dict[str, str]]:
    """Draw random integers that belong to the split `split`, such as "train". The `source` is in English
    words, and the `target` is one German word.

    A number consists of the thousands and a remainder below 1000. Each of the two parts has 0 to 3 digits,
    which gives 16 combinations of digit counts. In the split "train", the 16 combinations of digit counts are
    about equally probable. If all numbers were equally probable, 90 % of the drawn numbers would have six
    digits. Only the split "train" can contain a number several times. A number occurs again only after all
    other numbers with equally many digits in both parts (thousands and remainder).

    A number is in the same split for every seed. The split "validation" contains about 5 % of all numbers,
    and the split "test" contains about another 5 %. The split "train" contains every number that is in
    neither "validation" nor "test", including all numbers below 100. A larger `num_pairs` only adds pairs at
    the end of the list.
    """
    numbers = _draw_numbers(random.Random(seed), is_endless=split == "train")
    numbers_of_split = (number for number in numbers if _split_of_number(number) == split)
    return [
        {"source": english_words(number), "target": german_words(number)}
        for number in itertools.islice(numbers_of_split, num_pairs)
    ]


def number_split(train_size: int, seed: int, split: str) -> list[dict[str, str]]:
    """Return the sentence pairs of one split of the toy corpus `numbers`."""
    return number_pairs(train_size if split == "train" else NUMBERS_HELD_OUT, seed, split)


def _split_of_number(number: int) -> str:
    return "train" if number < SMALLEST_HELD_OUT else _split_of(str(number))


def _split_of(text: str) -> str:
    # Use SHA-256 instead of `hash`, because the result of `hash` differs between Python processes.
    part = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 20
    return {0: "test", 1: "validation"}.get(part, "train")


def _draw(choices: Sequence[Item], generator: random.Random) -> Item:
    # Of the methods of `random.Random`, call only `random`, because `random` returns the same numbers in
    # every Python version. The results of `choice` and `shuffle` can differ between Python versions.
    return choices[int(generator.random() * len(choices))]


def _draw_numbers(generator: random.Random, *, is_endless: bool) -> Iterator[int]:
    """Yield random numbers from 0 to 999,999. If `is_endless` is True, the iterator never ends, and repeats
    numbers.
    """
    shapes = [
        _numbers_of_shape(thousands, rests, generator, is_endless)
        for thousands, rests in itertools.product(_RANGES, _RANGES)
    ]
    while shapes:
        shape = _draw(shapes, generator)
        number = next(shape, None)
        if number is None:
            shapes.remove(shape)
        else:
            yield number


def _numbers_of_shape(
    thousands: range,
    rests: range,
    generator: random.Random,
    is_endless: bool,
) -> Iterator[int]:
    yield from _shuffle(thousands, rests, generator)
    while is_endless:
        yield from _shuffle(thousands, rests, generator)


def _shuffle(thousands: range, rests: range, generator: random.Random) -> Iterator[int]:
    """Yield the numbers `1000 * t + r`, `t` from `thousands` and `r` from `rests`, in random order.

    The Fisher-Yates shuffle stores only the numbers that it has moved. Therefore the function yields the
    first number immediately, even if there are 810,000 numbers.
    """
    moved: dict[int, int] = {}
    for last in reversed(range(len(thousands) * len(rests))):
        pick = int(generator.random() * (last + 1))
        place = moved.get(pick, pick)
        moved[pick] = moved.pop(last, last)
        thousand, rest = divmod(place, len(rests))
        yield 1000 * thousands[thousand] + rests[rest]


def grammar_trees(num_trees: int, seed: int, split: str) -> list[Tree]:
    """Generate the constituency trees of random sentences of one split. All sentences are different.

    A sentence is in the same split for every seed. The splits "validation" and "test" have about 5 % of the
    sentences each. A larger `num_trees` only adds trees at the end of the list.
    """
    generator = random.Random(seed)
    trees: dict[str, Tree] = {}
    while len(trees) < num_trees:
        tree = _draw_tree(generator)
        if tree is not None and _split_of(tree.sentence) == split:
            trees.setdefault(tree.sentence, tree)
    return list(trees.values())


def tree_split(train_size: int, seed: int, split: str) -> list[Tree]:
    """Return the constituency trees of one split of the toy corpus `trees`."""
    return grammar_trees(train_size if split == "train" else TREES_HELD_OUT, seed, split)


def _draw_tree(generator: random.Random) -> Tree | None:
    """Draw a random tree. Return None if the sentence of the tree has more than `_MAX_WORDS` words."""
    rules = _read_rules()
    lexicon = _read_lexicon()
    symbols: list[str] = []
    words: list[str] = []
    tags: list[str] = []
    # The symbols that are not expanded yet. The last symbol in `pending` is expanded next.
    pending = [_draw(_STARTS, generator)]
    while pending:
        # Draw the letter `s` or `p` (singular or plural) for every grammar symbol, even for a symbol without
        # the placeholder `~`. The published scores belong to the corpus that results from this sequence of
        # random numbers.
        symbol = pending.pop().replace("~", _draw("sp", generator))
        if symbol == CLOSE:
            symbols.append(CLOSE)
        elif symbol in lexicon:
            tag, word = _draw(lexicon[symbol], generator)
            symbols.append(WORD)
            words.append(word)
            tags.append(tag)
            if len(words) > _MAX_WORDS:
                return None
        else:
            label, _, _ = symbol.partition(":")
            if label:
                symbols.append(OPEN + label)
                pending.append(CLOSE)
            pending += reversed(_draw(rules[symbol], generator))
    return Tree(tuple(symbols), tuple(words), tuple(tags))


@functools.cache
def _read_rules() -> dict[str, list[list[str]]]:
    """Map the left side of each grammar rule to a list of right sides. A rule with the weight `w` occurs `w`
    times in the list.
    """
    rules: dict[str, list[list[str]]] = {}
    for line in filter(None, _RULES.splitlines()):
        numbers = [("s", "p"), ("p", "s")] if "#" in line else [("s", "p")]
        for number, other_number in numbers:
            rule = line.replace("#", number).replace("@", other_number)
            left, _, right = rule.partition(" -> ")
            weight, symbol = left.split()
            rules.setdefault(symbol, []).extend([right.split()] * int(weight))
    return rules


@functools.cache
def _read_lexicon() -> dict[str, list[tuple[str, str]]]:
    """Return a dict that maps each symbol of the lexicon to a list of pairs (part-of-speech tag, word)."""
    lexicon: dict[str, list[tuple[str, str]]] = {}
    for line in filter(None, _LEXICON.splitlines()):
        symbol, tag, *words = line.split()
        lexicon.setdefault(symbol, []).extend((tag, word) for word in words)
    return lexicon
