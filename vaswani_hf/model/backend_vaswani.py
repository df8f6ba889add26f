"""Backends of the translator: they search the translations of a batch of segments, and score given ones.

`Backend` is what `Translator` needs of a backend. `PyTorchBackend` is the backend for all encoder-decoder
models that generate. The other backend of the package is CTranslate2.

This file travels with every checkpoint because the pipeline translates with it.

Letters of shapes: B batch, S source length, T target length, N decoder layers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import GenerationConfig, PreTrainedModel

from .attention_vaswani import AttentionRecorder
from .beam_search_vaswani import NotFiniteError
from .configuration_vaswani import decoder_start_token_id, eos_token_ids
from .generation_vaswani import FiniteLogits, checked_models
from .options_vaswani import setting_of
from .phrase_search_vaswani import forbidden_tokens


@dataclass(slots=True)
class Segment:
    """What is translated at a time: a sentence, or a part of a sentence that is too long for the model."""

    text: str
    # [S], `</s>` last.
    token_ids: list[int]
    # [S] the word of the whole text that each token belongs to, -1 for none; empty if nobody needs it.
    words: list[int] = field(default_factory=list)
    # Arguments of `generate` that the tokenizer gives, such as the language of the translation.
    generate: dict[str, Any] = field(default_factory=dict)
    # The tokens that its translation begins with, and the phrases that it contains, as tokens and as texts.
    prefix: list[int] = field(default_factory=list)
    phrases: list[list[int]] = field(default_factory=list)
    phrase_texts: list[str] = field(default_factory=list)
    # The text of prefix and phrases.
    forced_text: str = ""


@dataclass(slots=True)
class Hypothesis:
    """A translation of a segment as the search finds it."""

    # [T] without the decoder's start; forced tokens first, `</s>` last if the search reached it.
    token_ids: list[int]
    # The number of tokens at the beginning that the search was forced to: target prefix and language.
    num_forced: int = 0
    # The number of forced tokens at the beginning that are part of the length in the score: the language.
    num_counted: int = 0
    # The number of tokens at the end that the search was forced to: `</s>` at the limit.
    num_ending: int = 0
    # The text, which the translator decodes.
    text: str = ""
    # The score of the search, if the backend ranks the hypotheses itself.
    score: float = 0.0
    # [T][S] what the tokens attend to, if the backend cannot find that when it scores.
    attention: list[list[float]] | None = None


class Backend(Protocol):
    """A model that translates batches of segments."""

    generation_config: GenerationConfig
    # The number of source tokens that the model permits: infinite without a limit, None for models of others,
    # whose texts are never cut.
    max_positions: float | None

    def seed(self, seed: int) -> None:
        """Makes the sampling that follows draw the same translations each time."""

    def search(
        self, segments: list[Segment], with_attention: bool = False, **settings: Any
    ) -> list[list[Hypothesis]]:
        """For each of B segments of similar lengths its hypotheses, best first.

        The settings are those of `generate`; a missing setting has the value of the checkpoint. With
        `with_attention` hypotheses keep their attention, if `score` cannot find it. A `SentenceError` names
        the text whose logits are not finite or whose settings contradict each other.
        """
        ...

    def score(
        self, segments: list[Segment], hypotheses: list[Hypothesis], num_layers: int
    ) -> list[tuple[list[float], torch.Tensor | None]]:
        """For each of B hypotheses, one per segment, the log-probabilities of its tokens, and its attention.

        The log-probabilities (nats) are without forced tokens. The attention [N, T, S] float32 is the
        cross-attention of the last `num_layers` layers, the mean over heads, or None. A `NotFiniteError`
        names the text whose logits are not finite.
        """
        ...


class PyTorchBackend:
    """A model, or an ensemble whose probabilities are averaged, as a backend.

    Args:
        model (PreTrainedModel): An encoder-decoder model that generates.
        ensemble (sequence): More models of the same vocabulary.
    """

    def __init__(self, model: PreTrainedModel, ensemble: Sequence[PreTrainedModel] = ()):
        self.model: Any = model
        self.ensemble = checked_models(ensemble)
        self._is_vaswani = self.model.config.model_type == "vaswani"
        if self.ensemble and not self._is_vaswani:
            raise ValueError(
                f"`ensemble` needs a Vaswani model as the first one, but that is a {type(model).__name__}; change their "
                "order."
            )

    @property
    def generation_config(self) -> GenerationConfig:
        """The generation config of the model."""
        return self.model.generation_config

    @property
    def max_positions(self) -> float | None:
        """See `Backend.max_positions`."""
        if not self._is_vaswani:
            return None
        config = self.model.config
        return config.max_position_embeddings if config.position_embedding == "learned" else math.inf

    def seed(self, seed: int) -> None:
        """See `Backend.seed`."""
        torch.manual_seed(seed)

    def search(
        self, segments: list[Segment], with_attention: bool = False, **settings: Any
    ) -> list[list[Hypothesis]]:
        """See `Backend.search`; `with_attention` has no effect, because `score` finds the attention."""
        prefix_lengths = {len(segment.prefix) for segment in segments}
        if len(prefix_lengths) > 1 and self._counts_padding({**segments[0].generate, **settings}):
            return self._search_by_prefix_length(segments, settings)
        prompts = _prompts(segments)
        arguments = self._generate_arguments(segments, prompts, settings)
        finite = FiniteLogits()
        if not self._is_vaswani:
            # Models of others do not check their logits.
            arguments["logits_processor"] = [*(arguments.get("logits_processor") or ()), finite]
        try:
            sequences = self.model.generate(**arguments)
            finite.refuse(len(segments))
        except ValueError as error:
            _name_text(error, segments)
            raise
        found = self._hypotheses(sequences, prompts)
        self._note_forced_tokens(found, max(map(len, prompts)), arguments)
        return found

    def _counts_padding(self, given: Mapping[str, Any]) -> bool:
        """True if the padding before a short target prefix would count as tokens of its translation."""
        if any(model.config.model_type != "vaswani" for model in (self.model, *self.ensemble)):
            return True
        has_fixed_length = setting_of("max_length", given, self.generation_config) is not None
        return has_fixed_length or self.max_positions != math.inf

    def _search_by_prefix_length(
        self, segments: list[Segment], settings: dict[str, Any]
    ) -> list[list[Hypothesis]]:
        """The hypotheses of segments whose prefixes differ in length, from one search per length."""
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
        arguments = {**self._inputs(segments), **segments[0].generate}
        if any(prompts):
            self._refuse_forbidden_prefixes(segments, settings)
            arguments |= self._prompt_arguments(prompts)
        if any(segment.phrases for segment in segments):
            if not self._is_vaswani:
                raise ValueError(
                    f"`must_contain` must be left out for a model of type {self.model.config.model_type!r}, whose search "
                    "knows no phrases."
                )
            arguments["must_contain"] = [segment.phrases for segment in segments]
            # The translator warns of unmet phrases, because it knows the number of the line.
            arguments["warn_of_unmet_phrases"] = False
        # transformers warns of settings of the checkpoint that have no effect with those of the call.
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
        """`input_ids` and `attention_mask` [B, S] int64, on the model's device."""
        ids, mask = _padded([segment.token_ids for segment in segments], self.model.config.pad_token_id or 0)
        return {"input_ids": ids.to(self.model.device), "attention_mask": mask.to(self.model.device)}

    def _prompt_arguments(self, prompts: list[list[int]]) -> dict[str, torch.Tensor]:
        """`decoder_input_ids` [B, 1 + longest prompt] int64, padded on the left, and their mask if needed."""
        start: Any = decoder_start_token_id(self.generation_config)
        rows = [[start, *prompt] for prompt in prompts]
        ids, mask = _padded(rows, self.model.config.pad_token_id or 0, on_the_left=True)
        arguments = {"decoder_input_ids": ids.to(self.model.device)}
        if not bool(mask.all()):
            arguments["decoder_attention_mask"] = mask.to(self.model.device)
        return arguments

    def _refuse_forbidden_prefixes(self, segments: list[Segment], settings: dict[str, Any]) -> None:
        given = {**segments[0].generate, **settings}
        config = GenerationConfig()
        for name in ("bad_words_ids", "suppress_tokens"):
            setattr(config, name, setting_of(name, given, self.generation_config))
        for segment in segments:
            forbidden = forbidden_tokens(segment.prefix, config)
            if forbidden is not None:
                raise ValueError(
                    f"`target_prefix` has the tokens {segment.prefix} for the text {segment.text[:40]!r}, but {forbidden}; "
                    "leave one of them out."
                )

    def _hypotheses(self, sequences: torch.Tensor, prompts: list[list[int]]) -> list[list[Hypothesis]]:
        """The hypotheses of each segment from the sequences [B * R, 1 + T] of `generate`, R per segment."""
        rows = sequences.tolist()
        num_rows = len(rows) // len(prompts)
        first = 1 + max(map(len, prompts))
        end_ids = eos_token_ids(self.generation_config)
        pad_token_id = self.model.config.pad_token_id
        found = []
        for number, prompt in enumerate(prompts):
            of_segment = []
            for row in rows[number * num_rows : (number + 1) * num_rows]:
                token_ids = [*prompt, *without_padding(row[first:], end_ids, pad_token_id)]
                of_segment.append(Hypothesis(token_ids, len(prompt)))
            # A row without tokens of its own is no translation.
            existing = [hypothesis for hypothesis in of_segment if len(hypothesis.token_ids) > len(prompt)]
            found.append(existing or of_segment[:1])
        return found

    def _note_forced_tokens(
        self, found: list[list[Hypothesis]], prompt_length: int, arguments: dict[str, Any]
    ) -> None:
        """Notes which tokens were forced in addition to the prompt: the language, and `</s>` at the limit."""
        language = setting_of("forced_bos_token_id", arguments, self.generation_config)
        end = setting_of("forced_eos_token_id", arguments, self.generation_config)
        if language is None and end is None:
            return
        end_ids = end if isinstance(end, list) else [end]
        limit = setting_of("max_new_tokens", arguments, self.generation_config)
        if limit is None:
            max_length = setting_of("max_length", arguments, self.generation_config)
            # transformers counts the start and the prompt, and generates 20 tokens without a setting.
            limit = 20 if max_length is None else max_length - 1 - prompt_length
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
        self, segments: list[Segment], hypotheses: list[Hypothesis], num_layers: int
    ) -> list[tuple[list[float], torch.Tensor | None]]:
        """See `Backend.score`."""
        labels, _ = _padded([hypothesis.token_ids for hypothesis in hypotheses], 0)
        labels = labels.to(self.model.device)  # [B, T]
        start = labels.new_full((len(labels), 1), decoder_start_token_id(self.generation_config) or 0)
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
    """The log-probabilities [B, T] float32 (nats) of the labels [B, T], each after the labels before it.

    The models are in eval mode; the probabilities of several are averaged. Where logits are NaN or infinite,
    the result is NaN. If `num_layers` N is not 0, the second result is the cross-attention [B, N, T, S]
    float32 of the last N layers of Vaswani models, the mean over heads and models.
    """
    log_probs, attentions = [], []
    for model in models:
        if num_layers and model.config.model_type != "vaswani":
            raise ValueError(
                "Word alignments and coverage must be left out for a model of type "
                f"{model.config.model_type!r}; they are read from the attention of Vaswani models."
            )
        arguments = {**inputs, "decoder_input_ids": decoder_input_ids, "use_cache": False}
        if num_layers:
            total_layers = len(model.get_decoder().layers)  # type: ignore[operator]
            recorder = AttentionRecorder(range(max(0, total_layers - num_layers), total_layers))
            arguments["attention_recorder"] = recorder
        logits = model(**arguments).logits  # [B, T, V]
        chosen = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1).float()  # [B, T]
        # One row at a time, because a copy of all logits in float32 would take too much memory.
        total = torch.stack([row.float().logsumexp(-1) for row in logits])
        # An infinite logit of another token would look like a probability of 0.
        log_probs.append(chosen - total.masked_fill(total.isinf(), math.nan))
        if num_layers:
            layers = [recorder.weights[layer] for layer in sorted(recorder.layers)]
            attentions.append(torch.stack(layers, dim=1))  # [B, N, T, S]
    averaged = torch.stack(log_probs).logsumexp(dim=0) - math.log(len(models))
    return averaged, torch.stack(attentions).mean(dim=0) if attentions else None


