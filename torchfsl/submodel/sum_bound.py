"""A bound on the aggregate: reports of bounded norm and the servers' noise have a bounded sum.

Take n reports of norm B at most and total weight T, and noise of deviation s from each server on N
values. Except with chance 2**-39, their sum has

    norm**2 <= (T B)**2 + 4 T B s sqrt(t) + 2 s**2 (N + 2 sqrt(N t) + 2 t)        t = 28 > 40 ln 2

The last term bounds the noise alone (Hsu, Kakade, Zhang, A tail inequality for quadratic forms of
subgaussian random vectors, 2012), the middle one its product with the sum. If rows are divided by
their counts or weights, sqrt(n) B takes the place of T B for the quotients. Servers scale a larger
sum down to the bound, toward zero. This slows a server or client that lies, and does not stop it.
All numbers are integers: the results of both servers and of a sum in the clear are bit-identical.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from torchfsl.submodel import taps
from torchfsl.submodel.norm_bound import norm_squared
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.plan import SubmodelPlan, noise_tail
from torchfsl.submodel.segments import Segment
from torchfsl.types import Whole

T_TAIL: Final = 28
"""t: the noise exceeds its term with chance exp(-t)."""
FACTOR_BITS: Final = 32
"""A sum is scaled by a multiple of 2**-32."""

_CHUNK: Final = 1 << 17
_LOW: Final = (1 << FACTOR_BITS) - 1


def groups(plan: SubmodelPlan) -> Iterator[tuple[tuple[Segment, ...], int]]:
    """Segments whose norm together has a bound: each with its own, last all with the plan's."""
    for segment in plan.segments:
        if segment.l2_bound:
            yield (segment,), segment.l2_bound
    yield plan.segments, plan.l2_bound


def root_up(square: int) -> int:
    """The square root, rounded up."""
    return math.isqrt(square - 1) + 1 if square else 0


def deviation(plan: SubmodelPlan) -> int:
    """s: of what one server adds to a value, rounded up.

    Correlated noise is rounded in every round, for which there is one unit more. A server that has
    lost past noise adds up to |c| times a draw.
    """
    if not plan.noise_taps:
        return plan.noise_sigma
    growth = max(plan.noise_growth, taps.norm(plan.noise_taps))
    return math.ceil(plan.noise_sigma * growth) + 1


def tail_squared(plan: SubmodelPlan, segments: tuple[Segment, ...]) -> int:
    """Square of what the norm of both servers' noise on these segments exceeds with exp(-t)."""
    sigma, count = deviation(plan), sum(s.m * s.tau for s in segments)
    return 2 * sigma * sigma * (count + 2 * root_up(count * T_TAIL) + 2 * T_TAIL) if sigma else 0


def keep(plan: SubmodelPlan, opened: Opened) -> None:
    """Scale what exceeds the bound, in place; `opened.scaled` hears by how much.

    Lanes stay as they are. Nothing happens under a plan without `sum_bound`.
    """
    for segments, bound in groups(plan) if plan.sum_bound else ():
        norm = norm_squared({s.name: opened.sums[s.name] for s in segments})
        limit = most_squared(plan, segments, (_total(plan, opened) * bound) ** 2)
        norm = _scale(opened, segments, norm, limit)
        counted = tuple(s for s in segments if s.name in opened.lanes)
        limit = most_squared(plan, counted, opened.num_clients * bound * bound)
        if norm > limit:  # divisors are at least 1
            _scale(opened, counted, _quotients(plan, opened, counted), limit)


def most_squared(plan: SubmodelPlan, segments: tuple[Segment, ...], reach: int) -> int:
    """Square of the largest honest norm with noise, from that without."""
    sigma = deviation(plan)
    return reach + root_up(16 * reach * sigma * sigma * T_TAIL) + tail_squared(plan, segments)


def _total(plan: SubmodelPlan, opened: Opened) -> int:
    """T: the most that the weights can add up to, as far as it was opened."""
    most = opened.num_clients * plan.max_weight
    if plan.lane != "weight" or not any(s.is_dense for s in plan.segments):
        return most
    tail = noise_tail(plan.lane_sigma, plan.noise_growth)
    return min(max(opened.total_weight + tail, 0), most)


def _quotients(plan: SubmodelPlan, opened: Opened, segments: tuple[Segment, ...]) -> int:
    """See `quotients`: of all rows, divided by the most that their lanes can be without noise."""
    tail = noise_tail(plan.lane_sigma, plan.noise_growth)
    return sum(
        quotients(opened.sums[s.name], np.maximum(opened.lanes[s.name] + tail, 1)) for s in segments
    )


def quotients(sums: Whole, divisors: Whole) -> int:
    """Sum over rows of `|row|**2 // divisor**2`, exact.

    Args:
        sums: `int64[rows, tau]`.
        divisors: `int64[rows]`, at least 1.
    """
    total, step = 0, max(1, _CHUNK // max(1, sums.shape[1]))
    fitting = math.isqrt(((1 << 63) - 1) // max(1, sums.shape[1]))
    for start in range(0, len(sums), step):
        rows, by = sums[start : start + step], divisors[start : start + step]
        large = ((rows > fitting) | (rows < -fitting)).any(axis=1) | (by >= 1 << 31)
        small = rows[~large]
        parts = np.einsum("ij,ij->i", small, small) // by[~large] ** 2
        total += (int((parts >> 32).sum()) << 32) + int((parts & _LOW).sum())
        for row, divisor in zip(rows[large].tolist(), by[large].tolist(), strict=True):
            total += sum(value * value for value in row) // (divisor * divisor)
    return total


def _scale(opened: Opened, segments: tuple[Segment, ...], norm: int, limit: int) -> int:
    """Scale the sums of these segments if the square of a norm is above its limit.

    Returns:
        The square of the norm, or the limit if that is less.
    """
    if norm <= limit:
        return norm
    factor = math.isqrt((limit << (2 * FACTOR_BITS)) // norm)
    for segment in segments:
        multiply(opened.sums[segment.name], factor)
        left = opened.scaled.get(segment.name, 1.0) * math.ldexp(factor, -FACTOR_BITS)
        opened.scaled[segment.name] = left
    return limit


def multiply(values: Whole, factor: int) -> None:
    """Multiply by `factor / 2**32`, toward zero, in place.

    Args:
        values: any `int64[rows, tau]`.
        factor: in [0, 2**32).
    """
    scale, bits = np.uint64(factor), np.uint64(FACTOR_BITS)
    for start in range(0, len(values), _CHUNK):
        part = values[start : start + _CHUNK]
        size = np.abs(part).view(np.uint64)  # |-2**63| wraps to the right word
        moved = (size >> bits) * scale + (((size & np.uint64(_LOW)) * scale) >> bits)
        part[...] = np.where(part < 0, -moved.view(np.int64), moved.view(np.int64))
