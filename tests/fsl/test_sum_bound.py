"""Which plans bound their sums, what explain and estimate say of it, and what users see."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

import torchfsl
from scripts.attacks.beyond_bound import plan_of
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.federation import coordinator
from torchfsl.fsl.estimates.estimate import estimate
from torchfsl.fsl.estimates.measuring import Rates
from torchfsl.fsl.explain import explain
from torchfsl.fsl.server.norms import Norms, most_squared
from torchfsl.service.state import vault
from torchfsl.service.task import Task
from torchfsl.submodel import sum_bound
from torchfsl.submodel.opened import Opened

RATES = Rates(0.004, 1e-6, 0.004, 2e-6, 7e8, 5e7, 1e-3, 1e-8, 1e-4, 1e-8)


def federated(**options: Any) -> torchfsl.Federated:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    return torchfsl.Federated(
        model, torch.optim.SGD(model.parameters(), lr=0.1), max_clients=3, **options
    )


def test_a_new_plan_with_a_norm_bound_bounds_its_sums_unless_told_otherwise() -> None:
    assert plan_of(sum_bound=None).sum_bound  # type: ignore[arg-type]
    assert not plan_of(sum_bound=False).sum_bound
    assert federated(l2_bound=1 << 20, proofs="none").make_plan().sum_bound
    assert not federated(l2_bound=1 << 20, sum_bound=False, proofs="none").make_plan().sum_bound
    assert not federated().make_plan().sum_bound
    with pytest.raises(ParameterError, match="set l2_bound, or leave out sum_bound"):
        federated(sum_bound=True).make_plan()


def test_explain_and_estimate_tell_the_bound_and_its_cost() -> None:
    plan = plan_of(sum_bound=True)
    most = f"at most {plan.max_clients} times l2_bound: a larger one is scaled down, and beyond "
    assert most in explain(plan)
    copies = most_squared(plan, plan.segments, plan.l2_bound, 1) // plan.l2_bound**2
    assert copies > 1
    assert f"beyond {plan.max_clients * copies**0.5:.4g} times it the task halts" in explain(plan)
    assert "except with an adaptive server optimizer" in explain(plan)
    assert "halts" not in explain(plan_of(sum_bound=True, proofs="none"))
    assert "the aggregate has no bound" in explain(plan_of(sum_bound=False))
    told = estimate(plan, rates=RATES)
    assert told.bounded_values == 64 * 4 + 100
    assert "the bound on the aggregate adds no bytes" in str(told)
    without = estimate(plan_of(sum_bound=False), rates=RATES)
    assert (without.bounded_values, without.upload_bytes) == (0, told.upload_bytes)


def test_a_coordinator_goes_on_with_a_task_from_before_the_bound_and_not_with_less() -> None:
    new = plan_of(sum_bound=True)
    old, settings = dataclasses.replace(new, sum_bound=False), torchfsl.optim.SGD(1.0)
    for held, wanted, same in [(old, new, True), (new, new, True), (old, old, True)]:
        task = Task(held, bytes(16), optimizer=settings)
        assert coordinator._same(task, wanted, settings, "delta") is same
    assert not coordinator._same(Task(new, bytes(16), optimizer=settings), old, settings, "delta")


def test_what_does_not_fit_64_bits_is_beyond_every_proven_norm() -> None:
    plan = plan_of(sum_bound=True)
    norms, segment = Norms(plan), plan.segment("rest")
    values = np.zeros((4, 1), np.int64)
    norms.add(segment, values, np.array([True] * 4))
    norms.check(1)
    norms.add(segment, values, np.array([True, False, True, True]))
    with pytest.raises(ProtocolError, match="a server lied"):
        norms.check(1 << 20)


@pytest.mark.parametrize("protocol", ["fsl", "plain"])
def test_a_scaled_round_is_reported_and_is_no_mismatch(
    protocol: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sum_bound, "most_squared", lambda *_: 10**6)  # what no honest sum keeps
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fed = torchfsl.Federated(model, optimizer, max_clients=3, l2_bound=1 << 20, proofs="none")
    fed.plan = fed.make_plan()
    servers = fed.local_servers(protocol=protocol)
    with servers.round() as result:
        for client in range(2):
            with fed.round(servers, client):
                optimizer.zero_grad()
                torch.autograd.backward((model(torch.ones(1, 4)) ** 2).sum())
                optimizer.step()
    assert set(result.scaled) == {"rest"}
    assert 0 < result.scaled["rest"] < 1
    told = f"both servers multiplied it (segment rest by {result.scaled['rest']:.3g}): look for"
    assert (told in caplog.text) == (protocol != "plain")
    assert result.matches_plain
    assert "matches plain True" in str(result)
    assert "rest scaled by 0.0" in str(result)
    assert np.linalg.norm(result.sums["rest"]) <= 1000


def test_stored_sums_keep_by_how_much_they_were_scaled_and_older_ones_have_none() -> None:
    opened = Opened({"a": np.ones((2, 1), np.int64)}, {}, 2, 2, (0, 1), scaled={"a": 0.25})
    assert vault.decode_opened(vault.encode_opened(opened, 1))[0].scaled == {"a": 0.25}
    plain = dataclasses.replace(opened, scaled={})
    assert b"scaled" not in vault.encode_opened(plain, 1)
    assert vault.decode_opened(vault.encode_opened(plain, 1))[0].scaled == {}
