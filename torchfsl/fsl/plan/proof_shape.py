"""The numbers of a proof: how many wraps to expect, whether the field suffices, which shape."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Final

from torchfsl.crypto import field128
from torchfsl.crypto.flp import SumsOfSquares
from torchfsl.errors import ParameterError
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.submodel.segments import ceil_div

MAX_CARRIES: Final = 16
WRAP_BITS: Final = 60
"""More than `num_carries` wraps are wanted with chance at most 2**-60 a report."""


def num_carries(magnitudes: int, ring_bits: int) -> int:
    """The least T with E**(T+1) / (T+1)! <= 2**-60, E = magnitudes / 2**l the wraps expected."""
    for carries in range(1, MAX_CARRIES + 1):
        wraps = magnitudes ** (carries + 1) << WRAP_BITS
        if wraps <= math.factorial(carries + 1) << (ring_bits * (carries + 1)):
            return carries
    most = _most_magnitudes(ring_bits)
    raise ParameterError(
        f"the values of a report can add up to {magnitudes}, and proofs with ring_bits={ring_bits} "
        f"allow {most}: use more ring_bits (at most 48), or divide max_weight or l2_bound by "
        f"{ceil_div(magnitudes, most)}"
    )


def _most_magnitudes(ring_bits: int) -> int:
    """The largest magnitudes for which `MAX_CARRIES` suffice."""
    power = MAX_CARRIES + 1
    room = math.factorial(power) << (ring_bits * power) >> WRAP_BITS
    low, high = 1, 1 << (ring_bits + power)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**power <= room else (low, middle - 1)
    return low


@functools.lru_cache(maxsize=MAX_CARRIES)
def parts_of(total: int) -> tuple[int, ...]:
    """As few numbers as there are that add up to the total, and some to each number below it."""
    parts = []
    while total:
        parts.append(-(-total // 2))
        total -= parts[-1]
    return tuple(parts)


def chosen_parts(total: int, wanted: int) -> list[int]:
    """For each of `parts_of(total)` 1 if it is one of those that add up to `wanted`, else 0."""
    bits = []
    for part in parts_of(total):
        bits.append(int(wanted >= part))
        wanted -= part * bits[-1]
    return bits


def check_carries(num_sums: int, carry_bits: int) -> None:
    """Nor does the sum of the squares of what carry trees carry, whatever that is."""
    assert num_sums << (2 * carry_bits) < field128.MODULUS


def row_trees(segment: TreeSegment) -> int:
    """R, in how many trees of one report one row can stand."""
    return segment.hashes + segment.stash if segment.num_bins else segment.k_max


def check_leaves(trees: tuple[TreeSegment, ...]) -> None:
    """Sums of lifts over leaves are made in halves that fit 64 bits."""
    if any(group.num_leaves >= 1 << 30 for s in trees for group in s.groups):
        raise ParameterError("proofs need trees of fewer than 2**30 leaves: split the segment")


def check_field(size: int, ring_bits: int, num_carries: int, largest: int) -> None:
    """No sum of squares passes the prime, whatever a client sends; slack fits the ring.

    Args:
        size: most squares in one sum.
        ring_bits: l.
        num_carries: T.
        largest: bound on slack, weight and the norm itself of an honest report.
    """
    most = (1 + num_carries) << ring_bits
    if size * most * (most + 1) >= field128.MODULUS:
        raise ParameterError(
            f"{size} values of {ring_bits} bits are too many to prove a bound on, because their "
            "squares could exceed the field's modulus: use fewer ring_bits (16 is the least), or "
            "several plans"
        )
    if largest >= 1 << (ring_bits - 1):
        raise ParameterError(
            f"l2_bound times max_weight is {largest}, which does not fit the ring of {ring_bits} "
            "bits: use more ring_bits or a smaller l2_bound"
        )


def check_weights(trees: tuple[TreeSegment, ...], max_weight: int) -> None:
    """Nor does sum c**2 (c - w)**2, once w and sum c**2 are within their bounds."""
    squares = sum(s.k_max for s in trees) * max_weight**2
    away = max(math.isqrt(s.k_max) + 2 for s in trees) * max_weight
    if squares * away**2 >= field128.MODULUS:
        raise ParameterError(
            f"max_weight is {max_weight}, too large for a proof: choose a smaller max_weight"
        )


def cheapest(sizes: Sequence[int], tail: int) -> SumsOfSquares:
    """The shape of fewest elements: for each order the least arity whose calls fit."""
    best: SumsOfSquares | None = None
    order = 2
    while best is None or 2 * order - 1 < best.num_elements:
        room = order - 1 - tail
        if room >= len(sizes):
            arity = _least_arity(sizes, room)
            calls = sum(ceil_div(size, arity) for size in sizes) + tail
            shape = SumsOfSquares(calls, arity)
            if best is None or shape.num_elements <= best.num_elements:  # of equals fewer wires
                best = shape
        order *= 2
    return best


def _least_arity(sizes: Sequence[int], room: int) -> int:
    low, high = 1, max(sizes)
    while low < high:
        middle = (low + high) // 2
        if sum(ceil_div(size, middle) for size in sizes) <= room:
            high = middle
        else:
            low = middle + 1
    return low
