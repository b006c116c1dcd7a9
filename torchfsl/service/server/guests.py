"""Connections, by address or by the caller's certificate, and which one makes room.

A connection is *unknown* until a call of a certified caller is admitted. There are at most
`handshakes` unknown connections, and `handshakes_per_address` of one address (IPv6: of one /64). A
newcomer takes the place of an unknown connection of the same address, or of the address that has
most. Connections that have sent nothing go first, then those that have not answered gRPC's part of
the handshake, the oldest first. So a quick caller gets in, and an address with silent connections
fills only its part of the door. A connection with a caller counts to the caller's certificate. If
there are too many, the client's connection that has been idle longest goes, and the client connects
again when it has something to send.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchfsl.service.net.calls import Overloaded
from torchfsl.service.net.identity import Identity, Role
from torchfsl.service.server.intake import Limits


@dataclass(eq=False, slots=True)
class Guest:
    """One connection.

    Attributes:
        name: gRPC's name for it.
        address: of the caller, `HOST:PORT`.
        group: what is counted together: an IPv4 address, an IPv6 /64.
        steps: 0 when nothing has come, 1 after the first bytes, 2 once it has answered gRPC.
        caller: by certificate, once a call was admitted.
        calls: under way.
        has_left: whether the caller has closed the connection.
        used: when the last call began or ended, in seconds of the loop's clock.
        heard: when it last sent something, likewise.
    """

    name: str
    address: str
    group: str
    steps: int = 0
    caller: Identity | None = None
    calls: int = 0
    has_left: bool = False
    used: float = 0.0
    heard: float = 0.0


class GuestBook:
    """The connections of one server."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._guests: dict[str, Guest] = {}
        self._strangers: dict[str, dict[str, Guest]] = {}

    @property
    def num_strangers(self) -> int:
        """Connections without a caller."""
        return sum(map(len, self._strangers.values()))

    @property
    def num_callers(self) -> int:
        """Connections with one."""
        return len(self._guests) - self.num_strangers

    def find(self, name: str) -> Guest | None:
        """The connection with this name, if it is still there."""
        return self._guests.get(name)

    def everybody(self) -> list[Guest]:
        """All connections."""
        return list(self._guests.values())

    def in_the_way(self, group: str) -> tuple[Guest, str] | None:
        """The connection that makes room for one more of an address, and why; or None."""
        if len(self._strangers.get(group, ())) >= self._limits.handshakes_per_address:
            return _oldest(self._strangers[group].values()), "address"
        if self.num_strangers >= self._limits.handshakes:
            return self.most_crowding(), "handshakes"
        return None

    def most_crowding(self) -> Guest:
        """The connection to go first, of the address that has most unknown connections."""
        most = max(self._strangers.values(), key=len)
        return _oldest(most.values())

    def arrive(self, guest: Guest) -> None:
        """Add a connection, which has no caller yet."""
        self._guests[guest.name] = guest
        self._strangers.setdefault(guest.group, {})[guest.name] = guest

    def in_the_way_of(self, caller: Identity) -> tuple[Guest, str] | None:
        """The connection that makes room for one more of a caller, and why; or None.

        Only connections of clients are limited.

        Raises:
            Overloaded: there are too many connections, and all have calls under way.
        """
        if caller.role is not Role.CLIENT:
            return None
        clients = [g for g in self._guests.values() if g.caller and g.caller.role is Role.CLIENT]
        own = [guest for guest in clients if guest.caller == caller]
        if len(own) >= self._limits.connections_per_client:
            return _idle(own, f"{caller} has too many connections: close one"), "client"
        if len(clients) >= self._limits.connections - self._limits.handshakes:
            return _idle(clients, "the server has too many connections: try later"), "connections"
        return None

    def admit(self, guest: Guest, caller: Identity) -> None:
        """Give a connection its caller."""
        self._forget_stranger(guest)
        guest.caller = caller

    def leave(self, guest: Guest) -> bool:
        """A connection has gone. False if it had before."""
        self._forget_stranger(guest)
        return self._guests.pop(guest.name, None) is not None

    def _forget_stranger(self, guest: Guest) -> None:
        group = self._strangers.get(guest.group, {})
        if group.pop(guest.name, None) is not None and not group:
            del self._strangers[guest.group]


def _oldest(strangers: Iterable[Guest]) -> Guest:
    """The oldest of the connections that have fewest `steps`."""
    return min(strangers, key=lambda guest: guest.steps)


def _idle(among: list[Guest], complaint: str) -> Guest:
    idle = [guest for guest in among if guest.calls == 0]
    if not idle:
        raise Overloaded(complaint)
    return min(idle, key=lambda guest: guest.used)
