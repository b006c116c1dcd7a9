"""A server explains a lie about its share to its auditor; a client gets an honest server blamed.

    python -m scripts.attacks --only explained_lie framed_server

Both play what the digests of private parts are for. Without them a server that adds an offset to
its share shows its auditor a masked value of one client with the same offset, and a proof with
which its verdict stays what it signed: it knows the point at which the proof was asked.
"""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from typing import Final
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from scripts.attacks.result import AttackResult, switched
from scripts.parties import bench_plan, random_update, zeros
from tests.support.tags import tagged
from torchfsl.crypto import field128, kdf
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.crypto.signing import SignKey
from torchfsl.fsl import messages
from torchfsl.fsl.audit import transcript
from torchfsl.fsl.audit.replay import Auditor, Finding
from torchfsl.fsl.bodies import ReportSet, share_by_segment
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.dpf.keys import ReportContext
from torchfsl.fsl.messages import Buffer, Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round
from torchfsl.fsl.server.evaluation import share_of
from torchfsl.fsl.server.loaded import LoadedReport
from torchfsl.fsl.server.proofs import Questions
from torchfsl.fsl.server.reports import Report
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import InProcess
from torchfsl.fsl.uploads import ReportCommit, slack_and_elements
from torchfsl.kernels import ring
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.server_model import ServerModel

LIAR: Final = 1
VICTIM: Final = 1
"""The client whose masked values come to the liar."""
OFFSET: Final = 1000
_KEYS: Final = tuple(
    SignKey(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)) for number in range(1, 5)
)


class Steering(Server):
    """Adds an offset to the first dense value of its share."""

    def commit(self, *, salt: bytes = b"", share: Buffer = b"") -> bytes:
        """Alter the share before the commitment."""
        honest = share_of(self._evaluator, self._opening.accepted.values(), self.reports)
        altered = memoryview(bytearray(honest))
        _shift(share_by_segment(self.plan, altered)["rest"], self.plan.encoding.ring_bits)
        return super().commit(salt=salt, share=altered)


def explained_lie() -> AttackResult:
    """An offset, explained by an altered masked value."""
    found = [_steered(on=on) for on in (False, True)]
    off, on = ("passes" if not one.step else f"named: {one.why}" for one in found)
    return AttackResult(
        "a steering server explains its offset",
        f"the replay {off}", f"the replay {on}",
        not found[0].step, not found[1].step, 64, cost="two digests a report",
    )  # fmt: skip


def framed_server() -> AttackResult:
    """A client tells server 0 a false digest of what server 1 was sent."""
    blamed = [_framed(on=on) for on in (False, True)]
    words = (
        "no server is named, the report is left out",
        "what server 1 holds contradicts the client",
    )
    return AttackResult(
        "a client gets an honest server blamed",
        words[blamed[0]], words[blamed[1]],
        blamed[0], blamed[1], 64, cost="two digests a report",
    )  # fmt: skip


def make_plan(**more: int) -> Plan:
    """A table and a dense part, with proofs of the norm and an audit."""
    table, rest = TensorSpec("table", (64, 4)), TensorSpec("rest", (32,))
    specs = [
        SegmentSpec("table", "rows", (table,), tau=4, k_max=4, retrieve=True),
        SegmentSpec("rest", "dense", (rest,)),
    ]
    options = {"max_clients": 4, "l2_bound": 1 << 20, **more}
    plan = bench_plan(specs, encoding=FixedPoint(32, 16, 4.0), **options)
    keys = tuple(key.public.hex() for key in _KEYS)
    return dataclasses.replace(plan, audit="open", audit_keys=keys[:2], auditors=keys[2:])


def servers_of(plan: Plan, liar: type[Server] = Server) -> tuple[Server, Server]:
    """Both servers, the second one of a kind."""
    kinds = Server, liar
    one, two = (
        kinds[party](party, plan=plan, model=ServerModel(zeros(plan)), sign_key=_KEYS[party])
        for party in (0, 1)
    )
    return one, two


def reported(
    servers: tuple[Server, Server],
    link: InProcess | None = None,
    *,
    number: int = 1,
    clients: int = 3,
    members: dict[int, Client] | None = None,
) -> None:
    """Open a round, in which clients report that may come again; `members` go on in sessions."""
    plan, link = servers[0].plan, link or InProcess(*servers)
    begin_round(servers, number)
    first = clients * (number % (4 * plan.min_separation)) if plan.min_separation > 1 else 0
    for one in range(first, first + clients):
        update = random_update(plan, one, number if members is None else 0)
        client = (members or {}).get(one) or Client(plan, link, client_id=one)
        begin = client.start_round
        if members is not None:
            members[one], begin = client, client.continue_session
        wanted = {"table": update["table"].positions}
        with begin(number, indices=wanted) as client_round:
            client_round.submit(update)


