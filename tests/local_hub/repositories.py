"""Repositories of models and datasets: which files are large, and who opened which pull request."""

import fnmatch
import hashlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from local_hub.git import Git, pointer
from local_hub.replies import RefusalError

# The files that the Hub's first commit of a repository declares as large.
LARGE = """\
*.7z *.arrow *.bin *.bz2 *.ckpt *.ftz *.gz *.h5 *.joblib *.lfs.* *.mlmodel *.model *.msgpack *.npy *.npz *.onnx *.ot
*.parquet *.pb *.pickle *.pkl *.png *.jpg *.jpeg *.gif *.webp *.pt *.pth *.rar *.safetensors saved_model/**/* *.tar.*
*.tar *.tflite *.tgz *.wasm *.xz *.zip *.zst *tfevents*""".split()
ATTRIBUTES = "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in LARGE)
LARGE_BYTES = 10 * 1024 * 1024


class Objects:
    """The large files of all repositories by their sha256."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True)

    def add(self, content: bytes) -> str:
        sha256 = hashlib.sha256(content).hexdigest()
        part = self.folder / f"{sha256}.{threading.get_ident()}"
        part.write_bytes(content)
        part.rename(self.folder / sha256)
        return sha256

    def __contains__(self, sha256: str) -> bool:
        return (self.folder / sha256).exists()

    def read(self, sha256: str) -> bytes:
        return (self.folder / sha256).read_bytes()


@dataclass
class PullRequest:
    num: int
    author: str

    @property
    def ref(self) -> str:
        return f"refs/pr/{self.num}"


class Repository:
    """A repository of the Hub.

    `private` and `gated` can be set; `commit`, `files`, `head` and `refs` are for tests that prepare or inspect it
    behind the Hub's back.
    """

    def __init__(self, folder: Path, id: str, type: str, objects: Objects):
        self.id, self.type, self.objects = id, type, objects
        self.private, self.gated, self.granted = False, False, set()
        self.requests = []
        self.created = time.time()
        self.lock = threading.RLock()
        self.git = Git(folder)
        self.write("main", {".gitattributes": ATTRIBUTES.encode()}, self.namespace, "initial commit")

    @property
    def namespace(self) -> str:
        return self.id.split("/")[0]

    @property
    def prefix(self) -> str:
        """The path of its pages: models directly under the endpoint, others under their type."""
        return self.id if self.type == "model" else f"{self.type}s/{self.id}"

    def grant(self, user: str) -> None:
        self.granted.add(user)

    def refs(self) -> dict[str, str]:
        """Commits by full name: refs/heads/main, refs/tags/v1.0, refs/pr/1."""
        return self.git.refs()

    def head(self, revision: str = "main") -> str:
        """The commit of a revision, or a refusal."""
        sha = self.git.find(revision)
        if sha is None:
            raise RefusalError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return sha

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """All contents by path, also the .gitattributes that every repository begins with."""
        return {path: self.read(file) for path, file in self.git.files(self.head(revision)).items()}

    def read(self, file) -> bytes:
        return self.objects.read(file.sha256) if file.sha256 else self.git.read(file.oid)

    def is_large(self, path: str, size: int, revision: str) -> bool:
        """True for a large file by the attributes of that revision, or by its size."""
        if not size:
            return False
        attributes = self.git.files(self.head(revision)).get(".gitattributes")
        lines = self.git.read(attributes.oid).decode().splitlines() if attributes else []
        patterns = [line.split()[0] for line in lines if "filter=lfs" in line]
        name = path.split("/")[-1]
        named = any(fnmatch.fnmatchcase(path if "/" in pattern else name, pattern) for pattern in patterns)
        return named or size > LARGE_BYTES

    def commit(self, changes: dict[str, bytes | None], message: str = "", branch: str = "main") -> str:
        """Write contents as if they had been pushed; None deletes a file. A new branch begins at main."""
        if f"refs/heads/{branch}" not in self.refs():
            self.git.set_ref(f"refs/heads/{branch}", self.head())
        contents = {}
        for path, content in changes.items():
            large = content is not None and self.is_large(path, len(content), branch)
            contents[path] = pointer(self.objects.add(content), len(content)) if large else content
        return self.write(branch, contents, self.namespace, message or "Change files")

    def write(self, revision: str, contents: dict[str, bytes | None], author: str, message: str) -> str:
        """Commit contents and pointers to a branch or a pull request."""
        with self.lock:
            ref = revision if revision.startswith("refs/") else f"refs/heads/{revision}"
            return self.git.commit(ref, self.git.refs().get(ref), contents, author, message)

    def open(self, author: str, base: str) -> PullRequest:
        """Begin a pull request on top of a commit."""
        with self.lock:
            request = PullRequest(len(self.requests) + 1, author)
            self.git.set_ref(request.ref, base)
            self.requests.append(request)
        return request

    def is_author(self, name: str, revision: str) -> bool:
        """True for the ref of a pull request that the user opened."""
        return any(request.ref == revision and request.author == name for request in self.requests)


def timestamp(seconds: float) -> str:
    """A date as the client parses it."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"
