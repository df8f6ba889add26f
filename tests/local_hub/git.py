"""A bare git repository: refs, listings, contents and commits, by the git command."""

import os
import re
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\noid sha256:([0-9a-f]{64})\nsize (\d+)\n"
)
# No pointer is longer: its first line, a hash and a number.
LONGEST_POINTER = 160


def pointer(sha256: str, size: int) -> bytes:
    """The text that git keeps in place of a large file."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


@dataclass(frozen=True)
class File:
    """A file of a commit; of a large one, `size` is its own and `sha256` is set."""

    path: str
    oid: str
    size: int
    sha256: str | None = None
    pointer_size: int | None = None

    @property
    def etag(self) -> str:
        return self.sha256 or self.oid


@dataclass(frozen=True)
class Commit:
    sha: str
    author: str
    seconds: int
    title: str
    message: str
    paths: set[str]


class Git:
    def __init__(self, folder: Path):
        self.folder = folder
        # Refs are read once after each change; requests come from many threads.
        self._refs, self._lock = None, threading.RLock()
        self._files = {}
        self._run("init", "--quiet", "--bare", "--initial-branch=main", str(folder))

    def _run(self, *arguments: str, given: bytes = b"") -> bytes:
        # Neither the user's settings nor a repository around the tests may matter.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        environment |= {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_DIR": str(self.folder),
        }
        for role in ("AUTHOR", "COMMITTER"):
            environment |= {f"GIT_{role}_NAME": "hub", f"GIT_{role}_EMAIL": "hub@localhost"}
        done = subprocess.run(
            ["git", *arguments], input=given, capture_output=True, env=environment, check=False
        )
        if done.returncode:
            raise RuntimeError(f"git {arguments[0]}: {done.stderr.decode()}")
        return done.stdout

    def refs(self) -> dict[str, str]:
        """The commits of all refs by full name."""
        with self._lock:
            if self._refs is None:
                lines = self._run("for-each-ref", "--format=%(refname) %(objectname) %(*objectname)").decode()
                self._refs = {line.split()[0]: line.split()[-1] for line in lines.splitlines()}
            return dict(self._refs)

    def _change(self, *arguments: str, given: bytes = b"") -> bytes:
        with self._lock:
            self._refs = None
            return self._run(*arguments, given=given)

    def find(self, revision: str) -> str | None:
        """The commit of a branch, tag, full ref name or hash."""
        refs = self.refs()
        for name in (revision, f"refs/heads/{revision}", f"refs/tags/{revision}"):
            if name in refs:
                return refs[name]
        if re.fullmatch(r"[0-9a-f]{7,40}", revision):
            found = self._run("rev-list", "--all").decode().split()
            return next((sha for sha in found if sha.startswith(revision)), None)
        return None

    def files(self, sha: str) -> dict[str, File]:
        """The files of a commit by path."""
        if sha not in self._files:
            found = {}
            for line in self._run("ls-tree", "-r", "-l", "-z", sha).decode().split("\0")[:-1]:
                fields, path = line.split("\t", 1)
                found[path] = self._file(path, fields.split()[2], int(fields.split()[3]))
            self._files[sha] = found
        return self._files[sha]

    def _file(self, path: str, oid: str, size: int) -> File:
        found = POINTER.fullmatch(self.read(oid)) if 100 < size <= LONGEST_POINTER else None
        return File(path, oid, int(found[2]), found[1].decode(), size) if found else File(path, oid, size)

    def folders(self, sha: str) -> dict[str, str]:
        """The hashes of the folders of a commit by path."""
        lines = self._run("ls-tree", "-r", "-d", "-z", sha).decode().split("\0")[:-1]
        return {line.split("\t", 1)[1]: line.split()[2] for line in lines}

    def read(self, oid: str) -> bytes:
        return self._run("cat-file", "blob", oid)

    def commit(
        self, ref: str, parent: str | None, changes: dict[str, bytes | None], author: str, message: str
    ) -> str:
        """Write these contents (None deletes) on top of a commit, and let the ref name the result."""
        text = message.encode()
        person = f"{author} <{author}@localhost> {int(time.time())} +0000".encode()
        lines = [b"commit %s\nmark :1\ncommitter %s\ndata %d\n%s" % (ref.encode(), person, len(text), text)]
        if parent:
            lines.append(b"from %s" % parent.encode())
        for path, content in changes.items():
            quoted = b'"%s"' % path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").encode()
            if content is None:
                lines.append(b"D %s" % quoted)
            else:
                lines.append(b"M 100644 inline %s\ndata %d\n%s" % (quoted, len(content), content))
        lines += [b"", b"get-mark :1", b"done", b""]
        return (
            self._change("fast-import", "--quiet", "--force", "--done", given=b"\n".join(lines))
            .decode()
            .strip()
        )

    def set_ref(self, name: str, sha: str | None) -> None:
        self._change("update-ref", *([name, sha] if sha else ["-d", name]))

    def tag(self, name: str, sha: str, message: str | None) -> None:
        self._change("tag", *(["-m", message] if message else []), name, sha)

    def log(self, sha: str) -> list[Commit]:
        """The commits that lead to this one, newest first."""
        # Each begins with a byte 1; its fields and then the paths of its files end with a byte 0.
        form = "--format=%x01%H%x00%an%x00%ct%x00%s%x00%b%x00"
        commits = []
        for text in self._run("log", "-z", "--name-only", form, sha).decode().split("\x01")[1:]:
            sha, author, seconds, title, body, *files = text.split("\0")
            paths = {path.strip("\n") for path in files if path.strip("\n")}
            paths |= {str(folder) for path in paths for folder in PurePosixPath(path).parents}
            commits.append(Commit(sha, author, int(seconds), title, body.strip(), paths))
        return commits
