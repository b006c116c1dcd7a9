"""A server's durable state except reports and models: task, rounds, messages to the peer.

SQLite with a write-ahead log and `synchronous=FULL`: a transaction that returned survives a crash.
`secure_delete` overwrites what is deleted, `forget_log` empties the write-ahead log. Every change
is one transaction and counts as one generation, which a `Witness` outside the folder also knows.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torchfsl.crypto.entropy import random_bytes
from torchfsl.errors import Error, ProtocolError
from torchfsl.fsl.messages import Kind
from torchfsl.service.state.steps import StoredState
from torchfsl.service.state.witness import IDENTITY_BYTES, Progress, Witness

log = logging.getLogger("torchfsl.service.ledger")

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS rounds (
    number TEXT PRIMARY KEY, state TEXT NOT NULL, expected INTEGER NOT NULL,
    opened_at REAL NOT NULL, closes_at REAL NOT NULL, ended_at REAL,
    log_end INTEGER, reports INTEGER NOT NULL DEFAULT 0, accepted INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0,
    reason TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS steps (
    round TEXT NOT NULL, sent INTEGER NOT NULL, kind INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (round, sent, kind));
CREATE TABLE IF NOT EXISTS sessions (client TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS participations (
    client TEXT NOT NULL, place INTEGER NOT NULL, PRIMARY KEY (client, place));
CREATE INDEX IF NOT EXISTS rounds_by_state ON rounds (state);
"""
_FORMAT: Final = b"1"
_COLUMNS: Final = (
    "number, state, expected, opened_at, closes_at, ended_at, log_end, reports, accepted, bytes, "
    "reason"
)


REMEDY: Final = "see the page 'Incidents', 'When the state is refused'"


class LedgerError(Error):
    """The state must not be used as it is, and a person has to look. The message says why."""

    code = "state-refused"


@dataclass(frozen=True, slots=True)
class RoundRow:
    """The record of one round.

    Attributes:
        number: round.
        state: where it stands.
        expected: complete reports after which it may close early; 0 for none.
        opened_at: seconds since the epoch.
        closes_at: the same; when reports stop being taken.
        ended_at: the same; None while it runs.
        log_end: messages of the report log that count; None while it is open.
        reports: complete reports at the close, or at an end before it.
        accepted: reports in the sum.
        bytes: of all messages.
        reason: why it was not opened, or that its sum was scaled.
    """

    number: int
    state: StoredState
    expected: int
    opened_at: float
    closes_at: float
    ended_at: float | None
    log_end: int | None
    reports: int
    accepted: int
    bytes: int
    reason: str

    @property
    def why(self) -> str:
        """`reason`; of an unopened round also the reports it waited for, and if its time is up.

        Server 1 stores neither.
        """
        ended = self.ended_at
        if self.state is not StoredState.UNOPENED or ended is None or not self.closes_at:
            return self.reason
        parts = []
        if self.reports < self.expected:
            parts.append(f"the coordinator expected {self.expected} reports")
        if ended >= self.closes_at and (parts or not self.expected):
            seconds = f"{self.closes_at - self.opened_at:.1f}".removesuffix(".0")
            parts.append(f"the {seconds} s of this round ran out")
        return f"{self.reason} ({', '.join(parts)})" if parts else self.reason


def _key(number: int) -> str:
    """Numbers up to 2**64 in SQLite, sorting like numbers."""
    return f"{number:020d}"


