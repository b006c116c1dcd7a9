"""The aggregator adds ciphertexts that it cannot read to a mask that only it knows.

It is the paper's aggregation server (AS). Because of the mask, the key holder decrypts uniform
numbers. The aggregator takes the mask off without a garbled circuit, because it only has to
subtract. An aggregator that follows the protocol learns the sum, which clients participated, and
nothing else. The sum is exact, or has the key holder's noise if the plan has noise. An aggregator
that breaks the protocol can have a single client's ciphertext opened in place of the sum (see
docs/sefl.md).

    step            state after   what it takes
    open_round      OPEN          UPDATE
    close_round     OPENING       VALUE
    open            IDLE          nothing

The aggregator checks an update completely and adds it on arrival, so that memory holds one sum. The
sum begins with the encrypted mask, so it has fresh randomness, whatever clients send.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from torchfsl.crypto import discrete_gaussian, kdf
from torchfsl.crypto.homomorphic import Ciphertexts, PublicKey, Slots
from torchfsl.crypto.kdf import DIGEST_BYTES
from torchfsl.errors import DecodeError, ProtocolError, RejectedSubmission
from torchfsl.sefl import messages
from torchfsl.sefl.messages import Kind, Named
from torchfsl.sefl.packing import centred, random_slots, to_opened, unpack
from torchfsl.sefl.provider import BoundServer, Draw, noise
from torchfsl.sefl.sefl_plan import SeflPlan
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.rounds import ApplyOnce, expect_state, new_round_number
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.whole_model import encode_model


class RoundState(Enum):
    """The step of a round that the aggregator is in."""

    IDLE = "idle"
    OPEN = "open"
    OPENING = "opening"


@dataclass
class _Round:
    """The aggregator's data of a round: its mask, the running sum, and the clients in it."""

    mask: Slots = field(repr=False)
    total: Ciphertexts
    names: dict[int, Named] = field(default_factory=dict)
    asked: bytes = b""


