"""Splits texts into sentences, aligns words and detects loops, without a model.

Sentences. The rules that split sentences cover abbreviations, initials, ordinals and quotation marks of
European languages, and the full stops of Chinese and Japanese. The text is divided at a full stop only if the
full stop certainly ends a sentence, because half a sentence translates worse than two sentences in one
segment. A sentence without letters and digits, such as an emoji, is copied instead of translated.

Words. White space separates words. Each word of a translation is aligned with the source word that receives
the most attention from the tokens of the translated word.

Loops. Some models repeat a word or a phrase again and again if the input is short or unusual. `is_loop`
detects translations that repeat a word or a phrase again and again.

This file is saved with every checkpoint because the translator uses its functions. `vaswani export --format
html` converts the word lists, patterns and numbers of this file to JavaScript. In a pattern, the conversion
to JavaScript supports `\\s`, `\\w` and `\\d` only outside of square brackets.

In tensor shapes, S is the source length and T the target length, both in tokens.
"""

import operator
import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

# Abbreviations that never end a sentence (unlike "etc."). The entries lack the last full stop of the
# abbreviation: the entry "mr" stands for "Mr.".
ABBREVIATIONS = frozenset(
    # English
    "mr mrs ms messrs dr prof rev hon gen col maj capt cpt lt sgt cmdr adm gov sen rep pres mt ft st vs cf "
    "viz e.g i.e approx "
    # German
    "hr hrn fr frl dipl ing mag z.b d.h u.a u.u s.o s.u o.g i.d.r m.e v.a z.t z.zt bzw ca evtl ggf inkl "
    "exkl bspw sog vgl allg geb gest str med phil rer nat jur "
    # French, Spanish, Italian, Portuguese, Dutch
    "mme mlle mgr p.ex ex sr sra srta dra ud uds ee sig dott avv dhr mevr".split()
)

# Abbreviations that do not end a sentence if a number follows, as in "No. 5".
BEFORE_NUMBERS = frozenset(
    "no nos nr art abs abb bd kap tab fig figs eq vol ch sec pp p s pt tel anm ziff pos pág pag núm num n "
    "jan feb mar apr jun jul aug sep sept oct nov dec mär okt dez".split()
)

# Abbreviations with or without spaces between the letters, such as "i. e." and "i.e."
SPACED_ABBREVIATION = re.compile(
    r"(?<!\w)(?:z\.\s?B|d\.\s?h|u\.\s?a|u\.\s?U|z\.\s?T|s\.\s?[ou]|v\.\s?a|m\.\s?E|i\.\s?d\.\s?R|e\.\s?g|i\.\s?e|p\.\s?ex)$",
    re.IGNORECASE,
)

# Words that can begin a new sentence. After an initial or a Roman numeral with a full stop, as in "U.S." or
# "Plan B.", the sentence ends only if the next word is in `SENTENCE_STARTERS`.
SENTENCE_STARTERS = frozenset(
    "the a an he she it we they you i this that these those there here in on at but and so if when while as "
    "after before then his her their our my your its what who how why where der die das ein eine er sie es "
    "wir ihr ich dies diese dieser dieses im am auf aber und doch dann danach wenn als nach vor was wer wie "
    "warum il elle".split()
)

# German words that precede an ordinal number. A German ordinal number has a full stop: "am 3. Mai".
BEFORE_ORDINALS = frozenset(
    "am im vom zum zur beim der die das dem den des ab bis seit nach vor und oder jeder jede jedes "
    "jeden".split()
)

# German words that follow an ordinal number, such as "3. Mai".
AFTER_ORDINALS = frozenset(
    "januar jänner februar märz april mai juni juli august september oktober november dezember jahrhundert "
    "jahrhunderts jahrtausend weltkrieg weltkriegs bundesliga liga platz klasse stock kapitel auflage tag "
    "mal geburtstag".split()
)

# Without the look-behind, the time to find line breaks would grow with the square of the length of the white
# space.
LINE_BREAK = re.compile(r"(?<!\s)\s*[\n\r\x0b\x0c\x85\u2028\u2029]\s*")

_CLOSING = "\"'”’“‘»«›‹)\\]}"
# The closing marks that can follow a Chinese or Japanese full stop.
WIDE_CLOSING = "」』”’）)】》〉\"'"
WIDE_STOPS = "。！？｡"

# A possible end of a sentence: full stops, question marks or exclamation marks, then closing quotation marks
# and brackets, then white space. After a Chinese or Japanese full stop, white space is optional. In French a
# space precedes the closing quotation mark ».
CANDIDATE = re.compile(
    rf"(?<![.!?…؟۔।])(?P<stop>[.!?…؟۔।]+)(?P<close>[{_CLOSING}]*(?:[ \u00a0\u202f]»(?=\s))?)(?P<space>\s+)"
    rf"|[{WIDE_STOPS}]+[{WIDE_CLOSING}]*(?P<wide>\s*)"
)

