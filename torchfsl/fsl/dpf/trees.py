"""Distributed point functions as a tree and its hints, for whole segments at once.

A *tree* hides which position alpha is selected in every bin; a *hint* hides the value there. One
tree serves retrieval (`psr`) and any number of hints (`ssa`). This file gives the kernels of the
active backend the shape of a segment: its bins and, as a second group of deeper trees, its stash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from torchfsl.errors import DecodeError
from torchfsl.fsl.plan.layout import TreeGroup, TreeSegment
from torchfsl.kernels.backends import kernels, num_threads
from torchfsl.submodel.segments import ceil_div
from torchfsl.types import Bytes

Positions = npt.NDArray[np.uint64]


@dataclass(slots=True)
class Trees:
    """Public share of a group's trees.

    `cw [depth, T, 16]`, `cw_right [depth, T]` (0 or 1), `check [T, check_bytes]`.
    """

    group: TreeGroup
    cw: Bytes
    cw_right: Bytes
    check: Bytes

    def encode(self) -> bytes:
        """`cw` level by level, `cw_right` as packed bits (lowest first), then the check words."""
        return b"".join(self.pieces())

    def pieces(self) -> list[memoryview]:
        """The encoding in order, in three pieces; the first and the last are views."""
        packed = np.packbits(self.cw_right.reshape(-1), bitorder="little")
        return [bytes_of(array) for array in (self.cw, packed, self.check)]

    @staticmethod
    def check_encoding(group: TreeGroup, data: memoryview) -> tuple[int, int]:
        """Number of control corrections, and where their packed bits end.

        Raises:
            DecodeError: see `decode`.
        """
        if len(data) != group.tree_bytes:
            raise DecodeError(f"trees of {len(data)} bytes, expected {group.tree_bytes}")
        num_bits = group.depth * group.num_trees
        end = 16 * num_bits + ceil_div(num_bits, 8)
        if num_bits % 8 and data[end - 1] >> (num_bits % 8):
            raise DecodeError("expected the padding bits of the control corrections to be zero")
        return num_bits, end

    @classmethod
    def decode(cls, group: TreeGroup, data: memoryview) -> Trees:
        """Inverse of `encode`; `data` has exactly `group.tree_bytes` bytes.

        Raises:
            DecodeError: wrong length, or padding bits that are not zero.
        """
        num_bits, end = cls.check_encoding(group, data)
        all_bytes = np.frombuffer(data, dtype=np.uint8)
        packed = all_bytes[16 * num_bits : end]
        bits = np.unpackbits(packed, count=num_bits, bitorder="little")
        return cls(
            group,
            all_bytes[: 16 * num_bits].reshape(group.depth, group.num_trees, 16),
            bits.reshape(group.depth, group.num_trees),
            all_bytes[end:].reshape(group.num_trees, group.check_bytes),
        )


def bytes_of(array: Bytes) -> memoryview:
    """The bytes of `uint8` of any shape in C order, as a message takes them.

    A view of the array, if it lies in that order: to be used before the array changes.
    """
    assert array.dtype == np.uint8  # so that the view's length is in bytes
    return np.ascontiguousarray(array).reshape(-1).data


@dataclass(frozen=True, slots=True)
class SelectedLeaves:
    """Both parties' states at the selected leaves, and the slot inside each leaf block. Secret.

    `leaf0`, `leaf1`: `[num_trees, 16]`; `slots`: `uint64[num_trees]` in [0, 2**nu).
    """

    leaf0: Bytes = field(repr=False)
    leaf1: Bytes = field(repr=False)
    slots: Positions = field(repr=False)


def split(segment: TreeSegment) -> Iterator[tuple[TreeGroup, slice]]:
    """The segment's groups, each with its range of trees."""
    start = 0
    for group in segment.groups:
        yield group, slice(start, start + group.num_trees)
        start += group.num_trees


def decode_trees(
    segments: Sequence[TreeSegment], public: bytes | memoryview
) -> dict[str, list[Trees]]:
    """Trees of the segments in order, from the start of a public share.

    Raises:
        DecodeError: see `Trees.decode`.
    """
    view, start = memoryview(public), 0
    trees: dict[str, list[Trees]] = {}
    for segment in segments:
        trees[segment.name] = decode_groups(segment, view, start)
        start += segment.tree_bytes
    return trees


def decode_groups(segment: TreeSegment, view: memoryview, start: int) -> list[Trees]:
    """Trees of one segment's groups, which begin at `start`.

    Raises:
        DecodeError: see `Trees.decode`.
    """
    trees = []
    for group in segment.groups:
        end = start + group.tree_bytes
        trees.append(Trees.decode(group, view[start:end]))
        start = end
    return trees


def check_trees(segments: Sequence[TreeSegment], public: bytes | memoryview) -> None:
    """Whether `decode_trees` would decode them.

    Raises:
        DecodeError: see `Trees.decode`.
    """
    view, start = memoryview(public), 0
    for segment in segments:
        for group, _ in split(segment):
            Trees.check_encoding(group, view[start : start + group.tree_bytes])
            start += group.tree_bytes


def gen(
    segment: TreeSegment,
    key: bytes,
    key_check: bytes,
    roots0: Bytes,
    roots1: Bytes,
    alpha: Positions,
) -> tuple[list[Trees], SelectedLeaves]:
    """Trees that select position `alpha[j]` of tree j's domain (bins, then stash).

    Args:
        segment: gives the groups.
        key: K_tree.
        key_check: K_check, for the check words if the segment has any; else not read.
        roots0: `[num_trees, 16]`, party 0's root states.
        roots1: the same for party 1.
        alpha: `uint64[num_trees]`, below theta for bins and below m for the stash.
    """
    active, threads = kernels(), num_threads()
    trees, leaves0, leaves1 = [], [], []
    leaf, slots = alpha >> np.uint64(segment.nu), alpha & np.uint64((1 << segment.nu) - 1)
    for group, span in split(segment):
        cw, cw_right, leaf0, leaf1 = active.tree_gen(
            key, roots0[span], roots1[span], leaf[span], group.depth, threads
        )
        check = np.empty((group.num_trees, 0), dtype=np.uint8)
        if group.check_bytes:
            check = active.check_gen(key_check, leaf0, leaf1, leaf[span], span.start, threads)
        trees.append(Trees(group, cw, cw_right, check))
        leaves0.append(leaf0)
        leaves1.append(leaf1)
    return trees, SelectedLeaves(np.concatenate(leaves0), np.concatenate(leaves1), slots)


def gen_hints(segment: TreeSegment, key: bytes, leaves: SelectedLeaves, values: Bytes) -> Bytes:
    """Hints `[num_trees, (W/8) << nu]` that carry `values [num_trees, values a row, l/8]`."""
    num_trees, _, width = values.shape
    hints: Bytes = kernels().hint_gen(
        key,
        leaves.leaf0,
        leaves.leaf1,
        np.ascontiguousarray(values.reshape(num_trees, -1)),
        leaves.slots,
        segment.nu,
        width,
        num_threads(),
    )
    return hints
