"""Computes from reports: a server's answers, folds of the check, its share of the sums."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from torchfsl.fsl import messages, noise
from torchfsl.fsl.bodies import AnswerBody
from torchfsl.fsl.dpf import checks, psr
from torchfsl.fsl.dpf.trees import bytes_of
from torchfsl.fsl.messages import Buffer
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server import sizes
from torchfsl.fsl.server.book import ReportBook
from torchfsl.fsl.server.loaded import LoadedReport
from torchfsl.fsl.server.proofs import Questions
from torchfsl.fsl.server.reports import Report, TreeRecord
from torchfsl.fsl.server.row_tables import RowTables
from torchfsl.fsl.server.running_sums import RunningSums
from torchfsl.fsl.suite import FOLD_BYTES
from torchfsl.kernels.backends import num_threads
from torchfsl.submodel.server_model import ServerModel


class Evaluator(Protocol):
    """One server's computations on the reports of one round after the other.

    Law: whatever was taken and in which order, `share` is over the reports given to it.
    """

    def take(self, report: Report) -> None:
        """Note a complete report, so that work on it may begin; once or more often."""

    def answer(
        self, report: Report, model: ServerModel, waiting: Sequence[Report] = ()
    ) -> AnswerBody:
        """Retrieval for a client whose early trees are here; the model is the round's.

        `waiting` are those who have asked already, the client perhaps among them, so that work may
        be done for all together.
        """

    def close(self) -> None:
        """No more answers in this round."""

    def folds(self, reports: Mapping[int, Report], verify_key: bytes) -> dict[int, bytes]:
        """By client the fold of all its trees, 16 bytes; zeros for trees verified before.

        Under a plan with proofs what this server opens of the client's stands behind it. Once.
        """

    def settle(self, reports: Sequence[Report]) -> bool:
        """Make the sums those over exactly these reports; whether they are not read any more."""

    def share(self, reports: Sequence[Report]) -> Buffer:
        """This server's share of the sums over the reports, in index order, with its noise."""

    def end(self) -> None:
        """Forget everything: the round is over."""


ANSWERS_TOGETHER: Final = 8
"""Clients that are answered at once: the first of them waits for all."""

MakeEvaluator: TypeAlias = Callable[[Plan, int, noise.Draw, Callable[[], None]], Evaluator]
"""Makes a server's: of its plan, party, source of noise, and `Spool.release`."""


def share_of(evaluator: Evaluator, accepted: Iterable[Report], book: ReportBook) -> Buffer:
    """The share over the accepted reports, once a round: messages go as soon as they can.

    Under an audit they go once a transcript is made of them.
    """
    reports = list(accepted)
    if evaluator.settle(reports) and not any(report.plan.audited for report in reports[:1]):
        book.forget_messages()
    return evaluator.share(reports)


