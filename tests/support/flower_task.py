"""A small model with a table, its clients' data, and a ClientApp that trains it in known ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from torchfsl import Federated, Rows
from torchfsl.fsl import Plan, Server, run_round
from torchfsl.integrations.flower import client_servers
from torchfsl.optim import SGD
from torchfsl.submodel import ServerModel, Update
from torchfsl.submodel.optimizer_settings import OptimizerSettings
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


def build(rows: Rows | None = None) -> Federated:
    """A fresh model without a plan, as in a new process of a ClientApp; `own` stays there."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return Federated(model, optimizer, rows=rows or "auto", local=["own"])


def build_planned(rows: Rows | None = None, **options: Any) -> Federated:
    """The same with a plan, as a ServerApp has it."""
    fed = build(rows)
    default = {"max_clients": 4, "min_clients": 1, "rows_per_client": 12}
    fed.make_plan(above_break_even="keep", **{**default, **options})
    return fed


def words_of(client: int) -> torch.Tensor:
    return torch.randint(0, WORDS, (6, 2), generator=torch.Generator().manual_seed(client))


def train(fed: Federated, client: int) -> float:
    words, (optimizer,) = words_of(client), fed.hooks.optimizers
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(fed.model(words), words[:, 0] % 2)
    loss.backward()
    optimizer.step()
    return loss.item()


def participate(fed: Federated, servers: Any, client: int) -> None:
    """The block of a client, with any servers."""
    with fed.round(servers, client, batches=[words_of(client)]):
        train(fed, client)


class Recorder:
    """The ClientApp, and what its clients sent.

    Args:
        rows: policy of tables.
        weighted: client n has weight n + 1, or that of `weights`.
        inside: called with the client's number inside its round, after training.
        after: called with the client's number between its round and the end of `client_servers`.
        judging: called with the client's number inside its evaluation.

    Attributes:
        sent: by round, then by client, the updates as they were sent.
    """

    def __init__(
        self,
        rows: Rows | None = None,
        inside: Callable[[int], None] = lambda client: None,
        *,
        after: Callable[[int], None] = lambda client: None,
        weighted: bool = False,
        weights: Mapping[int, int] | None = None,
        judging: Callable[[int], None] = lambda client: None,
    ) -> None:
        self.after, self.judging = after, judging
        self.sent: dict[int, dict[int, Update]] = {}
        self.rows, self.inside, self.weighted = rows, inside, weighted
        self.weights = weights or {}
        self.app = ClientApp()
        self.app.train()(self._train)
        self.app.evaluate()(self._evaluate)

    def _train(self, message: Message, context: Context) -> Message:
        fed = build(self.rows)
        client = int(context.node_config["partition-id"])
        weight = self.weights.get(client, client + 1) if self.weighted else 1
        with client_servers(message, context, fed) as servers:
            policy = fed.hooks.rows
            is_fixed = policy is not None and policy.fixed is not None
            batches = None if is_fixed else [words_of(client)]
            with fed.round(servers, batches=batches, weight=weight) as rnd:
                loss = train(fed, client)
                self.inside(client)
            assert rnd.update is not None
            self.sent.setdefault(rnd.number, {})[client] = rnd.update
            self.after(client)
        return servers.reply({"loss": loss, "num-examples": 6} if client % 2 else None)

    def _evaluate(self, message: Message, context: Context) -> Message:
        fed = build(self.rows)
        client = int(context.node_config["partition-id"])
        words = words_of(client)
        with (
            client_servers(message, context, fed) as servers,
            fed.evaluating(servers, batches=[words]),
            torch.no_grad(),
        ):
            right = fed.model(words).argmax(1) == words[:, 0] % 2
            self.judging(client)
        return servers.reply({"accuracy": float(right.float().mean()), "num-examples": 6})


def replayed(
    plan: Plan,
    state: Mapping[str, Array],
    rounds: Mapping[int, tuple[tuple[int, ...], Mapping[int, Update]]],
    optimizer: OptimizerSettings = SGD(2.5, momentum=0.8),  # noqa: B008 - frozen
) -> str:
    """The model's digest after `run_round` on the same updates in this process.

    Args:
        plan: of the task; servers of this process have no keys.
        state: of the model before.
        rounds: by number, who is in the sum, and the updates that were sent; who is in the sum and
            sent none has added nothing.
        optimizer: of the servers, by default the one of plain averages.
    """
    models = [ServerModel(state, optimizer.build()) for _ in (0, 1)]
    servers = tuple(Server(p, plan=plan, model=model) for p, model in enumerate(models))
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
