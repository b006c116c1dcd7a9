"""The way of one connection from the door to gRPC: bytes go on as they are, in both directions.

No byte of it becomes an object of Python: all ways read into one piece of memory and write from it
at once. Only what the other end has no room for is kept, and then nothing more is read before it
has left, so that a slow reader stops its sender.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from torchfsl.service.server.guests import Guest

_LINGER_SECONDS: Final = 10.0
"""How long what one end said last may take to leave at the other."""

_STALL_SECONDS: Final = 30.0
"""How long bytes that found no room may take to leave. Meanwhile their sender's end is not seen.
It is longer than a server waits for a reader of its answer."""

_ROOM: Final = memoryview(bytearray(256 << 10))
"""Through which all ways pass bytes on, each at once."""


class Passage:
    """The sockets of a connection: outside alone at first, then both ends of the way to gRPC.

    Args:
        `guest`: the connection's entry.
        outside: socket of the caller.
        timer: drops the connection if no caller has called in time.
        ended: called when an end has closed; it is to call `close`.
    """

    def __init__(
        self,
        guest: Guest,
        outside: socket.socket,
        timer: asyncio.TimerHandle,
        ended: Callable[[], None],
    ) -> None:
        """Nothing has been passed on yet; whoever made this waits for the first bytes."""
        self._guest, self.outside, self._timer, self._ended = guest, outside, timer, ended
        self._inside: socket.socket | None = None
        self._ways: tuple[_Way, ...] = ()

    def join(self, inside: socket.socket) -> None:
        """Pass bytes from now on."""
        asyncio.get_running_loop().remove_reader(self.outside.fileno())
        self._inside = inside
        back = _Way(inside, self.outside, self._ended)
        self._ways = _Way(self.outside, inside, self._leave, self._step), back

    def stop_timer(self) -> None:
        """The connection may stay."""
        self._timer.cancel()

    def close(self) -> None:
        """One end has closed: bytes that are on the way to the other may still leave."""
        self._timer.cancel()
        for way in self._ways:
            way.stop()
        if any(way.has_rest for way in self._ways):
            for way in self._ways:
                way.then = self._left
            asyncio.get_running_loop().call_later(_LINGER_SECONDS, self.abort)
        else:
            self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._timer.cancel()
        if not self._ways:
            asyncio.get_running_loop().remove_reader(self.outside.fileno())
        for way in self._ways:
            way.drop()
        for end in (self._inside, self.outside):
            if end is not None:
                end.close()

    def _left(self) -> None:
        """All bytes that were left in one direction have gone out."""
        if not any(way.has_rest for way in self._ways):
            self.abort()

    def _leave(self) -> None:
        """The caller has closed its end."""
        self._guest.has_left = True
        self._ended()

    def _step(self) -> None:
        """The caller has sent something: it goes on if gRPC had answered before."""
        self._guest.heard = asyncio.get_running_loop().time()
        if self._ways and self._ways[1].has_passed:
            self._guest.steps = 2


class _Way:
    """One direction of a passage: what comes in at one socket goes out at the other.

    Attributes:
        has_passed: something has come.
        then: called when what is left has gone out.
    """

    def __init__(
        self,
        source: socket.socket,
        target: socket.socket,
        ended: Callable[[], None],
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        self._source, self._target, self._ended, self._heard = source, target, ended, heard
        self._rest = b""
        self.has_passed = False
        self.then: Callable[[], None] | None = None
        self._stall: asyncio.TimerHandle | None = None
        asyncio.get_running_loop().add_reader(source.fileno(), self._pass)

    @property
    def has_rest(self) -> bool:
        """Whether something has come in that has not gone out."""
        return bool(self._rest)

    def stop(self) -> None:
        """Take nothing more in."""
        asyncio.get_running_loop().remove_reader(self._source.fileno())

    def drop(self) -> None:
        """Forget what is left; nothing happens here any more."""
        loop = asyncio.get_running_loop()
        self._rest, self.then = b"", None
        self._move_on()
        if self._source.fileno() >= 0:
            loop.remove_reader(self._source.fileno())
        if self._target.fileno() >= 0:
            loop.remove_writer(self._target.fileno())

    def _pass(self) -> None:
        """As much as there is, through memory that all passages share: it is not kept."""
        try:
            size = self._source.recv_into(_ROOM)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
        if not size:
            self._ended()
            return
        self._heard()
        self.has_passed = True
        sent = self._send(_ROOM[:size])
        if 0 <= sent < size:
            self._rest = bytes(_ROOM[sent:size])
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._source.fileno())
            loop.add_writer(self._target.fileno(), self._go_on)
            self._stall = loop.call_later(_STALL_SECONDS, self._ended)

    def _go_on(self) -> None:
        """There is room again."""
        sent = self._send(memoryview(self._rest))
        if sent < 0:
            return
        self._rest = self._rest[sent:]
        if self._rest:
            return
        self._move_on()
        loop = asyncio.get_running_loop()
        loop.remove_writer(self._target.fileno())
        if self.then is not None:
            self.then()
        else:
            loop.add_reader(self._source.fileno(), self._pass)

    def _move_on(self) -> None:
        if self._stall is not None:
            self._stall.cancel()

    def _send(self, data: memoryview) -> int:
        """How many bytes have left; negative when the other end is gone."""
        try:
            return self._target.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self._rest = b""
            self._ended()
            return -1
