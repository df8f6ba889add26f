"""Every field of the config is checked, stored, and read by the model; an unknown field is refused."""

import dataclasses
import inspect
import json
import logging

import pytest
import torch
from factories import tiny_model
from transformers import AutoConfig

from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM

PAD, EOS = 1, 2
OWN_FIELDS = sorted(inspect.get_annotations(VaswaniConfig))


def message_of(function, *args, **kwargs) -> str:
    with pytest.raises(ValueError) as error:
        function(*args, **kwargs)
    return str(error.value)


def test_the_default_is_the_papers_base_model():
    config = VaswaniConfig()
    sizes = "d_model encoder_layers decoder_layers encoder_ffn_dim decoder_ffn_dim d_k d_v".split()
    assert [getattr(config, name) for name in sizes] == [512, 6, 6, 2048, 2048, 64, 64]
    assert (config.encoder_attention_heads, config.decoder_attention_heads) == (8, 8)
    assert (config.vocab_size, config.decoder_vocab_size) == (37000, 37000)
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.1, 0.0, 0.0)
    assert (config.activation_function, config.norm_position) == ("relu", "post")
    assert config.attention_bias is False
    assert (config.position_embedding, config.scale_embedding) == ("sinusoidal", True)
    assert (config.share_encoder_decoder_embeddings, config.tie_word_embeddings) == (True, True)
    # transformers reads the sizes under these names.
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (512, 6, 8)


POSITIVE = "a positive integer"
RATE = "a number from 0 up to, but not including, 1"
SCORES = '"scaled_dot", "dot", "dot_mean", "general", "additive_linear", "additive" or a name that `register_attention` has added'
POSITIONS = '"sinusoidal", "learned", "none" or a name that `register_position_encoding` has added'
# For every field, impossible values, and the words that follow "must be" in the message.
INVALID = {
    "vocab_size": ([0, -3, 1.5, "8", True, None], POSITIVE),
    "decoder_vocab_size": ([0, 2.0], "a positive integer or None"),
    "d_model": ([0, "512"], POSITIVE),
    "d_k": ([0, -1, 64.0], "a positive integer or None"),
    "d_v": ([0, [64]], "a positive integer or None"),
    "encoder_layers": ([0, -3], POSITIVE),
    "decoder_layers": ([0, None], POSITIVE),
    "encoder_attention_heads": ([0, 8.0], POSITIVE),
    "decoder_attention_heads": ([-8], POSITIVE),
    "encoder_ffn_dim": ([0], POSITIVE),
    "decoder_ffn_dim": ([False], POSITIVE),
    "max_position_embeddings": ([0], POSITIVE),
    "dropout": ([1, -0.1, "0.1", float("nan"), None, True], RATE),
    "attention_dropout": ([1.0], RATE),
    "activation_dropout": ([-1], RATE),
    "label_smoothing": ([1.0, "7e-4"], RATE),
    "label_smoothing_form": (["t2t ", None], '"t2t" or "torch"'),
    "norm_position": (["middle", True], '"post" or "pre"'),
    "norm_position_of_decoder": (["middle", True], '"post", "pre" or None'),
    "final_norm": (["yes", 1], "True, False or None"),
    "position_embedding": (["sinusoid"], POSITIONS),
    "position_timescales": (["fairseq", None], '"paper" or "tensor2tensor"'),
    "position_offset": ([-1, 1.0, None, True], "an integer of 0 or more (tokens)"),
    "lm_head_bias": ([1, None], "True or False"),
    "zero_start_embedding": ([1, None], "True or False"),
    "activation_function": (
        ["rellu", None],
        'the name of an activation of transformers, such as "relu" or "gelu"',
    ),
    "layer_norm_eps": ([0, -1e-5, float("inf"), float("nan"), "1e-5"], "a positive number"),
    "attention_score": (["scaled", None, 3, ["dot"]], SCORES),
    "cross_attention_score": (["Additive", 3, True], f"{SCORES}, or None"),
    "attention_window": (
        [-1, "8", 1.5, [], True, [1, -2], [None, "3"]],
        "an integer of 0 or more (tokens), a list with one entry per layer or None",
    ),
    "attention_bias": ([0, "False"], "True or False"),
    "initializer_range": ([0, -0.02, "0.02", float("nan"), True], "a positive number or None"),
    "scale_embedding": ([1], "True or False"),
    "share_encoder_decoder_embeddings": ([None], "True or False"),
    "tie_word_embeddings": (["yes"], "True or False"),
    "use_cache": ([1], "True or False"),
    "is_encoder_decoder": ([False], "True, because the model always has an encoder and a decoder"),
    "bos_token_id": ([-1, "<s>", 0.0], "a token id (an integer of 0 or more) or None"),
    "pad_token_id": ([-1], "a token id (an integer of 0 or more) or None"),
    "eos_token_id": ([-1, [], [2, "3"]], "a token id (an integer of 0 or more), a list of token ids or None"),
    "decoder_start_token_id": ([True], "a token id (an integer of 0 or more) or None"),
}


