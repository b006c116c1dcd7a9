"""Exact distributions, a test of fit, and a seeded source of words."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import discrete_gaussian, kdf


def pmf(sigma: int, reach: int) -> dict[int, float]:
    weights = {y: math.exp(-y * y / (2 * sigma * sigma)) for y in range(-reach, reach + 1)}
    total = math.fsum(weights.values())
    return {y: weight / total for y, weight in weights.items()}


def assert_fits(observed: dict[int, int], expected: dict[int, float]) -> None:
    """Pearson's test, cells below 10 expected pooled; refuses a true fit with p < 1e-10."""
    count = sum(observed.values())
    statistic, cells, pooled_seen, pooled_wanted = 0.0, 0, 0, 0.0
    for value, probability in expected.items():
        seen, wanted = observed.get(value, 0), count * probability
        if wanted < 10:
            pooled_seen, pooled_wanted = pooled_seen + seen, pooled_wanted + wanted
        else:
            statistic, cells = statistic + (seen - wanted) ** 2 / wanted, cells + 1
    if pooled_wanted >= 10:
        statistic += (pooled_seen - pooled_wanted) ** 2 / pooled_wanted
    # Laurent and Massart: P(chi2 >= d + 2 sqrt(d x) + 2 x) <= exp(-x).
    assert statistic < cells + 2 * math.sqrt(cells * 25) + 50


def seeded(seed: int) -> discrete_gaussian.Source:
    state = [seed]

    def words(count: int) -> npt.NDArray[np.uint64]:
        state[0] += 1
        return kdf.stream(state[0].to_bytes(16, "little"), 8 * count).view("<u8")

    return words
