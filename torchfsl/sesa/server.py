"""The server carries boxes that it cannot read, and opens the sums of the survivors once.

    step            state after   what it takes
    open_round      ENROLLING     HELLO
    seal            OPEN          SHARES, MASKED
    close_round     ANSWERING     ANSWER
    open            IDLE          nothing

A client survives if both its SHARES and its MASKED arrived before `close_round`. K + T answers of
survivors open the sums. The server follows the protocol but is curious. It sees the sums, which
clients participated with which width, and which clients dropped out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from torchfsl.crypto import kdf
from torchfsl.crypto.field import WORD_BYTES, Words, from_bytes
from torchfsl.crypto.kdf import DIGEST_BYTES, SEED_BYTES
from torchfsl.errors import DecodeError, ProtocolError, RejectedSubmission
from torchfsl.sesa import messages
from torchfsl.sesa.channels import check_key
from torchfsl.sesa.coding import open_sums, parts_of
from torchfsl.sesa.cohort import Cohort, Member, check_survivors
from torchfsl.sesa.messages import Kind, Message
from torchfsl.sesa.sesa_plan import SesaPlan
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.rounds import ApplyOnce, abandoned_on_error, expect_state, new_round_number
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.whole_model import encode_model


class RoundState(Enum):
    """The step of a round that the server is in."""

    IDLE = "idle"
    ENROLLING = "enrolling"
    OPEN = "open"
    ANSWERING = "answering"


_TAKES: Final = {
    RoundState.IDLE: (),
    RoundState.ENROLLING: (Kind.HELLO,),
    RoundState.OPEN: (Kind.SHARES, Kind.MASKED),
    RoundState.ANSWERING: (Kind.ANSWER,),
}
_GIVES: Final = {
    RoundState.IDLE: (),
    RoundState.ENROLLING: (),
    RoundState.OPEN: (Kind.COHORT, Kind.MODEL),
    RoundState.ANSWERING: (Kind.SURVIVORS, Kind.RELAY),
}
_FROM_CLIENTS: Final = (Kind.HELLO, Kind.SHARES, Kind.MASKED, Kind.ANSWER)


@dataclass
class _Round:
    """The server's data of a round: bodies of messages by kind and client."""

    bodies: dict[Kind, dict[int, memoryview]] = field(
        default_factory=lambda: {kind: {} for kind in _FROM_CLIENTS}
    )
    cohort: Cohort | None = None
    survivors: tuple[int, ...] = ()
    digest: bytes = b""
    masked: bytes = b""


