"""One shard of a party: a plain object that runs in this process or in an actor of Ray.

A shard is a cache of the front's log. An empty shard may replace it at any time. The front detects
this, because a shard's results are bound to the set of windows that its sums hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from torchfsl.fsl import noise
from torchfsl.fsl.dpf import checks
from torchfsl.fsl.dpf.trees import split
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server import sizes
from torchfsl.fsl.suite import FOLD_BYTES
from torchfsl.integrations.ray.cuts import Cut, Places, cuts_of, piece_of
from torchfsl.integrations.ray.packing import Packing, SegmentPart
from torchfsl.integrations.ray.sums import SegmentSums, add_rows
from torchfsl.integrations.ray.tables import SegmentTables
from torchfsl.kernels.backends import kernels, num_threads
from torchfsl.types import Bytes

Windows = frozenset[int]
Answer = dict[str, tuple[bytes, bytes, bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A shard's sums, with the windows that they hold. Secret."""

    epoch: int
    held: Windows
    arrays: dict[str, list[Bytes]] = field(repr=False)


class Shard:
    """Shard `number` of `count` of server `party`.

    Every call but `fold` names an epoch, which counts the front's rounds: a later one forgets what
    was here, an earlier one changes nothing and gives nothing.
    """

    def __init__(self, plan: Plan, party: int, number: int, count: int) -> None:
        """Sums of zero."""
        self._plan, self._party, self._number, self._count = plan, party, number, count
        self._cuts = cuts_of(plan, number, count)
        self._packing = Packing(plan, self._cuts)
        self._asked = Packing(plan, self._cuts, questions=True)
        self._places = {name: Places(plan, cut) for name, cut in self._cuts.items()}
        self._round = 0  # of the places of public bins
        self._sums: dict[str, SegmentSums] = {}
        self._tables: dict[str, SegmentTables] = {}
        self._model_rows, self._epoch, self._held = b"", -1, Windows()
        self._masks: tuple[bytes, dict[str, checks.FoldMasks]] = b"", {}

    def held(self, epoch: int) -> Windows:
        """The windows that the sums hold."""
        return self._held if self._at(epoch) else Windows()

    def add(self, epoch: int, window: int, subtract: bool, rows: Bytes) -> None:
        """Add a window, or take its reports out again; what is held already changes nothing."""
        if not self._at(epoch) or window in self._held:
            return
        reports = [self._packing.read(row) for row in rows]
        for name in self._cuts:
            self._sum(name).add([report[name] for report in reports], subtract=subtract)
        self._held |= {window}

    def checkpoint(self, epoch: int) -> Checkpoint | None:
        """The sums as they are."""
        if not self._at(epoch):
            return None
        arrays = {name: [a.copy() for a in total.arrays] for name, total in self._sums.items()}
        return Checkpoint(epoch, self._held, arrays)

    def restore(self, epoch: int, checkpoint: Checkpoint | None) -> Windows:
        """Take a checkpoint's sums if they hold more; the windows that are held then."""
        if not self._at(epoch):
            return Windows()
        fits = checkpoint is not None and checkpoint.epoch == epoch
        if checkpoint is not None and fits and len(checkpoint.held) > len(self._held):
            for name, arrays in checkpoint.arrays.items():
                for own, other in zip(self._sum(name).arrays, arrays, strict=True):
                    own[...] = other
            self._held = checkpoint.held
        return self._held

    def fold(self, rows: Bytes, positions: Sequence[int], verify_key: bytes) -> bytes:
        """The folds of a window's reports at these positions over the shard's trees, 16 bytes each.

        Law: the XOR over the shards is the report's fold.
        """
        masks = self._masks_of(verify_key)
        folds = []
        for position in positions:
            report, total = self._packing.read(rows[position]), 0
            for name, own in masks.items():
                total ^= self._fold(self._cuts[name], report[name], own)
            folds.append(total.to_bytes(FOLD_BYTES, "little"))
        return b"".join(folds)

    def put_rows(self, epoch: int, model_rows: bytes, name: str, start: int, rows: Bytes) -> None:
        """The model's rows of a segment from a position on; another model replaces the last."""
        if not self._at(epoch):
            return
        if model_rows != self._model_rows:
            self._forget_rows()
            self._model_rows = model_rows
        if name not in self._tables:
            self._tables[name] = SegmentTables(self._plan, self._cuts[name], self._places[name])
        if self._tables[name].model_rows != model_rows:
            self._tables[name].begin(model_rows)
        self._tables[name].put(start, rows)

    def answer(self, epoch: int, model_rows: bytes, rows: Bytes) -> list[Answer] | None:
        """By client of a window, and by segment, what `SegmentTables.answers` gives.

        None where rows of the model are missing.
        """
        segments = self._plan.retrieving
        ready = self._at(epoch) and model_rows == self._model_rows
        if not ready or any(s.name not in self._tables for s in segments):
            return None
        if any(not self._tables[s.name].has_all(model_rows) for s in segments):
            return None
        asked = [self._asked.read(row) for row in rows]
        by_segment = {
            s.name: self._tables[s.name].answers([parts[s.name] for parts in asked])
            for s in segments
        }
        return [{s.name: by_segment[s.name][i] for s in segments} for i in range(len(asked))]

    def forget_rows(self, epoch: int) -> None:
        """No more answers in this round."""
        if self._at(epoch):
            self._forget_rows()

    def partial(
        self,
        epoch: int,
        expected: Windows,
        round_number: int,
        number: int,
        piece: int,
        pieces: int,
    ) -> dict[str, Bytes] | None:
        """This shard's part of the sums for a piece of the rows of shard `number`, in this round.

        None unless this shard holds exactly the windows `expected`.
        """
        if not self._at(epoch) or self._held != expected:
            return None
        cuts = cuts_of(self._plan, number, self._count)
        rows = {name: piece_of(cut.rows, piece, pieces) for name, cut in cuts.items()}
        places = self._places_in(round_number)
        return {name: self._sum(name).partial(part, places[name]) for name, part in rows.items()}

    def finish(
        self,
        epoch: int,
        expected: Windows,
        round_number: int,
        noisy: bool,
        piece: int,
        pieces: int,
        *others: dict[str, Bytes] | None,
    ) -> dict[str, Bytes] | None:
        """A piece of this shard's rows of the share, with the server's noise if asked for.

        None unless it holds `expected`, as the others did whose `partial` for it is given.
        """
        own = self.partial(epoch, expected, round_number, self._number, piece, pieces)
        given = [part for part in others if part is not None]
        if own is None or len(given) < len(others):
            return None
        parts = {}
        for name, total in own.items():
            segment = self._cuts[name].segment
            for part in given:
                add_rows(total, part[name], self._plan.ring_bytes(segment))
            parts[name] = total
            if noisy and total.size:
                values = total.reshape(len(total), -1, self._plan.ring_bytes(segment))
                noisy_values = noise.add_noise(self._plan, segment, values)
                parts[name] = noisy_values.reshape(total.shape)
        return parts

    def end(self, epoch: int) -> None:
        """The round is over: forget everything."""
        if self._at(epoch):
            self._begin(epoch)

    # --- what the methods above are made of ---------------------------------------------------

    def _at(self, epoch: int) -> bool:
        if epoch > self._epoch:
            self._begin(epoch)
        return epoch == self._epoch

    def _begin(self, epoch: int) -> None:
        self._epoch, self._held = epoch, Windows()
        self._masks = b"", {}
        self._forget_rows()
        for total in self._sums.values():
            total.clear()

    def _forget_rows(self) -> None:
        """The memory of tables is kept for the next model, where `LocalEvaluator` keeps it."""
        self._model_rows = b""
        if not sizes.keeps_tables(self._plan):
            self._tables = {}
        for table in self._tables.values():
            table.model_rows = b""

    def _sum(self, name: str) -> SegmentSums:
        if name not in self._sums:
            self._sums[name] = SegmentSums(self._plan, self._cuts[name], self._party)
        return self._sums[name]

    def _places_in(self, round_number: int) -> dict[str, Places]:
        if round_number != self._round:
            self._round = round_number
            for name, cut in self._cuts.items():
                if cut.segment.binned:
                    self._places[name] = Places(self._plan, cut, round_number)
        return self._places

    def _masks_of(self, verify_key: bytes) -> dict[str, checks.FoldMasks]:
        if self._masks[0] != verify_key:
            checked = self._plan.with_trees if self._plan.verified else ()
            masks = {s.name: checks.fold_masks(s, verify_key) for s in checked}
            self._masks = verify_key, masks
        return self._masks[1]

    def _fold(self, cut: Cut, report: SegmentPart, masks: checks.FoldMasks) -> int:
        total = 0
        for group, span in split(cut.segment):
            part, own = (report.stash, cut.folded) if group.is_stash else (report.bins, cut.bins)
            if part is None or not own:
                continue
            # Of the stash whole trees are here, of the bins the shard's alone.
            mine = slice(own.start, own.stop) if group.is_stash else slice(0, len(own))
            first = span.start + own.start
            folded = kernels().verify(
                report.tree_key,
                report.check_key,
                part.roots[mine],
                np.ascontiguousarray(part.cw[:, mine]),
                np.ascontiguousarray(part.cw_right[:, mine]),
                group.num_leaves,
                part.check[mine],
                first,
                masks.key,
                masks.trees[first : first + len(own)],
                masks.low,
                masks.high,
                num_threads(),
            )
            total ^= int.from_bytes(folded, "little")
        return total
