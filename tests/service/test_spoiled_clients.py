"""Clients that one server fails stay out of the round, over the network."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

import numpy.typing as npt
import pytest

from scripts.attacks.server_zero import WAYS, Spoiling, defence
from tests.support.federation import mixed_plan, wanted_rows
from tests.support.network import Pair, assert_sums
from torchfsl.errors import Error
from torchfsl.fsl.client.client import Client

CLIENTS = range(6)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    plan = dataclasses.replace(mixed_plan(), max_clients=8, min_clients=5)
    with Pair(tmp_path_factory.mktemp("pair"), plan) as started:
        started.start()
        started.set_up()
        yield started


def spoil(pair: Pair, way: str, clients: Iterable[int]) -> None:
    """Whole rounds of honest clients to whom server 0 lies, each in one way."""
    for number in clients:
        with pair.client(number) as connection:
            update = pair.update(number)
            wire = Spoiling(connection.client.servers, way, [number])
            client = Client(pair.plan, wire, client_id=number)
            with pytest.raises(Error):
                fetch_all(client, pair.number, wanted_rows(pair.plan, update))


def fetch_all(client: Client, number: int, wanted: Mapping[str, npt.ArrayLike]) -> None:
    with client.start_round(number, indices=wanted) as taking:
        taking.download()
        taking.retrieve()


def test_dummies_defeat_min_clients_where_clients_do_not_withdraw(pair: Pair) -> None:
    pair.open()
    with defence(on=False):
        spoil(pair, "answer", range(5))
    victim = pair.take_part([5])
    opened = pair.close()
    assert opened.clients == tuple(CLIENTS)
    assert_sums(pair.plan, opened, victim)


@pytest.mark.parametrize("way", WAYS)
def test_a_round_spoiled_for_all_but_one_opens_nothing(pair: Pair, way: str) -> None:
    pair.open()
    spoil(pair, way, range(5))
    pair.take_part([5])
    with pytest.raises(Error, match="acceptable reports: 1, the plan wants 5"):
        pair.close()


def test_a_round_spoiled_for_few_opens_the_rest_exactly(pair: Pair) -> None:
    pair.open()
    spoil(pair, "model", range(1))
    honest = pair.take_part(range(1, 6))
    opened = pair.close()
    assert opened.clients == tuple(range(1, 6))
    assert_sums(pair.plan, opened, honest)
