"""A server's book of the reports of one round: parsing, commitments, replay.

The public part of a message goes to one server and is relayed to the other, which knows its hash
from the client itself and accepts it only if it fits. Without that a malicious server could alter
a correction word and read the selected position off the garbage in the opened sum.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

from torchfsl import kdf, messages
from torchfsl.config import DIGEST_BYTES, SEED_BYTES
from torchfsl.errors import RejectedSubmission
from torchfsl.keys import ReportContext
from torchfsl.messages import Kind, Message
from torchfsl.plan import Plan

_PUBLIC: Final = {Kind.TREES: Kind.TREES_RELAY, Kind.REPORT: Kind.REPORT_RELAY}
_COMMIT: Final = {Kind.TREES_COMMIT: Kind.TREES, Kind.REPORT_COMMIT: Kind.REPORT}
_RELAY: Final = {relay: kind for kind, relay in _PUBLIC.items()}


@dataclass(slots=True)
class Phase:
    """One phase (trees or report) of one client at one server. Filled from two sides."""

    seen: dict[Kind, bytes] = field(default_factory=dict, repr=False)
    public: bytes | None = field(default=None, repr=False)
    commitment: bytes | None = field(default=None, repr=False)
    nonces: bytes = b""
    relay_nonces: bytes = b""

    @property
    def complete(self) -> bool:
        """Whether both the client's message and the public part are here."""
        return self.public is not None and self.commitment is not None


@dataclass(slots=True)
class Report:
    """Everything one server knows of one client in one round. Its seed and shares are secret."""

    client: int
    trees: Phase = field(default_factory=Phase)
    report: Phase = field(default_factory=Phase)
    nonce: bytes | None = None
    master_seed: bytes | None = field(default=None, repr=False)
    masked: bytes = field(default=b"", repr=False)
    rejected: bool = False

    def phase(self, kind: Kind) -> Phase:
        """The phase that `kind` (TREES or REPORT) belongs to."""
        return self.trees if kind is Kind.TREES else self.report


class ReportBook:
    """All reports of one round at one server."""

    def __init__(self, plan: Plan, party: int, round_number: int) -> None:
        """Start empty."""
        self._plan, self._party, self.round_number = plan, party, round_number
        self._reports: dict[int, Report] = {}

    def receive(self, message: Message, data: bytes) -> bytes | None:
        """File a message from a client or a relay from the peer.

        Returns:
            The relay message for the peer, for a public part.

        Raises:
            RejectedSubmission: wrong round or server, a second different message, a commitment
                that does not fit, or a full round. The client is then out of this round.
        """
        if message.round_number != self.round_number:
            raise RejectedSubmission(
                f"message for round {message.round_number}, open is {self.round_number}"
            )
        if message.party != self._party:
            raise RejectedSubmission(f"message for server {message.party}, this is {self._party}")
        report = self._report_of(message.client)
        context_party = message.client % 2
        kind = message.kind
        if (kind in _PUBLIC) != (self._party == context_party) and kind not in _RELAY:
            self._reject(report, "the public part came to the wrong server")
        if kind in _RELAY and self._party == context_party:
            self._reject(report, "the peer relayed a part that this server gets from the client")
        base = _COMMIT.get(kind) or _RELAY.get(kind) or kind
        phase = report.phase(base)
        digest = hashlib.sha256(data).digest()
        if kind in phase.seen:
            if phase.seen[kind] == digest:
                return None  # a byte-identical resend
            self._reject(report, "a second, different message for the same round and phase")
        phase.seen[kind] = digest
        if kind in _RELAY:
            self._file_relay(phase, base, message.body)
            relay = None
        else:
            relay = self._file_client(report, phase, base, message)
        self._check(report, phase, base)
        return relay

    def get(self, client: int) -> Report:
        """The report of a client whose trees are complete.

        Raises:
            RejectedSubmission: unknown, rejected, or not complete yet.
        """
        report = self._reports.get(client)
        if report is None or report.rejected or not report.trees.complete:
            raise RejectedSubmission(f"client {client} has no accepted trees in this round")
        return report

    def complete(self) -> dict[int, Report]:
        """Complete reports that were not rejected, by client."""
        needs_trees = bool(messages.retrieving(self._plan))
        return {
            client: report
            for client, report in self._reports.items()
            if not report.rejected
            and report.report.complete
            and (report.trees.complete or not needs_trees)
        }

    def context(self, report: Report) -> ReportContext:
        """What the report's keys are bound to."""
        assert report.nonce is not None
        return ReportContext(self._plan, self.round_number, report.client, report.nonce)

    def digest(self, report: Report) -> bytes:
        """What both servers must agree on about a report: 32 bytes."""
        return kdf.digest(
            kdf.LABEL_REPORT_SET,
            self.context(report).encode(),
            report.report.nonces,
            report.trees.commitment or b"",
            report.report.commitment or b"",
        )

    def _report_of(self, client: int) -> Report:
        if client not in self._reports:
            if len(self._reports) >= self._plan.max_clients:
                raise RejectedSubmission(
                    f"the round is full: the plan allows {self._plan.max_clients} clients"
                )
            self._reports[client] = Report(client)
        report = self._reports[client]
        if report.rejected:
            raise RejectedSubmission(f"client {client} was rejected in this round")
        return report

    def _reject(self, report: Report, reason: str) -> None:
        report.rejected = True
        report.master_seed, report.masked = None, b""
        raise RejectedSubmission(f"client {report.client}: {reason}")

    def _file_client(
        self, report: Report, phase: Phase, base: Kind, message: Message
    ) -> bytes | None:
        body = message.body
        nonce, seed = bytes(body[:SEED_BYTES]), bytes(body[SEED_BYTES : 2 * SEED_BYTES])
        if report.nonce not in (None, nonce) or report.master_seed not in (None, seed):
            self._reject(report, "nonce or master seed changed within the round")
        report.nonce, report.master_seed = nonce, seed
        start = 2 * SEED_BYTES
        phase.nonces = nonce
        if base is Kind.REPORT:
            phase.nonces += bytes(body[start : start + SEED_BYTES])
            start += SEED_BYTES
        if message.kind in _COMMIT:
            phase.commitment = bytes(body[start:])
            return None
        size = messages.public_report_bytes(self._plan) if base is Kind.REPORT else len(body)
        phase.public = bytes(body[start : start + size])
        report.masked = bytes(body[start + size :])
        phase.commitment = self._commitment(report, phase, base)
        return messages.encode(
            self._plan, _PUBLIC[base], 1 - self._party, self.round_number, report.client,
            phase.nonces, phase.public,
        )  # fmt: skip

    def _file_relay(self, phase: Phase, base: Kind, body: memoryview) -> None:
        size = SEED_BYTES * (2 if base is Kind.REPORT else 1)
        phase.relay_nonces, phase.public = bytes(body[:size]), bytes(body[size:])

    def _commitment(self, report: Report, phase: Phase, base: Kind) -> bytes:
        assert phase.public is not None
        hint_nonce = phase.nonces[SEED_BYTES:]
        return self.context(report).commitment(base, hint_nonce + phase.public)

    def _check(self, report: Report, phase: Phase, base: Kind) -> None:
        """At the second server: the relayed part must fit what the client committed to."""
        if not phase.complete or self._party == report.client % 2:
            return
        assert phase.commitment is not None
        fits = kdf.digests_equal(phase.commitment, self._commitment(report, phase, base))
        if not fits or phase.relay_nonces != phase.nonces:
            self._reject(report, "the relayed public part does not fit the client's commitment")


assert hashlib.sha256().digest_size == DIGEST_BYTES
