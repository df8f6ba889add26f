"""Translating and scoring files: JSON lines in and out, runs that can be continued, progress, several processes."""

import functools
import json
import re
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import TextStreamer

from ..data.lines import decoded, parse_json, read_lines, read_raw_lines, refuse_half_characters, without_ends
from ..model.options_vaswani import TranslationOptions
from ..model.requests_vaswani import (
    LINE_ERRORS,
    InvalidInput,
    Request,
    has_text,
    results_of_lines,
    try_parse,
    unwrap,
)
from ..model.scoring_vaswani import Translation
from .output import LineOutput, check_output, output_file, standard_input, standard_output
from .translator import Translator
from .workers import translate_in_processes

# Lines that are skipped and named, one by one, before they are only counted.
MOST_WARNINGS = 20
_REQUEST_KEYS = ("text", "target_prefix", "must_contain")


@dataclass(frozen=True, kw_only=True)
class Job:
    """The model at work for a command, on which engine, and in how many processes; its options have the same names.

    Attributes:
        model (str): A checkpoint folder or a repository on the Hub.
        options (TranslationOptions): How to translate.
        device (str): None for a GPU where there is one.
        ensemble (tuple): More checkpoints.
        workers (int): Processes.
        engine (str): "torch", or "ctranslate2" for a folder that was exported for it.
        dtype (str): As `Translator.from_pretrained` takes it; for the engine "torch".
        quantization (str): As `Translator.from_pretrained` takes it; for the engine "torch".
    """

    model: str
    options: TranslationOptions
    device: str | None = None
    ensemble: tuple[str, ...] = ()
    workers: int = 1
    engine: str = "torch"
    dtype: str | None = None
    quantization: str | None = None

    def __post_init__(self):
        if self.workers > 1 and self.device not in (None, "cpu"):
            raise ValueError("`--workers` is for the CPU; with more than one leave out `--device` or set it to cpu.")
        generate = self.options.generate
        beams, wanted = (generate.get(name) for name in ("num_beams", "num_return_sequences"))
        if beams and wanted and wanted > beams and not generate.get("do_sample"):
            raise ValueError(f"`--num_return_sequences` must be at most `--num_beams`, {beams}, but is {wanted}.")

    @property
    def skips(self) -> bool:
        """True if a bad line costs no other."""
        return self.options.on_error == "skip"

    def loader(self) -> Callable[..., Translator]:
        """What loads the translator, in this process or in others."""
        load: Callable[..., Translator] = Translator.from_pretrained
        if self.engine == "ctranslate2":
            from .ctranslate2 import load_ctranslate2_translator as load
        device = "cpu" if self.workers > 1 else self.device
        precision = {"dtype": self.dtype, "quantization": self.quantization}
        return functools.partial(load, self.model, device, ensemble=self.ensemble, **precision)


@dataclass(frozen=True, kw_only=True)
class TranslationJob(Job):
    """The work of one `vaswani translate`; its options have the same names.

    Attributes:
        text (str): One text in place of a file.
        input (str): A file; None for standard input.
        output (str): A file; None for standard output.
        input_format (str): "text" or "json".
        json (bool): JSON lines are written.
        resume (bool): An output that is there is continued.
        stream (bool): Each translation is shown while it comes about.
        work (str): What is done, for people who wait.
    """

    text: str | None = None
    input: str | None = None
    output: str | None = None
    input_format: str = "text"
    json: bool = False
    resume: bool = False
    stream: bool = False
    work: str = "translating"

    def __post_init__(self):
        super().__post_init__()
        refused = {
            "`--text` and `--input` must not both be given.": self.text is not None and self.input is not None,
            "`--input_format json` must come with a file or standard input, not with `--text`.": (
                self.text is not None and self.input_format == "json"
            ),
            f"`--input` must be an existing file, but is {self.input}.": (
                self.input is not None and not Path(self.input).is_file()
            ),
            "`--resume` must come with `--output`, the file that is continued.": self.resume and not self.output,
            "`--resume` continues a file and must come without `--text`.": self.resume and self.text is not None,
            "`--stream` must come without `--json`, `--output` and `--workers`: it shows one text at a time.": (
                self.stream and (self.json or self.output is not None or self.workers > 1)
            ),
            "`--stream` must come without `--engine ctranslate2`, which gives translations when they are whole.": (
                self.stream and self.engine == "ctranslate2"
            ),
            "`--stream` shows the search of one model while it goes on; it must come without `--ensemble` and `--repetition_guard`.": (
                self.stream and (bool(self.ensemble) or self.options.repetition_guard)
            ),
            "`--stream` shows greedy search; it must come without more beams or translations of a text.": (
                self.stream and any(self.options.generate.get(n, 1) > 1 for n in ("num_beams", "num_return_sequences"))
            ),
        }
        for sentence, applies in refused.items():
            if applies:
                raise ValueError(sentence)
        refuse_half_characters(self.text or "", "`--text`")
        if self.text is None and self.input is None:
            standard_input()
        check_output(self.output, {} if self.text is not None else {"--input": self.input}, resume=self.resume)

    @property
    def place(self) -> str:
        """What is read, for errors."""
        return "`--text`" if self.text is not None else self.input or "standard input"


