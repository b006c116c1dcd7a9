"""Attack 7: messages, trees and hints used a second time, or somewhere else."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from scripts.attacks.forged_reports import Forgery, fit_check_words, forge
from scripts.attacks.forged_reports import make_plan as one_segment
from tests.support.adversary import (
    LIMIT,
    attacked_round,
    carried_by,
    deliver,
    ignore_commitments,
    ignore_digests,
    round_of,
    servers_of,
    sums,
)
from tests.support.federation import Wire, make_plan, make_segment, random_update, submit
from tests.support.tags import tagged
from torchfsl.errors import DecodeError, ProtocolError, RejectedSubmission
from torchfsl.fsl.messages import HEADER_BYTES, Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round

pytestmark = pytest.mark.usefixtures("sums_as_added")

ROOT = Path(__file__).resolve().parents[2]
ATTACKER, VICTIM = 3, 2
ON = one_segment(8, 8, 0, 0)
OFF = one_segment(8, 8, 0, 0, verified=False)


def of(plan: Plan, client: int, seed: int = 0, round_number: int = 1) -> Forgery:
    return forge(plan, client, round_number, np.random.default_rng(seed))


def noisy_rows(values: np.ndarray) -> int:
    """Rows beyond all honest sums; by chance not all eight of noise once in 330,000 times."""
    return int(np.count_nonzero(np.abs(values) > LIMIT))


def in_round(message: bytes, number: int) -> bytes:
    return message[:8] + number.to_bytes(8, "little") + message[16:]


# --- the same report twice ----------------------------------------------------------------------


def test_a_report_sent_twice_counts_once() -> None:
    wire = Wire(servers_of(ON))
    begin_round(wire.servers, 1)
    report = of(ON, VICTIM)
    for _ in range(3):
        deliver(wire, report)
    opened = finish_round(wire.servers)
    assert opened.clients == (VICTIM,)
    assert np.array_equal(sums(opened), carried_by(report))


def test_a_second_different_report_takes_the_client_out_and_never_counts_twice() -> None:
    wire = Wire(servers_of(ON))
    begin_round(wire.servers, 1)
    other = of(ON, 4)
    for report in (of(ON, VICTIM, 1), of(ON, VICTIM, 2), other):
        deliver(wire, report)
    opened = finish_round(wire.servers)
    assert opened.clients == (4,)
    assert np.array_equal(sums(opened), carried_by(other))


def test_a_report_in_another_clients_name_carries_nothing_of_the_original() -> None:
    """Nonces and seeds may be copied; every key is bound to the client's number."""
    wire = Wire(servers_of(OFF))
    begin_round(wire.servers, 1)
    report = of(OFF, VICTIM)
    deliver(wire, report)
    messages = [m[:16] + (VICTIM + 2).to_bytes(8, "little") + m[24:] for _, m in report.messages()]
    for message in messages:
        with pytest.raises(RejectedSubmission, match=r"altered on the way|was rejected"):
            wire.send(message[7], message)
    assert finish_round(wire.servers).clients == (VICTIM,)


# --- another round, another session -------------------------------------------------------------


def recorded(plan: Plan) -> tuple[Wire, Forgery, list[tuple[int, bytes]]]:
    """A round that a report took part in; the next round is open."""
    wire, report = Wire(servers_of(plan)), of(plan, VICTIM)
    round_of(plan, [report, of(plan, 4)], wire)
    begin_round(wire.servers, 2)
    return wire, report, report.messages()


@pytest.mark.parametrize("plan", [ON, OFF], ids=["verified", "semi-honest"])
def test_a_report_of_an_old_round_is_refused_as_it_is_and_under_a_new_header(plan: Plan) -> None:
    wire, _, messages = recorded(plan)
    for party, message in messages:
        with pytest.raises(RejectedSubmission, match="round 1"):
            wire.send(party, message)
    (second, commitment), (first, public) = messages
    for party, message in messages:
        with pytest.raises(RejectedSubmission, match="altered on the way"):
            wire.send(party, in_round(message, 2))
    for server in wire.servers:
        server.abandon_round()
    begin_round(wire.servers, 3)
    wire.send(second, tagged(plan, in_round(commitment, 3)))  # by the client itself
    with pytest.raises(RejectedSubmission, match="does not fit the client's commitment"):
        wire.send(first, tagged(plan, in_round(public, 3)))


