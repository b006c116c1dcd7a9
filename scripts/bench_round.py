"""One federated round of DIN's published shape: bytes, seconds and memory of all parties.

    python scripts/bench_round.py [--clients 100] [--json FILE]

Every client fetches 419 rows privately (301 goods and 117 categories in the paper's task, and the
user), trains one step with the torch engine, and submits through the same trees; both servers
answer, verify, aggregate, open and update their models. Everything is the product's own path, in
one process; the time of both servers together is measured at their doors.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import bench_measure
import numpy as np
import torch

import torchfsl
from models import DIN
from torchfsl import messages
from torchfsl.messages import Kind
from torchfsl.round import begin_round, finish_round
from torchfsl.server import Server
from torchfsl.server_model import ServerAdam, ServerModel
from torchfsl.transport import InProcess

ITEMS, CATEGORIES, USERS, DIM = 143_534, 4_815, 49_023, 18
ITEM_ROWS, CATEGORY_ROWS = 301, 117


class Stopwatch:
    """Seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, name: str, call: Callable[[], Any]) -> Any:
        """Run `call`, add its seconds to `name`."""
        start = time.perf_counter()
        result = call()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        return result


class TimedServers(InProcess):
    """Both servers, with the time spent inside them."""

    def __init__(self, servers: tuple[Server, Server], watch: Stopwatch) -> None:
        super().__init__(*servers)
        self._watch = watch

    def send(self, party: int, message: bytes) -> None:
        """Deliver, timed."""
        self._watch.time("receive", lambda: InProcess.send(self, party, message))

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        """Fetch, timed."""

        def call() -> bytes:
            return InProcess.fetch(self, party, kind, round_number, client)

        return self._watch.time("answer" if kind is Kind.ANSWER else "model", call)


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


def run(num_clients: int) -> dict[str, Any]:
    """The round; returns the figures."""
    torch.manual_seed(0)
    watch = Stopwatch()
    model = DIN(items=ITEMS, categories=CATEGORIES, users=USERS, dim=DIM)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    engine = torchfsl.SubmodelEngine(rows="auto", rest=torchfsl.Dense(), source="gradient")
    handle = engine.attach(model, optimizer)
    rows = ITEM_ROWS + CATEGORY_ROWS + 1
    plan = engine.plan(handle, max_clients=num_clients, rows_per_client=rows)
    state = handle.server_state()
    servers = tuple(
        Server(party, plan=plan, model=ServerModel(state, ServerAdam(1e-3), source="gradient"))
        for party in (0, 1)
    )
    assert len(servers) == 2
    print(plan.explain(), "\n")
    link = TimedServers(servers, watch)
    rng = np.random.default_rng(0)
    watch.time("open", lambda: begin_round(servers, 0))
    upload: set[int] = set()
    download: set[int] = set()
    for number in range(num_clients):
        inputs, labels = batch(rng, number)
        ids = {
            "item_embedding": torch.cat([inputs["target"], inputs["history"][0]]),
            "category_embedding": torch.cat(
                [inputs["target_category"], inputs["history_category"][0]]
            ),
            "user_embedding": inputs["user"][:1],
        }
        client = torchfsl.Client(plan, link, client_id=number)
        start, inside = time.perf_counter(), sum(watch.seconds.values())
        with engine.round(client, rows=ids, number=0) as rnd:
            began = time.perf_counter()
            loss = torch.nn.functional.cross_entropy(model(**inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.seconds["training"] = watch.seconds.get("training", 0.0) + (
                time.perf_counter() - began
            )
        receipt = rnd.submit()
        spent = time.perf_counter() - start - (sum(watch.seconds.values()) - inside)
        watch.seconds["client"] = watch.seconds.get("client", 0.0) + spent
        upload.add(receipt.upload_bytes)
        download.add(receipt.download_bytes)
    opened = watch.time("aggregate and apply", lambda: finish_round(servers))
    assert opened.num_clients == num_clients
    assert servers[0].model.digest() == servers[1].model.digest()
    assert upload == {messages.client_bytes(plan)}
    server_parts = ("open", "receive", "answer", "model", "aggregate and apply")
    dense = 4 * sum(t.numel for s in plan.segments for t in s.tensors)
    return {
        "clients": num_clients,
        "upload_bytes": upload.pop(),
        "download_bytes": download.pop(),
        "dense_two_server_upload_bytes": dense + 2 * (messages.HEADER_BYTES + 48),
        "dense_download_bytes": dense,
        "both_servers_seconds": sum(watch.seconds[part] for part in server_parts),
        "server_seconds": {part: watch.seconds[part] for part in server_parts},
        "client_seconds_without_training": watch.seconds["client"] / num_clients,
        "client_training_seconds": watch.seconds["training"] / num_clients,
        "peak_memory_bytes": bench_measure.peak_memory_bytes(),
    }


def main() -> None:
    """Parse the command line, run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--clients", type=int, default=100, help="clients in the round")
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    figures = {"environment": bench_measure.environment(), **run(options.clients)}
    for name, value in figures.items():
        if isinstance(value, dict):
            for key, part in value.items():
                print(f"{name + ': ' + key:48} {_text(part)}")
        else:
            print(f"{name:48} {_text(value)}")
    bench_measure.write_json(options.json, figures)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    main()
