"""Reports at a server: replays, resends, strays, dropouts and commitments.

A report counts exactly as its client meant it or not at all, and harms no other.
"""

from __future__ import annotations

import pytest

from tests.support.errors import raises
from tests.support.federation import (
    CLIENT_KINDS,
    HEADER,
    Event,
    Wire,
    assert_exact,
    deliver,
    dense_plan,
    kind_of,
    make_plan,
    make_segment,
    make_servers,
    messages_of,
    mixed_plan,
    opened_servers,
    play_round,
    submit,
    update_of,
)
from tests.support.reference import plaintext
from tests.support.tags import tagged
from torchfsl.errors import DecodeError, ProtocolError, RejectedSubmission
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.round import begin_round, finish_round

HONEST, VICTIM = 1001, 4
MIXED = mixed_plan()
OPEN = {
    "mixed": MIXED, "semi-honest": mixed_plan(secure=False), "weight": mixed_plan(lane="weight"),
    "dense": dense_plan(),
    "late trees": make_plan(make_segment("s", "scalars", (9,), k_max=2, theta=3)),
}  # fmt: skip


@pytest.mark.parametrize("name", list(OPEN))
def test_resending_identical_bytes_changes_nothing(name: str) -> None:
    plan = OPEN[name]
    servers = opened_servers(plan)
    updates = [update_of(plan, seed) for seed in (0, 1)]
    for client_id, update in ((VICTIM, updates[0]), (HONEST, updates[1])):
        wire = Wire(servers)
        sent = messages_of(plan, client_id, update)
        for party, message in sent:
            wire.send(party, message)
            wire.send(party, message)
        relays = [event for event in wire.events if event.is_relay]
        for party, message in sent:
            assert servers[party].receive(message) is None
        for event in relays:
            assert servers[event.party].receive(event.data) is None
    opened = finish_round(servers)
    assert_exact(plan, opened, [plaintext.Contribution(update) for update in updates])


@pytest.mark.parametrize("name", list(OPEN))
def test_a_second_different_report_puts_the_client_out_of_the_round(name: str) -> None:
    plan = OPEN[name]
    first = messages_of(plan, VICTIM, update_of(plan, 0))
    second = messages_of(plan, VICTIM, update_of(plan, 0))
    for party, message in second:
        servers = opened_servers(plan)
        good = update_of(plan, 2)
        submit(Wire(servers), HONEST, 1, good)
        deliver(servers, first)
        with pytest.raises(RejectedSubmission, match=f"client {VICTIM}"):
            servers[party].receive(message)
        with raises(RejectedSubmission, "client-rejected"):
            servers[party].receive(dict(first)[party])
        opened = finish_round(servers)
        assert opened.clients == (HONEST,)
        assert_exact(plan, opened, [plaintext.Contribution(good)])


def test_reports_and_trees_of_two_starts_do_not_mix() -> None:
    """Trees of one start and the report of another: other nonce, other master seed."""
    one, two = (messages_of(MIXED, VICTIM, update_of(MIXED, 0)) for _ in range(2))
    servers = opened_servers(MIXED)
    deliver(servers, one[:2])
    for party, message in two[2:]:
        with pytest.raises(RejectedSubmission, match="not those of its trees"):
            servers[party].receive(message)


def test_trees_after_the_report_are_refused() -> None:
    sent = messages_of(MIXED, VICTIM, update_of(MIXED, 0))
    servers = opened_servers(MIXED)
    for party, message in sent[2:]:
        servers[party].receive(message)
    for party, message in sent[:2]:
        with pytest.raises(
            RejectedSubmission,
            match=r"trees after the report of the same round. This client .* next round",
        ):
            servers[party].receive(message)


