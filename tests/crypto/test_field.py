"""The field modulo 2**32 - 5: signed integers, bytes, uniform draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchfsl.crypto import field, kdf
from torchfsl.errors import DecodeError, ParameterError

P = field.MODULUS


def test_the_modulus_is_prime() -> None:
    assert all(P % divisor for divisor in range(2, 1 << 16))


@given(st.lists(st.integers(-field.CAPACITY, field.CAPACITY), max_size=50))
def test_signed_integers_come_back(values: list[int]) -> None:
    whole = np.array(values, dtype=np.int64)
    words = field.encode(whole)
    assert words.tolist() == [value % P for value in values]
    assert field.decode(words).tolist() == values


@pytest.mark.parametrize("value", [field.CAPACITY + 1, -field.CAPACITY - 1, 2**63 - 1, -(2**63)])
def test_what_the_field_cannot_tell_apart_is_refused(value: int) -> None:
    with pytest.raises(ParameterError, match="exceeds the field's limit"):
        field.encode(np.array([0, value], dtype=np.int64))


numbers = st.integers(0, P - 1) | st.sampled_from([0, 1, P - 1])


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=30))
@settings(deadline=None)
def test_sums_and_differences_equal_those_of_python(pairs: list[tuple[int, int]]) -> None:
    a, b = (np.array(column, dtype=np.uint32) for column in zip(*pairs, strict=True))
    assert field.add(a, b).tolist() == [(x + y) % P for x, y in pairs]
    assert field.subtract(a, b).tolist() == [(x - y) % P for x, y in pairs]


def test_bytes_come_back_and_wrong_ones_are_refused() -> None:
    words = np.array([0, 1, P - 1], dtype=np.uint32)
    data = field.to_bytes(words)
    assert data == b"\0\0\0\0\1\0\0\0\xfa\xff\xff\xff"
    assert field.from_bytes(data).tolist() == words.tolist()
    assert field.from_bytes(b"").size == 0
    shifted = field.from_bytes(memoryview(b"x" + data)[1:])  # not aligned in memory
    assert shifted.tolist() == words.tolist()
    assert shifted.flags.aligned
    for bad in (P, P + 4):
        with pytest.raises(DecodeError, match="modulus"):
            field.from_bytes(data + bad.to_bytes(4, "little"))
    with pytest.raises(DecodeError, match="whole number"):
        field.from_bytes(data[:-1])


def test_a_shorter_draw_is_a_prefix_of_a_longer_one() -> None:
    key = bytes(range(16))
    long = field.uniform(key, 1000)
    for count in (0, 1, 7, 999):
        assert field.uniform(key, count).tolist() == long[:count].tolist()


def test_words_from_the_modulus_on_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = [P, 7, 2**32 - 1, P + 1, 0, P - 1, P, P, P, P, P, P, P, 9]

    def fixed(key: bytes, size: int) -> np.ndarray:
        words = np.array((stream * 9)[: size // 4], dtype="<u4")
        return words.view(np.uint8)

    monkeypatch.setattr(kdf, "stream", fixed)
    assert field.uniform(b"", 4).tolist() == [7, 0, P - 1, 9]
    assert field.uniform(b"", 12).tolist() == [7, 0, P - 1, 9] * 3


def test_draws_are_uniform() -> None:
    """Chi-square over 256 classes of the top byte and of the value modulo 256; fixed keys."""
    for number in range(3):
        words = field.uniform(bytes([number]) * 16, 1 << 20)
        for classes in (words >> 24, words & 255):
            counts = np.bincount(classes, minlength=256)
            expected = len(words) / 256
            statistic = float(((counts - expected) ** 2 / expected).sum())
            assert 150 < statistic < 380  # 255 degrees of freedom: 4.6 standard deviations
