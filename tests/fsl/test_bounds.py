"""The cuckoo rule: its bound, its table, and failures counted by simulation."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.generate import cuckoo_bound as bound
from torchfsl.errors import ParameterError
from torchfsl.fsl.cuckoo.bounds import (
    ALWAYS_SAFE_THETA,
    BINS,
    ITEMS,
    MAX_CUCKOO_ITEMS,
    MIN_CUCKOO_ITEMS,
    choose_layout,
    min_bins,
    stash_for,
)

TARGET = -40.0
COLUMNS = BINS


# --- an oracle: Hall's sum in exact fractions, for permuted positions and a shorter last bin ------


def _product(a: list[int], b: list[int], degree: int) -> list[int]:
    result = [0] * (degree + 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b[: degree + 1 - i]):
            result[i + j] += x * y
    return result


def _crowded(size: int, degree: int) -> list[int]:
    """Ways to choose c >= 2 of the `size` positions of a bin, by c."""
    return [math.comb(size, c) if c >= 2 else 0 for c in range(degree + 1)]


def crowded_probabilities(m: int, theta: int, k: int) -> list[list[Fraction]]:
    """Entry [s][u]: s random distinct positions touch exactly u bins, each at least twice."""
    full, rest = divmod(m, theta)
    one, last = _crowded(theta, k), _crowded(rest, k)
    table = [[Fraction(0)] * (k // 2 + 2) for _ in range(k + 1)]
    power = [1] + [0] * k
    for u in range(k // 2 + 1):
        with_last = _product(power, last, k)  # u full bins and the last one
        for s in range(k + 1):
            table[s][u] += Fraction(math.comb(full, u) * power[s], math.comb(m, s))
            table[s][u + 1] += Fraction(math.comb(full, u) * with_last[s], math.comb(m, s))
        power = _product(power, one, k)
    return table


def halls_sum(m: int, theta: int, k: int, stash: int) -> Fraction:
    each = crowded_probabilities(m, theta, k)
    total = Fraction(0)
    for s in range(4 + stash, k + 1):
        v = s - 1 - stash
        half = s // 2
        for u in range(1, half + 1):
            for w in range(max(1, v - u - half), min(half, v - u - 1) + 1):
                total += math.comb(k, s) * each[s][u] * each[s][w] * each[s][v - u - w]
    return total


@pytest.mark.parametrize("theta", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("full", [3, 4, 7, 12])
def test_small_violators_are_rarer_than_with_independent_hashes(theta: int, full: int) -> None:
    """Lemmas 1 and 3 of cuckoo-bound.md, for every length of the last bin and every s <= full."""
    crowded = np.exp(bound.log_crowded_maps())
    for rest in range(theta):
        m = full * theta + rest
        permuted = crowded_probabilities(m, theta, full)
        for s in range(2, full + 1):
            for u in range(1, s // 2 + 1):
                independent = math.comb(full, u) * round(crowded[s, u])
                assert permuted[s][u] <= Fraction(independent, full**s)


def test_saddle_excess_is_greatest_at_the_smallest_theta() -> None:
    """The numerical step of lemma 2; nothing is added up to a load of 2.15."""
    loads = np.linspace(0.01, bound.MAX_LOAD, 235)
    worst = bound.permutation_excess(loads)
    assert np.all(worst[loads <= 2.15] == 0)
    for theta in [*range(4, 400), *(1 << i for i in range(9, 20))]:
        low, high = bound.SADDLE, 4 * bound.SADDLE
        for _ in range(80):
            x = (low + high) / 2
            value = math.expm1(theta * math.log1p(x / theta)) - x
            low, high = (x, high) if value < bound.SADDLE_COUNT else (low, x)
        share = loads / theta
        collisions = ((1 - share) * np.log1p(-share) + share) / share
        assert np.all(collisions - math.log(high / bound.SADDLE) <= worst + 1e-9)


@pytest.mark.parametrize("stash", [0, 1, 2])
@pytest.mark.parametrize(
    ("m", "theta", "k"),
    [
        (24, 4, 12),
        (27, 4, 14),
        (47, 5, 20),
        (60, 6, 10),
        (63, 8, 16),
        (79, 8, 20),
        (160, 16, 20),
        (175, 16, 22),
        (1200, 100, 18),
        (9999, 1000, 21),
    ],
)
def test_bound_is_never_below_halls_sum(m: int, theta: int, k: int, stash: int) -> None:
    exact = halls_sum(m, theta, k, stash)
    computed = bound._log2_bound(k, m // theta, stash)
    assert exact == 0 or math.log2(exact) <= computed
    if k <= m // theta and theta >= 100:
        assert math.log2(exact) > computed - 1  # and close, where every term is counted exactly


# --- failures counted -----------------------------------------------------------------------------


def _num_unplaced(choices: list[list[int]]) -> int:
    owner: dict[int, int] = {}

    def place(item: int, seen: set[int]) -> bool:
        for candidate in choices[item]:
            if candidate not in seen:
                seen.add(candidate)
                if candidate not in owner or place(owner[candidate], seen):
                    owner[candidate] = item
                    return True
        return False

    return sum(not place(item, set()) for item in range(len(choices)))


def count_failures(m: int, theta: int, k: int, stash: int, trials: int, seed: int) -> int:
    """Random selections of k positions that exact matching cannot place."""
    rng = np.random.default_rng(seed)
    bins_each = -(-m // theta)
    order = [rng.random((trials, m)).argsort(axis=1)[:, :k] for _ in range(3)]
    bins = np.stack([order[i] // theta + i * bins_each for i in range(3)], axis=2)
    cells = bins + 3 * bins_each * np.arange(trials)[:, None, None]
    waiting = np.ones((trials, k), dtype=bool)
    while True:  # an item that has a bin to itself takes it, which never hurts the others
        load = np.bincount(cells[waiting].ravel(), minlength=trials * 3 * bins_each)
        alone = waiting & (load[cells] == 1).any(axis=2)
        if not alone.any():
            break
        waiting &= ~alone
    hard = np.flatnonzero(waiting.sum(axis=1) > 3 + stash)
    return sum(_num_unplaced(bins[t, waiting[t]].tolist()) > stash for t in hard)


def _unlikely_high(expected: float) -> float:
    """A binomial count of this mean or less lies above this with a probability below 1e-6."""
    return expected + 5 * math.sqrt(expected) + 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("m", "theta", "k", "stash"),
    [
        (60, 20, 6, 0),
        (67, 20, 7, 0),  # a shorter last bin
        (160, 40, 9, 0),
        (120, 20, 12, 0),
        (63, 9, 15, 0),
        (90, 30, 7, 1),
        (100, 20, 11, 1),
        (64, 32, 7, 2),
    ],
)
def test_simulated_failures_match_halls_sum(m: int, theta: int, k: int, stash: int) -> None:
    """The sum is an upper bound, and a tight one where a single small violator is the usual cause.

    Rates here are between 2**-7 and 2**-14.
    """
    trials = 60_000
    expected = float(halls_sum(m, theta, k, stash)) * trials
    failures = count_failures(m, theta, k, stash, trials, seed=m)
    assert failures <= _unlikely_high(expected)
    assert expected <= 2 * _unlikely_high(failures)


@pytest.mark.parametrize("theta", [4, 16])
@pytest.mark.parametrize(("k", "stash"), [(24, 0), (64, 0), (64, 1), (200, 0)])
def test_simulated_failures_stay_below_the_bound(k: int, stash: int, theta: int) -> None:
    """At the fewest bins whose bound is 2**-4, and again at those whose bound is 2**-8."""
    for bits in (4, 8):
        bins = next(b for b in range(1, k) if bound.failure_bound(k, b, stash) <= -bits)
        trials = 400_000 // k
        expected = 2 ** bound.failure_bound(k, bins, stash) * trials
        m = max(k, bins * theta + theta // 2)
        assert count_failures(m, m // bins, k, stash, trials, seed=k) <= _unlikely_high(expected)


def test_bins_of_three_positions_never_fail() -> None:
    for m in (9, 30, 90):
        for theta in range(1, ALWAYS_SAFE_THETA + 1):
            assert count_failures(m, theta, m, 0, trials=200, seed=theta) == 0
    assert count_failures(90, ALWAYS_SAFE_THETA + 1, 90, 0, trials=200, seed=0) > 0


# --- the table ------------------------------------------------------------------------------------


def test_table_covers_every_number_of_items() -> None:
    assert list(ITEMS[:512]) == list(range(1, 513))
    assert len(ITEMS) == 512 + 16 * 32
    assert ITEMS[-1] == MAX_CUCKOO_ITEMS == 1 << 25
    assert all(a < b <= a * 33 / 32 for a, b in itertools.pairwise(ITEMS[512:]))
    assert bound.FAILURE_BITS == -TARGET
    for column in COLUMNS:
        assert len(column) == len(ITEMS)


def test_bins_grow_with_items_and_shrink_with_the_stash() -> None:
    for column in COLUMNS:
        assert all(a <= b for a, b in itertools.pairwise(column))
    for fewer, more in itertools.pairwise(COLUMNS):
        assert all(a >= b for a, b in zip(fewer, more, strict=True))


@pytest.mark.parametrize("stash", [0, 1, 2])
def test_table_entries_are_recomputed(stash: int) -> None:
    for k in [*range(1, 129, 3), 140, 256, 416, 1024, 4096, 65536]:
        entry = ITEMS.index(k)
        bins = COLUMNS[stash][entry]
        below = COLUMNS[stash][entry - 1] if entry else 1
        assert bins == bound.least_bins(k, stash, at_least=below)
        assert bound.failure_bound(k, bins, stash) <= TARGET
        assert bins == below or bound.failure_bound(k, bins - 1, stash) > TARGET


@pytest.mark.slow
def test_every_entry_up_to_two_to_the_sixteen_meets_the_target() -> None:
    for stash, column in enumerate(COLUMNS):
        for k, bins in zip(ITEMS, column, strict=True):
            if k <= 1 << 16:
                assert bound.failure_bound(k, bins, stash) <= TARGET


@pytest.mark.parametrize(
    ("k", "stash", "factor"),
    [
        (64, 0, 4.56),
        (64, 1, 2.02),
        (128, 0, 3.13),
        (128, 1, 1.65),
        (256, 1, 1.47),
        (512, 0, 1.45),
        (512, 1, 1.38),
        (1024, 0, 1.343),
        (2048, 0, 1.32),
        (4096, 0, 1.308),
        (8192, 0, 1.303),
        (1 << 20, 0, 1.2963),
        (1 << 25, 0, 1.2962),
    ],
)
def test_bins_an_item_are_near_the_known_factors(k: int, stash: int, factor: float) -> None:
    bins = min_bins(k, stash)
    assert bins is not None
    assert 0.96 * factor <= 3 * bins / k <= factor


def test_items_between_entries_take_the_next_entry() -> None:
    before, after = ITEMS[600], ITEMS[601]
    for stash, column in enumerate(COLUMNS):
        assert min_bins(before, stash) == column[600]
        for k in (before + 1, after - 1, after):
            assert min_bins(k, stash) == column[601]


# --- layouts --------------------------------------------------------------------------------------


@st.composite
def _segments(draw: st.DrawFn) -> tuple[int, int, int | None]:
    k = draw(st.integers(1, 400) | st.integers(1, 30_000))
    m = draw(st.integers(k, k + 40) | st.integers(k, 60 * k) | st.integers(k, 1 << 32))
    return m, k, draw(st.none() | st.integers(0, 2))


@settings(deadline=None, max_examples=300)
@given(_segments())
def test_every_layout_meets_the_target(segment: tuple[int, int, int | None]) -> None:
    m, k, wanted = segment
    stash = stash_for(k) if wanted is None else wanted
    layout = choose_layout(m, k, stash=wanted)
    if layout is None:
        assert k <= 3 + stash or (wanted is None and k < MIN_CUCKOO_ITEMS)
        return
    bins, theta = layout
    assert (bins - 1) * theta < m <= bins * theta
    least = min_bins(k, stash)
    assert least is not None
    if theta > ALWAYS_SAFE_THETA:
        assert m // theta >= least > m // (theta + 1)
        assert bound.failure_bound(k, m // theta, stash) <= TARGET


def test_every_small_index_space_has_a_layout_that_meets_the_target() -> None:
    for m in range(1, 140):
        for k in range(1, m + 1):
            layout = choose_layout(m, k)
            assert (layout is None) == (k < MIN_CUCKOO_ITEMS)
            if layout is not None and layout[1] > ALWAYS_SAFE_THETA:
                assert bound.failure_bound(k, m // layout[1], stash_for(k)) <= TARGET


def test_all_positions_selected_is_placed_without_failure() -> None:
    for m in (64, 100, 1023, 1024, 5000):
        bins, theta = choose_layout(m, m) or (0, 0)
        assert theta == ALWAYS_SAFE_THETA
        assert bins == -(-m // theta)


def test_stash_follows_the_rule() -> None:
    assert [stash_for(k) for k in (1, 63, 64, 1023, 1024, 1 << 20)] == [2, 2, 1, 1, 0, 0]


def test_parameters_out_of_range_are_refused() -> None:
    assert min_bins(MAX_CUCKOO_ITEMS + 1, 0) is None
    for call in (
        lambda: min_bins(0, 0),
        lambda: min_bins(64, 3),
        lambda: min_bins(64, -1),
        lambda: choose_layout(10, 0),
        lambda: choose_layout(10, 11),
        lambda: choose_layout(1000, 100, stash=3),
        lambda: choose_layout(1 << 32, MAX_CUCKOO_ITEMS + 1),
    ):
        with pytest.raises(ParameterError):
            call()
