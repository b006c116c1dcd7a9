"""Secure submodel aggregation: values into hints at the client, sums over clients at a server.

A server adds every client's output shares into one accumulator in bin layout and gathers only
once, after the last client: out[x] is the sum over x's three bins and the stash. Shares in bin
layout never leave a server, since they would show where cuckoo hashing placed rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from torchfsl.fsl.cuckoo import placement as cuckoo
from torchfsl.fsl.cuckoo.placement import Placement
from torchfsl.fsl.dpf.trees import Trees, split
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.kernels import ring
from torchfsl.kernels.backends import kernels, num_threads
from torchfsl.types import Bytes, Whole


def tree_values(
    plan: Plan, segment: TreeSegment, placement: Placement, values: Whole, lane: Whole
) -> Bytes:
    """What each tree carries: `[num_trees, tau + lanes, l/8]`, zero for dummies.

    Args:
        plan: gives encoding and lane.
        segment: a tree segment.
        placement: which item each tree holds.
        values: `int64[k, tau]` in item order.
        lane: `int64[k]`, the items' count or weight lane, put before the other values; ignored
            without one.
    """
    carried = np.zeros((segment.num_trees, segment.tau + plan.lane_values), dtype=np.int64)
    used = (placement.item >= 0).nonzero()[0]
    carried[used, plan.lane_values :] = values[placement.item[used]]
    if plan.lane_values:
        carried[used, 0] = lane[placement.item[used]]
    return ring.from_int64(carried, plan.encoding.ring_bits)


@dataclass(slots=True)
class Contribution:
    """One report's part of a segment, as the accumulator takes it.

    `roots [num_trees, 16]`, `hints [num_trees, W/8 << nu]`.
    """

    key_tree: bytes
    key_convert: bytes
    roots: Bytes = field(repr=False)
    trees: list[Trees] = field(repr=False)
    hints: Bytes = field(repr=False)


class Accumulator:
    """One server's running sum of one tree segment, over clients, in bin layout.

    It serves round after round, since memory that is new to a process comes page by page.

    Memory: 3 m W/8 bytes for the bins and m W/8 for the stash, W/8 = `plan.value_bytes`.
    """

    def __init__(self, plan: Plan, segment: TreeSegment, party: int) -> None:
        """Start at zero."""
        self._plan, self._segment, self._party = plan, segment, party
        self._width = plan.encoding.ring_bits // 8
        payload = plan.value_bytes(segment) << segment.nu
        self._sums = [
            aligned_zeros(1 if group.is_stash else group.num_trees, group.num_leaves, payload)
            for group, _ in split(segment)
        ]

    def clear(self) -> None:
        """Back to zero."""
        for total in self._sums:
            total.fill(0)

    def add(self, reports: Sequence[Contribution], *, subtract: bool = False) -> None:
        """Add reports together, which passes through the sum once; or take them out again."""
        sign = 1 - self._party if subtract else self._party
        for position, (group, span) in enumerate(split(self._segment)):
            jobs = [
                (report.key_tree, report.key_convert, *arrays)
                for report in reports
                for arrays in _jobs(report.roots[span], report.trees[position], report.hints[span])
            ]
            kernels().accumulate_batch(
                jobs, group.num_leaves, sign, self._width, self._sums[position], num_threads()
            )

    def gather(self) -> Bytes:
        """This server's share of the sum, in index order: `[m, W/8]`."""
        segment, row = self._segment, self._plan.value_bytes(self._segment)
        flats = [total.reshape(-1, row) for total in self._sums]
        # The stash comes last and is in index order: its sums need not be added to zeros.
        begun = segment.groups[-1].is_stash
        out = flats[-1][: segment.m].copy() if begun else np.zeros((segment.m, row), dtype=np.uint8)
        for group, flat in zip(segment.groups, flats, strict=True):
            if not group.is_stash:
                permuted = self._plan.permutations(segment)
                slots = cuckoo.bin_slots(permuted, segment.theta, group.num_leaves << group.nu)
                kernels().gather(flat, slots, out, self._width, num_threads())
        return out


def _jobs(roots: Bytes, trees: Trees, hints: Bytes) -> Iterator[tuple[Bytes, Bytes, Bytes, Bytes]]:
    """Arrays of the trees of a group, tree by tree for a stash, whose trees share one sum."""
    if not trees.group.is_stash:
        yield roots, trees.cw, trees.cw_right, hints
        return
    cw = np.ascontiguousarray(trees.cw.swapaxes(0, 1))
    cw_right = np.ascontiguousarray(trees.cw_right.T)
    for i in range(trees.group.num_trees):
        yield roots[i : i + 1], cw[i, :, None], cw_right[i, :, None], hints[i : i + 1]


def aligned_zeros(*shape: int) -> Bytes:
    """Zeros that begin on a cache line, as wide registers like them."""
    memory = np.zeros(math.prod(shape) + 63, dtype=np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + math.prod(shape)].reshape(shape)
