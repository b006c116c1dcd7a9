"""Whoever carries a client's messages to both servers can alter nothing in them."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest

from scripts.attacks import carriers
from tests.security.test_read_seeds import sealed, sealed_servers
from tests.support.federation import (
    Event,
    Wire,
    assert_exact,
    kind_of,
    make_servers,
    mixed_plan,
    random_update,
    submit,
    wanted_rows,
)
from tests.support.reference import plaintext
from tests.support.tags import tagged
from torchfsl.errors import ProtocolError, RejectedSubmission
from torchfsl.fsl import messages
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.dpf.keys import ReportContext, TreeContext
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.uploads import (
    FETCHES,
    UPLOADS,
    ReportBody,
    ReportCommit,
    TreesBody,
    TreesCommit,
)

PAIRS = {
    "early trees": (Kind.TREES, Kind.TREES_COMMIT),
    "report": (Kind.REPORT, Kind.REPORT_COMMIT),
    "fetch": (Kind.FETCH, Kind.FETCH_COMMIT),
}


def altered_to_fit(plan: Plan, data: bytes, other: bytes) -> bytes:
    """The commitment in `data` to the public part of `other`, which was altered."""
    bodies = {**UPLOADS, **FETCHES}
    commit, changed = messages.decode(plan, data, *bodies), messages.decode(plan, other, *bodies)
    body = bodies[commit.kind].decode(plan, commit.body)
    public = bodies[changed.kind].decode(plan, changed.body)
    trees = TreeContext(plan, commit.round_number, commit.client, body.nonce)
    if isinstance(body, ReportCommit):
        assert isinstance(public, ReportBody)
        context = ReportContext(trees, commit.round_number, body.hint_nonce)
        commitment = context.commitment(*public.public)
    else:
        assert isinstance(body, TreesCommit)
        assert isinstance(public, TreesBody)
        fetched = commit.kind is Kind.FETCH_COMMIT
        commitment = (trees.fetch_commitment if fetched else trees.commitment)(*public.public)
    fitting = dataclasses.replace(body, commitment=commitment)
    return fitting.message(plan, commit.party, commit.round_number, commit.client)


class Between(Wire):
    """Alters one byte of a public part and the commitment to fit; `victim`'s alone."""

    def __init__(self, plan: Plan, kinds: tuple[Kind, Kind], place: int) -> None:
        super().__init__(sealed_servers(plan))
        self._plan, self._kinds, self._place = plan, kinds, place
        self._held: tuple[int, bytes] | None = None

    def send(self, party: int, message: bytes) -> None:
        kind = kind_of(message)
        if messages.peek(message).client != carriers.VICTIM or kind not in self._kinds:
            super().send(party, message)
        elif kind is self._kinds[1]:
            self._held = party, message
        else:
            changed = bytearray(message)
            changed[self._place] ^= 1
            assert self._held is not None
            to, commit = self._held
            super().send(to, altered_to_fit(self._plan, commit, bytes(changed)))
            super().send(party, bytes(changed))


def test_the_attack_reads_rows_without_the_tags_and_not_with_them() -> None:
    result = carriers.altered_on_the_way()
    assert result.worked_off
    assert not result.worked_on


def test_of_the_attacked_round_the_others_reports_open_exactly() -> None:
    opened = carriers.attacked_round(on=True)
    assert carriers.VICTIM not in opened.clients
    assert opened.sums["rows"][:, 0].tolist() == [9] * 16
    assert sum(opened.zeroed.values()) == 0


@pytest.mark.parametrize("what", ["early trees", "report"])
def test_a_public_part_altered_with_its_commitment_costs_only_its_client(what: str) -> None:
    plan = sealed(mixed_plan())
    heads = 64 + {"early trees": 32, "report": 48}[what] + 64
    wire = Between(plan, PAIRS[what], heads + 5)
    begin_round(wire.servers, 1)
    updates = {n: random_update(plan, np.random.default_rng(n)) for n in (carriers.VICTIM, 3)}
    with pytest.raises(RejectedSubmission, match="altered on the way"):
        submit(wire, carriers.VICTIM, 1, updates[carriers.VICTIM])
    receipt = submit(wire, 3, 1, updates[3])
    missing = {name: rows.tolist() for name, rows in receipt.unmatched.items()}
    opened = finish_round(wire.servers)
    assert opened.clients == (3,)
    assert_exact(plan, opened, [plaintext.Contribution(updates[3], 1, missing)])


