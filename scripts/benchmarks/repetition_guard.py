"""Measures how often the repetition guard changes translations of noisy texts, and whether the translations improve.

    python scripts/benchmarks/repetition_guard.py CHECKPOINT SOURCE REFERENCE [--texts 10000] [--num_beams 4]

SOURCE and REFERENCE are files with one sentence per line (plain or .gz). Each sentence is changed in one of the ways
of `NOISE`, in turn. The script translates all texts without and with the guard. For each way it prints the number of
translations that the guard changes, and how many of the changed translations have a higher and a lower chrF.
"""

import argparse
from collections.abc import Callable
from itertools import cycle, islice
from random import Random

from sacrebleu.metrics import CHRF
from timing import print_header

from vaswani_hf import Translator
from vaswani_hf.data.lines import read_lines
from vaswani_hf.data.perturbations import typos, upper_case


def doubled_words(source: str, rng: Random) -> str:
    """Write a random word of a sentence several times."""
    words = source.split()
    place = rng.randrange(len(words))
    return " ".join([*words[:place], *[words[place]] * rng.randint(2, 6), *words[place + 1 :]])


def random_characters(source: str, rng: Random) -> str:
    """Replace a sentence by random characters, as a file that is not text has."""
    return bytes(rng.choices(range(33, 256), k=len(source))).decode("latin-1")


def cut(source: str, rng: Random) -> str:
    """Remove the end of a sentence."""
    return source[: rng.randint(1, max(1, len(source) // 2))]


NOISE: dict[str, Callable[[str, Random], str]] = {
    "clean": lambda source, rng: source,
    "typos": lambda source, rng: typos(source, "", rng)[0],
    "doubled words": doubled_words,
    "random characters": random_characters,
    "upper case": lambda source, rng: upper_case(source, "", rng)[0],
    "cut sentences": cut,
}


def main() -> None:
    """Print the effect of the guard for each kind of noise."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("source")
    parser.add_argument("reference")
    parser.add_argument("--texts", type=int, default=10_000, help="number of noisy texts; default: 10,000")
    parser.add_argument("--num_beams", type=int, default=4, help="number of beams; default: 4")
    arguments = parser.parse_args()
    print_header()
    translator = Translator.from_pretrained(arguments.checkpoint, device="cpu")
    both = zip(read_lines(arguments.source), read_lines(arguments.reference), strict=True)
    pairs = [(source, reference) for source, reference in both if source.strip()]
    rng = Random(0)
    kinds = list(islice(cycle(NOISE), arguments.texts))
    chosen = list(islice(cycle(pairs), arguments.texts))
    texts = [NOISE[kind](source, rng) for kind, (source, _) in zip(kinds, chosen, strict=True)]
    options = {"num_beams": arguments.num_beams, "window": 5000}
    plain = list(translator.translate(texts, **options))
    guarded = list(translator.translate(texts, repetition_guard=True, **options))
    chrf = CHRF()
    for kind in NOISE:
        rows = [i for i, other in enumerate(kinds) if other == kind]
        changed = [i for i in rows if plain[i] != guarded[i]]
        gains = []
        for i in changed:
            references = [chosen[i][1]]
            gains.append(
                chrf.sentence_score(guarded[i], references).score
                - chrf.sentence_score(plain[i], references).score
            )
        mean = sum(gains) / len(gains) if gains else 0.0
        print(
            f"{kind:18} {len(rows):6,} texts, {len(changed):4} changed: {sum(gain > 0 for gain in gains)} better, "
            f"{sum(gain < 0 for gain in gains)} worse, mean {mean:+.1f} chrF",
            flush=True,
        )
    for i in [i for i in range(len(texts)) if plain[i] != guarded[i]][:10]:
        print(f"{texts[i]!r}\n  without: {plain[i]!r}\n  with:    {guarded[i]!r}")


if __name__ == "__main__":
    main()
