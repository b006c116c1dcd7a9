"""The recursion of correlated noise, beside its reference and beside what a peer sees."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.reference import correlated_noise as reference
from torchfsl.errors import ProtocolError
from torchfsl.submodel.correlated_noise import CorrelatedNoise
from torchfsl.submodel.taps import optimise

Whole = npt.NDArray[np.int64]


class Given:
    """Draws that are known, in order; notes with which sigma it was asked."""

    def __init__(self, draws: Whole) -> None:
        self.rest = iter(draws.reshape(-1).tolist())
        self.sigmas: list[int] = []

    def __call__(self, sigma: int, count: int) -> Whole:
        self.sigmas.append(sigma)
        return np.array(list(itertools.islice(self.rest, count)), dtype=np.int64)


def played(taps: tuple[int, ...], draws: Whole, cuts: tuple[int, ...]) -> Whole:
    """What is added in each round, in pieces that end at `cuts`."""
    noise = CorrelatedNoise(taps, draws.shape[1], Given(draws))
    added = []
    for index in range(len(draws)):
        noise.begin(index)
        pieces = np.diff([0, *cuts, draws.shape[1]])
        added.append(np.concatenate([noise(5, int(count)) for count in pieces]))
        assert np.array_equal(noise.slots[index % len(taps)], added[-1])
    return np.array(added)


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], int, Whole, Whole]:
    bits = draw(st.integers(4, 8))
    tap = st.integers(-(1 << bits), 1 << bits)
    taps = (1 << bits, *draw(st.lists(tap, min_size=1, max_size=6)))
    seed = draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    rounds, values = draw(st.integers(1, 15)), draw(st.integers(1, 5))
    draws = rng.integers(-(1 << 16), 1 << 16, size=(rounds, values))
    return taps, bits, draws, rng.integers(-1000, 1000, size=(rounds, values))


@given(cases())
@settings(deadline=None)
def test_every_round_adds_what_the_reference_says(
    case: tuple[tuple[int, ...], int, Whole, Whole],
) -> None:
    taps, bits, draws, _ = case
    expected = reference.noises(draws, taps, bits)
    if np.abs(expected).max() < 1 << 31:
        assert np.array_equal(played(taps, draws, ()), expected)


@given(cases())
@settings(deadline=None)
def test_a_peer_sees_the_strategy_times_the_sums_and_a_fresh_draw(
    case: tuple[tuple[int, ...], int, Whole, Whole],
) -> None:
    """The lemma: round t depends on the sums by (C x)_t alone, given what opened before."""
    taps, bits, draws, sums = case
    opened = sums + reference.noises(draws, taps, bits)
    for t in range(len(draws)):
        assert np.array_equal(opened[t], reference.sees(opened, sums, draws, taps, bits, t))


def test_pieces_of_a_share_and_long_shares_change_nothing() -> None:
    taps = optimise(30, 9).taps(8)
    draws = np.random.default_rng(0).integers(-(1 << 20), 1 << 20, size=(12, 140_000))
    expected = reference.noises(draws, taps, 8)
    assert np.array_equal(played(taps, draws, (3, 3, 70_000)), expected)


def test_the_draw_is_on_the_grid_of_the_taps() -> None:
    given_draws = Given(np.zeros((1, 4), dtype=np.int64))
    noise = CorrelatedNoise((32, 7), 4, given_draws)
    noise.begin(0)
    noise(100, 3)
    noise(9, 1)
    assert given_draws.sigmas == [3200, 288]


def test_a_round_that_is_tried_again_has_fresh_noise_and_leaves_no_trace() -> None:
    taps, rng = (16, 12, 8), np.random.default_rng(1)
    draws = rng.integers(-5000, 5000, size=(8, 6))
    failed = rng.integers(-5000, 5000, size=6)
    asked = np.concatenate([draws[:5], failed[None], draws[5:]])
    noise = CorrelatedNoise(taps, 6, Given(asked))
    added = []
    for index in (0, 1, 2, 3, 4, 5, 5, 6, 7):
        noise.begin(index)
        added.append(noise(1, 6))
    del added[5]  # with the draw that never left
    assert np.array_equal(added, reference.noises(draws, taps, 4))


def test_a_slot_that_is_not_the_one_held_counts_as_zero() -> None:
    taps = (16, 12, 8)
    draws = np.random.default_rng(2).integers(-5000, 5000, size=(6, 3))
    noise = CorrelatedNoise(taps, 3, Given(draws))
    for index in range(6):
        if index == 4:
            noise.held = [-1] * 3  # all is forgotten: the last rounds begin anew
        noise.begin(index)
        last = noise(1, 3)
    assert np.array_equal(last, reference.noises(draws[4:], taps, 4)[-1])


def test_a_slot_of_an_earlier_round_does_not_count_in_place_of_a_later_one() -> None:
    taps = (16, 12, 8)
    draws = np.random.default_rng(3).integers(-5000, 5000, size=(3, 3))
    noise = CorrelatedNoise(taps, 3, Given(draws))
    for index in (0, 1, 5):  # in the slots of rounds 3 and 4 are those of rounds 0 and 1
        noise.begin(index)
        last = noise(1, 3)
    assert np.array_equal(last, reference.noises(draws[2:], taps, 4)[0])


def test_a_value_beyond_32_bits_ends_the_attempt() -> None:
    noise = CorrelatedNoise((16, 0), 1, lambda _, count: np.full(count, 1 << 35))
    noise.begin(0)
    with pytest.raises(ProtocolError, match="32 bits"):
        noise(1, 1)
