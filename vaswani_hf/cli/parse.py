"""Defines `vaswani parse`, the command that writes the tree of each sentence on one line."""

from .texts import TextOptions, make_translation_options, read_requests, text_request, translate_texts


class ParseOptions(TextOptions):
    """The options of `vaswani parse`."""


def run(options: ParseOptions) -> None:
    """Parse the sentences, and write the trees."""
    from ..parsing.parser import Parser

    load = options.loader(Parser.from_pretrained, options.model_name, options.ensemble)
    translate_texts(
        options, load, make_translation_options(options), read_requests(options, text_request), "parsing"
    )
