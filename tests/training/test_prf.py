from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.prf import Stream


def test_the_stream_is_shake_256_of_seed_and_path() -> None:
    parts = [b"torchfsl training prf", b"i7", b"scohort", b"i3"]
    key = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    expected = hashlib.shake_256(key + bytes(8)).digest(256)
    expected += hashlib.shake_256(key + (1).to_bytes(8, "little")).digest(1 << 16)
    assert Stream(7, "cohort", 3).bytes(1000) == expected[:1000]


@given(st.lists(st.integers(0, 70_000), max_size=6))
def test_pieces_of_a_stream_join_to_the_stream(sizes: list[int]) -> None:
    stream, whole = Stream(1, "pieces"), Stream(1, "pieces")
    assert b"".join(stream.bytes(size) for size in sizes) == whole.bytes(sum(sizes))


def test_other_paths_and_kinds_of_labels_give_other_streams() -> None:
    paths = [(), ("a",), ("a", 1), ("a", "1"), ("a1",), ("a", 1, 2), ("a", 12), (1, "a")]
    assert len({Stream(0, *path).bytes(16) for path in paths}) == len(paths)
    assert Stream(0, "a").bytes(16) != Stream(1, "a").bytes(16)


@given(st.integers(1, 1 << 32), st.integers(0, 50))
def test_integers_lie_below_the_bound(bound: int, count: int) -> None:
    drawn = Stream(0, bound).integers(bound, count)
    assert drawn.shape == (count,)
    assert ((drawn >= 0) & (drawn < bound)).all()


def test_integers_are_uniform() -> None:
    counts = np.bincount(Stream(0, "uniform").integers(10, 100_000), minlength=10)
    assert np.abs(counts - 10_000).max() < 500


@given(st.integers(0, 200), st.data())
def test_choice_is_sorted_and_distinct(population: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, population))
    chosen = Stream(0, "choice").choice(population, count)
    assert len(np.unique(chosen)) == count
    assert (np.diff(chosen) > 0).all()
    assert ((chosen >= 0) & (chosen < population)).all()


def test_normal_has_mean_zero_and_deviation_one() -> None:
    values = Stream(0, "normal").normal(100_000)
    assert abs(values.mean()) < 0.02
    assert abs(values.std() - 1.0) < 0.02


def test_too_much_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot choose count = 3 from population = 2"):
        Stream(0).choice(2, 3)
    with pytest.raises(ValueError, match="bound is 0"):
        Stream(0).integers(0, 1)
    with pytest.raises(ValueError, match="seed is -1"):
        Stream(-1)
