"""Whole rounds: what opens equals the plaintext sums, bit for bit, whatever the plan."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.federation import (
    assert_exact,
    make_plan,
    make_segment,
    make_servers,
    mixed_plan,
    play_round,
    random_update,
)
from tests.support.reference import plaintext
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import Error, ParameterError
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import build_plan
from torchfsl.fsl.round import run_round
from torchfsl.fsl.server.states import RoundState
from torchfsl.kernels.ring import RING_BITS
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.update import SegmentUpdate


@st.composite
def segments(draw: st.DrawFn, name: str, secure: bool) -> TreeSegment:
    policy = draw(st.sampled_from(["rows", "blocks", "scalars", "dense"]))
    num_tensors = draw(st.integers(1, 3))
    tau = draw(st.integers(1, 5)) if policy in ("rows", "blocks") else 1
    sizes = draw(st.lists(st.integers(1, 15), min_size=num_tensors, max_size=num_tensors))
    shapes = [(size, tau) if policy == "rows" else (size,) for size in sizes]
    if policy == "dense":
        return make_segment(name, "dense", *shapes)
    m = sum(sizes) if policy != "blocks" else sum(-(-size // tau) for size in sizes)
    subset = ()
    if draw(st.sampled_from([False, False, True])):
        subset = tuple(sorted(draw(st.sets(st.integers(0, m - 1), min_size=1))))
        m = len(subset)
    k_max = draw(st.integers(1, min(m, 7)))
    return make_segment(
        name,
        policy,
        *shapes,
        k_max=k_max,
        tau=tau,
        binned=policy in ("scalars", "blocks") and draw(st.booleans()),
        theta=draw(st.integers(0, m)),
        nu=draw(st.integers(0, 3)),
        stash=draw(st.integers(0, min(2, k_max))),
        retrieve=policy == "rows" and draw(st.booleans()),
        secure=secure,
        dtype=draw(st.sampled_from(["float32", "float64", "float16"])),
        subset=subset,
    )


@st.composite
def federations(draw: st.DrawFn) -> tuple[Plan, dict[int, int], int]:
    """A plan, the clients with their weights, and a seed for their updates."""
    secure = draw(st.booleans())
    parts = [
        draw(segments(f"part {i}", secure)) for i in range(draw(st.sampled_from([1, 1, 2, 3])))
    ]
    lane = draw(st.sampled_from(["none", "count", "weight"]))
    max_weight = draw(st.integers(1, 5)) if lane == "weight" else 1
    max_clients = draw(st.integers(1, 5))
    bits = draw(st.sampled_from(RING_BITS))
    largest = (2 ** (min(bits, 50) - 1) - 1) // (max_clients * max_weight)
    if any(t.dtype == "float16" for part in parts for t in part.tensors):
        largest = min(largest, 2**15)  # the mean of the updates must not overflow the model
    encoding = FixedPoint(bits, 0, float(draw(st.integers(1, largest))))
    plan = make_plan(
        *parts, encoding=encoding, max_clients=max_clients, lane=lane, max_weight=max_weight
    )
    number = st.one_of(st.integers(0, 9), st.integers(0, 2**64 - 1))
    ids = draw(st.lists(number, min_size=1, max_size=max_clients, unique=True))
    weights = {client: draw(st.integers(1, max_weight)) for client in ids}
    return plan, weights, draw(st.integers(0, 2**32))


@given(federations(), st.booleans())
@settings(max_examples=250)
def test_a_round_opens_the_plaintext_sums_exactly(
    federation: tuple[Plan, dict[int, int], int], largest: bool
) -> None:
    plan, weights, seed = federation
    rng = np.random.default_rng(seed)
    updates = {client: random_update(plan, rng, largest=largest) for client in weights}
    servers = make_servers(plan)
    opened, contributions = play_round(servers, 1, updates, weights)
    assert_exact(plan, opened, contributions)
    assert opened.clients == tuple(sorted(weights))
    assert servers[0].model.digest() == servers[1].model.digest()


@given(
    st.integers(64, 400), st.integers(64, 90), st.integers(1, 3), st.sampled_from([16, 32, 64, 128])
)
@settings(max_examples=6)
def test_a_planned_round_of_full_clients_is_exact(m: int, k: int, tau: int, bits: int) -> None:
    spec = SegmentSpec(
        "rows", "rows", (TensorSpec("table", (m, tau)),), k_max=k, tau=tau, retrieve=True
    )
    plan = build_plan(
        [spec],
        encoding=FixedPoint(bits, 4, 8.0),
        max_clients=3,
        above_break_even="keep",
        session=bytes(16),
        hash_seed=bytes(32),
    )
    rng = np.random.default_rng(m)
    updates = {c: random_update(plan, rng, rows=min(k, m), largest=True) for c in range(2)}
    servers = make_servers(plan)
    opened = run_round(servers, updates, round_number=1)
    assert_exact(plan, opened, [plaintext.Contribution(u) for u in updates.values()])


@pytest.mark.parametrize("lane", ["none", "count", "weight"])
@pytest.mark.parametrize("secure", [True, False])
def test_rounds_follow_one_another_and_the_models_stay_equal(lane: str, secure: bool) -> None:
    plan = mixed_plan(secure=secure, lane=lane)  # type: ignore[arg-type]
    servers = make_servers(plan)
    rng = np.random.default_rng(7)
    digests = set()
    for round_number in (3, 4, 9):
        updates = {client: random_update(plan, rng) for client in (0, 1, 6)}
        opened, contributions = play_round(servers, round_number, updates)
        assert_exact(plan, opened, contributions)
        assert servers[0].model.digest() == servers[1].model.digest()
        digests.add(servers[0].model.digest())
    assert len(digests) == 3


def test_run_round_is_the_round_that_clients_play() -> None:
    plan = make_plan(
        make_segment("table", "rows", (13, 3), k_max=4, tau=3, theta=3, retrieve=True),
        make_segment("bias", "dense", (6,)),
    )
    rng = np.random.default_rng(1)
    updates = {client: random_update(plan, rng) for client in (2, 3)}
    one, two = make_servers(plan), make_servers(plan)
    opened = run_round(one, updates, round_number=5)
    played, contributions = play_round(two, 5, updates)
    assert_exact(plan, opened, contributions)
    assert all(np.array_equal(opened.sums[name], played.sums[name]) for name in opened.sums)
    assert one[0].model.digest() == two[0].model.digest()


def test_unmatched_rows_are_named_to_the_client_and_missing_from_the_sum() -> None:
    """Six bins cannot hold eight rows: the two lightest stay with the client."""
    plan = make_plan(make_segment("table", "scalars", (40,), k_max=8, theta=20))
    indices = np.arange(5, 13)
    values = np.arange(1, 9)[::-1, None].astype(np.int64)
    servers = make_servers(plan)
    update = {"table": SegmentUpdate(indices, values)}
    opened, contributions = play_round(servers, 1, {0: update})
    left_out = contributions[0].unmatched["table"]
    assert len(left_out) >= 2
    assert 5 not in left_out
    assert_exact(plan, opened, contributions)


@pytest.mark.parametrize(
    "spoil",
    [
        {"table": SegmentUpdate(np.array([3, 3]), np.ones((2, 1), dtype=np.int64))},
        {},
        {"table": None},
    ],
)
def test_a_failed_run_leaves_both_servers_ready_for_the_next_round(
    spoil: dict[str, SegmentUpdate],
) -> None:
    plan = make_plan(make_segment("table", "scalars", (40,), k_max=8, theta=3))
    servers = make_servers(plan)
    good = random_update(plan, np.random.default_rng(0))
    with pytest.raises((Error, AttributeError)):
        run_round(servers, {0: good, 1: spoil}, round_number=1)
    assert [server.state for server in servers] == [RoundState.IDLE] * 2
    opened = run_round(servers, {0: good}, round_number=2)
    assert_exact(plan, opened, [plaintext.Contribution(good)])


def test_too_many_clients_are_refused_and_the_next_round_works() -> None:
    plan = make_plan(make_segment("bias", "dense", (4,)), max_clients=2)
    servers = make_servers(plan)
    updates = {c: random_update(plan, np.random.default_rng(c)) for c in range(3)}
    with pytest.raises(Error, match="full"):
        run_round(servers, updates, round_number=1)
    opened = run_round(servers, {c: updates[c] for c in (0, 1)}, round_number=2)
    assert_exact(plan, opened, [plaintext.Contribution(updates[c]) for c in (0, 1)])


def test_a_plan_whose_sums_could_wrap_cannot_be_made() -> None:
    with pytest.raises(ParameterError, match="above the 16-bit ring"):
        make_plan(
            make_segment("bias", "dense", (4,)), encoding=FixedPoint(16, 12, 4.0), max_clients=2
        )


def test_a_round_imports_no_torch() -> None:
    script = """
import sys
import numpy as np
import torchfsl, torchfsl.fsl.server.server
from tests.support.federation import make_servers, mixed_plan, play_round, random_update
plan = mixed_plan()
updates = {c: random_update(plan, np.random.default_rng(c)) for c in (0, 1)}
play_round(make_servers(plan), 1, updates)
assert "torch" not in sys.modules, "torch was imported"
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
