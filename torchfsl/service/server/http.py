"""HTTP/1.1 on one connection, by h11: one request at a time, each within its limits.

A handler asks for each piece of a body. A request that comes before the answer to
the one before ends the connection, so that answers cannot be mistaken.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import h11

from torchfsl.errors import DecodeError, Error
from torchfsl.service.net.calls import NotReady
from torchfsl.service.server.intake import Limits

PIECE_BYTES: Final = 1 << 16
_HEAD_BYTES: Final = 16 << 10
_HEAD_LINES: Final = 100
"""Of a request's head: each one costs h11 time."""

_DISCARDED_BYTES: Final = 1 << 20
"""Of a body that no handler reads: a caller that sends it then reads the answer."""

_DISCARD_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request.

    Attributes:
        method: as `POST`.
        target: path and query.
        headers: by name in small letters; of names that came twice, the values in a row.
        length: of the body in bytes, as it says itself; None where it does not.
    """

    method: str
    target: str
    headers: Mapping[str, tuple[str, ...]]
    length: int | None

    def one(self, name: str) -> str:
        """The value of a header, empty without one.

        Raises:
            DecodeError: it came more than once.
        """
        values = self.headers.get(name, ("",))
        if len(values) != 1:
            raise DecodeError(f"expected one header {name}, got {len(values)}")
        return values[0]


class Wire:
    """One connection of a caller.

    Attributes:
        has_begun: the answer to the last request has begun.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits
    ) -> None:
        self._reader, self._writer, self._limits = reader, writer, limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES)
        self.has_begun = self._is_pipelined = self._has_no_body = False
        self._left = 0

    async def head(self) -> Request | None:
        """The next request; None where the caller leaves, rests too long or is slow.

        Raises:
            DecodeError: what came is not a request.
        """
        self.has_begun = False
        clock = asyncio.get_running_loop().time
        limit = clock() + self._limits.conversation_seconds
        is_first = True
        while (event := self._next()) is h11.NEED_DATA:
            try:
                async with asyncio.timeout_at(limit):
                    await self._more(_HEAD_BYTES)
            except TimeoutError:
                return None
            if is_first:
                is_first, limit = False, clock() + self._limits.idle_seconds
        if not isinstance(event, h11.Request):
            return None
        request = _request(event)
        self._left, self._has_no_body = request.length or 0, request.method == "HEAD"
        return request

    async def body(self) -> bytes:
        """The next piece of the body; empty at its end.

        Raises:
            DecodeError: it ends too early.
        """
        while True:
            event = self._next()
            if event is h11.NEED_DATA:
                if self._http.they_are_waiting_for_100_continue:
                    self._write(h11.InformationalResponse(status_code=100, headers=[]))
                await self._more()
            elif not isinstance(event, h11.Data):
                return b""
            elif event.data:
                self._left -= len(event.data)
                return bytes(event.data)

    def begin(self, status: int, headers: Iterable[tuple[str, str]], size: int) -> None:
        """The head of the answer, whose body will have `size` bytes."""
        self.has_begun = True
        self._is_pipelined = not self._left and bool(self._http.trailing_data[0])
        given = [*headers, ("Content-Length", str(size))]
        phrase = HTTPStatus(status).phrase
        self._write(h11.Response(status_code=status, headers=given, reason=phrase))

    async def write(self, data: bytes) -> None:
        """A piece of the answer's body.

        Raises:
            NotReady: the caller has left.
        """
        self.add(data)
        try:
            await self._writer.drain()
        except OSError:
            raise NotReady("the caller has left") from None

    def add(self, data: bytes) -> None:
        """A short piece of it, without waiting; nothing for HEAD, whose answers have no body."""
        if not self._has_no_body:
            self._write(h11.Data(data=data))

    async def end(self) -> bool:
        """End the answer. Whether another request may come: this one has been read, and no more."""
        self._write(h11.EndOfMessage())
        left = _DISCARDED_BYTES
        try:
            async with asyncio.timeout(_DISCARD_SECONDS):
                await self._writer.drain()
                while left > 0 and self._http.their_state is h11.SEND_BODY:
                    left -= len(await self.body())
        except (TimeoutError, OSError, Error):
            return False
        is_over = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if not is_over or self._is_pipelined:
            return False
        self._http.start_next_cycle()
        return True

    async def close(self) -> None:
        """Let what was written leave, and close."""
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await self._writer.wait_closed()

    def _next(self) -> Any:
        if self._http.their_state is h11.IDLE:
            come, _ = self._http.trailing_data
            head = come[: come.find(b"\r\n\r\n")]
            if head.count(b"\n") > _HEAD_LINES:
                raise DecodeError(
                    f"expected at most {_HEAD_LINES} lines of headers, got more: send fewer headers"
                )
            if b"\n " in head or b"\n\t" in head:  # which a proxy may read otherwise
                raise DecodeError("got a folded header: write each header on one line")
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise DecodeError(f"the request is not valid HTTP/1.1: {error}") from None

    async def _more(self, size: int = PIECE_BYTES) -> None:
        try:
            data = await self._reader.read(size)
        except OSError:
            data = b""
        self._http.receive_data(data)

    def _write(self, event: Any) -> None:
        self._writer.write(self._http.send(event) or b"")


def _request(event: h11.Request) -> Request:
    headers: dict[str, tuple[str, ...]] = {}
    for name, value in event.headers:
        key = name.decode("latin-1")
        headers[key] = (*headers.get(key, ()), value.decode("latin-1"))
    length = headers.get("content-length", ("",))[0]
    known = length.isdecimal() and "transfer-encoding" not in headers
    method, target = event.method.decode("latin-1"), event.target.decode("latin-1")
    return Request(method, target, headers, int(length) if known else None)
