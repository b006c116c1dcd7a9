"""Plans restricted to a union of positions: policies choose inside it and lose nothing outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.engine_models import (
    WIDE,
    Recommender,
    engine_plan,
    exact_difference,
    make_batch,
    parameters_of,
    scatter,
    train,
)
from tests.support.engine_rounds import Task, plain_sum, wanted
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.policies import BlockTopK, Fixed, RandomK, Rows, TopK
from torchfsl.engine.residual import Residual
from torchfsl.engine.round import Round
from torchfsl.engine.settings import Settings
from torchfsl.errors import ParameterError
from torchfsl.fsl import union as psu
from torchfsl.submodel.update import RawSegment, quantise

RESTS = [TopK(4), BlockTopK(3, block=4), RandomK(5, block=2, seed=3), Fixed([0, 1, 5, 9], block=2)]
FIXED_ROWS = Fixed({"item.weight": range(1, 40), "user.weight": range(20), "words.weight": [3, 7]})
ROWS = [
    Rows(),
    Rows(top=6),
    Rows(choose=RandomK(8, seed=2)),
    Rows(choose=FIXED_ROWS, untouched="restrict"),
]


def restricted(plan: Any, **unions: Any) -> Any:
    return psu.restrict(plan, unions, session=bytes(16), hash_seed=bytes(32))


@pytest.mark.parametrize("rest", RESTS, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("rows", ROWS, ids=["touched", "top", "random", "fixed"])
def test_what_is_sent_lies_in_the_union_and_the_residual_holds_the_others(
    rows: Rows, rest: Any
) -> None:
    torch.manual_seed(0)
    model = Recommender()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks = Hooks(model, optimizer, Settings(rows=rows, rest=rest, encoding=WIDE))
    plan = engine_plan(hooks)
    unions = {
        "rows4": np.arange(3, 60, 2),
        "rows3": np.arange(0, 40, 3),
        "rest": np.arange(1, 12, 2),
    }
    plan = restricted(plan, **unions)
    residual, total = Residual(), dict.fromkeys(parameters_of(model), 0.0)
    sent_sum = dict(total)
    for number in range(3):
        before = parameters_of(model)
        hooks.begin_round()
        train(model, [optimizer], [make_batch(number)])
        moved = exact_difference(parameters_of(model), before)
        raw = hooks.update(plan, residual=residual, round_number=number)
        for name, union in unions.items():
            assert np.isin(raw[name].indices, union).all()
            assert raw[name].indices.size
        errors = quantise(plan, raw)[1]
        residual.settle(raw, errors)
        decoded = {n: RawSegment(p.indices, p.values - errors[n]) for n, p in raw.items()}
        for name, value in scatter(plan, decoded).items():
            total[name] = total[name] + moved[name]
            sent_sum[name] = sent_sum[name] + value
    left = residual_of(plan, residual)
    held = {t.name for s in plan.segments for t in s.tensors}
    if rows.untouched == "restrict":
        held -= {"item.weight", "user.weight", "words.weight"}  # other rows were put back
    for name in held:
        np.testing.assert_allclose(sent_sum[name] + left[name], total[name], rtol=0, atol=1e-12)


def residual_of(plan: Any, residual: Residual) -> dict[str, np.ndarray]:
    """What the residual owes, as an array for every tensor."""
    raw, cpu = {}, torch.device("cpu")
    for segment in plan.segments:
        if segment.policy == "rows":
            part = residual.rows(segment.name, segment.tau, cpu)
            raw[segment.name] = RawSegment(part.ids.numpy(), part.values.numpy())
        else:
            owed = residual.dense(segment.name, (segment.index_space, segment.tau), cpu)
            raw[segment.name] = RawSegment(np.arange(segment.index_space), owed.numpy())
    return scatter(plan, raw)


def test_without_a_residual_rows_outside_the_union_are_refused() -> None:
    torch.manual_seed(0)
    model = Recommender()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks = Hooks(model, optimizer, Settings(encoding=WIDE))
    plan = restricted(engine_plan(hooks), rows4=[1, 2])
    hooks.begin_round()
    train(model, [optimizer], [make_batch(1)])
    with pytest.raises(ParameterError, match=r"'rows4'.* may send 2 of the public rows.* residual"):
        hooks.update(plan)


@pytest.mark.parametrize("fixed", [False, True])
def test_a_round_on_a_union_fetches_and_sends_only_rows_of_it(fixed: bool) -> None:
    rows = Rows(choose=FIXED_ROWS, untouched="restrict") if fixed else Rows()
    unions = {"rows4": np.arange(1, 65), "rows3": np.arange(3, 9), "rest": np.arange(20)}
    budget = None if fixed else 40
    task = Task(
        Settings(rows=rows, rest=TopK(9), encoding=WIDE),
        unions=unions,
        retrieve=True,
        rows_per_client=budget,
    )
    link, updates = task.begin(), []
    for number, hooks in enumerate(task.hooks):
        batch = make_batch(number, 3, 9)
        batch["words"] = batch["words"].clamp(max=7) // 4 * 4 + 3  # 3 or 7
        ids = {**wanted(batch), "words": [3, 7, 30, 39]}
        with Round(hooks, task.client(link, number), number=0, rows=None if fixed else ids) as rnd:
            train(hooks.model, hooks.optimizers, [batch])
        assert rnd.rows["words.weight"].tolist() == [3, 7]
        assert not any(v.size for v in rnd.receipt.unmatched.values())
        updates.append(rnd.update)
    sums = plain_sum(task.plan, updates)
    for name, value in task.finish().sums.items():
        np.testing.assert_array_equal(value, sums[name])
        outside = np.setdiff1d(np.arange(len(value)), unions[name])
        assert not value[outside].any()
        assert value.any()
