"""Rules for text, without a model: sentences, words and their alignment, loops.

Sentences. The rules know the abbreviations, initials, ordinals and quotation marks of European languages and
the full stops of Chinese and Japanese. A missed boundary only makes a sentence longer, but a wrong boundary
tears a sentence apart. Therefore an ambiguous full stop is no boundary.

Words. White space separates words. A word of a translation is aligned with the source word that its tokens
attend to most.

Loops. Models repeat a word or a phrase without end on short or unusual input.

This file travels with every checkpoint because the translator splits and aligns texts and detects loops.

Letters of shapes: S source length, T target length, both in tokens.
"""

import operator
import os
import re
from collections.abc import Iterator, Sequence

import torch
from transformers import PreTrainedTokenizerBase

# Abbreviations that never end a sentence, unlike "etc." or "Inc."; each without its last full stop.
_ABBREVIATIONS = frozenset(
    # English
    "mr mrs ms messrs dr prof rev hon gen col maj capt cpt lt sgt cmdr adm gov sen rep pres mt ft st vs cf viz e.g i.e "
    "approx "
    # German
    "hr hrn fr frl dipl ing mag z.b d.h u.a u.u s.o s.u o.g i.d.r m.e v.a z.t z.zt bzw ca evtl ggf inkl exkl bspw sog "
    "vgl allg geb gest str med phil rer nat jur "
    # French, Spanish, Italian, Portuguese, Dutch
    "mme mlle mgr p.ex ex sr sra srta dra ud uds ee sig dott avv dhr mevr".split()
)

# Abbreviations that do not end a sentence if a number follows: "No. 5" but "No. I do not."
_BEFORE_NUMBERS = frozenset(
    "no nos nr art abs abb bd kap tab fig figs eq vol ch sec pp p s pt tel anm ziff pos pág pag núm num n "
    "jan feb mar apr jun jul aug sep sept oct nov dec mär okt dez".split()
)

# Abbreviations whose letters stand apart.
_SPACED_ABBREVIATION = re.compile(
    r"\b(?:z\.\s?B|d\.\s?h|u\.\s?a|u\.\s?U|z\.\s?T|s\.\s?[ou]|v\.\s?a|m\.\s?E|i\.\s?d\.\s?R|e\.\s?g|i\.\s?e|p\.\s?ex)$",
    re.IGNORECASE,
)

# Words that begin a sentence after initials, acronyms and Roman numerals: "the U.S.", "Plan B.", "Karl V.".
_SENTENCE_STARTERS = frozenset(
    "the a an he she it we they you i this that these those there here in on at but and so if when while as after "
    "before then his her their our my your its what who how why where "
    "der die das ein eine er sie es wir ihr ich dies diese dieser dieses im am auf aber und doch dann danach wenn als "
    "nach vor was wer wie warum il elle".split()
)

# German ordinals: "am 3. Mai", "im 19. Jahrhundert", "der 2. Platz".
_BEFORE_ORDINALS = frozenset(
    "am im vom zum zur beim der die das dem den des ab bis seit nach vor und oder jeder jede jedes jeden".split()
)

_AFTER_ORDINALS = frozenset(
    "januar jänner februar märz april mai juni juli august september oktober november dezember jahrhundert jahrhunderts "
    "jahrtausend weltkrieg weltkriegs bundesliga liga platz klasse stock kapitel auflage tag mal geburtstag".split()
)

# The look-behinds of both patterns skip starts inside a run of white space or stops. Without them the time of
# a search grows with the square of the length of the run.
_LINE_BREAK = re.compile(r"(?<!\s)\s*[\n\r\x0b\x0c\x85\u2028\u2029]\s*")

_CLOSING = "\"'”’“‘»«›‹)\\]}"

# A candidate: full stops, then closing quotation marks and brackets, then white space. A full stop of Chinese
# or Japanese needs no white space. French puts a space before ».
_CANDIDATE = re.compile(
    rf"(?<![.!?…؟۔।])(?P<stop>[.!?…؟۔।]+)(?P<close>[{_CLOSING}]*(?:[ \u00a0\u202f]»(?=\s))?)(?P<space>\s+)"
    r"|[。！？｡]+[」』”’）)】》〉\"']*(?P<wide>\s*)"
)

_WIDE_STOPS = "。！？｡"

_OPENING = "\"'“„‘‚«»‹›([{¿¡–—-*•#"


def split_sentences(text: str) -> tuple[list[str], list[str]]:
    """The sentences of a text and the white space around them. A line break ends a sentence.

    N sentences and N + 1 separators: `separators[0] + sentences[0] + separators[1] + … + separators[-1]` is
    the text. No sentence is empty or has white space around it. Chinese and Japanese sentences have an empty
    separator between them.
    """
    sentences: list[str] = []
    separators = [""]
    position = 0
    for line_break in [*_LINE_BREAK.finditer(text), None]:
        end = line_break.start() if line_break else len(text)
        for sentence, separator in _split_line(text[position:end]):
            if sentence:
                sentences.append(sentence)
                separators.append(separator)
            else:
                separators[-1] += separator
        if line_break:
            separators[-1] += line_break.group()
            position = line_break.end()
    return sentences, separators


