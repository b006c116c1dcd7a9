"""Pages for operators over plain HTTP, also for callers who send half a request and wait.

Callers need no certificate here, and a supervisor starts the server again when `/livez` does not
answer. So a request as a whole has two seconds, in which a newcomer may take the place of the
oldest one that is not finished, and the probes have places apart from the slow pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

log = logging.getLogger("torchfsl.service.observe")

Page = tuple[int, str, bytes]
"""Status, content type, body."""

_REQUEST_SECONDS: Final = 2.0
"""For a request to arrive, and again for its answer to leave."""

_UNFINISHED: Final = 32
"""Requests that are arriving, or whose answers are leaving."""

_BACKLOG: Final = 1024
_SLOW_PAGES: Final = 16
_PROBES: Final = frozenset(("/livez", "/readyz"))
_PROBES_AT_ONCE, _PROBES_WAITING = 8, 64
_HEAD_BYTES: Final = 8192
_TELL_SECONDS: Final = 10.0
_HEADERS: Final = (
    (
        "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
    ("Connection", "close"),
)
"""Of every answer: a page of text, which loads nothing, and which no other page shows."""


class ObservationServer:
    """Answers `GET` in a separate event loop, not the server's.

    Args:
        listening: bound socket.
        pages: by path; called in a thread of the request's own.

    Attributes:
        port: of the socket.
    """

    def __init__(self, listening: socket.socket, pages: Mapping[str, Callable[[], Page]]) -> None:
        self.port = int(listening.getsockname()[1])
        self._pages = pages
        self._unfinished: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._busy = {
            True: _Busy(_PROBES_WAITING, asyncio.Semaphore(_PROBES_AT_ONCE)),
            False: _Busy(_SLOW_PAGES, asyncio.Semaphore(_SLOW_PAGES)),
        }  # by whether it is a probe
        self._told = -_TELL_SECONDS
        self._loop, self._stopped = asyncio.new_event_loop(), asyncio.Event()
        listening.listen(_BACKLOG)
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._serve(listening),), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self, listening: socket.socket) -> None:
        server = await asyncio.start_server(
            self._take, sock=listening, limit=_HEAD_BYTES, backlog=_UNFINISHED
        )
        listening.listen(_BACKLOG)  # and no more than the places are accepted at once
        await self._stopped.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection with one request."""
        try:
            with self._place():
                async with asyncio.timeout(_REQUEST_SECONDS):
                    path = _path_of(await reader.readuntil(b"\r\n\r\n"))
            status, kind, body = await self._page(path)
            with self._place():
                async with asyncio.timeout(_REQUEST_SECONDS):
                    writer.write(_head(status, kind, len(body)) + body)
                    writer.close()
                    await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # who sends or reads too slowly is hung up on
        finally:
            writer.transport.abort()

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        """One of the unfinished requests; where all places are taken the oldest one goes."""
        if len(self._unfinished) >= _UNFINISHED:
            self._displace()
        task = asyncio.current_task()
        assert task is not None
        self._unfinished[task] = None
        try:
            yield
        finally:
            self._unfinished.pop(task, None)

    def _displace(self) -> None:
        oldest = next(iter(self._unfinished))
        del self._unfinished[oldest]
        oldest.cancel()

    async def _page(self, path: str) -> Page:
        """A page, made in a thread; probes wait for each other alone."""
        page = self._pages.get(path)
        if page is None:
            return _short(404, f"no such page: the pages are {', '.join(self._pages)}")
        busy = self._busy[path in _PROBES]
        if busy.num >= busy.most:
            return _short(503, "this server answers too many requests now: ask again")
        busy.num += 1
        try:
            async with busy.at_once:
                return await self._made(page)
        finally:
            busy.num -= 1

    async def _made(self, page: Callable[[], Page]) -> Page:
        made: asyncio.Future[Page] = self._loop.create_future()

        def tell(told: Page) -> None:
            if not made.done():
                made.set_result(told)

        def make() -> None:
            try:
                told = page()
            except Exception as error:
                told = self._failed(error)
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self._loop.call_soon_threadsafe(tell, told)

        threading.Thread(target=make, daemon=True).start()
        return await made

    def _failed(self, error: Exception) -> Page:
        """Log it, once in a while."""
        if time.monotonic() - self._told >= _TELL_SECONDS:
            self._told = time.monotonic()
            log.error("a request to the metrics port failed, which is a bug", exc_info=error)
        return _short(500, "the page failed: see the log")


@dataclass(slots=True)
class _Busy:
    """Pages of a kind that are being made or wait for that."""

    most: int
    at_once: asyncio.Semaphore
    num: int = 0


def _path_of(head: bytes) -> str:
    """The path that a request asks for; empty for requests without an answer."""
    method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
    return rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1") if method == b"GET" else ""


def _short(status: int, text: str) -> Page:
    return status, "text/plain", f"{text}\n".encode()


def _head(status: int, kind: str, size: int) -> bytes:
    fields = (("Content-Type", kind), ("Content-Length", str(size)), *_HEADERS)
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{n}: {v}" for n, v in fields)]
    return "\r\n".join((*lines, "", "")).encode()
