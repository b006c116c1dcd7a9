"""The point function: every small domain exhaustively, against the slow oracle and its law.

The law: both parties' shares sum to the value at alpha and to zero everywhere else. The tests call
the kernels of the active backend, which `TORCHFSL_BACKEND` chooses.
"""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.reference import dpf_reference as oracle
from torchfsl.kernels import ring
from torchfsl.kernels.backends import kernels
from torchfsl.kernels.ring import RING_BITS

Bytes = npt.NDArray[np.uint8]
KEY_TREE = bytes(range(16))
KEY_CONVERT = bytes(range(100, 116))
DOMAINS = range(1, 21)


def random_bytes(seed: str, *shape: int) -> Bytes:
    data = random.Random(seed).randbytes(int(np.prod(shape)))
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def root_states(num_trees: int, seed: str = "roots") -> list[Bytes]:
    roots = []
    for party in (0, 1):
        states = random_bytes(f"{seed} {party}", num_trees, 16).copy()
        states[:, 0] = (states[:, 0] & 0xFE) | party
        roots.append(states)
    return roots


def all_positions(num: int) -> npt.NDArray[np.uint64]:
    return np.arange(num, dtype=np.uint64)


def oracle_words(cw: Bytes, cw_right: Bytes, tree: int) -> list[oracle.CorrectionWord]:
    return [
        oracle.CorrectionWord(
            oracle.seed(level.tobytes()), oracle.control_bit(level.tobytes()), int(right)
        )
        for level, right in zip(cw[:, tree], cw_right[:, tree], strict=True)
    ]


@pytest.mark.parametrize("num_leaves", DOMAINS)
def test_trees_of_every_alpha_are_those_of_the_oracle(num_leaves: int) -> None:
    depth = oracle.depth_of(num_leaves)
    roots = root_states(num_leaves)
    cw, cw_right, leaf0, leaf1 = kernels().tree_gen(
        KEY_TREE, roots[0], roots[1], all_positions(num_leaves), depth
    )
    assert cw.shape == (depth, num_leaves, 16)
    assert cw_right.shape == (depth, num_leaves)
    for alpha in range(num_leaves):
        words, state0, state1 = oracle.tree_gen(
            KEY_TREE, roots[0][alpha].tobytes(), roots[1][alpha].tobytes(), alpha, depth
        )
        assert [word.packed() for word in words] == [level.tobytes() for level in cw[:, alpha]]
        assert [word.right_bit for word in words] == cw_right[:, alpha].tolist()
        assert (leaf0[alpha].tobytes(), leaf1[alpha].tobytes()) == (state0, state1)


@pytest.mark.parametrize("num_leaves", DOMAINS)
def test_every_leaf_of_every_tree_is_that_of_the_oracle_and_parties_differ_at_alpha_alone(
    num_leaves: int,
) -> None:
    depth = oracle.depth_of(num_leaves)
    roots = root_states(num_leaves)
    cw, cw_right, leaf0, leaf1 = kernels().tree_gen(
        KEY_TREE, roots[0], roots[1], all_positions(num_leaves), depth
    )
    states = [kernels().tree_eval(KEY_TREE, r, cw, cw_right, num_leaves) for r in roots]
    for party in (0, 1):
        assert states[party].shape == (num_leaves, num_leaves, 16)
        for tree in range(num_leaves):
            words = oracle_words(cw, cw_right, tree)
            root = roots[party][tree].tobytes()
            for leaf in range(num_leaves):
                wanted = oracle.leaf_state(KEY_TREE, root, words, leaf)
                assert states[party][tree, leaf].tobytes() == wanted
    same = np.all(states[0] == states[1], axis=2)
    assert np.array_equal(same, ~np.eye(num_leaves, dtype=bool))
    on_path = [state[np.arange(num_leaves), np.arange(num_leaves)] for state in states]
    assert np.all((on_path[0][:, 0] ^ on_path[1][:, 0]) & 1 == 1)
    assert np.array_equal(on_path[0], leaf0)
    assert np.array_equal(on_path[1], leaf1)


