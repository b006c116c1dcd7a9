"""The weight of a client is private: one that is out of range must not keep the client silent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from torchfsl import Federated, LocalServers
from torchfsl.errors import ParameterError

BATCHES = [torch.tensor([[1, 2], [3, 4]])]
TOO_MUCH = [4, 0, -1, 1 << 40, np.int64(4)]


def build(**options: Any) -> Federated:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(300, 2), torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    default: dict[str, Any] = {"average": "weight", "max_weight": 3, "above_break_even": "keep"}
    return Federated(model, optimizer, max_clients=3, rows_per_client=4, **{**default, **options})


def train(fed: Federated) -> None:
    fed.hooks.optimizers[0].zero_grad()
    fed.model(*BATCHES).sum().backward()
    fed.hooks.optimizers[0].step()


@contextlib.contextmanager
def two_others(fed: Federated, servers: LocalServers) -> Iterator[Any]:
    """A round in which clients 1 and 2 have weight 2."""
    with servers.round() as result:
        yield result
        for client in (1, 2):
            with fed.round(servers, client, batches=BATCHES, weight=2):
                train(fed)


@pytest.mark.parametrize("retrieve", [True, False])
@pytest.mark.parametrize("bad", TOO_MUCH)
def test_a_weight_out_of_range_is_refused_on_entering_and_both_servers_get_a_report(
    bad: Any, retrieve: bool
) -> None:
    fed = build(retrieve=retrieve)
    servers, before = fed.local_servers(), fed.server_state()
    with two_others(fed, servers) as result:
        rnd = fed.round(servers, 0, batches=BATCHES, weight=bad)
        with pytest.raises(ParameterError, match=r"max_weight=3.*pass max\(1, min\(weight, 3\)\)"):
            rnd.__enter__()
        now = fed.server_state()
        assert all(np.array_equal(now[name], value) for name, value in before.items())
    assert result.clients == (0, 1, 2)
    assert servers.model.digest() != type(servers.model)(before).digest()


@pytest.mark.parametrize("bad", TOO_MUCH)
def test_a_weight_out_of_range_set_in_the_block_is_refused_by_a_report_too(bad: Any) -> None:
    fed = build()
    servers = fed.local_servers()
    with two_others(fed, servers) as result:
        rnd = fed.round(servers, 0, batches=BATCHES)
        rnd.__enter__()
        train(fed)
        rnd.weight = bad
        with pytest.raises(ParameterError, match=r"pass max\(1, min\(weight, 3\)\)"):
            rnd.__exit__(None, None, None)
        assert rnd.update is None
    assert result.clients == (0, 1, 2)


def test_the_report_of_a_refused_weight_has_the_size_of_all_others() -> None:
    fed = build()
    servers = fed.local_servers()
    with two_others(fed, servers) as result:
        rnd = fed.round(servers, 0, batches=BATCHES, weight=4)
        with pytest.raises(ParameterError):
            rnd.__enter__()
    with servers.round() as usual:
        for client in range(3):
            with fed.round(servers, client, batches=BATCHES, weight=2):
                train(fed)
    assert result.upload_bytes == usual.upload_bytes


@pytest.mark.parametrize("bad", [1.5, 2.0, "2", None, float("nan")])
def test_a_weight_that_is_not_a_whole_number_is_refused_at_once(
    bad: Any,
) -> None:
    fed = build()
    servers = fed.local_servers()
    refused = pytest.raises(ParameterError, match="a whole number")
    with two_others(fed, servers) as result, refused:
        fed.round(servers, 0, batches=BATCHES, weight=bad)
    assert result.clients == (1, 2)


@pytest.mark.parametrize("average", ["clients", "rows"])
def test_a_weight_under_a_plan_without_weights_is_refused_at_once(average: str) -> None:
    fed = build(average=average, max_weight=1)
    servers = fed.local_servers()
    with pytest.raises(ParameterError, match="leave out weight"), servers.round():
        fed.round(servers, 0, batches=BATCHES, weight=2)
