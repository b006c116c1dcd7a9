"""Portable kernels of matrix products: modulo p = 2**32 - 5, 2**32 and 2**64.

A number of the field is one `uint32` below p. Products are exact on double-precision hardware. The
factors are cut into halves of 16 bits, so that 2**16 products of sums of halves stay below 2**53.
Up to 2**53 float64 holds every integer. Matrix products of floats are the fastest arithmetic that
NumPy has.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

MODULUS = (1 << 32) - 5
"""The largest prime below 2**32."""

MAX_TERMS = 1 << 24
"""Most terms of one sum."""

_BLOCK_TERMS = 1 << 16
_STRIP = 1 << 13  # columns at a time, so that the six intermediate products stay small

Words = npt.NDArray[np.uint32]
_Wide = npt.NDArray[np.uint64]


def field_multiply(left: Words, right: Words, num_threads: int = 1) -> Words:
    """`left [R, C]` times `right [C, D]` modulo p, `[R, D]`; an empty sum is 0.

    Three products of halves suffice instead of four (Karatsuba). With a = a1 * 2**16 + a0 and the
    same for b, a1 b0 + a0 b1 = (a1 + a0)(b1 + b0) - a1 b1 - a0 b0.

    Raises:
        ValueError: the arguments are not two-dimensional `uint32` arrays of numbers below p that
            fit each other, or a sum has more than 2**24 terms.
    """
    for name, words in (("left", left), ("right", right)):
        if words.ndim != 2 or words.dtype != np.uint32:
            raise ValueError(f"{name} must have dtype uint32 and 2 dimensions")
        if words.size and int(words.max()) >= MODULUS:
            raise ValueError(f"{name} must hold numbers below 2**32 - 5")
    if len(right) != left.shape[1]:
        raise ValueError("right must have as many rows as left has columns")
    if len(right) > MAX_TERMS:
        raise ValueError("a sum must have at most 2**24 terms")
    out = np.zeros((len(left), right.shape[1]), dtype=np.uint32)
    for column in range(0, right.shape[1], _STRIP):
        strip = slice(column, column + _STRIP)
        total = np.zeros(out[:, strip].shape, dtype=np.uint64)
        for term in range(0, len(right), _BLOCK_TERMS):
            terms = slice(term, term + _BLOCK_TERMS)
            total += _product(left[:, terms], right[terms, strip])  # 2**8 blocks below 2**32 each
        out[:, strip] = total % np.uint64(MODULUS)
    return out


def _product(left: Words, right: Words) -> _Wide:
    """The same for at most 2**16 terms, modulo p, as `uint64`."""
    (a0, a1), (b0, b1) = _halves(left), _halves(right)
    lows, highs = a0 @ b0, a1 @ b1
    crossed = (a0 + a1) @ (b0 + b1) - lows - highs
    whole = [part.astype(np.uint64) for part in (lows, crossed, highs)]
    modulus = np.uint64(MODULUS)
    # 2**32 = 5 modulo p; the three terms stay below 2**48, 2**48 and 2**35.
    total = whole[0] + (whole[1] % modulus << np.uint64(16)) + whole[2] % modulus * np.uint64(5)
    return np.asarray(total % modulus, dtype=np.uint64)


def _halves(words: Words) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Low and high 16 bits, as floats."""
    low = np.bitwise_and(words, np.uint32(0xFFFF))
    return low.astype(np.float64), (words >> np.uint32(16)).astype(np.float64)


Word = TypeVar("Word", np.uint32, np.uint64)


def ring_multiply(
    left: npt.NDArray[Word], right: npt.NDArray[Word], num_threads: int = 1
) -> npt.NDArray[Word]:
    """`left [R, C]` times `right [C, D]` modulo 2**32 or 2**64, `[R, D]`; an empty sum is 0.

    Raises:
        ValueError: the arguments are not two-dimensional arrays, both `uint32` or both `uint64`,
            that fit each other.
    """
    kind = "uint64" if left.dtype == np.uint64 else "uint32"
    for name, words in (("left", left), ("right", right)):
        if words.ndim != 2 or words.dtype != kind:
            raise ValueError(f"{name} must have dtype {kind} and 2 dimensions")
    if len(right) != left.shape[1]:
        raise ValueError("right must have as many rows as left has columns")
    return left @ right  # NumPy's integers wrap
