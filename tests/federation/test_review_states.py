"""A client's state stays with it where a block fails to start, is dropped, or is saved between."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR

import torchfsl
from tests.federation.test_client_state import Counting, Net, data_of, play, steps
from torchfsl.errors import ParameterError, ProtocolError

Make = Callable[[nn.Module], Any]
OPTIMIZERS: dict[str, Make] = {
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.05),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9),
    "counter in the group": lambda m: Counting(m.parameters(), "group"),
    "counter on the optimizer": lambda m: Counting(m.parameters(), "attribute"),
}


def made(make: Make) -> tuple[Net, Any, torchfsl.Federated]:
    model = Net()
    optimizer = make(model)
    fed = torchfsl.Federated(model, optimizer, max_clients=4, min_clients=1, rows_per_client=100)
    return model, optimizer, fed


def starts_without_servers(fed: torchfsl.Federated, servers: Any, model: Net) -> None:
    """The block of client 3 fails as the network fails."""
    link, fetch = servers._home.link, servers._home.link.fetch

    def fail(*_: Any) -> bytes:
        raise ProtocolError("no network")

    link.fetch = fail
    try:
        with pytest.raises(ProtocolError, match="no network"):
            play(fed, servers, 3, lambda: None)
    finally:
        link.fetch = fetch


def is_dropped(fed: torchfsl.Federated, servers: Any, model: Net) -> None:
    """A block of client 3 that trains and is never left, as in a generator that nobody ends."""
    rnd = fed.round(servers, 3, rows={"words": data_of(3)[0]})
    rnd.__enter__()
    steps(model, fed.hooks.optimizers[0], 3)
    del rnd
    gc.collect()


@pytest.mark.parametrize("mode", ["own", "fresh"])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("odd", [starts_without_servers, is_dropped])
def test_a_block_that_ends_early_leaves_other_clients_their_state(
    odd: Any, make: Make, mode: Any
) -> None:
    def run(*, disturbed: bool) -> dict[str, np.ndarray]:
        model, optimizer, fed = made(make)
        fed.hooks.states.mode = mode
        servers = fed.local_servers()
        for number in range(3):
            with servers.round():
                for client in range(3):
                    if disturbed and number == 1 and client:
                        odd(fed, servers, model)
                        odd(fed, servers, model)
                    play(fed, servers, client, lambda c=client: steps(model, optimizer, c))  # type: ignore[misc]
        return dict(servers.model.state)

    want, got = run(disturbed=False), run(disturbed=True)
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


@pytest.mark.parametrize("kept", ["lr", "momentum", "note", "state", "nothing"])
def test_what_the_caller_changed_before_a_checkpoint_is_in_it_for_all_clients(kept: str) -> None:
    """The last client's state is at hand while it is saved; a change is everybody's."""

    def change(optimizer: Any, number: int) -> None:
        if kept == "state":
            optimizer.state.clear()
        elif kept == "note":
            optimizer.param_groups[0]["note"] = number
        elif kept != "nothing":
            optimizer.param_groups[0][kept] *= 0.5

    def run(stop: int) -> dict[str, np.ndarray]:
        make = lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)  # noqa: E731
        model, optimizer, fed = made(make)
        servers = fed.local_servers()
        for number in range(4):
            if number == stop:
                saved = copy.deepcopy((fed.state_dict(), servers.state_dict()))
                model, optimizer, fed = made(make)
                fed.plan = torchfsl.Plan.from_json(saved[0]["plan"])
                servers = fed.local_servers()
                fed.load_state_dict(saved[0])
                servers.load_state_dict(saved[1])
            with servers.round():
                for client in range(3):
                    play(fed, servers, client, lambda c=client: steps(model, optimizer, c))  # type: ignore[misc]  # noqa: B023
            if number < 2:
                change(optimizer, number)
        return dict(servers.model.state)

    whole = run(-1)
    for stop in (1, 2, 3):
        for name, value in run(stop).items():
            np.testing.assert_array_equal(value, whole[name], err_msg=f"{name}, stopped at {stop}")


def test_a_schedule_of_rounds_goes_on_after_a_checkpoint() -> None:
    rates: list[float] = []
    model, optimizer, fed = made(OPTIMIZERS["Adam"])
    schedule, servers = ExponentialLR(optimizer, 0.5), fed.local_servers()
    for number in range(4):
        if number == 2:
            states = copy.deepcopy((fed.state_dict(), schedule.state_dict(), servers.state_dict()))
            model, optimizer, fed = made(OPTIMIZERS["Adam"])
            schedule = ExponentialLR(optimizer, 0.5)
            fed.plan = torchfsl.Plan.from_json(states[0]["plan"])
            servers = fed.local_servers()
            schedule.load_state_dict(states[1])
            fed.load_state_dict(states[0])
            servers.load_state_dict(states[2])

        def train(client: int) -> None:
            rates.append(optimizer.param_groups[0]["lr"])  # noqa: B023
            steps(model, optimizer, client)  # noqa: B023

        with servers.round():
            for client in range(2):
                play(fed, servers, client, lambda c=client: train(c))  # type: ignore[misc]
        schedule.step()
    assert rates == [0.05, 0.05, 0.025, 0.025, 0.0125, 0.0125, 0.00625, 0.00625]


def test_a_checkpoint_in_memory_does_not_change_while_rounds_go_on() -> None:
    model, optimizer, fed = made(OPTIMIZERS["counter in the group"])
    servers = fed.local_servers()

    def one_round() -> None:
        with servers.round():
            for client in range(2):
                play(fed, servers, client, lambda c=client: steps(model, optimizer, c))  # type: ignore[misc]

    one_round()
    saved = fed.state_dict()
    before = copy.deepcopy(saved["states"]["base"]["groups"])
    optimizer.param_groups[0]["lr"] = 9.0
    one_round()
    assert saved["states"]["base"]["groups"] == before


def test_a_group_that_was_added_between_rounds_is_refused_by_name_and_a_report_went() -> None:
    model, optimizer, fed = made(OPTIMIZERS["Adam"])
    servers = fed.local_servers()
    with servers.round() as result:
        play(fed, servers, 0, lambda: steps(model, optimizer, 0))
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
        with pytest.raises(ParameterError, match="parameter group 1 of Adam"):
            play(fed, servers, 1, lambda: steps(model, optimizer, 1))
    assert result.num_clients == 2
