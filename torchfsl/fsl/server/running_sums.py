"""A server's share of the sums, grown while reports come in.

Reports wait in a bounded window and are added together, so that the accumulators pass through the
cache once per window. A report counts in the result only if the round accepts the report. If it is
rejected later, by the peer, by the check or for a second message, the server subtracts it again.
Ring arithmetic is exact, so the share is as if the report had never been added. Under proofs the
server keeps each report's sums over leaves for its proof, and so expands the trees once for both.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from torchfsl.fsl.dpf.ssa import Accumulator, BinSums, IndexSums
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server import sizes
from torchfsl.fsl.server.loaded import LoadedReport
from torchfsl.fsl.server.reports import Report
from torchfsl.fsl.server.spool import Spool
from torchfsl.kernels import ring
from torchfsl.types import Bytes, Whole

log = logging.getLogger("torchfsl.server")


class RunningSums:
    """One round's accumulators at one server."""

    def __init__(self, plan: Plan, party: int, release: Callable[[], None]) -> None:
        """Make the accumulators that are kept between rounds; others when first needed.

        They are written here already, so that the first round does not wait for their memory.
        `release` is called when reports were read; see `Spool.release`.
        """
        self._plan, self._party, self._release = plan, party, release
        self._with_hints, self._dense = plan.with_trees, plan.dense
        self._window = sizes.window_reports(plan)
        self._keeps = sizes.keeps_sums(plan)
        self._kind = IndexSums if sizes.gathers_windows(plan) else BinSums
        self._sums: dict[str, Accumulator] = {}
        self._spool = Spool()
        for segment in self._with_hints if self._keeps else ():
            self._sum(segment)
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
        self._lifted: dict[tuple[int, str], tuple[bytes | memoryview, int | None]] = {}
        self._told = False
        self._spool.clear()

    def take(self, report: Report) -> None:
        """Note a complete report; once a window of them waits, they are added."""
        if report.client in self._added or report.client in self._waiting:
            return
        self._waiting[report.client] = LoadedReport(self._party, report)
        if len(self._waiting) >= self._window:
            self.add_waiting()
            self._waiting = {}

    def add_waiting(self) -> None:
        """Add the reports that wait, which stay loaded."""
        waiting = [r.report for c, r in self._waiting.items() if c not in self._added]
        self._change([report for report in waiting if not report.rejected], subtract=False)

    def loaded(self, report: Report) -> LoadedReport:
        """The report to compute with: the one that waits to be added, else a new one."""
        return self._waiting.get(report.client) or LoadedReport(self._party, report)

    def lifted(self, report: Report, segment: TreeSegment) -> tuple[Whole, ...] | None:
        """What `lifts.tree_sums` gives of a report under proofs, kept since it was added.

        Low parts alone of rings whose sums fit them. None of a report that was not added, or of
        which a file has changed on the disk: it has to be made then.
        """
        kept, crc = self._lifted.get((report.client, segment.name), (b"", None))
        if not kept or self._added.get(report.client) is not report:
            return None
        if crc is not None and zlib.crc32(kept) != crc:
            return None
        parts = np.frombuffer(kept, np.int64).reshape(-1, segment.num_trees, self._values(segment))
        return tuple(parts)

    def settle(self, reports: Iterable[Report]) -> None:
        """Make the sums those over exactly these reports."""
        wanted = {report.client: report for report in reports}
        rejected = [r for client, r in self._added.items() if client not in wanted]
        missing = [r for client, r in wanted.items() if client not in self._added]
        for reports, subtract in ((rejected, True), (missing, False)):
            if reports:
                self._change(reports, subtract=subtract, keeping=False)  # proofs have been asked
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

    def _change(self, reports: list[Report], *, subtract: bool, keeping: bool = True) -> None:
        """Add or subtract reports, a window of them at a time.

        Where that fails all is forgotten: a window that is in the sums of some segments would be
        added to them again. With `keeping`, sums over leaves of reports that are added are kept.
        """
        try:
            for start in range(0, len(reports), self._window):
                window = reports[start : start + self._window]
                self._change_by(window, subtract=subtract, keeping=keeping and not subtract)
        except BaseException:
            self.reset()
            raise

    def _change_by(self, window: list[Report], *, subtract: bool, keeping: bool) -> None:
        loaded = [self.loaded(report) for report in window]
        for segment in self._with_hints:
            contributions = [part.contribution(segment) for part in loaded]
            lifted = self._values(segment) if keeping else 0
            lifted_sums = self._sum(segment).add(contributions, subtract=subtract, lifted=lifted)
            if lifted_sums is not None:
                self._keep(window, segment, lifted_sums)
        for segment in self._dense:
            total = self._dense_sum(segment)
            for part in loaded:
                share = part.dense_share(segment)
                total = ring.sub(total, share) if subtract else ring.add(total, share)
            self._dense_sums[segment.name] = total
        for report in window:
            if subtract:
                del self._added[report.client]
                for segment in self._with_hints:  # they are of this report alone
                    self._lifted.pop((report.client, segment.name), None)
            else:
                self._added[report.client] = report
        self._release()

    def _keep(self, reports: list[Report], segment: TreeSegment, lifted_sums: Whole) -> None:
        """Note sums over leaves `[parts, reports, ...]`; beyond a window of memory in a file.

        If the file cannot be written they are not kept, and made once more when asked for.
        """
        signed = -lifted_sums if self._party else lifted_sums
        try:
            for place, report in enumerate(reports):
                data = signed[:, place].tobytes()
                held = self._spool.hold(data)
                crc = None if held is data else zlib.crc32(data)  # of what is in a file
                self._lifted[report.client, segment.name] = held, crc
            self._spool.release()
        except OSError as error:
            if not self._told:
                log.warning(
                    "the server has no space for intermediate sums (%s), so rounds take longer. "
                    "Results do not change.",
                    error,
                )
            self._told = True  # once a round is enough

    def _values(self, segment: TreeSegment) -> int:
        """Values of each leaf that a proof wants summed."""
        return 0 if self._plan.statement is None else self._plan.statement.leaf_values(segment)

    def _sum(self, segment: TreeSegment) -> Accumulator:
        if segment.name not in self._sums:
            self._sums[segment.name] = self._kind(self._plan, segment, self._party)
        return self._sums[segment.name]

    def _dense_sum(self, segment: TreeSegment) -> Bytes:
        shape = self._plan.dense_values(segment), self._plan.ring_bytes(segment)
        return self._dense_sums.setdefault(segment.name, np.zeros(shape, dtype=np.uint8))
