"""What an hour's attempts on plans with proofs left as tests, which the page on proofs lists."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.attacks.lies import BOUND, Lie, in_two_bins, plan_with
from scripts.attacks.lying_clients import lying
from tests.service.test_node import Duo, authorities
from tests.support.federation import (
    Wire,
    make_plan,
    make_segment,
    make_servers,
    mixed_plan,
    random_update,
)
from torchfsl.crypto import field128
from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.field128 import MODULUS
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import DecodeError, ParameterError, RejectedSubmission
from torchfsl.fsl.client import proof, report
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.client.report import DrawnReport
from torchfsl.fsl.cuckoo import placement as cuckoo
from torchfsl.fsl.dpf import lifts
from torchfsl.fsl.dpf.trees import SelectedLeaves
from torchfsl.fsl.messages import HEADER_BYTES, Kind
from torchfsl.fsl.plan import proof_shape
from torchfsl.fsl.plan.headroom import with_headroom
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.statement import make_statement
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server import ranges
from torchfsl.kernels import ring
from torchfsl.service.net.identity import Authorities
from torchfsl.service.state.steps import STEPS
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.plan import Lane
from torchfsl.submodel.segments import TensorSpec
from torchfsl.submodel.update import SegmentUpdate, Update

__all__ = ["authorities"]  # a fixture

ROW, HONEST = 3, 5


def plan_of(*segments: TreeSegment) -> Plan:
    plan = make_plan(*segments, encoding=FixedPoint(32, 0, 100.0), lane="count")
    return dataclasses.replace(plan, proofs="norm", l2_bound=BOUND)


def leave(_: Plan, __: TreeSegment, ___: int, values: Any, lane: Any = None) -> Any:
    """In the place of `ranges.cut` and `cut_lane`."""
    return np.zeros(len(values), dtype=np.bool_)


SHAPES = {
    "full-domain": lambda: [make_segment("table", "rows", (8, 2), k_max=2, tau=2)],
    "blocks": lambda: [
        make_segment("table", "rows", (32, 2), k_max=2, tau=2, theta=8, nu=2, stash=1)
    ],
    "two segments": lambda: [
        make_segment("table", "rows", (8, 2), k_max=2, tau=2, theta=4),
        make_segment("other", "rows", (9, 1), k_max=2, tau=1, theta=3, nu=1, stash=1),
    ],
}


def update_of(plan: Plan, value: int = HONEST) -> Update:
    return {
        s.name: SegmentUpdate(None, np.zeros((s.m, 1), dtype=np.int64))
        if s.is_dense
        else SegmentUpdate(np.array([ROW]), np.full((1, s.tau), value))
        for s in plan.segments
    }


def round_of(plan: Plan, honest: int = 1) -> Opened:
    """A round of honest clients and of the one that code patched in the caller makes lie."""
    servers = make_servers(plan)
    begin_round(servers, 1)
    wire = Wire(servers)
    with pytest.MonkeyPatch.context() as clean:
        for module, name, real in REAL:
            clean.setattr(module, name, real)
        for number in range(honest):
            Client(plan, wire, client_id=number).start_round(1).submit(update_of(plan))
    Client(plan, wire, client_id=honest).start_round(1).submit(update_of(plan))
    return finish_round(servers)


REAL: list[tuple[Any, str, Any]] = [
    (cuckoo, "place", cuckoo.place),
    (proof, "_in_slots", proof._in_slots),
    (report.dpf, "gen_hints", report.dpf.gen_hints),
    (report, "_draw", report._draw),
]


# --- above the bound ---------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rest", [0, 1])
def test_the_bound_is_that_of_all_trees_together_to_the_unit(shape: str, rest: int) -> None:
    """`rest` in another tree than the bound itself."""
    plan = plan_of(*SHAPES[shape]())

    def alter(values: np.ndarray) -> np.ndarray:
        values[:] = 0
        if values.shape[1] == 3:  # `table` alone
            values[:2, :2] = [[1, BOUND], [1, rest]]
        return values

    servers = make_servers(plan)
    begin_round(servers, 1)
    wire = Wire(servers)
    Client(plan, wire, client_id=0).start_round(1).submit(update_of(plan))
    with lying(Lie(("norm",), alter)):
        Client(plan, wire, client_id=1).start_round(1).submit(update_of(plan))
    assert finish_round(servers).clients == ((0,) if rest else (0, 1))


@pytest.mark.parametrize("more", [2, 3])
def test_counts_beside_the_selected_slot_of_a_leaf_count_towards_k_max(
    more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client writes its hints by hand: `more` rows of one leaf block, of which k_max = 2."""
    plan = plan_of(*SHAPES["blocks"]())
    gen_hints, in_slots = report.dpf.gen_hints, proof._in_slots

    def others(slot: Any) -> list[int]:
        return [s for s in range(4) if s != int(slot)][:more]

    def by_hand(segment: Any, key: bytes, leaves: SelectedLeaves, values: Any) -> Any:
        hints = gen_hints(segment, key, leaves, values * 0).copy()
        words = hints[0].view("<u4").reshape(4, 3)
        words[others(leaves.slots[0]), 0] += np.uint32(0xFFFFFFFF if leaves.leaf1[0, 0] & 1 else 1)
        return hints

    def placed(segment: Any, slots: Any, values: Any) -> Any:
        found = in_slots(segment, slots, values * 0)
        found[0, others(slots[0]), 0] = 1
        return found

    monkeypatch.setattr(report.dpf, "gen_hints", by_hand)
    monkeypatch.setattr(proof, "_in_slots", placed)
    with lying(Lie(())):
        opened = round_of(plan)
    assert opened.clients == ((0, 1) if more == 2 else (0,))
    assert opened.lanes["table"].sum() == (3 if more == 2 else 1)


