"""Portable kernels of the point function: trees, hints, sums, answers.

A *state* is 16 bytes: a seed whose lowest bit (bit 0 of byte 0) is replaced by the control bit.
All arrays are `uint8`, C-contiguous. T trees have d levels and N leaves, d = ceil(log2 N), with
P payload bytes per leaf. A leaf stands for a block of 2**nu rows (early termination).

The tree is BGI16 (Boyle, Gilboa, Ishai: Function Secret Sharing, improvements and extensions,
Fig. 1) with the last correction word kept apart as the *hint*. The hash is the fixed-key hash of
the VDAF draft's XofFixedKeyAes128. The native backend produces the same bytes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from torchfsl.kernels import ring
from torchfsl.types import Bytes

Positions = npt.NDArray[np.uint64]

BIT_ROWS: Final = 128
"""Rows whose bits one leaf gives in `answer_bits`."""


def permute(key: bytes, blocks: Bytes) -> Bytes:
    """AES_key on every block, `[..., 16]`: here a public permutation, not a cipher."""
    encryptor = Cipher(algorithms.AES128(key), modes.ECB()).encryptor()  # noqa: S305
    image = np.frombuffer(encryptor.update(blocks.tobytes()), dtype=np.uint8)
    return image.reshape(blocks.shape)


def mmo_hash(key: bytes, blocks: Bytes) -> Bytes:
    """H(x) = AES_key(sigma(x)) xor sigma(x) with sigma(lo || hi) = hi || (hi xor lo).

    Args:
        key: 16 bytes, public.
        blocks: `[..., 16]`.
    """
    sigma = np.empty_like(blocks)
    sigma[..., :8] = blocks[..., 8:]
    sigma[..., 8:] = blocks[..., 8:] ^ blocks[..., :8]
    return permute(key, sigma) ^ sigma


def _seed(states: Bytes) -> Bytes:
    seeds = states.copy()
    seeds[..., 0] &= 0xFE
    return seeds


def bits_of(states: Bytes) -> Bytes:
    """Control bits of states `[..., 16]`: `[...]`, 0 or 1."""
    return states[..., 0] & np.uint8(1)


def _children(key: bytes, states: Bytes) -> tuple[Bytes, Bytes]:
    """Uncorrected left and right children: H(s) and H(s xor 1), control bit in the lowest bit."""
    left = _seed(states)
    right = left.copy()
    right[..., 0] ^= 1
    return mmo_hash(key, left), mmo_hash(key, right)


def mask_of(bits: Bytes) -> Bytes:
    """0x00 or 0xFF for every control bit, ready to select whole blocks: `[..., 1]`."""
    return np.asarray(np.negative(bits), dtype=np.uint8)[..., None]


def tree_gen(
    key: bytes, roots0: Bytes, roots1: Bytes, alpha: Positions, depth: int, num_threads: int = 1
) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Generate T trees at once.

    Args:
        key: K_tree, 16 bytes.
        roots0: `[T, 16]` root states of party 0, control bit 0.
        roots1: `[T, 16]` root states of party 1, control bit 1.
        alpha: `uint64[T]`, the selected leaf, in [0, 2**depth).
        depth: number of levels.
        num_threads: for the native twin.

    Returns:
        `cw [depth, T, 16]` (seed correction with the left control correction in its lowest bit),
        `cw_right [depth, T]` (right control correction, 0 or 1), and both parties' states at
        leaf alpha, `[T, 16]` each. Law: the parties' states agree at every leaf but alpha, where
        their control bits differ.
    """
    num_trees = roots0.shape[0]
    cw = np.empty((depth, num_trees, 16), dtype=np.uint8)
    cw_right = np.empty((depth, num_trees), dtype=np.uint8)
    states = [roots0.copy(), roots1.copy()]
    for level in range(depth):
        bit = ((alpha >> np.uint64(depth - 1 - level)) & np.uint64(1)).astype(np.uint8)
        children = [_children(key, state) for state in states]
        left = children[0][0] ^ children[1][0]
        right = children[0][1] ^ children[1][1]
        go_right = mask_of(bit)
        # The side that alpha leaves: its seeds become equal, its control bits too.
        seed_word = _seed((left & go_right) | (right & ~go_right))
        left_word = bits_of(left) ^ bit ^ 1
        right_word = bits_of(right) ^ bit
        cw[level] = seed_word
        cw[level, :, 0] |= left_word
        cw_right[level] = right_word
        kept_word = seed_word.copy()
        kept_word[:, 0] |= (left_word & ~go_right[:, 0]) | (right_word & go_right[:, 0])
        for party in (0, 1):
            kept = (children[party][0] & ~go_right) | (children[party][1] & go_right)
            states[party] = kept ^ (kept_word & mask_of(bits_of(states[party])))
    return cw, cw_right, states[0], states[1]


