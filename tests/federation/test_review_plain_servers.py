"""Plain sums refuse and count what the protocol's servers refuse and count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch

import torchfsl
from tests.federation.test_one_block import block, data_of, federated, train
from torchfsl.errors import Error, ParameterError, ProtocolError, RejectedSubmission

Kind = Literal["fsl", "plain"]


def fails(fed: torchfsl.Federated, servers: Any, client: int) -> None:
    with pytest.raises(KeyError), fed.round(servers, client, batches=data_of(client)):
        raise KeyError


def withdraws(fed: torchfsl.Federated, servers: Any, client: int) -> None:
    with fed.round(servers, client, batches=data_of(client)) as rnd:
        train(fed.model, fed.hooks.optimizers[0], data_of(client))
        rnd.withdraw()


def diverges(fed: torchfsl.Federated, servers: Any, client: int) -> None:
    with (
        pytest.raises(ParameterError, match="NaN"),
        fed.round(servers, client, batches=data_of(client)),
        torch.no_grad(),
    ):
        fed.hooks.optimizers[0].param_groups[0]["params"][1].fill_(torch.nan)


def names_a_wrong_row(fed: torchfsl.Federated, servers: Any, client: int) -> None:
    with pytest.raises(ParameterError, match="outside"), fed.round(servers, client, rows=[-5]):
        pass


def claims_too_much(fed: torchfsl.Federated, servers: Any, client: int) -> None:
    with (
        pytest.raises(ParameterError, match="weight"),
        fed.round(servers, client, batches=data_of(client)) as rnd,
    ):
        rnd.weight = 1000


@pytest.mark.parametrize(
    ("does", "weighted"),
    [(fails, False), (withdraws, False), (diverges, False), (names_a_wrong_row, False),
     (fails, True), (withdraws, True), (claims_too_much, True)],
)  # fmt: skip
def test_a_client_that_adds_nothing_counts_as_under_the_protocol(does: Any, weighted: bool) -> None:
    found = {}
    kinds: tuple[Kind, Kind] = ("fsl", "plain")
    for protocol in kinds:
        options = {"average": "weight", "max_weight": 9} if weighted else {}
        fed = federated(**options)
        servers = fed.local_servers(protocol=protocol)
        for number in range(2):
            with servers.round() as result:
                for client in range(2):
                    block(fed, servers, client, data_of(client))
                if number:
                    does(fed, servers, 2)
                else:
                    block(fed, servers, 2, data_of(2))
            assert (result.num_clients, result.clients) == (3, (0, 1, 2))
            assert result.matches_plain
        fed.load(servers)
        found[protocol] = fed.export()
    for name, value in found["fsl"].items():
        assert torch.equal(value, found["plain"][name]), name


def twice(fed: torchfsl.Federated, servers: Any) -> None:
    with servers.round():
        for client in (0, 1, 1):
            block(fed, servers, client, data_of(client))


def after_withdrawing(fed: torchfsl.Federated, servers: Any) -> None:
    with servers.round():
        block(fed, servers, 0, data_of(0))
        withdraws(fed, servers, 1)
        block(fed, servers, 1, data_of(1))


def too_many(fed: torchfsl.Federated, servers: Any) -> None:
    with servers.round():
        for client in range(4):
            block(fed, servers, client, data_of(client))


def of_the_last_round(fed: torchfsl.Federated, servers: Any) -> None:
    with servers.round():
        for client in (0, 1):
            block(fed, servers, client, data_of(client))
        late = fed.round(servers, 2, batches=data_of(2))
    with servers.round():
        for client in (0, 1):
            block(fed, servers, client, data_of(client))
        with late:
            train(fed.model, fed.hooks.optimizers[0], data_of(2))


def the_same_block_again(fed: torchfsl.Federated, servers: Any) -> None:
    with servers.round():
        block(fed, servers, 0, data_of(0))
        rnd = block(fed, servers, 1, data_of(1))
        with rnd:
            train(fed.model, fed.hooks.optimizers[0], data_of(1))


@pytest.mark.parametrize("protocol", ["fsl", "plain"])
@pytest.mark.parametrize(
    "does", [twice, after_withdrawing, too_many, of_the_last_round, the_same_block_again]
)
def test_a_report_that_no_server_takes_is_refused(
    does: Callable[[torchfsl.Federated, Any], None], protocol: Kind
) -> None:
    fed = federated()
    with pytest.raises(RejectedSubmission):
        does(fed, fed.local_servers(protocol=protocol))


@pytest.mark.parametrize("protocol", ["fsl", "plain"])
def test_an_update_that_was_kept_does_not_reach_a_later_round(protocol: Kind) -> None:
    fed = federated(average="weight", max_weight=9)
    servers = fed.local_servers(protocol=protocol)
    with servers.round():
        for client in range(2):
            block(fed, servers, client, data_of(client))
        with (  # noqa: PT012
            pytest.raises(ParameterError, match="weight"),
            fed.round(servers, 2, batches=data_of(2)) as rnd,
        ):
            train(fed.model, fed.hooks.optimizers[0], data_of(2))
            rnd.weight = 2.5  # type: ignore[assignment]
    rnd.weight = 2
    with servers.round() as result:
        with pytest.raises(Error, match="round 0"):
            rnd.retry()
        for client in range(2):
            block(fed, servers, client, data_of(client))
    assert (result.num_clients, result.matches_plain) == (2, True)


@pytest.mark.parametrize("protocol", ["fsl", "plain"])
def test_a_sum_of_too_few_is_not_opened(protocol: Kind) -> None:
    fed = federated()
    servers = fed.local_servers(protocol=protocol)
    before = {name: value.copy() for name, value in servers.model.state.items()}
    with pytest.raises(ProtocolError, match="min_clients"), servers.round():
        block(fed, servers, 0, data_of(0))
    assert all((servers.model.state[name] == value).all() for name, value in before.items())
