"""Fetches of the applied model over the network: trees up, answer down in one call to each server.

    client -- FETCH_COMMIT --> S_b                    client -- FETCH --> S_a
                               S_b <-- FETCH_RELAY ("RelayFetch") -- S_a
    client <-- FETCH_ANSWER -- S_b                    client <-- FETCH_MODEL -- S_a

Nothing of a fetch is stored. It ends with its calls, however they end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from torchfsl.errors import Error, RejectedSubmission
from torchfsl.fsl.dpf.keys import FETCH_ROUND
from torchfsl.fsl.messages import HEADER_BYTES, Header, Kind
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.server.states import RoundState
from torchfsl.service.net.calls import NotReady, Overloaded
from torchfsl.service.net.identity import Identity, NotAllowed
from torchfsl.service.server.intake import Budget
from torchfsl.service.server.peers import PeerLink
from torchfsl.service.server.station import Station
from torchfsl.service.server.streams import Stream

T = TypeVar("T")


class FetchDesk:
    """The fetches under way at one server, at most one a client.

    Trees that wait for the other server have a separate budget: with the common one, two servers
    whose clients filled it would wait for each other.
    """

    def __init__(self, station: Station, link: PeerLink) -> None:
        self._station, self._link = station, link
        self._budget = Budget(station.limits)
        self._busy: set[int] = set()
        self._relayed: dict[int, asyncio.Future[None]] = {}
        self._committed = asyncio.Condition()

    async def fetch(self, caller: Identity, stream: Stream) -> None:
        """A client's call: FETCH up and FETCH_MODEL down, or FETCH_COMMIT and FETCH_ANSWER.

        Raises:
            RejectedSubmission: too often, or either server refuses the trees.
            NotReady: a round is being opened or closed, or the other server did not answer.
            Overloaded: the client has a fetch under way, or there is no room.
        """
        plan, budgets = self._station.node.plan, {Kind.FETCH: self._budget}
        kinds = Kind.FETCH, Kind.FETCH_COMMIT
        async with stream.message(plan, *kinds, budgets=budgets) as (header, data):
            client = header.client
            if client != caller.number:
                raise NotAllowed(f"{caller} sent a message of client {client}")
            async with self._one_of(client):
                if header.kind is Kind.FETCH:
                    kind = await self._take_trees(header, data)
                else:
                    kind = await self._take_commitment(header, data)
                reply = await self._at_rest(lambda s: s.reply(kind, FETCH_ROUND, client))
        self._station.counts[header.kind.name] += 1
        await stream.send(reply)

    async def take_relay(self, stream: Stream) -> None:
        """The peer's call: FETCH_RELAY, which may be here before the client's commitment.

        Raises:
            RejectedSubmission: the client has committed to other trees, or to none in time.
        """
        station = self._station
        async with stream.message(station.node.plan, Kind.FETCH_RELAY) as (header, data):
            pass
        relayed = await self._commitment_of(header.client)
        try:
            await self._at_rest(lambda server: server.receive(data, header))
        except Error as error:
            if not relayed.done():
                relayed.set_exception(error)
            raise RejectedSubmission(str(error)) from None  # no reason to doubt the link
        if not relayed.done():
            relayed.set_result(None)
        await stream.send(b"")

    async def _take_trees(self, header: Header, data: bytes) -> Kind:
        """At the server of the public shares: hand them to the peer."""
        client = header.client

        def take(server: Server) -> bytes:
            server.receive(data, header)
            return server.relay(Kind.FETCH_RELAY, client)

        relay = await self._at_rest(take)
        try:
            async with asyncio.timeout(self._station.limits.peer_seconds):
                await self._link.insist(
                    "RelayFetch", relay, limit=HEADER_BYTES, still=lambda _: client in self._busy
                )
        except TimeoutError:
            raise NotReady("the other server does not answer: fetch again") from None
        except RejectedSubmission as error:
            raise RejectedSubmission(f"the other server rejected the fetch: {error}") from None
        return Kind.FETCH_MODEL

    async def _take_commitment(self, header: Header, data: bytes) -> Kind:
        """At the other server: wait for what fits the commitment."""
        client = header.client
        await self._at_rest(lambda server: server.receive(data, header))
        relayed = self._relayed[client] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._station.limits.peer_seconds):
                async with self._committed:
                    self._committed.notify_all()
                await relayed
        except TimeoutError:
            raise NotReady("the other server has not relayed the DPF keys: fetch again") from None
        finally:
            del self._relayed[client]
        return Kind.FETCH_ANSWER

    async def _commitment_of(self, client: int) -> asyncio.Future[None]:
        """The future that waits for the relay, once the client's commitment is here."""
        try:
            async with asyncio.timeout(self._station.limits.peer_seconds), self._committed:
                await self._committed.wait_for(lambda: client in self._relayed)
                return self._relayed[client]
        except TimeoutError:
            raise RejectedSubmission(
                f"the commitment of client {client} to this fetch did not arrive: fetch again"
            ) from None

    @contextlib.asynccontextmanager
    async def _one_of(self, client: int) -> AsyncIterator[None]:
        """Be the client's only fetch; it leaves no trace behind."""
        if client in self._busy:
            raise Overloaded(f"client {client} has another fetch: wait until that fetch ends")
        self._busy.add(client)
        try:
            yield
        finally:
            station = self._station
            dropping = asyncio.create_task(station.run(station.node.server.fetches.drop, client))
            dropping.add_done_callback(lambda _: self._busy.discard(client))
            await asyncio.shield(dropping)

    async def _at_rest(self, function: Callable[[Server], T]) -> T:
        """Call in the node's thread, where no round is being opened or closed.

        Raises:
            NotReady: one still is when the time is over.
        """
        clock = asyncio.get_running_loop().time
        limit = clock() + self._station.limits.peer_seconds
        while True:
            try:
                return await self._station.run(lambda: function(self._resting()))
            except NotReady:
                if clock() >= limit:
                    raise
            await self._station.wait(min(1.0, self._station.limits.peer_seconds))

    def _resting(self) -> Server:
        """The server between the steps of a round. In the node's thread."""
        node = self._station.node
        node.storage.check_not_halted()
        state = node.server.state
        if state not in (RoundState.IDLE, RoundState.OPEN):
            raise NotReady(
                f"a fetch has to wait while the round is {state.value}: fetch again later"
            )
        return node.server
