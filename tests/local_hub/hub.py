"""The Hub of the tests as a whole: its repositories and users, its log, its faults and its trap."""

import os
import re
import shutil
import socket
import threading
from pathlib import Path

from local_hub import routes, transfers, xet
from local_hub.accounts import Accounts
from local_hub.replies import RefusalError, Reply
from local_hub.repositories import Objects, Repository
from local_hub.server import NO_FAULT, Call, Fault, Handler, Server, find_route


class LocalHub:
    """A Hub on loopback, whose repositories, users and objects live in a folder.

    Large files are stored at another origin, as at a CDN: the same port by another name.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        self.accounts = Accounts()
        self.repositories = {}
        self.objects = Objects(self.folder / "objects")
        self.transfers = transfers.Transfers(self.objects)
        self.xet = xet.Store(self.folder / "xet")
        self._lock = threading.Lock()
        self._count = 0
        self.clear()
        self.forget_offences()

    def start(self) -> None:
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.hub = self
        port = self._server.server_port
        self.endpoint = f"http://127.0.0.1:{port}"
        self.transfers.origin = self.xet.origin = f"http://localhost:{port}"
        self._trap = socket.create_server(("127.0.0.1", 0))
        for work in (self._server.serve_forever, self._catch_strangers):
            threading.Thread(target=work, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._trap.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _catch_strangers(self) -> None:
        """Note what comes to the proxy of the tests, which nobody on loopback uses, and refuse it."""
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
        """The environment of a process that knows this Hub and nothing else; the caller adds HF_HOME."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HF_", "HUGGING")) and not name.lower().endswith("_proxy")
        }
        trap = f"http://127.0.0.1:{self._trap.getsockname()[1]}"
        own = {
            "HF_ENDPOINT": self.endpoint,
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "DISABLE_SAFETENSORS_CONVERSION": "1",
        }
        # The datasets library counts downloads at another host.
        own["HF_UPDATE_DOWNLOAD_COUNTS"] = "0"
        own |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), trap) | {
            "NO_PROXY": "127.0.0.1,localhost"
        }
        own |= {"HF_TOKEN": token} if token else {}
        mode = {name: os.environ[name] for name in ("HF_HUB_DISABLE_XET",) if name in os.environ}
        return inherited | mode | own

    def add_user(self, name: str, orgs=()) -> str:
        """Make a user, who is also of these organisations; returns a token that may write."""
        return self.accounts.add_user(name, orgs)

    def add_token(self, name: str, role: str = "read") -> str:
        return self.accounts.add_token(name, role)

    def create_repository(self, id: str, type: str = "model", private: bool = False) -> Repository:
        with self._lock:
            self._count += 1
            folder = self.folder / "repositories" / f"{self._count}.git"
        repository = Repository(folder, id, type, self.objects)
        repository.private = private
        self.repositories[type, id] = repository
        return repository

    def repository(self, id: str, type: str = "model") -> Repository:
        return self.repositories[type, id]

    def clear(self) -> None:
        """Empty the log and take back the faults."""
        self.requests, self.faults = [], []

    def forget_offences(self) -> None:
        """Empty the lists of who left loopback and of tokens at another origin, which outlive the log."""
        self.strangers, self.leaks = [], []

    def fault(self, method: str, pattern: str, **what) -> Fault:
        """Let the next requests of this method and raw path with query (regular expressions) go wrong.

        Args:
            method (str): The whole of it, like "GET" or "GET|HEAD".
            pattern (str): Found anywhere in the path.
            **what: `times` is how many requests (1; None: all). `status`, `headers` and `body` replace the answer, or
                only its headers; `delay` is in seconds; `cut_after` closes the connection after so many bytes: of the
                request's body if it has one, else of the answer's; `change` is a function of the answer's body.
                Large files go up by "PUT /storage/" (LFS) or "POST /xet/v1/xorbs/", and come down by "GET /storage/" or,
                where the client uses xet and the content was once uploaded so, by "GET /xet/blocks/".
        """
        fault = Fault(method, pattern, **what)
        self.faults.append(fault)
        return fault

    def next_fault(self, method: str, path: str) -> Fault:
        with self._lock:
            return next((fault for fault in self.faults if fault.strikes(method, path)), NO_FAULT)

    def answer(self, call: Call) -> Reply:
        """The reply of the route that a call is for, at the origin that it came to."""
        try:
            if call.headers["Host"].startswith("localhost:"):
                return self._answer_elsewhere(call)
            call.visitor = self.accounts.visitor(call)
            return self._answer_here(call)
        except RefusalError as refusal:
            return refusal.reply()

    def _answer_here(self, call: Call) -> Reply:
        function, names = find_route(routes.PLAIN_ROUTES, call.method, call.path)
        if function:
            return function(self, call, *names)
        place = re.match(routes.REPOSITORY, call.path)
        function, names = find_route(
            routes.REPOSITORY_ROUTES, call.method, call.path[place.end() :] if place else "?"
        )
        if function:
            return function(self, call, routes.repository_of(self, call, *place.groups()), *names)
        raise RefusalError(404, f"There is no {call.method} {call.path} here")

    def _answer_elsewhere(self, call: Call) -> Reply:
        for store, own_routes in ((self.transfers, transfers.ROUTES), (self.xet, xet.ROUTES)):
            function, names = find_route(own_routes, call.method, call.path)
            if function:
                return function(store, call, *names)
        # Among others, what newer forms of the xet protocol have; its client goes on with the older one then.
        raise RefusalError(404, f"There is no {call.method} {call.path} here")
