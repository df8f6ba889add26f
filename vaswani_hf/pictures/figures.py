"""Draws all pictures of a checkpoint, and writes their captions and numbers to figures.json."""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..checkpoint.files import METRICS_FILE, new_folder, read_metrics, recipe_file, write_whole
from ..model.configuration_vaswani import is_vaswani_seq2seq
from ..model.errors_vaswani import InvalidValueError
from ..model.modeling_vaswani import sinusoids
from ..model.text_rules_vaswani import has_words
from ..optimization.schedules import scheduled_rate
from ..optimization.section import AnyTraining
from ..translation.translator import Translator
from .attention import Tokens, draw_sheets, pair_attention, read_tokens
from .attention_lines import ModelStatistics, draw_relation, draw_two_heads
from .equations import draw_positions, draw_schedule, draw_targets
from .head_search import measure, untrained
from .relations import Relation, pronoun_relation, verb_relation
from .style import Picture, save, write_caption
from .training_curve import draw_training_curve, validation_score

FIGURES_FILE = "figures.json"
_FORMATS = (".png", ".svg")
# The minimum distance (words) between a pronoun and its antecedent.
_PRONOUN_DISTANCE = 2
# The minimum distances (words) between a verb and its complement, in the order in which they are tried by
# default. `_verb_relation` uses the first minimum distance with at least `_ENOUGH_PAIRS` pairs of verb and
# complement in each half of the texts. If no distance has enough pairs, the last distance is used.
_VERB_DISTANCES = (4, 3, 2)
_ENOUGH_PAIRS = 10
_PAPER_WIDTH = 512
_NUM_POSITIONS = 60
# The maximum number of tokens of the text in the pictures with all heads, and of its translation. The size of
# a picture with all heads grows with the square of the number of tokens: a picture of 500 tokens needs
# several GB of memory.
_MOST_TOKENS = 100


@dataclass(frozen=True)
class RunLog:
    """The log of a run: its rows, the name of its schedule, and the learning rate of each step."""

    metrics: list[dict[str, Any]]
    schedule: str
    rate: Callable[[int], float]

    @property
    def num_steps(self) -> int:
        """The number of the last step in the log."""
        return max(row["step"] for row in self.metrics)


def read_run(folder: Path, training: AnyTraining | None, d_model: int) -> RunLog | None:
    """Return the log of the run that trained the checkpoint in `folder`. Return None if the recipe or the
    log of the run is missing.
    """
    recipe = recipe_file(folder)
    metrics = [] if recipe is None else read_metrics(recipe.parent / METRICS_FILE)
    if training is None or not metrics:
        return None
    num_steps = training.max_steps or metrics[-1]["step"]

    def rate(step: int) -> float:
        return scheduled_rate(step, training, d_model, num_steps)

    return RunLog(metrics, training.lr_scheduler_type, rate)


