"""One server whose every step survives a crash.

Two rules carry everything. What this server says to its peer is stored before it is sent, secrets
behind it included (coin, salt, share with its noise), so that a resend is the same bytes. What it
is told (messages, the peer's steps) is stored before it counts. A server that is started again
loads the last model and goes through what is stored with the methods of `torchfsl.Server`, which
are deterministic given those secrets, and arrives where it was. A round never opens twice: its
number is used up when it begins, and the accepted set follows from what both servers have stored.
`torchfsl.service.state.steps` has the table of steps and states.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from torchfsl.crypto.hpke import SealKey
from torchfsl.errors import ProtocolError, RejectedSubmission
from torchfsl.fsl import messages
from torchfsl.fsl.bodies import ReportSet, ShareBody
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.server.states import RoundState
from torchfsl.service.net.identity import Authorities
from torchfsl.service.server import recovery
from torchfsl.service.server.storage import NodeSettings, Storage
from torchfsl.service.state.ledger import LedgerError, RoundRow
from torchfsl.service.state.steps import OPEN_STATES, STATE_AFTER, STEPS, StoredState
from torchfsl.service.task import Task, decode_task
from torchfsl.submodel.opened import Opened

log = logging.getLogger("torchfsl.service.node")


class Node:
    """Server `party`, with its state in `folder`. Not for concurrent use: one thread calls.

    `key` opens seals. A step is `exchange`, which fixes what this server says, and `count`, which
    lets the peer's message count. Either may be repeated, also after a crash.

    Attributes:
        storage: everything that survives a crash.
        task: the task, or None before the first.

    Raises:
        LedgerError: the folder belongs to another party, is in use, or is damaged.
    """

    def __init__(
        self, party: int, folder: Path, authorities: Authorities, settings: NodeSettings,
        key: SealKey | None = None,
    ) -> None:  # fmt: skip
        """Go on where the state in the folder ends."""
        self.party, self._authorities, self._key = party, authorities, key
        self.storage = Storage(party, folder, settings)
        self._ledger = self.storage.ledger
        self.storage.delete_old_logs()
        self.task: Task | None = self.storage.task()
        self._server: Server | None = None
        if self.task is not None:
            self.task.check(authorities, 1)
            self._server = recovery.restored_server(self.storage, self.task, key)
        running = self.storage.running()
        if running is not None:
            self._replay(running)

    @property
    def server(self) -> Server:
        """The server in its current state.

        Raises:
            ProtocolError: there is no task yet.
        """
        if self._server is None:
            raise ProtocolError("this server has no task yet: the owner has to set one up")
        return self._server

    @property
    def plan(self) -> Plan:
        """The task's plan; raises as `server` does."""
        return self.server.plan

    def set_up(self, data: bytes) -> None:
        """Take a task and its initial model. The same task again changes nothing.

        Raises:
            DecodeError, ParameterError: it is not valid, or not for this server.
            ProtocolError: a round of another task is running, or the plan was used before.
        """
        task, model = decode_task(data)
        task.check(self._authorities, self.storage.settings.min_clients)
        if self.task is not None and self.task.plan == task.plan:
            return
        if self.storage.running() is not None:
            raise ProtocolError(
                "a round of another task is running: see torchfsl close and torchfsl abandon"
            )
        server = recovery.new_server(self.storage, task, model, self._key)
        self.storage.put_task(task, model)
        self.task, self._server = task, server
        log.info("task set up", extra={"plan": task.plan.digest.hex()})

    def open_server(self) -> Server:
        """The server, to take clients' messages and to answer them.

        Raises:
            ProtocolError: the session is halted.
            RejectedSubmission: no round is open.
        """
        self.storage.check_not_halted()
        if self.server.state is not RoundState.OPEN:
            raise RejectedSubmission(
                f"round {self.server.last_round} is {self.server.state.value}: no round is open"
            )
        return self.server

    # --- the round ----------------------------------------------------------------------------

    def begin(self, number: int, *, expected: int = 0, closes_at: float = 0.0) -> bytes:
        """Begin a round; this server's ROUND_STATE. The same running round again is no error.

        Raises:
            ProtocolError: halted, another round is running, or the number was used.
        """
        stored = self._ledger.step(number, Kind.ROUND_STATE, sent=True)
        if stored is not None:
            return stored
        self.storage.check_not_halted()
        running = self.storage.running()
        if running is not None:
            raise ProtocolError(f"round {running.number} is running ({running.state})")
        message = self._make(number, Kind.ROUND_STATE)
        self.storage.open_log(number)
        with self._ledger.transaction():
            self._ledger.start_round(number, expected, closes_at)
            self._store_own(number, Kind.ROUND_STATE, message)
        return message

    def exchange(self, number: int, kind: Kind, theirs: bytes | None = None) -> bytes:
        """This server's message for a step; the peer's, if it is here, is stored after it.

        Server 1 begins the round with the first step. A message that the peer sent for an earlier
        step counts before.

        Raises:
            DecodeError: `theirs` is malformed. It is not stored.
            ProtocolError: it is for another server or round, or a second, different one; or the
                step is not due, or the round ended unopened.
        """
        for earlier in STEPS[: STEPS.index(kind)]:
            self.count(number, earlier)
        ours = self._own(number, kind)
        if theirs is not None:
            self._note(number, kind, theirs)
        return ours

    def count(self, number: int, kind: Kind) -> None:
        """Let the peer's message for a step count, if it is stored and does not yet.

        Raises:
            ProtocolError: the round ends unopened, or has; its reason is stored.
        """
        theirs = self._ledger.step(number, kind, sent=False)
        if theirs is not None and not self.has_counted(number, kind):
            self._count(number, kind, theirs)

    def has_counted(self, number: int, kind: Kind) -> bool:
        """Whether the peer's message for a step counts already.

        Raises:
            ProtocolError: the round ended unopened.
        """
        row = self._ledger.round(number)
        if row is None or row.state is StoredState.APPLIED:
            return row is not None
        state = self._ledger.running_round(number).state
        return OPEN_STATES.index(state) >= OPEN_STATES.index(STATE_AFTER[kind])

    def abandon(self, number: int, reason: str, *, forced: bool = False) -> None:
        """End a round unopened, if this server has not revealed its share.

        Args:
            number: round.
            reason: for the operator and for who asks for the round.
            forced: even if the share was revealed. Nothing is opened twice by that, but if the
                peer has opened, the models differ from now on, and the session will halt.

        Raises:
            ProtocolError: it has.
        """
        state = self._ledger.running_round(number).state
        if state is StoredState.OPENED or (state is StoredState.REVEALED and not forced):
            raise ProtocolError(f"round {number} is {state}: it can only be finished")
        self.server.abandon_round()
        self.storage.end_unopened(number, reason, self.server)

    # --- what the methods above are made of ---------------------------------------------------

    def _own(self, number: int, kind: Kind) -> bytes:
        """This server's message for a step; stored, so that it is the same whenever asked for."""
        stored = self._ledger.step(number, kind, sent=True)
        if stored is not None:
            return stored
        if kind is Kind.ROUND_STATE:
            return self.begin(number)
        self._ledger.running_round(number)
        message = self._make(number, kind)
        changes: dict[str, Any] = {"state": StoredState.COMMITTED}
        if kind is Kind.REPORT_SET:
            report_log = self.storage.report_log
            changes = {"state": StoredState.CLOSED, "reports": self.server.reports.num_complete}
            changes |= {"log_end": len(report_log), "bytes": report_log.num_bytes}
        with self._ledger.transaction():
            self._ledger.change_round(number, **changes)
            self._store_own(number, kind, message)
            if kind is Kind.SHARE_COMMIT:
                share = ShareBody(*self.server.committed())
                said = share.message(self.plan, 1 - self.party, number)
                self._store_own(number, Kind.SHARE, said)
        return message

    def _make(self, number: int, kind: Kind) -> bytes:
        """Let the server make its message; if it had made it before, with the same secrets.

        Raises:
            ProtocolError: the step is not due.
        """
        server = self.server
        if kind is Kind.ROUND_STATE:
            return server.open_round(number)
        if kind is Kind.REPORT_SET:
            said = self._ledger.step(number, kind, sent=True)
            return server.close_round(coin=ReportSet.read(self.plan, said).coin if said else b"")
        if kind is Kind.SHARE_COMMIT:
            said = self._ledger.step(number, Kind.SHARE, sent=True)
            if said is None:
                return server.commit()
            share = ShareBody.read(self.plan, said)
            return server.commit(salt=share.salt, share=bytes(share.sums))
        raise ProtocolError(f"{kind.name} is not due in state {server.state.value}")

    def _store_own(self, number: int, kind: Kind, message: bytes) -> None:
        """Store what this server says, once.

        Raises:
            LedgerError: it has said something else before.
        """
        stored = self._ledger.step(number, kind, sent=True)
        if stored is None:
            self._ledger.put_step(number, kind, message, sent=True)
        elif stored != message:
            raise LedgerError(f"round {number}: {kind.name} differs from what is stored")

    def _note(self, number: int, kind: Kind, theirs: bytes) -> None:
        """Store the peer's message for a step, once."""
        message = messages.decode(self.plan, theirs, kind)
        if (message.party, message.round_number) != (self.party, number):
            raise ProtocolError("the peer's message is for another server or round")
        stored = self._ledger.step(number, kind, sent=False)
        if stored is None:
            self._ledger.running_round(number)
            self._ledger.put_step(number, kind, theirs, sent=False)
        elif stored != theirs:
            raise ProtocolError(
                f"the peer sent two different {kind.name} messages for round {number}"
            )

    def _count(self, number: int, kind: Kind, theirs: bytes) -> None:
        """Hand the peer's message to the server, and store what follows from it."""
        server, verdicts = self.server, b""
        changes: dict[str, Any] = {}
        opened: Opened | None = None
        try:
            if kind is Kind.ROUND_STATE:
                server.start(theirs)
            elif kind is Kind.REPORT_SET:
                verdicts = server.agree(theirs)
            elif kind is Kind.VERDICTS:
                changes["accepted"] = len(server.verify(theirs))
            elif kind is Kind.SHARE_COMMIT:
                server.reveal(theirs)
            else:
                opened = server.open(theirs)
        except ProtocolError as error:
            self.storage.end_unopened(number, str(error), server)
            raise
        if not self.has_counted(number, kind):  # in recovery a later state is stored already
            changes["state"] = STATE_AFTER[kind]
        with self._ledger.transaction():
            if changes:
                self._ledger.change_round(number, **changes)
            if kind is Kind.ROUND_STATE:
                self._ledger.delete_steps_before(number)
            if kind is Kind.REPORT_SET:
                self._store_own(number, Kind.VERDICTS, verdicts)
        if opened is not None:
            self._apply(number, opened)

    def _apply(self, number: int, opened: Opened) -> None:
        try:
            self.server.apply(opened)
        except ProtocolError as error:
            self.storage.end_unopened(number, f"opened, but not applied: {error}", self.server)
            raise
        self.storage.end_applied(number, opened, self.server)

    # --- after a start ------------------------------------------------------------------------

    def _replay(self, row: RoundRow) -> None:
        """Go through what is stored of the running round."""
        number = row.number
        self.storage.open_log(number)
        for kind in STEPS:
            if self._ledger.step(number, kind, sent=True) is None:
                break
            if kind in (Kind.ROUND_STATE, Kind.REPORT_SET, Kind.SHARE_COMMIT):
                self._store_own(number, kind, self._make(number, kind))
            if (theirs := self._ledger.step(number, kind, sent=False)) is None:
                break
            try:
                self._count(number, kind, theirs)
            except ProtocolError as error:
                log.warning("round ended in recovery", extra={"reason": str(error)})
                return
            if kind is Kind.ROUND_STATE:
                recovery.file_again(self.storage, self.server, row)
        fields = {"round": number, "server_state": self.server.state.value}
        log.info("round recovered", extra=fields)
