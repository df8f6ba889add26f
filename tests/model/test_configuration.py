"""Every field of the config is checked, stored, and read by the model; an unknown field is refused."""

import inspect
import json

import pytest
import torch
import yaml
from factories import CHANGED_FIELDS, tiny_config, tiny_model
from sentences import contains, rows
from transformers import AutoConfig

from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM

PAD, EOS = 1, 2
OWN_FIELDS = sorted(inspect.get_annotations(VaswaniConfig))


def message_of(function, *args, **kwargs) -> str:
    with pytest.raises(ValueError) as error:
        function(*args, **kwargs)
    return str(error.value)


BASE_MODEL = """{
    vocab_size: 37000, decoder_vocab_size: 37000, d_model: 512, d_k: 64, d_v: 64, encoder_layers: 6,
    decoder_layers: 6, encoder_attention_heads: 8, decoder_attention_heads: 8, encoder_ffn_dim: 2048,
    decoder_ffn_dim: 2048, dropout: 0.1, attention_dropout: 0.0, activation_dropout: 0.0,
    activation_function: relu, norm_position: post, attention_bias: false, position_embedding: sinusoidal,
    scale_embedding: true, share_encoder_decoder_embeddings: true, tie_word_embeddings: true,
    # transformers reads the sizes under these names.
    hidden_size: 512, num_hidden_layers: 6, num_attention_heads: 8
}"""


def test_the_default_is_the_papers_base_model():
    expected = yaml.safe_load(BASE_MODEL)
    assert {name: getattr(VaswaniConfig(), name) for name in expected} == expected


# Fields, impossible values, and the words that follow "must be" in the message.
INVALID = """
vocab_size d_model encoder_ffn_dim decoder_ffn_dim | [0, -3, 1.5, "8", true, null] | a positive integer
max_position_embeddings encoder_layers decoder_layers | [0, -3, 1.5, "8", true, null] | a positive integer
encoder_attention_heads decoder_attention_heads | [0, -3, 1.5, "8", true, null] | a positive integer
decoder_vocab_size d_k d_v | [0, -1, 64.0, [64]] | a positive integer or None
dropout label_smoothing | [1, -0.1, "0.1", .nan, null, true] | a number from 0 up to, but not including, 1
attention_dropout activation_dropout | [1.0, -1] | a number from 0 up to, but not including, 1
initializer_range | [0, -0.02, "0.02", .nan, true] | a positive number or None
layer_norm_eps | [0, -1.0e-5, .inf, .nan, "1e-5"] | a positive number
label_smoothing_form | ["t2t ", null] | "t2t" or "torch"
norm_position | [middle, true] | "post" or "pre"
norm_position_of_decoder | [middle, true] | "post", "pre" or None
position_timescales | [fairseq, null] | "paper" or "tensor2tensor"
position_offset | [-1, 1.0, null, true] | an integer of 0 or more (tokens)
final_norm | ["yes", 1] | True, False or None
attention_bias scale_embedding share_encoder_decoder_embeddings | [0, 1, null, "False"] | True or False
tie_word_embeddings use_cache lm_head_bias zero_start_embedding | [0, 1, null, "False"] | True or False
is_encoder_decoder | [false] | True, because the model always has an encoder and a decoder
activation_function | [rellu, null] | the name of an activation of transformers, such as "relu" or "gelu"
attention_score | [scaled, null, 3, [dot]] | SCORES
cross_attention_score | [Additive, 3, true] | SCORES, or None
position_embedding | [sinusoid] | POSITIONS
attention_window | [-1, "8", 1.5, [], true, [1, -2], [null, "3"]] | WINDOWS
bos_token_id pad_token_id decoder_start_token_id | [-1, <s>, 0.0, true] | a token id (an integer of 0 or more) or None
eos_token_id | [-1, [], [2, "3"]] | a token id (an integer of 0 or more), a list of token ids or None
"""
ADDED = "or a name that `register_{}` has added"
WORDS = {
    "SCORES": '"scaled_dot", "dot", "dot_mean", "general", "additive_linear", "additive" '
    + ADDED.format("attention"),
    "POSITIONS": '"sinusoidal", "learned", "none" ' + ADDED.format("position_encoding"),
    "WINDOWS": "an integer of 0 or more (tokens), None, or a list with one such value per layer",
}
REMEDY = (
    "; to use an added name, import its Python file, or name this file with `model.code` in a recipe or "
    "`--code` on the command line"
)


