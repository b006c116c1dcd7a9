"""Sparse gradients, mixed precision, compiled models, GPUs, tied tables: run or refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import torchfsl
from tests.fsl.test_estimate import RATES
from torchfsl.errors import ParameterError

WORDS, CLIENTS = 300, 3


def data_of(client: int, device: str = "cpu") -> list[tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(client)
    words = torch.randint(0, WORDS, (6, 5), generator=g)
    return [(words.to(device), (words[:, 0] % 2).to(device))] * 2


def network(*, sparse: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.EmbeddingBag(WORDS, 8, sparse=sparse), nn.Linear(8, 2))


def simulated(
    model: nn.Module, optimizer: Any, train: Any, device: str = "cpu", **options: Any
) -> torchfsl.SimulationResult:
    fed = torchfsl.Federated(
        model, optimizer, max_clients=CLIENTS, rows_per_client=30, above_break_even="keep",
        **options,
    )  # fmt: skip
    data = {client: data_of(client, device) for client in range(CLIENTS)}
    return torchfsl.simulate(fed, data, train, rounds=2, progress=False)


def loop(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> Any:
    def train(batches: Any) -> float:
        loss = torch.zeros(())
        for words, labels in batches:
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = functional.cross_entropy(model(words), labels)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
        return loss.item()

    return train


def assert_runs(result: torchfsl.SimulationResult) -> None:
    assert result.column("matches_plain") == [True, True]
    assert all(loss is not None and loss == loss for loss in result.column("loss"))


def test_sparse_gradients_with_an_optimizer_for_each_kind() -> None:
    model = network(sparse=True)
    optimizers = [
        torch.optim.SparseAdam([model[0].weight], lr=0.05),  # type: ignore[list-item]
        torch.optim.Adam(model[1].parameters(), lr=0.05),
    ]
    assert_runs(simulated(model, optimizers, loop(model, optimizers)))


def test_sparse_and_dense_gradients_end_alike() -> None:
    ends = []
    for sparse in (False, True):
        model = network(sparse=sparse)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ends.append(simulated(model, optimizer, loop(model, [optimizer])).model_state)
    for name, value in ends[0].items():
        np.testing.assert_allclose(ends[1][name], value, atol=1e-5)  # added in other orders


def test_automatic_mixed_precision() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def train(batches: Any) -> float:
        loss = torch.zeros(())
        for words, labels in batches:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = functional.cross_entropy(model(words).float(), labels)
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
        return loss.item()

    assert_runs(simulated(model, optimizer, train))


def test_a_compiled_model() -> None:
    model = network()
    compiled: Any = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert_runs(simulated(compiled, optimizer, loop(compiled, [optimizer])))
    torch.compiler.reset()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_model_on_a_gpu() -> None:
    model = network().to("cuda")
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    assert_runs(simulated(model, optimizer, loop(model, [optimizer]), "cuda"))


class Tied(nn.Module):
    """A language model whose head is its table."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.words(words).mean(1))
        return out


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam])
def test_a_tied_model_is_refused_once_and_the_remedy_works_as_typed(kind: Any) -> None:
    model = Tied()
    optimizer = kind(model.parameters(), lr=0.01)
    with pytest.raises(ParameterError) as caught:
        torchfsl.Federated(model, optimizer, max_clients=CLIENTS)
    for remedy in re.findall(r"rows=(torchfsl\.Rows\([^)]*\)|None)", str(caught.value)):
        rows = eval(remedy, {"torchfsl": torchfsl})  # noqa: S307 the remedy as a user would type it
        fed = torchfsl.Federated(model, optimizer, max_clients=CLIENTS, rows=rows)
        data = {client: data_of(client) for client in range(CLIENTS)}
        result = torchfsl.simulate(
            fed, data, loop(model, [optimizer]), rounds=1, protocol="plain", progress=False
        )
        assert result.column("matches_plain") == [True]
        fed.detach()


def test_short_reprs() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fed = torchfsl.Federated(model, optimizer, max_clients=2, rows_per_client=30)
    servers = fed.local_servers()
    parts: list[Any] = [fed, fed.plan, servers, servers.model, servers._home.servers[0]]  # type: ignore[attr-defined]
    with servers.round() as result:
        for client in range(2):
            with fed.round(servers, client, batches=data_of(client)) as rnd:
                loop(model, [optimizer])(data_of(client))
        parts += [rnd, rnd._client, result]
    for part in [*parts, result, rnd.receipt]:
        assert " at 0x" not in repr(part)
        assert len(repr(part)) < 300, repr(part)


def test_estimate_says_what_a_round_costs_and_discloses() -> None:

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ParameterError, match="suggest_rows"):
        torchfsl.Federated(model, optimizer, max_clients=2).estimate(data_of(0))
    for average, words in (("clients", "only the sums"), ("rows", "A count of 1 tells")):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        fed = torchfsl.Federated(
            model, optimizer, max_clients=2, rows_per_client=30,
            average=average, above_break_even="keep",  # type: ignore[arg-type]
        )  # fmt: skip
        found = fed.estimate(data_of(0), rates=RATES)
        servers = fed.local_servers()
        with servers.round():
            for client in range(2):
                with fed.round(servers, client, batches=data_of(client)) as rnd:
                    loop(model, [optimizer])(data_of(client))
        assert rnd.receipt is not None
        assert found.upload_bytes == rnd.receipt.upload_bytes
        assert found.download_bytes == rnd.receipt.download_bytes
        assert f"{found.upload_bytes:,} bytes" in str(found)
        assert words in str(found)
        assert fed.plan.explain().startswith(found.discloses)
        fed.detach()
