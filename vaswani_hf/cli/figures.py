"""`vaswani figures`: draws the pictures of a checkpoint."""

from typing import Self

from pydantic import Field, model_validator

from ..pictures.relations import default_pronouns, default_verbs, read_partners
from .options import ModelOptions, PrecisionOptions, check_file, on_command_line
from .recorded_split import recorded_test_set


class FiguresOptions(PrecisionOptions, ModelOptions):
    """The options of `vaswani figures`."""

    output: str = on_command_line(positional=True)
    """a new or empty folder"""
    texts: str | None = None
    """a file with one source sentence per line (plain or .gz); the attention heads in the pictures are chosen
    by their attention in these sentences; by default the test set in the recipe of the checkpoint"""
    num_sentences: int = Field(1000, ge=2)
    """the number of sentences to use; the command uses the first sentences of `--texts` or of the test set"""
    verbs: list[str] = on_command_line([], metavar="WORD:WORD,WORD")
    """verbs with the words that complete the verb, such as wears:shirt,hat; by default lists of frequent
    words, if the source language is English or German"""
    pronouns: list[str] = on_command_line([], metavar="WORD:WORD,WORD")
    """pronouns with the words to which the pronoun may refer, such as she:woman,girl; by default lists of
    frequent words, if the source language is English or German"""
    least_distance: int | None = Field(None, ge=1)
    """the minimum distance, in words, from a verb to the word that completes the verb; by default 4, 3 or 2:
    the largest of these distances for which each half of the sentences has at least 10 pairs of such words,
    or else 2
    """
    text: str | None = None
    """the sentence for the pictures that show all attention heads of a layer, at most 100 tokens; by default
    the first sentence with the median number of words"""
    layer: int | None = Field(None, ge=1)
    """the layer for the pictures that show all attention heads of a layer, counted from 1; by default the
    last layer
    """

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        if self.texts is not None:
            check_file("--texts", self.texts)
        read_partners(self.verbs, "--verbs")
        read_partners(self.pronouns, "--pronouns")
        return self


def run(options: FiguresOptions) -> None:
    """Draw the pictures, and print one line for each picture."""
    from ..checkpoint.languages import recorded_languages
    from ..checkpoint.loading import checkpoint_folder
    from ..data.lines import read_lines, refuse_blank
    from ..pictures.figures import draw_figures, read_run
    from ..recipe.published import recorded_recipe
    from ..translation.translator import Translator

    translator = Translator.from_pretrained(options.model_name, options.device, dtype=options.dtype)
    folder = checkpoint_folder(options.model_name)
    recipe = recorded_recipe(folder)
    if options.texts is None:
        texts = recorded_test_set(recipe, "--texts", "give `--texts`").sources
    else:
        texts = list(read_lines(options.texts))
        refuse_blank(texts, "--texts", options.texts)
    training = None if recipe is None else recipe.training
    run_log = read_run(folder, training, translator.model.config.d_model)
    language = (recorded_languages(folder) or ("", ""))[0]
    draw_figures(
        translator,
        texts[: options.num_sentences],
        options.output,
        verbs=read_partners(options.verbs, "--verbs") or default_verbs(language),
        pronouns=read_partners(options.pronouns, "--pronouns") or default_pronouns(language),
        least_distance=options.least_distance,
        text=options.text,
        layer=options.layer,
        run_log=run_log,
    )
