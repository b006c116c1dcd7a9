"""Clients of checks, whose updates are functions of seed, round and client, and their plan."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from scripts.parties import plain_sums
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import Error
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import build_plan
from torchfsl.service.client.links import RetryPolicy
from torchfsl.service.client.outbox import Outbox
from torchfsl.service.client.owner import Owner
from torchfsl.service.client.remote import Connection, connect
from torchfsl.service.local import LoopbackServers
from torchfsl.service.task import Task
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.update import SegmentUpdate, Update
from torchfsl.types import Array

POLICY = RetryPolicy(attempt_seconds=20, total_seconds=300, longest_pause=0.3)


def make_plan(**terms: Any) -> Plan:
    """A small plan with retrieval, trees and dense shares; `terms` are of a plan with noise."""
    table, bias = TensorSpec("table", (40, 3)), TensorSpec("bias", (12,))
    rows = SegmentSpec("rows", "rows", (table,), k_max=5, tau=3, retrieve=True)
    specs = [rows, SegmentSpec("rest", "dense", (bias,))]
    sizes: dict[str, Any] = {"max_clients": 8, "min_clients": 1, "above_break_even": "keep"}
    proofs = {"proofs": "none"} if terms else {}
    plan = build_plan(specs, encoding=FixedPoint(32, 16, 4.0), **sizes, **proofs)
    return dataclasses.replace(plan, **terms)


def make_update(plan: Plan, seed: int, round_number: int, client: int) -> Update:
    """A client's update in a round, drawn from seed, round and client."""
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
    """The aggregate that a round of these clients must have."""
    sums = plain_sums(plan, (make_update(plan, seed, round_number, one) for one in clients))
    return Opened(sums, {}, len(clients), len(clients), clients)


def set_up_owner(
    servers: LoopbackServers, fill: float = 0.0, **terms: Any
) -> tuple[Owner, Task, dict[str, Array]]:
    """Make an owner that has set up a task at both servers, the task, and its model."""
    owner = Owner(servers.urls, servers.tls, policy=POLICY)
    task = owner.bind(make_plan(**terms))
    tensors = [tensor for segment in task.plan.segments for tensor in segment.tensors]
    state = {t.name: np.full(t.shape, fill, t.dtype) for t in tensors}
    owner.set_up(task, state)
    return owner, task, state


def take_part(client: Client, round_number: int, update: Update) -> None:
    """One client's whole round, with retrieval."""
    wanted = {s.name: update[s.name].positions for s in client.plan.retrieving}
    with client.start_round(round_number, indices=wanted) as session:
        session.download()
        session.retrieve()
        session.submit(update)


class Clients:
    """Client processes that participate in every round and note what both servers acknowledged."""

    def __init__(self, servers: LoopbackServers, count: int, seed: int) -> None:
        self.servers, self.seed = servers, seed
        self.processes: list[Any] = [None] * count
        self._context = multiprocessing.get_context("spawn")

    def start(self, *clients: int) -> None:
        """Start clients, all by default."""
        servers = self.servers
        for client in clients or range(len(self.processes)):
            arguments = (servers.urls, servers.tls, servers.folder, client, self.seed)
            process = self._context.Process(target=run_client, args=arguments, daemon=True)
            process.start()
            self.processes[client] = process

    def kill(self, *clients: int) -> None:
        """Send SIGKILL to clients, to all by default."""
        for client in clients or range(len(self.processes)):
            self.processes[client].kill()
            self.processes[client].join()

    def acknowledged(self, client: int) -> set[int]:
        """Rounds in which both servers have acknowledged a client's report."""
        path = self.servers.folder / f"acknowledged-{client}"
        return {int(line) for line in path.read_text().split()} if path.exists() else set()


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
            take_part(connection.client, last, make_update(connection.plan, seed, last, client))
            note(acknowledged, f"{last}\n")
        except Error:
            time.sleep(0.05)  # too late, or rejected after a restart inside the round


def note(path: Path, line: str) -> None:
    """Append a line for good."""
    with path.open("a") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
