"""Federated rounds of DIN's published shape: bytes, seconds and memory of all parties.

    python -m scripts.bench.round [--clients 100] [--rounds 3] [--ahead 1] [--proofs norm] [--cpu]
        [--json FILE]

Every client fetches 419 rows privately (301 goods and 117 categories in the paper's task, and the
user), trains one step with the torch engine on one thread, and submits through the same trees;
both servers answer, verify, aggregate, open and update their models. Everything is the product's
own path, in one process; the time of both servers together is measured at their doors. In a first
round they touch all their memory for the first time; the parts of their time, and the client's,
are those of the round in which the servers were fastest. With `--ahead 8` eight clients at a time
send their trees before the first of them asks for its answer, as `python -m training` has it; by
default they come one by one. With `--proofs norm` clients are counted, keep a norm of 1, and prove
both. With `--cpu` seconds are the process's CPU time, all threads together, for machines that have
other work.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import torchfsl
from models import DIN
from scripts.bench import measure
from scripts.parties import Stopwatch, TimedServers
from scripts.program import Found, Options, option
from torchfsl.engine.round import Round
from torchfsl.fsl import costs, messages
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.explain import explain
from torchfsl.fsl.plan.statement import PROOFS, Proofs
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.submodel.aggregation import Receipt
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.server_optimizers import ServerAdam

ITEMS, CATEGORIES, USERS, DIM = 143_534, 4_815, 49_023, 18
ITEM_ROWS, CATEGORY_ROWS = 301, 117
ROWS = ITEM_ROWS + CATEGORY_ROWS + 1
"""That a client fetches and trains, its user's among them."""
SERVER_PARTS = ("open", "receive", "answer", "model", "aggregate and apply")


