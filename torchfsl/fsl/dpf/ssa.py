"""Secure submodel aggregation: values into hints at the client, sums over clients at a server.

A server adds every client's output shares in bin layout and gathers once, after the last client:
out[x] is the sum over x's three bins and the stash, or that of its one public bin. Where that takes
too much memory, it gathers after every window of clients instead. Shares in bin layout never leave
a server, since they would show where cuckoo hashing placed rows.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from torchfsl.fsl.cuckoo import placement as cuckoo
from torchfsl.fsl.cuckoo.placement import Placement, Slots
from torchfsl.fsl.dpf.trees import Trees, split
from torchfsl.fsl.plan.layout import TreeGroup, TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.kernels import ring
from torchfsl.kernels.backends import kernels, num_threads
from torchfsl.types import Bytes, Whole

_CHUNK_ROWS: Final = 1 << 18
_CHUNK_BYTES: Final = 1 << 22
"""Sums that are gathered at once where there are more: rows, and their bytes, at most."""

_LINE_BYTES: Final = 64


def tree_values(
    plan: Plan, segment: TreeSegment, placement: Placement, values: Whole, lane: Whole
) -> Bytes:
    """What each tree carries: `[num_trees, tau + lanes, l/8]`, zero for dummies.

    Args:
        plan: gives the segment's encoding, and the lane.
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
    return ring.from_int64(carried, plan.encoding_of(segment).ring_bits)


@dataclass(slots=True)
class Contribution:
    """One report's part of a segment, as the accumulator takes it.

    `roots [num_trees, 16]`, `hints [num_trees, W/8 << nu]`; the round is its report's.
    """

    key_tree: bytes
    key_convert: bytes
    roots: Bytes = field(repr=False)
    trees: list[Trees] = field(repr=False)
    hints: Bytes = field(repr=False)
    round_number: int = 0


class Accumulator(ABC):
    """One server's running sum of one tree segment, over clients. It serves round after round."""

    def __init__(self, plan: Plan, segment: TreeSegment, party: int) -> None:
        """Start at zero."""
        self._plan, self._segment, self._party = plan, segment, party
        self._row, self._width = plan.value_bytes(segment), plan.ring_bytes(segment)
        self._round = 0  # of the reports since it was last cleared, which public bins go by

    @abstractmethod
    def clear(self) -> None:
        """Back to zero."""

    def add(
        self, reports: Sequence[Contribution], *, subtract: bool = False, lifted: int = 0
    ) -> Whole | None:
        """Add reports together, which passes through the sum once; or take them out again.

        With `lifted` above 0 also what `lifts.tree_sums` tells of each, of so many values of a leaf
        and before the party's sign: `int64[parts, reports, num_trees, lifted]`, low and high or low
        alone.
        """
        sign = 1 - self._party if subtract else self._party
        self._round = next((report.round_number for report in reports), self._round)
        parts: list[Whole | None] = []
        for position in range(len(self._segment.groups)):
            parts += self._add(reports, position, sign, lifted)
        return _by_report(parts, len(reports), lifted)

    @abstractmethod
    def gather(self) -> Bytes:
        """This server's share of the sum, in index order: `[m, W/8]`, which may be a view."""

    @abstractmethod
    def _add(
        self, reports: Sequence[Contribution], position: int, sign: int, lifted: int
    ) -> list[Whole | None]:
        """Add one group's trees of all reports; what is lifted of them."""


