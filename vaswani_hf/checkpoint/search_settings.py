"""Finds search settings that another engine does not support, in the generation config of a checkpoint."""

from collections.abc import Collection
from typing import Any

from transformers import GenerationConfig

from ..model.inputs_vaswani import DECODING_SETTINGS

# The fields of a generation config that do not change the result of a beam search without sampling.
_IDLE = frozenset(
    """
    _from_model_config bos_token_id cache_config cache_implementation compile_config decoder_start_token_id
    disable_compile eos_token_id output_attentions output_hidden_states output_logits output_scores pad_token_id
    renormalize_logits return_dict_in_generate temperature top_k top_p transformers_version use_cache
    """.split()
)
# Maps a search setting to a value that has no effect on the search, although the value differs from the
# default. "power" is the length penalty of transformers.
_NEUTRAL = {"guidance_scale": 1.0, "length_penalty_type": "power"}


def unsupported_settings(config: GenerationConfig, supported: Collection[str]) -> dict[str, Any]:
    """Return the settings that have an effect on the search and are not in `supported`.

    The values None, False, 0, an empty list, the default and the values in `_NEUTRAL` have no effect.
    """
    defaults = GenerationConfig._get_default_generation_params() | DECODING_SETTINGS
    settings = {}
    for name, value in config.to_diff_dict().items():
        neutral = (defaults.get(name), _NEUTRAL.get(name))
        has_effect = name not in _IDLE and bool(value) and value not in neutral
        if has_effect and name not in supported:
            settings[name] = value
    return settings
