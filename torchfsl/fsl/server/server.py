"""One of the two aggregation servers: the round machine.

    IDLE -> OPENING -> OPEN -> CLOSED -> AGREED -> VERIFIED -> COMMITTED -> REVEALED -> IDLE

A round opens once: both servers first compare their models, later agree on the set of reports,
check those, commit to their shares of the gathered sum, and only then reveal them. There is no
second set and no second opening. Nothing of a report leaves a server but the relayed public part,
answers to its own client, its fold, and the gathered sum over the accepted set. The aggregation
path imports no torch.
"""

from __future__ import annotations

import logging
import threading
from enum import Enum
from typing import Final, TypeVar

import numpy as np

from torchfsl.crypto import discrete_gaussian, kdf
from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.kdf import DIGEST_BYTES
from torchfsl.errors import ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl import messages
from torchfsl.fsl.bodies import (
    FILINGS,
    Body,
    ModelBody,
    ModelDigest,
    ReportSet,
    RoundDigest,
    ShareBody,
    ShareCommit,
    Verdicts,
)
from torchfsl.fsl.dpf import psr
from torchfsl.fsl.messages import Buffer, Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.privacy import Draw
from torchfsl.fsl.server.evaluation import Evaluator
from torchfsl.fsl.server.opening import decode_shares
from torchfsl.fsl.server.reports import Report, ReportBook, TreeRecord
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.plan import check_number
from torchfsl.submodel.server_model import ServerModel
from torchfsl.types import Bytes

log = logging.getLogger("torchfsl.server")

SomeBody = TypeVar("SomeBody", bound=Body)

_ANSWERING: Final = threading.Lock()
"""Held while a server of this process answers, so that the rows of the next round are not laid out
where a late answer still reads those of its own."""


class RoundState(Enum):
    """Where the server stands in a round."""

    IDLE = "idle"
    OPENING = "opening"
    OPEN = "open"
    CLOSED = "closed"
    AGREED = "agreed"
    VERIFIED = "verified"
    COMMITTED = "committed"
    REVEALED = "revealed"
    HALTED = "halted"