@pytest.mark.parametrize("bits", RING_BITS)
@pytest.mark.parametrize("nu", range(4))
def test_shares_sum_to_the_value_at_every_alpha_of_every_domain_and_to_zero_elsewhere(
    nu: int, bits: int
) -> None:
    width, values_a_row = bits // 8, 2
    for m in DOMAINS:
        num_leaves = -(-m >> nu)
        alpha = all_positions(m)
        values = random_bytes(f"values {m} {nu} {bits}", m, values_a_row * width)
        roots = root_states(m, f"roots {m}")
        cw, cw_right, leaf0, leaf1 = kernels().tree_gen(
            KEY_TREE, roots[0], roots[1], alpha >> np.uint64(nu), oracle.depth_of(num_leaves)
        )
        hints = kernels().hint_gen(
            KEY_CONVERT, leaf0, leaf1, values, alpha & np.uint64((1 << nu) - 1), nu, width
        )
        shares = []
        for party in (0, 1):
            acc = np.zeros((m, num_leaves, hints.shape[1]), dtype=np.uint8)
            kernels().accumulate(
                KEY_TREE, KEY_CONVERT, roots[party], cw, cw_right, num_leaves, hints, party,
                width, acc, 1,
            )  # fmt: skip
            shares.append(acc.reshape(m, num_leaves << nu, values_a_row, width))
        total = ring.add(shares[0], shares[1])
        wanted = np.zeros_like(total)
        wanted[np.arange(m), np.arange(m)] = values.reshape(m, values_a_row, width)
        assert np.array_equal(total, wanted)


@pytest.mark.parametrize("bits", RING_BITS)
@pytest.mark.parametrize("nu", range(4))
def test_hints_and_shares_are_those_of_the_oracle(nu: int, bits: int) -> None:
    width, num_leaves, values_a_row = bits // 8, 3, 3
    num_trees = num_leaves << nu
    alpha = all_positions(num_trees)
    roots = root_states(num_trees)
    values = random_bytes(f"values {bits}", num_trees, values_a_row * width)
    cw, cw_right, leaf0, leaf1 = kernels().tree_gen(
        KEY_TREE, roots[0], roots[1], alpha >> np.uint64(nu), 2
    )
    slots = alpha & np.uint64((1 << nu) - 1)
    hints = kernels().hint_gen(KEY_CONVERT, leaf0, leaf1, values, slots, nu, width)
    for tree in range(num_trees):
        wanted = oracle.hint_gen(
            KEY_CONVERT, leaf0[tree].tobytes(), leaf1[tree].tobytes(), values[tree].tobytes(),
            int(slots[tree]), nu, width,
        )  # fmt: skip
        assert hints[tree].tobytes() == wanted
    for party in (0, 1):
        acc = np.zeros((num_trees, num_leaves, hints.shape[1]), dtype=np.uint8)
        kernels().accumulate(
            KEY_TREE, KEY_CONVERT, roots[party], cw, cw_right, num_leaves, hints, party, width,
            acc, 1,
        )  # fmt: skip
        for tree in range(0, num_trees, 5):
            words = oracle_words(cw, cw_right, tree)
            for leaf in range(num_leaves):
                state = oracle.leaf_state(KEY_TREE, roots[party][tree].tobytes(), words, leaf)
                hint = hints[tree].tobytes()
                wanted = oracle.leaf_value(KEY_CONVERT, state, hint, party, width)
                assert acc[tree, leaf].tobytes() == wanted


@pytest.mark.parametrize("num_bytes", [1, 15, 16, 17, 33, 400, 4200])
def test_conversion_is_that_of_the_oracle_and_ignores_the_control_bit(num_bytes: int) -> None:
    states = random_bytes("states", 5, 16).copy()
    converted = kernels().convert(KEY_CONVERT, states, num_bytes)
    assert converted.shape == (5, num_bytes)
    for state, out in zip(states, converted, strict=True):
        assert out.tobytes() == oracle.convert(KEY_CONVERT, state.tobytes(), num_bytes)
    states[:, 0] ^= 1
    assert np.array_equal(kernels().convert(KEY_CONVERT, states, num_bytes), converted)


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("bits", RING_BITS)
def test_accumulation_adds_to_what_is_there_modulo_the_ring(bits: int, party: int) -> None:
    width, num_trees, num_leaves = bits // 8, 3, 5
    roots = root_states(num_trees)
    alpha = np.array([4, 0, 2], dtype=np.uint64)
    cw, cw_right, leaf0, leaf1 = kernels().tree_gen(KEY_TREE, roots[0], roots[1], alpha, 3)
    values, slots = random_bytes("v", num_trees, width), np.zeros(num_trees, dtype=np.uint64)
    hints = kernels().hint_gen(KEY_CONVERT, leaf0, leaf1, values, slots, 0, width)

    def shares(acc: Bytes) -> Bytes:
        kernels().accumulate(
            KEY_TREE, KEY_CONVERT, roots[party], cw, cw_right, num_leaves, hints, party, width,
            acc, 1,
        )  # fmt: skip
        return acc

    fresh = shares(np.zeros((num_trees, num_leaves, width), dtype=np.uint8))
    start = random_bytes("acc", num_trees, num_leaves, width)
    assert np.array_equal(shares(start.copy()), ring.add(start, fresh))


