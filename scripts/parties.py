"""The parties of benchmarks and attacks: a plan equal on every run, two servers, timed links."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import build_plan
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import InProcess
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.segments import SegmentSpec
from torchfsl.submodel.server_model import ServerModel
from torchfsl.types import Array


def bench_plan(
    segments: list[SegmentSpec], *, encoding: FixedPoint, max_clients: int, **options: Any
) -> Plan:
    """A plan of public constants, equal on every run; trees are kept where dense shares are less.

    Args:
        segments: what is sent.
        encoding: fixed point.
        max_clients: clients of a round; one may be alone.
        options: further ones of `build_plan`.
    """
    return build_plan(
        segments, encoding=encoding, max_clients=max_clients, min_clients=1, session=bytes(16),
        hash_seed=bytes(32), above_break_even="keep", **options,
    )  # fmt: skip


def zeros(plan: SubmodelPlan) -> dict[str, Array]:
    """A model of zeros."""
    return {t.name: np.zeros(t.shape, dtype=t.dtype) for s in plan.segments for t in s.tensors}


def two_servers(plan: Plan, state: dict[str, Array] | None = None) -> tuple[Server, Server]:
    """Both servers with copies of `state`, or of zeros."""
    state = zeros(plan) if state is None else state
    return (
        Server(0, plan=plan, model=ServerModel(state)),
        Server(1, plan=plan, model=ServerModel(state)),
    )


class Outbox:
    """A transport that keeps what clients send, with its addressee, for later delivery."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes]] = []

    def send(self, party: int, message: bytes) -> None:
        """Keep."""
        self.sent.append((party, message))

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        """Nothing is fetched here."""
        raise NotImplementedError("these clients retrieve nothing")


class Stopwatch:
    """Seconds by name, of the given clock."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.seconds: dict[str, float] = {}

    def time(self, name: str, call: Callable[[], Any]) -> Any:
        """Run `call`, add its seconds to `name`."""
        start = self.clock()
        try:
            return call()
        finally:
            spent = self.clock() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent


class TimedServers(InProcess):
    """Both servers, with the time inside them as `receive`, `answer` and `model`."""

    def __init__(self, servers: tuple[Server, Server], watch: Stopwatch) -> None:
        super().__init__(*servers)
        self._watch = watch

    def send(self, party: int, message: bytes) -> None:
        """Deliver, timed."""
        self._watch.time("receive", lambda: InProcess.send(self, party, message))

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        """Fetch, timed."""
        name = "answer" if kind is Kind.ANSWER else "model"
        return bytes(
            self._watch.time(name, lambda: InProcess.fetch(self, party, kind, round_number, client))
        )
