"""Defines the format of an explanation: one JSON object that describes how a model translates one text.

`vaswani look` writes an explanation into a page. The exported page of `vaswani export --format html` computes
an equal object in JavaScript. The scripts in the folder `view/` draw both pages from this object only.

The JSON object has the fields of `Explanation` under the same names. Nested dataclasses are JSON objects,
sequences are JSON arrays, and None is null. Log-probabilities are in nats.

In shapes, S is the number of source tokens, T the number of target tokens including `</s>`, and K the number of
beams.
"""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch

from ..model.text_rules_vaswani import token_texts

# The maximum size of a page in bytes, and the bytes that a page needs without the attention weights.
MAX_PAGE_SIZE = 1_500_000
_OTHER_BYTES = 400_000
# Weights are stored as integers from 0 to this number. The largest rounding error is 0.5 / 65535 = 7.6e-6.
LARGEST_WEIGHT = 65535
# The size of a weight in bytes: 2 bytes in base64.
BYTES_PER_WEIGHT = 8 / 3
# The temperatures of the slider of the page. The record of the search has a normalizer for each temperature,
# so that the page can compute exact log-probabilities at each of these temperatures.
TEMPERATURES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0)


@dataclass(frozen=True)
class Token:
    """A token.

    Attributes:
        text (str): The text of the token. A space at the beginning belongs to the text.
        id (int): The id of the token in the vocabulary.
    """

    text: str
    id: int


@dataclass(frozen=True)
class Word:
    """A word as a range of tokens.

    Attributes:
        text (str): The text of the word, without spaces.
        start (int): The index of the first token.
        stop (int): The index after the last token.
    """

    text: str
    start: int
    stop: int


@dataclass(frozen=True)
class Tokens:
    """A sequence of tokens, divided into words.

    Attributes:
        tokens (sequence): The tokens, each a `Token`.
        words (sequence): The words in their order, each a `Word`. Each token belongs to exactly one word. A
            special token such as `</s>` is a word of its own.
    """

    tokens: Sequence[Token]
    words: Sequence[Word]


@dataclass(frozen=True)
class Weights:
    """The attention weights of all layers and heads.

    Attributes:
        shape (sequence): The four numbers of layers, heads, rows and columns. A row is a query, and a column is
            a key. Each row of weights adds up to 1.
        data (str): The weights in the order of `shape`, as base64 of unsigned integers of 16 bits, low byte
            first. The weight is the integer divided by 65535.
    """

    shape: Sequence[int]
    data: str

    @classmethod
    def of(cls, weights: torch.Tensor) -> Self:
        """Store the weights [layers, heads, rows, columns] of any float dtype."""
        integers = (weights.double() * LARGEST_WEIGHT).round().int().cpu()
        content = integers.numpy().astype("<u2").tobytes()
        return cls(tuple(weights.shape), base64.b64encode(content).decode())


@dataclass(frozen=True)
class Attention:
    """The attention of the model during one pass over the source and the whole translation.

    Attributes:
        encoder (Weights): The self-attention of the encoder. Rows and columns are the S source tokens.
        decoder (Weights): The self-attention of the decoder. Rows and columns are the T tokens that the decoder
            reads (`Explanation.decoder_input`).
        cross (Weights): The attention of the decoder to the source. Rows are the T tokens that the decoder
            reads, and columns are the S source tokens.
    """

    encoder: Weights
    decoder: Weights
    cross: Weights


@dataclass
class Node:
    """A continuation that the beam search has considered. A node and its ancestors are one hypothesis.

    Attributes:
        parent (int): The index of the node of the hypothesis that this token continues; -1 for the root. The
            root stands for the tokens that the translation must begin with, such as the start token.
        token (int): The id of the token. `SearchRecord.texts` has the text.
        log_prob (float): The log-probability of the token after its ancestors; 0 for the root.
        step (int): The step of the search that considered this node, from 1; 0 for the root.
        state (str): "beam" if the hypothesis became one of the K beams, "finished" if the token ended the
            hypothesis and the hypothesis was among the K best candidates of its step, else "dropped".
        left (int or None): The step at which the last continuation of this node was neither kept as a beam nor
            finished. The step of the node itself for a dropped node. None if a continuation was still a beam
            when the search ended, or if a continuation is in `SearchRecord.finished`.
        normalizers (list or None): For each temperature t of `SearchRecord.temperatures` the logarithm of the
            sum of exp(log_prob / t) over the whole vocabulary. At temperature t the log-probability of a
            child is log_prob / t - normalizer. None if the node was not continued.
        coverage (float or None): The coverage of the source (Wu et al. 2016, Equation 14), without its weight,
            after the model has predicted the children of this node. The score of a finished child contains
            this coverage. None if the node was not continued, or if the search has no coverage penalty.
    """

    parent: int
    token: int
    log_prob: float
    step: int
    state: str = "dropped"
    left: int | None = None
    normalizers: list[float] | None = None
    coverage: float | None = None


@dataclass(frozen=True)
class Finished:
    """A finished hypothesis.

    Attributes:
        node (int): The index of the last node.
        score (float): The sum of the log-probabilities divided by the length penalty, plus the weighted
            coverage.
    """

    node: int
    score: float


