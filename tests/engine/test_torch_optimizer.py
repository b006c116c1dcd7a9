"""torch's own optimizers at the servers: the sum of gradients is applied as torch would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.submodel.test_server_model import as_tensor, changes_of, opened_of
from tests.support.engine_models import WIDE, loss_of, make_batch, parameters_of, train
from tests.support.engine_rounds import Task, wanted
from tests.support.federation import make_plan, make_segment, make_state
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.engine.round import Round
from torchfsl.engine.settings import Settings
from torchfsl.engine.torch_optimizer import TorchOptimizer
from torchfsl.errors import ParameterError
from torchfsl.submodel import server_model
from torchfsl.submodel.server_model import ServerModel

_o = torch.optim
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: _o.SGD(p, lr=0.1),
    "momentum": lambda p: _o.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda p: _o.Adagrad(p, lr=0.1),
    "Adam": lambda p: _o.Adam(p, lr=0.1, amsgrad=True),
    "AdamW": lambda p: _o.AdamW(p, lr=0.1),
    "RMSprop": lambda p: _o.RMSprop(p, lr=0.1, centered=True),
    "Adadelta": lambda p: _o.Adadelta(p, lr=0.1),
    "NAdam": lambda p: _o.NAdam(p, lr=0.1),
    "RAdam": lambda p: _o.RAdam(p, lr=0.1),
    "Adamax": lambda p: _o.Adamax(p, lr=0.1),
    "Rprop": lambda p: _o.Rprop(p, lr=0.1),
    "ASGD": lambda p: _o.ASGD(p, lr=0.1),
}
PLAN = make_plan(
    make_segment("rows", "rows", (5, 3), (4, 3), k_max=4, tau=3, dtype="float64"),
    make_segment("bias", "dense", (6,), dtype="float64"),
    encoding=FixedPoint(32, 10, 4.0),
)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_model_is_what_torch_makes_of_the_mean_gradient(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_model, "_CHUNK", 4)
    state = make_state(PLAN)
    models = [
        ServerModel(state, TorchOptimizer(OPTIMIZERS[name]), source="gradient") for _ in range(2)
    ]
    whole = {n: torch.tensor(v, requires_grad=True) for n, v in state.items()}
    theirs = OPTIMIZERS[name](list(whole.values()))
    for seed in range(4):
        opened = opened_of(PLAN, seed)
        for tensor, change in changes_of(PLAN, opened).items():
            whole[tensor].grad = torch.from_numpy(as_tensor(PLAN, tensor, change))
        theirs.step()
        models[0].apply(PLAN, opened)
        models[1].apply(PLAN, opened)
        for tensor, value in whole.items():
            np.testing.assert_allclose(models[0].state[tensor], value.detach(), rtol=1e-14)
        restored = TorchOptimizer(OPTIMIZERS[name])  # as from a checkpoint
        restored.load_state(models[1].optimizer.state())
        models[1] = ServerModel(models[1].state, restored, source="gradient")
        assert models[0].digest() == models[1].digest()


def test_a_round_of_gradients_steps_as_central_training_does() -> None:
    task = Task(Settings(source="gradient", encoding=WIDE), server={"source": "gradient"})
    for server in task.servers:
        server.model.optimizer = TorchOptimizer(OPTIMIZERS["Adagrad"])
    torch.manual_seed(0)
    central = type(task.hooks[0].model)()
    optimizer = OPTIMIZERS["Adagrad"](central.parameters())
    for number in range(3):
        link = task.begin()
        for client, hooks in enumerate(task.hooks):
            batch = make_batch(10 * number + client)
            with Round(hooks, task.client(link, client), number=number, rows=wanted(batch)):
                train(hooks.model, hooks.optimizers, [batch])
        task.finish()
        optimizer.zero_grad()
        for client in range(2):
            (loss_of(central, make_batch(10 * number + client)) / 2).backward()
        optimizer.step()
        for name, value in parameters_of(central).items():
            np.testing.assert_allclose(task.state[name], value, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.Adafactor, torch.optim.SparseAdam])
def test_an_optimizer_that_looks_at_whole_parameters_is_refused(kind: Any) -> None:
    with pytest.raises(
        ParameterError, match=rf"{kind.__name__} does not update .* choose from SGD"
    ):
        TorchOptimizer(kind)
