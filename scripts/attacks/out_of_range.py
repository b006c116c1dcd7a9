"""Clients send what no honest one can: a negative count, a huge one, a value far beyond the clip.

Five honest clients send 80 at one row, under a plan whose mean divides by the count. One attacker
sends to the same row. A mean above the clip of 100 would move the model by more than any honest
cohort can; a mean near 0 freezes the row.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Final
from unittest import mock

import numpy as np
import numpy.typing as npt

from scripts.attacks.forged_reports import Forgery, forge, grow, make_plan
from scripts.attacks.result import AttackResult
from scripts.parties import two_servers
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server import ranges
from torchfsl.fsl.transport import InProcess
from torchfsl.kernels import ring
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.update import SegmentUpdate

ROW: Final = 3
HONEST: Final = 80
_CLIENTS: Final = 5
_ATTACKS: Final = {"count -4": (-4, 0), "count 2**30": (1 << 30, 0), "value 2**27": (1, 1 << 27)}
"""By name, the count and the value that the attacker sends."""


def run() -> AttackResult:
    """The mean of the row under each attack, without the check of ranges and with it."""
    plan = counting_plan()
    off: dict[str, float] = {}
    with mock.patch.object(ranges, "zero_out_of_range", _leave):
        off = {name: mean_of(opened_with(plan, sent)) for name, sent in _ATTACKS.items()}
        seconds = _honest_seconds(plan)
    on = {name: opened_with(plan, sent) for name, sent in _ATTACKS.items()}
    ratio = _honest_seconds(plan) / seconds
    limit = plan.encoding.q_max
    return AttackResult(
        "values out of range",
        off="mean of the row, 80 without attack: "
        + ", ".join(f"{mean:.3g} ({name})" for name, mean in off.items()),
        on="row opened as 0 and counted: "
        + ", ".join(f"{opened.zeroed == {'values': 1}} ({name})" for name, opened in on.items()),
        worked_off=all(not 1 < abs(mean) <= limit for mean in off.values()),
        worked_on=any(_row(opened) != (0, 0) for opened in on.values()),
        time_ratio=ratio,
    )


def counting_plan(ring_bits: int = 32) -> Plan:
    """Eight scalars of magnitude up to 100 with a count of their clients."""
    plan = make_plan(8, 8, 0, 0)
    encoding = dataclasses.replace(plan.encoding, ring_bits=ring_bits)
    return dataclasses.replace(plan, lane="count", encoding=encoding)


def opened_with(plan: Plan, sent: tuple[int, int] | None) -> Opened:
    """A round of the honest clients, and of an attacker that sends (count, value) to the row."""
    servers = two_servers(plan)
    begin_round(servers, 1)
    link = InProcess(*servers)
    for number in range(_CLIENTS):
        update = {"values": SegmentUpdate(np.array([ROW]), np.array([[HONEST]]))}
        Client(plan, link, client_id=number).start_round(1).submit(update)
    if sent is not None:
        for party, message in sending(plan, _CLIENTS, *sent).messages():
            link.send(party, message)
    return finish_round(servers)


def sending(plan: Plan, client: int, count: int, value: int) -> Forgery:
    """A report of trees that verify, with any count and value at the row."""
    report = forge(plan, client, 1, np.random.default_rng(0))
    whole = np.zeros((len(report.alpha), 2), dtype=np.int64)
    report.alpha[0] = plan.permutations(report.segment)[0][ROW]
    whole[0] = count, value
    report.values = ring.from_int64(whole, plan.encoding.ring_bits)
    grow(report)
    return report


def mean_of(opened: Opened) -> float:
    """The row's mean, as a server takes it."""
    count, total = _row(opened)
    return total / max(count, 1)


def _row(opened: Opened) -> tuple[int, int]:
    return int(opened.lanes["values"][ROW]), int(opened.sums["values"][ROW, 0])


def _leave(
    _plan: Plan, _s: object, _n: int, values: npt.NDArray[np.int64], *_: object
) -> npt.NDArray[np.bool_]:
    """Sums as they are, out of range or not."""
    return np.zeros(len(values), dtype=np.bool_)


def _honest_seconds(plan: Plan) -> float:
    """The fastest of some honest rounds."""
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        opened_with(plan, None)
        seconds.append(time.perf_counter() - start)
    return min(seconds)
