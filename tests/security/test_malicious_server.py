"""Attacks 10, 13, 14 and 17: what one malicious server tries, with each defence off and on.

Server 0 is malicious here. Clients of even number send it their public part, which it relays.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from scripts.attacks.forged_reports import Forgery, forge
from scripts.attacks.forged_reports import make_plan as one_segment
from tests.support.adversary import (
    LIMIT,
    View,
    altering,
    carried_by,
    deliver,
    ignore_commitments,
    place_of_hint,
    place_of_word,
    round_of,
    rows_of_bins,
    servers_of,
    sums,
)
from tests.support.federation import Wire
from torchfsl.crypto import kdf
from torchfsl.errors import ProtocolError, RejectedSubmission
from torchfsl.fsl import messages
from torchfsl.fsl.bodies import ShareBody, ShareCommit
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.server.states import RoundState
from torchfsl.kernels import ring

pytestmark = pytest.mark.usefixtures("sums_as_added")

VICTIM = 2
ON = one_segment(8, 8, 0, 0)
SEMI_HONEST = one_segment(8, 8, 0, 0, verified=False)


def victim(plan: Plan, seed: int) -> Forgery:
    """An honest client; the test knows its positions, the server does not."""
    return forge(plan, VICTIM, 1, np.random.default_rng(seed))


def soiled(plan: Plan, total: Any, tree: int) -> Any:
    """Positions of a bin at which the opened sum is beyond anything honest."""
    return np.abs(total[rows_of_bins(plan)[tree]]) > LIMIT


# --- 10. the public part altered on its way to the other server -----------------------------------


def read_prefix(plan: Plan, client: Forgery, tree: int, level: int) -> int:
    """The first `level` bits of alpha, by a flipped bit in the correction word of that level.

    Levels count from 0. The sum is soiled below the nodes at which the other server's control bit
    is 1, which equals the attacker's own bit at every node but the one on the path.
    """
    place = place_of_word(plan, level, tree) + 9
    wire = Wire(servers_of(plan), altering(Kind.REPORT_RELAY, VICTIM, place))
    other = forge(plan, VICTIM + 1, 1, np.random.default_rng(99))
    opened = round_of(plan, [client, other], wire)
    below = soiled(plan, sums(opened), tree).reshape(1 << level, -1).any(axis=1)
    (on_path,) = np.flatnonzero(below != View.of(wire, 0, VICTIM).node_bits(tree, level))
    return int(on_path)


def read_from_hint(plan: Plan, client: Forgery, tree: int) -> int:
    """Flip a bit in a hint: all of alpha, from the leaves that are soiled."""
    alter = altering(Kind.REPORT_RELAY, VICTIM, place_of_hint(plan, tree) + 3)
    wire = Wire(servers_of(plan), alter)
    other = forge(plan, VICTIM + 1, 1, np.random.default_rng(99))
    opened = round_of(plan, [client, other], wire)
    bits = View.of(wire, 0, VICTIM).node_bits(tree, 3)
    (on_path,) = np.flatnonzero(soiled(plan, sums(opened), tree) != bits)
    return int(on_path)


def test_without_the_commitment_flipped_words_read_the_position_bit_by_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ignore_commitments(monkeypatch)
    for seed in range(4):
        client = victim(SEMI_HONEST, seed)
        for tree in range(3):
            alpha = int(client.alpha[tree])
            prefixes = [read_prefix(SEMI_HONEST, client, tree, level) for level in (1, 2)]
            assert prefixes == [alpha >> 2, alpha >> 1]
            assert read_from_hint(SEMI_HONEST, client, tree) == alpha


def test_with_the_check_alone_acceptance_still_shows_a_bit_of_the_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A word of the second level matters only below nodes where the other server's bit is 1."""
    ignore_commitments(monkeypatch)
    read = 0
    for seed in range(24):
        client = victim(ON, seed)
        alter = altering(Kind.REPORT_RELAY, VICTIM, place_of_word(ON, 1, 0) + 9)
        wire = Wire(servers_of(ON), alter)
        opened = round_of(ON, [client, forge(ON, VICTIM + 1, 1, np.random.default_rng(1))], wire)
        own = View.of(wire, 0, VICTIM).node_bits(0, 1).tolist()
        if own[0] != own[1]:
            accepted = VICTIM in opened.clients
            in_left_half = accepted == (own == [1, 0])
            assert in_left_half == (int(client.alpha[0]) < 4)
            read += 1
    assert read > 0  # by a fair coin each: by chance none of 24 once in 2**24 runs


