"""Arithmetic in the ring of integers modulo 2**l on packed little-endian bytes.

A ring array is `uint8[..., l/8]`, C-contiguous: the last axis is one value, little-endian. The
wire, the two backends and the accumulators share this layout, so nothing is ever converted on the
way. Signed integers enter and leave as two's complement.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.types import Bytes

RING_BITS: Final = (16, 24, 32, 48, 64, 128)
"""Supported ring widths l; the ring is the integers modulo 2**l."""

Words = npt.NDArray[np.unsignedinteger]

_NATIVE_WORD: Final[dict[int, np.dtype[np.unsignedinteger]]] = {
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}
_WIDENED: Final = {3: 4, 6: 8}


def ring_bytes(ring_bits: int) -> int:
    """Bytes of one ring value.

    Raises:
        ParameterError: `ring_bits` is not one of `config.RING_BITS`.
    """
    if ring_bits not in RING_BITS:
        raise ParameterError(f"ring_bits is {ring_bits!r}: choose one of {RING_BITS}")
    return ring_bits // 8


def to_words(values: Bytes) -> Words:
    """Unsigned words holding the values: shape `[...]`, or `[..., 2]` (low, high) for l = 128.

    For l = 16, 32, 64 and 128 this is a view; 24- and 48-bit values are copied into wider words,
    whose top bits are zero. Sums of words are right modulo 2**l once written back by `from_words`.
    """
    width = values.shape[-1]
    if width == 16:
        return np.ascontiguousarray(values).view("<u8")
    if width in _NATIVE_WORD:
        return np.ascontiguousarray(values).view(_NATIVE_WORD[width])[..., 0]
    wide = np.zeros((*values.shape[:-1], _WIDENED[width]), dtype=np.uint8)
    wide[..., :width] = values
    return wide.view(_NATIVE_WORD[_WIDENED[width]])[..., 0]


def from_words(words: Words, width: int) -> Bytes:
    """Inverse of `to_words`; bits above l are dropped. `width` is l/8."""
    if width == 16:
        return np.ascontiguousarray(words, dtype="<u8").view(np.uint8)
    word = _NATIVE_WORD[_WIDENED.get(width, width)]
    packed = np.ascontiguousarray(words, dtype=word)[..., None].view(np.uint8)
    return np.ascontiguousarray(packed[..., :width])


def add(a: Bytes, b: Bytes) -> Bytes:
    """`a + b` modulo 2**l, with broadcasting over the leading axes."""
    width = a.shape[-1]
    x, y = to_words(a), to_words(b)
    total = x + y
    if width == 16:
        total[..., 1] += total[..., 0] < x[..., 0]
    return from_words(total, width)


def neg(a: Bytes) -> Bytes:
    """`-a` modulo 2**l."""
    words = to_words(a)
    if a.shape[-1] == 16:
        flipped = ~words
        flipped[..., 0] += np.uint64(1)
        flipped[..., 1] += flipped[..., 0] == 0
        return from_words(flipped, 16)
    return from_words(~words + words.dtype.type(1), a.shape[-1])


def sub(a: Bytes, b: Bytes) -> Bytes:
    """`a - b` modulo 2**l, with broadcasting over the leading axes."""
    return add(a, neg(b))


def from_int64(values: npt.NDArray[np.int64], bits: int) -> Bytes:
    """Signed integers as ring values; shape `[...]` becomes `[..., l/8]`.

    Raises:
        ParameterError: a value lies outside [-2**(l-1), 2**(l-1)).
    """
    width = ring_bytes(bits)
    values = np.asarray(values, dtype=np.int64)
    if bits < 64 and values.size:
        limit = 1 << (bits - 1)
        if int(values.min()) < -limit or int(values.max()) >= limit:
            raise ParameterError(
                f"a value exceeds the {bits}-bit ring's limit {limit - 1}: use more ring_bits or "
                "a smaller clip"
            )
    if width == 16:
        words = np.empty((*values.shape, 2), dtype="<i8")
        words[..., 0] = values
        words[..., 1] = values >> 63
        return words.view(np.uint8)
    low = np.ascontiguousarray(values, dtype="<i8")[..., None].view(np.uint8)
    return np.ascontiguousarray(low[..., :width])


def fits_int64(values: Bytes) -> npt.NDArray[np.bool_]:
    """Which ring values fit 64 bits as signed integers, shape `[...]`; others have 128 bits."""
    if values.shape[-1] != 16:
        return np.ones(values.shape[:-1], dtype=np.bool_)
    words = to_words(values)
    return np.asarray(words[..., 1].view("<i8") == words[..., 0].view("<i8") >> 63)


def to_int64(values: Bytes) -> npt.NDArray[np.int64]:
    """Ring values as signed integers; shape `[..., l/8]` becomes `[...]`.

    Raises:
        ProtocolError: a 128-bit value does not fit 64 bits, which no honest sum under the plan's
            overflow rule produces.
    """
    width = values.shape[-1]
    words = to_words(values)
    if width == 16:
        low = words[..., 0].astype("<u8").view("<i8")
        high = words[..., 1].astype("<u8").view("<i8")
        if np.any(high != (low >> 63)):
            raise ProtocolError(
                "the aggregate exceeds 64 bits, so a client has sent an invalid report"
            )
        return np.asarray(low, dtype=np.int64)
    word = words.dtype.itemsize
    shift = 8 * (word - width)
    if not shift:
        return words.view(f"<i{word}").astype(np.int64)
    signed = np.left_shift(words, words.dtype.type(shift)).view(f"<i{word}")
    return np.asarray(signed >> shift, dtype=np.int64)
