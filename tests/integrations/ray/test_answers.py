"""Clients who wait for their answers are answered by windows, one call a shard."""

from __future__ import annotations

import numpy as np
import pytest

from tests.integrations.ray.test_shards import twins
from tests.support.federation import random_update
from tests.support.sharded import in_process, shard_plan, twin_servers
from torchfsl.errors import RejectedSubmission
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server import sizes
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import InProcess
from torchfsl.integrations.ray.grid import InProcessGrid
from torchfsl.submodel.update import Update
from torchfsl.types import Indices

CLIENTS = 7


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "WINDOW_REPORTS", 3)


def early_rows(plan: Plan, update: Update) -> dict[str, Indices]:
    return {s.name: update[s.name].positions for s in plan.early}


def asked(epochs: int = 1) -> tuple[Server, Server, list[InProcessGrid], list[int]]:
    """Servers with the trees of all clients, the grids, and the windows' sizes as they come."""
    grids: list[InProcessGrid] = []
    windows: list[int] = []
    servers = twin_servers(shard_plan(epochs=epochs), in_process(2, grids))
    plan, rng = servers[0].plan, np.random.default_rng(0)
    begin_round(servers, 0)
    for number in range(CLIENTS):
        update = random_update(plan, rng, rows=2)
        client = Client(plan, InProcess(*servers), client_id=number)
        start = client.start_round if epochs == 1 else client.continue_session
        start(0, indices=early_rows(plan, update)).submit(update)
    grid = twins(servers[0]).sharded.shards.grid
    assert isinstance(grid, InProcessGrid)
    for shard in grid.shards:
        inner = shard.answer

        def counted(epoch, rows, questions, inner=inner):  # type: ignore[no-untyped-def]
            windows.append(len(questions))
            return inner(epoch, rows, questions)

        shard.answer = counted  # type: ignore[method-assign, assignment]
    return *servers, grids, windows


def test_whoever_waits_is_answered_with_the_first_and_nobody_twice() -> None:
    first, second, _, windows = asked()
    others = range(CLIENTS)  # the service still counts those whose answer is on its way
    for client in range(CLIENTS):
        first.reply(Kind.ANSWER, 0, client, others)  # the twins compare each
    assert windows == [3, 3, 3, 3, 1, 1]  # three windows, two shards
    first.reply(Kind.ANSWER, 0, 2, others)
    assert windows[6:] == [1, 1]  # asked again: its own work alone
    assert twins(first).compared["answer"] == CLIENTS + 1
    finish_round((first, second))


def test_an_answer_is_of_the_trees_that_its_client_asks_with() -> None:
    """What was computed for trees of an earlier round is not given for those that replace them."""
    first, second, _, windows = asked(epochs=3)
    finish_round((first, second))
    begin_round((first, second), 1)
    first.reply(Kind.ANSWER, 1, 0, [0, 1])  # client 1 waits, with the trees of its session
    del windows[:]
    plan, rng = first.plan, np.random.default_rng(1)
    update = random_update(plan, rng, rows=2)
    client = Client(plan, InProcess(first, second), client_id=1)
    client.continue_session(1, indices=early_rows(plan, update)).retrieve()
    assert windows == [1, 1]


def test_others_who_wait_without_trees_or_were_rejected_are_left_out() -> None:
    first, second, _, windows = asked()
    plan, rng = first.plan, np.random.default_rng(2)
    update = random_update(plan, rng, rows=2)
    again = Client(plan, InProcess(first, second), client_id=1)
    with pytest.raises(RejectedSubmission, match="trees after the report"):
        again.start_round(0, indices=early_rows(plan, update))
    first.reply(Kind.ANSWER, 0, 0, [1, 2, 99])
    assert windows == [2, 2]
