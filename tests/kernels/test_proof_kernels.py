"""The kernels of proofs: NumPy and C++ against Python's integers, edges, and each other's bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.test_native_kernels import K_CONVERT, K_TREE, make_trees
from torchfsl.kernels import portable
from torchfsl.kernels.portable import proofs
from torchfsl.kernels.portable.proofs import MODULUS, integers, words_of

try:
    from torchfsl.kernels import _native as native
except ImportError:  # pragma: no cover
    native = None  # type: ignore[assignment]

KERNELS = [portable] if native is None else [portable, native]
both = pytest.mark.parametrize("kernels", KERNELS, ids=lambda m: m.__name__.split(".")[-1])
EDGES = [0, 1, 2, MODULUS - 1, MODULUS - 2, 1 << 64, (1 << 64) - 1, MODULUS >> 1]


def states_of(num_leaves: int, trees: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng([num_leaves, trees, seed])
    return rng.integers(0, 256, (trees, num_leaves, 16), dtype=np.uint8)


def hints_of(trees: int, payload: int) -> np.ndarray:
    hints = np.random.default_rng(payload).integers(0, 256, (trees, payload), dtype=np.uint8)
    hints[0] = 0xFF
    return hints


def signed(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def slow_lifts(states: np.ndarray, hint: np.ndarray, width: int, party: int) -> list[list[int]]:
    """Leaf by leaf, value by value, in Python's integers."""
    plain = portable.convert(K_CONVERT, states, len(hint))
    rows = []
    for state, row in zip(states, plain, strict=True):
        values = []
        for start in range(0, len(hint), width):
            part = slice(start, start + width)
            total = int.from_bytes(row[part].tobytes(), "little")
            if state[0] & 1:
                total += int.from_bytes(hint[part].tobytes(), "little")
            value = signed((total % (1 << (8 * width))).to_bytes(width, "little"))
            values.append(-value if party else value)
        rows.append(values)
    return rows


@both
@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("width", [2, 3, 4, 6])
@pytest.mark.parametrize(("leaves", "values"), [(1, 1), (5, 3), (128, 19), (300, 70)])
def test_leaf_sums_are_those_of_integers(
    kernels: Any, leaves: int, values: int, width: int, party: int
) -> None:
    states, hints = states_of(leaves, 2, width), hints_of(2, width * values)
    low, high = kernels.leaf_sums(K_CONVERT, states, hints, width, party).tolist()
    for tree in range(2):
        lifts = slow_lifts(states[tree], hints[tree], width, party)
        expected = [sum(column) for column in zip(*lifts, strict=True)]
        found = [x + (y << 32) for x, y in zip(low[tree], high[tree], strict=True)]
        assert found == expected
        assert width > 4 or not any(high[tree])


@both
@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize(("leaves", "slots"), [(1, 1), (130, 4), (300, 1), (150, 16), (9, 128)])
def test_carry_sums_are_those_of_integers(
    kernels: Any, leaves: int, slots: int, party: int
) -> None:
    states, hints = states_of(leaves, 3, slots), hints_of(3, 7 * slots)
    carried, sums = kernels.carry_sums(K_CONVERT, states, hints, party)
    lifts = [slow_lifts(states[t], hints[t], 7, party) for t in range(3)]
    for leaf in range(leaves):
        for slot in range(slots):
            total = sum(lifts[t][leaf][slot] for t in range(3))
            assert carried[leaf * slots + slot] == total
    for tree in range(3):
        for slot in range(slots):
            low, high = sums[tree, slot].tolist()
            assert low + (high << 32) == sum(row[slot] for row in lifts[tree])


@both
def test_shares_of_honest_trees_cancel_but_at_alpha(kernels: Any) -> None:
    trees = make_trees(10, 3)
    hints = hints_of(3, 16)
    total = 0
    for party in (0, 1):
        states = portable.tree_eval(b"\1" * 16, trees.roots[party], trees.cw, trees.cw_right, 10)
        del states
        leaf = np.asarray(trees.leaves[party])[:, None]
        total = total + kernels.leaf_sums(K_CONVERT, leaf, hints, 4, party)[0]
    wraps = {int(abs(x)) >> 32 for x in np.asarray(total).reshape(-1)}
    assert wraps <= {0, 1}


