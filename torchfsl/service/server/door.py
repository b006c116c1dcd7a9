"""The door: this process listens itself, and counts who connects before gRPC sees anybody.

gRPC accepts what comes until no file is left for the state. Here a connection that says nothing
costs one file; with its first bytes the door connects it to gRPC, which ends TLS, over a socket in
a folder of this user, and passes bytes on as they are. `guests` says who is dropped for whom.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from torchfsl.errors import ParameterError
from torchfsl.service.net.addresses import group_of
from torchfsl.service.net.calls import Overloaded
from torchfsl.service.net.identity import Identity
from torchfsl.service.server.guests import Guest, GuestBook
from torchfsl.service.server.intake import Limits

log = logging.getLogger("torchfsl.service.door")

_BACKLOG: Final = 1024
_ACCEPTS_AT_ONCE: Final = 16
"""Between which dropped connections get to give their files back."""

_TELL_SECONDS: Final = 10.0
_TOLD_ADDRESSES: Final = 5
_LINGER_SECONDS: Final = 10.0
"""How long what gRPC said last may take to leave."""

_LONGEST_PATH: Final = 90


class Door:
    """Listens, and passes connections on to gRPC, which listens on the socket `inside`.

    Args:
        limits: of connections.

    Attributes:
        inside: path of gRPC's socket.
        guests: who is connected.
        dropped: connections that were dropped or never had a caller, by why.

    Raises:
        ParameterError: the folder for temporary files has too long a name.
    """

    def __init__(self, limits: Limits) -> None:
        """Make the folder; nothing is open yet."""
        self._limits, self.guests = limits, GuestBook(limits)
        self._folder = Path(tempfile.mkdtemp(prefix="torchfsl-"))
        self.inside = str(self._folder / "grpc")
        if len(self.inside) > _LONGEST_PATH:
            self._folder.rmdir()
            raise ParameterError(
                f"{self._folder} is too long a name for a socket: set TMPDIR to a shorter folder"
            )
        self.dropped: Counter[str] = Counter()
        self._count = 0
        self._listening: socket.socket | None = None
        self._passages: dict[str, _Passage] = {}
        self._told: Counter[tuple[str, str]] = Counter()
        self._telling: asyncio.TimerHandle | None = None

    def open(self, listening: socket.socket) -> None:
        """Take connections from a bound socket, once gRPC listens."""
        listening.listen(_BACKLOG)
        listening.setblocking(False)
        self._listening = listening
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def address_of(self, peer: str) -> str:
        """Whose connection gRPC means by `peer`, `HOST:PORT`; empty if it is gone."""
        guest = self._find(peer)
        return "" if guest is None else guest.address

    @contextlib.contextmanager
    def call(self, peer: str, caller: Identity) -> Iterator[None]:
        """A call of a certified caller, during which its connection stays.

        Raises:
            Overloaded: there are too many connections, and all have calls under way.
        """
        guest = self._find(peer)
        if guest is None:
            raise Overloaded("the connection has ended")
        if guest.caller is None:
            crowding = self.guests.in_the_way_of(caller)
            if crowding is not None:
                self._drop(*crowding)
            self.guests.admit(guest, caller)
            self._passages[guest.name].stop_timer()
        clock = asyncio.get_running_loop().time
        guest.calls, guest.used = guest.calls + 1, clock()
        try:
            yield
        finally:
            guest.calls, guest.used = guest.calls - 1, clock()

    def close_listening(self) -> None:
        """Take no more connections."""
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None

    def close(self) -> None:
        """Drop everything."""
        self.close_listening()
        for guest in self.guests.everybody():
            self._end(guest)
        if self._telling is not None:
            self._telling.cancel()
            self._tell()
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- who comes in -------------------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                outside, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file is left, which the limits are to prevent
                if self.guests.num_strangers:
                    self._drop(self.guests.most_crowding(), "files")
                else:
                    log.error("cannot accept a connection: %s", error)
                return
            self._arrive(outside, str(address[0]), int(address[1]))

    def _arrive(self, outside: socket.socket, host: str, port: int) -> None:
        loop, group = asyncio.get_running_loop(), group_of(host)
        crowding = self.guests.in_the_way(group)
        if crowding is not None:
            self._drop(*crowding)
        self._count += 1
        name = str(self._folder / str(self._count))
        guest = Guest(name, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", group)
        self.guests.arrive(guest)
        outside.setblocking(False)
        timer = loop.call_later(self._limits.handshake_seconds, self._drop, guest, "silent")
        self._passages[name] = _Passage(self, guest, outside, timer)
        loop.add_reader(outside, self._begin, guest)

    def _begin(self, guest: Guest) -> None:
        """The first bytes are here: connect to gRPC, under the guest's name."""
        guest.steps = 1
        inside = socket.socket(socket.AF_UNIX)
        try:
            inside.setblocking(False)
            inside.bind(guest.name)
            inside.connect(self.inside)
        except OSError as error:  # gRPC has too many to accept, or no file is left
            inside.close()
            log.error("a connection cannot be passed on: %s", error)
            self._drop(guest, "backlog")
            return
        finally:
            Path(guest.name).unlink(missing_ok=True)
        self._passages[guest.name].join(inside)

    # --- who goes -----------------------------------------------------------------------------

    def gone(self, guest: Guest) -> None:
        """A connection has ended by itself; a stranger's, perhaps for want of a certificate."""
        if self.guests.leave(guest):
            if guest.caller is None:
                self._note(guest, "handshake")
            self._passages.pop(guest.name).close()

    def _drop(self, guest: Guest, why: str) -> None:
        self._note(guest, why)
        self._end(guest)

    def _note(self, guest: Guest, why: str) -> None:
        self.dropped[why] += 1
        self._told[guest.group, why] += 1
        if self._telling is None:
            later = asyncio.get_running_loop().call_later
            self._telling = later(_TELL_SECONDS, self._tell)

    def _end(self, guest: Guest) -> None:
        if self.guests.leave(guest):
            self._passages.pop(guest.name).abort()

    def _find(self, peer: str) -> Guest | None:
        return self.guests.find(peer.removeprefix("unix:"))

    def _tell(self) -> None:
        """A line for each of the addresses with most drops, instead of one a connection."""
        self._telling = None
        told, self._told = self._told, Counter()
        for (group, why), count in told.most_common(_TOLD_ADDRESSES):
            log.warning("connections dropped", extra={"peer": group, "why": why, "count": count})


