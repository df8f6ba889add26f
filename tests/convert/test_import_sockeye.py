"""The import of Sockeye 3: log-probabilities that Sockeye 3.1.34 has computed, tokenizers, and refusals.

recorded/sockeye.pt has a pre-norm model that Sockeye has trained on number words ("trained"), and a post-norm
model with learned positions and random weights ("post_norm").
"""

import io
import json

import pytest
import torch
from factories import cut, damage
from marian_models import write_sentencepiece
from parity import import_refused, largest_difference, load_recorded, record_parity, write_files
from sentences import rows

from vaswani_hf import Translator, VaswaniForSeq2SeqLM, import_checkpoint
from vaswani_hf.checkpoint.tokenizers import load_tokenizers

CASES = ["trained", "post_norm"]
TEXTS = ["one two three four", "two four one", "three one two"]
EXPECTED = {
    "trained": {"norm_position": "pre", "tie_word_embeddings": True, "position_embedding": "sinusoidal"},
    "post_norm": {
        "norm_position": "post",
        "tie_word_embeddings": False,
        "position_embedding": "learned",
        "max_position_embeddings": 18,
        "activation_function": "silu",
    },
}


@pytest.fixture
def recorded():
    return load_recorded("sockeye")


def write(case, folder):
    """Write a folder as Sockeye."""
    write_files(case, folder)
    torch.save(case["state"], folder / "params.best")
    return folder


@pytest.mark.parametrize("name", CASES)
def test_the_imported_model_computes_the_log_probabilities_of_sockeye(
    recorded, tmp_path, record_property, name
):
    case = recorded[name]
    report = import_checkpoint(write(case, tmp_path / "sockeye"), tmp_path / "ours")
    assert report.format == "sockeye"
    ours = VaswaniForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    expected = {"layer_norm_eps": 1e-6, "lm_head_bias": True, "attention_bias": False} | EXPECTED[name]
    assert expected.items() <= ours.config.to_dict().items()
    difference = largest_difference(tmp_path / "ours", case, case["log_probs"], padding=0)
    record_parity(record_property, "Sockeye", "Sockeye 3.1.34 (recorded)", difference, 1e-5)


@pytest.mark.parametrize("name", CASES)
def test_sockeye_itself_computes_the_same(recorded, tmp_path, record_property, name):
    pytest.importorskip("sockeye.model", reason="needs Sockeye: pip install sockeye")
    report = import_checkpoint(write(recorded[name], tmp_path / "sockeye"), tmp_path / "ours")
    record_parity(record_property, "Sockeye", "Sockeye", report.difference)


def test_the_imported_model_translates(recorded, tmp_path):
    folder = write(recorded["trained"], tmp_path / "sockeye")
    report = import_checkpoint(folder, tmp_path / "ours")
    assert "The tokenizers split texts only at spaces" in report.text
    source, target = load_tokenizers(tmp_path / "ours")
    ids = json.loads((folder / "vocab.src.0.json").read_text())
    assert source("seven x hundred").input_ids == [ids["seven"], 1, ids["hundred"], 3]
    assert target.pad_token_id == 0
    translator = Translator.from_pretrained(tmp_path / "ours")
    assert list(translator.translate(["nine hundred eighty three"])) == ["neun hundert drei und achtzig"]


def test_sentencepiece_models_segment_the_texts(recorded, tmp_path):
    sentencepiece = pytest.importorskip(
        "sentencepiece", reason="needs SentencePiece: pip install '.[sentencepiece]'"
    )
    pytest.importorskip("google.protobuf")
    pieces = write_sentencepiece(TEXTS, tmp_path / "joint.model", vocab_size=16)
    model = sentencepiece.SentencePieceProcessor(str(tmp_path / "joint.model"))
    case = recorded["trained"]
    folder = write(case, tmp_path / "sockeye")
    size = len(json.loads((folder / "vocab.src.0.json").read_text()))
    tokens = ["<pad>", "<unk>", "<s>", "</s>", *pieces]
    tokens += [f"<pad{number}>" for number in range(len(tokens), size)]
    for file in ("vocab.src.0.json", "vocab.trg.0.json"):
        (folder / file).write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    import_checkpoint(folder, tmp_path / "ours", vocabularies=(tmp_path / "joint.model",))
    source, target = load_tokenizers(tmp_path / "ours")
    assert source is target
    assert source("two three").tokens() == [*model.encode("two three", out_type=str), "</s>"]
    assert source.decode(source("two three").input_ids, skip_special_tokens=True) == "two three"


