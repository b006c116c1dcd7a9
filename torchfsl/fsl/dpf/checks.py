"""The servers' check of a client's trees, for whole segments: at most one leaf a tree differs.

Both servers fold what they see of a report's trees under a key that no client knows and compare 16
bytes. The key comes from coins of both servers that they exchange after the round has closed. For
honest trees the folds are equal, so a server learns nothing from comparing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from torchfsl.crypto import kdf
from torchfsl.fsl.dpf.trees import Trees, split
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.kernels.backends import kernels, num_threads
from torchfsl.submodel.segments import ceil_div
from torchfsl.types import Bytes

LOW_LEAVES: Final = 1024
"""Leaves that share one row of the low table of masks; see `kernels.portable.checks.verify`."""


@dataclass(slots=True)
class FoldMasks:
    """Secret key and masks of one segment in one round. `low`, `high` serve both groups."""

    key: bytes = field(repr=False)
    trees: Bytes = field(repr=False)
    low: Bytes = field(repr=False)
    high: Bytes = field(repr=False)


def fold_masks(segment: TreeSegment, verify_key: bytes) -> FoldMasks:
    """Key, and uniform masks for trees, low and high parts of a leaf's number."""
    name = segment.name.encode()
    most_leaves = max(group.num_leaves for group in segment.groups)
    num_high = ceil_div(most_leaves, LOW_LEAVES)
    key = kdf.derive(verify_key, kdf.LABEL_FOLD, kdf.frame(name, b"key"))
    seed = kdf.derive(verify_key, kdf.LABEL_FOLD, kdf.frame(name, b"masks"))
    blocks = kdf.stream(seed, 16 * (2 * LOW_LEAVES + segment.num_trees + num_high))
    blocks = blocks.reshape(-1, 16)
    low, rest = blocks[: 2 * LOW_LEAVES].reshape(LOW_LEAVES, 2, 16), blocks[2 * LOW_LEAVES :]
    return FoldMasks(key, rest[: segment.num_trees], low, rest[segment.num_trees :])


def fold(
    segment: TreeSegment,
    key: bytes,
    key_check: bytes,
    masks: FoldMasks,
    roots: Bytes,
    trees: list[Trees],
    threads: int = 0,
) -> int:
    """One server's fold over a segment's trees, with K_tree and K_check, in [0, 2**128).

    By `threads` threads, or as many as a kernel may use where that is 0.
    """
    total = 0
    for (group, span), part in zip(split(segment), trees, strict=True):
        folded = kernels().verify(
            key,
            key_check,
            roots[span],
            part.cw,
            part.cw_right,
            group.num_leaves,
            part.check,
            span.start,
            masks.key,
            masks.trees[span],
            masks.low,
            masks.high,
            threads or num_threads(),
        )
        total ^= int.from_bytes(folded, "little")
    return total