def test_every_field_is_known_here():
    assert sorted(INVALID) == OWN_FIELDS
    lines = VaswaniConfig.__doc__.splitlines()
    entries = lines[lines.index("Args:") + 1 : lines.index("Raises:") - 1]
    assert sorted(entry.split(" (")[0].strip() for entry in entries) == OWN_FIELDS
    assert "    d_k (int, optional): Width of the queries and keys" in VaswaniConfig.__doc__


@pytest.mark.parametrize("name", INVALID)
def test_each_field_is_checked_when_given_and_when_assigned(name):
    values, must_be = INVALID[name]
    config = VaswaniConfig()
    before = getattr(config, name)
    for value in values:
        remedy = ""
        if must_be.startswith((SCORES, POSITIONS)):
            remedy = (
                "; to use an added name, import its Python file, or name this file with `model.code` in a recipe or "
                "`--code` on the command line"
            )
        expected = f"`{name}` must be {must_be}, but is {value!r}{remedy}."
        assert message_of(VaswaniConfig, **{name: value}) == expected
        assert message_of(setattr, config, name, value) == expected
        assert message_of(VaswaniConfig.from_dict, {name: value}) == expected
        assert getattr(config, name) == before


def test_an_alias_is_checked_as_its_field():
    assert VaswaniConfig(hidden_size=256).d_model == 256
    message = "`encoder_layers` must be a positive integer, but is -3."
    assert message_of(VaswaniConfig, num_hidden_layers=-3) == message


TWO_TABLES = {"share_encoder_decoder_embeddings": False}
MULTIPLE = "`d_model` must be a multiple of `{}_attention_heads` unless `d_k` and `d_v` are given, but"
TOO_LARGE = "must be smaller than the {} vocabulary size"
# The first words of the message for fields.
COMBINATIONS = [
    ({"d_model": 500}, f"{MULTIPLE.format('encoder')} 500 is no multiple of 8."),
    ({"decoder_attention_heads": 7, "d_k": 64}, f"{MULTIPLE.format('decoder')} 512 is no multiple of 7."),
    ({"d_model": 511, "d_k": 64, "d_v": 64}, "`d_model` must be even for sinusoidal positions, but is 511; "),
    (
        {"decoder_vocab_size": 9},
        "`decoder_vocab_size` must equal `vocab_size` if the embeddings are shared, but is 9 ",
    ),
    (
        {"attention_window": [1, 2, 3], "encoder_layers": 4},
        "`attention_window` must have one entry per layer: 6 entries that both stacks use, or 10 entries for the encoder layers",
    ),
    ({"vocab_size": 99, "eos_token_id": [2, 99]}, f"`eos_token_id` {TOO_LARGE.format('target')} 99, "),
    (
        TWO_TABLES | {"decoder_vocab_size": 9, "bos_token_id": 9},
        f"`bos_token_id` {TOO_LARGE.format('target')} 9, but is 9.",
    ),
    (
        TWO_TABLES | {"vocab_size": 9, "decoder_vocab_size": 99, "pad_token_id": 10},
        f"`pad_token_id` {TOO_LARGE.format('source')} 9, but is 10.",
    ),
]


@pytest.mark.parametrize(("fields", "message"), COMBINATIONS)
def test_fields_that_contradict_each_other(fields, message):
    assert message_of(VaswaniConfig, **fields).startswith(message)
    config = VaswaniConfig()
    # Remove the default widths, so that the widths follow from the other fields.
    config.d_k = config.d_v = None
    for name, value in fields.items():
        setattr(config, name, value)
    assert message_of(VaswaniForSeq2SeqLM, config).startswith(message)


