"""Both aggregation servers in this process, for the examples: rounds, and a check of exactness.

In a deployment the servers run elsewhere (`torchfsl serve`), and a client holds their addresses
instead of this object.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from torchfsl import Client, Plan, Server
from torchfsl.engine.round import TrainingRound
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import Update


class TwoServers:
    """Servers 0 and 1 with equal models.

    Args:
        plan: the public plan.
        state: the initial model, `handle.server_state()`.
        options: of `ServerModel`: `optimizer`, `source`, `reduce`.
    """

    def __init__(self, plan: Plan, state: dict[str, Any], **options: Any) -> None:
        self.plan = plan
        self.servers = (
            Server(0, plan=plan, model=ServerModel(state, **options)),
            Server(1, plan=plan, model=ServerModel(state, **options)),
        )
        self.exact = True
        self.upload_bytes = self.download_bytes = 0
        self._number = -1
        self._rounds: list[TrainingRound] = []

    @property
    def state(self) -> dict[str, Any]:
        """The model that both servers hold."""
        return self.servers[0].model.state

    @contextmanager
    def round(self) -> Iterator[int]:
        """One round; gives its number. At the end the sum is opened, once, and compared."""
        self._number += 1
        self._rounds = []
        begin_round(self.servers, self._number)
        yield self._number
        opened = finish_round(self.servers)
        updates = [r.update for r in self._rounds if r.update is not None]
        expected = plain_sum(self.plan, updates)
        self.exact = all(
            np.array_equal(opened.sums[name].reshape(total.shape), total)
            for name, total in expected.items()
        )

    def client(self, client_id: int) -> Client:
        """Client number `client_id`."""
        return Client(self.plan, self.servers, client_id=client_id)

    def sent(self, training_round: TrainingRound) -> None:
        """Keep what a client sent, to compare the opened sum with the plain one."""
        assert training_round.receipt is not None
        self._rounds.append(training_round)
        self.upload_bytes = training_round.receipt.upload_bytes
        self.download_bytes = training_round.receipt.download_bytes


def plain_sum(plan: Plan, updates: list[Update]) -> dict[str, Any]:
    """What the servers must open: the sum of the quantised updates, in the clear."""
    sums = {}
    for segment in plan.segments:
        total = np.zeros((segment.m, segment.tau), dtype=np.int64)
        for update in updates:
            part = update[segment.name]
            total[slice(None) if part.indices is None else part.indices] += part.values
        sums[segment.name] = total
    return sums


def report(number: int, loss: float, servers: TwoServers) -> None:
    """One line a round."""
    print(
        f"round {number}  loss {loss:.4f}  exact {servers.exact}  "
        f"up {servers.upload_bytes / 1e3:.1f} kB  down {servers.download_bytes / 1e3:.1f} kB",
        flush=True,
    )
