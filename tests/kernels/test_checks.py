"""Check words and answer tags against the slow reference, and the laws they rest on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.reference import checks_reference, dpf_reference
from torchfsl.kernels.backends import kernels

Bytes = npt.NDArray[np.uint8]
KEY, KEY_CHECK, KEY_ROW = bytes(range(16)), bytes(range(50, 66)), bytes(range(70, 86))


def noise(seed: int, *shape: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def trees_of(num_leaves: int) -> tuple[list[Bytes], Bytes, Bytes, list[Bytes]]:
    """One tree for every alpha: roots, words, and both parties' states of all leaves."""
    roots = [noise(party, num_leaves, 16) for party in (0, 1)]
    for party, states in enumerate(roots):
        states[:, 0] = (states[:, 0] & 0xFE) | party
    alpha = np.arange(num_leaves, dtype=np.uint64)
    depth = dpf_reference.depth_of(num_leaves)
    cw, right, *_ = kernels().tree_gen(KEY, roots[0], roots[1], alpha, depth)
    states = [kernels().tree_eval(KEY, r, cw, right, num_leaves) for r in roots]
    return roots, cw, right, states


@pytest.mark.parametrize("num_leaves", [1, 2, 3, 7])
@pytest.mark.parametrize("first_tree", [0, 5, 2**20])
def test_check_words_are_those_of_the_reference(num_leaves: int, first_tree: int) -> None:
    _, _, _, states = trees_of(num_leaves)
    every = np.arange(num_leaves)
    leaves = [state[every, every] for state in states]
    words = kernels().check_gen(
        KEY_CHECK, leaves[0], leaves[1], every.astype(np.uint64), first_tree
    )
    for tree in range(num_leaves):
        wanted = checks_reference.check_word(
            KEY_CHECK, leaves[0][tree].tobytes(), leaves[1][tree].tobytes(), first_tree + tree, tree
        )
        assert words[tree].tobytes() == wanted


@pytest.mark.parametrize("num_leaves", [1, 2, 3, 7, 1030])
def test_honest_folds_agree_and_any_other_check_word_breaks_them(num_leaves: int) -> None:
    chosen = np.unique([0, num_leaves // 2, num_leaves - 1])
    roots, cw, right, states = trees_of(num_leaves)
    leaves = [state[chosen, chosen] for state in states]
    words = kernels().check_gen(KEY_CHECK, leaves[0], leaves[1], chosen.astype(np.uint64), 3)
    masks = noise(7, len(chosen), 16), noise(8, 1024, 2, 16), noise(9, -(-num_leaves // 1024), 16)

    def folds(check: Bytes) -> list[bytes]:
        return [
            kernels().verify(
                KEY, KEY_CHECK, np.ascontiguousarray(root[chosen]),
                np.ascontiguousarray(cw[:, chosen]), np.ascontiguousarray(right[:, chosen]),
                num_leaves, check, 3, bytes(16), *masks, 1,
            )
            for root in roots
        ]  # fmt: skip

    honest = folds(words)
    assert honest[0] == honest[1]
    for tree in range(len(chosen)):
        for place in (0, 15, 16, 31):
            other = words.copy()
            other[tree, place] ^= 1
            spoiled = folds(other)
            assert spoiled[0] != spoiled[1]


@pytest.mark.parametrize("row_bytes", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("num_leaves", [1, 3, 6])
def test_tags_are_those_of_the_reference_and_sum_to_the_clients(
    num_leaves: int, row_bytes: int
) -> None:
    roots, cw, right, states = trees_of(num_leaves)
    table = noise(3, num_leaves, num_leaves, row_bytes)
    digests = (
        kernels()
        .row_digests(KEY_ROW, table.reshape(-1, row_bytes))
        .reshape(num_leaves, num_leaves, 16)
    )
    both = []
    for party in (0, 1):
        answers, tags = kernels().authenticate(
            KEY, KEY_CHECK, roots[party], cw, right, num_leaves, table, digests, 1
        )
        plain = kernels().answer(KEY, roots[party], cw, right, num_leaves, table, 1)
        assert np.array_equal(answers, plain)
        for tree in range(num_leaves):
            wanted = checks_reference.tag(
                KEY_CHECK,
                [state.tobytes() for state in states[party][tree]],
                [checks_reference.row_digest(KEY_ROW, row.tobytes()) for row in table[tree]],
            )
            assert tags[tree].tobytes() == wanted
        both.append((answers, tags))
    every = np.arange(num_leaves)
    rows = both[0][0] ^ both[1][0]
    assert np.array_equal(rows, table[every, every])
    leaves = [state[every, every] for state in states]

    def tags_of(rows: Bytes) -> Bytes:
        own = kernels().row_digests(KEY_ROW, rows)
        return kernels().tags(KEY_CHECK, leaves[0], leaves[1], own)

    expected = tags_of(rows)
    assert np.array_equal(expected, both[0][1] ^ both[1][1])
    for place in (0, row_bytes - 1):
        other = rows.copy()
        other[:, place] ^= 128
        assert not np.any(np.all(tags_of(other) == expected, axis=1))


@pytest.mark.parametrize("row_bytes", [1, 63, 64, 65, 128, 129, 1000])
def test_row_digests_are_keyed_blake2s(row_bytes: int) -> None:
    rows = noise(row_bytes, 37, row_bytes)
    digests = kernels().row_digests(KEY_ROW, rows, 2)
    for row, digest in zip(rows, digests, strict=True):
        assert digest.tobytes() == checks_reference.row_digest(KEY_ROW, row.tobytes())
    assert not np.any(np.all(kernels().row_digests(KEY, rows) == digests, axis=1))


def test_the_field_product_is_commutative_associative_and_has_a_one() -> None:
    numbers = [int.from_bytes(noise(i, 16).tobytes(), "little") for i in range(6)]
    multiply = checks_reference.multiply
    for a in numbers:
        assert multiply(a, 1) == a
        for b in numbers:
            assert multiply(a, b) == multiply(b, a)
            for c in numbers[:2]:
                assert multiply(multiply(a, b), c) == multiply(a, multiply(b, c))
                assert multiply(a, b ^ c) == multiply(a, b) ^ multiply(a, c)
    x_to_128 = multiply(1 << 127, 2)
    assert x_to_128 == 0x87