def test_widths_follow_from_the_heads():
    assert VaswaniConfig(d_model=256, encoder_attention_heads=4, decoder_attention_heads=4).d_k == 64
    assert VaswaniConfig(d_model=511, d_k=3, d_v=5, position_embedding="learned").d_v == 5
    different = VaswaniConfig(encoder_attention_heads=4)
    assert different.d_k is None and different.d_v is None


def test_two_vocabularies_by_default_of_one_size():
    config = VaswaniConfig(vocab_size=99)
    assert config.decoder_vocab_size == 99
    config.vocab_size = 101
    assert config.decoder_vocab_size == 101
    config = VaswaniConfig(vocab_size=99, share_encoder_decoder_embeddings=False)
    config.vocab_size = 101
    assert config.decoder_vocab_size == 99
    config.decoder_vocab_size = None
    assert config.decoder_vocab_size == 101


MISSPELLED = {
    "num_encoder_layers": "encoder_layers",
    "dmodel": "d_model",
    "hiden_size": "hidden_size",
    "d_ff": "encoder_ffn_dim",
    "N": "encoder_layers",
}


@pytest.mark.parametrize("name", MISSPELLED)
def test_a_misspelled_field_is_refused(name):
    message = f"`{name}` is no field of VaswaniConfig; the nearest field is `{MISSPELLED[name]}`."
    assert message_of(VaswaniConfig, **{name: 1}) == message
    assert message_of(VaswaniConfig.from_dict, {name: 1}) == message
    assert message_of(VaswaniConfig.from_dict, {}, **{name: 1}) == message


def test_a_misspelled_override_of_a_stored_config_is_refused(tmp_path):
    VaswaniConfig().save_pretrained(tmp_path)
    message = "`droput` is no field of VaswaniConfig; the nearest field is `dropout`."
    assert message_of(VaswaniConfig.from_pretrained, tmp_path, droput=0.3) == message
    assert VaswaniConfig.from_pretrained(tmp_path, dropout=0.3).dropout == 0.3
    message = f"`dropout` must be {RATE}, but is 3."
    assert message_of(VaswaniConfig.from_pretrained, tmp_path, dropout=3) == message


def test_keys_that_transformers_stores_are_no_fields_and_pass():
    stored = {
        "architectures": ["VaswaniForSeq2SeqLM"],
        "auto_map": {"AutoConfig": "configuration_vaswani.VaswaniConfig"},
        "dtype": "bfloat16",
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "model_type": "vaswani",
        "num_beams": 4,
        "max_length": 200,
        "torch_dtype": "float32",
        "transformers_version": "5.17.0",
        "task_specific_params": None,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "quantization_config": {"quant_method": "bitsandbytes"},
        "_name_or_path": "somewhere",
    }
    assert VaswaniConfig(**stored).dtype == torch.bfloat16
    assert VaswaniConfig.from_dict(stored).d_model == 512


def test_a_stored_config_with_keys_of_other_versions_loads_with_a_warning(tmp_path, caplog):
    config = VaswaniConfig(d_model=256, d_k=32, d_v=32)
    # Entries that a newer transformers or another library might add.
    config.rope_thetta = 3
    config.save_pretrained(tmp_path)
    loggers = [logging.getLogger(name) for name in ("transformers", "vaswani_hf")]
    for logger in loggers:
        logger.addHandler(caplog.handler)
    try:
        loaded = VaswaniConfig.from_pretrained(tmp_path)
    finally:
        for logger in loggers:
            logger.removeHandler(caplog.handler)
    assert loaded.d_model == 256
    assert "`rope_thetta` is no field of VaswaniConfig; the nearest field is" in caplog.text


ALL_CHANGED = {
    "vocab_size": 50,
    "decoder_vocab_size": 40,
    "d_model": 24,
    "d_k": 6,
    "d_v": 5,
    "encoder_layers": 1,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 7,
    "decoder_ffn_dim": 9,
    "dropout": 0,
    "attention_dropout": 0.3,
    "activation_dropout": 0.2,
    "activation_function": "gelu",
    "norm_position": "pre",
    "norm_position_of_decoder": "post",
    "final_norm": True,
    "layer_norm_eps": 1e-6,
    "position_embedding": "learned",
    "position_timescales": "tensor2tensor",
    "position_offset": 2,
    "max_position_embeddings": 33,
    "scale_embedding": False,
    "share_encoder_decoder_embeddings": False,
    "tie_word_embeddings": False,
    "lm_head_bias": True,
    "zero_start_embedding": True,
    "attention_score": "general",
    "cross_attention_score": "additive",
    "attention_window": [2, None, 1],
    "attention_bias": True,
    "initializer_range": 0.02,
    "label_smoothing": 0.1,
    "label_smoothing_form": "torch",
    "use_cache": False,
    "is_encoder_decoder": True,
    "bos_token_id": None,
    "pad_token_id": 3,
    "eos_token_id": [5, 6],
    "decoder_start_token_id": 3,
}


