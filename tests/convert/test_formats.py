"""A new export format needs one file and one line in the table, and refuses new fields of the config. A new
setting of the search is refused or named in a warning.
"""

import dataclasses
import errno
import re
from dataclasses import replace

import pytest
import torch
from factories import tiny_config, tiny_model
from safetensors.torch import load_file
from sentences import refused
from transformers import GenerationConfig

from vaswani_hf.checkpoint.search_settings import SupportedSettings
from vaswani_hf.convert.comparison import largest_difference_of_rows, log_probs_of, sample_batch, sample_ids
from vaswani_hf.convert.ctranslate2_limits import ACTIVATIONS
from vaswani_hf.convert.ctranslate2_limits import EXPRESSIBLE as CTRANSLATE2
from vaswani_hf.convert.export import EXPORT_FORMATS, export
from vaswani_hf.convert.export_formats import ExportFormat, Expressible, TranslatorEngine, one_of
from vaswani_hf.convert.html_page import HTML
from vaswani_hf.convert.marian import EXPRESSIBLE as MARIAN
from vaswani_hf.convert.marian_npz_export import EXPRESSIBLE as MARIAN_NPZ
from vaswani_hf.model.checks_vaswani import Rule, is_int
from vaswani_hf.model.configuration_vaswani import CONFIG_FIELDS, VaswaniConfig
from vaswani_hf.model.loss_vaswani import EXCLUDED_LOGIT
from vaswani_hf.settings.sections import PAPER_SEARCH


def write_embeddings(model, tokenizers, folder, quantization):
    folder.mkdir()
    dtype = torch.float16 if quantization == "float16" else torch.float32
    torch.save(model.lm_head.weight.detach().to(dtype), folder / "embeddings.pt")
    return f"{model.config.d_model} features, tokenizers: {tokenizers is not None}"


