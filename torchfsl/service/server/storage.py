"""A server's state on disk behind one object: task, model versions, sessions, the report log.

It also has the rules by which one task makes way for another, and what is kept of the old one.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from torchfsl.crypto.signing import SignKey
from torchfsl.errors import ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl import messages
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.server.evaluation import LocalEvaluator, MakeEvaluator
from torchfsl.fsl.server.reports import TreeRecord
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.server.states import RoundState
from torchfsl.service.state import vault
from torchfsl.service.state.audits import UNCOMMITTED, AuditStore
from torchfsl.service.state.coins import CoinBook
from torchfsl.service.state.ledger import Ledger, RoundRow, forget_log, testify
from torchfsl.service.state.noise_ring import NoiseStore, forget_noise
from torchfsl.service.state.records import SEGMENT_BYTES, ReportLog
from torchfsl.service.state.steps import (
    BEFORE_COMMITMENTS,
    SHARE_LEFT,
    SHARE_MAY_HAVE_LEFT,
    StoredState,
)
from torchfsl.service.state.vault import check_not_lost, keep_from_others
from torchfsl.service.state.witness import Witness, counter_path
from torchfsl.service.task import Task, encode_model, not_replaced
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.server_model import ServerModel

log = logging.getLogger("torchfsl.service.storage")
_succession_log = logging.getLogger("torchfsl.service.succession")

_NAMES: Final = ("version", "digest")
"""Fields of the current model that others may know."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Limits of one server.

    Attributes:
        segment_bytes: size of a file of the report log.
        reserve_bytes: disk space that reports may not use.
        max_sessions, max_fetches: see `Server`.
        floors: refuse plans below them.
        may_replace: whether the coordinator may put another task in place of a live one.
        evaluator: what computes from reports, see `Server`.
        sign_key: signs rounds of plans with an audit, see `Server`.
        counted: how many of these accepted clients count towards `min_clients`.
    """

    segment_bytes: int = SEGMENT_BYTES
    reserve_bytes: int = 256 << 20
    max_sessions: int = 100_000
    max_fetches: int = 16
    floors: ClientPolicy = field(default_factory=ClientPolicy)
    may_replace: bool = False
    evaluator: MakeEvaluator = LocalEvaluator
    sign_key: SignKey | None = None
    counted: Callable[[tuple[int, ...]], int] = len


class Storage:
    """The data that a `Node` keeps, and how it is written.

    Args:
        party: 0 or 1.
        folder: made when missing; no other user may read it.
        settings: limits.
        `witness`: rollback counter outside the folder, see `Witness`; next to it by default.

    Attributes:
        ledger: task, rounds and their steps.
        coins: tossed for the hash seeds of tasks to come.
        halted: why the session stands still, or empty; as the ledger has it, since every message
            asks.
        ends_unclean: how often the server has ended without `close`: killed, or as its disk failed.

    Raises:
        ParameterError: the folder belongs to another party, or contains the rollback counter.
        LedgerError: the folder is damaged, or older than its rollback counter.
        OSError, sqlite3.Error: the folder cannot be read or written.
    """

    def __init__(
        self, party: int, folder: Path, settings: NodeSettings, witness: Path | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        keep_from_others(folder)
        self.party, self.folder, self.settings = party, folder, settings
        check_not_lost(folder)
        self.ledger = Ledger(folder / "state.sqlite")
        check_party(folder, self.ledger.setting("party"), party)
        witness = counter_path(folder, witness)
        if folder.resolve() in witness.resolve().parents:
            raise ParameterError(
                f"the rollback counter {witness} lies in the state folder, so an old copy of this "
                "folder also has the old counter: name a file outside with `--witness FILE`"
            )
        testify(self.ledger, Witness(witness))
        self.halted = (self.ledger.setting("halted") or b"").decode()
        self.ends_unclean = _ends_unclean(self.ledger)
        self.coins = CoinBook(self.ledger, party)
        self._log: ReportLog | None = None
        self.noise = NoiseStore(folder, self.ledger)
        self.audits = AuditStore(folder, self.ledger)
        self._stored_sessions: dict[int, tuple[int, int]] = {}

    # --- what is there ------------------------------------------------------------------------

    @property
    def model_version(self) -> dict[str, Any]:
        """`version` and `digest` of the current model; empty without a task."""
        stored = self._stored_version()
        return {name: stored[name] for name in _NAMES if name in stored}

    @property
    def is_live(self) -> bool:
        """Whether the model has seen rounds, also in the task of a backup, and can go on."""
        return _has_seen_rounds(self) and not self.halted

    @property
    def report_log(self) -> ReportLog:
        """The log of the running round."""
        if self._log is None:
            raise RejectedSubmission(
                "no round is open: wait for the next round", code="no-open-round"
            )
        return self._log

    def check_not_halted(self) -> None:
        """Raise ProtocolError, with the reason, if the session stands still."""
        if self.halted:
            raise ProtocolError(f"this session is halted: {self.halted}", code="server-halted")

    def running(self) -> RoundRow | None:
        """The round that has not ended, or None."""
        last = self.ledger.last_round()
        return None if last is None or last.state.has_ended else last

    def model_bytes(self) -> bytes:
        """The current model with its optimizer, as stored.

        Raises:
            ProtocolError: there is no task yet.
        """
        if not self.model_version:
            raise ProtocolError(
                "this server has no task yet, and no model: the coordinator has to start a task",
                code="no-task",
            )
        return self._model_file().read_bytes()

    def result_bytes(self) -> bytes:
        """The sums opened last."""
        try:
            return (self.folder / "opened.fsl").read_bytes()
        except FileNotFoundError:
            raise ProtocolError(
                "no round has an aggregate yet: wait until a round has ended with one"
            ) from None

    # --- the task -----------------------------------------------------------------------------

    def put_task(self, task: Task, model: ServerModel, *, replace: bool = False) -> None:
        """Store a task and its initial model in place of everything that belongs to another.

        Raises:
            ParameterError: the plan's coins are not those that were tossed, or there is no room.
            ProtocolError: the plan was used before, or a live task is not to be replaced.
        """
        if task.coins:
            self.coins.check(task.plan, task.coins)
        used = f"used/{task.plan.digest.hex()}"
        if self.ledger.setting(used) is not None:
            raise ProtocolError(
                "this server has run this plan before, and its rounds cannot run again: start a "
                "new task with Coordinator.start or Owner.bind",
                code="plan-used",
            )
        if not replace or not self.settings.may_replace:
            self._check_replaceable(task, consents=replace)
        self.noise.reserve(task.plan)  # a task that is refused leaves the noise of the one before
        self._put_aside()
        # Beside the file of the task before, which holds until the transaction.
        file = f"version-0-{task.plan.digest.hex()[:16]}.fsl"
        vault.write_whole(self.folder / "models" / file, encode_model(model, 0))
        with self.ledger.transaction():
            self.ledger.delete_rounds()  # numbers are per session, which the plan names
            for client in self.ledger.sessions():
                self.ledger.put_session(client, None)
            self.ledger.put_setting("task", json.dumps(task.settings()).encode())
            self.ledger.put_setting("halted", None)
            self.ledger.put_setting(used, b"1")
            self.ledger.put_setting("opened", None)
            self.ledger.put_setting("scaled", None)
            self.ledger.put_setting("peer noise", None)
            self.ledger.delete_participations()
            self.ledger.put_setting("restored", None if task.past is None else b"1")
            if (past := task.past) is not None:
                self.ledger.put_setting("opened", b"%d" % past.index)
                self.ledger.put_participations(past.reports())
            forget_noise(self.ledger)
            _put_model_version(self.ledger, 0, model.digest(), file)
        self._drop_models(file)
        self.halted = ""
        forget_log(self.ledger)
        self._stored_sessions = {}

    def task(self) -> Task | None:
        """The stored task, or None."""
        stored = self.ledger.setting("task")
        return None if stored is None else Task.from_settings(json.loads(stored))

    def close(self) -> None:
        """Close the ledger; the server ends because its operator ended it."""
        self.ledger.put_setting("ended", b"1")
        forget_log(self.ledger)
        self.ledger.close()

    def sessions(self) -> dict[int, TreeRecord]:
        """By client the stored trees that outlive rounds. Secret."""
        found = {c: vault.decode_trees(body) for c, body in self.ledger.sessions().items()}
        self._stored_sessions = _versions(found)
        return found

    def _check_replaceable(self, new: Task, *, consents: bool) -> None:
        """Refuse a task in place of a live one, where coordinator or operator does not agree to it.

        A backup may be restored once more, which ends a restore that only one server took.

        Raises:
            ProtocolError: there is a live task; `consents` says that the coordinator agrees.
        """
        if not self.is_live or (new.past is not None and not self.model_version["version"]):
            return
        raise ProtocolError(not_replaced(self.party, self.model_version["version"], consents))

    def _put_aside(self) -> None:
        """Keep the task and the model that make way, if it has seen any round: `replaced/`."""
        task = self.ledger.setting("task")
        if task is None or not _has_seen_rounds(self):
            return
        kept = (
            self.folder / "replaced" / Task.from_settings(json.loads(task)).plan.digest.hex()[:16]
        )
        vault.write_whole(kept / "task.json", task)
        vault.write_whole(kept / "model.fsl", self._model_file().read_bytes())
        _succession_log.info(
            "a copy of the earlier task's model is kept", extra={"path": str(kept)}
        )

    # --- a round ------------------------------------------------------------------------------

    def open_log(self, number: int, *, begun: bool = False) -> None:
        """Begin the report log of a round, or go on with it if the round was begun before."""
        folder = self.folder / "reports" / str(number)
        missing = begun and not folder.exists()
        self._log = ReportLog(
            folder,
            segment_bytes=self.settings.segment_bytes,
            reserve_bytes=self.settings.reserve_bytes,
        )
        if missing:
            self._log.damage = f"{folder} is missing"

    @property
    def rounds_opened(self) -> int:
        """Rounds of the task in which this server's share may have left it."""
        return int(self.ledger.setting("opened") or b"0")

    @property
    def sums_scaled(self) -> int:
        """Rounds of the task whose sum exceeded its bound and was scaled."""
        return int(self.ledger.setting("scaled") or b"0")

    def end_applied(self, number: int, opened: Opened, server: Server) -> None:
        """Store the sums and the next model, count the round as applied, wipe its reports."""
        version, before = int(self.model_version["version"]) + 1, self._model_file().name
        file = f"version-{version}.fsl"
        vault.write_whole(self.folder / "opened.fsl", vault.encode_opened(opened, number))
        vault.write_whole(self.folder / "models" / file, encode_model(server.model, version))
        said = [f"{name} was scaled by {left:.3g}" for name, left in opened.scaled.items()]
        fields: dict[str, Any] = {"state": StoredState.APPLIED, "accepted": opened.num_clients}
        with self.ledger.transaction():
            _put_model_version(self.ledger, version, server.model.digest(), file)
            if server.peer_noise:
                self.ledger.put_setting("peer noise", b"%d" % server.peer_noise)
            if said:
                self.ledger.put_setting("scaled", b"%d" % (self.sums_scaled + 1))
                fields["reason"] = f"the sum exceeded its bound: {', '.join(said)}"
            self._end(number, server, **fields)
        self._drop_models(file, before)
        self._wipe_log()
        self.audits.drop()
        if self.halted or 0 < server.plan.max_rounds <= self.rounds_opened:
            self.noise.end()
        forget_log(self.ledger)
        log.info("round applied", extra={"round": number, "clients": opened.num_clients})

    def end_unopened(self, number: int, reason: str, server: Server) -> None:
        """Count the round as unopened and wipe its reports; a server that halts halts for good.

        In memory the server is idle then. If its share may have left it, the reason names that:
        the peer may have opened the sum, so the round is spent as if it had been opened here.
        """
        is_open = server.state is RoundState.OPEN
        complete = {"reports": server.reports.num_complete} if is_open else {}
        if server.state not in (RoundState.IDLE, RoundState.HALTED):
            server.abandon_round()
        state = self.ledger.running_round(number).state
        if state in SHARE_MAY_HAVE_LEFT:
            reason += f"; {SHARE_LEFT}, so the round counts as opened"
        with self.ledger.transaction():
            if server.state is RoundState.HALTED:
                self.ledger.put_setting("halted", reason.encode())
            if server.plan.audited and state in BEFORE_COMMITMENTS:
                self.audits.alert(UNCOMMITTED)
            unopened = StoredState.UNOPENED
            self._end(number, server, state=unopened, reason=reason, **complete)
        if server.state is RoundState.HALTED:
            self.halted = reason
        self._wipe_log()
        self.audits.drop()
        if self.halted or 0 < server.plan.max_rounds <= self.rounds_opened:
            self.noise.end()
        forget_log(self.ledger)
        log.warning("round ends unopened", extra={"round": number, "reason": reason})

    def begin(self) -> None:
        """The stored state is good: count this start, wipe the reports of rounds that have ended.

        Nothing of a state is changed before, so that one that is refused stays as it is.
        """
        with self.ledger.transaction():
            self.ledger.put_setting("party", b"%d" % self.party)
            self.ledger.put_setting("ends_unclean", b"%d" % self.ends_unclean)
            self.ledger.put_setting("ended", None)
        running = self.running()
        if running is None:
            self.audits.drop()
        for folder in (self.folder / "reports").glob("*"):
            if running is not None and folder.name == str(running.number):
                continue
            report_log = ReportLog(folder)
            report_log.wipe(_secrets(report_log))
            shutil.rmtree(folder, ignore_errors=True)

    def _end(self, number: int, server: Server, **fields: Any) -> None:
        self.ledger.change_round(number, ended_at=time.time(), **fields)
        self.ledger.put_setting("share", None)
        self.audits.end(number)
        current = _versions(server.reports.sessions)
        for client in set(self._stored_sessions) - set(current):
            self.ledger.put_session(client, None)
        for client, version in current.items():
            if self._stored_sessions.get(client) != version:
                self.ledger.put_session(client, vault.encode_trees(server.reports.sessions[client]))
        self._stored_sessions = current

    def _stored_version(self) -> dict[str, Any]:
        stored: dict[str, Any] = json.loads(self.ledger.setting("model") or b"{}")
        return stored

    def _model_file(self) -> Path:
        return vault.model_file(self.folder, self._stored_version())

    def _drop_models(self, *kept: str) -> None:
        for path in (self.folder / "models").glob("version-*.fsl"):
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def _wipe_log(self) -> None:
        """Overwrite the master seeds of the round, then delete its reports."""
        if self._log is not None:
            self._log.wipe(_secrets(self._log))
            self._log = None


