"""PyTorch as the backend of `Translator`: the search of `generate`, with constraints and scores, which do not travel.

The other backend is in `ctranslate2`.

Letters of shapes: B batch, S source length, T target length, N decoder layers.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from ..model.attention_vaswani import AttentionRecorder
from ..model.beam_search_vaswani import NotFiniteError
from ..model.configuration_vaswani import decoder_start_token_id
from ..model.generation_vaswani import VaswaniGeneration
from ..model.phrase_search_vaswani import PhraseError, forbidden_tokens
from ..model.translator_vaswani import GenerateBackend, Hypothesis, Segment, setting_of
from .constraints import constraint_arguments


@dataclass(frozen=True)
class SearchedHypothesis(Hypothesis):
    """A hypothesis with what the search was forced to beside the target prefix.

    Its probability is 1 to the search, and its length counts.

    Attributes:
        num_counted (int): Of the forced tokens at the beginning, the language.
        num_ending (int): Of the tokens at the end, a `</s>` at the limit.
    """

    num_counted: int = 0
    num_ending: int = 0


class PyTorchBackend(GenerateBackend):
    """A model, or several, as a backend that scores and takes constraints.

    Args:
        model (PreTrainedModel): An encoder-decoder model.
        ensemble (sequence): More models of the same vocabulary, whose probabilities are averaged with the first one's.
    """

    def constraints(self, segments: list[Segment]) -> tuple[list[list[int]], dict[str, Any]]:
        """The prefixes of the translations, and what constraints add to the arguments of `generate`.

        Args:
            segments (list): B of them.

        Raises:
            ValueError: If there are phrases, and the search of the model knows none.
        """
        if any(segment.phrases for segment in segments) and not isinstance(self.model, VaswaniGeneration):
            raise ValueError(
                f"`must_contain` must be left out for a model of type {self.model.config.model_type!r}, whose search knows no "
                "phrases."
            )
        prefixes = [segment.prefix for segment in segments]
        language = segments[0].generate.get("forced_bos_token_id")
        if language is not None and any(prefixes):
            # The language of the translation, which `generate` puts first where nothing else is.
            prefixes = [[language, *prefix] for prefix in prefixes]
        return prefixes, constraint_arguments(self.model, prefixes, [segment.phrases for segment in segments])

    def search(self, segments: list[Segment], with_attention: bool = False, **settings: Any) -> list[list[Hypothesis]]:
        """For each segment of a batch its hypotheses, best first, which know what the search was forced to.

        Args:
            segments (list): B of them.
            with_attention (bool): Without effect: scoring finds the attention.
            **settings: Those of `generate`.

        Raises:
            PhraseError: If the phrases of a segment contradict another setting; it names the text and the phrases.
        """
        given = {**segments[0].generate, **settings}

        def setting(name: str) -> Any:
            return setting_of(name, given, self.generation_config)

        lengths = {len(segment.prefix) for segment in segments}
        counts_padding = any(model.config.model_type != "vaswani" for model in (self.model, *self.ensemble))
        counts_padding |= setting("max_length") is not None or self.max_positions not in (None, math.inf)
        if len(lengths) > 1 and counts_padding:
            # The padding before a short prefix would count as tokens of its translation.
            return self._by_length_of_prefix(segments, with_attention, settings)
        for segment in segments:
            if segment.prefix:
                self._check_prefix(segment, setting)
        try:
            found = super().search(segments, with_attention, **settings)
        except PhraseError as error:
            of_segment = segments[error.sentence]
            texts = zip(of_segment.phrases, of_segment.phrase_texts, strict=True)
            error.phrase_texts = [text for phrase, text in texts if phrase in error.phrases]
            raise

        longest, prompt_length = setting("max_new_tokens"), 1 + max(hypotheses[0].num_forced for hypotheses in found)
        if longest is None:
            longest = (setting("max_length") or prompt_length + 20) - prompt_length
        language, end = setting("forced_bos_token_id"), setting("forced_eos_token_id")
        ends = end if isinstance(end, list) else [end]

        def known(hypothesis: Hypothesis) -> Hypothesis:
            own = hypothesis.token_ids[hypothesis.num_forced :]
            num_counted = int(language is not None and prompt_length == 1 and own[:1] == [language])
            num_ending = int(len(own) == longest and own[-1] in ends)
            if not num_counted + num_ending:
                return hypothesis
            return SearchedHypothesis(
                hypothesis.token_ids, hypothesis.num_forced + num_counted, hypothesis.text, num_counted, num_ending
            )

        return [[known(hypothesis) for hypothesis in hypotheses] for hypotheses in found]

    @staticmethod
    def _check_prefix(segment: Segment, setting: Callable[[str], Any]) -> None:
        """Refuse a prefix that a setting forbids.

        Raises:
            ValueError: If there are such tokens in it.
        """
        config = SimpleNamespace(**{name: setting(name) for name in ("bad_words_ids", "suppress_tokens")})
        if (forbidden := forbidden_tokens(segment.prefix, config)) is not None:
            raise ValueError(
                f"`target_prefix` has the tokens {segment.prefix} for the text {segment.text[:40]!r}, but {forbidden}; leave "
                "one of them out."
            )

    def _by_length_of_prefix(self, segments: list[Segment], with_attention: bool, settings: dict[str, Any]) -> Any:
        found: dict[int, list[Hypothesis]] = {}
        for length in {len(segment.prefix) for segment in segments}:
            rows = [row for row, segment in enumerate(segments) if len(segment.prefix) == length]
            of_rows = self.search([segments[row] for row in rows], with_attention, **settings)
            found |= dict(zip(rows, of_rows, strict=True))
        return [found[row] for row in range(len(segments))]

    @torch.inference_mode()
    def score(
        self, segments: list[Segment], hypotheses: list[Hypothesis], num_layers: int
    ) -> list[tuple[list[float], torch.Tensor | None]]:
        """The log-probabilities of the tokens of a batch.

        Args:
            segments (list): B of them.
            hypotheses (list): One for each.
            num_layers (int): N, the last decoder layers whose attention is needed.

        Returns:
            list: For each hypothesis the log-probabilities of its tokens that were not forced (nats), and the attention
            [N, T, S] float32, None for N = 0.

        Raises:
            NotFiniteError: If logits are not finite.
        """
        inputs = self.inputs(segments)
        labels = pad_sequence([torch.tensor(h.token_ids) for h in hypotheses], batch_first=True).to(self.model.device)
        start = labels.new_full((len(labels), 1), decoder_start_token_id(self.generation_config) or 0)
        decoder_input_ids = torch.cat([start, labels[:, :-1]], dim=1)
        models = [self.model, *self.ensemble]
        log_probs, attention = token_log_probs(models, inputs, decoder_input_ids, labels, num_layers)
        scores = []
        for row, hypothesis in enumerate(hypotheses):
            num_source, num_tokens = len(segments[row].token_ids), len(hypothesis.token_ids)
            end = num_tokens - getattr(hypothesis, "num_ending", 0)
            own = log_probs[row, hypothesis.num_forced : end].tolist()
            if any(map(math.isnan, own)):
                raise NotFiniteError(row, segments[row].text)
            scores.append((own, None if attention is None else attention[row, :, :num_tokens, :num_source]))
        return scores


@torch.inference_mode()
def token_log_probs(
    models: Sequence[PreTrainedModel],
    inputs: dict[str, Any],
    decoder_input_ids: torch.Tensor,
    labels: torch.Tensor,
    num_layers: int = 0,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The log-probabilities of given tokens, each where those before it are given.

    Args:
        models: One model, or several whose probabilities are averaged; in eval mode.
        inputs: `input_ids` [B, S] int64 and `attention_mask` [B, S].
        decoder_input_ids: [B, T] int64, what the decoder reads: its start token, then the labels without the last.
        labels: [B, T] int64.
        num_layers: N, the number of last decoder layers to watch; only for models of this package.

    Returns:
        [B, T] float32 in nats, NaN where logits are NaN or infinite; and the cross-attention [B, N, T, S] float32, the mean over heads and models, for N > 0.

    Raises:
        ValueError: If layers of another kind of model are to be watched.
    """
    for model in models:
        if num_layers and model.config.model_type != "vaswani":
            raise ValueError(
                "Word alignments and coverage must be left out for a model of type "
                f"{model.config.model_type!r}; they are read from the attention of Vaswani models."
            )
    log_probs, attentions = [], []
    for model in models:
        logits, weights = _logits_and_attention(model, {**inputs, "decoder_input_ids": decoder_input_ids}, num_layers)
        chosen = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1).float()
        # Row by row, so that the probabilities of all classes never stand beside the logits.
        total = torch.stack([row.float().logsumexp(-1) for row in logits])
        # An infinite logit of another token would look like a probability of 0.
        log_probs.append(chosen - total.masked_fill(total.isinf(), math.nan))
        if num_layers:
            attentions.append(torch.stack(weights, dim=1))
    averaged = torch.stack(log_probs).logsumexp(dim=0) - math.log(len(models))
    return averaged, sum(attentions) / len(models) if attentions else None  # type: ignore[return-value]


def _logits_and_attention(
    model: Any, inputs: dict[str, torch.Tensor], num_layers: int
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The logits [B, T, V], and of each of the last layers the cross-attention [B, T, S], the mean over heads."""
    last = len(model.get_decoder().layers) if num_layers else 0
    recorder = AttentionRecorder(range(max(0, last - num_layers), last))
    watched = {"attention_recorder": recorder} if num_layers else {}
    logits = model(**inputs, use_cache=False, **watched).logits
    return logits, [recorder.weights[layer] for layer in sorted(recorder.layers)]
