"""The restricted unpickler executes no code of a file."""

import argparse
import os
import re

import pytest
import torch
from sentences import refused

from vaswani_hf.convert.importing import import_checkpoint
from vaswani_hf.convert.unpickling import header_of, load_weights


class RemovesAFile:
    """An object whose unpickling removes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.remove, (self.path,)


@pytest.mark.parametrize("is_new", [True, False])
def test_listed_classes_become_stubs_and_other_classes_are_refused(tmp_path, is_new):
    content = {"args": argparse.Namespace(layers=6, sizes=[1]), "model": {"weight": torch.ones(2)}}
    torch.save(content, tmp_path / "x.pt", _use_new_zipfile_serialization=is_new)
    loaded = load_weights(tmp_path / "x.pt", ["argparse.Namespace"])
    assert (loaded["args"].layers, loaded["args"].sizes) == (6, [1])
    assert type(loaded["args"]) is not argparse.Namespace and torch.equal(
        loaded["model"]["weight"], torch.ones(2)
    )
    with pytest.raises(ValueError, match=r"^'x.pt' contains objects .* argparse.Namespace"):
        load_weights(tmp_path / "x.pt")


def test_code_in_a_file_is_not_executed(tmp_path):
    path = tmp_path / "victim"
    path.touch()
    torch.save(RemovesAFile(str(path)), tmp_path / "x.pt")
    with pytest.raises(ValueError, match=re.escape("is not read, because such objects can execute code")):
        load_weights(tmp_path / "x.pt", ["argparse.Namespace"])
    assert path.exists()


@pytest.mark.parametrize("part_of", [lambda content: b"hello", lambda content: content[:-900]])
def test_a_damaged_file_is_named(tmp_path, part_of):
    torch.save({"weight": torch.ones(2000)}, tmp_path / "x.pt")
    (tmp_path / "x.pt").write_bytes(part_of((tmp_path / "x.pt").read_bytes()))
    with pytest.raises(ValueError, match=r"^'x.pt' was not written by `torch.save`, or is incomplete"):
        load_weights(tmp_path / "x.pt")


@pytest.mark.parametrize("content", [b"<html>", b"version https://git-lfs.github.com/spec/v1"])
def test_a_text_file_is_not_said_to_contain_objects(tmp_path, content):
    (tmp_path / "x.pt").write_bytes(content)
    message = f"^'x.pt' contains the pickle instruction {content[0]}, which `torch.load` does not know, so "
    with pytest.raises(ValueError, match=message):
        load_weights(tmp_path / "x.pt")


@pytest.mark.parametrize("is_new", [True, False])
def test_the_header_has_the_names_of_the_weights(tmp_path, is_new):
    torch.save({"encoder.bias": torch.ones(2)}, tmp_path / "x.pt", _use_new_zipfile_serialization=is_new)
    assert b"encoder.bias" in header_of(tmp_path / "x.pt")


def test_a_damaged_zip_file_is_named(tmp_path):
    torch.save({"weight": torch.ones(2000)}, tmp_path / "x.pt")
    # Each entry of a zip file begins with "PK\3\4".
    content = (tmp_path / "x.pt").read_bytes().replace(b"PK\3\4", b"PK\3\0")
    (tmp_path / "x.pt").write_bytes(content)
    with refused("'x.pt' is incomplete; copy or download the file again."):
        header_of(tmp_path / "x.pt")


def test_a_missing_file_is_not_called_damaged(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_weights(tmp_path / "x.pt")


@pytest.mark.parametrize("format", [None, "opennmt_py", "marian_mt"])
@pytest.mark.parametrize("is_folder", [True, False])
def test_a_pointer_of_git_lfs_is_named(tmp_path, format, is_folder):
    folder = tmp_path / "clone"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "marian"}')
    (folder / "model.pt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 300\n")
    source = folder if is_folder else folder / "model.pt"
    with pytest.raises(
        ValueError, match="^'model.pt' is a pointer of git-lfs and .* `git lfs pull` in the clone"
    ):
        import_checkpoint(source, tmp_path / "imported", format)
    assert not (tmp_path / "imported").exists()
