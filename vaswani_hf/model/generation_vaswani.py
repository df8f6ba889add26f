"""Defines the method `generate` of the models.

A call of `generate` has the following steps:

1. `VaswaniGeneration.generate` completes the settings and the inputs of the call, and sets a length limit for
   each sentence.
2. `_uses_own_search` chooses the search of this package or a decoding method of transformers.
3. For the chosen search, `_run_own_search` or `_run_search_of_transformers` calls `generate` of transformers.
   For the search of this package, `_run_own_search` passes an `OwnSearch` as `custom_generate`.
4. `generate` of transformers creates the logits processors and the stopping criteria, and calls the methods
   that this file overrides, such as `_expand_inputs_for_generation`.
5. `generate` of transformers calls the `OwnSearch` or a decoding method of transformers. `OwnSearch` creates
   a `SearchTask`, runs `BeamSearch` of beam_search_vaswani, and returns the outputs that `generate` of
   transformers returns. If the call has `must_contain`, `OwnSearch` calls `search_again` of
   phrase_search_vaswani, which runs grid beam search for the sentences whose translations lack a phrase. For
   a translator with a glossary, segmenter_vaswani finds the phrases of each text, and backend_vaswani passes
   the phrases as `must_contain`.

This package runs beam search and plain greedy search. transformers runs all other decoding methods, for
example sampling with one beam. transformers also runs every search whose prompt is `inputs_embeds`, greedy
search with a streamer, and greedy search with `return_dict_in_generate`, logits processors or stopping
criteria. If a call has an argument, such as `ensemble`, that only the search of this package supports, this
package also runs greedy search with `return_dict_in_generate`, logits processors and stopping criteria. If a
call has an argument that only the search of this package supports, and another argument selects a decoding
method of transformers, the call raises an error.

`_uses_own_search` makes the choice, with one exception: for greedy search, `OwnSearch` can still call the
decoding method of transformers. This choice depends on the logits processors and the stopping criteria, and
transformers creates both inside `generate`.

This package adds settings to the settings of transformers. Each of the following settings can be an argument
of `generate` or a field of `generation_config`:

- `length_penalty_type` selects the divisor of scores. With "power" (or None), scores are divided by
  length^length_penalty, as in transformers. With "gnmt", scores are divided by ((5 + length) /
  6)^length_penalty (Wu et al. 2016, Equation 14), as in the paper (Section 6.1).
- `max_length_a` and `max_length_b` limit the length: the translation of n source tokens has at most
  `max_length_a * n + max_length_b` new tokens. The number of source tokens and the number of new tokens both
  include `</s>`. If only `max_length_a` or only `max_length_b` is given, the other setting is 0. If no length
  limit is given, `max_length_a` is 1 and `max_length_b` is 50 ("input length + 50" in Section 6.1). If
  `max_length` or `max_new_tokens` is also given, the smaller maximum length applies.
- `coverage_penalty` is the weight of the coverage penalty in beam search (Wu et al. 2016, Equation 14).

`generate` also accepts the following arguments:

- `ensemble`: a list of models with the same vocabulary. The search averages the token probabilities of all
  models.
- `must_contain`: for each sentence a list of phrases (lists of token ids) that the translation must contain.
  If the search finds no translation with all phrases, `generate` tries the phrases one after the other, keeps
  each phrase that the search can add to the translation, and warns about the missing phrases. The output
  field `unmet_phrases` contains the missing phrases of each sequence.
- `warn_of_unmet_phrases=False` suppresses the warning about missing phrases.
- `search`: a `SearchStrategies` object that replaces the candidate selection, the scorer or the stopping rule
  of the search.

This file is saved with every checkpoint because the models inherit `generate` from this file.

In tensor shapes, B is the number of sentences, K the number of beams, R the number of translations of a
sentence, P the prompt length, S the source length, T the target length and D the model width.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, StopStringCriteria
from transformers.generation import GenerationMode, StoppingCriteriaList, utils
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.integrations.fsdp import is_fsdp_managed_module
from transformers.modeling_outputs import BaseModelOutput

from .beam_search_vaswani import OWN_CRITERIA, BeamSearch, SearchTask
from .checks_vaswani import is_filled
from .configuration_vaswani import decoder_start_token_id
from .ensemble_vaswani import add_ensemble, checked_models
from .errors_vaswani import InvalidValueError
from .inputs_vaswani import ADDED_SETTINGS, DECODING_SETTINGS, validate_search_fields
from .length_limits_vaswani import depends_on_source, max_new_tokens_of, set_max_new_tokens
from .masks_vaswani import CACHE_NAME, decoding_cache, self_attention_masks
from .phrase_search_vaswani import search_again, unmet_phrases, warn_of_unmet_phrases
from .phrases_vaswani import check_phrases
from .precedence_vaswani import setting_of
from .processors_vaswani import FiniteLogits, SentenceLimitCriteria, TokensLeft
from .search_errors_vaswani import NoTranslationError, forbidding_settings
from .search_strategies_vaswani import SearchStrategies

# The names of the parameters of `GenerationMixin.generate`, such as `streamer`. Search settings, such as
# `num_beams`, are not in the signature.
_ARGUMENTS = signature(GenerationMixin.generate).parameters.keys()
# Names of model inputs. If the search of a sentence has ended, the search removes the rows of the sentence
# from these inputs. If a call has an input that is not in `_INPUTS_OF_BEAMS`, all sentences stay in the batch
# until the whole search ends.
_INPUTS_OF_BEAMS = {
    "attention_mask",
    "decoder_attention_mask",
    "encoder_outputs",
    CACHE_NAME,
    "use_cache",
}


class VaswaniGeneration(GenerationMixin):
    """Provides the method `generate` of all models of this package. Unlike `generate` of transformers, the
    method can run the search of this package, and each sentence has its own length limit. The source
    vocabulary and the target vocabulary can differ.
    """

    config: Any
    generation_config: Any
    # True if the model stores the keys and values of the source once for all beams of a sentence.
    shares_sources = True
    # The name of the model input that contains the attention mask of the prompt.
    prompt_mask = "decoder_attention_mask"
    # The class of the `search` argument of `generate`. A model that was loaded with `trust_remote_code` has
    # its own copy of `SearchStrategies`, so create the argument with `model.search_class`.
    search_class = SearchStrategies

    @torch.no_grad()
    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Generate translations. `generate` accepts all arguments of `GenerationMixin.generate`. The
        docstring of this file describes the additional arguments and settings.

        Args:
            inputs (torch.Tensor, optional): The source tokens [B, S] int64. Instead of `inputs`, a call can
                pass `input_ids`, `inputs_embeds` [B, S, D] or `encoder_outputs`.
            generation_config (GenerationConfig, optional): The settings of `generate`; by default the
                generation config of the model.
            logits_processor (LogitsProcessorList, optional): Functions that change the token scores of each
                step.
            stopping_criteria (StoppingCriteriaList, optional): Functions that decide whether a translation
                has ended.
            **kwargs: Other arguments and settings of transformers, and the arguments that this package adds:
                `ensemble`, `must_contain`, `warn_of_unmet_phrases` and `search`.

        Returns:
            torch.Tensor or ModelOutput: Token ids [B * R, T] int64, or the outputs of transformers if
                `return_dict_in_generate` is set.

        Raises:
            ValueError: If a setting is invalid, if settings contradict each other, if logits are not finite,
                or if settings forbid every translation of a sentence.
        """
        if hasattr(self, "unshard") and "generate" not in vars(self):
            # Register `generate` with FSDP2, because FSDP2 gathers the weights of the embeddings only for
            # `forward` and for registered methods.
            torch.distributed.fsdp.register_fsdp_forward_method(self, "generate")
            return self.generate(inputs, generation_config, logits_processor, stopping_criteria, **kwargs)
        # `Seq2SeqTrainer` passes labels, but a search does not use labels.
        kwargs.pop("labels", None)
        if "past_key_values" in kwargs:
            kwargs[CACHE_NAME] = kwargs.pop("past_key_values")
        strategies = self._pop_strategies(kwargs)
        arguments = {name: kwargs.pop(name) for name in _ARGUMENTS & kwargs.keys()}
        arguments["logits_processor"] = logits_processor
        arguments["stopping_criteria"] = stopping_criteria
        if arguments.get("custom_generate") is not None:
            _refuse_strategies(strategies, "custom_generate")
            return super().generate(inputs, generation_config, **arguments, **kwargs)
        config, model_kwargs = self._complete_settings(generation_config, kwargs)
        source = inputs if inputs is not None else model_kwargs.pop("input_ids", None)
        self._complete_inputs(source, config, model_kwargs)
        lengths = self._limit_lengths(source, config, model_kwargs)
        # The search of this package needs a prompt of token ids.
        has_prompt_ids = self.config.is_encoder_decoder or model_kwargs.get("inputs_embeds") is None
        if _uses_own_search(config, arguments, strategies, has_prompt_ids):
            return self._run_own_search(source, config, model_kwargs, lengths, arguments, strategies)
        return self._run_search_of_transformers(source, config, model_kwargs, lengths, arguments)

    # Step 1: the settings, the inputs and the length limits

    def _pop_strategies(self, kwargs: dict[str, Any]) -> SearchStrategies:
        """Remove the arguments of the search from `kwargs`, and return them as `SearchStrategies`. An
        argument such as `ensemble` replaces the field `ensemble` of the argument `search`.
        """
        strategies = kwargs.pop("search", None) or SearchStrategies()
        if not isinstance(strategies, SearchStrategies):
            raise InvalidValueError(
                f"`search` must be a SearchStrategies, but is a {type(strategies).__name__}."
            )
        ensemble = kwargs.pop("ensemble", None)
        if not is_filled(ensemble):
            ensemble = strategies.ensemble
        must_contain = kwargs.pop("must_contain", None)
        if not is_filled(must_contain):
            must_contain = strategies.must_contain
        strategies = replace(
            strategies,
            ensemble=checked_models(ensemble),
            must_contain=must_contain if is_filled(must_contain) else None,
            warns_of_unmet=kwargs.pop("warn_of_unmet_phrases", strategies.warns_of_unmet),
        )
        for name in strategies.replaced:
            if strategies.must_contain is not None and name != "scorer":
                raise InvalidValueError(
                    f"`{name}` of `search` must not be given with `must_contain`, because `must_contain` "
                    f"sets `{name}`; remove one of the two."
                )
        return strategies

    def _complete_settings(
        self, generation_config: GenerationConfig | None, kwargs: dict[str, Any]
    ) -> tuple[GenerationConfig, dict[str, Any]]:
        """Return a config with all settings of a `generate` call, and a dict with the entries of `kwargs`
        that are inputs of the model.
        """
        added = {name: kwargs.pop(name) for name in ADDED_SETTINGS if name in kwargs}
        for settings in (kwargs, generation_config, self.generation_config):
            validate_search_fields(settings)
        config, model_kwargs = self._prepare_generation_config(generation_config, **kwargs)
        given = {**kwargs, "generation_config": generation_config}
        for name in ("max_length", "min_length"):
            # Remove transformers' default value of a length setting that neither the call nor the checkpoint
            # sets.
            if setting_of(name, given, self.generation_config) is None:
                setattr(config, name, None)
        vars(config).update(added)
        if "output_attentions" not in kwargs:
            config.output_attentions = config.output_attentions or self.config.output_attentions
        for name in ("num_beams", "num_return_sequences", "length_penalty", "early_stopping"):
            # Replace None by the default, because the search and transformers calculate with the four
            # settings.
            if getattr(config, name) is None:
                setattr(config, name, DECODING_SETTINGS[name])
        if config.use_cache is None:
            config.use_cache = True
        validate_search_fields(config)
        return config, model_kwargs

    def _complete_inputs(
        self, source: torch.Tensor | None, config: GenerationConfig, model_kwargs: dict[str, Any]
    ) -> None:
        """Infer missing masks from the positions of `<pad>`. If no prompt of the batch begins with the start
        token, add the start token to all prompts.
        """
        if model_kwargs.get("attention_mask") is None and model_kwargs.get("encoder_outputs") is None:
            # Infer the source mask before the search, because the decoder does not receive the source tokens.
            source_mask = self._infer_source_mask(source)
            if source_mask is not None:
                model_kwargs["attention_mask"] = source_mask.long()
        if model_kwargs.get("decoder_input_ids") is not None:
            self._complete_prompt(config, model_kwargs)

    def _complete_prompt(self, config: GenerationConfig, model_kwargs: dict[str, Any]) -> None:
        prompt = model_kwargs["decoder_input_ids"]
        mask = model_kwargs.get("decoder_attention_mask")
        start = decoder_start_token_id(config)
        if start is not None:
            column = torch.as_tensor(start, device=prompt.device).view(-1, 1).expand(len(prompt), 1)  # [B, 1]
            if bool((prompt[:, :1] != column).all()):
                prompt = torch.cat((column, prompt), dim=1)
                if mask is not None:
                    mask = torch.cat((torch.ones_like(mask[:, :1]), mask), dim=1)
        if mask is None:
            # Infer the target mask from the whole prompt before the search. With a cache, later search steps
            # receive only new tokens, not the padding before a target prefix.
            mask = self._infer_target_mask(prompt)
        model_kwargs["decoder_input_ids"] = prompt
        if mask is not None:
            model_kwargs["decoder_attention_mask"] = mask.long()

    def _limit_lengths(
        self, source: torch.Tensor | None, config: GenerationConfig, model_kwargs: dict[str, Any]
    ) -> torch.Tensor | None:
        """Set the length limit of the batch in `config`: the maximum of the limits of its sentences. Return
        the maximum number of tokens (with the prompt) of each translation, [B] int64. Return None if the
        limit does not depend on the source length, or if the call has no `attention_mask`.
        """
        prompt = model_kwargs.get("decoder_input_ids")
        prompt_length = 1 if prompt is None else prompt.shape[1]
        limit_of = partial(
            max_new_tokens_of, config, prompt_length=prompt_length, num_positions=self.config.num_positions
        )
        lengths = None
        mask = model_kwargs.get("attention_mask")
        if mask is not None and depends_on_source(config):
            source_lengths = (mask != 0).sum(dim=1).tolist()
            limits = [prompt_length + limit_of(source_length) for source_length in source_lengths]
            lengths = torch.tensor(limits, device=mask.device)
        # Compute the length limit of the batch from the source length with padding, because no source of the
        # batch is longer.
        set_max_new_tokens(config, limit_of(self._source_length(source, model_kwargs)), prompt_length)
        return lengths

    def _source_length(self, source: torch.Tensor | None, model_kwargs: dict[str, Any]) -> int:
        """Return the source length in tokens, including padding."""
        if source is not None:
            return source.shape[1]
        if model_kwargs.get("inputs_embeds") is not None:
            return model_kwargs["inputs_embeds"].shape[1]
        if model_kwargs.get("encoder_outputs") is not None:
            return model_kwargs["encoder_outputs"][0].shape[1]
        return 1

    # Step 3: the call of `generate` of transformers

    def _run_search_of_transformers(
        self,
        source: torch.Tensor | None,
        config: GenerationConfig,
        model_kwargs: dict[str, Any],
        lengths: torch.Tensor | None,
        arguments: dict[str, Any],
    ) -> Any:
        """Call `generate` of transformers with a decoding method of transformers."""
        if lengths is not None:
            _add_criterion(SentenceLimitCriteria(lengths, config), arguments)
        return super().generate(source, config, **arguments, **model_kwargs)

    def _run_own_search(
        self,
        source: torch.Tensor | None,
        config: GenerationConfig,
        model_kwargs: dict[str, Any],
        lengths: torch.Tensor | None,
        arguments: dict[str, Any],
        strategies: SearchStrategies,
    ) -> Any:
        """Call `generate` of transformers with a `custom_generate` that runs the search of this package."""
        tokenizer = model_kwargs.pop("tokenizer", None)
        if tokenizer is not None and config.stop_strings:
            # Create the criterion for `stop_strings` here, because transformers does not pass the tokenizer
            # to `custom_generate`.
            _add_criterion(StopStringCriteria(tokenizer, config.stop_strings), arguments)
            config.stop_strings = None
        has_given_cache = model_kwargs.get(CACHE_NAME) is not None
        if not has_given_cache and config.use_cache and config.cache_implementation is None:
            # Create the cache here, because `decoding_cache` is faster than the function of transformers that
            # creates the same cache.
            model_kwargs[CACHE_NAME] = decoding_cache(self.config, model_kwargs.get(self.prompt_mask))
        if strategies.must_contain is not None:
            check_phrases(strategies.must_contain, config, self.config.decoder_vocab_size, has_given_cache)
        if self.config.is_encoder_decoder:
            model_kwargs["encoder_outputs"] = self._encode(source, config, model_kwargs)
        arguments["custom_generate"] = OwnSearch(
            source=source,
            lengths=lengths,
            strategies=strategies,
            has_given_cache=has_given_cache,
            synced_gpus=self._synced_gpus(arguments),
        )
        # transformers passes `is_complete` to `_prepare_generation_config`, which then leaves the config
        # unchanged.
        return super().generate(source, config, **arguments, **model_kwargs, is_complete=True)

    def _encode(
        self, source: torch.Tensor | None, config: GenerationConfig, model_kwargs: dict[str, Any]
    ) -> "SharedEncoderOutput":
        embedded = model_kwargs.pop("inputs_embeds", None)
        encoded = model_kwargs.get("encoder_outputs")
        if encoded is None:
            if source is None and embedded is None:
                source = torch.full((1, 1), config.bos_token_id, device=self.device)
            encoded = self.get_encoder()(
                input_ids=source if embedded is None else None,
                inputs_embeds=embedded,
                attention_mask=model_kwargs.get("attention_mask"),
                output_attentions=config.output_attentions,
                output_hidden_states=config.output_hidden_states,
                return_dict=True,
            )
        return SharedEncoderOutput(
            last_hidden_state=encoded[0],
            hidden_states=getattr(encoded, "hidden_states", None),
            attentions=getattr(encoded, "attentions", None),
        )

    def _synced_gpus(self, arguments: dict[str, Any]) -> bool | None:
        """Return True if all processes must run the same number of decoding steps. With DeepSpeed ZeRO-3 or
        FSDP, each process stores a part of the model, and each step needs all processes.
        """
        synced_gpus = arguments.get("synced_gpus")
        if synced_gpus is None and (is_deepspeed_zero3_enabled() or is_fsdp_managed_module(self)):
            return torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
        return synced_gpus

    # Step 4: the methods that `generate` of transformers calls, in the order of the calls

    def _prepare_generation_config(self, generation_config, is_complete=False, **kwargs):
        if is_complete:
            # Return a complete config unchanged, because transformers would replace each None by a default.
            return generation_config, kwargs
        return super()._prepare_generation_config(generation_config, **kwargs)

    def _expand_inputs_for_generation(
        self, expand_size=1, is_encoder_decoder=False, input_ids=None, encoder_outputs=None, **model_kwargs
    ):
        if not isinstance(encoder_outputs, SharedEncoderOutput):
            if encoder_outputs is not None:
                model_kwargs["encoder_outputs"] = encoder_outputs
            return super()._expand_inputs_for_generation(
                expand_size=expand_size,
                is_encoder_decoder=is_encoder_decoder,
                input_ids=input_ids,
                **model_kwargs,
            )
        # Repeat the prompt for each beam. The beams of a sentence share the output of the encoder.
        source_mask = model_kwargs.pop("attention_mask", None)
        input_ids, model_kwargs = super()._expand_inputs_for_generation(
            expand_size=expand_size, is_encoder_decoder=False, input_ids=input_ids, **model_kwargs
        )
        model_kwargs["encoder_outputs"] = encoder_outputs
        if source_mask is not None:
            model_kwargs["attention_mask"] = source_mask
        return input_ids, model_kwargs

    def _prepare_cache_for_generation(self, config, model_kwargs, mode, *args, **kwargs):
        # Do not use a sliding cache for assisted decoding. Assisted decoding can discard new tokens, and a
        # sliding cache cannot restore the older tokens that the new tokens replaced.
        is_assisted = config.is_assistant or mode == GenerationMode.ASSISTED_GENERATION
        is_sliding = config.use_cache and not is_assisted and config.cache_implementation in (None, "dynamic")
        if (
            is_sliding
            and model_kwargs.get(CACHE_NAME) is None
            and any(self.config.shape_of("decoder").windows)
        ):
            model_kwargs[CACHE_NAME] = decoding_cache(self.config, model_kwargs.get(self.prompt_mask))
            config.cache_implementation = None
        return super()._prepare_cache_for_generation(config, model_kwargs, mode, *args, **kwargs)

    def _sample(self, input_ids, logits_processor, stopping_criteria, generation_config, *args, **kwargs):
        # With a streamer, check the logits at each step instead of after the last step. The check costs no
        # time, because a streamer waits for each token anyway.
        at_once = kwargs.get("streamer") is not None
        finite = FiniteLogits(at_once)
        left = TokensLeft(generation_config, input_ids.shape[1], self.excluded_class(), at_once)
        processors = LogitsProcessorList([*logits_processor])
        if not generation_config.remove_invalid_values:
            processors.insert(0, finite)
        if logits_processor:
            processors.append(left)
        outputs = super()._sample(
            input_ids, processors, stopping_criteria, generation_config, *args, **kwargs
        )
        num_sentences = len(input_ids) // generation_config.num_return_sequences
        finite.raise_for_marked_row(num_sentences)
        left.raise_for_marked_row(num_sentences)
        return outputs

    def prepare_inputs_for_generation(self, *args, **kwargs):
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        if not self.supports_fast_path:
            return inputs
        # Expand masks to [B, 1, 1, S]. transformers would read the values of a mask [B, S] at each step, and
        # each read makes the CPU wait for the GPU.
        names = ["attention_mask"]
        has_no_window = all(layer.self_attn.local_mask is None for layer in self.get_decoder().layers)
        if inputs["decoder_input_ids"].shape[1] == 1 and has_no_window:
            names.append("decoder_attention_mask")
        for name in names:
            mask = inputs.get(name)
            if mask is not None and mask.dim() == 2:
                inputs[name] = mask.bool()[:, None, None]
        return inputs

    def create_masks_for_generate(self, config, inputs_embeds, attention_mask, **kwargs):
        """Return the mask [B, 1, T, S] that a static cache needs. If a layer has a `local_mask`, return
        `attention_mask` unchanged, because `forward` creates a mask for each layer.
        """
        attentions = [layer.self_attn for layer in self.get_decoder().layers]
        if any(attention.local_mask is not None for attention in attentions):
            return attention_mask
        return self_attention_masks(attentions, inputs_embeds, attention_mask, kwargs[CACHE_NAME])[0]

    # Methods of transformers that users call

    def compute_transition_scores(self, *args, **kwargs):
        # The scores belong to the target vocabulary, but transformers reads `vocab_size`, the size of the
        # source vocabulary. Therefore compute with a copy of the model that has another config.
        model = copy(self)
        model.config = copy(self.config)
        model.config.vocab_size = self.config.decoder_vocab_size
        return super(VaswaniGeneration, model).compute_transition_scores(*args, **kwargs)

    def save_pretrained(self, save_directory, is_main_process=True, *args, **kwargs):
        """Validate the generation config, and then save the model."""
        validate_search_fields(self.generation_config)
        if any(getattr(self.generation_config, name, None) is not None for name in ADDED_SETTINGS):
            # If `_from_model_config` were True, transformers would treat the generation config as a copy of
            # the model's config, and remove the settings that this package adds.
            self.generation_config._from_model_config = False
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)


