"""The wire format: every message's layout and exact length. Version 1.

A message is a 64-byte header and a body. All integers are little-endian.

    0  magic "TPHF"      4  wire version      5  kind      6  querying client (2)
    8  iteration (2)    10  step (2)         12  batch (4)
    16  answering client, or in SUM the set of added clients, one bit for each place in the plan
    24  body length     32  plan digest (32 bytes)

Bodies, whose lengths `plan` gives (B queries per batch, e bytes per ring element):

    WEIGHTS    version 8, then per linear layer w + a                       P_A to S   set-up
    READY      version 8                                                    S to P_Q   set-up
    DEALING    per comparison tables or trees, then shared elements, in as  P_Q to S   offline
               many parts as the plan says (`step` is the number of a part)
    TREES      per comparison its trees (only with `trees`)                 S to P_A   offline
    PRODUCTS   per linear layer except the last: W' * b + kappa             S to P_A   offline
    QUERY      x - r: B inputs                                              P_Q to S   online
    INPUT      x - r - b                                                    S to P_A   online
    ANSWER     values from P_A at this step (masked products, bits)         P_A to S   online
    SERVE      values from S at this step                                   S to P_A   online
    SUM        sum of masked logits: B * classes * e                        S to P_Q   online
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from torchfsl.errors import DecodeError
from torchfsl.privhfl.plan import WIRE_VERSION, QueryPlan
from torchfsl.submodel.framing import HEADER_BYTES, Framing, check_whole

_LAYOUT: Final = struct.Struct("<4sBBHHHIQQ32s")


class Kind(IntEnum):
    """Message kinds, in the order of the table above."""

    WEIGHTS, READY, DEALING, TREES, PRODUCTS, QUERY, INPUT, ANSWER, SERVE, SUM = range(1, 11)


PHASES: Final = {
    Kind.WEIGHTS: "setup", Kind.READY: "setup", Kind.DEALING: "offline", Kind.TREES: "offline",
    Kind.PRODUCTS: "offline", Kind.QUERY: "online", Kind.INPUT: "online", Kind.ANSWER: "online",
    Kind.SERVE: "online", Kind.SUM: "online",
}  # fmt: skip
"""When each is sent."""

_OF_SETUP: Final = frozenset((Kind.WEIGHTS, Kind.READY))
_IN_STEPS: Final = frozenset((Kind.DEALING, Kind.ANSWER, Kind.SERVE))

_FRAMING: Final[Framing[QueryPlan, Kind]] = Framing(
    b"TPHF", WIRE_VERSION, Kind, "PrivHFL", layout=_LAYOUT
)


@dataclass(frozen=True, slots=True)
class Topic:
    """The clients, batch and step that a message belongs to.

    Attributes:
        querying: the client that asks.
        answering: the client that answers; in SUM the set.
        iteration, batch: of the learning, 16 and 32 bits.
        step: of the online phase, or the part of DEALING, else 0.
    """

    querying: int
    answering: int
    iteration: int = 0
    batch: int = 0
    step: int = 0


@dataclass(frozen=True, slots=True)
class Message:
    """A message whose header has been checked, with a view of the body."""

    kind: Kind
    topic: Topic
    body: memoryview

    def __repr__(self) -> str:
        return f"Message({self.kind.name}, {self.topic}, {len(self.body)} bytes)"


def encode(plan: QueryPlan, kind: Kind, topic: Topic, *parts: Any) -> bytes:
    """A message whose body is the parts in order: bytes, or contiguous arrays."""
    size = sum(memoryview(part).nbytes for part in parts)
    about = topic.querying, topic.iteration, topic.step, topic.batch, topic.answering
    head = _FRAMING.head(plan, kind, size, *about)
    return b"".join((head, *parts))


def cut(parts: Iterable[Any], sizes: Sequence[int]) -> Iterator[list[memoryview]]:
    """Bodies of these lengths, each as views of the parts in order."""
    left = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
    left.reverse()
    for size in sizes:
        body: list[memoryview] = []
        while size:
            part = left.pop()
            body.append(part[:size])
            if len(part) > size:
                left.append(part[size:])
            size -= len(body[-1])
        yield body


def decode(plan: QueryPlan, data: bytes | memoryview, *expected: Kind) -> Message:
    """Check a message whole, before anything is made of it.

    Raises:
        DecodeError: wrong magic, version, plan, kind, client or length, or a number in a place
            that this kind leaves at 0.
    """
    kind, about, size = _FRAMING.opened(plan, data, expected)
    querying, iteration, step, batch, answering = about
    topic = Topic(querying, answering, iteration, batch, step)
    unused = 0 if kind in _IN_STEPS else step
    if unused or (kind in _OF_SETUP and (iteration or batch)):
        raise DecodeError(
            f"{kind.name} has iteration {iteration}, batch {batch} and step {step}, but this kind "
            f"of message needs {'all three' if kind in _OF_SETUP else 'step'} to be 0"
        )
    if size != (length := body_bytes(plan, kind, topic)):
        raise DecodeError(
            f"{kind.name} has a body of {size} bytes, expected {length} bytes", code="length"
        )
    check_whole(kind, data, HEADER_BYTES + size)
    return Message(kind, topic, memoryview(data)[HEADER_BYTES:])


def kind_of(data: bytes) -> Kind:
    """Kind of a message that this side encoded."""
    return Kind(_LAYOUT.unpack_from(data)[2])


def answering_of(data: bytes) -> int | None:
    """The answering client of a message that this side encoded; None of SUM, which has many."""
    return None if kind_of(data) == Kind.SUM else int(_LAYOUT.unpack_from(data)[7])


def body_bytes(plan: QueryPlan, kind: Kind, topic: Topic) -> int:
    """Exact length of a body.

    Raises:
        DecodeError: the plan knows no such client, set or step.
    """
    if kind == Kind.SUM:
        if topic.answering >> len(plan.clients):
            raise DecodeError("SUM includes clients that are not in the plan")
        return plan.sum_bytes()
    if topic.answering not in plan.graphs:
        raise DecodeError(f"{kind.name}: client {topic.answering} is not in the plan")
    length = _lengths(plan, topic.answering).get(kind)
    if length is not None:
        return length
    if kind == Kind.DEALING:
        steps, own = plan.dealing_parts(plan.graphs[topic.answering]), True
    else:
        steps = plan.steps(topic.answering)
        own = (topic.step % 2 == 0) == (kind == Kind.ANSWER)
    if topic.step >= len(steps) or not own:
        raise DecodeError(f"{kind.name} has step {topic.step}, which this party does not have")
    return steps[topic.step]


@functools.lru_cache(maxsize=256)
def _lengths(plan: QueryPlan, client: int) -> Mapping[Kind, int]:
    """Of the bodies of an answering client's messages, except those of the online steps."""
    graph = plan.graphs[client]
    return {
        Kind.WEIGHTS: plan.weights_bytes(graph),
        Kind.READY: 8,
        Kind.TREES: plan.relayed_bytes(graph),
        Kind.PRODUCTS: plan.products_bytes(graph),
        Kind.QUERY: plan.query_bytes(),
        Kind.INPUT: plan.query_bytes(),
    }
