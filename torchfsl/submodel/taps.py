"""Taps of noise that is correlated over rounds: which are allowed, and which are best.

A strategy is a lower triangular Toeplitz matrix C with the coefficients c_0 = 1, c_1, .. of a band.
The servers add C^-1 times fresh draws, so that a later round removes a part of this noise.
Taps are the coefficients in units of 2^-q: whole numbers, of which the first is 2^q.
"""

from __future__ import annotations

import functools
import math
from typing import Final, NamedTuple

import numpy as np

from torchfsl.crypto.discrete_gaussian import MAX_SIGMA
from torchfsl.errors import ParameterError
from torchfsl.types import Float64

MAX_BAND: Final = 64
MIN_BITS, MAX_BITS = 4, 8
"""Least and most fraction bits q of a tap."""
_MAX_ROUNDS: Final = 1 << 20
"""Most rounds of a plan with taps: whoever reads one goes through them once."""
_TAIL: Final = 12
"""Standard deviations of the noise that 32 bits hold."""
_STEPS: Final = 200
_LONGEST: Final = 1024
"""Taps are chosen for so many rounds at most: longer tasks take those, in seconds and not hours."""


def bits_of(taps: tuple[int, ...]) -> int:
    """Fraction bits q of taps; 0 without any."""
    return taps[0].bit_length() - 1 if taps else 0


def norm(taps: tuple[int, ...]) -> float:
    """L2 norm |c| of the coefficients, which multiplies a client's sensitivity; 1 without taps."""
    return math.sqrt(sum(tap * tap for tap in taps)) / taps[0] if taps else 1.0


@functools.lru_cache(maxsize=64)
def growth(taps: tuple[int, ...], rounds: int) -> float:
    """Largest standard deviation of the added noise over that of a draw, in `rounds` rounds.

    Every operation has a fixed order, so that results are bit-identical on all machines.
    """
    if not taps:
        return 1.0
    c, rest, total = np.array(taps[1:]) / taps[0], np.zeros(len(taps) - 1), 1.0
    column = 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(1, rounds):
            rest -= c * column  # of the next values of the first column of C^-1
            column = float(rest[0])
            rest[:-1], rest[-1] = rest[1:], 0.0
            total += column * column
    return math.sqrt(total) if math.isfinite(total) else math.inf


