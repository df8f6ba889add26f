"""The import of fairseq's `.pt` files. FSMT (post-norm) and M2M100 (pre-norm) are the reference."""

import argparse
import json
import shutil
import sys
import types

import pytest
import torch
from parity import import_refused, record_parity
from test_import_fsmt_m2m100 import SIZES, difference_to_original, fsmt, m2m100

from vaswani_hf import Translator, import_checkpoint
from vaswani_hf.checkpoint.tokenizers import load_tokenizers
from vaswani_hf.convert.export import export

WORDS = {"en": ["one", "two", "th@@", "ree", ",", "@-@", "a@@"], "de": ["eins", "zwei", "dr@@", "ei", "vier"]}
SETTINGS = {
    **SIZES,
    "arch": "transformer_wmt_en_de",
    "encoder_embed_dim": 12,
    "decoder_embed_dim": 12,
    "encoder_ffn_embed_dim": 20,
    "decoder_ffn_embed_dim": 28,
    "encoder_normalize_before": False,
    "decoder_normalize_before": False,
    "source_lang": "en",
    "target_lang": "de",
    "activation_fn": "relu",
    "criterion": "label_smoothed_cross_entropy",
}


def reference(is_pre_norm: bool = False, is_joint: bool = False):
    """A model of transformers with random weights."""
    if is_pre_norm:
        return m2m100(11)
    return fsmt(11, 11 if is_joint else 9, tie_word_embeddings=is_joint)


