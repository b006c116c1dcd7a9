"""A server's book of a round: who has sent what, who is complete, who is out."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final

from torchfsl.crypto.hpke import SealKey
from torchfsl.errors import ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl import messages
from torchfsl.fsl.messages import Buffer, Header, Kind, Message
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server import filing
from torchfsl.fsl.server.reports import Report, Sessions, TreeRecord
from torchfsl.fsl.server.spool import Spool
from torchfsl.fsl.uploads import (
    UPLOADS,
    AnyReport,
    AnyTrees,
    ReportBody,
    ReportRelay,
    TreesBody,
    TreesRelay,
)

log = logging.getLogger("torchfsl.server")

MOST_ANSWERS: Final = 8
"""How often a client is sent its answer in a round, so that one that lost it may ask again."""

_RELAY_OF: Final = {Kind.TREES: Kind.TREES_RELAY, Kind.REPORT: Kind.REPORT_RELAY}


class ReportBook:
    """The reports of the open round, and the trees of live sessions, at one server.

    Attributes:
        round_number: the round that was opened last.
        spool: holds the round's messages.
    """

    def __init__(
        self, plan: Plan, party: int, *, max_sessions: int, key: SealKey | None = None
    ) -> None:
        """Start without any session; hold the trees of at most `max_sessions` clients.

        `key` opens this server's master seeds, where the plan has keys.

        Raises:
            ParameterError: the plan names another key, so that others could read the seeds.
        """
        named = plan.server_keys[party] if plan.server_keys else None
        own = key.public.hex() if key is not None else None
        if named != own:
            raise ParameterError(
                f"server_keys of the plan expects {named}, got {own} at server {party}: make a "
                "plan with the key of this server, or start the server with the key of the plan",
                code="wrong-server-key",
            )
        self._plan, self._party, self._key = plan, party, key
        self.round_number = -1
        self.spool = Spool()
        self._takes_messages, self._model = False, b""
        self._reports: dict[int, Report] = {}
        self._answers_sent: Counter[int] = Counter()
        self._sessions = Sessions(plan, max_sessions)

    @property
    def sessions(self) -> dict[int, TreeRecord]:
        """By client the trees that outlive rounds, for a server that stores them. Secret."""
        return self._sessions.records

    @property
    def num_complete(self) -> int:
        """Complete reports of the round."""
        return len(self.complete())

    # --- a round ------------------------------------------------------------------------------

    def open(self, round_number: int, model: bytes) -> None:
        """Begin a round on a model with these digests: take messages, keep sessions."""
        self.round_number, self._takes_messages, self._model = round_number, True, model
        self._reports = {}
        self._answers_sent.clear()
        self.spool.clear()
        self._sessions.begin_round()

    def receive(self, data: Buffer, header: Header | None = None) -> tuple[Kind, int] | None:
        """File a message from a client or a relay from the peer.

        Args:
            data: the message.
            header: of a message whose header was checked before.

        Returns:
            For a public share, what the peer needs now: the arguments of `relay_parts`.

        Raises:
            DecodeError: malformed, or of another plan.
            RejectedSubmission: wrong round or server, a second different message, a commitment
                that does not fit, or a full round. The client is then out of this round.
        """
        message = self._decode(data, header)
        report = self._report_of(message.client)
        body, identity, is_filed = self._compared(report, message)
        if is_filed:
            return None  # a byte-identical resend
        first = isinstance(body, TreesBody | ReportBody)
        if first != (self._party == message.client % 2):
            report.reject("a public share or commitment came to the wrong server")
        if isinstance(body, AnyTrees):
            self._sessions.start_trees(report)
        if body.kind in filing.arrivals(report, body).seen:
            report.reject_second("a second, different message for the same round and phase")
        held = self.spool.hold(data)  # filed only then: if the disk is full, it may come again
        if held is not data:
            body = type(body).read(self._plan, held)
        filing.file(report, body, identity, self._key)
        return (_RELAY_OF[body.kind], report.client) if first else None

    def holds(self, data: Buffer, header: Header | None = None) -> bool:
        """Whether exactly this message is filed, so that it need not be stored. Files nothing.

        Raises:
            DecodeError: malformed, or of another plan.
            RejectedSubmission: wrong round or server, a rejected client, or a full round.
        """
        message = self._decode(data, header)
        report = self._reports.get(message.client)
        if report is None:
            self._check_room()
            return False
        report.check_not_rejected()
        return self._compared(report, message)[2]

    def relay_parts(self, kind: Kind, client: int) -> tuple[bytes, Buffer]:
        """TREES_RELAY or REPORT_RELAY of a public share that `client` sent here.

        Returns:
            Its head, and the part itself uncopied.

        Raises:
            RejectedSubmission: it sent none, or was rejected.
        """
        self._check_open()
        report = self._reports.get(client)
        if report is None or report.rejected or client % 2 != self._party:
            raise RejectedSubmission(f"this server has no message of client {client} to relay")
        public = report.trees.public if kind is Kind.TREES_RELAY else report.public
        if public is None:
            raise RejectedSubmission(f"this server has no message of client {client} to relay")
        body: TreesRelay | ReportRelay
        if kind is Kind.TREES_RELAY:
            body = TreesRelay(report.trees.nonce, (public,))
        else:
            body = ReportRelay(report.nonce, report.hint_nonce, (public,))
        return body.head_of_message(self._plan, 1 - self._party, self.round_number, client), public

    def has_trees(self, client: int) -> bool:
        """Whether a client's early trees are here and fit their commitment: it can be answered.

        Raises:
            RejectedSubmission: the client was rejected.
        """
        self._check_open()
        report = self._reports.get(client)
        if report is not None:
            report.check_not_rejected()
        record = report.trees if report is not None else self.sessions.get(client)
        return record is not None and record.complete

    def with_trees(self, client: int) -> Report:
        """The report of a client whose early trees are here and fit their commitment.

        Raises:
            RejectedSubmission: unknown, rejected, or not complete yet.
        """
        report = self._reports.get(client)
        if report is None and client in self.sessions:
            report = self._new_report(client)  # asking alone opens no report
        if report is None or report.rejected or not report.trees.complete:
            raise RejectedSubmission(
                f"client {client} has no accepted trees in this round: "
                "send the trees first, or participate in the next round",
                code="no-accepted-keys",
            )
        return report

    def asked(self, client: int, waiting: Iterable[int]) -> tuple[Report, list[Report]]:
        """Count an answer that is about to be sent, the same bytes each time.

        Returns:
            `with_trees` of the client, and of those who wait, where they have any.

        Raises:
            RejectedSubmission: as `with_trees`; or it was sent as often as a client may ask.
        """
        report = self.with_trees(client)
        sent = self._answers_sent[client]
        if sent >= MOST_ANSWERS:
            raise RejectedSubmission(
                f"client {client} was answered {sent} times in round {self.round_number}, the "
                "maximum: participate in the next round",
                code="too-many-answers",
            )
        if sent:
            log.warning(
                "round %d: the server answers client %d again (answer %d of at most %d)",
                self.round_number,
                client,
                sent + 1,
                MOST_ANSWERS,
            )
        self._answers_sent[client] += 1
        others = []
        for other in waiting:
            with contextlib.suppress(RejectedSubmission):
                others.append(self.with_trees(other))
        return report, others

    def close(self) -> None:
        """Take no more messages."""
        self._takes_messages = False

    def complete(self) -> dict[int, Report]:
        """Complete reports that were not rejected, by client, sorted."""
        return {c: report for c, report in sorted(self._reports.items()) if report.is_complete}

    def clients(self) -> list[int]:
        """Numbers of the clients that have sent a message of the round."""
        return list(self._reports)

    def complete_from(self, client: int) -> Report | None:
        """The client's report if it is complete and was not rejected."""
        report = self._reports.get(client)
        return report if report is not None and report.is_complete else None

    def forget_messages(self) -> None:
        """Their contents have been added up; only trees that outlive the round stay."""
        for report in self._reports.values():
            report.public, report.masked = None, ()
            if self._plan.max_epochs == 1:
                report.trees.public = None
        self.spool.clear()

    def end_round(self, accepted: tuple[int, ...]) -> None:
        """Keep the sessions; wipe everything else of the round."""
        self._sessions.end_round(self._reports.values(), accepted)
        self._takes_messages = False
        self._reports = {}
        self.spool.clear()

    # --- what the methods above are made of ---------------------------------------------------

    def _report_of(self, client: int) -> Report:
        if client not in self._reports:
            self._check_room()
            self._reports[client] = self._new_report(client)
        report = self._reports[client]
        report.check_not_rejected()
        return report

    def _new_report(self, client: int) -> Report:
        trees = self._sessions.trees_of(self.round_number, client)
        return Report(
            plan=self._plan,
            round_number=self.round_number,
            client=client,
            trees=trees,
            model=self._model,
        )

    def _compared(
        self, report: Report, message: Message
    ) -> tuple[AnyTrees | AnyReport, filing.Identity, bool]:
        """A message's body, its identity, and whether exactly this message is filed."""
        body = UPLOADS[message.kind].decode(self._plan, message.body)
        identity = filing.identify(report, body)
        seen = filing.arrivals(report, body).seen.get(body.kind)
        return body, identity, seen == identity.fingerprint

    def _decode(self, data: Buffer, header: Header | None) -> Message:
        self._check_open()
        message = messages.decode(self._plan, data, *UPLOADS, header=header)
        if message.round_number != self.round_number:
            raise RejectedSubmission(
                f"the message is for round {message.round_number}, and the open round is "
                f"{self.round_number}: pass the number of the open round",
                code="wrong-round",
            )
        if message.party != self._party:
            raise RejectedSubmission(
                f"the message is for server {message.party}, and this is server {self._party}: "
                "check the order of the two servers",
                code="another-recipient",
            )
        return message

    def _check_open(self) -> None:
        if not self._takes_messages:
            raise ProtocolError(
                f"round {self.round_number} accepts no messages, and no other round is open: wait "
                "for the next round",
                code="no-open-round",
            )

    def _check_room(self) -> None:
        if len(self._reports) >= self._plan.max_clients:
            raise RejectedSubmission(
                f"the round is full, max_clients is {self._plan.max_clients}: participate in the "
                "next round, or make a plan with a larger max_clients",
                code="round-full",
            )
