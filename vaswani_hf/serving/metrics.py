"""The metrics of the service, in the format of Prometheus."""

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Metrics:
    """Counts requests, sentences and characters, and measures the seconds of each request."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.characters = Counter(
            "vaswani_characters", "Characters of the texts to translate.", registry=self.registry
        )
        self._requests = Counter(
            "vaswani_requests", "Requests by path and status.", ["path", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "vaswani_request_seconds", "Seconds of a request.", ["path"], registry=self.registry
        )
        self._batches = Histogram(
            "vaswani_batch_sentences",
            "Sentences that were translated in one batch.",
            buckets=[2**power for power in range(9)],
            registry=self.registry,
        )
        self._queue = Gauge(
            "vaswani_queue_characters", "Characters of unfinished requests.", registry=self.registry
        )

    def count_batch(self, num_sentences: int) -> None:
        """Count the sentences of a batch."""
        self._batches.observe(num_sentences)

    def watch_queue(self, num_waiting: Callable[[], float]) -> None:
        """Set the function that returns the number of characters in the queue."""
        self._queue.set_function(num_waiting)

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """Return an application that counts and times the requests of `app`."""

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
                # Use the path of the route, because clients can send any other path.
                path = getattr(scope.get("route"), "path", "other")
                self._requests.labels(path, status).inc()
                self._seconds.labels(path).observe(time.perf_counter() - start)

        return measured
