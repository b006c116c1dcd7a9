"""Clients and servers with planted faults, for `distinguish.py` to find. Never use them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from unittest import mock

import numpy as np
import numpy.typing as npt

from torchfsl.fsl.client import trees as client_trees
from torchfsl.kernels import portable
from torchfsl.kernels.portable import trees as portable_trees
from torchfsl.kernels.portable.trees import Positions

Bytes = npt.NDArray[np.uint8]


def unmasked_bits(
    key: bytes, roots0: Bytes, roots1: Bytes, alpha: Positions, depth: int, num_threads: int = 1
) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Trees whose control corrections are the bits of alpha themselves."""
    cw, cw_right, leaf0, leaf1 = portable_trees.tree_gen(key, roots0, roots1, alpha, depth)
    for level in range(depth):
        bit = (alpha >> np.uint64(depth - 1 - level) & np.uint64(1)).astype(np.uint8)
        cw[level, :, 0] = (cw[level, :, 0] & 0xFE) | (bit ^ 1)
        cw_right[level] = bit
    return cw, cw_right, leaf0, leaf1


def short_masks(
    key: bytes, roots0: Bytes, roots1: Bytes, alpha: Positions, depth: int, num_threads: int = 1
) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Trees of which party 1's expansion has four bytes: they hide party 0's seeds badly."""
    hashed = portable_trees.mmo_hash
    calls = iter(range(1 << 30))

    def weak(key: bytes, blocks: Bytes) -> Bytes:
        out = hashed(key, blocks).copy()
        if next(calls) % 4 >= 2:  # party 0 left, right, party 1 left, right
            out[..., 4:] = 0
        return out

    with mock.patch.object(portable_trees, "mmo_hash", weak):
        return portable_trees.tree_gen(key, roots0, roots1, alpha, depth)


@contextlib.contextmanager
def planted(*faults: str) -> Iterator[None]:
    """Our client with these faults, on the portable kernels."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {"TORCHFSL_BACKEND": "portable"}))
        if "unmasked control bits" in faults:
            stack.enter_context(mock.patch.object(portable, "tree_gen", unmasked_bits))
        if "32-bit masks" in faults:
            stack.enter_context(mock.patch.object(portable, "tree_gen", short_masks))
        if "dummies at position 0" in faults:
            zeros = lambda bound, count: np.zeros(count, dtype=np.uint64)  # noqa: E731
            stack.enter_context(mock.patch.object(client_trees, "random_below", zeros))
        if "dummies without hints" in faults or "empty bins are skipped" in faults:
            stack.enter_context(mock.patch.object(portable, "hint_gen", hints_for_values_only))
        if "empty bins are skipped" in faults:
            stack.enter_context(mock.patch.object(portable, "accumulate", skip_empty))
        yield


def hints_for_values_only(
    key: bytes, leaf0: Bytes, leaf1: Bytes, values: Bytes, slots: Positions, nu: int, width: int,
    num_threads: int = 1,
) -> Bytes:  # fmt: skip
    """Hints that stay zero where there is nothing to carry."""
    hints = portable_trees.hint_gen(key, leaf0, leaf1, values, slots, nu, width)
    hints[~np.any(values, axis=1)] = 0
    return hints


def skip_empty(
    key_tree: bytes, key_convert: bytes, roots: Bytes, cw: Bytes, cw_right: Bytes,
    num_leaves: int, hints: Bytes, party: int, width: int, acc: Bytes, num_threads: int = 1,
) -> None:  # fmt: skip
    """A server that saves the work for zero hints."""
    used = np.any(hints, axis=1)
    if used.any():
        part = np.ascontiguousarray(acc[used])
        portable_trees.accumulate(
            key_tree, key_convert, roots[used], cw[:, used], cw_right[:, used], num_leaves,
            hints[used], party, width, part,
        )  # fmt: skip
        acc[used] = part