class Requests:
    """Requests as they are read, and how many were, `num_read`, of which so many are not blank, `num_texts`.

    Args:
        requests (Iterable): A `InvalidInput` for one that cannot be read.
    """

    def __init__(self, requests: Iterable[Request | InvalidInput]):
        self.num_read = self.num_texts = 0
        self._requests = requests

    def __iter__(self) -> Iterator[Any]:
        for request in self._requests:
            self.num_read += 1
            self.num_texts += isinstance(request, InvalidInput) or has_text(request)
            yield request


def translate_file(job: TranslationJob) -> None:
    """Translate the texts of a job, and say on stderr how fast it went.

    Args:
        job (TranslationJob): The work.

    Raises:
        ValueError: If an output that is continued is no beginning of it.
    """
    if job.stream:
        _stream(job.loader()(), job)
        return
    requests = Requests(_requests(job))
    with _output(job) as (file, done), closing(translations_from(job, requests, done)) as translations:
        new = named(translations, job.place, done, requests)
        if job.text is None:
            total = count_lines(job.input, job.skips) if job.input is not None else None
            new = with_progress(new, job.work, total, done, to_file=job.output is not None)
        for translation in new:
            file.write(_line_of(translation, job))
        if requests.num_read < done:
            raise ValueError(_more_lines(job, done))
        # What a run that broke off has left behind its last line goes.
        file.write(b"")


