"""Defines the format of an explanation: one JSON object that describes how a model translates one text.

`vaswani look` writes an explanation into an HTML page. `vaswani export --format html` writes a page whose
JavaScript code computes explanations in the same format. In the pages of `vaswani look` and `vaswani export`,
the scripts in the folder `view/` draw the explanation.

The JSON object has the fields of `Explanation` under the same names. Nested dataclasses are JSON objects,
sequences are JSON arrays, and None is null. Log-probabilities are in nats.

In shapes, S is the number of source tokens, T the number of target tokens including `</s>`, and K the number
of beams.
"""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import torch

from ..model.text_rules_vaswani import token_texts

# `MAX_PAGE_SIZE` is the maximum size of a page in bytes. `_OTHER_BYTES` is the estimated size of a page
# without its attention weights in bytes.
MAX_PAGE_SIZE = 1_500_000
_OTHER_BYTES = 400_000
# Attention weights are stored as integers from 0 to `LARGEST_WEIGHT`. The largest rounding error is 0.5 /
# 65535 = 7.6e-6.
LARGEST_WEIGHT = 65535
# The size of a stored attention weight in bytes: the 2 bytes of an integer, multiplied by 4/3 for base64.
BYTES_PER_WEIGHT = 8 / 3
# The temperatures that a user of the page can choose with a slider. To compute exact log-probabilities, the
# page needs the softmax normalizer (`Node.normalizers`) for each temperature.
TEMPERATURES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0)


@dataclass(frozen=True)
class Token:
    """A token of the source or of the translation. The first token of a word can begin with a space."""

    text: str
    id: int


@dataclass(frozen=True)
class Word:
    """A word of one or several consecutive tokens. `stop` is the index of the last token plus 1."""

    text: str
    start: int
    stop: int


@dataclass(frozen=True)
class Tokens:
    """A sequence of tokens, divided into words. A special token such as `</s>` is a word of its own."""

    tokens: Sequence[Token]
    words: Sequence[Word]


