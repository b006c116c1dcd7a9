"""What `torchfsl status` prints."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchfsl.errors import FslError, ParameterError

if TYPE_CHECKING:
    from torchfsl.service.net.channels import TlsFiles


def show_state(folder: Path, num_rounds: int) -> int:
    """Rounds and sizes of a state folder; the server may be running."""
    from torchfsl.service.state.ledger import Ledger

    if not (folder / "state.sqlite").exists():
        raise ParameterError(f"{folder} is no state folder: it has no state.sqlite")
    ledger = Ledger(folder / "state.sqlite")
    try:
        party = (ledger.setting("party") or b"?").decode()
        model = (ledger.setting("model") or b"none").decode()
        halted = (ledger.setting("halted") or b"").decode()
        print(f"server {party}, model {model}" + (f", HALTED: {halted}" if halted else ""))
        print("   round state       reports  accepted        MB  seconds  why")
        rounds = ledger.rounds("ORDER BY number DESC LIMIT ?", num_rounds)
        for row in reversed(rounds):
            seconds = (row.ended_at or time.time()) - row.opened_at
            print(
                f"{row.number:>8} {row.state:<10} {row.reports:>8} {row.accepted:>9} "
                f"{row.bytes / 1e6:>9.2f} {seconds:>8.1f}  {row.reason}"
            )
        for name in ("reports", "models"):
            files = [path for path in (folder / name).rglob("*") if path.is_file()]
            size = sum(path.stat().st_blocks * 512 for path in files)
            print(f"{name}: {len(files)} files, {size / 1e6:.2f} MB")
    finally:
        ledger.close()
    return 1 if halted else 0


def show_servers(urls: Sequence[str], files: TlsFiles) -> int:
    """What two running servers say of themselves to whose files these are."""
    from torchfsl.service.client.links import Links, RetryPolicy

    links = Links(urls, files, RetryPolicy(attempt_seconds=10, total_seconds=10))
    failed = 0
    for party in (0, 1):
        try:
            info = links.info(party)
        except FslError as error:
            print(error)  # it names the server
            failed = 1
            continue
        print(
            f"server {party}: torchfsl {info['library']}, wire {info['wire_version']}, plan "
            f"{info['plan_digest'][:16] or 'none'}, model {info['model'].get('version', 'none')} "
            f"{info['model'].get('digest', '')[:16]}"
        )
        print(
            f"  round {info['round']} {info['state']}, complete reports {info['complete']}"
            + (f", HALTED: {info['halted']}" if info["halted"] else "")
            + (f", {info['stalled']}" if info["stalled"] else "")
        )
        failed |= bool(info["halted"])
    links.close()
    return failed
