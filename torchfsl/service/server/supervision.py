"""Tells a supervisor that the server is ready, that it lives, that it stops.

The protocol of systemd's `sd_notify`: datagrams to the socket that `$NOTIFY_SOCKET` names. Without
it nothing is sent. A supervisor that wants signs of life (`$WATCHDOG_USEC`) gets two in that time,
from the event loop that answers clients: a loop that hangs is silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Mapping

log = logging.getLogger("torchfsl.service.supervision")


class Supervisor:
    """Who started this process, as its environment names them.

    Attributes:
        watchdog_seconds: after which a silent process is killed; 0 for never.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        asked = environment.get("WATCHDOG_USEC", "0")
        meant = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        known = bool(self._address) and meant and asked.isdecimal()
        self.watchdog_seconds = int(asked) / 1e6 if known else 0.0

    def tell(self, state: str) -> None:
        """Send one state, as `READY=1`; a supervisor that does not listen is logged."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as way:
                way.setblocking(False)
                way.sendto(state.encode(), self._address)
        except OSError as error:
            log.warning("cannot notify the supervisor at $NOTIFY_SOCKET: %s", error)

    async def live(self) -> None:
        """Send signs of life until cancelled."""
        while self.watchdog_seconds:
            self.tell("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_seconds / 2)


@contextlib.asynccontextmanager
async def supervised() -> AsyncIterator[None]:
    """Around the time in which the server answers: ready at its beginning, stopping at its end."""
    supervisor = Supervisor(os.environ)
    supervisor.tell("READY=1")
    living = asyncio.create_task(supervisor.live())
    try:
        yield
    finally:
        living.cancel()
        supervisor.tell("STOPPING=1")
