"""Both servers of the protocol in this process, through the same messages as on any network.

With a plan of dense segments only it is plain additive secret sharing (`--aggregation dense`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import Endpoint, InProcess
from torchfsl.submodel.aggregation import Closed, Participant
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.sessions import Sessions

_Reply = TypeVar("_Reply")


class TwoServers:
    """The protocol in this process, through the same encoded messages as on any network.

    Args:
        plan: public plan.
        models: one copy for each server, equal bit for bit.
    """

    def __init__(self, plan: Plan, models: tuple[ServerModel, ServerModel]) -> None:
        """Both servers idle."""
        self.plan = plan
        self.servers = (
            Server(0, plan=plan, model=models[0]),
            Server(1, plan=plan, model=models[1]),
        )
        self._timed = tuple(_TimedServer(server) for server in self.servers)
        self.link = InProcess(*self._timed)
        self._between = 0.0
        self._sessions = Sessions()

    @property
    def model(self) -> ServerModel:
        """Server 0's model; server 1 has the same bits."""
        return self.servers[0].model

    @property
    def server_seconds(self) -> float:
        """See `Aggregation`."""
        return self._between + sum(server.seconds for server in self._timed)

    def open_round(self, round_number: int, cohort: Collection[int]) -> None:
        """See `Aggregation`; both servers take whoever comes."""
        self._sessions = Sessions()
        for timed in self._timed:
            timed.seconds = 0.0
        start = time.perf_counter()
        begin_round(self.servers, round_number)
        self._between = time.perf_counter() - start

    def participant(self, client: int) -> Participant:
        """See `Aggregation`."""
        return self._sessions.watch(client, Client(self.plan, self.link, client_id=client))

    def close_round(self) -> Closed:
        """See `Aggregation`."""
        start = time.perf_counter()
        opened = finish_round(self.servers)
        self._between += time.perf_counter() - start
        return Closed(opened, self._sessions.receipts())


class _TimedServer:
    """Passes messages on to a server and counts the time it takes."""

    def __init__(self, server: Endpoint) -> None:
        self._server = server
        self.seconds = 0.0

    def receive(self, message: bytes) -> tuple[Kind, int] | None:
        return self._timed(self._server.receive, message)

    def relay(self, kind: Kind, client: int) -> bytes:
        return self._timed(self._server.relay, kind, client)

    def reply(
        self, kind: Kind, round_number: int, client: int, waiting: Iterable[int] = ()
    ) -> bytes:
        return self._timed(self._server.reply, kind, round_number, client, waiting)

    def _timed(self, call: Callable[..., _Reply], *arguments: Any) -> _Reply:
        start = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            self.seconds += time.perf_counter() - start