# A possible ordinal number, without the last full stop.
ORDINAL = re.compile(r"\d{1,4}|(?:\d{1,2}\.)+\d{1,2}")

# An initial, several initials such as "U.S", or a Roman numeral, each without the last full stop.
INITIAL = re.compile(r"(?:(?!\d|_)\w\.)*(?!\d|_)\w|[IVXLCDM]+")

OPENING = "\"'“„‘‚«»‹›([{¿¡–—-*•#"
_NEXT_WORD = re.compile(rf"[{re.escape(OPENING)} ]*(?P<word>\w*)")


def split_sentences(text: str) -> tuple[list[str], list[str]]:
    """Return the N sentences of a text, and the N + 1 separators before, between and after the sentences. A
    line break ends a sentence.

    Each separator is white space or an empty string. The joined sentences and separators equal the text. No
    sentence is empty or has white space at its ends.
    """
    sentences: list[str] = []
    separators = [""]
    position = 0
    for line_break in [*LINE_BREAK.finditer(text), None]:
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


def has_words(text: str) -> bool:
    """Return True if a text contains a letter or a digit. A text without letters and digits is copied instead
    of translated.
    """
    return any(map(str.isalnum, text))


def copy_symbols(sentences: list[str], separators: list[str]) -> tuple[list[str], list[str]]:
    """Append each sentence without letters and digits to the separator (white space) before the sentence, so
    that the sentence is copied instead of translated.
    """
    kept = []
    around = separators[:1]
    for sentence, separator in zip(sentences, separators[1:], strict=True):
        if has_words(sentence):
            kept.append(sentence)
            around.append(separator)
        else:
            around[-1] += sentence + separator
    return kept, around


def join_sentences(sentences: list[str], separators: list[str]) -> str:
    """Join N translated sentences and N + 1 separators to a text."""
    text = separators[0]
    for number, sentence in enumerate(sentences):
        text += sentence + separator_after(number, sentence, separators)
    return text


def separator_after(number: int, sentence: str, separators: list[str]) -> str:
    """Return the separator after the translated sentence with the index `number`. Add a space if no white
    space follows the sentence. Add no space at the end of the text or after a Chinese or Japanese full stop.
    """
    separator = separators[number + 1]
    is_end = not separator and number + 2 == len(separators)
    is_glued = not is_end and not separator[:1].isspace()
    ends_wide = sentence.rstrip(WIDE_CLOSING).endswith(tuple(WIDE_STOPS))
    space = " " if is_glued and sentence and not ends_wide else ""
    return space + separator


def _split_line(line: str) -> list[tuple[str, str]]:
    """Return the sentences of a line, each with the white space that follows the sentence."""
    pieces = []
    start = len(line) - len(line.lstrip())
    if start:
        pieces.append(("", line[:start]))
    has_case = line != line.lower()
    # `ends` contains the start of the sentence and the ends of the refused candidates, but at most the last
    # three of these positions. The text from `ends[0]` to the next candidate contains the last two words
    # before the candidate. Do not pass the whole sentence to `_is_boundary`, because the time would grow with
    # the square of the number of candidates.
    ends = deque([start], maxlen=3)
    for candidate in CANDIDATE.finditer(line):
        if candidate.end() == len(line):
            break
        is_wide = candidate.group("wide") is not None
        end = candidate.start("wide" if is_wide else "space")
        if is_wide or _is_boundary(line[ends[0] : candidate.start()], candidate, has_case):
            pieces.append((line[start:end], line[end : candidate.end()]))
            start = candidate.end()
            ends.clear()
        ends.append(candidate.end())
    rest = line[start:].rstrip()
    pieces.append((rest, line[start + len(rest) :]))
    return pieces


def _is_boundary(before: str, candidate: re.Match, has_case: bool) -> bool:
    """Return True if a sentence ends at `candidate`. `candidate` is the match of a regular expression at a
    possible sentence end. `before` is the text directly before the match. `before` contains at least the last
    two words of the sentence, or the whole sentence if the sentence has only one word.
    """
    next_match: Any = _NEXT_WORD.match(candidate.string, candidate.end())
    start = next_match.start("word")
    if candidate.string[start : start + 1].islower() and (has_case or candidate.group("close")):
        return False
    if candidate.group("stop") != ".":
        return True
    words = before.split()
    word = words[-1].lstrip(OPENING) if words else ""
    previous = words[-2].lower() if len(words) > 1 else ""
    next_word = next_match["word"].lower()
    if word.lower() in ABBREVIATIONS or SPACED_ABBREVIATION.search(before):
        return False
    if word.lower() in BEFORE_NUMBERS and next_word[:1].isdecimal():
        return False
    if ORDINAL.fullmatch(word):
        # The sentence does not end after an ordinal number, such as "3." in German. A sentence does not end
        # after a number that is its first word, such as the "3." of a list item or a heading.
        is_ordinal = previous in BEFORE_ORDINALS or next_word in AFTER_ORDINALS
        return bool(previous) and not is_ordinal
    # A sentence ends after "I." if "I" is not the first word of the sentence. After another word, "I" is the
    # pronoun and not an initial.
    if word == "I" and previous:
        return True
    if INITIAL.fullmatch(word):
        return next_word in SENTENCE_STARTERS
    return True


