"""The front of the shards: the windows of reports that they hold, and the questions they answer.

Nothing is taken for done because a call once had a result: a framework may keep the result of an
`add` whose shard ended afterwards, and the shard that took its place holds zeros. So each shard
states the windows that its sums hold, is sent the others again, and gives its part of the share
only while it holds what is expected. For retrieval the front sends the model's rows to the shards,
questions to all, and joins their answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np

from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server import sizes
from torchfsl.fsl.server.evaluation import KeptAnswers
from torchfsl.fsl.server.loaded import LoadedReport
from torchfsl.fsl.server.reports import Report
from torchfsl.integrations.ray.cuts import piece_of
from torchfsl.integrations.ray.grid import ATTEMPTS, EngineLost, Shards
from torchfsl.integrations.ray.packing import Packing, SegmentWhole
from torchfsl.integrations.ray.shard import Answer, Windows
from torchfsl.kernels import ring
from torchfsl.submodel.segments import ceil_div
from torchfsl.submodel.server_model import ServerModel
from torchfsl.types import Bytes

_ADDS_UNDER_WAY: Final = 4
_PIECES_UNDER_WAY: Final = 3

PIECE_BYTES: Final = 1 << 25
"""Bytes of all shards' parts of what one shard finishes at once."""


@dataclass(slots=True)
class _Window:
    """Reports that shards add together, or take out again, and where each shard finds its part."""

    subtract: bool
    clients: tuple[int, ...]
    parts: list[object] = field(repr=False)


