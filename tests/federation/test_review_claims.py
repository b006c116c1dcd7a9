"""Several `Federated` on one model, or on models that share a part: one round at a time."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
from torch import nn

import torchfsl
from tests.federation.test_one_block import block, data_of, federated, train
from torchfsl.errors import ProtocolError


def made(model: nn.Module, **options: Any) -> torchfsl.Federated:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return torchfsl.Federated(model, optimizer, max_clients=3, rows_per_client=64, **options)


def shared(kind: str) -> tuple[torchfsl.Federated, torchfsl.Federated]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(5000, 8), nn.Linear(8, 2))
    if kind == "one model":
        return made(model), made(model)
    if kind == "wrapped":
        return made(model), made(nn.DataParallel(model))
    if kind == "a part":
        return made(model), made(nn.Sequential(model[0]))
    if kind == "the whole":
        return made(nn.Sequential(model[0])), made(model)
    return made(nn.Sequential(model[0], nn.Linear(8, 2))), made(model)  # a common table


@pytest.mark.parametrize("kind", ["one model", "wrapped", "a part", "the whole", "a common part"])
def test_a_round_within_another_ones_block_is_refused_and_neither_sum_is_wrong(kind: str) -> None:
    """It would load its servers' model as a change of the outer block."""
    one, other = shared(kind)
    here, there = one.local_servers(), other.local_servers()
    batches = data_of(0)
    with here.round() as outer, there.round() as inner:
        with one.round(here, 0, batches=batches):
            with pytest.raises(ProtocolError, match="a round is open on this model"):
                other.round(there, 0, batches=batches).__enter__()
            one.model(batches[0][0]).sum().backward()
            one.hooks.optimizers[0].step()
        with one.round(here, 1, batches=batches):
            pass
        for client in (0, 1):  # after the block it may, also this client
            with other.round(there, client, batches=batches):
                other.model(batches[0][0]).sum().backward()
                other.hooks.optimizers[0].step()
    for result in (outer, inner):
        assert (result.num_clients, result.matches_plain) == (2, True)


def test_models_apart_train_in_threads_at_once() -> None:
    feds = [federated() for _ in range(3)]
    servers = feds[0].local_servers()
    inside = threading.Barrier(3, timeout=60)

    def run(client: int) -> None:
        with feds[client].round(servers, client, batches=data_of(client)):
            train(feds[client].model, feds[client].hooks.optimizers[0], data_of(client))
            inside.wait()

    with servers.round() as result:
        threads = [threading.Thread(target=run, args=(client,)) for client in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (result.num_clients, result.matches_plain) == (3, True)


def test_a_dropped_round_of_one_frees_the_model_for_another() -> None:
    one, other = shared("one model")
    here, there = one.local_servers(), other.local_servers()
    with here.round() as result:
        dropped = other
        with there.round():
            rnd: Any = dropped.round(there, 0, batches=data_of(0))
            rnd.__enter__()
            del rnd
            gc.collect()
            for client in (0, 1):
                block(one, here, client, data_of(client))
            for client in (1, 2):
                block(other, there, client, data_of(client))
    assert (result.num_clients, result.matches_plain) == (2, True)
