"""Translates documents with a function that writes capitals, and with functions that return wrong
translations.
"""

import random
import re
import sys
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from cases import cases
from sentences import rows

from vaswani_hf.markup import translate_markup
from vaswani_hf.markup.placeholders import PLACEHOLDER
from vaswani_hf.model.translations_vaswani import Translation

markdown_it = pytest.importorskip("markdown_it", reason="The extra `markup` is not installed.")
srt = pytest.importorskip("srt", reason="The extra `markup` is not installed.")
PLACEHOLDERS = ["{name}", "%s", "%(n)d", "{{x}}", "&copy;", "${a}", "%%"]


def shout(sentences):
    protected = r"(\{.*\}|%\(n\)d|%[sd]|\S*://\S*|\S+@\S+|`[^`]*`|f\(\))"
    texts = ["".join(re.split(protected, text)) for text in sentences]
    for number, text in enumerate(sentences):
        parts = re.split(protected, text)
        texts[number] = "".join(part if i % 2 else part.upper() for i, part in enumerate(parts))
    return [Translation(text, alignment=monotone(text)) for text in texts]


def monotone(text):
    return " ".join(f"{i}-{i}" for i in range(len(text.split())))


@pytest.mark.parametrize(("kind", "source", "target"), cases())
def test_a_document_keeps_its_markup(kind, source, target):
    assert translate_markup(source, kind, shout) == target


@pytest.mark.parametrize("kind", ["html", "markdown", "srt", "po", "template"])
def test_a_document_without_text_is_copied(kind):
    for text in ("", "\n", " \n\n"):
        assert translate_markup(text, kind, shout) == text


@pytest.mark.parametrize("ending", ["\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize(
    ("kind", "source", "target"),
    [
        ("html", "<p>one⏎two</p>⏎<pre>⏎</pre>⏎", "<p>ONE TWO</p>⏎<pre>⏎</pre>⏎"),
        ("markdown", "one⏎⏎# two⏎three  ⏎four⏎", "ONE⏎⏎# TWO⏎THREE  ⏎FOUR⏎"),
        ("srt", "1⏎00:00:01,000 --> 00:00:02,000⏎one⏎⏎", "1⏎00:00:01,000 --> 00:00:02,000⏎ONE⏎⏎"),
        ("po", 'msgid "one"⏎msgstr ""⏎', 'msgid "one"⏎msgstr "ONE"⏎'),
    ],
)
def test_the_line_endings_and_the_byte_order_mark_stay(kind, source, target, ending, mark):
    source, target = (mark + text.replace("⏎", ending) for text in (source, target))
    assert translate_markup(source, kind, shout) == target


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("one.\r\rtwo.\r\n", "ONE.\r\rTWO.\r\n"),
        ("one\ntwo\r\n\rthree", "ONE TWO\n\nTHREE"),
    ],
)
def test_mixed_line_endings_stay_if_the_number_of_lines_stays(source, target):
    assert translate_markup(source, "markdown", shout) == target


@pytest.mark.parametrize("kind", ["html", "markdown"])
def test_tags_can_be_nested_deeply(kind):
    document = "<b>" * 2000 + "{}" + "</b>" * 2000
    assert translate_markup(document.format("one"), kind, shout) == document.format("ONE")


def test_blocks_of_html_in_markdown_share_batches():
    calls = []

    def translate(sentences):
        calls.append(list(sentences))
        return shout(sentences)

    found = translate_markup("<p>one</p>\n\n<p>two</p>\n", "markdown", translate)
    assert found == "<p>ONE</p>\n\n<p>TWO</p>\n"
    assert calls == [["one", "two"]]