def _name_text(error: Any, segments: list[Segment]) -> None:
    """Gives an error of a sentence the text of the sentence, and the texts of the phrases to blame.

    The attributes decide and not the class: transformers may load the code of a checkpoint twice, once for
    the model and once for the pipeline.
    """
    number = getattr(error, "sentence", None)
    if number is None:
        return
    segment = segments[number]
    error.text = segment.text
    if hasattr(error, "phrases"):
        texts = zip(segment.phrases, segment.phrase_texts, strict=True)
        error.phrase_texts = [text for phrase, text in texts if phrase in error.phrases]


def without_padding(token_ids: list[int], end_ids: Sequence[int], pad_token_id: int | None) -> list[int]:
    """The tokens of a translation up to its `</s>`, or, if it was cut off, without the padding."""
    ends = [token_ids.index(end_id) for end_id in end_ids if end_id in token_ids]
    if ends:
        return token_ids[: min(ends) + 1]
    length = len(token_ids)
    while length > 0 and token_ids[length - 1] == pad_token_id:
        length -= 1
    return token_ids[:length]


def _padded(rows: list[list[int]], fill: int, on_the_left: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of tokens as a tensor [B, longest row] int64, and the mask of the same shape, 0 for padding."""
    longest = max(map(len, rows))
    padding = [[fill] * (longest - len(row)) for row in rows]
    lengths = torch.tensor([len(row) for row in rows])[:, None]
    columns = torch.arange(longest)
    if on_the_left:
        ids = torch.tensor(
            [[*before, *row] for before, row in zip(padding, rows, strict=True)], dtype=torch.int64
        )
        return ids, (columns >= longest - lengths).long()
    ids = torch.tensor([[*row, *after] for row, after in zip(rows, padding, strict=True)], dtype=torch.int64)
    return ids, (columns < lengths).long()


def _prompts(segments: list[Segment]) -> list[list[int]]:
    """For each segment the tokens that its translation begins with: the language, if any, and the prefix."""
    if not any(segment.prefix for segment in segments):
        return [[] for _ in segments]
    language = segments[0].generate.get("forced_bos_token_id")
    # `generate` puts the language first only if no prefix is given.
    first = [] if language is None else [language]
    return [[*first, *segment.prefix] for segment in segments]