def join_sentences(sentences: list[str], separators: list[str]) -> str:
    """The text of N sentences, such as translations of sentences of `split_sentences`, and N + 1 separators.

    An empty separator between two sentences becomes a space, unless the first of the two ends as Chinese and
    Japanese sentences do.
    """
    text = separators[0]
    for number, (sentence, separator) in enumerate(zip(sentences, separators[1:], strict=True), 1):
        is_glued = not separator and number < len(sentences)
        ends_wide = sentence.rstrip("」』”’）)】》〉\"'").endswith(tuple(_WIDE_STOPS))
        text += sentence + (" " if is_glued and sentence and not ends_wide else separator)
    return text


def _split_line(line: str) -> list[tuple[str, str]]:
    """The sentences of a line, each with the white space that follows it."""
    pieces = []
    start = len(line) - len(line.lstrip())
    if start:
        pieces.append(("", line[:start]))
    has_case = line != line.lower()
    for candidate in _CANDIDATE.finditer(line):
        if candidate.end() == len(line):
            break
        is_wide = candidate.group("wide") is not None
        end = candidate.start("wide" if is_wide else "space")
        if is_wide or _is_boundary(
            line[start : candidate.start()], candidate, line[candidate.end() :], has_case
        ):
            pieces.append((line[start:end], line[end : candidate.end()]))
            start = candidate.end()
    rest = line[start:].rstrip()
    pieces.append((rest, line[start + len(rest) :]))
    return pieces


def _is_boundary(before: str, candidate: re.Match, after: str, has_case: bool) -> bool:
    """True if a sentence ends here; `before` reaches back to the beginning of the sentence."""
    following = after.lstrip(_OPENING + " ")
    if following[:1].islower() and (has_case or candidate.group("close")):
        return False
    if candidate.group("stop") != ".":
        return True
    words = before.split()
    word = words[-1].lstrip(_OPENING) if words else ""
    previous = words[-2].lower() if len(words) > 1 else ""
    next_word = re.match(r"\w*", following).group().lower()  # type: ignore[union-attr]
    if word.lower() in _ABBREVIATIONS or _SPACED_ABBREVIATION.search(before):
        return False
    if word.lower() in _BEFORE_NUMBERS and next_word[:1].isdigit():
        return False
    if re.fullmatch(r"\d{1,4}|(?:\d{1,2}\.)+\d{1,2}", word):
        # An ordinal, or, at the beginning, the number of a list item or a heading.
        is_ordinal = previous in _BEFORE_ORDINALS or next_word in _AFTER_ORDINALS
        return bool(previous) and not is_ordinal
    # The pronoun, not an initial.
    if word == "I" and previous:
        return True
    if re.fullmatch(r"(?:[^\W\d_]\.)*[^\W\d_]|[IVXLCDM]+", word):
        return next_word in _SENTENCE_STARTERS
    return True


def words_at(text: str, starts: Sequence[int]) -> list[int]:
    """The index of the word at or after each position in a text; -1 if there is none, or for position -1."""
    # For each character, and for the end, the number of words that end before it.
    ended = [0]
    for character, following in zip(text, (text + " ")[1:], strict=True):
        ended.append(ended[-1] + (not character.isspace() and following.isspace()))
    return [ended[start] if start >= 0 and ended[start] < ended[-1] else -1 for start in starts]


def target_word_indices(
    token_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[str], list[int]]:
    """The words of a translation, which white space separates, and [T] for each token the index of its word.

    The index of a special token is -1. A token may be a part of a character only.
    """
    special = set(tokenizer.all_special_ids)
    text = _decode(token_ids, tokenizer)
    starts: list[int] = []
    # Each step decodes only the tokens of the last step and those after it, so that the work grows linearly
    # with the length. `known` characters of the text come from the tokens before `read`; `before` is the text
    # of the tokens from `window` to `read`.
    window, read, known, before = 0, 0, 0, ""
    for i, token_id in enumerate(token_ids):
        begun = _decode(token_ids[window:i], tokenizer)[len(before) :]
        # The decoded text ends in a replacement character if the last token is the first part of a character.
        common = os.path.commonprefix([begun, text[known : known + len(begun)]])
        starts.append(-1 if token_id in special else known + len(common))
        if begun and begun == common:
            window, read, known = read, i, known + len(begun)
            before = _decode(token_ids[window:read], tokenizer)
    return text.split(), words_at(text, starts)


