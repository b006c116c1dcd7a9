"""Arguments of a wrong kind are refused by name, with what to pass, and not by a TypeError."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchfsl
from tests.support.errors import raises
from torchfsl import privacy
from torchfsl.errors import ParameterError
from torchfsl.fsl.estimates.measuring import rows_plan

PLAN = rows_plan(4000, 8, 32, 100)


def federated() -> Any:
    table = torch.nn.Embedding(60, 4)
    return torchfsl.Federated(table, torch.optim.SGD(table.parameters(), lr=0.1))


@pytest.mark.parametrize("name", ["cores", "bandwidth", "within"])
@pytest.mark.parametrize("given", ["10G", None, True, [1]])
def test_estimate_refuses_what_is_no_number(name: str, given: Any) -> None:
    with raises(ParameterError, "wrong-type") as caught:
        torchfsl.estimate(PLAN, **{name: given})
    assert f"{name} is {given!r}" in str(caught.value)
    assert f"as {name}=" in str(caught.value)


def test_estimate_refuses_rates_of_another_kind() -> None:
    rates: Any = 10
    with raises(ParameterError, "wrong-type"):
        torchfsl.estimate(PLAN, rates=rates)


def test_functions_of_privacy_say_that_they_take_the_plan() -> None:
    fed = federated()
    for call in (
        lambda: privacy.calibrate(fed, epsilon=8.0, delta=1e-6, rounds=3),
        lambda: privacy.guarantee(fed, delta=1e-6),
    ):
        with raises(ParameterError, "wrong-type") as caught:
            call()
        assert "of type Federated" in str(caught.value)
        assert "fed.plan" in str(caught.value)


WISHES: list[tuple[dict[str, Any], str, str]] = [
    ({"epsilon": "8"}, "out-of-range", "epsilon is '8'"),
    ({"epsilon": True}, "out-of-range", "epsilon is True"),
    ({"delta": "1e-6"}, "parameter", "delta is '1e-6'"),
    ({"delta": None, "clients": 50}, "parameter", "delta is None"),
    ({"rounds": "3"}, "not-whole", "rounds is '3'"),
    ({"clients": "50"}, "not-whole", "clients is '50'"),
    ({"other_plan": 3}, "wrong-type", "other_plan is of type int"),
]


@pytest.mark.parametrize(("wish", "code", "text"), WISHES)
def test_calibrate_refuses_numbers_of_a_wrong_kind(
    wish: dict[str, Any], code: str, text: str
) -> None:
    encoding = torchfsl.FixedPoint(32, 14, 1.0)
    table = torch.nn.Embedding(60, 4)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    bound = privacy.l2_bound(encoding, 1.0)
    fed = torchfsl.Federated(
        table, optimizer, encoding=encoding, max_clients=4, rows_per_client=8, l2_bound=bound
    )
    usual: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-6, "rounds": 3}
    plan: Any = fed.plan
    with raises(ParameterError, code) as caught:
        privacy.calibrate(plan, **{**usual, **wish})
    assert text in str(caught.value)


def test_a_bound_refuses_another_encoding_and_norm() -> None:
    encoding, norm = torchfsl.FixedPoint(32, 14, 1.0), 1.0
    wrong: Any = "1"
    with raises(ParameterError, "wrong-type"):
        privacy.l2_bound(wrong, norm)
    with raises(ParameterError, "parameter"):
        privacy.l2_bound(encoding, wrong)
