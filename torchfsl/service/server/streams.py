"""One call at a server: reads a request within its limits, writes the answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Iterator, Mapping
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

        `budgets` are those of kinds that have one of their own.

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
                raise DecodeError(f"more than {limit} bytes")
        return b"".join(parts)

    async def send(self, data: bytes | memoryview) -> None:
        """Write the answer; a caller that stops reading is dropped."""
        for chunk in self._framed(data):
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
            raise DecodeError(f"a message of {size} bytes or more, its header says {total}")
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
            why = "nothing came for too long" if silent < deadline else "it takes too long"
            raise calls.NotReady(f"{why}: the call is dropped") from None
        self._waited += clock() - start
        self.received += len(chunk)
        return chunk

    async def _read(self) -> bytes:
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
                f"less than {limits.bytes_per_second} bytes came in a second: the call is dropped"
            )
