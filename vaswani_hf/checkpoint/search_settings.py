"""Finds the search settings in the generation config of a checkpoint that another engine does not support."""

from collections.abc import Collection
from typing import Any

from transformers import GenerationConfig

from ..model.inputs_vaswani import DECODING_SETTINGS

# The fields of a generation config that do not change the result of a beam search without sampling.
_IDLE = frozenset(
    """
    _from_model_config bos_token_id cache_implementation decoder_start_token_id eos_token_id output_attentions
    output_hidden_states output_logits output_scores pad_token_id renormalize_logits return_dict_in_generate
    temperature top_k top_p transformers_version use_cache
    """.split()
)


def unsupported_settings(config: GenerationConfig, supported: Collection[str]) -> dict[str, Any]:
    """Return the names and values of all settings that have an effect on the search and are not in
    `supported`. The values None, False, 0, an empty list and the default have no effect.
    """
    defaults = GenerationConfig._get_default_generation_params() | DECODING_SETTINGS
    settings = {}
    for name, value in config.to_diff_dict().items():
        has_effect = name not in _IDLE and bool(value) and value != defaults.get(name)
        if has_effect and name not in supported:
            settings[name] = value
    return settings
