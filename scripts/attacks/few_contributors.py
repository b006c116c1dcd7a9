"""A row that one client alone has touched is opened: the sum is that client's row.

Three clients share row 0, and one of them alone has row 5. Any server, and whoever sees the opened
sums, reads row 5 as it was sent.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Final

import numpy as np

from scripts.attacks.forged_reports import make_plan
from scripts.attacks.result import AttackResult
from scripts.parties import two_servers
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import run_round
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.update import SegmentUpdate

_SHARED: Final = 0
_ALONE: Final = 5
_SECRET: Final = 77


def run() -> AttackResult:
    """The round with every position opened, and with positions of two clients or more."""
    plan = dataclasses.replace(make_plan(8, 8, 0, 0), lane="count")
    guarded = dataclasses.replace(plan, min_contributors=2)
    (off, seconds), (on, guarded_seconds) = _best(plan), _best(guarded)
    return AttackResult(
        "rows of few clients",
        off=f"one client's row opened as {_read(off, _ALONE)}; it sent {_SECRET}",
        on=f"that row opened as {_read(on, _ALONE)}, the shared one as {_read(on, _SHARED)} of 30",
        worked_off=_read(off, _ALONE) == _SECRET,
        worked_on=_read(on, _ALONE) != 0 or _read(on, _SHARED) != 30,
        time_ratio=guarded_seconds / seconds,
    )


def _read(opened: Opened, row: int) -> int:
    return int(opened.sums["values"][row, 0])


def _best(plan: Plan) -> tuple[Opened, float]:
    """The aggregates, and the fastest of some rounds."""
    shared = SegmentUpdate(np.array([_SHARED]), np.array([[10]]))
    both = SegmentUpdate(np.array([_SHARED, _ALONE]), np.array([[10], [_SECRET]]))
    updates = {number: {"values": part} for number, part in enumerate((shared, shared, both))}
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        opened = run_round(two_servers(plan), updates, round_number=1)
        seconds.append(time.perf_counter() - start)
    return opened, min(seconds)
