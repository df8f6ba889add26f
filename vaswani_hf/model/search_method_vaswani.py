"""Chooses the search of a `generate` call, and runs the search of this package inside `generate` of
transformers.

This package runs beam search and plain greedy search. transformers runs all other decoding methods, for
example sampling with one beam. transformers also runs every search whose prompt is `inputs_embeds`, greedy
search with a streamer, and greedy search with `return_dict_in_generate`, logits processors or stopping
criteria. If a call has an argument, such as `ensemble`, that only the search of this package supports, this
package also runs greedy search with `return_dict_in_generate`, logits processors and stopping criteria. If a
call has an argument that only the search of this package supports, and another argument selects a decoding
method of transformers, the call raises an error. The choice between the searches has two steps:

1. Before the call of `generate` of transformers, `uses_own_search` chooses between `SearchMethod` and a
   decoding method of transformers.
2. For greedy search, `SearchMethod` chooses between this package and transformers. The choice of
   `SearchMethod` depends on the logits processors and the stopping criteria, which transformers creates
   inside `generate`.

`VaswaniGeneration.generate` passes a `SearchMethod` to `generate` of transformers as the argument
`custom_generate`. `SearchMethod` creates the `SearchTask`, runs `BeamSearch` of beam_search_vaswani, and
returns the outputs that `generate` of transformers returns.

This file is saved with every checkpoint because `generate` runs the code of this file.

In tensor shapes, B is the number of sentences, K the number of beams, P the prompt length and S
the source length.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation import GenerationMode, StoppingCriteriaList, utils
from transformers.modeling_outputs import BaseModelOutput

from .beam_search_vaswani import OWN_CRITERIA, BeamSearch, SearchTask
from .ensemble_vaswani import add_ensemble
from .errors_vaswani import InvalidValueError
from .masks_vaswani import CACHE_NAME
from .phrase_search_vaswani import search_again, unmet_phrases, warn_of_unmet_phrases
from .processors_vaswani import SentenceLimitCriteria
from .search_errors_vaswani import NoTranslationError, forbidding_settings
from .search_strategies_vaswani import SearchStrategies

# The names of the model inputs from which the search removes the rows of each sentence whose search has
# ended. If a call has an input that is not in `_INPUTS_OF_BEAMS`, all sentences stay in the batch until the
# whole search ends.
_INPUTS_OF_BEAMS = {
    "attention_mask",
    "decoder_attention_mask",
    "encoder_outputs",
    CACHE_NAME,
    "use_cache",
}


def uses_own_search(
    config: GenerationConfig, arguments: Mapping[str, Any], strategies: SearchStrategies, has_prompt_ids: bool
) -> bool:
    """Return True to run a `SearchMethod`, and False to run a decoding method of transformers. Raise an error
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
        refuse_strategies(strategies, "do_sample")
    if has_streamer:
        refuse_strategies(strategies, "streamer")
    if mode != GenerationMode.GREEDY_SEARCH and strategies.given:
        raise InvalidValueError(
            f"{strategies.given[0]} needs greedy or beam search, but other arguments or settings select "
            f"the decoding method {mode.value!r} of transformers; remove these arguments or settings."
        )
    if mode != GenerationMode.GREEDY_SEARCH or has_streamer or not has_prompt_ids:
        return False
    return bool(strategies.given) or not config.return_dict_in_generate


def refuse_strategies(strategies: SearchStrategies, name: str) -> None:
    """Raise an error if a call with the argument `name`, which selects a decoding method of transformers,
    also has an argument that only the greedy search and the beam search of this package support.
    """
    if strategies.given:
        raise InvalidValueError(
            f"{strategies.given[0]} needs greedy or beam search, but `{name}` is given; remove `{name}`."
        )


@dataclass
class SearchMethod:
    """Runs the search of this package as the `custom_generate` function of transformers. Before transformers
    calls the `SearchMethod`, transformers repeats the prompts for all beams, and creates the logits
    processors and stopping criteria.
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
        search = self._run_search(task, config)
        outputs = _generate_output(search, model_kwargs.get("encoder_outputs"))
        if self.strategies.must_contain is not None:
            unmet = unmet_phrases(search, self.strategies.must_contain)
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
        # `returns_more` is True if `generate` must return more than token ids, or must use another cache than
        # `DynamicCache`. If `returns_more` is True, the search needs the `RowDecoder`, because the
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

    def _run_search(self, task: SearchTask, config: GenerationConfig) -> BeamSearch:
        """Return the finished search. Raise an error if the search found no translation of a sentence."""
        search = BeamSearch(task, config)
        search.run()
        if self.strategies.must_contain is not None:
            search = search_again(task, config, self.strategies.must_contain, search)
        # Look for sentences without a translation only if the search had logits processors. Only logits
        # processors can give every translation of a sentence the probability 0.
        without = search.without_translation() if task.processors else []
        if without:
            raise NoTranslationError(without[0], forbidding_settings(config))
        return search


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
