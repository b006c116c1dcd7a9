"""Adam that moves touched rows alone: torch's SparseAdam, and the rows it leaves alone."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.submodel.test_server_model import PLAN, changes_of, opened_of
from tests.support.federation import make_plan, make_segment, make_state
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.optimizer_settings import OptimizerSettings
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.server_optimizers import ServerAdam, ServerLazyAdam

TABLE = make_plan(
    make_segment("t", "rows", (9, 3), (4, 3), k_max=4, tau=3, dtype="float64"),
    make_segment("b", "dense", (5,), dtype="float64"),
    encoding=FixedPoint(32, 10, 4.0),
)
NAMES = [tensor.name for segment in TABLE.segments for tensor in segment.tensors]
BETAS, EPS = (0.8, 0.99), 1e-12


def sparse_sums(seed: int, rows: list[int]) -> Opened:
    """A round in which only these rows of the tables' 13 were moved, and all of the bias."""
    opened = opened_of(TABLE, seed)
    for position in set(range(13)) - set(rows):
        opened.sums["t"][position] = 0
    return opened


def test_touched_rows_step_as_torchs_sparse_adam_and_others_stay_bit_for_bit() -> None:
    state = make_state(TABLE)
    model = ServerModel(state, ServerLazyAdam(0.1, betas=BETAS, eps=EPS), source="gradient")
    tables = [torch.tensor(state[name], requires_grad=True) for name in NAMES[:2]]
    theirs = torch.optim.SparseAdam(tables, lr=0.1, betas=BETAS, eps=EPS)
    for seed, rows in enumerate([[0, 4, 10], [4, 12], [], [1, 4, 8, 9]]):
        before = {name: value.copy() for name, value in model.state.items()}
        moments = model.optimizer.state()
        opened = sparse_sums(seed, rows)
        model.apply(TABLE, opened)
        for table, name, span in zip(tables, NAMES[:2], (range(9), range(9, 13)), strict=True):
            here = [row - span.start for row in rows if row in span]
            flat = np.array(changes_of(TABLE, opened)[name]).reshape(-1, 3)
            grad = torch.sparse_coo_tensor([here], flat[here], table.shape, check_invariants=True)
            table.grad = grad.coalesce()
            others = np.setdiff1d(np.arange(len(span)), here)
            assert model.state[name][others].tobytes() == before[name][others].tobytes()
            for kind in ("first", "second") if seed else ():
                was = moments.get(f"{kind}/{name}", np.zeros(3 * len(span))).reshape(-1, 3)
                now = model.optimizer.state().get(f"{kind}/{name}", was).reshape(-1, 3)
                assert now[others].tobytes() == was[others].tobytes()
        theirs.step()
        for table, name in zip(tables, NAMES[:2], strict=True):
            np.testing.assert_allclose(model.state[name], table.detach().numpy(), rtol=1e-9)


def test_where_every_row_moves_it_is_adam_bit_for_bit() -> None:
    lazy, adam = (
        ServerModel(make_state(PLAN), kind(0.05, betas=BETAS, eps=EPS))
        for kind in (ServerLazyAdam, ServerAdam)
    )
    for seed in range(4):
        opened = opened_of(PLAN, seed)
        assert all(sums.any(axis=1).all() for sums in opened.sums.values())
        lazy.apply(PLAN, opened)
        adam.apply(PLAN, opened)
        assert lazy.digest() == adam.digest()


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_under_a_count_lane_a_row_moves_that_somebody_sent(reduce: Any) -> None:
    plan = make_plan(*TABLE.segments, encoding=TABLE.encoding, lane="count")
    model = ServerModel(make_state(plan), ServerLazyAdam(0.1), reduce=reduce)
    first, second = sparse_sums(0, [2, 5]), sparse_sums(1, [])
    for opened, counts in ((first, {2: 3, 5: 1}), (second, {5: 2})):
        lane = np.zeros(13, dtype=np.int64)
        lane[list(counts)] = list(counts.values())
        before = model.state[NAMES[0]].copy()
        model.apply(plan, dataclasses.replace(opened, lanes={"t": lane}))
        changed = np.flatnonzero((model.state[NAMES[0]] != before).any(axis=1))
        assert changed.tolist() == list(counts)  # in round 2 row 5 goes on by its momentum


def test_rates_are_by_tensor() -> None:
    opened = sparse_sums(3, [0, 1, 9, 10])
    steps = {}
    for rates in ({}, {NAMES[0]: 0.3}):
        state = make_state(TABLE)
        model = ServerModel(state, ServerLazyAdam(0.1, rates=rates))
        model.apply(TABLE, opened)
        steps[len(rates)] = [model.state[name] - state[name] for name in NAMES]
    np.testing.assert_allclose(steps[1][0], 3 * steps[0][0], rtol=1e-6)
    assert steps[1][1].tobytes() == steps[0][1].tobytes()
    assert steps[1][2].tobytes() == steps[0][2].tobytes()


def test_only_touched_rows_are_computed() -> None:
    asked: list[tuple[str, list[int]]] = []

    class Watched(ServerLazyAdam):
        def step_rows(self, name: str, rows: Any, *arguments: Any) -> None:
            asked.append((name, rows.tolist()))
            super().step_rows(name, rows, *arguments)

    ServerModel(make_state(TABLE), Watched()).apply(TABLE, sparse_sums(0, [3, 7]))
    assert asked == [(NAMES[0], [3, 7]), (NAMES[2], [0, 1, 2, 3, 4])]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rates": {"w": math.nan}}, "rate is nan"),
        ({"rates": {"w": "fast"}}, "rate is 'fast'"),
        ({"rates": [0.1]}, "expected rates"),
        ({"rates": {3: 0.1}}, "expected rates"),
        ({"beta1": 1.0}, r"both in \[0, 1\)"),
        ({"momentum": 0.9}, "the server optimizer is lazy-adam: leave out both"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        OptimizerSettings("lazy-adam", **settings)
    with pytest.raises(ParameterError, match="rates is a setting of lazy-adam"):
        OptimizerSettings("adam", rates={"w": 0.1})
