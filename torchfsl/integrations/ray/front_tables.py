"""The front's part of retrieval: rows to the shards, questions to all, answers joined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np

from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server import sizes
from torchfsl.fsl.server.kept_answers import KeptAnswers
from torchfsl.fsl.server.loaded import LoadedReport
from torchfsl.fsl.server.reports import Report
from torchfsl.integrations.ray.grid import ATTEMPTS, EngineLost, Shards
from torchfsl.integrations.ray.packing import Packing, SegmentWhole
from torchfsl.integrations.ray.shard import Answer
from torchfsl.submodel.server_model import ServerModel

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
        wholes = [{s.name: _question(one, s) for s in self._plan.retrieving} for one in loaded]
        asked = [grid.put(packing.pack(wholes)) for packing in self._packings]
        found: dict[int, list[Answer]] = {}
        for _ in range(ATTEMPTS):
            sent = {
                shard: grid.send(shard, "answer", epoch, rows, asked[shard])
                for shard in range(grid.size)
                if shard not in found
            }
            got = {shard: self._shards.got(one) for shard, one in sent.items()}
            found |= {shard: answers for shard, answers in got.items() if answers is not None}
            if len(found) == grid.size:
                by_client = zip(*(found[shard] for shard in sorted(found)), strict=True)
                return ([_joined(s, parts) for s in self._plan.retrieving] for parts in by_client)
            self._lay_out(epoch, rows, model, set(got) - set(found))
        raise EngineLost(f"shards were lost {ATTEMPTS} times while clients were answered")

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
                for one in sent:
                    self._shards.got(one)


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
