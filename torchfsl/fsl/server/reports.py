"""A server's record of one client: its trees, which may outlive rounds, and its report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NoReturn

from torchfsl.crypto import kdf
from torchfsl.errors import ProtocolError, RejectedSubmission
from torchfsl.fsl.bodies import Pieces
from torchfsl.fsl.dpf.keys import ReportContext, TreeContext
from torchfsl.fsl.messages import Buffer, Kind
from torchfsl.fsl.plan.plan import Plan


@dataclass(slots=True, kw_only=True)
class Arrivals:
    """The arrived pieces of one public share, from the client and from the peer.

    Attributes:
        nonce: of the trees, as the client sent it here.
        public: the public share, from the client or relayed.
        commitment: the public share's hash, from the client or computed from what it sent here.
        relayed_nonces: the nonces in the peer's relay.
        relayed_commitment: the hash of the relayed public share.
        seen: fingerprint of each message, to tell a resend from a second one.
    """

    nonce: bytes = b""
    public: Buffer | None = field(default=None, repr=False)
    commitment: bytes | None = None
    relayed_nonces: bytes | None = None
    relayed_commitment: bytes | None = None
    seen: dict[Kind, bytes] = field(default_factory=dict, repr=False)

    @property
    def complete(self) -> bool:
        """Whether both the client's message and the public share are here."""
        return self.public is not None and self.commitment is not None

    @property
    def nonces(self) -> bytes:
        """The bytes that a relay must repeat: every nonce that the client sent here."""
        return self.nonce


@dataclass(slots=True, kw_only=True)
class TreeRecord(Arrivals):
    """A client's trees; in a session they outlive the round.

    Attributes:
        opening_round: the round in which they came.
        master_seed: this server's. Secret.
        seed_sent: the same as it travelled; equal to it where the plan has no server keys.
        epochs: rounds opened on them.
        verified: whether they passed the check.
    """

    opening_round: int
    master_seed: bytes | None = field(default=None, repr=False)
    seed_sent: bytes | None = field(default=None, repr=False)
    epochs: int = 0
    verified: bool = False

    def context(self, plan: Plan, client: int, nonce: bytes) -> TreeContext:
        """The context that the keys of trees with this nonce are bound to."""
        return TreeContext(plan, self.opening_round, client, nonce)