@pytest.mark.parametrize("plan", [ON, SEMI_HONEST], ids=["verified", "semi-honest"])
def test_with_the_commitment_every_altered_byte_is_refused_alike_and_shows_nothing(
    plan: Plan,
) -> None:
    report = victim(plan, 0)
    size = messages.HEADER_BYTES + 32 + messages.public_report_bytes(plan)
    honest = forge(plan, VICTIM + 1, 1, np.random.default_rng(1))
    for place in range(messages.HEADER_BYTES, size, 3 if plan is ON else 1):
        wire = Wire(servers_of(plan), altering(Kind.REPORT_RELAY, VICTIM, place))
        begin_round(wire.servers, 1)
        (second, commitment), (first, public) = report.messages()
        wire.send(second, commitment)
        with pytest.raises(RejectedSubmission, match=r"the client's commitment|padding bits"):
            wire.send(first, public)
        if place % 50 == 0:
            deliver(wire, honest)
            opened = finish_round(wire.servers)
            assert opened.clients == (VICTIM + 1,)
            assert np.array_equal(sums(opened), carried_by(honest))


@pytest.mark.parametrize("kind", [Kind.REPORT, Kind.REPORT_COMMIT])
def test_a_server_cannot_send_another_clients_report_in_the_victims_name(kind: Kind) -> None:
    """What the client sent each server binds the other's copy: nonces, seeds, commitment."""
    wire = Wire(servers_of(ON))
    begin_round(wire.servers, 1)
    (second, commitment), (first, public) = victim(ON, 0).messages()
    fake = dict(victim(ON, 1).messages())
    try:
        wire.send(second, fake[second] if kind is Kind.REPORT_COMMIT else commitment)
        wire.send(first, fake[first] if kind is Kind.REPORT else public)
    except RejectedSubmission:
        pass
    deliver(wire, forge(ON, VICTIM + 1, 1, np.random.default_rng(1)))
    assert finish_round(wire.servers).clients == (VICTIM + 1,)


# --- 13. sets that differ, a second opening -------------------------------------------------------


def closed_round(
    plan: Plan, count: int
) -> tuple[tuple[Server, Server], list[bytes], list[Forgery]]:
    wire = Wire(servers_of(plan))
    begin_round(wire.servers, 1)
    reports = [forge(plan, c, 1, np.random.default_rng(c)) for c in range(count)]
    for report in reports:
        deliver(wire, report)
    return wire.servers, [server.close_round() for server in wire.servers], reports


def without_client(message: bytes, client: int) -> bytes:
    """A REPORT_SET message that leaves a client out."""
    header, body = message[: messages.HEADER_BYTES], message[messages.HEADER_BYTES :]
    size = messages.SET_ENTRY.size
    entries = [body[i : i + size] for i in range(32, len(body), size)]
    kept = b"".join(e for e in entries if messages.SET_ENTRY.unpack(e)[0] != client)
    length = (32 + len(kept)).to_bytes(8, "little")
    return header[:24] + length + header[32:] + body[:32] + kept


def test_two_openings_over_sets_that_differ_by_one_client_would_be_its_update() -> None:
    """The attack, on servers made to compute shares as often as asked."""
    plan = SEMI_HONEST
    servers, _, reports = closed_round(plan, 3)
    totals = []
    for clients in ((0, 1, 2), (0, 2)):
        shares = []
        for server in servers:
            held = server.reports.complete()
            data = server._evaluator.share([held[c] for c in clients])
            shares.append(np.frombuffer(data, np.uint8).reshape(-1, 4))
        totals.append(ring.to_int64(ring.add(*shares)))
    assert np.array_equal(totals[0] - totals[1], carried_by(reports[1]))


def test_a_server_opens_over_one_set_once() -> None:
    servers, lists, _ = closed_round(SEMI_HONEST, 3)
    honest, peer = servers[1], servers[0]
    verdicts = honest.agree(lists[0])
    for again in (lists[0], without_client(lists[0], 1)):
        with pytest.raises(ProtocolError, match="needs a round that is closed"):
            honest.agree(again)
    honest.verify(peer.agree(lists[1]))
    peer.verify(verdicts)
    honest.commit()
    with pytest.raises(ProtocolError, match="needs a round that is verified"):
        honest.commit()
    honest.reveal(peer.commit())
    for step in (honest.commit, honest.close_round):
        with pytest.raises(ProtocolError):
            step()
    honest.open(servers[0].reveal(ShareCommit(bytes(32)).message(SEMI_HONEST, 0, 1)))
    with pytest.raises(ProtocolError, match="and the last one was"):
        honest.open_round(1)
    assert honest.reports.complete() == {}