class _Passage:
    """The sockets of a connection: outside alone at first, then both ends of the way to gRPC."""

    def __init__(
        self, door: Door, guest: Guest, outside: socket.socket, timer: asyncio.TimerHandle
    ) -> None:
        self._door, self._guest, self._timer = door, guest, timer
        self._waiting: socket.socket | None = outside
        self._ends: list[asyncio.Transport] = []
        self._joining: asyncio.Task[None] | None = None
        self._is_over = False

    def join(self, inside: socket.socket) -> None:
        """Pass bytes from now on."""
        outside = self._leave_waiting()
        self._joining = asyncio.create_task(self._join(inside, outside))

    def stop_timer(self) -> None:
        """The connection may stay."""
        self._timer.cancel()

    def close(self) -> None:
        """One end has closed: what the other was told last may still leave."""
        self._over()
        for transport in self._ends:
            transport.close()
            if transport.get_write_buffer_size():
                asyncio.get_running_loop().call_later(_LINGER_SECONDS, transport.abort)

    def abort(self) -> None:
        """Close at once."""
        self._over()
        for transport in self._ends:
            transport.abort()

    async def _join(self, inside: socket.socket, outside: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        ends = _End(self.ended), _Outside(self.ended, self._guest)
        ends[0].other, ends[1].other = ends[1], ends[0]
        for end, one in zip(ends, (inside, outside), strict=True):  # gRPC does not speak first
            transport, _ = await loop.connect_accepted_socket(lambda end=end: end, one)  # type: ignore[misc]
            self._ends.append(transport)
        if self._is_over:
            self.abort()

    def ended(self) -> None:
        """One of the ends has."""
        self._door.gone(self._guest)

    def _over(self) -> None:
        self._is_over = True
        self._timer.cancel()
        if self._waiting is not None:
            self._leave_waiting().close()

    def _leave_waiting(self) -> socket.socket:
        assert self._waiting is not None
        asyncio.get_running_loop().remove_reader(self._waiting)
        outside, self._waiting = self._waiting, None
        return outside


class _End(asyncio.Protocol):
    """One end of a passage: what comes in here goes out at the other."""

    other: _End
    transport: asyncio.Transport

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended, self.has_heard = ended, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.has_heard = True
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        self.other.transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        self._ended()


class _Outside(_End):
    """The caller's end."""

    def __init__(self, ended: Callable[[], None], guest: Guest) -> None:
        super().__init__(ended)
        self._guest = guest

    def data_received(self, data: bytes) -> None:
        if self.other.has_heard:
            self._guest.steps = 2
        super().data_received(data)
