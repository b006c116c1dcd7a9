"""Private submodel retrieval: rows of the model by the trees that later carry the update.

Each server XORs the raw bytes of the rows whose leaf has control bit 1. Off the selected position
both servers' bits agree, on it they differ, so the two answers XOR to the selected row: exact, no
fixed point. Every bin and stash tree is answered, dummies too (the paper's Fig. 4 answers only k,
which would need to know the occupied bins).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import kdf
from torchfsl.errors import ProtocolError
from torchfsl.fsl.cuckoo import placement as cuckoo
from torchfsl.fsl.cuckoo.placement import Slots
from torchfsl.fsl.dpf.trees import SelectedLeaves, Trees, split
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.kernels.backends import kernels, num_threads
from torchfsl.types import Bytes

Positions = npt.NDArray[np.uint64]
_CHUNK: Final = 1 << 16


def empty_bins(segment: TreeSegment) -> list[Bytes]:
    """Zeros for `lay_out`, `[bins, leaves, row_bytes << nu]`; nothing without bins."""
    row_block = segment.row_bytes << segment.nu
    groups = (group for group in segment.groups if not group.is_stash)
    return [np.zeros((g.num_trees, g.num_leaves, row_block), dtype=np.uint8) for g in groups]


def lay_out(plan: Plan, segment: TreeSegment, rows: Bytes, bins: list[Bytes]) -> None:
    """Bring the model's rows into the layout of the bins, once a model version.

    Args:
        plan: gives the hash seed.
        segment: a retrieving segment.
        rows: `[m, row_bytes]`, the rows' raw bytes in index order.
        bins: of `empty_bins`; rows of another version are overwritten, padding stays as it is.
    """
    items = whole_rows(rows)
    for places, slots in _places(plan, segment, bins):
        places[slots] = items


def holds(plan: Plan, segment: TreeSegment, rows: Bytes, bins: list[Bytes]) -> bool:
    """Whether `lay_out` of these rows would change nothing."""
    for places, slots in _places(plan, segment, bins):
        for start in range(0, segment.m, _CHUNK):
            part = slice(start, start + _CHUNK)
            laid_out = places[slots[part]].view(np.uint8).reshape(-1, rows.shape[1])
            if not np.array_equal(laid_out, rows[part]):
                return False
    return True


def tables(segment: TreeSegment, bins: list[Bytes], rows: Bytes) -> list[Bytes]:
    """A table for each group: the bins', and for a stash, whose trees see all rows, the rows.

    The stash's, `[1, leaves, row_bytes << nu]`, is a view of `rows` where no leaf needs padding.
    """
    laid_out = list(bins)
    for group in segment.groups:
        if group.is_stash:
            block = segment.row_bytes << segment.nu
            if rows.size != group.num_leaves * block:
                padded = np.zeros((group.num_leaves << segment.nu, segment.row_bytes), np.uint8)
                padded[: segment.m] = rows
                rows = padded
            laid_out.append(rows.reshape(1, group.num_leaves, block))
    return laid_out


def _places(
    plan: Plan, segment: TreeSegment, bins: list[Bytes]
) -> Iterator[tuple[npt.NDArray[np.void], Slots]]:
    """A group's bins as one row after the other, and where each row of the model lies there."""
    groups = (group for group in segment.groups if not group.is_stash)
    for group, table in zip(groups, bins, strict=True):
        places = whole_rows(table.reshape(-1, table.shape[2] >> group.nu))
        permuted = plan.permutations(segment)
        for slots in cuckoo.bin_slots(permuted, segment.theta, group.num_leaves << group.nu):
            yield places, slots
        cuckoo.set_aside(permuted)


def whole_rows(rows: Bytes) -> npt.NDArray[np.void]:
    """Rows that are copied at once, not byte by byte."""
    whole = np.dtype((np.void, rows.shape[1]))
    return np.ascontiguousarray(rows).view(whole)[:, 0]


def row_key(plan: Plan, segment: TreeSegment, model_rows: bytes) -> bytes:
    """The key of the digests of a segment's rows, 16 bytes, public.

    Args:
        plan: the task.
        segment: a retrieving segment.
        model_rows: the digest of all rows that can be retrieved, so that the key is not known
            before they are settled.
    """
    return kdf.derive(
        model_rows, kdf.LABEL_ROW_DIGEST, kdf.frame(plan.digest, segment.name.encode())
    )


