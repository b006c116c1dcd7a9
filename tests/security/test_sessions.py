"""U-DPF sessions: exact over many epochs with dropouts, small uploads, one hint an epoch.

Statistical tests here fail by chance with probability below 1e-6; the bound stands beside each.
"""

from __future__ import annotations

import contextlib
import copy
import math

import numpy as np
import pytest

from tests.support.adversary import ignore_commitments, ignore_digests
from tests.support.federation import (
    Wire,
    assert_exact,
    make_plan,
    make_segment,
    make_servers,
    random_update,
)
from tests.support.reference import plaintext
from tests.support.tags import tagged
from torchfsl.crypto import kdf
from torchfsl.errors import Error, ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl import costs
from torchfsl.fsl.client.client import Client, Session
from torchfsl.fsl.messages import HEADER_BYTES, Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.suite import FOLD_BYTES
from torchfsl.kernels import ring
from torchfsl.submodel.aggregation import Receipt
from torchfsl.submodel.update import SegmentUpdate, Update

pytestmark = pytest.mark.usefixtures("sums_as_added")

TABLE = make_segment("table", "rows", (26, 3), k_max=4, tau=3, theta=6, stash=1, retrieve=True)
BIAS = make_segment("bias", "dense", (5,))
PLAN = make_plan(TABLE, BIAS, max_clients=6, max_epochs=8)


def positions(client: int) -> np.ndarray:
    return np.sort(np.random.default_rng(client).choice(26, size=4, replace=False))


def open_session(wire: Wire, client: int, plan: Plan = PLAN) -> Session:
    return Client(plan, wire, client_id=client).open_session(indices={"table": positions(client)})


def update_of(client: int, rng: np.random.Generator) -> Update:
    update = random_update(PLAN, rng)
    update["table"] = SegmentUpdate(positions(client), rng.integers(-99, 99, size=(4, 3)))
    return update


def submit(session: Session, round_number: int, update: Update) -> Receipt:
    return session.start_round(round_number).submit(update)


def contribution(update: Update, receipt: Receipt) -> plaintext.Contribution:
    unmatched = {name: rows.tolist() for name, rows in receipt.unmatched.items()}
    return plaintext.Contribution(update, 1, unmatched)


def one_session() -> tuple[tuple[Server, Server], Wire, Session]:
    servers = make_servers(PLAN)
    wire = Wire(servers)
    return servers, wire, open_session(wire, 0)


# --- exactness -----------------------------------------------------------------------------------


def test_fifty_epochs_with_dropouts_open_the_exact_sums() -> None:
    """A client is absent, or drops out after its upload of trees, or after its retrieval."""
    rng = np.random.default_rng(0)
    servers = make_servers(PLAN)
    wire = Wire(servers)
    sessions = {client: open_session(wire, client) for client in range(6)}
    opened_rounds = 0
    for epoch in range(1, 51):
        begin_round(servers, epoch)
        contributions = []
        for client, session in sessions.items():
            fate = rng.choice(["absent", "starts", "retrieves", "submits"], p=[0.2, 0.1, 0.1, 0.6])
            if fate == "absent":
                continue
            session_round = session.start_round(epoch)
            if fate == "starts":
                continue
            _, rows = session_round.retrieve()["table"]
            state = servers[0].model.state["table.0"]
            assert rows.tobytes() == state[positions(client)].tobytes()
            if fate == "submits":
                update = update_of(client, rng)
                receipt = session_round.submit(update)
                contributions.append(contribution(update, receipt))
        if contributions:
            assert_exact(PLAN, finish_round(servers), contributions)
            opened_rounds += 1
        else:
            with pytest.raises(ProtocolError, match="acceptable reports: 0"):
                finish_round(servers)
        assert servers[0].model.digest() == servers[1].model.digest()
    assert opened_rounds > 40


def test_a_session_survives_an_abandoned_round_and_a_lost_report() -> None:
    """Trees that arrived are kept, or no client could speak until it re-keys."""
    servers, wire, session = one_session()
    begin_round(servers, 1)
    session.start_round(1)  # the report never comes
    with pytest.raises(ProtocolError):
        finish_round(servers)
    rng = np.random.default_rng(1)
    for epoch in (2, 3):
        begin_round(servers, epoch)
        update = update_of(0, rng)
        receipt = submit(session, epoch, update)
        assert_exact(PLAN, finish_round(servers), [contribution(update, receipt)])
    assert sum(event.kind is Kind.TREES for event in wire.events) == 1


