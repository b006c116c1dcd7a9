"""The server process: settings, sockets, start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import gc
import json
import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import grpc
import grpc.aio

from torchfsl.errors import ParameterError
from torchfsl.service.net.addresses import bound_socket, split_address
from torchfsl.service.net.calls import FRAME_LIMIT
from torchfsl.service.net.channels import FLOW, TlsFiles, server_credentials, target
from torchfsl.service.net.identity import Identity, Role
from torchfsl.service.net.issuers import Issuers
from torchfsl.service.net.text import printable
from torchfsl.service.net.trust import Trust, Validity
from torchfsl.service.server.auditing import AuditDesk
from torchfsl.service.server.door import Door, connections_for, files_for, raise_file_limit
from torchfsl.service.server.engines import EngineSettings, make_evaluator
from torchfsl.service.server.fetching import FetchDesk
from torchfsl.service.server.fresh_state import FreshState
from torchfsl.service.server.handlers import all_methods
from torchfsl.service.server.health import GrpcProbes, Health
from torchfsl.service.server.intake import Limits
from torchfsl.service.server.listener import Listener
from torchfsl.service.server.node import Node
from torchfsl.service.server.observation import ObservationServer, Page
from torchfsl.service.server.observe import Observer, watch_all, watch_certificates, watch_web
from torchfsl.service.server.page import Overview
from torchfsl.service.server.peers import PeerLink, Relays
from torchfsl.service.server.round_driver import Follower, RoundDriver
from torchfsl.service.server.router import Methods, Router
from torchfsl.service.server.station import Station
from torchfsl.service.server.storage import NodeSettings
from torchfsl.service.server.supervision import supervised
from torchfsl.service.server.web_settings import WebSettings
from torchfsl.service.server.worker import keep_memory
from torchfsl.service.state.vault import check_parent
from torchfsl.service.state.witness import counter_path

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
        grpc_health: `HOST:PORT` of the gRPC health protocol; empty for none.
        node: limits of the state.
        limits: limits of the traffic.
        `witness`: path of the rollback counter, see `Storage`.
        deny: the deny list; None denies no one.
        engine: where its evaluation runs.
        web: the HTTPS door; None for none.
    """

    party: int
    listen: str
    peer: str
    state: Path
    tls: TlsFiles
    metrics: str = ""
    grpc_health: str = ""
    node: NodeSettings = field(default_factory=NodeSettings)
    limits: Limits = field(default_factory=Limits)
    witness: Path | None = None
    deny: Path | None = None
    engine: EngineSettings = field(default_factory=EngineSettings)
    web: WebSettings | None = None


