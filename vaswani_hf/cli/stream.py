"""Prints the output of `vaswani translate --stream`. The code is in a separate file, because this code
imports transformers, and translate.py must not import transformers.
"""

import functools
from dataclasses import replace
from typing import Any

from transformers import TextStreamer

from ..model.errors_vaswani import InvalidValueError
from ..model.inputs_vaswani import TranslationOptions
from ..model.requests_vaswani import InvalidInput, Request, numbered
from ..model.text_rules_vaswani import separator_after
from ..model.translator_vaswani import results_of_lines
from .lines import CountedRequests, LineReport
from .output import standard_output
from .texts import TextOptions, with_allowed_line_breaks


class _TerminalStreamer(TextStreamer):
    """Writes each word to standard output as soon as the word is complete."""

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        _show(text.replace("\n", " "))


def _show(text: str) -> None:
    standard_output().write(text.encode("utf-8", errors="replace"))


def stream_translations(
    translator: Any, requests: CountedRequests, chosen: TranslationOptions, options: TextOptions
) -> None:
    """Print greedy translations word by word."""
    show = functools.partial(_stream_one, translator, chosen, options)
    remaining = translator.after_choosing_dtype(requests, replace(chosen, window=1))
    with LineReport(options.place, requests=requests) as report:
        for number, request in enumerate(remaining, 1):
            (line,) = results_of_lines([request], number, show, lambda shown: shown, chosen.on_error)
            report.add(line)
            _show("\n")


def _stream_one(
    translator: Any,
    chosen: TranslationOptions,
    options: TextOptions,
    request: Request | InvalidInput,
    number: int,
) -> str:
    """Translate one request, and print the words during the search. Return an empty text, because the words
    of the translation are already printed.
    """
    streamer = _TerminalStreamer(translator.target_tokenizer, skip_special_tokens=True)
    request = numbered(request, number)
    if request.must_contain:
        raise InvalidValueError(
            "`must_contain` must be left out with `--stream`, because a streamed search does not support phrases."
        )
    (layout,) = translator.segmenter.layouts([request], chosen)
    if chosen.seed is not None:
        translator.backend.seed(chosen.seed + number)
    separators = [with_allowed_line_breaks(separator, options) for separator in layout.separators]
    _show(separators[0])
    for index, segment in enumerate(layout.segments):
        ((hypothesis,),) = translator.backend.search(
            [segment], streamer=streamer, **{**chosen.generate, "num_beams": 1}
        )
        sentence = translator.segment_search.decode(hypothesis, segment, chosen)
        _show(separator_after(index, sentence, separators))
    return ""
