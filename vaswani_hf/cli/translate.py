"""Defines `vaswani translate`, the command that translates standard input, a file or `--text`, and writes
text or JSON lines.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from ..data.lines import decode_line, parse_json, read_binary_lines
from ..model.errors_vaswani import InvalidValueError
from ..model.glossary_vaswani import Glossary, read_glossary
from ..model.inputs_vaswani import TranslationOptions
from ..model.requests_vaswani import LINE_ERRORS, Request, check_text, try_parse
from ..version import are_installed, install_command
from .lines import CountedRequests, LineReport
from .options import EngineOptions, LanguageOptions, SearchOptions, check_file, translation_option
from .output import output_file, standard_input, standard_output
from .texts import (
    CheckRequest,
    TextOptions,
    accept,
    make_translation_options,
    read_requests,
    text_request,
    translate_texts,
)

if TYPE_CHECKING:
    from ..model.translations_vaswani import Translation

# Maps a document format to the additional library that reads the format. The package reads HTML, gettext
# catalogues and templates without an additional library.
_LIBRARIES = {"markdown": "markdown_it", "srt": "srt"}
# Matches the declaration of the character encoding in a document. The group is the name of the encoding.
_ENCODINGS = {
    "html": re.compile(r"""<meta\b[^<>]*\bcharset\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE),
    "po": re.compile(r'^"Content-Type:[^"]*\bcharset=([\w.:-]+)', re.IGNORECASE | re.MULTILINE),
}
_REQUEST_KEYS = ("text", "target_prefix", "must_contain")


class TranslateOptions(SearchOptions, LanguageOptions, EngineOptions, TextOptions):
    """The options of `vaswani translate`."""

    num_return_sequences: int | None = translation_option("num_return_sequences")
    split_sentences: bool = translation_option("split_sentences")
    repetition_guard: bool = translation_option("repetition_guard")
    glossary: str | None = translation_option("glossary")
    min_confidence: float | None = translation_option("min_confidence")
    do_sample: bool | None = translation_option("do_sample")
    temperature: float | None = translation_option("temperature")
    top_k: int | None = translation_option("top_k")
    top_p: float | None = translation_option("top_p")
    seed: int | None = translation_option("seed")
    input_format: Literal["text", "json", "html", "markdown", "srt", "po", "template"] = "text"
    """the format of the input; with json, each line is an object such as {"text": …, "target_prefix": …,
    "must_contain": [phrase, …]}; html, markdown, srt (subtitles) and po (gettext) are documents whose markup
    stays as it is, and template is plain text whose placeholders, such as {name}, stay as they are
    """
    language_check: Literal["pass", "refuse"] | None = None
    """what to do with a text that is not in the source language: pass copies the text, refuse treats the text
    as an invalid line, so that the command ends with an error or, with --on_error skip, leaves the text
    untranslated; the source language is --src_lang, or else follows from the recorded languages of the
    checkpoint and from the target language (the tag of the text, such as >>en<<, or --tgt_lang); needs the
    library py3langid
    """
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
        if library is not None and not are_installed([library]):
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

    @model_validator(mode="after")
    def _check_confidence(self) -> Self:
        if self.ensemble and self.min_confidence is not None:
            raise InvalidValueError(
                "`--min_confidence` must come without `--ensemble`, because a calibration belongs to one model."
            )
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
        """True if the input is a single document with markup, such as HTML, instead of separate lines."""
        return self.input_format not in {"text", "json"}

    @property
    def can_resume(self) -> bool:
        """True if the input permits `--resume`."""
        return super().can_resume and not self.is_document

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
        if self.glossary is not None or self.min_confidence is not None:
            raise InvalidValueError(
                "`--stream` must come without `--glossary` and `--min_confidence`, because a streamed search "
                "does not support phrases, and the confidence is known only at the end of the search."
            )
        if (self.num_beams or 1) > 1:
            raise InvalidValueError(
                f"`--num_beams` must be 1 with `--stream`, but is {self.num_beams}; `--stream` needs greedy search."
            )
        return self

    @property
    def writes_json(self) -> bool:
        """True if the command writes JSON: with `--json`, or with several translations for each text. A line
        of plain text can contain only one translation.
        """
        return self.as_json or (self.num_return_sequences or 1) > 1


