"""The one thread in which a server's node is called, and the memory that it uses over and over.

The work of an executor for a call (a lock, a condition, two futures) costs as much as many a call
itself; here a call is an entry in a queue, and its result a callback of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of mallopt(3)
_KEPT_BYTES: Final = 256 << 20
_LARGEST_BYTES: Final = 32 << 20


class Worker:
    """Calls functions one after the other, in the order in which they were asked for."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None]
        self._calls = queue.SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, function: Callable[[], T]) -> T:
        """Return or raise as the function does. A call without a waiter is not begun.

        Raises:
            RuntimeError: the thread was stopped.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.take(function, future)
        return await future

    def take(self, function: Callable[[], T], future: asyncio.Future[T]) -> None:
        """The same from any thread; the future gets what the function returns or raises."""
        if self._is_closed:
            settle(future, error=RuntimeError("the server has stopped"))
        else:
            self._calls.put((function, future))

    def close(self) -> None:
        """Stop the thread once what was asked for is done."""
        self._is_closed = True
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (entry := self._calls.get()) is not None:
            function, future = entry
            if future.cancelled():
                continue
            try:
                result = function()
            except BaseException as error:
                settle(future, error=error)
            else:
                settle(future, result)
            del entry, function, future  # nothing of a call is kept until the next one


def settle(
    future: asyncio.Future[Any], result: Any = None, *, error: BaseException | None = None
) -> None:
    """Set a future's result or error from a thread, for whoever still waits."""

    def told() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    with contextlib.suppress(RuntimeError):  # the event loop has ended, and who waited with it
        future.get_loop().call_soon_threadsafe(told)


def keep_memory() -> None:
    """Let this process keep up to 256 MiB that it has freed, where its allocator is glibc's.

    Evaluation takes and frees the same megabytes for every client. In a thread that is not the
    first glibc returns them each time, and the kernel clears them page by page before they are
    there again. It costs a tenth of a server's anonymous memory.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