class Server:
    """Server `party` (0 or 1) of a task.

    Args:
        party: 0 or 1.
        plan: equal at both servers and all clients.
        model: this server's copy of the model; both servers start from the same bits.
        max_sessions: in a plan with sessions, clients whose trees are held between rounds; each
            takes `sum of segment.tree_bytes`. Leaves are not cached but expanded anew.
        draw_noise: where a plan with noise gets it from; tests inject a known one.
        last_round: the highest round number used before, by a server that is started again.
    """

    def __init__(
        self,
        party: int,
        *,
        plan: Plan,
        model: ServerModel,
        max_sessions: int = 100_000,
        draw_noise: Draw = discrete_gaussian.sample,
        last_round: int = -1,
    ) -> None:
        """Check that the model fits the plan."""
        if party not in (0, 1):
            raise ParameterError(f"party is {party!r}: the servers are 0 and 1")
        model.check(plan)
        self.party, self.plan, self.model = party, plan, model
        self.state = RoundState.IDLE
        self.last_round = last_round
        self._book = ReportBook(plan, party, max_sessions=max_sessions)
        self._evaluator = Evaluator(plan, party, self._book, draw_noise)
        self._tables: dict[str, list[Bytes]] = {}
        self._laid_out = False
        self._clear = self._coin = self._verify_key = b""
        self._digests = RoundDigest(b"", b"")
        self._accepted: tuple[int, ...] = ()
        self._may_apply = False
        self._folds: dict[int, bytes] = {}
        self._set_digest = self._share = self._salt = self._peer_commitment = b""

    # --- a round, in the order of its steps ---------------------------------------------------

    def open_round(self, round_number: int) -> bytes:
        """Begin `round_number`, above every earlier one; the digests of the model, for the peer."""
        self._expect(RoundState.IDLE)
        round_number = check_number("round_number", round_number)
        if round_number <= self.last_round:
            raise ProtocolError(f"round {round_number} is not above {self.last_round}: opened once")
        self.last_round, self._may_apply = round_number, False
        self._book.open(round_number)
        rows = b"".join(self.model.rows(s).data for s in self.plan.retrieving)
        self._clear = b"".join(
            np.ascontiguousarray(self.model.state[t.name]).tobytes()
            for t in self.plan.clear_tensors
        )
        self._digests = RoundDigest.of(self._clear, rows)
        self.state = RoundState.OPENING
        return self._to_peer(self._digests)

    def start(self, peer_state: bytes) -> None:
        """Accept messages, once the peer has shown that it holds the same model.

        Raises:
            ProtocolError: it does not. The server halts: no answer leaves it any more.
        """
        self._expect(RoundState.OPENING)
        if not self._digests.equals(self._from_peer(RoundDigest, peer_state)):
            self.state = RoundState.HALTED
            raise ProtocolError(
                "the servers hold different models: the session halts; restore both from the last "
                "common state"
            )
        self.state = RoundState.OPEN

    def receive(self, message: Buffer) -> tuple[Kind, int] | None:
        """Take a client's message or the peer's relay; see `ReportBook.receive`."""
        self._expect(RoundState.OPEN)
        decoded = messages.decode(self.plan, message, *FILINGS)
        due = self._book.receive(decoded, message)
        report = self._book.complete_from(decoded.client)
        if report is not None:
            self._evaluator.sums.take(report)
        return due

    def holds(self, message: Buffer) -> bool:
        """Whether exactly this message was received in the open round; nothing is filed.

        Raises:
            RejectedSubmission: the message could only be refused; see `ReportBook.holds`.
        """
        self._expect(RoundState.OPEN)
        return self._book.holds(messages.decode(self.plan, message, *FILINGS))

    def relay(self, kind: Kind, client: int) -> bytes:
        """TREES_RELAY or REPORT_RELAY for the peer, of what `client` sent here."""
        return b"".join(self.relay_parts(kind, client))

    def relay_parts(self, kind: Kind, client: int) -> tuple[bytes, Buffer]:
        """The same as its head and the public part, which is a view of the client's message."""
        self._expect(RoundState.OPEN)
        return self._book.relay_parts(kind, client)

    def has_trees(self, client: int) -> bool:
        """Whether `client` can be answered; see `ReportBook.has_trees`."""
        self._expect(RoundState.OPEN)
        return self._book.has_trees(client)

    @property
    def sessions(self) -> dict[int, TreeRecord]:
        """By client the trees that outlive rounds, for a server that stores them. Secret."""
        return self._book.sessions

    @property
    def open_number(self) -> int | None:
        """The round that takes messages; None while there is none."""
        return self.last_round if self.state is RoundState.OPEN else None

    @property
    def num_complete(self) -> int:
        """Complete reports in the open round."""
        return len(self._book.complete())

    def reply(self, kind: Kind, round_number: int, client: int) -> bytes:
        """MODEL, MODEL_DIGEST or ANSWER for a client of the open round."""
        with _ANSWERING:
            self._expect(RoundState.OPEN)
            if round_number != self.last_round:
                raise RejectedSubmission(f"round {round_number} is not open")
            digests = ModelDigest(self._digests.clear, self._digests.rows)
            body: Body
            if kind is Kind.ANSWER:
                body = self._evaluator.answer(client, self._row_tables())
            elif kind is Kind.MODEL:
                body = ModelBody(digests, self._clear)
            elif kind is Kind.MODEL_DIGEST:
                body = digests
            else:
                raise RejectedSubmission(f"{kind.name} is nothing a client can ask for")
            return body.message(self.plan, self.party, round_number, client)

    def close_round(self, *, coin: bytes = b"") -> bytes:
        """Take no more reports; a coin and the list of complete reports, for the peer.

        A server that was started again inside the round hands in the coin that it drew before.
        """
        self._expect(RoundState.OPEN)
        self.state = RoundState.CLOSED
        self._coin = coin or random_bytes(DIGEST_BYTES)
        entries = tuple((c, self._book.digest(r)) for c, r in self._book.complete().items())
        return self._to_peer(ReportSet(self._coin, entries))

    def agree(self, peer_set: bytes) -> bytes:
        """Keep the reports that both servers hold with equal digests; their folds, for the peer.

        Raises:
            ProtocolError: fewer than `min_clients`; the round ends unopened.
        """
        self._expect(RoundState.CLOSED)
        theirs = self._from_peer(ReportSet, peer_set)
        entries = dict(theirs.entries)
        own = self._book.complete()
        agreed = tuple(
            c for c, report in own.items() if entries.get(c) == self._book.digest(report)
        )
        self._accept(agreed, own)
        coins = sorted([self._coin, theirs.coin])
        self._verify_key = kdf.digest(kdf.LABEL_FOLD, self._set_digest, *coins)
        self._folds = self._evaluator.folds({c: own[c] for c in agreed}, self._verify_key)
        self.state = RoundState.AGREED
        return self._to_peer(Verdicts(tuple(self._folds.values())))

    def verify(self, peer_verdicts: bytes) -> tuple[int, ...]:
        """Keep the reports whose folds agree: the accepted clients.

        Raises:
            ProtocolError: fewer than `min_clients`, or the peer agreed on another set.
        """
        self._expect(RoundState.AGREED)
        theirs = self._from_peer(Verdicts, peer_verdicts).folds
        if len(theirs) != len(self._folds):
            self._end(())
            raise ProtocolError("the servers agree on different sets of reports: nothing is opened")
        passed = tuple(
            client
            for (client, fold), other in zip(self._folds.items(), theirs, strict=True)
            if kdf.digests_equal(fold, other)
        )
        if passed != self._accepted:
            for client in set(self._accepted) - set(passed):
                log.warning("round %d: client %d failed verification", self.last_round, client)
                self._book.fail(client)
            self._accept(passed, self._book.complete())
        self.state = RoundState.VERIFIED
        return passed

    def commit(self, *, salt: bytes = b"", share: bytes = b"") -> bytes:
        """Aggregate the accepted reports; a commitment to this server's share, for the peer.

        A server that was started again after it committed hands in the salt and the share of
        `committed`: with other noise in the share, the difference would be a second opening.
        """
        self._expect(RoundState.VERIFIED)
        reports = self._book.complete()
        self._share = share or self._evaluator.share([reports[c] for c in self._accepted])
        self._salt = salt or random_bytes(DIGEST_BYTES)
        self.state = RoundState.COMMITTED
        return self._to_peer(ShareCommit(self._commitment(self.party, self._salt, self._share)))

    def committed(self) -> tuple[bytes, bytes]:
        """Salt and share behind the commitment, to be stored before the commitment is sent."""
        self._expect(RoundState.COMMITTED)
        return self._salt, self._share

    def reveal(self, peer_commitment: bytes) -> bytes:
        """Once the peer has committed: this server's share, for the peer."""
        self._expect(RoundState.COMMITTED)
        self._peer_commitment = self._from_peer(ShareCommit, peer_commitment).commitment
        self.state = RoundState.REVEALED
        return self._to_peer(ShareBody(self._salt, self._share))

    def open(self, peer_share: bytes) -> Opened:
        """Add the peer's share: the exact sums. Ends the round and wipes its reports.

        Raises:
            ProtocolError: the share is not the one committed to, or over another set.
        """
        self._expect(RoundState.REVEALED)
        theirs = self._from_peer(ShareBody, peer_share)
        own, clients, expected = self._share, self._accepted, self._peer_commitment
        fits = kdf.digests_equal(
            expected, self._commitment(1 - self.party, theirs.salt, theirs.sums)
        )
        self._end(clients)
        if not fits:
            raise ProtocolError("the peer's share does not fit its commitment: nothing is applied")
        self._may_apply = True
        return decode_shares(self.plan, own, theirs.sums, clients)

    def apply(self, opened: Opened) -> None:
        """Update this server's model with the opened sums, once a round.

        Raises:
            ProtocolError: no sums were opened since the last call.
        """
        self._expect(RoundState.IDLE)
        if not self._may_apply:
            raise ProtocolError("these sums were applied already, or never opened: open a round")
        self._may_apply = False
        self.model.apply(self.plan, opened)

    def abandon_round(self) -> None:
        """End the round unopened, whatever its state; its number is spent all the same."""
        if self.state is not RoundState.HALTED:
            self._end(())

    # --- what the steps above are made of -----------------------------------------------------

    def _expect(self, state: RoundState) -> None:
        if self.state is not state:
            raise ProtocolError(f"the round is {self.state.value}, this step needs {state.value}")

    def _accept(self, clients: tuple[int, ...], reports: dict[int, Report]) -> None:
        """Take `clients` as the set; its digest binds the verify key and both shares."""
        if len(clients) < self.plan.min_clients:
            self._end(())
            raise ProtocolError(
                f"{len(clients)} acceptable reports, the plan wants {self.plan.min_clients}: "
                "the round closes unopened"
            )
        parts = [self._book.digest(reports[client]) for client in clients]
        self._accepted = clients
        self._set_digest = kdf.digest(kdf.LABEL_REPORT_SET, self.plan.digest, *parts)

    def _end(self, accepted: tuple[int, ...]) -> None:
        self._book.end_round(accepted)
        self._evaluator.sums.reset()
        self._laid_out, self._folds, self._accepted = False, {}, ()
        self._share = self._salt = self._clear = self._verify_key = b""
        self.state = RoundState.IDLE

    def _to_peer(self, body: Body) -> bytes:
        return body.message(self.plan, 1 - self.party, self.last_round)

    def _from_peer(self, body: type[SomeBody], data: bytes) -> SomeBody:
        message = messages.decode(self.plan, data, body.kind)
        if (message.party, message.round_number) != (self.party, self.last_round):
            raise ProtocolError("the peer's message is for another server or round")
        return body.decode(self.plan, message.body)

    def _commitment(self, party: int, salt: bytes, share: Buffer) -> bytes:
        head = bytes([party]), self._set_digest, salt
        return kdf.digest(kdf.LABEL_SHARE, *head, pieces=[share])

    def _row_tables(self) -> dict[str, list[Bytes]]:
        """Tables for retrieval: laid out once a round, in memory that is kept between rounds."""
        if not self._laid_out:
            for segment in self.plan.retrieving:
                if segment.name not in self._tables:
                    self._tables[segment.name] = psr.empty_tables(segment)
                rows, tables = self.model.rows(segment), self._tables[segment.name]
                psr.lay_out(self.plan, segment, rows, tables)
            self._laid_out = True
        return self._tables