def run(options: TranslateOptions) -> None:
    """Translate the texts."""
    read = _json_request if options.input_format == "json" else text_request
    load = options.translator_loader(options.model_name, options.ensemble)
    chosen = make_translation_options(options, glossary=options.terms, return_alignments=options.writes_json)
    check = _language_check(options)
    requests = read_requests(options, read, check)
    if options.is_document:
        _translate_document(options, load(), chosen, check)
    elif options.stream:
        from .stream import stream_translations

        stream_translations(load(), CountedRequests(requests), chosen, options)
    else:
        translate_texts(options, load, chosen, requests, "translating")


def _language_check(options: TranslateOptions) -> CheckRequest:
    """Return the function that checks whether the text of a request is in the source language."""
    if options.language_check is None:
        return accept
    from ..translation.language_check import check_of_checkpoint

    return check_of_checkpoint(options.model_name, options.language_check, options.src_lang, options.tgt_lang)


def _translate_document(
    options: TranslateOptions, translator: Any, chosen: TranslationOptions, check: CheckRequest
) -> None:
    """Translate the input as one document."""
    from ..markup import translate_markup

    # Turn `split_sentences` off, because `translate_markup` itself splits the text into sentences. Turn
    # `return_alignments` on, because `translate_markup` uses the word alignments to place the tags.
    chosen = replace(chosen, split_sentences=False, return_alignments=True)
    # Report the sentences of all calls of `translate` together. `translate_markup` translates for example the
    # attributes and the texts of HTML in separate calls.
    report = LineReport("the sentences of the input")

    def translate(sentences: Sequence[str]) -> list["Translation"]:
        checked = (try_parse(check, Request(sentence)) for sentence in sentences)
        requests = translator.after_choosing_dtype(checked, chosen)
        translations = []
        for translation in translator.translate_requests(requests, chosen):
            report.add(translation)
            translations.append(translation)
        return translations

    document = _read_document(options)
    try:
        with report:
            translation = translate_markup(document, options.input_format, translate)
    except LINE_ERRORS as error:
        kind = ValueError if options.text is None else InvalidValueError
        raise kind(f"{options.place} cannot be translated: {error}") from error
    _write_document(options, _with_utf8_declared(translation, options.input_format))


def _read_document(options: TranslateOptions) -> str:
    if options.text is not None:
        return options.text
    data = b"".join(standard_input() if options.input is None else read_binary_lines(options.input))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{options.place} must be UTF-8 text, but is not.") from None


def _with_utf8_declared(document: str, format: str) -> str:
    """Declare the encoding UTF-8 in a document that declares another encoding, because the command writes
    UTF-8.
    """
    found = _ENCODINGS[format].search(document) if format in _ENCODINGS else None
    if found is None or found[1].lower() == "utf-8":
        return document
    return f"{document[: found.start(1)]}UTF-8{document[found.end(1) :]}"


def _write_document(options: TranslateOptions, document: str) -> None:
    data = document.encode("utf-8", errors="replace")
    if options.text is not None:
        data += b"\n"
    if options.output is None:
        standard_output().write(data)
        return
    with output_file(options.output, "free disk space and run the command again") as file:
        file.write(data)


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
        raise ValueError(f"{place} must have a string as `text`, and a string or nothing as `target_prefix`.")
    if not isinstance(phrases, list) or not all(
        isinstance(phrase, str) and phrase.strip() for phrase in phrases
    ):
        raise ValueError(f"{place} must have a list of non-empty phrases as `must_contain`.")
    for part in (row["text"], prefix, *phrases):
        check_text(part, place)
    return Request(row["text"], prefix, tuple(phrases))
