"""Both servers of the protocol in this process, through the same messages as on any network.

With a plan of dense segments only it is plain additive secret sharing (`--aggregation dense`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torchfsl.crypto import discrete_gaussian
from torchfsl.fsl import noise
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import Endpoint, InProcess
from torchfsl.submodel.aggregation import Closed, Participant
from torchfsl.submodel.correlated_noise import Draw
from torchfsl.submodel.in_process import Sessions, Stopwatch
from torchfsl.submodel.server_model import ServerModel
from torchfsl.types import Whole


class TwoServers:
    """The protocol in this process, through the same encoded messages as on any network.

    Args:
        plan: public plan.
        models: one copy for each server; the copies are bit-identical.
        draws: source of each server's noise, the operating system if not given.
    """

    def __init__(
        self,
        plan: Plan,
        models: tuple[ServerModel, ServerModel],
        draws: tuple[Draw, Draw] = (discrete_gaussian.sample, discrete_gaussian.sample),
    ) -> None:
        """Both servers idle."""
        self.plan = plan
        self._drawn: tuple[list[Whole], list[Whole]] = ([], [])
        self.servers = (
            Server(0, plan=plan, model=models[0], draw_noise=self._drawing(0, draws[0])),
            Server(1, plan=plan, model=models[1], draw_noise=self._drawing(1, draws[1])),
        )
        self._timed = tuple(_TimedServer(server) for server in self.servers)
        self.link = InProcess(*self._timed)
        self._between, self._sessions = Stopwatch(), Sessions()
        self._members: dict[int, Client] = {}  # whose trees serve several rounds

    @property
    def model(self) -> ServerModel:
        """Server 0's model; that of server 1 is bit-identical."""
        return self.servers[0].model

    @property
    def models(self) -> tuple[ServerModel, ServerModel]:
        """Both servers' models."""
        return self.servers[0].model, self.servers[1].model

    def _drawing(self, party: int, source: Draw) -> Draw:
        """The noise of a server, which this process remembers as what is added in the end."""

        def draw(sigma: int, count: int) -> Whole:
            self._drawn[party].append(source(sigma, count))
            return self._drawn[party][-1]

        return draw

    def noise_sums(self) -> dict[str, Whole]:
        """By segment what both servers added to the last round's sums; lanes as `NAME/lane`.

        For an audit. Only a process that plays both servers can tell; nothing without noise.
        """
        if not all(self._drawn):
            return {}
        first, second = (noise.by_segment(self.plan, noise.taking(d)) for d in self._drawn)
        return {name: first[name] + second[name] for name in first}

    @property
    def server_seconds(self) -> float:
        """See `Aggregation`."""
        return sum(watch.seconds for watch in (self._between, *self._timed))

    def open_round(self, round_number: int, cohort: Collection[int]) -> None:
        """See `Aggregation`; both servers take whoever comes."""
        self._sessions = Sessions()
        for drawn in self._drawn:
            drawn.clear()
        for watch in (self._between, *self._timed):
            watch.seconds = 0.0
        self._between.timed(begin_round, self.servers, round_number)

    def participant(self, client: int) -> Participant:
        """See `Aggregation`."""
        member = self._members.get(client)
        if member is None:
            member = Client(self.plan, self.link, client_id=client)
            if self.plan.keeps_positions:
                self._members[client] = member
        return self._sessions.watch(member)

    def abandon_round(self) -> None:
        """See `Aggregation`."""
        for server in self.servers:
            server.abandon_round()

    def close_round(self) -> Closed:
        """See `Aggregation`."""
        opened = self._between.timed(finish_round, self.servers)
        return Closed(opened, self._sessions.receipts())


class _TimedServer(Stopwatch):
    """Passes messages on to a server and counts the time it takes."""

    def __init__(self, server: Endpoint) -> None:
        super().__init__()
        self._server = server

    def receive(self, message: bytes) -> tuple[Kind, int] | None:
        return self.timed(self._server.receive, message)

    def relay(self, kind: Kind, client: int) -> bytes:
        return self.timed(self._server.relay, kind, client)

    def reply(
        self, kind: Kind, round_number: int, client: int, waiting: Iterable[int] = ()
    ) -> bytes:
        return self.timed(self._server.reply, kind, round_number, client, waiting)