def words_at(text: str, starts: Sequence[int]) -> list[int]:
    """Return the index of the word at or after each character position, or -1 if no word follows or the
    position is -1.
    """
    # `ended[i]` is the number of words that end before character i of the text. `ended[-1]` is the number of
    # words in the whole text.
    ended = [0]
    for character, following in zip(text, (text + " ")[1:], strict=True):
        ended.append(ended[-1] + (not character.isspace() and following.isspace()))
    return [ended[start] if start >= 0 and ended[start] < ended[-1] else -1 for start in starts]


def target_word_indices(
    token_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[str], list[int]]:
    """Return the words of a translation, and for each token the index of the word that contains the token.
    The index of a special token is -1.
    """
    special = set(tokenizer.all_special_ids)
    text = _decode(token_ids, tokenizer)
    starts = []
    for token_id, start in zip(token_ids, _token_starts(token_ids, text, tokenizer), strict=True):
        starts.append(-1 if token_id in special else start)
    return text.split(), words_at(text, starts)


def _token_starts(token_ids: Sequence[int], text: str, tokenizer: PreTrainedTokenizerBase) -> Iterator[int]:
    """For each token, yield the index in `text` of the token's first character. Decode only a few tokens at a
    time, so that the time grows linearly with the number of tokens.
    """
    # The text of the first `num_decoded` tokens is `text[:num_characters]`. The context consists of the
    # tokens from the index `context_start` to `num_decoded`.
    context_start = 0
    context = ""
    num_decoded = 0
    num_characters = 0
    for i in range(len(token_ids)):
        added = _decode(token_ids[context_start:i], tokenizer)[len(context) :]
        # If the tokens before index i end inside a character, their decoded text ends with a replacement
        # character. Therefore count only the characters of the newly decoded text `added` before its first
        # difference from `text[num_characters:]`.
        common = os.path.commonprefix([added, text[num_characters : num_characters + len(added)]])
        yield num_characters + len(common)
        if added and added == common:
            context_start = num_decoded
            num_decoded = i
            num_characters += len(added)
            context = _decode(token_ids[context_start:num_decoded], tokenizer)


# A byte-level vocabulary writes each byte as one visible character, as GPT-2 does. A byte that is a visible
# character in Latin-1 is written as this character. A byte that is no visible character in Latin-1 is written
# as a character with a code point of at least U+0100.
_VISIBLE_BYTES = (*range(33, 127), *range(161, 173), *range(174, 256))
_OTHER_BYTES = sorted({*range(256)} - {*_VISIBLE_BYTES})
_BYTE_OF_CHARACTER = {chr(byte): byte for byte in _VISIBLE_BYTES}
_BYTE_OF_CHARACTER |= {chr(256 + number): byte for number, byte in enumerate(_OTHER_BYTES)}


