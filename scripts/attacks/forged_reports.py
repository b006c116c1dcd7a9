"""Forged reports: what a malicious client can make, and an exact oracle for what must happen.

A `Forgery` is a report whose every part may be changed before it is framed and committed to. The
oracle expands both keys with the portable reference; `attack_reports.py` has the rule. `CLASSES`
are the eight classes of forgeries that it sends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scripts.parties import plain_plan
from torchfsl.crypto.entropy import random_bytes
from torchfsl.fsl.bodies import Body
from torchfsl.fsl.dpf import trees as dpf
from torchfsl.fsl.dpf.keys import ReportContext, TreeContext
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.suite import CHECK_BYTES
from torchfsl.fsl.uploads import ReportBody, ReportCommit
from torchfsl.kernels import ring
from torchfsl.kernels.portable import checks as portable_checks
from torchfsl.kernels.portable import trees as portable_trees
from torchfsl.submodel.segments import TensorSpec
from torchfsl.types import Bytes

REFERENCE_HASH = portable_checks.leaf_hash
"""Bound at import, so that the oracle stays right when a broken check is put in its place."""


def make_plan(
    m: int, theta: int, nu: int, stash: int, *, max_clients: int = 8, verified: bool = True
) -> Plan:
    """One segment of m scalars in bins of theta, with a stash; with check words if `verified`."""
    tensor = TensorSpec("values", (m,))
    sizes = {"num_bins": 3 * -(-m // theta), "theta": theta, "nu": nu, "stash": stash}
    sizes["check_bytes"] = CHECK_BYTES if verified else 0
    segment = TreeSegment("values", "scalars", (tensor,), m, 1, 2, **sizes)
    return plain_plan(segment, max_clients=max_clients)


PLANS = ((8, 8, 0, 0), (5, 5, 0, 1), (6, 6, 1, 1))
"""(m, theta, nu, stash): a full tree, one with missing leaves, one with blocks of two rows."""


@dataclass
class Forgery:
    """A report of one client, open to every change before it is framed and committed to."""

    plan: Plan
    client: int
    round_number: int
    nonce: bytes
    hint_nonce: bytes
    seeds: list[bytes]
    alpha: npt.NDArray[np.uint64]
    values: Bytes
    trees: list[dpf.Trees]
    hints: Bytes

    @property
    def segment(self) -> TreeSegment:
        """The plan's only segment."""
        return self.plan.segments[0]

    @property
    def context(self) -> ReportContext:
        """Plan, client, round and nonces, to which the report's keys are bound."""
        trees = TreeContext(self.plan, self.round_number, self.client, self.nonce)
        return ReportContext(trees, self.round_number, self.hint_nonce)

    def roots(self, party: int) -> Bytes:
        """Root states of one party, `[num_trees, 16]`."""
        return self.context.roots(self.segment, self.seeds[party], party)

    def messages(self) -> list[tuple[int, bytes]]:
        """Addressee and bytes of what the client sends, everything recomputed."""
        public = b"".join(tree.encode() for tree in self.trees) + self.hints.tobytes()
        party, context, seeds = self.client % 2, self.context, self.seeds
        said, masked = context.commitment(public), context.masked_digest()
        tags = {
            party: context.upload_tag(seeds[party], party, said, masked),
            1 - party: context.upload_tag(seeds[1 - party], 1 - party, said),
        }
        heads = [(self.nonce, seeds[to], self.hint_nonce, tags[to], b"") for to in (0, 1)]
        bodies: dict[int, Body] = {
            party: ReportBody(*heads[party], (public,), ()),
            1 - party: ReportCommit(*heads[1 - party], said),
        }
        return [
            (to, bodies[to].message(self.plan, to, self.round_number, self.client))
            for to in (1 - party, party)
        ]

    def tree(self, number: int) -> tuple[dpf.Trees, int]:
        """The group of tree `number`, and the tree's place in it."""
        for (_, span), part in zip(dpf.split(self.segment), self.trees, strict=True):
            if span.start <= number < span.stop:
                return part, number - span.start
        raise IndexError(number)


def forge(
    plan: Plan,
    client: int,
    round_number: int,
    rng: np.random.Generator,
    seeds: list[bytes] | None = None,
) -> Forgery:
    """An honest report on random positions, about a third of the trees dummies."""
    segment = plan.segments[0]
    domains = np.concatenate([np.full(g.num_trees, g.domain) for g in segment.groups])
    alpha = (rng.integers(1 << 30, size=segment.num_trees) % domains).astype(np.uint64)
    whole = rng.integers(1, 100, size=(segment.num_trees, 1))
    whole[rng.random(segment.num_trees) < 1 / 3] = 0
    nonces, values = (random_bytes(16), random_bytes(16)), ring.from_int64(whole, 32)
    seeds = seeds or [random_bytes(16), random_bytes(16)]
    nothing = np.empty(0, dtype=np.uint8)
    report = Forgery(plan, client, round_number, *nonces, seeds, alpha, values, [], nothing)
    grow(report)
    return report


