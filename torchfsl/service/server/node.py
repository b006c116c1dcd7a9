"""One server whose every step survives a crash.

Two rules carry everything. This server stores what it says to its peer before it sends it, secrets
behind it included (coin, salt, share with its noise), so that a resend is the same bytes. It stores
what it receives (messages, the peer's steps) before it counts. A server that is started again
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
from torchfsl.errors import DecodeError, ProtocolError, RejectedSubmission
from torchfsl.fsl.audit import transcript
from torchfsl.fsl.bodies import AuditPass, ReportSet, RoundDigest
from torchfsl.fsl.messages import Header, Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.server.states import RoundState
from torchfsl.service.net.identity import Authorities
from torchfsl.service.server import recovery
from torchfsl.service.server.storage import NodeSettings, Storage
from torchfsl.service.server.transcript import Transcript
from torchfsl.service.state.audits import transcript_info
from torchfsl.service.state.ledger import REMEDY, LedgerError, RoundRow
from torchfsl.service.state.noise_ring import NOISE
from torchfsl.service.state.steps import (
    OPEN_STATES,
    SHARE_MAY_HAVE_LEFT,
    StoredState,
    fixing_step,
    steps_of,
)
from torchfsl.service.task import Task, decode_task
from torchfsl.submodel.opened import Opened

log = logging.getLogger("torchfsl.service.node")


class Node:
    """Server `party`, with its state in `folder`. Not for concurrent use: one thread calls.

    `key` opens seals. A step is `exchange`, which fixes what this server says, and `count`, which
    lets the peer's message count. Either may be repeated, also after a crash.

    Attributes:
        storage: everything that survives a crash; transcript: of it, what the servers said.
        task: the task, or None before the first.

    Raises:
        LedgerError: the state must not be used; see `Storage`.
        OSError, sqlite3.Error: it cannot be read or written.
    """

    def __init__(
        self,
        party: int,
        folder: Path,
        authorities: Authorities,
        settings: NodeSettings,
        key: SealKey | None = None,
        *,
        witness: Path | None = None,
    ) -> None:
        """Go on where the state in the folder ends."""
        self.party, self._authorities, self._key = party, authorities, key
        self.storage = Storage(party, folder, settings, witness)
        self._ledger = self.storage.ledger
        self.transcript = Transcript(self._ledger, party)
        self.task: Task | None = recovery.stored_task(self.storage)
        self._server: Server | None = None if self.task is None else self._restore()
        self.storage.begin()
        if (running := self.storage.running()) is not None:
            recovery.go_through(self.storage, running, self._replay, self._restore)

    @property
    def server(self) -> Server:
        """The server in its current state; raises ProtocolError if there is no task yet."""
        if self._server is None:
            raise ProtocolError(
                "this server has no task yet: the coordinator has to start one (Coordinator.start)",
                code="no-task",
            )
        return self._server

    @property
    def plan(self) -> Plan:
        """The task's plan; raises as `server` does."""
        return self.server.plan

    def set_up(self, data: bytes, *, replace: bool = False) -> None:
        """Take a task and its initial model; `replace`: also in place of a live one. Idempotent.

        Raises:
            DecodeError, ParameterError: not valid, not for this server, below its floors, no room.
            ProtocolError: a round of another task is running, or the plan was used before.
        """
        task, model = decode_task(data)
        task.check(self._authorities, self.storage.settings.floors)
        if self.task is not None and self.task.plan == task.plan:
            return
        if self.storage.running() is not None:
            raise ProtocolError(
                "a round of another task is running: end it with `torchfsl close` or "
                "`torchfsl abandon`",
                code="another-task",
            )
        server = recovery.first_server(self.storage, task, model, self._key)
        self.storage.put_task(task, model, replace=replace)
        recovery.attach_limits(self.storage, server)
        self.task, self._server = task, server
        log.info("task set up", extra={"plan": task.plan.digest.hex()})

    def open_server(self, header: Header | None = None) -> Server:
        """The server, to take the message with this header, or to answer one.

        Raises:
            ProtocolError: the session is halted.
            RejectedSubmission: no round is open.
        """
        self.storage.check_not_halted()
        if self.server.state is not RoundState.OPEN:
            last, is_idle = self.server.last_round, self.server.state is RoundState.IDLE
            how = f"round {last} {'has ended' if is_idle else 'takes no messages'}"
            remedy = "start this client again, it waits for the next round"
            if header is not None and header.kind in (Kind.TREES_RELAY, Kind.REPORT_RELAY):
                remedy = f"client {header.client} can take part in the next round"
            raise RejectedSubmission(
                f"no round is open, {how if last >= 0 else 'none has begun'}: {remedy}",
                code="no-open-round",
            )
        return self.server

    # --- the round ----------------------------------------------------------------------------

    def begin(self, number: int, *, expected: int = 0, closes_at: float = 0.0) -> bytes:
        """Begin a round; this server's ROUND_STATE. The same running round again does not raise.

        Raises:
            ProtocolError: halted, another round is running, or the number was used.
        """
        stored = self.transcript.said(number, Kind.ROUND_STATE)
        if stored is not None:
            return stored
        self.storage.check_not_halted()
        if (running := self.storage.running()) is not None:
            raise ProtocolError(
                f"round {running.number} has not ended (state: {running.state}): finish it with "
                "`torchfsl close`, or give it up with `torchfsl abandon`"
            )
        message = self._make(number, Kind.ROUND_STATE)
        self.storage.open_log(number)
        with self._ledger.transaction():
            self._ledger.start_round(number, expected, closes_at)
            self.storage.audits.keep_secrets(self.server.secrets)
            self.transcript.say(number, Kind.ROUND_STATE, message)
        return message

    def exchange(self, number: int, kind: Kind, theirs: bytes | None = None) -> bytes:
        """This server's message for a step; the peer's, if it is here, is stored after it.

        Server 1 begins the round with the first step.

        Raises:
            DecodeError, ProtocolError: see `check`; or the step is not due.
        """
        self.check(number, kind, theirs)
        ours = self._own(number, kind)
        if theirs is not None:
            self.transcript.hear(number, kind, theirs)
        return ours

    def check(self, number: int, kind: Kind, theirs: bytes | None = None) -> None:
        """Refuse a step out of order: all earlier ones must be taken, and with a good end.

        The peer's messages of earlier steps count now, if they are here and did not. Its message
        for this one is looked at and not stored. So nothing, and least of all a share, leaves this
        server before the peer's valid message of each step before it.

        Raises:
            DecodeError: `theirs` is malformed.
            ProtocolError: it is for another server or round, or a second, different one; or an
                earlier step is missing, or the round ended unopened.
        """
        if theirs is not None:
            self.transcript.check(self.plan, number, kind, theirs)
        for earlier in steps_of(self.plan):
            if earlier is kind:
                break
            self.count(number, earlier)
            if not self.has_counted(number, earlier):
                raise ProtocolError(
                    f"round {number}: expected {earlier.name} of the other server before "
                    f"{kind.name}",
                    code="wrong-step",
                )

    def take_pass(self, number: int, theirs: bytes) -> None:
        """Store the pass of the other server's auditor, and let it count.

        Raises:
            DecodeError: malformed.
            ProtocolError: not due, or not signed by that auditor for this round as this server has
                it: then nothing changes.
        """
        self.check(number, Kind.AUDIT_PASS, theirs)
        audit = self.server.audit
        if audit is not None and not self.has_counted(number, Kind.AUDIT_PASS):
            said = AuditPass.read(self.plan, theirs)
            audit.check_pass(1 - self.party, said.signature, audit.peer_commit.commitment)
            self.transcript.hear(number, Kind.AUDIT_PASS, theirs)
            self.count(number, Kind.AUDIT_PASS)
        elif self.storage.audits.record(self.plan, number).get("audit_pass") != theirs.hex():
            raise ProtocolError(
                f"round {number}: the auditor has approved this round before, with another "
                "signature: send the first one again",
                code="wrong-step",
            )

    def halt(self, reason: str) -> None:
        """End the session for good, and a running round unopened."""
        self.server.abandon_round()
        self.server.state = RoundState.HALTED
        running = self.storage.running()
        if running is None:
            self._ledger.put_setting("halted", reason.encode())
            self.storage.halted = reason
        else:
            self.storage.end_unopened(running.number, reason, self.server)

    def count(self, number: int, kind: Kind) -> None:
        """Let the peer's message for a step count, if it is stored and does not yet.

        Raises:
            ProtocolError: the round ends unopened, or has; its reason is stored.
        """
        theirs = self.transcript.heard(number, kind)
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
        return OPEN_STATES.index(state) >= OPEN_STATES.index(steps_of(self.plan)[kind])

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
        if state is StoredState.OPENED or (state in SHARE_MAY_HAVE_LEFT and not forced):
            raise ProtocolError(
                f"round {number} is {state}, which is too late to abandon it: wait until it ends"
            )
        self.storage.end_unopened(number, reason, self.server)

    def _own(self, number: int, kind: Kind) -> bytes:
        """This server's message for a step; stored, so that it is the same whenever asked for."""
        if (stored := self.transcript.said(number, kind)) is not None:
            return stored
        if kind is Kind.ROUND_STATE:
            return self.begin(number)
        self._ledger.running_round(number)
        if kind is Kind.SHARE_COMMIT and self.plan.audited and not self.storage.audits.key:
            raise ProtocolError(
                "the auditor has not sent a key for this round: check whether the auditor runs",
                code="wrong-step",
            )
        try:
            message, noise = self._make(number, kind), None
        except ProtocolError as error:
            if self.server.state is RoundState.IDLE:  # noise that it has stated is lost
                self.storage.end_unopened(number, str(error), self.server)
            raise
        changes: dict[str, Any] = {"state": StoredState.COMMITTED}
        if kind is Kind.SHARE_COMMIT:
            noise = self.storage.noise.keep(self.server.noise, self.server.rounds_opened)
            self._seal(number, message)
        if kind is Kind.REPORT_SET:
            report_log = self.storage.report_log
            changes = {"state": StoredState.CLOSED, "reports": self.server.reports.num_complete}
            changes |= {"log_end": len(report_log), "bytes": report_log.num_bytes}
        with self._ledger.transaction():
            self._ledger.change_round(number, **changes)
            self.transcript.say(number, kind, message)
            if kind is Kind.SHARE_COMMIT:
                self.transcript.keep_share(self.plan, number, *self.server.committed())
            if noise is not None:
                self._ledger.put_setting(NOISE, noise)
        if kind is Kind.REPORT_SET:
            log.info("round closed", extra={"round": number, "reports": changes["reports"]})
        return message

    def _seal(self, number: int, message: bytes) -> None:
        """Under an audit: write the transcript of a commitment, before the commitment leaves.

        Raises:
            ProtocolError: a report has changed on the disk. The round ends unopened.
        """
        server, audits = self.server, self.storage.audits
        if server.audit is None:
            return
        info = transcript_info(self.plan.digest, number, self.party)
        try:
            parts = transcript.parts(server, message)
        except ProtocolError as error:  # from `check_unchanged` alone
            files = self.storage.report_log.changed() or [self.storage.folder]
            why = f"{error}, {', '.join(map(str, files))}"
            self.storage.end_unopened(number, why, server)
            raise ProtocolError(why, code="report-changed") from error
        audits.seal(info, number, parts)
        audits.note(self.plan, number, record=server.audit.digest.hex(), said=message.hex())
        server.reports.forget_messages()

    def _make(self, number: int, kind: Kind) -> bytes:
        """Let the server make its message; if it had made it before, with the same secrets.

        Raises:
            ProtocolError: the step is not due.
        """
        server = self.server
        if kind is Kind.ROUND_STATE:
            begun = self.transcript.said(number, kind)
            if begun is None:
                return server.open_round(number)
            noise = RoundDigest.read(self.plan, begun).noise
            return server.open_round(number, secrets=self.storage.audits.secrets, noise=noise)
        if kind is Kind.REPORT_SET:
            said = self.transcript.said(number, kind)
            return server.close_round(coin=ReportSet.read(self.plan, said).coin if said else b"")
        if kind is Kind.SHARE_COMMIT:
            salt, share = self.transcript.kept_share(self.plan, number)
            if server.audit is not None and server.noise is not None:
                server.audit.offered = self.storage.audits.offered
                self.storage.noise.forget_damaged(server.noise)
            return server.commit(salt=salt, share=share)
        raise ProtocolError(
            f"{kind.name} is not due in state {server.state.value}: "
            "ask the operator of the other server"
        )

    def _count(self, number: int, kind: Kind, theirs: bytes) -> None:
        """Hand the peer's message to the server, and store what follows from it."""
        server = self.server
        follows: dict[Kind, bytes] = {}
        changes: dict[str, Any] = {}
        opened: Opened | None = None
        try:
            if kind is Kind.ROUND_STATE:
                server.start(theirs)
            elif kind is Kind.REPORT_SET:
                follows[Kind.VERDICTS] = server.agree(theirs)
            elif kind is Kind.VERDICTS:
                changes["accepted"] = self._verified(number, theirs)
            elif kind is Kind.SHARE_COMMIT and self.plan.audited:
                server.hear_commit(theirs)
            elif kind is fixing_step(self.plan) and self.plan.opens_counts_first:
                follows[Kind.COUNTS] = server.reveal_counts(theirs)
            elif kind is fixing_step(self.plan):
                server.reveal(theirs)
            elif kind is Kind.COUNTS:
                follows[Kind.SHARE] = server.reveal_kept(theirs)
            else:
                opened = server.open(theirs)
        except ProtocolError as error:
            self.storage.end_unopened(number, str(error), server)
            raise
        if not self.has_counted(number, kind):  # in recovery a later state is stored already
            changes["state"] = steps_of(self.plan)[kind]
        with self._ledger.transaction():
            if changes:
                self._ledger.change_round(number, **changes)
            if kind is Kind.ROUND_STATE:
                self._ledger.delete_steps_before(number)
            if self.plan.audited and kind in (Kind.SHARE_COMMIT, Kind.AUDIT_PASS):
                self.storage.audits.note(self.plan, number, **{kind.name.lower(): theirs.hex()})
            if kind is fixing_step(self.plan) and "state" in changes:
                self._charge(server.rounds_opened - 1)
            for after, message in follows.items():
                self.transcript.say(number, after, message)
        if opened is not None:
            self._apply(number, opened)

    def _verified(self, number: int, theirs: bytes) -> int:
        """Accepted reports. Issuers of tokens must not make up too many; no share has left yet."""
        accepted, plan = self.server.verify(theirs), self.plan
        counted, all_of_them = self.storage.settings.counted(accepted), len(accepted)
        wrong = ""
        if counted < plan.min_clients:
            wrong = f"expected at least {plan.min_clients} reports that count towards min_clients, "
            wrong += f"got {counted} of {all_of_them}: raise `counts` in the admission files"
        elif plan.min_contributors > 1 and counted < all_of_them:
            wrong = f"{all_of_them - counted} of {all_of_them} reports exceed `counts`, the limit "
            wrong += "of their issuers, but min_contributors needs every report to count: raise "
            wrong += "`counts` in the admission files"
        if wrong and not self.has_counted(number, Kind.VERDICTS):
            self.server.abandon_round()
            raise ProtocolError(wrong, code="too-few-reports")
        return all_of_them

    def _charge(self, index: int) -> None:
        """Count the round as opened, and for its clients."""
        self._ledger.put_setting("opened", b"%d" % (index + 1))
        if self.server.peer_noise:
            self._ledger.put_setting("peer noise", b"%d" % self.server.peer_noise)
        charged = self.server.participation.charged(index)
        self._ledger.put_participations((client, index) for client in charged)

    def _apply(self, number: int, opened: Opened) -> None:
        try:
            self.server.apply(opened)
        except ProtocolError as error:
            self.storage.end_unopened(number, f"opened, but not applied: {error}", self.server)
            raise
        self.storage.end_applied(number, opened, self.server)

    # --- after a start ------------------------------------------------------------------------

    def _restore(self) -> Server:
        assert self.task is not None
        self.task.check(self._authorities)
        self._server = recovery.restored_server(self.storage, self.task, self._key)
        return self._server

    def _replay(self, row: RoundRow) -> None:
        """Go through what is stored of the running round."""
        number = row.number
        self.storage.open_log(number, begun=True)
        for kind in steps_of(self.plan):
            if kind is not Kind.AUDIT_PASS and self.transcript.said(number, kind) is None:
                break
            if kind in (Kind.ROUND_STATE, Kind.REPORT_SET, Kind.SHARE_COMMIT):
                self.transcript.say(number, kind, self._make(number, kind))
            if (theirs := self.transcript.heard(number, kind)) is None:
                break
            try:
                self._count(number, kind, theirs)
            except ProtocolError as error:
                log.warning(
                    "this server restarted and ends the round", extra={"reason": str(error)}
                )
                return
            except DecodeError as error:
                raise LedgerError(f"the stored {kind.name} is damaged: {REMEDY}") from error
            if kind is Kind.ROUND_STATE and not recovery.file_again(self.storage, self.server, row):
                self._restore()
                return
        state = self.server.state.value
        log.info("round recovered", extra={"round": number, "server_state": state})