def fairseq_state(model) -> dict[str, torch.Tensor]:
    """The weights under the names of fairseq."""
    state = {}
    for name, tensor in model.state_dict().items():
        name = name.removeprefix("model.").replace("lm_head", "decoder.output_projection")
        if not name.startswith("shared") and "embed_positions" not in name:
            state[name] = tensor.clone()
    for stack in ("encoder", "decoder"):
        state[f"{stack}.version"] = torch.tensor([3.0])
        state[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
    state["encoder.layers.0.in_proj_weight"] = torch.zeros(36, 12)
    return state


def write(folder, state, languages=("en", "de"), meters=None, **settings):
    """Write a checkpoint as old versions of fairseq do, and the vocabularies of these languages."""
    folder.mkdir()
    args = argparse.Namespace(**{**SETTINGS, **settings})
    extra = {"epoch": 1, "train_meters": meters}
    torch.save({"args": args, "model": state, "extra_state": extra}, folder / "model.pt")
    for language in languages:
        lines = [f"{word} 1\n" for word in WORDS[language]]
        (folder / f"dict.{language}.txt").write_text("".join(lines))


@pytest.mark.parametrize("is_pre_norm, is_joint", [(False, False), (False, True), (True, True)])
def test_an_imported_model_computes_the_same(tmp_path, record_property, is_pre_norm, is_joint):
    model = reference(is_pre_norm, is_joint)
    norms = {"encoder_normalize_before": is_pre_norm, "decoder_normalize_before": is_pre_norm}
    target = "en" if is_joint else "de"
    write(tmp_path / "theirs", fairseq_state(model), {"en", target}, target_lang=target, **norms)
    report = import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    assert report.format == "fairseq"
    difference = difference_to_original(tmp_path / "ours", model)
    record_parity(record_property, "fairseq", "FSMT and M2M100 of transformers", difference)
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert config["share_encoder_decoder_embeddings"] == is_joint


@pytest.mark.parametrize("is_pre_norm", [False, True])
def test_ctranslate2_has_the_positions_of_an_imported_model(tmp_path, is_pre_norm):
    pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install '.[ctranslate2]'")
    norms = {"encoder_normalize_before": is_pre_norm, "decoder_normalize_before": is_pre_norm}
    state = fairseq_state(reference(is_pre_norm, is_joint=True))
    write(tmp_path / "theirs", state, ["en"], target_lang="en", **norms)
    import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    # The export compares the log-probabilities.
    assert export(tmp_path / "ours", tmp_path / "exported", "ctranslate2").startswith("Largest difference")


def test_old_names_of_weights_are_read(tmp_path):
    model = reference()
    model.model.decoder.output_projection.weight = model.model.decoder.embed_tokens.weight
    state = fairseq_state(model)
    del state["decoder.output_projection.weight"], state["encoder.layers.0.in_proj_weight"]
    for layer in range(2):
        prefix = f"decoder.layers.{layer}."
        for kind in ("weight", "bias"):
            for attention in ("self_attn", "encoder_attn"):
                parts = [state.pop(f"{prefix}{attention}.{part}_proj.{kind}") for part in "qkv"]
                state[f"{prefix}{attention}.in_proj_{kind}"] = torch.cat(parts)
            norms = ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")
            for number, norm in enumerate(norms):
                state[f"{prefix}layer_norms.{number}.{kind}"] = state.pop(f"{prefix}{norm}.{kind}")
    write(tmp_path / "theirs", state, relu_dropout=0.1)
    import_checkpoint(tmp_path / "theirs" / "model.pt", tmp_path / "ours")
    assert difference_to_original(tmp_path / "ours", model) < 1e-4
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["tie_word_embeddings"]


def test_the_settings_of_new_files_are_read(tmp_path):
    model = reference()
    stacks = {
        stack: {
            name.removeprefix(f"{stack}_"): value
            for name, value in SETTINGS.items()
            if name.startswith(stack)
        }
        for stack in ("encoder", "decoder")
    }
    task = {"source_lang": "en", "target_lang": "de"}
    cfg = {"model": {"_name": "transformer", **stacks}, "task": task}
    torch.save({"args": None, "cfg": cfg, "model": fairseq_state(model)}, tmp_path / "model.pt")
    note = "No tokenizers were written, because {}; name the vocabularies with `--vocabularies`."
    report = import_checkpoint(tmp_path / "model.pt", tmp_path / "ours")
    assert note.format("the folder lacks dict.de.txt and dict.en.txt") in report.text
    assert difference_to_original(tmp_path / "ours", model) < 1e-4
    del task["source_lang"]
    torch.save({"args": None, "cfg": cfg, "model": fairseq_state(model)}, tmp_path / "model.pt")
    report = import_checkpoint(tmp_path / "model.pt", tmp_path / "unnamed")
    assert note.format("the checkpoint does not name its languages") in report.text


def test_learned_positions_begin_after_the_padding_token(tmp_path):
    model = reference()
    state = fairseq_state(model)
    for stack, module in (("encoder", model.get_encoder()), ("decoder", model.get_decoder())):
        # The reference looks up sinusoids in a table, and learned positions are another table.
        del state[f"{stack}.embed_positions._float_tensor"]
        state[f"{stack}.embed_positions.weight"] = module.embed_positions.weight.detach().clone()
    write(tmp_path / "theirs", state, encoder_learned_pos=True, decoder_learned_pos=True)
    import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    assert difference_to_original(tmp_path / "ours", model) < 1e-4


@pytest.fixture
def created(monkeypatch):
    """Return an object of a class with this name. The class takes the place of a library's class."""

    def created(name):
        module, _, kind = name.rpartition(".")
        library = module.partition(".")[0]
        monkeypatch.setitem(sys.modules, library, types.ModuleType(library))
        monkeypatch.setitem(sys.modules, module, sys.modules.get(module) or types.ModuleType(module))
        setattr(sys.modules[module], kind, type(kind, (), {"__module__": module}))
        return getattr(sys.modules[module], kind)()

    return created


def test_the_meters_of_old_versions_are_read(tmp_path, created):
    names = ("AverageMeter", "TimeMeter", "StopwatchMeter")
    meters = {name: created(f"fairseq.meters.{name}") for name in names}
    meters["AverageMeter"].sum = 1.5
    write(tmp_path / "theirs", fairseq_state(reference()), meters=meters)
    assert import_checkpoint(tmp_path / "theirs", tmp_path / "ours").format == "fairseq"


def test_one_of_several_files_must_be_named(tmp_path):
    write(tmp_path / "theirs", fairseq_state(reference()))
    shutil.copy(tmp_path / "theirs" / "model.pt", tmp_path / "theirs" / "checkpoint_best.pt")
    import_refused(
        tmp_path / "theirs", "give the path of one of its weight files, or name the format with `--from`."
    )


def test_settings_of_omegaconf_are_read(tmp_path, created):
    cfg = created("omegaconf.dictconfig.DictConfig")
    node = created("omegaconf.nodes.AnyNode")
    node._val = argparse.Namespace(**SETTINGS)
    cfg._content = {"model": node, "task": None}
    model = reference()
    torch.save({"args": None, "cfg": cfg, "model": fairseq_state(model)}, tmp_path / "model.pt")
    import_checkpoint(tmp_path / "model.pt", tmp_path / "ours")
    assert difference_to_original(tmp_path / "ours", model) < 1e-4


def test_tokenizers_split_at_spaces_and_join_tokens(tmp_path):
    write(tmp_path / "theirs", fairseq_state(reference()))
    import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    source, target = load_tokenizers(tmp_path / "ours")
    assert source("one th@@ ree  , Unknown").input_ids == [4, 6, 7, 8, 3, 2]
    assert target.decode([4, 6, 7, 5, 2], skip_special_tokens=True) == "eins drei zwei"
    assert target.decode([4, 6], skip_special_tokens=True) == "eins dr"
    assert len(list(Translator.from_pretrained(tmp_path / "ours").translate(["one two"]))) == 1


def test_spaces_at_the_ends_of_lines_are_ignored(tmp_path):
    write(tmp_path / "theirs", fairseq_state(reference()))
    path = tmp_path / "theirs" / "dict.en.txt"
    path.write_text(path.read_text().replace("\n", " \r\n"))
    import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    assert load_tokenizers(tmp_path / "ours")[0]("one two").input_ids == [4, 5, 2]


def test_vocabularies_of_another_folder_are_read(tmp_path):
    write(tmp_path / "theirs", fairseq_state(reference()))
    files = [tmp_path / f"words.{language}.txt" for language in ("en", "de")]
    for language, file in zip(("en", "de"), files, strict=True):
        (tmp_path / "theirs" / f"dict.{language}.txt").rename(file)
    report = import_checkpoint(tmp_path / "theirs", tmp_path / "imported", vocabularies=files)
    assert "The tokenizers split texts only at spaces" in report.text
    source, target = load_tokenizers(tmp_path / "imported")
    assert source("a@@ one").input_ids == [10, 4, 2] and target("vier").input_ids == [8, 2]
    files[1].write_text("eins\n")
    message = "Line 1 of 'words.de.txt' must contain a token that no earlier line has, and its frequency"
    import_refused(tmp_path / "theirs", message, vocabularies=files)


def test_one_sentencepiece_model_segments_texts(tmp_path):
    pytest.importorskip("sentencepiece", reason="needs SentencePiece: pip install '.[sentencepiece]'")
    from marian_models import digit_pairs, write_sentencepiece
    from sentencepiece import SentencePieceProcessor

    texts = [pair["source"] for pair in digit_pairs(300, seed=0)]
    pieces = write_sentencepiece(texts, tmp_path / "spm.model", vocab_size=40)
    model = reference(False, True)
    state = fairseq_state(model)
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection"):
        state[f"{name}.weight"] = torch.randn(len(pieces) + 4, 12)
    write(tmp_path / "theirs", state, ())
    (tmp_path / "spm.model").rename(tmp_path / "theirs" / "spm.model")
    for language in ("en", "de"):
        lines = [f"{piece} 1\n" for piece in reversed(pieces)]
        (tmp_path / "theirs" / f"dict.{language}.txt").write_text("".join(lines))
    import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    source, _ = load_tokenizers(tmp_path / "ours")
    processor = SentencePieceProcessor(str(tmp_path / "theirs" / "spm.model"))
    expected = [pieces[::-1].index(piece) + 4 for piece in processor.encode(texts[0], out_type=str)]
    assert source(texts[0]).input_ids == [*expected, 2]
    assert source.decode(expected) == texts[0]


@pytest.mark.parametrize(
    "field, value",
    [
        ("arch", "lightconv"),
        ("adaptive_softmax_cutoff", [10, 20]),
        ("adaptive_input", True),
        ("layernorm_embedding", True),
        ("cross_self_attention", True),
        ("decoder_embed_dim", 16),
        ("decoder_learned_pos", True),
        ("activation_fn", "glu"),
        ("tokens of dict.en.txt", 11),
    ],
)
def test_other_settings_are_refused(tmp_path, field, value):
    state = fairseq_state(reference())
    if field.startswith("tokens"):
        state["encoder.embed_tokens.weight"] = torch.randn(12, 12)
    write(tmp_path / "theirs", state, **{field: value})
    import_refused(tmp_path / "theirs", f"`{field}` ... {value!r}, and cannot be imported, because")