def test_an_upload_that_fails_is_made_again_with_fresh_secrets() -> None:
    servers = make_servers(PLAN)
    broken = Wire(servers, lambda event: event.data)
    session = open_session(broken, 0)
    begin_round(servers, 1)

    def fail(event: object) -> bytes:
        raise ConnectionError

    broken.alter = fail
    with pytest.raises(ConnectionError):
        session.start_round(1)
    broken.alter = lambda event: event.data
    for server in servers:
        server.abandon_round()
    begin_round(servers, 2)
    update = update_of(0, np.random.default_rng(2))
    receipt = submit(session, 2, update)
    assert_exact(PLAN, finish_round(servers), [contribution(update, receipt)])
    first, second = [event for event in broken.events if event.kind is Kind.TREES_COMMIT]
    assert first.data[HEADER_BYTES:] != second.data[HEADER_BYTES:]


# --- upload --------------------------------------------------------------------------------------


def test_later_epochs_upload_one_value_a_tree_and_a_constant() -> None:
    """(bins + stash) tau l bits of hints, the dense values, and 288 bytes of frames and heads."""
    servers, _, session = one_session()
    rng = np.random.default_rng(3)
    sizes = []
    for epoch in range(1, 6):
        begin_round(servers, epoch)
        sizes.append(submit(session, epoch, update_of(0, rng)).upload_bytes)
        finish_round(servers)
    hints = (TABLE.num_bins + TABLE.stash) * TABLE.tau * 32 // 8
    assert TABLE.nu == 0
    constant = 2 * HEADER_BYTES + 2 * 4 * 16 + 32
    assert set(sizes[1:]) == {hints + 4 * BIAS.m + constant}
    assert sizes[1] == costs.client_bytes(PLAN, first_round=False)
    assert sizes[0] == sizes[1] + 2 * HEADER_BYTES + 6 * 16 + 32 + TABLE.tree_bytes
    assert sizes[0] == costs.client_bytes(PLAN)


def test_retrieval_in_later_epochs_uploads_no_bytes_at_all() -> None:
    servers, wire, session = one_session()
    for epoch in (1, 2, 3):
        begin_round(servers, epoch)
        before = len(wire.events)
        session_round = session.start_round(epoch)
        session_round.retrieve()
        sent = sum(len(e.data) for e in wire.events[before:] if not e.is_reply)
        assert (sent == 0) == (epoch > 1)
        session_round.submit(update_of(0, np.random.default_rng(epoch)))
        finish_round(servers)


def test_retrieval_after_aggregation_over_twenty_rounds_returns_exactly_the_updated_rows() -> None:
    rng = np.random.default_rng(4)
    servers = make_servers(PLAN)
    wire = Wire(servers)
    sessions = {client: open_session(wire, client) for client in range(3)}
    table = servers[0].model.state["table.0"].copy()
    changed = 0
    for epoch in range(1, 21):
        begin_round(servers, epoch)
        contributions = []
        for client, session in sessions.items():
            session_round = session.start_round(epoch)
            indices, rows = session_round.retrieve()["table"]
            assert np.array_equal(indices, positions(client))
            assert rows.tobytes() == table[positions(client)].tobytes()
            update = update_of(client, rng)
            contributions.append(contribution(update, session_round.submit(update)))
        finish_round(servers)
        total = plaintext.sums(PLAN, contributions)["table"]
        mean = np.ldexp(total.astype(np.float64), -16) / 3
        new = (table.astype(np.float64) + mean).astype(np.float32)
        changed += int(np.any(new != table))
        table = new
    assert changed == 20


# --- keys ----------------------------------------------------------------------------------------


