"""Lies of clients that write more than an honest one may, and the plans for them.

A `Lie` alters what an honest client's code sends (`lying_clients.lying`). It alters values before
the client makes trees and proof of them, the weight, slack, or carries. It may also alter the
stated sum of the carries, or the finished proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from scripts.parties import plain_plan
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl.cuckoo.placement import Placement
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.statement import Proofs
from torchfsl.fsl.suite import CHECK_BYTES
from torchfsl.submodel.plan import Lane
from torchfsl.submodel.segments import TensorSpec
from torchfsl.types import Whole

ROWS, TAU, BOUND, OWN, HONEST = 8, 2, 200, 150, 80
WEIGHT: Final = 5
"""Largest weight of a plan with weights; honest clients have 2."""
Alter = Callable[[Whole], Whole]


@dataclass(frozen=True, slots=True)
class Lie:
    """Alterations of a report by its client, and the checks that refuse them.

    Attributes:
        values: alteration of `int64[num_trees, 1 + tau]`, count or weight first, of the segment
            with trees.
        weight: weight instead of the client's own, also in the weight column and in the values.
        claim: weight in front of the dense segment alone.
        slack: alteration of slack values; None leaves four squares that fill up the bound, or zeros
            if the bound is exceeded.
        wraps: alteration of the carries that are needed, by position.
        twice: whether the first carry tree also carries at the slot next to its own.
        proven: alteration of `int64[num_values]`; the proof is about the result, not about what is
            sent.
        bits: alteration of the bits that state how much all carry trees carry.
        proof: alteration of field elements of the finished proof.
        proof_of_weights: the same for the proof of weights.
        needs: the checks that refuse it; `gadget` is the proof of sums of squares itself.
    """

    needs: tuple[str, ...]
    values: Alter | None = None
    weight: int | None = None
    claim: int | None = None
    slack: Alter | None = None
    wraps: Alter | None = None
    twice: bool = False
    proven: Alter | None = None
    bits: Callable[[list[int]], list[int]] | None = None
    proof: Callable[[list[int]], list[int]] | None = None
    proof_of_weights: Callable[[list[int]], list[int]] | None = None


def plan_with(
    proofs: Proofs, *, ring_bits: int = 32, epochs: int = 1, lane: Lane = "count", own: bool = False
) -> Plan:
    """Eight rows of two values, counted or weighted, in bins, and three dense values.

    If `own` is true, the rows have a separate bound, below that of the whole update.
    """
    sizes = {"num_bins": 6, "theta": 4, "stash": 1, "check_bytes": CHECK_BYTES}
    sizes["l2_bound"] = OWN if own else 0
    tensor = TensorSpec("table", (ROWS, TAU))
    table = TreeSegment("table", "rows", (tensor,), ROWS, TAU, 2, **sizes)
    dense = TreeSegment("bias", "dense", (TensorSpec("bias", (3,)),), 3, 1, 3)
    fields = {"max_clients": 8, "l2_bound": BOUND, "proofs": proofs, "max_epochs": epochs}
    fields |= {"lane": lane, "max_weight": WEIGHT if lane == "weight" else 1}
    return plain_plan(table, dense, encoding=FixedPoint(ring_bits, 0, 100.0), **fields)


def in_two_bins(place: Callable[..., Placement], row: int) -> Callable[..., Placement]:
    """A placement of a liar: the row in two of its bins, as many as the plan's k_max."""

    def twice(table: Any, positions: Any, *sizes: int) -> Placement:
        found = place(table, positions, *sizes)
        num_bins, theta, _ = sizes
        item, position = np.full_like(found.item, -1), found.position.copy()
        for i in range(2):
            slot = int(table[i][row])
            at = i * num_bins // 3 + slot // theta
            item[at], position[at] = 0, slot % theta
        return Placement(item, position, found.unmatched)

    return twice


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


def _just_above(values: Whole, weight: int = 1) -> Whole:
    values[:] = 0
    values[0] = weight, weight * BOUND, 1
    return values


def _own_and_one(values: Whole) -> Whole:
    values[:] = 0
    values[0] = 1, OWN, 1
    return values


def _lanes(values: Whole, *lanes: int) -> Whole:
    values[:, 0] = 0
    values[: len(lanes), 0] = lanes
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
    "a carry of 2**40": Lie(
        ("carries", "norm"),
        _first(1, 0, 0),
        wraps=_at(0, 1 << 40),
        bits=lambda bits: [1] * len(bits),
    ),
    "a bit of the carries is 2": Lie(("carries",), bits=lambda bits: [2, *bits[1:]]),
    "more carried than was said": Lie(("carries",), bits=_plus_one(-1)),
    "a proof of other values": Lie(("gadget",), _just_above, proven=_within),
    "a seed of the proof altered": Lie(("gadget",), proof=_plus_one(0)),
    "a coefficient altered": Lie(("gadget",), proof=_plus_one(-1)),
}
"""By name; those of `norm` lie to plans with `proofs = norm` alone."""

WEIGHT_LIES: Final[dict[str, Lie]] = {
    "weight -1": Lie(("weight",), weight=-1),
    "the largest weight and one": Lie(("weight",), weight=WEIGHT + 1),
    "weight 2**20": Lie(("weight",), weight=1 << 20),
    "weight 0 and values": Lie(("norm",), _first(0, 50, 50), weight=0),
    "a weight of its own for a row": Lie(("weights",), _first(1, 0, 0)),
    "a negative weight for a row": Lie(("weights",), _first(-2, 0, 0)),
    "weights that cancel": Lie(("weights",), lambda values: _lanes(values, 1, 1, 1, -1)),
    "weight 2**30 for a row": Lie(("weights", "k_max"), _first(1 << 30, 0, 0)),
    "more weights than k_max": Lie(("k_max",), lambda values: _lanes(values, 2, 2, 2)),
    "another weight for the dense values": Lie(("claims",), claim=WEIGHT),
    "norm**2 = (w bound)**2 + 1": Lie(("norm",), lambda values: _just_above(values, 2)),
    "slack of the weight": Lie(("weight",), slack=_at(5, 1)),
    "a seed of the proof of weights altered": Lie(("same",), proof_of_weights=_plus_one(0)),
    "a coefficient of it altered": Lie(("same", "weights"), proof_of_weights=_plus_one(-1)),
}
"""By name, to plans with weights; those of `norm` to plans with `proofs = norm` alone."""

OWN_LIES: Final[dict[str, Lie]] = {
    "one above a segment's bound": Lie(("norm of a segment",), _own_and_one),
    "a segment's slack too large": Lie(("norm of a segment",), slack=_at(4, 1)),
}
"""By name, for plans with separate bounds per segment; all keep the whole update's bound."""

KINDS: Final = (LIES, WEIGHT_LIES, OWN_LIES)


def plan_to(lies: dict[str, Lie], proofs: Proofs) -> Plan:
    """The plan for lies of one kind."""
    return plan_with(
        proofs, lane="weight" if lies is WEIGHT_LIES else "count", own=lies is OWN_LIES
    )
