"""The owner opens more rounds than the noise was made for: the mean over them is the plain value.

The victim sends the same update every round, sybils send zeros. The noise of one round hides it;
that of many rounds averages out.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np
import numpy.typing as npt

from scripts.attacks.result import AttackResult
from scripts.parties import zeros
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ProtocolError
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import run_round
from torchfsl.fsl.server.server import Server
from torchfsl.submodel.segments import TensorSpec
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate

_SIGMA: Final = 3
_ROUNDS: Final = 900
_ALLOWED: Final = 10
_VALUES: Final = np.array([[3], [-7], [0], [12], [5], [-1], [9], [2]])


def run() -> AttackResult:
    """The owner asks for 900 rounds, under a plan without `max_rounds` and under one of 10."""
    segment = TreeSegment("d", "dense", (TensorSpec("d", (8,)),), 8, 1, 8)
    plan = Plan(
        session=bytes(16).hex(), hash_seed=bytes(32).hex(), encoding=FixedPoint(64, 0, 100.0),
        max_clients=2, segments=(segment,), l2_bound=30, noise_sigma=_SIGMA,
    )  # fmt: skip
    free, right = _mean(plan)
    bound, of_bound = _mean(dataclasses.replace(plan, max_rounds=_ALLOWED))
    return AttackResult(
        "more rounds than the budget",
        off=f"{right} of 8 values read exactly from {free} rounds",
        on=f"refused after {bound} rounds, {of_bound} of 8 values right by chance",
        worked_off=right == len(_VALUES),
        worked_on=bound > _ALLOWED or of_bound == len(_VALUES),
        cost="a rule: one number in the ledger",
    )


def _mean(plan: Plan) -> tuple[int, int]:
    """Rounds that the servers opened, and values right in the rounded mean of their sums."""
    rng = np.random.default_rng(7)

    def draw(sigma: int, count: int) -> npt.NDArray[np.int64]:
        return np.rint(rng.normal(0, sigma, count)).astype(np.int64)

    first, second = (
        Server(party, plan=plan, model=ServerModel(zeros(plan)), draw_noise=draw)
        for party in (0, 1)
    )
    updates = {
        0: {"d": SegmentUpdate(None, _VALUES)},
        1: {"d": SegmentUpdate(None, np.zeros_like(_VALUES))},
    }
    total, opened = np.zeros_like(_VALUES), 0
    for number in range(_ROUNDS):
        try:
            total += run_round((first, second), updates, round_number=number).sums["d"]
        except ProtocolError:
            break
        opened += 1
    return opened, int(np.count_nonzero(np.rint(total / opened) == _VALUES))
