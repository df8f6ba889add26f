"""Declares which search settings a format supports, and finds unsupported settings in a generation config."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from transformers import GenerationConfig
from transformers.utils import logging

from ..model.errors_vaswani import InvalidValueError
from ..model.inputs_vaswani import DECODING_SETTINGS, NEUTRAL_SETTINGS, SAMPLING_SETTINGS

logger = logging.get_logger(__name__)

# The fields of a generation config that do not change the result of a beam search without sampling.
_IDLE = frozenset(
    """
    _from_model_config bos_token_id cache_config cache_implementation compile_config decoder_start_token_id
    disable_compile eos_token_id output_attentions output_hidden_states output_logits output_scores pad_token_id
    renormalize_logits return_dict_in_generate transformers_version use_cache
    """.split()
).union(SAMPLING_SETTINGS)
# Maps a search setting to a value that has no effect on the search.
_NEUTRAL = NEUTRAL_SETTINGS | {"guidance_scale": 1.0}


class NotExpressibleError(InvalidValueError):
    """Raised if the chosen format cannot express a part of a checkpoint, such as its config or its
    tokenizer.
    """


@dataclass(frozen=True)
class SupportedSettings:
    """Describes which search settings a format supports.

    A format refuses each setting that neither `names` nor `left_out` contains. If `left_out` is None, the
    format refuses no setting.

    Attributes:
        title (str): The name of the format in messages.
        names (Collection): The settings for which the format supports every value.
        left_out (Collection, optional): The settings that an export leaves out with a warning, because the
            exported model is useful without these settings. If `left_out` is None, an export leaves out
            each setting that `names` does not contain.
        search (str): Describes the search of the format, for the warning about settings in `left_out`.
    """

    title: str
    names: Collection[str]
    left_out: Collection[str] | None = ()
    search: str = ""

    def check(self, config: GenerationConfig) -> None:
        """Raise a NotExpressibleError for refused settings. Log a warning about settings in `left_out`."""
        unsupported = self.unsupported(config)
        left_out = unsupported if self.left_out is None else self.left_out
        refused = {name: value for name, value in unsupported.items() if name not in left_out}
        if refused:
            raise NotExpressibleError(
                f"{self._named(refused)}: its search lacks such settings; remove such settings from "
                "generation_config.json, or choose another format."
            )
        if unsupported:
            logger.warning(
                f"{self._named(unsupported)}: {self.search}. Therefore the translations can differ."
            )

    def unsupported(self, config: GenerationConfig) -> dict[str, Any]:
        """Return the settings that have an effect on the search and are not in `names`.

        The value None, the default and the values in `_NEUTRAL` have no effect. If the default is None, False
        or 0, the values False, 0 and an empty list have no effect either.
        """
        defaults = GenerationConfig._get_default_generation_params() | DECODING_SETTINGS
        settings = {}
        for name, value in config.to_diff_dict().items():
            default = defaults.get(name)
            has_effect = bool(value or default) and value not in (None, default, _NEUTRAL.get(name))
            if has_effect and name not in self.names and name not in _IDLE:
                settings[name] = value
        return settings

    def _named(self, settings: dict[str, Any]) -> str:
        values = ", ".join(f"`{name}` is {value!r}" for name, value in settings.items())
        return f"{values} in the generation config, which {self.title} cannot express"
