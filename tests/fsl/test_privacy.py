"""Noise in a round and what it guarantees: with it, everything else stays exact."""

from __future__ import annotations

import builtins
import dataclasses
import math
import re
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.distributions import pmf, seeded
from tests.support.errors import raises
from tests.support.federation import (
    Wire,
    make_plan,
    make_segment,
    make_servers,
    make_state,
    mixed_plan,
    play_round,
    random_update,
    submit,
)
from tests.support.reference import plaintext
from torchfsl.crypto import discrete_gaussian
from torchfsl.crypto.discrete_gaussian import MAX_SIGMA
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError
from torchfsl.fsl import privacy
from torchfsl.fsl.noise import Draw
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.submodel.server_model import ServerModel

Whole = npt.NDArray[np.int64]


# --- noise in a round -------------------------------------------------------------------------


def noisy(plan: Plan, sigma: int = 1000, lane_sigma: int = 20) -> Plan:
    return dataclasses.replace(
        plan,
        l2_bound=1 << 40,
        noise_sigma=sigma,
        lane_sigma=lane_sigma if plan.lane_values else 0,
    )


class Recorder:
    """A source of noise that keeps what it gave."""

    def __init__(self, seed: int) -> None:
        self.words = seeded(seed)
        self.drawn: list[tuple[int, Whole]] = []

    def __call__(self, sigma: int, count: int) -> Whole:
        draws = discrete_gaussian.sample(sigma, count, self.words)
        self.drawn.append((sigma, draws))
        return draws

    def total(self, sigma: int) -> Whole:
        return np.concatenate([draws for s, draws in self.drawn if s == sigma])


def noisy_servers(plan: Plan, *draws: Draw) -> tuple[Server, Server]:
    def one(party: int) -> Server:
        source = draws[party] if draws else discrete_gaussian.sample
        return Server(party, plan=plan, model=ServerModel(make_state(plan)), draw_noise=source)

    return one(0), one(1)


@pytest.mark.parametrize("lane", ["none", "count", "weight"])
def test_a_noisy_round_opens_the_plain_sums_plus_both_servers_draws(lane: Any) -> None:
    plan = noisy(mixed_plan(lane=lane))
    sources = Recorder(1), Recorder(2)
    servers = noisy_servers(plan, *sources)
    rng = np.random.default_rng(0)
    updates = {client: random_update(plan, rng) for client in (3, 4, 9)}
    weights = {3: 2, 4: 1, 9: 5} if lane == "weight" else None
    opened, contributions = play_round(servers, 0, updates, weights)
    sums = plaintext.sums(plan, contributions)
    counts = plaintext.lanes(plan, contributions)
    ordered = [s for s in plan.segments if s.policy != "dense"]
    ordered += [s for s in plan.segments if s.policy == "dense"]
    values = np.concatenate([(opened.sums[s.name] - sums[s.name]).reshape(-1) for s in ordered])
    assert np.array_equal(values, sources[0].total(1000) + sources[1].total(1000))
    assert np.count_nonzero(values) > 0.99 * len(values)  # zeros of the sums are noised too
    if plan.lane_values:
        lanes = [opened.lanes[s.name] - counts[s.name] for s in ordered if s.policy != "dense"]
        if lane == "weight":
            lanes.append(np.array([opened.total_weight - 8]))
        expected = sources[0].total(20) + sources[1].total(20)
        assert np.array_equal(np.concatenate(lanes), expected)
    # One draw for every ring value of a share, no more and no fewer.
    assert sum(len(draws) for _, draws in sources[0].drawn) == sum(
        s.m * (s.tau + plan.lane_values) if s.policy != "dense" else plan.dense_values(s)
        for s in plan.segments
    )
    assert servers[0].model.digest() == servers[1].model.digest()


