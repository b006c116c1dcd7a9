"""What a client loads into its model, names in `rows=`, and says of a round that failed."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.engine_models import make_batch
from tests.support.engine_rounds import Task, wanted
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.inventory import Table
from torchfsl.engine.lookups import by_table
from torchfsl.engine.round import Round
from torchfsl.errors import ParameterError, ProtocolError, RejectedSubmission
from torchfsl.submodel.plain import Plain
from torchfsl.submodel.server_model import ServerModel


def changed(state: dict[str, Any], change: Any) -> dict[str, Any]:
    return {name: change(value) for name, value in state.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (ServerModel, r"is of type ServerModel: pass its \.state"),
        (lambda _: ServerModel, r"is the class ServerModel: pass ServerModel\.state"),
        (lambda _: None, r"is None: pass ServerModel\.state"),
        (lambda _: nn.Linear(1, 1), r"is of type Linear: pass ServerModel\.state"),
        (lambda s: changed(s, lambda v: v.astype(np.int32)), "has dtype int32, expected a float"),
        (lambda s: changed(s, lambda v: v > 0), "has dtype bool, expected a float"),
        (lambda s: changed(s, lambda v: v + 0j), "has dtype complex64, expected a float"),
        (lambda s: changed(s, lambda v: v * np.nan), r"holds \d+ values that are NaN or inf"),
        (lambda s: changed(s, lambda v: v + np.inf), r"holds \d+ values that are NaN or inf"),
    ],
)
def test_what_is_no_model_of_the_servers_is_refused_and_changes_nothing(
    change: Any, message: str
) -> None:
    task = Task()
    hooks = task.hooks[0]
    before = copy.deepcopy(hooks.model.state_dict())
    for take in (hooks.load, hooks.complete):
        with pytest.raises(ParameterError, match=message):
            take(change(task.state))
    assert all(torch.equal(v, before[name]) for name, v in hooks.model.state_dict().items())


def test_a_part_of_a_model_is_refused_and_names_what_is_missing() -> None:
    task = Task()
    hooks = task.hooks[0]
    state = dict(task.state)
    del state["top.weight"]
    with pytest.raises(
        ParameterError, match=rf"lacks top\.weight \(1 of {len(task.state)} tensors"
    ):
        hooks.load(state)
    with pytest.raises(
        ParameterError, match=r"call model\.weight\.copy_\(values\) under torch\.no_grad\(\)"
    ):
        hooks.load({"top.weight": task.state["top.weight"]})


def test_tensors_and_floats_of_another_width_are_loaded() -> None:
    task = Task()
    hooks = task.hooks[0]
    hooks.load(changed(task.state, lambda v: nn.Parameter(torch.from_numpy(v + 1.0))))
    hooks.load(changed(task.state, lambda v: v.astype(np.float64)))
    for name, value in hooks.server_state().items():
        np.testing.assert_array_equal(value, task.state[name])
    hooks.load(changed(task.state, lambda v: torch.from_numpy(v).bfloat16()))


def test_an_infinite_model_is_none_to_start_servers_from() -> None:
    task = Task()
    hooks = task.hooks[0]
    with torch.no_grad():
        hooks.model.top.weight[0, 0] = float("inf")
    with pytest.raises(ParameterError, match=r"top\.weight holds infinite values"):
        hooks.server_state()


@pytest.mark.parametrize("convert", ["half", "double"])
def test_a_converted_model_is_told_both_dtypes(convert: str) -> None:
    task = Task()
    link, hooks = task.begin(), task.hooks[0]
    getattr(hooks.model, convert)()
    now = {"half": "float16", "double": "float64"}[convert]
    told = rf"\(\w+\.weight is {now}\(.*\) here and float32\(.*\) in the plan\)"
    with pytest.raises(ParameterError, match=rf"{told}.*make a new torchfsl\.Federated"):
        Round(hooks, task.client(link, 0), rows=wanted(make_batch(1)))


# --- rows= ---------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Embedding(30, 4), nn.Embedding(30, 4)
        self.b.weight = self.a.weight


def tables_of(model: nn.Module) -> list[Table]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Hooks(model, optimizer).inventory.all_tables


def test_a_tied_table_is_named_by_its_first_name_alone() -> None:
    tables = tables_of(Tied())
    for name in ("b", "b.weight"):
        with pytest.raises(ParameterError, match=rf"rows= has '{name}', .* with 'a\.weight': pass"):
            by_table({name: [1]}, tables, [])
    with pytest.raises(
        ParameterError, match=r"has 'c', which is not a table: choose from \['a\.weight'\]"
    ):
        by_table({"c": [1]}, tables, [])


def test_ids_in_several_arrays_count_one_after_the_other() -> None:
    tables = tables_of(Tied())
    for ids in (
        [torch.tensor([3, 1]), torch.tensor([[2]])],
        (np.array([3], dtype=np.int32), torch.tensor([1, 2])),
        [torch.tensor(3), torch.tensor(1), torch.tensor(2)],
        iter([3, 1, 2]),
    ):
        assert by_table({"a": ids}, tables, [])["a.weight"].tolist() == [3, 1, 2]
    assert by_table({"a": []}, tables, [])["a.weight"].tolist() == []


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (7, "is of type int: pass a list"),
        (None, "is None: pass a list"),
        ("7", "is of type str: pass a list"),
        (["7"], "expects integers"),
        ([[7], [7, 8]], "expects integers"),
        ([torch.tensor([7]), [8]], "expects integers"),
        ([torch.tensor([7]), torch.tensor([0.5])], r"expects integers, got torch\.float32"),
        (torch.tensor([7 + 1j]), r"expects integers, got torch\.complex64"),
        (np.array([7 + 1j]), r"expects integers, got torch\.complex128"),
        (np.array(["7"]), "expects integers"),
    ],
)
def test_ids_of_another_kind_are_refused_without_being_told(ids: Any, message: str) -> None:
    tables = tables_of(Tied())
    with pytest.raises(ParameterError, match=message) as info:
        by_table({"a": ids}, tables, [])
    assert "7" not in str(info.value)


# --- a block that failed -------------------------------------------------------------------------


def test_a_failed_block_is_told_that_a_report_of_dummies_went_out() -> None:
    task = Task()
    link, hooks, rows = task.begin(), task.hooks[0], wanted(make_batch(1))
    client = task.client(link, 0)
    with (
        pytest.raises(ZeroDivisionError) as info,
        Round(hooks, client, rows=rows),
    ):
        _ = 1 / 0
    (note,) = info.value.__notes__
    assert "an all-zero report for client 0" in note
    assert "participated in round 0 and can participate again in the next round" in note
    assert "A second fed.round() in this round removes the report." in note
    with (
        pytest.raises(RejectedSubmission, match="let this one participate in the next round"),
        Round(hooks, client, rows=rows),
    ):
        raise AssertionError("the block must not run")


def test_a_failed_block_of_a_round_without_servers_has_no_such_note() -> None:
    task = Task()
    plain = Plain(task.plan, ServerModel(task.state))
    plain.open_round(0, [0])
    with (
        pytest.raises(ZeroDivisionError) as info,
        Round(task.hooks[0], plain.participant(0), rows=wanted(make_batch(1)), number=0),
    ):
        _ = 1 / 0
    assert not getattr(info.value, "__notes__", [])


def test_hooks_removed_inside_a_round_are_told_when_to_remove_them() -> None:
    task = Task()
    link, hooks = task.begin(), task.hooks[0]
    with (
        pytest.raises(ProtocolError, match=r"detach\(\) only after the round"),
        Round(hooks, task.client(link, 0), rows=wanted(make_batch(1))),
    ):
        hooks.remove()
