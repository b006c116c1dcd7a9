"""The parties of benchmarks and attacks: plans equal on every run, two servers, updates, links."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

import numpy as np

from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.crypto.hpke import SealKey
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import build_plan
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import InProcess
from torchfsl.submodel.plain import add_to
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.segments import SegmentSpec
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate, Update
from torchfsl.types import Array, Whole

WHOLE: Final = FixedPoint(ring_bits=32, frac_bits=0, clip=100.0)
"""The encoding of whole numbers."""


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
    options |= {"session": bytes(16), "hash_seed": bytes(32), "above_break_even": "keep"}
    return build_plan(
        segments, encoding=encoding, max_clients=max_clients, min_clients=1, **options
    )


def plain_plan(*segments: TreeSegment, **fields: Any) -> Plan:
    """A plan without the planner: whole numbers up to 100, one client or more.

    Args:
        segments: laid out by hand.
        fields: other fields of the plan, also in place of these.
    """
    constants = {"session": "0" * 32, "hash_seed": "0" * 64, "encoding": WHOLE, "min_clients": 1}
    return Plan(segments=segments, **constants | fields)


def zeros(plan: SubmodelPlan) -> dict[str, Array]:
    """A model of zeros."""
    return {t.name: np.zeros(t.shape, dtype=t.dtype) for s in plan.segments for t in s.tensors}


def two_servers(
    plan: Plan, state: dict[str, Array] | None = None, **options: Any
) -> tuple[Server, Server]:
    """Both servers with copies of `state`, or of zeros; options are those of `Server`."""
    state = zeros(plan) if state is None else state
    first, second = (Server(b, plan=plan, model=ServerModel(state), **options) for b in (0, 1))
    return first, second


def sealed_servers(
    plan: Plan, state: dict[str, Array] | None = None
) -> tuple[Plan, tuple[Server, Server]]:
    """The plan with the keys of its servers, and these."""
    keys = SealKey.generate(), SealKey.generate()
    plan = dataclasses.replace(plan, server_keys=tuple(key.public.hex() for key in keys))
    state = zeros(plan) if state is None else state
    first, second = (Server(b, plan=plan, model=ServerModel(state), key=keys[b]) for b in (0, 1))
    return plan, (first, second)


def close_and_verify(servers: tuple[Server, Server]) -> tuple[Collection[int], Collection[int]]:
    """Bring an open round to the end of its check; by server the clients that passed."""
    first, second = servers
    lists = first.close_round(), second.close_round()
    folds = first.agree(lists[1]), second.agree(lists[0])
    return first.verify(folds[1]), second.verify(folds[0])


def random_update(plan: SubmodelPlan, seed: object, most: int) -> Update:
    """As many rows as a client may select, with values of at most that magnitude."""
    rng, update = np.random.default_rng(seed), {}  # type: ignore[call-overload]
    for segment in plan.segments:
        rows, count = None, segment.m if segment.is_dense else segment.k_max
        if not segment.is_dense:
            rows = np.sort(rng.choice(segment.m, count, replace=False)).astype(np.int64)
        values = rng.integers(-most, most + 1, (count, segment.tau))
        update[segment.name] = SegmentUpdate(rows, values)
    return update


def spread_update(plan: SubmodelPlan, number: int) -> Update:
    """Ones on rows at equal distances, other ones for other numbers."""
    update = {}
    for s in plan.segments:
        rows = np.sort((np.arange(s.k_max) * (s.m // s.k_max) + number) % s.m).astype(np.int64)
        update[s.name] = SegmentUpdate(rows, np.ones((s.k_max, s.tau), dtype=np.int64))
    return update


def plain_sums(plan: SubmodelPlan, updates: Iterable[Update]) -> dict[str, Whole]:
    """By segment the sums of updates, added in the clear."""
    sums = {s.name: np.zeros((s.m, s.tau), dtype=np.int64) for s in plan.segments}
    for update in updates:
        for segment in plan.segments:
            add_to(sums[segment.name], update, segment)
    return sums


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


class TimedServer:
    """A server whose calls are timed by name, in processor time unless another clock is given."""

    def __init__(self, server: Server, clock: Callable[[], float] = time.process_time) -> None:
        self.server, self.watch = server, Stopwatch(clock)

    @property
    def seconds(self) -> float:
        """Of all calls so far."""
        return sum(self.watch.seconds.values())

    def __getattr__(self, name: str) -> Any:
        home = self.server.reports if name == "relay_parts" else self.server
        method = getattr(home, name)
        if not callable(method) or name == "model":
            return method
        return lambda *given, **options: self.watch.time(name, lambda: method(*given, **options))


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