@pytest.mark.parametrize("name", list(OPEN))
def test_messages_of_another_round_server_or_plan_are_refused_and_harm_nobody(name: str) -> None:
    plan = OPEN[name]
    servers = make_servers(plan)
    update = update_of(plan, 0)
    play_round(servers, 1, {VICTIM: update})
    old = messages_of(plan, VICTIM, update, round_number=1)
    future = messages_of(plan, VICTIM, update, round_number=3)
    other_plan = make_plan(make_segment("other", "dense", (5,)))
    foreign = messages_of(other_plan, VICTIM, update_of(other_plan, 0), round_number=2)
    begin_round(servers, 2)
    for party, message in [*old, *future]:
        with raises(RejectedSubmission, "wrong-round"):
            servers[party].receive(message)
    for party, message in foreign:
        with pytest.raises(DecodeError, match=r"another plan|body of"):
            servers[party].receive(message)
    current = messages_of(plan, VICTIM, update, round_number=2)
    for party, message in current:
        with raises(RejectedSubmission, "another-recipient"):
            servers[1 - party].receive(message)
    deliver(servers, current)
    opened = finish_round(servers)
    assert_exact(plan, opened, [plaintext.Contribution(update)])


def relabel(message: bytes, *, round_number: int | None = None, client: int | None = None) -> bytes:
    data = bytearray(message)
    if round_number is not None:
        data[8:16] = round_number.to_bytes(8, "little")
    if client is not None:
        data[16:24] = client.to_bytes(8, "little")
    return bytes(data)


@pytest.mark.parametrize("name", list(OPEN))
@pytest.mark.parametrize("change", [{"round_number": 2}, {"client": VICTIM + 2}])
def test_a_recorded_report_under_another_round_or_name_is_worth_nothing(
    name: str, change: dict[str, int]
) -> None:
    plan = OPEN[name]
    update, good = update_of(plan, 0), update_of(plan, 1)
    sent = messages_of(plan, VICTIM, update)
    round_number = change.get("round_number", 1)
    servers = opened_servers(plan, round_number)
    submit(Wire(servers), HONEST, round_number, good)
    refusals = 0
    for party, message in sent:
        try:
            Wire(servers).send(party, relabel(message, **change))
        except RejectedSubmission:
            refusals += 1
    opened = finish_round(servers)
    assert refusals >= 1
    assert opened.clients == (HONEST,)
    assert_exact(plan, opened, [plaintext.Contribution(good)])


def test_a_report_of_another_session_is_refused_by_its_plan() -> None:
    one = mixed_plan()
    two = make_plan(*one.segments, min_clients=2)
    servers = opened_servers(two)
    for party, message in messages_of(one, VICTIM, update_of(one, 0)):
        with raises(DecodeError, "another-plan"):
            servers[party].receive(message)


def test_a_full_round_takes_no_more_clients() -> None:
    plan = make_plan(make_segment("bias", "dense", (5,)), max_clients=2)
    servers = opened_servers(plan)
    updates = [update_of(plan, seed) for seed in range(3)]
    for client_id in (0, 1):
        submit(Wire(servers), client_id, 1, updates[client_id])
    with raises(RejectedSubmission, "round-full"):
        submit(Wire(servers), 2, 1, updates[2])
    opened = finish_round(servers)
    assert_exact(plan, opened, [plaintext.Contribution(update) for update in updates[:2]])


@pytest.mark.parametrize("noise", [b"", b"x", bytes(64), b"TFSL" + bytes(60), bytes(10_000)])
def test_noise_is_a_decode_error_and_changes_nothing(noise: bytes) -> None:
    servers = opened_servers(MIXED)
    for server in servers:
        with pytest.raises(DecodeError):
            server.receive(noise)
    update = update_of(MIXED, 0)
    submit(Wire(servers), VICTIM, 1, update)
    assert_exact(MIXED, finish_round(servers), [plaintext.Contribution(update)])


