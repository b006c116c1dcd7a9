"""Slow, obvious distributed point function, one tree and one AES block at a time.

Written from the formulas alone (BGI16 tree, fixed-key AES hash of the VDAF draft's
XofFixedKeyAes128) with Python bytes and ints, so that the fast kernels have something independent
to agree with. A *state* is 16 bytes: a seed whose lowest bit (bit 0 of byte 0) is replaced by the
control bit. Ring values are Python ints; one ring value is `width` little-endian bytes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes


@functools.lru_cache(maxsize=64)
def _encryptor(key: bytes) -> Any:
    # ECB of single blocks is the bare permutation, which is what the hash is made of.
    return Cipher(algorithms.AES128(key), modes.ECB()).encryptor()  # noqa: S305


def aes(key: bytes, block: bytes) -> bytes:
    """AES-128 of one block."""
    return bytes(_encryptor(key).update(block))


def xor(a: bytes, b: bytes) -> bytes:
    """Bytewise exclusive or."""
    return bytes(x ^ y for x, y in zip(a, b, strict=True))


def sigma(block: bytes) -> bytes:
    """The linear orthomorphism in front of AES."""
    low, high = block[:8], block[8:]
    return high + xor(high, low)


def hash_block(key: bytes, block: bytes) -> bytes:
    """H_K(x) = AES_K(sigma(x)) xor sigma(x)."""
    return xor(aes(key, sigma(block)), sigma(block))


def control_bit(state: bytes) -> int:
    """Control bit t of a state."""
    return state[0] & 1


def seed(state: bytes) -> bytes:
    """Seed s of a state: lowest bit 0."""
    return bytes([state[0] & 0xFE]) + state[1:]


def make_state(seed_bytes: bytes, bit: int) -> bytes:
    """State of a seed and a control bit."""
    return bytes([seed_bytes[0] & 0xFE | bit]) + seed_bytes[1:]


def children(key: bytes, state: bytes) -> tuple[bytes, bytes]:
    """Uncorrected child states: H(s) and H(s xor 1)."""
    s = seed(state)
    return hash_block(key, s), hash_block(key, make_state(s, 1))


@dataclass(frozen=True)
class CorrectionWord:
    """Correction of one level: seed (lowest bit 0) and the two control bits."""

    seed: bytes
    left_bit: int
    right_bit: int

    def packed(self) -> bytes:
        """The 16 bytes that carry the seed and, in the lowest bit, the left control bit."""
        return make_state(self.seed, self.left_bit)


def tree_gen(
    key: bytes, root0: bytes, root1: bytes, alpha: int, depth: int
) -> tuple[list[CorrectionWord], bytes, bytes]:
    """Correction words from the root down, and both parties' states at leaf alpha."""
    states = [root0, root1]
    words = []
    for level in range(depth):
        a = (alpha >> (depth - 1 - level)) & 1
        child = [children(key, state) for state in states]
        lose = 1 - a
        word = CorrectionWord(
            seed=xor(seed(child[0][lose]), seed(child[1][lose])),
            left_bit=control_bit(child[0][0]) ^ control_bit(child[1][0]) ^ a ^ 1,
            right_bit=control_bit(child[0][1]) ^ control_bit(child[1][1]) ^ a,
        )
        words.append(word)
        states = [step(key, state, word, a) for state in states]
    return words, states[0], states[1]


def step(key: bytes, state: bytes, word: CorrectionWord, side: int) -> bytes:
    """One party's child state on `side` (0 left, 1 right), corrected if its control bit is set."""
    child = children(key, state)[side]
    new_seed, new_bit = seed(child), control_bit(child)
    if control_bit(state) == 1:
        new_seed = xor(new_seed, word.seed)
        new_bit ^= word.right_bit if side else word.left_bit
    return make_state(new_seed, new_bit)


def leaf_state(key: bytes, root: bytes, words: list[CorrectionWord], leaf: int) -> bytes:
    """One party's state at `leaf`, walked down from the root."""
    state = root
    for level, word in enumerate(words):
        state = step(key, state, word, (leaf >> (len(words) - 1 - level)) & 1)
    return state