class FrontSums:
    """One round's windows after the other.

    Args:
        plan: of the task.
        party: of this server.
        release: called when reports were read; see `Spool.release`.
        shards: that add.
        checkpoint_windows: after so many windows shards put their sums aside; 0 for never.
    """

    def __init__(
        self,
        plan: Plan,
        party: int,
        release: Callable[[], None],
        shards: Shards,
        checkpoint_windows: int,
    ) -> None:
        """No window yet."""
        self._plan, self._party, self._release = plan, party, release
        self._shards, self._every = shards, checkpoint_windows
        self._size = sizes.window_reports(plan)
        self._packings: list[Packing] = []
        self.epoch = -1
        self.begin()

    def begin(self) -> None:
        """Forget everything: another round."""
        self.epoch += 1
        self._dense: dict[str, Bytes] = {}
        self._windows: list[_Window] = []
        self._window_of: dict[int, int] = {}
        self._reports: dict[int, Report] = {}
        self._waiting: dict[int, Report] = {}
        self._checkpoints: dict[int, object] = {}
        self._adds: deque[object] = deque()

    def take(self, report: Report) -> None:
        """Note a complete report; once a window of them waits, it is sent to the shards."""
        if report.client in self._window_of or report.client in self._waiting:
            return
        self._waiting[report.client] = report
        if len(self._waiting) >= self._size:
            waiting = [r for r in self._waiting.values() if not r.rejected]
            self._waiting = {}
            self._file(waiting, subtract=False)

    def hold(self, reports: Iterable[Report]) -> None:
        """Send whatever of these reports is in no window yet."""
        missing = [r for r in reports if r.client not in self._window_of]
        self._waiting = {}
        self._file(missing, subtract=False)

    def settle(self, reports: Sequence[Report]) -> None:
        """Make the windows those of exactly these reports."""
        wanted = {report.client for report in reports}
        self._file([self._reports[c] for c in self._window_of if c not in wanted], subtract=True)
        self.hold(reports)

    def windows_of(
        self, reports: Mapping[int, Report]
    ) -> Iterator[tuple[list[int], list[int], list[object]]]:
        """By window: its clients among these, their positions in it, and its parts by shard."""
        for number, window in enumerate(self._windows):
            places = {
                client: place
                for place, client in enumerate(window.clients)
                if self._window_of.get(client) == number and client in reports
            }
            if places:
                yield list(places), list(places.values()), window.parts

    def shares(self, *, noisy: bool) -> Iterator[tuple[str, range, Bytes]]:
        """By segment and range of positions: the share, `[rows, W/8]`, from all windows.

        Args:
            noisy: shards add the server's noise.

        Raises:
            EngineLost: shards were lost again and again.
        """
        pieces = self._pieces()
        due = [(n, piece) for n in range(self._shards.grid.size) for piece in range(pieces)]
        for _ in range(ATTEMPTS):
            self._bring_up()
            lost = []
            for (number, piece), parts in self._gathered(due, pieces, noisy):
                if parts is None:
                    lost.append((number, piece))
                    continue
                for name, part in parts.items():
                    rows = self._shards.cuts[number][name].rows
                    yield name, piece_of(rows, piece, pieces), part
            due = lost
            if not due:
                return
        raise EngineLost(
            f"the cluster lost shards {ATTEMPTS} times while the server added their sums: see the "
            "logs of Ray"
        )

    def dense(self, segment: TreeSegment) -> Bytes:
        """The share of a dense segment, without noise, as bytes in index order."""
        size = self._plan.dense_bytes(segment)
        return self._dense.get(segment.name, np.zeros(size, dtype=np.uint8)).reshape(-1)

    # --- what the methods above are made of ---------------------------------------------------

    def _file(self, reports: Sequence[Report], *, subtract: bool) -> None:
        for start in range(0, len(reports), self._size):
            self._file_window(reports[start : start + self._size], subtract=subtract)

    def _file_window(self, reports: Sequence[Report], *, subtract: bool) -> None:
        """Cut and send a window, and add what is dense here."""
        number, clients = len(self._windows), tuple(report.client for report in reports)
        loaded = [LoadedReport(self._party, report) for report in reports]
        self._add_dense(loaded, subtract=subtract)
        parts: list[object] = []
        if self._plan.with_trees:
            grid = self._shards.grid
            wholes = [self._whole(part) for part in loaded]
            for shard, packing in enumerate(self._packed_by()):
                parts.append(grid.put(packing.pack(wholes)))
                self._sent(grid.send(shard, "add", self.epoch, number, subtract, parts[-1]))
        self._windows.append(_Window(subtract, clients, parts))
        for report in reports:
            if subtract:
                del self._window_of[report.client]
            else:
                self._window_of[report.client] = number
                self._reports[report.client] = report
        self._release()
        if parts and self._every and (number + 1) % self._every == 0:
            for shard in range(self._shards.grid.size):
                sent = self._shards.grid.send(shard, "checkpoint", self.epoch)
                self._checkpoints[shard] = sent

    def _sent(self, add: object) -> None:
        """Do not run ahead of the shards for more than some windows."""
        self._adds.append(add)
        if len(self._adds) > _ADDS_UNDER_WAY * self._shards.grid.size:
            self._shards.got(self._adds.popleft())

    def _packed_by(self) -> list[Packing]:
        if not self._packings:
            self._packings = [Packing(self._plan, cuts) for cuts in self._shards.cuts]
        return self._packings

    def _whole(self, loaded: LoadedReport) -> dict[str, SegmentWhole]:
        context, wholes = loaded.report.context, {}
        for segment in self._plan.with_trees:
            part = loaded.contribution(segment)
            check = context.trees.check_key(segment)
            keys = (part.key_tree, part.key_convert, check)
            wholes[segment.name] = SegmentWhole(keys, part.roots, part.trees, part.hints)
        return wholes

    def _add_dense(self, loaded: Sequence[LoadedReport], *, subtract: bool) -> None:
        for segment in self._plan.dense:
            shape = self._plan.dense_values(segment), self._plan.ring_bytes(segment)
            total = self._dense.setdefault(segment.name, np.zeros(shape, dtype=np.uint8))
            for part in loaded:
                share = part.dense_share(segment)
                total = ring.sub(total, share) if subtract else ring.add(total, share)
            self._dense[segment.name] = total

    def _bring_up(self) -> None:
        """Send each shard the windows that it does not hold."""
        expected = Windows(range(len(self._windows)))
        for _ in range(ATTEMPTS):
            behind = False
            for shard in range(self._shards.grid.size):
                held: Windows = self._shards.ask(shard, "held", self.epoch)
                assert held <= expected
                if held != expected:
                    behind = True
                    self._replay(shard, held)
            if not behind:
                return
        raise EngineLost(
            f"the cluster lost shards {ATTEMPTS} times while the server sent its reports again: "
            "see the logs of Ray"
        )

    def _replay(self, shard: int, held: Windows) -> None:
        grid = self._shards.grid
        if shard in self._checkpoints:
            sent = grid.send(shard, "restore", self.epoch, self._checkpoints[shard])
            restored: Windows | None = self._shards.got(sent)
            if restored is None:  # the checkpoint is lost, or the shard once more
                del self._checkpoints[shard]
                return
            held = restored
        for number, window in enumerate(self._windows):
            if number not in held:
                add = (self.epoch, number, window.subtract, window.parts[shard])
                self._sent(grid.send(shard, "add", *add))

    def _pieces(self) -> int:
        """Into how many a shard's rows are cut, so that their parts from all shards are few."""
        plan = self._plan
        share = sum(segment.m * plan.value_bytes(segment) for segment in plan.with_trees)
        return max(
            1, ceil_div(share, PIECE_BYTES)
        )  # each is of share / size bytes from size shards

    def _gathered(
        self, due: Sequence[tuple[int, int]], pieces: int, noisy: bool
    ) -> Iterator[tuple[tuple[int, int], dict[str, Bytes] | None]]:
        """The finished pieces by shard and piece; None if a shard did not hold all windows."""
        grid, expected = self._shards.grid, Windows(range(len(self._windows)))
        round_number = next((r.round_number for r in self._reports.values()), 0)
        under_way: deque[tuple[tuple[int, int], object]] = deque()
        for number, piece in due:
            whose = (round_number, number, piece, pieces)
            others = [
                grid.send(shard, "partial", self.epoch, expected, *whose)
                for shard in range(grid.size)
                if shard != number
            ]
            how = (self.epoch, expected, round_number, noisy, piece, pieces)
            sent = grid.send(number, "finish", *how, *others)
            under_way.append(((number, piece), sent))
            if len(under_way) > _PIECES_UNDER_WAY:
                first, sent = under_way.popleft()
                yield first, self._shards.got(sent)
        for first, sent in under_way:
            yield first, self._shards.got(sent)


