"""A server made from what its state folder holds, and the open round's messages filed again."""

from __future__ import annotations

import logging
from collections.abc import Callable

from torchfsl.crypto.hpke import SealKey
from torchfsl.errors import DecodeError, Error, ProtocolError, RejectedSubmission
from torchfsl.fsl.plan.headroom import with_headroom
from torchfsl.fsl.server.server import Server
from torchfsl.service.server.failures import STATE_ERRORS
from torchfsl.service.server.storage import Storage
from torchfsl.service.state.ledger import REMEDY, LedgerError, RoundRow
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
        max_fetches=storage.settings.max_fetches, evaluator=storage.settings.evaluator,
        sign_key=storage.settings.sign_key,
    )  # fmt: skip


def first_server(storage: Storage, task: Task, model: ServerModel, key: SealKey | None) -> Server:
    """The server of a task that is set up now.

    Raises:
        ParameterError: sums of what its clients may send could leave the ring.
    """
    with_headroom(task.plan)
    opened = 0 if task.past is None else task.past.index
    return new_server(storage, task, model, key, rounds_opened=opened)


def attach_limits(storage: Storage, server: Server) -> None:
    """Let a server go on from the participations and the noise that are stored of its task."""
    for client, index in storage.ledger.participations(before=server.rounds_opened):
        server.participation.charge([client], index)
    storage.noise.attach(server.noise, server.plan)
    server.peer_noise = int(storage.ledger.setting("peer noise") or b"0")


def restored_server(storage: Storage, task: Task, key: SealKey | None) -> Server:
    """The server as it was before the running round, if one runs, else after the last.

    Raises:
        LedgerError: the model or a session's trees are not those that were stored.
    """
    last = storage.ledger.last_round()
    running = storage.running()
    used = -1 if last is None else last.number - (running is not None)
    # The running round counts once more when it is gone through.
    spent = running is not None and running.state in SHARE_MAY_HAVE_LEFT
    opened = storage.rounds_opened - spent
    model = stored_model(storage, task)
    server = new_server(storage, task, model, key, last_round=used, rounds_opened=opened)
    try:
        server.reports.sessions.update(storage.sessions())
    except (DecodeError, KeyError, ValueError) as error:
        raise LedgerError(
            f"the stored record of the clients' reusable keys is damaged ({error}): {REMEDY}"
        ) from error
    if not storage.halted and not 0 < task.plan.max_rounds <= storage.rounds_opened:
        storage.noise.reserve(task.plan)
    attach_limits(storage, server)
    return server


def stored_task(storage: Storage) -> Task | None:
    """The task, or None before the first.

    Raises:
        LedgerError: it is damaged.
    """
    try:
        return storage.task()
    except (DecodeError, ValueError) as error:
        raise LedgerError(f"the stored task is damaged ({error}): {REMEDY}") from error


def stored_model(storage: Storage, task: Task) -> ServerModel:
    """The model of the last applied round, as the ledger names it.

    Raises:
        LedgerError: its file is missing, damaged, or of another version.
    """
    try:
        version = storage.model_version
        model = decode_model(task, storage.model_bytes())
        if model.digest().hex() != version["digest"]:
            raise DecodeError("the model's digest differs from the one in state.sqlite")
    except (DecodeError, ProtocolError, FileNotFoundError, KeyError, ValueError) as error:
        raise LedgerError(
            f"the current model in {storage.folder / 'models'} cannot be used ({error}): {REMEDY}"
        ) from error
    return model


def go_through(
    storage: Storage,
    row: RoundRow,
    replay: Callable[[RoundRow], None],
    restore: Callable[[], Server],
) -> None:
    """Go through what is stored of the running round; end it unopened if that cannot be done.

    Args:
        storage: with the round.
        row: of the round.
        replay: goes through it.
        restore: makes the server anew, as it was before the round.
    """
    try:
        replay(row)
    except (Error, *STATE_ERRORS):
        raise
    except Exception as error:
        log.error("round %d cannot be recovered, which is a bug", row.number, exc_info=error)
        why = f"this server failed with {type(error).__name__} at a stored message of the round"
        storage.end_unopened(row.number, why, restore())
        restore()


def file_again(storage: Storage, server: Server, row: RoundRow) -> bool:
    """File what the report log holds, in its order; what was refused is refused again.

    Returns:
        Whether all that was acknowledged is in it. If not, the round has ended unopened: a sum
        without a report that counts would break the promise to its client.
    """
    report_log = storage.report_log
    count = len(report_log) if row.log_end is None else row.log_end
    damage = report_log.damage
    if count > len(report_log) and not damage:
        damage = f"messages counted at the close {count}, readable {len(report_log)}"
    for position in range(min(count, len(report_log))):
        try:
            server.receive(report_log[position])
        except RejectedSubmission as error:
            log.info("after its restart, the server rejects a stored message again: %s", error)
    if damage:
        log.error("round %d ends unopened, because acknowledged reports are lost (%s): check the "
                  "disk", row.number, damage)  # fmt: skip
        storage.end_unopened(row.number, f"the report log is damaged: {damage}", server)
    return not damage
