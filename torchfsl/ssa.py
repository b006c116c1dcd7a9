"""Secure submodel aggregation: values into hints at the client, sums over clients at a server.

A server adds every client's output shares into one accumulator in bin layout and gathers only
once, after the last client: out[x] is the sum over x's three bins and the stash. Shares in bin
layout never leave a server, since they would show where cuckoo hashing placed rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from torchfsl import cuckoo, ring
from torchfsl.backends import kernels, num_threads
from torchfsl.cuckoo import Placement
from torchfsl.dpf import Trees, split
from torchfsl.plan import Plan, Segment

Bytes = npt.NDArray[np.uint8]
Whole = npt.NDArray[np.int64]


def tree_values(
    plan: Plan, segment: Segment, placement: Placement, values: Whole, lane: Whole
) -> Bytes:
    """What each tree carries: `[num_trees, tau + lanes, l/8]`, zero for dummies.

    Args:
        plan: gives encoding and lane.
        segment: a tree segment.
        placement: which item each tree holds.
        values: `int64[k, tau]` in item order.
        lane: `int64[k]`, the items' count or weight lane, put before the other values; ignored
            without one.
    """
    carried = np.zeros((segment.num_trees, segment.tau + plan.lanes), dtype=np.int64)
    used = np.flatnonzero(placement.item >= 0)
    carried[used, plan.lanes :] = values[placement.item[used]]
    if plan.lanes:
        carried[used, 0] = lane[placement.item[used]]
    return ring.from_int64(carried, plan.encoding.ring_bits)


class Accumulator:
    """One server's running sum of one tree segment, over clients, in bin layout.

    Memory: 3 m W/8 bytes for the bins and m W/8 for the stash, W/8 = `plan.value_bytes`.
    """

    def __init__(self, plan: Plan, segment: Segment, party: int) -> None:
        """Start at zero."""
        self._plan, self._segment, self._party = plan, segment, party
        self._width = plan.encoding.ring_bits // 8
        payload = plan.value_bytes(segment) << segment.nu
        self._sums = [
            np.zeros(
                (1 if group.is_stash else group.num_trees, group.num_leaves, payload), np.uint8
            )
            for group, _ in split(segment)
        ]

    def add(
        self, key_tree: bytes, key_convert: bytes, roots: Bytes, trees: list[Trees], hints: Bytes
    ) -> None:
        """Add one client's report: `roots [num_trees, 16]`, `hints [num_trees, W/8 << nu]`."""
        for (group, span), part, total in zip(split(self._segment), trees, self._sums, strict=True):
            steps = [slice(None)]
            if group.is_stash:  # all of whose trees share one sum
                steps = [slice(i, i + 1) for i in range(group.num_trees)]
            for step in steps:
                kernels().accumulate(
                    key_tree,
                    key_convert,
                    np.ascontiguousarray(roots[span][step]),
                    np.ascontiguousarray(part.cw[:, step]),
                    np.ascontiguousarray(part.cw_right[:, step]),
                    group.num_leaves,
                    np.ascontiguousarray(hints[span][step]),
                    self._party,
                    self._width,
                    total,
                    num_threads(),
                )

    def gather(self) -> Bytes:
        """This server's share of the sum, in index order: `[m, W/8]`."""
        segment, row = self._segment, self._plan.value_bytes(self._segment)
        out = np.zeros((segment.m, row), dtype=np.uint8)
        for (group, _), total in zip(split(segment), self._sums, strict=True):
            flat = total.reshape(-1, row)
            if not group.is_stash:
                seed = bytes.fromhex(self._plan.hash_seed)
                permuted = cuckoo.permutations(seed, segment.name, segment.m)
                slots = cuckoo.bin_slots(permuted, segment.theta, group.num_leaves << group.nu)
                kernels().gather(flat, slots, out, self._width, num_threads())
            else:
                lanes = out.reshape(segment.m, -1, self._width)
                extra = flat[: segment.m].reshape(segment.m, -1, self._width)
                lanes[...] = ring.add(lanes, extra)
        return out
