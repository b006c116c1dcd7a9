"""Plans with sessions (`max_epochs`) run through the same round block."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchfsl
from tests.federation.test_one_block import train
from torchfsl import policies
from torchfsl.errors import ParameterError

WORDS, EPOCHS, ROUNDS = 2000, 2, 5
MINE = list(range(40, 80))


def made(**options: Any) -> tuple[torchfsl.Federated, dict[int, Any]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(WORDS, 8), nn.Linear(8, 2))
    fed = torchfsl.Federated(
        model, torch.optim.SGD(model.parameters(), lr=0.1), max_clients=3, max_epochs=EPOCHS,
        max_rounds=ROUNDS, **{"rows": torchfsl.Rows(choose=policies.Fixed(MINE)), **options},
    )  # fmt: skip
    data = {}
    for client in range(3):
        draw = torch.Generator().manual_seed(client)
        words = torch.randint(MINE[0], MINE[-1], (8, 5), generator=draw)
        data[client] = [(words, words[:, 0] % 2)]
    return fed, data


OPTIONS: dict[str, dict[str, Any]] = {
    "rows": {},
    "rows and positions of the rest": {"rest": policies.Fixed([0, 3, 5])},
    "counts": {"average": "rows"},
    "kept at the client": {"retrieve": False},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_rounds_of_a_session_are_exact_and_upload_trees_once(name: str) -> None:
    fed, data = made(**OPTIONS[name])
    servers = fed.local_servers()
    sizes = []
    for _ in range(ROUNDS):
        with servers.round() as result:
            for client in data:
                with fed.round(servers, client):
                    train(fed.model, fed.hooks.optimizers[0], data[client])
        assert (result.num_clients, result.matches_plain) == (3, True)
        sizes.append(result.upload_bytes)
    assert sizes[0] == sizes[2] == sizes[4] > sizes[1] == sizes[3]  # trees are renewed every second


def test_a_simulation_of_sessions_ends_as_the_blocks() -> None:
    fed, data = made()
    result = torchfsl.simulate(
        fed, data, lambda one: train(fed.model, fed.hooks.optimizers[0], one), rounds=ROUNDS,
        progress=False,
    )  # fmt: skip
    assert result.column("matches_plain") == [True] * ROUNDS
    other, data = made()
    servers = other.local_servers()
    for _ in range(ROUNDS):
        with servers.round():
            for client in data:
                with other.round(servers, client):
                    train(other.model, other.hooks.optimizers[0], data[client])
    other.load(servers)
    for key, value in other.export().items():
        assert torch.equal(value, fed.export()[key]), key


@pytest.mark.parametrize("weight", [0, -1, 10, 1 << 40])
def test_a_weight_out_of_range_is_answered_by_a_report_in_sessions_too(weight: int) -> None:
    """Silence would tell the servers of a private number."""
    fed, data = made(average="weight", max_weight=9)
    servers = fed.local_servers()
    for number in range(3):
        with servers.round() as result:
            for client in (0, 1):
                with fed.round(servers, client, weight=2):
                    train(fed.model, fed.hooks.optimizers[0], data[client])
            if number == 1:
                with pytest.raises(ParameterError, match="weight"):
                    fed.round(servers, 2, weight=weight).__enter__()
            else:
                with fed.round(servers, 2, weight=3):
                    train(fed.model, fed.hooks.optimizers[0], data[2])
        assert result.num_clients == 3, number


def test_plain_servers_refuse_sessions_by_name() -> None:
    fed, data = made()
    servers = fed.local_servers(protocol="plain")
    with pytest.raises(ParameterError, match="do not run the protocol fsl"):  # noqa: SIM117
        with servers.round(), fed.round(servers, 0):
            train(fed.model, fed.hooks.optimizers[0], data[0])