def grow(report: Forgery) -> None:
    """Honest trees and hints for the report's nonces, seeds, positions and values."""
    segment, context = report.segment, report.context
    keys = context.trees.tree_key(segment), context.trees.check_key(segment)
    trees, leaves = dpf.gen(segment, *keys, report.roots(0), report.roots(1), report.alpha)
    report.trees = [copy_trees(part) for part in trees]
    key = context.convert_key(segment)
    report.hints = dpf.gen_hints(segment, key, leaves, report.values).copy()


def copy_trees(part: dpf.Trees) -> dpf.Trees:
    """The same trees in separate arrays."""
    return dpf.Trees(part.group, part.cw.copy(), part.cw_right.copy(), part.check.copy())


def copy_report(report: Forgery) -> Forgery:
    """The same report in separate arrays."""
    trees = [copy_trees(part) for part in report.trees]
    seeds, hints = list(report.seeds), report.hints.copy()
    return dataclasses.replace(report, seeds=seeds, trees=trees, hints=hints)


# --- the oracle ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expansion:
    """Both parties' states of one group of trees, and the sum of their shares."""

    states: tuple[Bytes, Bytes]
    blocks: Bytes
    first_tree: int
    check: Bytes

    @property
    def differs(self) -> npt.NDArray[np.bool_]:
        """`[T, N]`: where the states differ."""
        return np.any(self.states[0] != self.states[1], axis=2)

    @property
    def carries(self) -> npt.NDArray[np.bool_]:
        """`[T, N]`: where the sum is not zero."""
        return np.any(self.blocks != 0, axis=2)


def expand(report: Forgery) -> list[Expansion]:
    """Expand both keys of a report with the portable reference."""
    segment, context = report.segment, report.context
    key, convert_key = context.trees.tree_key(segment), context.convert_key(segment)
    roots = [report.roots(party) for party in (0, 1)]
    out = []
    for (group, span), part in zip(dpf.split(segment), report.trees, strict=True):
        states, shares = [], []
        for party in (0, 1):
            state = portable_trees.tree_eval(
                key, roots[party][span], part.cw, part.cw_right, group.num_leaves
            )
            share = np.zeros((*state.shape[:2], report.hints.shape[1]), dtype=np.uint8)
            flat = portable_trees.convert(convert_key, state.reshape(-1, 16), share.shape[2])
            lanes = flat.reshape(*share.shape[:2], -1, 4)
            chosen = portable_trees.mask_of(portable_trees.bits_of(state))[..., None]
            hint = report.hints[span].reshape(group.num_trees, 1, -1, 4)
            lanes = ring.add(lanes, hint & chosen)
            states.append(state)
            shares.append(lanes if party == 0 else ring.neg(lanes))
        blocks = ring.add(shares[0], shares[1]).reshape(share.shape)
        out.append(Expansion((states[0], states[1]), blocks, span.start, part.check))
    return out


def is_regular(report: Forgery, parts: Iterable[Expansion]) -> bool:
    """Case 2 of the rule: trees that an honest client could have made."""
    key = report.context.trees.check_key(report.segment)
    for part in parts:
        for tree, leaf in np.argwhere(part.differs):
            if np.count_nonzero(part.differs[tree]) > 1:
                return False
            pair = [state[tree, leaf][None] for state in part.states]
            if not (pair[0][0, 0] ^ pair[1][0, 0]) & 1:
                return False
            where = np.array([part.first_tree + tree]), np.array([leaf])
            word = REFERENCE_HASH(key, pair[0], *where) ^ REFERENCE_HASH(key, pair[1], *where)
            if not np.array_equal(word[0], part.check[tree]):
                return False
    return True


def flip(array: Bytes, rng: np.random.Generator, mask: int = 0xFF) -> None:
    """Flip one to three bits, among those of `mask`, in place."""
    flat = array.reshape(-1)
    bits = [bit for bit in range(8) if mask >> bit & 1]
    for place in rng.choice(len(flat), size=min(len(flat), rng.integers(1, 4)), replace=False):
        flat[place] ^= 1 << rng.choice(bits)


def fit_check_words(report: Forgery) -> None:
    """The best check words for the trees as they are: those of the first leaf that differs."""
    if not report.segment.check_bytes:
        return
    key = report.context.trees.check_key(report.segment)
    for part, group in zip(expand(report), report.trees, strict=True):
        for tree, differs in enumerate(part.differs):
            if differs.any():
                leaf = int(np.argmax(differs))
                where = np.array([part.first_tree + tree]), np.array([leaf])
                words = [REFERENCE_HASH(key, s[tree, leaf][None], *where) for s in part.states]
                group.check[tree] = words[0][0] ^ words[1][0]


