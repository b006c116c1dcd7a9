"""The clients of `crash.py`: in every round they note what both servers have acknowledged."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import numpy as np

from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import Error
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import build_plan
from torchfsl.service.client.links import RetryPolicy
from torchfsl.service.client.outbox import Outbox
from torchfsl.service.client.remote import Connection, connect
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.update import SegmentUpdate, Update

POLICY = RetryPolicy(attempt_seconds=20, total_seconds=120, longest_pause=0.3)


def make_plan() -> Plan:
    """A small plan with retrieval, trees and dense shares."""
    specs = [
        SegmentSpec("rows", "rows", (TensorSpec("table", (40, 3), "float32"),), k_max=5, tau=3,
                    retrieve=True),
        SegmentSpec("rest", "dense", (TensorSpec("bias", (12,), "float32"),)),
    ]  # fmt: skip
    return build_plan(
        specs, encoding=FixedPoint(32, 16, 4.0), max_clients=8, min_clients=1,
        above_break_even="keep",
    )  # fmt: skip


def make_update(plan: Plan, seed: int, round_number: int, client: int) -> Update:
    """What a client sends in a round."""
    rng = np.random.default_rng([seed, round_number, client])
    update: Update = {}
    for segment in plan.segments:
        indices = None
        count = segment.m
        if not segment.is_dense:
            count = int(rng.integers(1, segment.k_max + 1))
            indices = np.sort(rng.choice(segment.m, count, replace=False)).astype(np.int64)
        values = rng.integers(-1000, 1000, (count, segment.tau))
        update[segment.name] = SegmentUpdate(indices, values.astype(np.int64))
    return update


def sums_of(plan: Plan, seed: int, round_number: int, clients: tuple[int, ...]) -> Opened:
    """What a round of these clients must open."""
    sums = {s.name: np.zeros((s.m, s.tau), dtype=np.int64) for s in plan.segments}
    for client in clients:
        for name, part in make_update(plan, seed, round_number, client).items():
            if part.indices is None:
                sums[name] += part.values
            else:
                sums[name][part.indices] += part.values
    return Opened(sums, {}, len(clients), len(clients), clients)


def run_client(urls: list[str], tls: Path, folder: Path, client: int, seed: int) -> None:
    """Take part in every round; note in a file what both servers have acknowledged."""
    acknowledged = folder / f"acknowledged-{client}"
    outbox = folder / f"outbox-{client}"
    connection: Connection | None = None
    while connection is None:
        with contextlib.suppress(Error):
            connection = connect(
                urls, tls, client, require=ClientPolicy(min_clients=1), outbox=outbox, policy=POLICY
            )
    last = Outbox(outbox).last_round()
    while Outbox(outbox).get() is not None:
        with contextlib.suppress(Error):
            if connection.resume():
                note(acknowledged, f"{last}\n")
    while True:
        try:
            last = connection.wait_for_round(after=last, seconds=3600)
            update = make_update(connection.plan, seed, last, client)
            wanted = {"rows": update["rows"].indices}
            with connection.client.start_round(last, indices=wanted) as session:  # type: ignore[arg-type]
                session.download()
                session.retrieve()
                session.submit(update)
            note(acknowledged, f"{last}\n")
        except Error:
            time.sleep(0.05)  # too late, or rejected after a restart inside the round


def note(path: Path, line: str) -> None:
    """Append a line for good."""
    with path.open("a") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def acknowledged_rounds(folder: Path, client: int) -> set[int]:
    """Rounds in which both servers have acknowledged a client's report."""
    path = folder / f"acknowledged-{client}"
    return {int(line) for line in path.read_text().split()} if path.exists() else set()