def test_a_round_without_noise_draws_none() -> None:
    plan = mixed_plan(lane="count")
    sources = Recorder(1), Recorder(2)
    servers = noisy_servers(plan, *sources)
    play_round(servers, 0, {1: random_update(plan, np.random.default_rng(0))})
    assert not sources[0].drawn
    assert not sources[1].drawn


def test_opened_noise_has_the_variance_of_both_servers() -> None:
    plan = noisy(make_plan(make_segment("bias", "dense", (40_000,))), sigma=300)
    updates = {client: random_update(plan, np.random.default_rng(client)) for client in (0, 1)}
    opened, contributions = play_round(noisy_servers(plan), 0, updates)
    noise = opened.sums["bias"] - plaintext.sums(plan, contributions)["bias"]
    variance = float((noise.astype(float) ** 2).mean())
    assert abs(variance / (2 * 300**2) - 1) < 7 * math.sqrt(2 / 40_000)


# --- plans with noise -------------------------------------------------------------------------


def dense_plan(**options: Any) -> Plan:
    return dataclasses.replace(make_plan(make_segment("bias", "dense", (50,))), **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"noise_sigma": 5}, "without l2_bound"),
        ({"noise_sigma": -1, "l2_bound": 100}, "choose a number from 0 to"),
        ({"noise_sigma": MAX_SIGMA + 1, "l2_bound": 100}, "choose a number from 0 to"),
        ({"l2_bound": 7}, "use an l2_bound of 8"),
        ({"l2_bound": 100, "noise_sigma": 5, "lane_sigma": 5}, "lane_sigma"),
        ({"l2_bound": 100, "noise_sigma": 5, "lane": "count"}, "lane_sigma"),
        ({"l2_bound": 100, "lane_sigma": 5, "lane": "count"}, "lane_sigma"),
    ],
)
def test_a_plan_refuses_noise_that_means_nothing(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        dense_plan(**options)


def test_headroom_counts_nine_standard_deviations_of_both_servers() -> None:
    encoding = FixedPoint(32, 0, 1000.0)
    largest = (2**31 - 1 - 4 * 1000 - 1) / (9 * math.sqrt(2))
    fits, overflows = math.floor(largest) - 1, math.ceil(largest) + 1
    options = {"encoding": encoding, "l2_bound": 1000}
    assert dense_plan(noise_sigma=fits, **options).noise_sigma == fits
    with pytest.raises(ParameterError, match="use more ring_bits"):
        dense_plan(noise_sigma=overflows, **options)
    with pytest.raises(ParameterError, match="the lane's sum"):
        dense_plan(noise_sigma=fits, lane="count", lane_sigma=overflows + 400, **options)


def test_noise_parameters_are_part_of_the_digest_and_of_the_json() -> None:
    plan = noisy(mixed_plan(lane="count"))
    assert Plan.from_json(plan.to_json()) == plan
    for field in ("noise_sigma", "lane_sigma", "l2_bound"):
        other = dataclasses.replace(plan, **{field: getattr(plan, field) + 1})
        assert other.digest != plan.digest


# --- accounting -------------------------------------------------------------------------------


def hockey_stick(p: dict[int, float], q: dict[int, float], epsilon: float) -> float:
    """The exact delta of two distributions at epsilon, one direction."""
    return math.fsum(max(0.0, p[y] - math.exp(epsilon) * q.get(y, 0.0)) for y in p)


def shifted(distribution: dict[int, float], by: int) -> dict[int, float]:
    return {y + by: probability for y, probability in distribution.items()}


def mixture(p: dict[int, float], q: dict[int, float], rate: float) -> dict[int, float]:
    return {y: (1 - rate) * p.get(y, 0.0) + rate * q.get(y, 0.0) for y in p.keys() | q.keys()}


def convolved(p: dict[int, float], q: dict[int, float]) -> dict[int, float]:
    low = min(p) + min(q)
    values = np.convolve([p[y] for y in sorted(p)], [q[y] for y in sorted(q)])
    return dict(enumerate(values.tolist(), start=low))


def scalar_plan(sigma: int, bound: int) -> Plan:
    plan = make_plan(make_segment("one", "dense", (1,)), encoding=FixedPoint(32, 0, 100.0))
    return dataclasses.replace(plan, l2_bound=bound, noise_sigma=sigma)


@pytest.mark.parametrize(("sigma", "bound", "delta"), [(1, 1, 1e-3), (4, 3, 1e-6), (9, 2, 1e-5)])
def test_epsilon_holds_for_the_exact_distributions(sigma: int, bound: int, delta: float) -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra torchfsl[privacy]")
    stated = privacy.guarantee(scalar_plan(sigma, bound), delta=delta, rounds=1)
    one = pmf(sigma, 60 * sigma)
    for epsilon, noise in (
        (stated.epsilon_server, one),
        (stated.epsilon_public, convolved(one, one)),
    ):
        with_client = shifted(noise, bound)
        assert hockey_stick(with_client, noise, epsilon) <= delta
        assert hockey_stick(noise, with_client, epsilon) <= delta
        assert hockey_stick(with_client, noise, 0.5 * epsilon) > delta  # and not loose by much


@pytest.mark.parametrize(("sigma", "bound", "delta"), [(4, 3, 1e-6), (9, 2, 1e-5), (40, 39, 1e-6)])
def test_epsilon_of_a_sample_holds_whatever_the_clients_in_its_place_sent(
    sigma: int, bound: int, delta: float
) -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra torchfsl[privacy]")
    stated = privacy.guarantee(scalar_plan(sigma, bound), delta=delta, rounds=1, sampled=(20, 100))
    one = pmf(sigma, 20 * sigma)
    noise = convolved(one, one)
    worst = 0.0
    for other in {-bound, -1, 0, 1, bound}:
        out = shifted(noise, other)
        with_client = mixture(out, shifted(noise, bound), 0.2)
        without = mixture(out, noise, 0.2)
        assert hockey_stick(with_client, without, stated.epsilon_public) <= delta
        assert hockey_stick(without, with_client, stated.epsilon_public) <= delta
        worst = max(worst, hockey_stick(with_client, without, 0.8 * stated.epsilon_public))
    assert worst > delta  # and not loose by much


def test_epsilon_of_two_rounds_holds_for_the_exact_distributions() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra torchfsl[privacy]")
    stated = privacy.guarantee(scalar_plan(4, 2), delta=1e-5, rounds=2)
    one = pmf(4, 80)
    moved = shifted(one, 2)
    pairs = {(a, b): one[a] * one[b] for a in one for b in one}
    with_client = {(a, b): moved[a] * moved[b] for a in moved for b in moved}
    delta = math.fsum(
        max(0.0, p - math.exp(stated.epsilon_server) * pairs.get(ab, 0.0))
        for ab, p in with_client.items()
    )
    assert delta <= 1e-5


def test_the_whole_budget_of_a_plan_is_that_of_its_rounds() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra torchfsl[privacy]")
    plan = dataclasses.replace(scalar_plan(9, 2), max_rounds=30)
    assert privacy.guarantee(plan, delta=1e-5) == privacy.guarantee(plan, delta=1e-5, rounds=30)
    found = privacy.calibrate(plan, epsilon=2.0, delta=1e-5)
    assert found == privacy.calibrate(plan, epsilon=2.0, delta=1e-5, rounds=30)


def test_servers_open_no_more_rounds_than_noise_is_charged_for() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra torchfsl[privacy]")
    found = privacy.calibrate(scalar_plan(9, 2), epsilon=2.0, delta=1e-5, rounds=30)
    assert found.max_rounds == 30
    assert privacy.guarantee(found, delta=1e-5).epsilon_server <= 2.0


def test_the_exact_accountant_needs_less_than_renyi_divergences() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra torchfsl[privacy]")
    stated = privacy.guarantee(scalar_plan(1000, 200), delta=1e-6, rounds=200)
    assert stated.epsilon_server < 0.95 * 17.861  # what Renyi accounting says


def test_calibration_meets_the_request_and_wastes_nothing() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra torchfsl[privacy]")
    for lane in ("none", "count"):
        plan = make_plan(
            make_segment("few", "scalars", (300,), k_max=20, theta=5),
            encoding=FixedPoint(64, 16, 4.0),
            lane=lane,
        )
        plan = dataclasses.replace(plan, l2_bound=privacy.l2_bound(plan.encoding, 1.5))
        assert plan.l2_bound == 3 << 15
        found = privacy.calibrate(plan, epsilon=2.0, delta=1e-6, rounds=50)
        stated = privacy.guarantee(found, delta=1e-6, rounds=50, sampled=(10, 100))
        assert 1.98 < stated.epsilon_server <= 2.0
        assert stated.epsilon_public < stated.epsilon_server
        # Against the public both draws count: half the squared sensitivity over noise.
        assert stated.multiplier_public == pytest.approx(stated.multiplier_server * math.sqrt(2))
        assert (found.lane_sigma > 0) == (lane == "count")


def test_weights_and_lanes_cost_privacy() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra torchfsl[privacy]")
    plan = noisy(mixed_plan(lane="weight"), sigma=1 << 20, lane_sigma=1000)
    plan = dataclasses.replace(plan, l2_bound=1 << 18)
    stated = privacy.guarantee(plan, delta=1e-6, rounds=1)
    # Weights up to 5; counted are 4 + 2 + 3 rows and the dense segment's weight.
    ratio = (5 * 2**18 / 2**20) ** 2 + (4 + 2 + 3 + 1) * 25 / 1000**2
    assert stated.multiplier_server == pytest.approx(1 / math.sqrt(ratio))


def test_accounting_refuses_what_it_cannot_state(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = scalar_plan(4, 2)
    with pytest.raises(ParameterError, match="no noise"):
        privacy.guarantee(dense_plan(), delta=1e-6, rounds=1)
    for sampled in ((0, 5), (6, 5)):
        with pytest.raises(ParameterError, match="sampled"):
            privacy.guarantee(plan, delta=1e-6, rounds=1, sampled=sampled)
    with pytest.raises(ParameterError, match="max_rounds"):
        privacy.guarantee(plan, delta=1e-6)
    for delta, rounds in ((0.0, 1), (1e-6, -1)):
        with pytest.raises(ParameterError, match="delta"):
            privacy.guarantee(plan, delta=delta, rounds=rounds)
    with pytest.raises(ParameterError, match="l2_bound"):
        privacy.calibrate(dense_plan(), epsilon=1.0, delta=1e-6, rounds=1)
    with pytest.raises(ParameterError, match="epsilon"):
        privacy.calibrate(dense_plan(l2_bound=100), epsilon=0.0, delta=1e-6, rounds=1)
    real_import = builtins.__import__

    def without_extra(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith("dp_accounting"):
            raise ImportError(name)
        return real_import(name, *rest, **options)

    for module in [name for name in sys.modules if name.startswith("dp_accounting")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)  # type: ignore[arg-type]
    monkeypatch.setattr(builtins, "__import__", without_extra)
    with pytest.raises(ParameterError, match=r"pip install 'torchfsl\[privacy\]'"):
        privacy.guarantee(plan, delta=1e-6, rounds=1)


def test_a_norm_that_the_encoding_cannot_tell_from_none_is_no_bound() -> None:
    encoding = FixedPoint(32, 4, 1.0)
    assert privacy.l2_bound(encoding, 0.0) == 0
    assert privacy.l2_bound(encoding, 0.0625) == 1
    with pytest.raises(ParameterError, match=r"norm 0\.05 is below 0\.0625, .*frac_bits=4"):
        privacy.l2_bound(encoding, 0.05)
    for odd in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ParameterError, match=f"the norm is {odd}"):
            privacy.l2_bound(encoding, odd)
    assert privacy.l2_bound(encoding, math.ldexp(1, 62 - encoding.frac_bits)) == 1 << 62
    for odd in (1e308, 1e300, math.ldexp(1.01, 62 - encoding.frac_bits)):
        with pytest.raises(ParameterError, match=r"above 2\*\*62 units"):
            privacy.l2_bound(encoding, odd)


def test_a_bound_that_bounds_nothing_is_refused_and_the_largest_is_none_to_a_client() -> None:
    plan = make_plan(make_segment("rest", "dense", (3,)))
    with pytest.raises(ParameterError, match="choose a number from 0 to"):
        dataclasses.replace(plan, l2_bound=(1 << 62) + 1)
    plan = dataclasses.replace(plan, l2_bound=1 << 62)
    servers = make_servers(plan)
    begin_round(servers, 0)
    update = random_update(plan, np.random.default_rng(0), rows=1)
    submit(Wire(servers), 0, 0, update)
    assert np.array_equal(finish_round(servers).sums["rest"], update["rest"].values)


# --- participation limits and correlated noise -------------------------------------------------


def room_plan(**options: Any) -> Plan:
    """Of 50 values, with room for much noise."""
    plan = make_plan(make_segment("bias", "dense", (50,)), encoding=FixedPoint(48, 16, 1.0))
    return dataclasses.replace(plan, l2_bound=1 << 16, max_clients=1000, **options)


FEW: dict[str, Any] = {"rounds": 89, "max_participations": 4, "min_separation": 22}
MANY: dict[str, Any] = {"rounds": 89, "max_participations": 8, "min_separation": 11}


@pytest.mark.parametrize("limits", [FEW, MANY])
@pytest.mark.parametrize(("epsilon", "one"), [(8.0, 0.6529), (2.0, 2.2305)])
def test_correlated_noise_costs_what_one_gaussian_release_costs(
    limits: dict[str, Any], epsilon: float, one: float
) -> None:
    accounting = pytest.importorskip("dp_accounting", reason="needs torchfsl[privacy]")
    plan = privacy.calibrate(room_plan(), epsilon=epsilon, delta=1e-6, **limits)
    found = privacy.guarantee(plan, delta=1e-6)
    taps = np.array(plan.noise_taps) / plan.noise_taps[0]
    count = plan.max_participations
    whole = plan.noise_sigma / (math.sqrt(count) * float(np.linalg.norm(taps)) * plan.l2_bound)
    assert len(taps) == limits["min_separation"]
    assert whole == pytest.approx(one, rel=2e-4)
    assert privacy.multiplier(plan) == pytest.approx(whole, rel=1e-12)
    exact = accounting.get_epsilon_gaussian(whole, 1e-6)
    assert found.epsilon_server == pytest.approx(exact, abs=1e-5)
    assert epsilon - 1e-3 < found.epsilon_server <= epsilon
    assert found.epsilon_public == found.epsilon_server
    twice = accounting.get_epsilon_gaussian(whole / 2, 1e-6)
    assert found.epsilon_replaced == pytest.approx(twice, abs=1e-4)
    assert (found.participations, found.min_separation, found.taps) == (
        count, limits["min_separation"], plan.noise_taps,
    )  # fmt: skip


def test_independent_noise_is_charged_for_the_reports_that_a_client_may_send() -> None:
    pytest.importorskip("dp_accounting", reason="needs torchfsl[privacy]")
    all_rounds = privacy.calibrate(room_plan(), epsilon=8.0, delta=1e-6, rounds=89)
    alone = privacy.calibrate(room_plan(), epsilon=8.0, delta=1e-6, band=1, **FEW)
    assert not alone.noise_taps
    assert alone.noise_sigma / all_rounds.noise_sigma == pytest.approx(math.sqrt(4 / 89), rel=1e-4)
    found = privacy.guarantee(alone, delta=1e-6)
    assert 7.99 < found.epsilon_server <= 8.0
    assert found.epsilon_public < 5.5  # both draws count
    as_many = dataclasses.replace(alone, max_participations=89, min_separation=1)
    before = dataclasses.replace(as_many, max_participations=0)
    assert privacy.guarantee(as_many, delta=1e-6).epsilon_server == pytest.approx(
        privacy.guarantee(before, delta=1e-6).epsilon_server, rel=1e-12
    )


def test_epsilon_grows_with_participations_and_falls_with_noise() -> None:
    pytest.importorskip("dp_accounting", reason="needs torchfsl[privacy]")
    plan = privacy.calibrate(room_plan(), epsilon=4.0, delta=1e-6, **MANY)
    stated = [
        privacy.guarantee(dataclasses.replace(plan, **change), delta=1e-6).epsilon_server
        for change in (
            {"max_participations": 7}, {}, {"noise_sigma": plan.noise_sigma * 9 // 10},
        )
    ]  # fmt: skip
    assert stated == sorted(set(stated))
    spent = [privacy.guarantee(plan, delta=1e-6, rounds=t).epsilon_server for t in (1, 11, 12, 89)]
    assert spent[0] == pytest.approx(spent[1], abs=1e-9)
    assert spent[1] < spent[2] < spent[3] <= 4.0


def test_without_new_limits_a_plan_is_calibrated_as_before() -> None:
    pytest.importorskip("dp_accounting", reason="needs torchfsl[privacy]")
    plan = privacy.calibrate(room_plan(), epsilon=8.0, delta=1e-6, rounds=89)
    assert plan.noise_sigma == 403688
    assert plan == room_plan(noise_sigma=403688, max_rounds=89)


def test_a_task_beside_another_takes_its_part_of_the_budget() -> None:
    pytest.importorskip("dp_accounting", reason="needs torchfsl[privacy]")
    once = privacy.calibrate(room_plan(), epsilon=2.0, delta=1e-6, rounds=1)
    first = dataclasses.replace(once, max_rounds=1)
    plan = privacy.calibrate(room_plan(), epsilon=4.0, delta=1e-6, other_plan=first, **FEW)
    alone = privacy.guarantee(plan, delta=1e-6).epsilon_server
    both = privacy.guarantee(plan, delta=1e-6, other_plan=first).epsilon_server
    assert alone < both <= 4.0
    assert both == pytest.approx(4.0, abs=1e-3)
    with raises(ParameterError, "epsilon-unreachable"):
        privacy.calibrate(room_plan(), epsilon=1.5, delta=1e-6, other_plan=first, **FEW)


@pytest.mark.parametrize(
    ("wishes", "text"),
    [
        ({**FEW, "band": 23}, "choose a band from 1 to 22"),
        ({**FEW, "band": 0}, "choose a band from 1 to 22"),
        ({**FEW, "max_participations": -1}, "choose max_participations of 0"),
        ({**FEW, "min_separation": 90}, "1 to 89"),
        ({**FEW, "clients": 21_000}, "Remedies: max_clients=943, more clients"),
        ({**MANY, "clients": 11_100}, "cannot fill 89 rounds"),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused_with_what_would_do(
    wishes: dict[str, Any], text: str
) -> None:
    pytest.importorskip("dp_accounting", reason="needs torchfsl[privacy]")
    with raises(ParameterError, "participation-limit") as caught:
        privacy.calibrate(room_plan(), epsilon=8.0, delta=1e-6, **wishes)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("wishes", "text"),
    [
        ({"epsilon": "8"}, "epsilon is '8': choose a number above 0"),
        ({"epsilon": 0}, "epsilon is 0: choose a number"),
        ({"lane_share": 1}, "lane_share is 1: choose a number above 0, at most 0.99"),
        ({"share": 2.0}, "share is 2.0: choose a number above 0, at most 1"),
    ],
)
def test_numbers_out_of_range_are_named(wishes: dict[str, Any], text: str) -> None:
    with raises(ParameterError, "out-of-range") as caught:
        privacy.calibrate(room_plan(), **{"epsilon": 8.0, "delta": 1e-6, **FEW, **wishes})
    assert text in str(caught.value)


def test_more_participations_than_rounds_hold_are_lowered_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("dp_accounting", reason="needs torchfsl[privacy]")
    plan = privacy.calibrate(
        room_plan(), epsilon=8.0, delta=1e-6, rounds=89, max_participations=9, min_separation=22
    )
    assert plan.max_participations == 5
    assert "lowered" in caplog.text
    as_many = privacy.calibrate(room_plan(), epsilon=8.0, delta=1e-6, rounds=89, min_separation=22)
    assert as_many == plan


@pytest.mark.parametrize(
    ("encoding", "values", "wishes", "ways"),
    [
        (FixedPoint(32, 16, 1.0), 50, {"epsilon": 0.002, "band": 1},
         ["ring_bits=48", "frac_bits=15"]),
        (FixedPoint(32, 16, 1.0), 50, {"epsilon": 0.0005}, ["frac_bits=13"]),  # 32 bits of a draw
        (FixedPoint(24, 12, 1.0), 1 << 20, {"epsilon": 0.002}, ["ring_bits=32"]),  # rounding
        (FixedPoint(64, 12, 1.0), 1 << 20, {"epsilon": 0.00003}, []),
    ],
)  # fmt: skip
def test_noise_beyond_the_ring_names_numbers_that_pass_every_check(
    encoding: FixedPoint, values: int, wishes: dict[str, Any], ways: list[str]
) -> None:
    """Fewer frac_bits make the bound smaller, which rounding may exceed; draws fit 32 bits."""
    pytest.importorskip("dp_accounting", reason="needs torchfsl[privacy]")

    def made(encoding: FixedPoint) -> Plan:
        plan = make_plan(make_segment("bias", "dense", (values,)), encoding=encoding)
        bound = privacy.l2_bound(encoding, 1.0)
        plan = dataclasses.replace(plan, l2_bound=bound, max_clients=1000)
        return privacy.calibrate(plan, delta=1e-6, **FEW, **wishes)

    with raises(ParameterError, "ring-overflow") as caught:
        made(encoding)
    said = str(caught.value)
    assert re.findall(r"\w+_bits=\d+", said) == ways
    assert "a larger epsilon, fewer participations" in said
    for name, value in (way.split("=") for way in ways):
        assert made(dataclasses.replace(encoding, **{name: int(value)})).noise_sigma
    more = encoding.frac_bits - 1
    while f"frac_bits={more}" not in ways and more >= 0:  # the others are refused, indeed
        with pytest.raises(ParameterError):
            made(dataclasses.replace(encoding, frac_bits=more))
        more -= 1


def test_fewer_clients_are_named_only_if_a_round_may_have_so_few() -> None:
    pytest.importorskip("dp_accounting", reason="needs torchfsl[privacy]")
    for least, named in ((943, True), (944, False)):
        with raises(ParameterError, "participation-limit") as caught:
            plan = room_plan(min_clients=least)
            privacy.calibrate(plan, epsilon=8.0, delta=1e-6, clients=21_000, **FEW)
        assert ("max_clients=943" in str(caught.value)) is named


def test_the_largest_delta_that_is_named_is_one_that_passes() -> None:
    pytest.importorskip("dp_accounting", reason="needs torchfsl[privacy]")
    wishes: dict[str, Any] = {"epsilon": 8.0, "rounds": 3, "clients": 1500}
    with raises(ParameterError, "out-of-range") as caught:
        privacy.calibrate(room_plan(), delta=0.5, **wishes)
    (delta,) = re.findall(r"below ([\d.e-]+),", str(caught.value))
    assert privacy.calibrate(room_plan(), delta=0.9999 * float(delta), **wishes).noise_sigma


def test_samples_and_limits_are_not_accounted_together() -> None:
    pytest.importorskip("dp_accounting", reason="needs torchfsl[privacy]")
    plan = privacy.calibrate(room_plan(), epsilon=8.0, delta=1e-6, **FEW)
    with raises(ParameterError, "not-accounted"):
        privacy.guarantee(plan, delta=1e-6, sampled=(10, 100))
    with raises(ParameterError, "not-accounted"):
        privacy.guarantee(plan, delta=1e-6, sampled_blocks=True)


def test_explain_states_both_epsilons_the_limits_and_what_is_not_covered() -> None:
    pytest.importorskip("dp_accounting", reason="needs torchfsl[privacy]")
    said = privacy.calibrate(room_plan(), epsilon=8.0, delta=1e-6, **MANY).explain()
    assert "epsilon 8.00 at delta 1e-06 against either server if the other adds its noise" in said
    assert "8.00 against everybody else" in said
    assert "sends other data, epsilon against either server is 18.65" in said
    assert "At most 8 reports each, 11 rounds apart; both servers refuse more." in said
    assert "one person with several numbers" in said
    assert "Protects" not in room_plan().explain()
    every = privacy.calibrate(room_plan(max_rounds=89), epsilon=8.0, delta=1e-6).explain()
    assert "A client may be in all 89 rounds." in every


@pytest.mark.parametrize(("limits", "enough"), [(FEW, 22_250), (MANY, 11_125)])
def test_explain_names_the_fewest_clients_that_fill_the_rounds(
    limits: dict[str, Any], enough: int
) -> None:
    """`calibrate` without `clients=` cannot refuse rounds that stay empty."""
    pytest.importorskip("dp_accounting", reason="needs torchfsl[privacy]")
    wishes: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-6, **limits}
    said = privacy.calibrate(room_plan(), **wishes).explain()
    assert f"Full rounds need {enough:,} clients." in said
    assert privacy.calibrate(room_plan(), clients=enough, **wishes).noise_sigma
    with raises(ParameterError, "participation-limit"):
        privacy.calibrate(room_plan(), clients=enough - 1, **wishes)


@pytest.mark.parametrize(
    ("epsilon", "band", "clients", "learns"),
    [(8.0, None, 1000, True), (0.5, None, 2, False), (8.0, 1, 1000, True), (0.003, 1, 1000, False)],
)
def test_explain_says_where_noise_leaves_nothing_to_learn(
    epsilon: float, band: int | None, clients: int, learns: bool
) -> None:
    pytest.importorskip("dp_accounting", reason="needs torchfsl[privacy]")
    plan = dataclasses.replace(room_plan(), encoding=FixedPoint(64, 16, 1.0), max_clients=clients)
    found = privacy.calibrate(plan, epsilon=epsilon, delta=1e-6, band=band, **FEW)
    most = 3 * math.sqrt(89) if found.noise_taps else math.sqrt(89)
    size = 2 * 50 * (found.noise_sigma * found.noise_growth) ** 2
    assert (math.sqrt(size) / clients / found.l2_bound > most) is not learns
    assert ("expect the task to learn little" in found.explain()) is not learns
    assert "the delta that you gave calibrate, call explain(delta=...)" in found.explain()
    for changed in () if learns else advised(found):
        again = privacy.calibrate(changed, epsilon=epsilon, delta=1e-6, band=band, **FEW)
        assert "expect the task to learn little" not in again.explain()


def advised(plan: Plan) -> list[Plan]:
    """What `explain` advises where noise leaves little: more clients, or fewer values."""
    told = re.search(r"max_clients=(\d+) gives .* at most ([\d,]+) of the 50 ", plan.explain())
    assert told is not None
    bare = dataclasses.replace(room_plan(), encoding=FixedPoint(64, 16, 1.0))
    small = make_plan(make_segment("bias", "dense", (int(told[2].replace(",", "")),)))
    few = dataclasses.replace(bare, segments=small.segments, max_clients=plan.max_clients)
    return [dataclasses.replace(bare, max_clients=int(told[1])), few]
