"""Searches for encoder heads with large attention weights between related words, and for two heads of a layer
whose weights differ most.

A search chooses heads on the first half of the sentences of a test set, and measures the chosen heads on the
second half. Therefore the choice of the heads does not bias the measured weights.

In shapes, N is the number of layers, H the number of heads, and W the number of words of a sentence.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..model.segment_search_vaswani import batches_by_length
from .attention import Tokens, word_weights
from .relations import Relation

_TOKENS_PER_BATCH = 4096
# The seed for the random weights of the untrained model.
_SEED = 1


@dataclass(frozen=True)
class Occurrence:
    """A pair of related words in a sentence, with the attention weights of all heads."""

    sentence: int
    query: int
    key: int
    # The attention weight [N, H] of each head from the word `query` to the word `key`.
    weights: torch.Tensor
    # For each head [N, H], True if the attention weight from `query` to `key` is the largest weight of
    # `query` in the sentence.
    is_largest: torch.Tensor
    # For each head [N, H], the mean attention weight of those word pairs in the sentence whose distance is
    # `key - query`.
    same_distance: torch.Tensor


@dataclass
class Statistics:
    """The measurements of all heads of a model on one half of a test set."""

    # For each name of a relation between words, the pairs of related words, in the order of the sentences.
    occurrences: dict[str, list[Occurrence]]
    # For each sentence, a tensor [layers, heads, heads] with an entry for each pair of heads in a layer. The
    # entry is the total variation distance between the attention weights of the two heads, averaged over the
    # query words.
    distances: dict[int, torch.Tensor] = field(default_factory=dict)
    # For each sentence, a tensor [layers, heads, heads] with a value for each pair of heads in a layer. The
    # value is the share (0 to 1) of query words whose most attended key word differs between the two heads.
    disagreements: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Head:
    """A head of the encoder. Layers and heads are counted from 0."""

    layer: int
    head: int

    def __str__(self) -> str:
        return f"layer {self.layer + 1}, head {self.head + 1}"


def untrained(model: Any) -> Any:
    """Return a model with the config of another model and with random initial weights."""
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        return type(model)(copy.deepcopy(model.config)).to(model.device).eval()


@torch.no_grad()
def encoder_weights(model: Any, sentences: Sequence[Tokens]) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the index of each sentence and the attention weights [N, H, W, W] between its words, longest
    sentences first.
    """
    encoder = model.get_encoder()
    for batch in batches_by_length([sentence.ids for sentence in sentences], _TOKENS_PER_BATCH):
        rows = [torch.tensor(sentences[index].ids) for index in batch]
        # The mask excludes the padding, so any id is correct for a model without `pad_token_id`.
        pad_id = model.config.pad_token_id or 0
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad_id)
        lengths = torch.tensor([len(row) for row in rows])
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        outputs = encoder(
            input_ids=ids.to(model.device),
            attention_mask=mask.long().to(model.device),
            output_attentions=True,
        )
        layers = torch.stack(outputs.attentions, dim=1).float().cpu()  # [B, N, H, S, S]
        for index, length, weights in zip(batch, lengths.tolist(), layers, strict=True):
            sentence = sentences[index]
            yield index, word_weights(weights[..., :length, :length], sentence, sentence)


def measure(model: Any, sentences: Sequence[Tokens], relations: Sequence[Relation]) -> Statistics:
    """Measure the attention weights of all encoder heads on `sentences`."""
    statistics = Statistics({relation.name: [] for relation in relations})
    for index, weights in encoder_weights(model, sentences):
        for relation in relations:
            for query, key in relation.pairs(sentences[index].words):
                statistics.occurrences[relation.name].append(_occurrence(weights, index, query, key))
        flat = weights.flatten(start_dim=2)  # [N, H, W * W]
        statistics.distances[index] = torch.cdist(flat, flat, p=1) / (2 * weights.shape[-1])
        favourites = weights.argmax(dim=-1)  # [N, H, W]
        differs = favourites.unsqueeze(1) != favourites.unsqueeze(2)  # [N, H, H, W]
        statistics.disagreements[index] = differs.float().mean(dim=-1)
    for found in statistics.occurrences.values():
        found.sort(key=lambda occurrence: (occurrence.sentence, occurrence.query))
    return statistics


def _occurrence(weights: torch.Tensor, sentence: int, query: int, key: int) -> Occurrence:
    weight = weights[:, :, query, key]
    is_largest = weight >= weights[:, :, query].amax(dim=-1)
    same_distance = weights.diagonal(offset=key - query, dim1=-2, dim2=-1).mean(dim=-1)
    return Occurrence(sentence, query, key, weight, is_largest, same_distance)


def best_heads(occurrences: Sequence[Occurrence], number: int) -> list[Head]:
    """Return the heads with the largest mean weights over the word pairs in `occurrences`, best first."""
    means = torch.stack([occurrence.weights for occurrence in occurrences]).mean(dim=0)  # [N, H]
    order = means.flatten().argsort(descending=True)[:number].tolist()
    return [Head(index // means.shape[1], index % means.shape[1]) for index in order]


def measured_head(occurrences: Sequence[Occurrence], head: Head) -> dict[str, float]:
    """For one head, return the means of `weights`, `is_largest` and `same_distance` over all
    `occurrences`.
    """
    return {
        "layer": head.layer + 1,
        "head": head.head + 1,
        "mean_weight": _mean_of_head([found.weights for found in occurrences], head),
        "share_largest": _mean_of_head([found.is_largest for found in occurrences], head),
        "mean_weight_same_distance": _mean_of_head([found.same_distance for found in occurrences], head),
    }


def _mean_of_head(tensors: Sequence[torch.Tensor], head: Head) -> float:
    """Return the mean of the entries of `head` in `tensors`. Each tensor [N, H] has one entry for each
    head.
    """
    return torch.stack([tensor[head.layer, head.head] for tensor in tensors]).float().mean().item()


def mean_matrix(by_sentence: dict[int, torch.Tensor]) -> torch.Tensor:
    """Return the mean of the tensors in `by_sentence`. For each sentence, `by_sentence` has a tensor [layers,
    heads, heads] with one value for each pair of heads in a layer.
    """
    return torch.stack(list(by_sentence.values())).mean(dim=0)


def most_different_heads(statistics: Statistics) -> tuple[Head, Head]:
    """Return two heads of the same layer: the pair with the largest mean total variation distance between the
    attention weights.
    """
    means = mean_matrix(statistics.distances)
    num_heads = means.shape[-1]
    layer, pair = divmod(int(means.flatten().argmax()), num_heads * num_heads)
    first, second = sorted(divmod(pair, num_heads))
    return Head(layer, first), Head(layer, second)
