"""What `torchfsl doctor` finds in a state folder; nothing in it is changed."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from torchfsl.errors import ParameterError
from torchfsl.service.backup import past_of, settings_of
from torchfsl.service.net.text import printable
from torchfsl.service.server.storage import check_party
from torchfsl.service.state.ledger import check_progress
from torchfsl.service.state.vault import check_not_lost, check_parent
from torchfsl.service.state.witness import Witness, counter_path
from torchfsl.service.task import Task, rounds_spent

if TYPE_CHECKING:
    from torchfsl.fsl.plan.plan import Plan
    from torchfsl.service.server.process import ServeSettings


def is_running(state: Path) -> bool:
    """Whether a server has the lock of a state folder; asks without changing anything."""
    try:
        with (state / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def check_folder(settings: ServeSettings) -> str:
    """Whether a server could begin with its state folder; how much room there is.

    Raises:
        LedgerError: the server would refuse the state: it is lost, or an older copy.
        ParameterError: the folder is another server's or cannot be written, or has no room.
    """
    folder = settings.state
    check_parent(folder, "--state")
    check_parent(counter_path(folder, settings.witness), "--witness")
    _check_ledger(folder, counter_path(folder, settings.witness), settings.party)
    _, free = free_space(folder)
    if free <= settings.node.reserve_bytes:
        raise ParameterError(
            f"{free} bytes are free for {folder}, less than reserve_bytes = "
            f"{settings.node.reserve_bytes}: make room"
        )
    return f"{folder}, {free / 1e9:.1f} GB free" + ("" if folder.exists() else ", to be made")


def _check_ledger(folder: Path, counter: Path, party: int) -> None:
    """Raise what `Storage` would, for a ledger that is lost, older, or of the other server."""
    check_not_lost(folder)
    seen, path = Witness(counter).read(), folder / "state.sqlite"
    # The ledger is asked after its counter, which a running server moves on after it.
    stored = settings_of(folder) if path.exists() and path.stat().st_size else {}
    check_party(folder, stored.get("party"), party)
    generation = int(stored.get("generation", b"0"))
    check_progress(path, counter, seen, stored.get("identity"), generation)


def free_space(folder: Path) -> tuple[Path, int]:
    """A folder that can be written, or the nearest above that exists, and bytes free there."""
    existing = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise ParameterError(
            f"cannot write in {existing} ({error.strerror}): name another folder with --state, or "
            "make this one writable for the user that runs the server"
        ) from error
    disk = os.statvfs(existing)
    return existing, disk.f_bavail * disk.f_frsize


def check_task(folder: Path) -> str:
    """Whether the task in a state folder goes on, and whether its aggregates kept their bound."""
    stored = settings_of(folder)
    if "halted" in stored:
        reason = printable(stored["halted"].decode())
        raise ParameterError(f"halted: {reason} (see the page 'Incidents')")
    plan, scaled = plan_in(folder), int(stored.get("scaled", b"0"))
    opened, most = int(stored.get("opened", b"0")), plan.max_rounds if plan else 0
    told = rounds_spent(opened, most) or "goes on"
    return f"{told}; aggregates beyond their bound: {scaled}" if plan else "none yet"


def check_budget(folder: Path) -> str:
    """Rounds that the task in a state folder has spent, and whether its noise is there."""
    from torchfsl.fsl.noise import ring_bytes

    stored, plan = settings_of(folder), plan_in(folder)
    if plan is None:
        return "no task yet"
    opened = int(stored.get("opened", b"0"))
    if not plan.noise_sigma:  # limits need noise
        return "the plan has no noise"
    told = f"rounds spent {opened} of {plan.max_rounds or 'any number'}"
    if (past := past_of(folder, plan, opened)) is not None:
        told += f", reports that count {len(past.places):,}"
    kept = sum(path.stat().st_size for path in folder.glob("noise-*.ring"))
    goes_on = opened < plan.max_rounds and "halted" not in stored  # else the noise is wiped
    if plan.noise_taps and kept < ring_bytes(plan) and goes_on:
        raise ParameterError(
            f"{told}. Files of past noise have {kept:,} of {ring_bytes(plan):,} bytes. Privacy "
            "holds, but later rounds have more noise: find out what removed these files"
        )
    return f"{told}, bytes of past noise {kept:,}"


def plan_in(folder: Path) -> Plan | None:
    """The plan of the task in a state folder."""
    if not (folder / "state.sqlite").exists() or "task" not in (stored := settings_of(folder)):
        return None
    return Task.from_settings(json.loads(stored["task"])).plan
