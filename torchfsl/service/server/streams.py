"""One call at a server: reads a request within its limits, writes the answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import grpc.aio

from torchfsl.errors import DecodeError
from torchfsl.fsl import messages
from torchfsl.fsl.messages import Header, Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service.net import calls
from torchfsl.service.net.identity import Identity
from torchfsl.service.server.intake import Budget, Limits

Context = Any  # grpc.aio.ServicerContext, which has no types


class Stream:
    """A call's two directions, with the limits on them.

    Attributes:
        received, sent: bytes so far.
        client: who calls, if it is a client; what it sends counts as its own.
    """

    def __init__(self, context: Context, limits: Limits, budget: Budget) -> None:
        """Nothing is read yet."""
        self._context, self._limits, self._budget = context, limits, budget
        self.received = self.sent = 0
        self.client: Identity | None = None
        self._waited = 0.0

    async def request(self, **kinds: type) -> dict[str, Any]:
        """A small request; see `calls.decode_request`."""
        async with self._deadline():
            data = await self._chunk()
            if await self._chunk():
                raise DecodeError("a request of more than one chunk")
        return calls.decode_request(data, **kinds)

    @contextlib.asynccontextmanager
    async def message(
        self, plan: Plan, *kinds: Kind, budgets: Mapping[Kind, Budget] | None = None
    ) -> AsyncIterator[tuple[Header, bytes]]:
        """A protocol message of one of these kinds, and its bytes held while inside.

        `budgets` are those of kinds that have one of their own.

        Raises:
            DecodeError: the header, or more or fewer bytes than it says.
        """
        async with self._deadline():
            first = await self._chunk()
        header = messages.decode_header(plan, first, *kinds)
        budget = (budgets or {}).get(header.kind, self._budget)
        async with budget.hold(header.total_bytes, self.client):
            async with self._deadline():
                data = await self._rest(first, header.total_bytes)
            yield header, data

    async def blob(self, limit: int) -> bytes:
        """Everything the caller sends, up to `limit` bytes."""
        parts: list[bytes] = []
        while chunk := await self._chunk():
            parts.append(chunk)
            if self.received > limit:
                raise DecodeError(f"more than {limit} bytes")
        return b"".join(parts)

    async def send(self, data: bytes | memoryview) -> None:
        """Write the answer; a caller that stops reading is dropped."""
        for chunk in calls.chunks(data):
            try:
                async with asyncio.timeout(self._limits.idle_seconds):
                    await self._context.write(chunk)
            except TimeoutError:
                raise calls.NotReady("the caller does not read its answer") from None
            self.sent += len(chunk)

    async def answer(self, fields: Mapping[str, Any]) -> None:
        """Write a small answer, as JSON."""
        await self.send(json.dumps(fields).encode())

    async def _rest(self, first: bytes, total: int) -> bytes:
        parts, size = [first], len(first)
        while size <= total:
            chunk = await self._chunk()
            self._check_rate()
            if not chunk:
                break
            parts.append(chunk)
            size += len(chunk)
        if size != total:
            raise DecodeError(f"a message of {size} bytes or more, its header says {total}")
        return b"".join(parts)

    async def _chunk(self) -> bytes:
        """The next chunk, empty at the end."""
        clock = asyncio.get_running_loop().time
        start = clock()
        try:
            async with asyncio.timeout(self._limits.idle_seconds):
                chunk = await self._context.read()
        except TimeoutError:
            raise calls.NotReady("nothing came for too long: the call is dropped") from None
        self._waited += clock() - start
        if chunk is grpc.aio.EOF:
            return b""
        assert isinstance(chunk, bytes)
        self.received += len(chunk)
        return chunk

    def _check_rate(self) -> None:
        """Drop a sender that holds room by sending little."""
        limits = self._limits
        if self._waited > limits.idle_seconds + self.received / limits.bytes_per_second:
            raise calls.NotReady(
                f"less than {limits.bytes_per_second} bytes came in a second: the call is dropped"
            )

    @contextlib.asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._limits.call_seconds):
                yield
        except TimeoutError:
            raise calls.NotReady("the request takes too long: the call is dropped") from None