@pytest.mark.parametrize("num_leaves", DOMAINS)
@pytest.mark.parametrize("shared_table", [True, False])
def test_answers_of_every_alpha_sum_to_the_row_there(num_leaves: int, shared_table: bool) -> None:
    row_bytes = 13
    roots = root_states(num_leaves)
    cw, cw_right, _, _ = kernels().tree_gen(
        KEY_TREE, roots[0], roots[1], all_positions(num_leaves), oracle.depth_of(num_leaves)
    )
    tables = 1 if shared_table else num_leaves
    table = random_bytes(f"table {num_leaves}", tables, num_leaves, row_bytes)
    answers = [kernels().answer(KEY_TREE, r, cw, cw_right, num_leaves, table, 1) for r in roots]
    assert answers[0].shape == (num_leaves, row_bytes)
    everyone = np.arange(num_leaves)
    wanted = table[0] if shared_table else table[everyone, everyone]
    assert np.array_equal(answers[0] ^ answers[1], wanted)


@pytest.mark.parametrize("values_a_row", [1, 2])
@pytest.mark.parametrize("bits", RING_BITS)
@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_gathering_adds_the_named_slots_modulo_the_ring(
    bits: int, dtype: type, values_a_row: int
) -> None:
    width, m = bits // 8, 50
    acc = random_bytes("acc", 29, values_a_row * width)
    start = random_bytes("out", m, values_a_row * width)
    slots = np.random.default_rng(1).integers(0, 29, size=(3, m)).astype(dtype)
    out = start.copy()
    kernels().gather(acc, slots, out, width, 1)
    lanes = start.reshape(m, values_a_row, width)
    for row in slots:
        lanes = ring.add(lanes, acc.reshape(29, values_a_row, width)[row])
    assert np.array_equal(out.reshape(lanes.shape), lanes)


def test_a_tree_is_a_prefix_of_the_tree_with_more_leaves() -> None:
    roots = root_states(4)
    alpha = np.array([0, 3, 8, 5], dtype=np.uint64)
    cw, cw_right, _, _ = kernels().tree_gen(KEY_TREE, roots[0], roots[1], alpha, 4)
    whole = kernels().tree_eval(KEY_TREE, roots[0], cw, cw_right, 16)
    for num_leaves in range(9, 16):
        part = kernels().tree_eval(KEY_TREE, roots[0], cw, cw_right, num_leaves)
        assert np.array_equal(part, whole[:, :num_leaves])


def test_one_partys_share_does_not_depend_on_the_value_and_hints_look_alike() -> None:
    """A dummy (value zero) differs from a real tree in its hint alone, by the value itself."""
    roots = root_states(2)
    alpha = np.array([3, 3], dtype=np.uint64)
    _, _, leaf0, leaf1 = kernels().tree_gen(KEY_TREE, roots[0], roots[1], alpha, 3)
    slots = np.zeros(2, dtype=np.uint64)
    zero = np.zeros((2, 4), dtype=np.uint8)
    real = np.array([[7, 0, 0, 0], [255, 255, 255, 255]], dtype=np.uint8)
    dummy = kernels().hint_gen(KEY_CONVERT, leaf0, leaf1, zero, slots, 0, 4)
    carried = kernels().hint_gen(KEY_CONVERT, leaf0, leaf1, real, slots, 0, 4)
    change = ring.sub(carried[:, None], dummy[:, None])[:, 0]
    signed = np.where((leaf1[:, :1] & 1) == 1, ring.neg(real[:, None])[:, 0], real)
    assert np.array_equal(change, signed)