@dataclass(frozen=True)
class SearchRecord:
    """A beam search: its settings, and the tree of all continuations that the search has considered.

    With length n (the number of tokens after the root, including `</s>`), the length penalty is ((5 + n) /
    6)^length_penalty for the type "gnmt", and n^length_penalty for the type "power".

    The search of a sentence ends after a step if all candidates have ended, or if the score of the best
    unfinished beam is not above the score of finished hypothesis number `num_counted` (the score is computed
    with the length `limit` if `considers_all_lengths` is True and `length_penalty` is positive, else with the
    current length), or if K hypotheses have finished and `stops_when_full` is True.

    Attributes:
        num_beams (int): K.
        length_penalty (float): The exponent of the length penalty.
        length_penalty_type (str): "gnmt" or "power".
        coverage_penalty (float): The weight of the coverage.
        limit (int): The maximum number of tokens of a hypothesis after the root.
        num_counted (int): The number of finished hypotheses that the stopping rule compares.
        considers_all_lengths (bool): See above.
        stops_when_full (bool): See above.
        num_candidates (int): The number of continuations that each step considers; at least 2 K.
        end_ids (sequence): The ids of the tokens that end a hypothesis.
        temperatures (sequence): The temperatures of `Node.normalizers`.
        nodes (sequence): The nodes, each a `Node`. The root is first, and each parent is before its children.
            The children of a beam are its `num_candidates` most probable continuations, most probable first.
        finished (sequence): The finished hypotheses, each a `Finished`, best first. The first K hypotheses are
            the results of the search.
        texts (mapping): The text of each token of the tree, by the token id as a str.
    """

    num_beams: int
    length_penalty: float
    length_penalty_type: str
    coverage_penalty: float
    limit: int
    num_counted: int
    considers_all_lengths: bool
    stops_when_full: bool
    num_candidates: int
    end_ids: Sequence[int]
    temperatures: Sequence[float]
    nodes: Sequence[Node]
    finished: Sequence[Finished]
    texts: Mapping[str, str]


@dataclass(frozen=True)
class RunnerUp:
    """A word that the model could have written in place of a word of the translation.

    Attributes:
        text (str): The other word; empty if the translation would have ended here.
        probability (float): The probability of the other word after the same beginning of the translation: the
            product of the probabilities of its tokens.
        position (int): The index of the first target token that differs, in `Explanation.target`.
        token (int): The id of the other token at `position`.
        translation (str): The best translation that begins with the tokens before `position` and `token`,
            found by a search with this prefix.
        score (float): The score of this translation.
    """

    text: str
    probability: float
    position: int
    token: int
    translation: str
    score: float


@dataclass(frozen=True)
class WordChoice:
    """The probability of a word of the translation, and the runners-up.

    Attributes:
        probability (float): The product of the probabilities of the tokens of the word.
        runners_up (sequence): The most probable other words, each a `RunnerUp`, most probable first.
    """

    probability: float
    runners_up: Sequence[RunnerUp]


@dataclass(frozen=True)
class Explanation:
    """Describes how a model translates a text.

    Attributes:
        model (str): The name of the model.
        source_text (str): The text.
        target_text (str): The translation.
        is_given (bool): True if the user gave the translation. False if the search found the translation.
        source (Tokens): The S tokens that the encoder reads.
        target (Tokens): The T tokens of the translation. The last token is `</s>` if the translation has ended.
        decoder_input (Tokens): The T tokens that the decoder reads: the start token, and all tokens of the
            translation except the last. At position t the decoder reads `decoder_input.tokens[t]` and predicts
            `target.tokens[t]`.
        log_probs (sequence): The T log-probabilities of the target tokens; 0 for forced tokens.
        score (float): The score of the translation: the sum of the log-probabilities divided by the length
            penalty, plus the weighted coverage.
        attention (Attention): The attention weights.
        words (sequence): For each word of `target` a `WordChoice`.
        search (SearchRecord or None): The beam search of the text. None if the search was not recorded.
        search_note (str): The reason why `search` is None, as a sentence; else an empty str.
    """

    model: str
    source_text: str
    target_text: str
    is_given: bool
    source: Tokens
    target: Tokens
    decoder_input: Tokens
    log_probs: Sequence[float]
    score: float
    attention: Attention
    words: Sequence[WordChoice]
    search: SearchRecord | None
    search_note: str = ""

    def as_json(self) -> str:
        """Return the explanation as JSON. Numbers have six digits after the point."""
        return json.dumps(_rounded(asdict(self)), ensure_ascii=False, separators=(",", ":"))


def too_long(num_heads: int, num_source: int, num_target: int | None = None) -> str:
    """Return the error message for a text that is too long for a page. `num_heads` is the number of heads of all
    layers of the encoder's attention, the decoder's self-attention and the cross-attention.
    """
    fitting = math.isqrt(int((MAX_PAGE_SIZE - _OTHER_BYTES) / (BYTES_PER_WEIGHT * num_heads)))
    translation = "" if num_target is None else f" and its translation has {num_target:,} tokens"
    return (
        f"`text` must be short enough for a page of {MAX_PAGE_SIZE / 1e6} MB, but the text has {num_source:,} tokens"
        f"{translation}; with this model about {fitting} tokens on each side fit, so give a shorter text."
    )


def display_texts(token_ids: Sequence[int], tokenizer: Any) -> list[str]:
    """Return the text of each token, with a space where the vocabulary of SentencePiece writes "▁"."""
    return [text.replace("▁", " ") for text in token_texts(token_ids, tokenizer)]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {name: _rounded(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry) for entry in value]
    return value