def test_every_field_is_known_here():
    assert sorted(" ".join(names for names, *_ in rows(INVALID)).split()) == OWN_FIELDS
    assert sorted([*CHANGED_FIELDS, "is_encoder_decoder"]) == OWN_FIELDS
    assert all(getattr(tiny_config(), name) != fields[name] for name, fields in CHANGED_FIELDS.items())
    lines = VaswaniConfig.__doc__.splitlines()
    entries = lines[lines.index("Args:") + 1 : lines.index("Raises:") - 1]
    assert sorted(entry.split(" (")[0].strip() for entry in entries) == OWN_FIELDS
    assert "    d_k (int, optional): Width of the queries and keys" in VaswaniConfig.__doc__


@pytest.mark.parametrize(("names", "values", "must_be"), rows(INVALID))
def test_each_field_is_checked_when_given_and_when_assigned(names, values, must_be):
    for abbreviation, words in WORDS.items():
        must_be = must_be.replace(abbreviation, words)
    remedy = REMEDY if "has added" in must_be else ""
    config = VaswaniConfig()
    for name in names.split():
        before = getattr(config, name)
        for value in yaml.safe_load(values):
            expected = f"`{name}` must be {must_be}, but is {value!r}{remedy}."
            assert message_of(VaswaniConfig, **{name: value}) == expected
            assert message_of(setattr, config, name, value) == expected
            assert message_of(VaswaniConfig.from_dict, {name: value}) == expected
            assert getattr(config, name) == before


def test_an_alias_is_checked_as_its_field():
    assert VaswaniConfig(hidden_size=256).d_model == 256
    message = "`encoder_layers` must be a positive integer, but is -3."
    assert message_of(VaswaniConfig, num_hidden_layers=-3) == message


COMBINATIONS = """
{d_model: 500} | `d_model` must be a multiple of `encoder_attention_heads` unless ... but 500 is no multiple of 8.
{decoder_attention_heads: 7, d_k: 64} | of `decoder_attention_heads` unless ... but 512 is no multiple of 7.
{d_model: 511, d_k: 64, d_v: 64} | `d_model` must be even for sinusoidal positions, but is 511;
{decoder_vocab_size: 9} | `decoder_vocab_size` must equal `vocab_size` if the embeddings are shared, but is 9
{attention_window: [1, 2, 3], encoder_layers: 4} | one entry per layer: 6 entries that ... or 10 entries for the encoder
{zero_start_embedding: true} | `decoder_start_token_id` must equal `pad_token_id` (1) if ... but is 0.
{vocab_size: 99, eos_token_id: [2, 99]} | `eos_token_id` must be smaller than the target vocabulary size 99, but is 99.
{decoder_vocab_size: 9, bos_token_id: 9} | `bos_token_id` must be smaller than the target vocabulary size 9, but is 9.
{vocab_size: 9, decoder_vocab_size: 99, pad_token_id: 10} | `pad_token_id` ... the source vocabulary size 9, but is 10.
"""


@pytest.mark.parametrize(("fields", "parts"), rows(COMBINATIONS))
def test_fields_that_contradict_each_other(fields, parts):
    fields = yaml.safe_load(fields)
    fields["share_encoder_decoder_embeddings"] = not {"bos_token_id", "pad_token_id"} & fields.keys()
    assert contains(message_of(VaswaniConfig, **fields), parts)
    config = VaswaniConfig()
    # Remove the default widths, so that the widths follow from the other fields.
    config.d_k = config.d_v = None
    for name, value in fields.items():
        setattr(config, name, value)
    assert contains(message_of(VaswaniForSeq2SeqLM, config), parts)


def test_sizes_follow_from_each_other():
    assert VaswaniConfig(d_model=256, encoder_attention_heads=4, decoder_attention_heads=4).d_k == 64
    assert VaswaniConfig(d_model=511, d_k=3, d_v=5, position_embedding="learned").d_v == 5
    different = VaswaniConfig(encoder_attention_heads=4)
    assert different.d_k is None and different.d_v is None
    config = VaswaniConfig(vocab_size=99)
    assert config.decoder_vocab_size == 99
    config.vocab_size = 101
    assert config.decoder_vocab_size == 101
    config = VaswaniConfig(vocab_size=99, share_encoder_decoder_embeddings=False)
    config.vocab_size = 101
    assert config.decoder_vocab_size == 99
    config.decoder_vocab_size = None
    assert config.decoder_vocab_size == 101


MISSPELLED = """
num_encoder_layers | encoder_layers
dmodel | d_model
hiden_size | hidden_size
droput | dropout
d_ff | encoder_ffn_dim
N | encoder_layers
"""


