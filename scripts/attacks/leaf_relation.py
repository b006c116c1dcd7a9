"""Two leaves of a tree under one check word, by the relation that the leaf hash has in one half.

A client who could choose the states of a tree would take any A, and B = P_0^-1(P_0(A) xor tau_x xor
tau_y) for two leaves x and y. With A and B at x for the two parties, and B and A at y, the first
halves of the check words agree. `play` hands the attacker these states, which it would have
to grind for, and asks the servers' fold. With only that half in use, both leaves pass under one
check word; the second half, for which no relation is known, refuses them.
"""

from __future__ import annotations

from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from scripts.attacks.result import AttackResult
from torchfsl.crypto import kdf
from torchfsl.fsl.dpf import checks
from torchfsl.fsl.suite import CHECK_BYTES
from torchfsl.kernels.portable import checks as portable_checks
from torchfsl.kernels.portable.trees import bits_of, permute
from torchfsl.types import Bytes, Indices

KEY = bytes(range(16))
TREE, LEFT, RIGHT = 5, 0, 1
LEAF_HASH = portable_checks.leaf_hash
"""Bound at import, since `play` puts another one in its place."""


def inverse(key: bytes, blocks: Bytes) -> Bytes:
    """AES decryption, which anyone can do: the key is public."""
    decryptor = Cipher(algorithms.AES128(key), modes.ECB()).decryptor()  # noqa: S305
    return np.frombuffer(decryptor.update(blocks.tobytes()), np.uint8).reshape(blocks.shape)


def tweak(leaf: int, half: int = 0) -> Bytes:
    """Encoding of a hash's place: leaf, tree and half."""
    out = np.zeros(16, dtype=np.uint8)
    out[0], out[8], out[12] = leaf, TREE, half
    return out


def related(states: Bytes) -> Bytes:
    """B for each A: `[M, 16]` to `[M, 16]`, its own inverse."""
    first = permute(KEY, portable_checks._LEAF_KEY_INPUTS)[0].tobytes()
    return inverse(first, permute(first, states) ^ tweak(LEFT) ^ tweak(RIGHT))


def first_half(key: bytes, states: Bytes, trees: Indices, leaves: Indices) -> Bytes:
    """The leaf hash with its first half in the place of both."""
    half = LEAF_HASH(key, states, trees, leaves)[:, :16]
    return np.concatenate([half, half], axis=1)


def check_words(leaf_hash: object, mine: Bytes, theirs: Bytes, leaf: int) -> Bytes:
    """Check words `[M, 32]` of states `[M, 16]` of both parties at a leaf."""
    where = np.full(len(mine), TREE), np.full(len(mine), leaf)
    return leaf_hash(KEY, mine, *where) ^ leaf_hash(KEY, theirs, *where)  # type: ignore[operator]


def passes(leaf_hash: object, party0: Bytes, party1: Bytes) -> bool:
    """Whether states `[2, 16]` at both leaves pass the servers' check under the left one's word."""
    check = check_words(leaf_hash, party0[:1], party1[:1], LEFT)
    masks = kdf.stream(KEY, 16 * (2 * checks.LOW_LEAVES + 2)).reshape(-1, 16)
    low = masks[2:].reshape(checks.LOW_LEAVES, 2, 16)
    nothing = np.empty((1, 1, 16), dtype=np.uint8), np.empty((1, 1), dtype=np.uint8)

    def fold(states: Bytes) -> bytes:
        return portable_checks.verify(
            KEY, KEY, states[None], *nothing, 2, check, TREE, bytes(16), masks[:1], low, masks[1:2]
        )

    with (
        mock.patch.object(portable_checks, "leaf_hash", leaf_hash),
        mock.patch.object(portable_checks, "tree_eval", lambda key, roots, *rest: roots),
    ):
        return fold(party0) == fold(party1)


def play(leaf_hash: object) -> bool:
    """Whether a tree with A, B at one leaf and B, A at the other is accepted."""
    rng = np.random.default_rng(2)
    while True:  # control bits must differ: one try in two
        mine = rng.integers(256, size=(1, 16), dtype=np.uint8)
        theirs = related(mine)
        if np.all(bits_of(mine) != bits_of(theirs)):
            break
    return passes(leaf_hash, np.concatenate([mine, theirs]), np.concatenate([theirs, mine]))


def leaf_relation() -> AttackResult:
    """Once with half of the hash, once with the hash."""
    off, on = play(first_half), play(LEAF_HASH)
    verdict = {True: "a tree that writes to two leaves is accepted", False: "refused"}
    return AttackResult(
        name="two leaves under one check word",
        off=verdict[off],
        on=verdict[on],
        worked_off=off,
        worked_on=on,
        extra_bytes=CHECK_BYTES // 2,
        cost="part of the check of trees",
    )
