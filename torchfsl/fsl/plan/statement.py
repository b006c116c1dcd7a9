"""What a report proves of its values, and how: everything that follows from the plan alone.

The servers' shares of a report's values are read as signed integers (`dpf.lifts`), which add up to
the values but for a few wraps that `num_carries` trees correct. Of these integers is proven

    counts   sum c (c - 1) = 0 over the count lane of all slots: every c is 0 or 1;
    k_max    sum c + (four squares) = k_max in every segment;
    norm     sum v**2 + (four squares) = l2_bound**2 over all other values, under `proofs = norm`;
    carries  E**2 = m and m**2 = m for each slot of each carry tree: E is -1, 0 or 1.

All are sums of squares, so one proof does (`crypto.flp`). The values lie in one vector, in the
order of `Statement.groups`; each group begins a new call. docs/proofs.md has the argument.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from torchfsl.crypto import field128
from torchfsl.crypto.field128 import ELEMENT_BYTES
from torchfsl.crypto.flp import Inputs, Query, SumsOfSquares
from torchfsl.errors import ParameterError
from torchfsl.fsl.plan import proof_shape
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.suite import CHECK_BYTES, FOLD_BYTES
from torchfsl.submodel.segments import TensorSpec, ceil_div
from torchfsl.types import Whole

Proofs = Literal["none", "lanes", "norm"]

PROOFS: Final[tuple[Proofs, ...]] = ("none", "lanes", "norm")
"""What a plan may have its clients prove."""

MAX_RING_BITS: Final = 48
"""Sums over wider values could pass the field's modulus."""

CARRIES: Final = "carries of the proof"
"""Name of the trees that correct wraps; no segment of a plan with proofs is called so."""

CARRY_BITS: Final = 56
"""Ring of what a carry tree carries."""

_SLACK: Final = 4
"""Ring values that fill a bound up, their squares being what is left of it."""


class Group(NamedTuple):
    """A part of the vector: `size` values from `start` on, which begin at call `first_call`.

    `kind` is norm, count or slack; `name` that of the segment of a count or its slack.
    """

    kind: str
    name: str
    start: int
    size: int
    first_call: int
    num_calls: int


