"""Private submodel retrieval: rows of the model by the trees that later carry the update.

Each server XORs the raw bytes of the rows whose leaf has control bit 1. Off the selected position
both servers' bits agree, on it they differ, so the two answers XOR to the selected row: exact, no
fixed point. Every bin and stash tree is answered, dummies too (the paper's Fig. 4 answers only k,
which would need to know the occupied bins).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import kdf
from torchfsl.errors import ProtocolError
from torchfsl.fsl.cuckoo import placement as cuckoo
from torchfsl.fsl.dpf.trees import SelectedLeaves, Trees, split
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.kernels.backends import kernels, num_threads
from torchfsl.types import Bytes

Positions = npt.NDArray[np.uint64]


def empty_tables(segment: TreeSegment) -> list[Bytes]:
    """Tables of zeros for `lay_out`, one for each group of a retrieving segment.

    `[bins, leaves, row_bytes << nu]` for the bins, with a leading axis of 1 for the stash, whose
    trees all see the whole index space.
    """
    row_block = segment.row_bytes << segment.nu
    return [
        np.zeros((1 if g.is_stash else g.num_trees, g.num_leaves, row_block), dtype=np.uint8)
        for g, _ in split(segment)
    ]


def lay_out(plan: Plan, segment: TreeSegment, rows: Bytes, tables: list[Bytes]) -> None:
    """Bring the model's rows into the layout of the trees, once a model version.

    Args:
        plan: gives the hash seed.
        segment: a retrieving segment.
        rows: `[m, row_bytes]`, the rows' raw bytes in index order.
        tables: of `empty_tables`; rows of another version are overwritten, padding stays zero.
    """
    whole = np.dtype((np.void, segment.row_bytes))  # copied at once, not byte by byte
    items = np.ascontiguousarray(rows).view(whole)[:, 0]
    for (group, _), table in zip(split(segment), tables, strict=True):
        places = table.reshape(-1, segment.row_bytes).view(whole)[:, 0]
        if group.is_stash:
            places[: segment.m] = items
            continue
        permuted = plan.permutations(segment)
        for slots in cuckoo.bin_slots(permuted, segment.theta, group.num_leaves << group.nu):
            places[slots] = items


def answer(
    segment: TreeSegment,
    key: bytes,
    key_mac: bytes,
    roots: Bytes,
    trees: list[Trees],
    tables: list[Bytes],
) -> tuple[Bytes, Bytes]:
    """One server's answer to one client.

    Returns:
        `[num_trees, row_bytes << nu]`, and the tags `[num_trees, tag_bytes]`.
    """
    answers, tags = [], []
    for (group, span), part, table in zip(split(segment), trees, tables, strict=True):
        shared = (roots[span], part.cw, part.cw_right, group.num_leaves, table, num_threads())
        if segment.tag_bytes:
            rows, tag = kernels().authenticate(key, key_mac, *shared)
        else:
            rows = kernels().answer(key, *shared)
            tag = np.empty((group.num_trees, 0), dtype=np.uint8)
        answers.append(rows)
        tags.append(tag)
    return np.concatenate(answers), np.concatenate(tags)


def decode(
    segment: TreeSegment,
    key_mac: bytes,
    answers: Sequence[bytes | memoryview],
    leaves: SelectedLeaves,
) -> Bytes:
    """The rows at each tree's selected position: `[num_trees, row_bytes]`.

    Every tag is checked, those of dummies too, before any row is returned, so that a server which
    alters an answer learns nothing from whether the client goes on: it is noticed in an occupied
    and in a dummy bin alike.

    Args:
        segment: a retrieving segment.
        key_mac: K_mac of this round.
        answers: both servers' answers for this segment.
        leaves: the client's secrets.

    Raises:
        ProtocolError: a tag does not fit. The message does not say which.
    """
    row_block = segment.row_bytes << segment.nu
    rows = np.zeros((segment.num_trees, row_block), dtype=np.uint8)
    tags = np.zeros((segment.num_trees, segment.tag_bytes), dtype=np.uint8)
    for part in answers:
        data = np.frombuffer(part, dtype=np.uint8)
        rows ^= data[: rows.size].reshape(rows.shape)
        tags ^= data[rows.size :].reshape(tags.shape)
    if segment.tag_bytes:
        expected = kernels().tags(key_mac, leaves.leaf0, leaves.leaf1, rows, num_threads())
        if not kdf.digests_equal(expected.tobytes(), tags.tobytes()):
            raise ProtocolError(
                "a server's answer does not fit its tag: nothing retrieved is used; report the "
                "servers to their operators"
            )
    return choose_slots(rows.reshape(segment.num_trees, 1 << segment.nu, -1), leaves.slots)


def choose_slots(blocks: Bytes, slots: Positions) -> Bytes:
    """One row of each leaf block. Reads all rows and masks them: no address depends on a slot.

    Args:
        blocks: `[num_trees, rows, row_bytes]`.
        slots: `uint64[num_trees]` below the number of rows. Secret.

    Returns:
        `[num_trees, row_bytes]`.
    """
    rows = np.arange(blocks.shape[1], dtype=np.uint64)
    masks = np.negative((slots[:, None] == rows).astype(np.uint8))
    chosen: Bytes = np.bitwise_or.reduce(blocks & masks[:, :, None], axis=1)
    return chosen
