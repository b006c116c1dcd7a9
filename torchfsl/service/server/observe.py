"""Metrics in Prometheus' text format, a health answer, and logs as JSON lines. Never a secret."""

from __future__ import annotations

import http.server
import json
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from torchfsl.service.server.streams import Stream

_FIELDS = (
    "round", "clients", "reason", "method", "caller", "code", "plan", "why", "server_state",
    "peer", "count", "files", "connections", "needed",
)  # fmt: skip
_HEADERS = (
    ("Content-Security-Policy",
     "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
     "frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)  # fmt: skip
"""Of every answer: a page of text, which loads nothing, and which no other page shows."""


class JsonLines(logging.Formatter):
    """One JSON object a record: time, level, logger, message, and known extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        fields: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: record.__dict__[name] for name in _FIELDS if name in record.__dict__}
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def log_to_stderr(level: str) -> None:
    """Send everything under `torchfsl` to standard error as JSON lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("torchfsl")
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


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

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge that is read when somebody looks."""
        Gauge(f"torchfsl_{name}", text, registry=self.registry).set_function(value)


class ObservationServer:
    """A status page, `/metrics` and `/health` over plain HTTP, for the operator's own network.

    Args:
        host: address to listen on.
        port: 0 for a free one.
        observer: what `/metrics` shows.
        health: state as JSON values; `ok` decides between status 200 and 503.
        page: what `/` shows to people, as HTML.
    """

    def __init__(
        self, host: str, port: int, observer: Observer, health: Callable[[], dict[str, Any]],
        page: Callable[[], bytes],
    ) -> None:  # fmt: skip
        """Start to answer in a thread."""

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    body = prometheus_client.generate_latest(observer.registry)
                    self._answer(200, prometheus_client.CONTENT_TYPE_LATEST, body)
                elif self.path == "/health":
                    state = health()
                    status = 200 if state["ok"] else 503
                    self._answer(status, "application/json", json.dumps(state).encode())
                elif self.path == "/":
                    self._answer(200, "text/html; charset=utf-8", page())
                else:
                    self._answer(404, "text/plain", b"/, /metrics or /health\n")

            def _answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                for name, value in _HEADERS:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
