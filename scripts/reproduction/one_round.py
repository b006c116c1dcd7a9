"""Costs of clients and of each server in one round of made-up updates over a real plan.

Client, servers and messages are those of torchfsl, in one process. The program times every call
into a server. Indices and float values go in, and the updated model comes out. The times do not
include a network: a relay leaves one server in parts and arrives at the other as one message.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from scripts.parties import Outbox, TimedServer, bench_plan, two_servers
from torchfsl import FixedPoint, Plan
from torchfsl.fsl import Client, Server, costs
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.submodel.segments import Policy, SegmentSpec, TensorSpec
from torchfsl.submodel.update import RawSegment, quantise

ONCE_A_ROUND = ("close_round", "reveal", "open", "apply", "open_round", "start")
"""Calls of a server that occur once per round, whatever the number of clients."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Bytes and seconds of a round.

    Attributes:
        upload_bytes: upload of a client to both servers together, headers included.
        client_seconds: seconds of a client: quantising, placing, keys, messages.
        server_seconds: seconds of one server for one client: receiving, expanding, verifying,
            adding.
        round_seconds: seconds of one server, once per round: opening, and applying the sum to the
            model.
    """

    upload_bytes: int
    client_seconds: float
    server_seconds: float
    round_seconds: float


class _Wire(Outbox):
    """Keeps what clients send until it is delivered, so that no one's time holds another's."""

    def __init__(self, doors: tuple[TimedServer, TimedServer]) -> None:
        super().__init__()
        self._doors = doors

    def deliver(self) -> None:
        """Everything sent, in order; each relay follows what it relays."""
        for party, message in self.sent:
            due = self._doors[party].receive(message)
            if due is not None:
                relay = b"".join(self._doors[party].relay_parts(*due))
                self._doors[1 - party].receive(relay)
        self.sent = []


def one_segment_plan(
    m: int,
    k: int,
    *,
    ring_bits: int,
    tau: int = 1,
    check: bool = True,
    clients: int = 2,
    epochs: int = 1,
) -> Plan:
    """A plan of one segment of m positions of tau values, k of them sent by a client.

    Trees are kept where dense shares would be smaller: this is for measuring them.
    """
    policy: Policy = "scalars" if tau == 1 else "rows"
    shape = (m,) if tau == 1 else (m, tau)
    spec = SegmentSpec("weights", policy, (TensorSpec("weights", shape, "float32"),), k, tau)
    return bench_plan(
        [spec],
        encoding=FixedPoint(ring_bits=ring_bits, frac_bits=16, clip=4.0),
        max_clients=clients,
        max_epochs=epochs,
        malicious_security=check,
    )


def dense_plan(m: int, *, clients: int) -> Plan:
    """A plan of m values, all of them sent as additive shares of 32 bits."""
    spec = SegmentSpec("weights", "dense", (TensorSpec("weights", (m,), "float32"),))
    encoding = FixedPoint(ring_bits=32, frac_bits=16, clip=4.0)
    return bench_plan([spec], encoding=encoding, max_clients=clients)


def measure(plan: Plan, *, repeat: int = 1) -> Costs:
    """A first round, then `repeat` more of `plan.max_clients` clients: of these, every best."""
    segment = plan.segments[0]
    servers = two_servers(plan)
    rng = np.random.default_rng(0)
    raws = [_raw(segment, rng) for _ in range(plan.max_clients)]
    _, *rounds = (_round(plan, servers, raws, number) for number in range(repeat + 1))
    return Costs(
        upload_bytes=rounds[0].upload_bytes,
        client_seconds=min(costs.client_seconds for costs in rounds),
        server_seconds=min(costs.server_seconds for costs in rounds),
        round_seconds=min(costs.round_seconds for costs in rounds),
    )


def _raw(segment: TreeSegment, rng: np.random.Generator) -> RawSegment:
    """A client's update: k_max random positions, or all of a dense segment."""
    values = rng.standard_normal((segment.k_max, segment.tau)).clip(-3, 3)
    if segment.is_dense:
        return RawSegment(None, values)
    return RawSegment(np.sort(rng.choice(segment.m, segment.k_max, replace=False)), values)


def _round(
    plan: Plan, servers: tuple[Server, Server], raws: list[RawSegment], number: int
) -> Costs:
    first, second = (TimedServer(server, time.perf_counter) for server in servers)
    doors = first, second
    wire = _Wire(doors)
    begin_round(doors, number)  # type: ignore[arg-type]
    expected = np.zeros((plan.segments[0].m, plan.segments[0].tau), dtype=np.int64)
    sent = set()
    client = 0.0
    for client_id, raw in enumerate(raws):
        start = time.perf_counter()
        update, _, _ = quantise(plan, {"weights": raw})
        with Client(plan, wire, client_id=client_id).start_round(number) as session:
            receipt = session.submit(update)
        client += time.perf_counter() - start
        sent.add(receipt.upload_bytes)
        part = update["weights"]
        if part.indices is None:
            expected += part.values
        else:
            kept = ~np.isin(part.indices, receipt.unmatched.get("weights", ()))
            expected[part.indices[kept]] += part.values[kept]
    wire.deliver()
    opened = finish_round(doors)  # type: ignore[arg-type]
    if not np.array_equal(opened.sums["weights"], expected):
        raise AssertionError("the aggregate differs from the plaintext sum")
    assert sent == {costs.client_bytes(plan)}
    once = sum(door.watch.seconds.get(name, 0.0) for door in doors for name in ONCE_A_ROUND)
    inside = sum(door.seconds for door in doors)
    return Costs(
        upload_bytes=sent.pop(),
        client_seconds=client / len(raws),
        server_seconds=(inside - once) / 2 / len(raws),
        round_seconds=once / 2,
    )