def digest_rows(
    plan: Plan, segment: TreeSegment, key: bytes, rows: Bytes, tables: list[Bytes]
) -> list[Bytes]:
    """Digests of the row blocks of laid out tables, `[bins or 1, leaves, 16]`; none without tags.

    Args:
        plan: gives the hash seed.
        segment: a retrieving segment.
        key: of `row_key`.
        rows: `[m, row_bytes]`.
        tables: of `tables`, with these rows.
    """
    width = segment.tag_bytes
    if width and not segment.nu:
        return _placed_digests(plan, segment, key, rows, tables)
    by_group = []
    for table in tables:
        blocks = table.reshape(-1, table.shape[2])
        digests = kernels().row_digests(key, blocks, num_threads()) if width else blocks[:, :0]
        by_group.append(digests.reshape(*table.shape[:2], width))
    return by_group


def _placed_digests(
    plan: Plan, segment: TreeSegment, key: bytes, rows: Bytes, tables: list[Bytes]
) -> list[Bytes]:
    """If a block is a row: each row's digest is made once, and brought to the row's place."""
    own: Bytes = kernels().row_digests(key, np.ascontiguousarray(rows), num_threads())
    no_row = kernels().row_digests(key, np.zeros((1, segment.row_bytes), dtype=np.uint8))
    bins = [
        np.broadcast_to(no_row, (*table.shape[:2], segment.tag_bytes)).copy()
        for group, table in zip(segment.groups, tables, strict=True)
        if not group.is_stash
    ]
    lay_out(plan, segment, own, bins)
    return [*bins, own[None]] if segment.stash else bins


@dataclass(frozen=True, slots=True)
class Question:
    """One client's trees of a segment, as one server answers them.

    Attributes:
        key: K_tree.
        key_mac: K_mac of this round.
        roots: `[num_trees, 16]`. Secret.
        trees: the public shares, by group.
    """

    key: bytes
    key_mac: bytes
    roots: Bytes = field(repr=False)
    trees: list[Trees] = field(repr=False)


def answers(
    segment: TreeSegment, questions: Sequence[Question], tables: list[Bytes], digests: list[Bytes]
) -> list[tuple[Bytes, Bytes]]:
    """One server's answers to several clients, from tables and the digests of their rows.

    With tags each part of a table is read once for all of them; without tags they are answered one
    by one.

    Returns:
        For each client `[num_trees, row_bytes << nu]`, and the tags `[num_trees, tag_bytes]`.
    """
    parts: list[list[tuple[Bytes, Bytes]]] = [[] for _ in questions]
    groups = enumerate(zip(split(segment), tables, digests, strict=True))
    for position, ((group, span), table, own_digests) in groups:
        asked = [
            (q.key, q.key_mac, q.roots[span], q.trees[position].cw, q.trees[position].cw_right)
            for q in questions
        ]
        if segment.tag_bytes:
            answered = kernels().authenticate_batch(
                asked, group.num_leaves, table, own_digests, num_threads()
            )
        else:
            no_tags = np.empty((group.num_trees, 0), dtype=np.uint8)
            answered = [
                (kernels().answer(key, *trees, group.num_leaves, table, num_threads()), no_tags)
                for key, _, *trees in asked
            ]
        for own, part in zip(parts, answered, strict=True):
            own.append(part)
    return [
        (np.concatenate([rows for rows, _ in own]), np.concatenate([tags for _, tags in own]))
        for own in parts
    ]


def decode(
    segment: TreeSegment,
    key_mac: bytes,
    key_row: bytes,
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
        key_row: of `row_key`.
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
        own = kernels().row_digests(key_row, rows, num_threads())
        expected = kernels().tags(key_mac, leaves.leaf0, leaves.leaf1, own, num_threads())
        if not kdf.digests_equal(expected.tobytes(), tags.tobytes()):
            raise ProtocolError(
                "a server's answer does not match its tag, so the client uses no retrieved row: "
                "report this to both operators",
                code="tag-mismatch",
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
