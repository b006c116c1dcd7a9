"""A server's books: what each client sent, commitments, replay, sessions.

The public part of a message goes to one server and is relayed to the other, which knows its hash
from the client itself and accepts it only if it fits. Without that a malicious server could alter
a correction word and read the selected position off the garbage in the opened sum.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final, NoReturn

from torchfsl.crypto import kdf
from torchfsl.crypto.kdf import SEED_BYTES
from torchfsl.errors import DecodeError, RejectedSubmission
from torchfsl.fsl import bodies, messages
from torchfsl.fsl.bodies import (
    AnyReport,
    AnyTrees,
    Filing,
    Pieces,
    ReportBody,
    ReportCommit,
    ReportRelay,
    TreesBody,
    TreesCommit,
    TreesRelay,
)
from torchfsl.fsl.dpf.keys import ReportContext, TreeContext
from torchfsl.fsl.dpf.trees import check_trees
from torchfsl.fsl.messages import Buffer, Kind, Message
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.spool import Spool

_RELAY_OF: Final = {Kind.TREES: Kind.TREES_RELAY, Kind.REPORT: Kind.REPORT_RELAY}


@dataclass(slots=True)
class Part:
    """Trees or a report of one client at one server, filled from client and peer.

    Attributes:
        nonces: tree nonce, and hint nonce for a report, as the client sent them here.
        public: the public part, from the client or relayed.
        commitment: the public part's hash, from the client or computed from what it sent here.
        relayed_nonces: the nonces in the peer's relay.
        seen: fingerprint of each message, to tell a resend from a second one.
        relayed_commitment: the hash of the relayed public part.
    """

    nonces: bytes = b""
    public: Buffer | None = field(default=None, repr=False)
    commitment: bytes | None = None
    relayed_nonces: bytes | None = None
    seen: dict[Kind, bytes] = field(default_factory=dict, repr=False)
    relayed_commitment: bytes | None = None

    @property
    def complete(self) -> bool:
        """Whether both the client's message and the public part are here."""
        return self.public is not None and self.commitment is not None


@dataclass(slots=True)
class TreeRecord:
    """A client's trees; in a session they outlive the round.

    `epochs` counts the rounds opened on them, `verified` whether the check was passed.
    """

    opening_round: int
    part: Part = field(default_factory=Part)
    master_seed: bytes | None = field(default=None, repr=False)
    epochs: int = 0
    verified: bool = False


@dataclass(slots=True)
class Report:
    """Everything a server knows of one client in one round. Seed and shares are secret.

    `context` is the last one made for its messages, `digest` is kept when first asked for; see
    `ReportBook`.
    """

    client: int
    trees: TreeRecord
    part: Part = field(default_factory=Part)
    masked: Pieces = field(default=(), repr=False)
    rejected: bool = False
    context: ReportContext | None = None
    digest: bytes | None = None