def batch(rng: np.random.Generator, client: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Samples of one client that touch exactly 301 items, 117 categories and its user row."""
    items = rng.choice(ITEMS, ITEM_ROWS, replace=False)
    categories = rng.choice(CATEGORIES, CATEGORY_ROWS, replace=False)
    category_of = np.concatenate([categories, rng.choice(categories, ITEM_ROWS - CATEGORY_ROWS)])
    history, targets = items[:271], items[271:]
    inputs = {
        "user": torch.full((30,), client % USERS),
        "target": torch.from_numpy(targets),
        "target_category": torch.from_numpy(category_of[271:]),
        "history": torch.from_numpy(history).expand(30, -1),
        "history_category": torch.from_numpy(category_of[:271]).expand(30, -1),
        "mask": torch.ones(30, 271, dtype=torch.bool),
    }
    return inputs, torch.arange(30) % 2


def _rows(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The rows that a client fetches for its samples."""
    return {
        "item_embedding": torch.cat([inputs["target"], inputs["history"][0]]),
        "category_embedding": torch.cat([inputs["target_category"], inputs["history_category"][0]]),
        "user_embedding": inputs["user"][:1],
    }


def federated() -> torchfsl.Federated:
    """DIN of the published shape, without a plan."""
    torch.manual_seed(0)
    model = DIN(items=ITEMS, categories=CATEGORIES, users=USERS, dim=DIM)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    encoding = torchfsl.FixedPoint()
    return torchfsl.Federated(model, optimizer, source="gradient", encoding=encoding)


class Rounds:
    """Both servers and the one torch model that every client in turn trains."""

    def __init__(
        self, num_clients: int, ahead: int, clock: Callable[[], float], proofs: Proofs = "none"
    ) -> None:
        self.clock, self.ahead = clock, ahead
        self.num_clients = num_clients
        self.fed = federated()
        (self.optimizer,) = self.fed.hooks.optimizers
        sizes = {"max_clients": num_clients, "rows_per_client": ROWS}
        proven = {} if proofs == "none" else {"average": "rows", "l2_bound": 1 << 16}
        self.plan = self.fed.make_plan(proofs=proofs, **sizes, **proven)
        state = self.fed.server_state()
        start = clock()
        self.servers = (self._server(0, state), self._server(1, state))
        self.making_seconds = clock() - start
        self._rng = np.random.default_rng(0)

    def _server(self, party: int, state: dict[str, Any]) -> Server:
        model = ServerModel(state, ServerAdam(1e-3), source="gradient")
        return Server(party, plan=self.plan, model=model)

    def run(self, number: int) -> dict[str, Any]:
        """One round; seconds by party and part, and bytes of a client."""
        watch = Stopwatch(self.clock)
        link = TimedServers(self.servers, watch)
        watch.time("open", lambda: begin_round(self.servers, number))
        receipts: list[Receipt] = []
        for start in range(0, self.num_clients, self.ahead):
            clients = range(start, min(start + self.ahead, self.num_clients))
            receipts += self._run_clients(number, clients, link, watch)
        opened = watch.time("aggregate and apply", lambda: finish_round(self.servers))
        assert opened.num_clients == self.num_clients
        assert self.servers[0].model.digest() == self.servers[1].model.digest()
        assert {r.upload_bytes for r in receipts} == {costs.client_bytes(self.plan)}
        assert len({r.download_bytes for r in receipts}) == 1
        return {
            "upload_bytes": receipts[0].upload_bytes,
            "download_bytes": receipts[0].download_bytes,
            "both_servers_seconds": sum(watch.seconds[part] for part in SERVER_PARTS),
            "server_seconds": {part: watch.seconds[part] for part in SERVER_PARTS},
            "client_seconds_without_training": watch.seconds["client"] / self.num_clients,
            "client_training_seconds": watch.seconds["training"] / self.num_clients,
        }

    def _run_clients(
        self, number: int, clients: range, link: TimedServers, watch: Stopwatch
    ) -> list[Receipt]:
        """Clients of whom all start before the first goes on."""
        works = [batch(self._rng, client) for client in clients]
        start, inside = self.clock(), sum(watch.seconds.values())
        rounds = [
            Round(
                self.fed.hooks,
                Client(self.plan, link, client_id=client),
                rows=_rows(inputs),
                number=number,
            )
            for client, (inputs, _) in zip(clients, works, strict=True)
        ]
        for training_round in rounds:
            training_round.prefetch()
        receipts = []
        for training_round, (inputs, labels) in zip(rounds, works, strict=True):
            with training_round:
                watch.time("training", functools.partial(self._train, inputs, labels))
            assert training_round.receipt is not None
            receipts.append(training_round.receipt)
        spent = self.clock() - start - (sum(watch.seconds.values()) - inside)
        watch.seconds["client"] = watch.seconds.get("client", 0.0) + spent
        return receipts

    def _train(self, inputs: dict[str, torch.Tensor], labels: torch.Tensor) -> None:
        loss = torch.nn.functional.cross_entropy(self.fed.model(**inputs), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def run(
    num_clients: int,
    num_rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    ahead: int = 1,
    proofs: Proofs = "none",
) -> dict[str, Any]:
    """The rounds; returns the figures."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more would spin for a while where servers, which have no torch, run
    try:
        rounds = Rounds(num_clients, ahead, clock, proofs)
        plan = rounds.plan
        print(explain(plan), "\n")
        results = [rounds.run(number) for number in range(num_rounds)]
    finally:
        torch.set_num_threads(threads)
    dense = 4 * sum(t.numel for s in plan.segments for t in s.tensors)
    return {
        "clients": num_clients,
        "dense_two_server_upload_bytes": dense + 2 * (messages.HEADER_BYTES + 64),
        "dense_download_bytes": dense,
        "both_servers_seconds_by_round": [r["both_servers_seconds"] for r in results],
        "making_servers_seconds": rounds.making_seconds,
        "first_round_server_seconds": results[0]["server_seconds"],
        **min(results, key=lambda r: r["both_servers_seconds"]),
        "peak_memory_bytes": measure.peak_memory_bytes(),
    }


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, list):
        return "  ".join(map(_text, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


@measure.benchmark(
    option("--clients", 100, "clients in the round"),
    option("--rounds", 3, "the best counts"),
    option("--ahead", 1, "clients that ask before the first"),
    option("--proofs", "none", "with a count lane", choices=PROOFS),
    option("--cpu", False, "CPU time instead of the clock's"),
)
def main(options: Options, figures: Found) -> None:
    """Run and print."""
    clock = time.process_time if options.cpu else time.perf_counter
    measured = run(options.clients, options.rounds, clock, options.ahead, options.proofs)
    for name, value in measured.items():
        if isinstance(value, dict):
            for key, part in value.items():
                print(f"{name + ': ' + key:48} {_text(part)}")
        else:
            print(f"{name:48} {_text(value)}")
    figures |= measured
