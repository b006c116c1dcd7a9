"""Private submodel retrieval: rows of the model by the trees that later carry the update.

Each server XORs the raw bytes of the rows whose leaf has control bit 1. Off the selected position
both servers' bits agree, on it they differ, so the two answers XOR to the selected row: exact, no
fixed point. Every bin and stash tree is answered, dummies too (the paper's Fig. 4 answers only k,
which would need to know the occupied bins).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from torchfsl import cuckoo
from torchfsl.backends import kernels, num_threads
from torchfsl.dpf import Trees, split
from torchfsl.plan import Plan, Segment

Bytes = npt.NDArray[np.uint8]


def bin_tables(plan: Plan, segment: Segment, rows: Bytes) -> list[Bytes]:
    """The model's rows in the layout of the trees, once a model version.

    Args:
        plan: gives the hash seed.
        segment: a retrieving segment.
        rows: `[m, row_bytes]`, the rows' raw bytes in index order.

    Returns:
        A table for each group: `[bins, leaves, row_bytes << nu]` for the bins, with a leading
        axis of 1 for the stash, whose trees all see the whole index space. Padding is zero.
    """
    tables = []
    for group, _ in split(segment):
        padded = group.num_leaves << group.nu
        if not group.is_stash:
            permuted = cuckoo.permutations(bytes.fromhex(plan.hash_seed), segment.name, segment.m)
            table = np.zeros((group.num_trees * padded, segment.row_bytes), dtype=np.uint8)
            for slots in cuckoo.bin_slots(permuted, segment.theta, padded):
                table[slots] = rows
        else:
            table = np.zeros((padded, segment.row_bytes), dtype=np.uint8)
            table[: segment.m] = rows
        tables.append(table.reshape(-1, group.num_leaves, segment.row_bytes << group.nu))
    return tables


def answer(
    segment: Segment, key: bytes, roots: Bytes, trees: list[Trees], tables: list[Bytes]
) -> Bytes:
    """One server's answer to one client: `[num_trees, row_bytes << nu]`."""
    parts = [
        kernels().answer(
            key, roots[span], part.cw, part.cw_right, group.num_leaves, table, num_threads()
        )
        for (group, span), part, table in zip(split(segment), trees, tables, strict=True)
    ]
    return np.concatenate(parts)


def decode(segment: Segment, answers: tuple[Bytes, Bytes], slots: npt.NDArray[np.uint64]) -> Bytes:
    """The rows at each tree's selected position: `[num_trees, row_bytes]`."""
    blocks = (answers[0] ^ answers[1]).reshape(segment.num_trees, 1 << segment.nu, -1)
    return np.ascontiguousarray(blocks[np.arange(segment.num_trees), slots.astype(np.int64)])
