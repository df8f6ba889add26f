"""Collects the metrics of the HTTP service for Prometheus."""

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Metrics:
    """Counts requests, sentences and characters, and measures the duration of each request in seconds."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.characters = Counter(
            "vaswani_characters",
            "Number of characters of all texts that the service has put into the queue.",
            registry=self.registry,
        )
        self._requests = Counter(
            "vaswani_requests",
            "Number of requests by path and HTTP status.",
            ["path", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "vaswani_request_seconds", "Duration of a request in seconds.", ["path"], registry=self.registry
        )
        self._batches = Histogram(
            "vaswani_batch_sentences",
            "Number of sentences of a translated batch.",
            buckets=[2**power for power in range(9)],
            registry=self.registry,
        )
        self._queue = Gauge(
            "vaswani_queue_characters", "Number of characters of unfinished requests.", registry=self.registry
        )

    def count_batch(self, num_sentences: int) -> None:
        """Record the number of sentences of a translated batch."""
        self._batches.observe(num_sentences)

    def watch_queue(self, num_waiting: Callable[[], float]) -> None:
        """Report the result of `num_waiting`, the number of characters in the queue, as a metric."""
        self._queue.set_function(num_waiting)

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """Return an ASGI application that calls `app`, counts the requests and measures their duration."""

        async def measured(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            status = 500
            start = time.perf_counter()

            async def send_counted(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            try:
                await app(scope, receive, send_counted)
            finally:
                # Count unknown paths as "other", because clients can request many different paths, and each
                # label needs memory.
                path = getattr(scope.get("route"), "path", "other")
                self._requests.labels(path, status).inc()
                self._seconds.labels(path).observe(time.perf_counter() - start)

        return measured