class BinSums(Accumulator):
    """Sums in bin layout, gathered once a round: least work.

    Memory: 3 m W/8 bytes for the bins and m W/8 for the stash, W/8 = `plan.value_bytes`.
    """

    def __init__(self, plan: Plan, segment: TreeSegment, party: int) -> None:
        """Start at zero."""
        super().__init__(plan, segment, party)
        self._sums = [sums_of(plan, segment, group) for group in segment.groups]

    def clear(self) -> None:
        """See `Accumulator.clear`."""
        for total in self._sums:
            total.fill(0)

    def _add(
        self, reports: Sequence[Contribution], position: int, sign: int, lifted: int
    ) -> list[Whole | None]:
        group, span = list(split(self._segment))[position]
        jobs = _jobs(reports, position, group, span)
        return [_accumulate(self._width, jobs, group, sign, self._sums[position], lifted)]

    def gather(self) -> Bytes:
        """See `Accumulator.gather`."""
        segment, row = self._segment, self._row
        flats = [total.reshape(-1, row) for total in self._sums]
        # The stash comes last and is in index order: its sums need not be added to zeros.
        begun = segment.groups[-1].is_stash
        out = flats[-1][: segment.m].copy() if begun else np.zeros((segment.m, row), dtype=np.uint8)
        if segment.num_bins:
            slotted = Slotted(self._plan, segment, self._round)
            _gather_bins(slotted, self._width, flats[0], out)
        return out


class IndexSums(Accumulator):
    """Sums in index order: every call of `add` gathers what it has added, sub-table by sub-table.

    For reports that are added many at a time and tables that would not fit otherwise.
    Memory: m W/8 bytes, and as much again while `add` runs; half of what `BinSums` takes.
    """

    def __init__(self, plan: Plan, segment: TreeSegment, party: int) -> None:
        """Start at zero."""
        super().__init__(plan, segment, party)
        whole = TreeGroup(1, segment.m, segment.nu, True, 0)
        self._total = sums_of(plan, segment, whole)

    def clear(self) -> None:
        """See `Accumulator.clear`."""
        self._total.fill(0)

    def _add(
        self, reports: Sequence[Contribution], position: int, sign: int, lifted: int
    ) -> list[Whole | None]:
        group, span = list(split(self._segment))[position]
        if group.is_stash:
            jobs = _jobs(reports, position, group, span)
            return [_accumulate(self._width, jobs, group, sign, self._total, lifted)]
        plan, segment = self._plan, self._segment
        slotted = Slotted(plan, segment, self._round)
        each = segment.num_bins // segment.hashes
        group = dataclasses.replace(group, num_trees=each)
        sums = sums_of(plan, segment, group)
        out = self._total.reshape(-1, self._row)[: segment.m]
        lifted_sums = []
        for i in range(segment.hashes):
            span, jobs = slice(i * each, (i + 1) * each), []
            for r in reports:
                keys, trees = (r.key_tree, r.key_convert), _part(r.trees[position], span)
                jobs.append((*keys, r.roots[span], *trees, r.hints[span]))
            sums.fill(0)
            lifted_sums.append(_accumulate(self._width, jobs, group, sign, sums, lifted))
            for part in row_parts(segment.m, self._row):
                slots = slotted.within(i, part)
                _gather(self._width, sums.reshape(-1, self._row), slots, out[part])
            slotted.set_aside()
        return lifted_sums

    def gather(self) -> Bytes:
        """See `Accumulator.gather`."""
        return self._total.reshape(-1, self._row)[: self._segment.m]


class Slotted:
    """The slots of a segment's positions in the layout of its bins, in one round."""

    def __init__(self, plan: Plan, segment: TreeSegment, round_number: int) -> None:
        """Make the permutations of a cuckoo table, or find them made."""
        group = segment.groups[0]
        self.segment, self._padded = segment, group.num_leaves << group.nu
        self._bins = plan.public_bins(segment, round_number) if segment.binned else None
        self._table = None if segment.binned else plan.permutations(segment)

    def within(self, i: int, part: slice) -> Slots:
        """Of some positions in sub-table i, padding included: `uint32[1, positions]`."""
        if self._bins is not None:
            return self._bins.slots(range(part.start, part.stop), self._padded)[None]
        assert self._table is not None
        return cuckoo.slots_within(self._table[i, part], self.segment.theta, self._padded)[None]

    def all(self) -> Slots:
        """Of all positions in all bins: `uint32[hashes, m]`."""
        if self._table is None:
            return self.within(0, slice(0, self.segment.m))
        return cuckoo.bin_slots(self._table, self.segment.theta, self._padded)

    def set_aside(self) -> None:
        """See `cuckoo.set_aside`."""
        if self._table is not None:
            cuckoo.set_aside(self._table)