class Aggregator(BoundServer):
    """The aggregator of a task.

    Args:
        draft: the plan without keys; `bind` completes it.
        model: the model.
        draw: its noise; tests inject a known one.
        last_round: the highest round number used before, by one that is started again.
    """

    def __init__(
        self,
        draft: SeflPlan,
        *,
        model: ServerModel,
        draw: Draw = discrete_gaussian.sample,
        last_round: int = -1,
    ) -> None:
        """Check that the model fits; make the key for receipts."""
        super().__init__(draft, draw)
        model.check(draft)
        self.model, self.last_round, self.state = model, last_round, RoundState.IDLE
        self._key: PublicKey | None = None
        self._key_message = b""
        self._round: _Round | None = None
        self._applied = ApplyOnce()

    def __repr__(self) -> str:
        return f"Aggregator({self.state.value}, last_round={self.last_round})"

    @property
    def receipt_key(self) -> bytes:
        """The key that receipts and sums are checked with: 32 bytes."""
        return self.signing_key

    def bind(self, plan: SeflPlan, key_message: bytes) -> None:
        """Take the completed plan and the key holder's KEY, once.

        Args:
            plan: the draft with this aggregator's and the key holder's keys.
            key_message: what `KeyHolder.key_message` returned.

        Raises:
            ParameterError: if the plan is not the draft with this aggregator's key and a key
                holder's.
            DecodeError: if it is no such message, or has another key than the plan names.
        """
        key_digest, answer_key = bytes.fromhex(plan.public_key), bytes.fromhex(plan.answer_key)
        self._check_bound(plan, key_digest, self.receipt_key, answer_key)
        message = messages.decode(plan, key_message, Kind.KEY)
        data = bytes(message.body)
        if messages.key_digest(data).hex() != plan.public_key:
            raise DecodeError(
                "expected the public key of the plan, got another key: ask the key holder for the "
                "key of this plan",
                code="wrong-server-key",
            )
        self._plan, self._key_message = plan, key_message
        self._key = PublicKey(plan.scheme, data)

    def renewed(self) -> Aggregator:
        """One with a fresh key for signatures that goes on with this one's model and rounds.

        Raises:
            ProtocolError: a round is open.
        """
        expect_state(self.state, RoundState.IDLE)
        return Aggregator(
            self._draft, model=self.model, draw=self._draw, last_round=self.last_round
        )

    # --- a round, in the order of its steps ---------------------------------------------------

    def open_round(self, round_number: int) -> None:
        """Begin `round_number`, above every earlier one, with a fresh mask."""
        expect_state(self.state, RoundState.IDLE)
        number, mask = new_round_number(round_number, self.last_round), random_slots(self.plan)
        assert self._key is not None
        self.last_round, self._applied = number, ApplyOnce()
        self._round = _Round(mask, self._key.encrypt(mask))
        self.state = RoundState.OPEN

    def receive(self, message: bytes) -> bytes:
        """Take a client's UPDATE. The same one again changes nothing.

        Args:
            message: the UPDATE.

        Returns:
            A signed RECEIPT, for the client.

        Raises:
            DecodeError: if the bytes are malformed.
            RejectedSubmission: if the update is another round's or too late, the round is full, or
                it differs from the client's first one.
        """
        plan = self.plan
        decoded = messages.decode(plan, message, Kind.UPDATE)
        if decoded.round_number != self.last_round or self.state is not RoundState.OPEN:
            raise RejectedSubmission(
                f"the update is for round {decoded.round_number}, and round {self.last_round} is "
                f"{self.state.value}: send an update only while its round is open",
                code="wrong-round",
            )
        digest, body = messages.digested(decoded)
        named, held = Named(decoded.client, digest), self._held()
        known = held.names.get(decoded.client)
        if known is None:
            if len(held.names) >= plan.max_clients:
                raise RejectedSubmission(
                    f"the round has its maximum of {plan.max_clients} clients: join a later round",
                    code="round-full",
                )
            held.total.add(Ciphertexts.decode(plan.scheme, body, plan.ciphertexts))
            held.names[decoded.client] = named
        elif known != named:
            raise RejectedSubmission(
                f"client {decoded.client} sent two different updates", code="conflicting-message"
            )
        signed = self._signing.sign(messages.receipt_text(plan, self.last_round, named))
        return messages.encode(plan, Kind.RECEIPT, self.last_round, decoded.client, digest, signed)

    def reply(self, kind: Kind, round_number: int, client: int) -> bytes:
        """The message of `kind` for a client.

        Args:
            kind: KEY at any time, or MODEL while the round is open.
            round_number: number of the open round; not used for KEY.
            client: number of the client; not used for KEY.

        Raises:
            RejectedSubmission: if the round's state does not offer it.
        """
        if kind is Kind.KEY:
            return self._key_message
        if (kind, round_number, self.state) != (Kind.MODEL, self.last_round, RoundState.OPEN):
            raise RejectedSubmission(
                f"{kind.name} is not available while the round is {self.state.value}",
                code="wrong-step",
            )
        parts = encode_model(self.plan, self.model.state)
        return messages.encode(self.plan, kind, round_number, client, *parts)

    @property
    def clients(self) -> tuple[int, ...]:
        """Those whose updates are in the open round's sum, sorted."""
        return tuple(sorted(self._held().names)) if self._round else ()

    def close_round(self) -> bytes:
        """Take no more updates.

        Returns:
            SUM, for the key holder.

        Raises:
            ProtocolError: if there are too few clients; the round ends unopened.
        """
        expect_state(self.state, RoundState.OPEN)
        held, plan = self._held(), self.plan
        problem = plan.check_clients(len(held.names))
        if problem:
            self.abandon_round()
            raise ProtocolError(f"the aggregator does not open the sum: {problem}")
        names = messages.encode_names([held.names[client] for client in self.clients])
        message = messages.encode(
            plan, Kind.SUM, self.last_round, 0, names, held.total.encode(), signing=self._signing
        )
        held.asked = message[messages.HEADER_BYTES :][:DIGEST_BYTES]
        self.state = RoundState.OPENING
        return message

    def open(self, message: bytes) -> Opened:
        """Take the mask off the key holder's VALUE and add this server's noise. Ends the round.

        Args:
            message: the key holder's VALUE.

        Returns:
            The exact sums, with the noise of both servers.

        Raises:
            DecodeError: if the bytes are malformed; the round goes on waiting.
            RejectedSubmission: if the key holder did not sign it, or it answers something else.
        """
        expect_state(self.state, RoundState.OPENING)
        plan, held = self.plan, self._held()
        decoded = messages.decode(plan, message, Kind.VALUE)
        _, body = messages.digested(decoded)
        messages.check_signature(decoded, plan.answer_key)
        asked = bytes(body[:DIGEST_BYTES])
        if decoded.round_number != self.last_round or not kdf.digests_equal(asked, held.asked):
            raise RejectedSubmission("the answer of the key holder is for another round or sum")
        values = unpack(plan, body[DIGEST_BYTES:]).astype(np.int64)
        mask = held.mask[: plan.num_values].astype(np.int64)
        totals = centred(plan, np.mod(values - mask, plan.scheme.modulus).astype(np.uint64))
        opened = to_opened(plan, totals + noise(plan, self._draw), self.clients)
        self.abandon_round()
        self._applied.given = True
        return opened

    def apply(self, opened: Opened) -> None:
        """Update the model with the aggregates, once per round.

        Raises:
            ProtocolError: no sums were opened since the last call.
        """
        expect_state(self.state, RoundState.IDLE)
        self._applied.take()
        self.model.apply(self.plan, opened)

    def abandon_round(self) -> None:
        """End the round unopened, whatever its state; its number is spent, its mask forgotten."""
        self._round, self.state = None, RoundState.IDLE

    def _held(self) -> _Round:
        assert self._round is not None
        return self._round
