"""A shard's part of the sums of one segment: its bins and subtrees, and what they give to rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchfsl.fsl.cuckoo.placement import Slots
from torchfsl.fsl.dpf.psr import whole_rows
from torchfsl.fsl.dpf.ssa import aligned_zeros, row_parts
from torchfsl.fsl.plan.plan import Plan
from torchfsl.integrations.ray.cuts import Cut, Places, subtrees
from torchfsl.integrations.ray.packing import GroupPart, SegmentPart
from torchfsl.kernels.backends import kernels, num_threads
from torchfsl.types import Bytes


class SegmentSums:
    """Running sums in the layout of the trees, as `ssa.BinSums` of the shard's part.

    Attributes:
        arrays: bins `[trees, leaves, W/8 << nu]` and subtrees `[nodes, leaves, W/8 << nu]`.
    """

    def __init__(self, plan: Plan, cut: Cut, party: int) -> None:
        """Start at zero."""
        self._cut, self._party = cut, party
        self._width = plan.ring_bytes(cut.segment)
        self._row = plan.value_bytes(cut.segment)
        block = self._row << cut.segment.nu
        bins = cut.bin_group
        leaves = bins.num_leaves if bins is not None else 0
        self.arrays = [
            aligned_zeros(len(cut.bins), leaves, block),
            aligned_zeros(len(cut.nodes), cut.node_leaves, block),
        ]

    def clear(self) -> None:
        """Back to zero."""
        for array in self.arrays:
            array.fill(0)

    def add(self, reports: Sequence[SegmentPart], *, subtract: bool) -> None:
        """Add reports together, or take them out again."""
        sign = 1 - self._party if subtract else self._party
        bins, subtrees_sums = self.arrays
        if bins.size:
            jobs: list[tuple[Any, ...]] = [
                (r.tree_key, r.second_key, part.roots, part.cw, part.cw_right, part.hints)
                for r in reports
                for part in (r.bins,)
                if part is not None
            ]
            self._accumulate(jobs, sign, bins)
        if subtrees_sums.size:
            jobs = [
                (report.tree_key, report.second_key, *arrays)
                for report in reports
                if report.stash is not None
                for arrays in self._stash_jobs(report.tree_key, report.stash)
            ]
            self._accumulate(jobs, sign, subtrees_sums)

    def partial(self, rows: range, places: Places) -> Bytes:
        """Sums of the shard's trees at these positions, by the round's places: `[rows, W/8]`."""
        cut, out = self._cut, np.zeros((len(rows), self._row), dtype=np.uint8)
        bins, below = (array.reshape(-1, self._row) for array in self.arrays)
        first = cut.nodes.start * cut.node_leaves << cut.segment.nu
        for part in row_parts(len(rows), self._row):
            own, some = out[part], rows[part]
            for positions, slots in places.within(some):
                if len(positions) == len(own):  # all of them, in order
                    self._gather(bins, slots, own)
                elif len(positions):
                    there = whole_rows(own)
                    gathered = there[positions].view(np.uint8).reshape(-1, self._row)
                    self._gather(bins, slots, gathered)
                    there[positions] = whole_rows(gathered)
            low = max(some.start, cut.node_positions.start)
            high = min(some.stop, cut.node_positions.stop)
            if low < high:
                here = own[low - some.start : high - some.start]
                add_rows(here, below[low - first : high - first], self._width)
        return out

    def _gather(self, sums: Bytes, slots: Slots, out: Bytes) -> None:
        kernels().gather(sums, np.ascontiguousarray(slots)[None], out, self._width, num_threads())

    def _accumulate(self, jobs: list[tuple[Any, ...]], sign: int, out: Bytes) -> None:
        kernels().accumulate_batch(jobs, out.shape[1], sign, self._width, out, num_threads())

    def _stash_jobs(self, key: bytes, part: GroupPart) -> list[tuple[Bytes, ...]]:
        """One job a tree: its subtrees side by side, as if they were trees."""
        nodes = subtrees(self._cut, key, part.roots, part.cw, part.cw_right)
        return [
            (*trees, np.repeat(part.hints[i : i + 1], len(self._cut.nodes), axis=0))
            for i, trees in enumerate(side_by_side(self._cut, nodes, part))
        ]


def side_by_side(cut: Cut, nodes: Bytes, part: GroupPart) -> list[tuple[Bytes, Bytes, Bytes]]:
    """By tree of the stash: its subtrees as trees, which have the correction words in common."""
    count, levels = len(cut.nodes), cut.levels
    return [
        (
            np.ascontiguousarray(nodes[i]),
            np.repeat(part.cw[levels:, i : i + 1], count, axis=1),
            np.repeat(part.cw_right[levels:, i : i + 1], count, axis=1),
        )
        for i in range(len(part.roots))
    ]


def add_rows(total: Bytes, rows: Bytes, width: int) -> None:
    """Add rows of ring values to others in place, `[rows, W/8]` both, of `width` bytes a value."""
    every = np.arange(len(rows), dtype=np.uint32)[None]
    kernels().gather(rows, every, total, width, num_threads())
