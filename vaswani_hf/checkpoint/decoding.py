"""The decoding settings that the package knows by name, as generation_config.json has them; `generate` takes all others too."""

from typing import Any

# Settings of `generate` that the search of this package adds to those of transformers.
ADDED_SETTINGS = ("length_penalty_type", "max_length_a", "max_length_b", "coverage_penalty")
# All settings of decoding that the package names, with the values of those that neither a call nor a checkpoint sets.
DECODING_SETTINGS: dict[str, Any] = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "early_stopping": False,
    "length_penalty": 1.0,
    "max_new_tokens": None,
    "max_length": None,
    "no_repeat_ngram_size": 0,
    "do_sample": False,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    **dict.fromkeys(ADDED_SETTINGS),
}
# Those that a score depends on.
SCORE_SETTINGS = ("length_penalty", "length_penalty_type", "coverage_penalty")
