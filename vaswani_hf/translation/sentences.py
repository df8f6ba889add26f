"""Splitting a text into sentences, by rules, and joining their translations as the text was laid out.

The rules know the abbreviations, initials, ordinals and quotation marks of European languages and the full stops of
Chinese and Japanese. A boundary that is missed only makes a sentence longer; one too many tears a sentence apart: where
a full stop is ambiguous there is no boundary.
"""

import re

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
# Words that begin a sentence after initials, acronyms and Roman numerals ("the U.S.", "Plan B.", "Ludwig II.").
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
# Neither is looked for again inside a run of its first characters, which would take the square of its length.
_LINE_BREAK = re.compile(r"(?<!\s)\s*[\n\r\x0b\x0c\x85\u2028\u2029]\s*")
_CLOSING = "\"'”’“‘»«›‹)\\]}"
# A candidate: full stops, then quotation marks and brackets that close, then white space; a full stop of Chinese or
# Japanese needs none. French puts a space before ».
_CANDIDATE = re.compile(
    rf"(?<![.!?…؟۔।])(?P<stop>[.!?…؟۔।]+)(?P<close>[{_CLOSING}]*(?:[ \u00a0\u202f]»(?=\s))?)(?P<space>\s+)"
    r"|[。！？｡]+[」』”’）)】》〉\"']*(?P<wide>\s*)"
)
_WIDE_STOPS = "。！？｡"
_OPENING = "\"'“„‘‚«»‹›([{¿¡–—-*•#"


def split_sentences(text: str) -> tuple[list[str], list[str]]:
    """The sentences of a text and the white space around them.

    Line breaks end a sentence. `separators[0] + sentences[0] + separators[1] + … + separators[-1]` is the text.

    Args:
        text: Any text.

    Returns:
        N sentences, none of them empty and none with white space around it, and N + 1 separators of white space: before
        the first, between any two, where it is empty in Chinese and Japanese, and after the last.
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
    """The text of these sentences.

    Args:
        sentences: N sentences, such as translations of those that `split_sentences` gave.
        separators: N + 1 separators, as it gave them. For an empty one between two sentences there is a space unless
            the one before ends as Chinese and Japanese sentences do.
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
        if is_wide or _is_boundary(line[start : candidate.start()], candidate, line[candidate.end() :], has_case):
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