class Server:
    """The server of a task.

    Args:
        plan: equal at the server and all clients.
        model: the model.
        last_round: the highest round number used before, by a server that is started again.
    """

    def __init__(self, *, plan: SesaPlan, model: ServerModel, last_round: int = -1) -> None:
        """Check that the model fits the plan."""
        model.check(plan)
        self.plan, self.model, self.last_round = plan, model, last_round
        self.state = RoundState.IDLE
        self._round = _Round()
        self._applied = ApplyOnce()

    # --- a round, in the order of its steps ---------------------------------------------------

    def open_round(self, round_number: int) -> None:
        """Begin `round_number`, above every earlier one: clients may enter."""
        expect_state(self.state, RoundState.IDLE)
        self.last_round = new_round_number(round_number, self.last_round)
        self._applied, self._round = ApplyOnce(), _Round()
        self.state = RoundState.ENROLLING

    def seal(self) -> tuple[int, ...]:
        """Take no more clients.

        Returns:
            The numbers of the clients that entered.

        Raises:
            ProtocolError: if the plan refuses a round of these; it ends unopened.
        """
        expect_state(self.state, RoundState.ENROLLING)
        hellos = self._round.bodies[Kind.HELLO]
        members = [Member(c, *messages.HELLO.unpack(hellos[c])) for c in sorted(hellos)]
        with abandoned_on_error(self, on=ProtocolError):
            self._round.cohort = Cohort.checked(self.plan, members)
        self.state = RoundState.OPEN
        return tuple(member.client for member in members)

    def receive(self, message: bytes) -> None:
        """Take a client's message. The same one again changes nothing.

        Raises:
            DecodeError: malformed bytes.
            RejectedSubmission: another round's, not of a client of the plan, too early or
                late, or a second one that differs from the first.
        """
        decoded = messages.decode(self.plan, message, *_FROM_CLIENTS)
        kind, client = decoded.kind, decoded.client
        if decoded.round_number != self.last_round or kind not in _TAKES[self.state]:
            now = f"round {self.last_round} is {self.state.value}"
            raise RejectedSubmission(
                f"{kind.name} is for round {decoded.round_number}, and "
                f"{'no round has begun' if self.last_round < 0 else now}",
                code="wrong-round",
            )
        self._check(decoded)
        known = self._round.bodies[kind].setdefault(client, decoded.body)
        if known != decoded.body:
            raise RejectedSubmission(
                f"client {client} sent two different messages {kind.name}: "
                "give each client its own number",
                code="conflicting-message",
            )

    def reply(self, kind: Kind, round_number: int, client: int) -> bytes:
        """The message of `kind` for a member of the round.

        Args:
            kind: COHORT, MODEL, SURVIVORS or RELAY.
            round_number: number of the open round.
            client: number of the client.

        Raises:
            RejectedSubmission: if the state does not offer it, or not to this client.
        """
        if round_number != self.last_round or kind not in _GIVES[self.state]:
            raise RejectedSubmission(
                f"the server does not send {kind.name} while the round is {self.state.value}",
                code="wrong-step",
            )
        cohort, place = self._member(client)
        parts: list[bytes | memoryview]
        if kind is Kind.COHORT:
            parts = [cohort.encode()]
        elif kind is Kind.MODEL:
            parts = [*encode_model(self.plan, self.model.state)]
        elif place not in self._round.survivors:
            raise RejectedSubmission(
                f"client {client} dropped out of round {round_number}: "
                "participate in the next round"
            )
        elif kind is Kind.SURVIVORS:
            parts = [self._round.masked]
        else:
            parts = self._boxes_to(cohort, place)
        return messages.encode(self.plan, kind, round_number, client, *parts)

    def close_round(self) -> tuple[int, ...]:
        """Take no more updates.

        Returns:
            The numbers of the survivors, whose sums will be opened.

        Raises:
            ProtocolError: if there are too few, or too many isolated submodels; the round ends
                unopened.
        """
        expect_state(self.state, RoundState.OPEN)
        cohort = self._cohort()
        complete = self._complete()
        survivors = tuple(cohort.places[client] for client in complete)
        with abandoned_on_error(self, on=ProtocolError):
            check_survivors(cohort, survivors)
        held = self._round
        held.survivors = survivors
        held.digest = messages.survivors_digest(cohort, self.last_round, survivors)
        held.masked = b"".join(self._masked_by_segment(cohort)) + messages.encode_mask(
            cohort, survivors
        )
        held.bodies[Kind.MASKED] = {}
        self.state = RoundState.ANSWERING
        return complete

    @property
    def num_missing(self) -> int:
        """Answers that are still wanted."""
        needed = self.plan.num_submodels + self.plan.collusion
        return max(0, needed - len(self._round.bodies[Kind.ANSWER]))

    def open(self) -> Opened:
        """The exact sums of the survivors. Ends the round.

        Raises:
            ProtocolError: fewer than K + T answers so far; more may come.
        """
        expect_state(self.state, RoundState.ANSWERING)
        if self.num_missing:
            raise ProtocolError(
                f"the server needs {self.num_missing} more answers of survivors to compute the "
                "sum: wait for these answers, or end the round"
            )
        cohort = self._cohort()
        answers = [
            (cohort.places[client], self._psi(body))
            for client, body in sorted(self._round.bodies[Kind.ANSWER].items())
        ]
        sums = open_sums(cohort, answers)
        clients = tuple(cohort.members[place].client for place in self._round.survivors)
        self.abandon_round()
        self._applied.given = True
        return Opened(sums, {}, len(clients), len(clients), clients)

    def apply(self, opened: Opened) -> None:
        """Update the model with the aggregates, once per round.

        Raises:
            ProtocolError: no sums were opened since the last call.
        """
        expect_state(self.state, RoundState.IDLE)
        self._applied.take()
        self.model.apply(self.plan, opened)

    def abandon_round(self) -> None:
        """End the round unopened, whatever its state; its number is spent."""
        self._round, self.state = _Round(), RoundState.IDLE

    # --- what the steps above are made of -----------------------------------------------------

    def _cohort(self) -> Cohort:
        assert self._round.cohort is not None
        return self._round.cohort

    def _member(self, client: int) -> tuple[Cohort, int]:
        cohort = self._cohort()
        if client not in cohort.places:
            raise RejectedSubmission(
                f"client {client} is not in round {self.last_round}", code="not-in-cohort"
            )
        return cohort, cohort.places[client]

    def _complete(self) -> tuple[int, ...]:
        bodies = self._round.bodies
        return tuple(sorted(bodies[Kind.SHARES].keys() & bodies[Kind.MASKED].keys()))

    def _check(self, message: Message) -> None:
        """Check a body completely, before it is kept."""
        kind = message.kind
        if kind is Kind.HELLO:
            return self._check_hello(message)
        cohort, place = self._member(message.client)
        if kind is Kind.SHARES:
            messages.expect_bytes(message, messages.shares_bytes(cohort, place))
        elif kind is Kind.MASKED:
            messages.expect_bytes(message, messages.masked_bytes(self.plan, cohort.width(place)))
            from_bytes(message.body)
        else:
            self._psi(message.body)
            digest = bytes(message.body[:DIGEST_BYTES])
            if place not in self._round.survivors or not kdf.digests_equal(
                digest, self._round.digest
            ):
                raise RejectedSubmission(
                    f"client {message.client} answered for another set of survivors than that of "
                    "the round"
                )

    def _check_hello(self, message: Message) -> None:
        width, key = messages.HELLO.unpack(message.body)
        if width >= len(self.plan.widths):
            raise DecodeError(
                f"HELLO names the width {width}, but the plan's widths have the numbers 0 to "
                f"{len(self.plan.widths) - 1}: send one of these numbers"
            )
        check_key(key)
        hellos = self._round.bodies[Kind.HELLO]
        if message.client not in hellos and len(hellos) >= self.plan.max_clients:
            raise RejectedSubmission(
                f"the round has its maximum of {self.plan.max_clients} clients: join a later round",
                code="round-full",
            )

    def _psi(self, body: memoryview) -> Words:
        return from_bytes(body[DIGEST_BYTES:])

    def _masked_by_segment(self, cohort: Cohort) -> list[memoryview]:
        """The x of the survivors: by segment, there survivor by survivor."""
        bodies = self._round.bodies[Kind.MASKED]
        pieces: list[list[memoryview]] = [[] for _ in self.plan.parts]
        for place in self._round.survivors:
            body, start = bodies[cohort.members[place].client], 0
            spans = parts_of(self.plan, cohort.width(place))
            for piece, (part, owned, _) in zip(pieces, spans, strict=True):
                stop = start + WORD_BYTES * owned * part.size
                piece.append(body[start:stop])
                start = stop
        return [view for piece in pieces for view in piece]

    def _boxes_to(self, cohort: Cohort, recipient: int) -> list[bytes | memoryview]:
        """For each other survivor the salt of its message and its box for `recipient`."""
        bodies = self._round.bodies[Kind.SHARES]
        parts: list[bytes | memoryview] = []
        for sender in self._round.survivors:
            if sender != recipient:
                body = bodies[cohort.members[sender].client]
                parts += (body[:SEED_BYTES], body[messages.box_span(cohort, sender, recipient)])
        return parts
