"""Groups of values that are proven under a plan: which, how many, how large they may be.

Everything is public. A group's values begin a new call of the proof (`crypto.flp`), so that the
proof gives the sum of their squares. In order:

    norm    all values of segments without a separate bound, and slack of the whole norm
    norm    all values of a segment with a separate bound
    own     the slack of this bound
    weight  the client's weight w
    range   the slack of w
    claim   per dense segment, the weight there
    lane    per segment with trees, the lane of all slots
    slack   per segment with trees, the slack of k_max

A slack is four ring values whose squares fill a bound up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.submodel.plan import Lane
from torchfsl.types import Whole

FOUR: Final = 4


class Group(NamedTuple):
    """A part of the vector: `size` values from `start` on, which begin at call `first_call`.

    `kind` as above, `name` that of the segment, or empty. The last `slack` values are not the
    segments' but sent for the proof alone.
    """

    kind: str
    name: str
    start: int
    size: int
    slack: int
    first_call: int
    num_calls: int


@dataclass(frozen=True, slots=True)
class Proven:
    """A proven bound, and its values.

    Attributes:
        trees: segments with trees, in plan order; `dense`: the others.
        norm: the bound on the norm of a client of weight 1, 0 if it is not proven.
        lane: count or weight, none if there is none.
        max_weight: W, 1 without weights.
    """

    trees: tuple[TreeSegment, ...]
    dense: tuple[TreeSegment, ...]
    norm: int
    lane: Lane
    max_weight: int

    @property
    def bounded(self) -> tuple[TreeSegment, ...]:
        """Segments whose own bound is proven."""
        return tuple(s for s in (*self.trees, *self.dense) if s.l2_bound) if self.norm else ()

    @property
    def free(self) -> tuple[TreeSegment, ...]:
        """The others."""
        return tuple(s for s in (*self.trees, *self.dense) if not s.l2_bound)

    @property
    def weighted(self) -> bool:
        """Whether weights are proven."""
        return self.lane == "weight"

    @property
    def num_lanes(self) -> int:
        """Lane values: one a slot."""
        return sum(s.num_trees << s.nu for s in self.trees) if self.lane != "none" else 0

    def groups(self) -> Iterator[tuple[str, str, int, int]]:
        """Kind, segment, values and how many of them are slack."""
        if self.norm:
            yield "norm", "", sum(map(num_values, self.free)) + FOUR, FOUR
            for s in self.bounded:
                yield "norm", s.name, num_values(s), 0
                yield "own", s.name, FOUR, FOUR
        if self.weighted:
            yield "weight", "", 1, 1
            yield "range", "", FOUR, FOUR
            yield from (("claim", s.name, 1, 0) for s in self.dense)
        if self.lane != "none":
            yield from (("lane", s.name, s.num_trees << s.nu, 0) for s in self.trees)
            yield from (("slack", s.name, FOUR, FOUR) for s in self.trees)

    def most_terms(self) -> int:
        """Most squares in any one of the sums that are claimed."""
        sums = [size for _, _, size, _ in self.groups()]
        if self.norm:
            sums.append(sum(map(num_values, (*self.trees, *self.dense))) + FOUR)
        if self.weighted:
            sums.append(1 + FOUR + 1)  # w**2, its slack, and w W below the last square
        return max(*sums, self.num_lanes + (FOUR if self.weighted else 0))

    def magnitudes(self) -> int:
        """Most that an honest report's values add up to in magnitude, slack included."""
        total, most = 0, self.max_weight
        if self.norm:
            num = sum(s.k_max * s.tau for s in self.trees) + sum(s.m for s in self.dense)
            total += most * ((math.isqrt(num) + 1) * self.norm + 2 * self.norm)
            total += sum(2 * most * s.l2_bound for s in self.bounded)
        if self.lane != "none":
            total += sum(most * (s.k_max + 2 * (math.isqrt(s.k_max) + 1)) for s in self.trees)
        if self.weighted:
            total += most * (2 + len(self.dense))
        return total

    def largest(self) -> int:
        """A bound on the magnitude of every slack value and weight of an honest report."""
        roots = [math.isqrt(s.k_max) + 1 for s in self.trees] if self.weighted else []
        return self.max_weight * max(self.norm, *roots, 1)