def fraction_bits(sigma: int) -> int:
    """The most fraction bits that the sampler has room for; `MIN_BITS` at least."""
    return max(MIN_BITS, min(MAX_BITS, (MAX_SIGMA // sigma).bit_length() - 1))


def check_taps(taps: tuple[int, ...], sigma: int, rounds: int) -> None:
    """Refuse taps that are out of range, or whose noise leaves the sampler or 32 bits.

    Raises:
        ParameterError: naming the first one.
    """
    firsts = {1 << bits for bits in range(MIN_BITS, MAX_BITS + 1)}
    wrong = [p for p, tap in enumerate(taps) if type(tap) is not int]
    wrong = wrong or [p for p, tap in enumerate(taps) if abs(tap) > taps[0]]
    if wrong or not 2 <= len(taps) <= MAX_BAND or taps[0] not in firsts:
        place = wrong[0] if wrong else 0
        raise ParameterError(
            f"noise_taps has {len(taps)} taps, and tap {place} is {taps[place : place + 1]}: "
            f"pass whole numbers, 2 to {MAX_BAND} of them, the first a power of two from "
            f"2**{MIN_BITS} to 2**{MAX_BITS}, and none larger than the first",
            code="invalid-taps",
        )
    check_rounds(rounds)
    spread = sigma * growth(taps, rounds)
    excess = max(sigma * taps[0] / MAX_SIGMA, _TAIL * spread / (1 << 31))
    if not excess <= 1:
        fewer = math.ceil(math.log2(excess)) if excess < math.inf else 64
        raise ParameterError(
            f"correlated noise would have draws of {sigma * taps[0]:.4g} units (limit {MAX_SIGMA}) "
            f"and sums of {_TAIL * spread:.4g} units (limit {1 << 31}): use at least {fewer} fewer "
            f"frac_bits, or an l2_bound {1 << fewer} times smaller",
            code="invalid-taps",
        )


def check_rounds(rounds: int) -> None:
    """Refuse a task of more rounds than correlated noise takes.

    Raises:
        ParameterError: it has more.
    """
    if rounds > _MAX_ROUNDS:
        raise ParameterError(
            f"max_rounds is {rounds}: choose at most {_MAX_ROUNDS} with correlated noise, or use "
            "band=1",
            code="invalid-taps",
        )


class Strategy(NamedTuple):
    """A strategy and its error.

    Attributes:
        coefficients: c_0 = 1 to c_(band-1).
        error: root mean square error of the sums over rounds, times |c|, for unit sensitivity; of
            the first `_LONGEST` rounds.
    """

    coefficients: Float64
    error: float

    def taps(self, bits: int) -> tuple[int, ...]:
        """The coefficients in units of 2**-bits."""
        return tuple(int(tap) for tap in np.rint(np.ldexp(self.coefficients, bits)))


@functools.lru_cache(maxsize=16)
def optimise(rounds: int, band: int) -> Strategy:
    """The banded strategy of least error, by BFGS from the truncated square root.

    Args:
        rounds: of the task.
        band: number of coefficients, 1 to `rounds`.

    Raises:
        ParameterError: `check_rounds` refuses so many.
    """
    check_rounds(rounds)
    rounds = min(rounds, _LONGEST)
    free = np.ones(band)
    for j in range(1, band):
        free[j] = free[j - 1] * (2 * j - 1) / (2 * j)
    free = free[1:]
    value, gradient = _log_error(free, rounds)
    inverse = np.eye(len(free)) * 0.1
    for _ in range(_STEPS):
        direction = -inverse @ gradient
        slope, step = float(direction @ gradient), 1.0
        if slope > -1e-18:
            break
        while (found := _log_error(free + step * direction, rounds))[
            0
        ] > value + 1e-4 * step * slope:
            step /= 2
            if step < 1e-9:
                break
        moved, turned = step * direction, found[1] - gradient
        free, value, gradient = free + moved, *found
        along = float(moved @ turned)
        if along > 1e-18:
            left = np.eye(len(free)) - np.outer(moved, turned) / along
            inverse = left @ inverse @ left.T + np.outer(moved, moved) / along
    return Strategy(np.concatenate([[1.0], free]), math.exp(value / 2))


def _log_error(free: Float64, rounds: int) -> tuple[float, Float64]:
    """Logarithm of |c|^2 times the mean squared row norm of A C^-1, and its gradient.

    A adds up the rounds. Row t of A C^-1 holds g_0 .. g_t, the running sums of C^-1's first column.
    """
    c = np.concatenate([[1.0], free])
    if not np.isfinite(free).all():
        return math.inf, np.zeros_like(free)
    h = _inverse(c, rounds)
    g = np.cumsum(h)
    weights = np.arange(rounds, 0, -1) / rounds
    error = float(weights @ (g * g))
    if not math.isfinite(error):
        return math.inf, np.zeros_like(free)
    by_h = np.cumsum((2 * weights * g)[::-1])[::-1]
    twice = np.convolve(h, h)[:rounds]
    by_c = np.array([-by_h[j:] @ twice[: rounds - j] for j in range(1, len(c))])
    square = float(c @ c)
    return math.log(square * error), 2 * free / square + by_c / error


def _inverse(c: Float64, rounds: int) -> Float64:
    """First column of the inverse of the Toeplitz matrix with these coefficients."""
    h = np.zeros(rounds)
    h[0] = 1 / c[0]
    with np.errstate(over="ignore", invalid="ignore"):
        for t in range(1, rounds):
            width = min(t, len(c) - 1)
            h[t] = -(c[1 : width + 1] @ h[t - width : t][::-1]) / c[0]
    return h
