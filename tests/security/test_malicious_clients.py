"""Attacks 1 to 6, 8, 11 and 12: what a malicious client tries, with the check off and on."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

from scripts.attacks.forged_reports import (
    equal_roots,
    fit_check_words,
    forge,
    grow,
    merge_keys,
    select_two_points,
)
from scripts.attacks.forged_reports import make_plan as one_segment
from tests.support.adversary import (
    LIMIT,
    attacked_round,
    carried_by,
    deliver,
    ignore_digests,
    round_of,
    rows_of_bins,
    servers_of,
    sums,
)
from tests.support.federation import Wire, make_plan, make_segment
from tests.support.tags import tagged
from torchfsl.fsl import messages
from torchfsl.fsl.client.trees import ClientTrees, nothing
from torchfsl.fsl.dpf import trees as dpf
from torchfsl.fsl.dpf.keys import TreeContext
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.kernels import ring
from torchfsl.kernels.portable.trees import Bytes

pytestmark = pytest.mark.usefixtures("sums_as_added")

ATTACKER = 3
ON = one_segment(8, 8, 0, 0)
OFF = one_segment(8, 8, 0, 0, verified=False)


def damaged_rows(plan: Plan, attacker: object, seed: int = 0) -> set[int] | None:
    """Rows where the opened sum is not what honest clients sent; None if the attacker is out."""
    opened, honest = attacked_round(plan, attacker, seed)  # type: ignore[arg-type]
    if ATTACKER not in opened.clients:
        assert np.array_equal(sums(opened), honest), "a refused report left traces"
        return None
    return set(np.flatnonzero(sums(opened) != honest).tolist())


# --- 1. random bit flips ------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("part", ["seed", "left bit", "right bit"])
def test_a_flip_in_a_correction_word_soils_many_rows_unless_trees_are_verified(
    part: str, level: int
) -> None:
    rng = np.random.default_rng(level)
    damaged = []
    for plan in (OFF, ON):
        report = forge(plan, ATTACKER, 1, rng)
        report.alpha[:] = 4  # its last parent has two existing leaves
        grow(report)
        for tree in range(3):
            if part == "right bit":
                report.trees[0].cw_right[level, tree] ^= 1
            else:
                report.trees[0].cw[level, tree, 0 if part == "left bit" else 7] ^= 1
        damaged.append(damaged_rows(plan, report))
    assert damaged[0] is not None
    assert len(damaged[0]) >= (4 if level < 2 else 1)
    assert damaged[1] is None


def test_a_flip_in_a_hint_changes_one_row_of_its_own_bin_with_and_without_the_check() -> None:
    rows = rows_of_bins(ON)
    for plan in (OFF, ON):
        report = forge(plan, ATTACKER, 1, np.random.default_rng(1))
        report.values[:] = 0
        grow(report)
        report.hints[2, 3] ^= 0x40
        assert damaged_rows(plan, report) == {int(rows[2, int(report.alpha[2])])}


def test_a_flip_in_a_check_word_refuses_its_own_report_and_could_never_change_a_sum() -> None:
    report = forge(ON, ATTACKER, 1, np.random.default_rng(2))
    report.trees[0].check[1, 30] ^= 8
    assert damaged_rows(ON, report) is None
    unverified = forge(OFF, ATTACKER, 1, np.random.default_rng(2))
    assert damaged_rows(OFF, unverified) == set(np.flatnonzero(carried_by(unverified)).tolist())


# --- 2, 3. two points, equal seeds --------------------------------------------------------------


def test_two_points_in_one_bin_pass_unverified_and_are_refused_by_the_check() -> None:
    for seed in range(8):
        damaged = []
        for plan in (OFF, ON):
            report = forge(plan, ATTACKER, 1, np.random.default_rng(seed))
            report.values[:] = 0
            grow(report)
            select_two_points(report, np.random.default_rng(seed))
            fit_check_words(report)
            damaged.append(damaged_rows(plan, report, seed))
        assert damaged[0] is not None
        assert len(damaged[0]) == 2
        assert damaged[1] is None


def test_merged_keys_pass_unverified_and_are_refused_by_the_check() -> None:
    wide = 0
    for seed in range(12):
        off = forge(OFF, ATTACKER, 1, np.random.default_rng(seed))
        merge_keys(off, np.random.default_rng(seed))
        damaged = damaged_rows(OFF, off)
        assert damaged is not None
        wide += len(damaged) > 3
    assert wide > 3, "three bins should change three rows at most"
    for seed in range(12):
        on = forge(ON, ATTACKER, 1, np.random.default_rng(seed))
        merge_keys(on, np.random.default_rng(seed))
        damaged = damaged_rows(ON, on)
        assert damaged is None or len(damaged) <= 3


def test_equal_seeds_with_unequal_bits_write_to_every_row_unless_the_bit_is_hashed() -> None:
    for plan in (OFF, ON):
        report = forge(plan, ATTACKER, 1, np.random.default_rng(3))
        equal_roots(report, np.random.default_rng(3))
        report.hints[:] = 0
        report.hints[:, 0] = 7
        for part in report.trees:
            part.check[...] = 0
        damaged = damaged_rows(plan, report)
        assert damaged == (set(range(8)) if plan is OFF else None)


# --- 4. check words that are no hashes ----------------------------------------------------------


@pytest.mark.parametrize("what", ["zero", "random", "of another tree", "of another leaf"])
def test_a_check_word_that_is_not_the_trees_own_is_refused(what: str) -> None:
    rng = np.random.default_rng(4)
    report = forge(ON, ATTACKER, 1, rng)
    check = report.trees[0].check
    if what == "zero":
        check[0] = 0
    elif what == "random":
        check[0] = rng.integers(256, size=32, dtype=np.uint8)
    elif what == "of another tree":
        check[0] = check[1]
    else:
        other = forge(ON, ATTACKER, 1, rng, seeds=report.seeds)
        other.nonce, other.hint_nonce = report.nonce, report.hint_nonce
        other.alpha[0] = report.alpha[0] ^ np.uint64(1)
        grow(other)
        check[0] = other.trees[0].check[0]
    assert damaged_rows(ON, report) is None


# --- 5. two blocks, and one block of several rows -----------------------------------------------


def test_a_leaf_block_may_hold_several_rows_which_is_documented_and_ends_with_nu_zero() -> None:
    """nu > 0 bounds a client to one block of 2**nu rows a bin; nu = 0 to one row."""
    blocks = one_segment(8, 8, 2, 0)
    report = forge(blocks, ATTACKER, 1, np.random.default_rng(5))
    report.values[:] = 0
    grow(report)
    report.hints[0] = ring.add(
        report.hints[0].reshape(-1, 4), ring.from_int64(np.array([5, 6, 7, 8]), 32)
    ).reshape(-1)
    first = int(report.alpha[0]) & ~3
    assert damaged_rows(blocks, report) == set(rows_of_bins(blocks)[0, first : first + 4].tolist())
    report = forge(blocks, ATTACKER, 1, np.random.default_rng(6))
    select_two_points(report, np.random.default_rng(6))
    fit_check_words(report)
    assert damaged_rows(blocks, report) is None


# --- 6. out-of-range values ---------------------------------------------------------------------


@pytest.mark.parametrize("value", [101, 2**31 - 1, -(2**31)])
def test_values_out_of_range_are_accepted_in_ring_mode(value: int) -> None:
    """There is no norm proof: sparsity is bounded, magnitude is not. SECURITY.md says so."""
    report = forge(ON, ATTACKER, 1, np.random.default_rng(7))
    report.values[:] = 0
    report.values[0] = ring.from_int64(np.array([value]), 32)
    grow(report)
    opened, honest = attacked_round(ON, report)
    row = int(rows_of_bins(ON)[0, int(report.alpha[0])])
    change = (sums(opened) - honest) % 2**32
    assert change[row] == value % 2**32
    assert np.count_nonzero(change) == 1
    assert ON.encoding.q_max < abs(value)


def test_a_modular_wrap_turns_many_large_values_into_a_small_sum() -> None:
    """Each of two values is far out of range, their sum is not: a bound on sums shows nothing."""
    reports = []
    for client, value in ((1, 2**31 - 1), (3, -(2**31) + 2)):
        report = forge(ON, client, 1, np.random.default_rng(8))
        report.values[:] = 0
        report.values[0] = ring.from_int64(np.array([value]), 32)
        report.alpha[0] = 5
        grow(report)
        reports.append(report)
    opened = round_of(ON, reports)
    assert sums(opened)[rows_of_bins(ON)[0, 5]] == 1


def test_security_notes_say_that_magnitudes_are_not_proved() -> None:
    text = (Path(__file__).resolve().parents[2] / "SECURITY.md").read_text().lower()
    assert "norm" in text
    assert "magnitude" in text


# --- 8. one master seed for two trees -----------------------------------------------------------


def test_two_trees_under_one_master_seed_show_whether_their_positions_share_a_prefix() -> None:
    segment = ON.segments[0]
    context = TreeContext(ON, 1, ATTACKER, bytes(16))
    keys = context.tree_key(segment), context.check_key(segment)
    seeds = bytes(range(16)), bytes(range(16, 32))
    roots = [context.roots(segment, seeds[party], party) for party in (0, 1)]

    def words(position: int) -> tuple[Bytes, dpf.SelectedLeaves]:
        alpha = np.full(segment.num_trees, position, dtype=np.uint64)
        trees, leaves = dpf.gen(segment, *keys, roots[0], roots[1], alpha)
        return trees[0].cw[:, 0], leaves

    for one in range(8):
        for two in range(8):
            same = np.all(words(one)[0] == words(two)[0], axis=1)
            prefix = [one >> (3 - i) == two >> (3 - i) for i in (1, 2, 3)]
            assert same.tolist() == prefix, "every level shows whether the bits so far agree"


def test_two_values_under_one_hint_key_show_their_difference() -> None:
    report = forge(ON, ATTACKER, 1, np.random.default_rng(9))
    hints = []
    for value in (17, 59):
        report.values[:] = ring.from_int64(np.array([[value]] * 3), 32)
        grow(report)
        hints.append(report.hints.reshape(3, 1, 4))
    difference = ring.to_int64(ring.sub(hints[1], hints[0]))[:, 0]
    assert set(np.abs(difference).tolist()) == {42}


def test_the_api_offers_no_way_to_use_a_master_seed_twice() -> None:
    plan = make_plan(make_segment("s", "scalars", (20,), k_max=2, theta=5))
    assert list(inspect.signature(ClientTrees).parameters) == ["plan", "client_id", "round_number"]
    trees = [ClientTrees(plan, 1, 1) for _ in range(50)]
    assert len({seed for tree in trees for seed in tree.master_seeds}) == 100
    assert len({tree.context.nonce for tree in trees}) == 50
    trees[0].grow(plan.segments[0], nothing())
    with pytest.raises(AssertionError, match="grown once"):
        trees[0].grow(plan.segments[0], nothing())


def test_all_roots_of_a_report_differ_across_segments_of_equal_shape_and_stash() -> None:
    shape = {"k_max": 2, "theta": 5, "stash": 2}
    plan = make_plan(
        make_segment("a", "scalars", (20,), **shape),  # type: ignore[arg-type]
        make_segment("b", "scalars", (20,), **shape),  # type: ignore[arg-type]
    )
    trees = ClientTrees(plan, 1, 1)
    roots = [
        trees.context.roots(segment, trees.master_seeds[party], party)
        for segment in plan.segments
        for party in (0, 1)
    ]
    count = 2 * sum(segment.num_trees for segment in plan.segments)
    assert len({root.tobytes() for root in np.concatenate(roots)}) == count


# --- 11, 12. two servers, two stories -----------------------------------------------------------


def test_a_client_that_commits_to_another_public_part_is_out() -> None:
    report = forge(ON, ATTACKER, 1, np.random.default_rng(10))
    wire = Wire(servers_of(ON))
    begin_round(wire.servers, 1)
    deliver(wire, forge(ON, 2, 1, np.random.default_rng(11)))
    (second, commitment), (first, public) = report.messages()
    spoiled = bytearray(commitment)
    spoiled[-1] ^= 1
    wire.servers[second].receive(tagged(ON, bytes(spoiled)))
    due = wire.servers[first].receive(public)
    assert due is not None
    relay = wire.servers[first].relay(*due)
    with pytest.raises(Exception, match="does not fit the client's commitment"):
        wire.servers[second].receive(relay)
    assert finish_round(wire.servers).clients == (2,)


@pytest.mark.parametrize("agreed", [True, False])
def test_different_public_parts_at_the_two_servers_spoil_the_sum_unless_digests_are_compared(
    agreed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client also plays the peer: each server holds a commitment that fits its own part."""
    plan = OFF
    honest = forge(plan, 2, 1, np.random.default_rng(12))
    report = forge(plan, ATTACKER, 1, np.random.default_rng(13))
    wire = Wire(servers_of(plan))
    begin_round(wire.servers, 1)
    deliver(wire, honest)
    (second, _), (first, public) = report.messages()
    wire.servers[first].receive(public)
    report.trees[0].cw[:, :, 9] ^= 1
    report.hints[:, 3] ^= 0x40  # words alone change nothing if 18 control bits happen to be zero
    (_, commitment), (_, other) = report.messages()
    wire.servers[second].receive(commitment)
    relay = messages.encode(
        plan, Kind.REPORT_RELAY, second, 1, ATTACKER, other[64:80], other[96:112], other[128:]
    )
    wire.servers[second].receive(relay)
    if not agreed:
        ignore_digests(monkeypatch)
    opened = finish_round(wire.servers)
    if agreed:
        assert opened.clients == (2,)
        assert np.array_equal(sums(opened), carried_by(honest))
    else:
        assert opened.clients == (2, ATTACKER)
        assert np.max(np.abs(sums(opened))) > LIMIT


@pytest.mark.parametrize("party", [0, 1])
def test_a_client_that_sends_to_one_server_only_is_dropped_whole(party: int) -> None:
    honest = forge(ON, 2, 1, np.random.default_rng(14))
    wire = Wire(servers_of(ON), lambda event: event.data if to_all(event) else None)

    def to_all(event: object) -> bool:
        is_attackers = int.from_bytes(event.data[16:24], "little") == ATTACKER  # type: ignore[attr-defined]
        return not is_attackers or event.party == party  # type: ignore[attr-defined]

    opened = round_of(ON, [honest, forge(ON, ATTACKER, 1, np.random.default_rng(15))], wire)
    assert opened.clients == (2,)
    assert np.array_equal(sums(opened), carried_by(honest))
    assert any(
        event.kind in (Kind.REPORT, Kind.REPORT_COMMIT) and event.party == party
        for event in wire.events
    )
