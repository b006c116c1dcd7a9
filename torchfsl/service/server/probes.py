"""The gRPC health protocol, on a port of its own, without TLS: for probes that have no certificate.

The services "" and "torchfsl.v1" are SERVING while the server is ready, "live" while it answers.
"""

from __future__ import annotations

import asyncio
from typing import Final

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from torchfsl.errors import ParameterError
from torchfsl.service.net import calls
from torchfsl.service.net.addresses import split_address
from torchfsl.service.server.health import Health

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
    """Answers `grpc.health.v1.Health`.

    Args:
        address: `HOST:PORT`; port 0 takes a free one.
        health: what is told.

    Attributes:
        port: once made.

    Raises:
        ParameterError: the address cannot be taken.
    """

    def __init__(self, address: str, health_of_server: Health) -> None:
        """Bind; in the event loop."""
        self._health, self._servicer = health_of_server, health.aio.HealthServicer()
        self._server = grpc.aio.server(options=_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, self._server)
        split_address(address)
        try:
            self.port = int(self._server.add_insecure_port(address))
        except RuntimeError as error:
            raise ParameterError(
                f"cannot listen on {address} for gRPC health: name a free port of this machine",
                code="address-in-use",
            ) from error
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Answer from now on."""
        await self._tell()
        await self._servicer.set(_LIVE, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()
        self._following = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Tell watchers, and answer no more."""
        if self._following is not None:
            self._following.cancel()
        await self._servicer.enter_graceful_shutdown()
        await self._server.stop(grace=1.0)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_FOLLOW_SECONDS)
            await self._tell()

    async def _tell(self) -> None:
        kinds = health_pb2.HealthCheckResponse
        now = kinds.NOT_SERVING if self._health.unready() else kinds.SERVING
        for service in ("", calls.SERVICE):
            await self._servicer.set(service, now)
