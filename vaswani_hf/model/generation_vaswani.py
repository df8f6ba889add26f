"""`generate`: the arguments of transformers and the paper's search behind them.

Fields of `generation_config` beside those of transformers; each is also an argument of `generate`:

- `length_penalty_type`: "power" (or None): scores are divided by length^length_penalty; "gnmt": by
  ((5 + length) / 6)^length_penalty (Wu et al. 2016, Eq. 14), which is the paper's (Section 6.1).
- `max_length_a`, `max_length_b`: at most a * source tokens + b new tokens, for each sentence by itself, `</s>` counted
  on both sides; the one that is not given is 0. Every limit that is given holds. Where none is, neither these nor
  `max_length` nor `max_new_tokens`, they are 1 and 50 (Section 6.1: "input length + 50").
- `coverage_penalty`: the weight of the coverage of Wu et al. 2016, Eq. 14, in beam search.

Arguments of `generate` alone: `ensemble`, further models of the same vocabulary whose probabilities are averaged with
this one's, and `must_contain`, for each sentence a list of phrases (lists of token ids) that its translation contains.
"""

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation import EosTokenCriteria, GenerationMixin, MaxLengthCriteria, StoppingCriteria
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput, GenerateEncoderDecoderOutput
from transformers.modeling_outputs import BaseModelOutput

from .beam_search_vaswani import BeamSearch
from .constrained_search_vaswani import Phrases, PhraseSearch, check_phrases
from .incremental_decoding_vaswani import RowDecoder, TreeDecoder

# Section 6.1: "We set the maximum output length during inference to input length + 50".
PAPER_MAX_LENGTH = (1, 50)

# What beams that leave can take with them.
_INPUTS_OF_BEAMS = {"attention_mask", "decoder_attention_mask", "encoder_outputs", "past_key_values", "use_cache"}

# Settings of ours, with the test and the words that follow "must be"; None is always possible.
_FIELDS: dict[str, tuple[Any, str]] = {
    "length_penalty_type": (lambda value: value in ("gnmt", "power"), '"gnmt" or "power"'),
    "max_length_a": (lambda value: _is_number(value), "a number of 0 or more (new tokens per source token)"),
    "max_length_b": (
        lambda value: _is_number(value) and value == int(value),
        "an integer of 0 or more (new tokens)",
    ),
    "coverage_penalty": (lambda value: _is_number(value), "a number of 0 or more"),
}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


def validate_search_fields(config: GenerationConfig) -> None:
    """Check the fields that this package adds to a generation config.

    Args:
        config (GenerationConfig): The config; fields that it lacks are not set.

    Raises:
        ValueError: If one has an impossible value.
    """
    penalty = getattr(config, "length_penalty", None)
    if penalty is not None and not (isinstance(penalty, (int, float)) and -float("inf") < penalty < float("inf")):
        raise ValueError(f"`length_penalty` must be a finite number, but is {penalty!r}.")
    for name, (is_possible, words) in _FIELDS.items():
        value = getattr(config, name, None)
        if value is not None and not is_possible(value):
            raise ValueError(f"`{name}` must be {words}, but is {value!r}.")


def tokens_at_most(config: Any, source_length: int) -> int | None:
    """What `max_length_a` and `max_length_b` allow.

    Args:
        config (GenerationConfig): The settings.
        source_length (int): Source tokens, `</s>` included.

    Returns:
        int: New tokens, 1 at least; None where neither is set.
    """
    a, b = getattr(config, "max_length_a", None), getattr(config, "max_length_b", None)
    if a is None and b is None:
        return None
    # 0.29 * 100 is a little less than 29 to a computer.
    return max(1, math.floor((a or 0) * source_length + (b or 0) + 1e-6))


@dataclass
class SearchInputs:
    """What a call of `generate` gives to the search beside its generation config."""

    num_beams: int = 1
    ensemble: Sequence[Any] = ()
    must_contain: Sequence[Sequence[Sequence[int]]] | None = None
    has_own_cache: bool = False


class SentenceLimitCriteria(StoppingCriteria):
    """Ends each row at its own limit.

    Args:
        lengths (torch.Tensor): [B] int64, tokens at most, prompts included.
    """

    # The search of transformers fills up rows that have ended only where a criterion has this attribute.
    eos_token_id = None

    def __init__(self, lengths: torch.Tensor):
        self.lengths = lengths

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs) -> torch.Tensor:
        """Which rows are as long as they may be.

        Args:
            input_ids (torch.Tensor): [B, T] int64.
            scores (Any): Not needed.
            **kwargs: Not needed.

        Returns:
            torch.Tensor: [B] bool.
        """
        return self.lengths <= input_ids.shape[1]


