"""Both servers of the service in this process: everything but sockets and TLS, for quick attacks.

Calls go through each server's router as those of gRPC do, with the certificates of `torchfsl
certs`; the servers call each other in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio

from scripts.checks.round_clients import make_plan, make_update, take_part
from scripts.parties import zeros
from torchfsl.errors import Error
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.service.client.remote import RemoteTransport
from torchfsl.service.net import calls
from torchfsl.service.net.certificates import make_development_certificates
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.net.trust import Trust
from torchfsl.service.server.auditing import AuditDesk
from torchfsl.service.server.failures import Failures
from torchfsl.service.server.fetching import FetchDesk
from torchfsl.service.server.handlers import all_methods
from torchfsl.service.server.intake import Limits
from torchfsl.service.server.node import Node
from torchfsl.service.server.observe import Observer
from torchfsl.service.server.peers import PeerLink, Relays
from torchfsl.service.server.round_driver import Follower, RoundDriver
from torchfsl.service.server.router import Router
from torchfsl.service.server.station import Station
from torchfsl.service.server.storage import NodeSettings
from torchfsl.service.task import Task, bind_plan, encode_task

FLOORS = ClientPolicy(min_clients=1, joint_coin=False, sealed=False)
SETTINGS = NodeSettings(
    segment_bytes=1 << 16, reserve_bytes=0, floors=FLOORS, may_replace=True, max_fetches=1 << 30
)
LIMITS = Limits(peer_seconds=2.0, idle_seconds=2.0)


class _Refused(grpc.RpcError):  # type: ignore[misc]
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


class _Context:
    """What gRPC gives a handler: who calls, and the two directions."""

    def __init__(self, pem: bytes, chunks: list[bytes], metadata: Any) -> None:
        self._pem, self._chunks, self._metadata = pem, chunks, metadata
        self.answer: list[bytes] = []

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_pem_cert": [self._pem]}

    def peer(self) -> str:
        return "unix:1"

    def invocation_metadata(self) -> Any:
        return self._metadata

    async def read(self) -> Any:
        return self._chunks.pop(0) if self._chunks else grpc.aio.EOF

    async def write(self, chunk: bytes) -> None:
        self.answer.append(chunk)

    async def abort(
        self, code: grpc.StatusCode, details: str, trailing_metadata: tuple[tuple[str, str], ...]
    ) -> None:
        raise _Refused(code, details)


class _Door:
    """Lets everybody in."""

    def address_of(self, _: str) -> str:
        return ""

    def call(self, *_: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class _Loopback(PeerLink):
    """One server's calls to the other in the same event loop; one that has ended is not there."""

    def __init__(self, servers: InProcessServers, party: int) -> None:
        super().__init__("https://none:1", party, servers.files(f"server-{1 - party}"))
        self._servers, self._caller = servers, f"server-{1 - party}"

    async def call(self, method: str, *parts: bytes | memoryview, limit: int) -> bytes:
        data = b"".join(map(bytes, parts))
        if self._servers.ended[self._party]:
            raise calls.NotReady(f"server {self._party} has ended")
        try:
            return await self._servers.call(self._party, self._caller, method, data)
        except (Error, asyncio.CancelledError):
            raise
        except Exception as error:  # gRPC says UNKNOWN, and the other server's log why
            raise calls.NotReady(f"server {self._party}: {type(error).__name__}") from None


