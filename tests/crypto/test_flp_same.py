"""The proof that values are 0 or one number: against a slow one, honest and not, and when tiny."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.support.reference import flp_reference
from torchfsl.crypto import field128, flp
from torchfsl.crypto.field128 import MODULUS as P
from torchfsl.crypto.field128 import integers, words
from torchfsl.crypto.flp import ZeroOrSame
from torchfsl.types import Whole

SHAPES = [(1, 1), (2, 1), (3, 2), (7, 3), (40, 6)]


def drawn(name: str, count: int) -> list[int]:
    return field128.integers(field128.uniform(name.encode().ljust(16, b"\0"), count))


def case(num_values: int, same: int) -> Whole:
    chosen = np.random.default_rng([num_values, abs(same)]).integers(0, 2, num_values)
    return chosen.astype(np.int64) * same


def asked(
    shape: ZeroOrSame, values: Whole, same: int, proof: list[int], key: bytes = b"r" * 16
) -> tuple[bool, int]:
    """Whether both verifiers accept, and the output; shares beyond 64 bits on both sides."""
    point = shape.point(key)
    share = words(drawn("proof", shape.num_elements))
    rng = np.random.default_rng(1)
    high, low = (rng.integers(-(1 << 61), 1 << 61, values.shape) for _ in range(2))
    near, far = (np.int64(drawn(name, 1)[0] >> 67) for name in ("near", "far"))
    one = shape.query([(low, near, 1), (high, far, 1 << 32)], share, point)
    rest = [(values, np.int64(same), 1), (low, near, -1), (high, far, -(1 << 32))]
    two = shape.query(rest, field128.subtract(words(proof), share), point)
    passed = shape.accepts(field128.add(one.opened, two.opened))
    return passed, (one.output + two.output) % P


@pytest.mark.parametrize(("num_values", "arity"), SHAPES)
def test_the_proof_is_that_of_the_slow_one(num_values: int, arity: int) -> None:
    shape, same = ZeroOrSame(num_values, arity), -3
    values = np.arange(num_values) - 2
    padded = [*values.tolist(), *[0] * (shape.num_calls * arity - num_values)]
    calls = [[same, *padded[k * arity : (k + 1) * arity]] for k in range(shape.num_calls)]
    seeds = drawn("seeds", shape.num_wires)
    w = field128.root_of_unity(shape.order)
    own, *wires = flp_reference.wires(calls, seeds, w, shape.order, P)
    slow = [0] * (4 * shape.order - 3)
    for wire in wires:
        away = [(a - b) % P for a, b in zip(wire, own, strict=True)]
        root = flp_reference.times(wire, away, P)
        square = flp_reference.times(root, root, P)
        slow = [(a + b) % P for a, b in zip(slow, square, strict=True)]
    assert integers(shape.prove(values, same, words(seeds))) == [*seeds, *slow]
    assert shape.num_elements == len(seeds) + len(slow)
    query = shape.query([(values, np.int64(same), 1)], words([*seeds, *slow]), 12345)
    opened = [flp_reference.at(polynomial, 12345, P) for polynomial in (own, *wires, slow)]
    assert integers(query.opened) == opened
    assert query.output == sum(int(c) ** 2 * (int(c) - same) ** 2 for c in values) % P


@pytest.mark.parametrize("same", [0, 1, -7, 1 << 40])
@pytest.mark.parametrize(("num_values", "arity"), SHAPES)
def test_an_honest_proof_passes_with_output_zero(num_values: int, arity: int, same: int) -> None:
    shape, values = ZeroOrSame(num_values, arity), case(num_values, same)
    proof = integers(shape.prove(values, same, words(drawn("seeds", shape.num_wires))))
    assert asked(shape, values, same, proof) == (True, 0)


@pytest.mark.parametrize(("num_values", "arity"), SHAPES[:4])
def test_an_altered_proof_or_one_of_other_values_fails(num_values: int, arity: int) -> None:
    shape, values = ZeroOrSame(num_values, arity), case(num_values, 5)
    proof = integers(shape.prove(values, 5, words(drawn("seeds", shape.num_wires))))
    for place in range(shape.num_elements):
        wrong = list(proof)
        wrong[place] = (wrong[place] + 1) % P
        assert not asked(shape, values, 5, wrong)[0], place
    for place in range(num_values):
        other = values.copy()
        other[place] += 1
        assert not asked(shape, other, 5, proof)[0]
    assert not asked(shape, values, 6, proof)[0]


def test_every_value_but_zero_and_the_number_has_an_output() -> None:
    """Also where sum c (c - w), of degree 2, would cancel: 1, 1, 1 and -1 beside w = 2."""
    shape = ZeroOrSame(4, 2)
    assert sum(c * (c - 2) for c in (1, 1, 1, -1)) == 0
    for values in [(1, 1, 1, -1), *itertools.product(range(-2, 4), (0, 2), (0, 2), (2,))]:
        given = np.array(values, dtype=np.int64)
        proof = integers(shape.prove(given, 2, words(drawn("seeds", 3))))
        passed, output = asked(shape, given, 2, proof)
        assert passed
        assert (output == 0) == all(c in (0, 2) for c in values)


def test_large_integers_can_meet_it_modulo_p_and_so_want_a_bound() -> None:
    """Fourth powers that add up to p, beside w = 0: why sum c**2 is bounded before."""
    total = sum(c**4 for c in LARGE)
    assert total % P == 0 < total
    shape = flp.cheapest(len(LARGE))
    seeds = words(drawn("seeds", shape.num_wires))
    proof = integers(shape.prove(np.array(LARGE, dtype=np.int64), 0, seeds))
    assert asked(shape, np.array(LARGE, dtype=np.int64), 0, proof) == (True, 0)


def fourth_powers(total: int) -> list[int]:
    """Integers whose fourth powers add up to the total, the largest first."""
    found = []
    while total:
        root = int(total**0.25) + 2
        while root**4 > total:
            root -= 1
        found.append(root)
        total -= root**4
    return found


LARGE = fourth_powers(P)


def test_the_cheapest_shape_is_the_least_of_all() -> None:
    for num_values in (1, 2, 5, 40, 589, 5000):
        best = flp.cheapest(num_values)
        assert best.num_values == num_values
        every = (ZeroOrSame(num_values, arity) for arity in range(1, num_values + 1))
        assert best.num_elements == min(shape.num_elements for shape in every)
    assert flp.cheapest(589).num_elements * 16 < 1700
