"""The front's part of retrieval: rows to the shards, questions to all, answers joined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.loaded import LoadedReport
from torchfsl.integrations.ray.grid import ATTEMPTS, EngineLost, Shards
from torchfsl.integrations.ray.packing import Packing, SegmentWhole
from torchfsl.integrations.ray.shard import Answer
from torchfsl.submodel.server_model import ServerModel

ROWS_BYTES: Final = 1 << 24
"""Bytes of the model's rows that are sent to the shards at once."""


class FrontTables:
    """Answers for clients of one round after the other."""

    def __init__(self, plan: Plan, party: int, shards: Shards) -> None:
        """No rows are laid out."""
        self._plan, self._party, self._shards = plan, party, shards
        self._packings: list[Packing] = []
        self._laid_out: tuple[int, bytes] = (-1, b"")

    def answer(
        self, epoch: int, loaded: LoadedReport, model: ServerModel
    ) -> list[tuple[bytes, bytes]]:
        """Answers and tags by segment, as `psr.answer` gives them.

        Raises:
            EngineLost: shards were lost again and again.
        """
        rows, grid = loaded.report.model_rows, self._shards.grid
        if not self._packings:
            cuts = self._shards.cuts
            self._packings = [Packing(self._plan, own, questions=True) for own in cuts]
        if self._laid_out != (epoch, rows):
            self._lay_out(epoch, rows, model, range(grid.size))
            self._laid_out = epoch, rows
        whole = {segment.name: _question(loaded, segment) for segment in self._plan.retrieving}
        asked = [packing.pack([whole]) for packing in self._packings]
        found: dict[int, Answer] = {}
        for _ in range(ATTEMPTS):
            sent = {
                shard: grid.send(shard, "answer", epoch, rows, asked[shard])
                for shard in range(grid.size)
                if shard not in found
            }
            got = {shard: self._shards.got(one) for shard, one in sent.items()}
            found |= {shard: answer for shard, answer in got.items() if answer is not None}
            if len(found) == grid.size:
                return [self._joined(s, found) for s in self._plan.retrieving]
            self._lay_out(epoch, rows, model, set(got) - set(found))
        raise EngineLost(f"shards were lost {ATTEMPTS} times while a client was answered")

    def forget(self, epoch: int) -> None:
        """The model may change."""
        if self._laid_out[1]:
            self._shards.tell("forget_rows", epoch)
            self._laid_out = (-1, b"")

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

    def _joined(self, segment: TreeSegment, found: Mapping[int, Answer]) -> tuple[bytes, bytes]:
        """Of the bins one after the other, of the stash the XOR."""
        parts = [found[shard][segment.name] for shard in sorted(found)]
        answers, tags = (b"".join(part[i] for part in parts) for i in (0, 1))
        row = segment.row_bytes << segment.nu
        answers += _xor([part[2] for part in parts], segment.stash * row)
        tags += _xor([part[3] for part in parts], segment.stash * segment.tag_bytes)
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