def tree_eval(
    key: bytes, roots: Bytes, cw: Bytes, cw_right: Bytes, num_leaves: int, num_threads: int = 1
) -> Bytes:
    """States of one party at every leaf, `[T, num_leaves, 16]`, breadth first.

    Level i holds only the ceil(N / 2**(d-i)) nodes above an existing leaf.
    """
    depth, num_trees = cw_right.shape
    states = roots[:, None, :]
    for level in range(depth):
        left, right = _children(key, states)
        chosen = mask_of(bits_of(states))
        left ^= cw[level][:, None, :] & chosen
        word = _seed(cw[level])
        word[:, 0] |= cw_right[level]
        right ^= word[:, None, :] & chosen
        num_nodes = -(-num_leaves >> (depth - 1 - level))
        both = np.stack([left, right], axis=2).reshape(num_trees, -1, 16)
        states = both[:, :num_nodes]
    return np.ascontiguousarray(states[:, :num_leaves])


def convert(key: bytes, states: Bytes, num_bytes: int) -> Bytes:
    """Conv: `num_bytes` pseudorandom bytes from each seed, `[M, 16]` to `[M, num_bytes]`.

    Block i is H_key(s xor i), i little-endian.
    """
    num_blocks = -(-num_bytes // 16)
    counters = np.zeros((num_blocks, 16), dtype=np.uint8)
    counters[:, :8] = np.arange(num_blocks, dtype="<u8")[:, None].view(np.uint8)
    blocks = _seed(states)[:, None, :] ^ counters
    return np.ascontiguousarray(mmo_hash(key, blocks).reshape(len(states), -1)[:, :num_bytes])


def hint_gen(
    key: bytes,
    leaf0: Bytes,
    leaf1: Bytes,
    values: Bytes,
    slots: Positions,
    nu: int,
    width: int,
    num_threads: int = 1,
) -> Bytes:
    """Hints that carry `values` at alpha: CW = (-1)^{t_1} (beta - Conv(s_0) + Conv(s_1)).

    Args:
        key: K_convert of this hint's epoch, 16 bytes.
        leaf0: `[T, 16]` party 0's states at alpha.
        leaf1: `[T, 16]` party 1's states at alpha.
        values: `[T, P >> nu]` packed ring values of the selected row.
        slots: `uint64[T]`, which of the 2**nu rows of the leaf block is selected.
        nu: early termination.
        width: l/8.
        num_threads: for the native twin.

    Returns:
        `[T, P]`.
    """
    num_trees, row_bytes = values.shape
    num_slots = 1 << nu
    here = np.arange(num_slots, dtype=np.uint64)[None, :] == slots[:, None]
    beta = values[:, None, :] & np.negative(here.astype(np.uint8))[..., None]
    lanes = beta.reshape(num_trees, -1, width)
    conv0 = convert(key, leaf0, num_slots * row_bytes).reshape(lanes.shape)
    conv1 = convert(key, leaf1, num_slots * row_bytes).reshape(lanes.shape)
    plain = ring.add(ring.sub(lanes, conv0), conv1)
    return _negate_where(bits_of(leaf1), plain).reshape(num_trees, -1)


def _negate_where(bits: Bytes, lanes: Bytes) -> Bytes:
    """Lanes `[T, n, width]`, negated for the trees whose bit is 1, without a branch."""
    chosen = mask_of(bits)[..., None]
    return (ring.neg(lanes) & chosen) | (lanes & ~chosen)


def accumulate(
    key_tree: bytes,
    key_convert: bytes,
    roots: Bytes,
    cw: Bytes,
    cw_right: Bytes,
    num_leaves: int,
    hints: Bytes,
    party: int,
    width: int,
    acc: Bytes,
    num_threads: int = 1,
) -> None:
    """Add one party's output shares of T trees to `acc [T, N, P]`, in place.

    The share of leaf x is (-1)^party (Conv(s_x) + t_x CW). Law: the two parties' accumulators sum
    to the value carried by the hint at alpha and to 0 elsewhere. `num_threads` is for the native
    twin; this one is single-threaded.
    """
    shares = shares_of(key_tree, key_convert, roots, cw, cw_right, num_leaves, hints, width)
    lanes = acc.reshape(shares.shape)
    lanes[...] = ring.add(lanes, shares) if party == 0 else ring.sub(lanes, shares)


def shares_of(
    key_tree: bytes,
    key_convert: bytes,
    roots: Bytes,
    cw: Bytes,
    cw_right: Bytes,
    num_leaves: int,
    hints: Bytes,
    width: int,
) -> Bytes:
    """Conv(s_x) + t_x CW of all leaves, before the party's sign: `[T, N, P / width, width]`."""
    num_trees, payload = hints.shape
    states = tree_eval(key_tree, roots, cw, cw_right, num_leaves).reshape(-1, 16)
    shape = (num_trees, num_leaves, payload // width, width)
    plain = convert(key_convert, states, payload).reshape(shape)
    chosen = mask_of(bits_of(states)).reshape(num_trees, num_leaves, 1, 1)
    return ring.add(plain, hints.reshape(num_trees, 1, -1, width) & chosen)


def accumulate_batch(
    reports: list[tuple[bytes, bytes, Bytes, Bytes, Bytes, Bytes]],
    num_leaves: int,
    party: int,
    width: int,
    acc: Bytes,
    num_threads: int = 1,
) -> None:
    """`accumulate` for several reports `(key_tree, key_convert, roots, cw, cw_right, hints)`.

    All have one shape. The native twin works through `acc` part by part.
    """
    for key_tree, key_convert, roots, cw, cw_right, hints in reports:
        accumulate(key_tree, key_convert, roots, cw, cw_right, num_leaves, hints, party, width, acc)


def answer(
    key_tree: bytes,
    roots: Bytes,
    cw: Bytes,
    cw_right: Bytes,
    num_leaves: int,
    table: Bytes,
    num_threads: int = 1,
) -> Bytes:
    """Private retrieval: XOR over the leaves with control bit 1 of `table [T or 1, N, R]`.

    Returns `[T, R]`. Law: the two parties' answers XOR to the table's row at alpha.
    """
    bits = bits_of(tree_eval(key_tree, roots, cw, cw_right, num_leaves))
    out = np.empty((roots.shape[0], table.shape[2]), dtype=np.uint8)
    for tree in range(roots.shape[0]):
        rows = table[tree if len(table) > 1 else 0]
        out[tree] = np.bitwise_xor.reduce(rows & mask_of(bits[tree]), axis=0)
    return out


def gather(
    acc: Bytes, slots: npt.NDArray[np.uint32], out: Bytes, width: int, num_threads: int = 1
) -> None:
    """out[x] += sum over e of acc[slots[e, x]], in place; `acc [S, W/8]`, `out [m, W/8]`."""
    lanes = out.reshape(out.shape[0], -1, width)
    source = acc.reshape(acc.shape[0], -1, width)
    for row in slots:
        lanes[...] = ring.add(lanes, source[row])


def stable_order(keys: Positions, num_threads: int = 1) -> npt.NDArray[np.uint32]:
    """Indices `uint32[m]` of the keys `uint64[m]` in their order, equal keys in that of indices."""
    return np.argsort(keys, kind="stable").astype(np.uint32)


def match(candidates: npt.NDArray[np.uint32], num_bins: int) -> npt.NDArray[np.int64]:
    """Exact greedy matching of items to bins in item order; see `cuckoo.match` for the rule."""
    num_items = candidates.shape[1]
    choices = candidates.T.tolist()
    owner = [-1] * num_bins
    seen = [-1] * num_bins
    bin_of = [-1] * num_items
    for item in range(num_items):
        _augment(item, choices, owner, seen, bin_of)
    return np.array(bin_of, dtype=np.int64)


def _augment(
    item: int, choices: list[list[int]], owner: list[int], seen: list[int], bin_of: list[int]
) -> None:
    """Breadth-first search for a free bin from `item`; flips the path found, if any."""
    queue = [item]
    came_from: dict[int, int] = {}
    for current in queue:
        for candidate in choices[current]:
            if seen[candidate] == item:
                continue
            seen[candidate] = item
            came_from[candidate] = current
            if owner[candidate] >= 0:
                queue.append(owner[candidate])
                continue
            while True:
                mover = came_from[candidate]
                previous = bin_of[mover]
                owner[candidate], bin_of[mover] = mover, candidate
                if mover == item:
                    return
                candidate = previous


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


def answer_bits(
    key_tree: bytes,
    key_bits: bytes,
    roots: Bytes,
    cw: Bytes,
    cw_right: Bytes,
    words: Bytes,
    table: Bytes,
    num_threads: int = 1,
) -> Bytes:
    """Private retrieval by one bit a row: trees over blocks of 128 rows of `table [T or 1, M, R]`.

    The bits of block x are H_bits(s_x), XORed with `words [T, 16]` where t_x = 1; bit i, lowest
    first, is that of row 128 x + i. Returns `[T, R]`. Law: where a word is the XOR of both
    parties' H_bits(s) at alpha's block and of alpha's bit, the two answers XOR to the row at alpha.
    """
    num_trees, num_rows = len(roots), table.shape[1]
    states = tree_eval(key_tree, roots, cw, cw_right, -(-num_rows // BIT_ROWS))
    blocks = convert(key_bits, states.reshape(-1, 16), 16).reshape(states.shape)
    blocks ^= words[:, None, :] & mask_of(bits_of(states))
    bits = np.unpackbits(blocks.reshape(num_trees, -1), axis=1, count=num_rows, bitorder="little")
    out = np.empty((num_trees, table.shape[2]), dtype=np.uint8)
    for tree in range(num_trees):
        rows = table[tree if len(table) > 1 else 0]
        out[tree] = np.bitwise_xor.reduce(rows & np.negative(bits[tree])[:, None], axis=0)
    return out