class VaswaniGeneration(GenerationMixin):
    """Puts our search behind `generate`, keeps padding out of it, and the two vocabularies apart."""

    config: Any
    generation_config: Any

    def save_pretrained(self, *args, **kwargs):
        """Save the model, after a look at its generation settings.

        Args:
            *args: As transformers has them.
            **kwargs: As transformers has them.

        Raises:
            ValueError: If a field of ours in `generation_config` is impossible.
        """
        validate_search_fields(self.generation_config)
        if any(getattr(self.generation_config, name, None) is not None for name in _FIELDS):
            # transformers reads no fields that it does not know from what it takes for a copy of the model's config.
            self.generation_config._from_model_config = False
        return super().save_pretrained(*args, **kwargs)

    def _prepare_generation_config(self, generation_config, **kwargs):
        fields = {name: kwargs.pop(name) for name in _FIELDS if name in kwargs}
        ensemble, must_contain = kwargs.pop("ensemble", None), kwargs.pop("must_contain", None)
        config, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)
        for name, value in fields.items():
            setattr(config, name, value)
        validate_search_fields(config)
        if not isinstance(config.num_beams, int) or config.num_beams < 1:
            raise ValueError(f"`num_beams` must be a positive integer, but is {config.num_beams!r}.")
        has_own_cache = model_kwargs.get("past_key_values") is not None
        ensemble = () if ensemble is None else ensemble
        search = SearchInputs(config.num_beams, ensemble, must_contain, has_own_cache)
        if must_contain:
            check_phrases(must_contain, config, self.config.decoder_vocab_size)
            if has_own_cache:
                raise ValueError("`must_contain` cannot be combined with `past_key_values`; leave one of them out.")
        if search != SearchInputs():
            # Its name keeps it from the encoder.
            model_kwargs["decoder_search"] = search
        return config, model_kwargs

    def _validate_model_kwargs(self, model_kwargs):
        super()._validate_model_kwargs({k: value for k, value in model_kwargs.items() if k != "decoder_search"})

    def _prepare_model_inputs(self, inputs, bos_token_id, model_kwargs):
        inputs, name, model_kwargs = super()._prepare_model_inputs(inputs, bos_token_id, model_kwargs)
        # The decoder is handed no source tokens from which the mask could be inferred at each step.
        given = model_kwargs.get("attention_mask") is not None or model_kwargs.get("encoder_outputs") is not None
        mask = self._infer_source_mask(inputs) if name == "input_ids" and not given else None
        if mask is not None:
            model_kwargs["attention_mask"] = mask.long()
        return inputs, name, model_kwargs

    def _prepare_decoder_input_ids_for_generation(self, *args, **kwargs):
        input_ids, model_kwargs = super()._prepare_decoder_input_ids_for_generation(*args, **kwargs)
        # Padding before a target prefix stays masked at every later step only if its mask is known from the first.
        if model_kwargs.get("decoder_attention_mask") is None:
            mask = self._infer_target_mask(input_ids)
            if mask is not None:
                model_kwargs["decoder_attention_mask"] = mask.long()
        return input_ids, model_kwargs

    def _expand_inputs_for_generation(self, expand_size=1, is_encoder_decoder=False, input_ids=None, **model_kwargs):
        search = model_kwargs.get("decoder_search")
        if search is None or search.num_beams == 1:
            return super()._expand_inputs_for_generation(expand_size, is_encoder_decoder, input_ids, **model_kwargs)
        # The beams of a sentence have its source in common.
        source = {name: model_kwargs.pop(name, None) for name in ("encoder_outputs", "attention_mask")}
        input_ids, model_kwargs = super()._expand_inputs_for_generation(expand_size, False, input_ids, **model_kwargs)
        return input_ids, {**model_kwargs, **source}

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *args, **kwargs):
        search = model_kwargs.get("decoder_search")
        is_dynamic = generation_config.cache_implementation in (None, "dynamic")
        # The beams make their own cache, or the model does for them.
        if search is None or search.num_beams == 1 or search.has_own_cache or not is_dynamic:
            super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)

    def _prepare_generated_length(self, generation_config, has_default_max_length, **kwargs):
        config, prompt_length = generation_config, kwargs["input_ids_length"]
        names = ("max_length_a", "max_length_b")
        has_no_length = (has_default_max_length or config.max_length is None) and config.max_new_tokens is None
        if has_no_length and all(getattr(config, name, None) is None for name in names):
            config.max_length_a, config.max_length_b = PAPER_MAX_LENGTH
        longest = self._sentence_limit(config, kwargs["inputs_tensor"].shape[1], prompt_length)
        if longest is not None and has_no_length:
            config.max_new_tokens = longest
        config = super()._prepare_generated_length(config, has_default_max_length=has_default_max_length, **kwargs)
        if longest is not None:
            config.max_length = min(config.max_length, prompt_length + longest)
        return config

    def _sentence_limit(self, config: GenerationConfig, source_length: int, prompt_length: int) -> int | None:
        """The new tokens at most for a source of this length; None without limits of their own for sentences."""
        limit = tokens_at_most(config, source_length)
        if limit is not None and self.config.position_embedding == "learned":
            # The last token is never read.
            limit = min(limit, max(1, self.config.max_position_embeddings - prompt_length + 1))
        return limit

    def _limits(self, config: GenerationConfig, prompt: torch.Tensor, model_kwargs: dict[str, Any]) -> torch.Tensor:
        """[B] int64: new tokens at most."""
        most, prompt_length = config.max_length - prompt.shape[1], prompt.shape[1]
        mask = model_kwargs.get("attention_mask")
        if mask is None or self._sentence_limit(config, 1, prompt_length) is None:
            # All sources are as long as the longest, whose limit `max_length` contains.
            return torch.full((len(prompt),), most, device=prompt.device)
        lengths = (mask != 0).sum(dim=1).tolist()
        limits = [min(most, self._sentence_limit(config, length, prompt_length)) for length in lengths]
        return torch.tensor(limits, device=prompt.device)

    def _add_sentence_limits(self, criteria, config, input_ids, model_kwargs):
        limits = self._limits(config, input_ids, model_kwargs) + input_ids.shape[1]
        if bool((limits < config.max_length).any()):
            criteria.append(SentenceLimitCriteria(limits))

    def _beam_search(
        self,
        input_ids,
        logits_processor,
        stopping_criteria,
        generation_config,
        inputs_tensor=None,
        decoder_search=None,
        **kwargs,
    ):
        return self._search(
            input_ids, logits_processor, stopping_criteria, generation_config, inputs_tensor, decoder_search, kwargs
        )

    def _sample(
        self,
        input_ids,
        logits_processor,
        stopping_criteria,
        generation_config,
        inputs_tensor=None,
        decoder_search=None,
        **kwargs,
    ):
        config, search = generation_config, decoder_search or SearchInputs()
        is_plain_greedy = not (
            config.do_sample
            or config.return_dict_in_generate
            or logits_processor
            or "streamer" in kwargs
            or any(not isinstance(criterion, (EosTokenCriteria, MaxLengthCriteria)) for criterion in stopping_criteria)
        )
        if search.ensemble or search.must_contain or is_plain_greedy:
            _refuse_sampling(search, config, kwargs)
            # One beam that ends with its first `</s>` is greedy search, with sentences leaving it.
            config.early_stopping = True
            return self._search(input_ids, logits_processor, stopping_criteria, config, inputs_tensor, search, kwargs)
        self._add_sentence_limits(stopping_criteria, config, input_ids, kwargs)
        return super()._sample(input_ids, logits_processor, stopping_criteria, config, **kwargs)

    def _assisted_decoding(
        self,
        input_ids,
        logits_processor,
        stopping_criteria,
        generation_config,
        inputs_tensor=None,
        decoder_search=None,
        **kwargs,
    ):
        # transformers looks for `inputs_tensor`, the source for the assistant, in the signature.
        self._add_sentence_limits(stopping_criteria, generation_config, input_ids, kwargs)
        return super()._assisted_decoding(
            input_ids, logits_processor, stopping_criteria, generation_config, inputs_tensor=inputs_tensor, **kwargs
        )

    def _search(self, input_ids, processors, criteria, config, source_ids, search, model_kwargs):
        """What `generate` gives back, by our search."""
        search = search or SearchInputs(config.num_beams)
        synced_gpus = model_kwargs.pop("synced_gpus", False)
        model_kwargs = {k: value for k, value in model_kwargs.items() if value is not None and k != "tokenizer"}
        in_lock_step = bool(
            config.return_dict_in_generate
            or synced_gpus
            or search.has_own_cache
            or config.cache_implementation not in (None, "dynamic")
            or model_kwargs.keys() - _INPUTS_OF_BEAMS
        )
        prompt, ensemble = input_ids[:: config.num_beams], _checked_ensemble(self, search.ensemble)
        task = _Task(
            models=[self, *ensemble],
            inputs=[model_kwargs, *(_inputs_for(model, source_ids, model_kwargs) for model in ensemble)],
            prompt=prompt,
            source_mask=model_kwargs.get("attention_mask"),
            arguments=(self._limits(config, prompt, model_kwargs), processors, criteria),
            in_lock_step=in_lock_step,
            go_on=lambda is_over: self._has_unfinished_sequences(is_over, synced_gpus, device=input_ids.device),
        )
        found = task.run_with_phrases(config, search.must_contain) if search.must_contain else task.run(config)
        if config.return_dict_in_generate:
            return _as_transformers_returns(found, model_kwargs["encoder_outputs"])
        return found.results()[0].clone()

    def _fits_a_tree(self) -> bool:
        """Whether nothing asks for the model's own forward: no compiled or replaced one, no hooks, no shares."""
        is_untouched = not any(
            "forward" in vars(module)
            or module._compiled_call_impl is not None
            or module._forward_hooks
            or module._forward_pre_hooks
            for module in (self, self.model, self.get_decoder())
        )
        return is_untouched and self.config._attn_implementation in ("sdpa", "eager") and self._tp_size in (None, 1)

    def compute_transition_scores(self, *args, **kwargs):
        """Log-probabilities of the tokens of generated sequences, as transformers defines them.

        Args:
            *args: As transformers has them.
            **kwargs: As transformers has them.

        Returns:
            torch.Tensor: [B, T] float32.
        """
        # transformers takes the number of classes from `vocab_size`, which is the source's.
        config = self.config
        self.config = copy.copy(config)
        self.config.share_encoder_decoder_embeddings = False
        self.config.vocab_size = config.decoder_vocab_size
        try:
            return super().compute_transition_scores(*args, **kwargs)
        finally:
            self.config = config


