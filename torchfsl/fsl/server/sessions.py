"""Trees that outlive rounds, at one server."""

from __future__ import annotations

from collections.abc import Iterable

from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.reports import Report, TreeRecord


class Sessions:
    """The trees of live sessions, by client. Secret.

    Attributes:
        records: what a server stores that is to go on after a crash.
    """

    def __init__(self, plan: Plan, max_sessions: int) -> None:
        """No session yet; hold the trees of at most `max_sessions` clients."""
        self._plan, self._max_sessions = plan, max_sessions
        self.records: dict[int, TreeRecord] = {}

    def begin_round(self) -> None:
        """Forget the trees that have served their epochs."""
        most = self._plan.max_epochs
        self.records = {c: record for c, record in self.records.items() if record.epochs < most}

    def trees_of(self, report_round: int, client: int) -> TreeRecord:
        """The client's trees, or an empty record of trees that come in this round."""
        return self.records.get(client) or TreeRecord(opening_round=report_round)

    def start_trees(self, report: Report) -> None:
        """Trees of this round; the session they replace is forgotten only if they arrive whole.

        Raises:
            RejectedSubmission: they come after the report, or one session too many.
        """
        if report.seen:
            report.reject_second("trees after the report of the same round")
        if report.trees.opening_round != report.round_number:
            report.trees = TreeRecord(opening_round=report.round_number)
        full = len(self.records) >= self._max_sessions
        if full and self._plan.max_epochs > 1 and report.client not in self.records:
            report.reject(f"this server holds {self._max_sessions} sessions already")

    def end_round(self, reports: Iterable[Report], accepted: tuple[int, ...]) -> None:
        """Count an epoch for accepted clients, whose trees are then verified.

        Trees that arrived whole are kept, unverified, where the report did not come or the round
        was abandoned: the client will not send them again. Trees that failed the check are
        forgotten, whenever they came.
        """
        if self._plan.max_epochs == 1:
            return
        for report in reports:
            if report.client in accepted:
                report.trees.verified = True
                report.trees.epochs += 1
            if report.failed:
                self.records.pop(report.client, None)
            elif report.client in accepted or (report.trees.complete and not report.rejected):
                report.trees.public = bytes(report.trees.public or b"")
                self.records[report.client] = report.trees
