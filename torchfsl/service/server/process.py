"""The server process: settings, sockets, start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import logging
import shutil
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import grpc
import grpc.aio

from torchfsl.errors import ParameterError
from torchfsl.service.net.addresses import bound_socket, split_address
from torchfsl.service.net.calls import FRAME_LIMIT
from torchfsl.service.net.channels import TlsFiles, server_credentials, target
from torchfsl.service.net.identity import Identity, Role
from torchfsl.service.server.coordinator import Coordinator
from torchfsl.service.server.descriptors import connections_for, files_for, raise_file_limit
from torchfsl.service.server.door import Door
from torchfsl.service.server.fetching import FetchDesk
from torchfsl.service.server.follower import Follower
from torchfsl.service.server.handlers import all_methods
from torchfsl.service.server.intake import Limits
from torchfsl.service.server.node import Node
from torchfsl.service.server.observe import ObservationServer, Observer
from torchfsl.service.server.overview import Overview
from torchfsl.service.server.peers import PeerLink, Relays
from torchfsl.service.server.router import Router
from torchfsl.service.server.station import Station
from torchfsl.service.server.storage import NodeSettings
from torchfsl.service.server.supervision import supervised
from torchfsl.service.state.steps import StoredState

log = logging.getLogger("torchfsl.service")


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """One server process.

    Attributes:
        party: 0 or 1.
        listen: `HOST:PORT`; port 0 takes a free one.
        peer: URL of the other server.
        state: folder of the durable state.
        tls: key, certificates, authorities.
        metrics: `HOST:PORT` of metrics and health; empty for none.
        node: limits of the state.
        limits: limits of the traffic.
    """

    party: int
    listen: str
    peer: str
    state: Path
    tls: TlsFiles
    metrics: str = ""
    node: NodeSettings = field(default_factory=NodeSettings)
    limits: Limits = field(default_factory=Limits)


class ServerProcess:
    """A running server; `start`, then `port` is known."""

    def __init__(self, settings: ServeSettings) -> None:
        """Recover the state; no socket is open yet."""
        identity = settings.tls.identity()
        for name, check in (("listen", split_address), ("peer", target)):
            try:
                check(getattr(settings, name))
            except ParameterError as error:
                raise ParameterError(f"--{name}: {error}") from None
        if identity != Identity(Role.SERVER, settings.party):
            raise ParameterError(
                f"the certificate is that of {identity}, this is to be server {settings.party}"
            )
        self.settings = settings
        self._authorities = settings.tls.authorities()
        key, self._seal_certificate = settings.tls.seal_pair()
        if self._authorities.seal_key(settings.party, self._seal_certificate) != key.public:
            raise ParameterError("the sealing certificate is of another key than the one beside it")
        self._limits = _fitting(settings.limits)
        self._lock = _lock(settings.state)
        self.node = Node(settings.party, settings.state, self._authorities, settings.node, key)
        self._listening = bound_socket(settings.listen)
        self.port = int(self._listening.getsockname()[1])
        self.observer = Observer()
        self.metrics_port = 0

    async def start(self) -> None:
        """Listen, and go on with an interrupted round."""
        settings, limits = self.settings, self._limits
        self.station = Station(self.node, limits)
        other = 1 - settings.party
        self._link = PeerLink(settings.peer, other, settings.tls)
        self._relays = Relays(self.station, self._link)
        self._coordinator: Coordinator | None = None
        side: Coordinator | Follower
        if settings.party == 0:
            side = self._coordinator = Coordinator(self.station, self._link, self._relays)
        else:
            side = Follower(self.station, self._relays)
        desk = FetchDesk(self.station, self._link)
        methods = all_methods(self.station, self._relays, desk, side, self._seal_certificate)
        self._door = Door(limits)
        self._server = grpc.aio.server(options=_options(limits))
        self._server.add_generic_rpc_handlers(
            (Router(self.station, self._authorities, methods, self.observer, self._door),)
        )
        credentials = server_credentials(settings.tls, settings.party)
        self._server.add_secure_port(f"unix:{self._door.inside}", credentials)
        await self._server.start()
        self._door.open(self._listening)
        self._watch()
        if settings.metrics:
            host, _, port = settings.metrics.rpartition(":")
            self._overview = Overview(self.station, self._link, self.observer)
            self._http = ObservationServer(
                host, int(port), self.observer, self.health, self._overview.page
            )
            self.metrics_port = self._http.port
        if self.station.is_open:
            self._relays.restart()
        if self._coordinator is not None:
            self._coordinator.resume()
        log.info("server %d listens on port %d", settings.party, self.port)

    async def stop(self) -> None:
        """Stop taking calls, let those that run end, close everything."""
        self._door.close_listening()
        await self._server.stop(grace=5.0)
        self._door.close()
        if self._coordinator is not None:
            await self._coordinator.stop()
        self._relays.stop()
        await self._link.close()
        if self.metrics_port:
            self._http.close()
            self._overview.close()
        await asyncio.to_thread(self.station.close)
        self._lock.close()

    def health(self) -> dict[str, Any]:
        """Whether the server can do its work, and why not."""
        node, station, storage = self.node, self.station, self.node.storage
        last = storage.ledger.last_round()
        free = shutil.disk_usage(storage.folder).free
        return {
            "ok": not (storage.halted or station.stalled)
            and free > self.settings.node.reserve_bytes,
            "party": node.party,
            "task": node.task is not None,
            "round": last.number if last else -1,
            "state": last.state if last else "",
            "halted": storage.halted,
            "stalled": station.stalled,
            "disk_free_bytes": free,
        }

    def _watch(self) -> None:
        station, node = self.station, self.node
        watch = self.observer.watch
        watch("bytes_in_flight", "Bytes of requests in flight.", lambda: float(station.budget.used))
        watch("calls_in_flight", "Calls in flight.", lambda: float(station.slots.used))
        door = self._door
        watch("connections", "Connections with a caller.", lambda: float(door.guests.num_callers))
        watch("handshakes", "Others.", lambda: float(door.guests.num_strangers))
        watch("round", "Number of the last round.", lambda: _number(node))
        watch("rounds_applied", "Rounds applied.", lambda: _rounds(node, StoredState.APPLIED))
        watch(
            "rounds_unopened",
            "Rounds that ended unopened.",
            lambda: _rounds(node, StoredState.UNOPENED),
        )
        watch("round_open", "1 while reports are taken.", lambda: float(station.is_open))
        watch("halted", "1 if the session is halted.", lambda: float(bool(node.storage.halted)))
        watch("stalled", "1 while waiting for the peer.", lambda: float(bool(station.stalled)))
        watch(
            "peer_unreachable", "1 if the last call to the other server got no answer.",
            lambda: float(self._link.unreachable),
        )  # fmt: skip
        watch(
            "disk_free_bytes", "Free bytes on the disk of the state folder.",
            lambda: float(shutil.disk_usage(node.storage.folder).free),
        )  # fmt: skip


async def serve(settings: ServeSettings, *, ready: Any = None) -> None:
    """Run until SIGTERM or SIGINT; `ready` is called with the process once it listens."""
    process = ServerProcess(settings)
    await process.start()
    if ready is not None:
        ready(process)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stopped.set)
    async with supervised():
        await stopped.wait()
    log.info("server %d stops", settings.party)
    await process.stop()


def _fitting(limits: Limits) -> Limits:
    """Fewer connections where this process may not open so many files.

    Raises:
        ParameterError: too few to serve anybody.
    """
    files = raise_file_limit()
    fit = connections_for(files, limits.connections)
    if fit < limits.connections:
        fields = {"files": files, "connections": fit, "needed": files_for(limits.connections)}
        log.warning("the limit of open files allows fewer connections than wanted", extra=fields)
    handshakes = min(limits.handshakes, fit // 2)
    return dataclasses.replace(limits, connections=fit, handshakes=handshakes)


def _lock(folder: Path) -> IO[bytes]:
    """Take the state folder; the lock ends with the process, however it ends.

    Raises:
        ParameterError: another process has it.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = (folder / "lock").open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ParameterError(f"another server runs on the state in {folder}: stop it") from None
    return file


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", FRAME_LIMIT),
        ("grpc.max_send_message_length", FRAME_LIMIT),
        ("grpc.max_concurrent_streams", limits.calls_per_connection),
        ("grpc.max_metadata_size", 8192),
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 15_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.max_connection_idle_ms", 600_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ]


def _number(node: Node) -> float:
    last = node.storage.ledger.last_round()
    return float(last.number) if last else -1.0


def _rounds(node: Node, state: StoredState) -> float:
    return float(len(node.storage.ledger.rounds("WHERE state = ?", state)))
