"""Many calls on one stream: what a call costs beside its messages is paid once a caller.

Between two calls a conversation holds neither a slot nor its connection. It ends, without an error,
when it rests too long, when its caller has begun too many others, or when the server stops; the
caller begins another one then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator

import grpc.aio

from torchfsl.errors import DecodeError
from torchfsl.service.net import calls
from torchfsl.service.net.identity import Identity, Role
from torchfsl.service.server.intake import Budget, Limits
from torchfsl.service.server.streams import Context, Stream


class Turn(Stream):
    """One of the calls of a conversation, as a stream of its own."""

    def __init__(self, context: Context, limits: Limits, budget: Budget, first: bytes) -> None:
        """The first chunk is here, with the method's name in front of it."""
        super().__init__(context, limits, budget)
        self.method, rest = calls.method_of(first)
        self._first: bytes | None = rest
        self._has_ended = len(first) < calls.CHUNK_BYTES

    async def end(self) -> None:
        """What a caller must have sent is read.

        Raises:
            DecodeError: it sent more.
        """
        if not self._has_ended and await self._chunk():
            raise DecodeError("more came than the message has")

    def _framed(self, data: bytes | memoryview) -> Iterator[bytes]:
        return calls.replied(data)

    async def _read(self) -> bytes:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self._has_ended:
            return b""
        chunk = await super()._read()
        self._has_ended = len(chunk) < calls.CHUNK_BYTES
        return chunk


class Conversations:
    """All of one server.

    Args:
        limits: `conversation_seconds`, and `calls_per_client` conversations of a client.
        budget: of the bytes in flight.
    """

    def __init__(self, limits: Limits, budget: Budget) -> None:
        self._limits, self._budget = limits, budget
        self._resting: defaultdict[Identity, dict[object, Callable[[], None]]] = defaultdict(dict)
        self._count: defaultdict[Identity, int] = defaultdict(int)
        self._is_over = False

    async def turns(self, context: Context, caller: Identity) -> AsyncGenerator[Turn, None]:
        """The calls of one conversation, each to be answered before the next is asked for.

        Raises:
            DecodeError: a request is for no method that may be called here.
            Overloaded: the caller has too many conversations with a call under way.
        """
        with self._begun(caller):
            while first := await self._next(context, caller):
                turn = Turn(context, self._limits, self._budget, first)
                yield turn
                await turn.end()

    def end(self) -> None:
        """End those that rest now, and others once they do."""
        self._is_over = True
        for resting in self._resting.values():
            for stop in resting.values():
                stop()

    @contextlib.contextmanager
    def _begun(self, caller: Identity) -> Iterator[None]:
        if caller.role is Role.CLIENT and self._count[caller] >= self._limits.calls_per_client:
            if not self._resting[caller]:
                raise calls.Overloaded(f"{caller} has too many calls at once: finish one first")
            next(iter(self._resting[caller].values()))()  # the one that rests longest
        self._count[caller] += 1
        try:
            yield
        finally:
            self._count[caller] -= 1
            if not self._count[caller]:
                del self._count[caller]
                self._resting.pop(caller, None)

    async def _next(self, context: Context, caller: Identity) -> bytes:
        """The first chunk of the next call; empty when the conversation ends."""
        if self._is_over:
            return b""
        loop, mark = asyncio.get_running_loop(), object()
        try:
            async with asyncio.timeout(self._limits.conversation_seconds) as clock:
                self._resting[caller][mark] = lambda: clock.reschedule(loop.time())
                chunk = await context.read()
        except TimeoutError:
            return b""
        finally:
            self._resting[caller].pop(mark, None)
        return b"" if chunk is grpc.aio.EOF else chunk
