"""For every optimizer: exactly which rows move, and what each policy makes of them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from tests.support.engine_models import (
    CASES,
    Case,
    clone_training,
    engine_plan,
    exact_difference,
    loss_of,
    make_batch,
    parameters_of,
    scatter,
    train,
)
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.policies import BlockTopK, Dense, RestPolicy, Rows, TopK
from torchfsl.engine.settings import Settings
from torchfsl.errors import ParameterError

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

ROUNDS = [
    [make_batch(1, 0, 12), make_batch(2, 4, 20)],
    [make_batch(3, 15, 25), make_batch(4, 15, 25)],
    [make_batch(5, 2, 9)],
]
TABLES = ("item.weight", "user.weight", "words.weight")

each = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name.replace(" ", "-"))
without_decay = pytest.mark.parametrize(
    "case", [c for c in CASES if not c.moves_all], ids=lambda c: c.name.replace(" ", "-")
)
with_decay = pytest.mark.parametrize(
    "case", [c for c in CASES if c.moves_all], ids=lambda c: c.name.replace(" ", "-")
)


def touched(batches: list[dict[str, torch.Tensor]]) -> dict[str, set[int]]:
    item = {int(i) for b in batches for k in ("item", "history") for i in b[k].flatten()} - {0}
    user = {int(i) for b in batches for i in b["user"].flatten()}
    words = {int(i) for b in batches for i in b["words"].flatten()}
    return dict(zip(TABLES, (item, user, words), strict=True))


def gradient_of(parameter: torch.Tensor) -> np.ndarray:
    assert parameter.grad is not None
    gradient = parameter.grad
    return (gradient.coalesce().to_dense() if gradient.is_sparse else gradient).double().numpy()


@without_decay
def test_the_update_is_the_difference_of_all_parameters_over_several_rounds(case: Case) -> None:
    model, optimizers = case.build()
    other, copies = clone_training(model, optimizers, case)
    hooks = Hooks(model, optimizers)
    plan = engine_plan(hooks)
    for batches in ROUNDS:
        before = parameters_of(other)
        train(other, copies, batches)
        hooks.begin_round()
        train(model, optimizers, batches)
        raw = hooks.update(plan)
        after = parameters_of(model)
        for name, value in parameters_of(other).items():
            assert torch.equal(after[name], value), "hooks must not change training"
        sent, expected = scatter(plan, raw), exact_difference(after, before)
        for name in expected:
            np.testing.assert_array_equal(sent[name], expected[name], err_msg=name)


@without_decay
def test_with_a_fresh_optimizer_the_rows_that_move_are_rows_touched(case: Case) -> None:
    model, optimizers = case.build()
    hooks = Hooks(model, optimizers)
    before = parameters_of(model)
    hooks.begin_round()
    train(model, optimizers, ROUNDS[0])
    for name, rows in touched(ROUNDS[0]).items():
        moved = (parameters_of(model)[name] != before[name]).any(1).nonzero().flatten().tolist()
        assert set(moved) <= rows
    raw = hooks.update(engine_plan(hooks))
    ids = touched(ROUNDS[0])
    expected = sorted(ids["item.weight"]) + sorted(50 + i for i in ids["user.weight"])
    assert raw["rows4"].indices is not None
    assert raw["rows4"].indices.tolist() == expected


@with_decay
def test_an_optimizer_that_moves_every_row_is_rejected_with_a_remedy(case: Case) -> None:
    model, optimizers = case.build()
    with pytest.raises(ParameterError, match=r"item\.weight: .*weight_decay=.*restrict"):
        Hooks(model, optimizers)
    assert not model.item._forward_pre_hooks


@each
def test_restrict_sends_touched_rows_and_puts_the_others_back(case: Case) -> None:
    model, optimizers = case.build()
    hooks = Hooks(model, optimizers, Settings(rows=Rows(untouched="restrict")))
    plan = engine_plan(hooks)
    for batches in ROUNDS:
        other, copies = clone_training(model, optimizers, case)
        train(other, copies, batches)
        before = parameters_of(model)
        hooks.begin_round()
        train(model, optimizers, batches)
        sent = scatter(plan, hooks.update(plan))
        after, free = parameters_of(model), parameters_of(other)
        rows = touched(batches)
        for name in after:
            assert np.array_equal(sent[name], exact_difference(after, before)[name]), name
            if name in rows:
                ids = sorted(rows[name])
                assert torch.equal(after[name][ids], free[name][ids])
                others = [i for i in range(len(after[name])) if i not in rows[name]]
                assert torch.equal(after[name][others], before[name][others])
            else:
                assert torch.equal(after[name], free[name])


@each
def test_touched_sends_touched_rows_and_leaves_the_others_alone(case: Case) -> None:
    model, optimizers = case.build()
    hooks = Hooks(model, optimizers, Settings(rows=Rows(untouched="touched")))
    plan = engine_plan(hooks)
    for batches in ROUNDS:
        other, copies = clone_training(model, optimizers, case)
        train(other, copies, batches)
        before = parameters_of(model)
        hooks.begin_round()
        train(model, optimizers, batches)
        sent = scatter(plan, hooks.update(plan))
        after, free = parameters_of(model), parameters_of(other)
        expected = exact_difference(after, before)
        for name in after:
            assert torch.equal(after[name], free[name])
            if name in TABLES:
                others = [i for i in range(len(after[name])) if i not in touched(batches)[name]]
                expected[name][others] = 0
            np.testing.assert_array_equal(sent[name], expected[name], err_msg=name)


@each
@pytest.mark.parametrize("policy", ["reject", "restrict"])
def test_gradient_source_sends_the_gradient_and_changes_nothing(case: Case, policy: str) -> None:
    model, optimizers = case.build()
    other, _ = clone_training(model, optimizers, case)
    settings = Settings(rows=Rows(untouched=policy), source="gradient")  # type: ignore[arg-type]
    if case.needs_delta:
        with pytest.raises(ParameterError, match=r"weight_decay=|maximize="):
            Hooks(model, optimizers, settings)
        return
    hooks = Hooks(model, optimizers, settings)
    plan = engine_plan(hooks)
    before = copy.deepcopy(model.state_dict())
    states = copy.deepcopy([o.state_dict()["state"] for o in optimizers])
    hooks.begin_round()
    train(model, optimizers, ROUNDS[0][:1])
    sent = scatter(plan, hooks.update(plan))
    loss_of(other, ROUNDS[0][0]).backward()
    for name, p in other.named_parameters():
        np.testing.assert_array_equal(sent[name], gradient_of(p), err_msg=name)
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name]), "the step must not move anything"
        assert p.grad is not None, "gradients are given back"
    for optimizer, state in zip(optimizers, states, strict=True):
        torch.testing.assert_close(optimizer.state_dict()["state"], state, rtol=0, atol=0)


@each
@pytest.mark.parametrize("rest", [Dense(), TopK(0.3), BlockTopK(0.3, block=5)], ids=repr)
@pytest.mark.parametrize("source", ["delta", "gradient"])
def test_dense_top_k_and_block_segments_accept_every_optimizer(
    case: Case, rest: RestPolicy, source: str
) -> None:
    model, optimizers = case.build()
    other, copies = clone_training(model, optimizers, case)
    settings = Settings(rows=None, rest=rest, source=source)  # type: ignore[arg-type]
    if source == "gradient" and case.needs_delta:
        with pytest.raises(ParameterError, match=r"weight_decay=.*'delta'|maximize=.*negate"):
            Hooks(model, optimizers, settings)
        return
    hooks = Hooks(model, optimizers, settings)
    plan = engine_plan(hooks, None)
    before = parameters_of(model)
    hooks.begin_round()
    train(model, optimizers, ROUNDS[0][:1])
    sent = scatter(plan, hooks.update(plan, residual=hooks.residual))
    if source == "gradient":
        loss_of(other, ROUNDS[0][0]).backward()
        full = {n: gradient_of(p) for n, p in other.named_parameters()}
    else:
        train(other, copies, ROUNDS[0][:1])
        full = exact_difference(parameters_of(other), before)
    for name, value in full.items():
        if isinstance(rest, Dense):
            np.testing.assert_array_equal(sent[name], value)
        else:
            assert np.all((sent[name] == value) | (sent[name] == 0))
    assert any(np.any(v) for v in sent.values())


def test_lbfgs_is_rejected_with_a_remedy() -> None:
    model, _ = CASES[0].build()
    with pytest.raises(ParameterError, match=r"item\.weight and 6 others: LBFGS.*SGD"):
        Hooks(model, torch.optim.LBFGS(model.parameters()))


def test_weight_decay_outside_the_tables_is_fine() -> None:
    model, _ = CASES[0].build()
    tables = [model.item.weight, model.user.weight, model.words.weight]
    rest = [p for p in model.parameters() if all(p is not t for t in tables)]
    groups = [{"params": tables, "weight_decay": 0.0}, {"params": rest, "weight_decay": 0.1}]
    Hooks(model, torch.optim.AdamW(groups, lr=0.01))


def test_a_weight_decay_set_after_attach_is_noticed() -> None:
    model, optimizers = CASES[0].build()
    hooks = Hooks(model, optimizers)
    optimizers[0].param_groups[0]["weight_decay"] = 0.1
    with pytest.raises(ParameterError, match=r"weight_decay=0\.1"):
        hooks.begin_round()
