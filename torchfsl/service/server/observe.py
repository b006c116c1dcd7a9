"""Metrics in Prometheus' text format, and pages for operators over plain HTTP."""

from __future__ import annotations

import http.server
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from torchfsl.service.server.streams import Stream

log = logging.getLogger("torchfsl.service.observe")

Page = tuple[int, str, bytes]
"""Status, content type, body."""

_REQUESTS_AT_ONCE: Final = 32
_HEADERS: Final = (
    ("Content-Security-Policy",
     "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
     "frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)  # fmt: skip
"""Of every answer: a page of text, which loads nothing, and which no other page shows."""


class Observer:
    """The metrics of one server."""

    def __init__(self) -> None:
        """All zero."""
        self.registry = CollectorRegistry()
        labels = ("method", "code")
        self._calls = Counter(
            "torchfsl_calls", "Calls answered, by method and status.", labels,
            registry=self.registry,
        )  # fmt: skip
        self._bytes = Counter(
            "torchfsl_bytes", "Bytes of messages, by method and direction.",
            ("method", "direction"), registry=self.registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "torchfsl_call_seconds", "Time to answer a call.", ("method",), registry=self.registry
        )
        prometheus_client.ProcessCollector(registry=self.registry)

    def call(self, method: str, code: str, stream: Stream, seconds: float) -> None:
        """A call has ended."""
        self._calls.labels(method, code).inc()
        self._bytes.labels(method, "received").inc(stream.received)
        self._bytes.labels(method, "sent").inc(stream.sent)
        self._seconds.labels(method).observe(seconds)

    def count(self, name: str, text: str, values: Callable[[], Mapping[str, float]]) -> None:
        """A counter that is read when somebody looks: one value under "", or one by `why`."""
        self.registry.register(_Counted(f"torchfsl_{name}", text, values))

    def page(self) -> Page:
        """All of them, as Prometheus reads them."""
        return 200, prometheus_client.CONTENT_TYPE_LATEST, generate_latest(self.registry)

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge that is read when somebody looks."""
        Gauge(f"torchfsl_{name}", text, registry=self.registry).set_function(value)


class _Counted(Collector):
    """A counter whose values are elsewhere."""

    def __init__(self, name: str, text: str, values: Callable[[], Mapping[str, float]]) -> None:
        self._name, self._text, self._values = name, text, values

    def collect(self) -> Iterator[CounterMetricFamily]:
        values = dict(self._values())
        if set(values) == {""}:
            yield CounterMetricFamily(self._name, self._text, values[""])
            return
        family = CounterMetricFamily(self._name, self._text, labels=["why"])
        for why, value in values.items():
            family.add_metric([why], value)
        yield family


class ObservationServer:
    """Pages over plain HTTP, for the operator's own network.

    Args:
        listening: bound socket.
        pages: by path; called in a thread of the request's own.

    Attributes:
        port: of the socket.
    """

    def __init__(self, listening: socket.socket, pages: Mapping[str, Callable[[], Page]]) -> None:
        """Start to answer in a thread."""

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                page = pages.get(self.path.partition("?")[0])
                status, kind, body = page() if page is not None else _nothing(pages)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                for name, value in _HEADERS:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.port = int(listening.getsockname()[1])
        self._server = _FewThreads(listening, Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()


class _FewThreads(http.server.ThreadingHTTPServer):
    """A thread a request, a few at a time: whoever comes beyond is hung up on."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, handler: Any) -> None:
        super().__init__(("", 0), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_activate()
        self._room = threading.BoundedSemaphore(_REQUESTS_AT_ONCE)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.info("a request for metrics or health failed", exc_info=True)


def _nothing(pages: Mapping[str, Any]) -> Page:
    return 404, "text/plain", f"there are {', '.join(pages)}\n".encode()
