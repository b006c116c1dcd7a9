"""Epsilon of Gaussian noise on the sums of random clients, whose number is public.

Each round n of K clients are drawn, without replacement, and their contributions, vectors of norm 1
at most, are added up with Gaussian noise of standard deviation s. Neighbours differ in one client's
contribution, which one of them replaces by zero. With q = n / K, no round of any such neighbours
has a larger divergence than these:

- with the client's contribution over without it, P = (1-q) N(-1, s**2) + q N(1, s**2) over
  Q = (1-q) N(-1, s**2) + q N(0, s**2): who is not drawn leaves the place to one that sent the
  opposite;
- without it over with it, (1-q) N(1, s**2) + q N(0, s**2) over N(1, s**2): the other sent the same.

`docs/specification/privacy-proofs.md` has the proof. A Poisson sample, where only the
client's own coin decides and n is secret, would have N(0, s**2) in the place of both
N(-1, s**2), which is less.
"""

from __future__ import annotations

import importlib
import math
from typing import Final

import numpy as np
import numpy.typing as npt

from torchfsl.fsl.composing import composed

Floats = npt.NDArray[np.float64]

_NUM_LOSSES: Final = 10_000
"""Privacy losses above 0 at which the divergences of one round are taken."""

_FAR: Final = 11.0
"""Standard deviations; what lies beyond weighs less than 1e-27."""


def epsilon(multiplier: float, delta: float, rounds: int, rate: float) -> float:
    """Epsilon of so many rounds.

    Args:
        multiplier: s, above 0.
        delta: in (0, 1).
        rounds: at least 1.
        rate: q, in (0, 1).
    """
    farthest = loss(np.array([1 + _FAR * multiplier]), multiplier, rate)
    step = float(farthest[0]) / _NUM_LOSSES
    losses = step * np.arange(_NUM_LOSSES + 1, dtype=np.float64)
    with_first = divergence_with(losses, multiplier, rate)
    without_first = divergence_without(losses, multiplier, rate)
    loss_of_all = composed(step, with_first, without_first, rounds)
    return float(loss_of_all.get_epsilon_for_delta(delta))


def divergence_with(losses: Floats, multiplier: float, rate: float) -> Floats:
    """Hockey-stick divergences of P over Q at exp(losses), losses not negative."""
    low = np.full_like(losses, -1 - _FAR * multiplier)
    high = np.full_like(losses, 1 + _FAR * multiplier)
    for _ in range(60):  # where P = exp(loss) Q; P is the larger above it
        middle = (low + high) / 2
        beyond = loss(middle, multiplier, rate) > losses
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    absent, zero, present = (_tail((low - mean) / multiplier) for mean in (-1, 0, 1))
    others = (1 - rate) * np.expm1(losses) * absent
    return np.maximum(rate * (present - np.exp(losses) * zero) - others, 0.0)


def divergence_without(losses: Floats, multiplier: float, rate: float) -> Floats:
    """The same of (1-q) N(1, s**2) + q N(0, s**2) over N(1, s**2).

    At 1 + q (a - 1) it is q times that of N(0, s**2) over N(1, s**2) at a.
    """
    of_drawn = np.log1p(np.expm1(losses) / rate)
    where = 0.5 - of_drawn * multiplier**2  # N(0, s**2) is the larger below it
    at_zero, at_one = (_tail((mean - where) / multiplier) for mean in (0, 1))
    return np.maximum(rate * (at_zero - np.exp(of_drawn) * at_one), 0.0)


def loss(where: Floats, multiplier: float, rate: float) -> Floats:
    """The logarithm of P / Q at points."""
    present = math.log(rate) + 2 * where / multiplier**2
    zero = math.log(rate) + (where + 0.5) / multiplier**2
    absent = math.log1p(-rate)
    ratio: Floats = np.logaddexp(absent, present) - np.logaddexp(absent, zero)
    return ratio


def _tail(deviations: Floats) -> Floats:
    """The weight of a normal distribution beyond so many standard deviations."""
    special = importlib.import_module("scipy.special")
    weights: Floats = special.ndtr(-deviations)
    return weights
