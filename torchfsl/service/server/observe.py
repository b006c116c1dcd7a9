"""Metrics in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from torchfsl.service.server.observation import Page

if TYPE_CHECKING:
    from torchfsl.service.server.streams import Stream


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
