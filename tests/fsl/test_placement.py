"""The cuckoo table: permutations, layout, exact matching and placement.

How many bins are enough is another matter, see `test_cuckoo_parameters.py`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import tempfile
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.reference import dpf_reference as oracle
from torchfsl.crypto import kdf
from torchfsl.fsl.cuckoo import placement as cuckoo

SEED = bytes(range(32))


def table_of(m: int, label: str = "rows", seed: bytes = SEED) -> cuckoo.Slots:
    return cuckoo.permutations(seed, label, m)


def layout(m: int, theta: int) -> int:
    return 3 * -(-m // theta)


@pytest.mark.parametrize("m", [1, 2, 3, 7, 64, 1000])
def test_each_sub_table_is_a_permutation_of_all_rows(m: int) -> None:
    table = table_of(m)
    assert table.shape == (3, m)
    for row in table:
        assert np.array_equal(np.sort(row), np.arange(m))


def test_permutations_are_fixed_by_seed_name_size_and_sub_table() -> None:
    base = table_of(500)
    assert np.array_equal(base, table_of(500))
    assert len({row.tobytes() for row in base}) == 3
    assert not np.array_equal(base, table_of(500, label="other"))
    assert not np.array_equal(base, table_of(500, seed=bytes(32)))
    assert not np.array_equal(base[:, :499], table_of(499))


def test_the_shared_permutations_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        table_of(50)[0, 0] = 1


def test_permutations_look_uniform() -> None:
    """Each of the 24 orders of 4 rows comes up; mean over 2400 draws, within 6 deviations."""
    counts: dict[bytes, int] = {}
    for i in range(800):
        for row in cuckoo.permutations.__wrapped__(i.to_bytes(32, "little"), "x", 4):
            counts[row.tobytes()] = counts.get(row.tobytes(), 0) + 1
    assert len(counts) == 24
    assert max(abs(count - 100) for count in counts.values()) < 6 * 10


@given(st.integers(1, 300), st.data())
def test_a_row_has_three_different_candidate_bins_and_one_place_in_each(
    m: int, data: st.DataObject
) -> None:
    theta = data.draw(st.integers(1, m))
    num_bins, table = layout(m, theta), table_of(m)
    bins = cuckoo.candidates(table, np.arange(m), num_bins, theta)
    assert bins.shape == (3, m)
    for i in range(3):
        assert np.all(bins[i] // (num_bins // 3) == i)
        _, sizes = np.unique(bins[i], return_counts=True)
        assert sizes.max() <= theta
    places = bins.astype(np.int64) * theta + table % theta
    assert len(np.unique(places)) == 3 * m


@given(st.integers(1, 200), st.integers(0, 3), st.data())
def test_the_bin_layout_puts_every_row_into_a_slot_of_its_own(
    m: int, nu: int, data: st.DataObject
) -> None:
    theta = data.draw(st.integers(1, m))
    padded = -(-theta >> nu) << nu
    table = table_of(m)
    slots = cuckoo.bin_slots(table, theta, padded)
    bins = cuckoo.candidates(table, np.arange(m), layout(m, theta), theta)
    assert np.array_equal(slots, bins * padded + table % theta)
    assert len(np.unique(slots)) == 3 * m
    assert slots.max() < layout(m, theta) * padded


@st.composite
def matchings(draw: st.DrawFn) -> tuple[list[tuple[int, int, int]], int]:
    bins_each = draw(st.integers(1, 6))
    one = st.integers(0, bins_each - 1)
    item = st.tuples(one, one, one)
    items = draw(st.lists(item, max_size=20))
    return [(a, bins_each + b, 2 * bins_each + c) for a, b, c in items], 3 * bins_each


def as_candidates(items: list[tuple[int, int, int]]) -> cuckoo.Slots:
    return np.ascontiguousarray(np.array(items, dtype=np.uint32).reshape(-1, 3).T)


@given(matchings())
def test_matching_is_that_of_the_oracle(case: tuple[list[tuple[int, int, int]], int]) -> None:
    items, num_bins = case
    found = cuckoo.match(as_candidates(items), num_bins).tolist()
    assert found == oracle.match(items, num_bins)
    placed = [b for b in found if b >= 0]
    assert len(set(placed)) == len(placed)
    assert all(b < 0 or b in items[i] for i, b in enumerate(found))


def matchable(items: list[tuple[int, int, int]]) -> bool:
    """Hall's condition over every subset."""
    return all(
        len({b for item in group for b in item}) >= size
        for size in range(1, len(items) + 1)
        for group in itertools.combinations(items, size)
    )


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(2, 3), st.integers(4, 5)), max_size=8))
def test_matching_leaves_an_item_out_only_where_no_rearrangement_makes_room(
    items: list[tuple[int, int, int]],
) -> None:
    found = cuckoo.match(as_candidates(items), 6).tolist()
    kept: list[tuple[int, int, int]] = []
    for item, place in zip(items, found, strict=True):
        if place >= 0:
            kept.append(item)
            assert matchable(kept)
        else:
            assert not matchable([*kept, item])


