"""Divides a passage into sentences."""

import re
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ..model.text_rules_vaswani import split_sentences
from ..model.translations_vaswani import Translation
from .pieces import Passage, Piece
from .placeholders import pattern_of

# Matches white space that is not an ASCII character, such as a non-breaking space.
_OTHER_SPACE = re.compile(r"[^\S \t\n\r\f\v]")
# Punctuation that belongs to the preceding text, even if tags are between the text and the punctuation.
_END_PUNCTUATION = ".,;:!?…)]}"


@dataclass(slots=True)
class Sentence:
    """A sentence of a passage, and its translation.

    Attributes:
        pieces (list): The texts, tags and protected parts of the sentence, in the order of the
            document.
        separator (str): The white space between the previous sentence and this sentence.
        has_protected_parts (bool): False if the protected parts are removed from the sentence before the
            model translates the sentence.
        translation (Translation, optional): The translation of the sentence; None if the sentence is not
            translated.
        is_failed (bool): True if the model could not translate the sentence.
    """

    pieces: list[Piece] = field(default_factory=list)
    separator: str = ""
    has_protected_parts: bool = True
    translation: Translation | None = None
    is_failed: bool = False

    @property
    def needs_translation(self) -> bool:
        """True if the sentence contains a letter outside tags and protected parts."""
        return any(piece.kind == "text" and any(map(str.isalpha, piece.text)) for piece in self.pieces)

    def texts(self) -> list[str]:
        """Return the text that the model receives for each `Piece`. If `has_protected_parts` is False, the
        text of each protected part is empty, so that the model translates the sentence without its protected
        parts.
        """
        texts = [piece.text for piece in self.pieces]
        if self.has_protected_parts:
            return texts
        # True if a protected part was removed between the previous text and the current piece.
        is_after_protected_part = False
        for i, piece in enumerate(self.pieces):
            if piece.kind == "protected":
                texts[i] = ""
                is_after_protected_part = is_after_protected_part or piece.text != ""
            elif piece.kind == "text":
                if is_after_protected_part and _ends_word(piece.text[:1]):
                    _close_gap(texts, i)
                if texts[i]:
                    is_after_protected_part = False
        return texts

    def source(self) -> str:
        """Return the sentence as the model receives it, without tags."""
        return _OTHER_SPACE.sub(" ", "".join(self.texts())).strip()

    def can_keep_protected_parts(self) -> bool:
        """Return False if a protected part consists only of letters, or if its text also occurs
        elsewhere in the source sentence. Otherwise return True.
        """
        source = self.source()
        return all(
            not text.isalpha() and source.count(text) == number
            for text, number in self._protected_counts().items()
        )

    def is_faithful(self) -> bool:
        """Return True if each unchangeable part, such as a placeholder, occurs in the translation as many
        times as in the source.
        """
        assert self.translation is not None
        expected = self._protected_counts()
        found = Counter(pattern_of(expected).findall(self.translation.text))
        return all(found[text] == number for text, number in expected.items())

    def _protected_counts(self) -> Counter[str]:
        """Count how often each text of a protected part occurs. Leave out protected parts without a text."""
        return Counter(piece.text for piece in self.pieces if piece.kind == "protected" and piece.text)


def _close_gap(texts: list[str], i: int) -> None:
    """Remove the superfluous space or comma at the place of a removed protected part, such as the placeholder
    `{x}`. For example, "a {x}." becomes "a.", and "a, {x}, b" becomes "a, b". `texts[i]` is the text after
    the removed protected part. `texts[i]` is empty, or begins with white space or punctuation.
    """
    previous = next((j for j in range(i - 1, -1, -1) if texts[j]), None)
    if previous is not None:
        texts[previous] = texts[previous].rstrip()
        if texts[previous].endswith(","):
            texts[i] = texts[i].removeprefix(",")


def sentences_of(passage: Passage) -> list[Sentence]:
    """Divide a passage into sentences. Each sequence of break pieces, such as line breaks, becomes a separate
    `Sentence`.
    """
    pieces = _with_breaks_between_tags(_with_whole_words(passage))
    sentences = []
    # The white space after the last text.
    separator = ""
    for is_break, group in groupby(pieces, lambda piece: piece.kind == "break"):
        run = list(group)
        if is_break:
            sentences.append(Sentence(run, separator))
            separator = ""
        else:
            before, separator = _outer_space(run)
            sentences += _sentences_of_run(run, before)
    if _OTHER_SPACE.search(separator):
        # If a passage ends with white space such as `&nbsp;`, write the white space after the closing tags:
        # `<b>one&nbsp;</b>` becomes `<b>eins</b>&nbsp;`.
        sentences.append(Sentence([Piece("break")], separator))
    return sentences