def elements(shape: tuple[int, int], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    count = shape[0] * shape[1]
    numbers = [int.from_bytes(rng.bytes(16), "little") % MODULUS for _ in range(count)]
    for i in range(0, count, 3):
        numbers[i] = EDGES[i % len(EDGES)]
    return np.array(numbers, dtype=object).reshape(shape)


def root_of(order: int) -> int:
    return pow(7, (MODULUS - 1) // order, MODULUS)


@both
@pytest.mark.parametrize(("order", "wires"), [(2, 1), (2, 5), (4, 3), (16, 7), (64, 2)])
def test_square_sums_are_those_of_polynomials(kernels: Any, order: int, wires: int) -> None:
    values = elements((order, wires), order)
    root = root_of(2 * order)
    words = words_of(values.reshape(-1)).reshape(order, wires, 2)
    found = kernels.square_sums(words, words_of(np.array([root], dtype=object))[0])
    back = pow(order, -1, MODULUS)
    for k in range(2 * order):
        point = pow(root, k, MODULUS)
        total = 0
        for wire in range(wires):
            value = 0  # Lagrange at the powers of root**2, by the sum of a geometric series
            for j in range(order):
                ratio = point * pow(root, -2 * j, MODULUS) % MODULUS
                series = sum(pow(ratio, i, MODULUS) for i in range(order))
                value += int(values[j, wire]) * series * back
            total += value * value
        assert int(integers(found[k : k + 1])[0]) == total % MODULUS


@both
@pytest.mark.parametrize("edge", EDGES)
def test_square_sums_of_constants_at_the_edges(kernels: Any, edge: int) -> None:
    words = words_of(np.array([edge] * 24, dtype=object)).reshape(8, 3, 2)
    root = words_of(np.array([root_of(16)], dtype=object))[0]
    found = integers(kernels.square_sums(words, root)).tolist()
    assert found == [3 * edge * edge % MODULUS] * 16


@both
@pytest.mark.parametrize("shape", [(1, 2, 2), (3, 2, 2), (4, 2, 3)])
def test_square_sums_refuse_other_shapes(kernels: Any, shape: tuple[int, ...]) -> None:
    root = words_of(np.array([root_of(8)], dtype=object))[0]
    with pytest.raises(ValueError, match=r"power of two|two words|\[P, L, 2\]"):
        kernels.square_sums(np.zeros(shape, dtype=np.uint64), root)


@both
@pytest.mark.parametrize("wrong", [MODULUS, (1 << 128) - 1])
def test_square_sums_refuse_elements_out_of_the_field(kernels: Any, wrong: int) -> None:
    root = words_of(np.array([root_of(8)], dtype=object))[0]
    values = np.zeros((4, 1, 2), dtype=np.uint64)
    values[2, 0] = wrong & ((1 << 64) - 1), wrong >> 64
    with pytest.raises(ValueError, match="modulus"):
        kernels.square_sums(values, root)


@pytest.mark.skipif(native is None, reason="no native kernels")
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_native_and_portable_give_the_same_bytes(threads: int) -> None:
    states, hints = states_of(517, 9, 0), hints_of(9, 84)
    for width in (2, 3, 4, 6):
        for party in (0, 1):
            expected = proofs.leaf_sums(K_CONVERT, states, hints, width, party)
            found = native.leaf_sums(K_CONVERT, states, hints, width, party, threads)
            assert found.tobytes() == expected.tobytes()
    for party in (0, 1):
        one = proofs.carry_sums(K_CONVERT, states, hints, party)
        two = native.carry_sums(K_CONVERT, states, hints, party)
        assert [part.tobytes() for part in one] == [part.tobytes() for part in two]
    words = words_of(elements((32, 40), 3).reshape(-1)).reshape(32, 40, 2)
    root = words_of(np.array([root_of(64)], dtype=object))[0]
    expected = proofs.square_sums(words, root)
    assert native.square_sums(words, root, threads).tobytes() == expected.tobytes()


@pytest.mark.skipif(native is None, reason="no native kernels")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"states": np.zeros((2, 3, 15), dtype=np.uint8)}, "16 bytes"),
        ({"states": np.zeros((3, 3, 16), dtype=np.uint8)}, "row for each tree"),
        ({"states": np.zeros((2, 0, 16), dtype=np.uint8)}, "leaves"),
        ({"states": np.zeros((2, 3, 32), dtype=np.uint8)[:, :, ::2]}, "contiguous"),
        ({"width": 8}, "width"),
        ({"width": 5}, "width"),
        ({"hints": np.zeros((2, 13), dtype=np.uint8)}, "whole"),
        ({"hints": np.zeros((2, 0), dtype=np.uint8)}, "payload"),
        ({"party": 2}, "party"),
        ({"key": bytes(15)}, "16 bytes"),
        ({"num_threads": -1}, "num_threads"),
    ],
)
def test_native_kernels_refuse_malformed_arguments(change: dict[str, Any], message: str) -> None:
    good = {"key": K_CONVERT, "states": states_of(3, 2, 0), "hints": hints_of(2, 28),
            "party": 0, "num_threads": 1}  # fmt: skip
    with pytest.raises(ValueError, match=message):
        native.leaf_sums(**{**good, "width": 4, **change})
    if not {"width", "num_threads"} & set(change):
        del good["num_threads"]
        with pytest.raises(ValueError, match=message):
            native.carry_sums(**{**good, **change})