def test_masked_values_altered_at_one_server_cost_only_their_client() -> None:
    plan = sealed(mixed_plan())

    def alter(event: Event) -> bytes:
        last = event.data[-1] ^ (event.kind is Kind.REPORT and event.data[16] == carriers.VICTIM)
        return event.data[:-1] + bytes([last])

    wire = Wire(sealed_servers(plan), alter)
    begin_round(wire.servers, 1)
    updates = {n: random_update(plan, np.random.default_rng(n)) for n in (carriers.VICTIM, 3)}
    with pytest.raises(RejectedSubmission, match="altered on the way"):
        submit(wire, carriers.VICTIM, 1, updates[carriers.VICTIM])
    submit(wire, 3, 1, updates[3])
    assert finish_round(wire.servers).clients == (3,)


def test_a_fetch_altered_with_its_commitment_is_refused() -> None:
    plan = sealed(mixed_plan())
    wire = Between(plan, PAIRS["fetch"], 64 + 32 + 64 + 5)
    with pytest.raises(RejectedSubmission, match="altered on the way"):
        Client(plan, wire, client_id=carriers.VICTIM).fetch({"table": [1, 4]})
    Client(plan, wire, client_id=3).fetch({"table": [1, 4]})


@pytest.mark.parametrize("field", ["round", "client", "party"])
def test_a_tag_is_bound_to_its_round_client_and_server(field: str) -> None:
    context = TreeContext(mixed_plan(), 1, 2, bytes(16))
    tag = context.upload_tag(bytes(16), 0, bytes(32))
    others = {
        "round": dataclasses.replace(context, opening_round=2).upload_tag(bytes(16), 0, bytes(32)),
        "client": dataclasses.replace(context, client=3).upload_tag(bytes(16), 0, bytes(32)),
        "party": context.upload_tag(bytes(16), 1, bytes(32)),
    }
    report = ReportContext(context, 1, bytes(16))
    assert others[field] != tag
    assert report.upload_tag(bytes(16), 0, bytes(32)) != tag
    assert len(tag) == 16


def test_the_lying_clients_of_these_tests_tag_as_honest_ones_do() -> None:
    plan = mixed_plan()
    wire = Wire(make_servers(plan))
    begin_round(wire.servers, 1)
    submit(wire, 2, 1, random_update(plan, np.random.default_rng(2)))
    with contextlib.suppress(RejectedSubmission):
        Client(plan, wire, client_id=4).fetch({"table": [1]})
    own = [e.data for e in wire.events if not e.is_reply and not e.is_relay]
    assert len(own) == 6
    assert [tagged(plan, data) for data in own] == own


def test_masked_values_and_shares_do_not_come_apart_for_who_carries_both() -> None:
    result = carriers.carried_masks()
    assert result.worked_off
    assert not result.worked_on
    even, odd = carriers.read_halves(on=True)
    assert np.abs(even.astype(np.int64)).max() > 1000
    assert np.abs(odd.astype(np.int64)).max() > 1000


def test_a_client_that_was_shown_another_model_does_not_count_dummy_or_not() -> None:
    result = carriers.another_model()
    assert result.worked_off
    assert not result.worked_on


@pytest.mark.parametrize("heard", [True, False])
def test_a_report_counts_whether_its_client_downloaded_the_model_or_not(heard: bool) -> None:
    plan = sealed(mixed_plan())
    wire = Wire(sealed_servers(plan))
    begin_round(wire.servers, 1)
    update = random_update(plan, np.random.default_rng(2))
    taking = Client(plan, wire, client_id=2).start_round(1, indices=wanted_rows(plan, update))
    if heard:
        taking.download()
    taking.retrieve()
    taking.submit(update)
    assert finish_round(wire.servers).clients == (2,)


def test_a_model_that_is_not_finite_is_answered_by_silence() -> None:
    plan = sealed(mixed_plan())
    wire = Wire(sealed_servers(plan))
    for server in wire.servers:
        server.model.state["bias.0"][0] = np.inf
    begin_round(wire.servers, 1)
    update = random_update(plan, np.random.default_rng(2))
    taking = Client(plan, wire, client_id=2).start_round(1, indices=wanted_rows(plan, update))
    with pytest.raises(ProtocolError, match="NaN or infinite"), taking:
        taking.download()
    assert Kind.REPORT not in {event.kind for event in wire.events}
