"""A report ready to compute with: keys, roots, trees, hints and shares as kernels take them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from torchfsl.crypto import field128
from torchfsl.fsl import uploads
from torchfsl.fsl.dpf.keys import ReportContext, TreeContext
from torchfsl.fsl.dpf.ssa import Contribution
from torchfsl.fsl.dpf.trees import Trees, decode_groups
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.server.reports import Report
from torchfsl.kernels import ring
from torchfsl.kernels.portable.proofs import Words
from torchfsl.types import Bytes


@dataclass(frozen=True, slots=True)
class ServerTrees:
    """A segment's trees of one report, as one server's kernels take them.

    Attributes:
        key: K_tree.
        roots: `[num_trees, 16]`. Secret.
        public: the trees, by group.
    """

    key: bytes
    roots: Bytes = field(repr=False)
    public: list[Trees] = field(repr=False)


class LoadedReport:
    """A report at the server `party`. Trees are opened when first asked for, and stay open."""

    def __init__(self, party: int, report: Report) -> None:
        """Nothing is looked at yet."""
        self.report = report
        self._party = party
        self._trees: dict[str, ServerTrees] = {}

    def trees(self, segment: TreeSegment) -> ServerTrees:
        """The segment's trees, early or late ones."""
        if segment.name not in self._trees:
            self._trees[segment.name] = self._open_trees(segment)
        return self._trees[segment.name]

    def contribution(self, segment: TreeSegment) -> Contribution:
        """The input of the segment's accumulator."""
        report, trees = self.report, self.trees(segment)
        assert report.public is not None
        hints = np.frombuffer(uploads.hints(report.plan, report.public)[segment.name], np.uint8)
        return Contribution(
            trees.key,
            report.context.convert_key(segment),
            trees.roots,
            trees.public,
            hints.reshape(segment.num_trees, -1),
            report.round_number,
        )

    def dense_share(self, segment: TreeSegment) -> Bytes:
        """This server's share of a dense segment, `[values, l/8]`."""
        report, plan = self.report, self.report.plan
        assert report.trees.master_seed is not None
        mask = report.context.dense_mask(segment, report.trees.master_seed, self._party)
        if report.context.trees.public_party != self._party:
            return mask
        masked = np.frombuffer(report.masked[plan.dense.index(segment)], np.uint8)
        return ring.add(masked.reshape(mask.shape), mask)

    def proof_share(self) -> tuple[Bytes, Words]:
        """This server's share of the proof's slack, `[values, l/8]`, and of its field elements."""
        report, statement = self.report, self.report.plan.statement
        assert statement is not None
        assert report.trees.master_seed is not None
        slack, elements = report.context.proof_mask(report.trees.master_seed, self._party)
        if report.context.trees.public_party != self._party:
            return slack, elements
        sent, others = uploads.slack_and_elements(statement, report.masked[-1])
        masked = np.frombuffer(sent, np.uint8).reshape(slack.shape)
        return ring.add(masked, slack), field128.add(field128.checked(others), elements)

    def _open_trees(self, segment: TreeSegment) -> ServerTrees:
        report, plan = self.report, self.report.plan
        context: TreeContext | ReportContext
        if segment in plan.early:
            context, public, views = report.tree_context, report.trees.public, uploads.early_trees
            key = context.tree_key(segment)
        else:
            context, public, views = report.context, report.public, uploads.late_trees
            key = context.trees.tree_key(segment)
        assert public is not None
        assert report.trees.master_seed is not None
        roots = context.roots(segment, report.trees.master_seed, self._party)
        view = views(plan, public)[segment.name]
        return ServerTrees(key, roots, decode_groups(segment, view, 0))
