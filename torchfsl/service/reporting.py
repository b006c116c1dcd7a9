"""What `torchfsl status` prints, once or again and again."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchfsl.errors import Error, ParameterError
from torchfsl.service.net.text import printable, say
from torchfsl.service.task import Task, rounds_spent

if TYPE_CHECKING:
    from torchfsl.service.net.channels import TlsFiles
    from torchfsl.service.state.ledger import Ledger


def show_state(folder: Path, num_rounds: int) -> int:
    """Rounds and sizes of a state folder; the server may be running."""
    from torchfsl.service.state.ledger import Ledger

    if not (folder / "state.sqlite").exists():
        raise ParameterError(
            f"{folder} has no state.sqlite: name a server's state folder",
            code="not-a-state-folder",
        )
    ledger = Ledger(folder / "state.sqlite")
    try:
        party = (ledger.setting("party") or b"?").decode()
        model = (ledger.setting("model") or b"none").decode()
        halted = printable((ledger.setting("halted") or b"").decode())
        say(f"server {party}, model {model}" + (f", HALTED: {halted}" if halted else ""))
        if told := rounds_spent(*_budget(ledger)):
            say(told)
        say("   round state      complete reports  expected  in the sum        MB  seconds  why")
        rounds = ledger.rounds("ORDER BY number DESC LIMIT ?", num_rounds)
        for row in reversed(rounds):
            seconds = (row.ended_at or time.time()) - row.opened_at
            reports = row.reports if row.reports or row.ended_at is not None else "-"
            say(
                f"{row.number:>8} {row.state:<10} {reports:>16} {row.expected or '':>9} "
                f"{row.accepted:>11} {row.bytes / 1e6:>9.2f} {seconds:>8.1f}  {printable(row.why)}"
            )
        for name in ("reports", "models"):
            files = [path for path in (folder / name).rglob("*") if path.is_file()]
            size = sum(path.stat().st_blocks * 512 for path in files)
            say(f"{name}: {size / 1e6:.2f} MB, files {len(files)}")
    finally:
        ledger.close()
    return 1 if halted else 0


def _budget(ledger: Ledger) -> tuple[int, int]:
    """Rounds that count as opened, and how many the plan allows; 0 for any number."""
    task = ledger.setting("task")
    plan = Task.from_settings(json.loads(task)).plan if task is not None else None
    return int(ledger.setting("opened") or b"0"), plan.max_rounds if plan is not None else 0


def show_servers(urls: Sequence[str], files: TlsFiles, seconds: float = 10.0) -> int:
    """What two running servers say of themselves, within `seconds`, to whose files these are.

    Raises:
        ParameterError: their certificate cannot be read, or has expired.
    """
    from torchfsl.service.client.links import Links, RetryPolicy

    files.days_left()  # a server would only close the connection
    links = Links(urls, files, RetryPolicy(attempt_seconds=seconds, total_seconds=seconds))
    failed = 0
    for party in (0, 1):
        try:
            info = links.info(party)
        except Error as error:
            prefix = f"server {party}: "
            say(prefix + str(error).removeprefix(prefix))
            failed = 1
            continue
        say(
            f"server {party}: torchfsl {info['library']}, wire {info['wire_version']}, plan "
            f"{info['plan_digest'][:16] or 'none'}, model {info['model'].get('version', 'none')} "
            f"{info['model'].get('digest', '')[:16]}"
        )
        say(f"  {of_round(info)}")
        failed |= bool(info["halted"] or info.get("unready"))
    links.close()
    return failed


def of_round(info: Mapping[str, Any]) -> str:
    """The last round of a server, and what stands in its way. Older servers say less."""
    if info["round"] < 0:
        parts = ["no round yet" if info["plan_digest"] else "no task yet"]
    elif info["open"]:
        parts = [f"round {info['round']} open, complete reports {info['complete']}"]
        if info.get("expected"):  # server 0 closes the round at this number
            parts.append(f"expected {info['expected']}")
    else:
        parts = [f"round {info['round']} {info['state']}"]
        if "accepted" in info:
            parts += [f"complete reports {info['reports']}", f"in the sum {info['accepted']}"]
        parts.append(info.get("reason", ""))
    if info["halted"]:
        parts.append(f"HALTED: {info['halted']}")
    elif info.get("unready"):
        parts.append(f"NOT READY: {info['unready']}")
    parts.append(rounds_spent(info.get("rounds_opened", 0), info.get("max_rounds", 0)))
    return ", ".join(part for part in (*parts, info["stalled"]) if part)


_HOME = "\x1b[H\x1b[2J"
"""Sends a terminal's cursor home and empties the screen."""


def watch(show: Callable[[], int], seconds: float) -> int:
    """Call `show` every `seconds`; return the last status. Print errors and try again.

    On a terminal each output replaces the one before. Elsewhere outputs follow each other.
    """
    status, stopped = 0, False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True  # gRPC may swallow what is raised inside its calls
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    try:
        while not stopped:
            if sys.stdout.isatty():
                print(_HOME, end="")
            print(time.strftime("%Y-%m-%d %H:%M:%S %z"))
            try:
                status = show()
            except Error as error:
                say(str(error))
                status = 1
            sys.stdout.flush()
            time.sleep(seconds)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGINT, before)
    return status
