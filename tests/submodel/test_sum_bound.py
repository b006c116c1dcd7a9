"""Sums beyond what honest reports make up are scaled to it, with the bits of the slow reference."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.federation import make_plan, make_segment, mixed_plan, random_update
from tests.support.reference import sum_bound as reference
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import DecodeError, ParameterError
from torchfsl.fsl.noise import BothServers
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server import norms
from torchfsl.submodel import sum_bound
from torchfsl.submodel.norm_bound import norm_squared
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.plain import Plain, PlainSum
from torchfsl.submodel.plan import Lane
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import Update

VECTORS = Path(__file__).parents[1] / "vectors" / "sum_bound.json"
BOUND = 50_000


def bounded(plan: Plan, **fields: Any) -> Plan:
    """The plan with a bound on its sums, also one of the dense segment alone."""
    own = [dataclasses.replace(s, l2_bound=BOUND // 4 * s.is_dense) for s in plan.segments]
    fields = {"l2_bound": BOUND, "sum_bound": True, "segments": tuple(own)} | fields
    return dataclasses.replace(plan, **fields)


def noisy(lane: Lane, sigma: int = 300, **fields: Any) -> Plan:
    lane_sigma = 3 if lane != "none" else 0
    return bounded(mixed_plan(lane=lane), noise_sigma=sigma, lane_sigma=lane_sigma, **fields)


TAPS = {"noise_taps": (16, 8, 6), "min_separation": 3, "max_rounds": 50}
PLANS = {
    **{lane: bounded(mixed_plan(lane=lane)) for lane in ("none", "count", "weight")},
    **{f"{lane}, noise": noisy(lane) for lane in ("none", "count", "weight")},
    "taps": noisy("none", **TAPS),
}


def random_opened(plan: Plan, seed: int, most: int) -> Opened:
    """Sums, lanes and weight as somebody may open them who lies."""
    rng, clients = np.random.default_rng(seed), 4
    sums = {
        s.name: rng.integers(-most, most, (s.index_space, s.tau), endpoint=True)
        for s in plan.segments
    }
    least, top = -2, clients * plan.max_weight + 2
    counted = [s for s in plan.segments if plan.lane_values and not s.is_dense]
    lanes = {s.name: rng.integers(least, top, s.index_space) for s in counted}
    weight = int(rng.integers(least, top)) if plan.lane == "weight" else clients
    return Opened(sums, lanes, clients, weight, tuple(range(clients)))


def copy_of(opened: Opened) -> Opened:
    sums = {name: values.copy() for name, values in opened.sums.items()}
    return dataclasses.replace(opened, sums=sums, scaled={})


def assert_same(first: Opened, second: Opened) -> None:
    for name, values in first.sums.items():
        assert np.array_equal(values, second.sums[name]), name
    assert first.scaled == second.scaled


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("most", [1, 1 << 12, 1 << 17, 1 << 31, (1 << 63) - 1])
def test_both_paths_have_the_bits_of_the_reference(name: str, most: int) -> None:
    plan = PLANS[name]
    for seed in range(3):
        opened = random_opened(plan, seed, most)
        opened.sums["few"][0] = -(1 << 63) if most > 1 << 62 else most
        expected = reference.kept(plan, copy_of(opened))
        lanes = {name: lane.copy() for name, lane in opened.lanes.items()}
        sum_bound.keep(plan, opened)
        assert_same(opened, expected)
        assert all(np.array_equal(opened.lanes[name], lane) for name, lane in lanes.items())
        assert bool(opened.scaled) == (most >= 1 << 17) or most == 1 << 12 or plan.lane == "weight"


def test_vectors_pin_the_limits_and_the_scaled_values() -> None:
    for vector in json.loads(VECTORS.read_text())["cases"]:
        plan = Plan.from_json(json.dumps(vector["plan"], sort_keys=True, separators=(",", ":")))
        sums = {name: np.array(rows, np.int64) for name, rows in vector["sums"].items()}
        lanes = {name: np.array(lane, np.int64) for name, lane in vector["lanes"].items()}
        opened = Opened(sums, lanes, vector["clients"], vector["weight"], ())
        sum_bound.keep(plan, opened)
        assert {name: rows.tolist() for name, rows in opened.sums.items()} == vector["kept"]
        assert opened.scaled == vector["scaled"]
        most = norms.most_squared(plan, plan.segments, plan.l2_bound, vector["clients"])
        assert str(most) == vector["proven"]


def test_what_is_scaled_has_the_norm_of_the_bound_and_points_where_it_did() -> None:
    plan = make_plan(make_segment("d", "dense", (1000,)))
    plan = dataclasses.replace(plan, l2_bound=1000, sum_bound=True)
    values = np.random.default_rng(0).integers(-(1 << 20), 1 << 20, (1000, 1))
    opened = Opened({"d": values.copy()}, {}, 3, 3, (0, 1, 2))
    sum_bound.keep(plan, opened)
    norm = np.linalg.norm(opened.sums["d"])
    assert 3000 - 40 < norm <= 3000
    assert opened.scaled["d"] == pytest.approx(3000 / np.linalg.norm(values))
    assert np.all(opened.sums["d"] * values >= 0)
    assert np.all(np.abs(opened.sums["d"] - values * opened.scaled["d"]) < 1)


def test_a_sum_at_the_bound_stays_and_one_unit_above_it_does_not() -> None:
    plan = make_plan(make_segment("d", "dense", (2,)))
    plan = dataclasses.replace(plan, l2_bound=5, sum_bound=True)
    at, above = (Opened({"d": np.array([[9], [x]])}, {}, 3, 3, ()) for x in (12, 13))
    sum_bound.keep(plan, at)
    sum_bound.keep(plan, above)
    assert (at.sums["d"].tolist(), at.scaled) == ([[9], [12]], {})
    assert (above.sums["d"].tolist(), list(above.scaled)) == ([[8], [12]], ["d"])


def test_a_weight_that_a_server_lowers_lowers_the_bound_and_counts_bound_the_rows() -> None:
    plan = bounded(mixed_plan(lane="weight"))
    opened = random_opened(plan, 0, 1)
    opened.sums["bias"][:] = BOUND
    low, high = (dataclasses.replace(copy_of(opened), total_weight=w) for w in (1, 20))
    for one in (low, high):
        sum_bound.keep(plan, one)
    assert norm_squared(low.sums) <= BOUND**2 < norm_squared(high.sums)
    plan = bounded(mixed_plan(lane="count"))
    opened = random_opened(plan, 0, 0)
    opened.sums["table"][3, 0], opened.lanes["table"][3] = 4 * BOUND, 1  # within n B, of one client
    sum_bound.keep(plan, opened)
    assert opened.sums["table"][3, 0] == pytest.approx(2 * BOUND, abs=1)  # sqrt(n) B
    opened.sums["table"][3, 0], opened.lanes["table"][3] = 4 * BOUND, 4
    sum_bound.keep(plan, opened)
    assert opened.sums["table"][3, 0] == 4 * BOUND


def within(plan: Plan, update: Update, scale: float) -> Update:
    """The update, scaled to the bounds of all and of the dense segment."""
    values = {name: part.values.astype(np.float64) for name, part in update.items()}
    for names, bound in [(["bias"], BOUND // 4), (list(values), BOUND)]:
        norm = np.sqrt(sum(float(np.sum(values[name] ** 2)) for name in names))
        for name in names:
            values[name] *= scale * min(1.0, bound / norm)
    return {
        name: dataclasses.replace(part, values=np.trunc(values[name]).astype(np.int64))
        for name, part in update.items()
    }


@pytest.mark.parametrize("name", PLANS)
def test_honest_sums_never_reach_the_bound(name: str) -> None:
    plan, rng = PLANS[name], np.random.default_rng(sum(map(ord, name)))
    noise = BothServers(plan) if plan.noise_sigma else None
    for number in range(50):
        total = PlainSum(plan)
        first = random_update(plan, rng, largest=True)  # all alike adds up to most
        for client in range(int(rng.integers(1, 5))):
            update = first if number % 2 else random_update(plan, rng, largest=True)
            weight = plan.max_weight if number % 3 else int(rng.integers(1, plan.max_weight + 1))
            total.add(client, within(plan, update, float(rng.choice([1.0, 0.3]))), weight)
        weight = sum(total.weights.values())
        added = noise(number) if noise else {}
        for name_, values in total.sums.items():
            values += added.get(name_, np.int64(0))
            lane = added.get(f"{name_}/lane", np.zeros(0, np.int64))
            if name_ in total.lanes:
                total.lanes[name_] += lane if lane.size else 0
            elif lane.size:
                weight += int(lane[0])
        opened = Opened(total.sums, total.lanes, len(total.weights), weight, ())
        before = copy_of(opened)
        sum_bound.keep(plan, opened)
        assert not opened.scaled
        assert_same(opened, before)


def test_the_tail_holds_at_many_times_the_noise_of_a_round() -> None:
    plan, most, rng = noisy("none"), 0.0, np.random.default_rng(0)
    count = sum(s.m * s.tau for s in plan.segments)
    tail = sum_bound.tail_squared(plan, plan.segments)
    for _ in range(2000):
        noise = rng.normal(0, 300 * np.sqrt(2), count)
        most = max(most, float(noise @ noise) / tail)
    assert 0.4 < most < 1


def test_the_plain_path_scales_alike_and_a_scaled_sum_is_no_mismatch() -> None:
    plan = dataclasses.replace(bounded(mixed_plan(lane="count")), noise_sigma=300, lane_sigma=3)
    state = {t.name: np.zeros(t.shape, t.dtype) for s in plan.segments for t in s.tensors}
    loud = {name: values * 1000 for name, values in BothServers(plan)(0).items()}
    loud |= {name: values // 1000 for name, values in loud.items() if name.endswith("/lane")}
    plain = Plain(plan, ServerModel(state), noise=lambda _: loud)
    plain.open_round(0, range(3))
    total, rng = PlainSum(plan), np.random.default_rng(1)
    for client in range(3):
        update = within(plan, random_update(plan, rng), 1.0)
        plain.add(client, update)
        total.add(client, update)
    opened = plain.close_round().opened
    assert set(opened.scaled) == {s.name for s in plan.segments}
    assert total.equals(opened, loud)
    opened.sums["bias"][0, 0] += 1
    assert not total.equals(opened, loud)


def test_a_plan_without_the_bound_keeps_its_bytes_and_its_sums() -> None:
    plan = dataclasses.replace(mixed_plan(), l2_bound=BOUND)
    assert "sum_bound" not in plan.to_json()
    opened = random_opened(plan, 0, 1 << 40)
    before = copy_of(opened)
    sum_bound.keep(plan, opened)
    assert_same(opened, before)


def test_what_is_no_bound_is_refused() -> None:
    plan = bounded(mixed_plan())
    assert Plan.from_json(plan.to_json()) == plan
    for wrong in ("false", "1", '"true"', "null"):
        with pytest.raises(DecodeError):
            Plan.from_json(plan.to_json().replace('"sum_bound":true', f'"sum_bound":{wrong}'))
    with pytest.raises(ParameterError, match="set l2_bound"):
        dataclasses.replace(mixed_plan(), sum_bound=True)
    with pytest.raises(ParameterError, match="choose True or False"):
        dataclasses.replace(plan, sum_bound=1)


def test_wide_rings_and_large_weights_are_bounded_in_exact_numbers() -> None:
    plan = make_plan(
        make_segment("rows", "rows", (6, 2), k_max=2, tau=2), make_segment("d", "dense", (2,)),
        encoding=FixedPoint(64, 0, 100.0), lane="weight", max_weight=1 << 40,
    )  # fmt: skip
    plan = dataclasses.replace(plan, l2_bound=1000, sum_bound=True)
    opened = random_opened(plan, 0, 1 << 50)
    opened.lanes["rows"][:] = [1, 2, 1 << 31, 1 << 33, 1 << 40, 0]
    opened = dataclasses.replace(opened, total_weight=1 << 42)
    expected = reference.kept(plan, copy_of(opened))
    sum_bound.keep(plan, opened)
    assert opened.scaled
    assert_same(opened, expected)


def test_noise_counts_with_what_correlation_makes_of_it() -> None:
    plan = PLANS["taps"]
    assert plan.noise_growth > 1
    assert sum_bound.deviation(plan) > plan.noise_growth * 300
    assert sum_bound.deviation(PLANS["none, noise"]) == 300
