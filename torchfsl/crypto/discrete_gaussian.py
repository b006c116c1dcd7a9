"""Exact sampling of the discrete Gaussian, with integers only.

N_Z(0, s**2) gives every integer y the probability proportional to exp(-y**2 / (2 s**2)). The method
is that of Canonne, Kamath, Steinke (The discrete Gaussian for differential privacy, 2020),
Algorithms 1 to 3. A discrete Laplace candidate is accepted with probability
exp(-(|y| - s**2/t)**2 / (2 s**2)), where t = s + 1. Every coin is made of uniform integers. No
decision touches a float, so the samples have exactly this distribution and not one near it.

The algorithms run on whole arrays: they draw candidates in bulk and keep the accepted ones. All
numbers fit 64 bits because a coin of probability exp(-(i + f)**2 / 2) is made of other coins. With
i whole and 0 <= f < 1, these are i**2 coins of exp(-1/2), i coins of exp(-f) and one of
exp(-f**2 / 2). The running time depends on the drawn noise, but only in bulk. A server samples once
per round, and no one sees when it begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import kdf
from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.kdf import SEED_BYTES
from torchfsl.errors import ParameterError
from torchfsl.types import Whole

MAX_SIGMA: Final = (1 << 31) - 1
"""Largest standard deviation of noise, in ring units: the sampler's products fit 64 bits."""

Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
Source = Callable[[int], Words]
"""Gives so many uniform 64-bit words."""

_CHUNK: Final = 1 << 16


def os_words(count: int) -> Words:
    """`count` uniform words: AES-CTR under a fresh key from the operating system."""
    return kdf.stream(random_bytes(SEED_BYTES), 8 * count).view("<u8")


def sample(sigma: int, count: int, words: Source = os_words) -> Whole:
    """`count` independent draws from N_Z(0, sigma**2): `int64[count]`.

    Args:
        sigma: s, 0 (all draws are 0) to `MAX_SIGMA`.
        count: at least 0.
        words: source of randomness; tests inject a seeded one.

    Raises:
        ParameterError: sigma out of range.
    """
    if not 0 <= sigma <= MAX_SIGMA:
        raise ParameterError(f"sigma is {sigma}: choose a number from 0 to {MAX_SIGMA}")
    out = np.zeros(count, dtype=np.int64)
    filled = 0 if sigma else count
    while filled < count:
        # About 0.47 of the candidates are accepted; a few more than needed, the rest is dropped.
        wanted = min(_CHUNK, 64 + 9 * (count - filled) // 4)
        draws = _accepted(sigma, wanted, words)[: count - filled]
        out[filled : filled + len(draws)] = draws
        filled += len(draws)
    return out


def _accepted(sigma: int, candidates: int, words: Source) -> Whole:
    """Algorithm 3 on `candidates` candidates: those accepted, in order."""
    scale = sigma + 1
    low, laps, negative = _laplace(scale, candidates, words)
    # |y| = low + scale * laps, and ||y| - s**2/t| / s = i + f with f = rest / (s t), because
    # t**2 = s t + t. Only laps = 0 can bring |y| below s**2/t, and then i = 0.
    unit = sigma * scale
    numerator = (low + laps + 1) * scale - 1
    below = (laps == 0) & (numerator < unit)
    numerator = np.where(below, unit - numerator, numerator - np.where(laps == 0, unit, 0))
    whole, rest = np.divmod(numerator, unit)
    whole += np.maximum(laps - 1, 0)
    kept = _all_of(whole * whole, lambda active, k: _uniform(2 * k, len(active), words) == 0)
    size, negative = (low + scale * laps)[kept], negative[kept]
    whole, rest = whole[kept], rest[kept]

    def less_than_f(active: Whole) -> Flags:
        return _uniform(unit, len(active), words) < rest[active].view(np.uint64)

    kept = _all_of(
        whole, lambda active, k: less_than_f(active) & (_uniform(k, len(active), words) == 0)
    )
    kept &= _exp_coin(
        len(rest),
        lambda active, k: (
            less_than_f(active) & less_than_f(active) & (_uniform(2 * k, len(active), words) == 0)
        ),
    )
    return np.where(negative, -size, size)[kept]


def _laplace(scale: int, candidates: int, words: Source) -> tuple[Whole, Whole, Flags]:
    """Algorithm 2 with s = 1: y of probability proportional to exp(-|y| / scale).

    Returns:
        `low` in [0, scale) and `laps` >= 0 with |y| = low + scale * laps, and whether y < 0; the
        candidates that Algorithm 2 restarts are left out.
    """
    low = _uniform(scale, candidates, words)
    kept = _exp_coin(
        candidates, lambda active, k: _uniform(scale * k, len(active), words) < low[active]
    )
    whole = low[kept].view(np.int64)
    laps = np.zeros(len(whole), dtype=np.int64)
    active = np.arange(len(whole))
    while active.size:
        again = _exp_coin(len(active), lambda inner, k: _uniform(k, len(inner), words) == 0)
        active = active[again]
        laps[active] += 1
    negative = _uniform(2, len(whole), words) == 1
    kept = ~(negative & (whole == 0) & (laps == 0))  # zero has one sign
    return whole[kept], laps[kept], negative[kept]


def _exp_coin(count: int, trial: Callable[[Whole, int], Flags]) -> Flags:
    """Algorithm 1, second case: coins of probability exp(-gamma), 0 <= gamma <= 1.

    `trial(active, k)` tosses, for the coins `active`, coins of probability gamma / k. The first
    failure at an odd k means heads.
    """
    heads = np.zeros(count, dtype=np.bool_)
    active = np.arange(count)
    k = 1
    while active.size:
        again = trial(active, k)
        if k % 2:
            heads[active[~again]] = True
        active = active[again]
        k += 1
    return heads


def _all_of(repeats: Whole, trial: Callable[[Whole, int], Flags]) -> Flags:
    """Whether the first `repeats[i]` of coin i's exp(-gamma) tosses are all heads."""
    kept = np.ones(len(repeats), dtype=np.bool_)
    active = np.flatnonzero(repeats > 0)
    left = repeats[active]
    while active.size:
        here = active
        heads = _exp_coin(len(here), lambda inner, k: trial(here[inner], k))  # noqa: B023
        kept[active[~heads]] = False
        more = heads & (left > 1)
        active, left = active[more], left[more] - 1
    return kept


def _uniform(bound: int, count: int, words: Source) -> Words:
    """`count` integers uniform in [0, bound), 1 <= bound < 2**63, exactly (by rejection)."""
    values = words(count)
    limit = (1 << 64) - (1 << 64) % bound
    if limit < 1 << 64:
        bad = np.flatnonzero(values >= np.uint64(limit))
        while bad.size:
            values[bad] = words(len(bad))
            bad = bad[values[bad] >= np.uint64(limit)]
    return values % np.uint64(bound)
