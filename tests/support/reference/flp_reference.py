"""Slow fully linear proof of sums of squares, modulo any prime: Lagrange's formula, nothing else.

The points of the calls are the powers of a root of unity w of order P, as in `torchfsl.crypto.flp`,
but polynomials are lists of coefficients that are multiplied out term by term.
"""

from __future__ import annotations

from collections.abc import Sequence


def root(modulus: int, order: int) -> int:
    """Any element of exactly this order, a power of two."""
    for candidate in range(2, modulus):
        value = pow(candidate, (modulus - 1) // order, modulus)
        if order == 1 or pow(value, order // 2, modulus) == modulus - 1:
            return value
    raise AssertionError("no such root")


def times(a: Sequence[int], b: Sequence[int], modulus: int) -> list[int]:
    """Product of two polynomials."""
    out = [0] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[i + j] = (out[i + j] + x * y) % modulus
    return out


def at(polynomial: Sequence[int], point: int, modulus: int) -> int:
    """Its value."""
    return sum(c * pow(point, i, modulus) for i, c in enumerate(polynomial)) % modulus


def through(points: Sequence[int], values: Sequence[int], modulus: int) -> list[int]:
    """The polynomial of least degree through all points."""
    total = [0] * len(points)
    for i, (x, y) in enumerate(zip(points, values, strict=True)):
        part = [y % modulus]
        for j, other in enumerate(points):
            if j != i:
                scale = pow(x - other, -1, modulus)
                part = times(part, [-other * scale % modulus, scale], modulus)
        total = [(a + b) % modulus for a, b in zip(total, part, strict=True)]
    return total


def wires(
    calls: Sequence[Sequence[int]], seeds: Sequence[int], w: int, order: int, modulus: int
) -> list[list[int]]:
    """One polynomial a place: the seed at w**0, the values of the calls after it, then zeros."""
    points = [pow(w, k, modulus) for k in range(order)]
    padding = [0] * (order - 1 - len(calls))
    return [
        through(points, [seed, *(call[i] for call in calls), *padding], modulus)
        for i, seed in enumerate(seeds)
    ]


def prove(
    calls: Sequence[Sequence[int]], seeds: Sequence[int], w: int, order: int, modulus: int
) -> list[int]:
    """Coefficients of the sum of all wires' squares, 2 P - 1 of them."""
    total = [0] * (2 * order - 1)
    for wire in wires(calls, seeds, w, order, modulus):
        total = [(a + b) % modulus for a, b in zip(total, times(wire, wire, modulus), strict=True)]
    return total
