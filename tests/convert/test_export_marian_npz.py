"""The export to Marian (C++): equal functions and tensors after the way back, refusals, pymarian."""

import json
import random
import re
from importlib.util import find_spec
from pathlib import Path

import numpy
import pytest
import torch
import yaml
from factories import add_languages, save_checkpoint, tiny_model, tiny_tokenizer
from safetensors.torch import load_file
from sentences import refused
from tokenizers.processors import TemplateProcessing

from vaswani_hf import Translator, import_checkpoint
from vaswani_hf.checkpoint.tokenizers import load_tokenizers, save_tokenizers
from vaswani_hf.convert import marian_npz_export
from vaswani_hf.convert.export import export
from vaswani_hf.convert.marian_npz import read_npz
from vaswani_hf.convert.marian_npz_export import MarianNpzEngine
from vaswani_hf.convert.word_tokenizers import word_tokenizer

RECORDED = Path(__file__).parent / "recorded" / "marian"
SCORES = json.loads((RECORDED / "scores.json").read_text(encoding="utf-8"))
TEXTS = ("one two three four five", "eins zwei drei vier fünf", "Ärger über 3.14 €!")
MARIAN_DEFAULT = {
    "zero_start_embedding": True,
    "decoder_start_token_id": 1,
    "layer_norm_eps": 1e-6,
    "position_timescales": "tensor2tensor",
    "activation_function": "silu",
}
CASES = {
    "the paper's": {},
    "pre-norm": {"norm_position": "pre", "activation_function": "silu"},
    "positions from 2": {"position_offset": 2, "position_timescales": "tensor2tensor"},
    "learned positions": {"position_embedding": "learned", "max_position_embeddings": 30},
    "no positions": {"position_embedding": "none"},
    "epsilon 1e-6": {"layer_norm_eps": 1e-6, "attention_bias": True, "lm_head_bias": True},
    "epsilon 1e-3, pre-norm": {"layer_norm_eps": 1e-3, "norm_position": "pre"},
    "epsilon 1e-3, no final norm": {"layer_norm_eps": 1e-3, "norm_position": "pre", "final_norm": False},
    "epsilon 1e-3, final norm": {"layer_norm_eps": 1e-3, "final_norm": True},
    "unscaled": {"scale_embedding": False},
    "two embeddings": {"share_encoder_decoder_embeddings": False, "activation_function": "gelu"},
    "nothing tied": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
    "dot products": {"attention_score": "dot"},
    "start from zeros": {"zero_start_embedding": True, "decoder_start_token_id": 1},
    "Marian's": MARIAN_DEFAULT,
    "Marian's with a final norm": {**MARIAN_DEFAULT, "final_norm": True},
}


@pytest.fixture
def checkpoint(tmp_path):
    """Write a checkpoint with random weights and tokenizers."""

    def write(two_vocabularies=False, **fields):
        sizes = (290, 280) if two_vocabularies else (290,)
        tokenizers = [tiny_tokenizer(TEXTS, size, model_max_length=40) for size in sizes]
        if two_vocabularies:
            fields |= {"decoder_vocab_size": 280, "share_encoder_decoder_embeddings": False}
        model = tiny_model(**{"d_model": 16, "vocab_size": 290, **fields})
        if model.config.zero_start_embedding:
            with torch.no_grad():
                model.model.decoder.embed_tokens.weight[1] = 0
        if model.config.final_norm is False:
            # Without a final norm, the logits are large, and float32 rounds them by up to 1e-4. The output
            # projection is tied to the embedding.
            with torch.no_grad():
                model.model.decoder.embed_tokens.weight.mul_(0.1)
        save_checkpoint(tmp_path / "checkpoint", model, tokenizers[0], tokenizers[-1])
        return tmp_path / "checkpoint"

    return write


def difference_in(text):
    return float(re.search(r"inputs: ([\d.e-]+)\.$", text)[1])


@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
def test_the_written_model_computes_the_same(checkpoint, tmp_path, fields):
    # The export reads the written file with the import, or with Marian if pymarian is installed.
    text = export(checkpoint(**fields), tmp_path / "marian", "marian_npz")
    assert difference_in(text) < 1e-4
    _, options = read_npz(tmp_path / "marian" / "model.npz")
    is_default = fields.items() >= MARIAN_DEFAULT.items()
    assert options["type"] == ("transformer" if is_default else "transformer-new")


