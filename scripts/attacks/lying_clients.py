"""Clients that write more than an honest one may, under plans with proofs: what each of them tries.

A `Lie` alters what an honest client's code sends: values before trees and proof are made of them,
slack, carries, the squares of carries, or the finished proof. Where the lie makes a false
statement, the client proves it with the honest code, which is the best that is known.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

import numpy as np

from scripts.attacks.result import AttackResult
from scripts.parties import two_servers
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl.client import proof, report
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.dpf import carries
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.statement import Proofs, Statement
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.suite import CHECK_BYTES
from torchfsl.fsl.transport import InProcess
from torchfsl.kernels import ring
from torchfsl.submodel.norm_bound import four_squares
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.segments import TensorSpec
from torchfsl.submodel.update import SegmentUpdate
from torchfsl.types import Whole

ROWS: Final = 8
TAU: Final = 2
BOUND: Final = 200
HONEST: Final = 80
CLIENTS: Final = 5

Alter = Callable[[Whole], Whole]


@dataclass(frozen=True, slots=True)
class Lie:
    """What a client alters.

    Attributes:
        values: `int64[num_trees, 1 + tau]`, count first, of the segment with trees.
        slack: slack values; None takes four squares of what is left, or zeros if less is.
        wraps: the carries by position, beside those that are needed.
        twice: whether the first carry tree carries at the slot beside its own, too.
        proven: `int64[num_values]`, what is proven instead of what is sent.
        squares: the squares m, the tail of the proof's inputs, as ints.
        proof: field elements of the finished proof.
        needs: the checks that refuse it; `gadget` is the proof of sums of squares itself.
    """

    needs: tuple[str, ...]
    values: Alter | None = None
    slack: Alter | None = None
    wraps: Alter | None = None
    twice: bool = False
    proven: Alter | None = None
    squares: Callable[[list[int]], list[int]] | None = None
    proof: Callable[[list[int]], list[int]] | None = None


def plan_with(proofs: Proofs, *, ring_bits: int = 32, epochs: int = 1) -> Plan:
    """Eight rows of two values, counted, in bins, and three dense values."""
    table = TreeSegment(
        "table", "rows", (TensorSpec("table", (ROWS, TAU)),), ROWS, TAU, 2, num_bins=6, theta=4,
        stash=1, check_bytes=CHECK_BYTES,
    )  # fmt: skip
    dense = TreeSegment("bias", "dense", (TensorSpec("bias", (3,)),), 3, 1, 3)
    return Plan(
        session="0" * 32, hash_seed="0" * 64, encoding=FixedPoint(ring_bits, 0, 100.0),
        max_clients=8, segments=(table, dense), min_clients=1, lane="count", l2_bound=BOUND,
        proofs=proofs, max_epochs=epochs,
    )  # fmt: skip


def _first(*numbers: int) -> Alter:
    """The first tree carries these: count, values."""

    def alter(values: Whole) -> Whole:
        values[0] = numbers
        return values

    return alter


def _everywhere(number: int) -> Alter:
    def alter(values: Whole) -> Whole:
        values[:, 1:] = number
        return values

    return alter


def _counts(values: Whole) -> Whole:
    values[:, 0] = [1, 1, 1, 0, 0, 0, 0]
    return values


def _just_above(values: Whole) -> Whole:
    values[:] = 0
    values[0] = 1, BOUND, 1
    return values


def _at(position: int, number: int) -> Alter:
    def alter(vector: Whole) -> Whole:
        vector[position] += number
        return vector

    return alter


def _within(vector: Whole) -> Whole:
    """Of `_just_above` what is within the bound: one value alone."""
    vector[1 : 7 * TAU + 3] = 0  # of seven trees and the dense values
    return vector


def _plus_one(place: int) -> Callable[[list[int]], list[int]]:
    def alter(elements: list[int]) -> list[int]:
        elements[place] += 1
        return elements

    return alter


LIES: Final[dict[str, Lie]] = {
    "norm**2 = bound**2 + 1": Lie(("norm",), _just_above),
    "one value 2**31 - 1": Lie(("norm",), _first(1, (1 << 31) - 1, 0)),
    "one value -2**31": Lie(("norm",), _first(1, -(1 << 31), 0)),
    "all values 2**31 - 1": Lie(("norm",), _everywhere((1 << 31) - 1)),
    "slack too large": Lie(("norm",), slack=_at(0, 1)),
    "slack 2**31 - 1": Lie(
        ("norm", "k_max"), slack=lambda slack: np.full_like(slack, (1 << 31) - 1)
    ),
    "count 2": Lie(("counts",), _first(2, 0, 0)),
    "count -1": Lie(("counts",), _first(-1, 0, 0)),
    "count -4": Lie(("counts",), _first(-4, 0, 0)),
    "count 2**30": Lie(("counts", "k_max"), _first(1 << 30, 0, 0)),
    "count 2**31": Lie(("counts", "k_max"), _first(-(1 << 31), 0, 0)),
    "more ones than k_max": Lie(("k_max",), _counts),
    "a carry without a wrap": Lie(("norm",), _first(1, 0, 0), wraps=_at(0, 1)),
    "two carries in one block": Lie(("norm",), _first(1, 0, 0), wraps=_at(0, 1), twice=True),
    "a carry of 2": Lie(("carries", "norm"), _first(1, 0, 0), wraps=_at(0, 2)),
    "a carry of 2**40, its square false": Lie(
        ("carries", "norm"), _first(1, 0, 0), wraps=_at(0, 1 << 40), squares=lambda _: [1] * 99
    ),
    "a false square": Lie(("carries",), squares=_plus_one(0)),
    "a proof of other values": Lie(("gadget",), _just_above, proven=_within),
    "a seed of the proof altered": Lie(("gadget",), proof=_plus_one(0)),
    "a coefficient altered": Lie(("gadget",), proof=_plus_one(-1)),
}
"""By name; those of `norm` lie to plans with `proofs = norm` alone."""


@contextlib.contextmanager
def lying(lie: Lie) -> Iterator[None]:
    """Within, clients' reports carry the lie."""
    real_carried = report._carried
    extra: list[Whole] = []

    def carried(trees: Any, segment: TreeSegment, part: Any, weight: int) -> Any:
        data = real_carried(trees, segment, part, weight)
        if lie.values is None:
            return data
        bits = 8 * data.shape[-1]
        return ring.from_int64(lie.values(ring.to_int64(data)), bits)

    def slack(statement: Statement, true: Any) -> Whole:
        found = _slack_of(statement, true)
        return found if lie.slack is None else lie.slack(found)

    def grow(statement: Statement, context: Any, seeds: Any, wrapped: Whole) -> Any:
        wanted = wrapped if lie.wraps is None else lie.wraps(wrapped.copy())
        extra[:] = [wanted - wrapped]
        extra[0][1] += lie.twice
        return _GROW(statement, context, seeds, wanted)

    def hints(key: bytes, leaves: Any, values: Any) -> Any:
        values[0, 1] += np.uint64(lie.twice)
        return _HINTS(key, leaves, values)

    def inputs(self: Statement, parts: Any, tail: Any) -> Any:
        if lie.squares is not None:
            squares = lie.squares(list(tail[1::2]))
            tail[1::2] = squares[: len(tail) // 2]
        if lie.proven is not None:
            parts = [(lie.proven(parts[0][0].copy()), 1)]
        if extra:  # what the servers will read: the client proves the best it can
            parts = [*parts, (extra.pop(), -(1 << self.ring_bits))]
        return _INPUTS(self, parts, tail)

    def prove(self: Any, given: Any, seeds: Any) -> list[int]:
        made = _PROVE(self, given, seeds)
        return made if lie.proof is None else lie.proof(made)

    with (
        mock.patch.object(report, "_carried", carried),
        mock.patch.object(proof, "_slack", slack),
        mock.patch.object(carries, "grow", grow),
        mock.patch.object(carries, "_hints", hints if lie.twice else _HINTS),
        mock.patch.object(Statement, "inputs", inputs),
        mock.patch.object(type(_SHAPE), "prove", prove),
    ):
        yield


_GROW: Final = carries.grow
_HINTS: Final = carries._hints
_INPUTS: Final = Statement.inputs
_SHAPE: Final = plan_with("norm").statement.shape  # type: ignore[union-attr]
_PROVE: Final = type(_SHAPE).prove


def _slack_of(statement: Statement, true: Any) -> Whole:
    """Honest slack, and zeros where a bound is exceeded."""
    blank = statement.vector(*true, np.zeros(statement.num_slack, dtype=np.int64))
    parts = {(g.kind, g.name): blank[g.start : g.start + g.size].tolist() for g in statement.groups}
    left = [statement.norm**2 - sum(v * v for v in parts["norm", ""])] if statement.norm else []
    left += [s.k_max - sum(parts["count", s.name]) for s in statement.segments]
    most = (1 << (statement.ring_bits - 1)) - 1
    return np.array([min(root, most) for rest in left for root in four_squares(max(rest, 0))])


def round_with(plan: Plan, lie: Lie | None) -> Opened:
    """A round of honest clients and, at the same row, of one that lies."""
    servers = two_servers(plan)
    begin_round(servers, 1)
    link = InProcess(*servers)
    update = {
        "table": SegmentUpdate(np.array([3]), np.full((1, TAU), HONEST)),
        "bias": SegmentUpdate(None, np.ones((3, 1), dtype=np.int64)),
    }
    for number in range(CLIENTS):
        Client(plan, link, client_id=number).start_round(1).submit(update)
    if lie is not None:
        with lying(lie):
            Client(plan, link, client_id=CLIENTS).start_round(1).submit(update)
    return finish_round(servers)


def run() -> AttackResult:
    """Whether each lie gets into the sum, without proofs and with them."""
    tried = {name: lie for name, lie in LIES.items() if lie.values is not None and not lie.wraps}
    off = {name: CLIENTS in round_with(plan_with("none"), lie).clients
           for name, lie in tried.items()}  # fmt: skip
    plan = plan_with("norm")
    on = {name: CLIENTS in round_with(plan, lie).clients for name, lie in LIES.items()}
    statement = plan.statement
    assert statement is not None
    ratio = _seconds(plan) / _seconds(plan_with("none"))
    return AttackResult(
        "clients that write too much",
        off=f"{sum(off.values())} of {len(off)} lies about values and counts are in the sum",
        on=f"{sum(on.values())} of {len(on)} lies, about carries, slack and proofs, too",
        worked_off=all(off.values()),
        worked_on=any(on.values()),
        extra_bytes=statement.public_bytes + statement.private_bytes,
        time_ratio=ratio,
    )


def _seconds(plan: Plan) -> float:
    """Processor time of the fastest of some honest rounds."""
    seconds = []
    for _ in range(5):
        start = time.process_time()
        round_with(plan, None)
        seconds.append(time.process_time() - start)
    return min(seconds)
