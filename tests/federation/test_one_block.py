"""The same round block in every home: servers here, running servers, plain sums, sesa, sefl."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchfsl
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.policies import BinTop

CLIENTS, ROUNDS, WORDS = 3, 3, 5000
Batches = list[tuple[torch.Tensor, torch.Tensor]]


def data_of(client: int) -> Batches:
    g = torch.Generator().manual_seed(client)
    words = torch.randint(0, WORDS, (8, 5), generator=g)
    return [(words, words[:, 0] % 2)] * 2


def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(WORDS, 8), nn.Linear(8, 2))
    return model, torch.optim.Adagrad(model.parameters(), lr=0.05)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches) -> float:
    loss = torch.zeros(())
    for words, labels in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words), labels)
        loss.backward()
        optimizer.step()
    return loss.item()


def block(fed: torchfsl.Federated, servers: Any, client: int | None, batches: Batches) -> Any:
    """What a user writes; the same everywhere."""
    optimizer = fed.hooks.optimizers[0]
    with fed.round(servers, client, batches=batches) as rnd:
        rnd.loss = train(fed.model, optimizer, batches)
    return rnd


def federated(**options: Any) -> torchfsl.Federated:
    return torchfsl.Federated(
        *fresh(), **{"max_clients": CLIENTS, "rows_per_client": 64, "max_rounds": ROUNDS, **options}
    )


def in_this_process(fed: torchfsl.Federated, servers: torchfsl.LocalServers) -> list[Any]:
    results = []
    for _ in range(ROUNDS):
        with servers.round(range(CLIENTS)) as result:
            for client in range(CLIENTS):
                block(fed, servers, client, data_of(client))
        results.append(result)
    fed.load(servers)
    return results


@pytest.fixture
def urls_and_tls(tmp_path: Path) -> Iterator[tuple[list[str], Path]]:
    pytest.importorskip("grpc")
    from torchfsl.service.local import LoopbackServers

    with LoopbackServers(tmp_path / "servers", clients=CLIENTS) as servers:
        servers.start()
        yield servers.urls, servers.tls


def test_both_servers_here_and_running_and_plain_end_bit_identical(
    urls_and_tls: tuple[list[str], Path],
) -> None:
    models, (urls, tls) = {}, urls_and_tls
    for protocol in ("fsl", "plain"):
        fed = federated()
        results = in_this_process(fed, fed.local_servers(protocol=protocol))  # type: ignore[arg-type]
        assert all(result.matches_plain and result.num_clients == CLIENTS for result in results)
        models[protocol] = fed.export()

    receipts: list[Any] = []

    def client(number: int) -> None:
        with torchfsl.connect(urls, client_id=number, tls=tls, timeout=60) as servers:
            mine = torchfsl.Federated(*fresh(), plan=servers.plan)
            for _ in servers.rounds(timeout=60):
                receipts.append(block(mine, servers, None, data_of(number)).receipt)

    fed = federated()
    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    with torchfsl.Coordinator(urls, tls=tls) as task:
        task.start(fed)
        found = list(task.rounds(ROUNDS, expected=CLIENTS, timeout=60))
        fed.load(task)
    for thread in threads:
        thread.join()
    models["running"] = fed.export()
    assert [result.num_clients for result in found] == [CLIENTS] * ROUNDS
    assert {r.upload_bytes for r in receipts} == {int(found[0].upload_bytes)}
    for name, value in models["fsl"].items():
        assert torch.equal(value, models["plain"][name])
        assert torch.equal(value, models["running"][name])


def test_running_servers_take_one_value_of_each_public_bin(
    urls_and_tls: tuple[list[str], Path],
) -> None:
    urls, tls = urls_and_tls
    receipts: list[Any] = []

    def client(number: int) -> None:
        with torchfsl.connect(urls, client_id=number, tls=tls, timeout=60) as servers:
            mine = torchfsl.Federated(*fresh(), plan=servers.plan)
            assert mine.hooks.rest == BinTop(300)  # as the plan says
            for _ in itertools.islice(servers.rounds(timeout=60), 2):
                receipts.append(block(mine, servers, None, data_of(number)).receipt)

    fed = federated(rows=None, rows_per_client=None, rest=BinTop(300), above_break_even="keep")
    before = fed.export()
    threads = [threading.Thread(target=client, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    with torchfsl.Coordinator(urls, tls=tls) as task:
        task.start(fed)
        found = list(task.rounds(2, expected=2, timeout=60))
        fed.load(task)
    for thread in threads:
        thread.join()
    assert [result.num_clients for result in found] == [2, 2]
    assert all(not len(r.unmatched["rest"]) for r in receipts)  # both sides have the same bins
    assert len(receipts) == 4
    moved = sum(int((value != before[name]).sum()) for name, value in fed.export().items())
    assert 250 < moved <= 4 * 300


def few_words(clients: int) -> tuple[torchfsl.Federated, dict[int, Batches]]:
    """A table of four rows, as one server needs more clients than submodels."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(4, 8), nn.Linear(8, 2))
    fed = torchfsl.Federated(model, torch.optim.Adagrad(model.parameters(), lr=0.05))
    data = {c: [(words % 4, labels) for words, labels in data_of(c)] for c in range(clients)}
    return fed, data


