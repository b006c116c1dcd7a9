"""A server's node inside an event loop: one thread for the node, one for the log, waiters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from torchfsl.errors import RejectedSubmission
from torchfsl.messages import Kind
from torchfsl.server import RoundState
from torchfsl.service.calls import NotReady
from torchfsl.service.intake import Budget, Gate, GroupWriter, Limits, Slots
from torchfsl.service.node import Node

P = ParamSpec("P")
T = TypeVar("T")


class Station:
    """Everything the handlers and the coordinator share.

    Attributes:
        node: only called through `run`.
        gate: open while messages are taken.
        counts: protocol messages of this process by kind, and resends.
        stalled: why the round does not go on, or empty.
    """

    def __init__(self, node: Node, limits: Limits) -> None:
        """Start the threads; the gate is open if the node's round is."""
        self.node, self.limits = node, limits
        self.budget, self.slots, self.gate = Budget(limits), Slots(limits), Gate()
        self.writer = GroupWriter()
        self.counts: Counter[str] = Counter()
        self.stalled = ""
        self._filed = asyncio.Condition()
        self._engine = ThreadPoolExecutor(1, thread_name_prefix="torchfsl-node")
        if node.task is not None and node.server.state is RoundState.OPEN:
            self.gate.open()

    @property
    def is_open(self) -> bool:
        """Whether the node's round takes messages."""
        return self.node.task is not None and self.node.server.state is RoundState.OPEN

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the node in its thread; calls are made one after the other, in this order."""
        return await asyncio.wrap_future(self._engine.submit(function, *args, **kwargs))

    def check_begun(self, round_number: int) -> None:
        """Tell a client that is early to come back.

        Raises:
            NotReady: the servers are still comparing their models.
        """
        if self.node.task is not None and self.node.server.state is RoundState.OPENING:
            raise NotReady(f"round {round_number} is being opened: try again")

    async def accept(self, kind: Kind, message: bytes) -> bool:
        """Store a message and let it count. True if it was new.

        Once begun this runs to its end, even if the caller has gone: what is in the log is filed.

        Raises:
            RejectedSubmission, ProtocolError: refused.
            StoreFull: not stored.
        """
        if await self.run(self.node.holds, message):
            self.counts["resend"] += 1
            return False
        await asyncio.shield(asyncio.create_task(self._store(message)))
        self.counts[kind.name] += 1
        return True

    async def _store(self, message: bytes) -> None:
        with self.gate.enter():
            view = await self.writer.append(self.node.report_log, message)
            try:
                await self.run(self.node.file, view)
            finally:
                await self.tell()

    async def tell(self) -> None:
        """Wake everybody who waits for messages or for the round."""
        async with self._filed:
            self._filed.notify_all()

    async def wait(self, seconds: float) -> None:
        """Until something happened, at most `seconds`."""
        try:
            async with asyncio.timeout(seconds), self._filed:
                await self._filed.wait()
        except TimeoutError:
            return

    async def wait_for_trees(self, client: int) -> None:
        """Until the peer has relayed a client's trees.

        Raises:
            NotReady: it did not in time.
            RejectedSubmission: they were refused.
        """
        clock = asyncio.get_running_loop().time
        limit = clock() + self.limits.peer_seconds
        while not await self.run(self.node.server.has_trees, client):
            if clock() >= limit:
                raise NotReady("the other server has not relayed the trees: send them again")
            await self.wait(min(1.0, self.limits.peer_seconds))
            if not self.is_open:
                raise RejectedSubmission("the round closed before the trees were complete")

    def close(self) -> None:
        """Stop the threads once what runs has ended."""
        self._engine.shutdown(wait=True)
        self.node.ledger.close()
