"""HTTP: from the socket to a call, from a reply to the socket, and the faults on both ways."""

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote

from local_hub.accounts import Visitor
from local_hub.replies import RefusalError, Reply, part_of
from local_hub.xet import OWN_PATH


@dataclass
class Request:
    """A line of the log. `authorization` tells of a Hub token, `status` is 0 while or because there was no answer."""

    method: str
    path: str
    host: str
    user: str | None
    authorization: bool
    status: int = 0
    body_size: int = 0


@dataclass
class Fault:
    """A fault of the next requests; see `LocalHub.fault`."""

    method: str
    pattern: str
    status: int | None = None
    headers: dict[str, str] | None = None
    body: bytes | None = None
    times: int | None = 1
    cut_after: int | None = None
    delay: float = 0
    change: Callable[[bytes], bytes] | None = None

    def strikes(self, method: str, path: str) -> bool:
        """True if the fault is for this request, which is counted then."""
        if self.times == 0 or not re.fullmatch(self.method, method) or not re.search(self.pattern, path):
            return False
        self.times = self.times and self.times - 1
        return True

    def spoil(self, reply: Reply) -> None:
        reply.headers |= self.headers or {}
        if self.change:
            reply.body = self.change(reply.body)


# Instead of a fault where there is none.
NO_FAULT = Fault("", "")


@dataclass
class Call:
    """A request on its way to a route."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: HTTPMessage
    body: bytes = b""
    visitor: Visitor = field(default_factory=Visitor)

    def json(self) -> dict:
        try:
            return json.loads(self.body or b"{}")
        except ValueError as error:
            raise RefusalError(400, "The body is no JSON") from error

    def flag(self, name: str) -> bool:
        return self.query.get(name, [""])[0].lower() in ("true", "1")


class CutError(Exception):
    """The connection is to be closed at once."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and a body go out together; the client of a kept connection would wait for the second packet.
    disable_nagle_algorithm = True
    wbufsize = -1

    def handle_call(self):
        hub, own = self.server.hub, self.path.startswith(OWN_PATH)
        authorization = self.headers["Authorization"]
        has_token = authorization is not None and not hub.xet.knows(authorization)
        request = Request(self.command, self.path, self.headers["Host"] or "", None, has_token)
        fault = NO_FAULT if own else hub.next_fault(self.command, self.path)
        if not own:
            hub.requests.append(request)
            if has_token and f"http://{request.host}" != hub.endpoint:
                hub.leaks.append(request)
        time.sleep(fault.delay)
        try:
            self._answer(hub, request, fault)
        except (CutError, ConnectionError):
            self.close_connection = True
            self.connection.close()

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_call  # noqa: N815

    def _answer(self, hub, request: Request, fault: Fault) -> None:
        path, _, query = self.path.partition("?")
        call = Call(self.command, path, parse_qs(query), self.headers)
        call.body = self._body(request, fault.cut_after)
        if fault.status is None:
            reply = part_of(hub.answer(call), self.headers["Range"])
        else:
            body = b'{"error": "A fault of the test"}' if fault.body is None else fault.body
            reply = Reply(fault.status, body, {"Content-Type": "application/json"})
        fault.spoil(reply)
        request.user, request.status = call.visitor.name, reply.status
        self._send(reply, fault.cut_after)

    def _body(self, request: Request, cut_after: int | None) -> bytes:
        """The body of the request, of which a fault may take only a part before it cuts the connection."""
        size = int(self.headers["Content-Length"] or 0)
        if size and cut_after is not None:
            request.body_size = len(self.rfile.read(min(size, cut_after)))
            raise CutError
        is_chunked = self.headers["Transfer-Encoding"] == "chunked"
        body = b"".join(iter(self._chunk, b"")) if is_chunked else self.rfile.read(size)
        request.body_size = len(body)
        return body

    def _chunk(self) -> bytes:
        size = int(self.rfile.readline().split(b";")[0], 16)
        content = self.rfile.read(size)
        self.rfile.readline()
        return content

    def _send(self, reply: Reply, cut_after: int | None) -> None:
        self.send_response(reply.status)
        for name, value in ({"Content-Length": str(len(reply.body))} | reply.headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else reply.body[:cut_after])
        self.wfile.flush()
        if cut_after is not None:
            raise CutError

    def log_message(self, *args):
        """The log is `LocalHub.requests`; nothing is printed."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        """Show what went wrong here; a client that goes away is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def find_route(routes: list, method: str, path: str):
    """The function of the first route that fits, with what its pattern captures.

    The path is matched raw and decoded afterwards, so that a branch with a slash is one segment.
    """
    for methods, pattern, function in routes:
        found = re.fullmatch(pattern, path)
        if found and method in methods.split("|"):
            return function, [value and unquote(value) for value in found.groups()]
    return None, []
