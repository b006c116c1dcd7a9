"""`simulate` under participation limits and correlated noise."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pytest
import torch

import torchfsl
from tests.support.errors import raises
from torchfsl import privacy
from torchfsl.errors import ParameterError
from torchfsl.federation.results import SimulationResult

CLIENTS, ROUNDS = 12, 9
Batches = list[tuple[torch.Tensor, torch.Tensor]]


def batches_of(client: int) -> Batches:
    words = torch.randint(0, 60, (4, 3), generator=torch.Generator().manual_seed(client))
    return [(words, words[:, 0] % 2)]


def federated(epsilon: float = 8.0, **wishes: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(60, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    encoding = torchfsl.FixedPoint(32, 14, 1.0)
    fed = torchfsl.Federated(model, optimizer, encoding=encoding)
    plan = fed.make_plan(
        max_clients=4, rows_per_client=12, clip="normalise",
        l2_bound=privacy.l2_bound(encoding, 1.0),
    )  # fmt: skip
    limits = {"max_participations": 3, "min_separation": 3, "clients": CLIENTS, **wishes}
    fed.plan = privacy.calibrate(plan, epsilon=epsilon, delta=1e-6, rounds=ROUNDS, **limits)

    def train(batches: Batches) -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batches[0][0]), batches[0][1])
        loss.backward()
        optimizer.step()
        return loss.item()

    return fed, train


def run(rounds: int = ROUNDS, **options: Any) -> tuple[SimulationResult, Any]:
    pytest.importorskip("dp_accounting", reason="needs torchfsl[privacy]")
    fed, train = federated(**options.pop("wishes", {}))
    data = {client: batches_of(client) for client in range(CLIENTS)}
    usual: dict[str, Any] = {"clients_per_round": 4, "sampler": "cyclic", "progress": False}
    return torchfsl.simulate(fed, data, train, rounds=rounds, **{**usual, **options}), fed


@pytest.mark.parametrize("protocol", ["plain", "fsl"])
def test_cyclic_cohorts_keep_the_limits_and_sums_are_exact_with_their_noise(
    protocol: Any, recwarn: pytest.WarningsRecorder
) -> None:
    result, _ = run(protocol=protocol)
    assert [one.num_clients for one in result.rounds] == [4] * ROUNDS
    assert all(one.matches_plain for one in result.rounds)
    seen: dict[int, list[int]] = {}
    for one in result.rounds:
        for client in one.clients:
            seen.setdefault(client, []).append(one.number)
    assert {len(rounds) for rounds in seen.values()} == {3}
    assert min(min(np.diff(rounds)) for rounds in seen.values()) == 3
    assert not [w for w in recwarn if "refused" in str(w.message)]


def test_reports_beyond_the_limits_are_refused_and_counted_in_a_warning() -> None:
    cohorts = [[0, 1, 2, 3], [2, 3, 4, 5], [6, 7, 8, 9]]
    with pytest.warns(UserWarning, match="2 reports were refused: .* sampler='cyclic'"):
        result, _ = run(rounds=3, sampler=lambda number, *_: cohorts[number])
    assert [one.clients for one in result.rounds] == [(0, 1, 2, 3), (4, 5), (6, 7, 8, 9)]


@pytest.mark.parametrize("protocol", ["plain", "fsl"])
def test_a_resumed_simulation_keeps_counts_index_and_past_noise(protocol: Any) -> None:
    first, _ = run(rounds=4, protocol=protocol)
    assert first.checkpoint is not None
    kept = first.checkpoint["servers"]["privacy"]
    assert int(kept["opened"]) == 4
    assert kept["reports"].shape == (3, CLIENTS)
    assert kept["noise0"].any()
    rest, _ = run(protocol=protocol, resume=first.checkpoint)
    assert all(one.matches_plain for one in rest.rounds)
    assert len(rest.rounds) == ROUNDS
    last = rest.checkpoint
    assert last is not None
    assert (last["servers"]["privacy"]["reports"][1] == 3).all()


def test_a_checkpoint_without_counts_does_not_go_on() -> None:
    first, _ = run(rounds=4)
    assert first.checkpoint is not None
    first.checkpoint["servers"]["privacy"] = {}
    with raises(ParameterError, "state-refused"):
        run(resume=first.checkpoint)


@pytest.mark.parametrize("protocol", ["plain", "fsl"])
def test_an_interrupted_round_is_run_again_and_the_limits_stay_kept(protocol: Any) -> None:
    whole, _ = run(protocol=protocol)
    fed, train = federated()
    data = {client: batches_of(client) for client in range(CLIENTS)}
    calls: list[int] = []

    def stops(batches: Batches) -> float:
        calls.append(0)
        if len(calls) == 4 * 4 + 2:
            raise KeyboardInterrupt
        return train(batches)

    usual: dict[str, Any] = {"clients_per_round": 4, "sampler": "cyclic", "progress": False}
    kept: dict[str, Any] = {}

    def note(result: Any) -> None:
        kept["rounds"] = result.number

    with tempfile.TemporaryDirectory() as folder:
        with pytest.raises(KeyboardInterrupt):
            torchfsl.simulate(fed, data, stops, rounds=ROUNDS, protocol=protocol,
                              save=f"{folder}/run.pt", **{**usual, "progress": note})  # fmt: skip
        assert kept["rounds"] == 3
        result, _ = run(protocol=protocol, resume=f"{folder}/run.pt")
    assert [one.number for one in result.rounds] == list(range(ROUNDS))
    assert [one.clients for one in result.rounds] == [one.clients for one in whole.rounds]
    assert all(one.matches_plain for one in result.rounds)


def test_a_checkpoint_of_another_plan_is_refused() -> None:
    first, _ = run(rounds=4)
    with raises(ParameterError, "another-task"):
        run(resume=first.checkpoint, wishes={"epsilon": 2.0})
    result, _ = run(resume=first.checkpoint)  # an equal plan with a session of its own
    assert result.plan.digest.hex() == first.checkpoint["servers"]["plan"]  # type: ignore[index]


def test_state_of_servers_of_another_plan_is_refused() -> None:
    first, _ = run(rounds=4, protocol="fsl")
    assert first.checkpoint is not None
    fed, _ = federated(epsilon=4.0)
    with raises(ParameterError, "another-task"):
        fed.local_servers().load_state_dict(first.checkpoint["servers"])


def test_a_second_simulation_under_a_plan_does_not_begin_a_second_budget() -> None:
    _, fed = run(rounds=4)
    data = {client: batches_of(client) for client in range(CLIENTS)}
    with raises(ParameterError, "budget-unknown"):
        torchfsl.simulate(fed, data, lambda _: 0.0, rounds=4, sampler="cyclic", progress=False,
                          clients_per_round=4)  # fmt: skip


def test_cohorts_that_the_limits_empty_name_the_limits_and_not_the_clients() -> None:
    with raises(ParameterError, "participation-limit"):
        run(rounds=3, sampler=lambda *_: [0, 1, 2, 3])
    with raises(ParameterError, "unknown-option"):
        run(rounds=3, sampler="random")


def test_a_delta_that_permits_a_whole_client_is_refused() -> None:
    with raises(ParameterError, "out-of-range"):
        fed, _ = federated()
        privacy.calibrate(fed.plan, epsilon=8.0, delta=0.1, rounds=ROUNDS, clients=CLIENTS)
