"""The statement that a report proves of its values; it follows from the plan alone.

The servers' shares of a report's values are read as signed integers (`dpf.lifts`). The integers add
up to the values, except for a few wraps that `num_carries` trees correct. Reports prove of them

    norm     sum v**2 + (four squares) = (w l2_bound)**2 over all values, under `proofs = norm`,
             and the same with `segment.l2_bound` over the values of a segment that has one
    counts   sum c (c - 1) = 0 over the count lane of all slots, so every c is 0 or 1
    k_max    sum c + (four squares) = k_max in every segment
    carries  sum E**2 = sum of some of the numbers `carry_weights`, over all slots of all carry
             trees. E is what a slot carries, so the magnitudes of all E add up to T at most

w is 1 in plans without weights. In plans with weights w is one more value, and instead of counts
reports prove

    weight   w**2 + (four squares) = w max_weight, so w lies in 0 .. max_weight
    claims   the weight in front of each dense segment is w
    k_max    sum c**2 + (four squares) = k_max w**2 over the weight lane of every segment
    weights  sum c**2 (c - w)**2 = 0 over the weight lane of all slots, so every c is 0 or w

All except `weights` are sums of squares, so one proof (`crypto.flp`) is enough for them. `weights`
has another proof, also in `crypto.flp`. The values lie in one vector, in the order of
`Statement.groups` (`proof_groups`), and each group begins a new call.
docs/specification/proofs.md has the argument.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from torchfsl.crypto import field128, flp
from torchfsl.crypto.field128 import ELEMENT_BYTES
from torchfsl.crypto.flp import Inputs, SumsOfSquares, ZeroOrSame
from torchfsl.errors import ParameterError
from torchfsl.fsl.plan import proof_shape
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.proof_groups import Group, Proven, carry_residues, residues
from torchfsl.fsl.suite import CHECK_BYTES, FOLD_BYTES
from torchfsl.kernels.portable.proofs import Words
from torchfsl.submodel.plan import Lane
from torchfsl.submodel.segments import TensorSpec, ceil_div
from torchfsl.types import Whole

Proofs = Literal["none", "lanes", "norm"]

PROOFS: Final[tuple[Proofs, ...]] = ("none", "lanes", "norm")
"""Proofs that a plan may ask of its clients."""

MAX_RING_BITS: Final = 48
"""Sums over wider values could pass the field's modulus."""

CARRIES: Final = "carries of the proof"
"""Name of the trees that correct wraps; no segment of a plan with proofs is called so."""

CARRY_BITS: Final = 56
"""Ring of what a carry tree carries."""


