"""Small federations for the tests: plans, models, updates, and a wire that listens and alters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tests.support.reference import plaintext
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.client.round import ClientRound
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.suite import CHECK_BYTES, TAG_BYTES
from torchfsl.submodel.aggregation import Receipt
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.plan import Lane
from torchfsl.submodel.segments import Policy, TensorSpec, positions
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.server_optimizers import ServerOptimizer
from torchfsl.submodel.update import SegmentUpdate, Update

HEADER = 64
CLIENT_KINDS = [
    Kind.TREES, Kind.TREES_COMMIT, Kind.TREES_RELAY,
    Kind.REPORT, Kind.REPORT_COMMIT, Kind.REPORT_RELAY,
]  # fmt: skip
"""Kinds that carry a client's report, relays included."""


def make_segment(
    name: str,
    policy: Policy,
    *shapes: tuple[int, ...],
    k_max: int = 0,
    tau: int = 1,
    theta: int = 0,
    nu: int = 0,
    stash: int = 0,
    retrieve: bool = False,
    secure: bool = True,
    dtype: str = "float32",
    subset: tuple[int, ...] = (),
    l2_bound: int = 0,
    binned: bool = False,
) -> TreeSegment:
    """A segment of tensors `name.0`, `name.1`, ...; theta 0 means full-domain trees."""
    tensors = tuple(TensorSpec(f"{name}.{i}", shape, dtype) for i, shape in enumerate(shapes))
    m = len(subset) or positions(policy, tensors, tau)
    if policy == "dense":
        return TreeSegment(name, policy, tensors, m, 1, m, l2_bound=l2_bound)
    bins = 3 * -(-m // theta) if theta else 0
    if binned:
        bins, theta, stash = k_max, -(-m // k_max), 0
    return TreeSegment(
        name, policy, tensors, m, tau, k_max, retrieve, num_bins=bins, theta=theta, nu=nu,
        stash=stash if theta else k_max,
        check_bytes=CHECK_BYTES if secure else 0,
        tag_bytes=TAG_BYTES if secure and retrieve else 0, subset=subset, l2_bound=l2_bound,
        binned=binned,
    )  # fmt: skip


def make_plan(
    *segments: TreeSegment,
    encoding: FixedPoint | None = None,
    max_clients: int = 4,
    min_clients: int = 1,
    lane: Lane = "none",
    max_weight: int = 1,
    max_epochs: int = 1,
) -> Plan:
    """A plan with a fixed session and hash seed."""
    return Plan(
        session=bytes(range(16)).hex(),
        hash_seed=bytes(range(32)).hex(),
        encoding=encoding or FixedPoint(32, 16, 4.0),
        max_clients=max_clients,
        segments=segments,
        min_clients=min_clients,
        lane=lane,
        max_weight=max_weight,
        max_epochs=max_epochs,
    )


def mixed_plan(*, secure: bool = True, min_clients: int = 1, lane: Lane = "none") -> Plan:
    """Every policy and mechanism in one small plan."""
    return make_plan(
        make_segment("table", "rows", (13, 3), (8, 3), k_max=4, tau=3, theta=3, stash=1,
                     retrieve=True, secure=secure),
        make_segment("blocks", "blocks", (5, 4), (7,), k_max=2, tau=4, secure=secure),
        make_segment("few", "scalars", (30,), k_max=3, theta=5, nu=2, stash=1, secure=secure),
        make_segment("bias", "dense", (3,), (2, 2)),
        min_clients=min_clients,
        lane=lane,
        max_weight=5 if lane == "weight" else 1,
    )  # fmt: skip


def mixed_rings(plan: Plan, *, noise: int = 0, frac_bits: int | None = None) -> Plan:
    """The plan with an encoding for each segment that fills its ring: of 16, 24, 32, 64 bits, ...

    Each has a unit of its own, or `frac_bits`; `noise` is what both servers' noise adds at most.
    """
    segments = []
    for i, segment in enumerate(plan.segments):
        encoding = FixedPoint.filling(
            (16, 24, 32, 64)[i % 4], 7 + i if frac_bits is None else frac_bits,
            max_clients=plan.max_clients, max_weight=plan.max_weight, noise=noise,
            rounding=plan.encoding.rounding,
        )  # fmt: skip
        segments.append(dataclasses.replace(segment, encoding=encoding))
    return dataclasses.replace(plan, segments=tuple(segments))


def dense_plan() -> Plan:
    """One dense segment and nothing else."""
    return make_plan(make_segment("bias", "dense", (5,)))


def make_state(plan: Plan, seed: int = 0) -> dict[str, npt.NDArray[np.generic]]:
    """A random model that fits the plan."""
    rng = np.random.default_rng(seed)
    return {
        tensor.name: rng.normal(size=tensor.shape).astype(tensor.dtype)
        for segment in plan.segments
        for tensor in segment.tensors
    }


def make_servers(
    plan: Plan, *, seed: int = 0, optimizer: Callable[[], ServerOptimizer] | None = None
) -> tuple[Server, Server]:
    """Both servers with equal models."""

    def one(party: int) -> Server:
        chosen = optimizer() if optimizer else None
        return Server(party, plan=plan, model=ServerModel(make_state(plan, seed), chosen))

    return one(0), one(1)


def random_update(
    plan: Plan, rng: np.random.Generator, *, rows: int | None = None, largest: bool = False
) -> Update:
    """Values up to q_max (all of that magnitude if `largest`) on `rows` positions a segment.

    `rows` is cut to k_max; None draws a number for every segment.
    """
    update: Update = {}
    for segment in plan.segments:
        limit = min(plan.encoding_of(segment).q_max, 1 << 40)
        indices = None
        count = segment.m
        if segment.policy != "dense":
            count = int(rng.integers(segment.k_max + 1)) if rows is None else rows
            count = min(count, segment.k_max)
            allowed = segment.subset or segment.m
            chosen = rng.choice(allowed, size=count, replace=False)
            indices = np.sort(chosen).astype(np.int64)
        values = rng.integers(-limit, limit, size=(count, segment.tau), endpoint=True)
        if largest:
            values = np.where(values < 0, -limit, limit)
        update[segment.name] = SegmentUpdate(indices, values.astype(np.int64))
    return update


def wanted_rows(plan: Plan, update: Update) -> dict[str, npt.ArrayLike]:
    """What `start_round` is told for an update: the rows of the retrieving segments."""
    wanted: dict[str, npt.ArrayLike] = {}
    for segment in plan.segments:
        indices = update[segment.name].indices
        if segment.retrieve and indices is not None:
            wanted[segment.name] = indices
    return wanted


@dataclass(frozen=True)
class Event:
    """One message on the wire: to server `party`, or from it if `is_reply`."""

    party: int
    kind: Kind
    data: bytes = field(repr=False)
    is_reply: bool = False
    is_relay: bool = False


class Wire:
    """Both servers behind a wire that keeps every message and may alter them.

    `alter` sees each event and returns the bytes to deliver, or None to lose the message.
    """

    def __init__(
        self,
        servers: tuple[Server, Server],
        alter: Callable[[Event], bytes | None] = lambda event: event.data,
    ) -> None:
        self.servers, self.alter = servers, alter
        self.events: list[Event] = []

    def send(self, party: int, message: bytes) -> None:
        due = self._deliver(Event(party, kind_of(message), message))
        if due is not None:
            relay = self.servers[party].relay(*due)
            self._deliver(Event(1 - party, kind_of(relay), relay, is_relay=True))

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        event = Event(
            party, kind, self.servers[party].reply(kind, round_number, client), is_reply=True
        )
        self.events.append(event)
        return self.alter(event) or b""

    def _deliver(self, event: Event) -> tuple[Kind, int] | None:
        self.events.append(event)
        data = self.alter(event)
        return None if data is None else self.servers[event.party].receive(data)

    def shape(self) -> list[tuple[int, Kind, int, bool]]:
        """Everything about the traffic but its contents."""
        return [(e.party, e.kind, len(e.data), e.is_reply) for e in self.events]


def kind_of(message: bytes) -> Kind:
    """The kind in a message's header."""
    return Kind(message[6])


def submit(
    wire: Wire, client_id: int, round_number: int, update: Update, *, weight: int = 1
) -> Receipt:
    """One client's whole round."""
    plan = wire.servers[0].plan
    client = Client(plan, wire, client_id=client_id)
    session = client.start_round(round_number, indices=wanted_rows(plan, update))
    return session.submit(update, weight=weight)


def play_round(
    servers: tuple[Server, Server],
    round_number: int,
    updates: dict[int, Update],
    weights: dict[int, int] | None = None,
) -> tuple[Opened, list[plaintext.Contribution]]:
    """A round of these clients: what it opened, and what it should have opened."""
    begin_round(servers, round_number)
    wire = Wire(servers)
    contributions = []
    for client_id, update in updates.items():
        weight = (weights or {}).get(client_id, 1)
        receipt = submit(wire, client_id, round_number, update, weight=weight)
        unmatched = {name: rows.tolist() for name, rows in receipt.unmatched.items()}
        contributions.append(plaintext.Contribution(update, weight, unmatched))
    return finish_round(servers), contributions


def assert_exact(plan: Plan, opened: Opened, contributions: list[plaintext.Contribution]) -> None:
    """The opened sums and lanes equal the plaintext's, bit for bit."""
    wanted = plaintext.sums(plan, contributions)
    assert set(opened.sums) == set(wanted)
    for name, total in wanted.items():
        assert opened.sums[name].dtype == np.int64
        assert np.array_equal(opened.sums[name], total), name
    counts = plaintext.lanes(plan, contributions)
    assert set(opened.lanes) == set(counts)
    for name, total in counts.items():
        assert np.array_equal(opened.lanes[name], total), name
    assert opened.num_clients == len(contributions)
    has_dense = any(segment.policy == "dense" for segment in plan.segments)
    if plan.lane == "weight" and has_dense:
        assert opened.total_weight == sum(c.weight for c in contributions)
    else:
        assert opened.total_weight == len(contributions)


def is_exact(plan: Plan, opened: Opened, contributions: list[plaintext.Contribution]) -> bool:
    """Whether every opened sum equals the plaintext's."""
    wanted = plaintext.sums(plan, contributions)
    return all(np.array_equal(opened.sums[name], total) for name, total in wanted.items())


def opened_servers(plan: Plan, round_number: int = 1) -> tuple[Server, Server]:
    """Servers with an open round."""
    servers = make_servers(plan)
    begin_round(servers, round_number)
    return servers


def update_of(plan: Plan, seed: int) -> Update:
    """An update of two rows a segment, all of the largest magnitude."""
    return random_update(plan, np.random.default_rng(seed), rows=2, largest=True)


class Outbox:
    """A transport that keeps a client's messages instead of delivering them."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, bytes]] = []

    def send(self, party: int, message: bytes) -> None:
        self.messages.append((party, message))

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        raise NotImplementedError


def messages_of(
    plan: Plan, client_id: int, update: Update, round_number: int = 1
) -> list[tuple[int, bytes]]:
    """What a client would send, to which server."""
    outbox = Outbox()
    client = Client(plan, outbox, client_id=client_id)
    session = client.start_round(round_number, indices=wanted_rows(plan, update))
    session.submit(update)
    return outbox.messages


def deliver(servers: tuple[Server, Server], sent: list[tuple[int, bytes]]) -> None:
    """Deliver messages in order, relays included."""
    wire = Wire(servers)
    for party, message in sent:
        wire.send(party, message)


def open_wire(plan: Plan) -> tuple[tuple[Server, Server], Wire]:
    """Servers with an open round 1, and a wire to them."""
    servers = make_servers(plan)
    begin_round(servers, 1)
    return servers, Wire(servers)


def start(wire: Wire, client_id: int, update: Update) -> ClientRound:
    """A client in round 1 that has asked for the rows of its update."""
    plan = wire.servers[0].plan
    return Client(plan, wire, client_id=client_id).start_round(1, indices=wanted_rows(plan, update))
