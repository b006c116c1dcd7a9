"""The replay of one server's part of a round, and what an auditor says of it.

The replay takes from a transcript what the server was sent, checks it against the record that the
server has signed, and computes folds, verdicts, accepted set, noise and share anew, by the code of
the servers. It names a server only for what contradicts its signature.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from torchfsl.crypto import kdf
from torchfsl.crypto.signing import SignKey
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.fsl.audit import transcript
from torchfsl.fsl.audit.transcript import Transcript
from torchfsl.fsl.bodies import AuditPass, ReportSet, Verdicts, share_by_segment
from torchfsl.fsl.messages import Buffer, Kind
from torchfsl.fsl.noise import KeyedNoise, noise_values
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.evaluation import LocalEvaluator
from torchfsl.fsl.server.opening import Opening
from torchfsl.fsl.server.reports import Report
from torchfsl.fsl.server.server import Server
from torchfsl.kernels import ring
from torchfsl.submodel.correlated_noise import CorrelatedNoise


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a replay, without values and seeds.

    Attributes:
        party, round_number: whose round.
        step: in which the server lied (`secrets`, `set`, `report`, `verdict`, `noise` or `share`),
            or empty.
        why: what differs, and what explains it.
        record, commitment, signed: what the server signed, and its signature.
    """

    party: int
    round_number: int
    step: str
    why: str
    record: bytes
    commitment: bytes
    signed: bytes

    def __str__(self) -> str:
        if not self.step:
            return f"round {self.round_number}: server {self.party} passes"
        return f"round {self.round_number}: server {self.party} LIED ({self.step}): {self.why}"


class Auditor:
    """The auditor of server `party` of one task.

    Args:
        plan: which names the public half of `key`.
        party: 0 or 1.
        key: signs passes.

    Attributes:
        noise: of a plan with `noise_taps`, what its server added in the rounds kept here; else
            None. Secret.

    Raises:
        ParameterError: the plan names another key.
    """

    def __init__(self, plan: Plan, party: int, key: SignKey) -> None:
        if not plan.audited or plan.auditors[party] != key.public.hex():
            raise ParameterError(
                f"the plan names {list(plan.auditors)} as auditors, and the key of this auditor "
                f"of server {party} is {key.public.hex()}: pass the key that the plan names",
                code="wrong-server-key",
            )
        self._key = key
        self._prepare(plan, party)

    def _prepare(self, plan: Plan, party: int) -> None:
        self.plan, self.party, self._keyed = plan, party, KeyedNoise()
        self._offered: Collection[int] | None = None
        self.noise: CorrelatedNoise | None = None
        if plan.noise_taps:
            self.noise = CorrelatedNoise(plan.noise_taps, noise_values(plan), self._keyed)
        draw = self.noise or self._keyed
        self._evaluator = LocalEvaluator(plan, party, draw, lambda: None, answers=False)

    def offer(self) -> tuple[int, ...] | None:
        """Rounds whose noise is held: it alone counts in the next share. None without `noise`."""
        if self.noise is None:
            return None
        held = zip(self.noise.rounds, self.noise.held, strict=True)
        self._offered = tuple(number for number, index in held if index >= 0)
        return self._offered

    def replay(self, data: Buffer, offered: Collection[int] | None = None) -> Finding:
        """Replay a server's round.

        Args:
            data: the transcript.
            offered: what `offer` gave for this round; what it gave last unless given.

        Raises:
            DecodeError: not a transcript, or that of the other server.
            ProtocolError: its record or the transcript is not signed, noise of a past round is not
                held, or a noise index is lower than before. This names no server.
        """
        shown = transcript.decode(self.plan, data, self.party)
        shown.audit.offered = self._offered if offered is None else offered
        try:
            return _replay(shown, self._keyed, self.noise, self._evaluator)
        finally:
            self._evaluator.end()

    def audit(self, server: Server, commitment: bytes) -> bytes:
        """AUDIT_PASS of a server in this process, once it has committed; raises as `sign`."""
        message = self.sign(self.replay(b"".join(transcript.parts(server, commitment))))
        self.keep(server.last_round)
        return message

    def keep(self, number: int) -> bool:
        """Let the noise of a round count, once the other server has taken the pass for it.

        A record has the other server's messages without its signature. A server could make up
        rounds alone until it likes their noise, and that would count in rounds that open.

        Returns:
            Whether this round was replayed last, so that its noise is here.
        """
        noise = self.noise
        if noise is None or noise.index < 0:
            return False
        slot = noise.index % len(noise.held)
        if noise.rounds[slot] != number:
            return False
        noise.held[slot] = noise.index
        return True

    def sign(self, finding: Finding) -> bytes:
        """AUDIT_PASS of a finding without a lie, as server `party` sends it to the other one.

        Raises:
            ProtocolError: there is a lie.
        """
        if finding.step:
            raise ProtocolError(str(finding), code="liar-named")
        parts = finding.record, bytes([self.party]), finding.commitment
        body = AuditPass(self._key.sign(kdf.LABEL_PASS, *parts))
        return body.message(self.plan, 1 - self.party, finding.round_number)


def _replay(
    shown: Transcript, keyed: KeyedNoise, noise: CorrelatedNoise | None, evaluator: LocalEvaluator
) -> Finding:
    audit, said = shown.audit, shown.said
    if not shown.is_signed:
        raise ProtocolError(
            f"the transcript is not signed by server {audit.party}, so the transcript proves "
            "nothing about this server",
            code="bad-signature",
        )
    step, why = _lie(shown, keyed, noise, evaluator)
    head = audit.party, audit.round_number
    return Finding(*head, step, why, audit.digest, said.commitment, said.signature)


