"""Checkpoints are safe to load and of one model; exactness is known under noise and withholding."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn

import torchfsl
from tests.federation.test_one_block import block, data_of, federated, train
from torchfsl.errors import ParameterError

OPTIMIZERS: dict[str, Any] = {
    "SGD": torchfsl.optim.SGD(),
    "momentum": torchfsl.optim.SGD(1.0, momentum=0.9),
    "Adam": torchfsl.optim.Adam(0.01),
    "LazyAdam": torchfsl.optim.LazyAdam(0.01),
    "FTRL": torchfsl.optim.FTRL(0.1),
    "RowAdagrad": torchfsl.optim.RowAdagrad(0.1),
    "of torch": torchfsl.optim.from_torch(lambda p: torch.optim.Adam(p, lr=0.01)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_saved_checkpoint_loads_without_code_and_goes_on_bit_identical(name: str) -> None:
    def run(rounds: int, resume: Any = None) -> torchfsl.SimulationResult:
        fed = federated(max_rounds=0)
        return torchfsl.simulate(
            fed, {c: data_of(c) for c in range(3)},
            lambda one: train(fed.model, fed.hooks.optimizers[0], one), rounds=rounds,
            protocol="plain", server_optimizer=OPTIMIZERS[name], progress=False, resume=resume,
        )  # fmt: skip

    file = io.BytesIO()
    torch.save(run(2).checkpoint, file)
    file.seek(0)
    whole, rest = run(4), run(4, torch.load(file, weights_only=True))
    for key, value in whole.model_state.items():
        assert (value == rest.model_state[key]).all(), key


@pytest.mark.parametrize("other", ["narrower", "shorter", "deeper", "renamed"])
def test_a_state_of_another_model_is_refused_and_changes_nothing(other: str) -> None:
    models: dict[str, nn.Module] = {
        "narrower": nn.Sequential(nn.EmbeddingBag(5000, 4), nn.Linear(4, 2)),
        "shorter": nn.Sequential(nn.EmbeddingBag(4000, 8), nn.Linear(8, 2)),
        "deeper": nn.Sequential(nn.EmbeddingBag(5000, 8), nn.Linear(8, 2), nn.Linear(2, 2)),
        "renamed": nn.Sequential(nn.Identity(), nn.EmbeddingBag(5000, 8), nn.Linear(8, 2)),
    }
    model = models[other]
    fed = torchfsl.Federated(
        model, torch.optim.Adagrad(model.parameters()), max_clients=3, rows_per_client=64
    )
    theirs = federated()
    plan, state = fed.plan, copy.deepcopy(fed.state_dict())
    with pytest.raises(ParameterError, match="does not fit this model"):
        fed.load_state_dict(theirs.state_dict())
    assert fed.plan == plan
    assert str(fed.state_dict()) == str(state)


NOISE = {"l2_bound": 1 << 22, "noise_sigma": 50}


@pytest.mark.parametrize(
    "options",
    [
        NOISE,
        {"average": "rows", "lane_sigma": 2, **NOISE},
        {"average": "rows", "min_contributors": 2},
        {"average": "rows", "min_contributors": 2, "lane_sigma": 1, **NOISE},
        {"average": "rows", "min_contributors": 3, "lane_sigma": 2, **NOISE},
        {"average": "weight", "max_weight": 4, "lane_sigma": 2, **NOISE},
        {"buffers": "average", **NOISE},
    ],
    ids=str,
)
def test_sums_match_the_plain_ones_whatever_servers_add_and_withhold(
    options: dict[str, Any],
) -> None:
    fed = federated(**options)
    servers = fed.local_servers()
    for _ in range(2):
        with servers.round() as result:
            for client in range(3):
                few = [(words % 50, labels) for words, labels in data_of(client)]
                block(fed, servers, client, few)
        assert result.matches_plain


@pytest.mark.parametrize("options", [{"lane_sigma": 1, **NOISE}, {}], ids=["noise", "exact"])
def test_a_sum_that_is_not_the_plain_one_is_told_where_servers_withhold(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = federated(average="rows", min_contributors=2, **options)
    servers = fed.local_servers()
    close = servers._home.close_round

    def off_by_one() -> Any:
        closed = close()
        closed.opened.sums["rest"][0] += 1
        return closed

    monkeypatch.setattr(servers._home, "close_round", off_by_one)
    with servers.round() as result:
        for client in range(3):
            block(fed, servers, client, data_of(client))
    assert result.matches_plain is False
