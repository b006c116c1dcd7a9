"""A server made from what its state folder holds, and the open round's messages filed again."""

from __future__ import annotations

import logging

from torchfsl.crypto.hpke import SealKey
from torchfsl.errors import RejectedSubmission
from torchfsl.fsl.server.server import Server
from torchfsl.service.server.storage import Storage
from torchfsl.service.state.ledger import LedgerError, RoundRow
from torchfsl.service.state.steps import SHARE_MAY_HAVE_LEFT
from torchfsl.service.task import Task, decode_model
from torchfsl.submodel.server_model import ServerModel

log = logging.getLogger("torchfsl.service.recovery")


def new_server(
    storage: Storage,
    task: Task,
    model: ServerModel,
    key: SealKey | None,
    *,
    last_round: int = -1,
    rounds_opened: int = 0,
) -> Server:
    """A server of a task that is in no round; `last_round` and those below are spent.

    Raises:
        ParameterError: the plan does not name its key.
    """
    return Server(
        storage.party, plan=task.plan, model=model, last_round=last_round,
        rounds_opened=rounds_opened, max_sessions=storage.settings.max_sessions, key=key,
        max_fetches=storage.settings.max_fetches,
    )  # fmt: skip


def restored_server(storage: Storage, task: Task, key: SealKey | None) -> Server:
    """The server as it was before the running round, if one runs, else after the last."""
    last = storage.ledger.last_round()
    running = storage.running()
    used = -1 if last is None else last.number - (running is not None)
    # The running round counts once more when it is gone through.
    spent = running is not None and running.state in SHARE_MAY_HAVE_LEFT
    opened = storage.rounds_opened - spent
    model = decode_model(task, storage.model_bytes())
    server = new_server(storage, task, model, key, last_round=used, rounds_opened=opened)
    server.reports.sessions.update(storage.sessions())
    return server


def file_again(storage: Storage, server: Server, row: RoundRow) -> None:
    """File what the report log holds, in its order; what was refused is refused again.

    Raises:
        LedgerError: messages that counted at the close are not in the log any more.
    """
    report_log = storage.report_log
    count = len(report_log) if row.log_end is None else row.log_end
    if count > len(report_log):
        raise LedgerError(
            f"round {row.number}: {count} messages were stored, the log has {len(report_log)}: "
            "restore the state folder from the backup"
        )
    for position in range(count):
        try:
            server.receive(report_log[position])
        except RejectedSubmission as error:
            log.info("refused again: %s", error)
