"""One model and many clients: what each owes and keeps stays its own."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchfsl
from tests.support.engine_models import Recommender, make_batch, start_afresh, train
from tests.support.engine_rounds import Task, wanted
from tests.support.engine_setup import plan_of
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.policies import Rows, TopK
from torchfsl.engine.residual import Residual, Residuals
from torchfsl.engine.round import Round
from torchfsl.engine.settings import Settings
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.fsl import Client, Server, begin_round, finish_round
from torchfsl.submodel.server_model import ServerModel


def one_round(task: Task, clients: list[int], **options: Any) -> list[Any]:
    """All clients on the first model."""
    link, rounds, hooks = task.begin(), [], task.hooks[0]
    for client in clients:
        batch = make_batch(client, low=1 + 8 * client, high=9 + 8 * client)
        with Round(hooks, task.client(link, client), rows=wanted(batch), **options) as rnd:
            start_afresh(hooks.optimizers[0])
            train(hooks.model, hooks.optimizers, [batch])
        rounds.append(rnd)
    task.finish()
    return rounds


def test_what_one_client_owes_never_leaves_in_anothers_report() -> None:
    task = Task(Settings(rows=Rows(top=2), rest=TopK(0.2)), 3, retrieve=True)
    for _ in range(3):
        for client, rnd in enumerate(one_round(task, [0, 1, 2])):
            batch = make_batch(client, low=1 + 8 * client, high=9 + 8 * client)
            own = set(torch.cat([batch["item"], batch["history"].flatten()]).tolist())
            sent = rnd.update["rows4"].positions
            assert set(sent[sent < 50].tolist()) <= own
    hooks = task.hooks[0]
    assert len(hooks.residuals) == 3
    with pytest.raises(ParameterError, match=r"3 clients trained this model.*residuals\.of"):
        _ = hooks.residual


def test_residuals_beyond_the_limit_wait_on_disk_and_come_back_bit_for_bit() -> None:
    task = Task(Settings(rows=Rows(top=2), rest=TopK(0.2)), 3, retrieve=True)
    twin = Task(Settings(rows=Rows(top=2), rest=TopK(0.2)), 3, retrieve=True)
    task.hooks[0].residuals = Residuals(limit_bytes=0)
    for _ in range(3):
        for a, b in zip(one_round(task, [0, 1, 2]), one_round(twin, [0, 1, 2]), strict=True):
            for name in a.update:
                np.testing.assert_array_equal(a.update[name].values, b.update[name].values)
    store, whole = task.hooks[0].residuals, twin.hooks[0].residuals
    store.of(7)
    assert store.num_bytes == 0 < whole.num_bytes
    mine, theirs = store.state_dict(), whole.state_dict()
    for client in theirs:
        for name, part in theirs[client]["parts"].items():
            for key in part:
                assert torch.equal(part[key], mine[client]["parts"][name][key])


def test_a_residual_may_be_given_and_is_exported() -> None:
    task, mine = Task(Settings(rest=TopK(0.2)), 3), torchfsl.policies.Residual()
    assert torchfsl.policies.Residual is Residual
    one_round(task, [0, 1], residual=mine)
    assert mine.num_bytes
    assert not len(task.hooks[0].residuals)


class Personal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(10, 4), nn.Embedding(40, 4)
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 1)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.users(user) * self.items(item))).squeeze(1)


def train_personal(model: nn.Module, client: int, steps: int = 2) -> None:
    g = torch.Generator().manual_seed(client)
    item, label = torch.randint(0, 40, (8,), generator=g), torch.randn(8, generator=g)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(torch.full((8,), client), item), label).backward()
        optimizer.step()


def personal_task(local: tuple[str, ...]) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = Personal()
    hooks = Hooks(model, torch.optim.SGD(model.parameters(), lr=0.1), local=local)
    plan = plan_of(hooks, max_clients=3, rows_per_client=8, above_break_even="keep")
    state = hooks.server_state()
    servers = tuple(Server(b, plan=plan, model=ServerModel(state)) for b in (0, 1))
    return hooks, servers


def test_local_parts_train_stay_with_their_client_and_are_in_no_message() -> None:
    local = ("users", "norm", "head.bias")
    hooks, servers = personal_task(local)
    plan = servers[0].plan
    named = {t.name for s in plan.segments for t in s.tensors}
    assert named == {"items.weight", "head.weight"}
    alone = {client: copy.deepcopy(hooks.model) for client in range(3)}  # each with a model
    for number in range(3):
        begin_round(servers, number)
        state = {k: torch.from_numpy(v.copy()) for k, v in servers[0].model.state.items()}
        for client in range(3):
            g = torch.Generator().manual_seed(client)
            item = torch.randint(0, 40, (8,), generator=g)
            who = Client(plan, servers, client_id=client)
            with Round(hooks, who, rows=item, number=number):
                train_personal(hooks.model, client)
            twin = alone[client]
            twin.load_state_dict({**twin.state_dict(), **state})
            train_personal(twin, client)
            for name, value in twin.state_dict().items():
                if name.startswith(("users", "norm", "head.bias")):
                    assert torch.equal(value, hooks.model.state_dict()[name]), (number, name)
        finish_round(servers)


def test_a_failure_in_the_block_puts_local_parts_back() -> None:
    hooks, servers = personal_task(("users",))
    begin_round(servers, 0)
    before = hooks.model.users.weight.detach().clone()
    who = Client(servers[0].plan, servers, client_id=1)

    def fail() -> None:
        hooks.model.users.weight.data += 1
        raise KeyError

    with pytest.raises(KeyError), Round(hooks, who, rows=range(8), number=0):
        fail()
    assert torch.equal(hooks.model.users.weight, before)


def test_local_names_that_are_not_there_are_refused() -> None:
    model = Personal()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(
        ParameterError, match=r"'user', expected the name of a parameter.*users\.weight"
    ):
        Hooks(model, optimizer, local=("user",))
    with pytest.raises(ParameterError, match=r"pass a list, local=\['users'\]"):
        Hooks(model, optimizer, local="users")


def test_loading_inside_a_round_is_refused_instead_of_sent() -> None:
    task = Task()
    hooks = task.hooks[0]
    states = [copy.deepcopy(m.state_dict()) for m in (hooks.model, hooks.model.top)]
    for part, state in zip((hooks.model, hooks.model.top), states, strict=True):
        hooks.begin_round()
        with pytest.raises(ProtocolError, match="would send the loaded values as an update"):
            part.load_state_dict(state)
        hooks.restore()
        part.load_state_dict(state)
    hooks.remove()
    assert not hooks.model._load_state_dict_pre_hooks
    assert not hooks.model._state_dict_hooks


def test_copies_of_a_hooked_model_load_and_save_as_they_like() -> None:
    task = Task()
    model = task.hooks[0].model
    task.hooks[0].begin_round()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
        twin.load_state_dict(twin.state_dict())


@pytest.mark.parametrize("absent", ["nan", "zero"])
def test_saving_a_model_without_all_its_rows_warns_until_it_is_complete(absent: Any) -> None:
    task = Task(Settings(rows=Rows(absent=absent)))
    hooks, link = task.hooks[0], task.begin()
    batch = make_batch(1)
    message = r"item\.weight: this client holds only the rows .*only_missing=True"
    with Round(hooks, task.client(link, 0), rows=wanted(batch)) as rnd:
        with pytest.warns(UserWarning, match=message):
            hooks.model.state_dict()
        train(hooks.model, hooks.optimizers, [batch])
        with pytest.raises(ProtocolError):
            hooks.complete(task.state)
    with pytest.warns(UserWarning, match=message):
        hooks.model.state_dict()
    held = rnd.rows["item.weight"]
    mine = hooks.model.item.weight.detach()[held].clone()
    with pytest.raises(ParameterError, match=r"complete\(\) expects item\.weight"):
        hooks.complete({})
    hooks.complete(task.state)
    saved = hooks.model.state_dict()
    assert torch.equal(saved["item.weight"][held], mine)
    rest = [i for i in range(1, 50) if i not in held.tolist()]
    np.testing.assert_array_equal(saved["item.weight"][rest], task.state["item.weight"][rest])


def test_a_table_in_no_optimizer_is_named() -> None:
    model = Recommender()
    trained = [p for n, p in model.named_parameters() if n != "user.weight"]
    with pytest.warns(UserWarning, match=r"user\.weight requires gradients, but no optimizer of"):
        Hooks(model, torch.optim.SGD(trained, lr=0.1))


def test_settings_are_pickled_and_hooks_on_a_live_model_say_why_not() -> None:
    settings = Settings(rest=TopK(0.2))
    model = Recommender()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fed = torchfsl.Federated(model, optimizer, rest=TopK(0.2))
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301
    for live in (fed, fed.hooks):
        with pytest.raises(TypeError, match=r"fed\.state_dict\(\).*torchfsl\.Federated\("):
            pickle.dumps(live)


def test_an_update_that_could_not_be_sent_and_never_was_is_named() -> None:
    task = Task()
    link, hooks = task.begin(), task.hooks[0]
    rnd = Round(hooks, task.client(link, 0), rows=wanted(make_batch(1)))

    def work(rnd: Round) -> None:
        train(hooks.model, hooks.optimizers, [make_batch(1)])
        rnd.weight = 0.5  # type: ignore[assignment]

    with pytest.raises(ParameterError, match=r"weight is 0\.5"), rnd:
        work(rnd)
    with pytest.warns(
        UserWarning, match=r"the update of client 0 in round 0 is lost, .*call rnd\.retry\(\)"
    ):
        del rnd


def test_too_few_reports_name_min_clients() -> None:
    task = Task()
    task.begin()
    with pytest.raises(ProtocolError, match=r"min_clients.*let more clients participate"):
        task.finish()


def test_a_client_number_that_cannot_be_one_gets_no_personal_parts() -> None:
    hooks, _ = personal_task(("users",))
    before = hooks.model.users.weight.detach().clone()
    for number in (-1, 1 << 64, "ann", 1.5, True):
        with pytest.raises(ParameterError, match="client_id"):
            hooks.personal.switch_to(number)
    hooks.personal.switch_to(7)  # in no round yet: the tensors of before
    assert torch.equal(hooks.model.users.weight, before)
