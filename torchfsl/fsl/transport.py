"""How messages reach the two servers. `InProcess` holds both; a network offers the same calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from torchfsl.errors import ParameterError, ProtocolError, expect_able
from torchfsl.fsl import messages
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

    def reply(
        self, kind: Kind, round_number: int, client: int, waiting: Iterable[int] = ()
    ) -> bytes:
        """Produce a message of `kind` for a client; of an ANSWER, others are `waiting` for theirs.

        Work may be done for all of them at once, and the others' answers kept until they ask.
        """


class InProcess:
    """Both servers in this process, through the same bytes as on any network.

    After this object has relayed a client's trees, it reports the client to the servers as waiting,
    until the client asks for its answer. If several clients start before the first one asks,
    servers answer them together.
    """

    def __init__(self, server0: Endpoint, server1: Endpoint) -> None:
        """Connect to both servers."""
        self._servers = (server0, server1)
        self._round = -1
        self._waiting: tuple[dict[int, None], dict[int, None]] = ({}, {})

    @property
    def source(self) -> str | None:
        """What both servers' models take, deltas or gradients; None where they do not say."""
        sources = {getattr(getattr(s, "model", None), "source", None) for s in self._servers}
        return sources.pop() if len(sources) == 1 else None

    def send(self, party: int, message: bytes) -> None:
        """Deliver, and pass on what the server relays to its peer."""
        due = self._servers[party].receive(message)
        if due is None:
            return
        self._servers[1 - party].receive(self._servers[party].relay(*due))
        if due[0] is Kind.TREES_RELAY:
            self._wait(messages.peek(message).round_number, due[1])

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        """The server's reply."""
        if kind is not Kind.ANSWER or round_number != self._round:
            return self._servers[party].reply(kind, round_number, client)
        self._waiting[party].pop(client, None)
        waiting = tuple(self._waiting[party])
        return self._servers[party].reply(kind, round_number, client, waiting)

    def open_number(self) -> int:
        """The number of the round that is open at both servers.

        Raises:
            ProtocolError: there is none.
        """
        number, other = (getattr(server, "open_number", None) for server in self._servers)
        if number is None or number != other:
            raise ProtocolError(
                "no round is open at both servers: begin one first, begin_round(servers, number)",
                code="no-open-round",
            )
        return int(number)

    def _wait(self, round_number: int, client: int) -> None:
        """Both servers have the client's trees now."""
        if round_number != self._round:
            self._round = round_number
            for waiting in self._waiting:
                waiting.clear()
        for waiting in self._waiting:
            waiting[client] = None


def connected(servers: Transport | tuple[Endpoint, Endpoint]) -> Transport:
    """A transport as it is, or one to both servers of this process.

    Raises:
        ParameterError: neither, with what to pass instead.
    """
    remedy = "pass the pair (server 0, server 1), or a transport that reaches both"
    if not isinstance(servers, tuple | list):
        expect_able(("send", "fetch"), servers, "servers", remedy)
        return servers
    if len(servers) != 2:
        raise ParameterError(
            f"expected two servers, got {len(servers)}: {remedy}", code="two-servers-needed"
        )
    for server in servers:
        expect_able(("receive", "relay", "reply"), server, "one of the servers", remedy)
    return InProcess(*servers)
