"""What a server's metrics show when somebody looks; calls are counted in `observe`."""

from __future__ import annotations

import shutil

from torchfsl.service.net.trust import Trust
from torchfsl.service.net.validity import Validity
from torchfsl.service.server.door import Door
from torchfsl.service.server.health import Health
from torchfsl.service.server.node import Node
from torchfsl.service.server.observe import Observer
from torchfsl.service.server.peers import PeerLink
from torchfsl.service.server.station import Station
from torchfsl.service.state.steps import StoredState


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
    watch("halted", "1 if the session is halted.", lambda: float(bool(node.storage.halted)))
    watch("stalled", "1 while waiting for the peer.", lambda: float(bool(station.stalled)))
    watch(
        "peer_unreachable",
        "1 if the last call to the other server got no answer.",
        lambda: float(link.unreachable),
    )
    watch(
        "disk_free_bytes",
        "Free bytes on the disk of the state folder.",
        lambda: float(shutil.disk_usage(node.storage.folder).free),
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