@pytest.mark.parametrize(
    ("before", "after"),
    [("<b>one ", "</b>"), ("<b>one</b> two ", ""), ("<b>one</b><br>", ""), ("<b>one</b><i></i><img> ", "")],
)
def test_the_time_is_not_quadratic_in_the_number_of_tags(before, after):
    """Count the executed lines, because the number of lines does not depend on the machine."""

    def num_lines(num_tags):
        lines = 0

        def count(frame, event, argument):
            nonlocal lines
            lines += event == "line"
            return count

        document = before * num_tags + after * num_tags
        previous = sys.gettrace()
        sys.settrace(count)
        try:
            translate_markup(document, "html", shout)
        finally:
            sys.settrace(previous)
        return lines

    assert num_lines(400) < 2.5 * num_lines(200)


# document | translation of each sentence | alignment | translated document; "\n" is written as ⏎.
TRANSLATED = r"""
<b>He</b> saw <i>the dog</i>. | Den Hund sah er. | 2-0 3-1 1-2 0-3 | <i>Den Hund</i> sah <b>er</b>.
He runs <b>fast</b>. | Er rennt schnell. | none | <b>Er rennt schnell.</b>
He runs <b>fast</b>. | Er rennt schnell. | 0-0 0-1 0-2 | <b>Er rennt schnell.</b>
One (%s). | Zwei eins. | 0-1 | Zwei eins %s.
one %.2f%% two three | Eins zwei drei | 0-0 2-2 | Eins %.2f%% zwei drei
one {a}{b} two %.2f%%. | Eins {a} {b} zwei %.2f %%. | 0-0 1-1 1-2 2-3 3-4 3-5 | Eins {a}{b} zwei %.2f%%.
One <b>two three</b> %s four. | One two three %s four. | none | One <b>two three</b> %s four.
one two | EINS %s {x} ZWEI | 0-0 1-3 | EINS ZWEI
one a<b>@b.de</b> two | EINS a@b.de ZWEI | 0-0 1-1 2-2 | EINS a<b>@b.de</b> ZWEI
One <?= $x ?> two | Eins <?= $x <?= $x ?> zwei | 0-0 | Eins &lt;?= <?= $x ?> zwei
1⏎00:00:01,000 --> 00:00:02,000⏎one <3⏎⏎ | EINS <b> | none | 1⏎00:00:01,000 --> 00:00:02,000⏎one <3⏎⏎
1⏎00:00:01,000 --> 00:00:02,000⏎- one⏎♪ two ♪⏎⏎ | EINS | none | 1⏎00:00:01,000 --> 00:00:02,000⏎- EINS⏎♪ EINS ♪⏎⏎
1⏎00:00:01,000 --> 00:00:02,000⏎one two\Nthree⏎⏎ | EINS ZWEI DREI | 0-0 1-1 2-2 | 1⏎00:00:01,000 --> 00:00:02,000⏎EINS ZWEI\NDREI⏎⏎
"""


@pytest.mark.parametrize(("source", "text", "alignment", "expected"), rows(TRANSLATED))
def test_a_translation_gets_the_markup_of_its_sentence(source, text, alignment, expected):
    source, expected = source.replace("⏎", "\n"), expected.replace("⏎", "\n")
    translation = Translation(text, alignment=None if alignment == "none" else alignment)
    kind = "srt" if source.startswith("1\n") else "html"
    found = translate_markup(source, kind, lambda sentences: [translation] * len(sentences))
    assert found == expected


@pytest.mark.parametrize(
    ("kind", "source", "target"),
    [
        ("html", "<p>bad <b>two</b></p><p>one</p>", "<p>bad <b>two</b></p><p>ONE</p>"),
        ("template", "One. Bad two.", "ONE. Bad two."),
        (
            "po",
            'msgid "One. Bad."\nmsgstr ""\n\nmsgid "one"\nmsgid_plural "bad"\nmsgstr[0] ""\nmsgstr[1] ""\n',
            None,
        ),
        ("po", 'msgid "<b>tag</b>"\nmsgstr ""\n', None),
    ],
)
def test_a_sentence_that_fails_is_copied_and_a_message_stays_empty(kind, source, target):
    def translate(sentences):
        for translation in shout(sentences):
            error = "bad" if "BAD" in translation.text else None
            yield replace(translation, text=translation.text.replace("TAG", "<i>"), error=error)

    assert translate_markup(source, kind, translate) == (target or source)


