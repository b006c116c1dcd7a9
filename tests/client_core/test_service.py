"""The core over the network: two server processes, Python's clients beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.client_core import REPORT, Core, CoreClient
from tests.support.federation import wanted_rows
from tests.support.reference import plaintext

pytest.importorskip("grpc")
pytest.importorskip("prometheus_client")
from tests.support.network import Pair, assert_sums

pytestmark = pytest.mark.slow


def test_rounds_of_both_kinds_of_clients_over_the_network_are_exact(
    core: Core, tmp_path: Path
) -> None:
    with Pair(tmp_path) as pair:
        pair.start()
        pair.set_up()
        assert pair.plan.server_keys
        for number in (1, 2):
            assert pair.open() == number
            made = pair.take_part((2, 3), seed=number)
            for client in (4, 5):
                with pair.client(client) as connection:
                    update = pair.update(client, number)
                    own = CoreClient(core, pair.plan, connection.client.servers, client)
                    wanted = wanted_rows(pair.plan, update)
                    assert own.start_round(number, indices=wanted).submit(update) == REPORT
                    made.append(plaintext.Contribution(update))
            opened = pair.close()
            assert opened.clients == (2, 3, 4, 5)
            assert_sums(pair.plan, opened, made)
