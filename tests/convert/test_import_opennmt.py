"""The import of OpenNMT-py: logits that OpenNMT-py 3.5.1 has computed, tokenizers, and refusals.

recorded/opennmt_py.pt has two checkpoints with random weights, inputs and logits. The tables of positions are
shortened to 16 positions.
"""

import pytest
import torch
from marian_models import write_sentencepiece
from parity import import_refused, largest_difference, load_recorded, record_parity
from safetensors.torch import save_file

from vaswani_hf import Translator, VaswaniForSeq2SeqLM, import_checkpoint
from vaswani_hf.checkpoint.tokenizers import load_tokenizers
from vaswani_hf.convert.opennmt import DEFAULT_TOKENS, opennmt_tokenizers
from vaswani_hf.data.tokenizer_training import SENTENCE, with_form


@pytest.fixture
def recorded():
    return load_recorded("opennmt_py")


def write(case, folder, suffix):
    """Write a checkpoint as OpenNMT-py: with the weights, or with the weights in two safetensors files."""
    checkpoint = case["checkpoint"]
    if suffix == ".safetensors":
        checkpoint = dict(checkpoint)
        state = checkpoint.pop("model")
        generator = {f"generator.{name}": tensor for name, tensor in checkpoint.pop("generator").items()}
        save_file(state, folder / "model_step_9.00.safetensors")
        save_file(generator, folder / "model_step_9.01.safetensors")
    torch.save(checkpoint, folder / "model_step_9.pt")
    return folder / "model_step_9.pt"


@pytest.mark.parametrize(
    "name, suffix", [("concat", ".pt"), ("concat", ".safetensors"), ("interleaved", ".pt")]
)
def test_the_imported_model_computes_the_logits_of_opennmt(recorded, tmp_path, record_property, name, suffix):
    case = recorded[name]
    report = import_checkpoint(write(case, tmp_path, suffix), tmp_path / "ours")
    assert report.format == "opennmt_py" and report.difference is None
    ours = VaswaniForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    is_concat = name == "concat"
    assert ours.config.position_timescales == ("tensor2tensor" if is_concat else "paper")
    assert ours.config.share_encoder_decoder_embeddings is not is_concat
    difference = largest_difference(tmp_path / "ours", case, case["logits"], padding=1)
    record_parity(record_property, "OpenNMT-py", "OpenNMT-py 3.5.1 (recorded)", difference)


def test_the_tokens_have_the_ids_of_the_vocabulary(recorded, tmp_path):
    import_checkpoint(write(recorded["concat"], tmp_path, ".pt"), tmp_path / "ours")
    source, target = load_tokenizers(tmp_path / "ours")
    assert source("s1 s0 x").input_ids == [5, 4, 0]
    assert target("t1 t0").input_ids == [5, 4, 3]
    assert target.decode([5, 4, 3], skip_special_tokens=True) == "t1 t0"
    # A run that starts from the model keeps the tokenizers: OpenNMT-py adds no `</s>` to source texts.
    assert with_form(source, SENTENCE)("s1 s0").input_ids == [5, 4]
    (text,) = Translator.from_pretrained(tmp_path / "ours").translate(["s1 s0"], max_new_tokens=5)
    assert set(text.split()) <= {f"t{number}" for number in range(7)}


def test_sentencepiece_models_segment_the_texts(recorded, tmp_path):
    sentencepiece = pytest.importorskip(
        "sentencepiece", reason="needs SentencePiece: pip install '.[sentencepiece]'"
    )
    pytest.importorskip("google.protobuf")
    texts = ["one two three four", "two four one", "three one two"]
    pieces = write_sentencepiece(texts, tmp_path / "joint.model", vocab_size=16)
    model = sentencepiece.SentencePieceProcessor(str(tmp_path / "joint.model"))
    case = recorded["interleaved"]
    size = len(case["checkpoint"]["vocab"]["src"])
    tokens = (["<unk>", "<blank>", "<s>", "</s>"] + pieces[::-1])[:size]
    case["checkpoint"]["vocab"] |= {"src": tokens, "tgt": tokens}
    vocabularies = (tmp_path / "joint.model",)
    import_checkpoint(write(case, tmp_path, ".pt"), tmp_path / "ours", vocabularies=vocabularies)
    source, target = load_tokenizers(tmp_path / "ours")
    known = list(range(4, size))
    text = model.decode([tokens[number] for number in known])
    assert target.decode(known, skip_special_tokens=True) == text
    assert source("one two").input_ids[-1] != 3 and target("one two").input_ids[-1] == 3


def test_tokens_of_translations_are_separated_by_spaces():
    tokens = ["<blank>", "<s>", "</s>", "<unk>", "a@@", "b"]
    _, target = opennmt_tokenizers((tokens, tokens), (), DEFAULT_TOKENS)
    assert target.decode([4, 5, 2], skip_special_tokens=True) == "a@@ b"


REFUSED = {
    "decoder_type": ("rnn", "has `decoder_type` 'rnn', and cannot be imported"),
    "self_attn_type": ("average", "has `self_attn_type` 'average'"),
    "max_relative_positions": (20, "has `max_relative_positions` 20"),
    "layer_norm": ("rms", "has `layer_norm` 'rms'"),
    "pos_ffn_activation_fn": ("gated-gelu", "has `pos_ffn_activation_fn` 'gated-gelu'"),
    "parallel_residual": (True, "has `parallel_residual` True"),
    "copy_attn": (True, "has `copy_attn` True"),
    "num_kv": (1, "has `num_kv` 1"),
    "heads": (5, "`d_model` must be a multiple of"),
}


@pytest.mark.parametrize("field", REFUSED)
def test_other_options_are_refused(recorded, tmp_path, field):
    value, message = REFUSED[field]
    setattr(recorded["concat"]["checkpoint"]["opt"], field, value)
    import_refused(write(recorded["concat"], tmp_path, ".pt"), message)


def test_other_positions_and_missing_weights_are_refused(recorded, tmp_path):
    case = recorded["concat"]
    case["checkpoint"]["model"]["encoder.embeddings.make_embedding.pe.pe"] *= 2
    import_refused(write(case, tmp_path, ".pt"), "has `encoder.pe` (16, 1, 12), and cannot be imported")
    file = write(case, tmp_path, ".safetensors")
    for shard in tmp_path.glob("*.safetensors"):
        shard.unlink()
    import_refused(file, "its folder contains no file model_step_9.*.safetensors")