class ServerProcess:
    """A running server; `start`, then `port` is known."""

    def __init__(self, settings: ServeSettings) -> None:
        """Recover the state; no socket is open yet."""
        identity = settings.tls.identity()
        settings.tls.days_left()  # clients would only see that nobody answers
        check_addresses(settings)
        if identity != Identity(Role.SERVER, settings.party):
            raise ParameterError(
                f"expected the certificate of server {settings.party} in "
                f"{settings.tls.certificate}, got that of {identity}: change the setting party, or "
                f"put the certificate of server {settings.party} there",
                code="wrong-certificate",
            )
        self.settings = settings
        self.issuers = None if settings.web is None else Issuers(settings.web.admission)
        issued = self.issuers.whose if self.issuers is not None else lambda number: None
        self._trust = Trust(settings.tls, settings.deny, issued)
        self._validity = Validity(settings.tls, settings.party)
        if settings.web is not None:
            settings.web.check_installed()
            settings.web.days_left()
            settings.web.context()
        self._limits = _fitting(settings.limits, 1 if settings.web is None else 2)
        self._ending = contextlib.AsyncExitStack()
        check_parent(settings.state, "--state")
        check_parent(counter_path(settings.state, settings.witness), "--witness")
        self._fresh = FreshState(settings.state, settings.witness)
        lock = _lock(settings.state)
        self._ending.callback(lock.close)
        self._fresh.begin()
        self._ending.callback(self._undo)
        try:
            self._recover(settings)
        except BaseException:
            self._fresh.remove()
            lock.close()
            raise

    def _recover(self, settings: ServeSettings) -> None:
        """Take the addresses, and go on from the state in the folder."""
        self.observer = Observer()
        self._health = Health(settings.party, settings.node.reserve_bytes)
        self.metrics_port = self._observe() if settings.metrics else 0
        evaluator = make_evaluator(settings.engine, settings.tls, settings.party)
        signing = settings.tls.sign_pair()
        self._signing = b"" if signing is None else signing[1]
        sign_key = None if signing is None else signing[0]
        node = dataclasses.replace(settings.node, evaluator=evaluator, sign_key=sign_key)
        if self.issuers is not None:
            node = dataclasses.replace(node, counted=self.issuers.counted)
        self.node = Node(
            settings.party, settings.state, settings.tls.authorities(), node,
            settings.tls.seal_pair()[0], witness=settings.witness,
        )  # fmt: skip
        if self.node.task is None:
            log.info("server %d has no task yet in %s", settings.party, settings.state)
        self._listening = bound_socket(settings.listen, "--listen")
        self.port = int(self._listening.getsockname()[1])
        web = settings.web
        self._web_listening = bound_socket(web.listen, "listen in [web]") if web else None
        self.web_port = self._web_listening.getsockname()[1] if self._web_listening else 0

    async def start(self) -> None:
        """Listen, and go on with an interrupted round."""
        settings, ending = self.settings, self._ending
        self.station = Station(self.node, self._limits)
        ending.push_async_callback(asyncio.to_thread, self.station.close)
        link = self._reach_peer()
        relays = Relays(self.station, link)
        ending.callback(relays.stop)
        audits = AuditDesk(self.station)
        ending.callback(audits.stop)
        driver: RoundDriver | None = None
        side: RoundDriver | Follower
        if settings.party == 0:
            side = driver = RoundDriver(self.station, link, relays, audits)
            ending.push_async_callback(driver.stop)
        else:
            side = Follower(self.station, relays, audits)
        desk = FetchDesk(self.station, link)
        methods = all_methods(self.station, relays, desk, side, self._certificates, audits)
        door = await self._answer(methods)
        await self._answer_web(methods)
        self._health.begin(self.node, self.station, self._validity, self._listener)
        self.station.unready = self._health.unready
        ending.callback(asyncio.create_task(self._health.live()).cancel)
        watch_all(self.observer, self.node, self.station, link, door, self._health)
        watch_certificates(self.observer, self._validity, self._trust)
        if settings.metrics:
            overview = Overview(self.station, link, self.observer)
            ending.callback(overview.close)
            self._pages["/"] = lambda: (200, "text/html; charset=utf-8", overview.page())
        if settings.grpc_health:
            probes = GrpcProbes(settings.grpc_health, self._health)
            ending.push_async_callback(probes.stop)
            await probes.start()
        if self.station.is_open:
            relays.restart()
        if driver is not None:
            driver.resume()
        audits.resume()
        self._fresh.keep()
        _warn_of_open_keys(settings.tls)
        log.info("server %d listens on port %d", settings.party, self.port)

    def _reach_peer(self) -> PeerLink:
        """The channel to the other server, and whether its certificate has expired."""
        settings, ending = self.settings, self._ending
        link = PeerLink(settings.peer, 1 - settings.party, settings.tls)
        ending.push_async_callback(link.close)
        ending.callback(asyncio.create_task(link.watch()).cancel)
        self.station.expired = lambda: link.expired
        return link

    def _certificates(self) -> bytes:
        """Those of the sealing key and of the signing key, PEM."""
        return self._validity.seal_certificate() + self._signing

    def _undo(self) -> None:
        """Remove what a start that failed has made, unless it was given a task already."""
        if self.node.task is None:
            self._fresh.remove()

    def reread(self) -> list[str]:
        """Read authorities, deny list and issuers again; names those that are as their files."""
        self._trust.look(is_asked=True)
        found = [] if self._trust.is_stale else ["authorities"]
        if self.settings.deny is not None and not self._trust.is_stale:
            found.append("deny list")
        if self.issuers is not None:
            self.issuers.look()
            found += [] if self.issuers.is_stale else ["issuers"]
        return found

    def permit_replace(self, may_replace: bool) -> None:
        """Set whether the coordinator may put another task in place of a live one."""
        storage = self.node.storage
        storage.settings = dataclasses.replace(storage.settings, may_replace=may_replace)

    async def stop(self) -> None:
        """Stop taking calls, let those that run end, close everything."""
        self._health.stop()
        await self._ending.aclose()

    async def _answer(self, methods: Mapping[Role | None, Methods]) -> Door:
        """Take calls."""
        door = Door(self._limits)
        self._ending.callback(door.close)
        router = Router(self.station, self._trust, methods, self.observer, door)

        def make() -> grpc.aio.Server:
            server = grpc.aio.server(options=_options(self._limits))
            server.add_generic_rpc_handlers((router,))
            credentials = server_credentials(self.settings.tls, self.settings.party)
            server.add_secure_port(f"unix:{door.new_inside()}", credentials)
            return server

        self._listener = Listener(make, 5.0, door.recent)
        self._ending.push_async_callback(self._listener.stop)
        self._ending.callback(router.conversations.end)
        self._ending.callback(router.refusals.close)
        await self._listener.start()
        self._ending.callback(door.close_listening)
        door.open(self._listening)
        return door

    async def _answer_web(self, methods: Mapping[Role | None, Methods]) -> None:
        """Also take calls by HTTPS, if there are settings for it."""
        settings = self.settings.web
        if settings is None or self._web_listening is None or self.issuers is None:
            return
        from torchfsl.service.server.admission import Tokens
        from torchfsl.service.server.web import WebDoor

        web = WebDoor(
            settings, self._web_listening, self._limits, self.station, methods[Role.CLIENT],
            self.observer,
            Tokens(self.issuers, self._trust, self.station),
        )  # fmt: skip
        self.station.issuers = self.issuers.digest
        self._ending.push_async_callback(web.stop)
        await web.start()
        watch_web(self.observer, web.door, web.refused, settings, self.issuers)
        log.info("server %d listens for HTTPS on port %d", self.settings.party, self.web_port)

    def _observe(self) -> int:
        """Answer operators, also while the state is recovered; the port."""
        health = self._health
        self._pages: dict[str, Callable[[], Page]] = {
            "/": lambda: (503, "text/plain", b"starting\n"),
            "/metrics": self.observer.page,
            "/livez": lambda: _told(health.lives(), "the event loop does not turn"),
            "/readyz": lambda: _told(not health.unready(), health.unready()),
            "/health": lambda: _described(health.state()),
        }
        try:
            server = ObservationServer(bound_socket(self.settings.metrics), self._pages)
        except ParameterError as error:
            raise ParameterError(f"--metrics: {error}") from None
        self._ending.callback(server.close)
        return server.port


