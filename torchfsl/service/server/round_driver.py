"""Server 0 drives the rounds, server 1 follows.

The one opens rounds, waits for reports, and leads both through the steps. A step is one exchange:
server 0 sends its message and gets server 1's, who answers first and then lets server 0's message
count. After a crash of either, the same exchange is made again with the same bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from torchfsl.errors import Error, ParameterError, ProtocolError
from torchfsl.fsl import messages
from torchfsl.fsl.messages import Kind
from torchfsl.service.net import calls
from torchfsl.service.net.answers import INFO_BYTES, decode_info
from torchfsl.service.server.auditing import AuditDesk
from torchfsl.service.server.peers import PeerLink, Relays
from torchfsl.service.server.station import Station
from torchfsl.service.state.ledger import RoundRow
from torchfsl.service.state.steps import StoredState, steps_of

log = logging.getLogger("torchfsl.service.coordinator")
_follower_log = logging.getLogger("torchfsl.service.follower")

_POLL_SECONDS: Final = 0.25
_STALLED_SECONDS: Final = 15.0
"""After which an attempt that is under way counts as waiting."""

_MOST_SECONDS: Final = 30 * 24 * 3600
_ANSWER_SECONDS: Final = 5.0
"""After which a coordinator who waits for a step hears how far it is, and asks again."""


class RoundDriver:
    """Drives one round at a time."""

    def __init__(self, station: Station, link: PeerLink, relays: Relays, audits: AuditDesk) -> None:
        """Nothing runs until `open` or `resume`."""
        self._station, self._link, self._relays = station, link, relays
        self._audits = audits
        self._ledger = station.node.storage.ledger
        self._driver: asyncio.Task[None] | None = None
        self._driven = self._to_close = -1
        self._deadline = 0.0

    def resume(self) -> None:
        """Go on with a round that a crash interrupted."""
        running = self._station.node.storage.running()
        if running is not None:
            self._start(running.number)

    async def open(self, number: int, expected: int, seconds: float) -> dict[str, Any]:
        """Open a round; returns when clients may send, or after some seconds if they may not yet.

        The same call again goes on waiting.

        Args:
            number: above every earlier one.
            expected: complete reports at both servers after which it closes early; 0 for none.
            seconds: after which it closes in any case.

        Raises:
            ParameterError: `seconds` are more than 30 days.
            ProtocolError: another round is running, or this one ended at once.
        """
        if seconds > _MOST_SECONDS:
            raise ParameterError(
                f"seconds is {seconds:.12g}, and the most is {_MOST_SECONDS} (30 days): give fewer "
                "seconds"
            )
        node = self._station.node
        await self._station.write(
            node.begin, number, expected=expected, closes_at=time.time() + seconds
        )
        if self._driver is not None and self._driven != number:
            await asyncio.wait([self._driver])  # of a round that has ended: it is about to return
        row = self._ledger.round(number)
        if row is not None and not row.state.has_ended:
            self._start(number)
        await self._until(number, lambda row: row.state is not StoredState.OPENING)
        return await self.row(number)

    async def close(self, number: int) -> dict[str, Any]:
        """Close a round now; returns when it has ended, or after some seconds if it has not yet.

        The same call again goes on waiting.
        """
        if self._ledger.round(number) is None:
            raise ProtocolError(
                f"round {number} has not begun at this server: `torchfsl status` shows its rounds",
                code="unknown-round",
            )
        self._to_close = number
        await self._station.tell()
        await self._until(number, lambda row: row.state.has_ended)
        return await self.row(number)

    async def abandon(self, number: int, reason: str) -> dict[str, Any]:
        """End a round unopened at both servers. Again for one that has ended so does not raise.

        The reason of the first end stays, also at the other server.

        A server 0 that has lost its state and runs no round ends what runs at server 1.

        Raises:
            ParameterError: the reason is too long for the other server.
            ProtocolError: it can only be finished, or was never begun.
            NotReady: it has ended here, and the other server does not answer.
        """
        station = self._station
        row = self._ledger.round(number)
        if row is not None and row.state is StoredState.UNOPENED:
            reason = row.reason
        request = calls.encode_request(round=number, reason=reason)
        if len(request) > calls.MAX_REQUEST_BYTES:  # signs outside of ASCII have grown
            raise ParameterError(
                f"the reason makes a request of {len(request)} bytes to the other server, which "
                f"takes {calls.MAX_REQUEST_BYTES}: write a shorter reason"
            )
        knows = row is not None or station.node.storage.running() is not None
        if knows and (row is None or row.state is not StoredState.UNOPENED):
            await station.abandon(number, reason)
            await self.stop()
            await self._over(number)
        try:
            await self._link.call("Abandon", request, limit=1 << 16)
        except calls.RETRIED:
            raise calls.NotReady(
                f"round {number} has ended at this server, but the other server does not answer: "
                "abandon the round again"
            ) from None
        if not knows:
            return {"number": number, "state": StoredState.UNOPENED, "reason": reason}
        return await self.row(number)

    async def row(self, number: int) -> dict[str, Any]:
        """A round as an answer to the coordinator."""
        row = self._ledger.round(number)
        assert row is not None
        names = ("number", "state", "reports", "accepted", "bytes")
        told = {"reason": row.why, "stalled": self._station.stalled}
        return {name: getattr(row, name) for name in names} | told

    async def stop(self) -> None:
        """Stop driving; a later start resumes."""
        if self._driver is not None:
            self._driver.cancel()
            await asyncio.gather(self._driver, return_exceptions=True)

    # --- the round ----------------------------------------------------------------------------

    def _start(self, number: int) -> None:
        if self._driver is None or self._driver.done():
            self._driven, self._to_close = number, -1
            self._deadline = time.monotonic() + self._seconds_left(number)
            self._driver = asyncio.create_task(self._drive(number))
            self._driver.add_done_callback(self._station.failures.watch)

    def _seconds_left(self, number: int) -> float:
        """Until the round closes. The wall clock is asked once, when the driver starts.

        Between that and the close it may jump; so may it while the server is down, by which a
        round is never open for longer than it was opened for.
        """
        row = self._ledger.running_round(number)
        return min(row.closes_at - time.time(), row.closes_at - row.opened_at)

    async def _drive(self, number: int) -> None:
        """Every step in order; those that were made before a crash return at once."""
        station = self._station
        station.stalled = ""
        try:
            for kind in steps_of(station.node.plan):
                await self._step(number, kind)
        except Error as error:
            log.warning("round %d stops: %s", number, error)
            await self._give_up(number, error)
        finally:
            self._driven = -1
            await self._over(number)

    async def _step(self, number: int, kind: Kind) -> None:
        station, node = self._station, self._station.node
        if await station.run(node.has_counted, number, kind):
            return
        if kind is Kind.AUDIT_PASS:
            await self._audits.passed(number)
            return
        if kind is Kind.REPORT_SET:
            await self._collect(number)
        if kind is Kind.SHARE_COMMIT:
            await self._audits.before_commit(number)
        ours = await station.write(node.exchange, number, kind)
        limit = messages.max_bytes(node.plan, kind)
        still = self._patient(number, kind)
        later = asyncio.get_running_loop().call_later
        slow = later(_STALLED_SECONDS, still, f"no answer in {_STALLED_SECONDS:.0f} s")
        try:
            theirs = await self._link.insist("Step", ours, limit=limit, still=still)
        finally:
            slow.cancel()
        station.stalled = ""
        await station.write(node.exchange, number, kind, theirs)
        await station.count(number, kind)

    async def _collect(self, number: int) -> None:
        """Take reports until it is time to close, and let the last one in be filed."""
        station = self._station
        row = self._ledger.round(number)
        assert row is not None
        if row.log_end is None:
            self._relays.restart()
            while not (self._to_close == number or time.monotonic() >= self._deadline):
                if row.expected and await self._have(row.expected):
                    break
                left = self._deadline - time.monotonic()
                await station.wait(max(0.01, min(_POLL_SECONDS, left)))
        await station.gate.close()

    async def _have(self, expected: int) -> bool:
        """Whether both servers have that many complete reports."""
        station = self._station
        if await station.run(station.num_complete) < expected:
            return False
        try:
            answer = await self._link.call("Info", calls.encode_request(), limit=INFO_BYTES)
            complete = decode_info(answer)["complete"]
        except Error:
            return False
        await asyncio.sleep(0.02)
        return bool(complete >= expected)

    def _patient(self, number: int, kind: Kind) -> Callable[[str], bool]:
        """Keep trying for ever; from the first failure on the state shows since when and why."""
        station, since = self._station, datetime.datetime.now(datetime.UTC)
        waits = f"waiting for the other server's {kind.name} since {since:%Y-%m-%d %H:%M:%S} UTC"

        def still(why: str) -> bool:
            if why:
                if not station.stalled and not self._link.unreachable:  # else the link has told it
                    log.warning("round %d is stalled", number, extra={"reason": f"{waits}: {why}"})
                station.stalled = f"{waits}: {why}"
            return True

        return still

    async def _give_up(self, number: int, error: Error) -> None:
        """The peer refused a step for good, or the round ended here: end it.

        Also where this server's share may have left it: the sum counts as opened then, and if the
        peer has applied it, the session halts at the next round.
        """
        station = self._station
        row = self._ledger.round(number)
        if row is None or row.state.has_ended:
            return
        try:
            await station.abandon(number, str(error), forced=True)
        except ProtocolError:
            station.stalled = f"round {number} cannot be finished: {error}"

    async def _over(self, number: int) -> None:
        self._relays.stop()
        await self._station.gate.close()
        row = self._ledger.round(number)
        if row is not None and row.state.has_ended:
            self._station.stalled = ""
        await self._station.tell()

    async def _until(self, number: int, done: Callable[[RoundRow], bool]) -> None:
        """Wait some seconds for a state of a round, as long as it is being driven."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        while True:
            row = self._ledger.round(number)
            if row is None or done(row) or time.monotonic() >= deadline:
                return
            if self._driver is None or self._driver.done():
                why = self._station.stalled or self._station.failures.unready
                raise ProtocolError(f"round {number} does not continue: {why}")
            await self._station.wait(_POLL_SECONDS)


