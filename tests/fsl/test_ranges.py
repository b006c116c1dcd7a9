"""Sums that no honest reports make are zero at both servers; honest ones are never touched."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np
import pytest

from scripts.attacks.lying_clients import HONEST, ROW, counting_plan, opened_with, out_of_range
from tests.support.federation import (
    assert_exact,
    make_plan,
    make_segment,
    make_servers,
    mixed_plan,
    play_round,
    random_update,
)
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.proof_shape import row_trees
from torchfsl.fsl.plan.statement import Proofs
from torchfsl.fsl.server.opening import decode_shares
from torchfsl.kernels import ring
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.plan import Lane

Q = 100
CLIENTS = (1, 2, 3)
LIMIT = len(CLIENTS) * Q


def small_plan(bits: int = 32, lane: Lane = "none", sigma: int = 0) -> Plan:
    """Four scalars with trees and two dense values."""
    plan = make_plan(
        make_segment("few", "scalars", (4,), k_max=2), make_segment("d", "dense", (2,)),
        encoding=FixedPoint(bits, 0, float(Q)), lane=lane, max_weight=5 if lane == "weight" else 1,
    )  # fmt: skip
    if not sigma:
        return plan
    lanes = sigma if lane != "none" else 0
    return dataclasses.replace(plan, l2_bound=1000, noise_sigma=sigma, lane_sigma=lanes)


def decode(plan: Plan, few: list[list[int]], dense: list[int]) -> Opened:
    """What is opened when the sums are these (lanes first), in random shares."""
    bits = plan.encoding.ring_bits
    flat = np.array([v for row in few for v in row] + dense, dtype=np.int64)
    share = np.random.default_rng(0).integers(0, 256, (len(flat), bits // 8), dtype=np.uint8)
    other = ring.sub(ring.from_int64(flat, bits), share)
    return decode_shares(plan, share.tobytes(), other.tobytes(), CLIENTS)


def test_the_attack_works_without_the_check_and_not_with_it() -> None:
    result = out_of_range()
    assert result.worked_off, result.off
    assert not result.worked_on, result.on


def test_the_limits_themselves_are_honest_and_what_is_beyond_is_zero() -> None:
    opened = decode(small_plan(), [[LIMIT], [-LIMIT], [LIMIT + 1], [-LIMIT - 1]], [LIMIT, 301])
    assert opened.sums["few"][:, 0].tolist() == [LIMIT, -LIMIT, 0, 0]
    assert opened.sums["d"][:, 0].tolist() == [LIMIT, 0]
    assert opened.zeroed == {"few": 2, "d": 1}
    assert not opened.weight_clamped


def test_a_value_is_bounded_by_its_lane_and_the_lane_by_the_clients() -> None:
    rows = [[1, Q], [1, Q + 1], [-1, 0], [4, Q]]
    opened = decode(small_plan(lane="count"), rows, [0, 0])
    assert opened.sums["few"][:, 0].tolist() == [Q, 0, 0, 0]
    assert opened.lanes["few"].tolist() == [1, 0, 0, 0]
    assert opened.zeroed == {"few": 3}
    rows = [[15, 15 * Q], [15, 15 * Q + 1], [16, 0], [0, 1]]
    opened = decode(small_plan(lane="weight"), rows, [15, 0, 0])
    assert opened.sums["few"][:, 0].tolist() == [15 * Q, 0, 0, 0]
    assert opened.zeroed == {"few": 3}


@pytest.mark.parametrize(("weight", "taken"), [(-1, 0), (16, 15), (15, 15), (0, 0)])
def test_the_total_weight_is_clamped_and_bounds_dense_values(weight: int, taken: int) -> None:
    opened = decode(small_plan(lane="weight"), [[0, 0]] * 4, [weight, Q * taken, -Q * taken - 1])
    assert opened.total_weight == taken
    assert opened.weight_clamped == (weight != taken)
    assert opened.sums["d"][:, 0].tolist() == [Q * taken, 0]


def test_noise_has_its_tail_and_is_not_bounded_by_the_lane() -> None:
    plan = small_plan(lane="count", sigma=10)
    tail = 128  # nine times sqrt(2) * 10, rounded up
    rows = [[-tail, LIMIT + tail], [0, LIMIT + tail + 1], [-tail - 1, 0], [3 + tail, -LIMIT]]
    opened = decode(plan, rows, [0, 0])
    assert opened.sums["few"][:, 0].tolist() == [LIMIT + tail, 0, 0, -LIMIT]
    assert opened.lanes["few"].tolist() == [-tail, 0, 0, 3 + tail]


def test_a_wide_ring_does_not_halt_for_a_value_beyond_64_bits() -> None:
    plan = small_plan(bits=128, lane="weight")
    share = np.zeros((4 * 2 + 3, 16), dtype=np.uint8)
    share[1, 12] = share[3, 15] = share[8, 9] = 1  # a value, another one, the total weight
    share[4, 0] = share[5, 0] = 7  # an honest row of weight 7
    opened = decode_shares(plan, share.tobytes(), np.zeros_like(share).tobytes(), CLIENTS)
    assert opened.sums["few"][:, 0].tolist() == [0, 0, 7, 0]
    assert opened.zeroed == {"few": 2}
    assert opened.weight_clamped
    assert opened.total_weight == 0


def test_a_client_halts_no_round_over_a_wide_ring() -> None:
    opened = opened_with(counting_plan(128), (1, 1 << 62))
    assert opened.zeroed == {"values": 1}
    assert opened.sums["values"][ROW, 0] == 0
    assert opened_with(counting_plan(128), None).sums["values"][ROW, 0] == 5 * HONEST


@pytest.mark.parametrize("lane", ["none", "count", "weight"])
def test_honest_sums_at_the_clip_are_left_alone(lane: Lane) -> None:
    plan, rng = mixed_plan(lane=lane), np.random.default_rng(1)
    servers = make_servers(plan)
    for number in range(3):
        updates = {c: random_update(plan, rng, largest=True) for c in range(4)}
        weights = dict.fromkeys(updates, plan.max_weight)
        opened, made = play_round(servers, number, updates, weights)
        assert_exact(plan, opened, made)
        assert not opened.zeroed
        assert not opened.weight_clamped


def test_the_log_has_counts_only(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        decode(small_plan(lane="weight"), [[0, 5], [0, 0], [0, 0], [99, 0]], [99, 0, 0])
    assert [record.getMessage() for record in caplog.records] == [
        "segment few: the sums of 2 positions were outside the range of honest reports, and are "
        "zero now",
        "the sum of the reports' weights was outside the range of honest reports, so both servers "
        "set it to 15, the end of this range",
    ]


def proven_plan(proofs: Proofs, lane: Lane = "count") -> Plan:
    plan = dataclasses.replace(small_plan(lane=lane), proofs=proofs, l2_bound=1000)
    assert row_trees(plan.segment("few")) == 2
    return plan


def test_proven_counts_above_the_clients_are_cut_and_what_nobody_can_make_is_zero() -> None:
    rows = [[4, Q], [6, 3 * Q], [7, Q], [-1, 0]]
    opened = decode(proven_plan("lanes"), rows, [0, 0])
    assert opened.lanes["few"].tolist() == [3, 3, 0, 0]
    assert opened.sums["few"][:, 0].tolist() == [Q, 3 * Q, 0, 0]
    assert (opened.zeroed, opened.cut) == ({"few": 2}, {"few": 2})


def test_values_are_cut_where_their_norm_is_proven_and_zeroed_where_only_counts_are() -> None:
    rows = [[1, Q + 1], [2, -2 * Q - 1], [0, 7], [3, LIMIT]]
    opened = decode(proven_plan("norm"), rows, [LIMIT + 1, -LIMIT - 9])
    assert opened.sums["few"][:, 0].tolist() == [Q, -2 * Q, 0, LIMIT]
    assert opened.sums["d"][:, 0].tolist() == [LIMIT, -LIMIT]
    assert (opened.zeroed, opened.cut) == ({}, {"few": 3, "d": 2})
    opened = decode(proven_plan("lanes"), rows, [LIMIT + 1, -LIMIT - 9])
    assert opened.sums["few"][:, 0].tolist() == [0, 0, 0, LIMIT]
    assert (opened.zeroed, opened.cut) == ({"few": 3, "d": 2}, {})


def test_dense_values_are_cut_to_the_proven_weight_times_the_clip() -> None:
    plan = proven_plan("norm", "weight")
    opened = decode(plan, [[0, 0]] * 4, [2, 2 * Q + 1, -14 * Q])
    assert opened.total_weight == 2
    assert opened.sums["d"][:, 0].tolist() == [2 * Q, -2 * Q]
    assert (opened.zeroed, opened.cut) == ({}, {"d": 2})


def test_values_are_cut_without_a_lane_by_the_number_of_clients() -> None:
    plan = proven_plan("norm", "none")
    opened = decode(plan, [[LIMIT], [LIMIT + 1], [-LIMIT - 1], [0]], [0, 0])
    assert opened.sums["few"][:, 0].tolist() == [LIMIT, LIMIT, -LIMIT, 0]
    assert (opened.zeroed, opened.cut) == ({}, {"few": 2})