def test_a_table_cell_with_a_backslash_is_translated():
    """The parser removes the backslash."""
    table = "| `a \\| b` tools | too | - |\n|---|---|---|\n| one \\| **two** | `\\\\|` one | two |\n"
    expected = "| `a \\| b` TOOLS | TOO | - |\n|---|---|---|\n| ONE \\| **TWO** | `\\\\|` ONE | TWO |\n"
    assert translate_markup(table, "markdown", shout) == expected


@pytest.mark.parametrize(
    ("source", "text", "expected", "without"),
    [
        ("Hello {name}, you.", "Hallo, du.", "Hallo {name}, du.", "Hello, you."),
        ("Ask {user}@a.de now.", "Frag @a.de jetzt.", "Frag {user}@a.de jetzt.", "Ask @a.de now."),
    ],
)
def test_a_lost_placeholder_is_put_at_its_aligned_word(source, text, expected, without):
    calls = []

    def translate(sentences):
        calls.append(list(sentences))
        return [Translation(text, alignment=monotone(text)) for _ in sentences]

    assert translate_markup(source, "html", translate) == expected
    assert calls == [[source], [without]]


FORMATS = (
    "%*d %.*f %'d %p %I64d %S %lS %1$*2$d %name% %a.b% [[x]] $t(key) $t(a.b,x) %s%% %ld%d {a}{b}".split()
)


@pytest.mark.parametrize("placeholder", FORMATS)
@pytest.mark.parametrize("kind", ["html", "po"])
def test_a_placeholder_of_each_format_is_kept(placeholder, kind):
    def translate(sentences):
        texts = [re.sub(r"[^ a-z]", "", text) for text in sentences]
        return [Translation(text.upper(), alignment=monotone(text)) for text in texts]

    source = f"one {placeholder} two"
    document = source if kind == "html" else f'msgid "{source}"\nmsgstr ""\n'
    found = translate_markup(document, kind, translate)
    assert f"ONE {placeholder} TWO" in found


@pytest.mark.parametrize(
    "text", ["100% sure", "50%to", "one [[two three]]", "5 % de", "20 %ige", "[%]", "<5 and> x"]
)
def test_plain_text_is_no_placeholder(text):
    assert PLACEHOLDER.search(text) is None


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("one {x}https://a.b two {x}https://a.b", "ONE {x}https://a.b TWO {x}https://a.b"),
        ("{x}https://a.b one {x}https://a.b.", "{x}https://a.b ONE {x}https://a.b."),
        ("one &copy;{a}{b} two", "ONE &copy;{a}{b} TWO"),
        ("one %shttps://a.b two %(n)dhttps://a.b/%s.", "ONE %shttps://a.b TWO %(n)dhttps://a.b/%s."),
    ],
)
def test_lost_placeholders_without_space_between_them_stay_together(source, expected):
    def translate(sentences):
        return [Translation(text.upper(), alignment=monotone(text)) for text in sentences]

    assert translate_markup(source, "html", translate) == expected


def test_punctuation_in_a_tag_belongs_to_the_sentence_before_the_tag():
    """A model adds a full stop to a sentence without a full stop."""

    def translate(sentences):
        return [Translation(f"{text.upper().rstrip('.')}.", alignment=monotone(text)) for text in sentences]

    found = translate_markup("<p>one<span> two</span><span>.</span></p>", "html", translate)
    assert found == "<p>ONE <span>TWO</span><span>.</span></p>"


