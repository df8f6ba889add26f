"""Defines the interface `Backend`, with which the translator runs a model, and the implementation
`PyTorchBackend`.

The translator passes batches of segments with similar lengths to a backend. A segment is a text, a sentence
of a text (with `split_sentences`), or a part of a text or sentence that is too long for the model.
`Backend.search` returns translations (hypotheses) of each segment. `Backend.score` computes log-probabilities
and attention of given hypotheses.

`PyTorchBackend` works for all encoder-decoder models that have `generate`. The folder `translation` of the
package contains the CTranslate2 backend.

This file is saved with every checkpoint, because the translation pipeline of the checkpoint uses
`PyTorchBackend`.

In tensor shapes, B is the number of segments of a batch, S the source length, T the target length (both in
tokens), R the number of translations of a segment, N the number of decoder layers that return attention
weights, and V the size of the target vocabulary.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedModel

from .attention_vaswani import AttentionRecorder
from .configuration_vaswani import decoder_start_token_id, eos_token_ids, is_vaswani_seq2seq
from .ensemble_vaswani import checked_models
from .errors_vaswani import InvalidValueError
from .length_limits_vaswani import PAPER_LIMIT, TRANSFORMERS_LIMIT, max_new_tokens_of
from .phrases_vaswani import forbidden_tokens
from .precedence_vaswani import config_of_call, setting_of
from .processors_vaswani import FiniteLogits
from .search_errors_vaswani import NotFiniteError


@dataclass(slots=True)
class Segment:
    """One row in the input of `generate`: a text, a sentence of a text (with `split_sentences`), or a part of
    a text or sentence that is too long for the model.
    """

    text: str
    # The token ids [S] of the source. The last token is `</s>` if the source tokenizer adds `</s>`.
    token_ids: list[int]
    # For each source token, the index of its word in the whole text, or -1 if the token belongs to no word.
    # The list is empty if the translator needs no word indices.
    words: list[int] = field(default_factory=list)
    # Additional arguments of `generate`, such as the target language of a multilingual model.
    generate_arguments: dict[str, Any] = field(default_factory=dict)
    # The token ids with which the translation must begin, and their text.
    prefix: list[int] = field(default_factory=list)
    prefix_text: str = ""
    # The phrases that the translation must contain. `phrases` contains the token ids of each phrase, and
    # `phrase_texts` contains the text of each phrase.
    phrases: list[list[int]] = field(default_factory=list)
    phrase_texts: list[str] = field(default_factory=list)

    @property
    def forced_text(self) -> str:
        """The texts of the target prefix and of the phrases, joined by spaces."""
        return " ".join([self.prefix_text, *self.phrase_texts])


class Layout(NamedTuple):
    """The n segments of a text, and the n + 1 separators. The separators are the texts before, between and
    after the translations of the segments.
    """

    segments: list[Segment]
    separators: list[str]


@dataclass(slots=True)
class Hypothesis:
    """A translation that the search has found for a segment, or a given translation for `Backend.score`."""

    # The token ids [T] of the translation without the start token. Forced tokens are at the beginning of
    # `token_ids`. The last token is `</s>` unless the search stopped at the length limit.
    token_ids: list[int]
    # The number of forced tokens at the beginning of `token_ids`: the language token and the target prefix.
    # The search does not choose forced tokens.
    num_forced: int = 0
    # The number of forced language tokens that the length penalty counts (0 or 1). The length penalty never
    # counts the target prefix.
    num_counted: int = 0
    # The number of forced tokens at the end of the hypothesis: 1 if the length limit forced `</s>`, otherwise
    # 0.
    num_ending: int = 0
    # The text of the translation, and the required phrases that are missing in the translation. If no phrase
    # is missing, `unmet_phrases` is None. The translator sets `text` and `unmet_phrases`.
    text: str = ""
    unmet_phrases: list[str] | None = None
    # The score of the hypothesis in the search. Only the CTranslate2 backend sets `score`.
    score: float = 0.0
    # The cross-attention [T][S]. The method `search` of a backend fills the field `attention` only if the
    # method `score` cannot compute cross-attention.
    attention: list[list[float]] | None = None


class Backend(Protocol):
    """The interface with which the translator runs a model."""

    @property
    def generation_config(self) -> GenerationConfig:
        """The generation settings of the checkpoint."""
        ...

    @property
    def is_vaswani(self) -> bool:
        """True if the model is a Vaswani model. The translator divides long texts only for Vaswani models.
        For a Vaswani model, the default length limit of the method `search` depends on the length of the
        source.
        """
        ...

    @property
    def max_positions(self) -> float:
        """The maximum number of source tokens of a segment; infinite if the limit is unknown, or if the model
        has no limit.
        """
        ...

    @property
    def supports_phrases(self) -> bool:
        """True if the method `search` can find translations that contain given phrases."""
        ...

    def seed(self, seed: int) -> None:
        """Set the random seed for sampling."""

    def search(
        self, segments: list[Segment], with_attention: bool = False, **settings: Any
    ) -> list[list[Hypothesis]]:
        """Search for translations of B segments that have similar lengths. Return the hypotheses of each
        segment, best first. Raise a `SentenceError` with the text if a text cannot be translated.

        `settings` are arguments of `generate`. If `with_attention` is True and the backend's method `score`
        cannot compute attention, `search` stores the cross-attention in each hypothesis.
        """
        ...

    def score(
        self, segments: list[Segment], hypotheses: list[Hypothesis], num_layers: int, **settings: Any
    ) -> list[tuple[list[float], torch.Tensor | None]]:
        """For each of the B segments, return the token log-probabilities and the attention of the given
        hypothesis. Raise a `NotFiniteError` with the source text if logits are not finite. `settings` are the
        arguments of the method `search` that found the hypotheses.

        The log-probabilities (in nats) leave out forced tokens. The attention [N, T, S] float32 is the
        cross-attention of the last `num_layers` layers, averaged over heads; None if the backend cannot
        compute it.
        """
        ...


class PyTorchBackend:
    """Translates with a PyTorch model that has `generate`, or with an ensemble of models with the same
    vocabulary. An ensemble averages the token probabilities of its models.
    """

    def __init__(self, model: PreTrainedModel, ensemble: Sequence[PreTrainedModel] = ()):
        self.model: Any = model
        self.ensemble = checked_models(ensemble)
        self.is_vaswani = is_vaswani_seq2seq(model)
        if self.ensemble and not self.is_vaswani:
            raise InvalidValueError(
                "`ensemble` needs a Vaswani model as the first model, but the first model is a "
                f"{type(model).__name__}; change the order of the models."
            )

    @property
    def generation_config(self) -> GenerationConfig:
        """The generation config of `model`, not of the other models in `ensemble`."""
        return self.model.generation_config

    @property
    def max_positions(self) -> float:
        """See `Backend.max_positions`. A Vaswani model limits the number of tokens only if the positions of
        the model are learned.
        """
        return self.model.config.num_positions if self.is_vaswani else math.inf

    @property
    def supports_phrases(self) -> bool:
        """True if the model is a Vaswani model. See `Backend.supports_phrases`."""
        return self.is_vaswani

    def seed(self, seed: int) -> None:
        """Set the seed of PyTorch."""
        torch.manual_seed(seed)

    def search(
        self, segments: list[Segment], with_attention: bool = False, **settings: Any
    ) -> list[list[Hypothesis]]:
        """See `Backend.search`. `PyTorchBackend` ignores `with_attention`."""
        prefix_lengths = {len(segment.prefix) for segment in segments}
        if len(prefix_lengths) > 1 and self._counts_padding({**segments[0].generate_arguments, **settings}):
            return self._search_by_prefix_length(segments, settings)
        prompts = _prompts_of(segments)
        arguments = self._generate_arguments(segments, prompts, settings)
        finite = FiniteLogits()
        if not self.is_vaswani:
            # Add a check for finite logits, because models of other libraries have no such check.
            arguments["logits_processor"] = [*(arguments.get("logits_processor") or ()), finite]
        try:
            sequences = self.model.generate(**arguments)
            finite.raise_for_marked_row(len(segments))
        except ValueError as error:
            _name_text(error, segments)
            raise
        config = config_of_call(arguments, self.generation_config)
        found = self._hypotheses(sequences, prompts, config)
        self._note_forced_tokens(found, segments, max(map(len, prompts)), config)
        return found

    def _counts_padding(self, given: Mapping[str, Any]) -> bool:
        """Return True if the length limit counts not only tokens, but also padding. Shorter target prefixes
        of a batch are padded to the length of the longest prefix.
        """
        if not all(map(is_vaswani_seq2seq, (self.model, *self.ensemble))):
            return True
        has_fixed_length = setting_of("max_length", given, self.generation_config) is not None
        return has_fixed_length or self.max_positions != math.inf

    def _search_by_prefix_length(
        self, segments: list[Segment], settings: dict[str, Any]
    ) -> list[list[Hypothesis]]:
        """Run a separate search for each group of segments with equally long target prefixes."""
        rows_of: dict[int, list[int]] = {}
        for row, segment in enumerate(segments):
            rows_of.setdefault(len(segment.prefix), []).append(row)
        found: list[list[Hypothesis]] = [[] for _ in segments]
        for rows in rows_of.values():
            of_rows = self.search([segments[row] for row in rows], **settings)
            for row, hypotheses in zip(rows, of_rows, strict=True):
                found[row] = hypotheses
        return found

    def _generate_arguments(
        self, segments: list[Segment], prompts: list[list[int]], settings: dict[str, Any]
    ) -> dict[str, Any]:
        arguments = {**self._inputs(segments), **segments[0].generate_arguments}
        if any(prompts):
            config = config_of_call({**arguments, **settings}, self.generation_config)
            _refuse_forbidden_prefixes(segments, config)
            arguments |= self._prompt_arguments(prompts, config)
        if any(segment.phrases for segment in segments):
            arguments["must_contain"] = [segment.phrases for segment in segments]
            # `generate` must not warn about unmet phrases, because the translator logs a warning with the
            # line number.
            arguments["warn_of_unmet_phrases"] = False
        # Reset settings that have no effect, because `generate` logs a warning about each such setting.
        idle: dict[str, Any] = {"max_length": None} if settings.get("max_new_tokens") else {}
        if settings.get("num_beams") == 1:
            idle |= {"length_penalty": 1.0, "early_stopping": False}
        for name, value in idle.items():
            if getattr(self.generation_config, name, None) is not None:
                arguments[name] = value
        if self.ensemble:
            arguments["ensemble"] = self.ensemble
        return {**arguments, **settings, "return_dict_in_generate": False}

    def _inputs(self, segments: list[Segment]) -> dict[str, torch.Tensor]:
        """Return `input_ids` and `attention_mask` [B, S] int64, on the model's device."""
        ids, mask = _pad_rows(
            [segment.token_ids for segment in segments], self.model.config.pad_token_id or 0
        )
        return {"input_ids": ids.to(self.model.device), "attention_mask": mask.to(self.model.device)}

    def _prompt_arguments(
        self, prompts: list[list[int]], config: GenerationConfig
    ) -> dict[str, torch.Tensor]:
        """Return left-padded `decoder_input_ids` [B, 1 + longest prompt] int64. If the prompts have different
        lengths, also return `decoder_attention_mask`.
        """
        start: Any = decoder_start_token_id(config)
        rows = [[start, *prompt] for prompt in prompts]
        ids, mask = _pad_rows(rows, self.model.config.pad_token_id or 0, side="left")
        arguments = {"decoder_input_ids": ids.to(self.model.device)}
        if not bool(mask.all()):
            arguments["decoder_attention_mask"] = mask.to(self.model.device)
        return arguments

    def _hypotheses(
        self, sequences: torch.Tensor, prompts: list[list[int]], config: GenerationConfig
    ) -> list[list[Hypothesis]]:
        """Convert the sequences [B * R, 1 + T] that `generate` returned to the hypotheses of B segments."""
        rows = sequences.tolist()
        num_rows = len(rows) // len(prompts)
        first = 1 + max(map(len, prompts))
        end_ids = eos_token_ids(config)
        pad_token_id = self.model.config.pad_token_id
        found = []
        for number, prompt in enumerate(prompts):
            of_segment = []
            for row in rows[number * num_rows : (number + 1) * num_rows]:
                token_ids = [*prompt, *without_padding(row[first:], end_ids, pad_token_id)]
                of_segment.append(Hypothesis(token_ids, len(prompt)))
            # Ignore rows that contain only the prompt: the search found no translation for such a row.
            existing = [hypothesis for hypothesis in of_segment if len(hypothesis.token_ids) > len(prompt)]
            found.append(existing or of_segment[:1])
        return found

    def _note_forced_tokens(
        self,
        found: list[list[Hypothesis]],
        segments: list[Segment],
        prompt_length: int,
        config: GenerationConfig,
    ) -> None:
        """Record in each hypothesis whether the search forced a language token, and whether the search forced
        `</s>` at the length limit.
        """
        language = config.forced_bos_token_id
        end = config.forced_eos_token_id
        if language is None and end is None:
            return
        end_ids = end if isinstance(end, list) else [end]
        limit = max_new_tokens_of(
            config,
            max(len(segment.token_ids) for segment in segments),
            # Add 1 for the start token.
            1 + prompt_length,
            self.max_positions,
            default=PAPER_LIMIT if self.is_vaswani else TRANSFORMERS_LIMIT,
        )
        for hypotheses in found:
            for hypothesis in hypotheses:
                own = hypothesis.token_ids[hypothesis.num_forced :]
                if language is not None and prompt_length == 0 and own[:1] == [language]:
                    hypothesis.num_counted = 1
                    hypothesis.num_forced += 1
                if len(own) == limit and own[-1] in end_ids:
                    hypothesis.num_ending = 1

    @torch.inference_mode()
    def score(
        self, segments: list[Segment], hypotheses: list[Hypothesis], num_layers: int, **settings: Any
    ) -> list[tuple[list[float], torch.Tensor | None]]:
        """See `Backend.score`."""
        labels, _ = _pad_rows([hypothesis.token_ids for hypothesis in hypotheses], 0)
        labels = labels.to(self.model.device)  # [B, T]
        config = config_of_call(settings, self.generation_config)
        start = labels.new_full((len(labels), 1), decoder_start_token_id(config) or 0)
        decoder_input_ids = torch.cat([start, labels[:, :-1]], dim=1)
        models = [self.model, *self.ensemble]
        log_probs, attention = token_log_probs(
            models, self._inputs(segments), decoder_input_ids, labels, num_layers
        )
        scores = []
        for row, (segment, hypothesis) in enumerate(zip(segments, hypotheses, strict=True)):
            num_tokens = len(hypothesis.token_ids)
            own = log_probs[row, hypothesis.num_forced : num_tokens - hypothesis.num_ending].tolist()
            if any(map(math.isnan, own)):
                raise NotFiniteError(row, segment.text)
            of_row = None if attention is None else attention[row, :, :num_tokens, : len(segment.token_ids)]
            scores.append((own, of_row))
        return scores


