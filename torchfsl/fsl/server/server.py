"""One of the two aggregation servers: the round machine.

A round opens once: both servers first compare their models, later agree on the set of reports,
check those, commit to their shares of the gathered sum, and only then reveal them. There is no
second set and no second opening. Nothing of a report leaves a server but the relayed public share,
answers to its own client, its fold, and the gathered sum over the accepted set. The aggregation
path imports no torch.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable
from typing import Final

from torchfsl.crypto import discrete_gaussian
from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.hpke import SealKey
from torchfsl.crypto.kdf import DIGEST_BYTES
from torchfsl.crypto.secret_holder import SecretHolder
from torchfsl.crypto.signing import SignKey
from torchfsl.errors import ProtocolError, RejectedSubmission
from torchfsl.fsl import bodies, messages
from torchfsl.fsl.messages import Buffer, Header, Kind
from torchfsl.fsl.noise import Draw, KeyedNoise, noise_values
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.audited import AuditedRound, Secrets, check_key, stated
from torchfsl.fsl.server.book import ReportBook
from torchfsl.fsl.server.commitments import SALT_BYTES
from torchfsl.fsl.server.evaluation import LocalEvaluator, MakeEvaluator, share_of
from torchfsl.fsl.server.fetching import Fetches
from torchfsl.fsl.server.opening import Opening
from torchfsl.fsl.server.reports import Report
from torchfsl.fsl.server.states import INSTEAD, RoundState, Step, check_parts, new_round_number
from torchfsl.fsl.uploads import FETCHES, UPLOADS
from torchfsl.submodel.correlated_noise import CorrelatedNoise
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.participation import Participation, check_rounds
from torchfsl.submodel.rounds import ApplyOnce, abandoned_on_error, expect_state
from torchfsl.submodel.server_model import ServerModel

_ANSWERING: Final = threading.Lock()
"""Held while a server here answers or changes its model: no answer reads rows of the next round."""


class Server(SecretHolder):
    """Server `party` (0 or 1) of a task.

        S_a                                                         S_b

    open_round  -- ROUND_STATE ------------>|<------------ ROUND_STATE --  open_round
    start                           are the models equal?                  start
                clients' messages, relays and replies: see `ClientRound`
    close_round -- REPORT_SET ------------->|<------------- REPORT_SET --  close_round
    agree       -- VERDICTS --------------->|<--------------- VERDICTS --  agree
    verify                     which reports passed the check?             verify
    commit      -- SHARE_COMMIT ----------->|<----------- SHARE_COMMIT --  commit
    hear_commit -- AUDIT_PASS ------------->|<------------- AUDIT_PASS --  hear_commit
    reveal      -- SHARE ------------------>|<------------------ SHARE --  reveal
    open                              the sums, once                       open
    apply                                                                  apply

    Both servers do the same; `Step` has the states. The line of `hear_commit` is of plans with an
    audit: the pass is of the speaker's own auditor, for whom it made a `transcript`.

    Attributes:
        state: where the server stands in a round.
        last_round: the number of the round that was begun last.
        reports, fetches: what has arrived in it, and outside any round.
        participation: how many sums hold a report of each client, and the last of them.
        noise: of a plan with `noise_taps`, what was added in past rounds; else None.
        audit: of a plan with an audit, the round that was begun last; else None.
        peer_noise: of such a plan with `noise_taps`, the least noise index that the peer may state.
        secrets: of that round, 96 bytes, for a server that is started again. Secret.

    Args:
        party: 0 or 1.
        plan: equal at both servers and all clients; no other pair of servers has it.
        model: this server's copy of the model; both servers start bit-identical.
        max_sessions: in a plan with sessions, clients whose trees are held between rounds; each
            takes `sum of segment.tree_bytes`. Leaves are not cached but expanded anew.
        draw_noise: gives the noise of a plan that has any; the discrete Gaussian when None.
        last_round: the highest round number used before, by a server that is started again.
        rounds_opened: rounds in which it revealed its share before, likewise.
        max_fetches: how often a client may fetch from one model, see `Client.fetch`.
        key: opens the master seeds of a plan with `server_keys`, of which one is its public half.
        evaluator: makes what computes from reports; in this process unless told otherwise.
        sign_key: signs the rounds of a plan with an audit, of which `audit_keys` has the public
            half. The noise of such a plan follows from secrets of the round, and `draw_noise` is
            not asked.
    """

    _instead = INSTEAD

    def __init__(
        self,
        party: int,
        *,
        plan: Plan,
        model: ServerModel,
        max_sessions: int = 100_000,
        draw_noise: Draw | None = None,
        last_round: int = -1,
        rounds_opened: int = 0,
        key: SealKey | None = None,
        max_fetches: int = 16,
        evaluator: MakeEvaluator = LocalEvaluator,
        sign_key: SignKey | None = None,
    ) -> None:
        """Check that model and keys fit the plan, or raise ParameterError; get memory."""
        check_parts(party, plan, model)
        check_key(plan, party, sign_key)
        model.check(plan)
        model.make_room(plan)
        self.party, self.plan, self.model, self.state = party, plan, model, RoundState.IDLE
        self.last_round, self.rounds_opened = last_round, rounds_opened
        self.reports = ReportBook(plan, party, max_sessions=max_sessions, key=key)
        draw = discrete_gaussian.sample if draw_noise is None else draw_noise
        self.audit: AuditedRound | None = None
        self.secrets, self.sign_key, self._keyed = b"", sign_key, KeyedNoise()
        self.peer_noise = 0
        if plan.audited:
            draw = self._keyed
        self.participation = Participation(plan.max_participations, plan.min_separation)
        self.noise: CorrelatedNoise | None = None
        if plan.noise_taps:
            draw = self.noise = CorrelatedNoise(plan.noise_taps, noise_values(plan), draw)
        self._evaluator = evaluator(plan, party, draw, self.reports.spool.release)
        self.fetches, self._opening = Fetches(plan, party, key, max_fetches), Opening(plan, party)
        self._digests = bodies.RoundDigest(b"", b"")
        self._clear, self._applied = b"", ApplyOnce()

    def __repr__(self) -> str:
        return f"Server(party={self.party}, {self.state.value}, last_round={self.last_round})"

    # --- a round, in the order of its steps ---------------------------------------------------

    def open_round(self, round_number: int, *, secrets: bytes = b"", noise: bytes = b"") -> bytes:
        """Begin `round_number`, above every earlier one; the digests of the model, for the peer.

        A server that was started again inside the round hands in its `secrets`, and the `noise` of
        its ROUND_STATE.
        """
        expect_state(self.state, Step.OPEN_ROUND.before)
        round_number = new_round_number(round_number, self.last_round)
        check_rounds(self.plan, self.rounds_opened)
        self.last_round, self._applied = round_number, ApplyOnce()
        self._clear = self.model.clear_bytes(self.plan)
        self._digests = bodies.RoundDigest.of(self._clear, self.model.row_bytes(self.plan))
        if self.plan.audited:
            own = Secrets.decode(secrets)
            self.secrets = own.encoded
            self.audit = AuditedRound(self.plan, self.party, round_number)
            if self.noise is not None:
                noise = noise or stated(self.noise, self.rounds_opened)
            says = {"promises": self.audit.promises(own), "noise": noise}
            self._digests = dataclasses.replace(self._digests, **says)
        return self._done(Step.OPEN_ROUND, self._digests)

    def start(self, peer_state: bytes) -> None:
        """Accept messages, once the peer has shown that it holds the same model.

        Args:
            peer_state: what `open_round` of the peer returned.

        Raises:
            ProtocolError: if it does not. The server halts: no answer leaves it any more. Or if the
                peer states a noise index again: the round ends unopened.
        """
        expect_state(self.state, Step.START.before)
        if not self._digests.equals(bodies.RoundDigest.from_peer(self, peer_state)):
            self.state = RoundState.HALTED
            raise ProtocolError(
                "the servers hold different models, so the session halts: start a new task from "
                "the model of one, never from older copies of their states",
                code="models-differ",
            )
        self._note(1 - self.party, peer_state)
        if self.audit is not None and self.noise is not None:
            with abandoned_on_error(self, on=ProtocolError):
                self.audit.check_peer_noise(self.peer_noise)
        self.reports.open(self.last_round, self._digests.clear + self._digests.rows)
        self.state = Step.START.after

    def receive(self, message: Buffer, header: Header | None = None) -> tuple[Kind, int] | None:
        """Take a client's message or the peer's relay; see `ReportBook.receive`.

        `header` is that of a message that was checked before.
        """
        if messages.is_one_of(message, FETCHES):
            return self.fetches.at(self.state).receive(message, header)
        expect_state(self.state, Step.RECEIVE.before)
        if header is None:
            header = messages.decode_header(self.plan, message, *UPLOADS)
        self.participation.check(header.client, self.rounds_opened)
        due = self.reports.receive(message, header)
        report = self.reports.complete_from(header.client)
        if report is not None:
            self._evaluator.take(report)
        return due

    def relay(self, kind: Kind, client: int) -> bytes:
        """The relay of `kind` for the peer, of what `client` sent here.

        Args:
            kind: TREES_RELAY, REPORT_RELAY or FETCH_RELAY.
            client: number of the client.
        """
        if kind is Kind.FETCH_RELAY:
            return self.fetches.at(self.state).relay(client)
        expect_state(self.state, Step.RELAY.before)
        return b"".join(self.reports.relay_parts(kind, client))

    @property
    def open_number(self) -> int | None:
        """The round that takes messages; None while there is none."""
        return self.last_round if self.state is RoundState.OPEN else None

    def reply(
        self, kind: Kind, round_number: int, client: int, waiting: Iterable[int] = ()
    ) -> bytes:
        """The message of `kind` for a client of the open round.

        Args:
            kind: MODEL, MODEL_DIGEST or ANSWER; FETCH_MODEL or FETCH_ANSWER for a fetch.
            round_number: number of the open round.
            client: number of the client.
            waiting: numbers of other clients that wait for an ANSWER.

        Raises:
            RejectedSubmission: if `round_number` is not open.
        """
        with _ANSWERING:
            if kind in (Kind.FETCH_MODEL, Kind.FETCH_ANSWER):
                return self.fetches.at(self.state).reply(kind, client, self.model)
            expect_state(self.state, Step.REPLY.before)
            if round_number != self.last_round:
                raise RejectedSubmission(
                    f"round {round_number} is not open: wait for the next round",
                    code="no-open-round",
                )
            digests = bodies.ModelDigest(self._digests.clear, self._digests.rows)
            body: bodies.Body
            if kind is Kind.ANSWER:
                report, others = self.reports.asked(client, waiting)
                body = self._evaluator.answer(report, self.model, others)
            elif kind is Kind.MODEL:
                body = bodies.ModelBody(digests, self._clear)
            elif kind is Kind.MODEL_DIGEST:
                body = digests
            else:
                raise RejectedSubmission(f"a client cannot ask for {kind.name}")
            return body.message(self.plan, self.party, round_number, client)

    def close_round(self, *, coin: bytes = b"") -> bytes:
        """Take no more reports. Returns a coin and the list of complete reports, for the peer.

        A server that was started again inside the round hands in the coin that it drew before.
        """
        expect_state(self.state, Step.CLOSE_ROUND.before)
        self.reports.close()
        self._evaluator.close()
        if self.audit is not None:
            coin = Secrets.decode(self.secrets).coin
        self._opening = Opening(self.plan, self.party, coin or random_bytes(DIGEST_BYTES))
        entries = tuple((c, report.digest()) for c, report in self._complete().items())
        return self._done(Step.CLOSE_ROUND, bodies.ReportSet(self._opening.coin, entries))

    def agree(self, peer_set: bytes) -> bytes:
        """Keep the reports that both servers hold with equal digests.

        Args:
            peer_set: what `close_round` of the peer returned.

        Returns:
            The folds of these reports, for the peer.

        Raises:
            ProtocolError: if they are fewer than `min_clients`, or the peer's clients do not rise;
                the round ends unopened.
        """
        expect_state(self.state, Step.AGREE.before)
        peer_reports, opening = bodies.ReportSet.from_peer(self, peer_set), self._opening
        self._note(1 - self.party, peer_set)
        with abandoned_on_error(self, on=ProtocolError):
            if self.audit is not None:
                self.audit.check_peer_coin("coin")
            verify_key = opening.agree(self._complete(), peer_reports)
        opening.folds = self._evaluator.folds(opening.accepted, verify_key)
        coin = b""
        if self.audit is not None:
            self.audit.reports = opening.accepted
            self.audit.set_digest = opening.set_digest
            coin = Secrets.decode(self.secrets).noise_coin
        return self._done(Step.AGREE, bodies.Verdicts(tuple(opening.folds.values()), coin))

    def verify(self, peer_verdicts: bytes) -> tuple[int, ...]:
        """Keep the reports whose folds agree.

        Args:
            peer_verdicts: what `agree` of the peer returned.

        Returns:
            The numbers of the accepted clients.

        Raises:
            ProtocolError: if they are fewer than `min_clients`, or the peer agreed on another set;
                the round ends unopened.
        """
        expect_state(self.state, Step.VERIFY.before)
        peer_folds = bodies.Verdicts.from_peer(self, peer_verdicts)
        self._note(1 - self.party, peer_verdicts)
        with abandoned_on_error(self, on=ProtocolError):
            if self.audit is not None:
                self.audit.check_peer_coin("noise_coin")
            self._opening.verify(peer_folds)
        if self.audit is not None:
            self._keyed.begin(self.audit.noise_key(Secrets.decode(self.secrets).noise))
        self.state = Step.VERIFY.after
        return tuple(self._opening.accepted)

    def commit(self, *, salt: bytes = b"", share: Buffer = b"") -> bytes:
        """Aggregate the accepted reports. Returns a commitment to the share, for the peer.

        A server that was started again after it committed hands in the salt and the share of
        `committed`: with other noise in the share, the difference would be a second opening.

        Raises:
            ProtocolError: noise of past rounds that it has stated is lost. The round ends unopened.
        """
        expect_state(self.state, Step.COMMIT.before)
        if self.noise is not None and not share:
            past = None if self.audit is None else self.audit.past_noise()[1]
            with abandoned_on_error(self, on=ProtocolError):
                self.noise.begin(self.rounds_opened, self.last_round, past)
        share = share or share_of(self._evaluator, self._opening.accepted.values(), self.reports)
        size = SALT_BYTES if self.plan.opens_counts_first else DIGEST_BYTES
        says = self._opening.commit(share, salt or random_bytes(size))
        if self.audit is not None and self.sign_key is not None:
            says = self.audit.signed(self.sign_key, says.commitment)
        return self._done(Step.COMMIT, says)

    def committed(self) -> tuple[bytes, Buffer]:
        """Salt and share behind the commitment, to be stored before the commitment is sent.

        Under an audit a `transcript` must also be made and sealed before.
        """
        expect_state(self.state, Step.REVEAL.before)
        return self._opening.salt, self._opening.share

    def hear_commit(self, peer_commitment: bytes) -> None:
        """Under an audit, once the peer has committed: wait for its auditor's pass.

        Args:
            peer_commitment: what `commit` of the peer returned.

        Raises:
            ProtocolError: if it did not sign this server's record, and the round ends unopened; or
                if the plan has no audit.
        """
        expect_state(self.state, Step.HEAR_COMMIT.before)
        said = bodies.ShareCommit.from_peer(self, peer_commitment)
        if self.audit is None:
            raise ProtocolError("this plan has no audit: call reveal()", code="wrong-step")
        with abandoned_on_error(self, on=ProtocolError):
            self.audit.take_commit(said)
        self.state = Step.HEAR_COMMIT.after

    def reveal(self, peer_commitment: bytes) -> bytes:
        """Once the peer has committed: this server's share, for the peer.

        Args:
            peer_commitment: what `commit` of the peer returned; under an audit, the peer's
                AUDIT_PASS.

        Raises:
            ProtocolError: if its auditor has not signed it: the round ends unopened. Or if the plan
                opens the counts first.
        """
        if self.plan.opens_counts_first:
            raise ProtocolError("this plan opens the counts first: call reveal_counts()")
        share = self._opening.reveal(self._fixed(peer_commitment))
        self._charge()
        return self._done(Step.REVEAL, share)

    def reveal_counts(self, peer_commitment: bytes) -> bytes:
        """This server's share of the counts, for the peer; `peer_commitment` is that of `reveal`.

        Raises:
            ProtocolError: as `reveal`, or if the plan opens all at once.
        """
        if not self.plan.opens_counts_first:
            raise ProtocolError("this plan opens all at once: call reveal()", code="wrong-step")
        counts = self._opening.reveal_counts(self._fixed(peer_commitment))
        self._charge()
        return self._done(Step.REVEAL_COUNTS, counts)

    def reveal_kept(self, peer_counts: bytes) -> bytes:
        """Once the counts are open: this server's share of the rows that enough clients sent.

        Args:
            peer_counts: what `reveal_counts` of the peer returned.

        Raises:
            ProtocolError: if they are not those that the peer committed to; the round ends
                unopened.
        """
        expect_state(self.state, Step.REVEAL_KEPT.before)
        counts = bodies.CountsBody.from_peer(self, peer_counts)
        with abandoned_on_error(self, on=ProtocolError):
            share = self._opening.reveal_kept(counts)
        return self._done(Step.REVEAL_KEPT, share)

    def open(self, peer_share: bytes) -> Opened:
        """Add the peer's share: the exact sums. Ends the round and wipes its reports.

        Args:
            peer_share: what `reveal` or `reveal_kept` of the peer returned.

        Raises:
            ProtocolError: if the share is not the one committed to, or over another set. Or if no
                reports with proofs that hold add up to the sum: a server has lied, and this one
                halts.
        """
        expect_state(self.state, Step.OPEN.before)
        share, opening = bodies.ShareBody.from_peer(self, peer_share), self._opening
        audit = self.audit
        _end(self, tuple(opening.accepted))
        try:
            opened = opening.open(share)
        except ProtocolError as error:
            if error.code == "sum-beyond-bound":
                self.state = RoundState.HALTED
            raise
        if audit is not None and self.noise is not None:
            self.peer_noise = audit.check_peer_noise(self.peer_noise) + 1
        self._applied.given = True
        return opened

    def apply(self, opened: Opened) -> None:
        """Update this server's model with the aggregates, once per round.

        Raises:
            ProtocolError: no sums were opened since the last call.
        """
        expect_state(self.state, Step.APPLY.before)
        self._applied.take()
        with _ANSWERING:  # tables may be views of the model
            self.model.apply(self.plan, opened)
            self.fetches.forget()

    def abandon_round(self) -> None:
        """End the round unopened, whatever its state; its number is spent."""
        if self.state is not RoundState.HALTED:
            _end(self, ())

    # --- what the steps above are made of -----------------------------------------------------

    def _complete(self) -> dict[int, Report]:
        """Complete reports of clients that the plan allows in this round, by client."""
        allows, index = self.participation.allows, self.rounds_opened
        return {c: r for c, r in self.reports.complete().items() if allows(c, index)}

    def _charge(self) -> None:
        """The share may leave now: charge its clients and the budget of rounds."""
        self.participation.charge(self._opening.accepted, self.rounds_opened)
        self.rounds_opened += 1
        if self.audit is not None and self.noise is not None:  # the index does not go back from now
            self.peer_noise = self.audit.check_peer_noise(self.peer_noise)

    def _fixed(self, message: bytes) -> bodies.ShareCommit:
        """The peer's commitment; under an audit once the message is a pass for it."""
        expect_state(self.state, (Step.HEAR_COMMIT.after if self.audit else Step.REVEAL.before))
        if self.audit is None:
            return bodies.ShareCommit.from_peer(self, message)
        said = bodies.AuditPass.from_peer(self, message)
        with abandoned_on_error(self, on=ProtocolError):
            self.audit.check_pass(1 - self.party, said.signature, self.audit.peer_commit.commitment)
        return self.audit.peer_commit

    def _note(self, speaker: int, message: bytes) -> None:
        if self.audit is not None:
            self.audit.note(speaker, message)

    def _done(self, step: Step, says: bodies.Body) -> bytes:
        """The message for the peer that ends a step."""
        self.state = step.after
        message = says.message(self.plan, 1 - self.party, self.last_round)
        self._note(self.party, message)
        return message


def _end(server: Server, accepted: tuple[int, ...]) -> None:
    server.reports.end_round(accepted)
    server._evaluator.end()
    server._opening, server._clear = Opening(server.plan, server.party), b""
    server.audit, server.secrets = None, b""
    server.state = RoundState.IDLE