@dataclass(frozen=True, slots=True)
class Statement:
    """The statement that is proven under one plan; public.

    Attributes:
        proven: what, and of what.
        ring_bits: l.
        num_carries: T, the carry trees of a report.
        shape: of the proof of sums of squares.
        same: of that of weights, None without them.
        groups: of the vector, in order.
        num_values: its length.
    """

    proven: Proven
    ring_bits: int
    num_carries: int
    shape: SumsOfSquares
    same: ZeroOrSame | None
    groups: tuple[Group, ...]
    num_values: int

    @property
    def segments(self) -> tuple[TreeSegment, ...]:
        """Those with trees, in plan order."""
        return self.proven.trees

    @property
    def norm(self) -> int:
        """The bound on the norm of a client of weight 1, 0 if it is not proven."""
        return self.proven.norm

    @property
    def has_lanes(self) -> bool:
        """Whether counts or weights are proven."""
        return self.proven.lane != "none"

    @property
    def reads_dense(self) -> bool:
        """Whether dense segments have values in the vector: of weights alone the first of each."""
        return self.norm > 0 or self.proven.weighted

    @property
    def num_slack(self) -> int:
        """Values that are sent for the proof alone, in the order of the groups."""
        return sum(group.slack for group in self.groups)

    @property
    def carries(self) -> TreeSegment:
        """The carry trees as a segment of full-domain trees over the vector's positions."""
        return _carry_trees(self.num_values, self.num_carries, self.norm > 0)

    @property
    def carry_weights(self) -> tuple[int, ...]:
        """Numbers that add up to T, and some of them to every number below it; see `residues`."""
        return proof_shape.parts_of(self.num_carries)

    @property
    def carry_hint_bytes(self) -> int:
        """Public bytes of what the carry trees carry."""
        return (self.num_carries << self.carries.nu) * CARRY_BITS // 8

    @property
    def public_bytes(self) -> int:
        """Bytes that a report's public share gains: carry trees and their hints."""
        return self.carries.tree_bytes + self.carry_hint_bytes

    @property
    def slack_bytes(self) -> int:
        """Slack values on the wire."""
        return self.num_slack * self.ring_bits // 8

    @property
    def num_elements(self) -> int:
        """Field elements that a report carries: a bit a carry weight, then the proofs."""
        return len(self.carry_weights) + self.shape.num_elements + self.same_elements

    @property
    def same_elements(self) -> int:
        """Of these the last, the proof of weights."""
        return 0 if self.same is None else self.same.num_elements

    @property
    def private_bytes(self) -> int:
        """Bytes that the masked part of a report gains: slack, then field elements."""
        return self.slack_bytes + ELEMENT_BYTES * self.num_elements

    @property
    def said_elements(self) -> int:
        """Field elements of a verdict: each proof's wires and value at its point, and an output."""
        of_same = 0 if self.same is None else self.same.num_wires + 1
        return self.shape.arity + 1 + of_same + 1

    def leaf_values(self, segment: TreeSegment) -> int:
        """Values of a leaf that matter, from the first on: of lanes alone mostly one."""
        if not self.norm and segment.nu == 0:
            return 1
        return (segment.tau + int(self.has_lanes)) << segment.nu

    def vector(self, trees: Mapping[str, Whole], dense: Mapping[str, Whole], slack: Whole) -> Whole:
        """`int64[num_values]` in the order of the groups.

        Args:
            trees: by segment `[num_trees, 2**nu, values]`, the lane first; of segments whose values
                are not proven the lane alone is read.
            dense: by segment `[values]`, the weight first under a weight lane; read where
                `reads_dense`.
            slack: `[num_slack]`.
        """
        lanes, weights = int(self.has_lanes), int(self.proven.weighted)
        parts: list[Whole] = []
        at = 0
        for group in self.groups:
            if group.kind == "norm":
                owners = [group.name] if group.name else [s.name for s in self.proven.free]
                parts += [
                    trees[name][..., lanes:].reshape(-1) if name in trees else dense[name][weights:]
                    for name in owners
                ]
            elif group.kind == "claim":
                parts.append(dense[group.name][:1])
            elif group.kind == "lane":
                parts.append(trees[group.name][..., 0].reshape(-1))
            parts.append(slack[at : at + group.slack])
            at += group.slack
        return np.concatenate(parts)

    def lanes(self, vector: Whole) -> Whole:
        """The lanes of all slots of a vector."""
        lanes = [g for g in self.groups if g.kind == "lane"]
        return vector[lanes[0].start : lanes[-1].start + lanes[-1].size]

    def inputs(
        self, parts: Sequence[tuple[Whole, int]], sums: Sequence[int], bits: Sequence[int]
    ) -> Inputs:
        """Inputs of the proof: vectors with scales laid into calls, sums E, and bits."""
        arity = self.shape.arity
        tail = [sums[i : i + arity] for i in range(0, len(sums), arity)]
        tail += [[bit] for bit in bits]
        body = self.shape.num_calls - len(tail)
        laid = []
        for vector, scale in parts:
            calls = np.zeros(body * self.shape.arity, dtype=np.int64)
            for group in self.groups:
                start = group.first_call * self.shape.arity
                calls[start : start + group.size] = vector[group.start : group.start + group.size]
            laid.append((calls.reshape(body, self.shape.arity), scale))
        return Inputs(laid, tail)

    def residues(
        self,
        parts: Sequence[tuple[Whole, int]],
        squares: Sequence[int],
        same: int,
        bits: Sequence[int],
        party: int,
    ) -> list[tuple[str, int]]:
        """One server's shares of all that must be zero, each with what it says, see above.

        Args:
            parts: its share of the vector, as vectors with scales.
            squares: outputs of the proof of sums of squares.
            same: the output of the proof of weights.
            bits: its share of them.
            party: of the server.
        """
        zeros = residues(self.proven, self.groups, parts, squares, party)
        behind = squares[self.groups[-1].first_call + self.groups[-1].num_calls :]
        zeros += carry_residues(behind, self.carry_weights, bits)
        return [*zeros, ("weights", same)] if self.same else zeros

    def accepts(self, ours: Words, others: Words) -> bool:
        """Whether two servers' verdicts, `said_elements` each, say that all is true."""
        opened, first = field128.add(ours, others), self.shape.arity + 1
        if self.same is not None and not self.same.accepts(opened[first:-1]):
            return False
        return self.shape.accepts(opened[:first]) and not opened[-1].any()