def auditors(plan: Plan) -> tuple[Auditor, Auditor]:
    """Those of server 0 and of server 1."""
    return Auditor(plan, 0, _KEYS[2]), Auditor(plan, 1, _KEYS[3])


def _verified(servers: tuple[Server, Server]) -> None:
    one, two = servers
    lists = one.close_round(), two.close_round()
    folds = one.agree(lists[1]), two.agree(lists[0])
    one.verify(folds[1])
    two.verify(folds[0])


def _bound_nothing() -> AbstractContextManager[object]:
    """Digests of private parts that bind nothing."""
    return mock.patch.object(ReportContext, "private_digest", return_value=bytes(32))


def _steered(*, on: bool) -> Finding:
    with switched(_bound_nothing(), on=on):
        plan = make_plan()
        servers = servers_of(plan, Steering)
        reported(servers)
        _verified(servers)
        said = servers[LIAR].commit()
        _explain(servers[LIAR])
        shown = b"".join(transcript.parts(servers[LIAR], said))
        return auditors(plan)[LIAR].replay(shown)


def _framed(*, on: bool) -> bool:
    """Whether an agreed report of an honest server contradicts what the client told the other."""

    def without(report: Report) -> bytes:
        parts = report.trees.commitment or b"", report.commitment or b""
        return kdf.digest(kdf.LABEL_REPORT_SET, report.context.encoded, *parts)

    plan = make_plan()
    servers = servers_of(plan)
    with switched(mock.patch.object(Report, "digest", without), on=on):
        reported(servers, _Lying(*servers))
        _verified(servers)
    reports = [server.audit.reports for server in servers if server.audit is not None]
    if VICTIM not in reports[0]:
        return False
    told, held = (reports[party][VICTIM].private[LIAR] for party in (0, LIAR))
    return told != held


class _Lying(InProcess):
    """The way of a client to the servers that tells server 0 a false digest, under a good tag."""

    def send(self, party: int, message: bytes) -> None:
        """Alter what the victim tells of the other server's part."""
        peek = messages.peek(message)
        if (peek.kind, peek.client) == (Kind.REPORT_COMMIT, VICTIM):
            body = ReportCommit.read(make_plan(), message)
            lied = dataclasses.replace(body, private=bytes(32))
            message = tagged(make_plan(), lied.message(make_plan(), party, 1, VICTIM))
        super().send(party, message)


def _explain(server: Server) -> None:
    """Alter one client's masked value by the offset, and its proof so that no verdict changes."""
    plan, audit = server.plan, server.audit
    assert audit is not None
    report = audit.reports[VICTIM]
    coins = (ReportSet.read(plan, audit.record[Kind.REPORT_SET, p]).coin for p in (0, 1))
    key = kdf.digest(kdf.LABEL_FOLD, audit.set_digest, *sorted(coins))
    before = _opened(server, report, key)
    dense = bytearray(report.masked[0])
    _shift(memoryview(dense), plan.encoding.ring_bits)
    report.masked = (bytes(dense), *report.masked[1:])
    moved = [new - old for new, old in zip(_opened(server, report, key), before, strict=True)]
    assert plan.statement is not None
    first = len(plan.statement.carry_weights)  # where the seeds of wires begin
    _add_to_seeds(report, plan, {first: 1})
    unit = _opened(server, report, key)[0] - before[0] - moved[0]
    _add_to_seeds(report, plan, {first: -1})
    back = pow(unit, -1, field128.MODULUS)
    wires = range(plan.statement.shape.arity)
    _add_to_seeds(report, plan, {first + j: -moved[j] * back for j in wires if moved[j]})
    assert _opened(server, report, key) == before


def _opened(server: Server, report: Report, key: bytes) -> list[int]:
    """The server's opened part of a report's proof."""
    asked = Questions(server.plan, server.party, key).ask(LoadedReport(server.party, report))[1]
    return field128.integers(field128.checked(asked))


def _add_to_seeds(report: Report, plan: Plan, changes: dict[int, int]) -> None:
    assert plan.statement is not None
    slack, elements = slack_and_elements(plan.statement, report.masked[-1])
    numbers = field128.integers(field128.checked(elements))
    for place, change in changes.items():
        numbers[place] = (numbers[place] + change) % field128.MODULUS
    proof = bytes(slack) + field128.to_bytes(field128.words(numbers))
    report.masked = (*report.masked[:-1], proof)


def _shift(part: memoryview, ring_bits: int) -> None:
    """Add the offset to the first value."""
    first = np.frombuffer(part, np.uint8)[: ring_bits // 8].reshape(1, -1)
    offset = ring.from_int64(np.array([OFFSET]), ring_bits)
    part[: ring_bits // 8] = ring.add(first, offset).tobytes()
