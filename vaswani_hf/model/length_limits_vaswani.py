"""The length limit of a translation: the maximum number of new tokens.

`max_new_tokens_of` computes the length limit of one translation. `generate`, the translator, the parser of
`vaswani parse`, the CTranslate2 backend and the exports call `max_new_tokens_of`. In the exported HTML page,
the function `maxNewTokens` (browser/translate/search.mjs of the package) applies the same rule.

This file is saved with every checkpoint because `generate` limits the lengths of translations with this file.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from .inputs_vaswani import LENGTH_SETTINGS


class DefaultLimit(NamedTuple):
    """The length limit if no setting limits the length: `a` new tokens per source token, plus `b` new
    tokens.
    """

    a: int
    b: int


# Section 6.1: "We set the maximum output length during inference to input length + 50".
PAPER_LIMIT = DefaultLimit(a=1, b=50)
# The default of `generate` of transformers: 20 new tokens.
TRANSFORMERS_LIMIT = DefaultLimit(a=0, b=20)


def max_new_tokens_of(
    config: Any,
    source_length: int,
    prompt_length: int,
    num_positions: float = math.inf,
    default: DefaultLimit = PAPER_LIMIT,
) -> int:
    """Return the maximum number of new tokens in the translation of a source with `source_length` tokens.

    If a config sets `max_new_tokens`, `max_length` is ignored. The smallest of the remaining limits applies:
    `max_new_tokens` or `max_length`, the limit from `max_length_a` and `max_length_b`, and the number of
    positions.

    Args:
        config: An object with the attributes in `LENGTH_SETTINGS`, such as a generation config.
        source_length: The number of source tokens, including `</s>`.
        prompt_length: The number of tokens in the decoder's prompt: the start token and the target prefix.
            `max_length` includes the tokens of the prompt.
        num_positions: The number of tokens that the decoder can read; infinite without a table of learned
            positions.
        default: The limit if the config sets none of `LENGTH_SETTINGS`.
    """
    # Permit one token more than the number of free positions, because the model never reads the last new
    # token.
    limits = [max(1, num_positions - prompt_length + 1)]
    if config.max_new_tokens is not None:
        limits.append(config.max_new_tokens)
    elif config.max_length is not None:
        limits.append(config.max_length - prompt_length)
    a = getattr(config, "max_length_a", None)
    b = getattr(config, "max_length_b", None)
    if not _sets_any_of(LENGTH_SETTINGS, config):
        a, b = default
    if a is not None or b is not None:
        # Add 1e-6 before rounding down, because 0.29 * 100 is a little less than 29 in floating point.
        limits.append(max(1, math.floor((a or 0) * source_length + (b or 0) + 1e-6)))
    return int(min(limits))


def depends_on_source(config: Any) -> bool:
    """Return True if the length limit (by default `PAPER_LIMIT`) depends on the number of source tokens."""
    return _sets_any_of(("max_length_a", "max_length_b"), config) or not _sets_any_of(LENGTH_SETTINGS, config)


def _sets_any_of(names: Iterable[str], config: Any) -> bool:
    return any(getattr(config, name, None) is not None for name in names)


def set_max_new_tokens(config: Any, max_new_tokens: int, prompt_length: int) -> None:
    """Set the limit of new tokens in a config. If only `max_length` is set, change `max_length`, because
    transformers warns about a config that sets both `max_length` and `max_new_tokens`.
    """
    if config.max_new_tokens is None and config.max_length is not None:
        config.max_length = prompt_length + max_new_tokens
    else:
        config.max_new_tokens = max_new_tokens