@dataclass(frozen=True)
class Weights:
    """The attention weights of all layers and heads.

    Attributes:
        shape (sequence): Four integers: the numbers of layers, heads, rows and columns. A row belongs to a
            query, and a column belongs to a key. The attention weights of each row add up to 1.
        data (str): All attention weights in row-major order, as base64 text. A weight is stored as an
            unsigned little-endian 16-bit integer: the weight multiplied by 65535.
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
    """The attention weights of one forward pass of the model over the source and the whole translation.

    Attributes:
        encoder (Weights): The encoder's self-attention. Rows and columns are the S source tokens.
        decoder (Weights): The decoder's self-attention. Rows and columns are the T tokens that the decoder
            reads (`Explanation.decoder_input`).
        cross (Weights): The cross-attention, from the T tokens that the decoder reads to the S source tokens.
    """

    encoder: Weights
    decoder: Weights
    cross: Weights


@dataclass
class Node:
    """A token that the beam search has considered. A node and its ancestors are the tokens of a hypothesis.

    Attributes:
        parent (int): The index of the node of the preceding token in `SearchRecord.nodes`; -1 for the root.
            The root represents all tokens that the translation must begin with, such as the start token.
        token (int): The id of the token. `SearchRecord.texts` contains the text of each token.
        log_prob (float): The log-probability of the token, given the tokens of its ancestors; 0 for the root.
        step (int): The number of the search step that considered this node, from 1; 0 for the root.
        state (str): "beam" if the hypothesis that ends at this node became one of the K beams. "finished" if
            the hypothesis ended at this node, with an end token or at the length limit, and was among the K
            best candidates of its step. Otherwise "dropped".
        left (int or None): The step at which the search dropped the last hypothesis that contains this node.
            `left` is None if any hypothesis that contains this node has finished, or is a beam at the end of
            the search.
        normalizers (list or None): For each temperature t of `SearchRecord.temperatures`, the logarithm of
            the sum of exp(log_prob / t) over the whole vocabulary. At temperature t, the log-probability of a
            child node is its `log_prob` / t, minus the normalizer for t. `normalizers` is None if the search
            predicted no token after this node.
        coverage (float or None): The coverage term of Wu et al. 2016, Equation 14, before the multiplication
            by `coverage_penalty`. In one decoding step, the decoder reads the token of the node. `coverage`
            includes the attention weights of this step and of all earlier steps. Therefore the score of a
            hypothesis uses the coverage term of the second-to-last node of the hypothesis. `coverage` is None
            if the search has no coverage penalty, or if the search predicted no token after this node.
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
        node (int): The index of the last node of the hypothesis.
        score (float): The sum of the log-probabilities divided by the length penalty, plus the coverage term
            multiplied by `coverage_penalty`.
    """

    node: int
    score: float


@dataclass(frozen=True)
class SearchRecord:
    """The record of a beam search: its settings, and the tree of all tokens that the search has considered.

    The length n of a hypothesis is the number of generated tokens, including `</s>`. The length n does not
    include the start token, and does not include a prefix that the user gives for the translation. The length
    penalty is ((5 + n) / 6)^length_penalty for the type "gnmt", and n^length_penalty for the type "power".

    The search ends after a step in each of these cases:

    - All candidates of the step have ended.
    - `stops_when_full` is True, and K hypotheses have finished.
    - At least `num_counted` hypotheses have finished, and the score of the best unfinished beam is not higher
      than the score of the finished hypothesis with the rank `num_counted`. The score of the best unfinished
      beam is computed without the coverage term. If `considers_all_lengths` is True and `length_penalty` is
      positive, the length penalty of the unfinished beam is computed for the maximum length `limit`. In all
      other cases, the length penalty of the unfinished beam is computed for the current number of tokens.

    Attributes:
        num_beams (int): K, the number of beams.
        length_penalty (float): The exponent of the length penalty.
        length_penalty_type (str): "gnmt" or "power".
        coverage_penalty (float): The factor of the coverage term of the score.
        limit (int): The maximum length of a hypothesis, in generated tokens.
        num_counted (int): The rank (1 is the best) of the finished hypothesis with which the stopping rule
            compares the best unfinished beam.
        considers_all_lengths (bool): Has an effect only if `length_penalty` is positive. If True, the
            stopping rule computes the length penalty of unfinished beams for the maximum length `limit`. If
            False, the stopping rule uses the current length of each beam.
        stops_when_full (bool): True if the beam search ends as soon as K hypotheses have finished, even if an
            unfinished hypothesis could become better.
        num_candidates (int): The number of best continuations that each step considers, at least
            `2 * num_beams`.
        end_ids (sequence): The ids of the tokens that end a hypothesis.
        temperatures (sequence): The softmax temperatures of the entries of `Node.normalizers`.
        nodes (sequence): The nodes of the tree, each a `Node`. Each parent is before its children. The
            children of a beam are its `num_candidates` most probable next tokens, most probable first.
        finished (sequence): The finished hypotheses, best first. The search keeps only the K best finished
            hypotheses.
        texts (mapping): A mapping from token ids (as str) to texts, for all tokens of the tree.
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
    temperatures: Sequence[float] = TEMPERATURES
    nodes: Sequence[Node] = ()
    finished: Sequence[Finished] = ()
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunnerUp:
    """A runner-up: a probable word that the model could have written instead of a word of the translation.

    Attributes:
        text (str): The runner-up. An empty text means that the model could have ended the translation before
            the token at `position`.
        probability (float): The product of the probabilities of the tokens of `text`, given the tokens before
            the replaced word in the translation. The runner-up can be the beginning of the replaced word
            ("house" for "houses"). If the runner-up is such a beginning, `token` is the token after the
            runner-up, and `probability` includes the probability of `token`.
        position (int): The index in `Explanation.target` of the first token at which the runner-up differs
            from the translation.
        token (int): The id of the new token at `position`, in place of the token of the translation.
        translation (str): The best translation that keeps the tokens before `position` and has `token` at
            `position`.
        score (float): The score of `translation`.
    """

    text: str
    probability: float
    position: int
    token: int
    translation: str
    score: float


@dataclass(frozen=True)
class WordChoice:
    """The probability of a word of the translation, and the most probable other words.

    Attributes:
        probability (float): The product of the probabilities of the tokens of the word.
        runners_up (sequence): The most probable alternatives to the word, each a `RunnerUp`, most probable
            first.
    """

    probability: float
    runners_up: Sequence[RunnerUp]


