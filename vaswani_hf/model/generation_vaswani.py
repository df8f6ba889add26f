"""`generate`, for which this file travels with every checkpoint: settings and limits; the search is in beam_search_vaswani.

Fields of `generation_config` beside those of transformers, each also an argument of `generate`:
- `length_penalty_type`: "power" (or None): scores are divided by length^length_penalty; "gnmt": by
  ((5 + length) / 6)^length_penalty (Wu et al. 2016, Eq. 14), which is the paper's (Section 6.1).
- `max_length_a`, `max_length_b`: at most a * source tokens + b new tokens, for each sentence by itself, `</s>` counted
  on both sides; the one that is not given is 0. Every limit that is given holds. Where none is, neither these nor
  `max_length` nor `max_new_tokens`, they are 1 and 50 (Section 6.1: "input length + 50").
- `coverage_penalty`: the weight of the coverage of Wu et al. 2016, Eq. 14, in beam search.
Arguments of `generate` alone:
- `ensemble`: a list of models of the same vocabulary whose probabilities are averaged with this one's.
- `must_contain`: for each sentence a list of phrases (lists of token ids) that its translation contains. If no translation
  with all phrases of a sentence is found, the best one with as many of them as possible is given back. A warning names the
  missing phrases, and the field `unmet_phrases` of the outputs has them for each returned sequence.
- `warn_of_unmet_phrases`: False if the caller looks for missing phrases by itself."""

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin, LogitsProcessor, LogitsProcessorList, StopStringCriteria
from transformers.generation import GenerationMode, StoppingCriteria, StoppingCriteriaList, utils
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.integrations.fsdp import is_fsdp_managed_module
from transformers.modeling_outputs import BaseModelOutput

from .attention_vaswani import attention_masks, decoding_cache, needs_sync
from .beam_search_vaswani import (
    OWN_CRITERIA,
    BeamSearch,
    DeferredReader,
    NotFiniteError,
    NoTranslationError,
    forbidding_settings,
    sample_candidates,
    top_candidates,
)
from .configuration_vaswani import decoder_start_token_id, eos_token_ids
from .decoding_vaswani import RowDecoder, TreeAttentionDecoder
from .options_vaswani import ADDED_SETTINGS, validate_search_fields, value_of
from .phrase_search_vaswani import check_phrases, search_again, unmet_phrases, warn_of_unmet_phrases

# Section 6.1: "We set the maximum output length during inference to input length + 50".
PAPER_MAX_LENGTH = (1, 50)
# Arguments that beams can take along when sentences leave; with any other one no sentence leaves before the end.
_INPUTS_OF_BEAMS = {"attention_mask", "decoder_attention_mask", "encoder_outputs", "past_key_values", "use_cache"}
# Arguments of `generate` that are neither settings nor the model's.
_ARGUMENTS = signature(GenerationMixin.generate).parameters.keys()


def checked_models(ensemble: Any) -> list[Any]:
    """The further models of an ensemble.

    Raises:
        ValueError: If they are no list of models.
    """
    if not isinstance(ensemble, (list, tuple)):
        raise ValueError(
            f"`ensemble` must be a list of models, but is a {type(ensemble).__name__}; write `ensemble=[…]` around one model."
        )
    for number, model in enumerate(ensemble):
        if not isinstance(model, GenerationMixin):
            raise ValueError(
                f"`ensemble` must be a list of models that generate, but ensemble[{number}] is a {type(model).__name__}."
            )
    return [*ensemble]


def is_filled(value: Any) -> bool:
    """True for a value that is neither None nor an empty list."""
    return value is not None and not (isinstance(value, (list, tuple)) and len(value) == 0)


def tokens_at_most(config: Any, source_length: int) -> int | None:
    """The new tokens, 1 or more, that `max_length_a` and `max_length_b` allow for so many source tokens, `</s>` included; or None."""
    a, b = getattr(config, "max_length_a", None), getattr(config, "max_length_b", None)
    if a is None and b is None:
        return None
    # 0.29 * 100 is a little less than 29 to a computer.
    return max(1, math.floor((a or 0) * source_length + (b or 0) + 1e-6))


