"""Repositories of models and datasets: what is large, who wrote which pull request, what is merged."""

import fnmatch
import hashlib
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from local_hub.git import Git, pointer
from local_hub.replies import RefusalError

# What the Hub's first commit of a repository declares as large.
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
class Discussion:
    num: int
    title: str
    description: str
    author: str
    is_pull_request: bool
    status: str
    base: str | None = None
    merged: str | None = None
    seconds: float = field(default_factory=time.time)
    events: list[dict] = field(default_factory=list)

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
        self.discussions = []
        self.created = time.time()
        self.lock = threading.RLock()
        self.git = Git(folder)
        self.write("main", {".gitattributes": ATTRIBUTES.encode()}, self.namespace, "initial commit")

    @property
    def namespace(self) -> str:
        return self.id.split("/")[0]

    @property
    def prefix(self) -> str:
        """Where its pages are: models directly under the endpoint, others under their type."""
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
        """Whether a file belongs to the large ones, as the attributes of that revision or its size say."""
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

    def open(self, title: str, description: str, author: str, base: str | None, status: str) -> Discussion:
        """Begin a discussion, or a pull request on top of the commit `base`."""
        with self.lock:
            num = len(self.discussions) + 1
            discussion = Discussion(num, title, description, author, base is not None, status, base)
            if base is not None:
                self.git.set_ref(discussion.ref, base)
            self.discussions.append(discussion)
        if description:
            discussion.events.append(event("comment", author, comment(description)))
        return discussion

    def discussion(self, num: int) -> Discussion:
        if not 0 < num <= len(self.discussions):
            raise RefusalError(404, "Discussion not found")
        return self.discussions[num - 1]

    def is_author(self, name: str, revision: str) -> bool:
        """Whether this is the ref of a pull request that the user opened and that is not done with."""
        return any(d.ref == revision and d.author == name and d.status in ("open", "draft") for d in self.discussions)

    def conflicts(self, discussion: Discussion) -> list[str]:
        """The files that both the pull request and main changed since they parted."""
        mine, theirs = (self._changes(discussion.base, side) for side in (discussion.ref, "main"))
        return sorted(path for path in mine.keys() & theirs.keys() if mine[path] != theirs[path])

    def _changes(self, base: str, revision: str) -> dict[str, str | None]:
        before, after = self.git.files(base), self.git.files(self.head(revision))
        paths = [path for path in before | after if before.get(path) != after.get(path)]
        return {path: after[path].oid if path in after else None for path in paths}

    def merge(self, discussion: Discussion, author: str) -> str:
        """Bring the changes of a pull request to main."""
        with self.lock:
            if discussion.status not in ("open", "draft") or not discussion.is_pull_request:
                raise RefusalError(400, f"This pull request cannot be merged, it is {discussion.status}")
            if self.conflicts(discussion):
                raise RefusalError(409, "This pull request has conflicts")
            changes = self._changes(discussion.base, discussion.ref)
            contents = {path: oid and self.git.read(oid) for path, oid in changes.items()}
            sha = self.write("main", contents, author, f"{discussion.title} (#{discussion.num})")
            discussion.status, discussion.merged = "merged", sha
            discussion.events.append(event("status-change", author, {"status": "merged"}))
        return sha


def timestamp(seconds: float) -> str:
    """A date as the client parses it."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


def comment(text: str) -> dict:
    return {"edited": False, "hidden": False, "latest": {"raw": text, "html": text}, "history": []}


def event(kind: str, author: str, data: dict) -> dict:
    now = time.time()
    return {
        "id": f"{int(now * 1e6):x}",
        "type": kind,
        "createdAt": timestamp(now),
        "author": {"name": author},
        "data": data,
    }
