"""A small model with a table, its clients' data, and a ClientApp that trains it in known ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from torchfsl import Rows, SubmodelEngine
from torchfsl.engine import Handle
from torchfsl.fsl import Plan, Server, run_round
from torchfsl.integrations.flower import client_evaluation, client_round
from torchfsl.submodel import ServerModel, Update
from torchfsl.submodel.update import SegmentUpdate
from torchfsl.types import Array

WORDS = 60


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.words = torch.nn.EmbeddingBag(WORDS, 4)
        self.head = torch.nn.Linear(4, 2)
        self.own = torch.nn.Parameter(torch.zeros(2))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.words(words)) + self.own
        return out


def build(rows: Rows | None = None) -> tuple[SubmodelEngine, Handle]:
    """A fresh model, as a ClientApp has in a process of its own; `own` stays at the client."""
    model = Model()
    engine = SubmodelEngine(rows=rows or "auto")
    return engine, engine.attach(model, torch.optim.SGD(model.parameters(), lr=0.5), local=["own"])


def plan_of(engine: SubmodelEngine, handle: Handle, **options: Any) -> Plan:
    return engine.plan(
        handle,
        above_break_even="keep",
        **{"max_clients": 4, "min_clients": 1, "rows_per_client": 12, **options},
    )


def words_of(client: int) -> torch.Tensor:
    return torch.randint(0, WORDS, (6, 2), generator=torch.Generator().manual_seed(client))


def train(handle: Handle, client: int) -> float:
    words = words_of(client)
    handle.optimizers[0].zero_grad()
    loss = torch.nn.functional.cross_entropy(handle.model(words), words[:, 0] % 2)
    loss.backward()
    handle.optimizers[0].step()
    return loss.item()


class Recorder:
    """The ClientApp, and what its clients sent.

    Args:
        rows: policy of tables.
        weighted: client n has weight n + 1, or that of `weights`.
        inside: called with the client's number inside its round, after training.

    Attributes:
        sent: by round, then by client, the updates as they were sent.
    """

    def __init__(
        self,
        rows: Rows | None = None,
        inside: Callable[[int], None] = lambda client: None,
        *,
        weighted: bool = False,
        weights: Mapping[int, int] | None = None,
        judging: Callable[[int], None] = lambda client: None,
    ) -> None:
        self.judging = judging
        self.sent: dict[int, dict[int, Update]] = {}
        self.rows, self.inside, self.weighted = rows, inside, weighted
        self.weights = weights or {}
        self.app = ClientApp()
        self.app.train()(self._train)
        self.app.evaluate()(self._evaluate)

    def _train(self, message: Message, context: Context) -> Message:
        engine, handle = build(self.rows)
        client = int(context.node_config["partition-id"])
        asked = {"words": words_of(client)}
        weight = self.weights.get(client, client + 1) if self.weighted else 1
        with client_round(message, context, engine, rows=asked, weight=weight) as rnd:
            loss = train(handle, client)
            self.inside(client)
        assert rnd.update is not None
        number = int(message.content["torchfsl"]["round"])
        self.sent.setdefault(number, {})[client] = rnd.update
        return rnd.reply({"loss": loss, "num-examples": 6} if client % 2 else None)

    def _evaluate(self, message: Message, context: Context) -> Message:
        engine, handle = build(self.rows)
        client = int(context.node_config["partition-id"])
        words = words_of(client)
        asked = {"words": words}
        with client_evaluation(message, context, engine, rows=asked) as evaluation, torch.no_grad():
            right = handle.model(words).argmax(1) == words[:, 0] % 2
            self.judging(client)
        return evaluation.reply({"accuracy": float(right.float().mean()), "num-examples": 6})


def replayed(
    plan: Plan,
    state: Mapping[str, Array],
    rounds: Mapping[int, tuple[tuple[int, ...], Mapping[int, Update]]],
) -> str:
    """The model's digest after `run_round` on the same updates in this process.

    Args:
        plan: of the task; servers of this process have no keys.
        state: of the model before.
        rounds: by number, who is in the sum, and the updates that were sent; who is in the sum and
            sent none has added nothing.
    """
    servers = tuple(Server(p, plan=plan, model=ServerModel(state)) for p in (0, 1))
    for number, (clients, sent) in sorted(rounds.items()):
        updates = {c: sent[c] if c in sent else nothing(plan) for c in clients}
        run_round((servers[0], servers[1]), updates, round_number=number)
    return servers[0].model.digest().hex()


def nothing(plan: Plan) -> Update:
    """An update that adds nothing."""
    return {
        s.name: SegmentUpdate(None, np.zeros((s.m, s.tau), np.int64)) if s.is_dense
        else SegmentUpdate(np.empty(0, np.int64), np.zeros((0, s.tau), np.int64))
        for s in plan.segments
    }  # fmt: skip
