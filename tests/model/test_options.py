"""Each option of a translation has a description, and an impossible value is an error."""

from dataclasses import fields

import pytest
import yaml
from sentences import refused, rows
from transformers import GenerationConfig

from vaswani_hf.model.inputs_vaswani import SearchSettings, TranslationOptions
from vaswani_hf.model.precedence_vaswani import completed_settings, setting_of


@pytest.mark.parametrize("kind", [SearchSettings, TranslationOptions])
def test_each_option_has_help_and_its_default_is_possible(kind):
    assert all(field.metadata["help"] for field in fields(kind))
    kind()
    defaults = {field.name: field.default for field in fields(SearchSettings)}
    TranslationOptions(generate=defaults | {"do_sample": True})


IMPOSSIBLE = """
num_beams: 0 | `num_beams` must be a positive integer, but is 0.
num_beams: true | `num_beams` must be a positive integer, but is True.
num_return_sequences: 2.5 | `num_return_sequences` must be a positive integer, but is 2.5.
do_sample: true, top_k: -1 | `top_k` must be an integer of 0 or more, but is -1.
do_sample: true, top_p: 2 | `top_p` must be a number above 0 and at most 1, but is 2.
do_sample: true, temperature: .inf | `temperature` must be a number above 0, but is inf.
do_sample: "yes" | `do_sample` must be True or False, but is 'yes'.
length_penalty: .nan | `length_penalty` must be a finite number, but is nan.
coverage_penalty: -1 | `coverage_penalty` must be a number of 0 or more, but is -1.
length_penalty_type: wu | `length_penalty_type` must be "gnmt" or "power", but is 'wu'.
early_stopping: now | `early_stopping` must be True, False or "never", but is 'now'.
early_stopping: 1 | `early_stopping` must be True, False or "never", but is 1.
max_length_b: 0.5 | `max_length_b` must be an integer of 0 or more, but is 0.5.
min_confidence: 1.5 | `min_confidence` must be a number from 0 to 1, but is 1.5.
seed: -1 | `seed` must be an integer from 0 to 4294967295, but is -1.
seed: 4294967296 | `seed` must be an integer from 0 to 4294967295, but is 4294967296.
window: 0 | `window` must be a positive integer, but is 0.
on_error: skp | `on_error` must be "fail" or "skip", but is 'skp'.
"""


@pytest.mark.parametrize(("options", "message"), rows(IMPOSSIBLE))
def test_an_impossible_value_is_named(options, message):
    with refused(message):
        TranslationOptions.of(**yaml.safe_load(f"{{{options}}}"))


def test_an_impossible_value_of_a_generation_config_is_named():
    with refused("`num_beams` must be a positive integer, but is 0."):
        TranslationOptions.of(generation_config=GenerationConfig(num_beams=0))


def test_settings_of_sampling_need_sampling():
    message = "`top_k` is a setting of sampling and must come with `do_sample`; set `do_sample`, or leave `top_k` out."
    for settings in ({"top_k": 5}, {"top_k": 5, "do_sample": False, "num_beams": 4}):
        with refused(message):
            TranslationOptions.of(**settings)
    config = GenerationConfig(do_sample=True)
    for settings in (
        {"top_k": 5, "do_sample": True},
        {"top_k": 5, "generation_config": config},
        {"top_k": None},
    ):
        assert TranslationOptions.of(**settings).generate == settings
    # A generation config may have settings that only sampling uses.
    TranslationOptions.of(generation_config=GenerationConfig(temperature=0.0))


def test_the_call_comes_first_then_its_config_then_the_checkpoint():
    checkpoint, config = GenerationConfig(num_beams=2), GenerationConfig(num_beams=3)
    assert setting_of("num_beams", {"num_beams": None, "generation_config": config}, checkpoint) == 1
    assert setting_of("num_beams", {"generation_config": config}, checkpoint) == 3
    assert setting_of("num_beams", {"generation_config": GenerationConfig()}, checkpoint) == 2
    assert setting_of("length_penalty", {}, checkpoint) == 1.0
    assert setting_of("suppress_tokens", {}, checkpoint) is None


# The arguments of a call, the settings of the task, the settings of the checkpoint, and the completed call.
CALLS = """
{} | {} | {} | {num_beams: 4, max_new_tokens: 256}
{num_beams: null} | {num_beams: 2} | {} | {num_beams: null, max_new_tokens: 256}
{num_beams: 3} | {num_beams: 2, top_k: 5} | {} | {num_beams: 3, top_k: 5, max_new_tokens: 256}
{} | {num_beams: 2} | {num_beams: 5, max_length: 9} | {num_beams: 2}
{max_length: 7} | {max_new_tokens: 8} | {} | {max_length: 7, num_beams: 4}
{} | {max_length: 8, max_new_tokens: 6} | {} | {max_length: 8, max_new_tokens: 6, num_beams: 4}
{generation_config: null} | {} | {num_beams: 2, max_length: 9} | {generation_config: null}
"""


@pytest.mark.parametrize("row", rows(CALLS), ids=str)
def test_the_settings_of_the_task_and_the_defaults_complete_a_call(row):
    arguments, of_task, of_checkpoint, expected = map(yaml.safe_load, row)
    checkpoint = GenerationConfig(**of_checkpoint)
    assert completed_settings(arguments, of_task, checkpoint, is_vaswani=False) == expected
    of_vaswani = completed_settings(arguments, of_task, checkpoint, is_vaswani=True)
    assert of_vaswani == {name: value for name, value in expected.items() if value != 256}
    with_config = {**arguments, "generation_config": GenerationConfig()}
    assert completed_settings(with_config, of_task, checkpoint, is_vaswani=False) == with_config
