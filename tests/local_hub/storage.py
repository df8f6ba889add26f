"""Repositories in memory: commits, branches, tags and pull requests."""

import fnmatch
import hashlib
import re
import threading
import time
from dataclasses import dataclass

# Every repository begins with a .gitattributes that declares these files as large.
LARGE = "*.arrow *.bin *.npy *.npz *.onnx *.parquet *.pkl *.png *.pt *.pth *.safetensors *.zip".split()
ATTRIBUTES = "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in LARGE).encode()
LARGE_BYTES = 10 * 1024 * 1024


def is_large(path: str, size: int) -> bool:
    named = any(fnmatch.fnmatchcase(path.split("/")[-1], pattern) for pattern in LARGE)
    return size > 0 and (named or size > LARGE_BYTES)


@dataclass(frozen=True)
class File:
    """A file of a commit. `text` of a large file is the pointer that git keeps in its place."""

    text: bytes
    size: int
    sha256: str | None = None

    @property
    def oid(self) -> str:
        return hashlib.sha1(b"blob %d\0%s" % (len(self.text), self.text)).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 or self.oid

    @property
    def lfs(self) -> dict:
        return {"sha256": self.sha256, "oid": self.sha256, "size": self.size, "pointerSize": len(self.text)}


def large_file(content: bytes) -> File:
    sha256 = hashlib.sha256(content).hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {len(content)}\n"
    return File(pointer.encode(), len(content), sha256)


@dataclass(frozen=True)
class Commit:
    sha: str
    parent: str | None
    author: str
    seconds: float
    message: str
    files: dict[str, File]


class Repository:
    """A repository of the Hub.

    Tests may set `private` and `gated`. They may call `commit`, `files`, `head` and `refs`, which send no request.
    """

    def __init__(self, id: str, type: str, objects: dict[str, bytes]):
        self.id = id
        self.type = type
        self.objects = objects
        self.private = False
        self.gated = False
        self.granted: set[str] = set()
        self.lock = threading.RLock()
        self._commits: dict[str, Commit] = {}
        self._refs: dict[str, str] = {}
        self._authors: dict[str, str] = {}
        first = {".gitattributes": File(ATTRIBUTES, len(ATTRIBUTES))}
        self.write("refs/heads/main", first, self.namespace, "initial commit")

    @property
    def namespace(self) -> str:
        return self.id.split("/")[0]

    @property
    def prefix(self) -> str:
        """The path of the pages: models are directly under the endpoint, datasets are under "datasets"."""
        return self.id if self.type == "model" else f"{self.type}s/{self.id}"

    def grant(self, user: str) -> None:
        self.granted.add(user)

    def refs(self) -> dict[str, str]:
        """Commits by full name: refs/heads/main, refs/tags/v1.0, refs/pr/1."""
        return dict(self._refs)

    def find(self, revision: str) -> str | None:
        """The commit of a branch, a tag, a full name or a hash."""
        for name in (revision, f"refs/heads/{revision}", f"refs/tags/{revision}"):
            if name in self._refs:
                return self._refs[name]
        is_hash = re.fullmatch("[0-9a-f]{7,40}", revision)
        return next((sha for sha in self._commits if is_hash and sha.startswith(revision)), None)

    def head(self, revision: str = "main") -> str:
        sha = self.find(revision)
        if sha is None:
            raise KeyError(revision)
        return sha

    def entries(self, sha: str) -> dict[str, File]:
        return self._commits[sha].files

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """The contents of all files by path, with the .gitattributes."""
        return {path: self.read(file) for path, file in self.entries(self.head(revision)).items()}

    def read(self, file: File) -> bytes:
        return self.objects[file.sha256] if file.sha256 else file.text

    def commit(self, changes: dict[str, bytes | None], message: str = "Change files", branch="main") -> str:
        """Write contents as a push does. None deletes a file. A new branch begins at main."""
        files: dict[str, File | None] = {}
        for path, content in changes.items():
            if content is None:
                files[path] = None
            elif is_large(path, len(content)):
                files[path] = large_file(content)
                self.objects[files[path].sha256] = content
            else:
                files[path] = File(content, len(content))
        ref = f"refs/heads/{branch}"
        self._refs.setdefault(ref, self.head())
        return self.write(ref, files, self.namespace, message)

    def write(self, ref: str, files: dict[str, File | None], author: str, message: str) -> str:
        with self.lock:
            parent = self._refs.get(ref)
            merged = {**(self.entries(parent) if parent else {}), **files}
            kept = {path: file for path, file in sorted(merged.items()) if file is not None}
            sha = hashlib.sha1(f"{self.prefix} {parent} {message} {len(self._commits)}".encode()).hexdigest()
            self._commits[sha] = Commit(sha, parent, author, time.time(), message, kept)
            self._refs[ref] = sha
        return sha

    def set_ref(self, ref: str, sha: str) -> None:
        self._refs[ref] = sha

    def open_pull_request(self, author: str, base: str) -> int:
        with self.lock:
            number = len(self._authors) + 1
            self._authors[f"refs/pr/{number}"] = author
            self._refs[f"refs/pr/{number}"] = base
        return number

    def is_author(self, name: str | None, ref: str) -> bool:
        """True for the ref of a pull request that the user opened."""
        return name is not None and self._authors.get(ref) == name

    def log(self, sha: str | None) -> list[Commit]:
        """This commit and its ancestors, newest first."""
        commits = []
        while sha is not None:
            commits.append(self._commits[sha])
            sha = commits[-1].parent
        return commits