def test_two_vocabularies(checkpoint, tmp_path, vaswani):
    folder = checkpoint(two_vocabularies=True)
    code, output, _ = vaswani("export", folder, tmp_path / "marian", "--format", "marian_npz")
    assert code == 0 and difference_in(output.strip()) < 1e-4
    settings = yaml.safe_load((tmp_path / "marian" / "decoder.yml").read_text())
    assert settings["vocabs"] == ["source.vocab.yml", "target.vocab.yml"]
    for name, tokenizer in zip(settings["vocabs"], load_tokenizers(folder), strict=True):
        ids = json.loads((tmp_path / "marian" / name).read_text(encoding="utf-8"))
        assert ids == {**tokenizer.get_vocab()}
    weights, options = read_npz(tmp_path / "marian" / "model.npz")
    assert options["dim-vocabs"] == [290, 280]
    assert (tmp_path / "marian" / "model.npz").stat().st_size > sum(
        array.nbytes for array in weights.values()
    )


def test_a_model_of_marian_returns_with_equal_tensors(tmp_path):
    pytest.importorskip("sentencepiece", reason="needs SentencePiece: pip install '.[sentencepiece]'")
    source = RECORDED / "post.npz"
    import_checkpoint(source, tmp_path / "ours", vocabularies=(RECORDED / "joint.spm",))
    export(tmp_path / "ours", tmp_path / "marian", "marian_npz")
    before, old = read_npz(source)
    after, new = read_npz(tmp_path / "marian" / "model.npz")
    assert before.keys() == after.keys() and old["dim-vocabs"] == new["dim-vocabs"]
    for key, array in before.items():
        assert array.shape == after[key].shape and numpy.array_equal(array, after[key]), key
    settings = yaml.safe_load((tmp_path / "marian" / "decoder.yml").read_text())
    assert (settings["beam-size"], settings["max-length-factor"], settings["allow-unk"]) == (4, 3.0, False)

    import_checkpoint(tmp_path / "marian", tmp_path / "again")
    first, second = (load_file(tmp_path / folder / "model.safetensors") for folder in ("ours", "again"))
    assert first.keys() == second.keys()
    for key, tensor in first.items():
        assert torch.equal(tensor, second[key]), key


def test_names_of_tokens_contain_no_spaces_and_can_be_read(tmp_path, monkeypatch):
    tokens = ["<pad>", "<unk>", "<s>", "</s>", ", _", "a\x85", "\x96", "\uffff", "\u3000"]
    tokenizer = word_tokenizer({token: number for number, token in enumerate(tokens)})
    model = tiny_model(vocab_size=len(tokens), pad_token_id=0, bos_token_id=2, eos_token_id=3)
    save_checkpoint(tmp_path / "checkpoint", model, tokenizer)
    # Without pymarian, the export reads the written vocabulary with the import.
    monkeypatch.setattr(marian_npz_export, "find_spec", lambda name: None)
    export(tmp_path / "checkpoint", tmp_path / "marian", "marian_npz")
    names = list(json.loads((tmp_path / "marian" / "vocab.yml").read_text(encoding="utf-8")))
    assert names[4:] == [",<U+0020>_", "a<U+0085>", "<U+0096>", "<U+FFFF>", "\u3000"]
    monkeypatch.setattr(marian_npz_export, "run_marian", lambda command, words, text: [" ".join(names[4:])])
    (text,) = MarianNpzEngine(tmp_path / "marian").translate(["x"], num_beams=1)
    assert text == " ".join(tokens[4:])


def test_a_source_tokenizer_without_an_end_token_is_refused(checkpoint, tmp_path):
    folder = checkpoint()
    source, target = load_tokenizers(folder)
    source.backend_tokenizer.post_processor = TemplateProcessing(single=["$A"], pair=["$A", "$B"])
    save_tokenizers(source, target, folder)
    with refused(
        "The source tokenizer adds no end token to texts, but Marian (C++) always adds an end token; use another format."
    ):
        export(folder, tmp_path / "marian", "marian_npz")


def test_a_model_with_language_tokens_is_refused(checkpoint, tmp_path):
    folder = checkpoint()
    add_languages(folder, en="x", de="y")
    with refused(
        "The tokenizer has language tokens, which Marian (C++) does not add to texts; use another format."
    ):
        export(folder, tmp_path / "marian", "marian_npz")


def test_the_start_token_is_added_to_the_first_position(checkpoint, tmp_path):
    folder = checkpoint()
    export(folder, tmp_path / "marian", "marian_npz")
    weights, options = read_npz(tmp_path / "marian" / "model.npz")
    encoder, decoder = (
        weights[f"TransformerBatch{stack.capitalize()}->{stack}->positionEmbedding->embeddings"]
        for stack in ("encoder", "decoder")
    )
    embedding = load_file(folder / "model.safetensors")["model.shared.weight"].numpy()
    assert numpy.array_equal(encoder[1:], decoder[1:])
    numpy.testing.assert_allclose(decoder[0] - encoder[0], 4 * embedding[0], atol=1e-6)
    numpy.testing.assert_array_equal(weights["Wemb"], 4 * embedding)
    numpy.testing.assert_array_equal(weights["decoder_ff_logit_out_Wt"], embedding)
    settings = yaml.safe_load((tmp_path / "marian" / "decoder.yml").read_text())
    assert len(encoder) == options["max-length"] == 3 * settings["max-length"] + 1
    assert settings["mini-batch"] == 1


