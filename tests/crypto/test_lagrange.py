"""Interpolation over the field against polynomials evaluated by Horner's rule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchfsl.crypto import field, lagrange
from torchfsl.errors import ParameterError

P = field.MODULUS


def value(coefficients: list[int], point: int) -> int:
    result = 0
    for coefficient in reversed(coefficients):
        result = (result * point + coefficient) % P
    return result


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_values_at_the_nodes_give_those_at_the_points(data: st.DataObject) -> None:
    number = st.integers(0, P - 1)
    nodes = data.draw(st.lists(number, min_size=1, max_size=12, unique=True))
    points = data.draw(st.lists(number | st.sampled_from(nodes), max_size=8))
    coefficients = data.draw(st.lists(number, min_size=len(nodes), max_size=len(nodes)))
    known = np.array([[value(coefficients, node)] for node in nodes], dtype=np.uint32)
    found = field.multiply(lagrange.matrix(tuple(nodes), tuple(points)), known)
    assert found[:, 0].tolist() == [value(coefficients, point) for point in points]


def test_there_and_back_is_the_identity() -> None:
    nodes, points = tuple(range(1, 65)), tuple(range(200, 264))
    there, back = lagrange.matrix(nodes, points), lagrange.matrix(points, nodes)
    assert np.array_equal(field.multiply(back, there), np.eye(64, dtype=np.uint32))


@pytest.mark.parametrize("nodes", [(), (1, 1), (1, 2, 1)])
def test_nodes_must_differ(nodes: tuple[int, ...]) -> None:
    with pytest.raises(ParameterError, match="node"):
        lagrange.matrix(nodes, (5,))


@pytest.mark.parametrize(("nodes", "points"), [((P,), (1,)), ((1,), (P,)), ((-1,), (1,))])
def test_points_lie_in_the_field(nodes: tuple[int, ...], points: tuple[int, ...]) -> None:
    with pytest.raises(ParameterError, match="choose points from 0 to"):
        lagrange.matrix(nodes, points)
