"""Tables that grow: old rows go on bit for bit, new ones begin like rows that nobody sent."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchfsl
from torchfsl import fsl
from torchfsl.engine.round import Round
from torchfsl.errors import ParameterError
from torchfsl.submodel.growing import grown
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.server_optimizers import (
    ServerAdam,
    ServerFTRL,
    ServerLazyAdam,
    ServerOptimizer,
    ServerRowAdagrad,
    ServerSGD,
)

OPTIMIZERS: dict[str, Callable[[], ServerOptimizer]] = {
    "sgd": lambda: ServerSGD(0.5, momentum=0.9),
    "adam": lambda: ServerAdam(0.01),
    "lazy-adam": lambda: ServerLazyAdam(0.01),
    "ftrl": lambda: ServerFTRL(0.1, l1=0.001),
    "row-adagrad": lambda: ServerRowAdagrad(0.1),
}


def step(model: ServerModel, rows: int, seed: int) -> None:
    """As a round would, of gradients in the first rows alone."""
    g = np.random.default_rng(seed).standard_normal((rows, 3))
    whole = np.zeros(model.state["w"].shape)
    whole[:rows] = g
    model.optimizer.advance()
    part = model.state["w"].reshape(-1).astype(np.float64)
    model.optimizer.rows_of("w", 3)
    if model.optimizer.lazy:
        model.optimizer.step_rows("w", np.arange(rows), len(whole), part.reshape(-1, 3)[:rows], g)
    else:
        model.optimizer.step("w", 0, part.size, part, whole.reshape(-1))
    model.state["w"].reshape(-1)[:] = part


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_a_grown_model_goes_on_as_if_the_rows_had_always_been_there(name: str) -> None:
    rng = np.random.default_rng(0)
    whole = rng.standard_normal((9, 3)).astype(np.float32)
    small = ServerModel({"w": whole[:5]}, OPTIMIZERS[name]())
    large = ServerModel({"w": whole}, OPTIMIZERS[name]())
    for seed in range(3):
        step(small, 5, seed)
        step(large, 5, seed)
    other = rng.standard_normal((9, 3)).astype(np.float32)
    other[5:] = whole[5:]
    small = grown(small, {"w": other}, OPTIMIZERS[name]())
    for seed in range(3, 6):
        step(small, 9, seed)
        step(large, 9, seed)
    assert small.digest() == large.digest()


def test_what_is_not_growing_is_refused() -> None:
    model = ServerModel({"w": np.zeros((5, 3)), "b": np.zeros(2)})
    for state, message in [
        ({"w": np.zeros((9, 3))}, "were added or removed: b"),
        ({"w": np.zeros((4, 3)), "b": np.zeros(2)}, "add rows at the end"),
        ({"w": np.zeros((9, 4)), "b": np.zeros(2)}, "add rows at the end"),
    ]:
        with pytest.raises(ParameterError, match=message):
            grown(model, state, ServerSGD())


class Ranker(nn.Module):
    def __init__(self, items: int) -> None:
        super().__init__()
        self.items, self.top = nn.Embedding(items, 8), nn.Linear(8, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(self.items(ids)).squeeze(1)


def test_the_recipe_works_as_printed() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "growing.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    model = Ranker(1000)
    opt = torch.optim.Adagrad(model.parameters(), lr=0.1)
    fed = torchfsl.Federated(model, opt, max_clients=10, rows_per_client=70)
    make = lambda: ServerModel(fed.server_state(), ServerAdam(0.01))  # noqa: E731
    scope: dict[str, Any] = {
        "torch": torch, "torchfsl": torchfsl, "Ranker": Ranker, "fed": fed,
        "servers": tuple(fsl.Server(b, plan=fed.plan, model=make()) for b in (0, 1)),  # type: ignore[arg-type]
    }  # fmt: skip

    def one_round(number: int, low: int, high: int) -> None:
        servers, hooks = scope["servers"], scope["fed"].hooks
        optimizer = hooks.optimizers[0]
        fsl.begin_round(servers, number)
        for client in (0, 1):
            ids = torch.randint(low, high, (8,))
            who = fsl.Client(servers[0].plan, servers, client_id=client)
            with Round(hooks, who, rows=ids, number=number):
                optimizer.zero_grad()
                hooks.model(ids).square().sum().backward()
                optimizer.step()
        fsl.finish_round(servers)

    one_round(0, 0, 1000)
    before = scope["servers"][0].model.state["items.weight"].copy()
    exec(compile(block, "growing.md", "exec"), scope)  # noqa: S102
    np.testing.assert_array_equal(scope["servers"][1].model.state["items.weight"][:1000], before)
    one_round(0, 900, 1200)
    assert scope["servers"][0].model.digest() == scope["servers"][1].model.digest()
