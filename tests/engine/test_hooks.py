"""Hooks see every lookup and every step, and leave no trace."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.support.engine_models import (
    CASES,
    Recommender,
    engine_plan,
    loss_of,
    make_batch,
    scatter,
    train,
)
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.settings import Settings
from torchfsl.engine.watch.touched import MarkedRows, SlottedRows
from torchfsl.errors import ParameterError, ProtocolError


def attributes(module: nn.Module) -> list[dict[str, Any]]:
    return [
        {k: (dict(v) if isinstance(v, dict) else v) for k, v in m.__dict__.items()}
        for m in module.modules()
    ]


@given(
    st.lists(st.lists(st.integers(0, 19), max_size=12), max_size=6),
    st.integers(-1, 19),
    st.sampled_from([MarkedRows, SlottedRows]),
)
def test_rows_are_saved_when_first_touched(
    batches: list[list[int]], skip: int, kind: type[MarkedRows] | type[SlottedRows]
) -> None:
    table = torch.arange(40.0).reshape(20, 2)
    touched, expected = kind(table), {}
    for _ in range(2):
        touched.clear()
        expected.clear()
        for batch in batches:
            for i in batch:
                if i != skip:
                    expected.setdefault(i, table[i].tolist())
            touched.note(torch.tensor(batch, dtype=torch.int32), skip)
            table += 1
        ids, saved = touched.rows()
        assert ids.tolist() == sorted(expected)
        assert saved.tolist() == [expected[i] for i in sorted(expected)]


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.name in ("SGD", "Adam", "SparseAdam")], ids=lambda c: c.name
)
@pytest.mark.parametrize("source", ["delta", "gradient"])
def test_the_notes_of_accelerators_give_the_same_updates(
    case: Any, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates = []
    for kind in (MarkedRows, SlottedRows):
        monkeypatch.setattr("torchfsl.engine.watch.table.touched_rows", kind)
        model, optimizers = case.build()
        settings = Settings(source=source)  # type: ignore[arg-type]
        hooks = Hooks(model, optimizers, settings)
        plan = engine_plan(hooks)
        for number in range(3):
            hooks.begin_round()
            train(model, optimizers, [make_batch(number), make_batch(number + 5, 5, 15)])
            updates.append(scatter(plan, hooks.update(plan)))
            hooks.restore()
    for one, other in zip(updates[:3], updates[3:], strict=True):
        for name in one:
            assert (one[name] == other[name]).all()


def test_an_id_outside_the_table_is_left_to_the_lookup_to_refuse() -> None:
    model, optimizers = CASES[0].build()
    hooks = Hooks(model, optimizers)
    hooks.begin_round()
    for bad in (-1, 50):
        with pytest.raises(IndexError, match="out of range"):
            model.item(torch.tensor([1, bad]))
    assert hooks.status().saved_rows["item.weight"] == 0


def test_remove_leaves_no_trace() -> None:
    model, optimizers = CASES[0].build()
    before = attributes(model)
    optimizer_before = dict(optimizers[0].__dict__)
    keys = list(model.state_dict())
    hooks = Hooks(model, optimizers)
    assert list(model.state_dict()) == keys
    assert hooks.status().attached
    hooks.begin_round()
    hooks.remove()
    hooks.remove()
    assert not hooks.status().attached
    assert attributes(model) == before
    assert optimizers[0].__dict__ == optimizer_before
    with pytest.raises(ProtocolError, match=r"detach\(\) removed the hooks .*: make a new"):
        hooks.begin_round()


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_copies_of_a_hooked_model_work_without_torchfsl(how: str) -> None:
    model, optimizers = CASES[0].build()
    hooks = Hooks(model, optimizers)
    hooks.begin_round()
    if how == "deepcopy":
        other, others = copy.deepcopy((model, optimizers))
    elif how == "pickle":
        data = pickle.dumps((model, optimizers))
        assert b"torchfsl" not in data
        other, others = pickle.loads(data)  # noqa: S301 - made above
    else:
        file = io.BytesIO()
        torch.save((model, optimizers), file)
        assert b"torchfsl" not in file.getvalue()
        file.seek(0)
        other, others = torch.load(file, weights_only=False)
    train(other, others, [make_batch(1)])
    assert hooks.status().steps == 0
    assert hooks.status().saved_rows["item.weight"] == 0
    hook = next(iter(other.item._forward_pre_hooks.values()))
    assert "torchfsl" not in type(hook).__module__
    train(model, optimizers, [make_batch(1)])
    assert torch.equal(other.item.weight, model.item.weight)
    Hooks(other, others)


def test_two_sets_of_hooks_can_watch_one_model() -> None:
    model, optimizers = CASES[0].build()
    first = Hooks(model, optimizers)
    with pytest.warns(
        UserWarning, match=r"is already in another Federated.*detach\(\) on the Federated"
    ):
        both = [first, Hooks(model, optimizers)]
    for hooks in both:
        hooks.begin_round()
    train(model, optimizers, [make_batch(1)])
    updates = [scatter(p := engine_plan(hooks), hooks.update(p)) for hooks in both]
    for name in updates[0]:
        assert (updates[0][name] == updates[1][name]).all()


@pytest.mark.parametrize("source", ["delta", "gradient"])
@pytest.mark.parametrize("how", ["positional", "keyword"])
@pytest.mark.parametrize(
    "case", [c for c in CASES[::2] if not c.moves_all], ids=lambda c: c.name.replace(" ", "-")
)
def test_a_closure_gives_the_same_update_as_a_plain_step(case: Any, source: str, how: str) -> None:
    updates = []
    for closure in (False, True):
        model, optimizers = case.build()
        settings = Settings(source=source)  # type: ignore[arg-type]
        if source == "gradient" and case.needs_delta:
            with pytest.raises(ParameterError, match=r"maximize=True.*negate the loss"):
                Hooks(model, optimizers, settings)
            return
        hooks = Hooks(model, optimizers, settings)
        plan = engine_plan(hooks)
        hooks.begin_round()
        batch, calls = make_batch(1), []

        def evaluate(model=model, optimizers=optimizers, batch=batch, calls=calls):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            calls.append(1)
            return loss

        if not closure:
            train(model, optimizers, [batch])
        else:
            step = optimizers[0].step
            loss = step(evaluate) if how == "positional" else step(closure=evaluate)
            assert loss.item() > 0
            assert len(calls) == 1
        updates.append(scatter(plan, hooks.update(plan)))
    for name in updates[0]:
        assert (updates[0][name] == updates[1][name]).all()


@pytest.mark.parametrize("how", ["torch.compile", "module.compile", "submodule"])
def test_a_compiled_model_attached_before_its_first_call_works(how: str) -> None:
    torch.compiler.reset()
    model, optimizers = CASES[0].build()
    other, others = CASES[0].build()
    call: Any = model
    if how == "torch.compile":
        call = torch.compile(model, backend="eager")
    elif how == "module.compile":
        model.compile(backend="eager")
    else:
        model.history = torch.compile(model.history, backend="eager")
    keys = list(call.state_dict())
    hooks = Hooks(call, optimizers)
    assert list(call.state_dict()) == keys
    plan = engine_plan(hooks)
    assert {t.name for s in plan.segments for t in s.tensors} == dict(
        other.named_parameters()
    ).keys()
    plain = Hooks(other, others)
    for number in range(2):
        for h in (hooks, plain):
            h.begin_round()
        train(call, optimizers, [make_batch(number), make_batch(number + 5)])
        train(other, others, [make_batch(number), make_batch(number + 5)])
        mine = scatter(plan, hooks.update(plan))
        theirs = scatter(plan, plain.update(plan))
        for name in mine:
            assert ((mine[name] != 0) == (theirs[name] != 0)).all()
            torch.testing.assert_close(mine[name], theirs[name])


@pytest.mark.parametrize("reset", [False, True])
def test_a_model_that_ran_compiled_before_attach_is_caught_and_mended(reset: bool) -> None:
    torch.compiler.reset()
    model, optimizers = CASES[0].build()
    call = torch.compile(model, backend="eager")
    train(call, optimizers, [make_batch(1)])
    hooks = Hooks(call, optimizers)
    plan = engine_plan(hooks)
    if reset:
        torch.compiler.reset()
    hooks.begin_round()
    train(call, optimizers, [make_batch(2)])
    if reset:
        assert any(part.any() for part in scatter(plan, hooks.update(plan)).values())
    else:
        with pytest.raises(ParameterError, match=r"before Federated.*torch\.compiler\.reset"):
            hooks.update(plan)


def test_hooks_do_nothing_between_rounds() -> None:
    model, optimizers = CASES[0].build()
    hooks = Hooks(model, optimizers, Settings(source="gradient"))
    before = model.item.weight.detach().clone()
    train(model, optimizers, [make_batch(1)])
    assert not torch.equal(before, model.item.weight)
    assert hooks.status().saved_rows == {"item.weight": 0, "user.weight": 0, "words.weight": 0}


def test_lookups_without_gradients_touch_nothing() -> None:
    model, optimizers = CASES[0].build()
    hooks = Hooks(model, optimizers)
    hooks.begin_round()
    with torch.no_grad():
        model.eval()(make_batch(1))
    with torch.inference_mode():
        model(make_batch(2))
    assert set(hooks.status().saved_rows.values()) == {0}


def test_max_norm_changes_rows_in_the_forward_pass_and_is_seen() -> None:
    torch.manual_seed(0)
    model = Recommender(max_norm=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks = Hooks(model, optimizer)
    plan = engine_plan(hooks)
    hooks.begin_round()
    before = model.item.weight.detach().clone()
    with torch.no_grad():
        model.item(torch.tensor([40]))
    train(model, [optimizer], [make_batch(1)])
    sent = scatter(plan, hooks.update(plan))
    expected = (model.item.weight.detach().double() - before.double()).numpy()
    assert expected[40].any()
    assert (sent["item.weight"] == expected).all()


def test_activation_checkpointing_is_seen() -> None:
    from torch.utils.checkpoint import checkpoint

    model, optimizers = CASES[0].build()
    hooks = Hooks(model, optimizers)
    plan = engine_plan(hooks)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    hooks.begin_round()
    anchor = torch.zeros(1, requires_grad=True)
    batch = make_batch(1)
    checkpoint(lambda a: model(batch) + a, anchor, use_reentrant=True).sum().backward()
    optimizers[0].step()
    sent = scatter(plan, hooks.update(plan))
    for name, p in model.named_parameters():
        assert (sent[name] == (p.detach().double() - before[name].double()).numpy()).all()
