"""A shard's part of the rows that clients fetch, in the layout of its trees."""

from __future__ import annotations

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

    def answer(self, question: SegmentPart) -> tuple[bytes, bytes, bytes, bytes]:
        """Answers and tags of the shard's bins; answers and tags of its part of each stash tree.

        The stash's are to be XORed with those of the other shards.
        """
        if not self._digests:
            self._digests = self._make_digests()
        cut, keys = self._cut, (question.tree_key, question.second_key)
        found: list[bytes] = []
        bins, below = self._tables
        part = question.bins
        if part is not None and bins.size:
            args = (part.roots, part.cw, part.cw_right)
            found += self._ask(*keys, *args, bins, self._digests[0])
        else:
            found += [b"", b""]
        if question.stash is None or not below.size:
            return found[0], found[1], b"", b""
        stash = question.stash
        nodes = subtrees(cut, question.tree_key, stash.roots, stash.cw, stash.cw_right)
        answers, tags = [], []
        for one in side_by_side(cut, nodes, stash):
            rows, tag = self._answers(*keys, *one, below, self._digests[1])
            answers.append(np.bitwise_xor.reduce(rows, axis=0).tobytes())
            tags.append(np.bitwise_xor.reduce(tag, axis=0).tobytes())
        return found[0], found[1], b"".join(answers), b"".join(tags)

    def _ask(self, *args: Any) -> list[bytes]:
        return [part.tobytes() for part in self._answers(*args)]

    def _answers(
        self, key: bytes, key_mac: bytes, roots: Bytes, cw: Bytes, cw_right: Bytes, table: Bytes,
        digests: Bytes,
    ) -> tuple[Bytes, Bytes]:  # fmt: skip
        trees = (roots, cw, cw_right, table.shape[1], table)
        if self._cut.segment.tag_bytes:
            rows, tags = kernels().authenticate(key, key_mac, *trees, digests, num_threads())
            return rows, tags
        rows = kernels().answer(key, *trees, num_threads())
        return rows, np.empty((len(roots), 0), dtype=np.uint8)

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
