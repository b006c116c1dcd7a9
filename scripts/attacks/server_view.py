"""What one server sees of a client's report, and what may be guessed or counted in it.

`GUESSES` guess the selected position of every tree from one server's key; `FEATURES` give a number
for every bin, occupied or dummy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scripts.attacks.significance import Labels
from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl.client.trees import ClientTrees
from torchfsl.fsl.dpf import trees as dpf
from torchfsl.fsl.dpf.keys import ReportContext
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.suite import CHECK_BYTES, TAG_BYTES
from torchfsl.kernels import ring
from torchfsl.kernels.portable import checks as portable_checks
from torchfsl.kernels.portable import trees as portable_trees
from torchfsl.kernels.portable.trees import Positions
from torchfsl.submodel.segments import TensorSpec

Bytes = npt.NDArray[np.uint8]


DEPTH = 4


def make_plan(m: int, k_max: int, *, retrieve: bool) -> Plan:
    """One verified segment of m rows of one value in bins of 16."""
    segment = TreeSegment(
        "rows", "rows", (TensorSpec("rows", (m, 1)),), m, 1, k_max, num_bins=3 * m // 16, theta=16,
        retrieve=retrieve, check_bytes=CHECK_BYTES, tag_bytes=TAG_BYTES if retrieve else 0,
    )  # fmt: skip
    return Plan(
        session="0" * 32, hash_seed="0" * 64, encoding=FixedPoint(32, 0, 1000.0), max_clients=2,
        segments=(segment,), min_clients=1,
    )  # fmt: skip


@dataclass(frozen=True)
class View:
    """T trees of one report at one server, and the secrets to be found."""

    tree_key: bytes
    convert_key: bytes
    check_key: bytes
    roots: Bytes
    part: dpf.Trees
    hints: Bytes
    position: Positions
    occupied: Labels

    def leaves(self) -> Bytes:
        """This server's states at all leaves: `[T, 16, 16]`."""
        words = self.part.cw, self.part.cw_right
        return portable_trees.tree_eval(self.tree_key, self.roots, *words, 1 << DEPTH)

    def children(self, states: Bytes) -> Bytes:
        """Uncorrected children of states `[T, 16]`: `[T, 2, 16]`."""
        zero = np.zeros((1, len(states), 16), np.uint8), np.zeros((1, len(states)), np.uint8)
        return portable_trees.tree_eval(self.tree_key, states, *zero, 2)


def observe(rng: np.random.Generator, party: int) -> View:
    """A real client's trees and hints of one report, half of the bins occupied."""
    plan = make_plan(528, 50, retrieve=False)
    (segment,) = plan.segments
    trees = ClientTrees(plan, 0, 1)
    report = ReportContext(trees.context, 1, random_bytes(16))
    rows = np.sort(rng.choice(528, size=50, replace=False))
    (part,) = trees.grow(segment, rows, report)
    placement, leaves = trees.selection(segment).placement, trees.selection(segment).leaves
    occupied = placement.item >= 0
    values = np.where(occupied, rng.integers(1, 1000, size=len(occupied)), 0)
    carried = ring.from_int64(values[:, None], 32)
    hints = dpf.gen_hints(segment, report.convert_key(segment), leaves, carried)
    return View(
        trees.context.tree_key(segment), report.convert_key(segment),
        trees.context.check_key(segment), report.roots(segment, trees.master_seeds[party], party),
        part, hints, placement.position, occupied,
    )  # fmt: skip


def guess_by_right_word(view: View) -> Positions:
    """Read the right control corrections as the bits of the position."""
    return _from_bits(view.part.cw_right)


def guess_by_left_word(view: View) -> Positions:
    """Read the left control corrections as the inverted bits."""
    return _from_bits(portable_trees.bits_of(view.part.cw) ^ 1)


def guess_by_own_bits(view: View) -> Positions:
    """Follow this server's own control bits down the tree."""
    bits = portable_trees.bits_of(view.leaves())
    return np.argmax(bits, axis=1).astype(np.uint64)


def guess_by_own_seeds(view: View) -> Positions:
    """At every level leave the child whose seed resembles the correction word most."""
    states, bits = view.roots, []
    for level in range(DEPTH):
        children = view.children(states)
        resembles = np.count_nonzero(children == view.part.cw[level][:, None], axis=2)
        bit = (resembles[:, 0] >= resembles[:, 1]).astype(np.uint8)
        chosen = portable_trees.mask_of(portable_trees.bits_of(states))
        word = view.part.cw[level].copy()
        right_word = (word[:, 0] & 0xFE) | view.part.cw_right[level]
        word[:, 0] = np.where(bit == 1, right_word, word[:, 0])
        states = children[np.arange(len(states)), bit] ^ (word & chosen)
        bits.append(bit)
    return _from_bits(np.array(bits))


def guess_by_hint(view: View) -> Positions:
    """The leaf where the hint is nearest to this server's own share."""
    leaves = view.leaves()
    shares = portable_trees.convert(view.convert_key, leaves.reshape(-1, 16), 4)
    lanes = shares.reshape(*leaves.shape[:2], 4)
    near = [ring.to_int64(f(view.hints[:, None], lanes)) for f in (ring.add, ring.sub)]
    distance = np.minimum(np.abs(near[0]), np.abs(near[1]))
    return np.argmin(distance, axis=1).astype(np.uint64)


def guess_by_check_word(view: View) -> Positions:
    """The leaf whose own hash is nearest to the check word."""
    leaves = view.leaves()
    trees, numbers = np.divmod(np.arange(leaves.shape[0] << DEPTH), 1 << DEPTH)
    hashes = portable_checks.leaf_hash(view.check_key, leaves.reshape(-1, 16), trees, numbers)
    apart = hashes.reshape(*leaves.shape[:2], -1) ^ view.part.check[:, None]
    return np.argmin(np.unpackbits(apart, axis=2).sum(axis=2), axis=1).astype(np.uint64)


def _from_bits(bits: Bytes) -> Positions:
    position = np.zeros(bits.shape[1], dtype=np.uint64)
    for bit in bits:
        position = position << np.uint64(1) | bit
    return position


GUESSES: dict[str, Callable[[View], Positions]] = {
    "right control words": guess_by_right_word,
    "left control words": guess_by_left_word,
    "own control bits": guess_by_own_bits,
    "own seeds": guess_by_own_seeds,
    "hint": guess_by_hint,
    "check word": guess_by_check_word,
}


FEATURES: dict[str, Callable[[View], npt.NDArray[np.generic]]] = {
    "bits of correction words": lambda v: np.unpackbits(v.part.cw, axis=2).sum(axis=(0, 2)),
    "bits of the hint": lambda v: np.unpackbits(v.hints, axis=1).sum(axis=1),
    "size of the hint": lambda v: np.abs(ring.to_int64(v.hints)),
    "zero bytes": lambda v: np.count_nonzero(np.concatenate([v.hints, v.part.check], 1), axis=1),
    "bits of the check word": lambda v: np.unpackbits(v.part.check, axis=1).sum(axis=1),
    **{f"position by {name}": guess for name, guess in GUESSES.items()},
}
