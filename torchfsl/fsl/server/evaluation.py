"""What a server computes from reports: answers, folds of the check, its share of the sums."""

from __future__ import annotations

from torchfsl.fsl import messages, privacy
from torchfsl.fsl.bodies import AnswerBody
from torchfsl.fsl.dpf import checks, psr
from torchfsl.fsl.dpf.trees import bytes_of
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.report_parts import ReportParts
from torchfsl.fsl.server.reports import Report, ReportBook
from torchfsl.fsl.server.running_sums import RunningSums
from torchfsl.types import Bytes


class Evaluator:
    """One server's evaluation of the reports of one round."""

    def __init__(self, plan: Plan, party: int, book: ReportBook, draw: privacy.Draw) -> None:
        """Evaluate what `book` holds; `draw` gives the noise of a plan that has any."""
        self._plan, self._book, self._draw = plan, book, draw
        self._checked = plan.with_trees if plan.verified else []
        self._parts = ReportParts(plan, party, book)
        self.sums = RunningSums(plan, party, self._parts)

    def answer(self, client: int, tables: dict[str, list[Bytes]]) -> AnswerBody:
        """Retrieval for a client whose trees have passed the commitment check."""
        report = self._book.with_trees(client)
        context = self._book.tree_context(report)
        parts: list[memoryview] = []
        for segment in self._plan.retrieving:
            trees = self._parts.trees(segment, report)
            answers, tags = psr.answer(
                segment,
                trees.key,
                context.mac_key(segment, self._book.round_number),
                trees.roots,
                trees.public,
                tables[segment.name],
            )
            parts += [bytes_of(answers), bytes_of(tags)]
        return AnswerBody(tuple(parts))

    def folds(self, reports: dict[int, Report], verify_key: bytes) -> dict[int, bytes]:
        """The fold of all trees of each report, 16 bytes; zeros for trees verified before."""
        masks = {s.name: checks.fold_masks(s, verify_key) for s in self._checked}
        folds = {}
        for client, report in reports.items():
            total = 0
            for segment in self._checked if not report.trees.verified else []:
                # A report that waits to be added is added next: its trees stay open until then.
                trees = self._parts.trees(segment, report, keep=self.sums.waits(client))
                key_check = self._book.context(report).trees.check_key(segment)
                total ^= checks.fold(
                    segment, trees.key, key_check, masks[segment.name], trees.roots, trees.public
                )
            folds[client] = total.to_bytes(messages.FOLD_BYTES, "little")
            self._book.spool.release()
        return folds

    def share(self, reports: list[Report]) -> bytes:
        """This server's share of the sums over the reports, in index order, with its noise."""
        self.sums.settle(reports)
        return b"".join(
            privacy.add_noise(self._plan, segment, share, self._draw).data
            for segment, share in self.sums.shares()
        )