@torch.inference_mode()
def token_log_probs(
    models: Sequence[PreTrainedModel],
    inputs: dict[str, Any],
    decoder_input_ids: torch.Tensor,
    labels: torch.Tensor,
    num_layers: int = 0,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the log-probabilities [B, T] float32 (nats) of the tokens `labels` [B, T], and the
    cross-attention [B, N, T, S] float32. The cross-attention comes from the last `num_layers` decoder layers
    (N = `num_layers`), averaged over heads and models; None if `num_layers` is 0.

    The function averages the probabilities of the models. The models must be in eval mode. A log-probability
    is NaN if a logit of its position is NaN or +inf, or if all logits of its position are -inf.
    """
    log_probs = []
    attentions = []
    for model in models:
        if num_layers and not is_vaswani_seq2seq(model):
            raise ValueError(
                "Word alignments and coverage must be left out for a model of type "
                f"{model.config.model_type!r}; only Vaswani models record the attention that alignments and"
                " coverage need."
            )
        arguments = {**inputs, "decoder_input_ids": decoder_input_ids, "use_cache": False}
        if num_layers:
            total_layers = len(model.get_decoder().layers)  # type: ignore[operator]
            recorder = AttentionRecorder(range(max(0, total_layers - num_layers), total_layers))
            arguments["attention_recorder"] = recorder
        logits = model(**arguments).logits  # [B, T, V]
        chosen = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1).float()  # [B, T]
        # Convert the logits of one row at a time to float32, because a float32 copy of all logits would take
        # too much memory.
        total = torch.stack([row.float().logsumexp(-1) for row in logits])
        # If a logit is +inf, `chosen - total` can be -inf, the log-probability of an impossible token.
        # Therefore replace an infinite `total` by NaN, so that the log-probability is NaN.
        log_probs.append(chosen - total.masked_fill(total.isinf(), math.nan))
        if num_layers:
            layers = [recorder.weights[layer] for layer in sorted(recorder.layers)]
            attentions.append(torch.stack(layers, dim=1))  # [B, N, T, S]
    averaged = torch.stack(log_probs).logsumexp(dim=0) - math.log(len(models))
    return averaged, torch.stack(attentions).mean(dim=0) if attentions else None


def _refuse_forbidden_prefixes(segments: list[Segment], config: GenerationConfig) -> None:
    for segment in segments:
        forbidden = forbidden_tokens(segment.prefix, config)
        if forbidden is not None:
            raise InvalidValueError(
                f"`target_prefix` has the tokens {segment.prefix} for the text {segment.text[:40]!r}, "
                f"but {forbidden}; remove the prefix or the setting."
            )


def _prompts_of(segments: list[Segment]) -> list[list[int]]:
    """Return the forced first tokens of each translation: the language token and the target prefix."""
    if not any(segment.prefix for segment in segments):
        return [[] for _ in segments]
    # Add the language token, because `generate` does not force the language token if the call has a target
    # prefix.
    return [[*language_token(segment), *segment.prefix] for segment in segments]


def language_token(segment: Segment) -> list[int]:
    """Return a list with the id of the language token that the search forces as the first token. Without a
    forced language token, return an empty list.
    """
    language = segment.generate_arguments.get("forced_bos_token_id")
    return [] if language is None else [language]


def _pad_rows(rows: list[list[int]], fill: int, side: str = "right") -> tuple[torch.Tensor, torch.Tensor]:
    """Pad rows of token ids to a tensor [B, longest row] int64. Also return the mask, 0 for padding."""
    ids = [torch.tensor(row, dtype=torch.int64) for row in rows]
    mask = [torch.ones_like(row) for row in ids]
    return (
        pad_sequence(ids, batch_first=True, padding_value=fill, padding_side=side),
        pad_sequence(mask, batch_first=True, padding_value=0, padding_side=side),
    )


def without_padding(token_ids: list[int], end_ids: Sequence[int], pad_token_id: int | None) -> list[int]:
    """Return the tokens up to and including the first `</s>`, or all tokens except final padding."""
    ends = [token_ids.index(end_id) for end_id in end_ids if end_id in token_ids]
    if ends:
        return token_ids[: min(ends) + 1]
    length = len(token_ids)
    while length > 0 and token_ids[length - 1] == pad_token_id:
        length -= 1
    return token_ids[:length]


def _name_text(error: Any, segments: list[Segment]) -> None:
    """Set `text` and `phrase_texts` of a `SentenceError`.

    Test the attributes of the error instead of its class. transformers can load the file of the class twice,
    once for the model and once for the pipeline. If the file is loaded twice, `isinstance` can return False.
    """
    number = getattr(error, "sentence", None)
    if number is None:
        return
    segment = segments[number]
    error.text = segment.text
    if hasattr(error, "phrases"):
        texts = zip(segment.phrases, segment.phrase_texts, strict=True)
        error.phrase_texts = [text for phrase, text in texts if phrase in error.phrases]
