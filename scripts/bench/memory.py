"""What one process takes that holds a client and both servers, step by step of a round.

    python -m scripts.bench.memory [--rows 2000000] [--width 16] [--rows-per-client 128]
                                   [--clients 3] [--rounds 2] [--json FILE]

A model whose one table has so many rows is wrapped, a client after the other fetches rows, trains
them, and reports, and both servers open and apply the sum. A thread reads the resident size of the
process every millisecond; the largest one in every step is printed, beside what `explain`
announces. What the process takes before the model is made (the interpreter, torch) is not counted.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import torchfsl
from scripts.bench import measure
from scripts.program import Found, Options, option
from torchfsl.engine.round import Round
from torchfsl.fsl.in_process import TwoServers
from torchfsl.submodel.server_model import ServerModel

STEPS = (
    *("open_round", "start", "receive", "reply", "close_round", "agree", "verify", "commit"),
    *("reveal", "open", "apply"),
)


class Watch:
    """The largest resident size in each step, in bytes."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}
        self.step = ""
        self._on = True
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while self._on:
            self.note()
            time.sleep(0.001)

    def note(self) -> None:
        """Look once."""
        size, step = measure.status_bytes("VmRSS"), self.step
        if step:
            self.peaks[step] = max(size, self.peaks.get(step, 0))

    @contextmanager
    def during(self, step: str) -> Iterator[None]:
        """The block is that step."""
        before, self.step = self.step, step
        try:
            yield
        finally:
            self.note()
            self.step = before

    def end(self) -> None:
        """Stop reading."""
        self._on = False
        self._thread.join()


def rounds(options: Options, watch: Watch) -> str:
    """All rounds; what explain says of their plan."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(options.rows, options.width), nn.Linear(options.width, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch.during("hooks, plan"):
        fed = torchfsl.Federated(model, optimizer)
        plan = fed.make_plan(max_clients=options.clients, rows_per_client=options.rows_per_client)
    with watch.during("two server models"):
        state = fed.server_state()
        home = TwoServers(plan, (ServerModel(state), ServerModel(state)))
        del state
    for server in home.servers:
        for name in STEPS:
            watched(watch, server, name)
    for number in range(options.rounds):
        with watch.during(f"round {number}: open"):
            home.open_round(number, range(options.clients))
        for client in range(options.clients):
            generator = np.random.default_rng(client)
            ids = np.unique(generator.integers(options.rows, size=options.rows_per_client))
            with watch.during(f"round {number}: client"):
                one_client(fed, home, (number, client), ids)
        with watch.during(f"round {number}: close"):
            home.close_round()
            gc.collect()
    return fed.explain()


def one_client(
    fed: torchfsl.Federated, home: TwoServers, who: tuple[int, int], ids: npt.NDArray[np.int64]
) -> None:
    """Fetch, one step, report."""
    (number, client), (optimizer,) = who, fed.hooks.optimizers
    words = torch.from_numpy(ids)[:, None]
    participant = home.participant(client)
    with Round(fed.hooks, participant, rows=words, number=number):
        loss = fed.model(words).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def watched(watch: Watch, server: Any, name: str) -> None:
    """Its method, as a step of its own."""
    method = getattr(server, name)

    def call(*arguments: Any, **options: Any) -> Any:
        with watch.during(f"{watch.step.split(',')[0]}, {name}"):
            return method(*arguments, **options)

    setattr(server, name, call)


@measure.benchmark(
    option("--rows", 2_000_000, metavar="M"),
    option("--width", 16),
    option("--rows-per-client", 128),
    option("--clients", 3),
    option("--rounds", 2),
)
def main(options: Options, figures: Found) -> None:
    """Run the rounds and print the table."""
    before = measure.status_bytes("VmRSS")
    watch = Watch()
    text = rounds(options, watch)
    watch.end()
    print(text, end="\n\n")
    print(f"{'step':36} peak, MB")
    figures["peaks"] = {step: size - before for step, size in watch.peaks.items()}
    for step, size in figures["peaks"].items():
        print(f"{step:36} {size / 1e6:8,.0f}")