def _gather_bins(slotted: Slotted, width: int, sums: Bytes, out: Bytes) -> None:
    """Add the sums of all bins, `[positions, W/8]`, to those in index order, `[m, W/8]`.

    Where there are many, some thousand rows of one sub-table at a time, so that slots take no
    memory and are read where they were made, several such parts side by side. Rows shorter than a
    cache line take a sub-table after the other, since neighbours in a line are wanted near to each
    other; longer ones the three of them for the same rows.
    """
    m, hashes = slotted.segment.m, slotted.segment.hashes
    if m <= _CHUNK_ROWS:
        _gather(width, sums, slotted.all(), out)
        return
    each = len(sums) // hashes

    def add(tables: Iterable[int], part: slice) -> None:
        for i in tables:
            slots = slotted.within(i, part)
            kernels().gather(sums[i * each : (i + 1) * each], slots, out[part], width, 1)
            slotted.set_aside()

    parts = list(row_parts(m, out.shape[1]))
    is_short = out.shape[1] < _LINE_BYTES
    with ThreadPoolExecutor(num_threads()) as pool:
        for tables in [(i,) for i in range(hashes)] if is_short else [range(hashes)]:
            list(pool.map(functools.partial(add, tables), parts))  # raises what they raise


def row_parts(m: int, row_bytes: int) -> Iterator[slice]:
    """All of `m` rows, few enough at a time that they and their slots stay in a cache."""
    step = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // row_bytes))
    return (slice(start, min(m, start + step)) for start in range(0, m, step))


def _gather(width: int, sums: Bytes, slots: Slots, out: Bytes) -> None:
    kernels().gather(sums, slots, out, width, num_threads())


def sums_of(plan: Plan, segment: TreeSegment, group: TreeGroup) -> Bytes:
    """Zeros for the sums of a group, `[bins, leaves, W/8 << nu]`; a stash's trees share one bin."""
    payload = plan.value_bytes(segment) << segment.nu
    return aligned_zeros(1 if group.is_stash else group.num_trees, group.num_leaves, payload)


def _part(trees: Trees, span: slice) -> tuple[Bytes, Bytes]:
    """Correction words of some trees of a group."""
    cw, right = trees.cw[:, span], trees.cw_right[:, span]
    return np.ascontiguousarray(cw), np.ascontiguousarray(right)


def _accumulate(
    width: int, jobs: list[Any], group: TreeGroup, sign: int, out: Bytes, lifted: int
) -> Whole | None:
    """Add all jobs; the kernel's sums over leaves, where any are wanted."""
    threads = num_threads()
    if not lifted:
        kernels().accumulate_batch(jobs, group.num_leaves, sign, width, out, threads)
        return None
    lifted_sums: Whole = kernels().accumulate_lifted(
        jobs, group.num_leaves, sign, width, out, lifted, threads
    )
    return lifted_sums


def _by_report(parts: list[Whole | None], num_reports: int, lifted: int) -> Whole | None:
    """Sums of groups of trees, or of one tree of a stash after the other, report by report."""
    sums = [part.reshape(len(part), num_reports, -1, lifted) for part in parts if part is not None]
    return np.concatenate(sums, axis=2) if sums else None


def _jobs(
    reports: Sequence[Contribution], position: int, group: TreeGroup, span: slice
) -> list[Any]:
    """A group of each report as kernels take it: a stash tree by tree, since these share a sum."""
    return [
        (report.key_tree, report.key_convert, *arrays)
        for report in reports
        for arrays in _arrays(report.roots[span], report.trees[position], report.hints[span])
    ]


def _arrays(
    roots: Bytes, trees: Trees, hints: Bytes
) -> Iterator[tuple[Bytes, Bytes, Bytes, Bytes]]:
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
