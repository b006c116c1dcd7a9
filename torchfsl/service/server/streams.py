"""One call at a server reads a request within its limits and writes the answer, or many do so.

A caller then pays once for what a call costs beyond its messages. Between two calls a conversation
holds neither a slot nor its connection. It ends, without an error, when it rests too long, when its
caller has begun too many others, or when the server stops; the caller begins another one then.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import grpc
import grpc.aio

from torchfsl.errors import DecodeError
from torchfsl.fsl import messages
from torchfsl.fsl.messages import Header, Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service.net import calls
from torchfsl.service.net.identity import Identity, Role
from torchfsl.service.server.intake import Budget, Limits

Context = Any  # grpc.aio.ServicerContext, which has no types


@contextlib.contextmanager
def _present() -> Iterator[None]:
    """Raise NotReady if the caller leaves meanwhile."""
    try:
        yield
    except (grpc.aio.InternalError, grpc.aio.AbortError):
        raise calls.NotReady("the caller has left") from None


class Stream:
    """A call's two directions, with the limits on them.

    Attributes:
        received, sent: bytes so far.
        client: who calls, if it is a client; what it sends counts as its own.
    """

    def __init__(self, context: Context, limits: Limits, budget: Budget) -> None:
        self._context, self._limits, self._budget = context, limits, budget
        self.received = self.sent = 0
        self.client: Identity | None = None
        self._waited = 0.0

    async def request(self, **kinds: type | range) -> dict[str, Any]:
        """A small request; see `calls.decode_request`."""
        return calls.decode_request(await self._chunk(), **kinds)

    @contextlib.asynccontextmanager
    async def message(
        self, plan: Plan, *kinds: Kind, budgets: Mapping[Kind, Budget] | None = None
    ) -> AsyncIterator[tuple[Header, bytes]]:
        """A protocol message of one of these kinds, and its bytes held while inside.

        `budgets` are those of kinds that have a separate one.

        Raises:
            DecodeError: the header, or more or fewer bytes than it says.
        """
        first = await self._chunk()
        header = messages.decode_header(plan, first, *kinds)
        budget = (budgets or {}).get(header.kind, self._budget)
        async with budget.hold(header.total_bytes, self.client):
            yield header, await self._rest(first, header.total_bytes)

    async def blob(self, limit: int) -> bytes:
        """Everything the caller sends, up to `limit` bytes."""
        parts: list[bytes] = []
        while chunk := await self._chunk():
            parts.append(chunk)
            if self.received > limit:
                raise DecodeError(
                    f"the request is longer than {limit} bytes, the limit: send a shorter request"
                )
        return b"".join(parts)

    async def send(self, data: bytes | memoryview) -> None:
        """Write the answer; a caller that stops reading is dropped."""
        for chunk in self._framed(data):
            try:
                async with asyncio.timeout(self._limits.idle_seconds):
                    with _present():
                        await self._context.write(chunk)
            except TimeoutError:
                raise calls.NotReady("the caller does not read its answer") from None
            self.sent += len(chunk)

    async def answer(self, fields: Mapping[str, Any]) -> None:
        """Write a small answer, as JSON."""
        await self.send(json.dumps(fields).encode())

    async def _rest(self, first: bytes, total: int) -> bytes:
        """The message of which `first` is here; what may come behind it is not read."""
        parts, size = [first], len(first)
        deadline = asyncio.get_running_loop().time() + self._limits.call_seconds
        while size < total:
            chunk = await self._chunk(deadline)
            self._check_rate()
            if not chunk:
                break
            parts.append(chunk)
            size += len(chunk)
        if size != total:
            raise DecodeError(
                f"the message has another length than the {total} bytes that its header says: send "
                "exactly these"
            )
        return b"".join(parts) if len(parts) > 1 else first

    async def _chunk(self, deadline: float = math.inf) -> bytes:
        """The next chunk, empty at the end."""
        clock = asyncio.get_running_loop().time
        start = clock()
        silent = start + self._limits.idle_seconds
        try:
            async with asyncio.timeout_at(min(silent, deadline)):
                chunk = await self._read()
        except TimeoutError:
            limits = self._limits
            why = f"the caller sent nothing for {limits.idle_seconds:g} s"
            if deadline <= silent:
                why = f"the message took longer than {limits.call_seconds:g} s"
            raise calls.NotReady(f"{why}: the call is dropped") from None
        self._waited += clock() - start
        self.received += len(chunk)
        return chunk

    async def _read(self) -> bytes:
        with _present():
            chunk = await self._context.read()
        if chunk is grpc.aio.EOF:
            return b""
        assert isinstance(chunk, bytes)
        return chunk

    def _framed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """An answer in chunks."""
        return calls.chunks(data)

    def _check_rate(self) -> None:
        """Drop a sender that holds room by sending little."""
        limits = self._limits
        if self._waited > limits.idle_seconds + self.received / limits.bytes_per_second:
            raise calls.NotReady(
                f"expected at least {limits.bytes_per_second} bytes per second from the caller: "
                "the call is dropped"
            )


class Turn(Stream):
    """One of the calls of a conversation, as a separate stream."""

    def __init__(self, context: Context, limits: Limits, budget: Budget, first: bytes) -> None:
        """The first chunk is here, with the method's name in front of it."""
        super().__init__(context, limits, budget)
        self.method, rest = calls.method_of(first)
        self._first: bytes | None = rest
        self._has_ended = len(first) < calls.CHUNK_BYTES

    async def end(self) -> None:
        """Everything that a caller must have sent is read.

        Raises:
            DecodeError: it sent more.
        """
        if not self._has_ended and await self._chunk():
            raise DecodeError(
                "the caller sent more bytes than the length in the header of its message: send "
                "exactly as many bytes as the header says"
            )

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
                raise calls.Overloaded(
                    f"{caller} has too many calls at once: wait until a call ends"
                )
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
                with _present():
                    chunk = await context.read()
        except TimeoutError:
            return b""
        finally:
            self._resting[caller].pop(mark, None)
        return b"" if chunk is grpc.aio.EOF else chunk
