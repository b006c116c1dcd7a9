"""A client that stops after any round and goes on from a checkpoint is the same, bit for bit."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.engine_models import CASES, Case, engine_plan, make_batch, train
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.policies import BinTop, BlockTopK, RandomK, RestPolicy, Rows, TopK
from torchfsl.engine.settings import Settings
from torchfsl.errors import ParameterError
from torchfsl.fsl.plan.plan import Plan
from torchfsl.submodel.update import Update, quantise


def one_round(hooks: Hooks, plan: Plan, number: int) -> Update:
    hooks.begin_round()
    train(hooks.model, hooks.optimizers, [make_batch(2 * number), make_batch(2 * number + 1)])
    raw = hooks.update(plan, residual=hooks.residual, round_number=hooks.rounds)
    update, errors, _ = quantise(plan, raw)
    lost = {n: part.indices[:1] for n, part in update.items() if part.indices is not None}
    hooks.residual.settle(raw, errors, lost)
    return update


@pytest.mark.parametrize(
    ("rows", "rest"),
    [
        (Rows(), TopK(0.1)),
        (Rows(top=4), BlockTopK(3, block=4)),
        (Rows(choose=RandomK(9)), RandomK(5)),
        (Rows(budget=6), TopK(3)),
        (Rows(), BinTop(7)),
    ],
    ids=["touched", "top", "random", "budget", "bins"],
)
@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.name in ("Adam", "SGD momentum", "SparseAdam")],
    ids=lambda c: c.name.replace(" ", "-"),
)
def test_a_resumed_client_sends_the_same_updates(case: Case, rows: Rows, rest: RestPolicy) -> None:
    model, optimizers = case.build()
    hooks = Hooks(model, optimizers, Settings(rows=rows, rest=rest))
    plan = engine_plan(hooks, None if rows != Rows() else 8)
    saved, updates = io.BytesIO(), []
    for number in range(4):
        if number == 2:
            state: dict[str, Any] = {
                "model": model.state_dict(),
                "optimizers": [o.state_dict() for o in optimizers],
                "hooks": hooks.state_dict(),
            }
            torch.save(state, saved)
        updates.append(one_round(hooks, plan, number))
    saved.seek(0)
    state = torch.load(saved, weights_only=True)
    model, optimizers = case.build(seed=9)
    hooks = Hooks(model, optimizers, Settings(rows=rows, rest=rest))
    model.load_state_dict(state["model"])
    for optimizer, one in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(one)
    hooks.load_state_dict(state["hooks"])
    for number in (2, 3):
        again = one_round(hooks, plan, number)
        for name, part in again.items():
            np.testing.assert_array_equal(part.values, updates[number][name].values)
            if part.indices is not None:
                np.testing.assert_array_equal(part.indices, updates[number][name].indices)


def test_a_state_of_something_else_is_refused() -> None:
    model, optimizers = CASES[0].build()
    hooks = Hooks(model, optimizers)
    with pytest.raises(ParameterError, match="state_dict"):
        hooks.load_state_dict({"rounds": 1})
