"""Dropping out by `rnd.withdraw()`, and mistakes of callers without a trainer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.errors import raises
from torchfsl import Federated, FixedPoint, sesa
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.sesa import Server, Sharded, Width, build_plan, run_round
from torchfsl.submodel import SegmentSpec, SegmentUpdate, ServerModel, TensorSpec

CLIENTS = 16


def played(leaving: tuple[int, ...]) -> Any:
    """A round of 12 wide and 4 narrow clients, of whom some withdraw."""
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    net = Sharded(plain, shards=4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    fed = Federated(net, optimizer)
    fed.plan = sesa.plan(fed, widths=[(4, 12), (1, 4)], collusion=1, dropouts=1)
    servers = fed.local_servers(widths={client: int(client >= 12) for client in range(CLIENTS)})
    with servers.round(range(CLIENTS)) as result:
        for client in range(CLIENTS):
            chosen = [torch.randperm(4)[: 1 if client >= 12 else 4].tolist()]
            net.take(chosen)
            before = {name: value.clone() for name, value in net.state_dict().items()}
            with fed.round(servers, client, rows=net.rows(chosen)) as rnd:
                torch.nn.functional.mse_loss(net(torch.randn(4, 5)), torch.ones(4, 2)).backward()
                optimizer.step()
                if client in leaving:
                    rnd.withdraw()
            if client in leaving:
                assert "masked" not in rnd.receipt.phases  # type: ignore[union-attr]
                for name, value in net.state_dict().items():
                    known = ~before[name].isnan()
                    assert torch.equal(value[known], before[name][known])
    return result


def test_a_client_that_withdraws_sends_nothing_and_is_not_counted() -> None:
    result = played(leaving=(3,))
    assert result.num_clients == CLIENTS - 1
    assert 3 not in result.clients
    assert result.matches_plain
    assert played(leaving=()).num_clients == CLIENTS


def test_more_dropouts_than_the_protocol_bears_end_the_round_unopened() -> None:
    with pytest.raises(ProtocolError):
        played(leaving=tuple(range(12)))


ENCODING = FixedPoint(ring_bits=32, frac_bits=16, clip=4.0)
TABLE = SegmentSpec("table", "rows", (TensorSpec("table", (4, 3)),), k_max=4, tau=3)
WHOLE = SegmentUpdate(np.arange(4), np.ones((4, 3), dtype=np.int64))


def server() -> Server:
    plan = build_plan([TABLE], encoding=ENCODING, widths=[Width((4,), 8)], collusion=2)
    return Server(plan=plan, model=ServerModel({"table": np.zeros((4, 3), dtype=np.float32)}))


def test_mistakes_of_a_caller_are_named() -> None:
    whole: dict[str, SegmentUpdate] = {"table": WHOLE}
    updates: dict[int, Any] = dict.fromkeys(range(8), whole)
    widths = dict.fromkeys(range(8), 0)
    with raises(ParameterError, "unknown-client"):
        run_round(server(), updates, dict.fromkeys(range(7), 0), round_number=1)
    for other in ({}, {"tabel": WHOLE}):
        with raises(ParameterError, "segments-differ"):
            run_round(server(), {**updates, 2: other}, widths, round_number=1)
    with raises(ParameterError, "wrong-type"):
        build_plan([TABLE], encoding=ENCODING, widths=[((4,), 8)], collusion=2)  # type: ignore[list-item]
    with raises(ParameterError, "wrong-shape"):
        server().plan.isolation([8, 1])
    opened = run_round(server(), {**updates, 2: None}, widths, round_number=1)
    assert opened.num_clients == 7