def _with_whole_words(passage: Passage) -> list[Piece]:
    """If a protected part is inside a word, such as "&amp;" in "R&amp;D", extend the protected part to the
    whole word.
    """
    found: list[Piece] = []
    following = deque(passage.pieces)
    while following:
        piece = following.popleft()
        if piece.kind == "protected" and piece.text and found and following:
            before, after = found[-1], following[0]
            are_texts = before.kind == after.kind == "text"
            if are_texts and before.text[-1:].isalnum() and after.text[:1].isalnum():
                start = re.split(r"\s", before.text)[-1]
                end = re.split(r"\s", after.text)[0]
                found[-1] = Piece("text", text=before.text.removesuffix(start))
                following[0] = Piece("text", text=after.text.removeprefix(end))
                raw = passage.escape(start) + piece.raw + passage.escape(end)
                piece = Piece("protected", raw, start + piece.text + end)
        found.append(piece)
    return found


def _with_breaks_between_tags(pieces: Sequence[Piece]) -> list[Piece]:
    """Separate two words by an empty `Piece("break")` if only a closing tag and an opening tag are between
    the words, as in `<b>one</b><i>two</i>`.
    """
    found: list[Piece] = []
    # The first character of the next text after each piece.
    following = [" "]
    for piece in reversed(pieces[1:]):
        following.append(piece.text[:1] or following[-1])
    # True if a closing tag follows the last text.
    is_closed = False
    # True if the last text does not end with white space, and no break follows the last text.
    is_glued = False
    for piece in pieces:
        next_character = following.pop()
        if piece.text:
            is_closed = False
            is_glued = not piece.text[-1].isspace()
        elif piece.kind == "close":
            is_closed = True
        elif piece.kind == "break":
            is_glued = False
        elif piece.kind == "open" and is_closed and is_glued and not _ends_word(next_character):
            found.append(Piece("break"))
        found.append(piece)
    return found


def _ends_word(character: str) -> bool:
    return character.isspace() or character in _END_PUNCTUATION


def _outer_space(run: Sequence[Piece]) -> tuple[str, str]:
    """Return the white space at the start and at the end of the list of pieces `run`. No piece of `run` has
    the kind "break". The result for the start is "" if a protected part precedes the first text. The result
    for the end is "" if a protected part follows the last text.
    """
    contents = [piece for piece in run if piece.text or piece.kind == "protected"]
    before = after = ""
    if contents and contents[0].kind == "text":
        text = contents[0].text
        before = text[: len(text) - len(text.lstrip())]
    if contents and contents[-1].kind == "text":
        text = contents[-1].text
        after = text[len(text.rstrip()) :]
    return before, after


def _sentences_of_run(run: Sequence[Piece], separator: str) -> list[Sentence]:
    """Divide the list of pieces `run` into sentences. No piece of `run` has the kind "break"."""
    sentences = [Sentence(separator=separator)]
    cuts = _cuts_of(run)
    offset = 0
    for piece in run:
        start = offset
        offset += len(piece.text)
        if piece.kind != "text":
            sentences[-1].pieces.append(piece)
            continue
        # The text of the piece from the offset `start`.
        remaining = piece.text
        while cuts and cuts[0][1] <= offset:
            sentence_end, next_start = cuts.popleft()
            head = remaining[: next_start - start]
            # `num_kept` is how many characters of `head` belong to the sentence. `num_kept` is 0 if the
            # sentence ended in an earlier piece.
            num_kept = max(0, sentence_end - start)
            sentences[-1].pieces.append(Piece("text", text=head[:num_kept] or head))
            sentences.append(Sentence(separator=head[num_kept:] or " "))
            remaining = remaining[len(head) :]
            start = next_start
        sentences[-1].pieces.append(Piece("text", text=remaining))
    return sentences


def _cuts_of(run: Sequence[Piece]) -> deque[tuple[int, int]]:
    """Return the offset of the end of each sentence except the last, and the offset of the start of the next
    sentence. The offsets refer to the joined texts of the pieces.
    """
    # Replace protected parts by letters, because a full stop inside a protected part does not end a sentence.
    text = "".join("X" * len(piece.text) if piece.kind == "protected" else piece.text for piece in run)
    sentences, separators = split_sentences(text)
    cuts: deque[tuple[int, int]] = deque()
    end = len(separators[0])
    for sentence, separator in zip(sentences[:-1], separators[1:], strict=False):
        end += len(sentence)
        next_start = end + len(separator)
        cuts.append((end, next_start))
        end = next_start
    return cuts
