"""Over the network, too, whoever carries a client's messages to both servers can alter nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.security.test_altered_on_the_way import PAIRS, altered_to_fit
from tests.support.federation import kind_of, wanted_rows
from tests.support.network import Pair, assert_sums
from torchfsl.errors import Error
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.transport import Transport

VICTIM = 2


class Between:
    """In a client's place towards both servers: alters a hint and the commitment to fit."""

    def __init__(self, plan: Plan, servers: Transport) -> None:
        self._plan, self._servers = plan, servers
        self._held: tuple[int, bytes] | None = None

    def send(self, party: int, message: bytes) -> None:
        if kind_of(message) is PAIRS["report"][1]:
            self._held = party, message
        elif kind_of(message) is PAIRS["report"][0]:
            changed = bytearray(message)
            changed[64 + 48 + 64 + sum(s.tree_bytes for s in self._plan.late)] ^= 1
            assert self._held is not None
            to, commit = self._held
            self._servers.send(to, altered_to_fit(self._plan, commit, bytes(changed)))
            self._servers.send(party, bytes(changed))
        else:
            self._servers.send(party, message)

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        return self._servers.fetch(party, kind, round_number, client)


def test_an_altered_report_is_refused_and_the_others_open_exactly(tmp_path: Path) -> None:
    with Pair(tmp_path) as pair:
        pair.start()
        pair.set_up()
        pair.open()
        with pair.client(VICTIM) as connection:
            update = pair.update(VICTIM)
            client = Client(
                pair.plan, Between(pair.plan, connection.client.servers), client_id=VICTIM
            )
            taking = client.start_round(pair.number, indices=wanted_rows(pair.plan, update))
            taking.retrieve()
            with pytest.raises(Error, match="altered on the way"):
                taking.submit(update)
        honest = pair.take_part([0, 1, 3])
        opened = pair.close()
        assert opened.clients == (0, 1, 3)
        assert_sums(pair.plan, opened, honest)
