"""Computes the attention weights between the tokens and between the words of one sentence pair, and draws the
attention of a translation, or all heads of a layer, as heat maps.

In shapes, N is the number of layers, H the number of heads, S the number of source tokens and T the number of
target tokens. W is the number of words of a sentence (source or target).
"""

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..model.configuration_vaswani import decoder_start_token_id
from ..model.errors_vaswani import InvalidValueError
from ..model.text_rules_vaswani import has_words, token_texts
from ..model.tokenizing_vaswani import TOKENIZING
from ..model.translations_vaswani import ALIGNMENT_LAYERS
from ..model.translator_vaswani import BaseTranslator
from ..translation.translator import Translator
from .style import Picture, heat_map, label_ticks, new_figure, save

# A word is a sequence of letters and digits, with apostrophes and hyphens inside, or one punctuation mark.
_WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")
_HEADS_PER_ROW = 4


@dataclass(frozen=True)
class Tokens:
    """The tokens and the words of a text. Each special token, such as `</s>`, is also a word."""

    ids: list[int]
    texts: list[str]
    words: list[str]
    # For each token, the index of the word that contains the token.
    word_of_token: list[int]


def read_tokens(text: str, tokenizer: Any, *, is_target: bool = False) -> Tokens:
    """Tokenize a text, and find the word of each token."""
    with TOKENIZING:
        arguments = {"text_target": text} if is_target else {"text": text}
        encoding = tokenizer(
            **arguments, verbose=False, return_offsets_mapping=True, return_special_tokens_mask=True
        )
    texts = token_texts(encoding["input_ids"], tokenizer)
    matches = list(_WORD.finditer(text))
    ends = [match.end() for match in matches]
    # For each token, the index of its word in the list `matches`. A special token belongs to no word of the
    # text and gets the index `len(matches)`.
    match_of_token = []
    for (start, _), is_special in zip(
        encoding["offset_mapping"], encoding["special_tokens_mask"], strict=True
    ):
        match_of_token.append(len(ends) if is_special else bisect.bisect_right(ends, start))
    words: list[str] = []
    word_of_match: dict[int, int] = {}
    for index, match in enumerate(matches):
        if index in match_of_token or not words:
            word_of_match[index] = len(words)
            words.append(match[0])
        else:
            # If one token contains two matches of `_WORD`, join the two matches to one word. For example, the
            # token `."` contains two punctuation marks.
            words[-1] += match[0]
    word_of_token = []
    for token, index in zip(texts, match_of_token, strict=True):
        if index not in word_of_match:
            words.append(token)
        word_of_token.append(word_of_match.get(index, len(words) - 1))
    return Tokens(encoding["input_ids"], texts, words, word_of_token)


@dataclass(frozen=True)
class PairAttention:
    """The attention weights of one sentence pair.

    Row t of `decoder` and of `cross` belongs to the position that predicts target token t. The columns of the
    tensor `decoder` belong to the T input tokens of the decoder: the start token, and the target tokens
    without the last token.
    """

    source: Tokens
    target: Tokens
    # The texts of the T input tokens of the decoder.
    decoder_inputs: list[str]
    # [N, H, S, S]
    encoder: torch.Tensor
    # [N, H, T, T]
    decoder: torch.Tensor
    # [N, H, T, S]
    cross: torch.Tensor


@torch.no_grad()
def pair_attention(translator: BaseTranslator, text: str, translation: str) -> PairAttention:
    """Compute the attention weights of a forward pass with a text and its given translation."""
    source = read_tokens(text, translator.source_tokenizer)
    target = read_tokens(translation, translator.target_tokenizer, is_target=True)
    model = translator.model
    start_id: Any = decoder_start_token_id(model.config)
    decoder_ids = [start_id, *target.ids[:-1]]
    outputs = model(
        input_ids=torch.tensor([source.ids], device=model.device),
        decoder_input_ids=torch.tensor([decoder_ids], device=model.device),
        output_attentions=True,
        use_cache=False,
    )
    return PairAttention(
        source,
        target,
        token_texts(decoder_ids, translator.target_tokenizer),
        torch.cat(outputs.encoder_attentions),
        torch.cat(outputs.decoder_attentions),
        torch.cat(outputs.cross_attentions),
    )


