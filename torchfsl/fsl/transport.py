"""How messages reach the two servers. `InProcess` holds both; a network offers the same calls."""

from __future__ import annotations

from typing import Protocol

from torchfsl.errors import ProtocolError
from torchfsl.fsl.messages import Kind


class Transport(Protocol):
    """A client's view of both servers."""

    def send(self, party: int, message: bytes) -> None:
        """Deliver a message to server `party`; returns when the server has accepted it."""

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        """Ask server `party` for a message of `kind`."""


class Endpoint(Protocol):
    """A server as a transport sees it."""

    def receive(self, message: bytes) -> tuple[Kind, int] | None:
        """Take a message; returns what the other server needs now, for `relay`, if anything."""

    def relay(self, kind: Kind, client: int) -> bytes:
        """The message for the other server."""

    def reply(self, kind: Kind, round_number: int, client: int) -> bytes:
        """Produce a message of `kind` for a client."""


class InProcess:
    """Both servers in this process, through the same bytes as on any network."""

    def __init__(self, server0: Endpoint, server1: Endpoint) -> None:
        """Connect to both servers."""
        self._servers = (server0, server1)

    def send(self, party: int, message: bytes) -> None:
        """Deliver, and pass on what the server relays to its peer."""
        due = self._servers[party].receive(message)
        if due is not None:
            self._servers[1 - party].receive(self._servers[party].relay(*due))

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        """The server's reply."""
        return self._servers[party].reply(kind, round_number, client)

    def open_number(self) -> int:
        """The number of the round that is open at both servers.

        Raises:
            ProtocolError: there is none.
        """
        number, other = (getattr(server, "open_number", None) for server in self._servers)
        if number is None or number != other:
            raise ProtocolError(
                "no round is open at both servers: begin one first, begin_round(servers, number)"
            )
        return int(number)
