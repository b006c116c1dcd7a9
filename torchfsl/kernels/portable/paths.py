"""Portable kernel of one path through each tree, with the comparison that it gives.

The same trees as in `trees`: here one leaf of each is looked up, not all of them expanded.
"""

from __future__ import annotations

import numpy as np

from torchfsl.kernels.portable.trees import Positions, bits_of, mask_of, mmo_hash
from torchfsl.types import Bytes


def tree_path(
    key: bytes, roots: Bytes, cw: Bytes, cw_right: Bytes, x: Positions, num_threads: int = 1
) -> tuple[Bytes, Bytes]:
    """One party's states at one leaf of each tree, and its shares of a comparison.

    Args:
        key: K_tree, 16 bytes.
        roots: `[T, 16]`.
        cw: `[d, T, 16]` from `tree_gen`.
        cw_right: `[d, T]`.
        x: `uint64[T]`, a leaf of each tree, in [0, 2**d). Public: the path is chosen by it.
        num_threads: for the native twin.

    Returns:
        states `[T, 16]` and bits `[T]`. Law: the XOR of both parties' bits is [x < alpha].
    """
    depth = len(cw)
    states = roots.copy()
    smaller = np.zeros(len(roots), dtype=np.uint8)
    for level in range(depth):
        right = ((x >> np.uint64(depth - 1 - level)) & np.uint64(1)).astype(np.uint8)
        before = bits_of(states)
        seeds = states.copy()
        seeds[:, 0] = (seeds[:, 0] & 0xFE) | right
        word = cw[level].copy()
        word[:, 0] = (word[:, 0] & 0xFE) | np.where(right, cw_right[level], word[:, 0] & 1)
        states = mmo_hash(key, seeds) ^ (word & mask_of(before))
        smaller ^= (before ^ bits_of(states)) & (right ^ 1)
    return states, smaller