def word_weights(weights: torch.Tensor, query: Tokens, key: Tokens) -> torch.Tensor:
    """Convert weights [..., query tokens, key tokens] to weights between words [..., W, W].

    The weight is the sum over the tokens of the key word, and the mean over the tokens of the query word.
    Therefore each row of the result adds up to 1.
    """
    of_queries = _one_hot(query, weights)  # [query tokens, W]
    of_keys = _one_hot(key, weights)  # [key tokens, W]
    return (of_queries / of_queries.sum(dim=0)).T @ weights @ of_keys


def _one_hot(tokens: Tokens, weights: torch.Tensor) -> torch.Tensor:
    words = torch.tensor(tokens.word_of_token, device=weights.device)
    return torch.nn.functional.one_hot(words, len(tokens.words)).to(weights.dtype)


def attention_picture(model: str | BaseTranslator, text: str, path: str | Path) -> str:
    """Translate a text, draw the cross-attention from the translation to the text, and return the
    translation.

    The heat map has one row for each token of the translation. Each weight is the mean over the
    cross-attention heads of the last two decoder layers, as in word alignments.
    """
    if not has_words(text):
        raise InvalidValueError(f"`text` must contain a word, but is {text!r}.")
    translator = Translator.from_pretrained(model) if isinstance(model, str) else model
    translation = next(iter(translator.translate([text])))
    attention = pair_attention(translator, text, translation)
    mean = attention.cross[-ALIGNMENT_LAYERS:].mean(dim=(0, 1))  # [T, S]
    rows, columns = mean.shape
    figure = new_figure(2.5 + 0.3 * columns, 1.6 + 0.26 * rows)
    axes = figure.add_subplot()
    image = heat_map(axes, mean, highest=mean.max().item())
    axes.xaxis.tick_top()
    label_ticks(axes, attention.source.texts, attention.target.texts, size=9)
    figure.colorbar(image, label="attention weight")
    save(figure, Path(path))
    return translation


def draw_sheets(attention: PairAttention, layer: int | None) -> list[Picture]:
    """Draw all heads of one layer: encoder self-attention, decoder self-attention and cross-attention.

    `layer` is counted from 1. If `layer` is None or above the number of layers, draw the last layer.
    """
    source, target = attention.source.texts, attention.target.texts
    kinds = (
        ("encoder", "self-attention of the encoder", attention.encoder, source, source),
        ("decoder", "self-attention of the decoder", attention.decoder, target, attention.decoder_inputs),
        ("cross", "attention of the decoder to the source", attention.cross, target, source),
    )
    pictures = []
    for name, title, weights, rows, columns in kinds:
        number = min(layer or len(weights), len(weights))
        caption = (
            f"All heads of layer {number} of {len(weights)}: {title}. Each row of a heat map adds up to 1."
        )
        if name != "encoder":
            caption += " A row shows the weights at the position that predicts the token of the row."
        pictures.append(_draw_sheet(f"heads_{name}", caption, weights[number - 1], rows, columns, number))
    return pictures


def _draw_sheet(
    name: str, caption: str, weights: torch.Tensor, rows: Sequence[str], columns: Sequence[str], layer: int
) -> Picture:
    """Draw the weights [H, rows, columns] of all heads."""
    num_heads = len(weights)
    per_row = min(_HEADS_PER_ROW, num_heads)
    num_rows = -(-num_heads // per_row)
    width, height = 0.6 + 0.17 * len(columns), 0.4 + 0.17 * len(rows)
    figure = new_figure(per_row * width + 1.6, num_rows * height + 1.8)
    panels = figure.subplots(num_rows, per_row, squeeze=False, sharex=True, sharey=True).flatten()
    for panel in panels[num_heads:]:
        panel.axis("off")
    for head, panel in enumerate(panels[:num_heads]):
        image = heat_map(panel, weights[head], highest=weights.max().item())
        label_ticks(panel, columns, rows)
        panel.set_title(f"head {head + 1}", fontsize=9)
    figure.colorbar(image, ax=panels, label="attention weight", shrink=0.6)
    numbers = {"layer": layer, "rows": list(rows), "columns": list(columns), "num_heads": num_heads}
    return Picture(name, figure, caption, numbers)
