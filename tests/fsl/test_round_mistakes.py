"""Mistakes in putting a round together are refused before anything is opened."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.engine_setup import plan_of
from tests.support.errors import raises
from tests.support.federation import make_servers, mixed_plan
from torchfsl import (
    Dense,
    FixedPoint,
    TopK,
    estimate,
)
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.round import Round
from torchfsl.engine.settings import Settings
from torchfsl.errors import ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl import Client, Server
from torchfsl.fsl.explain import explain
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.states import RoundState
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.server_optimizers import ServerAdam


def attached() -> tuple[Hooks, torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(20_000, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Hooks(model, optimizer), model, optimizer


def test_one_model_object_at_both_servers_is_refused() -> None:
    first, second = make_servers(mixed_plan())
    twin = Server(1, plan=first.plan, model=first.model)
    with raises(ParameterError, "shared-model"):
        begin_round((first, twin), 0)
    assert first.state is RoundState.IDLE
    begin_round((first, second), 0)


def test_a_second_call_that_finishes_a_round_leaves_it_to_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers = make_servers(mixed_plan())
    begin_round(servers, 0)
    client = Client(servers[0].plan, servers, client_id=0)
    client.start_round(0, indices={"table": [1]}).abort()
    entered, go_on = threading.Event(), threading.Event()
    agree = servers[1].agree

    def slow(peer_set: bytes) -> bytes:
        entered.set()
        assert go_on.wait(60)
        return agree(peer_set)

    monkeypatch.setattr(servers[1], "agree", slow)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(finish_round, servers)
        try:
            assert entered.wait(60)
            with pytest.raises(
                ProtocolError, match=r"round is open .*'agreed' and 'closed'.* wait until"
            ):
                finish_round(servers)
        finally:
            go_on.set()
        assert first.result().clients == (0,)
    with raises(ProtocolError, "no-open-round"):
        finish_round(servers)


def test_servers_in_the_wrong_order_are_refused() -> None:
    first, second = make_servers(mixed_plan())
    with raises(ParameterError, "server-order"):
        begin_round((second, first), 0)
    begin_round((first, second), 0)


def test_a_server_is_party_0_or_1() -> None:
    first, _ = make_servers(mixed_plan())
    with pytest.raises(ParameterError, match="party is 2"):
        Server(2, plan=first.plan, model=first.model)


WRONG_NUMBERS = [-1, 2**64, 1.0, "0", True, None]


@pytest.mark.parametrize("number", WRONG_NUMBERS)
def test_client_and_round_numbers_are_whole_numbers_below_2_to_the_64(number: Any) -> None:
    servers = make_servers(mixed_plan())
    plan = servers[0].plan
    with pytest.raises(ParameterError, match=r"client_id is .*\[0, 2\*\*64\)"):
        Client(plan, servers, client_id=number)
    with pytest.raises(ParameterError, match=r"round_number is .*\[0, 2\*\*64\)"):
        begin_round(servers, number)
    assert [server.state for server in servers] == [RoundState.IDLE] * 2
    client = Client(plan, servers, client_id=np.uint64(2**64 - 1))  # type: ignore[arg-type]
    begin_round(servers, 0)
    with pytest.raises(ParameterError, match=r"round_number is .*\[0, 2\*\*64\)"):
        client.start_round(number, indices={"table": [1]})
    client.start_round(np.int64(0), indices={"table": [1]}).abort()  # type: ignore[arg-type]
    finish_round(servers)


@pytest.mark.parametrize("number", WRONG_NUMBERS[:-1])
def test_a_round_around_training_has_such_a_number(number: Any) -> None:
    hooks, _, _ = attached()
    plan = plan_of(hooks, max_clients=5, rows_per_client=100)
    servers = tuple(Server(b, plan=plan, model=ServerModel(hooks.server_state())) for b in (0, 1))
    client = Client(plan, servers, client_id=0)
    with pytest.raises(ParameterError, match=r"number is .*\[0, 2\*\*64\)"):
        Round(hooks, client, rows=[1], number=number)


@pytest.mark.parametrize("options", [{"rest": "dense"}, {"rest": Dense}, {"rows": TopK(3)}])
def test_policies_are_objects(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ParameterError, match=f"^{name} is .*: pass"):
        Settings(**options)


@pytest.mark.parametrize(
    "options", [{"session": "x"}, {"session": b""}, {"session": bytes(15)}, {"hash_seed": "y"}]
)
def test_session_and_hash_seed_are_bytes(options: dict[str, Any]) -> None:
    hooks, _, _ = attached()
    (name,) = options
    with pytest.raises(ParameterError, match=f"^{name} is .*: pass (16|32) bytes, or None"):
        plan_of(hooks, max_clients=5, rows_per_client=100, **options)


@pytest.mark.parametrize("state", [None, [1.0], "model"])
def test_a_model_at_a_server_starts_from_a_mapping(state: Any) -> None:
    with raises(ParameterError, "wrong-type"):
        ServerModel(state)


@pytest.mark.parametrize(("max_clients", "min_clients"), [(5, 9), (1, 2), (99, 100)])
def test_a_minimum_above_the_maximum_is_refused_and_not_lowered(
    max_clients: int, min_clients: int
) -> None:
    hooks, _, _ = attached()
    with pytest.raises(ParameterError, match="min_clients"):
        plan_of(hooks, max_clients=max_clients, min_clients=min_clients, rows_per_client=100)


@pytest.mark.parametrize(
    "options", [{"max_clients": 5.5}, {"min_clients": 2.5}, {"rows_per_client": 70.5}]
)
def test_public_numbers_are_integers(options: dict[str, Any]) -> None:
    hooks, _, _ = attached()
    with pytest.raises(ParameterError, match="int"):
        plan_of(hooks, **{"max_clients": 5, "rows_per_client": 100, **options})


def test_loading_inside_a_round_is_refused_and_loses_nothing() -> None:
    hooks, model, optimizer = attached()
    state = hooks.server_state()
    hooks.begin_round()
    model(torch.randint(0, 20_000, (3, 2))).sum().backward()
    optimizer.step()
    trained = model[1].weight.detach().clone()
    with pytest.raises(ProtocolError, match="a round is open"):
        hooks.load(state)
    assert torch.equal(model[1].weight, trained)
    hooks.close_round()
    hooks.load(state)
    assert not torch.equal(model[1].weight, trained)


def test_loading_nothing_is_refused() -> None:
    hooks, _, _ = attached()
    with pytest.raises(ParameterError, match="got an empty mapping: pass ServerModel"):
        hooks.load({})


def test_a_round_that_retrieves_every_tensor_downloads_none_and_goes_on() -> None:
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(20_000, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks = Hooks(model, optimizer)
    plan = plan_of(hooks, max_clients=1, min_clients=1, rows_per_client=100)
    state = hooks.server_state()
    servers = tuple(Server(b, plan=plan, model=ServerModel(state)) for b in (0, 1))
    begin_round(servers, 0)
    client = Client(plan, servers, client_id=0)
    with Round(hooks, client, rows=[3, 4], number=0):
        model(torch.tensor([[3, 4]])).sum().backward()
        optimizer.step()
    finish_round(servers)
    assert not (servers[0].model.state["0.weight"][3:5] == state["0.weight"][3:5]).any()


def test_parts_in_anothers_place_are_refused_when_they_are_given() -> None:
    servers = make_servers(mixed_plan())
    plan, model = servers[0].plan, servers[0].model
    for make, message in [
        (lambda: Server(0, plan=model, model=model), "plan is of type ServerModel: pass"),
        (lambda: Server(0, plan=plan, model=model.state), "model is of type dict: pass Server"),
        (lambda: Client(model, servers, client_id=0), "plan is of type ServerModel: pass"),
        (lambda: Client(plan, servers[0], client_id=0), "servers is of type Server: pass the pair"),
        (
            lambda: Client(plan, (*servers, servers[0]), client_id=0),
            "expected two servers, got 3: pass the pair",
        ),
        (lambda: Client(plan, (plan, plan), client_id=0), "one of the servers is of type Plan"),
        (lambda: Client(plan, Server, client_id=0), "servers is the class Server"),
        (lambda: begin_round(servers[0], 0), "the argument servers is of type Server"),
        (lambda: begin_round((plan, plan), 0), "one element is of type Plan"),
        (lambda: begin_round(servers[:1], 0), r"in this order, and got \[0\]"),
        (lambda: finish_round(plan), "the argument servers is of type Plan"),
        (lambda: explain(model), "plan is of type ServerModel: pass fed.plan, of torchfsl"),
        (lambda: estimate(model), "plan is of type ServerModel: pass fed.plan, of torchfsl"),
    ]:
        with pytest.raises(ParameterError, match=message):
            make()
    assert [server.state for server in servers] == [RoundState.IDLE] * 2


def test_a_list_of_both_servers_is_the_pair() -> None:
    servers = make_servers(mixed_plan())
    client = Client(servers[0].plan, list(servers), client_id=0)  # type: ignore[arg-type]
    begin_round(servers, 0)
    assert client.open_number() == 0


def test_a_number_that_is_none_is_named_before_the_open_round() -> None:
    servers = make_servers(mixed_plan())
    begin_round(servers, 0)
    with pytest.raises(ParameterError, match="round_number is '5'"):
        begin_round(servers, "5")  # type: ignore[arg-type]
    assert [server.state for server in servers] == [RoundState.OPEN] * 2


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_holders_of_secrets_are_neither_pickled_nor_copied(take: Any) -> None:
    servers = make_servers(mixed_plan())
    with pytest.raises(
        TypeError, match=r"Client holds one-time secrets.* make Client\(plan, servers"
    ):
        take(Client(servers[0].plan, servers, client_id=0))
    with pytest.raises(
        TypeError, match=r"Server holds one-time secrets.* make Server\(party, plan"
    ):
        take(servers[0])


def test_a_client_that_starts_again_in_a_round_hears_what_that_costs_it() -> None:
    servers = make_servers(mixed_plan())
    begin_round(servers, 0)
    client = Client(servers[0].plan, servers, client_id=0)
    client.start_round(0, indices={"table": [1]}).abort()
    with pytest.raises(RejectedSubmission, match=r"^client 0: trees after .* in the next round$"):
        client.start_round(0, indices={"table": [1]})
    with pytest.raises(ProtocolError):
        finish_round(servers)  # its first report is out, too
    begin_round(servers, 1)
    client.start_round(1, indices={"table": [1]}).abort()
    assert finish_round(servers).clients == (0,)


@pytest.mark.parametrize("optimizer", [0.1, ServerAdam, torch.optim.SGD, "adam", object()])
def test_a_model_at_a_server_takes_an_optimizer_of_servers(optimizer: Any) -> None:
    with pytest.raises(ParameterError, match=r"the server's optimizer is .*: (pass|make)"):
        ServerModel({"w": np.zeros(3)}, optimizer)


def test_a_torch_optimizer_at_a_server_is_told_its_wrapper() -> None:
    with pytest.raises(ParameterError, match=r"of type SGD: .*TorchOptimizer"):
        ServerModel({}, torch.optim.SGD([torch.zeros(1)], lr=1.0))  # type: ignore[arg-type]


def test_whole_numbers_of_numpy_make_the_same_plan() -> None:
    hooks, _, _ = attached()
    same: dict[str, Any] = {"session": bytes(16), "hash_seed": bytes(32)}
    mine = plan_of(hooks, max_clients=5, min_clients=2, rows_per_client=100, max_rounds=7, **same)
    for given in (100, {"rows4": 100}, {"0": 100}):
        budget = (
            {name: np.int32(value) for name, value in given.items()}
            if isinstance(given, dict)
            else np.int64(given)
        )
        theirs = plan_of(
            hooks, max_clients=np.int64(5), min_clients=np.uint8(2), rows_per_client=budget,  # type: ignore[arg-type]
            max_rounds=np.int16(7), **same,
        )  # fmt: skip
        assert theirs.to_json() == mine.to_json()
        assert type(theirs.max_clients) is int
    assert FixedPoint(np.int64(32), np.int64(16), np.float32(4)) == FixedPoint(32, 16, 4.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_clients": True}, "max_clients is True, not an integer"),
        ({"max_epochs": "2"}, "max_epochs"),
        ({"rows_per_client": True}, "rows_per_client of rows4 is True, not an integer"),
        ({"rows_per_client": "20"}, "rows_per_client of rows4 is '20', not an integer"),
        ({"rows_per_client": {"0": "20"}}, "rows_per_client of 0 is '20'"),
        ({"retrieve": "no"}, "retrieve is of type str: choose True, False or None"),
    ],
)
def test_options_of_another_kind_are_named(options: dict[str, Any], message: str) -> None:
    hooks, _, _ = attached()
    with pytest.raises(ParameterError, match=message):
        plan_of(hooks, **{"max_clients": 5, "rows_per_client": 100, **options})


@pytest.mark.parametrize("encoding", ["32", {"ring_bits": 16}, 32, FixedPoint])
def test_an_encoding_is_a_fixed_point(encoding: Any) -> None:
    with pytest.raises(ParameterError, match=r"encoding is .*: pass FixedPoint"):
        Settings(encoding=encoding)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"clip": "4"}, "clip is of type str: pass a number"),
        ({"clip": None}, "clip is None: pass a number"),
        ({"clip": True}, "clip is of type bool"),
        ({"ring_bits": 32.0}, "ring_bits is 32.0, not an integer"),
        ({"frac_bits": "16"}, "frac_bits is '16', not an integer"),
    ],
)
def test_fields_of_an_encoding_are_numbers(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        FixedPoint(**fields)