async def serve(
    settings: ServeSettings,
    *,
    ready: Callable[[ServerProcess], None],
    reread: Callable[[ServerProcess], None],
) -> None:
    """Run until SIGTERM or SIGINT.

    Args:
        settings: of the process.
        ready: called with the process once it listens.
        reread: called with the process at SIGHUP.
    """
    keep_memory()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stopped.set)
    process = ServerProcess(settings)
    try:
        await process.start()
        gc.freeze()  # what is there stays: collections need not go through it each time
        loop.add_signal_handler(signal.SIGHUP, reread, process)
        ready(process)
        async with supervised():
            await stopped.wait()
        log.info("server %d stops", settings.party)
    finally:
        await process.stop()


def _told(good: bool, why: str) -> Page:
    return (
        (200, "text/plain", b"ok\n")
        if good
        else (503, "text/plain", f"{printable(why)}\n".encode())
    )


def _described(state: Mapping[str, Any]) -> Page:
    return 200 if state["ok"] else 503, "application/json", json.dumps(state).encode()


def check_addresses(settings: ServeSettings) -> None:
    """Refuse an invalid address, or one of the other server that is this one; ParameterError."""
    for name in ("listen", "peer", "metrics", "grpc_health"):
        if address := getattr(settings, name):
            try:
                (target if name == "peer" else split_address)(address)
            except ParameterError as error:
                raise ParameterError(f"--{name.replace('_', '-')}: {error}") from None
    if target(settings.peer) == settings.listen:
        raise ParameterError(
            "expected the URL of the other server in --peer, got the address of this server: give "
            f"the URL of server {1 - settings.party}"
        )


def _warn_of_open_keys(files: TlsFiles) -> None:
    """Log each private key that every user of this machine can read."""
    for path in (files.key, files.seal_certificate.with_suffix(".key")):
        if path.stat().st_mode & 0o007:
            log.warning("others can read %s: run `chmod 600 %s`", path, path)


def _fitting(limits: Limits, doors: int) -> Limits:
    """Fewer connections at each door where this process may not open so many files.

    Raises:
        ParameterError: too few to serve anybody.
    """
    files = raise_file_limit()
    wanted = doors * limits.connections
    fit = connections_for(files, wanted) // doors
    if fit < limits.connections:
        fields = {"files": files, "connections": fit, "needed": files_for(wanted)}
        log.warning("the limit of open files allows fewer connections than wanted", extra=fields)
    handshakes = min(limits.handshakes, fit // 2)
    return dataclasses.replace(limits, connections=fit, handshakes=handshakes)


def _lock(folder: Path) -> IO[bytes]:
    """Take the state folder; the lock ends with the process, however it ends.

    Raises:
        ParameterError: another process has it, or this one may not write in it.
    """
    try:
        folder.mkdir(exist_ok=True, mode=0o700)
        file = (folder / "lock").open("wb")
    except OSError as error:
        raise ParameterError(
            f"cannot write in the state folder {folder} ({error.strerror}): give a folder in which "
            "the user of this process can write"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ParameterError(
            f"another server runs on the state in {folder}: stop that server first",
            code="state-in-use",
        ) from None
    return file


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        *FLOW,
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