class SentenceLimitCriteria(StoppingCriteria):
    """Ends each row of a sentence at its own limit: `lengths` [B] int64, tokens at most, prompts included."""

    # The search of transformers fills up rows that have ended only where a criterion has this attribute.
    eos_token_id = None

    def __init__(self, lengths: torch.Tensor, config: GenerationConfig):
        self.lengths = lengths.repeat_interleave(max(config.num_beams, config.num_return_sequences))

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs) -> torch.Tensor:
        return self.lengths <= input_ids.shape[1]


class FiniteLogits(LogitsProcessor):
    """Notes rows whose logits are NaN or infinite, and goes on with zeros there, so that no step waits; or refuses `at_once`."""

    def __init__(self, at_once: bool = False):
        self.at_once = at_once
        self.is_broken: Any = False

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        is_broken = ~scores.amax(dim=-1).isfinite()
        self.is_broken = self.is_broken | is_broken
        if self.at_once:
            self.refuse(len(scores))
        return scores.masked_fill(is_broken.unsqueeze(1), 0.0)

    def refuse(self, num_sentences: int) -> None:
        """Refuse such a row of one of these sentences.

        Raises:
            NotFiniteError: If there is one.
        """
        rows = self.is_broken.tolist() if isinstance(self.is_broken, torch.Tensor) else []
        if any(rows):
            raise NotFiniteError(rows.index(True) * num_sentences // len(rows))


class TokensLeft(LogitsProcessor):
    """Notes rows for which the processors before this one forbid all tokens, and goes on with any token there; or refuses `at_once`.

    `excluded` is the padding class, which no translation contains.
    """

    def __init__(self, prompt: torch.Tensor, config: GenerationConfig, excluded: int | None, at_once: bool):
        self.prompt_length, self.config, self.at_once = prompt.shape[1], config, at_once
        pad = config.pad_token_id
        ends = eos_token_ids(config) + ([] if pad is None else [pad])
        self.ends = torch.tensor(ends, dtype=torch.int64, device=prompt.device)
        self.excluded = torch.tensor([] if excluded is None else [excluded], dtype=torch.int64, device=prompt.device)
        self.is_blocked: Any = False

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        is_blocked = scores.index_fill(1, self.excluded, -math.inf).amax(dim=1) == -math.inf
        has_ended = torch.isin(input_ids[:, self.prompt_length :], self.ends).any(dim=1)
        self.is_blocked = self.is_blocked | (is_blocked & ~has_ended)
        if self.at_once:
            self.refuse(len(scores))
        return scores.masked_fill(is_blocked.unsqueeze(1), 0.0)

    def refuse(self, num_sentences: int) -> None:
        """Refuse such a row of one of these sentences.

        Raises:
            NoTranslationError: If there is one.
        """
        rows = self.is_blocked.tolist() if isinstance(self.is_blocked, torch.Tensor) else []
        if any(rows):
            raise NoTranslationError(rows.index(True) * num_sentences // len(rows), forbidding_settings(self.config))


class VaswaniGeneration(GenerationMixin):
    """`generate` with our search behind it, limits for each sentence, and the two vocabularies kept apart."""

    config: Any
    generation_config: Any
    # The rows of a batch that are beams of one sentence need the source of that sentence only once.
    shares_sources = True
    # The argument that has the mask of the tokens that are gone on from.
    prompt_mask = "decoder_attention_mask"

    def save_pretrained(self, *args, **kwargs):
        """Save the model as transformers does, if its generation settings are possible."""
        validate_search_fields(self.generation_config)
        if any(getattr(self.generation_config, name, None) is not None for name in ADDED_SETTINGS):
            # transformers reads no fields that it does not know from what it takes for a copy of the model's config.
            self.generation_config._from_model_config = False
        return super().save_pretrained(*args, **kwargs)

    @torch.no_grad()
    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Translations of source tokens, as `GenerationMixin.generate` gives them.

        The source is `inputs` [B, S] int64, also as `input_ids`, or else `inputs_embeds` or `encoder_outputs`. `kwargs` are
        `ensemble` and `must_contain`, see the head of this file, and all other arguments and settings of transformers; the model's
        config has those that are not given. Gives [B * R, T] int64, or with `return_dict_in_generate` what transformers returns.

        Raises:
            ValueError: If a setting is impossible, settings contradict each other, or logits are not finite.
        """
        if hasattr(self, "unshard") and "generate" not in vars(self):
            # FSDP2 gathers the weights that belong to no layer around `forward`, and around methods that it is told of.
            torch.distributed.fsdp.register_fsdp_forward_method(self, "generate")
            return self.generate(inputs, generation_config, logits_processor, stopping_criteria, **kwargs)
        ensemble = kwargs.pop("ensemble", None)
        ensemble = checked_models(ensemble) if is_filled(ensemble) else None
        must_contain = kwargs.pop("must_contain", None)
        must_contain = must_contain if is_filled(must_contain) else None
        warns_of_unmet = kwargs.pop("warn_of_unmet_phrases", True)
        arguments = {name: kwargs.pop(name) for name in _ARGUMENTS & kwargs.keys()}
        arguments |= {"logits_processor": logits_processor, "stopping_criteria": stopping_criteria}
        if arguments.get("custom_generate") is not None:
            return super().generate(inputs, generation_config, **arguments, **kwargs)
        config, model_kwargs = self._settings(generation_config, kwargs)
        source = inputs if inputs is not None else model_kwargs.pop("input_ids", None)
        self._complete_masks(source, config, model_kwargs)
        lengths = self._limit_lengths(source, config, model_kwargs)
        mode = config.get_generation_mode(arguments.get("assistant_model"))
        is_search = mode in (GenerationMode.BEAM_SEARCH, GenerationMode.BEAM_SAMPLE)
        streamer = arguments.get("streamer")
        if is_search and streamer is not None:
            raise ValueError(f"`streamer` shows one beam and needs `num_beams=1`, but that is {config.num_beams}.")
        needing_search = [
            name for name, value in (("ensemble", ensemble), ("must_contain", must_contain)) if value is not None
        ]
        for sampling, is_given in (("do_sample", config.do_sample), ("streamer", streamer is not None)):
            if needing_search and not is_search and is_given:
                raise ValueError(
                    f"`{needing_search[0]}` needs a search, but `{sampling}` is given; leave it out or set `num_beams` above 1."
                )
        if mode == GenerationMode.GREEDY_SEARCH and streamer is None:
            is_search = bool(needing_search) or not config.return_dict_in_generate
        if is_search and (tokenizer := model_kwargs.pop("tokenizer", None)) is not None and config.stop_strings:
            # transformers hands no tokenizer on to a search of others.
            stop = StopStringCriteria(tokenizer, config.stop_strings)
            arguments["stopping_criteria"] = StoppingCriteriaList([*(stopping_criteria or ()), stop])
            config.stop_strings = None
        if is_search:
            return self._generate_by_search(
                source, config, model_kwargs, lengths, arguments, ensemble, must_contain, warns_of_unmet
            )
        ends = [] if lengths is None else [SentenceLimitCriteria(lengths, config)]
        arguments["stopping_criteria"] = StoppingCriteriaList([*(stopping_criteria or ()), *ends])
        return super().generate(source, config, **arguments, **model_kwargs)

    def _sample(self, input_ids, logits_processor, stopping_criteria, generation_config, *args, **kwargs):
        # Tokens that are shown are read at once anyway.
        at_once = kwargs.get("streamer") is not None
        finite = FiniteLogits(at_once)
        left = TokensLeft(input_ids, generation_config, self.excluded_class(0.0, None), at_once)
        processors = LogitsProcessorList([*logits_processor])
        if not generation_config.remove_invalid_values:
            processors.insert(0, finite)
        if logits_processor:
            processors.append(left)
        outputs = super()._sample(input_ids, processors, stopping_criteria, generation_config, *args, **kwargs)
        num_sentences = len(input_ids) // generation_config.num_return_sequences
        finite.refuse(num_sentences)
        left.refuse(num_sentences)
        return outputs

    def _settings(self, generation_config: Any, kwargs: dict[str, Any]) -> tuple[GenerationConfig, dict[str, Any]]:
        """The settings of a call, complete, and the model's arguments."""
        fields = {name: kwargs.pop(name) for name in ADDED_SETTINGS if name in kwargs}
        given = (kwargs, generation_config, self.generation_config)
        for settings in given:
            # Before transformers computes with them.
            validate_search_fields(settings)
        config, model_kwargs = self._prepare_generation_config(generation_config, **kwargs)
        for name in ("max_length", "min_length"):
            # transformers has filled in its own defaults, which it would take for somebody's wish.
            if all(value_of(settings, name) is None for settings in given):
                setattr(config, name, None)
        vars(config).update(fields)
        config.length_penalty = 1.0 if config.length_penalty is None else config.length_penalty
        validate_search_fields(config)
        return config, model_kwargs

    def _prepare_generation_config(self, generation_config, **kwargs):
        if getattr(generation_config, "_is_complete", False):
            # transformers would fill up a second time what a call has set to None.
            return generation_config, kwargs
        return super()._prepare_generation_config(generation_config, **kwargs)

    def _prepare_cache_for_generation(self, config, model_kwargs, mode, *args, **kwargs):
        # Assisted decoding goes back in both models' caches, further than one that slides can.
        is_assisted = config.is_assistant or mode == GenerationMode.ASSISTED_GENERATION
        is_sliding = config.use_cache and not is_assisted and config.cache_implementation in (None, "dynamic")
        if is_sliding and model_kwargs.get("past_key_values") is None and any(self.config.windows_of(is_causal=True)):
            cache = decoding_cache(self.config, model_kwargs.get(self.prompt_mask))
            config.cache_implementation, model_kwargs["past_key_values"] = None, cache
        return super()._prepare_cache_for_generation(config, model_kwargs, mode, *args, **kwargs)

    def _complete_masks(self, source: Any, config: GenerationConfig, model_kwargs: dict[str, Any]) -> None:
        """Masks that were not given, from `<pad>`, and the decoder's start before a prompt that lacks it."""
        # The decoder is handed no source tokens from which the mask could be inferred at each step.
        given = any(model_kwargs.get(name) is not None for name in ("attention_mask", "encoder_outputs"))
        if not given and (mask := self._infer_source_mask(source)) is not None:
            model_kwargs["attention_mask"] = mask.long()
        prompt, mask = model_kwargs.get("decoder_input_ids"), model_kwargs.get("decoder_attention_mask")
        if prompt is None:
            return
        if (start := decoder_start_token_id(config)) is not None:
            column = torch.as_tensor(start, device=prompt.device).view(-1, 1).expand(len(prompt), 1)
            if bool((prompt[:, :1] != column).all()):
                prompt = torch.cat((column, prompt), dim=1)
                mask = None if mask is None else torch.cat((torch.ones_like(mask[:, :1]), mask), dim=1)
        # Padding before a target prefix stays masked at every later step only if its mask is known from the first.
        mask = self._infer_target_mask(prompt) if mask is None else mask
        model_kwargs["decoder_input_ids"] = prompt
        if mask is not None:
            model_kwargs["decoder_attention_mask"] = mask.long()

    def _limit_lengths(self, source: Any, config: GenerationConfig, model_kwargs: dict[str, Any]) -> Any:
        """The tokens at most of each sentence and its prompt, [B] int64 or None for no difference; the config gets the most."""
        has_no_length = config.max_length is None and config.max_new_tokens is None
        if has_no_length and all(getattr(config, name, None) is None for name in ("max_length_a", "max_length_b")):
            config.max_length_a, config.max_length_b = PAPER_MAX_LENGTH
        prompt, encoded = model_kwargs.get("decoder_input_ids"), model_kwargs.get("encoder_outputs")
        prompt_length = 1 if prompt is None else prompt.shape[1]
        is_learned = self.config.position_embedding == "learned"
        # The last token is never read.
        most = max(1, self.config.max_position_embeddings - prompt_length + 1) if is_learned else sys.maxsize
        tensors = (source, model_kwargs.get("inputs_embeds"), None if encoded is None else encoded[0])
        source_length = next((tensor.shape[1] for tensor in tensors if tensor is not None), 1)
        by_source = tokens_at_most(config, source_length)
        longest = most if by_source is None else min(by_source, most)
        if has_no_length or config.max_new_tokens is not None:
            config.max_new_tokens = min(longest, sys.maxsize if has_no_length else config.max_new_tokens)
        else:
            config.max_length = min(config.max_length, prompt_length + longest)
        if by_source is None or (mask := model_kwargs.get("attention_mask")) is None:
            return None
        limits = [tokens_at_most(config, length) or 1 for length in (mask != 0).sum(dim=1).tolist()]
        return torch.tensor([prompt_length + min(limit, most) for limit in limits], device=mask.device)

    def _generate_by_search(
        self,
        source: torch.Tensor | None,
        config: GenerationConfig,
        model_kwargs: dict[str, Any],
        lengths: torch.Tensor | None,
        arguments: dict[str, Any],
        ensemble: list[Any] | None,
        must_contain: Any,
        warns_of_unmet: bool,
    ) -> Any:
        """The result of `generate` by our search, between the preparations of transformers."""
        encoded = self._encode(source, config, model_kwargs)
        has_own_cache = model_kwargs.get("past_key_values") is not None
        synced_gpus = arguments.get("synced_gpus")
        if synced_gpus is None and (is_deepspeed_zero3_enabled() or is_fsdp_managed_module(self)):
            # Several processes hold shares of one model, so that all must take equally many steps.
            synced_gpus = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
        if not has_own_cache and config.use_cache and config.cache_implementation is None:
            # transformers would make the same in more time.
            model_kwargs["past_key_values"] = decoding_cache(self.config, model_kwargs.get(self.prompt_mask))
        if must_contain is not None:
            check_phrases(must_contain, config, self.config.decoder_vocab_size, has_own_cache)
        config._is_complete = True
        search = SearchMethod(
            source=source,
            encoder_outputs=encoded,
            source_mask=model_kwargs.get("attention_mask"),
            lengths=lengths,
            ensemble=ensemble,
            must_contain=must_contain,
            warns_of_unmet=warns_of_unmet,
            has_own_cache=has_own_cache,
            synced_gpus=synced_gpus,
        )
        if encoded is not None:
            # transformers copies the encoder's output for each beam, but `SearchMethod` needs it once per sentence and
            # keeps it by itself. transformers gets it without features, so that the copies cost nothing; it reads the
            # batch size and the device only.
            model_kwargs["encoder_outputs"] = BaseModelOutput(encoded[0][..., :0])
        return super().generate(source, config, **{**arguments, "custom_generate": search}, **model_kwargs)

    def _encode(self, source: torch.Tensor | None, config: GenerationConfig, model_kwargs: dict[str, Any]) -> Any:
        embedded = model_kwargs.pop("inputs_embeds", None)
        if model_kwargs.get("encoder_outputs") is not None:
            return model_kwargs["encoder_outputs"]
        if source is None and embedded is None:
            source = torch.full((1, 1), config.bos_token_id, device=self.device)
        inputs = {"input_ids": source if embedded is None else None, "inputs_embeds": embedded}
        inputs |= {name: getattr(config, name) for name in ("output_attentions", "output_hidden_states")}
        return self.get_encoder()(**inputs, attention_mask=model_kwargs.get("attention_mask"), return_dict=True)

    def create_masks_for_generate(self, config, inputs_embeds, attention_mask, past_key_values, **kwargs):
        """The mask that `generate` makes beforehand for static caches; that of the tokens where one is not enough."""
        attentions = [layer.self_attn for layer in self.get_decoder().layers]
        if any(attention.local_mask is not None for attention in attentions):
            return attention_mask
        return attention_masks(attentions, inputs_embeds, attention_mask, past_key_values)[0]

    def prepare_inputs_for_generation(self, *args, **kwargs):
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        is_one = inputs["decoder_input_ids"].shape[1] == 1
        is_one = is_one and all(layer.self_attn.local_mask is None for layer in self.get_decoder().layers)
        for name in ("attention_mask", *["decoder_attention_mask"] * is_one) if self.supports_fast_path else ():
            if (mask := inputs.get(name)) is not None and mask.dim() == 2:
                # A mask that is made already is not looked at, for which each step would wait for the device.
                inputs[name] = mask.bool()[:, None, None]
        return inputs

    def compute_transition_scores(self, *args, **kwargs):
        model: Any = _TargetVocabulary(self.config.decoder_vocab_size)
        return GenerationMixin.compute_transition_scores(model, *args, **kwargs)


class _TargetVocabulary:
    """Takes the place of the model in `compute_transition_scores` of transformers.

    transformers reads nothing of the model but `config.get_text_config().vocab_size`, which is the size of the source
    vocabulary in our config.
    """

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size
        self.config = self

    def get_text_config(self, **kwargs: Any) -> "_TargetVocabulary":
        """The config itself."""
        return self


@dataclass
class SearchMethod:
    """The decoding method that transformers calls in place of its own beam search and greedy search.

    transformers has repeated the prompts for all beams, and made processors and criteria from the settings.
    """

    source: torch.Tensor | None
    # The encoder's output and its mask [B, S], once per sentence.
    encoder_outputs: Any
    source_mask: torch.Tensor | None
    # [B] int64, tokens at most of each sentence, its prompt included; None if they do not differ.
    lengths: torch.Tensor | None
    ensemble: list[Any] | None
    must_contain: Any
    warns_of_unmet: bool
    has_own_cache: bool
    synced_gpus: bool | None

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> Any:
        """Search from the prompts [B * K, P]; returns what `generate` returns."""
        config = generation_config
        if self.encoder_outputs is not None:
            model_kwargs["encoder_outputs"] = self.encoder_outputs
            model_kwargs["attention_mask"] = self.source_mask
        is_plain = not logits_processor and all(isinstance(one, OWN_CRITERIA) for one in stopping_criteria)
        is_extended = self.ensemble is not None or self.must_contain is not None
        if config.num_beams == 1 and not is_plain and not is_extended:
            if self.lengths is not None:
                stopping_criteria.append(SentenceLimitCriteria(self.lengths, config))
            return model._sample(
                input_ids, logits_processor, stopping_criteria, config, self.synced_gpus, **model_kwargs
            )
        if config.num_beams == 1:
            # One beam that ends with its first `</s>` is greedy search, with sentences leaving it.
            config.early_stopping = True
        task = self._task(model, input_ids, logits_processor, stopping_criteria, config, model_kwargs)
        if self.ensemble is not None:
            add_ensemble(task, self.ensemble, self.source, config)
        found = task.run(config)
        if self.must_contain is not None:
            found = search_again(task, config, self.must_contain, found)
        # Only processors can forbid every translation.
        without = found.without_translation() if logits_processor else []
        if without:
            raise NoTranslationError(without[0], forbidding_settings(config))
        outputs = _as_transformers_returns(found, self.encoder_outputs)
        if self.must_contain is not None:
            unmet = unmet_phrases(found, self.must_contain)
            if self.warns_of_unmet:
                warn_of_unmet_phrases(unmet, config)
            if config.return_dict_in_generate:
                outputs["unmet_phrases"] = unmet
        return outputs

    def _task(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        config: GenerationConfig,
        model_kwargs: dict[str, Any],
    ) -> "SearchTask":
        given = {name: value for name, value in model_kwargs.items() if value is not None}
        returns_more = config.return_dict_in_generate or config.cache_implementation not in (None, "dynamic")
        has_other_inputs = bool(given.keys() - _INPUTS_OF_BEAMS)
        prompt = input_ids[:: config.num_beams]
        limits = prompt.new_full((len(prompt),), config.max_length)
        if self.lengths is not None:
            limits = limits.minimum(self.lengths.to(limits.device))
        return SearchTask(
            models=[model],
            inputs=[given],
            prompt=prompt,
            limits=limits - prompt.shape[1],
            source_mask=self.source_mask,
            processors=logits_processor,
            criteria=[one for one in stopping_criteria if not isinstance(one, OWN_CRITERIA)],
            transformers_compatible=bool(returns_more or self.synced_gpus or self.has_own_cache or has_other_inputs),
            goes_on=partial(model._has_unfinished_sequences, synced_gpus=self.synced_gpus, device=input_ids.device),
        )


@dataclass
class SearchTask:
    """A batch to be searched."""

    # The model that generates and those of its ensemble, and for each its arguments for all B sentences.
    models: list[Any]
    inputs: list[dict[str, Any]]
    # [B, P] int64, and [B] int64 new tokens at most.
    prompt: torch.Tensor
    limits: torch.Tensor
    # [B, S], for the coverage.
    source_mask: torch.Tensor | None
    processors: LogitsProcessorList
    # Those of the caller's own: the search checks `</s>` and limits by itself.
    criteria: list[StoppingCriteria]
    # All sentences stay to the end, and the steps are those of transformers.
    transformers_compatible: bool
    # Gets whether this search is over, and returns whether another step is due.
    goes_on: Callable[[bool], bool]

    def run(
        self,
        config: GenerationConfig,
        make_search: Callable[..., BeamSearch] = BeamSearch,
        sentences: torch.Tensor | None = None,
    ) -> BeamSearch:
        """The search, when it is over, of `sentences` [N] int64, or of all."""
        if sentences is None:
            sentences = torch.arange(len(self.prompt), device=self.prompt.device)
        decoders = [
            self._decoder(model, inputs, config) for model, inputs in zip(self.models, self.inputs, strict=True)
        ]
        # A device need not be waited for if a step more has no effect: without draws, outputs or rules of others.
        has_effects = self.transformers_compatible or self.processors or self.criteria or config.do_sample
        search = make_search(
            config,
            decoders,
            self.prompt,
            self.limits,
            sentences=sentences,
            source_mask=self.source_mask,
            processors=self.processors,
            criteria=self.criteria,
            excluded=self.models[0].excluded_class(0.0, None),
            choose=sample_candidates if config.do_sample else top_candidates,
            reader=DeferredReader() if needs_sync(self.limits) and not has_effects else None,
            transformers_compatible=self.transformers_compatible,
        )
        input_ids = self.prompt[sentences].repeat_interleave(config.num_beams, dim=0)
        # Parts that others have put into the model could need the bookkeeping of autograd; ours does not.
        is_direct = not self.processors and all(decoder.is_direct for decoder in decoders)
        with torch.inference_mode() if is_direct else nullcontext():
            search.run([decoder.start(input_ids) for decoder in decoders], self.goes_on)
        return search

    def _decoder(self, model: Any, inputs: dict[str, Any], config: GenerationConfig) -> Any:
        """The fast decoder if the model permits it and nothing else is asked for, else the general one."""
        in_rows = (model is self.models[0] and self.transformers_compatible) or not config.use_cache
        # Models of other classes have no such attribute.
        if in_rows or not getattr(model, "supports_fast_path", False):
            return RowDecoder(model, config, inputs)
        return TreeAttentionDecoder(model, config, inputs)


def _as_transformers_returns(search: BeamSearch, encoder_outputs: Any) -> Any:
    config = search.config
    # A search whose steps are those of transformers has a `RowDecoder`.
    decoder: Any = search.decoders[0]
    is_pair = encoder_outputs is not None
    sequences, scores, rows = search.results()
    if not config.return_dict_in_generate:
        return sequences.clone()
    common = {"sequences": sequences, **decoder.recorded, "past_key_values": decoder.returned_cache(search.parents)}
    common |= {"scores": tuple(search.step_scores) or None, "logits": tuple(search.step_logits) or None}
    for name in ("attentions", "hidden_states") if is_pair else ():
        common[f"encoder_{name}"] = encoder_outputs.get(name) if getattr(config, f"output_{name}") else None
    if config.num_beams == 1:
        return (utils.GenerateEncoderDecoderOutput if is_pair else utils.GenerateDecoderOnlyOutput)(**common)
    common |= {"sequences_scores": scores if config.output_scores else None, "beam_indices": rows}
    return (utils.GenerateBeamEncoderDecoderOutput if is_pair else utils.GenerateBeamDecoderOnlyOutput)(**common)


def add_ensemble(
    task: "SearchTask", ensemble: Sequence[Any], source_ids: torch.Tensor | None, config: GenerationConfig
) -> None:
    """Let further models search with the one that generates.

    A further model may be of any encoder-decoder class of transformers with the same vocabulary, such as MarianMT.

    Args:
        task (SearchTask): The batch, as `generate` searches it.
        ensemble (Sequence): The further models.
        source_ids (torch.Tensor, optional): [B, S] int64, which each model encodes by itself.
        config (GenerationConfig): The settings.

    Raises:
        ValueError: If they are no models of one vocabulary, there are no source tokens, or these are too many.
    """
    for number, other in enumerate(ensemble):
        _check_member(task.models[0], other, f"ensemble[{number}]", config)
    if source_ids is None or source_ids.is_floating_point() or bool((source_ids < 0).any()):
        raise ValueError("`ensemble` needs `input_ids`: each model encodes the source by itself.")
    for number, other in enumerate(ensemble):
        positions = _max_positions(other)
        for name, length in (("source", source_ids.shape[1]), ("target prefix", task.prompt.shape[1])):
            if length > positions:
                raise ValueError(
                    f"`ensemble` must be models with positions for all tokens, but ensemble[{number}] has {positions} and the "
                    f"{name} has {length} tokens."
                )
        if positions < sys.maxsize:
            # The last token is never read.
            task.limits = task.limits.clamp(max=positions + 1 - task.prompt.shape[1])
        task.inputs.append(_inputs_of_member(other, source_ids, task.inputs[0]))
        task.models.append(other)


def _check_member(model: Any, other: Any, name: str, config: GenerationConfig) -> None:
    """Refuse a model that cannot search with the one that generates.

    Raises:
        ValueError: If its vocabulary is another one, it is no encoder-decoder, or it is on another device.
    """
    if not other.config.is_encoder_decoder:
        raise ValueError(f"`ensemble` must be encoder-decoder models, but {name} is a {type(other).__name__}.")
    own, foreign = _vocabulary(model), _vocabulary(other)
    for field in own:
        if own[field] != foreign[field]:
            raise ValueError(
                f"`ensemble` must be models of one vocabulary, but `{field}` is {foreign[field]!r} in {name} and "
                f"{own[field]!r} in the model that generates."
            )
    is_vaswani = other.config.model_type == "vaswani"
    if not is_vaswani and other.training and other.is_gradient_checkpointing:
        raise ValueError(
            f"`ensemble` must be models with a cache, but {name}, a {type(other).__name__}, has none under gradient checkpointing "
            "in training mode; call its `eval()`."
        )
    if getattr(config, "coverage_penalty", None) and not is_vaswani:
        raise ValueError(
            f"`coverage_penalty` must be left out with {name}, a {type(other).__name__}: the coverage is read from the "
            "attention of Vaswani models."
        )
    if other.device != model.device:
        raise ValueError(
            f"`ensemble` must be models on one device, but {name} is on {other.device} and the model that generates on "
            f"{model.device}."
        )


def _vocabulary(model: Any) -> dict[str, Any]:
    """What two models of one vocabulary have in common, by the names of config fields."""
    config = model.config
    fields = {
        "vocab_size": config.vocab_size,
        "decoder_vocab_size": getattr(config, "decoder_vocab_size", None) or config.vocab_size,
    }
    for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id"):
        value = getattr(config, name, None)
        value = getattr(model.generation_config, name, None) if value is None else value
        fields[name] = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
    return fields


def _max_positions(model: Any) -> int:
    """The positions that a model has, the largest integer if their number is not limited."""
    if getattr(model.config, "position_embedding", None) == "sinusoidal":
        return sys.maxsize
    return getattr(model.config, "max_position_embeddings", None) or sys.maxsize


def _inputs_of_member(model: Any, source_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a further model."""
    names = ("attention_mask", "decoder_attention_mask", "use_cache")
    kwargs = {name: model_kwargs[name] for name in names if name in model_kwargs}
    encoder_outputs = model.get_encoder()(source_ids, attention_mask=kwargs.get("attention_mask"), return_dict=True)
    return {**kwargs, "encoder_outputs": encoder_outputs}
