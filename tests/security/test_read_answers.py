"""Answers in the hands of those who are not their client."""

from __future__ import annotations

import logging

import pytest

from scripts.attacks import carriers
from scripts.parties import two_servers
from torchfsl.errors import ProtocolError
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.book import MOST_ANSWERS
from torchfsl.fsl.transport import InProcess


def test_both_answers_are_the_rows_unless_they_are_sealed() -> None:
    result = carriers.read_answers()
    assert result.worked_off
    assert not result.worked_on


def test_a_client_is_answered_a_few_times_with_the_same_bytes_and_each_repeat_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "torchfsl.server"):
        assert carriers.times_answered() == MOST_ANSWERS == 8
    said = [r.getMessage() for r in caplog.records if "the server answers client" in r.getMessage()]
    assert len(said) == MOST_ANSWERS - 1
    assert said[0] == (
        f"round 1: the server answers client {carriers.ASKING} again (answer 2 of at most 8)"
    )


def test_the_next_round_counts_anew_and_has_other_keys() -> None:
    plan = carriers.retrieving_plan()
    servers = two_servers(plan, {"rows": carriers.make_rows()})
    answers = []
    for number in (1, 2):
        begin_round(servers, number)
        client = Client(plan, servers, client_id=carriers.ASKING)
        with client.start_round(number, indices={"rows": carriers.ROWS}) as taking:
            answers += [servers[0].reply(Kind.ANSWER, number, carriers.ASKING) for _ in range(3)]
            taking.abort()
        finish_round(servers)
    assert len(set(answers)) == 2


def test_an_answer_of_another_client_or_server_does_not_open() -> None:
    plan = carriers.retrieving_plan()
    servers = two_servers(plan, {"rows": carriers.make_rows()})
    begin_round(servers, 1)
    for number in (3, carriers.ASKING):
        taking = Client(plan, servers, client_id=number).start_round(1, indices={"rows": [1]})

    class Swapped(InProcess):
        def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
            return super().fetch(party, kind, round_number, 3)

    taking._servers = Swapped(*servers)
    with pytest.raises(ProtocolError, match="so its authentication fails"):
        taking.retrieve()
