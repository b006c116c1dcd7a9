"""Accounting against the aggregator, the key holder and the public."""

from __future__ import annotations

import math

import pytest

from tests.sefl.small import make_draft
from torchfsl.errors import ParameterError
from torchfsl.sefl.privacy import guarantee

pytest.importorskip("dp_accounting", reason="needs the extra privacy")


def test_one_server_counts_one_noise_and_the_public_both() -> None:
    plan = make_draft(sizes=(100,), l2_bound=1000, noise_sigma=4000, max_rounds=10)
    found = guarantee(plan, delta=1e-5)
    assert found.epsilon_aggregator == found.epsilon_key_holder
    assert found.epsilon_public < found.epsilon_aggregator
    other = make_draft(
        sizes=(100,), l2_bound=1000, noise_sigma=round(4000 * math.sqrt(2)), max_rounds=10
    )
    assert guarantee(other, delta=1e-5).epsilon_aggregator == pytest.approx(
        found.epsilon_public, rel=1e-3
    )


def test_epsilon_is_near_the_gaussian_mechanisms() -> None:
    plan = make_draft(sizes=(100,), l2_bound=1000, noise_sigma=5000)
    rho = 1 / (2 * 25)  # zero-concentrated: epsilon <= rho + 2 sqrt(rho ln(1 / delta))
    found = guarantee(plan, delta=1e-5, rounds=1).epsilon_aggregator
    assert 0.5 * rho < found <= rho + 2 * math.sqrt(rho * math.log(1e5))


def test_weights_cost_and_what_guarantees_nothing_is_refused() -> None:
    plan = make_draft(sizes=(100,), l2_bound=1000, noise_sigma=4000)
    weighted = make_draft(
        sizes=(100,), l2_bound=1000, noise_sigma=4000, lane="weight", max_weight=2, lane_sigma=50
    )
    assert (
        guarantee(weighted, delta=1e-5, rounds=1).epsilon_aggregator
        > guarantee(plan, delta=1e-5, rounds=1).epsilon_aggregator
    )
    with pytest.raises(ParameterError, match="no noise"):
        guarantee(make_draft(), delta=1e-5, rounds=1)
    with pytest.raises(ParameterError, match="max_rounds"):
        guarantee(plan, delta=1e-5)