def test_a_session_re_keys_after_max_epochs() -> None:
    servers, wire, session = one_session()
    uploads, seeds = [], set()
    for epoch in range(1, 2 * PLAN.max_epochs + 2):
        begin_round(servers, epoch)
        before = len(wire.events)
        submit(session, epoch, update_of(0, np.random.default_rng(epoch)))
        new = [event for event in wire.events[before:] if event.kind is Kind.TREES]
        uploads += [epoch] * len(new)
        seeds |= {event.data[HEADER_BYTES : HEADER_BYTES + 32] for event in new}
        finish_round(servers)
    assert uploads == [1, PLAN.max_epochs + 1, 2 * PLAN.max_epochs + 1]
    assert len(seeds) == 3, "fresh nonce and master seed"


def test_servers_forget_trees_after_max_epochs() -> None:
    servers, _, session = one_session()
    for epoch in range(1, PLAN.max_epochs + 1):
        begin_round(servers, epoch)
        submit(session, epoch, update_of(0, np.random.default_rng(epoch)))
        finish_round(servers)
    begin_round(servers, 99)
    for server in servers:
        assert not server.reports.sessions
        with pytest.raises(RejectedSubmission, match="no accepted trees"):
            server.reply(Kind.ANSWER, 99, 0)


def test_trees_are_verified_once_and_a_forged_tree_never_enters_a_session() -> None:
    servers = make_servers(PLAN)

    def alter(event: object) -> bytes:
        data = bytearray(event.data)  # type: ignore[attr-defined]
        if event.kind is Kind.TREES and data[16] == 0:  # type: ignore[attr-defined]
            data[HEADER_BYTES + 32 + 16 * TABLE.num_trees] ^= 0x10
        return bytes(data)

    monkeypatch = pytest.MonkeyPatch()
    with monkeypatch.context() as patch:
        ignore_commitments(patch)
        ignore_digests(patch)
        wire = Wire(servers, alter)
        sessions = {client: open_session(wire, client) for client in (0, 1)}
        rng = np.random.default_rng(5)
        for epoch in (1, 2):
            begin_round(servers, epoch)
            for client, session in sessions.items():
                try:
                    submit(session, epoch, update_of(client, rng))
                except Error:
                    assert client == 0
            assert finish_round(servers).clients == (1,)
            assert set(servers[0].reports.sessions) == {1}


def test_trees_that_fail_the_check_are_forgotten_even_if_they_came_in_an_earlier_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers, _, session = one_session()
    begin_round(servers, 1)
    session.start_round(1)  # the report never comes, the trees are kept unverified
    for server in servers:
        server.abandon_round()
        assert set(server.reports.sessions) == {0}
    begin_round(servers, 2)
    submit(session, 2, update_of(0, np.random.default_rng(0)))
    monkeypatch.setattr(kdf, "digests_equal", lambda a, b: len(a) != FOLD_BYTES)
    with pytest.raises(ProtocolError, match="acceptable reports: 0"):
        finish_round(servers)
    assert not servers[0].reports.sessions  # server 1 came to no verdict any more


# --- attack 9: one hint an epoch -----------------------------------------------------------------


def test_a_restored_client_gets_no_second_hint_accepted_for_an_epoch() -> None:
    servers, wire, session = one_session()
    other = open_session(wire, 1)
    rng = np.random.default_rng(6)
    begin_round(servers, 1)
    submit(session, 1, update_of(0, rng))
    submit(other, 1, update_of(1, rng))
    finish_round(servers)
    snapshot = copy.copy(session)  # the copy is another process, with the same servers
    snapshot._trees = copy.deepcopy(session._trees)
    begin_round(servers, 2)
    submit(session, 2, update_of(0, rng))
    with pytest.raises(RejectedSubmission, match=r"second, different|was rejected"):
        submit(snapshot, 2, update_of(0, rng))
    update = update_of(1, rng)
    receipt = submit(other, 2, update)
    assert_exact(PLAN, finish_round(servers), [contribution(update, receipt)])
    begin_round(servers, 3)
    with pytest.raises(RejectedSubmission, match="round 2"):
        submit(snapshot, 2, update_of(0, rng))


