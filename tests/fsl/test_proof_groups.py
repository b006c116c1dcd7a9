"""What is proven, by exhaustion over tiny integers: the zeros are met by honest values alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.federation import make_segment
from torchfsl.errors import ParameterError
from torchfsl.fsl.client import proof
from torchfsl.fsl.plan import proof_shape
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.proof_groups import carry_residues, residues
from torchfsl.fsl.plan.statement import Statement, make_statement
from torchfsl.submodel.norm_bound import four_squares

W, B, OWN = 2, 2, 1
FEW = [(0, 0, 0, 0), (1, 0, 0, 0), (0, -1, 1, 0)]


def segments(*, own: bool = False) -> tuple[TreeSegment, TreeSegment]:
    """One tree of two slots, one of which may be used, and one dense value."""
    return (
        make_segment("few", "scalars", (2,), k_max=1, nu=1, l2_bound=OWN if own else 0),
        make_segment("bias", "dense", (1,)),
    )


def zeros(statement: Statement, vector: list[int]) -> list[int]:
    """The residues of one whole vector, weights' own proof taken at its word."""
    squares = [0] * statement.shape.num_calls
    for group in statement.groups:
        part = vector[group.start : group.start + group.size]
        squares[group.first_call] = sum(v * v for v in part)
    whole = np.array(vector, dtype=np.int64)
    (weight,) = (vector[g.start] for g in statement.groups if g.kind == "weight")
    same = sum(c * c * (c - weight) ** 2 for c in statement.lanes(whole).tolist())
    found = residues(statement.proven, statement.groups, [(whole, 1)], squares, 0)
    return [value for _, value in found] + [same]


def slacks(left: int) -> Iterator[tuple[int, ...]]:
    """What a client may send as roots of four squares: the right ones, or else some others."""
    yield from [four_squares(left)] if left >= 0 else FEW


def accepted(
    statement: Statement, values: tuple[int, int, int], lanes: tuple[int, int], w: int, claim: int
) -> bool:
    """Whether any slack makes all zeros."""
    proven, trees = statement.proven, np.array(values[:2])
    left = {
        ("norm", ""): (w * B) ** 2 - sum(v * v for v in values),
        ("own", "few"): (w * OWN) ** 2 - int((trees**2).sum()),
        ("range", ""): w * (W - w),
        ("slack", "few"): w * w - sum(c * c for c in lanes),
    }
    tree = np.array([[[lanes[0], values[0]], [lanes[1], values[1]]]])
    dense = np.array([claim, values[2]])
    kinds = [(g.kind, g.name) for g in statement.groups if g.slack]
    choices = [[(w,)] if kind == ("weight", "") else slacks(left[kind]) for kind in kinds]
    assert proven.weighted
    for chosen in itertools.product(*choices):
        slack = np.array([root for roots in chosen for root in roots])
        vector = statement.vector({"few": tree}, {"bias": dense}, slack)
        if not any(zeros(statement, vector.tolist())):
            return True
    return False


@pytest.fixture(scope="module")
def weights() -> Statement:
    return make_statement(segments(), 32, "lanes", "weight", 0, W)


@pytest.fixture(scope="module")
def everything() -> Statement:
    return make_statement(segments(own=True), 32, "norm", "weight", B, W)


def test_lanes_of_weights_are_met_by_honest_ones_alone(weights: Statement) -> None:
    number = range(-2, 4)
    for w, claim, first, second in itertools.product(number, number, number, number):
        honest = 0 <= w <= W and claim == w and {first, second} <= {0, w} and not (first and second)
        assert accepted(weights, (9, 9, 9), (first, second), w, claim) == honest


def test_norms_of_weighted_values_are_met_within_the_bounds_alone(everything: Statement) -> None:
    reach = range(-3, 4)
    for w, lane in ((0, 0), (1, 1), (2, 2), (2, 0)):
        for values in itertools.product(reach, (-2, 0, 1), range(-5, 6)):
            inside = sum(v * v for v in values) <= (w * B) ** 2
            inside &= values[0] ** 2 + values[1] ** 2 <= (w * OWN) ** 2
            assert accepted(everything, values, (0, lane), w, w) == inside, (w, values)


