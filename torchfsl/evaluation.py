"""What a server computes from reports: answers, folds of the check, its share of the sums."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from torchfsl import checks, messages, privacy, psr, ring
from torchfsl.dpf import Trees, decode_trees
from torchfsl.keys import ReportContext
from torchfsl.plan import Plan, Segment
from torchfsl.reports import Report, ReportBook
from torchfsl.ssa import Accumulator

Bytes = npt.NDArray[np.uint8]


class Evaluator:
    """One server's evaluation of the reports of one round."""

    def __init__(self, plan: Plan, party: int, book: ReportBook, draw: privacy.Draw) -> None:
        """Evaluate what `book` holds; `draw` gives the noise of a plan that has any."""
        self._plan, self._party, self._book, self._draw = plan, party, book, draw

    def answer(self, client: int, tables: dict[str, list[Bytes]]) -> bytes:
        """Retrieval for a client whose trees have passed the commitment check."""
        report = self._book.with_trees(client)
        assert report.trees.part.public is not None
        context = self._book.tree_context(report)
        trees = decode_trees(messages.early_trees(self._plan), report.trees.part.public)
        parts = []
        for segment in messages.retrieving(self._plan):
            answers, tags = psr.answer(
                segment,
                context.tree_key(segment),
                context.mac_key(segment, self._book.round_number),
                self._roots(segment, report),
                trees[segment.name],
                tables[segment.name],
            )
            parts += [answers.tobytes(), tags.tobytes()]
        return b"".join(parts)

    def folds(self, reports: dict[int, Report], verify_key: bytes) -> dict[int, bytes]:
        """The fold of all trees of each report, 16 bytes; zeros for trees verified before."""
        segments = messages.with_hints(self._plan) if self._plan.verified else []
        masks = {segment.name: checks.fold_masks(segment, verify_key) for segment in segments}
        folds = {}
        for client, report in reports.items():
            total = np.zeros(messages.FOLD_BYTES, dtype=np.uint8)
            for segment in segments if not report.trees.verified else []:
                context = self._book.context(report).trees
                roots = self._roots(segment, report)
                trees = self._trees(segment, report)
                total ^= checks.fold(segment, context, masks[segment.name], roots, trees)
            folds[client] = total.tobytes()
        return folds

    def share(self, reports: list[Report]) -> bytes:
        """This server's share of the sums over the reports, in index order, with its noise."""
        shares = []
        for segment in messages.with_hints(self._plan):
            accumulator = Accumulator(self._plan, segment, self._party)
            for report in reports:
                context = self._book.context(report)
                accumulator.add(
                    context.trees.tree_key(segment),
                    context.convert_key(segment),
                    self._roots(segment, report),
                    self._trees(segment, report),
                    self._hints(segment, report),
                )
            shares.append((segment, accumulator.gather()))
        for segment in messages.dense(self._plan):
            shares.append((segment, self._sum_dense(segment, reports)))
        return b"".join(
            privacy.add_noise(self._plan, segment, share, self._draw).tobytes()
            for segment, share in shares
        )

    def _roots(self, segment: Segment, report: Report) -> Bytes:
        assert report.trees.master_seed is not None
        is_early = segment in messages.early_trees(self._plan)
        source = self._book.tree_context(report) if is_early else self._book.context(report)
        return source.roots(segment, report.trees.master_seed, self._party)

    def _trees(self, segment: Segment, report: Report) -> list[Trees]:
        segments, part = messages.early_trees(self._plan), report.trees.part
        if segment not in segments:
            segments, part = messages.late_trees(self._plan), report.part
        assert part.public is not None
        start = _offset([(s.name, s.tree_bytes) for s in segments], segment.name)
        return decode_trees([segment], memoryview(part.public)[start:])[segment.name]

    def _hints(self, segment: Segment, report: Report) -> Bytes:
        assert report.part.public is not None
        start = sum(s.tree_bytes for s in messages.late_trees(self._plan))
        sizes = [(s.name, self._plan.hint_bytes(s)) for s in messages.with_hints(self._plan)]
        start += _offset(sizes, segment.name)
        size = self._plan.hint_bytes(segment)
        hints = np.frombuffer(report.part.public, dtype=np.uint8, count=size, offset=start)
        return hints.reshape(segment.num_trees, -1)

    def _sum_dense(self, segment: Segment, reports: list[Report]) -> Bytes:
        width = self._plan.encoding.ring_bits // 8
        total = np.zeros((self._plan.dense_values(segment), width), dtype=np.uint8)
        sizes = [(s.name, self._plan.dense_bytes(s)) for s in messages.dense(self._plan)]
        start = _offset(sizes, segment.name)
        for report in reports:
            context: ReportContext = self._book.context(report)
            if context.trees.public_party == self._party:
                share = np.frombuffer(report.masked, np.uint8, total.size, start)
                share = share.reshape(total.shape)
            else:
                assert report.trees.master_seed is not None
                share = context.dense_mask(segment, report.trees.master_seed)
            total = ring.add(total, share)
        return total


def _offset(sizes: Iterable[tuple[str, int]], name: str) -> int:
    """Sum of the sizes before `name`."""
    start = 0
    for other, size in sizes:
        if other == name:
            break
        start += size
    return start
