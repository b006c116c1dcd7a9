"""A shard's part of the rows that clients fetch, in the layout of its trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from torchfsl.fsl.dpf import psr
from torchfsl.fsl.dpf.psr import whole_rows
from torchfsl.fsl.dpf.ssa import row_parts
from torchfsl.fsl.plan.plan import Plan
from torchfsl.integrations.ray.cuts import Cut, Places, subtrees
from torchfsl.integrations.ray.packing import SegmentPart
from torchfsl.integrations.ray.sums import side_by_side
from torchfsl.kernels.backends import kernels, num_threads
from torchfsl.types import Bytes, Indices

Positions: TypeAlias = Indices | range


class SegmentTables:
    """Rows of one model version after the other, as `row_tables.RowTables`, of the shard's part.

    Attributes:
        model_rows: digest of the rows of the version that is laid out.
    """

    def __init__(self, plan: Plan, cut: Cut, places: Places) -> None:
        """No row is here."""
        segment, bins = cut.segment, cut.bin_group
        self._plan, self._cut, self._places = plan, cut, places
        block = segment.row_bytes << segment.nu
        leaves = bins.num_leaves if bins is not None else 0
        shapes = (len(cut.bins), leaves), (len(cut.nodes), cut.node_leaves)
        self._tables = [np.zeros((*shape, block), dtype=np.uint8) for shape in shapes]
        self._digests = [np.zeros((*shape, segment.tag_bytes), dtype=np.uint8) for shape in shapes]
        self._starts: set[int] = set()
        self._missing, self._digested = segment.m, False
        self.model_rows = b""

    def begin(self, model_rows: bytes) -> None:
        """Another version: what is here counts no more, and is overwritten."""
        segment = self._cut.segment
        self.model_rows, self._missing = model_rows, segment.m
        self._starts.clear()
        self._key = psr.row_key(self._plan, segment, model_rows)
        # Where a block is a row, its digest is laid out with it. Padding of bins has that of zeros.
        self._digested = not segment.nu
        if self._digested and segment.tag_bytes:
            self._digests[0][:] = self._digests_of(np.zeros((1, segment.row_bytes), dtype=np.uint8))

    def has_all(self, model_rows: bytes) -> bool:
        """Whether all rows of a version are here."""
        return self.model_rows == model_rows and not self._missing

    def put(self, start: int, rows: Bytes) -> None:
        """Lay out the model's rows from position `start` on, `[rows, row_bytes]`; again is none."""
        if start in self._starts:
            return
        for part in row_parts(len(rows), rows.shape[1]):
            self._put(start + part.start, rows[part])
        self._starts.add(start)
        self._missing -= len(rows)

    def answers(self, questions: Sequence[SegmentPart]) -> list[tuple[bytes, bytes, bytes, bytes]]:
        """For each client answers and tags of the shard's bins, and of its part of each stash tree.

        The stash's are to be XORed with those of the other shards. With tags each part of a table
        is read once for all clients.
        """
        if not self._digested:
            self._digest_blocks()
        cut, answers = self._cut, [[b"", b"", b"", b""] for _ in questions]
        bins, below = self._tables
        if bins.size:
            asked = [
                (q.tree_key, q.second_key, part.roots, part.cw, part.cw_right)
                for q in questions
                for part in (q.bins,)
                if part is not None
            ]
            for own, answered in zip(answers, self._answered(asked, 0), strict=True):
                own[:2] = (part.tobytes() for part in answered)
        if below.size:
            stashes = [q.stash for q in questions if q.stash is not None]
            asked = []
            for q, stash in zip(questions, stashes, strict=True):
                nodes = subtrees(cut, q.tree_key, stash.roots, stash.cw, stash.cw_right)
                one_by_one = side_by_side(cut, nodes, stash)
                asked += [(q.tree_key, q.second_key, *tree) for tree in one_by_one]
            trees = iter(self._answered(asked, 1))
            for own, stash in zip(answers, stashes, strict=True):
                whole = [next(trees) for _ in range(len(stash.roots))]
                for i in (0, 1):
                    parts = (np.bitwise_xor.reduce(both[i], axis=0).tobytes() for both in whole)
                    own[2 + i] = b"".join(parts)
        return [(own[0], own[1], own[2], own[3]) for own in answers]

    def _answered(self, asked: Sequence[Any], which: int) -> list[tuple[Bytes, Bytes]]:
        """Answers and tags of trees over the bins (0) or the stash's nodes (1)."""
        table, digests = self._tables[which], self._digests[which]
        leaves = table.shape[1]
        if self._cut.segment.tag_bytes:
            args = (list(asked), leaves, table, digests, num_threads())
            answered: list[tuple[Bytes, Bytes]] = kernels().authenticate_batch(*args)
            return answered
        return [
            (
                kernels().answer(key, *trees, leaves, table, num_threads()),
                np.empty((len(trees[0]), 0), dtype=np.uint8),
            )
            for key, _, *trees in asked
        ]

    def _put(self, start: int, rows: Bytes) -> None:
        """Lay out some rows and, where a block is a row, their digests."""
        cut, width = self._cut, self._cut.segment.tag_bytes
        end = start + len(rows)
        pairs = [pair for pair in self._places.within(range(start, end)) if len(pair[0])]
        here = cut.node_positions
        nodes = range(max(start, here.start) - start, min(end, here.stop) - start)
        first = start - (cut.nodes.start * cut.node_leaves << cut.segment.nu)

        def lay_out(tables: Sequence[Bytes], of: Callable[[Positions], Bytes]) -> None:
            bins, below = (table.reshape(-1, table.shape[2] >> cut.segment.nu) for table in tables)
            for positions, slots in pairs:
                whole_rows(bins)[slots] = whole_rows(of(positions))
            if nodes:
                below[first + nodes.start : first + nodes.stop] = of(nodes)

        lay_out(self._tables, lambda positions: _taken(rows, positions))
        if not (self._digested and width):
            return
        if len(nodes) + sum(len(positions) for positions, _ in pairs) < len(rows):
            lay_out(self._digests, lambda positions: self._digests_of(_taken(rows, positions)))
        else:  # a row that lies in several places is digested once
            digests = self._digests_of(rows)
            lay_out(self._digests, lambda positions: _taken(digests, positions))

    def _digests_of(self, blocks: Bytes) -> Bytes:
        digests: Bytes = kernels().row_digests(
            self._key, np.ascontiguousarray(blocks), num_threads()
        )
        return digests

    def _digest_blocks(self) -> None:
        """Of blocks of several rows; zeros for leaves behind the last position, without any."""
        for table, digests in zip(self._tables, self._digests, strict=True):
            if digests.size:
                blocks = table.reshape(-1, table.shape[2])
                digests[:] = self._digests_of(blocks).reshape(digests.shape)
        cut, stash = self._cut, self._cut.stash_group
        if stash is not None:
            leaves = self._digests[1].reshape(-1, cut.segment.tag_bytes)
            leaves[max(0, stash.num_leaves - cut.nodes.start * cut.node_leaves) :] = 0
        self._digested = True


def _taken(rows: Bytes, positions: Positions) -> Bytes:
    """Rows at distinct positions in order; without a copy where these are all of them."""
    if len(positions) == len(rows):
        return rows
    if isinstance(positions, range):
        return rows[positions.start : positions.stop]
    return whole_rows(rows)[positions].view(np.uint8).reshape(-1, rows.shape[1])
