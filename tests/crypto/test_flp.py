"""The proof of sums of squares: against a slow one, honest and not, and by exhaustion when tiny."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from tests.support.reference import flp_reference
from torchfsl.crypto import field128
from torchfsl.crypto.field128 import MODULUS as P
from torchfsl.crypto.field128 import integers, words
from torchfsl.crypto.flp import Inputs, SumsOfSquares

SHAPES = [(1, 1, 0), (0, 1, 1), (3, 2, 0), (5, 4, 3), (12, 3, 3), (20, 17, 4)]


def drawn(name: str, count: int) -> list[int]:
    return field128.integers(field128.uniform(name.encode().ljust(16, b"\0"), count))


def case(body: int, arity: int, tail: int) -> tuple[SumsOfSquares, Inputs, list[list[int]]]:
    rng = np.random.default_rng([body, arity, tail])
    values = rng.integers(-(1 << 46), 1 << 46, (body, arity))
    last = [[int(x) for x in rng.integers(-(1 << 60), 1 << 60, 1 + k % arity)] for k in range(tail)]
    calls = [[int(x) for x in row] for row in values]
    calls += [[*call, *[0] * (arity - len(call))] for call in last]
    return SumsOfSquares(body + tail, arity), Inputs([(values, 1)], last), calls


def shares_of(inputs: Inputs, seed: int) -> tuple[Inputs, Inputs]:
    """Integers of 60 bits and scales on both sides, elements in the tail."""
    ((values, _),) = inputs.parts
    rng = np.random.default_rng(seed)
    high, low = (rng.integers(-(1 << 61), 1 << 61, values.shape) for _ in range(2))
    tail = [drawn(f"tail {seed} {k}", len(call)) for k, call in enumerate(inputs.tail)]
    first = Inputs([(low, 1), (high, 1 << 32)], tail)
    rest = [
        [x - y for x, y in zip(call, own, strict=True)]
        for call, own in zip(inputs.tail, tail, strict=True)
    ]
    return first, Inputs([(values, 1), (low, -1), (high, -(1 << 32))], rest)


def asked(
    shape: SumsOfSquares, inputs: Inputs, proof: list[int], key: bytes = b"r" * 16
) -> tuple[bool, list[int]]:
    """Whether both verifiers accept, and the outputs."""
    point = shape.point(key)
    share = words(drawn("proof", shape.num_elements))
    parts = shares_of(inputs, 1)
    proofs = share, field128.subtract(words(proof), share)
    one, two = (shape.query(*each, point) for each in zip(parts, proofs, strict=True))
    passed = shape.accepts(field128.add(one.opened, two.opened))
    return passed, [(x + y) % P for x, y in zip(one.outputs, two.outputs, strict=True)]


@pytest.mark.parametrize(("body", "arity", "tail"), SHAPES)
def test_the_proof_is_that_of_the_slow_one(body: int, arity: int, tail: int) -> None:
    shape, inputs, calls = case(body, arity, tail)
    seeds = drawn("seeds", arity)
    w = field128.root_of_unity(shape.order)
    slow = flp_reference.prove(calls, seeds, w, shape.order, P)
    assert integers(shape.prove(inputs, words(seeds))) == [*seeds, *slow]
    assert len(slow) + arity == shape.num_elements
    point = shape.point(b"r" * 16)
    wires = flp_reference.wires(calls, seeds, w, shape.order, P)
    query = shape.query(inputs, words([*seeds, *slow]), point)
    at_point = [flp_reference.at(polynomial, point, P) for polynomial in (*wires, slow)]
    assert integers(query.opened) == at_point


@pytest.mark.parametrize(("body", "arity", "tail"), SHAPES)
def test_an_honest_proof_passes_and_gives_every_sum_of_squares(
    body: int, arity: int, tail: int
) -> None:
    shape, inputs, calls = case(body, arity, tail)
    passed, outputs = asked(
        shape, inputs, integers(shape.prove(inputs, words(drawn("seeds", arity))))
    )
    assert passed
    assert outputs == [sum(x * x for x in call) % P for call in calls]


@pytest.mark.parametrize(("body", "arity", "tail"), SHAPES)
def test_a_proof_of_other_values_or_an_altered_one_fails(body: int, arity: int, tail: int) -> None:
    shape, inputs, _ = case(body, arity, tail)
    proof = integers(shape.prove(inputs, words(drawn("seeds", arity))))
    for place in range(shape.num_elements):
        wrong = list(proof)
        wrong[place] = (wrong[place] + 1) % P
        assert not asked(shape, inputs, wrong)[0], place
    ((values, _),) = inputs.parts
    for place in itertools.product(range(body), range(arity)):
        other = values.copy()
        other[place] += 1
        assert not asked(shape, Inputs([(other, 1)], inputs.tail), proof)[0]
    for place in range(tail):
        last = [list(call) for call in inputs.tail]
        last[place][-1] += 1
        assert not asked(shape, Inputs([(values, 1)], last), proof)[0]


def test_a_root_of_unity_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = SumsOfSquares(3, 1)
    root = field128.root_of_unity(4)
    stream = [1, P - 1, root, root * root % P, 77, 5]
    monkeypatch.setattr(field128, "uniform", lambda _, count: words(stream[:count]))
    assert shape.point(bytes(16)) == 77


def test_a_query_is_exact_at_the_largest_values() -> None:
    """Every weight and value at its end; and a scale."""
    most, least = (1 << 63) - 1, -(1 << 63)
    matrix = np.array([[most, least, 0, -1]] * 30, dtype=np.int64)
    shape = SumsOfSquares(30, 4)
    proof, point = [P - 1] * shape.num_elements, P - 2
    scale, w = -(1 << 48), field128.root_of_unity(shape.order)
    calls = [[int(x) * scale % P for x in row] for row in matrix]
    wires = flp_reference.wires(calls, proof[:4], w, shape.order, P)
    query = shape.query(Inputs([(matrix, scale)]), words(proof), point)
    expected = [flp_reference.at(polynomial, point, P) for polynomial in (*wires, proof[4:])]
    assert integers(query.opened) == expected


# --- everything there is, in a field of 13 elements, two points and one call ------------------

SMALL, ORDER = 13, 2
W = flp_reference.root(SMALL, ORDER)
ASKED = [r for r in range(SMALL) if pow(r, ORDER, SMALL) != 1]


def test_every_false_proof_of_a_tiny_field_passes_at_no_more_points_than_the_bound_says() -> None:
    most = 0
    for value, seed in itertools.product(range(SMALL), (0, 5)):
        true = flp_reference.prove([[value]], [seed], W, ORDER, SMALL)
        right = [flp_reference.at(true, r, SMALL) for r in ASKED]
        for proof in itertools.product(range(SMALL), repeat=2 * ORDER - 1):
            said = [sum(c * r**i for i, c in enumerate(proof)) % SMALL for r in ASKED]
            if list(proof) != true:
                most = max(most, sum(x == y for x, y in zip(said, right, strict=True)))
    assert most == 2 * ORDER - 2


def test_what_is_opened_at_one_point_is_uniform_whatever_the_value_and_at_two_it_is_not() -> None:
    def opened(value: int, points: tuple[int, ...]) -> Counter[tuple[int, ...]]:
        seen = Counter[tuple[int, ...]]()
        for seed in range(SMALL):
            (wire,) = flp_reference.wires([[value]], [seed], W, ORDER, SMALL)
            seen[tuple(flp_reference.at(wire, r, SMALL) for r in points)] += 1
        return seen

    for r in ASKED:
        assert all(opened(v, (r,)) == Counter((x,) for x in range(SMALL)) for v in range(SMALL))
    first, second = ASKED[:2]
    views = [set(opened(v, (first, second))) for v in range(SMALL)]
    assert all(not a & b for a, b in itertools.combinations(views, 2))
    root = opened(3, (W,))  # at a root of unity the value itself is opened
    assert set(root) == {(3,)}
