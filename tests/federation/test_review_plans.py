"""A client that is given the plan alone sends what the owner's model sends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchfsl
import torchfsl.policies
from torchfsl.crypto.fixed_point import FixedPoint

FINE = FixedPoint(ring_bits=32, frac_bits=18, clip=2.0)


class Shifted(nn.Embedding):
    """Reads other rows than it is given, as learned positions do."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward((input + 2) % self.num_embeddings)


class Net(nn.Module):
    """Two tables of one width, one that is not sent by row, and parameters named as segments."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.places = nn.Embedding(300, 8), nn.Embedding(50, 8), Shifted(30, 8)
        self.wide = nn.Embedding(40, 8, dtype=torch.float64)
        self.norm, self.rows_sum, self.rows8b = nn.BatchNorm1d(8), nn.Linear(8, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        read = self.a(x) + self.b(x % 50) + self.places(x % 30) + self.wide(x % 40).float()
        out: torch.Tensor = self.rows8b(self.rows_sum(self.norm(read.mean(1))))
        return out


OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "TopK": {"rest": torchfsl.TopK(0.5)},
    "BlockTopK": {"rest": torchfsl.BlockTopK(0.5, block=4)},
    "BinTop": {"rest": torchfsl.policies.BinTop(0.5, block=4)},
    "counted BinTop": {"rest": torchfsl.policies.BinTop(9), "average": "rows"},
    "buffers": {"buffers": "average"},
    "an encoding of a module": {"encodings": {"norm.*": FINE}},
    "an encoding of one parameter": {"encodings": {"norm.weight": FINE}},
    "an encoding of a parameter named as tables": {"encodings": {"rows_sum.*": FINE}},
    "an encoding of parameters named as tables": {"encodings": {"rows*": FINE}},
    "an encoding of parameters named as a segment": {"encodings": {"rows8b.weight": FINE}},
    "an encoding of all tables": {"encodings": {"rows": FINE}},
    "one table": {"rows": torchfsl.Rows(tables=("a",))},
    "the other table": {"rows": torchfsl.Rows(tables=("b.weight",))},
    "two tables": {"rows": torchfsl.Rows(tables=("a", "wide"))},
    "one table, a dense one": {"rows": torchfsl.Rows(tables=("b",)), "above_break_even": "dense"},
    "no table": {"rows": None, "rows_per_client": None},
    "the largest rows": {"rows": torchfsl.Rows(top=10), "rows_per_client": None},
}


def made(**options: Any) -> torchfsl.Federated:
    model = Net()
    return torchfsl.Federated(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)


@pytest.mark.parametrize("name", OPTIONS)
def test_policies_follow_from_the_plan(name: str) -> None:
    given = {"rows_per_client": 60, "above_break_even": "keep", **OPTIONS[name]}
    owner = made(max_clients=3, **given)
    plan = torchfsl.Plan.from_json(owner.plan.to_json())
    servers = owner.local_servers()
    x = torch.randint(0, 300, (6, 3), generator=torch.Generator().manual_seed(1))
    fetches = any(segment.retrieve for segment in plan.segments)
    with servers.round() as result:
        for client in range(2):
            fed = made(plan=plan)
            assert fed.hooks.exchange.segment_tensors == owner.hooks.exchange.segment_tensors
            with fed.round(servers, client, batches=[x] if fetches else None):
                fed.model(x).sum().backward()
                fed.hooks.optimizers[0].step()
    assert result.matches_plain


def test_a_plan_for_another_model_is_refused_as_such() -> None:
    other = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 1))
    with pytest.raises(torchfsl.errors.ParameterError, match="does not fit this model"):
        torchfsl.Federated(
            other, torch.optim.SGD(other.parameters(), 0.1),
            plan=made(max_clients=3, rows_per_client=60).plan,
        )  # fmt: skip