@dataclass(slots=True, kw_only=True)
class Report(Arrivals):
    """Everything a server knows of one client in one round. Seed and shares are secret.

    Attributes:
        model: digests of the round's model; a client that downloaded it has also tagged them.
        masked: values of the dense segments, at the server that gets the public share.
        private: under `audit` the digests of what each server alone was sent, by party. This
            server computes its digest from what is here; the other's comes from the client.
        rejected: out of this round, for good.
        failed: rejected for trees that did not pass the check.
    """

    plan: Plan = field(repr=False)
    round_number: int
    client: int
    trees: TreeRecord
    model: bytes
    hint_nonce: bytes = b""
    masked: Pieces = field(default=(), repr=False)
    private: tuple[bytes, ...] = ()
    rejected: bool = False
    failed: bool = False
    _context: ReportContext | None = field(default=None, repr=False)
    _digest: bytes | None = None

    @property
    def nonces(self) -> bytes:
        """See `Arrivals.nonces`."""
        return self.nonce + self.hint_nonce

    @property
    def model_rows(self) -> bytes:
        """The digest of the rows of the round's model."""
        return self.model[-kdf.DIGEST_BYTES :]

    @property
    def is_complete(self) -> bool:
        """Whether everything is here that the round needs, and the client was not rejected."""
        has_trees = self.trees.complete or not self.plan.early
        return self.complete and has_trees and not self.rejected

    @property
    def trees_verified(self) -> bool:
        """Whether its trees passed the check in an earlier round; an audit checks them in each.

        The seed that a server uses is bound by the check, and else by the round's digests alone.
        """
        return self.trees.verified and not self.plan.audited

    @property
    def tree_context(self) -> TreeContext:
        """The context that the early trees' keys are bound to."""
        return self.trees.context(self.plan, self.client, self.trees.nonce)

    @property
    def context(self) -> ReportContext:
        """The context that the keys of a report that is here are bound to."""
        assert self.nonce
        return self.context_of(self.nonce, self.hint_nonce)

    def context_of(self, nonce: bytes, hint_nonce: bytes) -> ReportContext:
        """The context of these nonces; the last one made is kept."""
        kept, opening_round = self._context, self.trees.opening_round
        if kept is None or (kept.trees.opening_round, kept.trees.nonce, kept.hint_nonce) != (
            opening_round,
            nonce,
            hint_nonce,
        ):
            trees = self.trees.context(self.plan, self.client, nonce)
            kept = self._context = ReportContext(trees, self.round_number, hint_nonce)
        return kept

    def digest(self) -> bytes:
        """What both servers must agree on about a complete report: 32 bytes."""
        if self._digest is None:
            self._digest = kdf.digest(
                kdf.LABEL_REPORT_SET,
                self.context.encoded,
                bytes([self.trees_verified]),
                self.trees.commitment or b"",
                self.commitment or b"",
                *self.private,
            )
        return self._digest

    def check_unchanged(self, party: int) -> None:
        """Refuse bytes that have changed at server `party` since they were filed with digests.

        Raises:
            ProtocolError: they have, as on a disk that fails.
        """
        context, trees, seed = self.context, self.trees, self.trees.master_seed
        assert seed is not None
        assert self.public is not None
        fits = self.commitment == context.commitment(self.public)
        hidden = context.masked_digest(*self.masked)
        fits &= self.private[party] == context.private_digest(seed, party, hidden)
        if trees.public is not None:
            fits &= trees.commitment == self.tree_context.commitment(trees.public)
        if not fits:
            raise ProtocolError(
                f"the stored report of client {self.client} has changed on the disk: the round "
                "ends unopened. Check the disk of this server",
                code="report-changed",
            )

    def check_not_rejected(self) -> None:
        """Refuse to go on with a client that is out of the round.

        Raises:
            RejectedSubmission: it is.
        """
        if self.rejected:
            raise RejectedSubmission(
                f"client {self.client} was rejected earlier in this round: participate in the next "
                "round",
                code="client-rejected",
            )

    def reject(self, reason: str) -> NoReturn:
        """Take the client out of this round.

        Raises:
            RejectedSubmission: always.
        """
        self.rejected = True
        raise RejectedSubmission(f"client {self.client}: {reason}", code="client-rejected")

    def reject_second(self, what: str) -> NoReturn:
        """Take a client out of this round that has begun it once more.

        Raises:
            RejectedSubmission: always.
        """
        done = "reported" if self.seen else "started"
        lost = ", and its report does not count" if self.seen else ""
        self.reject(
            f"{what}. This client had already {done} in this round, so it is out of the round"
            f"{lost}. Give each client its own number, and let this one participate in the next "
            "round"
        )


class Sessions:
    """The trees of live sessions, by client. Secret.

    Attributes:
        records: what a server stores that is to go on after a crash.
    """

    def __init__(self, plan: Plan, max_sessions: int) -> None:
        """No session yet; hold the trees of at most `max_sessions` clients."""
        self._plan, self._max_sessions = plan, max_sessions
        self.records: dict[int, TreeRecord] = {}

    def begin_round(self) -> None:
        """Forget the trees that have served their epochs."""
        most = self._plan.max_epochs
        self.records = {c: record for c, record in self.records.items() if record.epochs < most}

    def trees_of(self, report_round: int, client: int) -> TreeRecord:
        """The client's trees, or an empty record of trees that come in this round."""
        return self.records.get(client) or TreeRecord(opening_round=report_round)

    def start_trees(self, report: Report) -> None:
        """Trees of this round; the session they replace is forgotten only if they arrive whole.

        Raises:
            RejectedSubmission: they come after the report, or one session too many.
        """
        if report.seen:
            report.reject_second("trees after the report of the same round")
        if report.trees.opening_round != report.round_number:
            report.trees = TreeRecord(opening_round=report.round_number)
        full = len(self.records) >= self._max_sessions
        if full and self._plan.max_epochs > 1 and report.client not in self.records:
            report.reject(f"this server holds {self._max_sessions} sessions already")

    def end_round(self, reports: Iterable[Report], accepted: tuple[int, ...]) -> None:
        """Count an epoch for accepted clients, whose trees are then verified.

        Trees that arrived whole are kept, unverified, where the report did not come or the round
        was abandoned: the client will not send them again. Trees that failed the check are
        forgotten, whenever they came.
        """
        if self._plan.max_epochs == 1:
            return
        for report in reports:
            if report.client in accepted:
                report.trees.verified = True
                report.trees.epochs += 1
            if report.failed:
                self.records.pop(report.client, None)
            elif report.client in accepted or (report.trees.complete and not report.rejected):
                report.trees.public = bytes(report.trees.public or b"")
                self.records[report.client] = report.trees
