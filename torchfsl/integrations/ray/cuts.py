"""Which trees, subtrees and rows are whose: contiguous ranges, from public numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchfsl.errors import ParameterError
from torchfsl.fsl.cuckoo.placement import Slots, rows_at
from torchfsl.fsl.dpf.trees import split
from torchfsl.fsl.plan.layout import TreeGroup, TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.suite import NUM_HASHES
from torchfsl.kernels.backends import kernels, num_threads
from torchfsl.submodel.bins import PublicBins
from torchfsl.submodel.segments import ceil_div
from torchfsl.types import Bytes, Indices

_SUBTREES_A_SHARD = 4
"""Least number of subtrees of a stash tree per shard, if there are as many. No shard then has more
than a quarter above its part."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One shard's part of one segment.

    Attributes:
        segment: a segment with trees.
        bins: the shard's trees among the trees of the bins.
        folded: the shard's trees among the trees of the stash, only for the check.
        nodes: the shard's subtrees of every tree of the stash, for sums and answers.
        levels: number of levels of a stash tree above the subtrees.
        rows: the positions whose sums the shard finishes.
    """

    segment: TreeSegment
    bins: range
    folded: range
    nodes: range
    levels: int
    rows: range

    @property
    def bin_group(self) -> TreeGroup | None:
        """The group of the bins, or None for a segment without."""
        return next((g for g in self.segment.groups if not g.is_stash), None)

    @property
    def stash_group(self) -> TreeGroup | None:
        """The group of the stash, or None for a segment without."""
        return next((g for g in self.segment.groups if g.is_stash), None)

    def places(self, i: int) -> range:
        """The places of sub-table i that lie in its bins, those behind the last row left out."""
        segment = self.segment
        if segment.binned:
            first, last = (
                b * segment.m // segment.num_bins for b in (self.bins.start, self.bins.stop)
            )
            return range(first, last)
        each = segment.num_bins // NUM_HASHES
        ends = (bin_ - i * each for bin_ in (self.bins.start, self.bins.stop))
        return range(*(min(segment.m, min(max(0, end), each) * segment.theta) for end in ends))

    @property
    def node_leaves(self) -> int:
        """Leaves below a node, those included that lie behind the last position."""
        group = self.stash_group
        return 0 if group is None else 1 << (group.depth - self.levels)

    @property
    def node_positions(self) -> range:
        """Positions below the nodes, those behind the last one left out."""
        each = self.node_leaves << self.segment.nu
        most = self.segment.m
        return range(min(most, self.nodes.start * each), min(most, self.nodes.stop * each))


def cuts_of(plan: Plan, number: int, count: int) -> dict[str, Cut]:
    """What shard `number` of `count` has of each segment with trees, by name.

    Law: the ranges of all shards are those of the segment, each part once. A shard may have none.

    Raises:
        ParameterError: there is no such shard.
    """
    if not 0 <= number < count:
        raise ParameterError(f"shard is {number}, expected a number from 0 to {count - 1}")
    return {segment.name: _cut(segment, number, count) for segment in plan.with_trees}


def _cut(segment: TreeSegment, number: int, count: int) -> Cut:
    levels = num_nodes = 0
    for group, _ in split(segment):
        if group.is_stash:
            wanted = 0 if count == 1 else (_SUBTREES_A_SHARD * count - 1).bit_length()
            levels = min(group.depth, wanted)
            num_nodes = ceil_div(group.num_leaves, 1 << (group.depth - levels))
    bins, folded, nodes, rows = (
        range(total * number // count, total * (number + 1) // count)
        for total in (segment.num_bins, segment.stash, num_nodes, segment.m)
    )
    return Cut(segment, bins, folded, nodes, levels, rows)


def piece_of(rows: range, piece: int, pieces: int) -> range:
    """Part `piece` of `pieces` of a range, even up to one."""
    ends = (rows.start + len(rows) * i // pieces for i in (piece, piece + 1))
    return range(*ends)


class Places:
    """The slots in a shard's bins that hold the positions of a segment.

    Memory: 4 bytes for the row and 4 bytes for the place, per position and sub-table. This is 24 m
    bytes divided by the number of shards (8 m with public bins). While they are made, they take
    twice as much in addition.
    """

    def __init__(self, plan: Plan, cut: Cut, round_number: int = 0) -> None:
        """Make the shard's part of the public permutations, of public bins those of a round."""
        segment, group = cut.segment, cut.bin_group
        self._tables: list[tuple[Slots, Slots]] = []
        if group is None or not cut.bins:
            return
        if segment.binned:
            drawn = plan.public_bins(segment, round_number)
            self._tables.append(_binned(drawn, cut, group.num_leaves << group.nu))
            return
        padded, theta = group.num_leaves << group.nu, segment.theta
        each = segment.num_bins // NUM_HASHES
        seed = bytes.fromhex(plan.hash_seed)
        for i in range(NUM_HASHES):
            rows, places = rows_at(seed, segment.name, segment.m, i, cut.places(i))
            bins, within = np.divmod(places.astype(np.int64), theta)
            bins += i * each - cut.bins.start
            self._tables.append((rows, (bins * padded + within).astype(np.uint32)))

    def within(self, rows: range) -> Sequence[tuple[Indices, Slots]]:
        """By sub-table: positions in the range, counted from its start, and their places.

        Positions of one sub-table differ.
        """
        pairs = []
        for positions, slots in self._tables:
            first, last = np.searchsorted(positions, (rows.start, rows.stop))
            part = positions[first:last].astype(np.int64) - rows.start
            pairs.append((part, slots[first:last]))
        return pairs


def _binned(bins: PublicBins, cut: Cut, padded: int) -> tuple[Slots, Slots]:
    """Rows, increasing, of the shard's public bins, and the place of each among its slots."""
    mine = cut.places(0)
    places = np.arange(mine.start, mine.stop)
    rows, (owner, within) = bins.positions(places), bins.part(places)
    slots = (owner - np.uint64(cut.bins.start)) * np.uint64(padded) + within
    order = np.argsort(rows)
    return rows[order].astype(np.uint32), slots[order].astype(np.uint32)


def subtrees(cut: Cut, key: bytes, roots: Bytes, cw: Bytes, cw_right: Bytes) -> Bytes:
    """States of the stash's trees at the shard's nodes: `[trees, nodes, 16]`. Secret.

    `roots [trees, 16]`, `cw [depth, trees, 16]` and `cw_right [depth, trees]` are of whole trees.
    """
    if not cut.levels:
        return roots[:, None, :][:, : len(cut.nodes)]
    group = cut.stash_group
    assert group is not None
    num_nodes = ceil_div(group.num_leaves, cut.node_leaves)
    levels = slice(0, cut.levels)
    top = (np.ascontiguousarray(cw[levels]), np.ascontiguousarray(cw_right[levels]))
    states: Bytes = kernels().tree_eval(key, roots, *top, num_nodes, num_threads())
    return states[:, cut.nodes.start : cut.nodes.stop]
