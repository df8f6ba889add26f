"""Determines the value of a search setting, such as `num_beams`, if several sources (such as the call and the
checkpoint) contain a value. The first source in the following list that contains a value determines the
setting:

1. The arguments with which the user calls `generate`, the translator or the pipeline. If the call passes None
   for a setting, the sources 2 to 5 in the list are ignored for the setting.
2. The argument `generation_config` of the call.
3. The `task_specific_params` of the checkpoint's config. Only the translation pipeline reads search settings
   from `task_specific_params`.
4. The generation config of the checkpoint. A training run writes the settings in the section `decoding` of
   the recipe to the generation config.
5. `DEFAULT_SEARCH`. Only the translator and the translation pipeline use `DEFAULT_SEARCH`.
6. The defaults of `SearchSettings`.

In a generation config, None means that the config does not contain the setting. If a call has a
`generation_config`, `task_specific_params` and `DEFAULT_SEARCH` are ignored. If an earlier source contains
`max_new_tokens` or `max_length`, `task_specific_params` and `DEFAULT_SEARCH` set neither of the two.

`completed_settings` adds the settings of `task_specific_params` and of `DEFAULT_SEARCH` to the arguments of a
call of the translator. Therefore `setting_of` needs only the sources 1, 2, 4 and 6 of the list above.
`generate` of transformers also reads the sources 1, 2, 4 and 6, in the order of the list.

This file is saved with every checkpoint because the search and the translator read their settings with this
file.
"""

import copy
from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig

from .inputs_vaswani import DECODING_SETTINGS

# The defaults of the translation pipeline of transformers 4. `completed_settings` does not use
# `max_new_tokens: 256` for Vaswani models, because `generate` of Vaswani models computes a length limit for
# each sentence.
DEFAULT_SEARCH = {"num_beams": 4, "max_new_tokens": 256}
_LENGTHS = {"max_new_tokens", "max_length"}


def setting_of(name: str, arguments: Mapping[str, Any], generation_config: GenerationConfig | None) -> Any:
    """Return the value of a search setting from the sources 1, 2, 4 and 6 in the list at the start of this
    file. `arguments` are the arguments of the call, and `generation_config` is the generation config of the
    checkpoint.
    """
    default = DECODING_SETTINGS.get(name)
    if name in arguments:
        return default if arguments[name] is None else arguments[name]
    for config in (arguments.get("generation_config"), generation_config):
        value = getattr(config, name, None)
        if value is not None:
            return value
    return default


def config_of_call(arguments: Mapping[str, Any], generation_config: GenerationConfig) -> GenerationConfig:
    """Return a copy of the checkpoint's generation config with the settings of a call. The function
    `setting_of` determines the value of each setting.
    """
    config = copy.copy(generation_config)
    for name in vars(generation_config).keys() | DECODING_SETTINGS.keys():
        setattr(config, name, setting_of(name, arguments, generation_config))
    return config


def completed_settings(
    arguments: Mapping[str, Any],
    task_settings: Mapping[str, Any],
    generation_config: GenerationConfig,
    is_vaswani: bool,
) -> dict[str, Any]:
    """Return the arguments of a call of the translator, completed with settings from `task_settings` (the
    `task_specific_params` of the checkpoint's config) and from `DEFAULT_SEARCH`.
    """
    completed = dict(arguments)
    if arguments.get("generation_config") is not None:
        return completed
    completed |= _without_settings_in(completed, task_settings)
    defaults = _without_settings_in(completed, DEFAULT_SEARCH)
    defaults = _without_settings_in(generation_config.to_diff_dict(), defaults)
    if is_vaswani:
        defaults.pop("max_new_tokens", None)
    return completed | defaults


def _without_settings_in(earlier: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `settings` whose names are not in `earlier`. If `earlier` contains
    `max_new_tokens` or `max_length`, leave out both of these settings.
    """
    names = set(earlier)
    if _LENGTHS & names:
        names |= _LENGTHS
    return {name: value for name, value in settings.items() if name not in names}
