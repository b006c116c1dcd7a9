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


def row_digest(key: bytes, row: bytes) -> bytes:
    """BLAKE2s of RFC 7693 in its own words: 16 bytes of digest under a key of 16 bytes."""
    start = [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB,
             0x5BE0CD19]  # fmt: skip
    h = [start[0] ^ 0x01010000 ^ 16 << 8 ^ 16, *start[1:]]
    data = key.ljust(64, b"\0") + row
    for at in range(0, len(data), 64):
        end = min(at + 64, len(data))
        h = _compress(start, h, data[at:end].ljust(64, b"\0"), end, end == len(data))
    return b"".join(word.to_bytes(4, "little") for word in h)[:16]


_ORDER = ("0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8",
          "905724afe1bc683d", "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a",
          "6fe9b308c2d714a5", "a2847615fb9e3cd0")  # fmt: skip


def _compress(start: list[int], h: list[int], block: bytes, end: int, last: bool) -> list[int]:
    m = [int.from_bytes(block[i : i + 4], "little") for i in range(0, 64, 4)]
    v = [*h, *start]
    v[12] ^= end & 0xFFFFFFFF
    v[13] ^= end >> 32
    v[14] ^= 0xFFFFFFFF if last else 0
    quarters = [(i, 4 + i, 8 + i, 12 + i) for i in range(4)]
    quarters += [(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4) for i in range(4)]
    for order in _ORDER:
        for number, (a, b, c, d) in enumerate(quarters):
            for word, (left, right) in zip(
                order[2 * number :][:2], ((16, 12), (8, 7)), strict=True
            ):
                v[a] = (v[a] + v[b] + m[int(word, 16)]) % 2**32
                v[d] = _right(v[d] ^ v[a], left)
                v[c] = (v[c] + v[d]) % 2**32
                v[b] = _right(v[b] ^ v[c], right)
    return [x ^ v[i] ^ v[i + 8] for i, x in enumerate(h)]


def _right(word: int, by: int) -> int:
    return (word >> by | word << (32 - by)) % 2**32


def secret(key: bytes, state: bytes) -> int:
    """The secret of a leaf: H(s)."""
    return int.from_bytes(hash_block(key, seed(state)), "little")


def tag(key: bytes, states: list[bytes], digests: list[bytes]) -> bytes:
    """One server's tag of one tree: the sum over leaves of secret times digest of the row."""
    total = 0
    for state, digest in zip(states, digests, strict=True):
        total ^= multiply(secret(key, state), int.from_bytes(digest, "little"))
    return total.to_bytes(16, "little")
