"""What a party demands of a plan: every floor refuses with its name and the field's."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.support.federation import make_plan, make_segment, make_servers, mixed_plan
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError
from torchfsl.fsl import privacy
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.cuckoo.bounds import MAX_STASH, choose_layout, is_within_bound, min_bins
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.plan import coin
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import build_plan
from torchfsl.submodel.segments import SegmentSpec, TensorSpec

COINS = (bytes(range(32)), bytes(range(32, 64)))
ANY = ClientPolicy(verified=False, sealed=False, joint_coin=False, min_clients=1)
"""Accepts every plan within the cuckoo bound."""


def noisy(sigma: int) -> Plan:
    plan = make_plan(make_segment("bias", "dense", (5,)), encoding=FixedPoint(64, 16, 4.0))
    return dataclasses.replace(plan, l2_bound=100, noise_sigma=sigma)


@pytest.mark.parametrize(
    ("plan", "floor", "text"),
    [
        (mixed_plan(secure=False), {"verified": True}, "check_bytes is 0; the floor 'verified'"),
        (mixed_plan(), {"min_clients": 2}, "min_clients is 1; the floor 'min_clients' wants 2"),
        (mixed_plan(), {"min_contributors": 2}, "min_contributors is 1; .* wants 2 or more"),
        (mixed_plan(), {"max_k": 3}, r"'table': k_max is 4; the floor 'max_k' allows 3"),
        (mixed_plan(lane="count"), {"lanes": ("none",)}, r"lane is 'count'; the floor 'lanes'"),
        (
            mixed_plan(),
            {"max_rounds": 9},
            "max_rounds is unbounded; the floor 'max_rounds' allows 9",
        ),
        (dataclasses.replace(mixed_plan(), max_rounds=10), {"max_rounds": 9}, "max_rounds is 10"),
        (
            mixed_plan(),
            {"noise_multiplier": 0.1},
            "noise_sigma is 0, .*the floor 'noise_multiplier'",
        ),
        (noisy(99), {"noise_multiplier": 1.0}, "over sensitivity 0.99; .* wants 1"),
        (mixed_plan(), {"sealed": True}, "server_keys is empty; the floor 'sealed'"),
        (mixed_plan(), {"joint_coin": True}, "hash_seed is one party's choice; .*joint_coin"),
        (mixed_plan(), {"plans": ("00" * 32,)}, "digest is [0-9a-f]{64}; the floor 'plans'"),
        (mixed_plan(), {"authorities": ("00" * 32, "11" * 32)}, "the floor 'authorities' pins"),
        (
            make_plan(make_segment("t", "rows", (9, 2), k_max=2, tau=2, theta=3), max_epochs=4),
            {"max_epochs": 3},
            "max_epochs is 4; the floor 'max_epochs' allows 3",
        ),
    ],
)
def test_a_plan_below_a_floor_is_refused_by_field_and_floor(
    plan: Plan, floor: dict[str, Any], text: str
) -> None:
    ANY.check(plan)
    with pytest.raises(ParameterError, match=text):
        dataclasses.replace(ANY, **floor).check(plan)


def test_plans_at_every_floor_are_accepted() -> None:
    plan = dataclasses.replace(mixed_plan(min_clients=2), max_rounds=9, server_keys=())
    plan = coin.with_coins(plan, COINS)
    pins = ("00" * 32, "11" * 32)
    floors = ClientPolicy(
        sealed=False,
        max_rounds=9,
        max_epochs=1,
        max_k=4,
        plans=(plan.digest.hex(),),
        authorities=pins,
    )
    floors.check(plan, coins=COINS, authorities=pins)
    dataclasses.replace(ANY, noise_multiplier=1.0).check(noisy(100))
    keys = ("11" * 32, "22" * 32)
    dataclasses.replace(ANY, sealed=True).check(dataclasses.replace(plan, server_keys=keys))


def test_a_noise_floor_counts_the_lane_as_privacy_does() -> None:
    plan = dataclasses.replace(
        mixed_plan(lane="count"), l2_bound=100, noise_sigma=100, lane_sigma=1
    )
    least = privacy.multiplier(plan)
    assert 0 < least < 1
    dataclasses.replace(ANY, noise_multiplier=least).check(plan)
    with pytest.raises(ParameterError, match="noise_multiplier"):
        dataclasses.replace(ANY, noise_multiplier=least * 1.001).check(plan)


@pytest.mark.parametrize("limits", [{}, {"max_participations": 4, "min_separation": 20}])
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_a_floor_on_epsilon_is_that_of_the_whole_task(
    epsilon: float, limits: dict[str, int]
) -> None:
    pytest.importorskip("dp_accounting", reason="needs torchfsl[privacy]")
    plan = dataclasses.replace(noisy(0), l2_bound=1 << 14)
    if not limits:
        plan = dataclasses.replace(plan, max_rounds=60)
    plan = privacy.calibrate(plan, epsilon=epsilon, delta=1e-6, rounds=60, **limits)
    dataclasses.replace(ANY, max_epsilon=epsilon).check(plan)
    for floor in ({"max_epsilon": epsilon * 0.999}, {"max_epsilon": epsilon, "max_delta": 9e-7}):
        with pytest.raises(ParameterError, match="the floor 'max_epsilon' wants"):
            dataclasses.replace(ANY, **floor).check(plan)


@pytest.mark.parametrize("plan", [mixed_plan(), noisy(1000)])
def test_a_plan_without_noise_or_an_end_has_no_epsilon(plan: Plan) -> None:
    with pytest.raises(ParameterError, match="any number of rounds; the floor 'max_epsilon' wants"):
        dataclasses.replace(ANY, max_epsilon=100.0).check(plan)


def test_six_bins_for_six_items_are_refused_and_no_floor_allows_them() -> None:
    plan = make_plan(make_segment("t", "scalars", (20,), k_max=6, theta=10))
    with pytest.raises(ParameterError, match=r"6 bins of theta 10 .* too few for k_max 6"):
        ANY.check(plan)


@pytest.mark.parametrize("m", [100, 5000, 1 << 20])
def test_the_layouts_within_the_bound_are_those_of_the_planner_and_smaller_bins(m: int) -> None:
    for k in (1, 5, 64, 100, 1000, 1024, 20_000):
        for stash in range(MAX_STASH + 1):
            layout = choose_layout(m, k, stash=stash) if k <= m else None
            if layout is None:
                continue
            theta = layout[1]
            assert all(is_within_bound(m, k, size, stash) for size in range(1, theta + 1, 7))
            needed = min_bins(k, stash)
            wider = next(size for size in range(theta + 1, m + 2) if m // size < (needed or 0))
            assert is_within_bound(m, k, wider, stash) == (k <= stash)


@pytest.mark.parametrize("k", [3, 70, 1500])
def test_what_the_planner_makes_passes_the_default_floors(k: int) -> None:
    rows = SegmentSpec("r", "rows", (TensorSpec("t", (40_000, 8)),), k_max=k, tau=8, retrieve=True)
    some = SegmentSpec("s", "scalars", (TensorSpec("u", (300_000,)),), k_max=k)
    plan = build_plan([rows, some], encoding=FixedPoint(), max_clients=9)
    ClientPolicy(sealed=False).check(coin.with_coins(plan, COINS), coins=COINS)


@pytest.mark.parametrize(
    "changes",
    [
        {"verified": 1},
        {"min_clients": 0},
        {"min_clients": True},
        {"max_k": -1},
        {"max_rounds": 1.0},
        {"lanes": ()},
        {"lanes": ("sum",)},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": float("nan")},
        {"max_epsilon": 8},
        {"max_epsilon": -1.0},
        {"max_epsilon": 1e9},
        {"max_delta": 0.0},
        {"plans": ("00",)},
        {"authorities": ("00" * 32,)},
    ],
)
def test_floors_that_mean_nothing_cannot_be_made(changes: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        ClientPolicy(**changes)


def test_a_policy_file_gives_the_floors_it_names(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('min_clients = 9\nlanes = ["none"]\nnoise_multiplier = 1\njoint_coin = false\n')
    wanted = ClientPolicy(min_clients=9, lanes=("none",), noise_multiplier=1.0, joint_coin=False)
    assert ClientPolicy.from_toml(path) == wanted
    path.write_text("")
    assert ClientPolicy.from_toml(path) == ClientPolicy()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("min_cilents = 9", "unknown floor 'min_cilents': did you mean 'min_clients'?"),
        ('min_clients = "9"', "floor min_clients"),
        ('lanes = "none"', "a list of strings"),
        ("lanes = [1]", "a list of strings"),
        ("verified = 0", "true or false"),
        ("min_clients =", "cannot read the policy"),
        ("[floors]\nmin_clients = 9", "unknown floor 'floors': choose among"),
    ],
)
def test_a_policy_file_with_anything_else_is_refused(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(ParameterError, match=message):
        ClientPolicy.from_toml(path)
    with pytest.raises(ParameterError, match="cannot read"):
        ClientPolicy.from_toml(tmp_path / "missing.toml")


def test_a_client_with_floors_sends_nothing_under_a_plan_below_them() -> None:
    plan = mixed_plan()
    servers = make_servers(plan)
    with pytest.raises(ParameterError, match="the floor 'min_clients'"):
        Client(plan, servers, client_id=0, require=dataclasses.replace(ANY, min_clients=2))
    assert Client(plan, servers, client_id=0, require=ANY).plan == plan


def test_a_joint_coin_is_the_digest_of_both_coins_and_of_all_else_in_the_plan() -> None:
    plan = mixed_plan()
    seeded = coin.with_coins(plan, COINS)
    coin.check_coins(seeded, COINS)
    assert coin.template_of(seeded) == coin.template_of(plan)
    assert coin.with_coins(seeded, COINS) == seeded
    larger = dataclasses.replace(plan, max_rounds=1)
    others = [(COINS[1], COINS[0]), (COINS[0], bytes(32)), (bytes(32), COINS[1])]
    seeds = {coin.with_coins(plan, coins).hash_seed for coins in others}
    seeds |= {seeded.hash_seed, plan.hash_seed, coin.with_coins(larger, COINS).hash_seed}
    assert len(seeds) == 6
    for coins in (*others, (COINS[0],), (COINS[0], b"")):
        with pytest.raises(ParameterError):
            coin.check_coins(seeded, coins)  # type: ignore[arg-type]


def test_a_commitment_to_a_coin_is_one_servers_for_one_template() -> None:
    plan = mixed_plan()
    template = coin.template_of(plan)
    other = coin.template_of(dataclasses.replace(plan, max_clients=5))
    said = {
        coin.commitment(about, party, one)
        for about in (template, other)
        for party in (0, 1)
        for one in COINS
    }
    assert len(said) == 8