def test_a_statement_names_every_sum_it_bounds(everything: Statement) -> None:
    kinds = [(group.kind, group.name) for group in everything.groups]
    assert kinds == [
        ("norm", ""), ("norm", "few"), ("own", "few"), ("weight", ""), ("range", ""),
        ("claim", "bias"), ("lane", "few"), ("slack", "few"),
    ]  # fmt: skip
    assert everything.num_slack == 4 + 4 + 1 + 4 + 4
    assert everything.num_values == sum(group.size for group in everything.groups)


def test_a_bound_of_its_own_costs_a_segment_16_bytes_and_few_calls() -> None:
    trees = [make_segment(f"t{i}", "rows", (60, 8), k_max=6, tau=8) for i in range(4)]

    def size(*own: int) -> int:
        some = tuple(
            make_segment(t.name, "rows", (60, 8), k_max=6, tau=8, l2_bound=b)
            for t, b in zip(trees, own, strict=True)
        )
        statement = make_statement(some, 32, "norm", "count", 1 << 12)
        return statement.public_bytes + statement.private_bytes

    none = size(0, 0, 0, 0)
    assert none < size(900, 0, 0, 0) <= none + 16 + 16 * 8
    assert none < size(900, 900, 900, 900) <= none + 64 + 16 * 32


def test_weights_that_could_pass_the_prime_are_refused() -> None:
    trees = (make_segment("few", "scalars", (1 << 20,), k_max=1 << 16),)
    proof_shape.check_weights(trees, 1 << 20)
    with pytest.raises(ParameterError, match="too large for a proof"):
        proof_shape.check_weights(trees, 1 << 24)
    with pytest.raises(ParameterError, match=r"proofs with ring_bits=16 allow"):
        make_statement(segments(), 16, "norm", "weight", 1 << 10, 1 << 7)


def test_magnitudes_are_never_below_those_of_an_honest_report(everything: Statement) -> None:
    reach = range(-2 * B, 2 * B + 1)
    for w, first, rest in itertools.product(range(W + 1), (-W, 0, 1, W), reach):
        if first**2 > (w * OWN) ** 2 or first**2 + rest**2 > (w * B) ** 2:
            continue
        sent = {"few": np.array([[[w, first], [0, 0]]])}, {"bias": np.array([w, rest])}
        vector = everything.vector(*sent, proof._slack(everything, sent, w))
        assert not any(zeros(everything, vector.tolist()))
        assert np.abs(vector).sum() <= everything.proven.magnitudes()


# --- carries ------------------------------------------------------------------------------------


def test_parts_add_up_to_every_number_and_no_more() -> None:
    for total in range(1, proof_shape.MAX_CARRIES + 1):
        parts = proof_shape.parts_of(total)
        assert sum(parts) == total
        assert len(parts) == total.bit_length()
        for wanted in range(total + 1):
            bits = proof_shape.chosen_parts(total, wanted)
            assert set(bits) <= {0, 1}
            assert sum(p * b for p, b in zip(parts, bits, strict=True)) == wanted


def test_carries_are_met_by_those_of_few_squares_alone() -> None:
    """Whatever is said to be the bits: three slots, T = 3, magnitudes up to 2."""
    parts = proof_shape.parts_of(3)
    for carried in itertools.product(range(-2, 3), repeat=3):
        squares = [sum(e * e for e in carried)]
        met = [
            bits
            for bits in itertools.product(range(-3, 4), repeat=len(parts))
            if not any(
                z for _, z in carry_residues([*squares, *(b * b for b in bits)], parts, bits)
            )
        ]
        assert bool(met) == (squares[0] <= 3)
        assert not met or sum(map(abs, carried)) <= 3
