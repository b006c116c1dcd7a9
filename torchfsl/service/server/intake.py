"""How much a server takes in at a time: bytes in flight, calls of one party, the open round."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from torchfsl.errors import Error, RejectedSubmission
from torchfsl.service.net.calls import Overloaded
from torchfsl.service.net.identity import Identity, Role
from torchfsl.service.server.worker import Worker, settle
from torchfsl.service.state.records import ReportLog, StoreDamaged


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the load of one server process.

    Attributes:
        bytes_in_flight: of requests that are being read or stored; more wait, which stops their
            senders by flow control.
        bytes_per_client: of those, of one client, which may always have one message.
        bytes_per_second: least rate of a sender, over the time in which it is waited for, once it
            was waited for longer than `idle_seconds`.
        calls: concurrent calls over all connections; more are refused.
        calls_per_client: concurrent calls of one client.
        calls_per_connection: streams that one connection may have open.
        connections: of everybody; fewer where this process may not open so many files.
        connections_per_client: of one certificate; beyond, the one idle longest is dropped.
        handshakes: connections on which no caller has made a call yet, out of `connections`.
        handshakes_per_address: of those, from one address (IPv6: one /64).
        handshake_seconds: after which a connection without a call is dropped.
        strangers_per_second: handshakes and requests of such connections at the HTTPS door, whose
            TLS is this process's own work; more wait for their turn.
        strangers_per_address: of those, from one address; addresses have their turns by rotation.
        wait_seconds: how long a request waits for room before it is refused.
        conversation_seconds: how long a stream of calls may rest between two of them.
        idle_seconds: how long a sender or reader may pause inside a message.
        call_seconds: how long a message may take to arrive as a whole.
        peer_seconds: how long a client's call waits for the other server.
        audit_seconds: how long a round waits for an auditor before it ends unopened.
    """

    bytes_in_flight: int = 256 << 20
    bytes_per_client: int = 64 << 20
    bytes_per_second: int = 32 << 10
    calls: int = 512
    calls_per_client: int = 4
    calls_per_connection: int = 64
    connections: int = 1024
    connections_per_client: int = 8
    handshakes: int = 256
    handshakes_per_address: int = 32
    handshake_seconds: float = 20.0
    strangers_per_second: int = 256
    strangers_per_address: int = 64
    wait_seconds: float = 30.0
    conversation_seconds: float = 600.0
    idle_seconds: float = 20.0
    call_seconds: float = 120.0
    peer_seconds: float = 60.0
    audit_seconds: float = 60.0


class Budget:
    """Bytes in flight."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._free = limits.bytes_in_flight
        self._held: Counter[Identity] = Counter()
        self._waiting: list[tuple[int, Identity | None, asyncio.Future[None]]] = []

    @property
    def used(self) -> int:
        """Bytes in flight now."""
        return self._limits.bytes_in_flight - self._free

    @contextlib.asynccontextmanager
    async def hold(self, size: int, whose: Identity | None = None) -> AsyncIterator[None]:
        """Hold `size` bytes of a client, or of no one in particular; wait for room if needed.

        Raises:
            Overloaded: there was no room in time.
        """
        size = min(size, self._limits.bytes_in_flight)
        if self._has_room(size, whose):
            self._change(size, whose)
        else:
            await self._turn(size, whose)
        try:
            yield
        finally:
            self._change(-size, whose)
            self._let_in()

    def _has_room(self, size: int, whose: Identity | None) -> bool:
        held = self._held[whose] if whose is not None else 0
        return self._free >= size and not (held and held + size > self._limits.bytes_per_client)

    def _change(self, size: int, whose: Identity | None) -> None:
        self._free -= size
        if whose is not None:
            self._held[whose] += size
            if not self._held[whose]:
                del self._held[whose]

    async def _turn(self, size: int, whose: Identity | None) -> None:
        """Wait until `_let_in` has taken the room; raises Overloaded when the time is over."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, whose, turn)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(self._limits.wait_seconds):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # it came together with the end of the wait
                self._change(-size, whose)
                self._let_in()
            if isinstance(error, TimeoutError):
                raise Overloaded("the server has too much in flight: try again later") from None
            raise
        finally:
            self._waiting.remove(entry)

    def _let_in(self) -> None:
        """Give room to those who wait, the longest first, as far as there is some for them."""
        for size, whose, turn in self._waiting:
            if not turn.done() and self._has_room(size, whose):
                self._change(size, whose)
                turn.set_result(None)


