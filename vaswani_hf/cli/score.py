"""Defines `vaswani score`, the command that computes the log-probabilities of given translations."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from ..data.lines import check_equally_many, decode_line, read_raw_lines
from ..model.requests_vaswani import InvalidInput, try_parse
from .lines import LineReport, count_lines, translation_as_json
from .options import (
    EnsembleOptions,
    InferenceOptions,
    LanguageOptions,
    check_file,
    on_command_line,
    translation_option,
)
from .output import check_output, standard_output

if TYPE_CHECKING:
    from ..model.translations_vaswani import Translation


class ScoreOptions(LanguageOptions, InferenceOptions, EnsembleOptions):
    """The options of `vaswani score`."""

    length_penalty: float | None = translation_option("length_penalty")
    length_penalty_type: Literal["gnmt", "power"] | None = translation_option("length_penalty_type")
    coverage_penalty: float | None = translation_option("coverage_penalty")
    tokens_per_batch: int = translation_option("tokens_per_batch")
    on_error: Literal["fail", "skip"] = translation_option("on_error")
    source: str
    """a file with one source sentence per line (plain or .gz)"""
    target: str
    """a file whose line i is a translation of line i of `--source` (plain or .gz)"""
    as_json: bool = on_command_line(False, option="json")
    """print JSON lines that also have tokens, words, confidences and the word alignment; without --json, each
    line has three columns: the sum of the log-probabilities, the score (with length penalty and coverage
    penalty), and the log-probabilities of all tokens"""

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        check_file("--source", self.source)
        check_file("--target", self.target)
        check_output(None, {"--source": self.source, "--target": self.target})
        return self


def run(options: ScoreOptions) -> None:
    """Print one line of scores for each pair of a source line and a target line."""
    from ..translation.translator import Translator

    output = standard_output()
    skips = options.on_error == "skip"
    total = count_lines(options.source, skips)
    check_equally_many("lines", options.source, total, options.target, count_lines(options.target, skips))
    translator = Translator.from_pretrained(
        options.model_name, options.device, ensemble=options.ensemble, **options.precision
    )
    sources: Any = _texts(options.source)
    targets: Any = _texts(options.target)
    settings = options.translation_settings()
    scored = translator.score(sources, targets, return_alignments=options.as_json, **settings)
    as_line = translation_as_json if options.as_json else _as_columns
    place = f"{options.source} and {options.target}"
    with LineReport(place) as report:
        report.show_progress("scoring", total)
        for translation in scored:
            report.add(translation)
            output.write(as_line(translation))


def _texts(path: str) -> Iterator[str | InvalidInput]:
    for number, line in enumerate(read_raw_lines(path), 1):
        yield try_parse(decode_line, line, number, path)


def _as_columns(translation: "Translation") -> bytes:
    if translation.error:
        return b"\n"
    tokens = " ".join(f"{log_prob:.6f}" for log_prob in translation.token_log_probs or ())
    return f"{translation.log_prob:.6f}\t{translation.score:.6f}\t{tokens}\n".encode()