def check_party(folder: Path, stored: bytes | None, party: int) -> None:
    """Raise ParameterError if the ledger in a folder names the other server."""
    if (stored or b"%d" % party) != b"%d" % party:
        raise ParameterError(
            f"{folder} holds the state of server {1 - party}, not of server {party}: name "
            f"the folder of server {party} with `--state DIR`. If it is lost, see 'Recover from a "
            "lost disk' on the page 'Back up and recover'"
        )


def _versions(sessions: Mapping[int, TreeRecord]) -> dict[int, tuple[int, int]]:
    """Numbers that change when a client's trees are to be stored again."""
    return {client: (record.opening_round, record.epochs) for client, record in sessions.items()}


def _secrets(report_log: ReportLog) -> Iterator[tuple[int, int, int]]:
    """The places of clients' master seeds in the log's messages."""
    for position, message in enumerate(report_log):
        span = messages.master_seed_span(message)
        if span is not None:
            yield position, *span


def _has_seen_rounds(storage: Storage) -> bool:
    is_restored = storage.ledger.setting("restored") is not None
    return is_restored or bool(storage.model_version.get("version"))


def _put_model_version(ledger: Ledger, version: int, digest: bytes, file: str) -> None:
    value = {"version": version, "digest": digest.hex(), "file": file}
    ledger.put_setting("model", json.dumps(value).encode())


def _ends_unclean(ledger: Ledger) -> int:
    """Those before, and one more if the last start was not followed by `Storage.close`."""
    before = ledger.setting("ends_unclean")
    return 0 if before is None else int(before) + (ledger.setting("ended") is None)
