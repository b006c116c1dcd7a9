"""Whether a server lives, whether it can do its work, and whether its round goes on.

Three questions for three kinds of asker. It *lives* while its event loop turns; a supervisor starts
it again if not. It is *ready* unless an operator has to do something here. Whether the other server
answers does not count: a server that is not ready is taken off the way by many a balancer, and of
two that wait for each other on such a way neither would come back. It is *well* if its round also
goes on: for people and for alerts. Probes without a certificate ask by the gRPC health protocol.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from typing import Any, Final

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from torchfsl.errors import ParameterError
from torchfsl.service.net import calls
from torchfsl.service.net.addresses import split_address
from torchfsl.service.net.trust import Validity
from torchfsl.service.server.listener import Listener
from torchfsl.service.server.node import Node
from torchfsl.service.server.station import Station

log = logging.getLogger("torchfsl.service.health")

_BEAT_SECONDS: Final = 1.0
_DEAD_SECONDS: Final = 60.0
"""After which a loop that did not turn is not expected to."""


class Health:
    """Answers from any thread.

    Args:
        party: of the server.
        reserve_bytes: free disk space below which reports are refused.
    """

    def __init__(self, party: int, reserve_bytes: int) -> None:
        self._party, self._reserve = party, reserve_bytes
        self._served: tuple[Node, Station, Validity, Listener] | None = None
        self._is_stopping = False
        self._beat = 0.0

    async def live(self) -> None:
        """Note that the loop turns, and log when the server gets unready, until cancelled."""
        said = ""
        while True:
            self._beat = time.monotonic()
            if (why := self.unready()) != said:
                if why:
                    log.warning("not ready: %s", why)
                else:
                    log.info("ready again")
                said = why
            await asyncio.sleep(_BEAT_SECONDS)

    def begin(self, node: Node, station: Station, validity: Validity, listener: Listener) -> None:
        """The server answers from now on."""
        self._beat = time.monotonic()
        self._served = node, station, validity, listener

    def stop(self) -> None:
        """It will not for much longer."""
        self._is_stopping = True

    def lives(self) -> bool:
        """Whether the event loop turns; while the state is being recovered there is none."""
        return self._served is None or time.monotonic() - self._beat < _DEAD_SECONDS

    def unready(self) -> str:
        """Why the server cannot do its work, or empty."""
        if self._is_stopping:
            return "stopping"
        if self._served is None:
            return "starting: the state is being recovered"
        node, station, validity, listener = self._served
        if not listener.is_up:
            return "gRPC has ended, and does not start again yet: look at the log"
        if station.failures.unready:
            return station.failures.unready
        if node.storage.halted:
            return f"halted: {node.storage.halted}"
        if shutil.disk_usage(node.storage.folder).free <= self._reserve:
            return f"the disk has less than the {self._reserve} bytes of reserve_bytes"
        return validity.expired

    def state(self) -> dict[str, Any]:
        """All of it, as JSON values; `ok` if there is nothing to do."""
        why = self.unready()
        state: dict[str, Any] = {"ok": not why, "ready": not why, "why": why, "party": self._party}
        if self._served is None:
            return state
        node, station, *_ = self._served
        last = node.storage.ledger.last_round()
        return state | {
            "ok": not why and not station.waits,
            "task": node.task is not None,
            "round": last.number if last else -1,
            "state": last.state if last else "",
            "halted": node.storage.halted,
            "stalled": station.waits,
            "disk_free_bytes": shutil.disk_usage(node.storage.folder).free,
        }


_LIVE: Final = "live"
_FOLLOW_SECONDS: Final = 0.5
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_allowed_incoming_connections", 32),
    ("grpc.max_concurrent_streams", 8),
    ("grpc.server_handshake_timeout_ms", 2000),  # who says nothing holds no place for longer
    ("grpc.max_receive_message_length", 1024),
)


class GrpcProbes:
    """Answers `grpc.health.v1.Health` on a separate port, without TLS.

    The services "" and "torchfsl.v1" are SERVING while the server is ready, "live" while it
    answers.

    Args:
        address: `HOST:PORT`; port 0 takes a free one.
        health: the source of the answers.

    Attributes:
        port: once made.

    Raises:
        ParameterError: the address cannot be taken.
    """

    def __init__(self, address: str, health_of_server: Health) -> None:
        """Bind; in the event loop."""
        self._health, self._servicer = health_of_server, health.aio.HealthServicer()
        host, self.port = split_address(address)
        self._host = f"[{host}]" if ":" in host else host
        try:
            self._listener = Listener(self._make, 1.0)
        except RuntimeError as error:
            raise ParameterError(
                f"--grpc-health: cannot listen on {address}: name a free port of this machine",
                code="address-in-use",
            ) from error
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Answer from now on."""
        await self._tell()
        await self._servicer.set(_LIVE, health_pb2.HealthCheckResponse.SERVING)
        await self._listener.start()
        self._following = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Tell watchers, and answer no more."""
        if self._following is not None:
            self._following.cancel()
        await self._servicer.enter_graceful_shutdown()
        await self._listener.stop()

    def _make(self) -> grpc.aio.Server:
        server = grpc.aio.server(options=_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        self.port = int(server.add_insecure_port(f"{self._host}:{self.port}"))
        return server

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_FOLLOW_SECONDS)
            await self._tell()

    async def _tell(self) -> None:
        kinds = health_pb2.HealthCheckResponse
        now = kinds.NOT_SERVING if self._health.unready() else kinds.SERVING
        for service in ("", calls.SERVICE):
            await self._servicer.set(service, now)
