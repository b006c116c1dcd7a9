"""A shard's part of the rows that clients fetch, in the layout of its trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchfsl.fsl.dpf import psr
from torchfsl.fsl.plan.plan import Plan
from torchfsl.integrations.ray.cuts import Cut, Places, subtrees
from torchfsl.integrations.ray.packing import SegmentPart
from torchfsl.integrations.ray.sums import side_by_side
from torchfsl.kernels.backends import kernels, num_threads
from torchfsl.types import Bytes


class SegmentTables:
    """Rows of one model version, as `row_tables.RowTables` has them, of the shard's part.

    Attributes:
        missing: positions whose rows are not here yet.
    """

    def __init__(self, plan: Plan, cut: Cut, places: Places, model_rows: bytes) -> None:
        """No row is here."""
        segment, bins = cut.segment, cut.bin_group
        self._cut, self._places = cut, places
        self._key = psr.row_key(plan, segment, model_rows)
        block = segment.row_bytes << segment.nu
        leaves = bins.num_leaves if bins is not None else 0
        self._tables = [
            np.zeros((len(cut.bins), leaves, block), dtype=np.uint8),
            np.zeros((len(cut.nodes), cut.node_leaves, block), dtype=np.uint8),
        ]
        self._digests: list[Bytes] = []
        self._starts: set[int] = set()
        self.missing = segment.m

    def put(self, start: int, rows: Bytes) -> None:
        """Lay out the model's rows from position `start` on, `[rows, row_bytes]`; again is none."""
        if start in self._starts:
            return
        cut, width = self._cut, rows.shape[1]
        own = range(start, start + len(rows))
        whole = np.dtype((np.void, width))
        items = np.ascontiguousarray(rows).view(whole)[:, 0]
        bins, below = self._tables
        if bins.size:
            places = bins.reshape(-1, width).view(whole)[:, 0]
            for positions, slots in self._places.within(own):
                places[slots] = items[positions]
        low, high = (
            max(start, cut.node_positions.start),
            min(own.stop, cut.node_positions.stop),
        )
        if low < high:
            first = cut.nodes.start * cut.node_leaves << cut.segment.nu
            below.reshape(-1, width)[low - first : high - first] = rows[low - start : high - start]
        self._starts.add(start)
        self.missing -= len(rows)

    def answers(self, questions: Sequence[SegmentPart]) -> list[tuple[bytes, bytes, bytes, bytes]]:
        """For each client answers and tags of the shard's bins, and of its part of each stash tree.

        The stash's are to be XORed with those of the other shards. With tags each part of a table
        is read once for all clients.
        """
        if not self._digests:
            self._digests = self._make_digests()
        cut, found = self._cut, [[b"", b"", b"", b""] for _ in questions]
        bins, below = self._tables
        if bins.size:
            asked = [
                (q.tree_key, q.second_key, part.roots, part.cw, part.cw_right)
                for q in questions
                for part in (q.bins,)
                if part is not None
            ]
            for own, said in zip(found, self._answered(asked, 0), strict=True):
                own[:2] = (part.tobytes() for part in said)
        if below.size:
            stashes = [q.stash for q in questions if q.stash is not None]
            asked = []
            for q, stash in zip(questions, stashes, strict=True):
                nodes = subtrees(cut, q.tree_key, stash.roots, stash.cw, stash.cw_right)
                one_by_one = side_by_side(cut, nodes, stash)
                asked += [(q.tree_key, q.second_key, *one) for one in one_by_one]
            trees = iter(self._answered(asked, 1))
            for own, stash in zip(found, stashes, strict=True):
                whole = [next(trees) for _ in range(len(stash.roots))]
                for i in (0, 1):
                    parts = (np.bitwise_xor.reduce(said[i], axis=0).tobytes() for said in whole)
                    own[2 + i] = b"".join(parts)
        return [(own[0], own[1], own[2], own[3]) for own in found]

    def _answered(self, asked: Sequence[Any], which: int) -> list[tuple[Bytes, Bytes]]:
        """Answers and tags of trees over the bins (0) or the stash's nodes (1)."""
        table, digests = self._tables[which], self._digests[which]
        leaves = table.shape[1]
        if self._cut.segment.tag_bytes:
            args = (list(asked), leaves, table, digests, num_threads())
            found: list[tuple[Bytes, Bytes]] = kernels().authenticate_batch(*args)
            return found
        return [
            (kernels().answer(key, *trees, leaves, table, num_threads()),
             np.empty((len(trees[0]), 0), dtype=np.uint8))
            for key, _, *trees in asked
        ]  # fmt: skip

    def _make_digests(self) -> list[Bytes]:
        """Of the row blocks; zeros for leaves behind the last position, which have no row."""
        cut, width = self._cut, self._cut.segment.tag_bytes
        found = []
        for table in self._tables:
            blocks = table.reshape(-1, table.shape[2])
            digests = np.zeros((len(blocks), width), dtype=np.uint8)
            if width and len(blocks):
                digests[:] = kernels().row_digests(self._key, blocks, num_threads())
            found.append(digests)
        stash = cut.stash_group
        if stash is not None:
            found[1][max(0, stash.num_leaves - cut.nodes.start * cut.node_leaves) :] = 0
        pairs = zip(self._tables, found, strict=True)
        return [digests.reshape(*table.shape[:2], width) for table, digests in pairs]
