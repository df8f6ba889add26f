"""The search settings of a generation config that another engine does not support."""

import pytest
from transformers import GenerationConfig

from vaswani_hf.checkpoint.search_settings import unsupported_settings
from vaswani_hf.model.inputs_vaswani import DECODING_SETTINGS

IDLE = {
    "eos_token_id": 2,
    "use_cache": True,
    "top_k": 7,
    "repetition_penalty": 1.0,
    "max_length_b": 0,
    "bad_words_ids": [],
    "disable_compile": True,
    "guidance_scale": 1.0,
    "length_penalty_type": "power",
}


OTHERS = {"unknown_setting": [1], "forced_bos_token_id": 4}
OWN = {"length_penalty_type": "gnmt", "no_repeat_ngram_size": 3}


@pytest.mark.parametrize(
    ("settings", "unsupported"),
    [(IDLE, {}), (DECODING_SETTINGS, {}), ({"num_beams": 5, **OWN}, OWN), (OTHERS, OTHERS)],
    ids=["without effect", "defaults", "of this package", "others"],
)
def test_settings_with_an_effect_are_found(settings, unsupported):
    config = GenerationConfig()
    for name, value in settings.items():
        setattr(config, name, value)
    assert unsupported_settings(config, {"num_beams", "length_penalty"}) == unsupported