@both
def test_carries_are_one_a_leaf_or_even_in_number(kernels: Any) -> None:
    for slots in (0, 3, 5):
        with pytest.raises(ValueError, match=r"even number|payload"):
            kernels.carry_sums(K_CONVERT, states_of(4, 2, 0), hints_of(2, 7 * slots), 0)


def job_of(leaves: int, trees: int, payload: int, seed: int) -> tuple[Any, ...]:
    made = make_trees(leaves, trees, seed)
    hints = np.ascontiguousarray(hints_of(trees + seed, payload)[seed:])
    return K_TREE, K_CONVERT, made.roots[0], made.cw, made.cw_right, hints


@pytest.mark.skipif(native is None, reason="no native kernels")
@pytest.mark.parametrize("width", [2, 3, 4, 6])
@pytest.mark.parametrize(
    ("leaves", "trees", "values", "lifted"),
    [(1, 1, 1, 1), (7, 3, 2, 1), (65, 9, 19, 19), (130, 40, 20, 3), (600, 2, 33, 33),
     (9000, 1, 19, 19), (200, 17, 3, 0), (130, 17, 4, 4), (65, 40, 8, 5), (300, 17, 18, 18)],
)  # fmt: skip
def test_reports_are_added_and_their_leaves_summed_as_by_each_kernel_alone(
    width: int, leaves: int, trees: int, values: int, lifted: int
) -> None:
    payload = values * width
    jobs = [job_of(leaves, trees, payload, seed) for seed in range(3)]
    for party in (0, 1):
        start = np.random.default_rng(party).integers(0, 256, (trees, leaves, payload), np.uint8)
        added, expected = start.copy(), start.copy()
        portable.accumulate_batch(jobs, leaves, party, width, added)
        sums = portable.accumulate_lifted(jobs, leaves, party, width, expected, lifted)
        assert expected.tobytes() == added.tobytes()
        for place, (key, convert, roots, cw, right, hints) in enumerate(jobs if lifted else ()):
            states = portable.tree_eval(key, roots, cw, right, leaves)
            prefix = np.ascontiguousarray(hints[:, : lifted * width])
            alone = portable.leaf_sums(convert, states, prefix, width, 0)
            assert np.array_equal(sums[:, place], alone[: len(sums)])
            assert not alone[len(sums) :].any()
        for threads in (1, 2, 3):
            total = start.copy()
            found = native.accumulate_lifted(jobs, leaves, party, width, total, lifted, threads)
            assert total.tobytes() == expected.tobytes()
            assert found.tobytes() == sums.tobytes()
            assert found.shape == sums.shape == (1 + (width > 4), 3, trees, lifted)


def queried(num_wires: int, order: int, rows: int, tail: int, parts: int) -> dict[str, Any]:
    """Arguments of a query, elements and integers at their ends among them."""
    rng = np.random.default_rng([num_wires, order, rows, tail, parts])
    size = num_wires + 2 * order - 1

    def elements(count: int) -> Any:
        drawn = [int.from_bytes(rng.bytes(16), "little") % MODULUS for _ in range(count)]
        return words_of(np.array([*EDGES, *drawn][:count], dtype=object))

    matrices = rng.integers(-(1 << 63), (1 << 63) - 1, (parts, rows, num_wires), endpoint=True)
    matrices[:1, :1], matrices[1:2, :1] = (1 << 63) - 1, -(1 << 63)
    return {
        "proof": elements(size),
        "num_wires": num_wires,
        "order": order,
        "root": words_of(np.array([root_of(order)], dtype=object))[0],
        "point": elements(40)[-1],
        "parts": list(matrices),
        "scales": elements(parts + 2)[2:],
        "tail": elements(tail * num_wires).reshape(tail, num_wires, 2),
    }


