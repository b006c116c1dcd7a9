"""From a model to the segments of a plan, and the options that only the planner reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchfsl
from tests.support.engine_setup import plan_of
from torchfsl import FixedPoint, Rows, TopK
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.policies import Dense
from torchfsl.engine.round import Round
from torchfsl.engine.settings import Settings
from torchfsl.engine.specs import segment_specs
from torchfsl.errors import ParameterError
from torchfsl.policies import BlockSample, Fixed
from torchfsl.submodel import SegmentSpec, TensorSpec
from torchfsl.submodel.plain import Plain
from torchfsl.submodel.server_model import ServerModel


def make_model() -> nn.Module:
    return nn.Sequential(nn.Embedding(20, 4), nn.Linear(4, 3), nn.BatchNorm1d(3))


def specs_of(settings: Settings, rows: int | None = None) -> list[SegmentSpec]:
    model = make_model()
    hooks = Hooks(model, torch.optim.SGD(model.parameters(), lr=0.1), settings)
    return segment_specs(
        hooks.exchange, hooks.rows, hooks.rest, rows_per_client=rows, retrieve=None, encodings={}
    )


def test_a_segment_gets_the_encoding_that_is_given_by_its_name_and_odd_names_are_refused() -> None:
    narrow = FixedPoint(16, 8, 1.0)
    settings, model = Settings(encodings={"rest": narrow}), make_model()
    hooks = Hooks(model, torch.optim.SGD(model.parameters(), lr=0.1), settings)
    plan = plan_of(hooks, max_clients=3, rows_per_client=2, above_break_even="keep")
    table, rest = plan.segments
    assert (table.encoding, rest.encoding) == (None, narrow)
    assert plan.encoding_of(table) == plan.encoding != narrow
    hooks.remove()
    hooks = Hooks(
        model, torch.optim.SGD(model.parameters(), lr=0.1), Settings(encodings={"rows": narrow})
    )
    plan = plan_of(hooks, max_clients=3, rows_per_client=2, above_break_even="keep")
    assert [segment.encoding for segment in plan.segments] == [narrow, None]
    hooks.remove()
    hooks = Hooks(
        model, torch.optim.SGD(model.parameters(), lr=0.1), Settings(encodings={"rows18": narrow})
    )
    with pytest.raises(ValueError, match=r"has 'rows18', .*The segments are \['rows4'"):
        plan_of(hooks, max_clients=3, rows_per_client=2)


def test_patterns_cut_a_dense_rest_into_segments_and_the_first_that_fits_counts() -> None:
    fine, coarse = FixedPoint(16, 14, 0.01), FixedPoint(16, 8, 1.0)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    encodings = {"2.*": fine, "?.bias": coarse, "rest": coarse}
    hooks = Hooks(model, optimizer, Settings(encodings=encodings))
    plan = plan_of(hooks, max_clients=3, rows_per_client=2, above_break_even="keep")
    found = {s.name: ([t.name for t in s.tensors], s.policy, s.encoding) for s in plan.segments}
    assert list(found) == ["rows4", "rest", "?.bias", "2.*"]
    assert found["rest"] == (["1.weight"], "dense", coarse)
    assert found["?.bias"] == (["1.bias"], "dense", coarse)
    assert found["2.*"] == (["2.weight", "2.bias"], "dense", fine)
    hooks.remove()
    for rest, names, why in (
        (Dense(), ["3.*"], r"'3\.\*', but no .* other parameters include 1\.weight, 1\.bias"),
        (Dense(), ["2"], r"'2', .*For a whole module write '2\.\*'"),
        (
            Dense(),
            ["2.*", "2.bias"],
            r"'2\.bias', .*entries '2\.\*' already match.*or put the narrower pattern first",
        ),
        (
            Dense(),
            ["1.weight", "1.bias", "1.*"],
            r"'1\.\*', .*entries '1\.weight', '1\.bias' already match",
        ),
        (
            TopK(0.5),
            ["2.*"],
            r"'2\.\*', but the pattern matches 2\.weight, and only rest=Dense\(\)",
        ),
        (
            Dense(),
            ["0.*"],
            r"'0\.\*', but the pattern matches the table 0.*segment, 'rows4', or 'rows'",
        ),
        (Dense(), ["*", "rest"], "'rest', but no parameter is left for this entry"),
    ):
        hooks = Hooks(model, optimizer, Settings(rest=rest, encodings=dict.fromkeys(names, fine)))
        with pytest.raises(ParameterError, match=f"encodings has {why}"):
            plan_of(hooks, max_clients=3, rows_per_client=2, above_break_even="keep")
        hooks.remove()


def test_an_encoding_of_tables_wants_one_that_goes_by_rows() -> None:
    model = make_model()
    hooks = Hooks(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        Settings(rows=None, encodings={"rows": FixedPoint(16, 14, 0.01)}),
    )
    with pytest.raises(ParameterError, match=r"encodings has 'rows', but no table .* by rows"):
        plan_of(hooks, max_clients=3)


def test_encodings_are_a_mapping_from_names_to_encodings() -> None:
    fine: Any = FixedPoint(16, 14, 0.01)
    for odd in (fine, [("rest", fine)], {3: fine}):
        with pytest.raises(ParameterError, match="expected a mapping from names to encodings"):
            Settings(encodings=odd)
    for value in (16, None):
        with pytest.raises(ParameterError, match=rf"encodings\['rest'\] is {value}: pass a Fixed"):
            Settings(encodings={"rest": value})  # type: ignore[dict-item]
    for block in (0, 32.5, "8"):
        with pytest.raises(
            ParameterError, match=f"block is {block!r}: choose the number of values"
        ):
            BlockSample(0.1, block=block)  # type: ignore[arg-type]


def test_each_part_of_the_rest_sends_what_changed_in_it() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fine = FixedPoint(32, 24, 1.0)
    hooks = Hooks(
        model,
        optimizer,
        Settings(rows=None, encoding=fine, encodings={"1.*": fine, "*.bias": fine}),
    )
    plan = plan_of(hooks, max_clients=3)
    home = Plain(plan, ServerModel(hooks.server_state()))
    home.open_round(0, [0])
    grads = {name: float(place + 1) for place, (name, _) in enumerate(model.named_parameters())}
    with Round(hooks, home.participant(0), number=0) as rnd:
        for name, parameter in model.named_parameters():
            parameter.grad = torch.full_like(parameter, grads[name])
        optimizer.step()
    assert rnd.update is not None
    steps = 2.0**-24
    sent = {name: np.unique((u.values * steps).round(3)) for name, u in rnd.update.items()}
    assert {name: list(values) for name, values in sent.items()} == {
        "rest": [-0.4, -0.1],  # 2.weight, 0.weight
        "1.*": [-0.3, -0.2],
        "*.bias": [-0.5],
    }


def test_one_server_and_ciphertexts_refuse_encodings_of_segments() -> None:
    narrow, model = {"rest": FixedPoint(16, 8, 1.0)}, make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fed = torchfsl.Federated(model, optimizer, encodings=narrow)
    with pytest.raises(ValueError, match="one field, so all segments have one encoding"):
        torchfsl.sesa.plan(fed, widths=[(2, 4)], collusion=1)
    fed.detach()
    fed = torchfsl.Federated(model, optimizer, rows=None, encodings=narrow)
    with pytest.raises(ValueError, match="one ciphertext space, so all segments"):
        torchfsl.sefl.plan(fed, max_clients=3)


def test_a_model_becomes_tables_the_rest_and_buffers_in_this_order() -> None:
    table, rest, buffers = specs_of(Settings(rest=TopK(0.5), buffers="average"), 7)
    weight = TensorSpec("0.weight", (20, 4))
    assert table == SegmentSpec("rows4", "rows", (weight,), 7, 4, retrieve=True)
    assert (rest.name, rest.policy, rest.k_max, rest.tau) == ("rest", "scalars", 11, 1)
    assert [t.name for t in rest.tensors] == ["1.weight", "1.bias", "2.weight", "2.bias"]
    assert (buffers.name, buffers.policy) == ("buffers", "dense")


@pytest.mark.parametrize(
    ("rows", "k_max", "retrieve"),
    [
        (Rows(budget=5), 5, True),
        (Rows(budget=50), 20, True),
        (Rows(top=0.25), 5, False),
        (Rows(choose=Fixed([3, 4, 5])), 3, True),
        (Rows(top=2, find="scan"), 2, False),
    ],
)
def test_budget_and_retrieval_follow_the_policy(rows: Rows, k_max: int, retrieve: bool) -> None:
    table = specs_of(Settings(rows=rows, rest=Dense()))[0]
    assert (table.k_max, table.retrieve) == (k_max, retrieve)


def test_an_option_that_no_planner_knows_is_refused() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="cohort"):
        torchfsl.Federated(model, optimizer, max_clients=2, rows_per_client=5, cohort=3)  # type: ignore[call-arg]
    fed = torchfsl.Federated(model, optimizer, rows_per_client=5)
    with pytest.raises(ParameterError, match="pass max_clients="):
        _ = fed.plan
