"""Portable kernels of the two checks: verification of trees, authentication of answers.

Verification is that of de Castro, Polychroniadou (Lightweight, maliciously secure verifiable
function secret sharing, 2022), with the control bit inside the hash. A client publishes for every
tree the XOR of both parties' leaf hashes at alpha. Each server corrects its own leaf hashes with
this XOR if their control bit is 1. Then it folds all leaves of all trees into 16 bytes. Equal folds
mean that at most one leaf per tree differs between the servers, whatever the hints carry.

Authentication: both servers' leaf seeds differ at alpha and are equal at all other leaves. So a
keyed hash of the seed is a one-time MAC key that both servers hold in shares. It is for a digest of
the leaf's rows, which is made once per model; see `authenticate`.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from torchfsl.kernels.portable.trees import Positions, bits_of, convert, mask_of, permute, tree_eval
from torchfsl.types import Bytes

_LEAF_KEY_INPUTS = np.zeros((3, 16), dtype=np.uint8)
_LEAF_KEY_INPUTS[:, 0] = range(3)

LOW_LEAVES = 1024
"""Leaves that share a row of `delta_low`; see `verify`."""


def leaf_hash(
    key: bytes, states: Bytes, trees: npt.NDArray[np.integer], leaves: npt.NDArray[np.integer]
) -> Bytes:
    """Leaf hash pi = Hv(j, x, s, t): `[M, 16]` states to `[M, 32]`.

    Let v = s|t, and let the three permutations P_i be AES under K_i = AES_key(i). The tweak is
    tau = leaf x (8 bytes) | tree j (4 bytes) | 0 (4 bytes), little-endian. With q = P_0(v) xor tau,
    a = v xor P_1(q) and b = v xor q xor P_2(a), the hash is a | b.

    The tweak enters only before P_1, so a has a relation. Let A be a state at leaf x, and let
    B = P_0^-1(P_0(A) xor tau_x xor tau_y). Then B at leaf y has the same q as A at x. So the
    parties' states A, B at x and B, A at y have the same XOR of a. There b has the four inputs of
    P_2 in other pairs. These are A xor p, B xor p' at x and B xor p, A xor p' at y. So the XORs of
    b agree with chance 2**-128 only. No relation is known for b, or for a and b together. So the
    check word keeps the 128 bits of b against states with this relation, and all 256 bits against
    others. There is a shorter hash AES(p xor tau_i) xor p with p = AES(v), i = 0, 1. It has a rule
    for both halves (shift p by the difference of the tweaks). With this rule, two leaves under one
    check word cost only 2**64 in a tree of one level.
    """
    keys = permute(key, _LEAF_KEY_INPUTS)
    tweaks = np.zeros_like(states)
    tweaks[:, :8] = np.ascontiguousarray(leaves, dtype="<u8").view(np.uint8).reshape(-1, 8)
    tweaks[:, 8:12] = np.ascontiguousarray(trees, dtype="<u4").view(np.uint8).reshape(-1, 4)
    middle = permute(keys[0].tobytes(), states) ^ tweaks
    first = permute(keys[1].tobytes(), middle) ^ states
    second = permute(keys[2].tobytes(), first) ^ states ^ middle
    return np.concatenate([first, second], axis=1)


def check_gen(
    key: bytes, leaf0: Bytes, leaf1: Bytes, leaf: Positions, first_tree: int, num_threads: int = 1
) -> Bytes:
    """Check words `[T, 32]`: the XOR of both parties' leaf hashes at the selected leaf.

    Args:
        key: K_check, 16 bytes.
        leaf0: `[T, 16]` party 0's states at the selected leaves.
        leaf1: the same for party 1.
        leaf: `uint64[T]`, the selected leaves.
        first_tree: number of the first of these trees in its segment.
        num_threads: for the native twin.
    """
    trees = np.arange(first_tree, first_tree + len(leaf0))
    return leaf_hash(key, leaf0, trees, leaf) ^ leaf_hash(key, leaf1, trees, leaf)


def verify(
    key_tree: bytes,
    key_check: bytes,
    roots: Bytes,
    cw: Bytes,
    cw_right: Bytes,
    num_leaves: int,
    check_words: Bytes,
    first_tree: int,
    key_fold: bytes,
    delta_trees: Bytes,
    delta_low: Bytes,
    delta_high: Bytes,
    num_threads: int = 1,
) -> bytes:
    """Fold the corrected leaf hashes of T trees into 16 bytes.

    c(x) = pi(x) xor t(x) cs has two halves c_0, c_1. The fold is the XOR of
    AES_fold(c_i xor D_j xor E_{x mod 1024, i} xor F_{x div 1024}) over all trees j, leaves x and
    halves i. D, E, F are secret uniform masks of this round, unknown to clients. So any two
    different tables of c have the same fold only with a chance of 4 T N / 2**128. To see this, take
    an input at which the tables differ. It meets each of the other inputs with chance 2**-128,
    since the masks of two places are independent. If it meets none, the outputs cancel with chance
    2**-128.

    Args:
        key_tree: K_tree, 16 bytes.
        key_check: K_check, 16 bytes.
        roots: `[T, 16]` this party's root states.
        cw: `[depth, T, 16]`.
        cw_right: `[depth, T]`.
        num_leaves: N.
        check_words: `[T, 32]`.
        first_tree: number of the first of these trees in its segment.
        key_fold: 16 bytes, secret of the servers.
        delta_trees: D, `[T, 16]`.
        delta_low: E, `[1024, 2, 16]`.
        delta_high: F, `[ceil(N / 1024), 16]`.
        num_threads: for the native twin.

    Returns:
        16 bytes. Law: equal at both parties for honest trees.
    """
    num_trees = len(roots)
    states = tree_eval(key_tree, roots, cw, cw_right, num_leaves).reshape(-1, 16)
    leaves = np.tile(np.arange(num_leaves), num_trees)
    trees = np.repeat(np.arange(num_trees), num_leaves)
    hashes = leaf_hash(key_check, states, trees + first_tree, leaves)
    hashes ^= check_words[trees] & mask_of(bits_of(states))
    masked = hashes.reshape(-1, 2, 16)
    masked ^= delta_low[leaves % LOW_LEAVES]
    masked ^= (delta_trees[trees] ^ delta_high[leaves // LOW_LEAVES])[:, None, :]
    folded: Bytes = np.bitwise_xor.reduce(permute(key_fold, masked).reshape(-1, 16), axis=0)
    return folded.tobytes()


def row_digests(key: bytes, rows: Bytes, num_threads: int = 1) -> Bytes:
    """Digests `[M, 16]` of the rows `[M, R]`: BLAKE2s (RFC 7693) under a key, 16 bytes of digest.

    Args:
        key: 16 bytes, public, but unknown to anybody before the rows were settled: so a row of the
            same digest as a given one is found with chance 2**-128 a try.
        rows: R in [1, 2**24].
        num_threads: for the native twin.
    """
    digests = [hashlib.blake2s(row, digest_size=16, key=key).digest() for row in rows]
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 16).copy()


def authenticate(
    key_tree: bytes,
    key_mac: bytes,
    roots: Bytes,
    cw: Bytes,
    cw_right: Bytes,
    num_leaves: int,
    table: Bytes,
    digests: Bytes,
    num_threads: int = 1,
) -> tuple[Bytes, Bytes]:
    """Answers as `portable.answer` gives them, and their tags: `[T, R]` and `[T, 16]`.

    The tag of tree j is the XOR over its leaves x of k(x) * h(x) in GF(2**128), where k(x) =
    H_mac(s(x)) and h(x) is the digest of the leaf's row block: `digests [T or 1, N, 16]` has those
    of the table. Law: the tags XOR to (k_0 xor k_1)(alpha) * h(alpha), from which `tags` checks the
    row that the answers XOR to. docs/specification/tags.md has the argument.
    """
    num_trees, row_bytes = len(roots), table.shape[2]
    states = tree_eval(key_tree, roots, cw, cw_right, num_leaves)
    answers = np.empty((num_trees, row_bytes), dtype=np.uint8)
    tags = np.empty((num_trees, 16), dtype=np.uint8)
    for tree in range(num_trees):
        own = tree if len(table) > 1 else 0
        answers[tree] = np.bitwise_xor.reduce(table[own] & mask_of(bits_of(states[tree])), axis=0)
        tags[tree] = inner_product(convert(key_mac, states[tree], 16), digests[own])
    return answers, tags


def authenticate_batch(
    requests: list[tuple[bytes, bytes, Bytes, Bytes, Bytes]],
    num_leaves: int,
    table: Bytes,
    digests: Bytes,
    num_threads: int = 1,
) -> list[tuple[Bytes, Bytes]]:
    """`authenticate` for several requests `(key_tree, key_mac, roots, cw, cw_right)`.

    All have one shape. The native twin works through `table` part by part.
    """
    return [authenticate(*request, num_leaves, table, digests) for request in requests]


def tags(key_mac: bytes, leaf0: Bytes, leaf1: Bytes, digests: Bytes, num_threads: int = 1) -> Bytes:
    """Tags `[T, 16]` that honest answers XOR to, from the client's leaves and its rows' digests."""
    secrets = convert(key_mac, leaf0, 16) ^ convert(key_mac, leaf1, 16)
    out = np.empty((len(secrets), 16), dtype=np.uint8)
    for tree in range(len(secrets)):
        out[tree] = inner_product(secrets[tree : tree + 1], digests[tree : tree + 1])
    return out


def inner_product(a: Bytes, b: Bytes) -> Bytes:
    """Sum of a_i * b_i in GF(2**128): `[M, 16]` and `[M, 16]` to `[16]`.

    Bit k of the little-endian integer is the coefficient of x**k; the modulus is
    x**128 + x**7 + x**2 + x + 1.
    """
    # Column k is the sum of the a_i whose b_i has bit k. Eight words at a time: a table of all 256
    # sums of eight a_i, looked up with the eight bits of every column.
    padding = -len(a) % 8
    left = np.concatenate([a, np.zeros((padding, 16), dtype=np.uint8)]).view("<u8")
    right = np.concatenate([b, np.zeros((padding, 16), dtype=np.uint8)])
    columns = np.zeros((128, 2), dtype=np.uint64)
    for start in range(0, len(left), 1 << 13):
        words = left[start : start + (1 << 13)].reshape(-1, 8, 2)
        sums = np.zeros((len(words), 256, 2), dtype=np.uint64)
        for i in range(8):
            sums[:, 1 << i : 2 << i] = sums[:, : 1 << i] ^ words[:, i, None]
        bits = np.unpackbits(right[start : start + (1 << 13)], axis=1, bitorder="little")
        lookup = np.packbits(bits.reshape(-1, 8, 128), axis=1, bitorder="little")[:, 0]
        chosen = sums[np.arange(len(words))[:, None], lookup]
        columns ^= np.bitwise_xor.reduce(chosen, axis=0)
    total = 0
    for k in range(128):
        total ^= (int(columns[k, 0]) | int(columns[k, 1]) << 64) << k
    for k in range(254, 127, -1):
        if total >> k & 1:
            total ^= (1 << k) | (0x87 << (k - 128))
    return np.frombuffer(total.to_bytes(16, "little"), dtype=np.uint8)
