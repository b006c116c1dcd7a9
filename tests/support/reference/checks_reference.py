"""Slow, obvious check words and answer tags, one leaf and one field product at a time.

Written from the formulas, beside `dpf_reference`. Elements of GF(2**128) are Python ints: bit k is
the coefficient of x**k, the modulus is x**128 + x**7 + x**2 + x + 1.
"""

from __future__ import annotations

from tests.support.reference.dpf_reference import aes, hash_block, seed, xor


def leaf_hash(key: bytes, state: bytes, tree: int, leaf: int) -> bytes:
    """The 32-byte hash of a leaf: its state with the control bit, its tree's number and its own."""
    keys = [aes(key, bytes([i]) + bytes(15)) for i in range(3)]
    tweak = leaf.to_bytes(8, "little") + tree.to_bytes(4, "little") + bytes(4)
    middle = xor(aes(keys[0], state), tweak)
    first = xor(aes(keys[1], middle), state)
    second = xor(xor(aes(keys[2], first), state), middle)
    return first + second


def check_word(key: bytes, leaf0: bytes, leaf1: bytes, tree: int, leaf: int) -> bytes:
    """What a client publishes for a tree: the XOR of both parties' hashes at alpha."""
    return xor(leaf_hash(key, leaf0, tree, leaf), leaf_hash(key, leaf1, tree, leaf))


def multiply(a: int, b: int) -> int:
    """Product in GF(2**128)."""
    product = 0
    for k in range(128):
        if b >> k & 1:
            product ^= a << k
    for k in range(254, 127, -1):
        if product >> k & 1:
            product ^= (1 << k) | (0x87 << (k - 128))
    return product


def words(data: bytes) -> list[int]:
    """16-byte words, the last one padded with zeros."""
    return [int.from_bytes(data[i : i + 16], "little") for i in range(0, len(data), 16)]


def mac_keys(key: bytes, state: bytes, count: int) -> list[int]:
    """y_i = H(s xor i)."""
    base = int.from_bytes(seed(state), "little")
    blocks = [hash_block(key, (base ^ i).to_bytes(16, "little")) for i in range(count)]
    return [int.from_bytes(block, "little") for block in blocks]


def tag(key: bytes, states: list[bytes], rows: list[bytes]) -> bytes:
    """One server's tag of one tree: the sum over leaves and words of key times word."""
    total = 0
    for state, row in zip(states, rows, strict=True):
        parts = words(row)
        for y, w in zip(mac_keys(key, state, len(parts)), parts, strict=True):
            total ^= multiply(y, w)
    return total.to_bytes(16, "little")
