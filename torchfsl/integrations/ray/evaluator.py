"""A server's `Evaluator` whose work is done by shards."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from torchfsl.crypto import discrete_gaussian
from torchfsl.fsl import messages, noise
from torchfsl.fsl.bodies import AnswerBody
from torchfsl.fsl.messages import Buffer
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.loaded import LoadedReport
from torchfsl.fsl.server.proofs import Questions
from torchfsl.fsl.server.reports import Report
from torchfsl.fsl.suite import FOLD_BYTES
from torchfsl.integrations.ray.front import FrontSums, FrontTables
from torchfsl.integrations.ray.grid import OpenGrid, Shards
from torchfsl.submodel.server_model import ServerModel
from torchfsl.types import Bytes

CHECKPOINT_WINDOWS: Final = 8
"""Windows after which shards put their sums aside."""

_FOLDS_UNDER_WAY: Final = 4


class ShardedEvaluator:
    """An `Evaluator` over a grid of shards; the bytes are those of `LocalEvaluator`.

    Args:
        plan: of the task.
        party: of this server.
        draw: gives the noise of a plan that has any. The operating system's is drawn by the shards,
            each for its rows; one that is correlated over rounds, or injected, is drawn here.
        release: called when reports were read; see `Spool.release`.
        open_grid: makes the shards.
        early: at once, without anybody who waits for it; or when they are first needed.
        checkpoint_windows: after so many windows shards put their sums aside; 0 for never.
    """

    def __init__(
        self,
        plan: Plan,
        party: int,
        draw: noise.Draw,
        release: Callable[[], None],
        *,
        open_grid: OpenGrid,
        early: bool = False,
        checkpoint_windows: int = CHECKPOINT_WINDOWS,
    ) -> None:
        """Nothing is computed yet."""
        self._plan, self._party, self._draw = plan, party, draw
        self.shards = Shards(plan, party, open_grid, early=early)
        self._sums = FrontSums(plan, party, release, self.shards, checkpoint_windows)
        self._tables = FrontTables(plan, party, self.shards)

    def take(self, report: Report) -> None:
        """See `Evaluator.take`."""
        self._sums.take(report)

    def answer(
        self, report: Report, model: ServerModel, waiting: Sequence[Report] = ()
    ) -> AnswerBody:
        """See `Evaluator.answer`; a window of clients together.

        Raises:
            EngineLost: shards were lost again and again.
        """
        answers = self._tables.answer(self._sums.epoch, report, model, waiting)
        seed = report.trees.master_seed
        assert seed is not None
        key = report.tree_context.answer_key(seed, self._party, report.round_number)
        parts = [part for both in answers for part in both]
        return AnswerBody.seal(key, [*parts, report.model_rows])

    def close(self) -> None:
        """See `Evaluator.close`."""
        self._tables.forget(self._sums.epoch)

    def folds(self, reports: Mapping[int, Report], verify_key: bytes) -> dict[int, bytes]:
        """See `Evaluator.folds`; raises as `answer` does. Proofs are asked here, by no shard."""
        self._sums.hold(reports.values())
        folds = dict.fromkeys(reports, bytes(FOLD_BYTES))
        asked = {c: r for c, r in reports.items() if not r.trees_verified}
        under_way: deque[tuple[list[int], list[int], list[object], list[object]]] = deque()
        for clients, places, parts in self._sums.windows_of(asked) if self._plan.verified else ():
            sent = [
                self.shards.grid.send(shard, "fold", part, places, verify_key)
                for shard, part in enumerate(parts)
            ]
            under_way.append((clients, places, parts, sent))
            if len(under_way) > _FOLDS_UNDER_WAY:
                folds |= self._folded(verify_key, *under_way.popleft())
        while under_way:
            folds |= self._folded(verify_key, *under_way.popleft())
        if self._plan.statement is not None:
            questions = Questions(self._plan, self._party, verify_key)
            for client, report in reports.items():
                loaded = LoadedReport(self._party, report)
                folds[client] = questions.verdict(folds[client], loaded)
        return folds

    def settle(self, reports: Sequence[Report]) -> bool:
        """See `Evaluator.settle`; for shards that are lost before the share is made, they are."""
        return False

    def share(self, reports: Sequence[Report]) -> Buffer:
        """See `Evaluator.share`; raises as `answer` does."""
        self._sums.settle(reports)
        plan, at_shards = self._plan, self._draw is discrete_gaussian.sample
        total = np.empty(messages.share_bytes(plan), dtype=np.uint8)
        starts, end = {}, 0
        for segment in (*plan.with_trees, *plan.dense):
            starts[segment.name] = end
            end += messages.sum_bytes(plan, segment)
        if plan.with_trees:
            for name, rows, part in self._sums.shares(noisy=at_shards):
                first = starts[name] + rows.start * plan.value_bytes(plan.segment(name))
                total[first : first + part.size] = part.reshape(-1)
        for segment in plan.dense:
            first = starts[segment.name]
            total[first : first + messages.sum_bytes(plan, segment)] = self._sums.dense(segment)
        self._add_noise(total, starts, dense_alone=at_shards)
        return total.data

    def end(self) -> None:
        """See `Evaluator.end`."""
        self.shards.tell("end", self._sums.epoch)
        self._tables.forget(self._sums.epoch)
        self._sums.begin()

    def _folded(
        self,
        key: bytes,
        clients: list[int],
        places: list[int],
        parts: list[object],
        sent: list[object],
    ) -> dict[int, bytes]:
        """The XOR of the shards' folds, by client."""
        total = np.zeros((len(clients), FOLD_BYTES), dtype=np.uint8)
        for shard, call in enumerate(sent):
            folds = self.shards.got(call)
            if folds is None:
                folds = self.shards.ask(shard, "fold", parts[shard], places, key)
            total ^= np.frombuffer(folds, dtype=np.uint8).reshape(total.shape)
        return {client: row.tobytes() for client, row in zip(clients, total, strict=True)}

    def _add_noise(self, total: Bytes, starts: Mapping[str, int], *, dense_alone: bool) -> None:
        """The server's noise, in index order as `LocalEvaluator` draws it, where it is not yet."""
        plan = self._plan
        for segment in plan.dense if dense_alone else (*plan.with_trees, *plan.dense):
            first = starts[segment.name]
            own = total[first : first + messages.sum_bytes(plan, segment)]
            values = own.reshape(-1, plan.ring_bytes(segment))
            noisy = noise.add_noise(plan, segment, values, self._draw)
            own[:] = noisy.reshape(-1)
