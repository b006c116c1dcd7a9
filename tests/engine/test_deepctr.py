"""deepctr-torch's models with their default arguments, L2 over whole tables included.

Needs `deepctr-torch`, in an environment of its own beside torch; skipped where it is absent.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.engine_rounds import plain_sum
from tests.support.engine_setup import plan_of
from torchfsl import Rows
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.lookups import advise
from torchfsl.engine.round import Round
from torchfsl.engine.settings import Settings
from torchfsl.fsl import Client, Server, begin_round, finish_round
from torchfsl.submodel.server_model import ServerModel

inputs = pytest.importorskip("deepctr_torch.inputs")
deepctr = pytest.importorskip("deepctr_torch.models")

ITEMS, USERS, LENGTH, CLIENTS = 3000, 200, 4, 3


def deep_fm(_: Any = None) -> nn.Module:
    columns = [inputs.SparseFeat("item", ITEMS, 4), inputs.SparseFeat("user", USERS, 4)]
    return deepctr.DeepFM(columns, columns)


def din(_: Any = None) -> nn.Module:
    item = inputs.SparseFeat("item", ITEMS, 4)
    history = inputs.VarLenSparseFeat(
        inputs.SparseFeat("hist_item", ITEMS, 4, embedding_name="item"), LENGTH, length_name="n"
    )
    columns = [item, inputs.SparseFeat("user", USERS, 4), history]
    return deepctr.DIN(columns, ["item"])


def batch_of(client: int, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """As deepctr-torch takes it: a float matrix with a column for each id; labels."""
    g = torch.Generator().manual_seed(client)
    item = torch.randint(1, ITEMS, (16, 1), generator=g)
    columns = [item, torch.full((16, 1), client)]
    if name == "DIN":
        history = torch.randint(1, ITEMS, (16, LENGTH), generator=g)
        columns += [history, torch.randint(1, LENGTH + 1, (16, 1), generator=g)]
    return torch.cat(columns, 1).float(), (item.squeeze(1) % 2).float()


def train(
    model: Any, optimizer: Any, batch: Any, held: Mapping[str, torch.Tensor] | None = None
) -> None:
    """Two steps; L2 as the library has it, or over the rows `held` of its tables alone."""
    x, label = batch
    for _ in range(2):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy(model(x).squeeze(1), label, reduction="sum")
        if held is None:
            loss = loss + model.get_regularization_loss()
        else:
            names = {id(p): n for n, p in model.named_parameters()}
            for weights, l1, l2 in model.regularization_weight:
                assert l1 == 0
                for given in weights if l2 else []:
                    w = given[1] if isinstance(given, tuple) else given
                    rows = held.get(names[id(w)])
                    loss = loss + torch.sum(l2 * torch.square(w if rows is None else w[rows]))
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("build", [deep_fm, din])
def test_default_arguments_train_exactly_on_retrieved_rows(build: Any) -> None:
    torch.set_num_threads(1)
    model = build()
    name = type(model).__name__
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    fresh = copy.deepcopy(optimizer.state_dict())
    hooks = Hooks(model, optimizer, Settings(rows=Rows(absent="zero")))
    wanted = {c: hooks.rows_of([batch_of(c, name)[0]]) for c in range(CLIENTS)}
    budget = advise(hooks.inventory.tables, wanted.values()).rows_per_client()
    plan = plan_of(hooks, max_clients=3, rows_per_client=budget, above_break_even="dense")
    servers = tuple(Server(b, plan=plan, model=ServerModel(hooks.server_state())) for b in (0, 1))
    assert any(s.retrieve for s in plan.segments)
    for number in range(3):
        begin_round(servers, number)
        updates = []
        for client in range(CLIENTS):
            batch = batch_of(client, name)
            optimizer.load_state_dict(copy.deepcopy(fresh))
            buffers = {n: b.clone() for n, b in model.named_buffers()}
            who = Client(plan, servers, client_id=client)
            with Round(hooks, who, rows=wanted[client], number=number) as rnd:
                train(model, optimizer, batch)
            updates.append(rnd.update)
            twin = build()
            state = {n: torch.from_numpy(v.copy()) for n, v in servers[0].model.state.items()}
            twin.load_state_dict({**twin.state_dict(), **state, **buffers})
            train(twin, torch.optim.Adagrad(twin.parameters(), lr=0.05), batch, rnd.rows)
            mine = dict(model.named_parameters())
            for key, value in twin.named_parameters():
                rows = rnd.rows.get(key, slice(None))
                assert torch.equal(mine[key][rows], value[rows]), (number, client, key)
        opened = finish_round(servers)
        for key, total in plain_sum(plan, updates).items():
            np.testing.assert_array_equal(opened.sums[key].reshape(total.shape), total)
    assert servers[0].model.digest() == servers[1].model.digest()
