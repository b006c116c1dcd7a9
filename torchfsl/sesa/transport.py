"""How messages reach the server, and a client's end of it, which counts bytes."""

from __future__ import annotations

from typing import Protocol

from torchfsl.errors import ProtocolError
from torchfsl.sesa import messages
from torchfsl.sesa.messages import Kind, Message
from torchfsl.sesa.sesa_plan import SesaPlan
from torchfsl.submodel.aggregation import Receipt, Traffic


class Transport(Protocol):
    """A client's view of the server."""

    def send(self, message: bytes) -> None:
        """Deliver a message; returns when the server has accepted it."""

    def fetch(self, kind: Kind, round_number: int, client: int) -> bytes:
        """Ask the server for a message of `kind`."""


class Line:
    """One client's messages in one round.

    Args:
        plan: the public plan.
        server: the way to the server.
        client_id: the client's number.
        round_number: the round's.

    Attributes:
        traffic: bytes of this round, headers included, by kind of message.
    """

    def __init__(
        self, plan: SesaPlan, server: Transport, client_id: int, round_number: int
    ) -> None:
        """Nothing sent yet."""
        self.plan, self.client_id, self.round_number = plan, client_id, round_number
        self.traffic = Traffic()
        self._server = server

    def send(self, kind: Kind, *parts: bytes) -> None:
        """Send a message of the round."""
        message = messages.encode(self.plan, kind, self.round_number, self.client_id, *parts)
        self.traffic.sent[kind.name.lower()] += len(message)
        self._server.send(message)

    def fetch(self, kind: Kind) -> Message:
        """Ask for a message of the round.

        Raises:
            DecodeError: the server's bytes are malformed.
            ProtocolError: they are for another client or round.
        """
        data = self._server.fetch(kind, self.round_number, self.client_id)
        self.traffic.received[kind.name.lower()] += len(data)
        message = messages.decode(self.plan, data, kind)
        if (message.round_number, message.client) != (self.round_number, self.client_id):
            raise ProtocolError(
                "the server answered for another client or round: join the next round",
                code="answer-for-another",
            )
        return message

    def receipt(self) -> Receipt:
        """The cost of the round so far; its phases are the kinds of messages."""
        return self.traffic.receipt()
