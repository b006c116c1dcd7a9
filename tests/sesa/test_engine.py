"""Where the engine docks: a torch model whose submodels are rows of a table, trained in rounds."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from models import MLP
from torchfsl import Federated, FixedPoint, TopK, sesa
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.round import Round
from torchfsl.errors import ParameterError
from torchfsl.fsl import Plan
from torchfsl.sesa import OneServer, SesaPlan, Sharded, Width
from torchfsl.submodel.plain import Plain
from torchfsl.submodel.server_model import ServerModel

INPUT, CLASSES, SHARDS = 5, 3, 4
TAKES = (4, 1)  # shards of each layer that a client of each width takes
WIDTHS = [({"rows12": 8, "rows6": 16}, 18), ({"rows12": 2, "rows6": 1}, 4)]


def network() -> Sharded:
    """Two hidden layers; tables `units.0` and `units.1` are one segment, `links.0` is another."""
    torch.manual_seed(4)
    return Sharded(MLP(inputs=INPUT, hidden=(8, 12), classes=CLASSES), shards=SHARDS)


def federated(net: Sharded) -> Federated:
    encoding = FixedPoint(ring_bits=32, frac_bits=16, clip=4.0)
    return Federated(net, torch.optim.SGD(net.parameters(), lr=0.2), encoding=encoding)


def clear_plan(fed: Federated) -> Plan:
    return fed.make_plan(
        max_clients=22, rows_per_client=SHARDS**2, above_break_even="keep", session=bytes(16)
    )


def chosen(number: int, client: int, count: int) -> list[list[int]]:
    choose = random.Random(100 * number + client)
    return [sorted(choose.sample(range(SHARDS), count)) for _ in range(2)]


def train(net: Sharded, hooks: Hooks, seed: int) -> None:
    data = torch.Generator().manual_seed(seed)
    x = torch.randn(20, INPUT, generator=data)
    y = torch.randint(CLASSES, (20,), generator=data)
    hooks.optimizers[0].zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    hooks.optimizers[0].step()


def digests(protected: bool) -> list[bytes]:
    """Of the server's model after each of three rounds of ten clients, two of which drop out."""
    net = network()
    fed = federated(net)
    drawn = clear_plan(fed)
    plan = sesa.plan(fed, widths=WIDTHS, collusion=2, dropouts=2)
    state = ServerModel(fed.server_state())
    widths = {client: int(client >= 18) for client in range(22)}
    aggregation = OneServer(plan, state, widths) if protected else Plain(drawn, state)
    found = []
    for number in range(3):
        aggregation.open_round(number, range(22))
        for client in range(22):
            if client in (number, 19):
                continue
            taken = chosen(number, client, TAKES[widths[client]])
            net.take(taken)
            participant = aggregation.participant(client)
            with Round(fed.hooks, participant, rows=net.rows(taken), number=number):
                train(net, fed.hooks, 100 * number + client)
        aggregation.close_round()
        found.append(aggregation.model.digest())
    assert len(set(found)) == 3
    assert all(np.isfinite(value).all() for value in aggregation.model.state.values())
    return found


def test_the_engine_trains_the_same_model_as_in_the_clear() -> None:
    torch.set_num_threads(1)
    assert digests(protected=True) == digests(protected=False)


def test_the_engine_describes_a_model_to_one_server() -> None:
    fed = federated(network())
    plan = sesa.plan(fed, widths=WIDTHS, collusion=2, dropouts=2)
    assert {s.name: s.policy for s in plan.segments} == {
        "rows12": "rows", "rows6": "rows", "rest": "dense"
    }  # fmt: skip
    assert plan.widths == (Width((8, 16, 1), 18), Width((2, 1, 1), 4))
    assert [s.name for s in plan.segments] == ["rows12", "rows6", "rest"]
    assert SesaPlan.from_json(plan.to_json()) == plan
    fed.plan = plan
    text = fed.explain()
    assert "rows12" in text
    assert "8 / 2" in text
    assert "any 2 of 22 clients" in text


def test_the_engine_refuses_what_one_server_cannot_take() -> None:
    fed = federated(network())
    with pytest.raises(ParameterError, match=r"segment 'rows6' .*has no limit on the rows"):
        sesa.plan(fed, widths=[({"rows12": 8}, 22)], collusion=2)
    with pytest.raises(
        ParameterError, match=r"widths is empty: pass a pair \(rows of each client, number"
    ):
        sesa.plan(fed, widths=[], collusion=2)
    with pytest.raises(ParameterError, match="trains 0 submodels: choose a whole number from 1 to"):
        sesa.plan(fed, widths=[(8, 18), (0, 4)], collusion=2)
    net = network()
    other = Federated(net, torch.optim.SGD(net.parameters(), lr=0.2), rest=TopK(0.5))
    with pytest.raises(
        ParameterError, match=r"selects positions after training.*rest=torchfsl\.Dense\(\)"
    ):
        sesa.plan(other, widths=[(4, 22)], collusion=2)


def test_what_is_sent_of_a_network_in_shards_is_what_changed_and_no_other_row() -> None:
    torch.set_num_threads(1)
    net = network()
    fed = federated(net)
    plan = clear_plan(fed)
    aggregation = Plain(plan, ServerModel(fed.server_state()))
    taken = chosen(0, 0, 2)
    net.take(taken)
    rows = net.rows(taken)
    before = {name: p.detach().double().numpy().copy() for name, p in net.named_parameters()}
    aggregation.open_round(0, [0])
    with Round(fed.hooks, aggregation.participant(0), rows=rows, number=0) as rnd:
        train(net, fed.hooks, 0)
        after = {name: p.detach().double().numpy().copy() for name, p in net.named_parameters()}
    assert rnd.update is not None
    assert {s.name: [t.name for t in s.tensors] for s in plan.segments} == {
        "rows12": ["units.0.weight", "units.1.weight"], "rows6": ["links.0.weight"],
        "rest": ["bias"],
    }  # fmt: skip
    for segment in plan.segments:
        sent = rnd.update[segment.name]
        wanted, changes, offset = [], [], 0
        for tensor in segment.tensors:
            own = rows[tensor.name].numpy() if tensor.name in rows else np.arange(1)
            changes.append(np.atleast_2d(after[tensor.name] - before[tensor.name])[own])
            wanted.append(own + offset)
            offset += tensor.shape[0]
        values, expected = np.asarray(sent.values), np.rint(np.concatenate(changes) * 2**16)
        assert values.any()
        if segment.is_dense:
            assert np.array_equal(values.ravel(), expected.ravel())
        else:
            assert np.array_equal(sent.indices, np.concatenate(wanted))
            assert np.array_equal(values.reshape(expected.shape), expected)