@pytest.mark.parametrize(("name", "nearest"), rows(MISSPELLED))
def test_a_misspelled_field_is_refused(tmp_path, name, nearest):
    VaswaniConfig().save_pretrained(tmp_path)
    message = f"`{name}` is no field of VaswaniConfig; the nearest field is `{nearest}`."
    assert message_of(VaswaniConfig, **{name: 1}) == message
    assert message_of(VaswaniConfig.from_dict, {name: 1}) == message
    assert message_of(VaswaniConfig.from_pretrained, tmp_path, **{name: 1}) == message
    # An override of a stored config is checked.
    assert VaswaniConfig.from_pretrained(tmp_path, dropout=0.3).dropout == 0.3
    assert message_of(VaswaniConfig.from_pretrained, tmp_path, dropout=3).startswith("`dropout` must be a nu")


STORED_BY_TRANSFORMERS = """{
    architectures: [VaswaniForSeq2SeqLM], auto_map: {AutoConfig: configuration_vaswani.VaswaniConfig},
    dtype: bfloat16, torch_dtype: float32, id2label: {"0": LABEL_0}, label2id: {LABEL_0: 0},
    model_type: vaswani, num_beams: 4, max_length: 200, transformers_version: 5.17.0, _name_or_path: somewhere,
    task_specific_params: null, tokenizer_class: PreTrainedTokenizerFast,
    quantization_config: {quant_method: bitsandbytes}
}"""


def test_keys_that_transformers_stores_are_no_fields_and_pass():
    stored = yaml.safe_load(STORED_BY_TRANSFORMERS)
    assert VaswaniConfig(**stored).dtype == torch.bfloat16
    assert VaswaniConfig.from_dict(stored).d_model == 512


def test_a_stored_config_with_keys_of_other_versions_loads_with_a_warning(tmp_path, transformers_log):
    config = VaswaniConfig(d_model=256, d_k=32, d_v=32)
    # Entries that a newer transformers or another library might add.
    config.rope_thetta = 3
    config.save_pretrained(tmp_path)
    assert VaswaniConfig.from_pretrained(tmp_path).d_model == 256
    assert "`rope_thetta` is no field of VaswaniConfig; the nearest field is" in transformers_log.text


ODD_VALUES = [
    {"attention_window": [2, None], "bos_token_id": None, "dropout": 0, "d_k": None},
    {"encoder_attention_heads": 4},
]


def test_a_config_survives_saving(tmp_path):
    for number, fields in enumerate([{}, *ODD_VALUES, *CHANGED_FIELDS.values()]):
        config, folder = tiny_config(**fields), tmp_path / str(number)
        config.save_pretrained(folder)
        expected = {name: getattr(config, name) for name in OWN_FIELDS}
        for loaded in (VaswaniConfig.from_pretrained(folder), AutoConfig.from_pretrained(folder)):
            assert type(loaded) is VaswaniConfig
            assert {name: getattr(loaded, name) for name in OWN_FIELDS} == expected
        # The file contains the widths, so later defaults of the number of heads cannot change the widths.
        assert json.loads((folder / "config.json").read_text())["d_k"] == config.d_k


def fingerprint(**fields) -> dict:
    """Return the outputs of a model that a user sees: shapes, logits, losses, cache and translations."""
    model = tiny_model(**fields)
    source = torch.tensor([[5, 9, 4, 7, EOS], [8, 3, EOS, PAD, PAD]])
    labels = torch.tensor([[6, 8, 3, EOS], [7, EOS, -100, -100]])
    outputs = model(input_ids=source, decoder_input_ids=torch.tensor([[0, 6, 8], [0, 7, 3]]))
    torch.manual_seed(1)
    return {
        "shapes": {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()},
        "logits": outputs.logits.tolist(),
        "cache": outputs.past_key_values is None,
        "loss": model(input_ids=source, labels=labels).loss.item(),
        "training loss": model.train()(input_ids=source, labels=labels).loss.item(),
        "translations": model.eval().generate(source, max_new_tokens=12).tolist(),
        # Decode only the start token, without a source.
        "unconditional": model.generate(max_new_tokens=3).tolist(),
    }


def test_a_fingerprint_is_reproducible():
    assert fingerprint() == fingerprint()


@pytest.mark.parametrize(("name", "fields"), CHANGED_FIELDS.items())
def test_every_field_is_read_by_the_model(name, fields):
    needed = {other: value for other, value in fields.items() if other != name}
    assert fingerprint(**needed) != fingerprint(**fields)
