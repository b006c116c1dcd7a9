"""The prime field modulo p = 2**32 - 5: signed integers in it, its bytes, uniform numbers.

A number is one `uint32` below p; on the wire four little-endian bytes. p is the largest prime that
a `uint32` holds, and 2**32 = 5 modulo p makes reductions cheap.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import kdf
from torchfsl.errors import DecodeError, ParameterError
from torchfsl.kernels import backends
from torchfsl.kernels.portable import field as portable
from torchfsl.types import Whole

Words = npt.NDArray[np.uint32]

MODULUS: Final = portable.MODULUS
"""p, a prime."""

CAPACITY: Final = (MODULUS - 1) // 2
"""Largest magnitude of a signed integer that the field tells from all others."""

WORD_BYTES: Final = 4


def encode(whole: Whole) -> Words:
    """Signed integers as numbers of the field, same shape: q mod p.

    Raises:
        ParameterError: a magnitude is above `CAPACITY`.
    """
    if whole.size and max(int(whole.max()), -int(whole.min())) > CAPACITY:
        raise ParameterError(
            f"a value exceeds the field's limit {CAPACITY}: use fewer frac_bits or a smaller clip"
        )
    return (whole + (whole < 0) * MODULUS).astype(np.uint32)


def decode(words: Words) -> Whole:
    """Inverse of `encode`: the representative in [-`CAPACITY`, `CAPACITY`]."""
    whole = words.astype(np.int64)
    return whole - (whole > CAPACITY) * MODULUS


def add(a: Words, b: Words) -> Words:
    """`a + b`, with broadcasting."""
    return _reduced(a.astype(np.uint64) + b)


def subtract(a: Words, b: Words) -> Words:
    """`a - b`, with broadcasting."""
    return _reduced(a.astype(np.uint64) + (np.uint64(MODULUS) - b))


def _reduced(sums: npt.NDArray[np.uint64]) -> Words:
    """Numbers below 2p into [0, p), without a branch."""
    modulus = np.uint64(MODULUS)
    return (sums - (sums >= modulus) * modulus).astype(np.uint32)


def multiply(left: Words, right: Words) -> Words:
    """The matrix product of `left [R, C]` and `right [C, D]`: `[R, D]`."""
    kernel = backends.kernels().field_multiply
    product: Words = kernel(
        np.ascontiguousarray(left), np.ascontiguousarray(right), num_threads=backends.num_threads()
    )
    return product


def uniform(key: bytes, count: int) -> Words:
    """`count` independent uniform numbers: the words below p among those of the key's stream.

    Words from p on are left out rather than reduced, so that no number is likelier than another.
    Law: a shorter draw of one key is a prefix of a longer one. Use a key once.
    """
    spare = 8
    while True:
        words = kdf.stream(key, WORD_BYTES * (count + spare)).view("<u4")
        kept = words[words < MODULUS]
        if len(kept) >= count:
            return kept[:count].astype(np.uint32, copy=False)
        spare *= 2


def to_bytes(words: Words) -> bytes:
    """Little-endian bytes, four a number."""
    return words.astype("<u4", copy=False).tobytes()


def from_bytes(data: bytes | memoryview) -> Words:
    """Inverse of `to_bytes`, one-dimensional; a view of the bytes where the machine allows.

    Raises:
        DecodeError: no whole number of words, or one is not below p.
    """
    if len(data) % WORD_BYTES:
        raise DecodeError(f"{len(data)} bytes are not a whole number of field elements")
    words = np.frombuffer(data, dtype="<u4").astype(np.uint32, copy=False)
    if words.size and int(words.max()) >= MODULUS:
        raise DecodeError("a field element is not below the modulus")
    return np.require(words, requirements="A")