def flip_seeds(report: Forgery, rng: np.random.Generator) -> None:
    """One server gets a master seed of which some bits are flipped."""
    party = int(rng.integers(2))
    seed = np.frombuffer(report.seeds[party], dtype=np.uint8).copy()
    flip(seed, rng)
    report.seeds[party] = seed.tobytes()


def flip_control_bits(report: Forgery, rng: np.random.Generator) -> None:
    """Some left or right control correction of one tree is flipped."""
    part, tree = report.tree(int(rng.integers(report.segment.num_trees)))
    for _ in range(int(rng.integers(1, 3))):
        level = int(rng.integers(part.group.depth))
        if rng.integers(2):
            part.cw[level, tree, 0] ^= 1
        else:
            part.cw_right[level, tree] ^= 1


def flip_correction_words(report: Forgery, rng: np.random.Generator) -> None:
    """Some seed correction of one tree is flipped."""
    part, tree = report.tree(int(rng.integers(report.segment.num_trees)))
    level = int(rng.integers(part.group.depth))
    word = part.cw[level, tree].copy()
    flip(word[1:], rng)
    part.cw[level, tree] = word


def flip_check_words(report: Forgery, rng: np.random.Generator) -> None:
    """Bits of some check word are flipped."""
    part, tree = report.tree(int(rng.integers(report.segment.num_trees)))
    flip(part.check[tree], rng)


def flip_hints(report: Forgery, rng: np.random.Generator) -> None:
    """Bits of some hints are flipped."""
    flip(report.hints, rng)


def merge_keys(report: Forgery, rng: np.random.Generator) -> None:
    """Two honest reports put together: upper levels of one, lower levels of the other.

    Their master seeds are equal, or equal at one server only.
    """
    seeds = list(report.seeds)
    if rng.random() < 1 / 4:
        seeds[int(rng.integers(2))] = random_bytes(16)
    other = forge(report.plan, report.client, report.round_number, rng, seeds)
    other.nonce, other.hint_nonce = report.nonce, report.hint_nonce
    grow(other)
    for mine, theirs in zip(report.trees, other.trees, strict=True):
        for tree in range(mine.group.num_trees):
            level = int(rng.integers(mine.group.depth + 1))
            mine.cw[level:, tree] = theirs.cw[level:, tree]
            mine.cw_right[level:, tree] = theirs.cw_right[level:, tree]
            if rng.integers(2):
                mine.check[tree] = theirs.check[tree]
    if rng.integers(2):
        fit_check_words(report)


def select_two_points(report: Forgery, rng: np.random.Generator) -> None:
    """In one tree both children of the last node on the path stay apart, control bits too."""
    number = int(rng.integers(report.segment.num_trees))
    part, tree = report.tree(number)
    last = part.group.depth - 1
    node = int(report.alpha[number]) >> report.segment.nu >> 1
    key = report.context.trees.tree_key(report.segment)
    bits = []
    for party in (0, 1):
        one = report.roots(party)[number][None]
        words = part.cw[:last, [tree]], part.cw_right[:last, [tree]]
        parent = portable_trees.tree_eval(key, one, *words, 1 << last)[:, node]
        clear = np.zeros((2, 1, 16), dtype=np.uint8), np.zeros((2, 1), dtype=np.uint8)
        children = portable_trees.tree_eval(key, parent, clear[0][:1], clear[1][:1], 2)
        bits.append(portable_trees.bits_of(children)[0])
    word = np.frombuffer(random_bytes(16), dtype=np.uint8).copy()
    word[0] = (word[0] & 0xFE) | (bits[0][0] ^ bits[1][0] ^ 1)
    part.cw[last, tree] = word
    part.cw_right[last, tree] = bits[0][1] ^ bits[1][1] ^ 1
    if rng.random() < 3 / 4:
        fit_check_words(report)


def equal_roots(report: Forgery, rng: np.random.Generator) -> None:
    """Equal seeds at both servers; corrections keep the control bits of every leaf apart."""
    report.seeds[1] = report.seeds[0]
    for part in report.trees:
        part.cw[...] = 0
        part.cw[..., 0] = 1
        part.cw_right[...] = 1
        part.check[...] = 0
    report.hints[...] = np.frombuffer(random_bytes(report.hints.size), np.uint8).reshape(
        report.hints.shape
    )
    if rng.random() < 1 / 8:
        report.hints[...] = 0
    if rng.random() < 1 / 4:
        fit_check_words(report)


CLASSES: dict[str, Callable[[Forgery, np.random.Generator], None]] = {
    "seeds": flip_seeds,
    "control_bits": flip_control_bits,
    "correction_words": flip_correction_words,
    "check_words": flip_check_words,
    "hints": flip_hints,
    "merged_keys": merge_keys,
    "two_points": select_two_points,
    "equal_roots": equal_roots,
}

RECOMPUTES_CHECK = ("control_bits", "correction_words")
"""Classes in which half of the attackers also fit the check words to what they made."""
