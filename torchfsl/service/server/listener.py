"""A gRPC server, and the next one when a request ends it.

One request whose path is not UTF-8 ends the loop in which grpc.aio takes requests, for good, before
any handler runs. Calls under way go on in the old server for a while. The next caller reaches the
new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

import grpc.aio

log = logging.getLogger("torchfsl.service.listener")

_LOOK_SECONDS: Final = 0.05
_TELL_SECONDS: Final = 10.0


class Listener:
    """Takes calls from `start` to `stop`.

    Args:
        make: a server that listens once it is started; raises RuntimeError if the port is taken.
        grace: seconds in which calls may end.
        suspects: callers that may have ended a server, for the log.

    Attributes:
        is_up: whether a server takes calls.
        ended: number of servers that a request has ended.
    """

    def __init__(
        self,
        make: Callable[[], grpc.aio.Server],
        grace: float,
        suspects: Callable[[], list[str]] = list,
    ) -> None:
        self._make, self._grace, self._suspects = make, grace, suspects
        self._server = make()
        self._watching: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self.is_up = False
        self.ended = 0
        self._told = (0, float("-inf"))

    async def start(self) -> None:
        """Take calls from now on."""
        await self._server.start()
        self.is_up = True
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Take no more calls; those that run may end."""
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.gather(self._stop(self._server), *self._leaving)

    async def _watch(self) -> None:
        while True:
            try:
                await self._server.wait_for_termination(_LOOK_SECONDS)
            except Exception as error:  # that of the loop that has ended
                self.is_up = False
                self.ended += 1
                self._tell(error)
                leaving = asyncio.create_task(self._stop(self._server))
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)
                await self._renew()

    async def _renew(self) -> None:
        why = ""
        while not self.is_up:
            try:
                self._server = self._make()
                await self._server.start()
                self.is_up = True
            except Exception as error:  # the port is not free yet, or a key is being rotated
                if str(error) != why:
                    why = str(error)
                    log.warning(
                        "gRPC does not start again yet; the server keeps trying", exc_info=error
                    )
                await asyncio.sleep(_LOOK_SECONDS)

    async def _stop(self, server: grpc.aio.Server) -> None:
        with contextlib.suppress(Exception):  # that of its loop once more
            await server.stop(grace=self._grace)

    def _tell(self, error: BaseException) -> None:
        """One line in ten seconds."""
        count, when = self._told
        now = asyncio.get_running_loop().time()
        if now - when >= _TELL_SECONDS:
            log.error(
                "a request of a caller ended gRPC (%s), and the server starts gRPC again",
                type(error).__name__,
                extra={"caller": ", ".join(self._suspects()), "count": self.ended - count},
            )
            self._told = self.ended, now