def _add_criterion(criterion: Any, arguments: dict[str, Any]) -> None:
    criteria = arguments["stopping_criteria"] or ()
    arguments["stopping_criteria"] = StoppingCriteriaList([*criteria, criterion])


class SharedEncoderOutput(BaseModelOutput):
    """The encoder output [B, S, D], with one row per sentence. All beams of a sentence use the same row of
    the encoder output.
    """


# Step 2: the choice of the search


def _uses_own_search(
    config: GenerationConfig, arguments: Mapping[str, Any], strategies: SearchStrategies, has_prompt_ids: bool
) -> bool:
    """Return True to run an `OwnSearch`, and False to run a decoding method of transformers. Raise an error
    if an argument needs the search of this package, but other arguments, the settings or the prompt need a
    decoding method of transformers. `has_prompt_ids` is False if the prompt consists of embeddings instead of
    token ids.
    """
    if strategies.given and not has_prompt_ids:
        raise InvalidValueError(
            f"{strategies.given[0]} needs a prompt of tokens, but the prompt is `inputs_embeds`; pass "
            "`input_ids`."
        )
    mode = config.get_generation_mode(arguments.get("assistant_model"))
    has_streamer = arguments.get("streamer") is not None
    if mode in (GenerationMode.BEAM_SEARCH, GenerationMode.BEAM_SAMPLE):
        if has_streamer:
            raise InvalidValueError(
                "`streamer` needs `num_beams=1`, because a streamer shows only one beam, but `num_beams` "
                f"is {config.num_beams}."
            )
        if not has_prompt_ids and getattr(config, "length_penalty_type", None) == "gnmt":
            raise InvalidValueError(
                '`length_penalty_type="gnmt"` needs a prompt of tokens, but the prompt is `inputs_embeds`; pass '
                "`input_ids`, or another `length_penalty_type`."
            )
        return has_prompt_ids
    if config.do_sample:
        _refuse_strategies(strategies, "do_sample")
    if has_streamer:
        _refuse_strategies(strategies, "streamer")
    if mode != GenerationMode.GREEDY_SEARCH and strategies.given:
        raise InvalidValueError(
            f"{strategies.given[0]} needs greedy or beam search, but other arguments or settings select "
            f"the decoding method {mode.value!r} of transformers; remove these arguments or settings."
        )
    if mode != GenerationMode.GREEDY_SEARCH or has_streamer or not has_prompt_ids:
        return False
    return bool(strategies.given) or not config.return_dict_in_generate


