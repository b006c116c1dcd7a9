"""What a server adds beyond all reports halts the task, in `scripts/attacks/beyond_bound.py`."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from scripts.attacks import steered_sum
from scripts.attacks.beyond_bound import (
    BOUND,
    CLIENTS,
    GROSS,
    MODERATE,
    AddingServer,
    beyond_bound,
    moved,
    plan_of,
)
from scripts.parties import random_update, zeros
from torchfsl.errors import ProtocolError
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.norms import LIED
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.server.states import RoundState
from torchfsl.fsl.transport import InProcess
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.server_optimizers import ServerAdam

NOISE = {"noise_sigma": 40}
TAPS = {"noise_taps": (16, 8, 6), "min_separation": 3, "max_rounds": 9}
KINDS: dict[str, dict[str, Any]] = {
    "values": {},
    "counts": {"lane": "count"},
    "weights": {"lane": "weight", "max_weight": 3},
    "counts first": {"lane": "count", "min_contributors": 2},
    "sessions": {"max_epochs": 3},
    "noise": NOISE,
    "noise and counts": NOISE | {"lane": "count", "lane_sigma": 1},
    "correlated noise": NOISE | TAPS,
    "a bound of the segment": {"l2_bounds": {"rest": BOUND // 2}},
}


def test_the_attack_works_without_the_bound_and_not_with_it() -> None:
    result = beyond_bound()
    assert result.worked_off, result.off
    assert not result.worked_on, result.on
    assert "An offset of 0.8 passes: True, by 0.8" in result.on  # a brake, and no integrity


@pytest.mark.parametrize("kind", KINDS)
def test_beyond_what_was_proven_both_servers_halt_and_apply_nothing(kind: str) -> None:
    plan = plan_of(sum_bound=True, **KINDS[kind])
    assert moved(plan, 4 * GROSS) == (0, "sum-beyond-bound", (RoundState.HALTED,) * 2)
    assert moved(plan, 0)[1:] == ("", (RoundState.IDLE,) * 2)
    old = dataclasses.replace(plan, sum_bound=False)
    assert moved(old, 4 * GROSS)[1] == ""
    assert moved(old, 4 * GROSS)[0] > 2


@pytest.mark.parametrize("kind", KINDS)
def test_between_the_honest_and_the_proven_sum_it_is_scaled_and_the_round_counts(kind: str) -> None:
    plan = plan_of(sum_bound=True, **KINDS[kind])
    times = 9 / 2 if plan.max_weight > 1 else 3 / 2
    norm, code, states = moved(plan, times)
    if "bound" in kind:  # of dense values alone, which no client can send twice: nothing between
        assert (norm, code) == (0, "sum-beyond-bound")
    else:
        assert (code, states) == ("", (RoundState.IDLE,) * 2)
        assert norm < times
    norm, code, _ = moved(dataclasses.replace(plan, proofs="none"), 4 * GROSS)
    assert code == ""
    assert norm <= plan.max_weight + 0.5 * bool(plan.noise_sigma)


def lying_servers(plan: Plan, times: float) -> tuple[AddingServer, Server]:
    first, second = (ServerModel(zeros(plan)) for _ in range(2))
    servers = AddingServer(0, plan=plan, model=first), Server(1, plan=plan, model=second)
    servers[0].times, servers[0].wish = times, {}
    return servers


def test_a_halted_server_takes_no_further_step_and_says_why() -> None:
    plan = plan_of(sum_bound=True)
    servers = lying_servers(plan, GROSS)
    begin_round(servers, 1)
    for number in range(CLIENTS):
        with Client(plan, InProcess(*servers), client_id=number).start_round(1) as client_round:
            client_round.submit(random_update(plan, number, 20))
    with pytest.raises(
        ProtocolError, match=f"{LIED}: the aggregate of 'table', 'rest' has .* times the"
    ):
        finish_round(servers)
    for server in servers:
        server.abandon_round()
        assert server.state is RoundState.HALTED
        with pytest.raises(ProtocolError, match="halted"):
            server.open_round(2)
        with pytest.raises(ProtocolError):
            server.apply(server.model)  # type: ignore[arg-type]


@pytest.mark.parametrize(("adaptive", "ratio"), [(False, 16), (True, 1)])
def test_under_an_adaptive_optimizer_the_bound_is_no_brake(adaptive: bool, ratio: float) -> None:
    plan = plan_of(sum_bound=True, proofs="none")
    segment, steps = plan.segment("rest"), []
    for times in (0.8, 0.05):
        each = int(times * CLIENTS * BOUND / np.sqrt(segment.m))
        sums = {"table": np.zeros((64, 4), np.int64), "rest": np.full((segment.m, 1), each)}
        model = ServerModel(zeros(plan), ServerAdam(0.01) if adaptive else None)
        model.apply(plan, Opened(sums, {}, CLIENTS, CLIENTS, tuple(range(CLIENTS))))
        steps.append(float(np.linalg.norm(model.state["rest"])))
    assert steps[0] / steps[1] == pytest.approx(ratio, rel=0.01)


def test_within_the_bound_steering_takes_many_more_rounds() -> None:
    played = steered_sum.play("bound", neurons=4, seed=0, mean=True)
    assert played.lies >= 4 * 2
    assert not played.refused
    assert not played.noticed
    assert MODERATE == steered_sum.SHARE
