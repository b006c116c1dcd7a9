"""Where things lie in a report: roots, trees, hints and dense shares, as the kernels take them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from torchfsl.fsl.dpf.keys import ReportContext, TreeContext
from torchfsl.fsl.dpf.ssa import Contribution
from torchfsl.fsl.dpf.trees import Trees, decode_groups
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.reports import Report, ReportBook
from torchfsl.types import Bytes


class ServerTrees(NamedTuple):
    """A segment's trees of one report, as one server's kernels take them: K_tree, roots, trees."""

    key: bytes
    roots: Bytes
    public: list[Trees]


class ReportParts:
    """Views of the reports in a book, at the server `party`."""

    def __init__(self, plan: Plan, party: int, book: ReportBook) -> None:
        """Lay out the plan's messages once."""
        self._plan, self._party, self._book = plan, party, book
        early, late = plan.early, plan.late
        self._early = {s.name for s in early}
        trees = [(s.name, s.tree_bytes) for s in late]
        hints = [(s.name, plan.hint_bytes(s)) for s in plan.with_trees]
        self._tree_start = _starts((s.name, s.tree_bytes) for s in early) | _starts(trees)
        self._hint_start = _starts(hints, sum(size for _, size in trees))
        self._kept: dict[tuple[int, str], ServerTrees] = {}
        self._dense_start = _starts((s.name, plan.dense_bytes(s)) for s in plan.dense)

    def trees(self, segment: TreeSegment, report: Report, *, keep: bool = False) -> ServerTrees:
        """The segment's trees; with `keep`, the next call for them finds them open."""
        found = self._kept.pop((report.client, segment.name), None)
        if found is None:
            found = self._open_trees(segment, report)
        if keep:
            self._kept[report.client, segment.name] = found
        return found

    def forget(self) -> None:
        """Keep nothing: the round is over."""
        self._kept = {}

    def _open_trees(self, segment: TreeSegment, report: Report) -> ServerTrees:
        assert report.trees.master_seed is not None
        context: TreeContext | ReportContext
        if segment.name in self._early:
            part, context = report.trees.part, self._book.tree_context(report)
            key = context.tree_key(segment)
        else:
            part, context = report.part, self._book.context(report)
            key = context.trees.tree_key(segment)
        assert part.public is not None
        roots = context.roots(segment, report.trees.master_seed, self._party)
        start = self._tree_start[segment.name]
        return ServerTrees(key, roots, decode_groups(segment, memoryview(part.public), start))

    def contribution(self, segment: TreeSegment, report: Report) -> Contribution:
        """What the segment's accumulator takes."""
        assert report.part.public is not None
        trees = self.trees(segment, report)
        hints = np.frombuffer(
            report.part.public,
            dtype=np.uint8,
            count=self._plan.hint_bytes(segment),
            offset=self._hint_start[segment.name],
        )
        return Contribution(
            trees.key,
            self._book.context(report).convert_key(segment),
            trees.roots,
            trees.public,
            hints.reshape(segment.num_trees, -1),
        )

    def release(self) -> None:
        """Let go of memory for what was read; see `Spool.release`."""
        self._book.spool.release()

    def dense_share(self, segment: TreeSegment, report: Report) -> Bytes:
        """This server's share of a dense segment, `[values, l/8]`."""
        context = self._book.context(report)
        if context.trees.public_party != self._party:
            assert report.trees.master_seed is not None
            return context.dense_mask(segment, report.trees.master_seed)
        count, start = self._plan.dense_bytes(segment), self._dense_start[segment.name]
        share = np.frombuffer(report.masked, np.uint8, count, start)
        return share.reshape(-1, self._plan.encoding.ring_bits // 8)


def _starts(sizes: Iterable[tuple[str, int]], start: int = 0) -> dict[str, int]:
    """Offset of every name, from `start` on."""
    starts = {}
    for name, size in sizes:
        starts[name] = start
        start += size
    return starts
