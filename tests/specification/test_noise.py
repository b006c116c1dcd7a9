"""Noise of the specification and of the library from equal words: every draw is equal."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.specification import pages, rounds
from tests.specification.test_pages import rules_of_changes
from tests.support.federation import make_plan, make_segment, mixed_plan
from torchfsl.crypto import discrete_gaussian
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl.noise import KeyedNoise, lanes
from torchfsl.submodel import taps
from torchfsl.submodel.correlated_noise import CorrelatedNoise


@pytest.fixture(scope="module")
def spec() -> ModuleType:
    return pages.run()


class Words:
    """Uniform words from a seed, and some runs of the largest, which are drawn again."""

    def __init__(self, seed: int) -> None:
        self._rng, self.requests = np.random.default_rng(seed), []  # type: ignore[var-annotated]

    def __call__(self, count: int) -> Any:
        self.requests.append(count)
        words = self._rng.integers(0, 1 << 64, count, dtype=np.uint64)
        words[self._rng.random(count) < 0.02] = np.uint64((1 << 64) - 1)
        return words


@pytest.mark.parametrize("sigma", [1, 2, 7, 300, 65_537, (1 << 31) - 1])
def test_draws_are_those_of_the_library_word_by_word(spec: ModuleType, sigma: int) -> None:
    for seed, count in enumerate([0, 1, 40, 1500]):
        ours, theirs = Words(seed), Words(seed)
        drawn = spec.sample(sigma, count, lambda n, words=ours: words(n).tolist())
        assert drawn == discrete_gaussian.sample(sigma, count, theirs).tolist()
        assert ours.requests == theirs.requests


def test_draws_of_more_than_a_chunk_have_further_words(spec: ModuleType) -> None:
    keyed, count = KeyedNoise(), (1 << 16) + 3
    keyed.begin(bytes(16))
    theirs = [keyed(2, 5), keyed(1, count)]
    source = rounds.words_of(keyed)
    assert spec.draws(2, 5, source, 0) == theirs[0].tolist()
    assert spec.draws(1, count, source, 1) == theirs[1].tolist()


@pytest.mark.parametrize("lane", ["none", "count", "weight"])
def test_noise_of_a_share_tells_lanes_from_values(spec: ModuleType, lane: Any) -> None:
    plan, keyed = mixed_plan(lane=lane), KeyedNoise()
    lane_sigma = 1000 if lane != "none" else 0
    plan = dataclasses.replace(plan, l2_bound=100, noise_sigma=9, lane_sigma=lane_sigma)
    own = spec.read_plan(plan.to_json())
    keyed.begin(b"k" * 16)
    for index, segment in enumerate((*plan.with_trees, *plan.dense)):
        (named,) = (s for s in own.segments if s.name == segment.name)
        noise = spec.noise(own, named, rounds.words_of(keyed), index)
        is_lane = lanes(plan, segment, plan.sum_values(segment))
        assert np.array(noise)[~is_lane].tolist() == keyed(9, int((~is_lane).sum())).tolist()
        assert np.array(noise)[is_lane].tolist() == keyed(plan.lane_sigma, is_lane.sum()).tolist()


def test_correlated_noise_forgets_rounds_that_are_not_held(spec: ModuleType) -> None:
    """Negative numbers, ties, and a gap as after lost noise."""
    rng, plan = np.random.default_rng(3), mixed_plan()
    own = spec.read_plan(plan.to_json())
    own.noise_taps = [16, -7, 0, 5]
    draws = {index: rng.integers(-500, 500, 300) for index in (0, 1, 2, 4, 5, 9)}
    now, added = 0, {}  # type: ignore[var-annotated]
    library = CorrelatedNoise(tuple(own.noise_taps), 300, lambda *_: draws[now].copy())
    for now in draws:
        library.begin(now)
        past = {lag: added[now - lag] for lag in (1, 2, 3) if now - lag in added}
        added[now] = spec.correlated(own, draws[now].tolist(), past)
        assert added[now] == library(3, 300).tolist()
    for far in (1 << 36, -(1 << 36)):
        with pytest.raises(spec.Unopened):
            spec.correlated(own, [far], {})


def test_growth_is_that_of_the_library(spec: ModuleType) -> None:
    for own in ((), (16, -7), (32, 31, -30, 29), (256, -256), (16, 16, 16)):
        for count in (1, 2, 50, 2000):
            theirs = taps.growth(own, count)
            assert spec.noise_growth(list(own), count) == theirs, (own, count)
    assert spec.noise_growth([16, 16, 16, -16], 3000) == taps.growth((16, 16, 16, -16), 3000)


TAPS: list[dict[str, Any]] = [
    {}, {"noise_taps": [16]}, {"noise_taps": [16, 17]}, {"noise_taps": [17, 3]},
    {"noise_taps": [16, -16]}, {"noise_taps": [16, 3.0]}, {"noise_taps": [16, True]},
    {"noise_taps": "ab"}, {"noise_taps": [512, 1]}, {"noise_taps": [16] + [1] * 63},
    {"noise_taps": [16] + [0] * 63, "min_separation": 64, "max_rounds": 64},
    {"noise_taps": [16] + [0] * 64, "min_separation": 65, "max_rounds": 65},
    {"noise_taps": [16, 1, 1]}, {"max_rounds": 1}, {"max_rounds": (1 << 20) + 1},
    {"min_contributors": 2}, {"max_epochs": 2}, {"noise_sigma": 1 << 27, "lane_sigma": 1},
    {"noise_sigma": (1 << 27) - 1}, {"lane_sigma": 1 << 27}, {"noise_sigma": 1 << 40},
    {"noise_taps": [16, -16], "max_rounds": 1 << 12, "noise_sigma": 1 << 20},
    {"noise_taps": [16, 16, 16], "min_separation": 3, "max_rounds": 1 << 12},
    {"noise_taps": [16, 16, 16, -16], "min_separation": 4, "max_rounds": 1 << 12},
    {"max_participations": 9}, {"max_participations": 8}, {"min_separation": 9},
    {"noise_sigma": 0, "lane_sigma": 0}, {"l2_bound": 0}, {"sum_bound": True}, {"sum_bound": 1},
]  # fmt: skip


def test_taps_are_accepted_by_both_or_by_none(spec: ModuleType) -> None:
    segment = make_segment("s", "scalars", (9,), k_max=2)
    plan = make_plan(segment, lane="count", encoding=FixedPoint(64, 0, 9.0))
    changes: Any = {"l2_bound": 9, "noise_sigma": 3, "lane_sigma": 2, "max_rounds": 8}
    taps: Any = {"noise_taps": (16, 3), "min_separation": 2}
    text = dataclasses.replace(plan, **changes, **taps).to_json()
    rules = rules_of_changes(spec, text, TAPS)
    assert {str(number) for number in range(69, 77)} <= set(rules), rules
    assert rules.count("") > 5
