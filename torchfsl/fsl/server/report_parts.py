"""Where things lie in a report: roots, trees, hints and dense shares, as the kernels take them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchfsl.fsl import bodies
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
        """Nothing is looked at yet."""
        self._plan, self._party, self._book = plan, party, book
        self._kept: dict[tuple[int, str], ServerTrees] = {}

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
        if segment in self._plan.early:
            context = self._book.tree_context(report)
            key, public = context.tree_key(segment), report.trees.part.public
            views = bodies.early_trees
        else:
            context = self._book.context(report)
            key, public = context.trees.tree_key(segment), report.part.public
            views = bodies.late_trees
        assert public is not None
        roots = context.roots(segment, report.trees.master_seed, self._party)
        view = views(self._plan, public)[segment.name]
        return ServerTrees(key, roots, decode_groups(segment, view, 0))

    def contribution(self, segment: TreeSegment, report: Report) -> Contribution:
        """What the segment's accumulator takes."""
        assert report.part.public is not None
        trees = self.trees(segment, report)
        hints = np.frombuffer(bodies.hints(self._plan, report.part.public)[segment.name], np.uint8)
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
        share = np.frombuffer(report.masked[self._plan.dense.index(segment)], np.uint8)
        return share.reshape(-1, self._plan.encoding.ring_bits // 8)
