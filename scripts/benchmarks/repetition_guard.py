"""Measures how often the option `repetition_guard` helps and harms on noisy inputs.

Run `python scripts/benchmarks/repetition_guard.py CHECKPOINT SOURCE REFERENCE [--other FILE …] [--inputs
10000]`. SOURCE and REFERENCE have one text per line. Each FILE contains the lines of SOURCE translated into
another language. The script adds noise to the lines of SOURCE, such as dropped words. Each kind of noise gets
the same number of inputs. The script translates all inputs without the guard, sentence by sentence as
`vaswani serve` does. If a translation repeats words, the script translates the input a second time, with the
guard. With `--engine ctranslate2`, CHECKPOINT is a folder that `vaswani export --format ctranslate2` wrote.

For each kind of noise, the script prints these numbers of inputs: all inputs, inputs whose translation is a
loop (see `is_loop`) without the guard and with the guard, and inputs for which the guard changes the
translation. A changed translation is better or worse if its chrF against the reference is higher or lower
than the chrF of the translation without the guard. The script computes the chrF of lowercased texts, because
the references of inputs in upper case are not in upper case.
"""

import argparse
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import NamedTuple

from sacrebleu.metrics.chrf import CHRF
from timing import print_header

from vaswani_hf.data.lines import read_lines
from vaswani_hf.model.text_rules_vaswani import is_loop
from vaswani_hf.model.translator_vaswani import BaseTranslator
from vaswani_hf.translation import Translator
from vaswani_hf.translation.ctranslate2 import load_ctranslate2_translator

# The probability that noise changes a word or a character.
RATE = 0.2
# The largest number of times that the noise "duplicated" writes a word or a character.
MOST_COPIES = 6


class Input(NamedTuple):
    """A noisy input: the kind of its noise, the text, and the reference translation of the clean text."""

    kind: str
    text: str
    reference: str


def dropped(units: Sequence[str], rng: Random) -> list[str]:
    """Drop some words or characters."""
    return [unit for unit in units if rng.random() >= RATE]


def duplicated(units: Sequence[str], rng: Random) -> list[str]:
    """Replace some words or characters by two to `MOST_COPIES` copies."""
    found = []
    for unit in units:
        found += [unit] * (rng.randint(2, MOST_COPIES) if rng.random() < RATE else 1)
    return found


def swapped(units: Sequence[str], rng: Random) -> list[str]:
    """Exchange some words or characters with their right neighbours."""
    found = [*units]
    for i in range(len(found) - 1):
        if rng.random() < RATE:
            found[i], found[i + 1] = found[i + 1], found[i]
    return found


def truncated(text: str, rng: Random) -> str:
    """Cut the text after a random character."""
    return text[: rng.randint(1, max(1, len(text)))]


def _on_words(change: Callable[[Sequence[str], Random], list[str]]) -> Callable[[str, Random], str]:
    return lambda text, rng: " ".join(change(text.split(), rng))


def _on_characters(change: Callable[[Sequence[str], Random], list[str]]) -> Callable[[str, Random], str]:
    return lambda text, rng: "".join(change(text, rng))


NOISE: dict[str, Callable[[str, Random], str]] = {
    "none": lambda text, rng: text,
    "words dropped": _on_words(dropped),
    "words duplicated": _on_words(duplicated),
    "words swapped": _on_words(swapped),
    "characters dropped": _on_characters(dropped),
    "characters duplicated": _on_characters(duplicated),
    "characters swapped": _on_characters(swapped),
    "upper case": lambda text, rng: text.upper(),
    "truncated": truncated,
}
# `CONCATENATED` joins several lines. `OTHER_LANGUAGE` takes a line from a file in another language.
CONCATENATED = "2 to 4 lines joined"
OTHER_LANGUAGE = "another language"
# The last three columns are means over the changed translations.
COLUMNS = [
    "noise",
    "inputs",
    "loops without the guard",
    "loops with the guard",
    "changed",
    "better",
    "worse",
    "change of chrF",
    "words without the guard",
    "words with the guard",
]


def noisy_inputs(
    pairs: Sequence[tuple[str, str]], others: Sequence[Sequence[str]], number: int, seed: int
) -> list[Input]:
    """Return `number` noisy inputs. `pairs` contains lines and their references, and each entry of `others`
    contains the lines in another language.
    """
    kinds = [*NOISE, CONCATENATED, *([OTHER_LANGUAGE] if others else [])]
    inputs = []
    for i, kind in zip(range(number), itertools.cycle(kinds), strict=False):
        rng = Random(f"{seed} {i}")
        row = rng.randrange(len(pairs))
        text, reference = pairs[row]
        if kind == CONCATENATED:
            joined = [pairs[row], *(rng.choice(pairs) for _ in range(rng.randint(1, 3)))]
            text = " ".join(source for source, _ in joined)
            reference = " ".join(target for _, target in joined)
        elif kind == OTHER_LANGUAGE:
            text = rng.choice(others)[row]
        else:
            text = NOISE[kind](text, rng)
        inputs.append(Input(kind, text, reference))
    return inputs


