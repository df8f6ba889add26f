"""The Hub of the tests: its users and repositories, its log, and the faults of its answers."""

import os
import re
import secrets
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from local_hub import routes
from local_hub.repositories import Repository, XetStore
from local_hub.routes import Call, RefusalError, Reply


@dataclass
class Fault:
    """A fault of the next requests whose method and raw path with query match these regular expressions.

    `pattern` may match anywhere in the path. `times` is the number of requests; None means all. `status` and
    `body` replace the answer of the Hub, `headers` are added, and `change` changes the body. The connection
    is closed after `cut_after` bytes of the request's body or, without a body, of the answer.
    """

    method: str
    pattern: str
    status: int | None = None
    headers: dict[str, str] | None = None
    body: bytes = b'{"error": "A fault of the test"}'
    times: int | None = 1
    cut_after: int | None = None
    change: Callable[[bytes], bytes] | None = None

    def strikes(self, method: str, path: str) -> bool:
        """Return True if the fault applies to this request, and count the request."""
        if self.times == 0 or not re.fullmatch(self.method, method) or not re.search(self.pattern, path):
            return False
        if self.times is not None:
            self.times -= 1
        return True


NO_FAULT = Fault("", "")


class CutError(Exception):
    """Raised to close the connection at once."""


def part_of(reply: Reply, range_header: str | None) -> Reply:
    """The part of a file that a Range header asks for."""
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", range_header or "")
    if reply.status != 200 or "Accept-Ranges" not in reply.headers or found is None:
        return reply
    size = len(reply.body)
    start = int(found[1])
    end = min(int(found[2] or size - 1) + 1, size)
    headers = {**reply.headers, "Content-Range": f"bytes {start}-{end - 1}/{size}"}
    return Reply(206, reply.body[start:end], headers)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Send headers and body together, because the client would otherwise wait for the second packet.
    disable_nagle_algorithm = True
    wbufsize = -1

    def handle_call(self):
        if not self.path.startswith("/"):
            self.do_CONNECT()
            return
        try:
            self._answer(self.server.hub)
        except (CutError, ConnectionError):
            self.close_connection = True
            self.connection.close()

    do_GET = do_HEAD = do_POST = do_PUT = handle_call  # noqa: N815

    def do_CONNECT(self):  # noqa: N802
        """Record and refuse a request to another host. The tests name the Hub as the proxy for all other
        hosts.
        """
        self.server.hub.strangers.append(self.path)
        self.send_error(403)

    def _answer(self, hub) -> None:
        fault = hub.next_fault(self.command, self.path)
        hub.requests.append(self.path)
        path, _, query = self.path.partition("?")
        call = Call(self.command, path, parse_qs(query), self.headers, self._body(fault.cut_after))
        if fault.status is None:
            reply = part_of(hub.answer(call), self.headers["Range"])
        else:
            reply = Reply(fault.status, fault.body, {"Content-Type": "application/json"})
        if fault.change:
            reply.body = fault.change(reply.body)
        self.send_response(reply.status)
        headers = {"Content-Length": str(len(reply.body)), **reply.headers, **(fault.headers or {})}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else reply.body[: fault.cut_after])
        self.wfile.flush()
        if fault.cut_after is not None:
            raise CutError

    def _body(self, cut_after: int | None) -> bytes:
        size = int(self.headers["Content-Length"] or 0)
        if size and cut_after is not None:
            self.rfile.read(min(size, cut_after))
            raise CutError
        return self.rfile.read(size)

    def log_message(self, *args):
        """The log is `LocalHub.requests`; nothing is printed."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        """Print an error of the server. A client that closes the connection is not an error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class LocalHub:
    """A Hub on loopback."""

    def __init__(self):
        # Names and roles by token.
        self.users: dict[str, tuple[str, str]] = {}
        # Repositories by type and name.
        self.repositories: dict[tuple[str, str], Repository] = {}
        # The contents of large files that were uploaded, by sha256.
        self.objects: dict[str, bytes] = {}
        self.xet = XetStore()
        # The requests to other hosts.
        self.strangers: list[str] = []
        self._lock = threading.Lock()
        self.clear()
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.hub = self
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def environment(self, token: str | None = None) -> dict[str, str]:
        """The environment of a process that uses only this Hub; the caller adds HF_HOME."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HF_", "HUGGING")) and not name.lower().endswith("_proxy")
        }
        environment |= {
            "HF_ENDPOINT": self.endpoint,
            "HF_HUB_DISABLE_TELEMETRY": "1",
            # Large files move with Git LFS. The fixture `transfer` also moves them with xet.
            "HF_HUB_DISABLE_XET": "1",
            "DISABLE_SAFETENSORS_CONVERSION": "1",
            # The datasets library counts downloads at another host.
            "HF_UPDATE_DOWNLOAD_COUNTS": "0",
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), self.endpoint),
            "NO_PROXY": "127.0.0.1,localhost",
        }
        if token is not None:
            environment["HF_TOKEN"] = token
        return environment

    def add_token(self, name: str, role: str = "write") -> str:
        """Make an access token of a user. A new name makes a new user."""
        token = "hf_" + secrets.token_hex(17)
        self.users[token] = (name, role)
        return token

    def create_repository(self, id: str, type: str = "model", private: bool = False) -> Repository:
        self.repositories[type, id] = Repository(id, type, private)
        return self.repositories[type, id]

    def repository(self, id: str, type: str = "model") -> Repository:
        return self.repositories[type, id]

    def uploaded(self, sha256: str) -> bytes:
        """A large file that was uploaded with xet or LFS."""
        content = self.objects.get(sha256) or self.xet.content(sha256)
        if content is None:
            raise RefusalError(400, f"The file with the sha256 {sha256} was never uploaded")
        return content

    def uploads(self) -> list[str]:
        """The requests that uploaded a large file with Git LFS."""
        return [path for path in self.requests if path.startswith("/storage/")]

    def clear(self) -> None:
        """Empty the log, and take back the faults."""
        self.requests: list[str] = []
        self.faults: list[Fault] = []

    def fault(self, method: str, pattern: str, **options) -> None:
        """Disturb the next requests; see `Fault`."""
        self.faults.append(Fault(method, pattern, **options))

    def next_fault(self, method: str, path: str) -> Fault:
        with self._lock:
            return next((fault for fault in self.faults if fault.strikes(method, path)), NO_FAULT)

    def answer(self, call: Call) -> Reply:
        token = (call.headers["Authorization"] or "").removeprefix("Bearer ")
        try:
            if token and token not in self.users:
                is_whoami = call.path == "/api/whoami-v2"
                credentials = "Invalid credentials in Authorization header"
                raise RefusalError(401, "Invalid user token." if is_whoami else credentials)
            if token:
                call.user, call.role = self.users[token]
            with self._lock:
                return routes.answer(self, call)
        except RefusalError as refusal:
            return refusal.reply
