"""Public bins: how positions are parted, what is sent for them, and who refuses them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.federation import (
    Wire,
    assert_exact,
    make_segment,
    make_servers,
    play_round,
    random_update,
    submit,
)
from tests.support.reference import plaintext
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import DecodeError, ParameterError
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.costs import predict
from torchfsl.fsl.cuckoo.placement import place_in_bins
from torchfsl.fsl.dpf import ssa
from torchfsl.fsl.explain import explain
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import PlanOptions, build_plan
from torchfsl.fsl.round import begin_round, finish_round, run_round
from torchfsl.fsl.server import sizes
from torchfsl.fsl.union import plan_union, restrict
from torchfsl.submodel.bins import PublicBins
from torchfsl.submodel.plain import PlainSum
from torchfsl.submodel.plan import Lane
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.update import SegmentUpdate, Update


def bins_plan(m: int, k: int, tau: int = 1, *, binned: bool = True, **options: object) -> Plan:
    spec = SegmentSpec(
        "rest", "scalars" if tau == 1 else "blocks", (TensorSpec("w", (m * tau,)),), k, tau,
        binned=binned,
    )  # fmt: skip
    chosen: PlanOptions = {"above_break_even": "keep", "min_clients": 1, **options}  # type: ignore[typeddict-item]
    encoding = FixedPoint(ring_bits=32, frac_bits=10, clip=4.0)
    fixed: PlanOptions = {"session": bytes(16), "hash_seed": bytes(32)}
    return build_plan([spec], encoding=encoding, max_clients=4, **fixed, **chosen)


def one_a_bin(plan: Plan, round_number: int, seed: int, size: int | None = None) -> Update:
    """A position of each bin, or of some of them, with values of both signs."""
    rng = np.random.default_rng(seed)
    (segment,) = plan.segments
    bins = plan.public_bins(segment, round_number)
    chosen = bins.members()[np.arange(bins.count), rng.integers(0, bins.size, bins.count)]
    chosen = np.sort(chosen if size is None else rng.choice(chosen, size, replace=False))
    values = rng.integers(-60, 60, (len(chosen), segment.tau))
    return {"rest": SegmentUpdate(chosen, values)}


numbers = st.integers(1, 120).flatmap(lambda m: st.tuples(st.just(m), st.integers(1, m)))


@given(numbers, st.integers(0, 2**64 - 1))
@settings(max_examples=100, deadline=None)
def test_bins_part_the_positions_evenly_and_go_both_ways(
    shape: tuple[int, int], round_number: int
) -> None:
    m, count = shape
    bins = PublicBins.of(bytes(32), "rest", m, count, round_number)
    everyone = np.arange(m)
    places = bins.places(everyone)
    assert places.tolist() == [(bins.scale * x + bins.shift) % m for x in range(m)]
    assert sorted(places) == list(range(m))
    assert np.array_equal(bins.positions(places), everyone)
    found, within = bins.part(places)
    parted: list[list[int]] = [[] for _ in range(count)]
    for place in range(m):  # the obvious way: by where bins start
        number = max(b for b in range(count) if bins.start(b) <= place)
        parted[number].append(int(bins.positions(np.array([place]))[0]))
    for x in range(m):
        assert parted[int(found[x])][int(within[x])] == x
    assert {len(part) for part in parted} <= {m // count, bins.size}
    members = bins.members()
    assert [list(dict.fromkeys(row)) for row in members.tolist()] == parted
    slots = bins.slots(range(m), bins.size + 2)
    assert slots.tolist() == (found * (bins.size + 2) + within).astype(int).tolist()
    assert bins.slots(range(m // 3, m), bins.size).tolist() == bins.slots(
        range(m), bins.size
    )[m // 3 :].tolist()  # fmt: skip


def test_bins_at_the_largest_numbers_stay_within_64_bits() -> None:
    m = 1 << 32
    for count in (1, 419, m):
        bins = PublicBins.of(bytes(32), "rest", m, count, 0)
        ends = np.array([0, 1, m // 2, m - 2, m - 1])
        places = bins.places(ends)
        assert places.tolist() == [(bins.scale * int(x) + bins.shift) % m for x in ends]
        assert np.array_equal(bins.positions(places), ends)
        found, within = bins.part(ends)
        for place, number, offset in zip(
            ends.tolist(), found.tolist(), within.tolist(), strict=True
        ):
            assert bins.start(number) <= place < bins.start(number + 1)
            assert place == bins.start(number) + offset


def test_bins_are_the_same_for_every_party_and_another_each_round() -> None:
    """The numbers are frozen: parties of two versions of the library must agree on them."""
    bins = PublicBins.of(bytes(32), "rest", 262_144, 419, 3)
    assert (bins.scale, bins.shift) == FROZEN
    others = {
        PublicBins.of(seed, label, m, count, number)
        for seed, label, m, count, number in (
            (bytes(32), "rest", 262_144, 419, 4),
            (bytes(32), "best", 262_144, 419, 3),
            (bytes(32), "rest", 262_143, 419, 3),
            (bytes(32), "rest", 262_144, 418, 3),
            (bytes(31) + b"1", "rest", 262_144, 419, 3),
        )
    }
    assert len({(b.scale, b.shift) for b in others | {bins}}) == 6


FROZEN = (64_521, 115_890)


@pytest.mark.parametrize("spread", [1, 8, 64, 100, 512])
def test_two_positions_share_a_bin_hardly_more_often_than_by_chance(spread: int) -> None:
    """Whatever their distance, over rounds; or the same coordinates would always wait."""
    m, count, rounds = 1 << 14, 64, 3000
    met = 0
    for number in range(rounds):
        bins = PublicBins.of(bytes(32), "rest", m, count, number)
        found, _ = bins.part(bins.places(np.array([1000, 1000 + spread])))
        met += int(found[0] == found[1])
    assert met < rounds / count * 1.8


LANES: list[tuple[Lane, dict[str, object]]] = [
    ("none", {}),
    ("none", {"l2_bound": 4000}),
    ("count", {}),
    ("weight", {"max_weight": 3}),
    ("weight", {"max_weight": 3, "l2_bound": 4000}),
    ("count", {"malicious_security": False}),
]


@pytest.mark.parametrize(("lane", "options"), LANES)
@pytest.mark.parametrize(("m", "k", "tau"), [(1000, 37, 1), (262, 9, 8), (40, 40, 1), (5, 1, 2)])
def test_a_round_opens_the_sum_of_one_position_a_bin(
    m: int, k: int, tau: int, lane: Lane, options: dict[str, object]
) -> None:
    plan = bins_plan(m, k, tau, lane=lane, **options)
    assert Plan.from_json(plan.to_json()) == plan
    ClientPolicy(sealed=False, joint_coin=False, min_clients=1, verified=plan.verified).check(plan)
    servers = make_servers(plan)
    weight = 3 if lane == "weight" else 1
    for number in (0, 7):
        updates = {c: one_a_bin(plan, number, c, None if c else k // 2) for c in range(3)}
        opened, contributions = play_round(servers, number, updates, dict.fromkeys(updates, weight))
        assert all(not made.unmatched["rest"] for made in contributions)
        assert_exact(plan, opened, contributions)


def test_values_of_too_few_contributors_stay_closed() -> None:
    plan = bins_plan(90, 6, lane="count", min_contributors=2)
    updates = {c: one_a_bin(plan, 4, c // 2) for c in range(3)}  # the first two choose alike
    total = PlainSum(plan)
    for client, update in updates.items():
        total.add(client, update)
    opened = run_round(make_servers(plan), updates, round_number=4)
    assert total.equals(opened)
    closed = np.setdiff1d(updates[2]["rest"].positions, updates[0]["rest"].positions)
    assert len(closed)
    assert not opened.sums["rest"][closed].any()
    assert opened.sums["rest"].any()


@pytest.mark.parametrize("small", [False, True])
def test_windows_and_parts_of_a_table_give_the_same_sums(
    monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    plan = bins_plan(1003, 20, 2, lane="count")
    if small:
        monkeypatch.setattr(sizes, "KEPT_BYTES", 0)
        monkeypatch.setattr(sizes, "WINDOW_REPORTS", 16)
        assert sizes.gathers_windows(plan)
    monkeypatch.setattr(ssa, "_CHUNK_ROWS", 100)
    updates = {c: one_a_bin(plan, 5, c) for c in range(4)}
    opened = run_round(make_servers(plan), updates, round_number=5)
    assert_exact(plan, opened, [plaintext.Contribution(u) for u in updates.values()])


def test_a_second_position_of_a_bin_waits_in_the_residual() -> None:
    plan = bins_plan(200, 10)
    (segment,) = plan.segments
    bins = plan.public_bins(segment, 2)
    both = np.sort(bins.members()[3, :2])
    update = {"rest": SegmentUpdate(both, np.array([[5], [7]]))}  # the larger goes first
    servers = make_servers(plan)
    begin_round(servers, 2)
    wire = Wire(servers)
    receipt = submit(wire, 0, 2, update)
    assert receipt.unmatched["rest"].tolist() == [both[0]]
    opened = finish_round(servers)
    assert opened.sums["rest"][both, 0].tolist() == [0, 7]
    placed = place_in_bins(bins, both)
    assert placed.item[3] == 0
    assert (np.delete(placed.item, 3) == -1).all()
    assert placed.unmatched.tolist() == [1]


def test_messages_have_one_size_whatever_a_client_holds() -> None:
    plan = bins_plan(500, 12, lane="count")
    shapes = []
    for size in (0, 1, 12):
        servers = make_servers(plan)
        begin_round(servers, 1)
        wire = Wire(servers)
        submit(wire, 0, 1, one_a_bin(plan, 1, 3, size))
        finish_round(servers)
        shapes.append(wire.shape())
    assert shapes[0] == shapes[1] == shapes[2]


@pytest.mark.parametrize(
    ("m", "k", "tau"), [(262_144, 419, 1), (262_144, 2621, 1), (8192, 409, 32)]
)
def test_bytes_are_those_of_the_estimate_and_leaves_a_third(m: int, k: int, tau: int) -> None:
    plan, table = (bins_plan(m, k, tau, binned=own) for own in (True, False))
    servers = make_servers(plan)
    begin_round(servers, 1)
    wire = Wire(servers)
    submit(wire, 0, 1, one_a_bin(plan, 1, 0))
    finish_round(servers)
    sent = sum(len(e.data) for e in wire.events if not e.is_reply and not e.is_relay)
    assert sent == plan_upload(plan) < plan_upload(table)
    assert leaves(plan) <= 0.4 * leaves(table)
    if (m, k, tau) == (262_144, 419, 1):
        assert (sent, plan_upload(table)) == UPLOADS


UPLOADS = (74_399, 114_078)


def plan_upload(plan: Plan) -> int:
    return predict(plan).upload_bytes


def leaves(plan: Plan) -> int:
    """Positions that a server expands for one client."""
    groups = plan.segments[0].groups
    return sum(g.num_trees * (g.num_leaves << g.nu) for g in groups)


def test_other_plans_keep_their_json_and_false_does_not_stand_in_one() -> None:
    assert "binned" not in bins_plan(100, 5, binned=False).to_json()
    plan = bins_plan(100, 5)
    fields = json.loads(plan.to_json())
    assert fields["segments"][0]["binned"] is True
    for odd in (False, 1, "yes", None):
        fields["segments"][0]["binned"] = odd
        with pytest.raises(DecodeError):
            Plan.from_json(json.dumps(fields, sort_keys=True, separators=(",", ":")))


def changed(**fields: object) -> Callable[[], object]:
    return lambda: dataclasses.replace(bins_plan(100, 5).segments[0], **fields)  # type: ignore[arg-type]


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "rows": (
        lambda: make_segment("t", "rows", (9, 2), tau=2, k_max=3, binned=True),
        "True only with policy 'scalars' or 'blocks'",
    ),
    "a session": (lambda: bins_plan(100, 5, max_epochs=2), "public bins change each round"),
    "fewer bins": (changed(num_bins=4), "need num_bins = k_max"),
    "a stash": (changed(stash=1), "and stash = 0"),
    "other bins": (changed(theta=21), r"ceil\(m / k_max\)"),
    "no bins": (changed(num_bins=0, theta=0, stash=5), "without bins"),
    "masks": (
        lambda: dataclasses.replace(
            bins_plan(100, 5), payload="masks", encoding=FixedPoint(64, 0, 1.0)
        ),
        "public bins or retrieval",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_public_bins_is_refused(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(ParameterError, match=words):
        make()


def test_a_union_leaves_bins_over_its_own_positions() -> None:
    plan = bins_plan(400, 8)
    union = np.arange(0, 400, 3)
    smaller = restrict(plan, {"rest": union}, session=bytes(16), hash_seed=bytes(32))
    (segment,) = smaller.segments
    assert segment.binned
    assert (segment.m, segment.num_bins, segment.theta) == (134, 8, 17)
    assert not plan_union(plan, ["rest"]).segments[0].binned
    places = smaller.public_bins(segment, 4).members()[:, 0]
    chosen = np.sort(union[places])
    update = {"rest": SegmentUpdate(chosen, np.arange(1, 9)[:, None])}
    opened = run_round(make_servers(smaller), {0: update}, round_number=4)
    assert opened.sums["rest"][chosen, 0].tolist() == list(range(1, 9))
    assert np.count_nonzero(opened.sums["rest"]) == 8


def test_explain_names_the_mechanism_and_keeps_no_permutations() -> None:
    text = explain(bins_plan(10_000, 100, lane="count"))
    assert " bins " in text
    assert "permutations 0 and" in text
    assert "several bins" not in text
    bounded = explain(bins_plan(10_000, 100, l2_bound=4000))
    assert "sqrt(1)" not in bounded


def test_rejected_reports_leave_the_sum_of_the_others() -> None:
    plan = bins_plan(300, 6, lane="count")
    servers = make_servers(plan)
    begin_round(servers, 3)
    wire = Wire(servers)
    rng = np.random.default_rng(0)
    good = one_a_bin(plan, 3, 1)
    submit(wire, 1, 3, good)
    client = Client(plan, wire, client_id=2)
    client.start_round(3, indices={}).submit(random_update(plan, rng, rows=2))
    submit(wire, 3, 3, {"rest": SegmentUpdate(np.array([], dtype=np.int64), np.zeros((0, 1), int))})
    opened = finish_round(servers)
    assert opened.clients == (1, 2, 3)