def token_texts(token_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    r"""Return the text of each token. For a byte-level tokenizer, the vocabulary entry "ĠlÃ¤uft" becomes "
    läuft". If a token contains only a part of a character, each byte of the part becomes an escape such as
    "\xc3".
    """
    # `convert_ids_to_tokens` returns None for a token id without a vocabulary entry. If the model has more
    # classes than the tokenizer has entries, some token ids have no entry.
    entries = [entry or "" for entry in tokenizer.convert_ids_to_tokens(list(token_ids))]
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None or decoder.decode(["Ã¤"]) != "ä":
        # If the tokenizer is not byte-level, return the vocabulary entries unchanged.
        return entries
    added = tokenizer.added_tokens_decoder
    texts = []
    for token_id, entry in zip(token_ids, entries, strict=True):
        if token_id in added or not _BYTE_OF_CHARACTER.keys() >= set(entry):
            texts.append(entry)
            continue
        content = bytes(_BYTE_OF_CHARACTER[character] for character in entry)
        texts.append(content.decode(errors="backslashreplace"))
    return texts


def _decode(token_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    return tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def align_words(
    attention: torch.Tensor, source_words: Sequence[int], target_words: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the pairs (source word, target word) of aligned words. Each target word is paired with the
    source word that receives the most attention from the target word.

    Row t of the attention weights [T, S] belongs to the decoder position that predicts target token t.
    `source_words` [S] and `target_words` [T] contain the word index of each token, or -1 for a token without
    a word. The attention to a source word is the maximum over the tokens of the source word. The attention
    from a target word is the sum over the tokens of the target word.
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
    """Return the indices of all tokens that are part of a word, and the word index of each of them."""
    tokens = [token for token, word in enumerate(words) if word >= 0]
    indices = [words[token] for token in tokens]
    return (
        torch.tensor(tokens, device=device, dtype=torch.int64),
        torch.tensor(indices, device=device, dtype=torch.int64),
    )


def to_pharaoh(pairs: Sequence[tuple[int, int]]) -> str:
    """Write pairs (source word, target word) in Pharaoh format, such as "0-0 1-2"."""
    return " ".join(f"{source}-{target}" for source, target in pairs)


def shift_alignment(alignment: str, num_target: int) -> str:
    """Add `num_target` to the target word indices of an alignment in Pharaoh format."""
    pairs = [pair.split("-") for pair in alignment.split()]
    return to_pharaoh([(int(source), int(target) + num_target) for source, target in pairs])


# The punctuation marks that `is_loop` removes from the ends of a word.
PUNCTUATION = ".,;:!?…'\"()„“”«»"

# A translation counts as a loop if a single word occurs at least `WORD_REPEATS` times in a row. Normal text
# can contain a word three times in a row ("very very very").
WORD_REPEATS = 4

PHRASE_REPEATS = 3

# A repeated part of a word, or of Chinese text, counts as a loop only if all repetitions together have at
# least `CHARACTERS_OF_LOOP` characters.
CHARACTERS_OF_LOOP = 20

# The maximum number of words or characters in a repeated unit. With `LONGEST_UNIT`, the time of `is_loop`
# grows linearly with the length of the text.
LONGEST_UNIT = 100

# The maximum number of words in a short text.
SHORT = 10


def is_loop(translation: str, source: str) -> bool:
    """Return True if a translation repeats a word or phrase in direct succession, much more often than the
    source.

    A loop repeats a word at least four times, or a phrase at least three times. A loop inside a word repeats
    a part of the word at least four times, with at least twenty characters in total. The function returns
    True only if the number of repeats is more than twice the largest number of repeats in the source.
    """
    words = [word.casefold().strip(PUNCTUATION) or word for word in translation.split()]
    repeats = max((count for length, count in _repeats(words) if count >= _least_repeats(length)), default=0)
    for word in translation.split():
        if len(word) >= CHARACTERS_OF_LOOP:
            runs = [count for length, count in _repeats(word) if count * length >= CHARACTERS_OF_LOOP]
            repeats = max([repeats, *(count for count in runs if count >= WORD_REPEATS)])
    return repeats > 0 and repeats > 2 * _most_repeats(source)


def ngram_size_without_loops(source: str) -> int:
    """Return the `no_repeat_ngram_size` for a second translation of `source`, if the first translation
    repeats a word or phrase in a loop.

    For long texts, the n-gram size is 3, because a correct long sentence can contain the same pair of tokens
    twice. For short texts, the n-gram size is 2. A small Multi30k model repeated a word or phrase in a loop
    for 20 of 950 short inputs. Each of the 20 inputs was translated a second time with
    `no_repeat_ngram_size`. With an n-gram size of 3, 19 of the 20 second translations repeated a word or
    phrase three times in a row. With an n-gram size of 2, only 2 of the second translations repeated a word
    or phrase three times in a row.
    """
    return 2 if len(source.split()) <= SHORT else 3


def _least_repeats(num_words: int) -> int:
    return WORD_REPEATS if num_words == 1 else PHRASE_REPEATS


def _most_repeats(source: str) -> int:
    """Return how often a word, phrase or part of a word occurs in a row: 3 for "ha, ha, ha" and "hahaha"."""
    characters = "".join(source.casefold().split())
    letters = "".join(character for character in characters if character.isalnum())
    repeats = [1]
    for text in (characters, letters):
        # Do not count a doubled letter as a repeat, because doubled letters are normal spelling.
        repeats += [count for length, count in _repeats(text) if length * count > 2]
    repeats += [count for _, count in _repeats(source.casefold().split())]
    return max(repeats)


def _repeats(symbols: Sequence[str]) -> Iterator[tuple[int, int]]:
    """For each n, yield n and the largest number of consecutive occurrences of the same n-gram in
    `symbols`.
    """
    for length in range(1, min(len(symbols) // 2, LONGEST_UNIT) + 1):
        is_same = bytes(map(operator.eq, symbols, symbols[length:]))
        yield length, 1 + max(map(len, is_same.split(b"\0"))) // length
