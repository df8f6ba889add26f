"""A picture of a comparison: bars of BLEU over the length of the source, with confidence intervals."""

import io
from collections.abc import Mapping
from typing import Any

from .comparison import FEWEST_SENTENCES

# Okabe and Ito's colours, which stay apart for the colour-blind and in print; the baseline is grey.
COLORS = ("#999999", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")


def comparison_picture(results: Mapping[str, Any]) -> bytes:
    """A PNG: BLEU of each system on all sentences and by words of the source, with 95 % intervals where there are any.

    Args:
        results (Mapping): As from `compare_systems`, of at most as many systems as there are colours.
    """
    # Only a picture needs matplotlib.
    from matplotlib.figure import Figure

    all_sentences = {"words": "all", "sentences": results["sentences"], "systems": results["systems"]}
    groups = [all_sentences, *results["lengths"]]
    names = [row["system"] for row in results["systems"]]
    width = 0.8 / len(names)
    figure = Figure(figsize=(max(7.0, 1.3 * len(groups)), 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="words of the source (sentences)", ylabel=_bleu_name(results))
    for number, name in enumerate(names):
        scores = [group["systems"][number]["bleu"] for group in groups]
        places = [place + (number - (len(names) - 1) / 2) * width for place in range(len(groups))]
        # A dollar sign would begin a formula, and a first underscore hide the name.
        label = f"\u200b{name}".replace("$", r"\$") + (" (baseline)" if number == 0 else "")
        axes.bar(places, [score["score"] for score in scores], 0.92 * width, label=label, color=COLORS[number])
        for place, score in zip(places, scores, strict=True):
            if score["confidence_interval"] is not None:
                low, high = score["confidence_interval"]
                axes.plot([place, place], [low, high], color="black", linewidth=1.2)
    axes.set_xticks(range(len(groups)), [f"{group['words']}\n({group['sentences']:,})" for group in groups])
    axes.set_ylim(bottom=0)
    axes.axvline(0.5, color="black", linewidth=0.6, linestyle=":")
    axes.spines[["top", "right"]].set_visible(False)
    title = f"lines: 95 % interval by the bootstrap, from {FEWEST_SENTENCES} sentences on"
    figure.legend(loc="outside upper left", frameon=False, title=title, alignment="left")
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150, metadata={"Software": None})
    return content.getvalue()


def _bleu_name(results: Mapping[str, Any]) -> str:
    is_split = "split_compounds" in results["bleu_signature"]
    return "compound-split BLEU" if is_split else "BLEU"
