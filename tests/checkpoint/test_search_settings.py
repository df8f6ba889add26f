"""The search settings of a generation config that a format does not support."""

import pytest
from sentences import refused
from transformers import GenerationConfig

from vaswani_hf.checkpoint.search_settings import SupportedSettings
from vaswani_hf.model.inputs_vaswani import DECODING_SETTINGS, NEUTRAL_SETTINGS

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
    [
        (IDLE, {}),
        (DECODING_SETTINGS, {}),
        (NEUTRAL_SETTINGS, {}),
        ({"num_beams": 5, **OWN}, OWN),
        (OTHERS, OTHERS),
        # A zero has an effect if the default is another number.
        ({"num_beams": 5, "length_penalty": 0.0}, {"length_penalty": 0.0}),
    ],
    ids=["without effect", "defaults", "neutral", "of this package", "others", "zero"],
)
def test_settings_with_an_effect_are_found(settings, unsupported):
    supported = SupportedSettings("the engine", ("num_beams",))
    assert supported.unsupported(config_with(settings)) == unsupported


def config_with(settings):
    config = GenerationConfig()
    vars(config).update(settings)
    return config


MESSAGE = "{} in the generation config, which the engine cannot express: {}"
REMEDY = "; remove such settings from generation_config.json, or choose another format."
REFUSED = MESSAGE.format("`top_h` is 1, `coverage_penalty` is 0.3", "its search lacks such settings")
LEFT_OUT = MESSAGE.format(
    "`early_stopping` is True", "its search never stops early. Therefore the translations can differ."
)
BOTH = {"early_stopping": True, "top_h": 1, "coverage_penalty": 0.3}


@pytest.mark.parametrize(
    ("settings", "left_out", "error", "warning"),
    [
        ({"num_beams": 5}, (), None, None),
        ({"num_beams": 5, **BOTH}, ("early_stopping", "length_penalty"), REFUSED, None),
        ({"num_beams": 5, "early_stopping": True}, ("early_stopping",), None, LEFT_OUT),
        ({"num_beams": 5, "early_stopping": True}, None, None, LEFT_OUT),
    ],
    ids=["supported", "refused", "left out", "all left out"],
)
def test_other_settings_are_refused_or_named_in_one_warning(settings, left_out, error, warning, caplog):
    supported = SupportedSettings("the engine", ("num_beams",), left_out, "its search never stops early")
    if error is None:
        supported.check(config_with(settings))
    else:
        with refused(error + REMEDY):
            supported.check(config_with(settings))
    assert [record.getMessage() for record in caplog.records] == ([warning] if warning else [])
