"""Noise that is correlated over rounds, as plainly as it can be said."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Whole = npt.NDArray[np.int64]


def noises(draws: Whole, taps: Sequence[int], bits: int) -> Whole:
    """What a server adds in each round, `int64[rounds, values]`, for its draws of that shape."""
    added: list[Whole] = []
    for t, fresh in enumerate(draws):
        rest = fresh.copy()
        for lag in range(1, min(len(taps), t + 1)):
            rest -= taps[lag] * added[t - lag]
        added.append((rest + (1 << (bits - 1))) // (1 << bits))
    return np.array(added)


def sees(opened: Whole, sums: Whole, draws: Whole, taps: Sequence[int], bits: int, t: int) -> Whole:
    """What opens in round t, from the strategy times the sums, the draw, and what opened before."""
    mean = sum(taps[lag] * sums[t - lag] for lag in range(min(len(taps), t + 1)))
    past = sum(
        (taps[lag] * opened[t - lag] for lag in range(1, min(len(taps), t + 1))),
        np.zeros_like(draws[t]),
    )
    return (mean + draws[t] - past + (1 << (bits - 1))) // (1 << bits)
