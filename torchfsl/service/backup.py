"""Backups of a model from a running server, from which no round can be opened again.

A copy of a whole state folder holds the messages that a server has sent. A server on such a copy
could send a second, different message in the same round. A backup holds no messages. It holds the
model with its optimizer's state, and the task's public settings without session, nonce, coins and
keys. Under participation limits it also holds in which rounds each client has reported. A backup
can only become a new task with a new session, in which messages of the old task mean nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from torchfsl.errors import DecodeError, ParameterError
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service import task as tasks
from torchfsl.service.client.owner import Owner
from torchfsl.service.state import arrays, vault
from torchfsl.service.state.ledger import REMEDY
from torchfsl.service.task import Past, Task
from torchfsl.submodel.server_model import ServerModel

_FORMAT: Final = "torchfsl backup 1"
_ATTEMPTS: Final = 10
_NO_SESSION: Final = bytes(16)
_NO_SEED: Final = bytes(32)


@dataclass(frozen=True, slots=True)
class Backup:
    """A model, and what a new task needs to go on with it.

    Attributes:
        task: the old one's settings, without session, nonce, hash seed, coins and keys.
        model: with its optimizer's state.
        version: rounds that were applied to the model in the old task.
        spent: rounds of the old task whose sums count as opened.
        halted: why the server stood still when the backup was taken, or empty.
    """

    task: Task
    model: ServerModel
    version: int
    spent: int
    halted: str = ""

    @classmethod
    def of_state(cls, folder: Path) -> Backup:
        """The model as a server's state folder has it now; the server may be running.

        Raises:
            ParameterError: the folder is not a state folder, cannot be read, or has no task yet. Or
                the model changes too fast to be read.
            DecodeError: the model is damaged, or is not the one that the ledger names.
        """
        for _ in range(_ATTEMPTS):
            stored = settings_of(folder)
            if "task" not in stored:
                raise ParameterError(
                    f"the state in {folder} has no task yet, so there is no model to back up: "
                    "start a task first",
                    code="no-task",
                )
            try:
                return cls._of_stored(folder, stored)
            except (FileNotFoundError, DecodeError) as error:
                if settings_of(folder).get("model") == stored["model"]:
                    raise DecodeError(
                        f"the model in {folder} cannot be read ({error}): {REMEDY}"
                    ) from None
        raise ParameterError(f"the model in {folder} changes too fast to be read: try again")

    @classmethod
    def _of_stored(cls, folder: Path, stored: dict[str, bytes]) -> Backup:
        known = json.loads(stored["model"])
        task = Task.from_settings(json.loads(stored["task"]))
        version = int(known["version"])
        data = vault.model_file(folder, known).read_bytes()
        model = tasks.decode_model(task, data)
        if model.digest().hex() != known["digest"]:
            raise DecodeError("the model's digest differs from the one in state.sqlite")
        plan = dataclasses.replace(
            task.plan, session=_NO_SESSION.hex(), hash_seed=_NO_SEED.hex(), server_keys=()
        )
        spent, halted = int(stored.get("opened", b"0")), stored.get("halted", b"").decode()
        past = past_of(folder, plan, spent)
        task = dataclasses.replace(task, plan=plan, nonce=_NO_SESSION, coins=(), past=past)
        return cls(task, model, version, spent, halted)

    def write(self, path: Path) -> None:
        """Write a file that this user alone can read, whole or not at all.

        Raises:
            ParameterError: there is no room, or no such folder.
        """
        inner = tasks.encode_task(self.task, self.model.state, self.model.optimizer.state())
        meta = {"format": _FORMAT, "version": self.version, "spent": self.spent}
        data = arrays.encode({"task": np.frombuffer(inner, np.uint8)}, meta)
        if not path.parent.is_dir():
            raise ParameterError(f"there is no folder {path.parent}: run `mkdir -p {path.parent}`")
        try:
            vault.write_whole(path, data)
        except OSError as error:
            raise ParameterError(
                f"cannot write {path}: {error.strerror}. Name a file that this user can write"
            ) from error

    @classmethod
    def read(cls, path: Path) -> Backup:
        """Inverse of `write`, except for `halted`.

        Raises:
            ParameterError: the file cannot be read.
            DecodeError: the file is not a backup, is damaged, or is from a newer library.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ParameterError(
                f"cannot read {path} ({error.strerror}): name a file that `torchfsl backup` wrote"
            ) from error
        try:
            values, meta = arrays.decode(data)
        except DecodeError as error:
            raise DecodeError(
                f"{path} is not a backup of torchfsl, or is damaged: name a file that `torchfsl "
                "backup` wrote"
            ) from error
        if meta.get("format") != _FORMAT or set(values) != {"task"}:
            raise DecodeError(
                f"expected the format {_FORMAT!r} in {path}, got another format: "
                "name a file that `torchfsl backup` wrote"
            )
        version, spent = meta.get("version"), meta.get("spent")
        if type(version) is not int or type(spent) is not int or min(version, spent) < 0:
            raise DecodeError(
                f"{path} has an invalid version or count of rounds: name another backup file"
            )
        task, model = tasks.decode_task(values["task"].tobytes())
        return cls(task, model, version, spent)