class ReportBook:
    """The reports of the open round, and the trees of live sessions, at one server."""

    def __init__(self, plan: Plan, party: int, *, max_sessions: int) -> None:
        """Start without any session; hold the trees of at most `max_sessions` clients."""
        self._plan, self._party, self._max_sessions = plan, party, max_sessions
        self._early, self._late = plan.early, plan.late
        self.round_number = -1
        self.spool = Spool()
        self._reports: dict[int, Report] = {}
        self._sessions: dict[int, TreeRecord] = {}

    @property
    def sessions(self) -> dict[int, TreeRecord]:
        """By client the trees that outlive rounds. Secret."""
        return self._sessions

    def open(self, round_number: int) -> None:
        """Begin a round: forget the reports of the last one, keep sessions with epochs left."""
        self.round_number = round_number
        self._reports = {}
        self.spool.clear()
        self._sessions = {
            client: record
            for client, record in self._sessions.items()
            if record.epochs < self._plan.max_epochs
        }

    def receive(self, message: Message, data: Buffer) -> tuple[Kind, int] | None:
        """File a message from a client or a relay from the peer.

        Returns:
            For a public part, what the peer needs now: the arguments of `relay`.

        Raises:
            RejectedSubmission: wrong round or server, a second different message, a commitment
                that does not fit, or a full round. The client is then out of this round.
        """
        self._check_address(message)
        report = self._report_of(message.client)
        filing = bodies.FILINGS[message.kind].decode(self._plan, message.body)
        first = isinstance(filing, TreesBody | ReportBody)
        if first != (self._party == message.client % 2):
            self._reject(report, "a public part or commitment came to the wrong server")
        fingerprint, commitment = self._fingerprint(report, filing)
        if _part(report, filing).seen.get(filing.kind) == fingerprint:
            return None  # a byte-identical resend
        if isinstance(filing, AnyTrees):
            self._start_trees(report)
        part = _part(report, filing)
        if filing.kind in part.seen:
            self._reject(report, "a second, different message for the same round and phase")
        held = self.spool.hold(data)
        if held is not data:
            filing = type(filing).read(self._plan, held)
        part.seen[filing.kind] = fingerprint  # once it is held: if the disk is full, it comes again
        self._file(report, part, filing, commitment)
        if part.complete and not first:
            self._check(report, part)
        return (_RELAY_OF[filing.kind], report.client) if first else None

    def holds(self, message: Message) -> bool:
        """Whether a byte-identical message is filed. Files nothing.

        Raises:
            RejectedSubmission: wrong round or server, a rejected client, or a full round.
        """
        self._check_address(message)
        report = self._reports.get(message.client)
        if report is None:
            self._check_room()
            return False
        self._check_not_rejected(report)
        filing = bodies.FILINGS[message.kind].decode(self._plan, message.body)
        seen = _part(report, filing).seen.get(filing.kind)
        return seen == self._fingerprint(report, filing)[0]

    def relay_parts(self, kind: Kind, client: int) -> tuple[bytes, Buffer]:
        """The relay of a public part that `client` sent here: its head, and the part uncopied.

        Raises:
            RejectedSubmission: it sent none, or was rejected.
        """
        report = self._reports.get(client)
        if report is None or report.rejected or client % 2 != self._party:
            raise RejectedSubmission(f"client {client} has nothing to be relayed")
        part = report.trees.part if kind is Kind.TREES_RELAY else report.part
        if part.public is None:
            raise RejectedSubmission(f"client {client} has nothing to be relayed")
        body = part.nonces, part.public
        head = messages.header(self._plan, kind, 1 - self._party, self.round_number, client, *body)
        return head + part.nonces, part.public

    def has_trees(self, client: int) -> bool:
        """Whether a client's early trees are here and fit their commitment.

        Raises:
            RejectedSubmission: the client was rejected.
        """
        report = self._reports.get(client)
        if report is not None:
            self._check_not_rejected(report)
        record = report.trees if report is not None else self._sessions.get(client)
        return record is not None and record.part.complete

    def with_trees(self, client: int) -> Report:
        """The report of a client whose early trees are here and fit their commitment.

        Raises:
            RejectedSubmission: unknown, rejected, or not complete yet.
        """
        report = self._reports.get(client)
        if report is None and client in self._sessions:
            report = Report(client, self._sessions[client])  # asking alone opens no report
        if report is None or report.rejected or not report.trees.part.complete:
            raise RejectedSubmission(f"client {client} has no accepted trees in this round")
        return report

    def complete(self) -> dict[int, Report]:
        """Complete reports that were not rejected, by client, sorted."""
        return {
            client: report
            for client, report in sorted(self._reports.items())
            if self._is_complete(report)
        }

    def complete_from(self, client: int) -> Report | None:
        """The client's report if it is complete and was not rejected."""
        report = self._reports.get(client)
        return report if report is not None and self._is_complete(report) else None

    def fail(self, client: int) -> None:
        """Take a client whose trees failed the check out of this round, and forget the trees."""
        self._reports[client].rejected = True

    def end_round(self, accepted: tuple[int, ...]) -> None:
        """Count an epoch for accepted sessions; wipe everything else of the round.

        Trees that arrived whole are kept, unverified, where the report did not come or the round
        was abandoned: the client will not send them again.
        """
        if self._plan.max_epochs > 1:
            for client, report in self._reports.items():
                if client in accepted:
                    report.trees.verified = True
                    report.trees.epochs += 1
                if client in accepted or (report.trees.part.complete and not report.rejected):
                    report.trees.part.public = bytes(report.trees.part.public or b"")
                    self._sessions[client] = report.trees
        self._reports = {}
        self.spool.clear()

    def context(self, report: Report) -> ReportContext:
        """What the keys of a report that is here are bound to."""
        nonces = report.part.nonces
        assert nonces
        return self._context(report, nonces[:SEED_BYTES], nonces[SEED_BYTES:])

    def tree_context(self, report: Report) -> TreeContext:
        """What the early trees' keys are bound to."""
        return self._tree_context(report, report.trees.part.nonces)

    def digest(self, report: Report) -> bytes:
        """What both servers must agree on about a complete report: 32 bytes."""
        if report.digest is None:
            report.digest = kdf.digest(
                kdf.LABEL_REPORT_SET,
                self.context(report).encoded,
                bytes([report.trees.verified]),
                report.trees.part.commitment or b"",
                report.part.commitment or b"",
            )
        return report.digest

    def _is_complete(self, report: Report) -> bool:
        if report.rejected or not report.part.complete:
            return False
        return not self._early or report.trees.part.complete

    def _context(self, report: Report, nonce: bytes, hint_nonce: bytes) -> ReportContext:
        """The context of these nonces; the last one made for the report is kept."""
        kept, opening_round = report.context, report.trees.opening_round
        if kept is None or (kept.trees.opening_round, kept.trees.nonce, kept.hint_nonce) != (
            opening_round, nonce, hint_nonce,
        ):  # fmt: skip
            trees = self._tree_context(report, nonce)
            kept = report.context = ReportContext(trees, self.round_number, hint_nonce)
        return kept

    def _tree_context(self, report: Report, nonce: bytes) -> TreeContext:
        return TreeContext(self._plan, report.trees.opening_round, report.client, nonce)

    def _report_of(self, client: int) -> Report:
        if client not in self._reports:
            self._check_room()
            trees = self._sessions.get(client) or TreeRecord(self.round_number)
            self._reports[client] = Report(client, trees)
        report = self._reports[client]
        self._check_not_rejected(report)
        return report

    def _check_address(self, message: Message) -> None:
        if message.round_number != self.round_number:
            raise RejectedSubmission(
                f"message for round {message.round_number}, open is {self.round_number}"
            )
        if message.party != self._party:
            raise RejectedSubmission(f"message for server {message.party}, this is {self._party}")

    def _check_room(self) -> None:
        if len(self._reports) >= self._plan.max_clients:
            raise RejectedSubmission(
                f"the round is full: the plan allows {self._plan.max_clients} clients"
            )

    def _check_not_rejected(self, report: Report) -> None:
        if report.rejected:
            raise RejectedSubmission(f"client {report.client} was rejected in this round")

    def _start_trees(self, report: Report) -> None:
        """Trees of this round; the session they replace is forgotten only if they arrive whole."""
        if report.part.seen:
            self._reject(report, "trees after the report of the same round")
        if report.trees.opening_round != self.round_number:
            report.trees = TreeRecord(self.round_number)
        full = len(self._sessions) >= self._max_sessions
        if full and self._plan.max_epochs > 1 and report.client not in self._sessions:
            self._reject(report, f"this server holds {self._max_sessions} sessions already")

    def _reject(self, report: Report, reason: str) -> NoReturn:
        report.rejected = True
        raise RejectedSubmission(f"client {report.client}: {reason}")

    def _fingerprint(self, report: Report, filing: AnyTrees | AnyReport) -> tuple[bytes, bytes]:
        """Hash of a message, to tell a resend, and the commitment in it or to it.

        A public part is read once: it enters the fingerprint by its commitment.
        """
        if isinstance(filing, TreesCommit | ReportCommit):
            commitment = filing.commitment
        elif isinstance(filing, TreesBody | TreesRelay):
            trees = TreeContext(self._plan, self.round_number, report.client, filing.nonce)
            commitment = trees.commitment(*filing.public)
        else:
            context = self._context(report, filing.nonce, filing.hint_nonce)
            commitment = context.commitment(*filing.public)
        masked = hashlib.sha256()
        for piece in filing.masked if isinstance(filing, ReportBody) else ():
            masked.update(piece)
        return hashlib.sha256(filing.head + commitment + masked.digest()).digest(), commitment

    def _file(
        self, report: Report, part: Part, filing: AnyTrees | AnyReport, commitment: bytes
    ) -> None:
        """A client's own message, or the peer's relay of its public part."""
        if isinstance(filing, TreesRelay | ReportRelay):
            part.relayed_nonces, part.relayed_commitment = filing.head, commitment
        else:
            trees, nonce, seed = report.trees, filing.nonce, filing.master_seed
            if trees.master_seed not in (None, seed) or trees.part.nonces not in (b"", nonce):
                self._reject(report, "nonce or master seed are not those of its trees")
            hint_nonce = filing.hint_nonce if isinstance(filing, AnyReport) else b""
            trees.master_seed, part.nonces = seed, nonce + hint_nonce
            part.commitment = commitment
        if isinstance(filing, ReportBody):
            report.masked = filing.masked
        if not isinstance(filing, TreesCommit | ReportCommit):
            (part.public,) = filing.public  # a view of the message, which may be a file's
            self._check_encoding(report, part.public, filing)

    def _check_encoding(self, report: Report, public: Buffer, filing: Filing) -> None:
        """Trees are checked on arrival, so that a bad encoding costs its sender the round."""
        try:
            check_trees(self._early if isinstance(filing, AnyTrees) else self._late, public)
        except DecodeError as error:
            self._reject(report, str(error))

    def _check(self, report: Report, part: Part) -> None:
        """At the second server: the relayed part must fit what the client committed to."""
        assert part.commitment is not None
        assert part.relayed_commitment is not None
        fits = kdf.digests_equal(part.commitment, part.relayed_commitment)
        if not fits or part.relayed_nonces != part.nonces:
            self._reject(report, "the relayed public part does not fit the client's commitment")


def _part(report: Report, filing: Filing) -> Part:
    """What the filing belongs to."""
    return report.trees.part if isinstance(filing, AnyTrees) else report.part