def write_search(folder, settings):
    file = folder / "generation_config.json"
    search = json.loads(file.read_text()) | {"_from_model_config": False, **settings}
    file.write_text(json.dumps(search))


def test_settings_that_the_search_lacks_give_a_warning(checkpoint, tmp_path, caplog):
    folder = checkpoint()
    search = {
        "num_beams": 3,
        "length_penalty": 0.6,
        "length_penalty_type": "gnmt",
        "max_length_a": 1.0,
        "max_length_b": 50,
        "max_new_tokens": 90,
        "early_stopping": True,
        "forced_eos_token_id": 2,
    }
    write_search(folder, search)
    export(folder, tmp_path / "marian", "marian_npz")
    (message,) = [record.getMessage() for record in caplog.records]
    replaced = set(re.findall(r"`(\w+)`", message))
    assert replaced == search.keys() - {"num_beams", "length_penalty", "max_length_a"}
    assert all(f"`{name}` is {search[name]!r}" in message for name in replaced)
    settings = yaml.safe_load((tmp_path / "marian" / "decoder.yml").read_text())
    assert (settings["beam-size"], settings["normalize"], settings["max-length-factor"]) == (3, 0.6, 3.0)


def test_marian_can_exclude_only_the_unknown_token(checkpoint, tmp_path):
    folder = checkpoint()
    write_search(folder, {"suppress_tokens": [7]})
    message = (
        "^`suppress_tokens` is \\[7\\] in the generation config, which Marian \\(C\\+\\+\\) cannot express"
    )
    with pytest.raises(ValueError, match=message):
        export(folder, tmp_path / "marian", "marian_npz")
    _, tokenizer = load_tokenizers(folder)
    excluded = [token for token in (tokenizer.unk_token_id, tokenizer.pad_token_id) if token is not None]
    write_search(folder, {"suppress_tokens": excluded})
    export(folder, tmp_path / "marian", "marian_npz")
    assert not yaml.safe_load((tmp_path / "marian" / "decoder.yml").read_text())["allow-unk"]


def test_the_engine_keeps_the_batch_size_of_the_exported_folder(checkpoint, tmp_path, monkeypatch):
    export(checkpoint(), tmp_path / "marian", "marian_npz")
    assert yaml.safe_load((tmp_path / "marian" / "decoder.yml").read_text())["mini-batch"] == 1
    commands = []

    def run(command, words, text):
        commands.append(words)
        return [""] * text.count("\n")

    monkeypatch.setattr(marian_npz_export, "run_marian", run)
    assert MarianNpzEngine(tmp_path / "marian").translate(["one", "two"], num_beams=2) == ["", ""]
    assert commands[0][:4] == ["--config", str(tmp_path / "marian" / "decoder.yml"), "--beam-size", "2"]
    assert not [word for word in commands[0] if "batch" in word]
    # `vaswani certify` compares no log-probabilities if the length limit stopped all translations.
    assert MarianNpzEngine(tmp_path / "marian").log_probs([], []) == []


@pytest.mark.skipif(find_spec("pymarian") is None, reason="needs pymarian: pip install pymarian")
def test_marian_translates_and_scores_like_the_checkpoint(copier_checkpoint, tmp_path):
    export(copier_checkpoint, tmp_path / "marian", "marian_npz")
    engine = MarianNpzEngine(tmp_path / "marian")
    translator = Translator.from_pretrained(copier_checkpoint)
    words = SCORES["sources"][:20]
    texts = list(translator.translate(words, num_beams=2, length_penalty_type="power", max_length_a=3.0))
    assert engine.translate(words, num_beams=2) == texts
    # Score many sentences of different lengths, because Marian may return the scores in another order.
    rows = engine.source_tokenizer(SCORES["sources"]).input_ids
    generator = random.Random(0)
    source_ids, target_ids = (generator.choices(rows, k=300) for _ in range(2))
    for source, target, scores in zip(
        source_ids, target_ids, engine.log_probs(source_ids, target_ids), strict=True
    ):
        with torch.no_grad():
            logits = translator.model(input_ids=torch.tensor([source]), labels=torch.tensor([target])).logits
        expected = logits.log_softmax(dim=-1)[0].gather(1, torch.tensor([target]).T).squeeze(1)
        torch.testing.assert_close(torch.tensor(scores), expected, rtol=0, atol=1e-4)
