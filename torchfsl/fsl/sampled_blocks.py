"""Epsilon of Gaussian noise on sums to which each client adds one block of each of k stretches.

A stretch is g blocks, of which the client draws one in secret and adds its values, of norm at most
1; noise of standard deviation s falls on all of them. Neighbours differ in one client's
contribution, which one of them replaces by zero. With v_1 .. v_g the vectors that the client would
add, which lie on disjoint coordinates, a stretch of such neighbours is

    P = 1/g sum_b N(v_b, s**2)    and    Q = N(0, s**2),

whose ratio L = P / Q is under Q the mean of g independent lognormal weights of mean 1. Both
divergences of the pair are means under Q of convex functions of L, max(0, L - a) and
max(0, 1 - a L), so that they grow with the norms of the v_b: all norms 1 is worst. Draws of
different stretches are independent, and what is added of one does not depend on the others, so a
round is k stretches composed. Other clients' contributions shift P and Q alike.

The law of L is taken on a grid: each weight is moved to its two neighbours on the grid so that its
mean stays, which makes every convex function's mean larger, never smaller. The argument is in
`docs/specification/privacy-proofs.md`.
"""

from __future__ import annotations

import importlib
import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from torchfsl.fsl.composing import composed

Floats = npt.NDArray[np.float64]

LEAST: Final = 4 / 3
"""Noise of a stretch over its sensitivity below which nothing is gained here: grids grow fast."""
_FAR: Final = 9.0
"""Standard deviations; what lies beyond weighs less than 2e-19."""
_FINE: Final = 64
"""Points of the grid a standard deviation of a weight's logarithm."""
_NATS: Final = 40.0
"""The sum of weights leaves its window with probability below exp(-40) on either side."""
_LOST: Final = 1e-14
"""More than is cut off or rounded of a stretch's probabilities, with as much for 20 blocks each."""
UNPLACED: Final = 2.0**-40
"""A client's blocks find no bins with at most this probability in a round; one is then not sent."""
_NUM_LOSSES: Final = 2_000


class Ratio(NamedTuple):
    """The law of L on a grid.

    Attributes:
        values: increasing, not negative.
        under_p: probability of each under P.
        under_q: the same under Q.
        lost: of both, at most what is cut off and rounded.
    """

    values: Floats
    under_p: Floats
    under_q: Floats
    lost: float


def epsilon(multiplier: float, delta: float, rounds: int, chosen: int, blocks: int) -> float:
    """Epsilon of so many rounds; infinite where there is too little noise for this bound.

    A block that finds no bin is missing from P alone, and so costs its probability once in delta
    where P stands first and exp(epsilon) times where it stands second.

    Args:
        multiplier: noise over the sensitivity of a client's whole report in one round, above 0.
        delta: in (0, 1).
        rounds: at least 1.
        chosen: k, blocks that a client sends.
        blocks: of which it draws them; the shortest stretch is accounted for.
    """
    of_stretch, size = multiplier * math.sqrt(chosen), blocks // chosen
    if of_stretch < LEAST or size < 2:
        return math.inf
    ratio = ratio_of(of_stretch, size)
    step = _farthest(ratio) / _NUM_LOSSES
    losses = step * np.arange(_NUM_LOSSES + 1, dtype=np.float64)
    with_first, without_first = divergences(ratio, losses)
    loss_of_all = composed(step, with_first, without_first, rounds * chosen)
    missing = 0.0
    while missing < delta:
        reached = float(loss_of_all.get_epsilon_for_delta(delta - missing))
        if rounds * UNPLACED * math.exp(min(reached, 700.0)) <= missing:
            return reached
        missing = 1.01 * rounds * UNPLACED * math.exp(min(reached, 700.0))
    return math.inf


def divergences(ratio: Ratio, losses: Floats) -> tuple[Floats, Floats]:
    """Hockey-stick divergences at exp(losses) of P over Q, and of Q over P; losses not negative."""
    at = np.exp(losses)
    values, under_p, under_q, _ = ratio
    above = np.searchsorted(values, at, side="right")
    safe = np.where(values > 0, values, 1.0)  # those at zero are never above 1
    mass, shares = (_from_above(part) for part in (under_p, under_p / safe))
    with_first = mass[above] - at * shares[above]
    below = np.searchsorted(values, 1 / at, side="left")
    mass, means = (np.concatenate([[0.0], np.cumsum(part)]) for part in (under_q, under_q * values))
    without_first = mass[below] - at * means[below]
    return np.maximum(with_first, 0.0) + ratio.lost, np.maximum(without_first, 0.0) + ratio.lost


def ratio_of(multiplier: float, size: int) -> Ratio:
    """A law of L that is at least as spread, in the convex order, as the true one.

    Args:
        multiplier: noise of a stretch over its sensitivity, at least `LEAST`.
        size: g, blocks of a stretch, at least 1.
    """
    deviation = 1 / multiplier
    step = deviation / _FINE
    weights = _weights(deviation, step)
    largest, variance = step * len(weights), math.expm1(deviation**2) + step**2 / 4
    # Bernstein's inequality, for weights that lie in [0, largest] and have mean 1.
    upper, lower = (
        _NATS * most / 3 + math.sqrt((_NATS * most / 3) ** 2 + 2 * _NATS * size * variance)
        for most in (largest, 1.0)
    )
    first = max(0, math.floor((size - lower) / step))
    last = math.ceil((size + upper + largest) / step)
    fft = importlib.import_module("scipy.fft")
    count = fft.next_fast_len(last - first, real=True)
    spectrum = fft.rfft(weights, count)
    biased = fft.rfft(weights * (step * np.arange(len(weights))), count)  # a weight under P
    rest = _power(spectrum, size - 1)
    under_q, under_p = (
        np.maximum(np.roll(fft.irfft(part * rest, count), -(first % count)), 0.0)
        for part in (spectrum, biased)
    )
    values = step / size * np.arange(first, first + count)
    return Ratio(values, under_p, under_q, _LOST * (1 + size / 20))


def _weights(deviation: float, step: float) -> Floats:
    """Probabilities of a lognormal weight of mean 1 on 0, step, 2 step, ..., its mean kept."""
    special = importlib.import_module("scipy.special")
    most = math.exp(deviation * (_FAR + deviation / 2))
    points = step * np.arange(math.ceil(most / step) + 1)
    with np.errstate(divide="ignore"):
        logs = np.log(points)
    mass, mean = (
        np.diff(special.ndtr(logs / deviation + shift)) for shift in (deviation / 2, -deviation / 2)
    )
    right = np.clip((mean - mass * points[:-1]) / step, 0.0, mass)
    placed: Floats = np.zeros(len(points))
    placed[:-1] += mass - right
    placed[1:] += right
    return placed


def _power(base: npt.NDArray[np.complex128], exponent: int) -> npt.NDArray[np.complex128]:
    """Powers by repeated squaring."""
    result = np.ones_like(base)
    while exponent:
        if exponent & 1:
            result *= base
        base = base * base
        exponent >>= 1
    return result


def _from_above(part: Floats) -> Floats:
    """Sums of all entries from each place on, and zero after the last."""
    return np.concatenate([np.cumsum(part[::-1])[::-1], [0.0]])


def _farthest(ratio: Ratio) -> float:
    """A loss beyond which nothing is left that counts."""
    likely = np.flatnonzero(_from_above(ratio.under_p)[:-1] > ratio.lost)
    rare = np.flatnonzero(np.cumsum(ratio.under_q) > ratio.lost)
    most = math.log(ratio.values[likely[-1]])
    least = math.log(max(ratio.values[rare[0]], 1e-6))
    return max(most, -least)
