"""A window of reports in one array, cut for one shard; both sides know the layout by the plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from torchfsl.fsl.dpf.trees import Trees
from torchfsl.fsl.plan.layout import TreeGroup, TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.integrations.ray.cuts import Cut
from torchfsl.types import Bytes

_KEY_BYTES = 16


@dataclass(slots=True)
class GroupPart:
    """Trees of one group, as the kernels take them. Roots are secret.

    `roots [T, 16]`, `cw [depth, T, 16]`, `cw_right [depth, T]`, and of a whole report
    `check [T, check_bytes]` and `hints [T, W/8 << nu]`; in a question both have no bytes.
    """

    roots: Bytes = field(repr=False)
    cw: Bytes
    cw_right: Bytes
    check: Bytes
    hints: Bytes


@dataclass(slots=True)
class SegmentPart:
    """One report's part of a segment at one shard.

    Attributes:
        tree_key: K_tree.
        second_key: K_conv, or K_mac in a question.
        check_key: K_check, or 16 zero bytes in a question.
        bins: the shard's trees of the bins; None without any.
        stash: all trees of the stash; None without any.
    """

    tree_key: bytes
    second_key: bytes
    check_key: bytes
    bins: GroupPart | None
    stash: GroupPart | None


@dataclass(frozen=True, slots=True)
class SegmentWhole:
    """One report's part of a segment before it is cut; `hints` is None in a question."""

    keys: tuple[bytes, bytes, bytes]
    roots: Bytes = field(repr=False)
    trees: Sequence[Trees]
    hints: Bytes | None


class Packing:
    """The layout of a report's row in a window.

    Args:
        plan: of the task.
        cuts: of the shard.
        questions: rows hold what an answer needs, of the segments that are fetched; else all.

    Attributes:
        row_bytes: of one report.
    """

    def __init__(self, plan: Plan, cuts: Mapping[str, Cut], *, questions: bool = False) -> None:
        """Count."""
        self._cuts, self._questions, self._plan = cuts, questions, plan
        self.segments = plan.retrieving if questions else plan.with_trees
        self.row_bytes = 0
        self._groups: dict[tuple[str, bool], tuple[int, list[tuple[int, ...]]]] = {}
        self._keys: dict[str, int] = {}
        for segment in self.segments:
            self._keys[segment.name] = self.row_bytes
            self.row_bytes += 3 * _KEY_BYTES
            for group in segment.groups:
                shapes = self._shapes(segment, group)
                self._groups[segment.name, group.is_stash] = self.row_bytes, shapes
                self.row_bytes += sum(map(math.prod, shapes))

    def pack(self, reports: Sequence[Mapping[str, SegmentWhole]]) -> Bytes:
        """Rows of reports: `[reports, row_bytes]`. Secret."""
        out = np.empty((len(reports), self.row_bytes), dtype=np.uint8)
        for row, report in zip(out, reports, strict=True):
            for segment in self.segments:
                self._put(row, segment, report[segment.name])
        return out

    def read(self, row: Bytes) -> dict[str, SegmentPart]:
        """The parts in one report's row, as views of it."""
        parts = {}
        for segment in self.segments:
            start = self._keys[segment.name]
            keys = row[start : start + 3 * _KEY_BYTES].tobytes()
            tree, second, check = (
                keys[i : i + _KEY_BYTES] for i in range(0, 3 * _KEY_BYTES, _KEY_BYTES)
            )
            bins, stash = (self._part(row, segment.name, is_stash) for is_stash in (False, True))
            parts[segment.name] = SegmentPart(tree, second, check, bins, stash)
        return parts

    def _span(self, segment: TreeSegment, group: TreeGroup) -> slice:
        """Which of a group's trees are in the row."""
        if group.is_stash:
            return slice(0, group.num_trees)
        bins = self._cuts[segment.name].bins
        return slice(bins.start, bins.stop)

    def _shapes(self, segment: TreeSegment, group: TreeGroup) -> list[tuple[int, ...]]:
        span = self._span(segment, group)
        trees = span.stop - span.start
        check, hint = group.check_bytes, self._plan.value_bytes(segment) << segment.nu
        if self._questions:
            check = hint = 0
        depth = group.depth
        return [(trees, 16), (depth, trees, 16), (depth, trees), (trees, check), (trees, hint)]

    def _put(self, row: Bytes, segment: TreeSegment, report: SegmentWhole) -> None:
        start = self._keys[segment.name]
        row[start : start + 3 * _KEY_BYTES] = np.frombuffer(b"".join(report.keys), np.uint8)
        first = 0
        for group, trees in zip(segment.groups, report.trees, strict=True):
            span = self._span(segment, group)
            all_of = slice(first + span.start, first + span.stop)
            first += group.num_trees
            pieces = [report.roots[all_of], trees.cw[:, span], trees.cw_right[:, span]]
            if report.hints is not None:
                pieces += [trees.check[span], report.hints[all_of]]
            at, shapes = self._groups[segment.name, group.is_stash]
            for piece, shape in zip(pieces, shapes, strict=False):
                end = at + math.prod(shape)
                row[at:end].reshape(shape)[...] = piece
                at = end

    def _part(self, row: Bytes, name: str, is_stash: bool) -> GroupPart | None:
        if (name, is_stash) not in self._groups:
            return None
        at, shapes = self._groups[name, is_stash]
        pieces = []
        for shape in shapes:
            end = at + math.prod(shape)
            pieces.append(row[at:end].reshape(shape))
            at = end
        return GroupPart(*pieces)