def _checked_ensemble(model: Any, others: Sequence[Any]) -> Sequence[Any]:
    if not isinstance(others, (list, tuple)) or not all(isinstance(other, GenerationMixin) for other in others):
        raise ValueError(f"`ensemble` must be a list of models, but is {type(others).__name__} of something else.")
    for number, other in enumerate(others):
        for name in ("vocab_size", "decoder_vocab_size", "decoder_start_token_id", "eos_token_id", "pad_token_id"):
            own, foreign = getattr(model.config, name), getattr(other.config, name, None)
            if own != foreign:
                raise ValueError(
                    f"`ensemble` must be models of one vocabulary, but `{name}` is {foreign!r} in ensemble[{number}] "
                    f"and {own!r} in the model that generates."
                )
    return others


@dataclass
class _Task:
    """A batch to be searched.

    Attributes:
        models: The one that generates and those of its ensemble.
        inputs: Of each model what it takes, for all B sentences.
        prompt: [B, P] int64.
        source_mask: [B, S], where there is padding.
        arguments: Limits [B], processors and criteria.
        in_lock_step: Whether all sentences stay to the end.
        go_on: Whether processes that share the model go on, asked with whether this search is over.
    """

    models: list[Any]
    inputs: list[dict[str, Any]]
    prompt: torch.Tensor
    source_mask: torch.Tensor | None
    arguments: tuple
    in_lock_step: bool
    go_on: Callable[[bool], bool]

    def run(
        self, config: GenerationConfig, search_class: Callable = BeamSearch, kept: torch.Tensor | None = None
    ) -> Any:
        """The search when it is over: of all sentences, or of those that are kept [N]."""
        sentences = torch.arange(len(self.prompt), device=self.prompt.device) if kept is None else kept
        input_ids = self.prompt[sentences].repeat_interleave(config.num_beams, dim=0)
        inputs = self.inputs if kept is None else [_selected(old, kept, self.prompt, config) for old in self.inputs]
        decoders: list[Any] = []
        for model, kwargs in zip(self.models, inputs, strict=True):
            in_rows = (model is self.models[0] and self.in_lock_step) or not config.use_cache
            decoders.append(
                (RowDecoder if in_rows or not model._fits_a_tree() else TreeDecoder)(model, config, kwargs)
            )
        search = search_class(
            decoders, self.prompt, sentences, config, *self.arguments, self.source_mask, self.in_lock_step
        )
        # Without the bookkeeping of autograd; in what others may have put into the model it could break something.
        is_our_own = not search.processors and all(getattr(decoder, "is_direct", False) for decoder in decoders)
        with torch.inference_mode() if is_our_own else nullcontext():
            search.run([decoder.start(input_ids) for decoder in decoders], self.go_on)
        return search

    def run_with_phrases(self, config: GenerationConfig, must_contain: Sequence[Sequence[Sequence[int]]]) -> Any:
        """The search for translations that contain phrases, which most contain by themselves.

        Raises:
            ValueError: If there are not as many lists of phrases as sentences.
        """
        if len(must_contain) != len(self.prompt):
            raise ValueError(
                f"`must_contain` must have a list of phrases for each sentence, but has {len(must_contain)} for "
                f"{len(self.prompt)} sentences."
            )
        phrases = [Phrases(of_sentence or ()) for of_sentence in must_contain]
        search = self.run(config)
        found = search.results()[0].view(len(phrases), config.num_return_sequences, -1).tolist()
        lacking = [i for i, wanted in enumerate(phrases) if not all(map(wanted.are_in, found[i]))]
        if not lacking:
            return search
        grid = copy.copy(config)
        grid.num_beams = config.num_beams * (1 + max(phrases[i].length for i in lacking))
        if self.in_lock_step:
            # What is asked for of each step is of all sentences; those that lack nothing are searched as before.
            phrases = [wanted if i in lacking else Phrases([]) for i, wanted in enumerate(phrases)]
        kept = range(len(phrases)) if self.in_lock_step else lacking
        search_class = partial(PhraseSearch, phrases, config.num_beams)
        other = self.run(grid, search_class, torch.tensor(kept, device=self.prompt.device))
        if not self.in_lock_step:
            other.take_over(search)
        return other