def num_values(segment: TreeSegment) -> int:
    """Values of a segment in the vector, its lane not counted."""
    if segment.is_dense:
        return segment.m
    return (segment.num_trees << segment.nu) * segment.tau


Parts = Sequence[tuple[Whole, int]]
"""Vectors with scales, which add up to a share."""


def residues(
    proven: Proven, groups: Sequence[Group], parts: Parts, squares: Sequence[int], party: int
) -> list[tuple[str, int]]:
    """One server's shares of what must be zero of the vector, each with what it says.

    Args:
        proven: what.
        groups: of the vector.
        parts: this server's share of the vector.
        squares: its shares of each call's sum of squares; beyond the groups there may be others.
        party: of the server.
    """
    sums = {
        (g.kind, g.name): sum(squares[g.first_call : g.first_call + g.num_calls]) for g in groups
    }
    totals = {
        (g.kind, g.name): _total(g, parts) for g in groups if g.kind in ("lane", "claim", "weight")
    }
    # w**2: what is public is party 0's.
    unit = sums["weight", ""] if proven.weighted else 1 - party
    zeros: list[tuple[str, int]] = []
    if proven.norm:
        whole = sum(total for (kind, _), total in sums.items() if kind == "norm")
        zeros.append(("norm", whole - unit * proven.norm**2))
        zeros += [
            ("norm of a segment", sums["norm", s.name] + sums["own", s.name] - unit * s.l2_bound**2)
            for s in proven.bounded
        ]
    if proven.weighted:
        zeros += _of_weights(proven, sums, totals)
    elif proven.lane == "count":
        zeros += _of_counts(proven, sums, totals, unit)
    return zeros


def carry_residues(
    squares: Sequence[int], parts: Sequence[int], bits: Sequence[int]
) -> list[tuple[str, int]]:
    """Shares of zero about carries: sum E**2 is that of the chosen parts, bits are 0 or 1.

    Args:
        squares: shares of the sums of squares of calls, first those of all E, then of each bit.
        parts: `Statement.carry_weights`.
        bits: shares of whether each is chosen.
    """
    first = len(squares) - len(bits)
    carried = sum(part * bit for part, bit in zip(parts, bits, strict=True))
    whole = [sum(squares[:first]) - carried]
    whole += [square - bit for square, bit in zip(squares[first:], bits, strict=True)]
    return [("carries", zero) for zero in whole]


_Sums = dict[tuple[str, str], int]


def _of_counts(proven: Proven, sums: _Sums, totals: _Sums, unit: int) -> list[tuple[str, int]]:
    lanes = [("lane", s.name) for s in proven.trees]
    both = sum(sums[lane] for lane in lanes) - sum(totals[lane] for lane in lanes)
    return [("counts", both)] + [
        ("k_max", sums["slack", s.name] + totals["lane", s.name] - unit * s.k_max)
        for s in proven.trees
    ]


def _of_weights(proven: Proven, sums: _Sums, totals: _Sums) -> list[tuple[str, int]]:
    square, weight = sums["weight", ""], totals["weight", ""]
    zeros = [("weight", square + sums["range", ""] - proven.max_weight * weight)]
    zeros += [("claims", totals["claim", s.name] - weight) for s in proven.dense]
    return zeros + [
        ("k_max", sums["slack", s.name] + sums["lane", s.name] - square * s.k_max)
        for s in proven.trees
    ]


def _total(group: Group, parts: Parts) -> int:
    """A share of the sum of a group's values; exact, whatever the integers."""
    total = 0
    for vector, scale in parts:
        values = vector[group.start : group.start + group.size]
        high, low = int((values >> 32).sum()), int((values & 0xFFFFFFFF).sum())
        total += scale * ((high << 32) + low)
    return total
