"""The Hub of the tests: its users and repositories, its log, the faults of its answers, and a trap for other traffic."""

import os
import re
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from local_hub import routes, xet
from local_hub.routes import Call, RefusalError, Reply
from local_hub.storage import File, Repository, large_file


@dataclass
class Request:
    """A line of the log. `has_token` is True for a token of the Hub. `status` is 0 if there was no answer."""

    method: str
    path: str
    host: str
    has_token: bool
    status: int = 0


@dataclass
class Fault:
    """A fault of the next requests whose method and raw path with query match these regular expressions.

    Large files are uploaded by "PUT /storage/" (LFS) or "POST /xet/v1/xorbs/". They are downloaded by "GET /storage/" or,
    if the client uses xet and the file was uploaded with xet, by "GET /xet/blocks/".

    Attributes:
        method: The whole method, such as "GET".
        pattern: A regular expression that may match anywhere in the path.
        times: How many requests; None for all.
        status, body: The answer instead of the Hub's own.
        headers: Headers that are added to the answer.
        cut_after: The connection is closed after so many bytes of the request's body or, without a body, of the answer.
        change: A function that changes the body of the answer.
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
        """True if the fault is for this request. The request is counted."""
        if self.times == 0 or not re.fullmatch(self.method, method) or not re.search(self.pattern, path):
            return False
        if self.times is not None:
            self.times -= 1
        return True


NO_FAULT = Fault("", "")


class CutError(Exception):
    """The connection is to be closed at once."""


def part_of(reply: Reply, range_header: str | None) -> Reply:
    """The part of a file that a Range header asks for."""
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", range_header or "")
    if reply.status != 200 or "Accept-Ranges" not in reply.headers or found is None:
        return reply
    size = len(reply.body)
    start = int(found[1])
    end = min(int(found[2] or size - 1) + 1, size)
    if start >= size:
        return Reply(416, b"", {"Content-Range": f"bytes */{size}"})
    headers = {**reply.headers, "Content-Range": f"bytes {start}-{end - 1}/{size}"}
    return Reply(206, reply.body[start:end], headers)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Send headers and body together, because the client would otherwise wait for the second packet.
    disable_nagle_algorithm = True
    wbufsize = -1

    def handle_call(self):
        hub = self.server.hub
        authorization = (self.headers["Authorization"] or "").removeprefix("Bearer ")
        has_token = authorization != "" and authorization not in hub.xet.tokens
        request = Request(self.command, self.path, self.headers["Host"] or "", has_token)
        fault = NO_FAULT
        if not self.path.startswith(xet.OWN_PATH):
            fault = hub.next_fault(self.command, self.path)
            hub.requests.append(request)
            if has_token and f"http://{request.host}" != hub.endpoint:
                hub.leaks.append(request)
        try:
            self._answer(hub, request, fault)
        except (CutError, ConnectionError):
            self.close_connection = True
            self.connection.close()

    do_GET = do_HEAD = do_POST = do_PUT = handle_call  # noqa: N815

    def _answer(self, hub, request: Request, fault: Fault) -> None:
        path, _, query = self.path.partition("?")
        call = Call(self.command, path, parse_qs(query), self.headers, self._body(fault.cut_after))
        if fault.status is None:
            reply = part_of(hub.answer(call), self.headers["Range"])
        else:
            reply = Reply(fault.status, fault.body, {"Content-Type": "application/json"})
        if fault.change:
            reply.body = fault.change(reply.body)
        request.status = reply.status
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
        if self.headers["Transfer-Encoding"] == "chunked":
            return b"".join(iter(self._chunk, b""))
        return self.rfile.read(size)

    def _chunk(self) -> bytes:
        size = int(self.rfile.readline().split(b";")[0], 16)
        content = self.rfile.read(size)
        self.rfile.readline()
        return content

    def log_message(self, *args):
        """The log is `LocalHub.requests`; nothing is printed."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        """Prints an error of the server. A client that closes the connection is not an error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class LocalHub:
    """A Hub on loopback. Large files are at another origin, as on a CDN; the other origin is the same port
    under another host name.
    """

    def __init__(self):
        # Names and roles by token.
        self.users: dict[str, tuple[str, str]] = {}
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.xet = xet.Store()
        self.signature = secrets.token_hex(8)
        self._lock = threading.Lock()
        self.clear()
        self.forget_offences()

    def start(self) -> None:
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.hub = self
        port = self._server.server_port
        self.endpoint = f"http://127.0.0.1:{port}"
        self.storage_origin = self.xet.origin = f"http://localhost:{port}"
        self._trap = socket.create_server(("127.0.0.1", 0))
        for work in (self._server.serve_forever, self._catch_strangers):
            threading.Thread(target=work, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._trap.close()

    def _catch_strangers(self) -> None:
        """Records and refuses all requests to the proxy of the tests. Requests to loopback do not use the proxy."""
        while True:
            try:
                connection, _ = self._trap.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(2)
                try:
                    self.strangers.append(connection.recv(1000).decode(errors="replace").split("\r\n")[0])
                    connection.sendall(
                        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                    )
                except OSError:
                    self.strangers.append("a connection without a request")

    def environment(self, token: str | None = None) -> dict[str, str]:
        """The environment of a process that uses only this Hub; the caller adds HF_HOME."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HF_", "HUGGING")) and not name.lower().endswith("_proxy")
        }
        trap = f"http://127.0.0.1:{self._trap.getsockname()[1]}"
        environment |= {
            "HF_ENDPOINT": self.endpoint,
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "DISABLE_SAFETENSORS_CONVERSION": "1",
            # The datasets library counts downloads at another host.
            "HF_UPDATE_DOWNLOAD_COUNTS": "0",
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), trap),
            "NO_PROXY": "127.0.0.1,localhost",
        }
        if token is not None:
            environment["HF_TOKEN"] = token
        if "HF_HUB_DISABLE_XET" in os.environ:
            environment["HF_HUB_DISABLE_XET"] = os.environ["HF_HUB_DISABLE_XET"]
        return environment

    def add_token(self, name: str, role: str = "write") -> str:
        """Makes a token of a user, who may be new."""
        token = "hf_" + secrets.token_hex(17)
        self.users[token] = (name, role)
        return token

    def create_repository(self, id: str, type: str = "model", private: bool = False) -> Repository:
        repository = Repository(id, type, self.objects)
        repository.private = private
        self.repositories[type, id] = repository
        return repository

    def repository(self, id: str, type: str = "model") -> Repository:
        return self.repositories[type, id]

    def uploaded(self, path: str, sha256: str) -> File:
        """A large file that was uploaded with xet or LFS."""
        if sha256 not in self.objects:
            content = self.xet.content(sha256)
            if content is None:
                raise RefusalError(400, f"The content of {path} (sha256 {sha256}) was never uploaded")
            self.objects[sha256] = content
        return large_file(self.objects[sha256])

    def clear(self) -> None:
        """Empties the log and takes back the faults."""
        self.requests: list[Request] = []
        self.faults: list[Fault] = []

    def forget_offences(self) -> None:
        """Empties the lists of requests that left loopback and of tokens that another origin received."""
        self.strangers: list[str] = []
        self.leaks: list[Request] = []

    def fault(self, method: str, pattern: str, **options) -> None:
        """Disturbs the next requests; see `Fault`."""
        self.faults.append(Fault(method, pattern, **options))

    def next_fault(self, method: str, path: str) -> Fault:
        with self._lock:
            return next((fault for fault in self.faults if fault.strikes(method, path)), NO_FAULT)

    def answer(self, call: Call) -> Reply:
        try:
            if call.headers["Host"].startswith("localhost:"):
                return self._answer_storage(call)
            token = (call.headers["Authorization"] or "").removeprefix("Bearer ")
            if token:
                if token not in self.users:
                    is_whoami = call.path == "/api/whoami-v2"
                    message = (
                        "Invalid user token." if is_whoami else "Invalid credentials in Authorization header"
                    )
                    raise RefusalError(401, message)
                call.user, call.role = self.users[token]
            return routes.answer_api(self, call)
        except RefusalError as refusal:
            return refusal.reply

    def _answer_storage(self, call: Call) -> Reply:
        if call.path.startswith("/storage/"):
            function, names = routes.find_route(routes.STORAGE_ROUTES, call, call.path)
            return function(self, call, *names)
        # The xet protocol has newer routes. If they are missing, the client uses these.
        function, names = routes.find_route(xet.ROUTES, call, call.path)
        return function(self.xet, call, *names)
