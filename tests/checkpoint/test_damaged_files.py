"""A damaged or missing file of a checkpoint gives one sentence with the file, the fault and the remedy."""

import json

import pytest
from factories import cut, files_in
from safetensors.torch import load, save

from vaswani_hf.checkpoint.loading import load_model

AGAIN = "copy or download the file again."
NO_CONFIG = "`model` must be a checkpoint, but '{folder}' has no config.json; check the name, or copy the whole checkpoint again."
NO_OBJECT = "{file} of '{folder}' must hold a JSON object, but does not: it is damaged; " + AGAIN
NO_FILE = "{file} of '{folder}' must be a file, but is a folder; copy or download the file again."
NOT_NAMED = "tokenizer_config.json of '{folder}' must name the `%s` of the tokenizer, but does not; " + AGAIN
MISSING = "'{folder}' must hold the tokenizer of the checkpoint, but has no {file}; " + AGAIN
NOT_WHOLE = "'{folder}' holds no whole checkpoint: it has no %s; copy or download the file again."
TORN = "model.safetensors of '{folder}' is damaged or incomplete (Error while deserializing header: %s); copy or download the file again."
OTHER = "'{folder}' does not hold the weights that its config describes: model.%s; take the config and the weights from one checkpoint."
ELSEWHERE = (
    "model.safetensors.index.json of '{folder}' must name .safetensors files in the same folder, but names %r; take the files of one "
    "checkpoint."
)
EXPORTED = "`model` must be a checkpoint for PyTorch, but '{folder}' was exported for CTranslate2; name the checkpoint from which the export was made, or use `vaswani translate --engine ctranslate2`."
ADAPTER = (
    "`model` must be a whole model, but '{folder}' holds an adapter of PEFT (adapter_config.json); load the adapter in Python with "
    "`PeftModel.from_pretrained`, merge it with `merge_and_unload`, and save the merged model in a folder of its own."
)
FOREIGN = "`model` must be a checkpoint of this package, but '{folder}' has the model type 'bert'; load it with transformers."
FOLDER = object()
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def without_a_bias(content: bytes) -> bytes:
    weights = load(content)
    del weights["model.decoder.layers.1.fc2.bias"]
    return save(weights, {"format": "pt"})


def with_key(**changes):
    """Return a function that sets these keys in a JSON file."""
    return lambda content: json.dumps(json.loads(content) | changes).encode()


# Each row is a file, the new content of the file or a change of its content (None: the file is deleted), and
# the error.
DAMAGES = [
    (CONFIG, None, NO_CONFIG),
    (CONFIG, b"{", "config.json of '{folder}' must name its `model_type`, but does not; " + AGAIN),
    (CONFIG, b'{"add_source_eos": false}', EXPORTED),
    (CONFIG, with_key(model_type="bert"), FOREIGN),
    ("adapter_config.json", b"{}", ADAPTER),
    (CONFIG, with_key(encoder_layers=3), OTHER % "encoder.layers.2.fc1.bias and 11 more are missing"),
    (CONFIG, with_key(encoder_layers=1), OTHER % "encoder.layers.1.fc1.bias and 11 more are unexpected"),
    (
        CONFIG,
        with_key(encoder_ffn_dim=24),
        OTHER % "encoder.layers.0.fc1.bias and 5 more are of another shape",
    ),
    (WEIGHTS, None, NOT_WHOLE % WEIGHTS),
    (WEIGHTS, without_a_bias, OTHER % "decoder.layers.1.fc2.bias is missing"),
    (WEIGHTS, lambda content: content[:-100], TORN % "incomplete metadata, file not fully covered"),
    (INDEX, b'{"weight_map": {"a": "model-1.safetensors"}}', NOT_WHOLE % "model-1.safetensors"),
    (INDEX, b"{}", "{file} of '{folder}' is damaged; copy or download the file again."),
    *[
        (INDEX, json.dumps({"weight_map": {"a": shard}}).encode(), ELSEWHERE % str(shard))
        for shard in ("../model.safetensors", 7)
    ],
    ("tokenizer.json", b"{}", "tokenizer.json of '{folder}' describes no tokenizer; " + AGAIN),
    ("tokenizer.json", None, MISSING),
    ("tokenizer_config.json", None, MISSING),
    ("tokenizer_config.json", b"{}", NOT_NAMED % "pad_token"),
    ("tokenizer_config.json", b'{"pad_token": "<pad>"}', NOT_NAMED % "eos_token"),
    ("generation_config.json", b"[]", NO_OBJECT),
    ("target_tokenizer/tokenizer_config.json", b"[]", NO_OBJECT),
    ("tokenizer.json", cut, NO_OBJECT),
    ("tokenizer_config.json", cut, NO_OBJECT),
    ("generation_config.json", FOLDER, NO_FILE),
    ("tokenizer.json", FOLDER, NO_FILE),
]


@pytest.mark.parametrize(("file", "how", "sentence"), DAMAGES)
def test_a_damaged_checkpoint_is_not_loaded(tiny_checkpoint, vaswani, file, how, sentence):
    folder = tiny_checkpoint(two_vocabularies=file.startswith("target"))
    path = folder / file
    content = b""
    if path.exists():
        content = path.read_bytes()
        path.unlink()
    else:
        # The index or the adapter replaces the file of the weights.
        (folder / WEIGHTS).unlink()
    if how is FOLDER:
        path.mkdir()
    elif how is not None:
        path.write_bytes(how(content) if callable(how) else how)
    before = files_in(folder)
    _, out, found = vaswani("translate", folder, "--text", "der Hund")
    assert (out, found) == ("", sentence.format(file=file, folder=folder))
    assert files_in(folder) == before


def test_transformers_prints_no_report_of_weights_that_do_not_fit(tiny_checkpoint, transformers_log):
    folder = tiny_checkpoint()
    path = folder / CONFIG
    path.write_bytes(with_key(encoder_layers=3)(path.read_bytes()))
    with pytest.raises(ValueError, match="does not hold the weights"):
        load_model(folder)
    assert "LOAD REPORT" not in transformers_log.text


def test_a_file_is_no_folder(tiny_checkpoint, vaswani):
    file = tiny_checkpoint() / "config.json"
    sentence = f"`model` must be a checkpoint folder or user/name on the Hub, but there is no folder '{file}'; check the name."
    assert vaswani("translate", file, "--text", "der Hund") == (2, "", sentence)
