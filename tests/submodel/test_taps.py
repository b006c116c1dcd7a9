"""Taps of correlated noise: the best ones, and what is refused."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pytest

from tests.support.errors import raises
from torchfsl.crypto.discrete_gaussian import MAX_SIGMA
from torchfsl.errors import ParameterError
from torchfsl.submodel import taps

# By rounds and band: error, |c|, and the gain over independent noise.
KNOWN = {(89, 22): (2.4555, 1.5219, 2.73), (89, 11): (2.7692, 1.5381, 2.42)}
GAINS = {(97, 12): 2.505, (97, 6): 2.080}


def independent(rounds: int) -> float:
    """Error of independent noise: the mean square of a sum of t draws over t."""
    return math.sqrt((rounds + 1) / 2)


@pytest.mark.parametrize(("rounds", "band"), KNOWN)
def test_the_best_strategy_has_the_published_error_and_norm(rounds: int, band: int) -> None:
    error, norm, gain = KNOWN[rounds, band]
    best = taps.optimise(rounds, band)
    assert best.error == pytest.approx(error, rel=3e-5)
    assert float(np.linalg.norm(best.coefficients)) == pytest.approx(norm, rel=5e-5)
    assert independent(rounds) / best.error == pytest.approx(gain, abs=0.005)


@pytest.mark.parametrize(("rounds", "band"), GAINS)
def test_other_bands_gain_what_they_should(rounds: int, band: int) -> None:
    gain = independent(rounds) / taps.optimise(rounds, band).error
    assert gain == pytest.approx(GAINS[rounds, band], abs=0.005)


@pytest.mark.parametrize(("rounds", "band"), KNOWN)
def test_the_error_is_that_of_the_matrices_themselves(rounds: int, band: int) -> None:
    best = taps.optimise(rounds, band)
    strategy = sum(c * np.eye(rounds, k=-lag) for lag, c in enumerate(best.coefficients))
    rows = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(strategy)
    norm = np.linalg.norm(best.coefficients)
    assert best.error == pytest.approx(norm * math.sqrt((rows**2).sum() / rounds), rel=1e-9)
    whole = best.taps(8)
    column = np.linalg.inv(strategy)[:, 0]
    assert taps.growth(whole, rounds) == pytest.approx(np.linalg.norm(column), rel=2e-3)


@pytest.mark.parametrize(("rounds", "band"), [*KNOWN, *GAINS])
def test_jax_privacy_finds_no_better_strategy(rounds: int, band: int) -> None:
    pytest.importorskip("jax_privacy", reason="compares with jax_privacy where it is installed")
    peer = importlib.import_module("jax_privacy.matrix_factorization.toeplitz")
    theirs = np.asarray(peer.optimize_banded_toeplitz(rounds, band))
    ours = taps.optimise(rounds, band).coefficients
    square = float(peer.minsep_sensitivity_squared(ours, min_sep=band, max_participations=4))
    assert square == pytest.approx(4 * float(ours @ ours), rel=1e-9)
    scaled = theirs / theirs[0]
    theirs_error = math.exp(taps._log_error(scaled[1:], rounds)[0] / 2)
    assert taps.optimise(rounds, band).error == pytest.approx(theirs_error, rel=1e-3)


def test_rounding_taps_to_the_grid_loses_next_to_nothing() -> None:
    best = taps.optimise(89, 22)
    rounded = np.array(best.taps(8)) / 256
    error = math.exp(taps._log_error(rounded[1:], 89)[0] / 2)
    assert error / best.error < 1.0001


def test_a_band_of_one_is_independent_noise() -> None:
    assert taps.optimise(50, 1).error == pytest.approx(independent(50))
    assert taps.norm(()) == taps.growth((), 50) == 1.0


@pytest.mark.parametrize(
    ("given", "sigma"),
    [
        ((256,), 9),
        ((256,) * 65, 9),
        ((255, 3), 9),
        ((8, 3), 9),
        ((512, 3), 9),
        ((256, 257), 9),
        ((256, -257), 9),
        ((256, 1.5), 9),
        ((256, True), 9),
        (("256", 3), 9),
        ((None, None), 9),
        ((256, 128), MAX_SIGMA // 256 + 1),
    ],
)
def test_taps_out_of_range_are_refused(given: tuple[int, ...], sigma: int) -> None:
    with raises(ParameterError, "invalid-taps"):
        taps.check_taps(given, sigma, 100)


def test_tasks_of_too_many_rounds_are_refused_before_taps_are_chosen() -> None:
    with raises(ParameterError, "invalid-taps"):
        taps.optimise((1 << 20) + 1, 22)


def test_a_long_task_takes_the_taps_of_a_shorter_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taps, "_LONGEST", 40)
    taps.optimise.cache_clear()
    assert taps.optimise(1 << 20, 5).taps(8) == taps.optimise(40, 5).taps(8)
    taps.optimise.cache_clear()


def test_taps_whose_noise_explodes_are_refused() -> None:
    taps.check_taps((16, -16, 16), 1000, 3)
    with raises(ParameterError, "invalid-taps"):
        taps.check_taps((16, -16, -16), 1000, 60)  # as Fibonacci's numbers


def test_taps_get_as_many_bits_as_the_sampler_has_room_for() -> None:
    assert taps.fraction_bits(MAX_SIGMA >> 8) == 8
    assert taps.fraction_bits((MAX_SIGMA >> 8) + 1) == 7
    assert taps.fraction_bits(MAX_SIGMA >> 4) == 4
    assert taps.fraction_bits(MAX_SIGMA) == 4  # too few all the same: `check_taps` refuses
