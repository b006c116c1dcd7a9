"""The servers' model in a client's module without a round, for evaluation."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from tests.support.engine_models import make_batch, train
from tests.support.engine_rounds import Task, wanted
from torchfsl.engine.fetched import fetched_model
from torchfsl.engine.policies import Rows
from torchfsl.engine.round import Round
from torchfsl.engine.settings import Settings
from torchfsl.errors import ParameterError, ProtocolError

BATCH = make_batch(3)


def test_the_block_sees_the_servers_model_and_the_module_is_as_before_afterwards() -> None:
    task = Task()
    for server in task.servers:
        server.model.state["item.weight"][7] = [1, 2, 3, 4]
        server.model.state["top.bias"][:] = 9
    link, hooks = task.begin(), task.hooks[0]
    before = {name: value.clone() for name, value in hooks.model.state_dict().items()}
    ids = {"item": [7, 3], "user": [2], "words": [5]}
    with fetched_model(hooks, task.client(link, 0), ids) as rows, torch.no_grad():
        assert hooks.model.item.weight[7].tolist() == [1, 2, 3, 4]
        assert hooks.model.top.bias.item() == 9
        assert rows["item.weight"].tolist() == [3, 7]
        real = (~hooks.model.words.weight.isnan()).any(1).nonzero().flatten().tolist()
        assert set(real) <= {0, 5}
    after = hooks.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_loss_on_fetched_rows_is_that_of_the_whole_model_and_no_report_is_sent() -> None:
    task = Task()
    link, hooks = task.begin(), task.hooks[0]
    hooks.model.eval()
    with torch.no_grad():
        whole = hooks.model(BATCH)
        with fetched_model(hooks, task.client(link, 0), wanted(BATCH)):
            assert torch.equal(hooks.model(BATCH), whole)
    for number, mine in enumerate(task.hooks):
        client = task.client(link, number)
        with Round(mine, client, rows=wanted(BATCH), number=task.number):
            train(mine.model, mine.optimizers, [BATCH])
    assert task.finish().num_clients == 2


def test_absent_rows_are_zero_where_the_policy_says_so() -> None:
    task = Task(Settings(rows=Rows(absent="zero")))
    link, hooks = task.begin(), task.hooks[0]
    with fetched_model(hooks, task.client(link, 0), {"item": [4], "user": [2], "words": [5]}):
        assert not hooks.model.item.weight.isnan().any()
        assert int((hooks.model.item.weight[1:] != 0).any(1).sum()) == 1


def test_a_lookup_of_a_row_that_was_not_fetched_is_warned_of() -> None:
    task = Task()
    link, hooks = task.begin(), task.hooks[0]
    hooks.model.eval()
    model, few = hooks.model, {"item": [4], "user": [2], "words": [5]}
    with torch.no_grad(), warnings.catch_warnings(action="error"):
        with fetched_model(hooks, task.client(link, 0), wanted(BATCH)):
            model(BATCH)
        with (
            fetched_model(hooks, task.client(link, 0), few),
            pytest.warns(UserWarning, match=r"use fed\.evaluating\(servers, rows=ids\)"),
        ):
            assert model(BATCH).isnan().any()
        assert not model(BATCH).isnan().any()


def test_an_evaluation_inside_a_round_or_without_rows_is_refused_and_nothing_is_sent() -> None:
    task = Task()
    link, hooks = task.begin(), task.hooks[0]
    client = task.client(link, 0)
    with (
        pytest.raises(ParameterError, match=r"fed\.evaluating\(servers, rows="),
        fetched_model(hooks, client),
    ):
        pass
    assert not link.traffic
    with Round(hooks, client, rows=wanted(BATCH), number=0):
        sent = len(link.traffic)
        with pytest.raises(ProtocolError), fetched_model(hooks, client, wanted(BATCH)):
            pass
        assert len(link.traffic) == sent
        train(hooks.model, hooks.optimizers, [BATCH])


def test_a_plan_of_dense_segments_needs_no_rows() -> None:
    task = Task(Settings(rows=None), rows_per_client=None)
    for server in task.servers:
        server.model.state["top.bias"][:] = 9
    link, hooks = task.begin(), task.hooks[0]
    with fetched_model(hooks, task.client(link, 0)):
        assert hooks.model.top.bias.item() == 9
        assert not np.isnan(hooks.server_state()["item.weight"]).any()
    assert hooks.model.top.bias.item() != 9