class LocalEvaluator:
    """An `Evaluator` in this process.

    Args:
        plan: of the task.
        party: of this server.
        draw: gives the noise of a plan that has any.
        release: called when reports were read; see `Spool.release`.
        answers: whether to keep memory for answers, which a replay does not make.
    """

    def __init__(
        self,
        plan: Plan,
        party: int,
        draw: noise.Draw,
        release: Callable[[], None],
        *,
        answers: bool = True,
    ) -> None:
        """Nothing is computed yet."""
        self._plan, self._party, self._draw, self._release = plan, party, draw, release
        self._checked = plan.with_trees if plan.verified else ()
        self._tables = RowTables(plan)
        if answers:
            self._tables.make_room()
        self._made: KeptAnswers[AnswerBody] = KeptAnswers()
        self.sums = RunningSums(plan, party, release)

    def take(self, report: Report) -> None:
        """See `Evaluator.take`."""
        self.sums.take(report)

    def answer(
        self, report: Report, model: ServerModel, waiting: Sequence[Report] = ()
    ) -> AnswerBody:
        """See `Evaluator.answer`; each part of a table is read once for those who wait."""
        made = self._made.give(report)
        if made is None:
            window = self._made.window(report, waiting, ANSWERS_TOGETHER)
            made, *more = self._answers(window, model)
            for other, body in zip(window[1:], more, strict=True):
                self._made.keep(other, body)
        return made

    def close(self) -> None:
        """See `Evaluator.close`."""
        self._made.clear()
        self._tables.forget()

    def folds(self, reports: Mapping[int, Report], verify_key: bytes) -> dict[int, bytes]:
        """See `Evaluator.folds`."""
        masks = {s.name: checks.fold_masks(s, verify_key) for s in self._checked}
        questions = None
        if self._plan.statement is not None:
            self.sums.add_waiting()
            questions = Questions(self._plan, self._party, verify_key, self.sums.lifted)
        folds: dict[int, bytes] = {}
        workers = max(1, min(num_threads(), len(reports), sizes.proofs_together(self._plan)))
        fold = functools.partial(self._folded, masks, questions, num_threads() // workers)
        with contextlib.ExitStack() as stack:
            each: Callable[..., Iterable[bytes]] = map
            if workers > 1:  # else a thread would only take time
                each = stack.enter_context(ThreadPoolExecutor(workers)).map
            rest = iter(reports.values())
            while window := list(itertools.islice(rest, workers)):  # so many are loaded at once
                clients = [report.client for report in window]
                folds |= zip(clients, each(fold, window), strict=True)
                self._release()
        return folds

    def _folded(
        self,
        masks: Mapping[str, checks.FoldMasks],
        questions: Questions | None,
        threads: int,
        report: Report,
    ) -> bytes:
        """One report's fold and all else; several are made side by side, each by its threads."""
        loaded, total = self.sums.loaded(report), 0
        for segment in self._checked if not report.trees_verified else ():
            trees, check_key = loaded.trees(segment), report.context.trees.check_key(segment)
            keys, own = (trees.key, check_key), masks[segment.name]
            total ^= checks.fold(segment, *keys, own, trees.roots, trees.public, threads)
        fold = total.to_bytes(FOLD_BYTES, "little")
        return fold if questions is None else questions.verdict(fold, loaded, threads)

    def settle(self, reports: Sequence[Report]) -> bool:
        """See `Evaluator.settle`."""
        self.sums.settle(reports)
        return True

    def share(self, reports: Sequence[Report]) -> Buffer:
        """See `Evaluator.share`."""
        self.sums.settle(reports)
        total = np.empty(messages.share_bytes(self._plan), dtype=np.uint8)
        start = 0
        for segment, share in self.sums.shares():
            noisy = noise.add_noise(self._plan, segment, share, self._draw).reshape(-1)
            total[start : start + noisy.size] = noisy
            start += noisy.size
        return total.data

    def end(self) -> None:
        """See `Evaluator.end`."""
        self._made.clear()
        self.sums.reset()
        self._tables.forget()

    def _answers(self, reports: Sequence[Report], model: ServerModel) -> list[AnswerBody]:
        """Answers to all of these, of one round and one model."""
        model_rows = reports[0].model_rows
        tables = self._tables.of(model, model_rows)
        loaded = [LoadedReport(self._party, report) for report in reports]
        parts: list[list[memoryview | bytes]] = [[] for _ in reports]
        for segment in self._plan.retrieving:
            questions = [_question(part, segment) for part in loaded]
            answered = psr.answers(segment, questions, *tables[segment.name])
            for own, (answers, tags) in zip(parts, answered, strict=True):
                own += [bytes_of(answers), bytes_of(tags)]
        bodies = []
        for report, own in zip(reports, parts, strict=True):
            assert report.trees.master_seed is not None
            seed = report.trees.master_seed
            key = report.tree_context.answer_key(seed, self._party, report.round_number)
            bodies.append(AnswerBody.seal(key, [*own, model_rows]))
        return bodies


def _question(loaded: LoadedReport, segment: TreeSegment) -> psr.Question:
    report, trees = loaded.report, loaded.trees(segment)
    mac_key = report.tree_context.mac_key(segment, report.round_number)
    return psr.Question(trees.key, mac_key, trees.roots, trees.public)


Made = TypeVar("Made")


class KeptAnswers(Generic[Made]):
    """Answers of one model to clients who wait, each kept for the trees that it was made of.

    Law: however often a client is named among those who wait, one answer is made for its trees,
    and another one each time that it asks again.
    """

    def __init__(self) -> None:
        """Nothing is made."""
        self._made: dict[int, tuple[TreeRecord, Made]] = {}
        self._given: set[int] = set()

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._made)

    def give(self, report: Report) -> Made | None:
        """The answer to a client who asks, which is not kept any longer; None where none is."""
        self._given.add(report.client)
        made = self._made.pop(report.client, None)
        return made[1] if made is not None and made[0] is report.trees else None

    def keep(self, report: Report, answer: Made) -> None:
        """Keep an answer until its client asks."""
        self._made[report.client] = report.trees, answer

    def window(self, report: Report, waiting: Iterable[Report], most: int) -> list[Report]:
        """The client who asks, and others who wait: at most `most`, none whose answer is made.

        Nor those who were given theirs: they seem to wait as long as it is on its way.
        """
        chosen = {report.client: report}
        for other in waiting:
            if len(chosen) >= most:
                break
            if other.client not in self._given and not self._holds(other):
                chosen.setdefault(other.client, other)
        return list(chosen.values())

    def clear(self) -> None:
        """Another model, or no more answers."""
        self._made.clear()
        self._given.clear()

    def _holds(self, report: Report) -> bool:
        made = self._made.get(report.client)
        return made is not None and made[0] is report.trees