def restore(owner: Owner, backup: Backup, *, replace: bool = False) -> Task:
    """Set up a new task that goes on with the model of a backup; returns it.

    The new task goes on with the budget of the old one: the rounds that it had opened are spent,
    and under participation limits each client's reports count. Rounds that were opened after the
    backup are not in it. Past noise is not either, so correlation begins anew.

    Args:
        owner: of the new task.
        backup: see above.
        replace: also in place of a task that goes on, see `Owner.set_up`.

    Raises:
        ParameterError: the old plan's rounds are all spent, or the backup does not say which
            clients have reported in a task that limits them.
        ProtocolError: a server refuses the task, or the servers' models differ afterwards.
    """
    old = backup.task
    plan, past = old.plan, old.past
    if _is_limited(plan) and past is None:
        raise ParameterError(
            "this backup does not list the rounds of each client's reports, so the spent privacy "
            "budget is unknown: start another task with the model and a new budget",
            code="budget-unknown",
        )
    if plan.max_rounds:
        if backup.spent >= plan.max_rounds:
            raise ParameterError(
                f"all max_rounds = {plan.max_rounds} rounds of the plan were opened before the "
                "backup: start a task with a new plan",
                code="rounds-spent",
            )
        if past is None:
            plan = dataclasses.replace(plan, max_rounds=plan.max_rounds - backup.spent)
    task = owner.bind(plan, optimizer=old.optimizer, source=old.source, reduce=old.reduce)
    if past is None:  # which also says that the task is one that goes on
        past = Past(0, np.array([], dtype=np.uint64), np.array([], dtype=np.int64))
    task = dataclasses.replace(task, past=past)
    owner.set_up(task, backup.model.state, backup.model.optimizer.state(), replace=replace)
    owner.links.common_model()
    return task


def _is_limited(plan: Plan) -> bool:
    return plan.max_participations > 0 or plan.min_separation > 1


def past_of(folder: Path, plan: Plan, spent: int) -> Past | None:
    """Reports in the first `spent` rounds of a plan with participation limits, in their order."""
    if not _is_limited(plan):
        return None
    query = "SELECT client, place FROM participations WHERE place < ? ORDER BY place, client"
    found = _asked(folder, query, spent)
    clients = np.array([int(client) for client, _ in found], dtype=np.uint64)
    return Past(spent, clients, np.array([place for _, place in found], dtype=np.int64))


def settings_of(folder: Path) -> dict[str, bytes]:
    """The ledger's entries about task and model, read without writing anything.

    Raises:
        ParameterError: there is no ledger, or it cannot be read.
    """
    path = folder / "state.sqlite"
    if not path.exists():
        raise ParameterError(
            f"{folder} has no state.sqlite: name a server's state folder",
            code="not-a-state-folder",
        )
    names = "'task', 'model', 'opened', 'halted', 'scaled', 'party', 'identity', 'generation'"
    query = f"SELECT name, value FROM settings WHERE name IN ({names})"  # noqa: S608 (ours)
    return {name: bytes(value) for name, value in _asked(folder, query)}


def _asked(folder: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    path = folder / "state.sqlite"
    try:
        address = f"{path.resolve().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
            return database.execute(query, values).fetchall()
    except sqlite3.Error as error:
        raise ParameterError(f"cannot read {path}: {error}. Check the disk") from error
