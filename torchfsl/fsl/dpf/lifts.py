"""Ring shares read as signed integers, which add up to the value, except for wraps.

Party 0 lifts a share into [-h, h), party 1 into (-h, h], with h = 2**(l - 1). A share and its
negative then become integers that cancel exactly: off alpha, and for every value 0. A value x of
|x| < h wraps for exactly |x| of the 2**l shares. The sum is then x + 2**l or x - 2**l.

The integers of a tree are added, leaf by leaf, so that a tree's sum is the lift at alpha alone. If
sums were modulo 2**l, a client could not tell from its two states whether the sum has wrapped. Sums
may exceed 64 bits, so functions return them in parts, `(int64 array, scale)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from torchfsl.fsl.dpf.ssa import Contribution
from torchfsl.fsl.dpf.trees import Trees, split
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.kernels import ring
from torchfsl.kernels.backends import kernels, num_threads
from torchfsl.kernels.portable.proofs import HALF
from torchfsl.kernels.portable.trees import bits_of, mask_of
from torchfsl.types import Bytes, Whole

SCALES: Final = (1, 1 << HALF)
"""Of the two parts of a sum over leaves."""

_CHUNK_BYTES: Final = 1 << 20
"""Leaf states that are held at once."""


def lift(shares: Bytes, party: int) -> Whole:
    """Shares `[..., l/8]` of values as integers in the party's range, for l up to 64."""
    whole = ring.to_int64(shares if party == 0 else ring.neg(shares))
    return whole if party == 0 else -whole


def leaf_lifts(key: bytes, states: Bytes, hints: Bytes, width: int, party: int) -> Whole:
    """The lifted shares of leaves: `[M, values]`.

    Args:
        key: K_conv.
        states: `[M, 16]`.
        hints: `[M or 1, values * width]`; only so many bytes of every leaf are converted.
        width: l/8.
        party: 0 or 1.
    """
    size = hints.shape[1]
    own: Bytes = kernels().convert(key, states, size)
    shape = len(states), size // width, width
    chosen = mask_of(bits_of(states))[:, :, None]
    plain = ring.add(own.reshape(shape), hints.reshape(-1, *shape[1:]) & chosen)
    # -(y) of party 1 lies in (-h, h] where y of party 0 lies in [-h, h): both lift y itself.
    whole = ring.to_int64(plain)
    return whole if party == 0 else -whole


def tree_sums(
    segment: TreeSegment, given: Contribution, width: int, values: int, party: int, threads: int = 0
) -> tuple[Whole, Whole]:
    """One party's lifted shares summed over the leaves of every tree: `[num_trees, values]` twice.

    Args:
        segment: a tree segment.
        given: keys, roots, trees and hints.
        width: l/8.
        values: how many values of each leaf, from the first on.
        party: 0 or 1.
        threads: how many work on it; 0 for as many as a kernel may use.

    Returns:
        Low and high parts, see `SCALES`.
    """
    out = np.empty((2, segment.num_trees, values), dtype=np.int64)
    hints = np.ascontiguousarray(given.hints[:, : values * width])
    key, threads = given.key_convert, threads or num_threads()
    for (group, span), trees in zip(split(segment), given.trees, strict=True):
        for part in _pieces(span, max(1, _CHUNK_BYTES // (group.num_leaves * 16))):
            inside = slice(part.start - span.start, part.stop - span.start)
            states = _states(given, trees, part, inside, threads)
            out[:, part] = kernels().leaf_sums(key, states, hints[part], width, party, threads)
    return out[0], out[1]


def _pieces(span: slice, step: int) -> Iterator[slice]:
    for start in range(span.start, span.stop, step):
        yield slice(start, min(start + step, span.stop))


def _states(given: Contribution, trees: Trees, part: slice, inside: slice, threads: int) -> Bytes:
    """Leaf states of some trees of a group, `[trees, leaves, 16]`."""
    states: Bytes = kernels().tree_eval(
        given.key_tree,
        np.ascontiguousarray(given.roots[part]),
        np.ascontiguousarray(trees.cw[:, inside]),
        np.ascontiguousarray(trees.cw_right[:, inside]),
        trees.group.num_leaves,
        threads,
    )
    return states
