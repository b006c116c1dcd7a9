"""Slow incremental distributed point function of the VDAF draft, IdpfBBCGGI21.

The point function of `dpf_reference` with a value at every level: a node's corrected seed is
converted into the next seed and a value, so that prefixes of alpha carry values too. The draft has
Field64 values and the fixed-key AES hash at inner levels, Field255 and TurboSHAKE128 at the leaves.
Written from the draft's text (draft-irtf-cfrg-vdaf, sections 6.2 and 8.3).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.support.reference.dpf_reference import hash_block, xor
from tests.support.reference.turboshake_reference import turboshake128

FIELD64 = (1 << 64) - (1 << 32) + 1
FIELD255 = (1 << 255) - 19
_SIZES = {FIELD64: 8, FIELD255: 32}
_EXTEND, _CONVERT = 0, 1


def tag(version: int, usage: int, context: bytes) -> bytes:
    """Domain separation tag of the draft's version for class 1 (IDPF), algorithm 0."""
    return bytes([version, 1]) + bytes(4) + usage.to_bytes(2, "big") + context


@functools.lru_cache(maxsize=64)
def aes_key(separation: bytes, binder: bytes) -> bytes:
    """Key of XofFixedKeyAes128."""
    return turboshake128(len(separation).to_bytes(2, "little") + separation + binder, 2, 16)


def aes_stream(seed: bytes, separation: bytes, binder: bytes) -> Iterator[int]:
    """XofFixedKeyAes128, byte by byte."""
    key = aes_key(separation, binder)
    for i in itertools.count():
        yield from hash_block(key, xor(seed, i.to_bytes(16, "little")))


def sponge_stream(seed: bytes, separation: bytes, binder: bytes) -> Iterator[int]:
    """XofTurboShake128, byte by byte; two blocks are more than is wanted here."""
    message = len(separation).to_bytes(2, "little") + separation
    message += bytes([len(seed)]) + seed + binder
    yield from turboshake128(message, 1, 336)


def take(stream: Iterator[int], count: int) -> bytes:
    """The next bytes of a stream."""
    return bytes(itertools.islice(stream, count))


def field_vector(stream: Iterator[int], modulus: int, count: int) -> list[int]:
    """The next field elements of a stream, by rejection."""
    mask = (1 << modulus.bit_length()) - 1
    values: list[int] = []
    while len(values) < count:
        value = int.from_bytes(take(stream, _SIZES[modulus]), "little") & mask
        if value < modulus:
            values.append(value)
    return values


@dataclass(frozen=True)
class CorrectionWord:
    """Seed correction, control corrections left and right, value correction of one level."""

    seed: bytes
    control: tuple[int, int]
    values: list[int]


@dataclass(frozen=True)
class Idpf:
    """Parameters: bits of alpha, values a node, application context, nonce, draft version."""

    bits: int
    num_values: int
    context: bytes
    nonce: bytes
    version: int

    def modulus(self, level: int) -> int:
        """Field of the values at a level."""
        return FIELD64 if level < self.bits - 1 else FIELD255

    def _stream(self, level: int, seed: bytes, usage: int) -> Iterator[int]:
        kind = aes_stream if level < self.bits - 1 else sponge_stream
        return kind(seed, tag(self.version, usage, self.context), self.nonce)

    def extend(self, level: int, seed: bytes) -> list[tuple[bytes, int]]:
        """Uncorrected children, left and right: seed with a zero lowest bit, and that bit."""
        stream = self._stream(level, seed, _EXTEND)
        children = [take(stream, 16), take(stream, 16)]
        return [(bytes([child[0] & 0xFE]) + child[1:], child[0] & 1) for child in children]

    def convert(self, level: int, seed: bytes) -> tuple[bytes, list[int]]:
        """Next seed and values of a node from its corrected seed."""
        stream = self._stream(level, seed, _CONVERT)
        return take(stream, 16), field_vector(stream, self.modulus(level), self.num_values)

    def gen(
        self, alpha: Sequence[int], beta: Sequence[list[int]], keys: tuple[bytes, bytes]
    ) -> list[CorrectionWord]:
        """Correction words for values `beta[i]` at the prefix of alpha of i + 1 bits."""
        seeds, control, words = list(keys), [0, 1], []
        for level, bit in enumerate(alpha):
            children = [self.extend(level, seed) for seed in seeds]
            seed_word = xor(children[0][1 - bit][0], children[1][1 - bit][0])
            bits = tuple(
                children[0][side][1] ^ children[1][side][1] ^ (side == bit) for side in (0, 1)
            )
            shares = []
            for party in (0, 1):
                seed, next_bit = children[party][bit]
                if control[party]:
                    seed, next_bit = xor(seed, seed_word), next_bit ^ bits[bit]
                seeds[party], values = self.convert(level, seed)
                control[party] = next_bit
                shares.append(values)
            sign, modulus = -1 if control[1] else 1, self.modulus(level)
            words.append(
                CorrectionWord(
                    seed_word,
                    (int(bits[0]), int(bits[1])),
                    [sign * (b - x + y) % modulus
                     for b, x, y in zip(beta[level], *shares, strict=True)],
                )
            )  # fmt: skip
        return words

    def eval(
        self, party: int, words: Sequence[CorrectionWord], key: bytes, prefix: Sequence[int]
    ) -> list[int]:
        """One party's share of the values at a prefix."""
        seed, control, values = key, party, [0] * self.num_values
        for level, bit in enumerate(prefix):
            word = words[level]
            next_seed, next_bit = self.extend(level, seed)[bit]
            if control:
                next_seed, next_bit = xor(next_seed, word.seed), next_bit ^ word.control[bit]
            seed, values = self.convert(level, next_seed)
            control = next_bit
            if control:
                values = [v + w for v, w in zip(values, word.values, strict=True)]
        modulus = self.modulus(len(prefix) - 1)
        return [(-value if party else value) % modulus for value in values]

    def encode(self, words: Sequence[CorrectionWord]) -> bytes:
        """The draft's public share: packed control bits, seeds, values."""
        bits = [bit for word in words for bit in word.control]
        packed = sum(bit << i for i, bit in enumerate(bits)).to_bytes(-(-len(bits) // 8), "little")
        values = b"".join(
            value.to_bytes(_SIZES[self.modulus(level)], "little")
            for level, word in enumerate(words)
            for value in word.values
        )
        return packed + b"".join(word.seed for word in words) + values
