"""A damaged text file of a checkpoint of another library is named in one sentence."""

import pytest
from sentences import refused

from vaswani_hf.checkpoint.files import DamagedFileError
from vaswani_hf.convert.text_files import read_lines, read_merges, read_yaml

AGAIN = "; copy or download the file again."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "'config' cannot be read ([Errno 2] No such file or directory"),
        (b"\xfc: 1", "'config' cannot be read ('utf-8' codec can't decode byte 0xfc"),
        (b"{", "'config' must be YAML, but cannot be read (while parsing a flow node"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path, content, message):
    if content is not None:
        (tmp_path / "config").write_bytes(content)
    with pytest.raises(ValueError) as raised:
        read_yaml(tmp_path / "config")
    assert str(raised.value).startswith(message)
    assert str(raised.value).endswith(AGAIN)


def test_yaml_without_keys(tmp_path):
    (tmp_path / "config").write_text("- 1")
    with refused("'config' must be YAML with keys and values, but has no keys" + AGAIN):
        read_yaml(tmp_path / "config")


@pytest.mark.parametrize("content", ["model: 1", "model: {decoder: {}}", "{model: {encoder: 1}}", "data: {}"])
def test_a_section_is_missing(tmp_path, content):
    (tmp_path / "config").write_text(content)
    assert read_yaml(tmp_path / "config")
    with refused(
        "'config' must have the section `model.encoder`, but does not; use the file that Toolkit 2 has written."
    ):
        read_yaml(tmp_path / "config", sections=["model.encoder"], title="Toolkit 2")


def test_only_line_feeds_end_a_line(tmp_path):
    (tmp_path / "tokens.txt").write_bytes("a\u2028b\x85c\n\nd\n".encode())
    assert read_lines(tmp_path / "tokens.txt") == ["a\u2028b\x85c", "", "d"]


def test_only_spaces_separate_the_tokens_of_a_merge(tmp_path):
    path = tmp_path / "merges.txt"
    path.write_bytes("a\u00a0 \u2028b\r\nc \x85</w> 9\n".encode())
    assert read_merges(path) == [("a\u00a0", "\u2028b"), ("c", "\x85</w>")]
    for content, line in ((b"", "Line 1"), (b"a b\n\n", "Line 2"), (b"a b\na\xc2\xa0b", "Line 2")):
        path.write_bytes(content)
        with pytest.raises(
            DamagedFileError, match=f"^{line} of 'merges.txt' must have two tokens with a space"
        ):
            read_merges(path)