class InProcessServers:
    """Both servers with a task, in the running event loop.

    Args:
        folder: of certificates and states.

    Attributes:
        `stations`: the state of each server, by party.
        ended: by party, statuses with which its process would have ended.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.tls = folder, folder / "certs"
        make_development_certificates(self.tls, range(4))
        self.pems = {path.stem: path.read_bytes() for path in self.tls.glob("*.pem")}
        self.authorities = self.files("owner").authorities()
        self.stations: dict[int, Station] = {}
        self.routers: dict[int, Router] = {}
        self.sides: dict[int, RoundDriver | Follower] = {}
        self.ended: list[list[int]] = [[], []]
        for party in (0, 1):
            self._start(party)
        self.nonces = self.number = 0
        self.loop = asyncio.get_running_loop()

    def files(self, name: str) -> TlsFiles:
        """The files of `server-0`, `owner` or `client-1`."""
        return TlsFiles.in_folder(self.tls, name)

    async def call(
        self, party: int, caller: str, method: str, data: bytes, metadata: Any = None
    ) -> bytes:
        """One call as gRPC would bring it; raises the caller's error, or an unexpected one."""
        pieces = list(calls.chunks(data))
        context = _Context(self.pems[caller], pieces, metadata or calls.metadata())
        details = SimpleNamespace(method=calls.path(method))
        handler = self.routers[party].service(details)
        if handler is None:
            raise calls.NotReady(f"server {party} does not know {method}")
        try:
            await handler.stream_stream(None, context)
        except _Refused as error:
            raise calls.error_of(error, f"server {party}") from None
        return b"".join(context.answer)

    async def set_up(self) -> None:
        """A new task at both servers, in place of the one before."""
        self.nonces, self.number = self.nonces + 1, 0
        nonce = self.nonces.to_bytes(16, "little")
        self.task = Task(bind_plan(make_plan(), self.authorities, nonce), nonce)
        self.data = encode_task(self.task, zeros(self.task.plan))
        for party in (0, 1):
            await self.call(party, "owner", "Replace", self.data)

    async def ask(self, method: str, **fields: Any) -> None:
        """The owner's call to server 0."""
        await self.call(0, "owner", method, calls.encode_request(**fields))

    async def honest_round(self) -> bool:
        """A round of two clients; whether it ends applied at both servers, with both of them."""
        self.number = max(self.number, *(row[0] for row in self.states())) + 1
        await self.ask("Open", round=self.number, expected=0, seconds=600.0)
        await asyncio.gather(*(asyncio.to_thread(self._take_part, c) for c in (0, 1)))
        await self.ask("Close", round=self.number)
        await self.settle()
        rows = [self.stations[p].node.storage.ledger.last_round() for p in (0, 1)]
        wanted = (self.number, "applied", 2)
        return all(row and (row.number, str(row.state), row.accepted) == wanted for row in rows)

    async def settle(self, seconds: float = 5.0) -> bool:
        """Wait until both servers are in one state; whether they are."""
        deadline = time.monotonic() + seconds
        while True:
            first, second = self.states()
            if first == second:
                return True
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(0.002)

    def be_patient(self, seconds: float) -> None:
        """How long a call waits for the other server from now on."""
        for station in self.stations.values():
            station.limits = dataclasses.replace(LIMITS, peer_seconds=seconds)

    def states(self) -> list[tuple[int, str, str]]:
        """Of each server the last round, its state, and the model's digest."""
        found = []
        for station in (self.stations[0], self.stations[1]):
            row = station.node.storage.ledger.last_round()
            digest = station.node.storage.model_version.get("digest", "")
            found.append((row.number, str(row.state), digest) if row else (-1, "", digest))
        return found

    async def stop(self) -> None:
        """Stop both."""
        for party, station in self.stations.items():
            await self._stop_rounds(party)
            await asyncio.to_thread(station.close)

    async def restart(self, party: int) -> None:
        """Start a server again from what is on its disk, as after a kill."""
        await self._stop_rounds(party)
        await asyncio.to_thread(self.stations[party]._worker.close)
        self.stations[party].node.storage.ledger.close()
        self.ended[party].clear()
        self._start(party)
        if isinstance(side := self.sides[party], RoundDriver):
            side.resume()

    async def _stop_rounds(self, party: int) -> None:
        if isinstance(side := self.sides[party], RoundDriver):
            await side.stop()

    def _start(self, party: int) -> None:
        node = Node(party, self.folder / f"state{party}", self.authorities, SETTINGS)
        station = Station(node, LIMITS)
        station.failures = Failures(self.ended[party].append)
        link = _Loopback(self, 1 - party)
        relays = Relays(station, link)
        audits = AuditDesk(station)
        side: RoundDriver | Follower = Follower(station, relays, audits)
        if party == 0:
            side = RoundDriver(station, link, relays, audits)
        pem = self.pems[f"server-{party}-seal"]
        methods = all_methods(station, relays, FetchDesk(station, link), side, lambda: pem, audits)
        trust = Trust(self.files(f"server-{party}"))
        router = Router(station, trust, methods, Observer(), _Door())  # type: ignore[arg-type]
        self.stations[party], self.routers[party], self.sides[party] = station, router, side

    def _take_part(self, client: int) -> None:
        """In a thread: one client's part of the open round."""
        transport = RemoteTransport(_Links(self, client), self.task.plan)  # type: ignore[arg-type]
        update = make_update(self.task.plan, 0, self.number, client)
        take_part(Client(self.task.plan, transport, client_id=client), self.number, update)


class _Links:
    """A client's links to both servers, from a thread."""

    def __init__(self, servers: InProcessServers, client: int) -> None:
        self._servers, self._caller = servers, f"client-{client}"
        self.links = tuple(
            SimpleNamespace(party=p, call=functools.partial(self._call, p)) for p in (0, 1)
        )

    def both(self, ask: Callable[[Any], bytes]) -> tuple[bytes, bytes]:
        with ThreadPoolExecutor(2) as threads:
            first, second = threads.map(ask, self.links)
        return first, second

    def _call(self, party: int, method: str, data: bytes, *, limit: int) -> bytes:
        coroutine = self._servers.call(party, self._caller, method, data)
        return asyncio.run_coroutine_threadsafe(coroutine, self._servers.loop).result()
