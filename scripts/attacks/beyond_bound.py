"""Server 0 adds more to its share than all reports of a round make up together.

    python -m scripts.attacks --only beyond_bound

Clients prove that their reports are within `l2_bound`. Without a bound on the aggregate the offset
is applied, and moves the model as far as server 0 likes. With it server 1 halts the task and
applies nothing. An offset of less than all honest reports passes: the bound is a brake, and no
integrity.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np

from scripts.attacks.result import AttackResult, honest_plan, honest_round, ratio
from scripts.attacks.steered_sum import LyingServer
from scripts.parties import bench_plan, random_update, zeros
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ProtocolError
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.server.states import RoundState
from torchfsl.fsl.transport import InProcess
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.server_model import ServerModel
from torchfsl.types import Whole

CLIENTS: Final = 4
BOUND: Final = 1000
MODERATE, GROSS = 0.8, 10.0
"""Norms of offsets, in units of what all honest reports make up."""


def plan_of(*, sum_bound: bool, **options: Any) -> Plan:
    """A table and a dense segment, with norm proofs unless told otherwise."""
    table, rest = TensorSpec("table", (64, 4)), TensorSpec("rest", (100,))
    specs = [
        SegmentSpec("table", "rows", (table,), tau=4, k_max=3),
        SegmentSpec("rest", "dense", (rest,)),
    ]
    options = {"l2_bound": BOUND, "sum_bound": sum_bound} | options
    return bench_plan(specs, encoding=FixedPoint(32, 0, 1e5), max_clients=CLIENTS, **options)


class AddingServer(LyingServer):
    """Adds an offset of a norm of `times` n `l2_bound` to all dense values alike."""

    times = 0.0

    def _offset(self, wish: Any, count: int) -> Whole:
        segment = self.plan.segment("rest")
        each = self.times * count * self.plan.l2_bound / np.sqrt(segment.m)
        offset = np.full(self.plan.dense_values(segment), int(each), dtype=np.int64)
        offset[: -segment.m] = 0  # the weight
        return offset


def moved(plan: Plan, times: float) -> tuple[float, str, tuple[RoundState, RoundState]]:
    """A round with an offset.

    Returns:
        How far the sum moved the model, in units of n `l2_bound`, the code of the error with which
        the round ended, or nothing, and both servers' states.
    """
    first, second = (ServerModel(zeros(plan)) for _ in range(2))
    servers = AddingServer(0, plan=plan, model=first), Server(1, plan=plan, model=second)
    servers[0].times, servers[0].wish, code = times, {}, ""
    begin_round(servers, 1)
    for number in range(CLIENTS):
        client = Client(plan, InProcess(*servers), client_id=number)
        update = random_update(plan, number, 20)
        asked = {"table": update["table"].positions} if plan.max_epochs > 1 else None
        begin = client.continue_session if asked else client.start_round
        with begin(1, indices=asked) as client_round:  # type: ignore[operator]
            client_round.submit(update)
    try:
        finish_round(servers)
    except ProtocolError as error:
        code = error.code
    steps = np.concatenate([value.reshape(-1) for value in second.state.values()])
    norm = float(np.linalg.norm(steps)) * (CLIENTS if plan.lane == "none" else 1)
    return norm / (CLIENTS * BOUND), code, (servers[0].state, servers[1].state)


def beyond_bound() -> AttackResult:
    """An offset far beyond all reports, with the bound on the sum off and on."""
    off, _, _ = moved(plan_of(sum_bound=False), GROSS)
    on, code, states = moved(plan_of(sum_bound=True), GROSS)
    scaled, _, _ = moved(plan_of(sum_bound=True, proofs="none"), GROSS)
    passed, none, _ = moved(plan_of(sum_bound=True), MODERATE)
    halted = code == "sum-beyond-bound" and set(states) == {RoundState.HALTED}
    plan = dataclasses.replace(honest_plan(), l2_bound=1 << 14)
    return AttackResult(
        "an offset beyond all reports",
        off=f"an offset of {GROSS:g} n l2_bound moves the model by {off:.2f} n l2_bound",
        on=f"the task halts: {halted}, the model moves by {on:g}; without proofs by {scaled:.2f}. "
        f"An offset of {MODERATE:g} passes: {not none}, by {passed:.2f}",
        worked_off=off > GROSS - 1,
        worked_on=on > 0 or scaled > 1 or not halted,
        time_ratio=ratio(
            lambda: honest_round(plan),
            lambda: honest_round(dataclasses.replace(plan, sum_bound=True)),
        ),
    )
