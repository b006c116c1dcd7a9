"""Rounds of random clients: no neighbours show more than the two pairs that are accounted for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from scripts.attacks import sampled_rounds
from torchfsl.fsl import sampled_gaussian

pytest.importorskip("dp_accounting", reason="needs the extra torchfsl[privacy]")

Floats = npt.NDArray[np.float64]
LOSSES = np.array([0.0, 0.01, 0.1, 0.3, 1.0, 2.0])


def plane(multiplier: float) -> tuple[Floats, Floats, float]:
    """Points of the plane and the area of each."""
    line = np.linspace(-1 - 9 * multiplier, 1 + 9 * multiplier, 801)
    x, y = np.meshgrid(line, line)
    return x, y, (line[1] - line[0]) ** 2


def normal(points: tuple[Floats, Floats, float], mean: Floats, multiplier: float) -> Floats:
    x, y, area = points
    squared = (x - mean[0]) ** 2 + (y - mean[1]) ** 2
    weights: Floats = np.exp(-squared / (2 * multiplier**2)) * area / (2 * np.pi * multiplier**2)
    return weights


@pytest.mark.parametrize(("multiplier", "rate"), [(0.7, 0.1), (2.0, 0.3), (5.0, 0.9)])
def test_no_vectors_in_the_unit_disc_show_more_than_the_worst_ones(
    multiplier: float, rate: float
) -> None:
    rng = np.random.default_rng(0)
    points = plane(multiplier)
    bounds = (
        sampled_gaussian.divergence_with(LOSSES, multiplier, rate),
        sampled_gaussian.divergence_without(LOSSES, multiplier, rate),
    )
    reached = np.zeros((2, len(LOSSES)))
    angles = [0.0, np.pi, *rng.uniform(0, 2 * np.pi, 12)]
    for number, angle in enumerate(angles):
        mine, others = (1.0, 1.0) if number < 8 else rng.uniform(0, 1, 2)
        place = others * np.array([np.cos(angle), np.sin(angle)])
        out = normal(points, place, multiplier)
        with_client = (1 - rate) * out + rate * normal(points, np.array([mine, 0.0]), multiplier)
        without = (1 - rate) * out + rate * normal(points, np.zeros(2), multiplier)
        for way, (p, q) in enumerate(((with_client, without), (without, with_client))):
            exact = np.array([np.maximum(p - np.exp(loss) * q, 0).sum() for loss in LOSSES])
            assert np.all(exact <= bounds[way] + 2e-5)  # the sum over a grid is no closer
            reached[way] = np.maximum(reached[way], exact)
    assert np.allclose(reached, bounds, atol=2e-5)  # the bounds are met, not only kept


@pytest.mark.parametrize(("multiplier", "rate", "rounds"), [(5.0, 0.1, 200), (10.0, 0.3, 200)])
def test_epsilon_lies_between_that_of_the_worst_pair_and_a_little_more(
    multiplier: float, rate: float, rounds: int
) -> None:
    worst = sampled_rounds.true_epsilon(multiplier, rate, rounds, 1e-6)
    stated = sampled_gaussian.epsilon(multiplier, 1e-6, rounds, rate)
    assert worst <= stated <= 1.1 * worst


def test_poisson_accounting_states_too_little_where_the_number_of_reports_is_public() -> None:
    result = sampled_rounds.sampled_rounds()
    assert result.worked_off
    assert not result.worked_on
