"""Lagrange interpolation over the field: matrices from values at some points to values at others.

A polynomial of degree below n is given by its values at n distinct points (its nodes). `matrix`
turns them into its values elsewhere, for any number of polynomials at once by one product.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from torchfsl.crypto import field
from torchfsl.crypto.field import Words
from torchfsl.errors import ParameterError


def matrix(nodes: tuple[int, ...], points: tuple[int, ...]) -> Words:
    """`uint32[len(points), len(nodes)]`: times values at `nodes`, these are values at `points`.

    Law: for every polynomial f of degree below len(nodes), `matrix @ f(nodes) == f(points)`.

    Raises:
        ParameterError: nodes that coincide, or a point outside [0, p).
    """
    if len(set(nodes)) != len(nodes) or not nodes:
        raise ParameterError(
            f"got {len(nodes)} nodes, of which {len(set(nodes))} are distinct: pass at least one "
            "node, and each node once"
        )
    if not all(0 <= point < field.MODULUS for point in (*nodes, *points)):
        raise ParameterError(
            f"an evaluation point is out of range: choose points from 0 to {field.MODULUS - 1}"
        )
    weights = _weights(nodes)
    rows = [_row(nodes, weights, point) for point in points]
    return np.array(rows, dtype=np.uint32).reshape(len(points), len(nodes))


@functools.lru_cache(maxsize=256)
def _weights(nodes: tuple[int, ...]) -> list[int]:
    """1 / prod over the other nodes of (node - other)."""
    p = field.MODULUS
    return [
        pow(math.prod(node - other for other in nodes if other != node), -1, p) for node in nodes
    ]


def _row(nodes: tuple[int, ...], weights: list[int], point: int) -> list[int]:
    """Values at `point` of the polynomials that are 1 at one node and 0 at the others."""
    p = field.MODULUS
    if point in nodes:
        return [int(node == point) for node in nodes]
    whole = math.prod(point - node for node in nodes) % p
    inverses = _inverses([(point - node) % p for node in nodes])
    return [whole * weight * inverse % p for weight, inverse in zip(weights, inverses, strict=True)]


def _inverses(numbers: list[int]) -> list[int]:
    """1 / number for each, by one inversion of their product."""
    p = field.MODULUS
    before = [1]
    for number in numbers:
        before.append(before[-1] * number % p)
    inverse = pow(before[-1], -1, p)
    inverses = []
    for number, product in zip(reversed(numbers), reversed(before[:-1]), strict=True):
        inverses.append(inverse * product % p)
        inverse = inverse * number % p
    return inverses[::-1]