def translations_from(job: Job, requests: Iterable[Request | InvalidInput], done: int) -> Generator[Any, None, None]:
    """The translations of the requests behind the first ones; to be closed, which ends other processes.

    Args:
        job (Job): The work.
        requests (Iterable): All of it.
        done (int): How many have their translations already.

    Yields:
        str or Translation: One for each of the others.
    """
    options = job.options
    if job.workers > 1 and options.seed is None:
        # With a seed windows begin where they would for one process, so that they are drawn from the same numbers.
        options = replace(options, window=-(-options.window // job.workers))
    # Windows begin where they did before, so that the translations are the same to the last digit.
    begin = done - done % options.window
    translations = _translations(job, requests, options, begin)
    with closing(translations):  # type: ignore[type-var]
        yield from islice(translations, done - begin, None)


def named(translations: Iterator[Any], place: str, done: int, requests: Requests | None = None) -> Iterator[Any]:
    """The translations; the line of an error is named, and those that are skipped are named and counted on stderr.

    Args:
        translations (Iterator): Translations of lines.
        place (str): Where the lines stand.
        done (int): The number of lines before the first one.
        requests (Requests, optional): What is translated, of which blank lines are not counted as good.

    Yields:
        str or Translation: Each translation.

    Raises:
        ValueError: If a line is bad and none is skipped, or all of them are bad.
    """
    number, num_skipped, first = done, 0, ""
    for number, translation in enumerate(_with_lines_of_errors(translations, place), done + 1):
        if error := getattr(translation, "error", None):
            num_skipped += 1
            first = first or _at_line(number, place, error)
            if num_skipped <= MOST_WARNINGS:
                print(f"vaswani: skipped: {_at_line(number, place, error)}", file=sys.stderr)
        yield translation
    if num_skipped and not done and num_skipped == (requests.num_texts if requests else number):
        blank = "" if num_skipped == number else ", and the others are blank"
        raise ValueError(f"All lines were skipped, {num_skipped:,} of {number:,}{blank}; the first one: {first}")
    if num_skipped:
        print(f"vaswani: {num_skipped:,} of {number - done:,} lines were skipped", file=sys.stderr)


def _with_lines_of_errors(translations: Iterator[Any], place: str) -> Iterator[Any]:
    try:
        yield from translations
    except LINE_ERRORS as error:
        number = getattr(error, "line_number", None)
        if number is not None:
            raise ValueError(_at_line(number, place, str(error))) from error
        raise


def _at_line(number: int, place: str, error: str) -> str:
    # What is wrong with a line as it is read says where it stands.
    is_named = re.search(rf"\b(line|pair) {number:,}\b", error, re.IGNORECASE)
    return error if is_named or place == "`--text`" else f"Line {number:,} of {place}: {error}"


def _translations(job: Job, requests: Iterable[Any], options: TranslationOptions, begin: int) -> Iterator[Any]:
    """The translations from the request with the index `begin` on.

    The first requests of all decide on a dtype that is open, so that it is one for all processes and for a run that is
    continued.
    """
    load: Any = job.loader()
    if job.workers == 1 or job.dtype == "auto":
        translator = load()
        requests = translator.settled(requests, job.options)
        if job.workers == 1:
            return translator.translate_requests(islice(requests, begin, None), options, begin + 1)
        load = functools.partial(load, dtype=translator.model.dtype)
    requests = islice(requests, begin, None)
    return translate_in_processes(load, requests, options, num_workers=job.workers, first_line=begin + 1)


def _line_of(translation: str | Translation, job: TranslationJob) -> bytes:
    if job.json:
        return json_line(_as_json(translation))
    line = translation if isinstance(translation, str) else translation.text
    # A text of JSON lines may have line breaks; the output has one line for each.
    line = line if job.text is not None else " ".join(line.split("\n"))
    return line.encode("utf-8", errors="replace") + b"\n"


def json_line(record: dict[str, Any]) -> bytes:
    """A record as a line of JSON lines.

    Args:
        record (dict): As JSON has it.
    """
    return json.dumps(record, ensure_ascii=False).encode("utf-8", errors="replace") + b"\n"


def _as_json(translation: str | Translation) -> dict[str, Any]:
    if isinstance(translation, str):
        return {"text": translation}
    return _rounded(asdict(translation))


def _rounded(value: Any) -> Any:
    """A value with six decimals, more than float32 has to offer, and a record without token ids and fields of None."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        fields = {name: entry for name, entry in value.items() if entry is not None and name != "token_ids"}
        return {name: _rounded(entry) for name, entry in fields.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, list) else value


@contextmanager
def _output(job: TranslationJob) -> Iterator[tuple[LineOutput, int]]:
    """The output to write to, and how many lines it has already.

    Yields:
        tuple: The output, and the number of its lines.

    Raises:
        ValueError: If there are more than the input has, or they are of another form.
    """
    if job.output is None:
        yield standard_output(), 0
        return
    with output_file(job.output, "free space and go on with `--resume`", resume=job.resume) as file:
        done, size = _complete_lines(job.output)
        if job.input is not None and done > count_lines(job.input, job.skips):
            raise ValueError(_more_lines(job, done))
        if done and job.resume:
            _check_form(job)
        file.keep(size)
        yield file, done


def _more_lines(job: TranslationJob, lines: int) -> str:
    place = job.input or "standard input"
    return f"{job.output} must not have more lines than {place} to be continued, but has {lines:,}; give another name."


def _check_form(job: TranslationJob) -> None:
    """Refuse to go on with JSON lines where there is plain text, or the other way round.

    Raises:
        ValueError: If that is asked for.
    """
    with open(str(job.output), "rb") as file:
        line = file.readline()
    try:
        is_json = "text" in parse_json(line.decode(), dict, "")
    except ValueError:
        is_json = False
    if is_json != job.json:
        form, remedy = ("JSON lines", "with") if is_json else ("plain text", "without")
        raise ValueError(f"{job.output} holds {form}; continue it {remedy} `--json`, or give another name.")


def _complete_lines(path: str) -> tuple[int, int]:
    """How many complete lines a file has, and in how many bytes."""
    num_lines = end = position = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            num_lines += block.count(b"\n")
            if b"\n" in block:
                end = position + block.rindex(b"\n") + 1
            position += len(block)
    return num_lines, end


def count_lines(path: str, skips: bool = False) -> int:
    """The number of lines of a text file, plain or .gz, which is also found to be readable before hours of work.

    Args:
        path (str): The file.
        skips (bool): True if lines need not be UTF-8.
    """
    return sum(1 for _ in (read_raw_lines(path) if skips else read_lines(path)))


def _requests(job: TranslationJob) -> Iterator[Request | InvalidInput]:
    if job.text is not None:
        yield Request(job.text)
        return
    lines = without_ends(standard_input()) if job.input is None else read_raw_lines(job.input)
    for number, line in enumerate(lines, 1):
        yield try_parse(_request, line, number, job)


def _request(line: bytes, number: int, job: TranslationJob) -> Request:
    text = decoded(line, number, job.place)
    if job.input_format == "text" or not text.strip():
        return Request(text)
    return _request_of_json(text, f"Line {number:,} of {job.place}")


def _request_of_json(line: str, place: str) -> Request:
    """The request that a JSON line holds.

    Raises:
        ValueError: If it holds none.
    """
    row = parse_json(line, dict, place)
    for key in row:
        if key not in _REQUEST_KEYS:
            raise ValueError(f"{place} must have no other keys than {', '.join(_REQUEST_KEYS)}, but has {key!r}.")
    phrases = row.get("must_contain") or []
    prefix = row.get("target_prefix") or ""
    if not isinstance(row.get("text"), str) or not isinstance(prefix, str):
        raise ValueError(f"{place} must have a string as `text`, and as `target_prefix` if there is one.")
    if not isinstance(phrases, list) or not all(isinstance(phrase, str) and phrase.strip() for phrase in phrases):
        raise ValueError(f"{place} must have a list of phrases as `must_contain`, none of them empty.")
    for text in (row["text"], prefix, *phrases):
        refuse_half_characters(text, place)
    return Request(row["text"], prefix, tuple(phrases))


def with_progress(
    items: Iterable[Any], what: str, total: int | None, done: int = 0, to_file: bool = False
) -> Iterator[Any]:
    """The items, with a bar where stderr is a terminal, and at the end a line that says how fast they came.

    Args:
        items (Iterable): One for each sentence.
        what (str): The work, in one word.
        total (int, optional): How many there are with those that are done; None if nobody knows.
        done (int): Those before the first one.
        to_file (bool): True if they are not shown on standard output.

    Yields:
        Any: Each item.
    """
    from tqdm.auto import tqdm

    # There is no bar where stderr is no terminal (None), nor among lines that somebody types or reads (True).
    is_typed, is_read = total is None and _is_terminal(sys.stdin), _is_terminal(sys.stdout) and not to_file
    disable = True if is_typed or is_read else None
    start, number = time.perf_counter(), 0
    with tqdm(total=total, initial=done, unit=" sentences", desc=what, disable=disable, leave=False) as bar:
        for item in items:
            number += 1
            bar.update()
            yield item
    seconds = time.perf_counter() - start
    sentences = "sentence" if number == 1 else "sentences"
    print(f"{number:,} {sentences} in {seconds:.1f} s, {number / seconds:,.1f} sentences/s", file=sys.stderr)


def _is_terminal(stream: Any) -> bool:
    """True for a terminal; a stream that is closed is None."""
    return stream is not None and stream.isatty()


class _TerminalStreamer(TextStreamer):
    """Shows words as soon as they are complete, on a line that does not end with the translation."""

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        _show(" ".join(text.split("\n")))


def _show(text: str) -> None:
    standard_output().write(text.encode("utf-8", errors="replace"))


def _stream(translator: Translator, job: TranslationJob) -> None:
    """Show greedy translations while they come about."""

    def shown(request: Request | InvalidInput, number: int) -> str:
        _stream_one(translator, unwrap(request), number, job)
        return ""

    requests: Any = Requests(_requests(job))
    lines = (
        line
        for number, request in enumerate(translator.settled(requests, replace(job.options, window=1)), 1)
        for line in results_of_lines([request], number, shown, lambda shown: shown, job.options.on_error)
    )
    for _ in named(lines, job.place, 0, requests):
        _show("\n")


def _stream_one(translator: Translator, request: Request, number: int, job: TranslationJob) -> None:
    settings = {**job.options.generate, "num_beams": 1}
    streamer = _TerminalStreamer(translator.target_tokenizer, skip_special_tokens=True)
    if job.options.seed is not None:
        # As a window of one line.
        translator.backend.seed(job.options.seed + number)
    ((segments, separators),) = translator.layouts([request], [number], job.options)
    _show(separators[0])
    for segment, separator in zip(segments, separators[1:], strict=True):
        translator.backend.search([segment], streamer=streamer, **settings)
        _show(separator)


@dataclass(frozen=True)
class ScoringJob:
    """The work of one `vaswani score`.

    Attributes:
        model (str): A checkpoint folder or a repository on the Hub.
        source (str): A file of sentences.
        target (str): A file of their translations.
        device (str): None for a GPU where there is one.
        ensemble (tuple): More checkpoints.
        json (bool): JSON lines are written.
        options (dict): Arguments of `Translator.score`.
        dtype (str): As `Translator.from_pretrained` takes it.
        quantization (str): As `Translator.from_pretrained` takes it.
    """

    model: str
    source: str
    target: str
    device: str | None
    ensemble: tuple[str, ...]
    json: bool
    options: dict[str, Any]
    dtype: str | None = None
    quantization: str | None = None


def score_files(job: ScoringJob) -> None:
    """Write a line for each pair of lines: the summed log-probability, the score, and those of the tokens.

    Args:
        job (ScoringJob): The work.

    Raises:
        ValueError: If a file is missing, or they have not as many lines.
    """
    for name, path in (("source", job.source), ("target", job.target)):
        if not Path(path).is_file():
            raise ValueError(f"`--{name}` must be an existing file, but is {path}.")
    output = standard_output()
    check_output(None, {"--source": job.source, "--target": job.target})
    skips = job.options.get("on_error") == "skip"
    num_lines = [count_lines(path, skips) for path in (job.source, job.target)]
    if num_lines[0] != num_lines[1]:
        raise ValueError(
            f"{job.source} and {job.target} must have equally many lines, but have {num_lines[0]:,} and "
            f"{num_lines[1]:,}."
        )
    precision = {"dtype": job.dtype, "quantization": job.quantization}
    translator = Translator.from_pretrained(job.model, job.device, ensemble=job.ensemble, **precision)
    scored: Any = translator.score(_texts(job.source), _texts(job.target), **job.options)  # type: ignore[arg-type]
    for translation in with_progress(named(scored, f"{job.source} and {job.target}", 0), "scoring", num_lines[0]):
        output.write(_score_line(translation, job.json).encode("utf-8") + b"\n")


def _texts(path: str) -> Iterator[str | InvalidInput]:
    for number, line in enumerate(read_raw_lines(path), 1):
        yield try_parse(decoded, line, number, path)


def _score_line(translation: Translation, as_json: bool) -> str:
    if as_json:
        return json.dumps(_as_json(translation), ensure_ascii=False)
    if translation.error:
        return ""
    tokens = " ".join(f"{log_prob:.6f}" for log_prob in translation.token_log_probs or ())
    return f"{translation.log_prob:.6f}\t{translation.score:.6f}\t{tokens}"
