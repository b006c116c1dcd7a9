"""Plans with an audit: what they demand, and what reports of such a plan say to both servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from tests.fsl.test_proofs import bounded, small
from tests.support.audited import KEYS, audited, audited_servers, auditors
from tests.support.errors import raises
from tests.support.federation import Event, Wire, submit
from tests.support.tags import tagged
from torchfsl.errors import ParameterError, RejectedSubmission
from torchfsl.fsl import messages
from torchfsl.fsl.costs import predict
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.messages import Kind, body_bytes
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.uploads import UPLOADS, ReportBody, ReportCommit
from torchfsl.submodel.opened import Opened

PLAIN = small(proofs="norm", l2_bound=400)
PLAN = audited(PLAIN)
ANY = ClientPolicy(verified=False, sealed=False, joint_coin=False, min_clients=1)


def test_fields_stand_in_the_text_only_with_an_audit() -> None:
    assert "audit" not in PLAIN.to_json()
    again = Plan.from_json(PLAN.to_json())
    assert again == PLAN
    assert again.auditors == PLAN.auditors


@pytest.mark.parametrize(
    "change",
    [
        {"audit": "none"},
        {"audit_keys": KEYS[:1]},
        {"auditors": ()},
        {"auditors": (KEYS[0], KEYS[3])},
        {"proofs": "lanes"},
        {"proofs": "none"},
    ],
)
def test_an_audit_that_would_find_nothing_is_refused(change: dict[str, object]) -> None:
    with raises(ParameterError, code="audit-conditions"):
        dataclasses.replace(PLAN, **change)  # type: ignore[arg-type]


def test_an_audit_of_another_kind_is_unknown() -> None:
    with raises(ParameterError, code="unknown-option"):
        dataclasses.replace(PLAN, audit="sampled")  # type: ignore[arg-type]


def test_parties_take_auditors_that_they_have_pinned_and_no_others() -> None:
    ANY.check(PLAIN)
    for pinned in ((), PLAN.auditors[::-1]):
        with pytest.raises(ParameterError, match=r"auditors is .*; the floor 'auditors' pins"):
            dataclasses.replace(ANY, auditors=pinned).check(PLAN)
    pinned = dataclasses.replace(ANY, auditors=PLAN.auditors, audited=True)
    pinned.check(PLAN)
    with pytest.raises(ParameterError, match="audit is 'none'; the floor 'audited' wants 'open'"):
        pinned.check(PLAIN)


def test_a_report_has_64_bytes_more_and_no_other_message_of_clients_changes() -> None:
    kinds = [
        kind for kind in Kind if kind < Kind.ROUND_STATE or Kind.FETCH <= kind <= Kind.FETCH_MODEL
    ]
    more = {k: (body_bytes(PLAN, k) or 0) - (body_bytes(PLAIN, k) or 0) for k in kinds}
    assert {kind: extra for kind, extra in more.items() if extra} == {
        Kind.REPORT: 32,
        Kind.REPORT_COMMIT: 32,
    }
    assert predict(PLAN).upload_bytes == predict(PLAIN).upload_bytes + 64


Change = Callable[[bytes], bytes]


def play(plan: Plan, changes: dict[Kind, Change]) -> tuple[tuple[Server, Server], Opened]:
    """A round of clients 0, 1 and 2; messages of client 1 are changed as it would itself."""
    servers = audited_servers(plan)
    begin_round(servers, 1)

    def alter(event: Event) -> bytes:
        peek = messages.peek(event.data)
        change = changes.get(peek.kind) if peek.client == 1 else None
        return event.data if change is None else change(event.data)

    wire = Wire(servers, alter=alter)
    rng = np.random.default_rng(5)
    for client in (0, 1, 2):
        submit(wire, client, 1, bounded(plan, rng))
    return servers, finish_round(servers, auditors=auditors(plan))


def other_private(data: bytes) -> bytes:
    """The message of a client that lies to one server of what the other one gets."""
    message = messages.decode(PLAN, data, *UPLOADS)
    body = UPLOADS[message.kind].decode(PLAN, message.body)
    assert isinstance(body, ReportBody | ReportCommit)
    lied = dataclasses.replace(body, private=bytes(32))
    whole = lied.message(PLAN, message.party, message.round_number, message.client)
    return tagged(PLAN, whole)


@pytest.mark.parametrize("kind", [Kind.REPORT, Kind.REPORT_COMMIT])
def test_a_client_that_lies_to_one_server_of_the_others_part_is_left_out(kind: Kind) -> None:
    assert play(PLAN, {})[1].clients == (0, 1, 2)
    assert play(PLAN, {kind: other_private})[1].clients == (0, 2)


@pytest.mark.parametrize("kind", [Kind.REPORT, Kind.REPORT_COMMIT])
def test_the_digest_is_under_the_tag(kind: Kind) -> None:
    def on_the_way(data: bytes) -> bytes:
        place = messages.HEADER_BYTES + 64
        return data[:place] + bytes(32) + data[place + 32 :]

    with pytest.raises(RejectedSubmission, match="altered on the way"):
        play(PLAN, {kind: on_the_way})
