"""One round of one server, in this process, on one screen (Sami and Guler, section IV).

`run_round` and `OneServer` call the same client and server methods, through the same encoded
messages, as any network would.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torchfsl.errors import ParameterError
from torchfsl.sesa.client import Client
from torchfsl.sesa.client_round import ClientRound
from torchfsl.sesa.server import Server
from torchfsl.sesa.sesa_plan import SesaPlan
from torchfsl.submodel.aggregation import Closed
from torchfsl.submodel.in_process import InProcess, OfCohort, Remembered
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.rounds import abandoned_on_error
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import Update, check_update
from torchfsl.types import Indices


def run_round(
    server: Server,
    updates: Mapping[int, Update | None],
    widths: Mapping[int, int],
    *,
    round_number: int,
) -> Opened:
    """Aggregate the quantised updates of clients exactly, and update the server's model.

    Args:
        server: idle.
        updates: by client number; None for a client that enters and drops out.
        widths: by client number its width in the plan.
        round_number: above every earlier one.

    Returns:
        The aggregates; law: bit-identical to the plaintext sums of the updates given.

    Raises:
        ParameterError: an update does not fit the plan. The round ends unopened.
        ProtocolError: the plan refuses these clients or survivors. The round ends unopened.
    """
    if unknown := sorted(set(updates) - set(widths)):
        raise ParameterError(
            f"clients {unknown} have no width: add a width for every client to widths",
            code="unknown-client",
        )
    link = InProcess(server)
    clients = [Client(server.plan, link, client_id=c, width=widths[c]) for c in updates]
    with abandoned_on_error(server):
        begin_round(link, clients, round_number)
        sessions = []
        for client in clients:
            update = updates[client.client_id]
            if update is None:
                continue
            with client.start_round(round_number, indices=_asked(server.plan, update)) as session:
                session.submit(update)
            sessions.append(session)
        return finish_round(link, sessions)


def _asked(plan: SesaPlan, update: Update) -> dict[str, Indices]:
    """By segment the submodels that an update changes."""
    check_update(plan, update)
    return {segment.name: update[segment.name].positions for segment in plan.asked_early}


def begin_round(link: InProcess[Server], clients: Collection[Client], round_number: int) -> None:
    """Open a round for these clients, which exchange keys."""
    link.timed(link.server.open_round, round_number)
    for client in clients:
        client.enter(round_number)
    link.timed(link.server.seal)


def finish_round(link: InProcess[Server], sessions: Collection[ClientRound]) -> Opened:
    """Close the round, have the survivors among `sessions` answer, open, apply.

    Raises:
        ProtocolError: too few survivors or answers, or too many isolated submodels.
    """
    survivors = set(link.timed(link.server.close_round))
    for session in sessions:
        if session.client_id in survivors:
            session.answer()
    opened = link.timed(link.server.open)
    link.timed(link.server.apply, opened)
    return opened


class OneServer(OfCohort["_Participant"]):
    """The protocol as an `Aggregation`.

    Args:
        plan: public plan.
        model: the model.
        widths: by client number its width in the plan; of those that are not named, 0.
    """

    def __init__(self, plan: SesaPlan, model: ServerModel, widths: Mapping[int, int]) -> None:
        """No round open."""
        self.plan = plan
        self._server = Server(plan=plan, model=model)
        self._link = InProcess(self._server)
        self._widths, self._all = dict(widths), dict[int, Client]()
        self._cohort: dict[int, _Participant] = {}

    def open_round(self, round_number: int, cohort: Collection[int]) -> None:
        """See `Aggregation`. Clients exchange keys, so all of them are known from here on.

        Raises:
            ParameterError: the cohort has an unknown client.
            ProtocolError: the plan refuses a round of these.
        """
        numbers = sorted(cohort)
        if not numbers:
            raise ParameterError(
                "a round of sesa needs the client numbers at its start, got no clients: call "
                "servers.round(clients)"
            )
        for number in set(numbers) - set(self._all):
            if self._widths and number not in self._widths:
                raise ParameterError(
                    f"client {number} has no width: add this client to widths= of local_servers()"
                )
            width = self._widths.get(number, 0)
            self._all[number] = Client(self.plan, self._link, client_id=number, width=width)
        self._link.seconds = 0.0
        self._cohort = {number: _Participant(self._all[number]) for number in numbers}
        with abandoned_on_error(self._server):
            begin_round(self._link, [p.client for p in self._cohort.values()], round_number)

    def drop(self, client: int) -> None:
        """Have a client go silent from now on; if it has submitted, its update still counts."""
        self.participant(client).gone = True

    def close_round(self) -> Closed:
        """See `Aggregation`. The survivors' answers are part of it, and of their receipts.

        Raises:
            ProtocolError: see `finish_round`; the round ends unopened.
        """
        present = [p.session for p in self._cohort.values() if not p.gone]
        with abandoned_on_error(self._server):
            opened = finish_round(self._link, [s for s in present if s is not None])
        return Closed(opened, {n: p.client.line.receipt() for n, p in self._cohort.items()})


class _Participant(Remembered[ClientRound]):
    """It may go silent."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.client = client
        self.gone = False