# The text of the file `config`, the text that replaces it, and a part of the message.
REFUSED = """
decoder_type: transformer | decoder_type: ssru_transformer | `decoder_type` 'ssru_transformer'
use_lhuc: false | use_lhuc: true | `use_lhuc` True
use_glu: false | use_glu: true | `use_glu` True
factor_configs: null | factor_configs: [!FactorConfig {vocab_size: 9}] | `num_source_factors` 2
neural_vocab_selection: null | neural_vocab_selection: logit_max | `neural_vocab_selection` 'logit_max'
block_prepended_cross_attention: false | block_prepended_cross_attention: true | `block_prepended_cross_attention` True
postprocess_sequence: dr | postprocess_sequence: drn | `postprocess_sequence` 'drn'
act_type: relu | act_type: tanh | `act_type` 'tanh'
embedding_type: fixed | embedding_type: none | `positional_embedding_type` 'none'
attention_heads: 4 | attention_heads: 5 | `attention_heads` 5
dtype: float32 | dtype: int8 | `dtype` 'int8'
"""


@pytest.mark.parametrize(("old", "new", "message"), rows(REFUSED))
def test_other_models_are_refused(recorded, tmp_path, old, new, message):
    folder = write(recorded["trained"], tmp_path / "sockeye")
    text = (folder / "config").read_text()
    assert old in text
    (folder / "config").write_text(text.replace(old, new))
    import_refused(folder, f"The original has {message}, and cannot be imported")


def with_weight(name, value):
    """A function that adds a weight to the content of params.best."""

    def change(content):
        state = torch.load(io.BytesIO(content), weights_only=True)
        written = io.BytesIO()
        torch.save(state | {f"encoder.layers.0.{name}": value}, written)
        return written.getvalue()

    return change


def without_encoder(content):
    """Cut the file `config` before the section of the encoder."""
    return content.partition(b"config_encoder")[0]


# The quantized linear layers of PyTorch store a pair of a weight and a bias.
QUANTIZED = with_weight("ff.ff1._packed_params._packed_params", (torch.ones(2, 2), torch.ones(2)))
ATTENTION_BIAS = with_weight("self_attention.ff_out.bias", torch.zeros(1))
OTHER_IDS = b'{"<pad>": 0, "<unk>": 2, "<s>": 1, "</s>": 3}'
# The name of a file, the function that changes the content of the file (None deletes the file), and a part of
# the message.
DAMAGES = [
    ("params.best", QUANTIZED, "must contain only tensors, but does not"),
    ("params.best", ATTENTION_BIAS, "ff_out.bias is not a weight of Sockeye 3; take the weights"),
    ("params.best", None, "it has no params.best"),
    ("params.best", cut, "'params.best' was not written by `torch.save`, or is incomplete"),
    ("vocab.trg.0.json", None, "it has no vocab.trg.0.json"),
    ("vocab.src.0.json", lambda content: OTHER_IDS, "<pad>, <unk>, <s> and </s> must have the ids 0 to 3"),
    ("config", without_encoder, "must have the section `config_encoder`, but does not"),
]


@pytest.mark.parametrize(("file", "change", "message"), DAMAGES, ids=range(len(DAMAGES)))
def test_a_damaged_folder_is_refused_in_one_sentence(recorded, tmp_path, file, change, message):
    folder = write(recorded["trained"], tmp_path / "sockeye")
    damage(folder / file, change)
    import_refused(folder, message)


def test_more_than_two_vocabularies_are_refused(recorded, tmp_path):
    folder = write(recorded["trained"], tmp_path / "sockeye")
    message = "`vocabularies` must name one or two files, but names 3"
    import_refused(folder, message, vocabularies=("a.model", "b.model", "c.model"))