@pytest.mark.skipif(native is None, reason="no native kernels")
@pytest.mark.parametrize(
    ("num_wires", "order", "rows", "tail", "parts"),
    [(1, 2, 1, 0, 1), (1, 1, 0, 0, 0), (3, 8, 0, 7, 0), (5, 16, 9, 3, 2), (25, 32, 24, 0, 3),
     (303, 256, 248, 4, 2)],
)  # fmt: skip
def test_a_query_is_that_of_the_portable_kernel(
    num_wires: int, order: int, rows: int, tail: int, parts: int
) -> None:
    given = queried(num_wires, order, rows, tail, parts)
    found, expected = native.query_proof(**given), portable.query_proof(**given)
    assert [one.tobytes() for one in found] == [one.tobytes() for one in expected]
    assert [one.shape for one in found] == [(num_wires + 1, 2), (order, 2)]


@both
def test_a_query_refuses_what_does_not_fit(kernels: Any) -> None:
    good, beyond = queried(3, 8, 4, 2, 2), np.full(2, (1 << 64) - 1, dtype=np.uint64)
    long = np.zeros((6, 3, 2), dtype=np.uint64)
    for change, message in (
        ({"num_wires": 0}, "seed"),
        ({"num_wires": len(good["proof"])}, "seed"),
        ({"order": 12}, "power of two"),
        ({"order": 1 << 24}, "power of two"),
        ({"parts": [good["parts"][0], good["parts"][1][:3]]}, "part must"),
        ({"parts": [part[:, :2].copy() for part in good["parts"]]}, "part must"),
        ({"tail": good["tail"][:, :2].copy()}, "tail"),
        ({"tail": long}, "fewer"),
        ({"scales": good["scales"][:1]}, "scales"),
        ({"point": beyond}, "modulus"),
        ({"root": beyond}, "modulus"),
        ({"scales": np.stack([beyond, beyond])}, "modulus"),
        ({"proof": np.tile(beyond, (9, 1))}, "modulus"),
        ({"tail": long[:2] - np.uint64(1)}, "modulus"),
    ):
        with pytest.raises(ValueError, match=message):
            kernels.query_proof(**{**good, **change})


@both
@pytest.mark.parametrize("order", [1, 2, 4, 64, 512])
def test_a_transform_gives_the_values_of_a_polynomial(kernels: Any, order: int) -> None:
    root = root_of(order)
    coefficients = (EDGES * order)[:order]
    words = words_of(np.array(coefficients, dtype=object))
    found = kernels.field_transform(words, words_of(np.array([root], dtype=object))[0])
    for k in {0, 1 % order, order // 2, order - 1}:
        point = pow(root, k, MODULUS)
        expected = sum(c * pow(point, i, MODULUS) for i, c in enumerate(coefficients)) % MODULUS
        assert integers(found[k : k + 1])[0] == expected


@both
def test_transforms_refuse_elements_out_of_the_field(kernels: Any) -> None:
    wrong = np.full((2, 2), (1 << 64) - 1, dtype=np.uint64)
    root = words_of(np.array([root_of(2)], dtype=object))[0]
    with pytest.raises(ValueError, match="modulus"):
        kernels.field_transform(wrong, root)
    with pytest.raises(ValueError, match="power of two"):
        kernels.field_transform(np.zeros((3, 2), dtype=np.uint64), root)


@pytest.mark.skipif(native is None, reason="no native kernels")
def test_adding_with_sums_refuses_what_it_cannot_sum() -> None:
    acc = np.zeros((2, 5, 16), dtype=np.uint8)
    job = job_of(5, 2, 16, 0)
    for change, message in (({"width": 8}, "width"), ({"lifted": 5}, "values of a leaf"),
                            ({"lifted": -1}, "values of a leaf")):  # fmt: skip
        given = {"width": 4, "lifted": 4} | change
        with pytest.raises(ValueError, match=message):
            native.accumulate_lifted([job], 5, 0, acc=acc, **given)
    assert not acc.any()