class Slots:
    """Concurrent calls, over all and by caller."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._calls: Counter[Identity] = Counter()
        self.used = 0

    @contextlib.contextmanager
    def take(self, caller: Identity) -> Iterator[None]:
        """Take a slot; servers and the coordinator always get one.

        Raises:
            Overloaded: there is none.
        """
        is_client = caller.role is Role.CLIENT
        if is_client and self.used >= self._limits.calls:
            raise Overloaded("the server has too many calls: try again later")
        if is_client and self._calls[caller] >= self._limits.calls_per_client:
            raise Overloaded(f"{caller} has too many calls at once: wait until a call ends")
        self.used += 1
        self._calls[caller] += 1
        try:
            yield
        finally:
            self.used -= 1
            self._calls[caller] -= 1
            if not self._calls[caller]:
                del self._calls[caller]


class Turns:
    """Lets those who wait go on one after the other, and in turn among their addresses.

    Args:
        per_second: turns of all.
        per_address: turns a second of one address.
    """

    def __init__(self, per_second: float, per_address: float) -> None:
        self._seconds, self._rest = 1 / per_second, 1 / per_address
        self._waiting: dict[str, deque[tuple[Callable[[], object], Callable[[], object]]]] = {}
        self._ready: deque[str] = deque()
        self._pause: asyncio.TimerHandle | None = None

    def wait(
        self, address: str, is_there: Callable[[], object], then: Callable[[], object]
    ) -> None:
        """Call `then` in its turn, which takes no time from others unless `is_there` by then."""
        if address not in self._waiting:
            self._waiting[address] = deque()
            self._ready.append(address)
        self._waiting[address].append((is_there, then))
        if self._pause is None:
            self._go_on()

    def _go_on(self) -> None:
        self._pause = None
        while self._ready and self._pause is None:
            address = self._ready.popleft()
            is_there, then = self._waiting[address].popleft()
            if is_there():
                later = asyncio.get_running_loop().call_later
                self._pause = later(self._seconds, self._go_on)
                later(self._rest, self._rested, address)
            elif self._waiting[address]:
                self._ready.appendleft(address)
            else:
                del self._waiting[address]
            then()

    def _rested(self, address: str) -> None:
        """An address may have its next turn."""
        if not self._waiting[address]:
            del self._waiting[address]
            return
        self._ready.append(address)
        if self._pause is None:
            self._go_on()


class Gate:
    """Lets messages into the open round, and closes when the last one inside has been filed."""

    def __init__(self) -> None:
        self._open = False
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def open(self) -> None:
        """Let messages in."""
        self._open = True

    async def close(self) -> None:
        """Let nothing in any more; returns when nothing is inside."""
        self._open = False
        await self._empty.wait()

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """Be inside.

        Raises:
            RejectedSubmission: the gate is closed.
        """
        if not self._open:
            raise RejectedSubmission(
                "the round is closed: the message came too late. Participate in the next round",
                code="too-late",
            )
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()


@dataclass(frozen=True, slots=True)
class _Entry:
    """A message on its way to a report log, and then to who files its view there."""

    report_log: ReportLog
    message: bytes
    file: Callable[[memoryview], None]
    filed: asyncio.Future[None]


class GroupWriter:
    """Appends to a report log; messages that wait together are made durable together.

    Args:
        worker: files what is durable, in the order of the log.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="torchfsl-log")
        self._waiting: list[_Entry] = []
        self._task: asyncio.Task[None] | None = None

    async def append(
        self, report_log: ReportLog, message: bytes, file: Callable[[memoryview], None]
    ) -> None:
        """Once the message is on disk, let the worker call `file` with its view in the log.

        Raises:
            StoreFull: there is no room.
            StoreDamaged: the disk failed.
            Exception: what `file` raises.
        """
        entry = _Entry(report_log, message, file, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        if self._task is None:
            self._task = asyncio.create_task(self._write())
        await entry.filed

    async def _write(self) -> None:
        loop, batch = asyncio.get_running_loop(), list[_Entry]()
        try:
            while self._waiting:
                report_log = self._waiting[0].report_log
                batch = [one for one in self._waiting if one.report_log is report_log]
                self._waiting = [one for one in self._waiting if one.report_log is not report_log]
                await loop.run_in_executor(self._thread, self._append, report_log, batch)
        except BaseException as error:  # whoever waits hears of it, and the next one is written
            for entry in batch + self._waiting:
                settle(entry.filed, error=error)
            self._waiting = []
            raise
        finally:
            self._task = None

    def _append(self, report_log: ReportLog, batch: list[_Entry]) -> None:
        """In the log's thread."""
        results: Sequence[memoryview | Error]
        try:
            results = report_log.append([entry.message for entry in batch])
        except (StoreDamaged, RejectedSubmission) as error:
            results = [error] * len(batch)
        for entry, result in zip(batch, results, strict=True):
            if isinstance(result, memoryview):
                self._worker.take(functools.partial(entry.file, result), entry.filed)
            else:
                settle(entry.filed, error=result)
