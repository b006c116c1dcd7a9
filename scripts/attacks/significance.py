"""Two tests of significance, exact or nearly so; every p is two-sided."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


Labels = npt.NDArray[np.bool_]


def binomial_p(right: int, total: int) -> float:
    """Exact two-sided p of `right` of `total` fair coins."""
    k = np.arange(total + 1)
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, total + 1)))])
    logs = log_factorials[-1] - log_factorials[k] - log_factorials[total - k] - total * math.log(2)
    chances = np.exp(logs)
    return float(min(1.0, 2 * min(chances[: right + 1].sum(), chances[right:].sum())))


def rank_sum_p(values: Numbers, labels: Labels) -> float:
    """Two-sided p of the rank-sum test (Mann, Whitney), by the normal law, ties corrected for."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    n, first = len(values), int(labels.sum())
    second = n - first
    ties = float((counts.astype(np.float64) ** 3 - counts).sum())
    variance = first * second / 12 * (n + 1 - ties / (n * (n - 1)))
    if variance <= 0:
        return 1.0
    z = (float(ranks[labels].sum()) - first * (n + 1) / 2) / math.sqrt(variance)
    return math.erfc(abs(z) / math.sqrt(2))
