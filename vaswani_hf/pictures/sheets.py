"""Draws the attention weights of all heads of a layer on one sheet, as heat maps."""

from collections.abc import Sequence

import torch

from .attention import PairAttention
from .style import Picture, heat_map, label_ticks, new_figure

_HEADS_PER_ROW = 4


def draw_sheets(attention: PairAttention, layer: int | None) -> list[Picture]:
    """Draw three sheets with all heads of the encoder, the decoder and the cross-attention.

    `layer` is the number of the layer, counted from 1. If the encoder or the decoder has fewer layers, its
    sheet shows its last layer. If `layer` is None, all sheets show the last layer.
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
