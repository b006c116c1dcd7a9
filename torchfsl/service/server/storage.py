"""A server's state on disk behind one object: task, model versions, the running round's log."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchfsl.errors import ProtocolError, RejectedSubmission
from torchfsl.fsl import messages
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.server import Server
from torchfsl.service.net.identity import Authorities
from torchfsl.service.state import vault
from torchfsl.service.state.ledger import OPEN_STATES, Ledger, LedgerError, RoundRow
from torchfsl.service.state.records import SEGMENT_BYTES, ReportLog
from torchfsl.service.task import Task


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Limits of one server.

    Attributes:
        segment_bytes: size of a file of the report log.
        reserve_bytes: disk space that reports may not use.
        min_clients: refuse plans that open sums over fewer reports.
        max_sessions: see `Server`.
    """

    segment_bytes: int = SEGMENT_BYTES
    reserve_bytes: int = 256 << 20
    min_clients: int = 2
    max_sessions: int = 100_000


class Storage:
    """What a `Node` keeps, and how it is written.

    Raises:
        LedgerError: the folder belongs to another party, is in use, or is damaged.
    """

    def __init__(
        self, party: int, folder: Path, authorities: Authorities, settings: NodeSettings
    ) -> None:
        """Open the folder."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.party, self.folder, self.settings = party, folder, settings
        self.authorities = authorities
        self.ledger = Ledger(folder / "state.sqlite")
        if (self.ledger.setting("party") or b"%d" % party) != b"%d" % party:
            raise LedgerError(f"{folder} holds the state of server {1 - party}: name another one")
        self.ledger.put_setting("party", b"%d" % party)
        self.task: Task | None = None
        self._server: Server | None = None
        self._log: ReportLog | None = None
        self._stored_sessions: dict[int, tuple[int, int]] = {}

    # --- what others look at ------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The task's plan.

        Raises:
            ProtocolError: there is no task yet.
        """
        if self.task is None:
            raise ProtocolError("this server has no task yet: the owner has to set one up")
        return self.task.plan

    @property
    def server(self) -> Server:
        """The server in its current state."""
        if self._server is None:
            raise ProtocolError("this server has no task yet: the owner has to set one up")
        return self._server

    @property
    def report_log(self) -> ReportLog:
        """The log of the running round."""
        if self._log is None:
            raise RejectedSubmission("no round is open")
        return self._log

    @property
    def halted(self) -> str:
        """Why the session stands still, or empty."""
        return (self.ledger.setting("halted") or b"").decode()

    @property
    def model_version(self) -> dict[str, Any]:
        """`version` and `digest` of the current model; empty without a task."""
        found: dict[str, Any] = json.loads(self.ledger.setting("model") or b"{}")
        return found

    def running(self) -> RoundRow | None:
        """The round that has not ended, or None."""
        last = self.ledger.last_round()
        return last if last is not None and last.state in OPEN_STATES else None

    def model_bytes(self) -> bytes:
        """The current model with its optimizer, as stored."""
        return self._model_file(int(self.model_version["version"])).read_bytes()

    def result_bytes(self) -> bytes:
        """The sums opened last."""
        try:
            return (self.folder / "opened.fsl").read_bytes()
        except FileNotFoundError:
            raise ProtocolError("no round was opened yet") from None

    # --- how it is written ------------------------------------------------------------------------

    def _end(self, number: int, **fields: Any) -> None:
        self.ledger.change_round(number, ended_at=time.time(), **fields)
        self._verdicts = b""
        current = self.server.reports.sessions
        for client in set(self._stored_sessions) - set(current):
            self.ledger.delete_session(client)
        for client, record in current.items():
            if self._stored_sessions.get(client) != (record.opening_round, record.epochs):
                self.ledger.put_session(client, vault.encode_trees(record))
        self._stored_sessions = {c: (r.opening_round, r.epochs) for c, r in current.items()}

    def _put_model_version(self, version: int, digest: bytes) -> None:
        value = {"version": version, "digest": digest.hex()}
        self.ledger.put_setting("model", json.dumps(value).encode())

    def _model_file(self, version: int) -> Path:
        return self.folder / "models" / f"version-{version}.fsl"

    def _open_log(self, number: int) -> ReportLog:
        return ReportLog(
            self.folder / "reports" / str(number),
            segment_bytes=self.settings.segment_bytes,
            reserve_bytes=self.settings.reserve_bytes,
        )

    def _wipe_log(self) -> None:
        """Overwrite the master seeds of the round, then delete its reports."""
        if self._log is not None:
            self._log.wipe(_secrets(self._log))
            self._log = None

    def _delete_old_logs(self, running: RoundRow | None) -> None:
        for folder in (self.folder / "reports").glob("*"):
            if running is not None and folder.name == str(running.number):
                continue
            report_log = ReportLog(folder)
            report_log.wipe(_secrets(report_log))
            shutil.rmtree(folder, ignore_errors=True)


def _secrets(report_log: ReportLog) -> Iterator[tuple[int, int, int]]:
    """Where the master seeds of clients lie in the log's messages."""
    for position, message in enumerate(report_log):
        span = messages.master_seed_span(message)
        if span is not None:
            yield position, *span
