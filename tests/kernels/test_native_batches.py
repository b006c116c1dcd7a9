"""Accumulation of whole registers of trees, and of several reports at once, against NumPy.

Answers of many trees over one table, too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from torchfsl.kernels import portable

native = pytest.importorskip("torchfsl.kernels._native")

Bytes = npt.NDArray[np.uint8]
Report = tuple[bytes, bytes, Bytes, Bytes, Bytes, Bytes]

# Full registers of trees with leaves left over, and trees left over from full registers; then a few
# trees whose subtrees fill registers, most of them with a last one cut short.
SHAPES = ((16, 9), (19, 61), (37, 150), (4, 300), (37, 338), (19, 1500))
SHAPES += ((1, 90), (1, 256), (2, 5000), (1, 9001))
PAYLOADS = {2: (2, 8, 16, 48), 3: (24,), 4: (8, 12, 32, 72), 8: (8, 24, 64, 80), 16: (16, 32, 144)}


def make_report(rng: np.random.Generator, num_trees: int, num_leaves: int, payload: int) -> Report:
    """A report of random bytes: kernels do not mind that no client made it."""
    depth = (num_leaves - 1).bit_length()
    return (
        rng.bytes(16),
        rng.bytes(16),
        rng.integers(0, 256, (num_trees, 16), dtype=np.uint8),
        rng.integers(0, 256, (depth, num_trees, 16), dtype=np.uint8),
        rng.integers(0, 2, (depth, num_trees), dtype=np.uint8),
        rng.integers(0, 256, (num_trees, payload), dtype=np.uint8),
    )


@pytest.mark.parametrize("width", sorted(PAYLOADS))
@pytest.mark.parametrize("shape", SHAPES)
def test_reports_add_up_as_in_numpy(shape: tuple[int, int], width: int) -> None:
    num_trees, num_leaves = shape
    rng = np.random.default_rng([*shape, width])
    for payload in PAYLOADS[width]:
        reports = [make_report(rng, num_trees, num_leaves, payload) for _ in range(3)]
        before = rng.integers(0, 256, (num_trees, num_leaves, payload), dtype=np.uint8)
        for party in (0, 1):
            expected = before.copy()
            portable.accumulate_batch(reports, num_leaves, party, width, expected)
            for threads in (1, 2):
                total = before.copy()
                native.accumulate_batch(reports, num_leaves, party, width, total, threads)
                np.testing.assert_array_equal(total, expected)
            total = before.copy()
            for *trees, hints in reports:
                key, convert, *arrays = trees
                native.accumulate(key, convert, *arrays, num_leaves, hints, party, width, total)
            np.testing.assert_array_equal(total, expected)


@pytest.mark.parametrize("num_leaves", [70_000, 140_000, 270_000])
def test_deep_trees_add_up_as_in_numpy(num_leaves: int) -> None:
    """Depths 17 to 19: subtrees in two registers, in one, and in several stages."""
    rng = np.random.default_rng(num_leaves)
    for payload in (8, 24):
        report = make_report(rng, 1, num_leaves, payload)
        expected = np.zeros((1, num_leaves, payload), dtype=np.uint8)
        portable.accumulate_batch([report], num_leaves, 1, 8, expected)
        total = np.zeros_like(expected)
        native.accumulate_batch([report], num_leaves, 1, 8, total, 2)
        np.testing.assert_array_equal(total, expected)


def test_no_report_adds_nothing() -> None:
    total = np.ones((3, 4, 8), dtype=np.uint8)
    native.accumulate_batch([], 4, 0, 8, total)
    assert np.all(total == 1)


def test_a_bad_report_is_refused_before_any_is_added() -> None:
    rng = np.random.default_rng(0)
    good = make_report(rng, 3, 4, 8)
    for bad in (good[:5], (*good[:5], good[5][:, :4].copy()), (*good[:4], good[4] + 2, good[5])):
        total = np.zeros((3, 4, 8), dtype=np.uint8)
        with pytest.raises(ValueError, match=r"report|rows|acc|cw_right"):
            native.accumulate_batch([good, bad], 4, 0, 8, total)
        assert not total.any()


@pytest.mark.parametrize("threads", [1, 3])
def test_many_trees_over_one_table_answer_as_one_by_one(threads: int) -> None:
    """More trees than pass over the table together, and rows that fill no block."""
    rng = np.random.default_rng(1)
    *keys, roots, cw, right, words = make_report(rng, 70, 9, 16)
    table = rng.integers(0, 256, (1, 9 * 128 - 77, 24), dtype=np.uint8)
    together = native.answer_bits(*keys, roots, cw, right, words, table, threads)
    alone = [
        native.answer_bits(
            *keys, roots[one], cw[:, one].copy(), right[:, one].copy(), words[one], table, 1
        )
        for one in (slice(tree, tree + 1) for tree in range(70))
    ]
    np.testing.assert_array_equal(together, np.concatenate(alone))
    assert together.any()