def draw_figures(
    translator: Translator,
    texts: Sequence[str],
    output: str | Path,
    *,
    verbs: Mapping[str, frozenset[str]] | None = None,
    pronouns: Mapping[str, frozenset[str]] | None = None,
    least_distance: int | None = None,
    text: str | None = None,
    layer: int | None = None,
    run_log: RunLog | None = None,
    report: Callable[[str], None] = print,
) -> list[Picture]:
    """Draw all pictures of a Vaswani model. Write each picture, its caption and its numbers into the folder
    `output`.

    `texts` are the source sentences of a test set. Texts with too many tokens for the model are left out.
    `verbs` maps each verb to its possible grammatical complements, and `pronouns` maps each pronoun to its
    possible antecedents, in lower case. A complement counts only if the complement is at least
    `least_distance` words after the verb. By default, the function tries the minimum distances 4, 3 and 2 in
    turn. The function uses the first minimum distance with at least 10 pairs of verb and complement in each
    half of `texts`. If no distance has enough pairs, the function uses the distance 2. The pictures with all
    heads show the attention of one layer for the source sentence `text`. By default, `text` is the first
    sentence in `texts` that has the median number of words. `layer` is counted from 1, and is by default the
    last layer. `report` is called with one line for each drawn picture, and with one line for each omitted
    picture.
    """
    if not is_vaswani_seq2seq(translator.model):
        raise InvalidValueError(
            "`model` must be a Vaswani model, but is a model of type "
            f"{translator.model.config.model_type!r}; convert the model with `vaswani import`."
        )
    if translator.segment_tokenizer.languages:
        raise InvalidValueError(
            "`model` must be a model without language tokens, but has language tokens; use `vaswani look` with "
            "`--src_lang` and `--tgt_lang`."
        )
    texts = [line.strip() for line in texts if line.strip()]
    if not texts:
        raise InvalidValueError("`texts` must hold text, but has only empty lines.")
    texts = _short_texts(translator, texts, report)
    config = translator.model.config
    num_layers = max(config.encoder_layers, config.decoder_layers)
    if layer is not None and not 1 <= layer <= num_layers:
        raise InvalidValueError(f"`layer` must be from 1 to {num_layers}, but is {layer}.")
    # Draw the pictures with all heads first, because a text that cannot be drawn must raise an error before
    # the measurement.
    sheets = _sheets(translator, _median_text(texts) if text is None else text, layer)
    with new_folder(Path(output)) as folder:
        folder.mkdir()
        drawn = [
            *_attention_pictures(translator, texts, verbs or {}, pronouns or {}, least_distance, report),
            *sheets,
            *_equations(translator.model),
            *_run_pictures(run_log, report),
        ]
        for picture in drawn:
            write_caption(picture.figure, picture.caption)
            for suffix in _FORMATS:
                save(picture.figure, folder / f"{picture.name}{suffix}")
            report(f"{picture.name}: {picture.caption}")
        content = {
            picture.name: {"caption": picture.caption, "numbers": picture.numbers} for picture in drawn
        }
        write_whole(folder / FIGURES_FILE, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return drawn


def _short_texts(
    translator: Translator, texts: Sequence[str], report: Callable[[str], None]
) -> Sequence[str]:
    """Leave out the texts that have too many tokens for the model."""
    longest = translator.segmenter.max_length
    tokenizer = translator.source_tokenizer
    short = [text for text in texts if len(read_tokens(text, tokenizer).ids) <= longest]
    if not short:
        raise InvalidValueError(
            f"`texts` must hold a text of at most {longest:,} tokens, but all texts are longer; give "
            "shorter texts."
        )
    if len(short) < len(texts):
        number = len(texts) - len(short)
        report(f"texts with more than {longest:,} tokens are left out: {number:,} of {len(texts):,}")
    return short


def _median_text(texts: Sequence[str]) -> str:
    """Return the first text that has the median number of words."""
    median = statistics.median_low(len(text.split()) for text in texts)
    return next(text for text in texts if len(text.split()) == median)


def _attention_pictures(
    translator: Translator,
    texts: Sequence[str],
    verbs: Mapping[str, frozenset[str]],
    pronouns: Mapping[str, frozenset[str]],
    least_distance: int | None,
    report: Callable[[str], None],
) -> Iterator[Picture]:
    """Yield pictures of encoder heads in the style of Figures 3 to 5 of the paper."""
    if len(texts) < 2:
        report(
            "verb_to_complement, pronoun_to_antecedent and two_heads are left out, because the search "
            "needs at least two texts"
        )
        return
    sentences = [read_tokens(text, translator.source_tokenizer) for text in texts]
    middle = (len(sentences) + 1) // 2
    for_choice = sentences[:middle]
    for_measurement = sentences[middle:]
    distances = _VERB_DISTANCES if least_distance is None else (least_distance,)
    relations = [
        _verb_relation(verbs, distances, (for_choice, for_measurement)),
        pronoun_relation(pronouns, _PRONOUN_DISTANCE),
    ]
    trained, random = (
        ModelStatistics(
            model, measure(model, for_choice, relations), measure(model, for_measurement, relations)
        )
        for model in (translator.model, untrained(translator.model))
    )
    for relation in relations:
        if trained.choice.occurrences[relation.name] and trained.measurement.occurrences[relation.name]:
            yield draw_relation(relation, trained, random, for_measurement)
        else:
            report(
                f"{relation.name} is left out, because one half of the texts has no pair of words from the word "
                f"lists; give other words with `{relation.option}`"
            )
    if translator.model.config.encoder_attention_heads > 1:
        yield draw_two_heads("two_heads", trained, random, for_measurement)
    else:
        report("two_heads is left out, because a layer of the encoder has only one head")


def _verb_relation(
    verbs: Mapping[str, frozenset[str]], distances: Sequence[int], halves: Sequence[Sequence[Tokens]]
) -> Relation:
    """Return the relation between verbs and complements. Use the first minimum distance in `distances` for
    which both halves of the texts have enough pairs of a verb and a complement. If all elements of
    `distances` give too few pairs, use the last element.
    """
    for distance in distances:
        relation = verb_relation(verbs, distance)
        counts = [sum(len([*relation.pairs(tokens.words)]) for tokens in half) for half in halves]
        if min(counts) >= _ENOUGH_PAIRS:
            break
    return relation


def _sheets(translator: Translator, text: str, layer: int | None) -> list[Picture]:
    if not has_words(text):
        raise InvalidValueError(f"`text` must contain a word, but is {text!r}; give another text.")
    limit = min(_MOST_TOKENS, translator.segmenter.max_length)
    _check_length("`text`", read_tokens(text, translator.source_tokenizer), limit)
    translation = next(iter(translator.translate([text])))
    target = read_tokens(translation, translator.target_tokenizer, is_target=True)
    _check_length("The translation of `text`", target, _MOST_TOKENS)
    return draw_sheets(pair_attention(translator, text, translation), layer)


def _check_length(name: str, tokens: Tokens, limit: int) -> None:
    if len(tokens.ids) > limit:
        raise InvalidValueError(
            f"{name} must have at most {limit:,} tokens, because the pictures show all pairs of tokens, but has "
            f"{len(tokens.ids):,}; give a shorter text."
        )


@torch.no_grad()
def _equations(model: Any) -> list[Picture]:
    """Return the position encodings of the paper and of the model, and the label-smoothed targets."""
    positions = torch.arange(_NUM_POSITIONS)
    paper = draw_positions(
        "positions_paper",
        sinusoids(positions, _PAPER_WIDTH),
        f"The encodings are those of Section 3.5 of the paper with d_model = {_PAPER_WIDTH}; their dot "
        "products depend only on the distance between two positions.",
    )
    config = model.config
    num_positions = min(_NUM_POSITIONS, config.position_table_size or _NUM_POSITIONS)
    encodings = model.model.encoder.embed_positions(torch.arange(num_positions, device=model.device)[None])[0]
    note = f"The encodings are those of the encoder of the checkpoint (`position_embedding: {config.position_embedding}`)."
    own = draw_positions("positions", encodings, note)
    return [paper, own, draw_targets(config.label_smoothing, config.label_smoothing_form)]


def _run_pictures(run_log: RunLog | None, report: Callable[[str], None]) -> Iterator[Picture]:
    """Yield the pictures of the learning rate and of the training curve."""
    if run_log is None:
        report("schedule and training_curve are left out, because the checkpoint has no record of a run")
        return
    yield draw_schedule(run_log.rate, run_log.num_steps, run_log.metrics, run_log.schedule)
    figure = draw_training_curve(run_log.metrics)
    if figure is None:
        report("training_curve is left out, because the log of the run has no losses")
        return
    score = validation_score(run_log.metrics)
    names = ["loss", "eval_loss", *([f"eval_{score}"] if score else [])]
    numbers = {
        name: [[row["step"], row[name]] for row in run_log.metrics if row.get(name) is not None]
        for name in names
    }
    last = ", ".join(f"{name} {values[-1][1]:.2f}" for name, values in numbers.items() if values)
    caption = f"Training curve. The training loss includes label smoothing, the validation loss does not. Last values: {last}."
    yield Picture("training_curve", figure, caption, numbers)
