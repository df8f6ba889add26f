"""The number of positions in the table of a format that has one, while sinusoids go on for ever."""

import math

from transformers import PreTrainedModel

from ..model.generation_vaswani import PAPER_MAX_LENGTH
from ..model.translator_vaswani import DEFAULT_MAX_LENGTH
from .comparison import Tokenizers

# Section 6.1: an output has at most this many tokens more than its input.
EXTRA_TOKENS = PAPER_MAX_LENGTH[1]
SMALLEST_TABLE = DEFAULT_MAX_LENGTH + EXTRA_TOKENS


def num_positions(model: PreTrainedModel, tokenizers: Tokenizers | None) -> int:
    """Enough for the longest input and for every output that the generation config allows.

    Args:
        model (PreTrainedModel): A VaswaniForSeq2SeqLM.
        tokenizers (tuple, optional): Of source and target, for the longest input.

    Returns:
        int: Rows of the table (tokens), 1,074 at least; those of the model's own table where it is learned.
    """
    if model.config.position_embedding == "learned":
        return model.config.max_position_embeddings
    config = model.generation_config
    # transformers writes 10^30 where there is no limit.
    lengths = [t.model_max_length for t in tokenizers or () if t.model_max_length < 10**6]
    longest = max(lengths, default=DEFAULT_MAX_LENGTH)
    a, b = (getattr(config, name, None) or 0 for name in ("max_length_a", "max_length_b"))
    outputs = (longest + EXTRA_TOKENS, math.ceil(a * longest) + b, config.max_length, config.max_new_tokens)
    return max(SMALLEST_TABLE, *(int(length or 0) for length in outputs))
