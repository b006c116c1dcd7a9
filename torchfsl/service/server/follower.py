"""Server 1's side of the rounds: it answers each step, then lets server 0's message count."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from torchfsl.errors import Error, ProtocolError
from torchfsl.fsl.messages import Kind
from torchfsl.service.server.peers import Relays
from torchfsl.service.server.station import Station

log = logging.getLogger("torchfsl.service.follower")


class Follower:
    """Does what server 0 asks for, in the order of the steps."""

    def __init__(self, station: Station, relays: Relays) -> None:
        """Nothing runs until server 0 asks."""
        self._station, self._relays = station, relays
        self._counting: set[asyncio.Task[None]] = set()

    async def step(self, number: int, kind: Kind, theirs: bytes) -> bytes:
        """This server's message for a step; server 0's counts while the answer is on its way.

        Raises:
            DecodeError, ProtocolError: see `Node.exchange`. A step that is refused changes nothing.
        """
        station = self._station
        await station.write(station.node.check, number, kind, theirs)
        if kind is Kind.ROUND_STATE:
            await self.end_before(number, f"server 0 went on to round {number}")
        if kind is Kind.REPORT_SET:
            await station.gate.close()
        ours = await station.write(station.node.exchange, number, kind, theirs)
        counting = asyncio.create_task(self._count(number, kind))
        self._counting.add(counting)
        counting.add_done_callback(self._counted)
        return ours

    async def end_before(self, number: int, reason: str) -> None:
        """Server 0 has ended every round below `number`: one that still runs here ends, too."""
        station, node = self._station, self._station.node
        running = node.storage.running()
        if running is not None and running.number < number:
            with contextlib.suppress(ProtocolError):
                await station.write(node.abandon, running.number, reason, forced=True)
            self._relays.stop()
            await station.gate.close()
            await station.tell()

    async def _count(self, number: int, kind: Kind) -> None:
        try:
            await self._station.count(number, kind)
        finally:
            if kind is not Kind.ROUND_STATE:
                self._relays.stop()

    def _counted(self, task: asyncio.Task[None]) -> None:
        self._counting.discard(task)
        self._station.failures.watch(task)
        if not task.cancelled() and isinstance(task.exception(), Error):
            log.warning("a step failed: %s", task.exception())