class Outcome(NamedTuple):
    """The translation of an input without and with the guard."""

    input: Input
    before: str
    after: str

    @property
    def is_changed(self) -> bool:
        """True if the guard changes the translation."""
        return self.before != self.after

    def gain(self, chrf: CHRF) -> float:
        """Return the chrF of the translation with the guard minus the chrF without the guard."""
        reference = [self.input.reference.lower()]
        scores = [chrf.sentence_score(text.lower(), reference).score for text in (self.after, self.before)]
        return scores[0] - scores[1]


def row_of(kind: str, outcomes: Sequence[Outcome]) -> str:
    """Return the row of the table for one kind of noise."""
    chrf = CHRF()
    changed = [one for one in outcomes if one.is_changed]
    gains = [one.gain(chrf) for one in changed]
    cells = [
        kind,
        f"{len(outcomes):,}",
        f"{sum(is_loop(one.before, one.input.text) for one in outcomes):,}",
        f"{sum(is_loop(one.after, one.input.text) for one in outcomes):,}",
        f"{len(changed):,}",
        f"{sum(gain > 0 for gain in gains):,}",
        f"{sum(gain < 0 for gain in gains):,}",
    ]
    if changed:
        cells += [
            f"{fmean(gains):+.1f}",
            f"{fmean(len(one.before.split()) for one in changed):.1f}",
            f"{fmean(len(one.after.split()) for one in changed):.1f}",
        ]
    return f"| {' | '.join([*cells, *[''] * (len(COLUMNS) - len(cells))])} |"


def lines_of(path: Path) -> list[str]:
    """Read the lines of a file without the white space around each line."""
    return [line.strip() for line in read_lines(path)]


def translate(translator: BaseTranslator, texts: list[str], guard: bool) -> list[str]:
    """Translate texts, and print the time."""
    start = time.perf_counter()
    translations = [*translator.translate(texts, split_sentences=True, repetition_guard=guard)]
    seconds = time.perf_counter() - start
    print(f"repetition_guard {guard}: {len(texts):,} inputs in {seconds:.1f} s", flush=True)
    return translations


def outcomes_of(translator: BaseTranslator, inputs: Sequence[Input]) -> list[Outcome]:
    """Translate all inputs without the guard. Then translate with the guard the inputs whose translations the
    guard can change.
    """
    before = translate(translator, [one.text for one in inputs], guard=False)
    # The guard changes only translations that repeat words. `is_loop` with an empty source returns True for
    # these translations, even if the source repeats the words too.
    rows = [row for row, translation in enumerate(before) if is_loop(translation, "")]
    after = [*before]
    for row, translation in zip(
        rows, translate(translator, [inputs[row].text for row in rows], guard=True), strict=True
    ):
        after[row] = translation
    return [*map(Outcome, inputs, before, after)]


def main() -> None:
    """Print a table with one row for each kind of noise."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", help="a checkpoint folder")
    parser.add_argument("source", type=Path, help="a file with one text per line (plain or .gz)")
    parser.add_argument("reference", type=Path, help="the translations of the lines of SOURCE")
    parser.add_argument(
        "--other", type=Path, nargs="+", default=[], help="the lines of SOURCE in other languages"
    )
    parser.add_argument("--inputs", type=int, default=10_000, help="number of noisy inputs; default: 10,000")
    parser.add_argument("--engine", choices=("torch", "ctranslate2"), default="torch", help="default: torch")
    parser.add_argument("--seed", type=int, default=1, help="seed of the noise; default: 1")
    arguments = parser.parse_args()
    print_header()
    # Hide the warnings about long inputs.
    logging.getLogger("vaswani_hf.model").setLevel(logging.ERROR)
    pairs = [*zip(lines_of(arguments.source), lines_of(arguments.reference), strict=True)]
    others = [lines_of(path) for path in arguments.other]
    inputs = noisy_inputs(pairs, others, arguments.inputs, arguments.seed)
    is_exported = arguments.engine == "ctranslate2"
    load = load_ctranslate2_translator if is_exported else Translator.from_pretrained
    outcomes = outcomes_of(load(arguments.checkpoint, "cpu"), inputs)
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for kind in dict.fromkeys(one.kind for one in inputs):
        print(row_of(kind, [one for one in outcomes if one.input.kind == kind]))
    print(row_of("all", outcomes))


if __name__ == "__main__":
    main()