def _selected(
    inputs: dict[str, Any], kept: torch.Tensor, prompt: torch.Tensor, config: GenerationConfig
) -> dict[str, Any]:
    """What a model takes for some sentences with another number of beams."""
    selected = {name: value for name, value in inputs.items() if name != "past_key_values"}
    selected["encoder_outputs"] = BaseModelOutput(inputs["encoder_outputs"][0][kept])
    if "attention_mask" in inputs:
        selected["attention_mask"] = inputs["attention_mask"][kept]
    if "decoder_attention_mask" in inputs:
        mask = inputs["decoder_attention_mask"]
        mask = mask[:: len(mask) // len(prompt)][kept]
        selected["decoder_attention_mask"] = mask.repeat_interleave(config.num_beams, dim=0)
    return selected


def _inputs_for(model: Any, source_ids: torch.Tensor | None, model_kwargs: dict[str, Any]) -> dict[str, Any]:
    """What a further model of an ensemble takes.

    Raises:
        ValueError: If there are no source tokens.
    """
    if source_ids is None or source_ids.is_floating_point() or bool((source_ids < 0).any()):
        raise ValueError("`ensemble` needs `input_ids`: each model encodes the source by itself.")
    names = ("attention_mask", "decoder_attention_mask", "use_cache")
    kwargs = {name: model_kwargs[name] for name in names if name in model_kwargs}
    encoder_outputs = model.get_encoder()(source_ids, attention_mask=kwargs.get("attention_mask"), return_dict=True)
    return {**kwargs, "encoder_outputs": encoder_outputs}


def _refuse_sampling(search: SearchInputs, config: GenerationConfig, kwargs: dict[str, Any]) -> None:
    for name in ("do_sample", "streamer"):
        if getattr(config, name, None) or kwargs.get(name) is not None:
            raise ValueError(
                f"`{'ensemble' if search.ensemble else 'must_contain'}` needs a search, but `{name}` is given; leave it "
                "out or set `num_beams` above 1."
            )


def _as_transformers_returns(search: BeamSearch, encoder_outputs: Any) -> Any:
    config, decoder = search.config, search.decoders[0]
    sequences, scores, rows = search.results()

    def recorded(name: str, values: list[Any]) -> tuple | None:
        return tuple(values) if getattr(config, name) else None

    common = {
        "sequences": sequences,
        "scores": recorded("output_scores", search.step_scores),
        "logits": recorded("output_logits", search.step_logits),
        "encoder_attentions": encoder_outputs.get("attentions") if config.output_attentions else None,
        "encoder_hidden_states": encoder_outputs.get("hidden_states") if config.output_hidden_states else None,
        "decoder_attentions": recorded("output_attentions", decoder.attentions),
        "cross_attentions": recorded("output_attentions", decoder.cross_attentions),
        "decoder_hidden_states": recorded("output_hidden_states", decoder.hidden_states),
        "past_key_values": decoder.returned_cache(search.parents),
    }
    if config.num_beams == 1:
        return GenerateEncoderDecoderOutput(**common)
    scores = scores if config.output_scores else None
    return GenerateBeamEncoderDecoderOutput(**common, sequences_scores=scores, beam_indices=rows)
