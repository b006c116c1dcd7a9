"""A server's node inside an event loop: one thread for the node, one for the log, waiters."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

from torchfsl.errors import Error, RejectedSubmission
from torchfsl.fsl.messages import Header, Kind
from torchfsl.fsl.server.states import RoundState
from torchfsl.fsl.suite import WIRE_VERSION
from torchfsl.service.net.calls import NotReady
from torchfsl.service.server.failures import STATE_ERRORS, Failures
from torchfsl.service.server.intake import Budget, Gate, GroupWriter, Limits, Slots
from torchfsl.service.server.logs import without_clients
from torchfsl.service.server.node import Node
from torchfsl.service.server.worker import Worker
from torchfsl.service.state.ledger import RoundRow
from torchfsl.service.state.records import StoreDamaged
from torchfsl.service.state.steps import SHARE_LEFT, SHARE_MAY_HAVE_LEFT, StoredState
from torchfsl.version import __version__

log = logging.getLogger("torchfsl.service.station")

_LATEST: Final = 2.0**40
"""Latest time in an answer, in seconds since the epoch."""

P = ParamSpec("P")
T = TypeVar("T")


class Station:
    """Everything the handlers and the round driver share.

    Attributes:
        node: only called through `run`.
        gate: open while messages are taken.
        counts: protocol messages of this process by kind, and resends.
        stalled: why the round does not go on, or empty.
        unready: says why the server cannot do its work, or empty.
        expired: says that the other server's certificate has expired, or empty.
        issuers: says the digest of issuers of tokens, or empty without any.
        failures: errors that no code expects; those of the state end the process.
    """

    def __init__(self, node: Node, limits: Limits) -> None:
        """Start the threads; the gate is open if the node's round is."""
        self.node, self.limits = node, limits
        self.budget, self.slots, self.gate = Budget(limits), Slots(limits), Gate()
        self.counts: Counter[str] = Counter()
        self.stalled = ""
        self.unready: Callable[[], str] = lambda: ""
        self.expired: Callable[[], str] = lambda: ""
        self.issuers: Callable[[], str] = lambda: ""
        self.failures = Failures()
        self._filed = asyncio.Condition()
        self._waiting: dict[int, set[asyncio.Event]] = {}
        self._worker = Worker("torchfsl-node")
        self.writer = GroupWriter(self._worker)
        if node.task is not None and node.server.state is RoundState.OPEN:
            self.gate.open()

    @property
    def waits(self) -> str:
        """The step or the renewal of the other server that is missing, or empty."""
        return self.stalled or self.expired()

    @property
    def is_open(self) -> bool:
        """Whether the node's round takes messages."""
        return self.node.task is not None and self.node.server.state is RoundState.OPEN

    @property
    def is_opening(self) -> bool:
        """Whether the servers are comparing their models."""
        return self.node.task is not None and self.node.server.state is RoundState.OPENING

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the node in its thread; calls are made one after the other, in this order.

        A call that cannot read or write the state ends the process, before a caller gets an answer.
        Use `write` for steps that change the state.
        """
        call = self._guarded(function)
        return await self._worker.call(lambda: call(*args, **kwargs))

    async def write(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for a step that writes: any unexpected error ends the process.

        The step may have changed memory and not the disk, or the reverse. A server that is started
        again goes on from the disk alone.
        """
        step = self._guarded(function, writes=True)
        return await self._worker.call(lambda: step(*args, **kwargs))

    def _guarded(self, function: Callable[P, T], *, writes: bool = False) -> Callable[P, T]:
        """The function; errors of the state end the process, and of one that writes any bug."""

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                expected = isinstance(error, Error) or not writes
                if isinstance(error, STATE_ERRORS) or not expected:
                    self.failures.end(error)
                raise

        return call

    async def wait_for_begin(self) -> None:
        """Hold a caller that is early until the servers have compared their models.

        Raises:
            NotReady: they have not in time.
        """
        clock = asyncio.get_running_loop().time
        limit = clock() + self.limits.peer_seconds
        while self.is_opening:
            if clock() >= limit:
                raise NotReady("the round is being opened: try again")
            await self.wait(min(1.0, self.limits.peer_seconds))

    async def accept(self, header: Header, message: bytes) -> bool:
        """Store a message, whose header was checked, and let it count. True if it was new.

        Once begun this runs to its end, even if the caller has gone: what is in the log is filed.

        Raises:
            RejectedSubmission, ProtocolError: refused.
            StoreFull: not stored.
        """
        await self.wait_for_begin()
        if await self.run(lambda: self.node.open_server(header).reports.holds(message, header)):
            self.counts["resend"] += 1
            return False
        await asyncio.shield(asyncio.create_task(self._store(header, message)))
        self.counts[header.kind.name] += 1
        return True

    async def reply(self, kind: Kind, round_number: int, client: int) -> bytes:
        """MODEL or MODEL_DIGEST; see `Server.reply`."""
        await self.wait_for_begin()
        reply = await self.run(lambda: self.node.open_server().reply(kind, round_number, client))
        self.counts[kind.name] += 1
        return reply

    async def count(self, number: int, kind: Kind) -> None:
        """Let the peer's message for a step count; the first one opens the gate.

        Raises:
            ProtocolError: the round ends unopened.
        """
        if kind is Kind.ROUND_STATE and self.is_opening:
            self.gate.open()  # before the node takes messages, so that none is too late already
        try:
            await self.write(self.node.count, number, kind)
            if (
                kind is Kind.ROUND_STATE and self.is_open
            ):  # its close and end: where they are stored
                log.info("round open", extra={"round": number})
        finally:
            await self.tell()

    async def abandon(self, number: int, reason: str, *, forced: bool = False) -> None:
        """End a round unopened, see `Node.abandon`, once every message inside has been filed."""
        running = self.node.storage.running()
        if running is not None and running.number == number:
            await self.gate.close()
        try:
            await self.write(self.node.abandon, number, reason, forced=forced)
        finally:
            if self.is_open:
                self.gate.open()

    async def info(self) -> dict[str, Any]:
        """What anybody in the task may know of the state."""
        node, storage = self.node, self.node.storage
        last = storage.ledger.last_round()
        reports = last.reports if last else 0
        issuers = {"issuers": digest} if (digest := self.issuers()) else {}
        return issuers | {
            "party": node.party,
            "library": __version__,
            "wire_version": WIRE_VERSION,
            "plan_digest": node.task.plan.digest.hex() if node.task else "",
            "model": storage.model_version,
            "round": last.number if last else -1,
            "state": last.state if last else "",
            "open": self.is_open,
            "closes_at": min(last.closes_at, _LATEST) if last else 0.0,
            "complete": await self.run(self.num_complete) if self.is_open else reports,
            "expected": last.expected if last else 0,
            "reports": reports,
            "accepted": last.accepted if last else 0,
            "reason": without_clients(last.why) if last else "",
            "may_have_opened": _may_have_opened(last),
            "unready": self.unready(),
            "halted": storage.halted,
            "live": storage.is_live,
            "may_replace": storage.settings.may_replace,
            "rounds_opened": storage.rounds_opened,
            "max_rounds": node.task.plan.max_rounds if node.task else 0,
            "stalled": self.waits,
        }

    def num_complete(self) -> int:
        """Complete reports in the open round, 0 if none is open. In the node's thread."""
        return self.node.server.reports.num_complete if self.is_open else 0

    async def _store(self, header: Header, message: bytes) -> None:
        """On disk first; from the log's thread it goes to the node's, in the order of the log."""

        def file(view: memoryview) -> None:
            self.node.open_server(header).receive(view, header)

        with self.gate.enter():
            try:
                await self.writer.append(
                    self.node.storage.report_log, message, self._guarded(file, writes=True)
                )
            except StoreDamaged as error:
                self.failures.end(error)
                raise
            finally:
                await self.tell(header.client)

    async def tell(self, client: int | None = None) -> None:
        """Wake those who wait for the round, and for messages of one client, or of all."""
        waiting = self._waiting.values() if client is None else [self._waiting.get(client, set())]
        for events in waiting:
            for event in events:
                event.set()
        async with self._filed:
            self._filed.notify_all()

    async def wait(self, seconds: float) -> None:
        """Until something happened, at most `seconds`."""
        try:
            async with asyncio.timeout(seconds), self._filed:
                await self._filed.wait()
        except TimeoutError:
            return

    async def answer(self, round_number: int, client: int) -> bytes:
        """ANSWER, once the peer has relayed the client's trees.

        Raises:
            NotReady: it did not in time.
            RejectedSubmission: they were refused.
        """
        await self.wait_for_begin()

        def answer() -> bytes | None:
            if not self.node.server.reports.has_trees(client):
                return None
            others = tuple(self._waiting)  # in one step of the interpreter: the loop changes it
            return self.node.open_server().reply(Kind.ANSWER, round_number, client, others)

        told = asyncio.Event()
        self._waiting.setdefault(client, set()).add(told)
        try:
            async with asyncio.timeout(self.limits.peer_seconds):
                while (reply := await self.run(answer)) is None:
                    await told.wait()
                    told.clear()
                    if not self.is_open:
                        raise RejectedSubmission(
                            "the round closed before the DPF keys were complete: "
                            "participate in the next round",
                            code="too-late",
                        )
            self.counts[Kind.ANSWER.name] += 1
            return reply
        except TimeoutError:
            raise NotReady(
                "the other server has not relayed the DPF keys: send the keys again"
            ) from None
        finally:
            self._waiting[client].discard(told)
            if not self._waiting[client]:
                del self._waiting[client]

    def close(self) -> None:
        """Stop the threads once what runs has ended."""
        self._worker.close()
        self.failures.stop()
        self.node.storage.close()


def _may_have_opened(row: RoundRow | None) -> bool:
    """Whether this server's share of a round may have left it, which charges its clients."""
    if row is None or row.state is StoredState.UNOPENED:
        return row is not None and SHARE_LEFT in row.reason
    return row.state is StoredState.APPLIED or row.state in SHARE_MAY_HAVE_LEFT
