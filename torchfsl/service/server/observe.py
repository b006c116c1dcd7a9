"""Metrics in Prometheus' text format: calls as they end, and the state when somebody looks."""

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


import shutil

from torchfsl.fsl.server.norms import LIED
from torchfsl.service.net.issuers import Issuers
from torchfsl.service.net.trust import Trust, Validity
from torchfsl.service.server.door import Door
from torchfsl.service.server.health import Health
from torchfsl.service.server.node import Node
from torchfsl.service.server.peers import PeerLink
from torchfsl.service.server.station import Station
from torchfsl.service.server.web_settings import WebSettings
from torchfsl.service.state.steps import StoredState


class Observer:
    """The metrics of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "code", "door")
        self._calls = Counter(
            "torchfsl_calls",
            "Calls answered, by method, status and door.",
            labels,
            registry=self.registry,
        )
        self._bytes = Counter(
            "torchfsl_bytes",
            "Bytes of messages, by method, direction and door.",
            ("method", "direction", "door"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "torchfsl_call_seconds", "Time to answer a call, by method and door.",
            ("method", "door"), registry=self.registry,
        )  # fmt: skip
        self.participations_refused = {"participations-spent": 0.0, "too-early": 0.0}
        prometheus_client.ProcessCollector(registry=self.registry)

    def call(
        self, method: str, code: str, stream: Stream, seconds: float, door: str = "grpc"
    ) -> None:
        """A call has ended; `door` is "grpc" or "web"."""
        self._calls.labels(method, code, door).inc()
        self._bytes.labels(method, "received", door).inc(stream.received)
        self._bytes.labels(method, "sent", door).inc(stream.sent)
        self._seconds.labels(method, door).observe(seconds)

    def refusal(self, code: str) -> None:
        """A call was refused; counts where a participation limit is the reason."""
        if code in self.participations_refused:
            self.participations_refused[code] += 1

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


def watch_all(
    observer: Observer, node: Node, station: Station, link: PeerLink, door: Door, health: Health
) -> None:
    """Show the state of these."""
    _watch_rounds(observer, node, station)
    watch, guests = observer.watch, door.guests
    watch("bytes_in_flight", "Bytes of requests in flight.", lambda: float(station.budget.used))
    watch("calls_in_flight", "Calls in flight.", lambda: float(station.slots.used))
    watch("connections", "Connections with a caller.", lambda: float(guests.num_callers))
    watch("handshakes", "Connections without one yet.", lambda: float(guests.num_strangers))
    observer.count("connections_dropped", "Connections dropped, by why.", lambda: door.dropped)
    watch("ready", "1 if the server can do its work.", lambda: float(not health.unready()))
    observer.count("failures", "Errors that nobody expects, by where.", station.failures.by_kind)
    observer.count(
        "ends_unclean",
        "How often the server has ended without being told to.",
        lambda: {"": float(node.storage.ends_unclean)},
    )
    _watch_budget(observer, node)
    observer.count(
        "audit_alerts", "Alerts of audited rounds and findings, by why.",
        lambda: node.storage.audits.alerts,
    )  # fmt: skip
    watch("halted", "1 if the session is halted.", lambda: float(bool(node.storage.halted)))
    watch(
        "sum_beyond_bound",
        "1 if it is halted since a server lied about its share.",
        lambda: float(LIED in node.storage.halted),
    )
    watch("stalled", "1 while waiting for the peer.", lambda: float(bool(station.stalled)))
    watch(
        "peer_unreachable",
        "1 if the last call to the other server got no answer.",
        lambda: float(link.unreachable or bool(link.expired)),
    )
    watch(
        "disk_free_bytes",
        "Free bytes on the disk of the state folder.",
        lambda: float(shutil.disk_usage(node.storage.folder).free),
    )


def watch_web(
    observer: Observer,
    door: Door,
    refused: Mapping[str, float],
    settings: WebSettings,
    issuers: Issuers,
) -> None:
    """Show the HTTPS door, and which of its calls were refused for which token or other reason."""
    watch, guests = observer.watch, door.guests
    watch("web_connections", "HTTPS with a caller.", lambda: float(guests.num_callers))
    watch("web_handshakes", "HTTPS without one yet.", lambda: float(guests.num_strangers))
    observer.count("web_connections_dropped", "HTTPS dropped, by why.", lambda: door.dropped)
    observer.count("web_refused", "HTTPS calls refused, by code.", lambda: refused)
    watch(
        "web_certificate_seconds_left",
        "Until the certificate of the HTTPS door expires.",
        settings.seconds_left,
    )
    watch(
        "web_admission_stale",
        "1 while a changed admission file cannot be used.",
        lambda: float(issuers.is_stale),
    )


def _watch_budget(observer: Observer, node: Node) -> None:
    """Show how much of the plan's privacy is spent."""
    observer.watch(
        "noise_index",
        "Rounds of the task in which this server's share may have left it.",
        lambda: float(node.storage.rounds_opened),
    )
    observer.watch(
        "max_rounds",
        "Rounds that the plan opens at most; 0 for any number.",
        lambda: float(node.task.plan.max_rounds) if node.task else 0.0,
    )
    observer.count(
        "noise_slots_lost",
        "Past rounds whose noise was lost at the last start.",
        lambda: {"": float(node.storage.noise.lost)},
    )
    observer.count(
        "participations_refused",
        "Calls refused by a participation limit, by code.",
        lambda: observer.participations_refused,
    )


def watch_certificates(observer: Observer, validity: Validity, trust: Trust) -> None:
    """Show how long certificates and authorities hold, and whether who may call is known."""
    observer.watch(
        "certificate_seconds_left",
        "Until a certificate here or an authority expires.",
        lambda: validity.first[1],
    )
    observer.watch(
        "trust_stale",
        "1 while changed certificates, authorities or deny list cannot be used.",
        lambda: float(trust.is_stale or validity.is_stale),
    )


def _watch_rounds(observer: Observer, node: Node, station: Station) -> None:
    def number() -> float:
        last = node.storage.ledger.last_round()
        return float(last.number) if last else -1.0

    def rounds(state: StoredState) -> float:
        return float(node.storage.ledger.num_rounds(state))

    observer.watch("round", "Number of the last round.", number)
    observer.watch("round_open", "1 while reports are taken.", lambda: float(station.is_open))
    for name, text, state in (
        ("rounds_applied", "Rounds of the task that were applied.", StoredState.APPLIED),
        ("rounds_unopened", "Rounds of the task that ended unopened.", StoredState.UNOPENED),
    ):
        observer.count(name, text, lambda state=state: {"": rounds(state)})  # type: ignore[misc]
    observer.count(
        "sums_scaled",
        "Rounds of the task whose sum exceeded its bound and was scaled.",
        lambda: {"": float(node.storage.sums_scaled)},
    )
