"""What secret draws of blocks add to noise: never stated too small, and not much too large."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.errors import raises
from tests.support.federation import make_plan, make_segment
from torchfsl.errors import ParameterError
from torchfsl.fsl import privacy, sampled_blocks
from torchfsl.fsl.plan.plan import Plan

accounting = pytest.importorskip("dp_accounting", reason="needs the extra torchfsl[privacy]")

Floats = npt.NDArray[np.float64]
LOSSES = np.array([0.0, 0.01, 0.1, 0.3, 1.0, 1.5])


def ratios(multiplier: float, norms: list[float], points: int) -> tuple[Floats, Floats]:
    """Values of P / Q of one stretch and their probabilities under Q, over a fine grid."""
    line = np.linspace(-9, 9, points)
    density = np.exp(-(line**2) / 2)
    weights = [np.exp(norm / multiplier * line - (norm / multiplier) ** 2 / 2) for norm in norms]
    grids = np.meshgrid(*weights, indexing="ij")
    chance = np.prod(np.meshgrid(*[density] * len(norms), indexing="ij"), axis=0)
    return np.mean(grids, axis=0).reshape(-1), (chance / chance.sum()).reshape(-1)


def exact(values: Floats, chance: Floats, losses: Floats) -> tuple[Floats, Floats]:
    """Both hockey-stick divergences by summing over the grid."""
    at = np.exp(losses)
    return (
        np.array([np.maximum(values - a, 0) @ chance for a in at]),
        np.array([np.maximum(1 - a * values, 0) @ chance for a in at]),
    )


@pytest.mark.parametrize("multiplier", [1.4, 2.0, 5.0])
def test_divergences_of_a_stretch_are_the_exact_ones_and_a_little_more(multiplier: float) -> None:
    values, chance = ratios(multiplier, [1.0, 1.0], 1201)
    found = sampled_blocks.divergences(sampled_blocks.ratio_of(multiplier, 2), LOSSES)
    for stated, true in zip(found, exact(values, chance, LOSSES), strict=True):
        assert np.all(stated >= true - 1e-9)
        assert np.all(stated <= true + 1e-4 * true.max())


@pytest.mark.parametrize("norms", [[1.0, 0.2], [0.5, 0.5], [0.0, 1.0]])
def test_shorter_vectors_show_less(norms: list[float]) -> None:
    found = sampled_blocks.divergences(sampled_blocks.ratio_of(2.0, 2), LOSSES)
    for stated, true in zip(found, exact(*ratios(2.0, norms, 1201), LOSSES), strict=True):
        assert np.all(stated >= true)


def test_of_three_blocks_it_is_exact_too() -> None:
    values, chance = ratios(1.5, [1.0, 1.0, 1.0], 161)
    found = sampled_blocks.divergences(sampled_blocks.ratio_of(1.5, 3), LOSSES)
    for stated, true in zip(found, exact(values, chance, LOSSES), strict=True):
        assert np.all(np.abs(stated - true) <= 1e-4)


@pytest.mark.parametrize("size", [2, 30, 1000])
def test_the_law_of_the_ratio_has_its_mean_and_its_variance(size: int) -> None:
    ratio = sampled_blocks.ratio_of(4.0, size)
    assert abs(ratio.under_p.sum() - 1) <= ratio.lost
    assert abs(ratio.under_q.sum() - 1) <= ratio.lost
    variance = ratio.under_q @ (ratio.values - 1) ** 2
    true = math.expm1(1 / 16) / size
    assert true <= variance * (1 + 1e-9) <= 1.001 * true


@pytest.mark.parametrize("multiplier", [1.2, 2.5])
def test_epsilon_of_composed_stretches_is_that_of_the_whole_law_and_a_little_more(
    multiplier: float,
) -> None:
    """Two stretches of two blocks in one round, the law summed over a grid of four dimensions."""
    delta = 1e-3
    values, chance = ratios(multiplier * math.sqrt(2), [1.0, 1.0], 241)
    order = np.argsort(values)
    cut = np.array_split(order, 3000)  # neighbours in value, joined at their mean: less spread
    mass = np.array([chance[part].sum() for part in cut])
    mean = np.array([values[part] @ chance[part] for part in cut]) / mass
    both, weight = np.outer(mean, mean).reshape(-1), np.outer(mass, mass).reshape(-1)
    stated = sampled_blocks.epsilon(multiplier, delta, 1, 2, 4)
    at_stated = [one[0] for one in exact(both, weight, np.array([stated]))]
    assert max(at_stated) <= delta
    a_little_less = [one[0] for one in exact(both, weight, np.array([0.97 * stated - 0.01]))]
    assert max(a_little_less) > delta


def block_plan(*, blocks: int = 64, chosen: int = 4, clients: int = 4) -> Plan:
    segment = make_segment("rest", "blocks", (4 * blocks,), tau=4, k_max=chosen)
    plan = make_plan(segment, max_clients=clients)
    return dataclasses.replace(plan, l2_bound=4000, noise_sigma=8000)


def test_the_guarantee_is_smaller_for_secret_draws_against_servers_and_public() -> None:
    plan = block_plan()
    usual = privacy.guarantee(plan, delta=1e-6, rounds=20)
    drawn = privacy.guarantee(plan, delta=1e-6, rounds=20, sampled_blocks=True)
    assert (usual.blocks, drawn.blocks) == (None, (4, 64))
    assert drawn.epsilon_server < 0.5 * usual.epsilon_server
    assert drawn.epsilon_public < drawn.epsilon_server
    assert (drawn.multiplier_server, drawn.delta) == (usual.multiplier_server, usual.delta)


def test_who_knows_the_draws_is_not_held_by_what_is_stated_for_secret_ones() -> None:
    """The attack on draws that are public: a single Gaussian pair, whose delta is exact."""
    plan = block_plan()
    stated = privacy.guarantee(plan, delta=1e-6, rounds=20, sampled_blocks=True)
    known = accounting.get_epsilon_gaussian(stated.multiplier_server / math.sqrt(20), 1e-6)
    assert known > 2 * stated.epsilon_server
    secret = sampled_blocks.epsilon(stated.multiplier_server, 1e-6, 20, 4, 64)
    assert stated.epsilon_server == pytest.approx(secret, rel=1e-3)


def test_more_blocks_of_a_stretch_and_fewer_rounds_show_less() -> None:
    epsilons = [sampled_blocks.epsilon(1.0, 1e-6, 10, 16, 16 * size) for size in (2, 10, 100)]
    assert epsilons == sorted(epsilons, reverse=True)
    rounds = [sampled_blocks.epsilon(1.0, 1e-6, rounds, 16, 320) for rounds in (1, 10, 100)]
    assert rounds == sorted(rounds)


def test_calibration_finds_the_least_noise_for_secret_draws() -> None:
    plan = dataclasses.replace(block_plan(), noise_sigma=0)
    usual = privacy.calibrate(plan, epsilon=2.0, delta=1e-6, rounds=20)
    found = privacy.calibrate(plan, epsilon=2.0, delta=1e-6, rounds=20, sampled_blocks=True)
    assert found.noise_sigma < 0.5 * usual.noise_sigma
    stated = privacy.guarantee(found, delta=1e-6, rounds=20, sampled_blocks=True)
    assert 1.97 < stated.epsilon_server <= 2.0


def test_a_band_that_secret_blocks_would_ignore_is_refused() -> None:
    wishes: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "rounds": 20, "min_separation": 4}
    with raises(ParameterError, "not-accounted"):
        privacy.calibrate(block_plan(), **wishes, band=4, sampled_blocks=True)
    found = privacy.calibrate(block_plan(), **wishes, band=1, sampled_blocks=True)
    assert found.noise_taps == ()


def test_samples_are_not_accounted_together_with_another_task_that_they_leave_out() -> None:
    plan, other = block_plan(), dataclasses.replace(block_plan(), max_rounds=1)
    for samples in ({"sampled": (10, 100)}, {"sampled_blocks": True}):
        with pytest.raises(ParameterError, match="sampled_blocks= with other_plan="):
            privacy.guarantee(plan, delta=1e-6, rounds=20, other_plan=other, **samples)
    with pytest.raises(ParameterError, match="sampled_blocks= with other_plan="):
        privacy.calibrate(
            plan, epsilon=9.0, delta=1e-6, rounds=20, sampled_blocks=True, other_plan=other
        )


def test_too_little_noise_or_no_choice_gains_nothing() -> None:
    for multiplier, chosen, blocks in itertools.product((0.1, 2.0), (4,), (4, 7)):
        assert sampled_blocks.epsilon(multiplier, 1e-6, 1, chosen, blocks) == math.inf
    assert sampled_blocks.epsilon(0.1, 1e-6, 1, 4, 64) == math.inf
    plan = dataclasses.replace(block_plan(), noise_sigma=400)
    usual = privacy.guarantee(plan, delta=1e-6, rounds=1)
    drawn = privacy.guarantee(plan, delta=1e-6, rounds=1, sampled_blocks=True)
    assert drawn.epsilon_server == usual.epsilon_server


def test_a_delta_that_failed_placements_exceed_states_nothing() -> None:
    assert sampled_blocks.epsilon(2.0, 1e-13, 10, 4, 64) == math.inf


def test_plans_of_more_than_blocks_are_refused() -> None:
    two = make_plan(*(make_segment(name, "scalars", (64,), k_max=4) for name in "ab"))
    dense = make_plan(make_segment("rest", "dense", (64,)))
    for plan in (two, dense):
        noisy = dataclasses.replace(plan, l2_bound=4000, noise_sigma=8000)
        with pytest.raises(ParameterError, match="a plan of one segment that"):
            privacy.guarantee(noisy, delta=1e-6, rounds=1, sampled_blocks=True)
    with pytest.raises(ParameterError, match="no sampled=, and"):
        privacy.guarantee(block_plan(), delta=1e-6, rounds=1, sampled=(2, 4), sampled_blocks=True)
