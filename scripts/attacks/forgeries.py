"""The eight classes of forged reports that `attack_reports.py` sends: what each changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scripts.attacks.forged_reports import REFERENCE_HASH, Bytes, Forgery, expand, forge, grow
from torchfsl.crypto.entropy import random_bytes
from torchfsl.kernels.portable import trees as portable_trees


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