@dataclass(frozen=True, slots=True)
class Statement:
    """What is proven under one plan; public.

    Attributes:
        segments: with trees, in plan order; `dense`: the names and sizes of the others.
        ring_bits: l.
        counted: whether there is a count lane.
        norm: the bound on the norm, 0 if it is not proven.
        num_carries: T, the carry trees of a report.
        shape: of the proof.
        groups: of the vector, in order.
        num_values: its length.
    """

    segments: tuple[TreeSegment, ...]
    dense: tuple[tuple[str, int], ...]
    ring_bits: int
    counted: bool
    norm: int
    num_carries: int
    shape: SumsOfSquares
    groups: tuple[Group, ...]
    num_values: int

    @property
    def num_slack(self) -> int:
        """Slack values: four a bound, that of the norm first, then those of the segments."""
        return _SLACK * (bool(self.norm) + (len(self.segments) if self.counted else 0))

    @property
    def carries(self) -> TreeSegment:
        """The carry trees as a segment of full-domain trees over the vector's positions."""
        return _carry_trees(self.num_values, self.num_carries, self.norm > 0)

    @property
    def num_sums(self) -> int:
        """Slots of all carry trees: as many sums E, and as many field elements m."""
        return self.num_carries << self.carries.nu

    @property
    def carry_hint_bytes(self) -> int:
        """Public bytes of what the carry trees carry."""
        return self.num_sums * CARRY_BITS // 8

    @property
    def public_bytes(self) -> int:
        """What a report's public part gains: carry trees and their hints."""
        return self.carries.tree_bytes + self.carry_hint_bytes

    @property
    def slack_bytes(self) -> int:
        """Slack values on the wire."""
        return self.num_slack * self.ring_bits // 8

    @property
    def num_elements(self) -> int:
        """Field elements that a report carries: the m, then the proof."""
        return self.num_sums + self.shape.num_elements

    @property
    def private_bytes(self) -> int:
        """What the masked part of a report gains: slack, then field elements."""
        return self.slack_bytes + ELEMENT_BYTES * self.num_elements

    @property
    def said_elements(self) -> int:
        """Field elements of a verdict: the wires at the point, the proof there, the outputs."""
        return self.shape.arity + 2

    def leaf_values(self, segment: TreeSegment) -> int:
        """Values of a leaf that matter, from the first on: of lanes alone mostly one."""
        if not self.norm and segment.nu == 0:
            return 1
        return (segment.tau + int(self.counted)) << segment.nu

    def vector(self, trees: Mapping[str, Whole], dense: Mapping[str, Whole], slack: Whole) -> Whole:
        """`int64[num_values]` in the order of the groups.

        Args:
            trees: by segment `[num_trees, 2**nu, values]`, the count lane first; of segments whose
                values are not proven the lane alone is read.
            dense: by segment `[values]`; read for the norm only.
            slack: `[num_slack]`.
        """
        parts: list[Whole] = []
        fours = iter(slack.reshape(-1, _SLACK))
        if self.norm:
            lanes = int(self.counted)
            parts += [trees[s.name][..., lanes:].reshape(-1) for s in self.segments]
            parts += [dense[name] for name, _ in self.dense]
            parts.append(next(fours))
        if self.counted:
            parts += [trees[s.name][..., 0].reshape(-1) for s in self.segments]
            parts += list(fours)
        return np.concatenate(parts)

    def inputs(self, parts: Sequence[tuple[Whole, int]], tail: Sequence[int]) -> Inputs:
        """What the proof takes: vectors with scales laid into calls, and sums E and m in turn."""
        body = self.shape.num_calls - 2 * self.num_sums
        laid = []
        for vector, scale in parts:
            calls = np.zeros(body * self.shape.arity, dtype=np.int64)
            for group in self.groups:
                start = group.first_call * self.shape.arity
                calls[start : start + group.size] = vector[group.start : group.start + group.size]
            laid.append((calls.reshape(body, self.shape.arity), scale))
        return Inputs(laid, tail)

    def output(self, inputs: Inputs, query: Query, party: int, rho: int) -> int:
        """One server's share of all that must be zero, as one element: powers of rho add it up."""
        residues = [value for _, value in self.residues(inputs, query, party)]
        return field128.evaluate([0, *residues], rho)

    def residues(self, inputs: Inputs, query: Query, party: int) -> list[tuple[str, int]]:
        """Its shares of what must be zero, each with what it says: norm, counts, k_max, carries."""
        squares, tail = query.outputs, inputs.tail
        own = 1 - party  # what is public is party 0's
        sums = {(g.kind, g.name): sum(squares[g.first_call : g.first_call + g.num_calls])
                for g in self.groups}  # fmt: skip
        found: list[tuple[str, int]] = []
        if self.norm:
            found.append(("norm", sums["norm", ""] - own * self.norm**2))
        if self.counted:
            counts = {g.name: _total(g, inputs, self.shape.arity)
                      for g in self.groups if g.kind == "count"}  # fmt: skip
            both = sum(sums["count", n] for n in counts) - sum(counts.values())
            found.append(("counts", both))
            found += [("k_max", sums["slack", s.name] + counts[s.name] - own * s.k_max)
                      for s in self.segments]  # fmt: skip
        first = self.shape.num_calls - len(tail)
        for i in range(0, len(tail), 2):
            m = tail[i + 1]
            found += [("carries", squares[first + i] - m), ("carries", squares[first + i + 1] - m)]
        return found

    def accepts(self, ours: Sequence[int], theirs: Sequence[int]) -> bool:
        """Whether two servers' verdicts, `said_elements` each, say that all is true."""
        *wires, at_point, output = field128.add(ours, theirs)
        return self.shape.accepts(wires, at_point) and output == 0


def _total(group: Group, inputs: Inputs, arity: int) -> int:
    """A share of the sum of a group's values; exact, whatever the integers."""
    total, start = 0, group.first_call * arity
    for calls, scale in inputs.parts:
        values = calls.reshape(-1)[start : start + group.size]
        high, low = int((values >> 32).sum()), int((values & 0xFFFFFFFF).sum())
        total += scale * ((high << 32) + low)
    return total


def proof_public_bytes(statement: Statement | None) -> int:
    """What a report's public part has for the proof, behind the hints."""
    return 0 if statement is None else statement.public_bytes