class DeafWire(Wire):
    """Loses refusals, so that a client also sends what would stop at the first one."""

    def __init__(self, servers: tuple[Server, Server]) -> None:
        super().__init__(servers)
        self.reports: list[bytes] = []

    def send(self, party: int, message: bytes) -> None:
        if message[6] == Kind.REPORT:
            self.reports.append(message)
        with contextlib.suppress(RejectedSubmission):
            super().send(party, message)

    def hints(self) -> list[np.ndarray]:
        """The hints of all reports so far, `[trees tau, 4]` each."""
        start, size = HEADER_BYTES + 64, PLAN.hint_bytes(TABLE)
        return [
            np.frombuffer(m, np.uint8)[start : start + size].reshape(-1, 4) for m in self.reports
        ]


@pytest.mark.parametrize("inside_round", [False, True])
def test_two_hints_of_a_client_and_its_restored_copy_differ_by_uniform_noise(
    inside_round: bool,
) -> None:
    """The copy is made before the round or inside it; both carry the same values."""
    servers = make_servers(PLAN)
    wire = DeafWire(servers)
    session = open_session(wire, 0)
    update = update_of(0, np.random.default_rng(1))
    differences, nonces = [], set()
    for epoch in range(1, 101):
        session._epochs = min(session._epochs, 1)  # the same trees throughout
        begin_round(servers, epoch)
        first = session.start_round(epoch)
        second = copy.copy(first) if inside_round else copy.copy(session).start_round(epoch)
        wire.reports.clear()
        for session_round in (first, second):
            session_round.submit(update)
        nonces |= {report[HEADER_BYTES + 32 : HEADER_BYTES + 48] for report in wire.reports}
        differences.append(ring.sub(*wire.hints()))
        for server in servers:
            server.abandon_round()
    assert sum(event.kind is Kind.TREES for event in wire.events) == 1
    assert len(nonces) == 200
    assert_uniform(np.array(differences))


def assert_uniform(data: np.ndarray) -> None:
    """Bits are fair and bytes uniform; a uniform sample fails with probability below 2e-7."""
    bits = np.unpackbits(data.reshape(-1))
    deviation = abs(int(bits.sum()) - bits.size / 2) / math.sqrt(bits.size / 4)
    assert deviation < 5.5  # both tails of the normal distribution: 4e-8
    counts = np.bincount(data.reshape(-1), minlength=256)
    expected = data.size / 256
    assert expected > 20
    chi = float(((counts - expected) ** 2 / expected).sum())
    x = math.log(1e7)
    assert chi < 255 + 2 * math.sqrt(255 * x) + 2 * x  # Laurent, Massart 2000, lemma 1: 1e-7


def test_under_one_nonce_two_hints_would_differ_by_the_difference_of_the_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The attack that fresh nonces prevent: unchanged rows cancel, a changed one shows."""
    servers = make_servers(PLAN)
    wire = DeafWire(servers)
    session = open_session(wire, 0)
    begin_round(servers, 1)
    first = session.start_round(1)
    monkeypatch.setattr("torchfsl.fsl.client.report.random_bytes", bytes)
    second = copy.copy(first)
    updates = [update_of(0, np.random.default_rng(7)) for _ in range(2)]
    updates[1]["table"].values[2] += 5
    for session_round, update in zip((first, second), updates, strict=True):
        session_round.submit(update)
    difference = ring.to_int64(ring.sub(*wire.hints()))
    assert np.count_nonzero(difference) == TABLE.tau
    assert set(np.abs(difference).tolist()) == {0, 5}


def test_trees_sent_with_a_report_by_a_copy_made_inside_the_round_share_nothing() -> None:
    """One-shot trees are bound to the report's nonce: one root never grows two trees."""
    plan = make_plan(make_segment("s", "scalars", (24,), k_max=2, theta=8), BIAS)
    servers = make_servers(plan)
    wire = DeafWire(servers)
    begin_round(servers, 1)
    first = Client(plan, wire, client_id=0).start_round(1)
    second = copy.copy(first)
    second._trees = copy.deepcopy(first._trees)
    update = random_update(plan, np.random.default_rng(0), rows=2)
    for session_round in (first, second):
        session_round.submit(update)
    start = HEADER_BYTES + 64
    words = [
        np.frombuffer(r[start : start + plan.segments[0].tree_bytes], np.uint8)
        for r in wire.reports
    ]
    assert np.mean(words[0] == words[1]) < 0.05  # 1 of 256; 700 bytes reach 5 % with 1e-20


