"""A state folder before it is used: this user's alone, and not what is left of a lost one."""

from __future__ import annotations

from pathlib import Path

from torchfsl.service.state.ledger import REMEDY, LedgerError


def keep_from_others(folder: Path) -> None:
    """Let nobody but this user read the folder and what is in it.

    Raises:
        LedgerError: the folder is another user's.
    """
    for path in (folder, *folder.rglob("*")):
        mode = path.stat().st_mode
        if mode & 0o077:
            try:
                path.chmod(mode & 0o700)
            except PermissionError:
                raise LedgerError(
                    f"others may read {path}, and it is another user's: give it to this one, or "
                    "name another folder"
                ) from None


def check_not_lost(folder: Path) -> None:
    """Refuse to begin anew beside what an earlier server has left.

    Raises:
        LedgerError: the ledger is missing or empty, and models or reports are there.
    """
    path = folder / "state.sqlite"
    left = [name for name in ("models", "reports", "opened.fsl") if (folder / name).exists()]
    if left and (not path.exists() or not path.stat().st_size):
        raise LedgerError(
            f"{path} is gone, and {', '.join(left)} beside it are of a server that was here "
            f"before: {REMEDY}"
        )