@pytest.mark.parametrize("cuts", [False, True])
def test_one_row_in_all_its_bins_is_accepted_and_erases_no_row_that_all_have_touched(
    cuts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two counts of one row exceed what n + 1 clients can have; without the cut it is lost."""
    if not cuts:
        monkeypatch.setattr(ranges, "cut_lane", leave)
    plan = plan_with("norm")
    assert round_of(plan, honest=3).sums["table"][ROW].tolist() == [4 * HONEST] * 2
    monkeypatch.setattr(cuckoo, "place", in_two_bins(cuckoo.place, ROW))
    opened = round_of(plan, honest=3)
    assert opened.clients == (0, 1, 2, 3)
    assert opened.lanes["table"][ROW] == (4 if cuts else 0)
    assert opened.sums["table"][ROW].tolist() == ([5 * HONEST] * 2 if cuts else [0, 0])
    assert (opened.zeroed, opened.cut) == (({}, {"table": 1}) if cuts else ({"table": 1}, {}))


@pytest.mark.parametrize("cuts", [False, True])
def test_a_value_within_the_bound_and_beyond_the_clip_moves_a_row_to_its_end(
    cuts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B is twice the clip. What a liar reaches alone in a row is one clip, as honest code may."""
    if not cuts:
        monkeypatch.setattr(ranges, "cut", leave)

    def far(values: Any) -> Any:
        values[values[:, 0] == 1, 1] = BOUND - 50
        return values

    plan = plan_with("norm")
    most = plan.encoding.q_max
    for honest, reached in ((0, most if cuts else 0), (1, BOUND - 50 + HONEST)):
        servers = make_servers(plan)
        begin_round(servers, 1)
        for client in range(honest):
            Client(plan, Wire(servers), client_id=client).start_round(1).submit(update_of(plan))
        with lying(Lie((), far)):
            Client(plan, Wire(servers), client_id=9).start_round(1).submit(update_of(plan))
        opened = finish_round(servers)
        assert 9 in opened.clients
        assert opened.sums["table"][ROW, 0] == reached
        assert opened.zeroed == ({} if cuts or honest else {"table": 1})
        assert opened.cut == ({"table": 1} if cuts and not honest else {})


@pytest.mark.parametrize("lane", ["count", "weight"])
@pytest.mark.parametrize("cuts", [False, True])
def test_a_dense_value_beyond_the_clip_erases_nothing(
    cuts: bool, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three clients of weight 1 send 80; 190 more is within B, and beyond four times the clip."""
    if not cuts:
        monkeypatch.setattr(ranges, "cut", leave)
    plan = plan_with("norm", lane=lane)
    servers = make_servers(plan)
    begin_round(servers, 1)
    update = {"table": SegmentUpdate(np.array([ROW]), np.full((1, 2), HONEST)),
              "bias": SegmentUpdate(None, np.array([[80], [80], [80]]))}  # fmt: skip
    for client in range(3):
        Client(plan, Wire(servers), client_id=client).start_round(1).submit(update, weight=1)
    real = report._whole

    def far(*given: Any) -> Any:
        values = real(*given)
        values[-3:] = [190, 0, 0]
        return values

    monkeypatch.setattr(report, "_whole", far)
    Client(plan, Wire(servers), client_id=9).start_round(1).submit(update, weight=1)
    opened = finish_round(servers)
    assert opened.clients == (0, 1, 2, 9)
    assert opened.sums["bias"][:, 0].tolist() == [400 if cuts else 0, 240, 240]
    assert (opened.zeroed, opened.cut) == (({}, {"bias": 1}) if cuts else ({"bias": 1}, {}))


@pytest.mark.parametrize("checked", [False, True])
def test_no_sum_of_values_within_the_bound_leaves_the_ring(checked: bool) -> None:
    """Honest sums up to the clip fill a ring of 16 bits; 4500 more came out as -32,406."""
    table = plan_with("norm").segments[0]
    encoding = FixedPoint.filling(16, 0, max_clients=8)

    def plan_of_bound(bound: int) -> Plan:
        plan = make_plan(table, encoding=encoding, max_clients=8, min_clients=1)
        plan = dataclasses.replace(plan, proofs="norm", l2_bound=bound)
        if checked:
            with_headroom(plan)
        return plan

    if checked:
        with pytest.raises(
            ParameterError, match=r"can reach 94400, .* at most 32767.* at most 2047 "
        ):
            plan_of_bound(5900)
    honest, liar = (2047, 2047) if checked else (4090, 4500)
    plan = plan_of_bound(2047 if checked else 5900)
    servers = make_servers(plan)
    begin_round(servers, 1)
    update = {"table": SegmentUpdate(np.array([ROW]), np.array([[honest, 0]]))}
    for client in range(7):
        Client(plan, Wire(servers), client_id=client).start_round(1).submit(update)

    def far(values: Any) -> Any:
        values[values[:, 0] != 0, 0] = liar
        return values

    with lying(Lie((), far)):
        Client(plan, Wire(servers), client_id=9).start_round(1).submit(update)
    opened = finish_round(servers)
    assert 9 in opened.clients
    assert opened.sums["table"][ROW, 0] == (8 * 2047 if checked else -32_406)
    assert (opened.zeroed, opened.cut) == ({}, {})


# --- proofs of another report, and no proofs at all --------------------------------------------


def test_a_report_of_another_epoch_or_client_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hints, carry trees and proof, sent again as they are, under right tags."""
    plan = plan_with("norm", epochs=5)
    real, kept = report._draw, list[DrawnReport]()

    def again(trees: Any, context: Any, *given: Any) -> DrawnReport:
        if not kept:
            kept.append(real(trees, context, *given))
        # Its own nonce, too: round or client are all that differ.
        same = dataclasses.replace(context, hint_nonce=kept[0].context.hint_nonce)
        return dataclasses.replace(kept[0], context=same)

    servers = make_servers(plan)
    wire = Wire(servers)
    begin_round(servers, 1)
    first, other, honest = (
        Client(plan, wire, client_id=number).open_session(indices={"table": [ROW]})
        for number in (2, 4, 6)
    )
    for number, clients in [(1, (2, 6)), (2, (6,))]:
        if number > 1:
            begin_round(servers, number)
        with monkeypatch.context() as patch:
            patch.setattr(report, "_draw", again)
            first.start_round(number).submit(update_of(plan))
            if number > 1:
                other.start_round(number).submit(update_of(plan))
        honest.start_round(number).submit(update_of(plan))
        assert finish_round(servers).clients == clients


def raw(kind: str, size: int) -> bytes:
    return {"random": random_bytes, "zeros": bytes, "ones": lambda n: b"\xff" * n}[kind](size)


PARTS = ("trees", "hints", "carry hints", "slack", "elements")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["random", "zeros", "ones"])
@pytest.mark.parametrize("part", PARTS)
def test_any_bytes_in_place_of_a_part_are_refused_and_nothing_else(
    part: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under right tags and commitments, as the client itself makes them."""
    plan, real = plan_with("norm", ring_bits=24), report._draw
    statement = plan.statement
    assert statement is not None
    trees = sum(s.tree_bytes for s in plan.late)
    hints = sum(plan.hint_bytes(s) for s in plan.with_trees)
    public, masked = trees + hints + statement.public_bytes, statement.private_bytes
    span = {
        "trees": slice(0, 16), "hints": slice(trees, trees + hints),
        "carry hints": slice(public - statement.carry_hint_bytes, public),
        "slack": slice(0, statement.slack_bytes), "elements": slice(statement.slack_bytes, masked),
    }[part]  # fmt: skip

    def altered(*given: Any) -> DrawnReport | None:
        made = real(*given)
        if made is None:
            return None
        mine = bytearray(b"".join(made.public if PARTS.index(part) < 3 else made.masked[-1:]))
        size = len(mine[span])
        drawn = {"random": 3**99, "zeros": 0, "ones": MODULUS - 1}[kind] % MODULUS
        elements = field128.to_bytes(field128.words([drawn] * (size // 16)))
        mine[span] = elements if part == "elements" else raw(kind, size)
        if PARTS.index(part) < 3:
            return dataclasses.replace(made, public=(memoryview(mine),))
        return dataclasses.replace(made, masked=(*made.masked[:-1], memoryview(mine)))

    monkeypatch.setattr(report, "_draw", altered)
    assert round_of(plan).clients == (0,)


@pytest.mark.parametrize("element", [MODULUS, (1 << 128) - 1])
def test_an_element_that_is_none_under_a_right_tag_costs_its_sender_the_round_alone(
    element: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at later, it would end the round for all."""
    real = report._draw

    def altered(*given: Any) -> DrawnReport | None:
        made = real(*given)
        if made is None:
            return None
        last = bytes(made.masked[-1])[:-16] + element.to_bytes(16, "little")
        return dataclasses.replace(made, masked=(*made.masked[:-1], memoryview(last)))

    plan = plan_with("norm")
    servers = make_servers(plan)
    begin_round(servers, 1)
    wire = Wire(servers)
    Client(plan, wire, client_id=0).start_round(1).submit(update_of(plan))
    monkeypatch.setattr(report, "_draw", altered)
    with pytest.raises(RejectedSubmission, match="modulus"):
        Client(plan, wire, client_id=1).start_round(1).submit(update_of(plan))
    assert finish_round(servers).clients == (0,)


# --- servers -----------------------------------------------------------------------------------


def test_a_peers_verdicts_out_of_the_field_are_refused_before_they_are_stored(
    authorities: Authorities, tmp_path: Path
) -> None:
    """Stored, they would keep a server from starting again."""
    plan = dataclasses.replace(mixed_plan(lane="count"), proofs="lanes")
    duo, rng = Duo(tmp_path, authorities, plan), np.random.default_rng(0)
    updates = {client: random_update(plan, rng) for client in (0, 1)}
    duo.play(1, updates, STEPS[: STEPS.index(Kind.REPORT_SET) + 1])
    said = [node.exchange(1, Kind.VERDICTS) for node in duo.nodes]
    wrong = bytearray(said[0])
    start = HEADER_BYTES + 16
    wrong[start : start + 16] = MODULUS.to_bytes(16, "little")
    with pytest.raises(DecodeError, match="modulus"):
        duo.nodes[1].exchange(1, Kind.VERDICTS, bytes(wrong))
    duo.crash(1)
    assert duo.nodes[1].exchange(1, Kind.VERDICTS, said[0]) == said[1]
    duo.nodes[1].count(1, Kind.VERDICTS)


# --- plans -------------------------------------------------------------------------------------


def test_the_field_suffices_for_the_counts_of_all_segments_together() -> None:
    """They are one sum; each segment of these alone would fit."""

    def segment(name: str) -> TreeSegment:
        tensor = TensorSpec(name, (1 << 28, 1))
        return TreeSegment(
            name, "rows", (tensor,), 1 << 28, 1, 1 << 20, num_bins=3 << 20, theta=1 << 8,
            nu=7, check_bytes=32,
        )  # fmt: skip

    slots = segment("a").num_trees << 7
    carries = make_statement((segment("a"),), 48, "lanes", "count", 0).num_carries
    proof_shape.check_field(slots, 48, carries, 0)
    with pytest.raises(ParameterError, match="too many to prove a bound on"):
        make_statement((segment("a"), segment("b")), 48, "lanes", "count", 0)


def test_a_plan_whose_verdicts_no_message_carries_is_refused() -> None:
    plan = plan_with("norm")
    assert plan.statement is not None
    encoding = dataclasses.replace(plan.encoding, ring_bits=48)
    dataclasses.replace(plan, encoding=encoding, max_clients=1 << 20)
    with pytest.raises(ParameterError, match="one message carries the verdicts"):
        dataclasses.replace(plan, encoding=encoding, max_clients=1 << 26)


def test_ring_values_that_a_share_reads_as_its_ends_are_summed_as_they_are() -> None:
    """`-h` of party 0 and `h` of party 1 are one ring value; both are lifted to fit."""
    for bits in (16, 24, 48):
        ends = ring.from_int64(np.array([-(1 << (bits - 1)), 0, -1, 1]), bits)
        first, second = (lifts.lift(ends, party) for party in (0, 1))
        assert first.tolist() == [-(1 << (bits - 1)), 0, -1, 1]
        assert second.tolist() == [1 << (bits - 1), 0, -1, 1]