def convert(key: bytes, state: bytes, num_bytes: int) -> bytes:
    """Conv(s): H(s xor 0) || H(s xor 1) || ..., counters little-endian, cut to `num_bytes`."""
    s = int.from_bytes(seed(state), "little")
    out = b""
    counter = 0
    while len(out) < num_bytes:
        out += hash_block(key, (s ^ counter).to_bytes(16, "little"))
        counter += 1
    return out[:num_bytes]


def bit_word(key: bytes, leaf0: bytes, leaf1: bytes, bit: int) -> bytes:
    """H(s_0) xor H(s_1) xor the bit, counted from the lowest of the first byte."""
    both = xor(hash_block(key, seed(leaf0)), hash_block(key, seed(leaf1)))
    return xor(both, (1 << bit).to_bytes(16, "little"))


def bit_answer(key: bytes, states: list[bytes], word: bytes, rows: list[bytes]) -> bytes:
    """One party's XOR of the rows whose bit is 1: state x has the bits of rows 128 x and on."""
    total = bytes(len(rows[0]))
    for number, row in enumerate(rows):
        state = states[number // 128]
        block = hash_block(key, seed(state))
        if control_bit(state):
            block = xor(block, word)
        if int.from_bytes(block, "little") >> number % 128 & 1:
            total = xor(total, row)
    return total


def to_lanes(data: bytes, width: int) -> list[int]:
    """Ring values of packed bytes."""
    return [int.from_bytes(data[i : i + width], "little") for i in range(0, len(data), width)]


def from_lanes(lanes: list[int], width: int) -> bytes:
    """Packed bytes of ring values, reduced modulo 2**(8 width)."""
    return b"".join((value % (1 << (8 * width))).to_bytes(width, "little") for value in lanes)


def hint_gen(
    key: bytes, leaf0: bytes, leaf1: bytes, values: bytes, slot: int, nu: int, width: int
) -> bytes:
    """CW = (-1)^{t_1} (beta - Conv(s_0) + Conv(s_1)), beta = `values` in one of 2**nu slots."""
    block = b"".join(values if i == slot else bytes(len(values)) for i in range(1 << nu))
    beta = to_lanes(block, width)
    conv0 = to_lanes(convert(key, leaf0, len(block)), width)
    conv1 = to_lanes(convert(key, leaf1, len(block)), width)
    sign = -1 if control_bit(leaf1) else 1
    return from_lanes(
        [sign * (b - c0 + c1) for b, c0, c1 in zip(beta, conv0, conv1, strict=True)], width
    )


def leaf_value(key: bytes, state: bytes, hint: bytes, party: int, width: int) -> bytes:
    """y_b = (-1)^b (Conv(s) + t CW)."""
    sign = -1 if party else 1
    conv = to_lanes(convert(key, state, len(hint)), width)
    word = to_lanes(hint, width)
    t = control_bit(state)
    return from_lanes([sign * (c + t * w) for c, w in zip(conv, word, strict=True)], width)


def depth_of(num_leaves: int) -> int:
    """Levels of a tree with `num_leaves` leaves: ceil(log2 N)."""
    return (num_leaves - 1).bit_length()


def match(candidates: list[tuple[int, int, int]], num_bins: int) -> list[int]:
    """Greedy exact matching by breadth-first augmenting paths, item by item; -1 if impossible."""
    owner: dict[int, int] = {}
    place = [-1] * len(candidates)
    for item in range(len(candidates)):
        parent: dict[int, int] = {}
        queue = [item]
        free = None
        while queue and free is None:
            current = queue.pop(0)
            for chosen in candidates[current]:
                if chosen in parent:
                    continue
                if not 0 <= chosen < num_bins:
                    raise ValueError("bin out of range")
                parent[chosen] = current
                if chosen not in owner:
                    free = chosen
                    break
                queue.append(owner[chosen])
        while free is not None:
            mover = parent[free]
            before = place[mover]
            place[mover], owner[free] = free, mover
            free = None if mover == item else before
    return place
