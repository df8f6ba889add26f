"""The options, the input and the output that `vaswani translate` and `vaswani parse` share."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from ..data.lines import decode_line, parse_json, read_raw_lines, strip_line_ends
from ..model.errors_vaswani import InvalidValueError
from ..model.inputs_vaswani import TranslationOptions
from ..model.requests_vaswani import InvalidInput, Request, check_text, try_parse
from .lines import (
    CountedRequests,
    LineReport,
    count_lines,
    is_terminal,
    translation_as_json,
)
from .options import (
    BeamSearchOptions,
    EnsembleOptions,
    InferenceOptions,
    WorkerOptions,
    check_file,
    on_command_line,
    translation_option,
)
from .output import LineOutput, check_output, output_file, standard_input, standard_output

if TYPE_CHECKING:
    from ..model.translations_vaswani import Translation

# A function that converts a line, its number and the name of the input to a request.
ReadRequest = Callable[[bytes, int, str], Request]
# A function that checks a request: raises an error for an invalid request, otherwise returns the request or a
# changed copy.
CheckRequest = Callable[[Request], Request]


class TextOptions(BeamSearchOptions, InferenceOptions, WorkerOptions, EnsembleOptions):
    """The options that `vaswani translate` and `vaswani parse` share."""

    tokens_per_batch: int = translation_option("tokens_per_batch")
    window: int = translation_option("window")
    on_error: Literal["fail", "skip"] = translation_option("on_error")
    text: str | None = None
    """read this text instead of standard input"""
    input: str | None = None
    """read this file instead of standard input: one text per line (plain or .gz)"""
    output: str | None = None
    """write to this new file instead of standard output"""
    resume: bool = False
    """continue an existing --output file after the last complete line"""
    as_json: bool = on_command_line(False, option="json")
    """print JSON lines with the score, the tokens, the words, the confidences of the words and the word
    alignment"""

    @model_validator(mode="after")
    def _check_places(self) -> Self:
        if self.text is not None and self.input is not None:
            raise InvalidValueError(
                "`--text` and `--input` must not both be given; leave out `--text` or `--input`."
            )
        if self.input is not None:
            check_file("--input", self.input)
        if self.resume and not self.output:
            raise InvalidValueError(
                "`--resume` must come with `--output`, because `--output` names the file to continue."
            )
        if self.resume and self.text is not None:
            raise InvalidValueError("`--resume` continues a file and must come without `--text`.")
        # Refuse a lone surrogate in `--text`, because UTF-8 cannot encode a lone surrogate. In a command-line
        # argument, Python replaces each byte that is not valid UTF-8 by a lone surrogate.
        check_text(self.text or "", "`--text`")
        if self.text is None and self.input is None:
            standard_input()
        check_output(
            self.output,
            {} if self.text is not None else {"--input": self.input},
            resume=self.resume,
            can_resume=self.can_resume,
        )
        return self

    @property
    def can_resume(self) -> bool:
        """True if the input permits `--resume`."""
        return self.text is None

    @property
    def writes_json(self) -> bool:
        """True if the command writes JSON lines."""
        return self.as_json

    @property
    def is_typed(self) -> bool:
        """True if a user types the input in a terminal."""
        return self.text is None and self.input is None and is_terminal(sys.stdin)

    @property
    def place(self) -> str:
        """Return the name of the input for error messages."""
        return "`--text`" if self.text is not None else self.input or "standard input"


def make_translation_options(options: TextOptions, **more: Any) -> TranslationOptions:
    """Create the translation options. If the user types the texts, `window` is 1 by default, so that each
    text is translated immediately.
    """
    settings = options.translation_settings() | {"return_scores": options.writes_json} | more
    if "window" not in options.model_fields_set and options.is_typed:
        settings["window"] = 1
    return TranslationOptions.of(**settings)


def accept(request: Request) -> Request:
    """Return the request unchanged: a check that accepts all requests."""
    return request


def read_requests(
    options: TextOptions, read: ReadRequest, check: CheckRequest = accept
) -> Iterator[Request | InvalidInput]:
    """Yield one request for each line of the input. `read` converts a line to a request."""
    if options.text is not None:
        yield try_parse(check, Request(options.text))
        return
    if options.is_typed:
        keys = "Ctrl-Z and Enter" if os.name == "nt" else "Ctrl-D"
        print(
            f"vaswani waits for texts: type one text per line, and end the input with {keys}", file=sys.stderr
        )
    lines = strip_line_ends(standard_input()) if options.input is None else read_raw_lines(options.input)
    for number, line in enumerate(lines, 1):
        request = try_parse(read, line, number, options.place)
        yield request if isinstance(request, InvalidInput) else try_parse(check, request)


def text_request(line: bytes, number: int, place: str) -> Request:
    """Convert a line of text to a request."""
    return Request(decode_line(line, number, place))


def translate_texts(
    options: TextOptions,
    load: Callable[..., Any],
    chosen: TranslationOptions,
    requests: Iterable[Request | InvalidInput],
    work: str,
) -> None:
    """Translate or parse the texts of the input. `load` is a function that loads the translator."""
    from ..translation.workers import translate_remaining

    num_workers = options.workers
    if options.is_typed:
        # Use one worker, because several worker processes would start only after the user has typed several
        # lines.
        num_workers = 1
    skips = chosen.on_error == "skip"
    counted = CountedRequests(requests)
    with _output(options, skips) as (file, done):
        translations = translate_remaining(
            load, counted, chosen, done, num_workers=num_workers, dtype=options.dtype
        )
        total = None if options.input is None else count_lines(options.input, skips)
        with closing(translations), LineReport(options.place, done, counted) as report:
            if options.text is None:
                report.show_progress(work, total, to_file=options.output is not None)
            for translation in translations:
                report.add(translation)
                file.write(_as_line(translation, options))
        if counted.num_read < done:
            raise InvalidValueError(_more_lines(options, done))
        # Call `write` at least once, because the first call deletes an incomplete last line of an earlier
        # run.
        file.write(b"")


def _as_line(translation: "str | Translation", options: TextOptions) -> bytes:
    if options.writes_json:
        return translation_as_json(translation)
    line = translation if isinstance(translation, str) else translation.text
    return with_allowed_line_breaks(line, options).encode("utf-8", errors="replace") + b"\n"


def with_allowed_line_breaks(text: str, options: TextOptions) -> str:
    """Replace line breaks by spaces, because the output must have one line for each input line. The text in a
    JSON line can contain line breaks. Keep the line breaks in the translation of `--text`.
    """
    return text if options.text is not None else text.replace("\n", " ")


@contextmanager
def _output(options: TextOptions, skips: bool) -> Iterator[tuple[LineOutput, int]]:
    """Yield the output file or standard output, and the number of complete lines that an earlier run
    wrote.
    """
    if options.output is None:
        yield standard_output(), 0
        return
    with output_file(
        options.output,
        "free disk space and run the command again with `--resume`",
        resume=options.resume,
        can_resume=options.can_resume,
    ) as file:
        done, size = _complete_lines(options.output)
        if options.input is not None and done > count_lines(options.input, skips):
            raise InvalidValueError(_more_lines(options, done))
        if done:
            _check_form(options.output, options.writes_json)
        file.keep(size)
        yield file, done


def _more_lines(options: TextOptions, lines: int) -> str:
    place = options.input or "standard input"
    return (
        f"the existing file `--output` must not have more lines than {place}, but {options.output} has "
        f"{lines:,}; give another name."
    )


def _complete_lines(path: str) -> tuple[int, int]:
    """Return the number of complete lines of a file, and the size of these lines in bytes."""
    num_lines = 0
    size = 0
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                num_lines += 1
                size += len(line)
    return num_lines, size


def _check_form(path: str, as_json: bool) -> None:
    """Raise an error if the output file contains plain text but the command writes JSON lines, or the
    reverse.
    """
    with open(path, "rb") as file:
        line = file.readline()
    try:
        is_json = "text" in parse_json(line.decode(), dict, "")
    except ValueError:
        is_json = False
    if is_json != as_json:
        form, remedy = ("JSON lines", "with") if is_json else ("plain text", "without")
        raise InvalidValueError(
            f"`--output` is {path}, which contains {form}; continue the file {remedy} `--json`, or give "
            "another name."
        )
