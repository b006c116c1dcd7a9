"""The prime field modulo p = 2**128 - 7 * 2**66 + 1, the VDAF draft's Field128.

An element is a Python int in [0, p), or two words, the lower first: on the wire 16 little-endian
bytes. p - 1 is a multiple of 2**66, so that there are roots of unity of every order that a proof
wants (`flp`). Arrays of ints have dtype `object`; elements as words are `uint64[n, 2]`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import kdf
from torchfsl.errors import DecodeError
from torchfsl.kernels.portable import proofs as portable
from torchfsl.kernels.portable.proofs import Words, powers, transform
from torchfsl.types import Array

MODULUS: Final = portable.MODULUS
"""p, a prime."""

__all__ = ["powers", "transform"]  # those of the kernels

ELEMENT_BYTES: Final = 16

GENERATOR_ORDER: Final = 1 << 66
"""Order of the largest group of roots of unity."""

GENERATOR: Final = pow(7, (MODULUS - 1) // GENERATOR_ORDER, MODULUS)
"""Generates that group; the draft's."""


@functools.lru_cache(maxsize=64)
def root_of_unity(order: int) -> int:
    """A root of unity of exactly this order, a power of two up to 2**66: w**order = 1."""
    assert order > 0
    assert GENERATOR_ORDER % order == 0
    return pow(GENERATOR, GENERATOR_ORDER // order, MODULUS)


def interpolate(values: Array) -> Array:
    """Coefficients `object[n, ...]` from values at the powers of `root_of_unity(n)`."""
    size = len(values)
    back = pow(root_of_unity(size), -1, MODULUS)
    return transform(values, back) * pow(size, -1, MODULUS) % MODULUS


def evaluate(coefficients: Iterable[int], point: int) -> int:
    """A polynomial at a point, the lowest coefficient first."""
    total = 0
    for coefficient in reversed(list(coefficients)):
        total = (total * point + coefficient) % MODULUS
    return total


def uniform(key: bytes, count: int) -> Words:
    """`count` independent uniform elements: the blocks below p among those of the key's stream.

    Blocks from p on are left out, which happens once in 2**59. Law: a shorter draw of one key is a
    prefix of a longer one. Use a key once.
    """
    spare = 1
    while True:
        drawn = _words(kdf.stream(key, ELEMENT_BYTES * (count + spare)).tobytes())
        kept: Words = drawn[~_beyond(drawn)][:count]
        if len(kept) == count:
            return kept
        spare *= 2


def add(a: Words, b: Words) -> Words:
    """`a + b` of equal shapes, element by element. No branch, no address depends on an element."""
    assert a.shape == b.shape
    low, high = a[..., 0] + b[..., 0], a[..., 1] + b[..., 1]
    over = high < a[..., 1]
    carry = low < a[..., 0]
    high += carry
    over |= (high == 0) & carry  # the sum is 2**128 or more
    take = (over | _beyond_words(low, high)).astype(np.uint64)
    borrow = (low < take).astype(np.uint64)
    return np.stack([low - take, high - take * _HIGH - borrow], axis=-1)


def negative(a: Words) -> Words:
    """`-a`, element by element; as `add`."""
    low, high = a[..., 0], a[..., 1]
    some = ((low | high) != 0).astype(np.uint64)
    borrow = (some * _LOW < low).astype(np.uint64)
    return np.stack([some * _LOW - low, some * _HIGH - high - borrow], axis=-1)


def subtract(a: Words, b: Words) -> Words:
    """`a - b`, element by element; as `add`."""
    return add(a, negative(b))


def to_bytes(words: Words) -> bytes:
    """Little-endian bytes, 16 an element."""
    return np.ascontiguousarray(words, dtype="<u8").tobytes()


def checked(data: bytes | memoryview) -> Words:
    """Elements as words `[n, 2]`.

    Raises:
        DecodeError: no whole number of elements, or one that is p or more.
    """
    if len(data) % ELEMENT_BYTES:
        raise DecodeError(f"{len(data)} bytes are not a whole number of field elements")
    words = _words(data)
    if _beyond(words).any():
        raise DecodeError("a field element is not below the modulus")
    return words


def integers(words: Words) -> list[int]:
    """Elements as words `[n, 2]` in Python's integers; `checked` makes such words."""
    blocks = np.ascontiguousarray(words, dtype="<u8").view("V16").reshape(-1)
    return [int.from_bytes(block, "little") for block in blocks.tolist()]


def words(elements: Iterable[int]) -> Words:
    """Inverse of `integers`."""
    return _words(b"".join(element.to_bytes(ELEMENT_BYTES, "little") for element in elements))


def _words(data: bytes | memoryview) -> Words:
    return np.frombuffer(data, dtype="<u8").reshape(-1, 2)


def _beyond(words: Words) -> npt.NDArray[np.bool_]:
    """Which are p or more."""
    return _beyond_words(words[..., 0], words[..., 1])


def _beyond_words(low: Words, high: Words) -> npt.NDArray[np.bool_]:
    beyond: npt.NDArray[np.bool_] = (high > _HIGH) | ((high == _HIGH) & (low >= _LOW))
    return beyond


_LOW, _HIGH = np.uint64(MODULUS & ((1 << 64) - 1)), np.uint64(MODULUS >> 64)