@dataclass(frozen=True)
class Explanation:
    """Describes how a model translates one text.

    Attributes:
        model (str): The name of the model.
        source_text (str): The text to translate.
        target_text (str): The translation.
        is_given (bool): True if the user gave the translation, False if the beam search found the
            translation.
        source (Tokens): The S tokens that the encoder reads.
        target (Tokens): The T tokens of the translation, with `</s>` if the translation is complete.
        decoder_input (Tokens): The T tokens that the decoder reads: the start token, and the translation
            without its last token. At position t the decoder predicts `target.tokens[t]`.
        log_probs (sequence): The T log-probabilities of the target tokens; 0 for the tokens of a given
            prefix.
        score (float): The score of the translation: the sum of the log-probabilities divided by the length
            penalty, plus the coverage term multiplied by `coverage_penalty`.
        attention (Attention): The attention weights.
        words (sequence): A `WordChoice` for each word of `target`.
        search (SearchRecord or None): The record of the beam search that translates `source_text`. None if
            the search was not recorded.
        search_note (str): A sentence that says why `search` is None. An empty string if `search` is not None.
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
        """Return the explanation as JSON. Floats are rounded to six decimal places."""
        return _json_of(self)

    def too_large(self, page_size: int) -> str:
        """Return the error message for a page of `page_size` bytes, which is too large. The message says
        whether a shorter text or fewer beams can help.
        """
        num_source = len(self.source.tokens)
        num_target = len(self.target.tokens)
        num_beams = 1 if self.search is None else self.search.num_beams
        search_size = len(_json_of(self.search).encode())
        attention_size = len(_json_of(self.attention).encode())
        is_long = page_size - search_size > MAX_PAGE_SIZE
        has_many_beams = page_size - attention_size > MAX_PAGE_SIZE
        if num_beams == 1 or (is_long and not has_many_beams):
            attention = self.attention
            shapes = [kind.shape for kind in (attention.encoder, attention.decoder, attention.cross)]
            num_heads = sum(layers * heads for layers, heads, _, _ in shapes)
            return too_long(num_heads, num_source, num_target)
        if has_many_beams and not is_long:
            # The record of a search has num_beams * num_candidates nodes per step, and `num_candidates` is
            # proportional to `num_beams`.
            room = MAX_PAGE_SIZE - (page_size - search_size)
            fitting = max(1, int(num_beams * math.sqrt(room / search_size)))
            return (
                f"`num_beams` must be small enough for a page of {MAX_PAGE_SIZE / 1e6} MB, but is {num_beams}; with "
                f"this text about {fitting} beams fit, so give fewer beams."
            )
        remedy = "a shorter text and fewer beams" if is_long else "a shorter text or fewer beams"
        return (
            f"`text` and `num_beams` must be small enough for a page of {MAX_PAGE_SIZE / 1e6} MB, but the text has "
            f"{num_source:,} tokens, its translation has {num_target:,} tokens and `num_beams` is {num_beams}; "
            f"give {remedy}."
        )


def too_long(num_heads: int, num_source: int, num_target: int | None = None) -> str:
    """Return the error message for a text that is too long. `num_heads` is the number of self-attention and
    cross-attention heads in all layers together.
    """
    fitting = math.isqrt(int((MAX_PAGE_SIZE - _OTHER_BYTES) / (BYTES_PER_WEIGHT * num_heads)))
    translation = "" if num_target is None else f" and its translation has {num_target:,} tokens"
    return (
        f"`text` must be short enough for a page of {MAX_PAGE_SIZE / 1e6} MB, but the text has {num_source:,} tokens"
        f"{translation}; with this model about {fitting} tokens on each side fit, so give a shorter text."
    )


def display_texts(token_ids: Sequence[int], tokenizer: Any) -> list[str]:
    """Return the text of each token. Replace "▁", which SentencePiece writes for a space, by a space."""
    return [text.replace("▁", " ") for text in token_texts(token_ids, tokenizer)]


def _json_of(value: Any) -> str:
    """Return a dataclass or None as JSON. Floats are rounded to six decimal places."""
    fields = None if value is None else _rounded(asdict(value))
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {name: _rounded(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry) for entry in value]
    return value