def test_a_catalogue_keeps_ids_and_existing_translations():
    text = (
        'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n'
        '#, python-format\nmsgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] ""\nmsgstr[1] ""\n\n'
        '#, fuzzy\nmsgid "done"\nmsgstr "fertig"\n\nmsgctxt "c"\nmsgid "one\\n<b>two</b>\\n"\nmsgstr ""\n'
    )
    polib = pytest.importorskip("polib", reason="The extra `dev` is not installed.")
    found = polib.pofile(translate_markup(text, "po", shout))
    assert [entry.msgid for entry in found] == [entry.msgid for entry in polib.pofile(text)]
    assert found[0].msgstr_plural == {0: "%d FILE", 1: "%d FILES"}
    assert (found[1].msgstr, found[1].flags) == ("fertig", ["fuzzy"])
    assert found[2].msgstr == "ONE\n<b>TWO</b>\n"


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (
            "srt",
            "1\n00:00 --> b\none\n\n",
            "^The text must have the SubRip format, but has an error: .*[^.].$",
        ),
        ("po", "one two", "^The text must be a gettext catalogue, but has a syntax error .*[^.].$"),
        ("po", 'msgid "one\nmsgstr ""\n', r"^The text must .*, but has a syntax error \(line 1\).$"),
        ("po", 'msgid "one"\n\nmsgid "two"\nmsgstr ""\n', r"^The text must .* \(line 3\).$"),
        ("po", 'msgid "one"\nmsgstr ""\nmsgid "two"\n', r"^The text must .* \(line 3\).$"),
        ("po", '"one"\n', r"^The text must .* \(line 1\).$"),
    ],
)
def test_a_damaged_document_is_one_sentence(kind, text, message):
    with pytest.raises(ValueError, match=message):
        translate_markup(text, kind, shout)


def random_html(rng, depth=0):
    parts = []
    for _ in range(rng.randint(1, 5)):
        kind = rng.random()
        if kind < 0.4 or depth > 3:
            parts.append(rng.choice(["one", "two.", " three", "Four, ", "(five) ", "R&amp;D"]))
        elif kind < 0.55:
            parts.append(rng.choice([" {} ", "{}", "({})"]).replace("{}", rng.choice(PLACEHOLDERS)))
        elif kind < 0.65:
            parts.append(rng.choice(["<br>", "<img src=x>", "<code>a b</code>", "<!-- c -->"]))
        else:
            name = rng.choice(["b", "i", "a", "span", "p", "div"])
            parts.append(f"<{name}>{random_html(rng, depth + 1)}</{name}>")
        parts.append(rng.choice(["", " "]))
    return "".join(parts)