@pytest.mark.parametrize(
    "fields",
    [{}, ALL_CHANGED, {"d_k": 64, "d_v": 64}, {"d_model": 512, "encoder_attention_heads": 4}],
    ids=len,
)
def test_a_config_survives_saving(tmp_path, fields):
    config = VaswaniConfig(**fields)
    config.save_pretrained(tmp_path)
    for loaded in (VaswaniConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)):
        assert type(loaded) is VaswaniConfig
        assert {name: getattr(loaded, name) for name in OWN_FIELDS} == {
            name: getattr(config, name) for name in OWN_FIELDS
        }
    # The file contains the widths, so later defaults of the number of heads cannot change the widths.
    if "encoder_attention_heads" not in fields:
        assert json.loads((tmp_path / "config.json").read_text())["d_k"] == 64


def test_all_fields_are_changed_in_the_test_above():
    assert sorted(ALL_CHANGED) == OWN_FIELDS
    defaults = {field.name: field.default for field in dataclasses.fields(VaswaniConfig)}
    same = [name for name in OWN_FIELDS if ALL_CHANGED[name] == defaults[name]]
    assert same == ["is_encoder_decoder"]


# For each field, a value that differs from the value in the tiny config.
CHANGES = ALL_CHANGED | {
    "dropout": 0.5,
    "attention_window": 1,
    "eos_token_id": list(range(2, 23)),
    "bos_token_id": 7,
}
CHANGES |= {
    "pad_token_id": 9,
    "decoder_start_token_id": 7,
    "max_position_embeddings": 20,
    "decoder_vocab_size": 24,
    "norm_position_of_decoder": "pre",
}
del CHANGES["is_encoder_decoder"]
# For some fields, the other fields that give the field an effect.
BESIDE = {
    "decoder_vocab_size": {"share_encoder_decoder_embeddings": False},
    "encoder_attention_heads": {"d_k": 8, "d_v": 8},
    "decoder_attention_heads": {"decoder_attention_heads": 4, "d_k": 8, "d_v": 8},
    "max_position_embeddings": {"position_embedding": "learned"},
    "label_smoothing_form": {"label_smoothing": 0.1},
    "zero_start_embedding": {"label_smoothing": 0.1, "decoder_start_token_id": PAD},
}


def fingerprint(model: VaswaniForSeq2SeqLM) -> dict:
    """Return the outputs of a model that a user sees: shapes, logits, losses, cache and translations."""
    source = torch.tensor([[5, 9, 4, 7, EOS], [8, 3, EOS, PAD, PAD]])
    labels = torch.tensor([[6, 8, 3, EOS], [7, EOS, -100, -100]])
    outputs = model(input_ids=source, decoder_input_ids=torch.tensor([[0, 6, 8], [0, 7, 3]]))
    torch.manual_seed(1)
    return {
        "shapes": {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()},
        "numbers": sum(parameter.numel() for parameter in model.parameters()),
        "logits": outputs.logits.tolist(),
        "cache": outputs.past_key_values is None,
        "loss": model(input_ids=source, labels=labels).loss.item(),
        "training loss": model.train()(input_ids=source, labels=labels).loss.item(),
        "translations": model.eval().generate(source, max_new_tokens=12).tolist(),
        # Decode only the start token, without a source.
        "unconditional": model.generate(max_new_tokens=3).tolist(),
    }


@pytest.fixture(scope="module")
def unchanged():
    """Return the fingerprint of a model with these additional fields; each fingerprint is computed once."""
    found = {}

    def of(beside):
        if str(beside) not in found:
            found[str(beside)] = fingerprint(tiny_model(**beside))
            assert found[str(beside)] == fingerprint(tiny_model(**beside))
        return found[str(beside)]

    return of


@pytest.mark.parametrize("name", CHANGES)
def test_every_field_is_read_by_the_model(unchanged, name):
    beside = BESIDE.get(name, {})
    assert unchanged(beside) != fingerprint(tiny_model(**beside | {name: CHANGES[name]}))