@pytest.mark.parametrize("plan", [ON, OFF], ids=["verified", "semi-honest"])
def test_without_the_commitment_an_old_report_spoils_the_sum_unless_trees_are_verified(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignore_commitments(monkeypatch)
    ignore_digests(monkeypatch)
    wire, _, messages = recorded(plan)
    for party, message in messages:
        wire.send(party, tagged(plan, in_round(message, 2)))
    fresh = of(plan, 4, 7, round_number=2)
    deliver(wire, fresh)
    opened = finish_round(wire.servers)
    if plan is ON:
        assert opened.clients == (4,)
        assert np.array_equal(sums(opened), carried_by(fresh))
    else:
        assert opened.clients == (VICTIM, 4)
        assert noisy_rows(sums(opened)) >= 7, "its keys are bound to round 1: noise"


def test_a_report_of_another_session_is_refused_as_it_is_and_under_a_new_header() -> None:
    other = dataclasses.replace(ON, session="1" * 32)
    wire = Wire(servers_of(other))
    begin_round(wire.servers, 1)
    (second, commitment), (first, public) = of(ON, VICTIM).messages()
    with pytest.raises(DecodeError, match="another plan"):
        wire.send(first, public)
    for party, message in ((second, commitment), (first, public)):
        with pytest.raises(RejectedSubmission, match="altered on the way"):
            wire.send(party, message[:32] + other.digest + message[64:])


@pytest.mark.parametrize("plan", [ON, OFF], ids=["verified", "semi-honest"])
def test_other_servers_of_one_plan_take_a_whole_report_as_the_pages_say(plan: Plan) -> None:
    """In one process nothing tells them apart; the service gives each task a session."""
    report, taken = of(plan, VICTIM), []
    for _ in range(2):
        wire = Wire(servers_of(plan))
        begin_round(wire.servers, 1)
        deliver(wire, report)
        taken.append(finish_round(wire.servers))
    assert all(np.array_equal(sums(opened), carried_by(report)) for opened in taken)
    for page, lines in (("docs/api.md", 12), ("docs/fsl.md", 12)):
        first = "\n".join((ROOT / page).read_text().splitlines()[:lines])
        assert "a plan stands for one task: one pair of servers" in first


def test_security_says_that_a_shard_sees_the_shares_of_one_server() -> None:
    (row,) = (r for r in (ROOT / "SECURITY.md").read_text().splitlines() if "| a shard of" in r)
    assert "that server's shares" in row
    named = re.findall(r"`(\S+\.py)`", row)
    assert named
    assert all((ROOT / "tests" / name).exists() for name in named)


def test_old_trees_of_a_retrieval_are_refused_before_any_answer() -> None:
    plan = make_plan(make_segment("t", "rows", (20, 2), k_max=3, tau=2, theta=5, retrieve=True))
    wire = Wire(servers_of(plan))
    begin_round(wire.servers, 1)
    update = random_update(plan, np.random.default_rng(0), rows=2)
    submit(wire, VICTIM, 1, update)
    old = [e for e in wire.events if e.kind in (Kind.TREES, Kind.TREES_COMMIT)]
    finish_round(wire.servers)
    begin_round(wire.servers, 2)
    for event in old:
        with pytest.raises(RejectedSubmission, match="round 1"):
            wire.servers[event.party].receive(event.data)
    commit, public = sorted(old, key=lambda event: event.kind, reverse=True)
    for event in (commit, public):
        with pytest.raises(RejectedSubmission, match="altered on the way"):
            wire.send(event.party, in_round(event.data, 2))
    with pytest.raises(RejectedSubmission, match="no accepted trees"):
        wire.servers[commit.party].reply(Kind.ANSWER, 2, VICTIM)


# --- trees and hints elsewhere --------------------------------------------------------------------


@pytest.mark.parametrize("plan", [ON, OFF], ids=["verified", "semi-honest"])
def test_a_clients_own_trees_of_another_round_or_client_or_nonce_are_no_trees(plan: Plan) -> None:
    """The client recomputes every hash; its old correction words fit none of the new keys."""
    for change in ("round", "client", "nonce"):
        old = of(plan, ATTACKER, 5, round_number=0 if change == "round" else 1)
        old.client = 7 if change == "client" else ATTACKER
        report = dataclasses.replace(old, client=ATTACKER, round_number=1)
        if change == "client":
            forged = forge(plan, 7, 1, np.random.default_rng(5), seeds=old.seeds)
            report.nonce, report.trees, report.hints = forged.nonce, forged.trees, forged.hints
        if change == "nonce":
            report.nonce = bytes(16)
        fit_check_words(report)
        opened, honest = attacked_round(plan, report)
        if plan is ON:
            assert ATTACKER not in opened.clients
            assert np.array_equal(sums(opened), honest)
        else:
            assert noisy_rows(sums(opened) - honest) >= 7, change


def test_trees_of_one_segment_are_no_trees_for_another_of_equal_shape() -> None:
    for secure in (True, False):
        plan = make_plan(
            make_segment("a", "scalars", (8,), k_max=1, theta=8, secure=secure),
            make_segment("b", "scalars", (8,), k_max=1, theta=8, secure=secure),
        )
        wire = Wire(servers_of(plan))
        begin_round(wire.servers, 1)
        submit(wire, 4, 1, random_update(plan, np.random.default_rng(1)))
        segment = plan.segments[0]

        def swapped(event: object, size: int = segment.tree_bytes) -> bytes:
            data = bytearray(event.data)  # type: ignore[attr-defined]
            start = HEADER_BYTES + 32
            if event.kind is Kind.REPORT_RELAY:  # type: ignore[attr-defined]
                first, second = data[start : start + size], data[start + size : start + 2 * size]
                data[start : start + 2 * size] = second + first
            return bytes(data)

        spy = Wire(wire.servers, swapped)
        with pytest.raises(RejectedSubmission, match="does not fit the client's commitment"):
            submit(spy, VICTIM, 1, random_update(plan, np.random.default_rng(2), rows=1))
        assert finish_round(wire.servers).clients == (4,)


@pytest.mark.parametrize("checked", [True, False])
def test_hints_that_change_bins_are_refused_by_the_commitment(
    checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All three move on: of 24 leaves none uses its hint by chance once in 2**24 runs."""
    if not checked:
        ignore_commitments(monkeypatch)
    report = of(ON, VICTIM)
    start = HEADER_BYTES + 32 + ON.segments[0].tree_bytes

    def move(event: object) -> bytes:
        data = bytearray(event.data)  # type: ignore[attr-defined]
        if event.kind is Kind.REPORT_RELAY and data[16] == VICTIM:  # type: ignore[attr-defined]
            data[start : start + 12] = data[start + 4 : start + 12] + data[start : start + 4]
        return bytes(data)

    other = of(ON, 5, 9)
    opened = round_of(ON, [report, other], Wire(servers_of(ON), move))
    if checked:
        assert opened.clients == (5,)
        assert np.array_equal(sums(opened), carried_by(other))
    else:
        assert VICTIM in opened.clients
        assert np.max(np.abs(sums(opened))) > LIMIT


def test_a_round_number_is_used_once_even_after_an_abandoned_round() -> None:
    servers = servers_of(ON)
    begin_round(servers, 5)
    for server in servers:
        server.abandon_round()
    for number in (5, 4):
        with pytest.raises(ProtocolError, match="and the last one was"):
            begin_round(servers, number)
    begin_round(servers, 6)