class Ledger:
    """The SQLite file of one server. Usable from any thread.

    Args:
        path: made when missing, for this user alone.

    Attributes:
        generation: how many changes were made, since the first start.

    Raises:
        LedgerError: it is damaged, or another version wrote it.
        OSError, sqlite3.Error: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self.path = path
        self._witness: Witness | None = None
        self._identity = b""
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)  # before SQLite copies the mode to its log
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute("PRAGMA secure_delete=ON")
            damage = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
            self._db.executescript(_SCHEMA)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            damage = str(error)
        if damage != "ok":
            raise LedgerError(f"{path} is damaged ({damage}): {REMEDY}")
        if (self.setting("format") or _FORMAT) != _FORMAT:
            raise LedgerError(f"{path} was written by a newer torchfsl: upgrade this server")
        try:
            self.generation = int(self.setting("generation") or b"0")
        except ValueError as error:
            raise LedgerError(f"{path} is damaged ({error}): {REMEDY}") from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside is stored together, or nothing is; then the rollback counter has it.

        May be nested: only the outermost stores.
        """
        with self._lock:
            if self._db.in_transaction:
                yield
                return
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                generation = self.generation + 1
                self.put_setting("generation", b"%d" % generation)
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
            self.generation = generation
            if self._witness is not None:
                self._witness.mark(Progress(self._identity, generation))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()
            if self._witness is not None:
                self._witness.close()

    # --- settings -----------------------------------------------------------------------------

    def setting(self, name: str) -> bytes | None:
        """A stored value, or None."""
        row = self._one("SELECT value FROM settings WHERE name = ?", name)
        return None if row is None else bytes(row[0])

    def put_setting(self, name: str, value: bytes | None) -> None:
        """Store a value; None deletes it."""
        if value is None:
            self._do("DELETE FROM settings WHERE name = ?", name)
        elif self.setting(name) != value:
            self._do("INSERT OR REPLACE INTO settings VALUES (?, ?)", name, value)

    # --- rounds -------------------------------------------------------------------------------

    def start_round(self, number: int, expected: int, closes_at: float) -> None:
        """Record that a round begins."""
        columns = "number, state, expected, opened_at, closes_at"
        insert = f"INSERT INTO rounds ({columns}) VALUES (?, ?, ?, ?, ?)"  # noqa: S608 (ours)
        self._do(insert, _key(number), StoredState.OPENING, expected, time.time(), closes_at)

    def change_round(self, number: int, **fields: Any) -> None:
        """Set columns of a round."""
        columns = ", ".join(f"{name} = ?" for name in fields)
        self._do(
            f"UPDATE rounds SET {columns} WHERE number = ?",  # noqa: S608 (names are ours)
            *fields.values(),
            _key(number),
        )

    def round(self, number: int) -> RoundRow | None:
        """A round, or None."""
        rows = self.rounds("WHERE number = ?", _key(number))
        return rows[0] if rows else None

    def running_round(self, number: int) -> RoundRow:
        """A round that has not ended.

        Raises:
            ProtocolError: it has, with its reason; or it was never begun.
        """
        row = self.round(number)
        if row is None:
            raise ProtocolError(
                f"round {number} has not begun at this server: `torchfsl status` shows its rounds",
                code="unknown-round",
            )
        if row.state.has_ended:
            raise ProtocolError(f"round {number} is {row.state} {row.reason}".rstrip())
        return row

    def last_round(self) -> RoundRow | None:
        """The round of the highest number, or None before the first."""
        rows = self.rounds("ORDER BY number DESC LIMIT 1")
        return rows[0] if rows else None

    def rounds(self, clause: str = "ORDER BY number", *values: Any) -> list[RoundRow]:
        """Rounds by an SQL clause."""
        with self._lock:
            query = f"SELECT {_COLUMNS} FROM rounds {clause}"  # noqa: S608 (clauses are ours)
            rows = self._db.execute(query, values).fetchall()
        try:
            return [RoundRow(int(row[0]), StoredState(row[1]), *row[2:]) for row in rows]
        except ValueError as error:
            raise LedgerError(f"{self.path} is damaged ({error}): {REMEDY}") from error

    def num_rounds(self, state: StoredState) -> int:
        """How many rounds are in a state; by an index, without their rows."""
        return int(self._one("SELECT COUNT(*) FROM rounds WHERE state = ?", state)[0])

    def delete_rounds(self) -> None:
        """Forget all rounds and the messages in them."""
        with self.transaction():
            self._do("DELETE FROM rounds")
            self._do("DELETE FROM steps")

    # --- what was said between the servers ----------------------------------------------------

    def step(self, number: int, kind: Kind, *, sent: bool) -> bytes | None:
        """A message of the round machine, ours if `sent`, or None."""
        row = self._one(
            "SELECT body FROM steps WHERE round = ? AND sent = ? AND kind = ?",
            _key(number),
            sent,
            int(kind),
        )
        return None if row is None else bytes(row[0])

    def put_step(self, number: int, kind: Kind, body: bytes, *, sent: bool) -> None:
        """Store a message of the round machine; it never changes after."""
        self._do("INSERT INTO steps VALUES (?, ?, ?, ?)", _key(number), sent, int(kind), body)

    def delete_steps_before(self, number: int) -> None:
        """Forget the messages of older rounds."""
        self._do("DELETE FROM steps WHERE round < ?", _key(number))

    # --- sessions -----------------------------------------------------------------------------

    def sessions(self) -> dict[int, bytes]:
        """Stored trees by client."""
        with self._lock:
            rows = self._db.execute("SELECT client, body FROM sessions").fetchall()
        return {int(client): bytes(body) for client, body in rows}

    def put_session(self, client: int, body: bytes | None) -> None:
        """Store a client's trees; None forgets them."""
        if body is None:
            self._do("DELETE FROM sessions WHERE client = ?", _key(client))
        else:
            self._do("INSERT OR REPLACE INTO sessions VALUES (?, ?)", _key(client), body)

    # --- participation limits -----------------------------------------------------------------

    def participations(self, before: int) -> list[tuple[int, int]]:
        """Clients of opened rounds with the indices of these below `before`, in order."""
        with self._lock:
            query = "SELECT client, place FROM participations WHERE place < ? ORDER BY place"
            return [(int(client), place) for client, place in self._db.execute(query, (before,))]

    def put_participations(self, reports: Iterable[tuple[int, int]]) -> None:
        """Charge clients, each with the round of an index."""
        with self.transaction():
            rows = [(_key(client), index) for client, index in reports]
            self._db.executemany("INSERT OR IGNORE INTO participations VALUES (?, ?)", rows)

    def delete_participations(self) -> None:
        """Forget them, with the task that they belong to."""
        self._do("DELETE FROM participations")

    def _one(self, query: str, *values: Any) -> Any:
        with self._lock:
            return self._db.execute(query, values).fetchone()

    def _do(self, query: str, *values: Any) -> None:
        with self.transaction():
            self._db.execute(query, values)


