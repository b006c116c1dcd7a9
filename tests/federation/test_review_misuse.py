"""Samplers, embeddings and servers of kinds that do not fit: right or refused with the remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchfsl
from tests.federation.test_one_block import block, data_of, federated, train
from torchfsl.errors import ParameterError

GOOD: dict[str, Any] = {
    "NumPy": lambda _, every, draw: draw.choice(every, 2, replace=False),
    "a generator": lambda _, every, __: (client for client in every[:3]),
    "a tensor": lambda *_: torch.tensor([0, 2]),
    "a set": lambda *_: {0, 5},
    "as many as the plan opens": lambda *_: [5, 3, 1],
}
BAD: dict[str, Any] = {
    "fractions": lambda *_: [0.0, 1.7],
    "text": lambda *_: "01",
    "texts": lambda *_: ["0", "1"],
    "nothing": lambda *_: None,
    "nobody": lambda *_: [],
    "a number": lambda *_: 2,
    "doubles": lambda *_: [1, 1],
    "strangers": lambda *_: [1, 7],
    "too few": lambda *_: [1],
    "too many": lambda *_: [0, 1, 2, 3],
}


def simulated(sampler: Any) -> torchfsl.SimulationResult:
    fed = federated()  # opens rounds of 2 to 3 clients
    return torchfsl.simulate(
        fed, {client: data_of(client) for client in range(6)},
        lambda one: train(fed.model, fed.hooks.optimizers[0], one), rounds=2, sampler=sampler,
        protocol="plain", progress=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_a_sampler_may_choose_from_more_clients_than_a_round_opens(name: str) -> None:
    result = simulated(GOOD[name])
    every, draw = list(range(6)), np.random.Generator(np.random.Philox(key=[0, 0]))
    want = sorted(int(client) for client in GOOD[name](0, every, draw))
    assert list(result.rounds[0].clients) == want


@pytest.mark.parametrize("name", BAD)
def test_a_sampler_that_gives_no_cohort_is_refused(name: str) -> None:
    with pytest.raises(ParameterError, match="the sampler returned"):
        simulated(BAD[name])


@pytest.mark.parametrize("clients", [None, 3, object()])
def test_clients_that_are_no_list_are_refused_by_name(clients: Any) -> None:
    with pytest.raises(ParameterError, match="clients"):
        torchfsl.simulate(federated(), clients, print, rounds=1)


@pytest.mark.parametrize("client", [[], {}, "3", 1.5])
def test_a_client_number_that_is_none_is_refused_by_name(client: Any) -> None:
    fed = federated()
    servers = fed.local_servers()
    with (
        pytest.raises(ParameterError, match="client_id is"),
        servers.round(),
        fed.round(servers, client),
    ):
        raise AssertionError


@pytest.mark.parametrize("path", ["/nowhere/at/all/model.pt", []])
def test_a_model_that_cannot_be_written_is_an_error_that_names_the_file(path: Any) -> None:
    with pytest.raises(ParameterError, match=r"export\(\) cannot write .*folder that exists"):
        federated().export(path)


class Hashed(nn.Embedding):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input % self.num_embeddings)


class Clamped(nn.Embedding):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.clamp(0, self.num_embeddings - 1))


class Unknown(nn.Embedding):
    """Row 0 stands for what is no row."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        known = (input >= 0) & (input < self.num_embeddings)
        return super().forward(torch.where(known, input, torch.zeros_like(input)))


class Absolute(nn.Embedding):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.abs())


class HashedBag(nn.EmbeddingBag):
    def forward(self, input: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        return super().forward(input % self.num_embeddings, *rest, **named)


class Scaled(nn.Embedding):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 3.0


@pytest.mark.parametrize("kind", [Hashed, Clamped, Unknown, Absolute, HashedBag, Scaled])
def test_an_embedding_that_takes_ids_outside_its_table_is_sent_whole(kind: Any) -> None:
    """Else the rows that it reads are others than those that are fetched."""
    torch.manual_seed(0)
    model = nn.Sequential(kind(5000, 8), nn.Flatten(), nn.LazyLinear(2))
    words = torch.randint(0, 5000, (6, 5), generator=torch.Generator().manual_seed(1))
    if kind is not Scaled:
        words = words - 10_000 if kind is not Absolute else -words
    if kind is Absolute:
        words = words.clamp(-4999, -1)
    model(words)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fed = torchfsl.Federated(model, optimizer, max_clients=3, rows_per_client=64)
    assert bool(fed.hooks.inventory.tables) == (kind is Scaled)
    servers = fed.local_servers(protocol="plain", server_optimizer=torchfsl.optim.SGD())
    batches = [(words, words[:, 0] % 2)]
    with servers.round() as result:
        for client in range(2):
            block(fed, servers, client, batches)
    assert result.matches_plain
    assert result.sums["rows8" if kind is Scaled else "rest"].any()


@pytest.mark.parametrize("kind", ["servers", "model", "result", "nothing"])
def test_evaluating_without_running_servers_is_refused_with_the_remedy(kind: str) -> None:
    fed = federated()
    servers: Any = fed.local_servers()
    given = {"servers": servers, "model": servers.model, "result": {}, "nothing": None}[kind]
    with pytest.raises(ParameterError, match=r"fed\.load\(servers\)"):  # noqa: SIM117
        with fed.evaluating(given, batches=data_of(0)):
            pass