@given(st.integers(1, 120), st.integers(0, 3), st.data())
def test_placement_puts_every_item_once_into_a_tree_that_holds_it(
    m: int, stash: int, data: st.DataObject
) -> None:
    theta = data.draw(st.integers(1, m))
    rows = data.draw(st.lists(st.integers(0, m - 1), unique=True, max_size=m))
    num_bins, table = layout(m, theta), table_of(m)
    indices = np.array(rows, dtype=np.int64)
    placement = cuckoo.place(table, indices, num_bins, theta, stash)
    assert placement.item.shape == placement.position.shape == (num_bins + stash,)
    used = placement.item[placement.item >= 0]
    assert sorted([*used.tolist(), *placement.unmatched.tolist()]) == list(range(len(rows)))
    assert len(placement.unmatched) == 0 or np.all(placement.item[num_bins:] >= 0)
    for tree in np.flatnonzero(placement.item >= 0):
        row, position = indices[placement.item[tree]], int(placement.position[tree])
        if tree >= num_bins:
            assert position == row
        else:
            sub_table, bin_number = divmod(int(tree), num_bins // 3)
            assert table[sub_table, row] == bin_number * theta + position
            assert position < theta
    assert np.all(placement.position[placement.item < 0] == 0)


def test_the_heaviest_items_keep_their_places() -> None:
    """Items come in order of preference: those left out are the last that could not fit."""
    m, theta = 40, 20
    table, num_bins = table_of(m), layout(m, theta)
    order = np.arange(m)[::-1].copy()
    placement = cuckoo.place(table, order, num_bins, theta, 2)
    assert len(placement.unmatched) == m - num_bins - 2
    assert np.array_equal(np.sort(placement.unmatched), placement.unmatched)
    assert {0, 1, 2} <= set(placement.item.tolist())


def test_without_bins_each_item_has_a_tree_over_the_whole_space() -> None:
    indices = np.array([5, 0, 17])
    placement = cuckoo.place(None, indices, 0, 0, 4)
    assert placement.item.tolist() == [0, 1, 2, -1]
    assert placement.position.tolist() == [5, 0, 17, 0]
    assert len(placement.unmatched) == 0


def test_a_placement_does_not_print_where_rows_went() -> None:
    placement = cuckoo.place(None, np.array([123456, 654321]), 0, 0, 2)
    assert "123456" not in repr(placement)
    assert "item" not in repr(placement)


@settings(max_examples=60, deadline=None)
@given(m=st.integers(1, 300), at_once=st.integers(1, 40), data=st.data())
def test_rows_at_some_places_are_those_of_the_permutation(
    m: int, at_once: int, data: st.DataObject
) -> None:
    low, high = sorted((data.draw(st.integers(0, m)), data.draw(st.integers(0, m))))
    whole = cuckoo.permutations(bytes(32), "t", m)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuckoo, "_KEYS_AT_ONCE", at_once)
        for i in range(3):
            rows, places = cuckoo.rows_at(bytes(32), "t", m, i, range(low, high))
            assert np.array_equal(rows, np.flatnonzero((whole[i] >= low) & (whole[i] < high)))
            assert np.array_equal(places, whole[i][rows])


def test_rows_at_some_places_break_ties_as_the_permutation_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys of two bits: most are equal."""
    kept = kdf.stream
    monkeypatch.setattr(kdf, "stream", lambda *a, **b: few(kept(*a, **b)))

    def few(found: Any) -> Any:
        return (found.view("<u8") & np.uint64(3)).view(np.uint8)

    whole = cuckoo.permutations(bytes([7]) * 32, "ties", 100)
    for low in range(0, 100, 10):
        rows, places = cuckoo.rows_at(bytes([7]) * 32, "ties", 100, 1, range(low, low + 10))
        assert np.array_equal(whole[1][rows], places)
        assert sorted(places) == [*range(low, low + 10)]


def test_large_permutations_lie_in_a_file_and_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed = bytes(range(32))
    expected = cuckoo.permutations(seed, "t", 5_000)
    cuckoo.set_aside(expected)  # nothing to give back
    monkeypatch.setattr(cuckoo, "IN_MEMORY_BYTES", 12 * 5_000 - 1)
    cuckoo.permutations.cache_clear()
    try:
        table = cuckoo.permutations(seed, "t", 5_000)
        assert not table.flags.writeable
        assert isinstance(cuckoo._mapping_of(table[1, 3:]), mmap.mmap)
        assert cuckoo._mapping_of(expected) is None
        for _ in range(2):
            np.testing.assert_array_equal(table, expected)
            cuckoo.set_aside(table[1, 3:])  # a view is as good
    finally:
        cuckoo.permutations.cache_clear()


def test_a_full_folder_for_permutations_is_named_and_with_room_they_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed, written = bytes(range(32)), []
    expected = cuckoo.permutations(seed, "t", 5_000)
    make = tempfile.TemporaryFile

    def full(**options: Any) -> Any:
        file = make(**options)

        def write(data: Any) -> int:
            if written:
                raise OSError(errno.ENOSPC, "No space left on device")
            written.append(1)
            return int(file.write(data[:100]))

        return contextlib.nullcontext(mock.Mock(write=write, fileno=file.fileno))

    monkeypatch.setattr(cuckoo, "IN_MEMORY_BYTES", 12 * 5_000 - 1)
    cuckoo.permutations.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "TemporaryFile", full)
            with pytest.raises(OSError, match="No space left") as caught:
                cuckoo.permutations(seed, "t", 5_000)
        (note,) = caught.value.__notes__
        assert "take 60000 bytes" in note
        assert "set TMPDIR" in note
        np.testing.assert_array_equal(cuckoo.permutations(seed, "t", 5_000), expected)
    finally:
        cuckoo.permutations.cache_clear()