def _decode(token_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    return tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def align_words(
    attention: torch.Tensor, source_words: Sequence[int], target_words: Sequence[int]
) -> list[tuple[int, int]]:
    """For each target word the source word that it attends to most, as pairs (source word, target word).

    The attention [T, S] has in row t that of the position that predicts target token t. The words [S] and [T]
    of tokens are -1 for none. A source word counts with its most attended token, a target word with the sum
    over its tokens. There are no pairs if the source has no words.
    """
    num_source = max(source_words, default=-1) + 1
    num_target = max(target_words, default=-1) + 1
    if not num_source:
        return []
    columns, words = _tokens_with_words(source_words, attention.device)
    by_source_word = attention.new_zeros(len(attention), num_source)  # [T, source words]
    by_source_word.scatter_reduce_(1, words.expand(len(attention), -1), attention[:, columns], "amax")
    rows, words = _tokens_with_words(target_words, attention.device)
    by_word = attention.new_zeros(num_target, num_source).index_add_(0, words, by_source_word[rows])
    return [(source, target) for target, source in enumerate(by_word.argmax(dim=1).tolist())]


def _tokens_with_words(words: Sequence[int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens that belong to a word, and the words that they belong to, both int64."""
    tokens = [token for token, word in enumerate(words) if word >= 0]
    indices = [words[token] for token in tokens]
    return (
        torch.tensor(tokens, device=device, dtype=torch.int64),
        torch.tensor(indices, device=device, dtype=torch.int64),
    )


def to_pharaoh(pairs: Sequence[tuple[int, int]]) -> str:
    """The Pharaoh format of an alignment, "0-0 1-2 2-1": pairs source word - target word, from 0."""
    return " ".join(f"{source}-{target}" for source, target in pairs)


def shift_alignment(alignment: str, num_target: int) -> str:
    """The alignment, in Pharaoh format, of a translation after `num_target` other words."""
    pairs = [pair.split("-") for pair in alignment.split()]
    return to_pharaoh([(int(source), int(target) + num_target) for source, target in pairs])


# A loop repeats a word or a phrase at least so often in a row. Language repeats a word three times ("very
# very very"), but not a phrase.
_WORD_REPEATS = 4

_PHRASE_REPEATS = 3

# A loop without white space, as in Chinese or inside a word, has at least so many characters.
_CHARACTERS_OF_LOOP = 20

# The longest unit that is searched for, in words or characters. The limit makes the work grow linearly with
# the text.
_LONGEST_UNIT = 100

# A short input has at most so many words.
_SHORT = 10


def is_loop(translation: str, source: str) -> bool:
    """True if a translation repeats something in a row far more often than its source does.

    A loop repeats a word four times, a phrase three times, or a part of a word of twenty or more characters
    four times, and more than twice as often as the source repeats anything.
    """
    words = [word.casefold().strip(".,;:!?…'\"()„“”«»") or word for word in translation.split()]
    repeats = max((count for length, count in _repeats(words) if count >= _least_repeats(length)), default=0)
    for word in translation.split():
        if len(word) >= _CHARACTERS_OF_LOOP:
            runs = [count for length, count in _repeats(word) if count * length >= _CHARACTERS_OF_LOOP]
            repeats = max([repeats, *(count for count in runs if count >= _WORD_REPEATS)])
    return repeats > 0 and repeats > 2 * _most_repeats(source)


def ngram_size_without_loops(source: str) -> int:
    """The `no_repeat_ngram_size` with which a text is translated again after a loop.

    If no three tokens may occur twice, nothing repeats as often as in a loop. A longer sentence may repeat
    two tokens. Of 950 short inputs of a small Multi30k model 20 fell into a loop. With a size of 3, 19 of the
    new translations still repeated something three times in a row; with a size of 2, 2 of them did.
    """
    return 2 if len(source.split()) <= _SHORT else 3


def _least_repeats(num_words: int) -> int:
    return _WORD_REPEATS if num_words == 1 else _PHRASE_REPEATS


def _most_repeats(source: str) -> int:
    """How often the source repeats anything in a row, as in "ha ha ha", "ha, ha, ha" or "hahaha"."""
    characters = "".join(source.casefold().split())
    letters = "".join(character for character in characters if character.isalnum())
    repeats = [1]
    for text in (characters, letters):
        # Two equal letters in a row are normal spelling.
        repeats += [count for length, count in _repeats(text) if length * count > 2]
    repeats += [count for _, count in _repeats(source.casefold().split())]
    return max(repeats)


def _repeats(symbols: Sequence[str]) -> Iterator[tuple[int, int]]:
    """For each length of a unit the largest number of equal units in a row."""
    for length in range(1, min(len(symbols) // 2, _LONGEST_UNIT) + 1):
        is_same = bytes(map(operator.eq, symbols, symbols[length:]))
        yield length, 1 + max(map(len, is_same.split(b"\0"))) // length
