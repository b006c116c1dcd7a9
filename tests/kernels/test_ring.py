"""Ring arithmetic on packed bytes against Python's integers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.kernels import ring
from torchfsl.kernels.ring import RING_BITS


def pack(values: list[int], bits: int) -> npt.NDArray[np.uint8]:
    data = b"".join((v % (1 << bits)).to_bytes(bits // 8, "little") for v in values)
    return np.frombuffer(data, dtype=np.uint8).reshape(len(values), bits // 8)


def unpack(array: npt.NDArray[np.uint8]) -> list[int]:
    flat = array.reshape(-1, array.shape[-1])
    return [int.from_bytes(row.tobytes(), "little") for row in flat]


def edges(bits: int) -> list[int]:
    """Values at which a carry or a sign goes wrong first."""
    points = {0, 1, 2, 255, 256, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1}
    for power in (8, 16, 24, 32, 48, 63, 64, 65, 127):
        if power < bits:
            points |= {1 << power, (1 << power) - 1, (1 << bits) - (1 << power)}
    return sorted(points)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[int, list[int], list[int]]:
    bits = draw(st.sampled_from(RING_BITS))
    value = st.one_of(st.integers(0, (1 << bits) - 1), st.sampled_from(edges(bits)))
    size = draw(st.integers(0, 6))
    same = st.lists(value, min_size=size, max_size=size)
    return bits, draw(same), draw(same)


@pytest.mark.parametrize("bits", RING_BITS)
def test_every_pair_of_edge_values_adds_and_subtracts_modulo_the_ring(bits: int) -> None:
    points = edges(bits)
    left = pack([a for a in points for _ in points], bits)
    right = pack([b for _ in points for b in points], bits)
    modulus = 1 << bits
    assert unpack(ring.add(left, right)) == [(a + b) % modulus for a in points for b in points]
    assert unpack(ring.sub(left, right)) == [(a - b) % modulus for a in points for b in points]
    assert unpack(ring.neg(pack(points, bits))) == [-a % modulus for a in points]


@given(pairs())
def test_the_ring_operations_are_those_of_the_integers(
    case: tuple[int, list[int], list[int]],
) -> None:
    bits, a, b = case
    x, y, modulus = pack(a, bits), pack(b, bits), 1 << bits
    assert unpack(ring.add(x, y)) == [(i + j) % modulus for i, j in zip(a, b, strict=True)]
    assert unpack(ring.sub(x, y)) == [(i - j) % modulus for i, j in zip(a, b, strict=True)]
    assert unpack(ring.neg(x)) == [-i % modulus for i in a]
    assert np.array_equal(ring.from_words(ring.to_words(x), bits // 8), x)


@pytest.mark.parametrize("bits", RING_BITS)
def test_addition_leaves_its_operands_alone_and_gives_contiguous_bytes(bits: int) -> None:
    x, y = pack(edges(bits), bits), pack(edges(bits)[::-1], bits)
    before = (x.copy(), y.copy())
    x.flags.writeable = y.flags.writeable = False
    total = ring.add(x, y)
    assert total.flags.c_contiguous
    assert total.dtype == np.uint8
    assert np.array_equal(x, before[0])
    assert np.array_equal(y, before[1])


@pytest.mark.parametrize("bits", RING_BITS)
def test_operands_broadcast_over_leading_axes_and_may_be_strided(bits: int) -> None:
    points = edges(bits)
    row, column = pack(points, bits)[None], pack(points, bits)[:, None]
    grid = ring.add(column, row)
    assert grid.shape == (len(points), len(points), bits // 8)
    assert unpack(grid) == [(a + b) % (1 << bits) for a in points for b in points]
    other = ring.add(np.repeat(pack(points, bits), 2, axis=0)[::2], pack(points, bits))
    assert unpack(other) == [2 * a % (1 << bits) for a in points]


@pytest.mark.parametrize("bits", RING_BITS)
def test_signed_integers_survive_the_ring(bits: int) -> None:
    limit = 1 << (min(bits, 64) - 1)
    values = np.array([0, 1, -1, 2, -2, limit - 1, -limit, 12345, -12345], dtype=np.int64)
    packed = ring.from_int64(values, bits)
    assert packed.shape == (len(values), bits // 8)
    assert unpack(packed) == [int(v) % (1 << bits) for v in values]
    back = ring.to_int64(packed)
    assert back.dtype == np.int64
    assert np.array_equal(back, values)


@pytest.mark.parametrize("bits", [b for b in RING_BITS if b < 64])
def test_an_integer_outside_the_ring_is_refused_not_wrapped(bits: int) -> None:
    limit = 1 << (bits - 1)
    for value in (limit, -limit - 1, 2**63 - 1, -(2**63)):
        with pytest.raises(ParameterError, match="exceeds"):
            ring.from_int64(np.array([0, value]), bits)


def test_a_128_bit_sum_beyond_64_bits_is_a_protocol_error() -> None:
    for value in (1 << 63, 1 << 64, -(1 << 63) - 1, 1 << 127, (1 << 127) - 1):
        with pytest.raises(ProtocolError, match="64 bits"):
            ring.to_int64(pack([0, value], 128))


@pytest.mark.parametrize("bits", [0, -8, 8, 12, 33, 56, 96, 256])
def test_an_unknown_ring_width_is_refused(bits: int) -> None:
    with pytest.raises(ParameterError, match="ring_bits"):
        ring.ring_bytes(bits)


@pytest.mark.parametrize("bits", RING_BITS)
def test_empty_arrays_pass_through(bits: int) -> None:
    empty = ring.from_int64(np.empty((0, 3), dtype=np.int64), bits)
    assert empty.shape == (0, 3, bits // 8)
    assert ring.add(empty, empty).shape == empty.shape
    assert ring.to_int64(empty).shape == (0, 3)
