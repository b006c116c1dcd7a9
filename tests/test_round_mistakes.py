"""Mistakes in putting a round together are refused before anything is opened."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from federation import make_servers, mixed_plan

from torchfsl import Dense, Server, SubmodelEngine
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.round import begin_round
from torchfsl.server import RoundState


def attached() -> tuple[SubmodelEngine, Any, torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(20_000, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = SubmodelEngine(rows="auto", rest=Dense())
    return engine, engine.attach(model, optimizer), model, optimizer


def test_one_model_object_at_both_servers_is_refused() -> None:
    first, second = make_servers(mixed_plan())
    twin = Server(1, plan=first.plan, model=first.model)
    with pytest.raises(ParameterError, match="one ServerModel object"):
        begin_round((first, twin), 0)
    assert first.state is RoundState.IDLE
    begin_round((first, second), 0)


def test_servers_in_the_wrong_order_are_refused() -> None:
    first, second = make_servers(mixed_plan())
    with pytest.raises(ParameterError, match="in this order"):
        begin_round((second, first), 0)
    begin_round((first, second), 0)


def test_a_server_is_party_0_or_1() -> None:
    first, _ = make_servers(mixed_plan())
    with pytest.raises(ParameterError, match="party is 2"):
        Server(2, plan=first.plan, model=first.model)


@pytest.mark.parametrize(("max_clients", "min_clients"), [(5, 9), (1, 2), (99, 100)])
def test_a_minimum_above_the_maximum_is_refused_and_not_lowered(
    max_clients: int, min_clients: int
) -> None:
    engine, handle, _, _ = attached()
    with pytest.raises(ParameterError, match="min_clients"):
        engine.plan(handle, max_clients=max_clients, min_clients=min_clients, rows_per_client=100)


@pytest.mark.parametrize(
    "options", [{"max_clients": 5.5}, {"min_clients": 2.5}, {"rows_per_client": 70.5}]
)
def test_public_numbers_are_integers(options: dict[str, Any]) -> None:
    engine, handle, _, _ = attached()
    with pytest.raises(ParameterError, match="int"):
        engine.plan(handle, **{"max_clients": 5, "rows_per_client": 100, **options})


def test_loading_inside_a_round_is_refused_and_loses_nothing() -> None:
    _, handle, model, optimizer = attached()
    state = handle.server_state()
    handle.begin_round()
    model(torch.randint(0, 20_000, (3, 2))).sum().backward()
    optimizer.step()
    trained = model[1].weight.detach().clone()
    with pytest.raises(ProtocolError, match="a round is open"):
        handle.load(state)
    assert torch.equal(model[1].weight, trained)
    handle.close_round()
    handle.load(state)
    assert not torch.equal(model[1].weight, trained)
