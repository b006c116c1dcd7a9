"""A client: encrypts its update under the key holder's key and sends it to the aggregator alone.

        client                              aggregator                         key holder
           |                                    | <------------------ KEY, once --- |
           | <-- KEY, once; MODEL ------------- |                                   |
           |    trains                          |                                   |
           | -- UPDATE (Enc(w dW), Enc(w)) ---> |                                   |
           | <-------------------- RECEIPT ---- |  closes: who submitted counts     |
           |                                    | -- SUM (Enc(sum + r), names) ---> |
           |                                    | <--- VALUE (sum + r + noise) ---- |

There is nothing to do for a client that drops out: an update counts if all of it has arrived.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from torchfsl.crypto import kdf
from torchfsl.crypto.homomorphic import PublicKey
from torchfsl.crypto.kdf import DIGEST_BYTES
from torchfsl.errors import DecodeError, ParameterError, ProtocolError, RejectedSubmission
from torchfsl.sefl import messages
from torchfsl.sefl.messages import Kind, Message, Named
from torchfsl.sefl.packing import to_slots
from torchfsl.sefl.sefl_plan import SeflPlan
from torchfsl.submodel.aggregation import Receipt, Traffic
from torchfsl.submodel.plan_fields import check_number
from torchfsl.submodel.update import SegmentUpdate, Update
from torchfsl.submodel.whole_model import decode_model
from torchfsl.types import Array, Indices


class Transport(Protocol):
    """A client's view of the aggregator."""

    def send(self, message: bytes) -> bytes:
        """Deliver an UPDATE; returns its RECEIPT."""

    def fetch(self, kind: Kind, round_number: int, client: int) -> bytes:
        """Ask for KEY or MODEL."""


class Client:
    """A client of a task.

    Args:
        plan: the public plan, with both keys.
        aggregator: the way to it.
        client_id: its number, in [0, 2**64).
    """

    def __init__(self, plan: SeflPlan, aggregator: Transport, *, client_id: int) -> None:
        """Not in a round yet, and without the key.

        Raises:
            ParameterError: if the plan is a draft, or `client_id` is out of range.
        """
        if plan.is_draft:
            raise ParameterError(
                "the plan is a draft without the servers' keys: pass the plan that sefl.introduce "
                "returns",
                code="draft-plan",
            )
        self.plan, self.aggregator = plan, aggregator
        self.client_id = check_number("client_id", client_id)
        self._key: PublicKey | None = None
        self._last_round = -1

    def __repr__(self) -> str:
        return f"Client(client_id={self.client_id})"

    def start_round(
        self, round_number: int, *, indices: Mapping[str, npt.ArrayLike] | None = None
    ) -> ClientRound:
        """Take part in the open round.

        Args:
            round_number: the round's, above every earlier one of this client.
            indices: nothing is selected here, so none are taken.

        Returns:
            The client in this round.

        Raises:
            ParameterError: if indices were given.
            ProtocolError: if this client was in the round, or in a later one.
            DecodeError: if there is no public key, or not the plan's.
        """
        if indices:
            raise ParameterError(
                f"sefl sends every position, but the update selects positions of {set(indices)}: "
                "leave out indices="
            )
        number = check_number("round_number", round_number)
        if number <= self._last_round:
            raise ProtocolError(
                f"client {self.client_id} was already in round {self._last_round}: start a "
                "round with a higher number",
                code="round-number-used",
            )
        self._last_round = number
        session = ClientRound(self, number)
        if self._key is None:
            self._key = self._checked_key(session.fetch(Kind.KEY))
        return session

    def encrypt(self, update: Update, weight: int) -> bytes:
        """The update times its weight under the key holder's key."""
        assert self._key is not None
        return self._key.encrypt(to_slots(self.plan, update, weight)).encode()

    def _checked_key(self, message: Message) -> PublicKey:
        data = bytes(message.body)
        if not kdf.digests_equal(
            messages.key_digest(data).hex().encode(), self.plan.public_key.encode()
        ):
            raise DecodeError(
                "expected the public key of the plan, got another key, so the client sends no "
                "update: get the plan from its owner again",
                code="wrong-server-key",
            )
        return PublicKey(self.plan.scheme, data)