def proof_private_bytes(statement: Statement | None) -> int:
    """What a report has for it behind the masked dense values."""
    return 0 if statement is None else statement.private_bytes


def verdict_bytes(statement: Statement | None) -> int:
    """What a server says of one report: the fold, and of the proof what it opens."""
    return FOLD_BYTES + (0 if statement is None else ELEMENT_BYTES * statement.said_elements)


def one_ring(rings: frozenset[int]) -> int:
    """The ring of all values.

    Raises:
        ParameterError: there are several.
    """
    if len(rings) > 1:
        raise ParameterError(
            f"proofs want one ring for all segments, the plan has rings of {sorted(rings)} bits: "
            "give every segment as many ring_bits (clips may differ), or no proofs"
        )
    (ring_bits,) = rings
    return ring_bits


@functools.lru_cache(maxsize=64)
def make_statement(
    segments: tuple[TreeSegment, ...],
    ring_bits: int,
    proofs: Proofs,
    counted: bool,
    l2_bound: int,
) -> Statement:
    """The statement of a plan with proofs.

    Args:
        segments: all of the plan, dense ones among them.
        ring_bits: l.
        proofs: lanes or norm.
        counted: whether the plan has a count lane.
        l2_bound: of the plan.

    Raises:
        ParameterError: it cannot be proven under these parameters.
    """
    trees = tuple(s for s in segments if not s.is_dense)
    dense = tuple((s.name, s.m) for s in segments if s.is_dense)
    norm = l2_bound if proofs == "norm" else 0
    sizes = _group_sizes(trees, dense, counted, norm)
    num_values = sum(size for _, _, size in sizes)
    proof_shape.check_leaves(trees)
    num_carries = proof_shape.num_carries(_magnitudes(trees, dense, counted, norm), ring_bits)
    counts = sum(size for kind, _, size in sizes if kind == "count")  # one sum over all segments
    largest = max(counts, *(size for _, _, size in sizes))
    proof_shape.check_field(largest, ring_bits, num_carries, norm)
    tail = 2 * (num_carries << _carry_trees(num_values, num_carries, norm > 0).nu)
    shape = proof_shape.cheapest([size for _, _, size in sizes], tail)
    groups, start, call = [], 0, 0
    for kind, name, size in sizes:
        calls = ceil_div(size, shape.arity)
        groups.append(Group(kind, name, start, size, call, calls))
        start, call = start + size, call + calls
    return Statement(
        trees, dense, ring_bits, counted, norm, num_carries, shape, tuple(groups), num_values
    )


def _group_sizes(
    trees: tuple[TreeSegment, ...], dense: tuple[tuple[str, int], ...], counted: bool, norm: int
) -> list[tuple[str, str, int]]:
    """Kind, segment and values of every group, in order."""
    sizes = []
    if norm:
        values = sum((s.num_trees << s.nu) * s.tau for s in trees) + sum(m for _, m in dense)
        sizes.append(("norm", "", values + _SLACK))
    if counted:
        sizes += [("count", s.name, s.num_trees << s.nu) for s in trees]
        sizes += [("slack", s.name, _SLACK) for s in trees]
    return sizes


def _magnitudes(
    trees: tuple[TreeSegment, ...], dense: tuple[tuple[str, int], ...], counted: bool, norm: int
) -> int:
    """Most that an honest report's values add up to in magnitude, slack included."""
    total = 0
    if norm:
        num = sum(s.k_max * s.tau for s in trees) + sum(m for _, m in dense)
        total += (math.isqrt(num) + 1) * norm + 2 * norm
    if counted:
        total += sum(s.k_max + 2 * (math.isqrt(s.k_max) + 1) for s in trees)
    return total


@functools.lru_cache(maxsize=64)
def _carry_trees(num_values: int, num_carries: int, wide: bool) -> TreeSegment:
    """T full-domain trees; over many values four a leaf, which costs bytes and saves time."""
    m = max(num_values, num_carries)
    return TreeSegment(
        CARRIES, "scalars", (TensorSpec(CARRIES, (m,)),), m, 1, num_carries, stash=num_carries,
        nu=2 if wide else 0, check_bytes=CHECK_BYTES,
    )  # fmt: skip
