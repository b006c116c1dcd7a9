"""Carry trees: which few values have wrapped, hidden from both servers.

Each of T full-domain trees over the positions of a report's vector carries -1, 0 or 1 at one
position that the client chooses. Its ring has 56 bits, and shares are lifted as those of values
are. An unused tree carries 0 at a random position and looks alike. A slot's value E, summed over
the leaves, is a bounded integer for every choice of the client. The proof bounds sum E**2 by T.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchfsl.crypto.entropy import random_below
from torchfsl.fsl.dpf import trees as dpf
from torchfsl.fsl.dpf.keys import CarryKeys, ReportContext
from torchfsl.fsl.dpf.trees import SelectedLeaves, Trees
from torchfsl.fsl.plan.statement import CARRY_BITS, Statement
from torchfsl.kernels.backends import kernels
from torchfsl.kernels.portable.proofs import HALF, Words, signed, wide
from torchfsl.kernels.portable.trees import bits_of
from torchfsl.types import Bytes, Whole

_WIDTH = CARRY_BITS // 8


def grow(
    statement: Statement, context: ReportContext, seeds: Sequence[bytes], carries: Whole
) -> tuple[list[Trees], Bytes, Whole] | None:
    """Carry trees, their hints `[T, 7 << nu]` and what they sum up to, `int64[T, 2**nu]`.

    Args:
        statement: gives their shape.
        context: of the report; nonce and roots are its own.
        seeds: both master seeds.
        carries: `int64[num_values]`, -1, 0 or 1, at most T of them not 0.

    Returns:
        None if a share of a carry itself has wrapped, as one in 2**56 does: draw the report anew.
    """
    segment = statement.carries
    used = np.flatnonzero(carries)
    alpha = random_below(segment.m, segment.num_trees)
    alpha[: len(used)] = used
    values = np.zeros((segment.num_trees, 1 << segment.nu), dtype=np.uint64)
    slots = (alpha & np.uint64((1 << segment.nu) - 1)).astype(np.int64)
    values[np.arange(len(used)), slots[: len(used)]] = carries[used].astype(np.uint64)
    roots = [context.roots(segment, seed, party) for party, seed in enumerate(seeds)]
    keys = context.carry_keys(segment)
    trees, leaves = dpf.gen(segment, keys.tree, keys.check, roots[0], roots[1], alpha)
    hints = _hints(keys.convert, leaves, values)
    sums = sum(
        _lifts(keys.convert, leaf, hints, party)
        for party, leaf in enumerate((leaves.leaf0, leaves.leaf1))
    )
    if not np.array_equal(np.asarray(sums).astype(np.uint64), values):
        return None
    return trees, _packed(hints), np.asarray(sums)


def evaluate(
    statement: Statement, keys: CarryKeys, roots: Bytes, public: memoryview, party: int
) -> tuple[list[Trees], Whole, list[int]]:
    """One server's carry trees, its shares of what they carry, and of the sums E.

    Args:
        statement: gives their shape.
        keys: of the report's carry trees.
        roots: this server's, `[T, 16]`.
        public: carry trees and hints, the end of a report's public share.
        party: of this server.

    Returns:
        The trees, carried values `int64[num_values]` added over all trees, E by tree and slot.
    """
    segment = statement.carries
    trees = dpf.decode_groups(segment, public, 0)
    hints = np.frombuffer(public[segment.tree_bytes :], np.uint8).reshape(segment.num_trees, -1)
    (part,), active = trees, kernels()
    states = active.tree_eval(keys.tree, roots, part.cw, part.cw_right, part.group.num_leaves)
    carried, halves = active.carry_sums(keys.convert, states, hints, party)
    sums = [(int(high) << HALF) + int(low) for low, high in halves.reshape(-1, 2).tolist()]
    return trees, carried[: statement.num_values], sums


def _hints(key: bytes, leaves: SelectedLeaves, values: Words) -> Words:
    """(-1)**t_1 (beta - Conv(s_0) + Conv(s_1)) in the ring: `uint64[T, slots]`."""
    slots = values.shape[1]
    plain = values - _converted(key, leaves.leaf0, slots) + _converted(key, leaves.leaf1, slots)
    chosen = np.negative(bits_of(leaves.leaf1).astype(np.uint64))[:, None]
    hints: Words = (np.negative(plain) & chosen) | (plain & ~chosen)
    return hints


def _lifts(key: bytes, states: Bytes, hints: Words, party: int) -> Whole:
    """Lifted shares of leaves, `int64[M, slots]`; see `lifts.leaf_lifts`."""
    chosen = np.negative(bits_of(states).astype(np.uint64))[:, None]
    plain = _converted(key, states, hints.shape[1]) + (hints & chosen)
    whole = signed(plain)
    return whole if party == 0 else -whole


def _converted(key: bytes, states: Bytes, slots: int) -> Words:
    data: Bytes = kernels().convert(key, states, slots * _WIDTH)
    return wide(data, slots)


def _packed(values: Words) -> Bytes:
    """`uint64[M, slots]` as `[M, 7 slots]` little-endian bytes."""
    data = np.ascontiguousarray(values, dtype="<u8").view(np.uint8)
    return np.ascontiguousarray(data.reshape(len(values), -1, 8)[..., :_WIDTH]).reshape(
        len(values), -1
    )
