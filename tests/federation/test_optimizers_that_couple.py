"""Optimizers whose step of a row depends on others, and settings that rounds would leave out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchfsl
from tests.federation.test_client_state import Heavy, Net, data_of, steps
from torchfsl.errors import ParameterError


class _PerTensor(torch.optim.Optimizer):
    """Scales each tensor's step by a norm over it."""

    def __init__(self, params: Any, kind: str, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})
        self.kind = kind

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                step = p.grad
                if self.kind in ("LAMB", "Adam-like LARS"):
                    second = self.state[p].setdefault("second", torch.zeros_like(p))
                    second.mul_(0.9).addcmul_(step, step, value=0.1)
                    step = step / (second.sqrt() + 1e-8)
                if self.kind == "column mean":
                    step = step - step.mean(dim=0)
                elif self.kind == "sign":
                    step = step.sign()
                else:
                    step = step * (p.norm() / (step.norm() + 1e-8))
                p.sub_(group["lr"] * step)
                if self.kind == "Fromage":
                    p.div_((1 + group["lr"] ** 2) ** 0.5)


def federated(optimizer: Any, model: nn.Module, **options: Any) -> torchfsl.Federated:
    return torchfsl.Federated(
        model, optimizer, max_clients=2, min_clients=1,
        **{"rows_per_client": 100, "above_break_even": "keep", **options},
    )  # fmt: skip


def one_round(fed: torchfsl.Federated, train: Any, rows: bool = True) -> None:
    servers = fed.local_servers()
    with servers.round():
        ids = {"words": data_of(0)[0]} if rows else None
        with fed.round(servers, 0, rows=ids):
            train()


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adafactor(p, lr=0.05),
        *(
            lambda p, kind=kind: _PerTensor(p, kind)
            for kind in ("LARS", "LAMB", "Fromage", "Adam-like LARS", "column mean")
        ),
    ],
)
def test_an_optimizer_that_couples_rows_is_refused_where_rows_are_fetched(make: Any) -> None:
    model = Net()
    optimizer = make(model.parameters())
    fed = federated(optimizer, model)
    with pytest.raises(ParameterError, match=r"depends on all rows .*rows=None"):
        one_round(fed, lambda: steps(model, optimizer, 0))
    fed.detach()
    assert not optimizer.state  # it was tried on another table
    whole = federated(optimizer, model, rows=None, rows_per_client=None)
    one_round(whole, lambda: steps(model, optimizer, 0), rows=False)


def test_an_optimizer_that_steps_row_by_row_is_taken() -> None:
    model = Net()
    optimizer = _PerTensor(model.parameters(), "sign")
    one_round(federated(optimizer, model), lambda: steps(model, optimizer, 0))


def test_a_schedule_on_the_optimizer_does_not_disturb_the_trial() -> None:
    model = Net()
    optimizer = _PerTensor(model.parameters(), "LARS")
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with pytest.raises(ParameterError, match="depends on all rows"):
        one_round(federated(optimizer, model), lambda: steps(model, optimizer, 0))


def test_states_that_cannot_be_read_by_row_are_refused_before_the_first_round() -> None:
    model = Net()
    optimizer = Heavy(model.parameters())
    with pytest.raises(ParameterError, match="'exp_avg' as Packed"):
        one_round(federated(optimizer, model), lambda: steps(model, optimizer, 0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maximize": True}, "maximize=False and negate the loss"),
        ({"weight_decay": 0.1}, "weight_decay=0.1"),
        ({"weight_decay": 0.1, "momentum": 0.9}, "weight_decay=0.1"),
    ],
)
def test_settings_that_rounds_of_gradients_leave_out_are_refused(
    options: dict[str, Any], words: str
) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, **options)
    with pytest.raises(ParameterError, match=words):
        federated(optimizer, model, source="gradient")


@pytest.mark.parametrize("when", ["attach", "round"])
def test_rates_by_group_are_refused_under_gradients(when: str) -> None:
    model = Net()
    groups = [{"params": [model.words.weight], "lr": 0.5}, {"params": model.head.parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.5)
    if when == "attach":
        optimizer.param_groups[0]["lr"] = 0.1
        with pytest.raises(ParameterError, match="LazyAdam"):
            federated(optimizer, model, source="gradient")
        return
    fed = federated(optimizer, model, source="gradient")
    optimizer.param_groups[0]["lr"] = 0.1
    with pytest.raises(ParameterError, match="LazyAdam"):
        one_round(fed, lambda: steps(model, optimizer, 0))


def test_a_client_that_climbs_sends_an_ascent_as_delta() -> None:
    model, own = Net(), Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, maximize=True)
    fed = federated(optimizer, model)
    servers = fed.local_servers(server_optimizer=torchfsl.optim.SGD())
    with servers.round(), fed.round(servers, 0, rows={"words": data_of(0)[0]}):
        steps(model, optimizer, 0)
    steps(own, torch.optim.SGD(own.parameters(), lr=0.5, maximize=True), 0)
    for name, value in own.named_parameters():
        assert torch.allclose(torch.from_numpy(servers.model.state[name]), value, atol=1e-5)
