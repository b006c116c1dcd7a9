"""One server whose every step survives a crash.

Two rules carry everything. What this server says to its peer is stored before it is sent, secrets
behind it included (coin, salt, share with its noise), so that a resend is the same bytes. What it
is told (messages, the peer's steps) is stored before it counts. A server that is started again
loads the last model and goes through what is stored with the methods of `torchfsl.Server`, which
are deterministic given those secrets, and arrives where it was. A round never opens twice: its
number is used up when it begins, and the accepted set follows from what both servers have stored.

    opening -> open -> closed -> agreed -> verified -> aggregated -> committed -> opened -> applied

`unopened` ends a round from any state before `opened`. Not for concurrent use: one thread calls.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Final

from torchfsl.errors import ProtocolError, RejectedSubmission
from torchfsl.fsl import messages
from torchfsl.fsl.bodies import ReportSet, ShareBody
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.server.states import RoundState
from torchfsl.service.net.identity import Authorities
from torchfsl.service.server.storage import NodeSettings, Storage
from torchfsl.service.state import vault
from torchfsl.service.state.ledger import OPEN_STATES, LedgerError, RoundRow
from torchfsl.service.task import Task, decode_model, decode_task, encode_model
from torchfsl.submodel.opened import Opened

log = logging.getLogger("torchfsl.service.node")

STEPS: Final = (
    Kind.ROUND_STATE, Kind.REPORT_SET, Kind.VERDICTS, Kind.SHARE_COMMIT, Kind.SHARE,
)  # fmt: skip
"""What the servers tell each other in a round, in order."""

_STATE_AFTER: Final = dict(
    zip(STEPS, ("open", "agreed", "verified", "committed", "opened"), strict=True)
)
"""A round's state once the peer's message of a step counts."""

_KEPT_MODELS: Final = 2


class Node(Storage):
    """Server `party`, with its state in `folder`.

    Raises:
        LedgerError: the folder belongs to another party, is in use, or is damaged.
    """

    def __init__(
        self, party: int, folder: Path, authorities: Authorities, settings: NodeSettings
    ) -> None:
        """Go on where the state in the folder ends."""
        super().__init__(party, folder, authorities, settings)
        self._verdicts = b""
        self._recover()

    # --- the task -----------------------------------------------------------------------------

    def set_up(self, data: bytes) -> None:
        """Take a task and its initial model. The same task again changes nothing.

        Raises:
            DecodeError, ParameterError: it is not valid, or not for this server.
            ProtocolError: a round of another task is running.
        """
        task, model = decode_task(data)
        task.check(self.authorities, self.settings.min_clients)
        if self.task is not None and self.task.plan == task.plan:
            return
        if self.running() is not None:
            raise ProtocolError(
                "a round of another task is running: see torchfsl close and torchfsl abandon"
            )
        used = f"used/{task.plan.digest.hex()}"
        if self.ledger.setting(used) is not None:
            raise ProtocolError(
                "this plan was used before: its round numbers are spent; make one of another nonce"
            )
        vault.write_whole(self._model_file(0), encode_model(model, 0))
        with self.ledger.transaction():
            self.ledger.delete_rounds()  # numbers are per session, which the plan names
            for client in self.ledger.sessions():
                self.ledger.delete_session(client)
            self.ledger.put_setting("task", json.dumps(task.settings()).encode())
            self.ledger.put_setting("halted", None)
            self.ledger.put_setting(used, b"1")
            self._put_model_version(0, model.digest())
        self._stored_sessions = {}
        self.task = task
        self._server = Server(
            self.party, plan=task.plan, model=model, max_sessions=self.settings.max_sessions
        )
        log.info("task set up", extra={"plan": task.plan.digest.hex()})

    # --- clients ------------------------------------------------------------------------------

    def holds(self, message: bytes) -> bool:
        """Whether exactly this message is stored; see `Server.holds`."""
        self._check_open()
        return self.server.reports.holds(message)

    def file(self, view: memoryview) -> None:
        """Let a message that is in the report log count; see `Server.receive`."""
        self._check_open()
        self.server.receive(view)

    def reply(self, kind: Kind, round_number: int, client: int) -> bytes:
        """See `Server.reply`."""
        self._check_open()
        return self.server.reply(kind, round_number, client)

    # --- the round ----------------------------------------------------------------------------

    def begin(self, number: int, *, expected: int = 0, closes_at: float = 0.0) -> bytes:
        """Begin a round; this server's ROUND_STATE. The same running round again is no error.

        Raises:
            ProtocolError: halted, another round is running, or the number was used.
        """
        stored = self.ledger.step(number, Kind.ROUND_STATE, sent=True)
        if stored is not None:
            return stored
        if self.halted:
            raise ProtocolError(f"this session is halted: {self.halted}")
        running = self.running()
        if running is not None:
            raise ProtocolError(f"round {running.number} is running ({running.state})")
        message = self.server.open_round(number)
        self._log = self._open_log(number)
        with self.ledger.transaction():
            self.ledger.start_round(number, expected, closes_at)
            self.ledger.put_step(number, Kind.ROUND_STATE, message, sent=True)
        return message

    def own(self, number: int, kind: Kind) -> bytes:
        """This server's message for a step; stored, so that it is the same whenever asked for.

        Raises:
            ProtocolError: the round ended unopened, or the step is not due.
        """
        stored = self.ledger.step(number, kind, sent=True)
        if stored is not None:
            return stored
        self._check_runs(number)
        server = self.server
        if kind is Kind.REPORT_SET:
            message = server.close_round()
            changes: dict[str, Any] = {
                "state": "closed",
                "log_end": len(self.report_log),
                "reports": server.reports.num_complete,
                "bytes": self.report_log.num_bytes,
            }
        elif kind is Kind.VERDICTS and self._verdicts:
            message, changes = self._verdicts, {}
        elif kind is Kind.SHARE_COMMIT:
            message, changes = server.commit(), {"state": "aggregated"}
        else:
            raise ProtocolError(f"{kind.name} is not due in state {server.state.value}")
        with self.ledger.transaction():
            if changes:
                self.ledger.change_round(number, **changes)
            self.ledger.put_step(number, kind, message, sent=True)
            if kind is Kind.SHARE_COMMIT:
                share = ShareBody(*server.committed()).message(self.plan, 1 - self.party, number)
                self.ledger.put_step(number, Kind.SHARE, share, sent=True)
        return message

    def note(self, number: int, kind: Kind, theirs: bytes) -> bool:
        """Store the peer's message for a step; `take` lets it count. False if it is known.

        Raises:
            DecodeError: malformed. Nothing is stored.
            ProtocolError: for another server or round, or a second, different one.
        """
        message = messages.decode(self.plan, theirs, kind)
        if (message.party, message.round_number) != (self.party, number):
            raise ProtocolError("the peer's message is for another server or round")
        stored = self.ledger.step(number, kind, sent=False)
        if stored is not None:
            if stored != theirs:
                raise ProtocolError(
                    f"the peer sent two different {kind.name} messages for round {number}"
                )
            return False
        self._check_runs(number)
        self.ledger.put_step(number, kind, theirs, sent=False)
        return True

    def take(self, number: int, kind: Kind) -> None:
        """Let the peer's stored message count.

        Raises:
            ProtocolError: the round ends unopened; its reason is stored.
        """
        self._check_runs(number)
        theirs = self.ledger.step(number, kind, sent=False)
        assert theirs is not None
        server = self.server
        accepted: tuple[int, ...] = ()
        opened: Opened | None = None
        try:
            if kind is Kind.ROUND_STATE:
                server.start(theirs)
            elif kind is Kind.REPORT_SET:
                self._verdicts = server.agree(theirs)
            elif kind is Kind.VERDICTS:
                accepted = server.verify(theirs)
            elif kind is Kind.SHARE_COMMIT:
                server.reveal(theirs)
            else:
                opened = server.open(theirs)
        except ProtocolError as error:
            self._end_unopened(number, str(error))
            raise
        changes: dict[str, Any] = {"accepted": len(accepted)} if accepted else {}
        if not self.is_taken(number, kind):  # in recovery a later state is stored already
            changes["state"] = _STATE_AFTER[kind]
        with self.ledger.transaction():
            if changes:
                self.ledger.change_round(number, **changes)
            if kind is Kind.ROUND_STATE:
                self.ledger.delete_steps_before(number)
        if opened is not None:
            self._apply(number, opened)

    def is_taken(self, number: int, kind: Kind) -> bool:
        """Whether the peer's message of a step counts already.

        Raises:
            ProtocolError: the round ended unopened.
        """
        row = self.ledger.round(number)
        if row is None or row.state == "applied":
            return row is not None
        state = self._check_runs(number).state
        return OPEN_STATES.index(state) >= OPEN_STATES.index(_STATE_AFTER[kind])

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
        row = self._check_runs(number)
        if row.state == "opened" or (row.state == "committed" and not forced):
            raise ProtocolError(f"round {number} is {row.state}: it can only be finished")
        self.server.abandon_round()
        self._end_unopened(number, reason)

    # --- what the methods above are made of ---------------------------------------------------

    def _check_open(self) -> None:
        if self.halted:
            raise ProtocolError(f"this session is halted: {self.halted}")
        if self.server.state is not RoundState.OPEN:
            raise RejectedSubmission(
                f"round {self.server.last_round} is {self.server.state.value}: no round is open"
            )

    def _check_runs(self, number: int) -> RoundRow:
        row = self.ledger.round(number)
        if row is None:
            raise ProtocolError(f"round {number} was never begun here")
        if row.state not in OPEN_STATES:
            raise ProtocolError(f"round {number} is {row.state} {row.reason}".rstrip())
        return row

    def _apply(self, number: int, opened: Opened) -> None:
        """Store the sums and the next model, then count the round as applied."""
        server = self.server
        try:
            server.apply(opened)
        except ProtocolError as error:
            self._end_unopened(number, f"opened, but not applied: {error}")
            raise
        version = int(self.model_version["version"]) + 1
        vault.write_whole(self.folder / "opened.fsl", vault.encode_opened(opened, number))
        vault.write_whole(self._model_file(version), encode_model(server.model, version))
        with self.ledger.transaction():
            self._put_model_version(version, server.model.digest())
            self._end(number, state="applied", accepted=opened.num_clients)
        self._model_file(version - _KEPT_MODELS).unlink(missing_ok=True)
        self._wipe_log()
        log.info("round applied", extra={"round": number, "clients": opened.num_clients})

    def _end_unopened(self, number: int, reason: str) -> None:
        with self.ledger.transaction():
            if self.server.state is RoundState.HALTED:
                self.ledger.put_setting("halted", reason.encode())
            self._end(number, state="unopened", reason=reason)
        self._wipe_log()
        log.warning("round ends unopened", extra={"round": number, "reason": reason})

    # --- after a start ------------------------------------------------------------------------

    def _recover(self) -> None:
        stored = self.ledger.setting("task")
        last = self.ledger.last_round()
        running = self.running()
        self._delete_old_logs(running)
        if stored is None:
            return
        self.task = task = Task.from_settings(json.loads(stored))
        task.check(self.authorities, 1)
        model = decode_model(task, self.model_bytes())
        used = -1 if last is None else last.number - (running is not None)
        self._server = Server(
            self.party, plan=task.plan, model=model, max_sessions=self.settings.max_sessions,
            last_round=used,
        )  # fmt: skip
        for client, body in self.ledger.sessions().items():
            record = vault.decode_trees(body)
            self._server.reports.sessions[client] = record
            self._stored_sessions[client] = (record.opening_round, record.epochs)
        if running is not None:
            self._replay(running)

    def _replay(self, row: RoundRow) -> None:
        """Go through what is stored of the running round."""
        number, server = row.number, self.server
        self._log = self._open_log(number)
        for kind in STEPS:
            stored = self.ledger.step(number, kind, sent=True)
            if stored is None:
                break
            if self._regenerate(number, kind, stored) != stored:
                raise LedgerError(f"round {number}: {kind.name} differs from what is stored")
            if self.ledger.step(number, kind, sent=False) is None:
                break
            try:
                self.take(number, kind)
            except ProtocolError as error:
                log.warning("round ended in recovery", extra={"reason": str(error)})
                return
            if kind is Kind.ROUND_STATE:
                self._file_again(row)
        state = server.state.value
        log.info("round recovered", extra={"round": number, "server_state": state})

    def _regenerate(self, number: int, kind: Kind, stored: bytes) -> bytes:
        server = self.server
        if kind is Kind.ROUND_STATE:
            return server.open_round(number)
        if kind is Kind.REPORT_SET:
            return server.close_round(coin=ReportSet.read(self.plan, stored).coin)
        if kind is Kind.VERDICTS:
            return self._verdicts
        if kind is Kind.SHARE_COMMIT:
            said = self.ledger.step(number, Kind.SHARE, sent=True)
            assert said is not None
            share = ShareBody.read(self.plan, said)
            return server.commit(salt=share.salt, share=bytes(share.sums))
        return stored

    def _file_again(self, row: RoundRow) -> None:
        """File what the report log holds, in its order; what was refused is refused again."""
        report_log = self.report_log
        count = len(report_log) if row.log_end is None else row.log_end
        if count > len(report_log):
            raise LedgerError(
                f"round {row.number}: {count} messages were stored, the log has {len(report_log)}: "
                "restore the state folder from the backup"
            )
        for position in range(count):
            try:
                self.server.receive(report_log[position])
            except RejectedSubmission as error:
                log.info("refused again: %s", error)
