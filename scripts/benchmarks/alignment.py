"""Measures the word alignment of a translator on sentence pairs that were aligned by hand.

    python scripts/benchmarks/alignment.py checkpoints/multi30k_en_de

`PAIRS` contains English sentences with German translations. For each German word, `PAIRS` states the
positions (from 0) of the English words that the German word translates. The script prints the percentage of
German words that the translator aligns with a wrong English word. The script also tests the transfer of tags.
For each phrase of one to three English words, the script puts a tag around the phrase and lets the package
insert the tag into the German translation. The script leaves out a phrase if its German words are not
contiguous, or if one of these German words can also translate a word outside the phrase. The script prints
the percentage of tags
that enclose exactly the German words of the phrase, and the percentage of tags that enclose the whole
sentence.
"""

import argparse

from vaswani_hf import Translator
from vaswani_hf.markup.passages import translate_passages
from vaswani_hf.markup.pieces import Passage, Piece
from vaswani_hf.model.translations_vaswani import Translation

# Each line has an English sentence, its German translation, and for each German word the positions
# (from 0) of the English words that the German word translates. If several English words are correct,
# their positions are separated by "/".
PAIRS = """
A man in a red shirt is riding a bike. | Ein Mann in einem roten Hemd fährt Fahrrad. | 0 1 2 3 4 5 6/7 8/9
Two children are playing with a ball in the park. | Zwei Kinder spielen im Park mit einem Ball. | 0 1 2/3 7/8 9 4 5 6
A woman is sitting on a bench and reading a book. | Eine Frau sitzt auf einer Bank und liest ein Buch. | 0 1 2/3 4 5 6 7 8 9 10
The black dog is running through the snow. | Der schwarze Hund läuft durch den Schnee. | 0 1 2 3/4 5 6 7
A boy jumps into the water. | Ein Junge springt ins Wasser. | 0 1 2 3/4 5
Three men are standing in front of a building. | Drei Männer stehen vor einem Gebäude. | 0 1 2/3 4/5/6 7 8
A girl in a pink dress is dancing. | Ein Mädchen in einem rosa Kleid tanzt. | 0 1 2 3 4 5 6/7
An old man with a hat is playing the guitar. | Ein alter Mann mit Hut spielt Gitarre. | 0 1 2 3 4/5 6/7 8/9
People are walking down a busy street. | Leute gehen eine belebte Straße entlang. | 0 1/2 4 5 6 3
A young woman is taking a picture of a horse. | Eine junge Frau macht ein Foto von einem Pferd. | 0 1 2 3/4 5 6 7 8 9
On the beach, a child is building a sandcastle. | Am Strand baut ein Kind eine Sandburg. | 0/1 2 5/6 3 4 7 8
A cook is preparing food in a small kitchen. | Ein Koch bereitet in einer kleinen Küche Essen zu. | 0 1 2/3 5 6 7 8 4 3
The man in the blue jacket is looking at a map. | Der Mann in der blauen Jacke sieht sich eine Karte an. | 0 1 2 3 4 5 6/7 6/7/8 9 10 7/8
A white car is driving on a dirt road. | Ein weißes Auto fährt auf einer unbefestigten Straße. | 0 1 2 3/4 5 6 7 8
Two women are talking to each other at a table. | Zwei Frauen unterhalten sich an einem Tisch. | 0 1 2/3 3/4/5/6 7 8 9
A little girl is eating ice cream outside. | Ein kleines Mädchen isst draußen Eis. | 0 1 2 3/4 7 5/6
A group of people are watching a game. | Eine Gruppe von Leuten sieht sich ein Spiel an. | 0 1 2 3 4/5 4/5 6 7 5
A cyclist is wearing a helmet. | Ein Radfahrer trägt einen Helm. | 0 1 2/3 4 5
The brown horse jumps over a fence. | Das braune Pferd springt über einen Zaun. | 0 1 2 3 4 5 6
A baby is sleeping in a green chair. | Ein Baby schläft in einem grünen Stuhl. | 0 1 2/3 4 5 6 7
"""


def main() -> None:
    """Print the percentage of wrong alignments and the percentage of correct tags."""
    parser = argparse.ArgumentParser(description="Measures the word alignment of a translator.")
    parser.add_argument("model")
    translator = Translator.from_pretrained(parser.parse_args().model, dtype="float32")
    rows = [line.split(" | ") for line in PAIRS.strip().splitlines()]
    sources, targets, gold = zip(*rows, strict=True)
    translations = list(translator.score(sources, targets, return_alignments=True))
    num_words = num_wrong = num_tags = num_unsure = num_exact = 0
    for source, target, numbers, translation in zip(sources, targets, gold, translations, strict=True):
        correct = [{int(number) for number in word.split("/")} for word in numbers.split()]
        for pair in (translation.alignment or "").split():
            source_word, target_word = map(int, pair.split("-"))
            num_words += 1
            num_wrong += source_word not in correct[target_word]
        words = source.split()
        for start in range(len(words)):
            for stop in range(start + 1, min(start + 4, len(words) + 1)):
                inside = [bool(one & {*range(start, stop)}) for one in correct]
                only = [one <= {*range(start, stop)} for one in correct]
                range_ = [i for i, is_inside in enumerate(inside) if is_inside]
                if not range_ or inside != only or range_ != [*range(range_[0], range_[-1] + 1)]:
                    continue
                tagged = _with_tag(source, start, stop, translation)
                before, _, rest = tagged.partition("<b>")
                enclosed = rest.partition("</b>")[0]
                expected = " ".join(target.split()[range_[0] : range_[-1] + 1]).strip(".,")
                num_tags += 1
                num_exact += enclosed.strip(".,") == expected
                num_unsure += enclosed == target and len(words) > stop - start
    print(f"{len(rows)} sentence pairs, {num_words} German words: {100 * num_wrong / num_words:.1f} % wrong")
    print(
        f"{num_tags} tags: {100 * num_exact / num_tags:.1f} % enclose the correct words, "
        f"{100 * num_unsure / num_tags:.1f} % enclose the whole sentence"
    )


def _with_tag(source: str, start: int, stop: int, translation: Translation) -> str:
    """Put a tag around the source words from `start` to `stop` (exclusive), and insert the tag into the
    translation. Return the translation with the tag.
    """
    words = source.split()
    before = "".join(f"{word} " for word in words[:start])
    last = words[stop - 1].strip(".,")
    inside = " ".join([*words[start : stop - 1], last])
    after = source[len(before) + len(inside) :]
    pieces = [Piece("text", text=before), Piece("open", "<b>", name="b"), Piece("text", text=inside)]
    pieces += [Piece("close", "</b>", name="b"), Piece("text", text=after)]
    return translate_passages(
        [Passage([piece for piece in pieces if piece.raw or piece.text])], lambda texts: [translation]
    )[0]


if __name__ == "__main__":
    main()