class Tags(HTMLParser):
    """Checks that tags are nested, and counts the tags."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.tags = Counter()
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        if tag not in {"br", "img"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def babbling(rng):
    """A translator that returns random words, tags and placeholders, with a random alignment."""

    def babble(sentences):
        translations = []
        for sentence in sentences:
            words = [
                rng.choice(
                    [*sentence.split(), "<b>", "&", "wort", "%d", "{y}", "</p>", "**", "`", "[x]", "#"]
                )
                for _ in range(rng.randint(0, 8))
            ]
            length = len(sentence.split())
            pairs = [f"{rng.randrange(length)}-{i}" for i in range(len(words)) if rng.random() < 0.8]
            translations.append(Translation(" ".join(words), alignment=" ".join(pairs)))
        return translations

    return babble


def has_all_placeholders(found, source):
    return all(found.count(placeholder) >= source.count(placeholder) for placeholder in PLACEHOLDERS)


@pytest.mark.parametrize("seed", [*range(200), 850, 926])
def test_random_tags_and_placeholders_survive_any_translation(seed):
    rng = random.Random(seed)
    source = random_html(rng)
    found = translate_markup(source, "html", babbling(rng))
    assert Tags(found).tags == Tags(source).tags
    assert has_all_placeholders(found, source)


def random_line(rng, parts):
    words = ["one", "two.", "three,", "Four!", "(five)", "<3", *PLACEHOLDERS]
    return " ".join(rng.choice(parts).replace("{}", rng.choice(words)) for _ in range(rng.randint(1, 6)))


MARKDOWN_PARTS = [
    "{}",
    "{}",
    "**{}**",
    "*{} {}*",
    "`{}`",
    "[{}](x)",
    "![{}](a.png)",
    "~~{}~~",
    "<b>{}</b>",
    "\\*",
]
MARKDOWN_BLOCKS = [
    "{}",
    "# {}",
    "- {}\n- {}",
    "> {}",
    "1. {}",
    "| {} | {} |\n|---|---|\n| {} | {} |",
    "```\n{}\n```",
]


def markdown_structure(text):
    """Return the types of all tokens except texts, with the links, the code and the tags."""
    parser = markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"])
    structure = []
    for token in parser.parse(text):
        if token.type != "inline":
            structure.append((token.type, token.content))
            continue
        inline = [(child.type, str(child.attrs or child.content)) for child in token.children]
        # The order of tags may change. Empty texts remain between tags.
        structure += sorted(one for one in inline if one[0] not in {"text", "softbreak"})
    return structure


@pytest.mark.parametrize("seed", range(200))
def test_random_markdown_survives_any_translation(seed):
    rng = random.Random(seed)
    blocks = [rng.choice(MARKDOWN_BLOCKS) for _ in range(rng.randint(1, 4))]
    lines = [
        "".join(
            part + (random_line(rng, MARKDOWN_PARTS) if i < block.count("{}") else "")
            for i, part in enumerate(block.split("{}"))
        )
        for block in blocks
    ]
    source = "\n\n".join(lines)
    found = translate_markup(source, "markdown", babbling(rng))
    assert markdown_structure(found) == markdown_structure(source)
    assert has_all_placeholders(found, source)


TAGGED_PARTS = ["{}", "{}", "<i>{}</i>", "<b>{} {}</b>", '<font color="#fff">{}</font>', "{}<br/>", "{}\n{}"]


def tag_counts(text):
    return Counter(re.findall(r"</?[a-z]+[^<>]*>", text))


@pytest.mark.parametrize("seed", range(100))
def test_random_subtitles_survive_any_translation(seed):
    rng = random.Random(seed)
    times = [(f"00:00:{2 * i:02},000 --> 00:00:{2 * i + 1:02},500") for i in range(rng.randint(1, 4))]
    contents = [random_line(rng, TAGGED_PARTS) for _ in times]
    source = "".join(f"{i + 3}\n{times[i]}\n{contents[i]}\n\n" for i in range(len(times)))
    found = list(srt.parse(translate_markup(source, "srt", babbling(rng))))
    for subtitle, other in zip(srt.parse(source), found, strict=True):
        assert (subtitle.index, subtitle.start, subtitle.end) == (other.index, other.start, other.end)
        assert tag_counts(subtitle.content) == tag_counts(other.content)
        assert has_all_placeholders(other.content, subtitle.content)


@pytest.mark.parametrize("seed", range(100))
def test_random_catalogues_survive_any_translation(seed):
    rng = random.Random(seed)
    polib = pytest.importorskip("polib", reason="The extra `dev` is not installed.")
    source = polib.POFile()
    for number in range(rng.randint(1, 4)):
        message = random_line(rng, TAGGED_PARTS)
        source.append(polib.POEntry(msgctxt=str(number), msgid=message, flags=["python-format"]))
    found = polib.pofile(translate_markup(str(source), "po", babbling(rng)))
    for entry, other in zip(source, found, strict=True):
        assert (entry.msgctxt, entry.msgid, entry.flags) == (other.msgctxt, other.msgid, other.flags)
        # The message stays empty if the random translation contains tags.
        if other.msgstr:
            assert tag_counts(entry.msgid) == tag_counts(other.msgstr)
            assert has_all_placeholders(other.msgstr, entry.msgid)