def _refuse_strategies(strategies: SearchStrategies, name: str) -> None:
    """Raise an error if a call has an argument that only the greedy search and the beam search of this
    package support. The call also has the argument `name`, which selects a decoding method of transformers.
    """
    if strategies.given:
        raise InvalidValueError(
            f"{strategies.given[0]} needs greedy or beam search, but `{name}` is given; remove `{name}`."
        )


# Step 5: the search of this package


@dataclass
class OwnSearch:
    """Runs the search of this package as the `custom_generate` function of transformers. Before transformers
    calls the `OwnSearch`, transformers repeats the prompts for all beams, and creates the logits processors
    and stopping criteria.
    """

    source: torch.Tensor | None  # [B, S]
    # The maximum length [B] int64 of each generated sequence in tokens, including the prompt. `lengths` is
    # None if all sentences have the same maximum length.
    lengths: torch.Tensor | None
    strategies: SearchStrategies
    # True if the caller of `generate` has passed the key-value cache.
    has_given_cache: bool
    # True if all processes must run the same number of decoding steps.
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
        """Search for translations that begin with the prompts [B * K, P]. Return the result of `generate`."""
        config = generation_config
        criteria = StoppingCriteriaList(
            [one for one in stopping_criteria if not isinstance(one, OWN_CRITERIA)]
        )
        is_greedy = config.num_beams == 1
        if is_greedy and (logits_processor or criteria) and not self.strategies.given:
            if self.lengths is not None:
                stopping_criteria.append(SentenceLimitCriteria(self.lengths, config))
            return model._sample(
                input_ids, logits_processor, stopping_criteria, config, self.synced_gpus, **model_kwargs
            )
        if is_greedy:
            # Set `early_stopping`, because greedy search is a beam search with one beam that stops at the
            # first `</s>`.
            config.early_stopping = True
        task = self._make_task(model, input_ids, logits_processor, criteria, config, model_kwargs)
        search = BeamSearch(task, config)
        search.run()
        phrases = self.strategies.must_contain
        if phrases is not None:
            search = search_again(task, config, phrases, search)
        # Look for sentences without a translation only if the search had logits processors. Only logits
        # processors can give every translation of a sentence the probability 0.
        without = search.without_translation() if task.processors else []
        if without:
            raise NoTranslationError(without[0], forbidding_settings(config))
        outputs = _generate_output(search, model_kwargs.get("encoder_outputs"))
        if phrases is not None:
            unmet = unmet_phrases(search, phrases)
            if self.strategies.warns_of_unmet:
                warn_of_unmet_phrases(unmet, config)
            if config.return_dict_in_generate:
                outputs["unmet_phrases"] = unmet
        return outputs

    def _make_task(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        model_kwargs: dict[str, Any],
    ) -> SearchTask:
        """Return the `SearchTask` of a call, with the models of the ensemble."""
        inputs = {name: value for name, value in model_kwargs.items() if value is not None}
        prompt = input_ids[:: config.num_beams]  # [B, P]
        limits = prompt.new_full((len(prompt),), config.max_length)
        if self.lengths is not None:
            limits = limits.minimum(self.lengths.to(limits.device))
        # `returns_more` is True in two cases: `generate` must return more than token ids, or must use another
        # cache than `DynamicCache`. If `returns_more` is True, the search needs the `RowDecoder`, because the
        # `RowDecoder` records outputs and supports all caches.
        returns_more = config.return_dict_in_generate or config.cache_implementation not in (None, "dynamic")
        has_other_inputs = bool(inputs.keys() - _INPUTS_OF_BEAMS)
        task = SearchTask(
            models=[model],
            inputs=[inputs],
            sentences=torch.arange(len(prompt), device=prompt.device),
            prompt=prompt,
            limits=limits - prompt.shape[1],
            source_mask=inputs.get("attention_mask") if model.config.is_encoder_decoder else None,
            processors=logits_processor,
            criteria=criteria,
            strategies=self.strategies,
            has_user_code=bool(logits_processor or criteria or self.strategies.replaced),
            transformers_compatible=bool(
                returns_more or self.synced_gpus or self.has_given_cache or has_other_inputs
            ),
            goes_on=partial(
                model._has_unfinished_sequences, synced_gpus=self.synced_gpus, device=input_ids.device
            ),
        )
        if self.strategies.ensemble:
            add_ensemble(task, self.strategies.ensemble, self.source, config)
        return task


