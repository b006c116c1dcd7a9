"""A server's share of the sums, grown while reports come in.

Reports wait in a bounded window and are added together, so that the accumulators pass through the
cache once a window. What was added stays out of the result unless the round accepts it: a report
that is rejected later, by the peer, by the check or for a second message, is subtracted again.
Ring arithmetic is exact, so the share is as if it had never been added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from torchfsl.fsl.dpf.ssa import Accumulator, BinSums, IndexSums
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server import sizes
from torchfsl.fsl.server.loaded import LoadedReport
from torchfsl.fsl.server.reports import Report
from torchfsl.kernels import ring
from torchfsl.types import Bytes


class RunningSums:
    """One round's accumulators at one server."""

    def __init__(self, plan: Plan, party: int, release: Callable[[], None]) -> None:
        """Accumulators are made when first needed, and kept between rounds as `sizes` says.

        `release` is called when reports were read; see `Spool.release`.
        """
        self._plan, self._party, self._release = plan, party, release
        self._with_hints, self._dense = plan.with_trees, plan.dense
        self._window = sizes.window_reports(plan)
        self._keeps = sizes.keeps_sums(plan)
        self._kind = IndexSums if sizes.gathers_windows(plan) else BinSums
        self._sums: dict[str, Accumulator] = {}
        self.reset()

    def reset(self) -> None:
        """Forget everything: the round is over."""
        if not self._keeps:
            self._sums = {}
        for total in self._sums.values():
            total.clear()
        self._dense_sums: dict[str, Bytes] = {}
        self._waiting: dict[int, LoadedReport] = {}
        self._added: dict[int, Report] = {}

    def take(self, report: Report) -> None:
        """Note a complete report; once a window of them waits, they are added."""
        if report.client in self._added or report.client in self._waiting:
            return
        self._waiting[report.client] = LoadedReport(self._party, report)
        if len(self._waiting) >= self._window:
            accepted = [r.report for r in self._waiting.values() if not r.report.rejected]
            self._change(accepted, subtract=False)
            self._waiting = {}

    def loaded(self, report: Report) -> LoadedReport:
        """The report to compute with: the one that waits to be added, else a new one."""
        return self._waiting.get(report.client) or LoadedReport(self._party, report)

    def settle(self, reports: Iterable[Report]) -> None:
        """Make the sums those over exactly these reports."""
        wanted = {report.client: report for report in reports}
        rejected = [r for client, r in self._added.items() if client not in wanted]
        missing = [r for client, r in wanted.items() if client not in self._added]
        for reports, subtract in ((rejected, True), (missing, False)):
            if reports:
                self._change(reports, subtract=subtract)
        self._waiting = {}

    def shares(self) -> Iterator[tuple[TreeSegment, Bytes]]:
        """This server's share of every segment's sum, in index order, one after the other.

        Accumulators that are not kept are given back as they are gathered; whoever asks again has
        the reports added anew.
        """
        for segment in self._with_hints:
            yield segment, self._sum(segment).gather()
            if not self._keeps:
                del self._sums[segment.name]
        for segment in self._dense:
            yield segment, self._dense_sum(segment)
        if not self._keeps:
            self.reset()

    def _change(self, reports: list[Report], *, subtract: bool) -> None:
        """Add or subtract reports, a window of them at a time."""
        for start in range(0, len(reports), self._window):
            window = reports[start : start + self._window]
            loaded = [self.loaded(report) for report in window]
            for segment in self._with_hints:
                contributions = [part.contribution(segment) for part in loaded]
                self._sum(segment).add(contributions, subtract=subtract)
            for segment in self._dense:
                total = self._dense_sum(segment)
                for part in loaded:
                    share = part.dense_share(segment)
                    total = ring.sub(total, share) if subtract else ring.add(total, share)
                self._dense_sums[segment.name] = total
            for report in window:
                if subtract:
                    del self._added[report.client]
                else:
                    self._added[report.client] = report
            self._release()

    def _sum(self, segment: TreeSegment) -> Accumulator:
        if segment.name not in self._sums:
            self._sums[segment.name] = self._kind(self._plan, segment, self._party)
        return self._sums[segment.name]

    def _dense_sum(self, segment: TreeSegment) -> Bytes:
        shape = self._plan.dense_values(segment), self._plan.ring_bytes(segment)
        return self._dense_sums.setdefault(segment.name, np.zeros(shape, dtype=np.uint8))
