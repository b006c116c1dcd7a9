"""The prime field modulo p = 2**128 - 7 * 2**66 + 1, the VDAF draft's Field128.

An element is a Python int in [0, p); on the wire 16 little-endian bytes. p - 1 is a multiple of
2**66, so that there are roots of unity of every order that a proof wants (`flp`). Arrays of
elements have dtype `object`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
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


def inverses(values: Sequence[int]) -> list[int]:
    """1 / v of every element, none of them 0; one inversion for all (Montgomery's trick)."""
    before, product = [], 1
    for value in values:
        before.append(product)
        product = product * value % MODULUS
    back = pow(product, -1, MODULUS)
    result = [0] * len(values)
    for i in reversed(range(len(values))):
        result[i] = back * before[i] % MODULUS
        back = back * values[i] % MODULUS
    return result


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


def uniform(key: bytes, count: int) -> list[int]:
    """`count` independent uniform elements: the blocks below p among those of the key's stream.

    Blocks from p on are left out, which happens once in 2**59. Law: a shorter draw of one key is a
    prefix of a longer one. Use a key once.
    """
    spare = 1
    while True:
        words = _words(kdf.stream(key, ELEMENT_BYTES * (count + spare)).tobytes())
        kept = integers(words[~_beyond(words)][:count])
        if len(kept) == count:
            return kept
        spare *= 2


def add(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """`a + b`, element by element."""
    return [(x + y) % MODULUS for x, y in zip(a, b, strict=True)]


def subtract(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """`a - b`, element by element."""
    return [(x - y) % MODULUS for x, y in zip(a, b, strict=True)]


def to_bytes(values: Iterable[int]) -> bytes:
    """Little-endian bytes, 16 an element."""
    return b"".join(value.to_bytes(ELEMENT_BYTES, "little") for value in values)


def from_bytes(data: bytes | memoryview) -> list[int]:
    """Inverse of `to_bytes`.

    Raises:
        DecodeError: no whole number of elements, or one is not below p.
    """
    return integers(checked(data))


def checked(data: bytes | memoryview) -> Words:
    """Elements as words `[n, 2]`.

    Raises:
        DecodeError: as `from_bytes`.
    """
    if len(data) % ELEMENT_BYTES:
        raise DecodeError(f"{len(data)} bytes are no whole number of field elements")
    words = _words(data)
    if _beyond(words).any():
        raise DecodeError("a field element is not below the modulus")
    return words


def integers(words: Words) -> list[int]:
    """Elements as words `[n, 2]` in Python's integers; `checked` makes such words."""
    blocks = np.ascontiguousarray(words, dtype="<u8").view("V16").reshape(-1)
    return [int.from_bytes(block, "little") for block in blocks.tolist()]


def _words(data: bytes | memoryview) -> Words:
    return np.frombuffer(data, dtype="<u8").reshape(-1, 2)


def _beyond(words: Words) -> npt.NDArray[np.bool_]:
    """Which are p or more."""
    low, high = words[:, 0], words[:, 1]
    beyond: npt.NDArray[np.bool_] = (high > _HIGH) | ((high == _HIGH) & (low >= _LOW))
    return beyond


_LOW, _HIGH = np.uint64(MODULUS & ((1 << 64) - 1)), np.uint64(MODULUS >> 64)