class ClientRound:
    """A client in one round; see `torchfsl.submodel.RoundSession`.

    Attributes:
        signed: the aggregator's signature on what was sent; empty before.
        named: what it signed.
    """

    def __init__(self, client: Client, round_number: int) -> None:
        """Nothing sent or fetched."""
        self._client, self.plan, self._number = client, client.plan, round_number
        self._traffic = Traffic()
        self.signed, self.named = b"", Named(client.client_id, bytes(DIGEST_BYTES))
        self._over = False

    def __enter__(self) -> ClientRound:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to end: who has not submitted does not count."""

    def fetch(self, kind: Kind) -> Message:
        """Ask the aggregator.

        Raises:
            DecodeError: its bytes are malformed.
            ProtocolError: they are for another client or round.
        """
        wanted = (0, 0) if kind is Kind.KEY else (self._number, self._client.client_id)
        data = self._client.aggregator.fetch(kind, *wanted)
        self._traffic.received[kind.name.lower()] += len(data)
        message = messages.decode(self.plan, data, kind)
        if (message.round_number, message.client) != wanted:
            raise ProtocolError(
                "the aggregator answered for another client or round: join the next round",
                code="answer-for-another",
            )
        return message

    def download(self) -> dict[str, Array]:
        """The whole model."""
        return decode_model(self.plan, self.fetch(Kind.MODEL))

    def retrieve(self) -> dict[str, tuple[Indices, Array]]:
        """Nothing: no rows are fetched privately."""
        return {}

    def submit(self, update: Update, *, weight: int = 1) -> Receipt:
        """Encrypt and send the update, once, and check the receipt.

        Raises:
            ParameterError: it does not fit the plan; nothing was sent.
            ProtocolError: submitted already.
            RejectedSubmission: the receipt is not the aggregator's, or for something else.
        """
        if self._over:
            raise ProtocolError(
                "the client has already sent an update in this round, or has left the round: "
                "start the next round",
                code="already-submitted",
            )
        body = self._client.encrypt(update, weight)
        self._over = True
        client = self._client.client_id
        message = messages.encode(self.plan, Kind.UPDATE, self._number, client, body)
        self._traffic.sent["update"] += len(message)
        reply = self._client.aggregator.send(message)
        self._traffic.received["receipt"] += len(reply)
        digest = message[messages.HEADER_BYTES :][:DIGEST_BYTES]
        self.named = Named(client, digest)
        self._check_receipt(messages.decode(self.plan, reply, Kind.RECEIPT))
        return self.receipt()

    def abort(self) -> Receipt:
        """Hand in an update of zeros, which looks like any other."""
        zeros: Update = {
            segment.name: SegmentUpdate(None, np.zeros((segment.m, 1), dtype=np.int64))
            for segment in self.plan.segments
        }
        return self.receipt() if self._over else self.submit(zeros)

    def drop_out(self) -> Receipt:
        """Hand in nothing: the aggregator adds up the others.

        Raises:
            ProtocolError: submitted already.
        """
        if self._over:
            raise ProtocolError(
                "the client has already sent an update in this round, or has left the round: "
                "start the next round",
                code="already-submitted",
            )
        self._over = True
        return self.receipt()

    def receipt(self) -> Receipt:
        """The cost of the round so far."""
        return self._traffic.receipt()

    def check_listed(self, names: Collection[Named]) -> None:
        """Check that the aggregator listed this client's update for the key holder.

        Args:
            names: `KeyHolder.listed` of this round.

        Raises:
            ProtocolError: the list lacks the update. `signed` then convicts the aggregator.
        """
        if self.named not in names:
            raise ProtocolError(
                f"the aggregator signed a receipt for the update of client "
                f"{self._client.client_id} in round {self._number}, but the sum lacks this update "
                "or has another: show the receipt to the key holder",
                code="left-out-of-sum",
            )

    def _check_receipt(self, message: Message) -> None:
        digest, signed = bytes(message.body[:DIGEST_BYTES]), bytes(message.body[DIGEST_BYTES:])
        about = (message.round_number, message.client, digest)
        if about != (self._number, *self.named):
            raise RejectedSubmission(
                "the receipt is for another round, client or update: tell the key holder"
            )
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.plan.receipt_key))
        try:
            key.verify(signed, messages.receipt_text(self.plan, self._number, self.named))
        except InvalidSignature as error:
            raise RejectedSubmission(
                "the signature of the receipt is not from the aggregator of the plan: "
                "tell the key holder",
                code="wrong-signature",
            ) from error
        self.signed = signed
