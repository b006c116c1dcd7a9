"""The sampler of the discrete Gaussian has exactly that distribution."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.distributions import assert_fits, pmf, seeded
from torchfsl.crypto import discrete_gaussian
from torchfsl.crypto.discrete_gaussian import MAX_SIGMA
from torchfsl.errors import ParameterError

Whole = npt.NDArray[np.int64]


@pytest.mark.parametrize("sigma", [1, 2, 3, 5, 16])
def test_draws_have_the_exact_distribution(sigma: int) -> None:
    draws = discrete_gaussian.sample(sigma, 400_000)
    values, counts = np.unique(draws, return_counts=True)
    observed = dict(zip(values.tolist(), counts.tolist(), strict=True))
    assert_fits(observed, pmf(sigma, 40 * sigma))


@pytest.mark.parametrize("sigma", [1, 2, 7, 1000, 1 << 20, MAX_SIGMA])
def test_variance_and_kurtosis_are_those_asked_for(sigma: int) -> None:
    count = 300_000
    scaled = discrete_gaussian.sample(sigma, count) / sigma
    if sigma < 10:
        exact = pmf(sigma, 40 * sigma)
        variance = math.fsum(p * y * y for y, p in exact.items()) / sigma**2
    else:
        variance = 1.0
    # Seven standard deviations of the mean, the second and the fourth moment: p < 1e-11 each.
    assert abs(scaled.mean()) < 7 * math.sqrt(variance / count)
    assert abs((scaled**2).mean() - variance) < 7 * math.sqrt(2.1 / count)
    assert abs((scaled**4).mean() - 3 * variance**2) < 7 * math.sqrt(100 / count) + 0.01


def test_draws_are_independent_of_their_neighbours() -> None:
    draws = discrete_gaussian.sample(1000, 400_000) / 1000
    for lag in (1, 2, 7):
        assert abs((draws[lag:] * draws[:-lag]).mean()) < 7 / math.sqrt(len(draws))


def test_large_sigmas_fill_the_low_bits_evenly() -> None:
    draws = discrete_gaussian.sample(1 << 20, 200_000)
    for modulus in (2, 3, 16):
        values, counts = np.unique(draws % modulus, return_counts=True)
        assert_fits(
            dict(zip(values.tolist(), counts.tolist(), strict=True)),
            dict.fromkeys(range(modulus), 1 / modulus),
        )


@pytest.mark.parametrize("count", [0, 1, 5, 100_003])
def test_the_sampler_gives_as_many_as_asked(count: int) -> None:
    assert discrete_gaussian.sample(3, count).shape == (count,)
    assert discrete_gaussian.sample(3, count).dtype == np.int64


def test_no_noise_is_all_zeros_and_bad_sigmas_are_refused() -> None:
    assert not discrete_gaussian.sample(0, 10).any()
    for sigma in (-1, MAX_SIGMA + 1):
        with pytest.raises(ParameterError, match="choose a number from 0"):
            discrete_gaussian.sample(sigma, 1)


def test_equal_words_give_equal_draws_and_fresh_ones_do_not() -> None:
    first, again = (discrete_gaussian.sample(50, 1000, seeded(1)) for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, discrete_gaussian.sample(50, 1000, seeded(2000)))
    assert not np.array_equal(discrete_gaussian.sample(50, 1000), first)


def test_uniform_integers_reject_the_uneven_end() -> None:
    # 2**64 mod 3 is 1: the last word must be drawn again, all others count as they are.
    queue = [np.array([2**64 - 1, 5, 2**64 - 2], np.uint64), np.array([2**64 - 1], np.uint64)]
    queue.append(np.array([7], np.uint64))
    words = iter(queue)
    drawn = discrete_gaussian._uniform(3, 3, lambda count: next(words))
    assert drawn.tolist() == [1, 2, (2**64 - 2) % 3]


@pytest.mark.parametrize(("numerator", "unit"), [(0, 1), (1, 3), (5, 6), (99, 100)])
def test_the_coin_has_probability_exp_minus_gamma(numerator: int, unit: int) -> None:
    count = 200_000

    def trial(active: Whole, k: int) -> npt.NDArray[np.bool_]:
        drawn = discrete_gaussian._uniform(unit * k, len(active), discrete_gaussian.os_words)
        return np.asarray(drawn < numerator)

    heads = int(np.count_nonzero(discrete_gaussian._exp_coin(count, trial)))
    probability = math.exp(-numerator / unit)
    assert_fits({1: heads, 0: count - heads}, {1: probability, 0: 1 - probability})


def test_no_float_takes_part_in_sampling() -> None:
    source = Path(discrete_gaussian.__file__).read_text()
    for node in ast.walk(ast.parse(source)):
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float))
        assert not (isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.Div))
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("float")
            assert node.attr not in {"exp", "log", "sqrt", "random", "true_divide", "divide"}