def _lie(
    shown: Transcript, keyed: KeyedNoise, noise: CorrelatedNoise | None, evaluator: LocalEvaluator
) -> tuple[str, str]:
    """The step and what differs in it; empty if nothing does."""
    audit, party, plan = shown.audit, shown.audit.party, shown.audit.plan
    own, other = (
        ReportSet.read(plan, audit.record[Kind.REPORT_SET, server]) for server in (party, 1 - party)
    )
    opened = {"noise": shown.noise, "coin": own.coin, "noise_coin": audit.noise_coin(party)}
    for name, value in opened.items():
        try:
            audit.check_opened(party, name, value)
        except ProtocolError:
            return "secrets", f"its {name.replace('_', ' ')} is not the one that it promised"
    if lie := _lie_about_reports(own, other, shown.reports):
        return lie
    opening = Opening(plan, party, own.coin)
    for report in shown.reports.values():  # added before they are asked, as at a server: trees are
        evaluator.take(report)  # expanded once for sum and proof, and what is rejected comes out
    try:
        verify_key = opening.agree(shown.reports, other)
        audit.set_digest = opening.set_digest
        opening.folds = evaluator.folds(opening.accepted, verify_key)
        told = Verdicts.read(plan, audit.record[Kind.VERDICTS, party]).verdicts
        if lie := _lie_in_verdicts(opening.folds, told):
            return lie
        opening.verify(Verdicts.read(plan, audit.record[Kind.VERDICTS, 1 - party]))
    except ProtocolError as error:  # an honest server ends the round then
        return "set", str(error)
    keyed.begin(audit.noise_key(shown.noise))
    if noise is not None:
        index, past = audit.past_noise()
        if lie := _lie_about_noise(noise, index, past):
            return lie
        noise.begin(index, audit.round_number, past)
        noise.forget(index)  # until `Auditor.keep`
    share = evaluator.share(list(opening.accepted.values()))
    if opening.commit(share, shown.salt).commitment == shown.said.commitment:
        return "", ""
    return "share", _explained(plan, shown, opening, share)


def _lie_about_reports(
    own: ReportSet, other: ReportSet, shown: dict[int, Report]
) -> tuple[str, str] | None:
    clients = [client for client, _ in own.entries]
    if clients != sorted(set(clients)):
        return "set", "its list of reports is not in order, or names a client twice"
    said = dict(other.entries)
    agreed = {client: digest for client, digest in own.entries if said.get(client) == digest}
    if list(shown) != list(agreed):
        odd = sorted(set(shown) ^ set(agreed))
        return "report", (
            "the reports that it shows are not those that both servers agreed on: clients "
            f"{odd[:8]}"
        )
    for client, report in shown.items():
        if report.digest() != agreed[client]:
            return (
                "report",
                f"its report of client {client} is not the report that both servers agreed on",
            )
    return None


def _lie_about_noise(
    noise: CorrelatedNoise, index: int, past: tuple[int, ...]
) -> tuple[str, str] | None:
    if index < max(noise.held):  # else noise grows without end, in rounds that go back
        raise ProtocolError(
            f"the audited server states noise index {index}, expected {max(noise.held)} or more: "
            "the round ends unopened. Ask the server's operator whether the server's state is an "
            "older copy",
            code="noise-index-used",
        )
    held = {r: i for r, i in zip(noise.rounds, noise.held, strict=True) if i >= 0}
    for lag, number in enumerate(past, 1):
        if held.get(number, index - lag) != index - lag:
            return "noise", f"it states another noise index of round {number} than before"
    return None


def _lie_in_verdicts(folds: dict[int, bytes], told: tuple[bytes, ...]) -> tuple[str, str] | None:
    if len(folds) != len(told):
        return "verdict", f"it gives {len(told)} verdicts on {len(folds)} agreed reports"
    for (client, fold), said in zip(folds.items(), told, strict=True):
        if fold != said:
            return "verdict", f"its verdict on client {client} is false"
    return None


def _explained(plan: Plan, shown: Transcript, opening: Opening, share: Buffer) -> str:
    """The lie that gives the share that the server committed to, if a simple one does."""
    party = shown.audit.party

    def alone(reports: Iterable[Report]) -> Buffer:
        def silent(sigma: int, count: int) -> np.ndarray:
            return np.zeros(count, dtype=np.int64)

        return LocalEvaluator(plan, party, silent, lambda: None).share(list(reports))

    def candidates() -> Iterator[tuple[str, Buffer]]:
        if plan.noise_sigma:
            yield "it left out its noise", alone(opening.accepted.values())
        for client, report in opening.accepted.items():
            one = alone([report])
            yield f"it left out the report of client {client}", _sum(plan, share, one, True)
            yield f"it added the report of client {client} twice", _sum(plan, share, one, False)

    for why, candidate in candidates():
        if opening.commit(candidate, shown.salt).commitment == shown.said.commitment:
            return why
    return "its share is not the sum of the accepted reports and its noise"


def _sum(plan: Plan, first: Buffer, second: Buffer, subtract: bool) -> Buffer:
    """Two shares added, or the second taken off."""
    ours, others = share_by_segment(plan, first), share_by_segment(plan, second)
    total = []
    for segment in (*plan.with_trees, *plan.dense):
        width, name = plan.ring_bytes(segment), segment.name
        pair = [np.frombuffer(s, np.uint8).reshape(-1, width) for s in (ours[name], others[name])]
        total.append((ring.sub if subtract else ring.add)(*pair).tobytes())
    return b"".join(total)
