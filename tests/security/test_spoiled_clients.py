"""A server that spoils the round for others, so that their dummies make up `min_clients`."""

from __future__ import annotations

import pytest

from scripts.attacks import server_zero as attack
from scripts.parties import two_servers
from torchfsl.errors import ProtocolError, RejectedSubmission
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.client.round import ClientRound
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.transport import InProcess

OTHERS = [c for c in range(attack.CLIENTS) if c != attack.VICTIM]


def test_dummies_defeat_min_clients_and_silence_does_not() -> None:
    result = attack.spoiled_clients()
    assert result.worked_off
    assert not result.worked_on


@pytest.mark.parametrize("way", attack.WAYS)
def test_with_few_enough_spoiled_the_rest_opens_exactly(way: str) -> None:
    spoiled, honest = range(4), range(4, attack.CLIENTS)
    opened = attack.play(way, min_clients=attack.CLIENTS - 4, spoiled=spoiled, on=True)
    assert opened is not None
    assert opened.clients == tuple(honest)
    assert attack.is_sum_of(opened, honest, attack.make_plan(attack.CLIENTS - 4))


class Listening(attack.Spoiling):
    """Keeps the kinds of what is sent."""

    def send(self, party: int, message: bytes) -> None:
        self.sent.append(Kind(message[6]))
        super().send(party, message)

    sent: list[Kind]


def spoiled_client(way: str, client_id: int) -> tuple[Client, Listening]:
    plan = attack.make_plan(1)
    servers = two_servers(plan)
    begin_round(servers, 1)
    wire = Listening(InProcess(*servers), way, [client_id])
    wire.sent = []
    return Client(plan, wire, client_id=client_id), wire


def fetch_all(session: ClientRound) -> None:
    session.download()
    session.retrieve()


@pytest.mark.parametrize("way", attack.WAYS)
@pytest.mark.parametrize("client_id", [6, 7])
def test_a_client_that_was_failed_sends_no_report(way: str, client_id: int) -> None:
    client, wire = spoiled_client(way, client_id)
    update = attack.make_update(client.plan, client_id)
    session = client.start_round(1, indices={"rows": update["rows"].positions})
    with pytest.raises((ProtocolError, RejectedSubmission)):
        fetch_all(session)
    with pytest.raises(ProtocolError, match="has withdrawn from"):
        session.submit(update)
    assert session.abort() == session.abort()
    assert wire.sent == [Kind.TREES_COMMIT, Kind.TREES]


@pytest.mark.parametrize("way", attack.WAYS)
def test_a_client_with_bad_rows_is_silent_too_if_a_server_fails(way: str) -> None:
    client, wire = spoiled_client(way, 7)
    with pytest.raises(ValueError, match="distinct and increasing"):
        client.start_round(1, indices={"rows": [3, 3]})
    assert wire.sent == [Kind.TREES_COMMIT, Kind.TREES]


def test_a_client_whose_private_part_fails_still_counts() -> None:
    plan = attack.make_plan(2)
    servers = two_servers(plan)
    begin_round(servers, 1)
    with pytest.raises(ValueError, match="distinct and increasing"):
        Client(plan, servers, client_id=1).start_round(1, indices={"rows": [3, 3]})
    other = Client(plan, servers, client_id=2)
    attack.take_part(other, 1, attack.make_update(plan, 2))
    opened = finish_round(servers)
    assert opened.clients == (1, 2)
    assert attack.is_sum_of(opened, [2], plan)


def test_a_lost_call_keeps_the_client_out() -> None:
    class Lost(attack.Spoiling):
        def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
            raise ConnectionError

    plan = attack.make_plan(1)
    servers = two_servers(plan)
    begin_round(servers, 1)
    client = Client(plan, Lost(InProcess(*servers), "", []), client_id=7)
    with pytest.raises(ConnectionError), client.start_round(1, indices={"rows": [1]}) as session:
        session.download()
    assert not servers[0].reports.complete()
    assert not servers[1].reports.complete()