EMBEDDINGS = ExportFormat(
    name="embeddings",
    expressible=Expressible(
        "the toy format",
        frozenset(VaswaniConfig.__annotations__) - {"attention_bias"},
        {"norm_position": one_of("norm_position", ("post",), "it has no other order")},
    ),
    settings=SupportedSettings("the toy format", ()),
    export=write_embeddings,
    engine=TranslatorEngine,
    quantizations=("float16",),
    main_file="embeddings.pt",
    library_name="embeddings",
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Add the new format to the table, and return a checkpoint without tokenizers."""
    monkeypatch.setitem(EXPORT_FORMATS, "embeddings", EMBEDDINGS)

    def save(**fields):
        tiny_model(**fields).save_pretrained(tmp_path / "checkpoint")
        return tmp_path / "checkpoint"

    return save


def test_a_new_format_is_one_entry(folder, tmp_path, vaswani):
    options = ["--format", "embeddings", "--quantization", "float16"]
    found = vaswani("export", folder(), tmp_path / "out", *options)
    assert found == (0, "16 features, tokenizers: False\n", "")
    saved = load_file(tmp_path / "checkpoint" / "model.safetensors")["model.shared.weight"]
    written = torch.load(tmp_path / "out" / "embeddings.pt", weights_only=True)
    assert torch.equal(saved.half(), written)


FORMAT = (
    '`format` must be "marian", "marian_npz", "ctranslate2", "onnx", "transformers_js", "argos", "html" or "embeddings", '
    "but is {!r}."
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tflite",), FORMAT.format("tflite")),
        (
            ("marian", "int8"),
            '`quantization` can only be used with the format "ctranslate2", "argos", "html" or "embeddings", but is \'int8\' with the format "marian".',
        ),
        (
            ("embeddings", "int8"),
            "`quantization` must be \"float16\", but is 'int8'; leave `quantization` out for the default of the format.",
        ),
    ],
)
def test_arguments_are_checked_before_anything_is_done(folder, tmp_path, arguments, message):
    with refused(message):
        export("no/such/model", tmp_path / "out", *arguments)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("norm_position", "pre", "it has no other order."),
        ("attention_bias", True, "the toy format supports only False."),
    ],
)
def test_a_new_format_refuses_fields_that_it_cannot_express(folder, tmp_path, name, value, reason):
    message = f"`{name}` is {value!r}, which the toy format cannot express: {reason}"
    with refused(message):
        export(folder(**{name: value}), tmp_path / "out", "embeddings")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "expressible",
    [MARIAN, MARIAN_NPZ, CTRANSLATE2, HTML.expressible],
    ids=lambda limits: limits.title,
)
def test_a_new_field_of_the_config_is_refused_until_the_format_expresses_it(monkeypatch, expressible):
    config = tiny_config()
    new_field = dataclasses.field(default=0, metadata={"rule": Rule(is_int, "an integer of 0 or more")})
    monkeypatch.setitem(CONFIG_FIELDS, "new_field", new_field)
    monkeypatch.setattr(VaswaniConfig, "new_field", 0, raising=False)
    expressible.refuse_others(config)
    config.new_field = 1
    message = (
        f"`new_field` is 1, which {expressible.title} cannot express: {expressible.title} supports only 0."
    )
    with refused(message):
        expressible.refuse_others(config)


NO_PRODUCT = "the format supports only dot products as attention scores."
NO_WINDOW = "the format does not support attention windows."
NO_START = "the decoder of the format needs a start token."
NO_END = "the search of the format needs an end token."
NO_TABLE = "MarianMT computes its position embeddings and cannot load a position table."
NOT_SHARED = "in the {1} of MarianMT, the {0} heads divide the d_model of 16 equally."
BOTH = "Marian's encoder and decoder must have the same"
IN_THE_PAGE = (
    'the page supports only "relu", "gelu", "gelu_new", "gelu_pytorch_tanh", "silu", "swish" or "tanh".'
)
# The fields that each format cannot express. The message names the first field.
NOT_EXPRESSIBLE = [
    (MARIAN, {"norm_position": "pre"}, "MarianMT has no LayerNorm before its sub-layers."),
    (MARIAN, {"norm_position_of_decoder": "pre"}, "MarianMT has no LayerNorm before its sub-layers."),
    (MARIAN, {"final_norm": True}, "MarianMT has no LayerNorm after its last layer."),
    (MARIAN, {"position_embedding": "learned"}, NO_TABLE),
    (MARIAN, {"position_embedding": "none"}, NO_TABLE),
    (MARIAN, {"position_timescales": "tensor2tensor"}, "MarianMT supports only 'paper'."),
    (MARIAN, {"position_offset": 2}, "MarianMT supports only 0."),
    (MARIAN, {"layer_norm_eps": 1e-6}, "the epsilon of MarianMT's LayerNorm is always 1e-05."),
    (MARIAN, {"d_k": 4}, NOT_SHARED.format(2, "encoder")),
    (MARIAN, {"d_k": 8, "d_v": 8, "decoder_attention_heads": 4}, NOT_SHARED.format(4, "decoder")),
    (MARIAN, {"d_v": 5}, NOT_SHARED.format(2, "encoder")),
    (MARIAN, {"decoder_start_token_id": None, "bos_token_id": None}, NO_START),
    (MARIAN, {"attention_score": "additive"}, NO_PRODUCT),
    (MARIAN, {"cross_attention_score": "additive_linear"}, NO_PRODUCT),
    (MARIAN, {"attention_window": [None, 3]}, NO_WINDOW),
    (MARIAN_NPZ, {"attention_window": 2}, NO_WINDOW),
    (MARIAN_NPZ, {"activation_function": "tanh"}, "Marian supports only silu, relu, swish, gelu, sigmoid."),
    (MARIAN_NPZ, {"decoder_attention_heads": 4}, f"{BOTH} number of heads, and the encoder has 2 heads."),
    (MARIAN_NPZ, {"d_k": 4}, NOT_SHARED.format(2, "encoder")),
    (MARIAN_NPZ, {"norm_position_of_decoder": "pre"}, f"{BOTH} norm position."),
    (MARIAN_NPZ, {"eos_token_id": [2, 3]}, "Marian supports only one end token."),
    (CTRANSLATE2, {"activation_function": "mish"}, f"CTranslate2 has only {', '.join(sorted(ACTIVATIONS))}."),
    (CTRANSLATE2, {"eos_token_id": None}, NO_END),
    (CTRANSLATE2, {"decoder_start_token_id": None, "bos_token_id": None}, NO_START),
    (CTRANSLATE2, {"attention_window": 2}, NO_WINDOW),
    (HTML.expressible, {"activation_function": "relu2"}, IN_THE_PAGE),
    (HTML.expressible, {"attention_window": 3}, NO_WINDOW),
    (HTML.expressible, {"eos_token_id": None}, NO_END),
    (HTML.expressible, {"decoder_start_token_id": None, "bos_token_id": None}, NO_START),
]


@pytest.mark.parametrize(("expressible", "fields", "reason"), NOT_EXPRESSIBLE)
def test_fields_that_a_format_cannot_express_are_named(expressible, fields, reason):
    name, value = next(iter(fields.items()))
    with refused(f"`{name}` is {value!r}, which {expressible.title} cannot express: {reason}"):
        expressible.refuse_others(tiny_config(**fields))


def test_a_new_format_refuses_settings_that_it_cannot_express(folder, tmp_path):
    path = folder()
    GenerationConfig(num_beams=5).save_pretrained(path)
    message = "`num_beams` is 5 in the generation config, which the toy format cannot express: "
    with pytest.raises(ValueError, match=f"^{message}"):
        export(path, tmp_path / "out", "embeddings")
    assert not (tmp_path / "out").exists()


# For each format: how the export reacts to the paper's search settings and to an unknown setting, and the
# settings that the message of the export names. None: the exported folder contains all search settings.
NEW = "`new_setting` is 0.5"
LIMIT = "`max_length_a` is 1.0, `max_length_b` is 50"
SCORE = "`length_penalty` is 0.6, `length_penalty_type` is 'gnmt'"
SETTINGS_OF_FORMATS = {
    "marian": ("warns", f"`length_penalty_type` is 'gnmt', {LIMIT}, {NEW}"),
    "marian_npz": ("refuses", NEW),
    "ctranslate2": (None, NEW),
    "onnx": (None, None),
    "transformers_js": ("warns", f"`num_beams` is 4, {SCORE}, {LIMIT}, {NEW}"),
    "argos": ("warns", f"`num_beams` is 4, {SCORE}, {LIMIT}, {NEW}"),
    "html": ("refuses", NEW),
}


@pytest.mark.parametrize("name", EXPORT_FORMATS)
def test_a_new_setting_is_refused_or_named_until_the_format_supports_it(name, caplog):
    model = tiny_model()
    vars(model.generation_config).update(PAPER_SEARCH, new_setting=0.5)
    answer, settings = SETTINGS_OF_FORMATS[name]
    if answer is None:
        assert EXPORT_FORMATS[name].settings is None
        return
    title = EXPORT_FORMATS[name].expressible.title
    message = f"{settings} in the generation config, which {title} cannot express: "
    if answer == "refuses":
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            EXPORT_FORMATS[name].check(model)
    else:
        EXPORT_FORMATS[name].check(model)
        assert [record.getMessage()[: len(message)] for record in caplog.records] == [message]


def test_sample_inputs_use_existing_tokens_and_positions_only():
    batch = sample_batch(tiny_config(position_embedding="learned", max_position_embeddings=6, pad_token_id=4))
    assert batch["input_ids"].shape == batch["decoder_input_ids"].shape == (3, 6)
    for name in ("", "decoder_"):
        is_padding = batch[f"{name}attention_mask"] == 0
        assert torch.equal(batch[f"{name}input_ids"] == 4, is_padding)
    assert batch["decoder_input_ids"][:, 0].tolist() == [0, 0, 0]


def test_the_log_probabilities_of_rows_are_those_of_the_padded_batch():
    model = tiny_model(pad_token_id=4).eval()
    source_ids, target_ids = sample_ids(model.config)
    batch = sample_batch(model.config)
    with torch.no_grad():
        log_probs = model(**batch).logits.log_softmax(-1)
    rows = log_probs_of(model, source_ids, target_ids, start_token_id=0)
    expected = [row[range(len(ids)), ids].tolist() for row, ids in zip(log_probs, target_ids, strict=True)]
    assert [len(row) for row in rows] == [10, 5, 1]
    assert largest_difference_of_rows(rows, expected) < 1e-5
    assert largest_difference_of_rows(rows, log_probs_of(model, source_ids, target_ids, 1)) > 1e-3


NAN = float("nan")


@pytest.mark.parametrize(
    ("log_probs", "expected", "difference"),
    [
        ([[-1.0, -2.0], [-3.0]], [[-1.0, -2.0], [-3.5]], 0.5),
        ([[-1.0, -50.0]], [[-1.0, EXCLUDED_LOGIT]], 0.0),
        ([[NAN, -2.0]], [[-1.0, -1.0]], NAN),
        ([[-1.0, -2.0]], [[NAN, -1.0]], NAN),
        ([], [], 0.0),
    ],
    ids=["rows of different lengths", "a probability of 0", "not a number", "expected no number", "no rows"],
)
def test_the_largest_difference_of_rows(log_probs, expected, difference):
    assert largest_difference_of_rows(log_probs, expected) == pytest.approx(difference, nan_ok=True)


def test_an_engine_must_score_each_token():
    with refused("The engine returned 1 log-probabilities for 2 tokens."):
        largest_difference_of_rows([[-1.0]], [[-1.0, -2.0]])


def test_a_full_disk_names_the_output(folder, tmp_path, monkeypatch, vaswani):
    def write(model, tokenizers, folder, quantization):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setitem(EXPORT_FORMATS, "embeddings", replace(EMBEDDINGS, export=write))
    code, _, error = vaswani("export", folder(), tmp_path / "out", "--format", "embeddings")
    assert code == 1 and error.startswith(f"'{tmp_path}/out' could not be written: No space left on device")
    assert not list(tmp_path.glob(".out*"))