def test_a_dropped_client_is_out_at_both_servers_or_nothing_opens() -> None:
    servers, lists, reports = closed_round(SEMI_HONEST, 3)
    honest, malicious = servers[1], servers[0]
    verdicts = honest.agree(without_client(lists[0], 1))
    malicious_verdicts = malicious.agree(lists[1])  # still counts all three
    with pytest.raises(ProtocolError, match="different sets"):
        honest.verify(malicious_verdicts)
    assert honest.state is RoundState.IDLE
    # A server that also shortens its verdicts opens the smaller set, never the larger one.
    servers, lists, reports = closed_round(SEMI_HONEST, 3)
    shorter = [without_client(message, 1) for message in lists]
    verdicts = [servers[1].agree(shorter[0]), servers[0].agree(shorter[1])]
    assert servers[1].verify(verdicts[1]) == servers[0].verify(verdicts[0]) == (0, 2)
    commits = [server.commit() for server in servers]
    shares = [servers[0].reveal(commits[1]), servers[1].reveal(commits[0])]
    opened = servers[1].open(shares[0])
    assert np.array_equal(sums(opened), carried_by(reports[0]) + carried_by(reports[2]))


def test_a_client_that_only_one_server_names_is_not_counted() -> None:
    servers, lists, _ = closed_round(SEMI_HONEST, 2)
    ghost = messages.SET_ENTRY.pack(7, bytes(32))
    body = lists[0][messages.HEADER_BYTES :] + ghost
    header = lists[0][:24] + len(body).to_bytes(8, "little") + lists[0][32:64]
    assert len(servers[1].agree(header + body)) == messages.HEADER_BYTES + 2 * 16


# --- 14. too few reports -----------------------------------------------------------------------


def test_a_round_of_one_report_opens_that_clients_update_so_min_clients_forbids_it() -> None:
    alone = forge(SEMI_HONEST, 0, 1, np.random.default_rng(0))
    assert np.array_equal(sums(round_of(SEMI_HONEST, [alone])), carried_by(alone))


def test_a_server_that_hides_or_fails_the_others_cannot_open_one_client() -> None:
    """min_clients is enforced after agreement and again after the check."""
    plan = dataclasses.replace(ON, min_clients=2)
    servers, lists, _ = closed_round(plan, 3)
    with pytest.raises(ProtocolError, match="acceptable reports: 1"):
        servers[1].agree(without_client(without_client(lists[0], 0), 1))
    servers, lists, _ = closed_round(plan, 3)
    servers[1].agree(lists[0])
    verdicts = bytearray(servers[0].agree(lists[1]))
    verdicts[-32:] = bytes(32)  # two of three are said to have failed
    with pytest.raises(ProtocolError, match="acceptable reports: 1"):
        servers[1].verify(bytes(verdicts))
    assert servers[1].state is RoundState.IDLE


# --- 17. the share withheld until the other one is seen ------------------------------------------


def rushing_share(servers: tuple[Server, Server], wanted: Any) -> bytes:
    """Server 0 commits to nothing, sees server 1's share and answers with `wanted` minus it."""
    empty = ShareCommit(bytes(32)).message(SEMI_HONEST, 1, 1)
    servers[1].commit()
    seen = servers[1].reveal(empty)[messages.HEADER_BYTES + 32 :]
    share = ring.sub(ring.from_int64(wanted, 32), np.frombuffer(seen, np.uint8).reshape(-1, 4))
    return ShareBody(bytes(32), share.tobytes()).message(SEMI_HONEST, 1, 1)


@pytest.mark.parametrize("compared", [False, True])
def test_a_server_that_sees_the_other_share_first_dictates_the_sum_unless_it_had_to_commit(
    compared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, lists, _ = closed_round(SEMI_HONEST, 2)
    verdicts = servers[1].agree(lists[0]), servers[0].agree(lists[1])
    servers[1].verify(verdicts[1])
    servers[0].verify(verdicts[0])
    wanted = np.arange(8) * 1000
    share = rushing_share(servers, wanted)
    if compared:
        with pytest.raises(ProtocolError, match="does not fit its commitment"):
            servers[1].open(share)
        assert not np.any(servers[1].model.state["values"])
    else:
        monkeypatch.setattr(kdf, "digests_equal", lambda a, b: True)
        assert np.array_equal(sums(servers[1].open(share)), wanted)


def test_no_share_leaves_a_server_before_the_peer_has_committed() -> None:
    servers, lists, _ = closed_round(SEMI_HONEST, 2)
    with pytest.raises(ProtocolError, match="needs a round that is committed"):
        servers[1].reveal(ShareCommit(bytes(32)).message(SEMI_HONEST, 1, 1))
    verdicts = servers[1].agree(lists[0]), servers[0].agree(lists[1])
    servers[1].verify(verdicts[1])
    commitment = servers[1].commit()
    assert servers[1]._opening.share not in commitment
    assert len(commitment) == messages.HEADER_BYTES + 32