def testify(ledger: Ledger, witness: Witness) -> None:
    """Refuse a ledger older than the rollback counter, which then counts every change to come.

    Raises:
        LedgerError: if it is older, or another one, or the rollback counter is gone.
    """
    identity = ledger.setting("identity")
    check_progress(ledger.path, witness.path, witness.read(), identity, ledger.generation)
    if identity is None:
        identity = random_bytes(IDENTITY_BYTES)
        witness.mark(Progress(identity, 0))
    ledger._witness, ledger._identity = witness, identity
    if ledger.setting("identity") is None:
        with ledger.transaction():
            ledger.put_setting("format", _FORMAT)
            ledger.put_setting("identity", identity)


def check_progress(
    path: Path, counter: Path, seen: Progress | None, identity: bytes | None, generation: int
) -> None:
    """Compare a ledger with its rollback counter; changes nothing.

    Args:
        path: of the ledger.
        counter: path of the rollback counter.
        seen: what the rollback counter has.
        identity: of the ledger; None if it is new or lost.
        generation: changes that were made to it.

    Raises:
        LedgerError: as `testify`.
    """
    folder = path.parent
    if identity is None:
        if seen is not None and seen.generation:
            raise LedgerError(
                f"{path} is missing, empty or older than the rollback counter {counter}, which has "
                f"{seen.generation} steps of this server: {REMEDY}"
            )
    elif seen is None:
        raise LedgerError(
            f"the state in {folder} may be an old copy, because its rollback counter is not in "
            f"{counter}: move the counter to this path if you moved the state, or {REMEDY}"
        )
    elif seen.identity != identity:
        raise LedgerError(f"{counter} is the rollback counter of another state: {REMEDY}")
    elif generation < seen.generation:
        raise LedgerError(
            f"the state in {folder} is an old copy: it has done {generation} steps, "
            f"and the rollback counter {counter} has {seen.generation}. To go on from it "
            f"could open a round again: {REMEDY}"
        )


def forget_log(ledger: Ledger) -> None:
    """Empty the write-ahead log, which holds what was deleted from the file."""
    with ledger._lock:
        busy = ledger._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    if busy:
        log.warning(
            "another program reads state.sqlite, so deleted data stays on the disk for longer"
        )