def test_a_server_cannot_replay_a_hint_in_a_later_epoch_or_under_another_nonce() -> None:
    servers, wire, session = one_session()
    rng = np.random.default_rng(8)
    begin_round(servers, 1)
    submit(session, 1, update_of(0, rng))
    finish_round(servers)
    old = {e.kind: e for e in wire.events if not e.is_reply}
    commit, public = old[Kind.REPORT_COMMIT], old[Kind.REPORT]
    begin_round(servers, 2)
    for event in (commit, public):
        with pytest.raises(RejectedSubmission, match="round 1"):
            servers[event.party].receive(event.data)
    later = [e.data[:8] + (2).to_bytes(8, "little") + e.data[16:] for e in (commit, public)]
    for event, message in zip((commit, public), later, strict=True):
        with pytest.raises(RejectedSubmission, match="altered on the way"):
            wire.send(event.party, message)

    def other_nonce(event: object) -> bytes:
        data = bytearray(event.data)  # type: ignore[attr-defined]
        if event.kind is Kind.REPORT_RELAY:  # type: ignore[attr-defined]
            data[HEADER_BYTES + 16] ^= 1
        return bytes(data)

    for server in servers:
        server.abandon_round()
    begin_round(servers, 3)
    session._client.servers = Wire(servers, other_nonce)
    with pytest.raises(RejectedSubmission, match="does not fit the client's commitment"):
        submit(session, 3, update_of(0, rng))


def test_without_the_commitment_a_replayed_hint_is_noise_not_the_old_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys of hints are bound to the epoch as well."""
    ignore_commitments(monkeypatch)
    ignore_digests(monkeypatch)
    servers, wire, session = one_session()
    begin_round(servers, 1)
    update = update_of(0, np.random.default_rng(9))
    submit(session, 1, update)
    first = finish_round(servers)
    messages_sent = [e for e in wire.events if e.kind in (Kind.REPORT_COMMIT, Kind.REPORT)]
    begin_round(servers, 2)
    for event in messages_sent:
        later = event.data[:8] + (2).to_bytes(8, "little") + event.data[16:]
        wire.send(event.party, tagged(PLAN, later, opening_round=1))
    second = finish_round(servers)
    assert second.clients == (0,)
    rows = positions(0)
    assert np.all(np.abs(second.sums["table"][rows]).max(axis=1) > 10**5)
    assert not np.any(second.sums["table"][rows] == first.sums["table"][rows])


def test_dense_masks_differ_by_epoch() -> None:
    """One mask for two epochs would show the difference of the dense values."""
    servers, wire, session = one_session()
    update = update_of(0, np.random.default_rng(10))
    masked = []
    for epoch in range(1, 6):
        begin_round(servers, epoch)
        before = len(wire.events)
        submit(session, epoch, update)
        (sent,) = [e.data for e in wire.events[before:] if e.kind is Kind.REPORT]
        masked.append(sent[-4 * BIAS.m :])
        opened = finish_round(servers)
        assert np.array_equal(opened.sums["bias"], update["bias"].values)
    values = np.array([np.frombuffer(m, "<u4") for m in masked])
    for column in values.T:
        assert len(set(column.tolist())) == 5  # two equal words: 5 * 10 / 2**32, about 1e-8


def test_wrong_positions_look_like_right_ones_in_every_round_of_a_session() -> None:
    """Trees go up once, as dummies, and every round has a report; or the servers could tell."""
    shapes = []
    for rows in (positions(0), np.arange(TABLE.k_max + 1)):
        wire = Wire(make_servers(PLAN))
        session = Client(PLAN, wire, client_id=0).open_session(indices={"table": rows})
        for epoch in (1, 2, 3):
            begin_round(wire.servers, epoch)
            if len(rows) > TABLE.k_max:
                with pytest.raises(ParameterError, match="k_max"):
                    session.start_round(epoch)
            else:
                with session.start_round(epoch) as taking:
                    taking.download()
                    if PLAN.retrieving:
                        taking.retrieve()
                    taking.abort()
            assert finish_round(wire.servers).clients == (0,)
        shapes.append([(e.party, e.kind, len(e.data)) for e in wire.events])
    assert shapes[0] == shapes[1]
