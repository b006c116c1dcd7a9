"""Rows that a client does not hold: losses over whole tables, lookups, narrow tables."""

# ruff: noqa: PT012, SIM117 - rounds are context managers around several statements

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.engine_models import start_afresh
from tests.support.engine_rounds import Task, keep_updates, plain_sum
from tests.support.engine_setup import plan_of
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.policies import Rows
from torchfsl.engine.round import Round
from torchfsl.engine.settings import Settings
from torchfsl.errors import ParameterError

ITEMS = 60
WIDE = FixedPoint(ring_bits=64, frac_bits=32, clip=16.0)
Optimize = Callable[[nn.Module], torch.optim.Optimizer]


class Wide(nn.Module):
    """A factorisation machine: rows of width 4 and 1 of one vocabulary, and L2 over all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.factors, self.linear = nn.Embedding(ITEMS, 4), nn.Embedding(ITEMS, 1)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        v = self.factors(ids)
        pairs = (v.sum(1) ** 2 - (v**2).sum(1)).sum(1) / 2
        return self.bias + self.linear(ids).sum((1, 2)) + pairs


def batch_of(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(client)
    return torch.randint(0, ITEMS, (8, 3), generator=g), torch.randn(8, generator=g)


def rows_of(client: int) -> dict[str, torch.Tensor]:
    more = torch.tensor([client, client + 1])  # retrieved, though no batch looks them up
    ids = torch.cat([batch_of(client)[0].flatten(), more])
    return {"factors": ids, "linear": ids}


def fit(
    model: Wide, optimizer: Any, client: int, held: torch.Tensor | None = None, steps: int = 3
) -> None:
    """L2 over whole tables, or over the rows `held` alone."""
    ids, label = batch_of(client)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(ids), label)
        for table in (model.factors, model.linear):
            weight = table.weight if held is None else table.weight[held]
            loss = loss + 0.05 * torch.sum(torch.square(weight))
        loss.backward()
        optimizer.step()


def adagrad(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(model.parameters(), lr=0.1)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def expected_change(task: Task, client: int, held: torch.Tensor, optimize: Optimize) -> Any:
    """By tensor, what a client with the whole model and L2 over `held` alone arrives at."""
    model = Wide()
    model.load_state_dict({n: torch.from_numpy(v.copy()) for n, v in task.state.items()})
    start = copy.deepcopy(model.state_dict())
    fit(model, optimize(model), client, held)
    return {n: p.detach().double() - start[n].double() for n, p in model.named_parameters()}


@pytest.mark.parametrize("optimize", [adagrad, sgd])
@pytest.mark.parametrize("above", ["keep", "dense"])
def test_a_regulariser_over_whole_tables_covers_the_retrieved_rows_exactly(
    optimize: Optimize, above: str
) -> None:
    task = Task(
        Settings(rows=Rows(absent="zero", error_feedback=False), encoding=WIDE),
        3,
        build=Wide,
        optimize=optimize,
        rows_per_client=26,
        above_break_even=above,
    )
    for _ in range(3):
        link, updates = task.begin(), []
        for number, hooks in enumerate(task.hooks):
            start_afresh(hooks.optimizers[0])
            held = torch.unique(rows_of(number)["factors"])
            expected = expected_change(task, number, held, optimize)
            kept = keep_updates(hooks)
            with Round(hooks, task.client(link, number), rows=rows_of(number)) as r:
                fit(hooks.model, hooks.optimizers[0], number)
            (raw,) = kept
            factors, linear = raw["rows4"], raw["rows1"]
            if above == "keep":
                assert factors.positions.tolist() == held.tolist()
                np.testing.assert_array_equal(factors.values, expected["factors.weight"][held])
                np.testing.assert_array_equal(linear.values, expected["linear.weight"][held])
            updates.append(r.update)
            assert int(torch.isnan(hooks.model.factors.weight).any(1).sum()) == (
                ITEMS - len(held) if above == "keep" else 0
            )
        opened = task.finish()
        for name, total in plain_sum(task.plan, updates).items():
            np.testing.assert_array_equal(opened.sums[name].reshape(total.shape), total)


def fit_one_step(hooks: Hooks) -> None:
    ids, label = batch_of(0)
    hooks.optimizers[0].zero_grad()
    nn.functional.mse_loss(hooks.model(ids), label).backward()
    hooks.optimizers[0].step()


def one(rows: Rows, **options: Any) -> tuple[Task, Hooks, Any]:
    task = Task(Settings(rows=rows), 2, build=Wide, rows_per_client=26, **options)
    hooks = task.hooks[0]
    return task, hooks, Round(hooks, task.client(task.begin(), 0), rows=rows_of(0))


def test_a_regulariser_over_rows_that_are_nan_is_named_at_the_first_step() -> None:
    _, hooks, round_ = one(Rows())
    with pytest.raises(
        ParameterError, match=r"factors\.weight: the loss has a grad.*absent='zero'"
    ) as info:
        with round_:
            fit(hooks.model, hooks.optimizers[0], 0)
    assert "26 of 60 rows" not in str(info.value)
    assert not any(t.isnan().any() for s in hooks.optimizers[0].state.values() for t in s.values())


def softmax(model: Wide, optimizer: Any, client: int) -> None:
    ids, _ = batch_of(client)
    optimizer.zero_grad()
    query = model.factors(ids[:, 0])
    nn.functional.cross_entropy(query @ model.factors.weight.T, ids[:, 1]).backward()
    optimizer.step()


@pytest.mark.parametrize("absent", ["nan", "zero"])
def test_a_softmax_over_rows_that_are_not_there_is_refused(absent: Any) -> None:
    _, hooks, round_ = one(Rows(absent=absent))
    with pytest.raises(ParameterError, match="softmax over all rows needs the whole table"):
        with round_:
            softmax(hooks.model, hooks.optimizers[0], 0)


def test_a_softmax_after_a_harmless_first_step_is_refused_too() -> None:
    _, hooks, round_ = one(Rows(absent="zero"))
    with pytest.raises(ParameterError, match="softmax over all rows needs the whole table"):
        with round_:
            fit(hooks.model, hooks.optimizers[0], 0)
            softmax(hooks.model, hooks.optimizers[0], 0)


def test_nan_in_the_state_of_rows_that_were_absent_does_not_outlive_the_round() -> None:
    task = Task(None, 1, build=Wide, rows_per_client=26, min_clients=1)
    hooks = task.hooks[0]
    model, optimizer = hooks.model, hooks.optimizers[0]
    for client in (0, 5):
        ids, label = batch_of(client)
        rows = {"factors": ids, "linear": ids}
        with Round(hooks, task.client(task.begin(), 0), rows=rows):
            for l2 in (0.0, 0.05):  # the check looks at the first step alone
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(ids), label)
                if l2:
                    loss = loss + l2 * model.factors.weight.square().sum()
                loss.backward()
                optimizer.step()
        if client == 0:
            assert optimizer.state[model.factors.weight]["sum"].isnan().any()
        task.finish()
        assert np.isfinite(task.state["factors.weight"]).all()


@pytest.mark.parametrize("absent", ["nan", "zero"])
@pytest.mark.parametrize("grad", [True, False])
def test_a_lookup_of_a_row_that_was_not_retrieved_is_refused_where_it_happens(
    absent: Any, grad: bool
) -> None:
    _, hooks, round_ = one(Rows(absent=absent))
    missing = [i for i in range(ITEMS) if i not in rows_of(0)["factors"].tolist()]
    reached = False
    with pytest.raises(ParameterError) as info:
        with round_ as rnd, torch.set_grad_enabled(grad):
            hooks.model(torch.tensor([missing[:3]]))
            reached = True
    assert not reached
    some = ", ".join(map(str, missing[:3]))
    assert f"factors.weight: the model looked up 3 rows ({some}) that are not among the" in str(
        info.value
    )
    held = len(rnd.rows["factors.weight"])
    assert any(f"{held} of 60 rows of factors.weight" in n for n in info.value.__notes__)
    assert any("rows_per_client" in n and "26" in n for n in info.value.__notes__)


def test_a_budget_below_what_rows_names_is_said_with_both_numbers() -> None:
    task = Task(None, 2, build=Wide, rows_per_client=5)
    hooks, named = task.hooks[0], len(torch.unique(rows_of(0)["factors"]))
    assert named > 5
    with pytest.raises(ParameterError) as info:
        with Round(hooks, task.client(task.begin(), 0), rows=rows_of(0)):
            raise AssertionError("the block must not run")
    assert (
        f"this client uses {named} rows of factors.weight (segment 'rows4'), and the "
        "plan's rows_per_client is 5: train on fewer batches, or make a plan with "
        f"rows_per_client={named}, which fits it (fed.suggest_rows fits all)"
    ) == str(info.value)


def test_a_lookup_of_an_absent_row_between_rounds_warns_until_the_rows_are_there() -> None:
    task, hooks, round_ = one(Rows())
    with round_:
        fit_one_step(hooks)
    present = batch_of(0)[0]
    absent = torch.tensor([[i for i in range(ITEMS) if i not in rows_of(0)["factors"].tolist()]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hooks.model(present)
        hooks.rows_of([(absent,)])
    with pytest.warns(
        UserWarning, match=r"factors\.weight: outside a round the model looked up rows"
    ):
        assert hooks.model(absent).isnan().all()
    hooks.complete(task.state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not hooks.model(absent).isnan().any()


def test_the_warning_of_an_incomplete_state_dict_is_the_same_whatever_is_missing() -> None:
    task, hooks, round_ = one(Rows(), min_clients=1)
    with round_:
        fit_one_step(hooks)
    said = []
    for _ in range(2):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            hooks.model.state_dict()
        said.append([str(w.message) for w in heard])
        task.finish()
        link = task.begin()
        rows = {"factors": torch.tensor([1, 2]), "linear": torch.tensor([3])}
        with Round(hooks, task.client(link, 0), rows=rows):
            pass
    assert said[0] == said[1]
    assert "this state_dict has NaN in the other rows" in said[0][0]


def test_user_code_that_stumbles_over_nan_hears_which_rows_are_there() -> None:
    _, hooks, round_ = one(Rows())
    with pytest.raises(ValueError, match="loss is NaN") as info:
        with round_:
            loss = hooks.model.factors.weight.square().sum()
            if loss.isnan():
                raise ValueError("loss is NaN")
    assert "rows of factors.weight" in info.value.__notes__[0]
    _, hooks, round_ = one(Rows())
    with pytest.raises(ValueError, match="no such file") as other:
        with round_:
            raise ValueError("no such file")
    assert not any("rows of" in note for note in other.value.__notes__)


def test_the_default_for_narrow_tables_names_the_one_argument_that_helps() -> None:
    model = Wide()
    hooks = Hooks(model, adagrad(model))
    with pytest.raises(
        ParameterError, match=r"'rows\d' \(\w+\.weight\).*pass above_break_even='dense'"
    ):
        plan_of(hooks, max_clients=3, rows_per_client=26)
    plan = plan_of(hooks, max_clients=3, rows_per_client=26, above_break_even="dense")
    assert {s.name: s.is_dense for s in plan.segments}["rows1"]