def _generate_output(search: BeamSearch, encoder_outputs: BaseModelOutput | None) -> Any:
    """Return the token ids of a finished search. With `return_dict_in_generate`, return the outputs that
    `generate` of transformers returns.
    """
    config = search.config
    sequences, scores, beam_indices = search.results()
    if not config.return_dict_in_generate:
        return sequences.clone()
    # If `return_dict_in_generate` is true, the decoder of the search is a `RowDecoder`, which has the
    # attributes `recorded` and `returned_cache`.
    decoder: Any = search.decoders[0]
    outputs = {
        "sequences": sequences,
        **decoder.recorded,
        CACHE_NAME: decoder.returned_cache(search.beams.parents),
        "scores": tuple(search.step_scores) or None,
        "logits": tuple(search.step_logits) or None,
    }
    if encoder_outputs is not None:
        outputs["encoder_attentions"] = encoder_outputs.attentions if config.output_attentions else None
        outputs["encoder_hidden_states"] = (
            encoder_outputs.hidden_states if config.output_hidden_states else None
        )
    is_greedy = config.num_beams == 1
    if not is_greedy:
        outputs["sequences_scores"] = scores if config.output_scores else None
        outputs["beam_indices"] = beam_indices
    if encoder_outputs is None:
        kind = utils.GenerateDecoderOnlyOutput if is_greedy else utils.GenerateBeamDecoderOnlyOutput
    else:
        kind = utils.GenerateEncoderDecoderOutput if is_greedy else utils.GenerateBeamEncoderDecoderOutput
    return kind(**outputs)
