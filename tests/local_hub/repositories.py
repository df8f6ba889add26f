"""Repositories in memory: commits, branches, tags and pull requests. Files that clients uploaded with xet are
on disk.
"""

import hashlib
import re
import struct
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

# The Hub stores files with these names by their sha256. Clients upload these files with Git LFS or xet.
LARGE_FILES = (".arrow", ".bin", ".onnx", ".parquet", ".png", ".pt", ".pth", ".safetensors")


def is_large(path: str, size: int) -> bool:
    return path.endswith(LARGE_FILES) and size > 0


def etag(path: str, content: bytes) -> str:
    """The hash by which clients recognise a file that they already have."""
    if is_large(path, len(content)):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0%s" % (len(content), content)).hexdigest()


@dataclass(frozen=True)
class Commit:
    parent: str | None
    title: str
    files: dict[str, bytes]


class Repository:
    """A repository of the Hub. Tests may change its attributes and call its methods, because these send no
    request.
    """

    def __init__(self, id: str, type: str, private: bool):
        self.id = id
        self.type = type
        self.owner = id.split("/")[0]
        self.path = id if type == "model" else f"{type}s/{id}"
        self.private = private
        self.gated = False
        # The users who opened the pull requests, by full name.
        self.authors: dict[str, str] = {}
        # Commits by full name: refs/heads/main, refs/tags/v1.0, refs/pr/1.
        self.refs: dict[str, str] = {}
        self._commits: dict[str, Commit] = {}
        self.commit({".gitattributes": b"# large files"}, "initial commit")

    def find(self, revision: str) -> str | None:
        """The commit of a branch, a tag, a full name or a hash."""
        for name in (revision, f"refs/heads/{revision}", f"refs/tags/{revision}"):
            if name in self.refs:
                return self.refs[name]
        is_hash = re.fullmatch("[0-9a-f]{7,40}", revision)
        return next((sha for sha in self._commits if is_hash and sha.startswith(revision)), None)

    def head(self, revision: str = "main") -> str:
        sha = self.find(revision)
        assert sha is not None, f"{self.id} has no {revision}."
        return sha

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """The contents of all files by path."""
        return self._commits[self.head(revision)].files

    def commit(self, changes: dict[str, bytes | None], title: str = "Change files", ref: str = "main") -> str:
        """Change files of a branch or of a full name, and return the commit. None deletes a file.

        A new branch begins at main.
        """
        ref = ref if ref.startswith("refs/") else f"refs/heads/{ref}"
        parent = self.refs.get(ref) or self.find("main")
        merged = {**(self._commits[parent].files if parent else {}), **changes}
        files = {path: content for path, content in sorted(merged.items()) if content is not None}
        sha = hashlib.sha1(f"{self.path} {parent} {title} {len(self._commits)}".encode()).hexdigest()
        self._commits[sha] = Commit(parent, title, files)
        self.refs[ref] = sha
        return sha

    def titles(self, revision: str = "main") -> list[str]:
        """The titles of a commit and its ancestors, newest first."""
        commit = self._commits[self.head(revision)]
        titles = [commit.title]
        while commit.parent is not None:
            commit = self._commits[commit.parent]
            titles.append(commit.title)
        return titles


class XetStore:
    """The folder to which clients upload files with xet. The library hf_xet reads and writes the folder
    itself.
    """

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="local_hub_xet_")
        self.address = f"local://{self._folder.name}"
        # Hashes of xet by sha256.
        self.hashes: dict[str, str] = {}

    def content(self, sha256: str) -> bytes | None:
        """The bytes of an uploaded file; None if the file was never uploaded."""
        for shard in Path(self._folder.name).glob("xet/xorbs/shards/*.mdb"):
            self._read(shard.read_bytes())
        if sha256 not in self.hashes:
            return None
        # The library reads its environment when it is imported.
        import hf_xet

        limits = {"token": "any", "token_expiry_unix_secs": int(time.time()) + 3600}
        group = hf_xet.XetSession().new_download_stream_group(endpoint=self.address, **limits)
        return b"".join(group.download_stream(hf_xet.XetFileInfo(self.hashes[sha256], None)))

    def _read(self, shard: bytes) -> None:
        """Read the hashes of the files of a shard: entries of 48 bytes, of which one begins each file."""
        position = 48
        while shard[position : position + 32] != b"\xff" * 32:
            file_hash, flags, count = struct.unpack_from("<32sII", shard, position)
            # An entry for each part of the file follows, and if the highest bit is set, an entry for its
            # verification.
            position += 48 * (1 + count * (1 + (flags >> 31)))
            self.hashes[_text(shard[position : position + 32])] = _text(file_hash)
            position += 48


def _text(hash: bytes) -> str:
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", hash))
