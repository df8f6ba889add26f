"""Runs the application of the service in the web server uvicorn."""

import errno
import logging
import os
import shlex
import signal
import socket
import sys
from typing import TYPE_CHECKING

from ..model.errors_vaswani import InvalidValueError
from ..version import install_command

if TYPE_CHECKING:
    from .directions import Direction
    from .service import Service

# The environment variable that contains the API key of the service.
API_KEY = "VASWANI_API_KEY"
# Limit the number of connections, because each connection needs a file descriptor. The service refuses a
# connection above the limit with the HTTP status 503.
_MOST_CONNECTIONS = 1000
# The number of seconds after which the service closes an idle connection. The default limit of uvicorn for
# idle connections, 5 seconds, is too short: slow clients often send a request while the service closes the
# connection.
_KEEP_ALIVE = 75
# The error numbers of a socket if another program uses the port, or if the user is not allowed to open the
# port. The service reports any other error number as an error of `--host`.
_PORT_ERRORS = (errno.EADDRINUSE, errno.EACCES)


def listening_socket(host: str, port: int) -> socket.socket:
    """Open the port before loading the models, so that an error about the port is reported immediately."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno not in _PORT_ERRORS:
            raise InvalidValueError(
                f"`--host` must be an address of this machine, but is {host!r} ({error.strerror})."
            ) from error
        raise InvalidValueError(
            f"`--port` must be a free port, but {port} cannot be used ({os.strerror(error.errno)}); give "
            "another port, or 0 for any free port."
        ) from error
    # uvicorn sends the header and the body of an answer separately. Without TCP_NODELAY, the body waits 40 ms
    # until the client acknowledges the header. The connections of the clients inherit TCP_NODELAY from the
    # listening socket.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def run_server(service: "Service", listening: socket.socket) -> None:
    """Answer requests until the process receives SIGINT or SIGTERM. Print the address of the service before
    the first request.
    """
    # The import of uvicorn takes seconds. Therefore `vaswani serve` opens the port, and reports an error
    # about the port, before the import.
    import uvicorn

    from .app import make_app

    # Turn off the logs of uvicorn, because the access log contains queries and the error log contains
    # tracebacks.
    config = uvicorn.Config(
        make_app(service, lambda: _announce(service, listening)),
        log_config=None,
        log_level="critical",
        access_log=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=int(service.limits.timeout) + 1,
    )
    server = uvicorn.Server(config)
    # After a graceful stop, uvicorn sends the signal to the process again. Ignore the second signal, because
    # the service has already stopped.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Turn off the warnings of the translator and of the library `python_multipart`, because the warnings
    # contain parts of texts, such as missing phrases.
    for name in ("vaswani_hf.model", "python_multipart"):
        logging.getLogger(name).setLevel(logging.ERROR)
    server.run(sockets=[listening])


def _announce(service: "Service", listening: socket.socket) -> None:
    """Print the address of the service and an example of a request."""
    host, port = listening.getsockname()[:2]
    address = http_address(host, port)
    directions = service.directions
    pairs = ", ".join(f"{one.source} to {one.target}" for one in directions)
    print(f"vaswani serves {pairs} at {address} (Ctrl-C ends the service)", file=sys.stderr)
    print(f"try: {_curl_line(address, service.needs_key, next(iter(directions)))}", file=sys.stderr)
    if directions.detector is None and len(directions.sources()) > 1:
        print(
            "each request must name its source language, because py3langid is not installed; install py3langid "
            f"with `{install_command('language_check')}`",
            file=sys.stderr,
        )


def http_address(host: str, port: int) -> str:
    """Return the URL of a server."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _curl_line(address: str, needs_key: bool, direction: "Direction") -> str:
    data = {"q": "Hello, world!", "source": direction.source, "target": direction.target}
    words = ["curl", f"{address}/translate"]
    for name, value in data.items():
        words += ["--data-urlencode", f"{name}={value}"]
    line = shlex.join(words)
    return f'{line} -H "Authorization: Bearer ${API_KEY}"' if needs_key else line
