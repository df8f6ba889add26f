"""A checkpoint with one or two tokenizers loads the same tokenizers that were saved."""

import json
import shutil

import pytest
from factories import tiny_config, tiny_tokenizer
from transformers import PreTrainedTokenizerFast

from vaswani_hf.checkpoint.tokenizers import load_tokenizers, save_tokenizers


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return tiny_tokenizer(vocab_size=280)


def test_separate_tokenizers_keep_their_sides(tokenizer, tmp_path):
    target_tokenizer = tiny_tokenizer(vocab_size=270)
    save_tokenizers(tokenizer, target_tokenizer, tmp_path)
    source, target = load_tokenizers(str(tmp_path))
    assert (len(source), len(target)) == (280, 270)
    assert target.get_vocab() == target_tokenizer.get_vocab()
    # Two tokenizers stay two tokenizers if they are loaded and saved again.
    save_tokenizers(source, target, tmp_path / "again")
    assert [len(side) for side in load_tokenizers(tmp_path / "again")] == [280, 270]


def test_the_embeddings_decide_if_save_pretrained_of_transformers_has_saved_the_tokenizers(tmp_path):
    for number, target_size in enumerate((280, 270)):
        folder = tmp_path / str(number)
        is_joint = target_size == 280
        tiny_config(
            vocab_size=280, decoder_vocab_size=target_size, share_encoder_decoder_embeddings=is_joint
        ).save_pretrained(folder)
        tiny_tokenizer(vocab_size=280).save_pretrained(folder)
        tiny_tokenizer(vocab_size=target_size).save_pretrained(folder / "target_tokenizer")
        assert [len(side) for side in load_tokenizers(folder)] == [280, target_size]
    # Separate embeddings can also have one tokenizer.
    shutil.rmtree(folder / "target_tokenizer")
    source, target = load_tokenizers(folder)
    assert source is target


def test_a_joint_tokenizer_is_one_object_also_in_the_folder_of_separate_ones(tokenizer, tmp_path):
    save_tokenizers(tokenizer, tiny_tokenizer(vocab_size=270), tmp_path / "old")
    for name in ("old", "new"):
        save_tokenizers(tokenizer, tokenizer, tmp_path / name)
        source, target = load_tokenizers(tmp_path / name)
        assert source is target
        assert source.get_vocab() == tokenizer.get_vocab()
    assert not (tmp_path / "new" / "target_tokenizer").exists()


def test_tokenizers_come_from_a_repository(tokenizer, tmp_path):
    # The folder has the layout of the cache of huggingface_hub after a download.
    repository = tmp_path / "models--someone--some-model"
    commit = "0123456789abcdef0123456789abcdef01234567"
    save_tokenizers(tokenizer, tiny_tokenizer(vocab_size=270), repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    loaded = load_tokenizers("someone/some-model", cache_dir=str(tmp_path), local_files_only=True)
    assert [len(side) for side in loaded] == [280, 270]


def test_a_missing_target_tokenizer_is_an_error(tokenizer, tmp_path):
    save_tokenizers(tokenizer, tiny_tokenizer(vocab_size=270), tmp_path)
    shutil.rmtree(tmp_path / "target_tokenizer")
    with pytest.raises((OSError, ValueError)):
        load_tokenizers(tmp_path)


def replace_token(folder, old, new):
    """Exchange two special tokens in the tokenizer of a folder, but keep the names of the special tokens."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary[old], vocabulary[new] = vocabulary[new], vocabulary[old]
    for token in content["added_tokens"]:
        token["id"] = vocabulary[token["content"]]
    path.write_text(json.dumps(content), encoding="utf-8")


# Each row contains the fault of a tokenizer of another model, the side (source or target), and the message.
FOREIGN = [
    ("more entries", "target", "has ids up to 266, too large for the 266 classes of the model"),
    ("<pad>", "source", "its `pad_token` has the id 7, but the model has the id 1"),
    ("</s>", "target", "its `eos_token` has the id 7, but the model has the id 2"),
]


@pytest.mark.parametrize(("how", "side", "fault"), FOREIGN)
def test_a_foreign_tokenizer_is_refused(hub, repo_id, tiny_checkpoint, vaswani, tmp_path, how, side, fault):
    folder = tiny_checkpoint(two_vocabularies=how == "more entries")
    source, target = load_tokenizers(folder)
    if how == "more entries":
        target.add_tokens(["<new>"])
        save_tokenizers(source, target, folder)
    else:
        replace_token(folder, how, source.convert_ids_to_tokens(7))
    sentence = f"The {side} tokenizer must fit '{folder}', but {fault}; take the tokenizer and the model from one checkpoint."
    assert vaswani("translate", folder, "--text", "der Hund") == (1, "", sentence)
    if how == "more entries":
        export = ("export", folder, tmp_path / "out", "--format", "ctranslate2")
        for words in (export, ("push", folder, repo_id)):
            assert vaswani(*words) == (1, "", sentence), words
    assert ("model", repo_id) not in hub.repositories