@pytest.mark.parametrize("kind", CLIENT_KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("client_id", [VICTIM, VICTIM + 1])
def test_a_client_that_is_complete_at_one_server_only_is_dropped_whole(
    kind: Kind, client_id: int
) -> None:
    servers = opened_servers(MIXED)
    good, lost = update_of(MIXED, 0), update_of(MIXED, 1)

    def lose(event: Event) -> bytes | None:
        return None if event.kind is kind else event.data

    submit(Wire(servers), HONEST, 1, good)
    submit(Wire(servers, lose), client_id, 1, lost)
    opened = finish_round(servers)
    assert opened.clients == (HONEST,)
    assert_exact(MIXED, opened, [plaintext.Contribution(good)])


def test_messages_may_arrive_in_any_order_between_the_servers() -> None:
    """The relay may overtake the commitment, and the commitment the public part."""
    for client_id in (VICTIM, VICTIM + 1):
        servers = opened_servers(MIXED)
        update = update_of(MIXED, 0)
        sent = messages_of(MIXED, client_id, update)
        for trees_or_report in (sent[:2], sent[2:]):
            wire = Wire(servers)
            for party, message in reversed(trees_or_report):
                wire.send(party, message)
        assert_exact(MIXED, finish_round(servers), [plaintext.Contribution(update)])


def test_the_second_server_answers_nothing_before_the_commitment_fits() -> None:
    servers = opened_servers(MIXED)
    first, second = VICTIM % 2, 1 - VICTIM % 2
    by_kind = {kind_of(m): m for _, m in messages_of(MIXED, VICTIM, update_of(MIXED, 0))}

    def refused() -> None:
        with raises(RejectedSubmission, "no-accepted-keys"):
            servers[second].reply(Kind.ANSWER, 1, VICTIM)

    refused()
    due = servers[first].receive(by_kind[Kind.TREES])
    assert due == (Kind.TREES_RELAY, VICTIM)
    refused()
    servers[second].receive(servers[first].relay(*due))
    refused()
    servers[second].receive(by_kind[Kind.TREES_COMMIT])
    assert len(servers[second].reply(Kind.ANSWER, 1, VICTIM)) > HEADER


@pytest.mark.parametrize("commit_first", [True, False])
@pytest.mark.parametrize("part", ["nonce", "public"])
def test_after_a_mismatch_the_second_server_answers_nothing_at_all(
    part: str, commit_first: bool
) -> None:
    servers = opened_servers(MIXED)
    first, second = VICTIM % 2, 1 - VICTIM % 2
    by_kind = {kind_of(m): m for _, m in messages_of(MIXED, VICTIM, update_of(MIXED, 0))}
    servers[first].receive(by_kind[Kind.TREES])
    relay = bytearray(servers[first].relay(Kind.TREES_RELAY, VICTIM))
    relay[HEADER + (3 if part == "nonce" else 40)] ^= 4
    both = [by_kind[Kind.TREES_COMMIT], bytes(relay)]
    if not commit_first:
        both.reverse()
    servers[second].receive(both[0])
    with pytest.raises(RejectedSubmission, match="does not fit the client's commitment"):
        servers[second].receive(both[1])
    for _ in range(2):
        with pytest.raises(RejectedSubmission):
            servers[second].reply(Kind.ANSWER, 1, VICTIM)
    with pytest.raises(RejectedSubmission):
        servers[second].receive(by_kind[Kind.REPORT_COMMIT])
    with raises(ProtocolError, "too-few-reports"):
        finish_round(servers)


def test_a_client_that_shows_the_servers_different_public_parts_is_refused() -> None:
    for kind in (Kind.TREES_COMMIT, Kind.REPORT_COMMIT):
        servers = opened_servers(MIXED)
        update = update_of(MIXED, 0)
        sent = messages_of(MIXED, VICTIM, update)
        index = [kind_of(m) for _, m in sent].index(kind)
        party, message = sent[index]
        sent[index] = (party, tagged(MIXED, message[:-1] + bytes([message[-1] ^ 1])))
        with pytest.raises(RejectedSubmission, match="does not fit the client's commitment"):
            deliver(servers, sent)


def test_a_public_part_at_the_wrong_server_is_refused() -> None:
    servers = opened_servers(MIXED)
    for party, message in messages_of(MIXED, VICTIM, update_of(MIXED, 0)):
        moved = bytearray(message)
        moved[7] = 1 - party
        with pytest.raises(RejectedSubmission, match=r"wrong server|rejected"):
            servers[1 - party].receive(bytes(moved))
