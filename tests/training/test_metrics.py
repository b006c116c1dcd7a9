from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from training.tasks import metrics

samples = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 4)), min_size=1, max_size=40
)


def brute_force_auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Counts pairs."""
    won = [
        1.0 if p > n else 0.5 if p == n else 0.0
        for p in scores[labels == 1]
        for n in scores[labels == 0]
    ]
    return float(np.mean(won)) if won else float("nan")


def columns(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = np.array(rows)
    return table[:, 0], table[:, 1], table[:, 2].astype(float)


@given(samples)
def test_auc_counts_pairs_and_ties(rows: list[tuple[int, int, int]]) -> None:
    _, labels, scores = columns(rows)
    np.testing.assert_allclose(metrics.auc(labels, scores), brute_force_auc(labels, scores))


@given(samples)
def test_gauc_weighs_the_auc_of_groups_by_their_samples(rows: list[tuple[int, int, int]]) -> None:
    groups, labels, scores = columns(rows)
    total, weight = 0.0, 0
    for group in np.unique(groups):
        inside = groups == group
        value = brute_force_auc(labels[inside], scores[inside])
        if not np.isnan(value):
            total += value * inside.sum()
            weight += int(inside.sum())
    expected = total / weight if weight else float("nan")
    np.testing.assert_allclose(metrics.gauc(groups, labels, scores), expected)


def test_auc_of_one_class_is_not_a_number() -> None:
    assert np.isnan(metrics.auc(np.ones(3, dtype=int), np.arange(3.0)))
    assert np.isnan(metrics.gauc(np.arange(3), np.array([0, 1, 0]), np.arange(3.0)))


def test_auc_of_perfect_and_reversed_rankings() -> None:
    labels, scores = np.array([0, 0, 1, 1]), np.array([1.0, 2.0, 3.0, 4.0])
    assert metrics.auc(labels, scores) == 1.0
    assert metrics.auc(labels, -scores) == 0.0
    assert metrics.auc(labels, np.zeros(4)) == 0.5


def test_logloss_and_accuracy() -> None:
    labels = np.array([1, 0, 1])
    value = metrics.logloss(labels, np.array([0.8, 0.1, 0.5]))
    np.testing.assert_allclose(value, -(np.log(0.8) + np.log(0.9) + np.log(0.5)) / 3)
    assert np.isfinite(metrics.logloss(labels, np.array([0.0, 1.0, 0.0])))
    np.testing.assert_allclose(metrics.accuracy(labels, np.array([1, 1, 1])), 2 / 3)