class Follower:
    """Does what server 0 asks for, in the order of the steps."""

    def __init__(self, station: Station, relays: Relays, audits: AuditDesk) -> None:
        self._station, self._relays, self._audits = station, relays, audits
        self._counting: set[asyncio.Task[None]] = set()

    async def step(self, number: int, kind: Kind, theirs: bytes) -> bytes:
        """This server's message for a step; server 0's counts while the answer is on its way.

        Raises:
            DecodeError, ProtocolError: see `Node.exchange`. A step that is refused changes nothing.
        """
        station = self._station
        if kind is Kind.SHARE_COMMIT:
            await self._audits.before_commit(number)
        elif kind in (Kind.COUNTS, Kind.SHARE):
            await self._audits.passed(number)
        await station.write(station.node.check, number, kind, theirs)
        if kind is Kind.ROUND_STATE:
            await self.end_before(number, f"server 0 went on to round {number}")
        if kind is Kind.REPORT_SET:
            await station.gate.close()
        ours = await station.write(station.node.exchange, number, kind, theirs)
        counting = asyncio.create_task(self._count(number, kind))
        self._counting.add(counting)
        counting.add_done_callback(self._counted)
        return ours

    async def end_before(self, number: int, reason: str) -> None:
        """Server 0 has ended every round below `number`: one that still runs here also ends."""
        station = self._station
        running = station.node.storage.running()
        if running is not None and running.number < number:
            with contextlib.suppress(ProtocolError):
                await station.abandon(running.number, reason, forced=True)
            self._relays.stop()
            await station.gate.close()
            await station.tell()

    async def _count(self, number: int, kind: Kind) -> None:
        try:
            await self._station.count(number, kind)
            if kind is Kind.SHARE_COMMIT:
                self._audits.watch(number)
        finally:
            if kind is not Kind.ROUND_STATE:
                self._relays.stop()

    def _counted(self, task: asyncio.Task[None]) -> None:
        self._counting.discard(task)
        self._station.failures.watch(task)
        if not task.cancelled() and isinstance(task.exception(), Error):
            _follower_log.warning("a step of the round failed: %s", task.exception())
