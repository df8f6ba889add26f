"""Defines `vaswani translate`, the command that translates standard input, a file or `--text`, and writes
text or JSON lines.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from ..data.lines import decode_line, parse_json, read_raw_lines, strip_line_ends
from ..model.errors_vaswani import InvalidValueError
from ..model.glossary_vaswani import Glossary, read_glossary
from ..model.inputs_vaswani import (
    LINE_ERRORS,
    InvalidInput,
    Request,
    TranslationOptions,
    check_text,
    try_parse,
)
from ..version import install_command
from .lines import (
    CountedRequests,
    count_lines,
    is_typed_by_user,
    report_bad_lines,
    translation_as_json,
    with_progress,
)
from .options import (
    EngineOptions,
    EnsembleOptions,
    InferenceOptions,
    WorkerOptions,
    check_file,
    on_command_line,
    translation_options,
)
from .output import LineOutput, check_output, output_file, standard_input, standard_output

if TYPE_CHECKING:
    from ..model.translator_vaswani import Translation

# Maps each document format to the library that reads the format. HTML needs no library, because the standard
# library reads HTML.
_LIBRARIES = {"markdown": "markdown_it", "srt": "srt", "po": "polib"}
_REQUEST_KEYS = ("text", "target_prefix", "must_contain")
_TranslationFields: Any = translation_options()


class TextOptions(InferenceOptions, WorkerOptions, EnsembleOptions):
    """The options for the input and the output of `vaswani translate` and `vaswani parse`."""

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
        # If a command-line argument is not UTF-8, Python replaces each invalid byte by a lone surrogate.
        # UTF-8 cannot encode a lone surrogate.
        check_text(self.text or "", "`--text`")
        if self.text is None and self.input is None:
            standard_input()
        check_output(
            self.output, {} if self.text is not None else {"--input": self.input}, resume=self.resume
        )
        return self

    @property
    def writes_json(self) -> bool:
        """True if the command writes JSON lines."""
        return self.as_json

    @property
    def place(self) -> str:
        """Return the name of the input for error messages."""
        return "`--text`" if self.text is not None else self.input or "standard input"


class TranslateOptions(_TranslationFields, EngineOptions, TextOptions):
    """The options of `vaswani translate`."""

    input_format: Literal["text", "json", "html", "markdown", "srt", "po"] = "text"
    """the format of the input; with json, each line is an object such as {"text": …, "target_prefix": …,
    "must_contain": [phrase, …]}; html, markdown, srt (subtitles) and po (gettext) are documents whose markup stays
    as it is"""
    language_check: Literal["pass", "refuse"] | None = None
    """what to do with a text that is not in the source language that the checkpoint records: pass copies the
    text, refuse treats the text as an invalid line (see --on_error); needs the library py3langid"""
    stream: bool = False
    """translate with greedy search, and print each word as soon as the search has found the word"""

    @model_validator(mode="after")
    def _check_formats(self) -> Self:
        if self.text is not None and self.input_format == "json":
            raise InvalidValueError(
                "`--input_format json` must come with a file or standard input, not with `--text`."
            )
        return self

    @model_validator(mode="after")
    def _check_document(self) -> Self:
        if not self.is_document:
            return self
        if self.writes_json or self.stream or self.resume or self.workers > 1:
            raise InvalidValueError(
                f"`--input_format {self.input_format}` must come without `--json`, `--num_return_sequences`, "
                "`--stream`, `--resume` and `--workers`, because the output is one document."
            )
        library = _LIBRARIES.get(self.input_format)
        if library is not None and find_spec(library) is None:
            raise InvalidValueError(
                f"`--input_format {self.input_format}` needs the library {library}; run "
                f"`{install_command('markup')}`."
            )
        return self

    @model_validator(mode="after")
    def _check_glossary(self) -> Self:
        # Read the glossary before the model is loaded, so that an invalid line is reported early.
        _ = self.terms
        return self

    @cached_property
    def terms(self) -> Glossary | None:
        """The terms in the file of `--glossary`, or None without this option."""
        if self.glossary is None:
            return None
        check_file("--glossary", self.glossary)
        return read_glossary(self.glossary)

    @property
    def is_document(self) -> bool:
        """True if the whole input is one document with markup."""
        return self.input_format not in {"text", "json"}

    @model_validator(mode="after")
    def _check_stream(self) -> Self:
        if not self.stream:
            return self
        if self.writes_json or self.output is not None or self.workers > 1:
            raise InvalidValueError(
                "`--stream` must come without `--json`, `--output` and `--workers`, because `--stream` "
                "shows one text at a time."
            )
        if self.engine == "ctranslate2":
            raise InvalidValueError(
                "`--stream` must come without `--engine ctranslate2`, which returns only complete "
                "translations."
            )
        if self.ensemble or self.repetition_guard:
            raise InvalidValueError(
                "`--stream` shows the running search of one model and must come without `--ensemble` and "
                "`--repetition_guard`."
            )
        if (self.num_beams or 1) > 1:
            raise InvalidValueError(
                "`--stream` shows greedy search and must come without `--num_beams` above 1."
            )
        return self

    @property
    def writes_json(self) -> bool:
        """Return True if the command writes JSON lines. `--num_return_sequences` above 1 also writes JSON
        lines, because a line of plain text can contain only one translation.
        """
        return self.as_json or (self.num_return_sequences or 1) > 1


def run(options: TranslateOptions) -> None:
    """Translate the texts."""
    read = _json_request if options.input_format == "json" else text_request
    load = options.translator_loader(options.model_name, options.ensemble)
    chosen = settings_of(options, glossary=options.terms, return_alignments=options.writes_json)
    check = _language_check(options)
    requests = map(partial(_checked, check), requests_of(options, read))
    if options.is_document:
        _translate_document(options, load(), chosen, check)
    elif options.stream:
        from .stream import stream_translations

        stream_translations(load(), CountedRequests(requests), chosen, options.place)
    else:
        translate_texts(options, load, chosen, requests, "translating")


Check = Callable[[Request], Request]


def _language_check(options: TranslateOptions) -> Check:
    """Return the function that checks the language of a request."""
    if options.language_check is None:
        return lambda request: request
    from ..checkpoint.languages import recorded_languages
    from ..checkpoint.loading import checkpoint_folder
    from ..translation.language_check import LanguageCheck, load_detector

    recorded = recorded_languages(Path(checkpoint_folder(options.model_name)))
    if recorded is None:
        raise InvalidValueError(
            f"`--language_check` must be left out, because '{options.model_name}' does not record its "
            "languages."
        )
    return LanguageCheck(recorded[0], options.language_check, load_detector())


def _checked(check: Check, request: Request | InvalidInput) -> Request | InvalidInput:
    return request if isinstance(request, InvalidInput) else try_parse(check, request)


def _translate_document(
    options: TranslateOptions, translator: Any, chosen: TranslationOptions, check: Check
) -> None:
    """Translate the input as one document."""
    from ..markup import translate_markup

    # `translate_markup` splits the sentences, and places the tags by the word alignment.
    chosen = replace(chosen, split_sentences=False, return_alignments=True)

    def translate(sentences: Sequence[str]) -> list["Translation"]:
        checked = map(partial(_checked, check), map(Request, sentences))
        requests = translator.after_choosing_dtype(checked, chosen)
        found = report_bad_lines(
            translator.translate_requests(requests, chosen), "the sentences of the input"
        )
        return list(found)

    document = _read_document(options)
    mark = "\ufeff" if document.startswith("\ufeff") else ""
    line_end = "\r\n" if "\r\n" in document else "\n"
    try:
        text = document.removeprefix(mark).replace("\r\n", "\n")
        translation = translate_markup(text, options.input_format, translate)
    except LINE_ERRORS as error:
        kind = ValueError if options.text is None else InvalidValueError
        raise kind(f"{options.place} cannot be translated: {error}") from error
    output = (mark + translation.replace("\n", line_end)).encode("utf-8", errors="replace")
    if options.text is not None:
        output += b"\n"
    if options.output is None:
        standard_output().write(output)
        return
    with output_file(options.output, "free disk space and run the command again", resume=None) as file:
        file.write(output)


def _read_document(options: TranslateOptions) -> str:
    if options.text is not None:
        return options.text
    data = standard_input().read() if options.input is None else Path(options.input).read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{options.place} must be UTF-8 text, but is not.") from None


def settings_of(options: Any, **more: Any) -> TranslationOptions:
    """Create the translation options. If the user types the texts and does not give `--window`, the window
    has one text, so that each text is translated immediately.

    A window is a group of lines that are read together. Large windows are faster, because the lines of a
    window are sorted into batches of similar length.
    """
    settings = options.translation_settings() | {"return_scores": options.writes_json} | more
    if "window" not in options.model_fields_set and is_typed_by_user(options.text, options.input):
        settings["window"] = 1
    return TranslationOptions.of(**settings)


ReadRequest = Callable[[bytes, int, str], Request]


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
    if is_typed_by_user(options.text, options.input):
        # Do not start worker processes, because the worker processes would wait for the lines that the user
        # types.
        num_workers = 1
    skips = chosen.on_error == "skip"
    counted = CountedRequests(requests)
    with (
        _output(options, skips) as (file, done),
        closing(
            translate_remaining(load, counted, chosen, done, num_workers=num_workers, dtype=options.dtype)
        ) as translations,
    ):
        lines = report_bad_lines(translations, options.place, done, counted)
        if options.text is None:
            total = None if options.input is None else count_lines(options.input, skips)
            lines = with_progress(lines, work, total, done, to_file=options.output is not None)
        for translation in lines:
            file.write(
                translation_as_json(translation) if options.writes_json else _as_line(translation, options)
            )
        if counted.num_read < done:
            raise InvalidValueError(_more_lines(options, done))
        # If an earlier run wrote all complete lines and an incomplete last line, the first write deletes the
        # incomplete line.
        file.write(b"")


def requests_of(options: TextOptions, read: ReadRequest) -> Iterator[Request | InvalidInput]:
    """Yield one request for each line of the input. `read` converts a line to a request."""
    if options.text is not None:
        yield Request(options.text)
        return
    if is_typed_by_user(options.text, options.input):
        keys = "Ctrl-Z and Enter" if os.name == "nt" else "Ctrl-D"
        print(
            f"vaswani waits for texts: type one text per line, and end the input with {keys}", file=sys.stderr
        )
    lines = strip_line_ends(standard_input()) if options.input is None else read_raw_lines(options.input)
    for number, line in enumerate(lines, 1):
        yield try_parse(read, line, number, options.place)


def text_request(line: bytes, number: int, place: str) -> Request:
    """Convert a line of text to a request."""
    return Request(decode_line(line, number, place))


def _json_request(line: bytes, number: int, place: str) -> Request:
    """Convert a JSON line to a request."""
    text = decode_line(line, number, place)
    if not text.strip():
        return Request(text)
    place = f"Line {number:,} of {place}"
    row = parse_json(text, dict, place)
    for key in row:
        if key not in _REQUEST_KEYS:
            raise ValueError(
                f"{place} must have no other keys than {', '.join(_REQUEST_KEYS)}, but has {key!r}."
            )
    phrases = row.get("must_contain") or []
    prefix = row.get("target_prefix") or ""
    if not isinstance(row.get("text"), str) or not isinstance(prefix, str):
        raise ValueError(f"{place} must have a string as `text`, and as `target_prefix` if there is one.")
    if not isinstance(phrases, list) or not all(
        isinstance(phrase, str) and phrase.strip() for phrase in phrases
    ):
        raise ValueError(f"{place} must have a list of phrases that are not empty as `must_contain`.")
    for part in (row["text"], prefix, *phrases):
        check_text(part, place)
    return Request(row["text"], prefix, tuple(phrases))


def _as_line(translation: "str | Translation", options: TextOptions) -> bytes:
    line = translation if isinstance(translation, str) else translation.text
    # Replace line breaks by spaces, because the output must have one line for each input line, but the text
    # in a JSON line may contain line breaks.
    line = line if options.text is not None else line.replace("\n", " ")
    return line.encode("utf-8", errors="replace") + b"\n"


@contextmanager
def _output(options: TextOptions, skips: bool) -> Iterator[tuple[LineOutput, int]]:
    """Open the output, and return the output with the number of lines that an earlier run wrote."""
    if options.output is None:
        yield standard_output(), 0
        return
    with output_file(
        options.output, "free disk space and run the command again with `--resume`", resume=options.resume
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
    return f"`--output` must not have more lines than {place}, but {options.output} has {lines:,}; give another name."


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
    """Raise an error if the command would append JSON lines to a file with plain text, or plain text to a
    file with JSON lines.
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