ROWS_BYTES: Final = 1 << 24
"""Bytes of the model's rows that are sent to the shards at once."""

Parts: TypeAlias = list[tuple[bytes, bytes]]
"""Answers and tags by segment, as `psr.answer` gives them."""


class FrontTables:
    """Answers for clients of one round after the other, a window of them at a time."""

    def __init__(self, plan: Plan, party: int, shards: Shards) -> None:
        """No rows are laid out."""
        self._plan, self._party, self._shards = plan, party, shards
        self._packings: list[Packing] = []
        self._laid_out: tuple[int, bytes] = (-1, b"")
        self._kept: KeptAnswers[Parts] = KeptAnswers()

    def answer(
        self, epoch: int, report: Report, model: ServerModel, waiting: Iterable[Report]
    ) -> Parts:
        """Answers and tags for a client, and work for others on the way.

        Raises:
            EngineLost: shards were lost again and again.
        """
        if self._laid_out != (epoch, report.model_rows):
            self._kept.clear()
            self._lay_out(epoch, report.model_rows, model, range(self._shards.grid.size))
            self._laid_out = epoch, report.model_rows
        made = self._kept.give(report)
        if made is None:
            window = self._kept.window(report, waiting, sizes.window_reports(self._plan))
            made, *more = self._answers(epoch, window, model)
            for other, parts in zip(window[1:], more, strict=True):
                self._kept.keep(other, parts)
        return made

    def forget(self, epoch: int) -> None:
        """The model may change."""
        self._kept.clear()
        if self._laid_out[1]:
            self._shards.tell("forget_rows", epoch)
            self._laid_out = (-1, b"")

    # --- what the methods above are made of ---------------------------------------------------

    def _answers(self, epoch: int, window: Sequence[Report], model: ServerModel) -> Iterator[Parts]:
        """Answers and tags for each of a window, from one call a shard."""
        rows, grid = window[0].model_rows, self._shards.grid
        if not self._packings:
            cuts = self._shards.cuts
            self._packings = [Packing(self._plan, own, questions=True) for own in cuts]
        loaded = [LoadedReport(self._party, report) for report in window]
        wholes = [{s.name: _question(part, s) for s in self._plan.retrieving} for part in loaded]
        asked = [grid.put(packing.pack(wholes)) for packing in self._packings]
        by_shard: dict[int, list[Answer]] = {}
        for _ in range(ATTEMPTS):
            sent = {
                shard: grid.send(shard, "answer", epoch, rows, asked[shard])
                for shard in range(grid.size)
                if shard not in by_shard
            }
            got = {shard: self._shards.got(part) for shard, part in sent.items()}
            by_shard |= {shard: answers for shard, answers in got.items() if answers is not None}
            if len(by_shard) == grid.size:
                by_client = zip(*(by_shard[shard] for shard in sorted(by_shard)), strict=True)
                return ([_joined(s, parts) for s in self._plan.retrieving] for parts in by_client)
            self._lay_out(epoch, rows, model, set(got) - set(by_shard))
        raise EngineLost(
            f"the cluster lost shards {ATTEMPTS} times while the server answered clients: see the "
            "logs of Ray"
        )

    def _lay_out(
        self, epoch: int, model_rows: bytes, model: ServerModel, shards: Iterable[int]
    ) -> None:
        """Send the model's rows to these shards, some at a time."""
        grid, whom = self._shards.grid, list(shards)
        for segment in self._plan.retrieving:
            rows, step = model.rows(segment), max(1, ROWS_BYTES // segment.row_bytes)
            for start in range(0, segment.m, step):
                part = grid.put(np.ascontiguousarray(rows[start : start + step]))
                call = (epoch, model_rows, segment.name, start, part)
                sent = [grid.send(shard, "put_rows", *call) for shard in whom]
                for sending in sent:
                    self._shards.got(sending)


def _joined(segment: TreeSegment, parts: Sequence[Answer]) -> tuple[bytes, bytes]:
    """Of the bins one after the other, of the stash the XOR; parts by shard."""
    own = [part[segment.name] for part in parts]
    answers, tags = (b"".join(part[i] for part in own) for i in (0, 1))
    row = segment.row_bytes << segment.nu
    answers += _xor([part[2] for part in own], segment.stash * row)
    tags += _xor([part[3] for part in own], segment.stash * segment.tag_bytes)
    return answers, tags


def _question(loaded: LoadedReport, segment: TreeSegment) -> SegmentWhole:
    report, trees = loaded.report, loaded.trees(segment)
    mac = report.tree_context.mac_key(segment, report.round_number)
    return SegmentWhole((trees.key, mac, bytes(16)), trees.roots, trees.public, None)


def _xor(parts: Iterable[bytes], size: int) -> bytes:
    total = np.zeros(size, dtype=np.uint8)
    for part in parts:
        if part:  # a shard may have no subtree
            total ^= np.frombuffer(part, dtype=np.uint8)
    return total.tobytes()