@pytest.mark.parametrize("system", ["sesa", "sefl"])
def test_other_systems_take_the_same_block(system: str) -> None:
    fed, data = few_words(8)
    if system == "sesa":
        fed.plan = torchfsl.sesa.plan(fed, widths=[(4, 8)], collusion=1, max_isolation=1.0)
    else:
        pytest.importorskip("tenseal")
        model, optimizer = fed.model, fed.hooks.optimizers
        fed.detach()
        fed = torchfsl.Federated(model, optimizer, rows=None)
        fed.plan = torchfsl.sefl.plan(fed, max_clients=8)
    servers = fed.local_servers(server_optimizer=torchfsl.optim.SGD())
    for number in range(ROUNDS):
        with servers.round(data) as result:
            for client, batches in data.items():
                block(fed, servers, client, batches)
        assert (result.number, result.num_clients) == (number, 8)
        assert result.matches_plain
        assert result.loss is not None
    fed.load(servers)
    assert "client" in fed.explain()
    assert "client" in fed.plan.explain()


def test_a_client_of_sefl_that_withdraws_sends_no_update() -> None:
    pytest.importorskip("tenseal")
    model = nn.Sequential(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fed = torchfsl.Federated(model, optimizer)
    fed.plan = torchfsl.sefl.plan(fed, max_clients=4)
    servers = fed.local_servers()
    with servers.round(range(4)) as result:
        for client in range(4):
            with fed.round(servers, client) as rnd:
                optimizer.zero_grad()
                model(torch.ones(2, 3)).sum().backward()
                optimizer.step()
                if client == 1:
                    rnd.withdraw()
            assert ("update" in rnd.receipt.phases) == (client != 1)
    assert (result.clients, result.matches_plain) == ((0, 2, 3), True)


# --- leaving the block ----------------------------------------------------------------------------


def test_an_exception_withdraws_and_leaves_the_model_as_it_was() -> None:
    fed = federated()
    servers = fed.local_servers()
    with servers.round() as result:
        for client in range(2):
            block(fed, servers, client, data_of(client))
        sent = block(fed, servers, 2, data_of(2)).receipt.upload_bytes
    fed.load(servers)
    with servers.round() as result:
        for client in range(2):
            block(fed, servers, client, data_of(client))
        before = {name: value.clone() for name, value in fed.model.state_dict().items()}
        with (  # noqa: PT012
            pytest.raises(RuntimeError, match="mine") as caught,
            fed.round(servers, 2, batches=data_of(2)) as rnd,
        ):
            train(fed.model, fed.hooks.optimizers[0], data_of(2))
            raise RuntimeError("mine")
        assert "all-zero report" in "".join(caught.value.__notes__)
        assert rnd.receipt.upload_bytes == sent  # of the usual size
    assert result.num_clients == 3
    assert result.matches_plain  # its update is in neither sum
    for name, value in fed.model.state_dict().items():
        assert torch.equal(torch.nan_to_num(value), torch.nan_to_num(before[name]))


def test_a_client_may_withdraw_without_an_error() -> None:
    fed = federated()
    servers = fed.local_servers()
    with servers.round() as result:
        for client in range(CLIENTS):
            with fed.round(servers, client, batches=data_of(client)) as rnd:
                train(fed.model, fed.hooks.optimizers[0], data_of(client))
                if client == 2:
                    rnd.withdraw()
        assert rnd.update is None
        with pytest.raises(ProtocolError, match="inside"):
            rnd.withdraw()
    assert result.matches_plain


def test_weight_and_loss_may_be_set_in_the_block() -> None:
    fed = federated(average="weight", max_weight=9)
    servers = fed.local_servers()
    with servers.round() as result:
        for client in range(CLIENTS):
            with fed.round(servers, client, batches=data_of(client)) as rnd:
                train(fed.model, fed.hooks.optimizers[0], data_of(client))
                rnd.weight, rnd.loss = client + 1, torch.tensor(float(client))
                with pytest.raises(ParameterError, match="loss"):
                    rnd.loss = "low"  # type: ignore[assignment]
            assert rnd.loss == client
    assert result.loss == 1.0
    assert result.matches_plain
    assert sum(count.max() for count in result.counts.values()) >= 3


def test_a_weight_of_another_kind_keeps_the_update_for_retry() -> None:
    fed = federated(average="weight", max_weight=9)
    servers = fed.local_servers()
    with servers.round() as result:
        for client in range(2):
            block(fed, servers, client, data_of(client))
        with (  # noqa: PT012
            pytest.raises(ParameterError, match="weight"),
            fed.round(servers, 2, batches=data_of(2)) as rnd,
        ):
            train(fed.model, fed.hooks.optimizers[0], data_of(2))
            rnd.weight = 2.5  # type: ignore[assignment]
        rnd.weight = 2
        assert rnd.retry().upload_bytes == rnd.receipt.upload_bytes
        with pytest.raises(ProtocolError, match="no update to send"):
            rnd.retry()
    assert result.num_clients == 3
    assert result.matches_plain


def test_too_many_rows_are_refused_on_entering_and_the_report_is_as_usual() -> None:
    fed = federated(rows_per_client=30)
    servers = fed.local_servers()
    with servers.round() as result:
        with pytest.raises(ParameterError, match=r"uses 40 rows .* rows_per_client is 30"):
            block(fed, servers, 0, data_of(0))
        for client in (1, 2):
            small = [(words[:2], labels[:2]) for words, labels in data_of(client)]
            block(fed, servers, client, small)
    assert result.num_clients == 3  # one of them with an all-zero report


def test_what_is_given_in_another_place_is_refused_with_the_remedy() -> None:
    fed = federated()
    servers = fed.local_servers()
    with pytest.raises(ProtocolError, match=r"with servers.round\(\)"):
        fed.round(servers, 0, batches=data_of(0))
    with servers.round([0, 1]):
        with pytest.raises(ParameterError, match="client's number"):
            fed.round(servers, batches=data_of(0))
        with pytest.raises(ParameterError, match="batches= or rows=, not both"):
            fed.round(servers, 0, batches=data_of(0), rows=[1])
        with pytest.raises(ParameterError, match=r"call fed\.round\(servers, client_id, batches="):
            fed.round(servers, 0)
        with pytest.raises(ParameterError, match="expected servers"):
            fed.round(0, servers)  # type: ignore[arg-type]
        with pytest.raises(ProtocolError, match="round 0 is open"), servers.round():
            pass
        for client in (0, 1):
            block(fed, servers, client, data_of(client))
    with pytest.raises(TypeError, match="did you mean 'max_clients'"):
        federated(max_client=3)
    with pytest.raises(ParameterError, match="servers learn how many sent each row"):
        federated(average="mean")
    with pytest.raises(ParameterError, match="needs max_weight"):
        federated(average="weight").local_servers()


def test_a_round_that_fails_in_its_block_ends_unopened_and_the_next_one_works() -> None:
    fed = federated()
    servers = fed.local_servers()
    before = {name: value.copy() for name, value in servers.model.state.items()}
    with pytest.raises(KeyError), servers.round():  # noqa: PT012
        block(fed, servers, 0, data_of(0))
        raise KeyError
    assert all((servers.model.state[name] == value).all() for name, value in before.items())
    with pytest.raises(ProtocolError), servers.round():
        block(fed, servers, 0, data_of(0))  # fewer than min_clients
    with servers.round() as result:
        for client in range(2):
            block(fed, servers, client, data_of(client))
    assert (result.number, result.num_clients) == (2, 2)