def proof_public_bytes(statement: Statement | None) -> int:
    """Bytes of a report's public share for it, behind the hints."""
    return 0 if statement is None else statement.public_bytes


def proof_private_bytes(statement: Statement | None) -> int:
    """Bytes of a report for it, behind the masked dense values."""
    return 0 if statement is None else statement.private_bytes


def verdict_bytes(statement: Statement | None) -> int:
    """Bytes of a server's verdict on one report: the fold, and the opened part of the proof."""
    return FOLD_BYTES + (0 if statement is None else ELEMENT_BYTES * statement.said_elements)


def one_ring(rings: frozenset[int]) -> int:
    """The ring of all values.

    Raises:
        ParameterError: there are several.
    """
    if len(rings) > 1:
        raise ParameterError(
            f"proofs need one ring for all segments, and the plan has rings of {sorted(rings)} "
            "bits: use one ring_bits for all segments (clip may differ)",
            code="proof-conditions",
        )
    (ring_bits,) = rings
    return ring_bits


@functools.lru_cache(maxsize=64)
def make_statement(
    segments: tuple[TreeSegment, ...],
    ring_bits: int,
    proofs: Proofs,
    lane: Lane,
    l2_bound: int,
    max_weight: int = 1,
) -> Statement:
    """The statement of a plan with proofs.

    Args:
        segments: all of the plan, dense ones among them.
        ring_bits: l.
        proofs: lanes or norm.
        lane: of the plan.
        l2_bound: of the plan.
        max_weight: of the plan.

    Raises:
        ParameterError: it cannot be proven under these parameters.
    """
    trees = tuple(s for s in segments if not s.is_dense)
    dense = tuple(s for s in segments if s.is_dense)
    proven = Proven(trees, dense, l2_bound if proofs == "norm" else 0, lane, max_weight)
    sizes = list(proven.groups())
    num_values = sum(size for _, _, size, _ in sizes)
    proof_shape.check_leaves(trees)
    num_carries = proof_shape.num_carries(proven.magnitudes(), ring_bits)
    proof_shape.check_field(proven.most_terms(), ring_bits, num_carries, proven.largest())
    if proven.weighted:
        proof_shape.check_weights(trees, max_weight)
    num_sums = num_carries << _carry_trees(num_values, num_carries, proven.norm > 0).nu
    proof_shape.check_carries(num_sums, CARRY_BITS)
    shape = proof_shape.cheapest(
        [*(size for _, _, size, _ in sizes), num_sums], len(proof_shape.parts_of(num_carries))
    )
    same = flp.cheapest(proven.num_lanes) if proven.weighted else None
    groups, start, call = [], 0, 0
    for kind, name, size, slack in sizes:
        calls = ceil_div(size, shape.arity)
        groups.append(Group(kind, name, start, size, slack, call, calls))
        start, call = start + size, call + calls
    return Statement(proven, ring_bits, num_carries, shape, same, tuple(groups), num_values)


@functools.lru_cache(maxsize=64)
def _carry_trees(num_values: int, num_carries: int, wide: bool) -> TreeSegment:
    """T full-domain trees; over many values 16 a leaf, which costs bytes and saves time."""
    k, m, nu = num_carries, max(num_values, num_carries), 4 if wide else 0
    tensors = (TensorSpec(CARRIES, (m,)),)
    return TreeSegment(
        CARRIES, "scalars", tensors, m, 1, k, stash=k, nu=nu, check_bytes=CHECK_BYTES
    )
