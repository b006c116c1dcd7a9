"""Two servers in this process and clients with a model each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.support.engine_models import Recommender
from tests.support.engine_setup import plan_of
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.settings import Settings
from torchfsl.fsl import union as psu
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import InProcess
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.server_model import ServerModel


class Recording(InProcess):
    """Keeps kind, party and length of every message."""

    def __init__(self, servers: tuple[Server, Server]) -> None:
        super().__init__(*servers)
        self.traffic: list[tuple[str, int, int]] = []

    def send(self, party: int, message: bytes) -> None:
        self.traffic.append(("send", party, len(message)))
        super().send(party, message)

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        data = super().fetch(party, kind, round_number, client)
        self.traffic.append((kind.name, party, len(data)))
        return data


def _adagrad(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(model.parameters(), lr=0.1)


class Task:
    """Servers and clients with a model each."""

    def __init__(
        self,
        settings: Settings | None = None,
        num_clients: int = 2,
        *,
        build: Callable[[], nn.Module] = Recommender,
        optimize: Callable[[nn.Module], Any] = _adagrad,
        server: dict[str, Any] | None = None,
        unions: dict[str, Any] | None = None,
        **plan: Any,
    ) -> None:
        self.hooks: list[Hooks] = []
        for _ in range(num_clients):
            torch.manual_seed(0)
            model = build()
            self.hooks.append(Hooks(model, optimize(model), settings))
        options: dict[str, Any] = {"rows_per_client": 40, "above_break_even": "keep"} | plan
        self.plan: Plan = plan_of(self.hooks[0], max_clients=num_clients, **options)
        if unions:
            self.plan = psu.restrict(self.plan, unions)
        state = self.hooks[0].server_state()
        self.servers = tuple(
            Server(b, plan=self.plan, model=ServerModel(state, **(server or {}))) for b in (0, 1)
        )
        self.number = -1

    def begin(self) -> Recording:
        self.number += 1
        begin_round(self.servers, self.number)
        return Recording(self.servers)

    def client(self, link: InProcess, number: int) -> Client:
        return Client(self.plan, link, client_id=number)

    def finish(self) -> Opened:
        return finish_round(self.servers)

    @property
    def state(self) -> dict[str, np.ndarray]:
        assert self.servers[0].model.digest() == self.servers[1].model.digest()
        return self.servers[0].model.state


def wanted(*batches: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        "item": torch.cat([b[k].flatten() for b in batches for k in ("item", "history")]),
        "user": torch.cat([b["user"] for b in batches]),
        "words": torch.cat([b["words"].flatten() for b in batches]),
    }


def plain_sum(plan: Plan, updates: list[Any]) -> dict[str, np.ndarray]:
    sums = {}
    for segment in plan.segments:
        total = np.zeros((segment.index_space, segment.tau), dtype=np.int64)
        for update in updates:
            part = update[segment.name]
            total[slice(None) if part.indices is None else part.indices] += part.values
        sums[segment.name] = total
    return sums
