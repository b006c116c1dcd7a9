"""Where the engine docks: a torch model whose submodels are rows of a table, trained in rounds."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn

from torchfsl import Dense, FixedPoint, Rows, ServerModel, SubmodelEngine
from torchfsl.sesa import OneServer, Width, build_plan
from torchfsl.submodel.segments import SegmentSpec
from training.aggregations.plain import Plain

HIDDEN, INPUT, CLASSES, SHARDS = 8, 5, 3, 4
STEP = HIDDEN // SHARDS


class ShardedMLP(nn.Module):
    """A hidden layer in shards: a row holds weights into some units, their biases, weights out."""

    def __init__(self) -> None:
        super().__init__()
        self.shards = nn.Embedding(SHARDS, STEP * (INPUT + 1 + CLASSES))
        self.bias = nn.Parameter(torch.zeros(CLASSES))

    def forward(self, x: torch.Tensor, taken: torch.Tensor) -> torch.Tensor:
        rows = self.shards(taken).reshape(-1, INPUT + 1 + CLASSES)
        into, bias, out = rows.split((INPUT, 1, CLASSES), dim=1)
        return torch.relu(x @ into.T + bias[:, 0]) @ out + self.bias


def digests(protected: bool) -> list[bytes]:
    """Of the server's model after each of three rounds of ten clients, two of which drop out."""
    torch.manual_seed(4)
    model = ShardedMLP()
    engine = SubmodelEngine(
        rows=Rows(), rest=Dense(), encoding=FixedPoint(ring_bits=32, frac_bits=16, clip=4.0)
    )
    handle = engine.attach(model, torch.optim.SGD(model.parameters(), lr=0.2))
    drawn = engine.plan(
        handle, max_clients=10, rows_per_client=SHARDS, above_break_even="keep", session=bytes(16)
    )
    specs = [SegmentSpec(s.name, s.policy, s.tensors, s.k_max, s.tau, s.retrieve)
             for s in drawn.segments]  # fmt: skip
    owned = [tuple(1 if s.is_dense else n for s in drawn.segments) for n in (SHARDS, 1)]
    plan = build_plan(
        specs, encoding=drawn.encoding, widths=[Width(owned[0], 6), Width(owned[1], 4)],
        collusion=2, dropouts=2,
    )  # fmt: skip
    state = ServerModel(handle.server_state())
    widths = {client: int(client >= 6) for client in range(10)}
    aggregation = OneServer(plan, state, widths) if protected else Plain(drawn, state)
    found = []
    for number in range(3):
        aggregation.open_round(number)
        for client in range(10):
            if client in (number, 7):
                continue
            choose = random.Random(100 * number + client)
            count = plan.widths[widths[client]].owned[0]
            taken = torch.tensor(sorted(choose.sample(range(SHARDS), count)))
            data = torch.Generator().manual_seed(100 * number + client)
            x = torch.randn(20, INPUT, generator=data)
            y = torch.randint(CLASSES, (20,), generator=data)
            with engine.round(aggregation.participant(client), rows=taken, number=number) as rnd:
                loss = nn.functional.cross_entropy(model(x, taken), y)
                handle.optimizers[0].zero_grad()
                loss.backward()
                handle.optimizers[0].step()
            rnd.submit()
        aggregation.close_round()
        found.append(aggregation.model.digest())
    assert len(set(found)) == 3
    assert all(np.isfinite(value).all() for value in aggregation.model.state.values())
    return found


def test_the_engine_trains_the_same_model_as_in_the_clear() -> None:
    torch.set_num_threads(1)
    assert digests(protected=True) == digests(protected=False)
