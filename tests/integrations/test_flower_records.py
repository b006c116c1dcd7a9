"""What Messages may hold, what stays at a node, and that folders of others are not used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict

from tests.support.flower_task import build
from torchfsl.engine.residual import SparseRows
from torchfsl.errors import ParameterError
from torchfsl.integrations.flower import memory
from torchfsl.integrations.flower.node import is_private
from torchfsl.integrations.flower.records import Call, mean_metrics, reply_content
from torchfsl.submodel.update import RawSegment

SHAPES = {"rows4": 4, "rest": 1}


@pytest.mark.parametrize(
    "value",
    [np.zeros(3), torch.zeros(3), torch.tensor(1.0), [1.0, 2.0], b"\0" * 8, "text", True, None,
     np.float32(1), ArrayRecord({"a": Array(np.zeros(3))})],
)  # fmt: skip
def test_a_reply_refuses_arrays_and_all_but_numbers(value: Any) -> None:
    with pytest.raises(
        ParameterError,
        match="expected int or float, because the SuperLink reads replies in the clear",
    ):
        reply_content({"loss": value})


def test_a_reply_without_metrics_holds_none() -> None:
    content = reply_content(None)
    assert not any(content.metric_records.values())
    assert not content.array_records


@pytest.mark.parametrize("value", [b"\0" * 8, [1.0, 2.0]])
def test_a_configuration_in_which_an_array_could_hide_is_refused(value: Any) -> None:
    with pytest.raises(ParameterError, match="but torchfsl sends only single values"):
        Call(1, ()).content("config", ConfigRecord({"lr": value}))


def test_a_call_is_read_as_it_was_written() -> None:
    for call in (Call(3, ("https://a:1", "https://b:2")), Call(0, ()), Call.to_evaluate(())):
        assert Call.of(call.content("config", ConfigRecord({"lr": 0.1}))) == call


def record(**metrics: float) -> RecordDict:
    return RecordDict({"metrics": MetricRecord(dict(metrics))})


def test_means_are_weighted_where_all_sent_the_weight_and_plain_elsewhere() -> None:
    both = [record(loss=1.0, n=1), record(loss=4.0, n=3)]
    assert dict(mean_metrics(both, "n")) == {"loss": 3.25, "n": 4.0}
    mixed = [record(loss=1.0, n=1), record(loss=4.0)]
    assert dict(mean_metrics(mixed, "n")) == {"loss": 2.5, "n": 1.0}
    assert dict(mean_metrics([record(loss=1.0, n=0)], "n")) == {"n": 0.0}


def test_a_folder_that_others_may_enter_or_that_is_a_link_is_not_private(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    assert is_private(own)
    own.chmod(0o750)
    assert not is_private(own)
    own.chmod(0o700)
    (tmp_path / "link").symlink_to(own)
    assert not is_private(tmp_path / "link")
    assert not is_private(tmp_path / "none")


def test_what_a_client_owes_comes_back_as_it_was_and_its_own_tensors_too() -> None:
    fed, context = build(), Context(1, 2, {}, RecordDict(), {})
    memory.recall(context, fed.hooks, 5)
    residual = fed.hooks.residuals.of(5)
    assert not residual.state_dict()["parts"]
    rows = SparseRows(torch.tensor([3, 9]), torch.rand(2, 4).double(), torch.tensor([True, False]))
    for name, part in (("rows4", rows), ("rest", torch.rand(6, 1).double())):
        residual.stage(name, part)
    nothing = {n: RawSegment(np.empty(0, np.int64), np.zeros((0, w))) for n, w in SHAPES.items()}
    residual.settle(nothing, {n: part.values for n, part in nothing.items()})
    with torch.no_grad():
        fed.model.own.add_(2.0)
    memory.keep(context, fed.hooks, 5)
    fresh = build()
    memory.recall(context, fresh.hooks, 5)
    again = fresh.hooks.residuals.of(5)
    assert fresh.model.own.tolist() == [2.0, 2.0]
    before, after = (r.state_dict()["parts"] for r in (residual, again))
    assert set(before) == set(after) == set(SHAPES)
    for name, fields in before.items():
        assert set(fields) == set(after[name])
        assert all(torch.equal(value, after[name][field]) for field, value in fields.items())


def test_personal_tensors_of_another_model_are_refused() -> None:
    context = Context(1, 2, {}, RecordDict(), {})
    context.state["torchfsl-personal"] = ArrayRecord({"own": Array(np.zeros(3, np.float32))})
    with pytest.raises(ParameterError, match="do not fit this model"):
        memory.recall(context, build().hooks, 5)
